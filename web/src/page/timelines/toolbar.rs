//! The buttons above the lanes.
//!
//! Invariant: whatever wheel, pinch and drag can do, a button can do too.

use leptos::prelude::*;

use super::board::{Board, Mode};
use super::picture;
use crate::page::files;
use crate::protocol::{Command, ExportKind};

/// Moving the view, and downloads.
#[component]
pub fn Toolbar(board: Board) -> impl IntoView {
    let zoom = move |factor: f64| board.move_by_hand(|view| view.zoomed(factor, view.width / 2.0));
    let pan = move |part: f64| board.move_by_hand(|view| view.panned(part * view.width));
    let pressed = move |mode: Mode| move || if board.mode.get() == mode { "true" } else { "false" };
    let export = move |kind: ExportKind| board.command.run(Command::Export { kind });
    let none = move || board.rows.with(Vec::is_empty);
    let failed = RwSignal::new(String::new());
    // A report is such a document already.
    let is_report = files::report_template().is_none();
    view! {
        <div class="tl-tools" role="toolbar" aria-label="View and downloads">
            <span class="tl-group">
                <button type="button" aria-pressed=pressed(Mode::Follow) on:click=move |_| board.mode.set(Mode::Follow)
                    title="Shows what runs now (L)">"Follow"</button>
                <button type="button" aria-pressed=pressed(Mode::Fit) on:click=move |_| board.mode.set(Mode::Fit)
                    title="Shows all lanes whole (F)">"Fit"</button>
            </span>
            <span class="tl-group">
                <button type="button" class="icon" aria-label="Earlier" title="Earlier (Shift+Left)" on:click=move |_| pan(-0.25)>"\u{2039}"</button>
                <button type="button" class="icon" aria-label="Zoom out" title="Zoom out (-)" on:click=move |_| zoom(0.5)>"\u{2212}"</button>
                <button type="button" class="icon" aria-label="Zoom in" title="Zoom in (+)" on:click=move |_| zoom(2.0)>"+"</button>
                <button type="button" class="icon" aria-label="Later" title="Later (Shift+Right)" on:click=move |_| pan(0.25)>"\u{203a}"</button>
            </span>
            <span class="tl-group">
                <button type="button" disabled=none on:click=move |_| export(ExportKind::Json)
                    aria-label="Download timelines, steps and report as JSON">"JSON"</button>
                <button type="button" disabled=none on:click=move |_| export(ExportKind::ChromeTrace)
                    aria-label="Download as Chrome trace, for Perfetto">"Trace"</button>
                <button type="button" disabled=none on:click=move |_| picture::download(board, failed)
                    aria-label="Download the picture as PNG">"PNG"</button>
                <button type="button" disabled=none class:gone=is_report on:click=move |_| export(ExportKind::Html)
                    aria-label="Download all of it as a document that opens without a network">"HTML"</button>
            </span>
            <span class="tl-failed" role="status">{failed}</span>
        </div>
    }
}

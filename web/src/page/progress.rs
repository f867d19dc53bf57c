//! How far opening is, with the button that stops it, or why it failed, with the button that tries again.
//!
//! Invariant: the stages keep their places while they come and go, so that nothing jumps.

use leptos::prelude::*;

use super::opening::Opening;
use super::state::{Page, page};
use crate::protocol::{Command, Progress, Stage};
use crate::view::words;

/// See the module.
#[component]
pub fn OpeningPanel() -> impl IntoView {
    let page = page();
    // The frame is made anew only when something else is opened, or it ends.
    let frame = Memo::new(move |_| {
        page.opening.with(|opening| {
            opening
                .as_ref()
                .map(|o| (o.what.clone(), o.failed.clone(), matches!(o.command, Command::Open { .. })))
        })
    });
    move || {
        frame.get().map(|(what, failed, staged)| match failed {
            Some(sentence) => failure(page, &what, sentence),
            None => running(page, what, staged),
        })
    }
}

fn failure(page: Page, what: &str, sentence: String) -> AnyView {
    let again = move |_| {
        if let Some(opening) = page.opening.get_untracked() {
            page.open_again(opening.what, opening.command);
        }
    };
    view! {
        <section class="card opening" aria-label="Opening">
            <div role="alert">
                <h2>{format!("Could not open {what}")}</h2>
                <p class="sentence">{words::sentence(&sentence)}</p>
            </div>
            <div class="row">
                <button type="button" class="primary" on:click=again>"Try again"</button>
                <button type="button" on:click=move |_| page.dismiss_opening()>"Choose something else"</button>
            </div>
        </section>
    }
    .into_any()
}

fn running(page: Page, what: String, staged: bool) -> AnyView {
    let stopping = move || page.opening.with(|o| o.as_ref().is_some_and(|o| o.stopping));
    let progress = Memo::new(move |_| page.opening.with(|o| o.as_ref().and_then(|o| o.progress.clone())));
    let words = move || match progress.get() {
        Some(progress) => {
            let file = progress.file.clone().map(|file| format!("{file}: ")).unwrap_or_default();
            format!("{file}{}", words::progress(&progress))
        }
        None => "Asking\u{2026}".to_owned(),
    };
    view! {
        <section class="card opening" aria-label="Opening">
            <h2>{format!("Opening {what}")}</h2>
            {staged.then(|| stages(page))}
            <Bar progress=progress/>
            <p class="figures">{words}</p>
            <div class="row">
                <button type="button" disabled=stopping on:click=move |_| page.stop_opening()>
                    {move || if stopping() { "Stopping\u{2026}" } else { "Stop" }}
                </button>
            </div>
        </section>
    }
    .into_any()
}

#[component]
fn Bar(progress: Memo<Option<Progress>>) -> impl IntoView {
    let part = move || {
        progress
            .get()
            .and_then(|p| p.total.filter(|total| *total > 0).map(|total| p.done as f64 / total as f64))
    };
    // In whole percents: a screen reader is told of each change.
    let percent = move || part().map(|part| (part.min(1.0) * 100.0).floor().to_string());
    let width = move || part().map_or("100%".to_owned(), |part| format!("{:.2}%", part.min(1.0) * 100.0));
    view! {
        <div
            class="bar"
            class:unknown=move || part().is_none()
            role="progressbar"
            aria-label="Progress of this stage"
            aria-valuemin="0"
            aria-valuemax="100"
            aria-valuenow=percent
        >
            <span style:width=width></span>
        </div>
    }
    .into_any()
}

fn stages(page: Page) -> AnyView {
    let all = [Stage::Download, Stage::Check, Stage::Upload, Stage::Compile];
    let rows = all.map(|stage| {
        let state =
            move || page.opening.with(|opening| opening.as_ref().map_or("to-come", |o| state(o, stage)));
        let said = move || match state() {
            "done" => "done",
            "now" => "now",
            _ => "to come",
        };
        view! {
            <li class=state>
                {words::stage(stage)} <span class="visually-hidden">{move || format!(" ({})", said())}</span>
            </li>
        }
    });
    view! { <ol class="stages">{rows.collect_view()}</ol> }.into_any()
}

fn state(opening: &Opening, stage: Stage) -> &'static str {
    let current = opening.progress.as_ref().map(|progress| progress.stage);
    match () {
        () if current == Some(stage) => "now",
        // A stage that was passed over, as the download of a stored model is, counts as done too.
        () if opening.seen.contains(&stage) || current.is_some_and(|now| now as u8 > stage as u8) => "done",
        () => "to-come",
    }
}

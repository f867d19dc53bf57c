//! A table beside every picture, with the same figures.
//!
//! Invariant: a table that is closed costs nothing: its rows are made when it is opened.

use firstlight_engine::timeline::{StepRecord, TimelineRecord};
use leptos::prelude::*;

use super::board::Board;
use crate::view::duration::{count, millis};
use crate::view::rows::{find, state};
use crate::view::steps::{obstacle_name, prefill_tokens};

/// The most steps of a table: those in view that came last.
const MOST_STEPS: usize = 200;

/// A table behind a summary. The first column names its row.
#[component]
pub fn Table(
    #[prop(into)] caption: String,
    head: &'static [&'static str],
    rows: Signal<Vec<Vec<String>>>,
) -> impl IntoView {
    let open = RwSignal::new(false);
    let title = caption.clone();
    let row = |cells: Vec<String>| {
        let cell = |(idx, cell): (usize, String)| match idx {
            0 => view! { <th scope="row">{cell}</th> }.into_any(),
            _ => view! { <td>{cell}</td> }.into_any(),
        };
        view! { <tr>{cells.into_iter().enumerate().map(cell).collect_view()}</tr> }
    };
    let table = move || {
        let (caption, label) = (title.clone(), title.clone());
        open.get().then(|| {
            view! {
                <div class="table-room" tabindex="0" role="region" aria-label=label>
                    <table class="tl-table">
                        <caption>{caption}</caption>
                        <thead><tr>{head.iter().map(|name| view! { <th scope="col">{*name}</th> }).collect_view()}</tr></thead>
                        <tbody>{move || rows.get().into_iter().map(row).collect_view()}</tbody>
                    </table>
                </div>
            }
        })
    };
    view! {
        <details class="tl-details" on:toggle=move |event| {
            let details: web_sys::HtmlDetailsElement = event_target(&event);
            open.set(details.open());
        }>
            <summary>"Table: "{caption}</summary>
            {table}
        </details>
    }
}

fn lane_row(record: &TimelineRecord, origin: u64) -> Vec<String> {
    let engine = record.parts.and_then(|parts| parts.engine);
    let of = |nanos: Option<u64>| nanos.map_or("–".to_owned(), millis);
    vec![
        record.engine_id.to_string(),
        state(record),
        of(record.stamps.received.map(|at| at.saturating_sub(origin))),
        of(engine.map(|e| e.inbox.total())),
        of(engine.map(|e| e.queue_wait.total())),
        of(engine.map(|e| e.waste())),
        of(engine.map(|e| e.prefill.total())),
        of(record.engine_ttft),
        of(record.ttft),
        of(record.decode.map(|decode| decode.total())),
        of(record.e2e),
        count(record.tokens.prompt.into()),
        count(record.tokens.generated.into()),
        count(record.preemptions.into()),
    ]
}

/// The lanes.
#[component]
pub fn LaneTable(board: Board) -> impl IntoView {
    let rows = Signal::derive(move || {
        board.frame.track();
        let origin = board.origin();
        let ids = board.rows.get();
        board.session.with_untracked(|session| {
            ids.into_iter().filter_map(|id| Some(lane_row(find(session, id)?, origin))).collect()
        })
    });
    let head = &[
        "request",
        "state",
        "received (ms)",
        "inbox (ms)",
        "queue (ms)",
        "waste (ms)",
        "prefill (ms)",
        "engine TTFT (ms)",
        "TTFT (ms)",
        "decode (ms)",
        "end to end (ms)",
        "prompt",
        "generated",
        "evictions",
    ];
    view! { <Table caption="requests with a lane" head rows/> }
}

fn step_row(step: &StepRecord, origin: u64) -> Vec<String> {
    vec![
        count(step.id),
        millis(step.schedule_at.saturating_sub(origin)),
        millis(step.done_at.saturating_sub(step.schedule_at)),
        count(prefill_tokens(step).into()),
        count(step.decode_rows.into()),
        count(step.running.into()),
        count(step.waiting.into()),
        step.obstacle.map_or("–", obstacle_name).to_owned(),
        format!("{} of {}", count(step.blocks_used.into()), count(step.blocks_total.into())),
        count(step.preempted.len() as u64),
        if step.failed { "yes" } else { "no" }.to_owned(),
    ]
}

/// The steps in view.
#[component]
pub fn StepTable(board: Board) -> impl IntoView {
    let rows = Signal::derive(move || {
        board.frame.track();
        let (origin, view) = (board.origin(), board.viewport.get());
        let seen =
            move |step: &&StepRecord| view.x(step.done_at) >= 0.0 && view.x(step.schedule_at) <= view.width;
        board.session.with_untracked(|session| {
            let mut rows: Vec<Vec<String>> = session
                .steps
                .iter()
                .rev()
                .filter(seen)
                .take(MOST_STEPS)
                .map(|step| step_row(step, origin))
                .collect();
            rows.reverse();
            rows
        })
    });
    let head = &[
        "step",
        "began (ms)",
        "lasted (ms)",
        "prompt tokens",
        "decode rows",
        "running",
        "waiting",
        "obstacle",
        "KV blocks",
        "evicted",
        "failed",
    ];
    view! { <Table caption="steps in view, 200 at most" head rows/> }
}

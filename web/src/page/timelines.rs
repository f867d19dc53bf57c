//! Where each request's time goes: lanes and steps on one axis, one request opened, the report.
//!
//! Whatever is drawn is computed by `view`; here it meets the DOM. Invariant: a redraw happens at most once an animation
//! frame, and touches only what changed.

mod bench;
mod board;
mod budget;
mod diagnosis;
mod gaps;
mod lanes;
mod opened;
mod picture;
mod report;
mod steps;
mod tables;
mod toolbar;

use leptos::prelude::*;

use self::board::Board;
use crate::protocol::{Command, Diagnosis};
use crate::view::kept::Kept;
use crate::view::markup::HATCH;
use crate::view::part::LEGEND;
use crate::view::session::Session;

/// The timeline half of the page. `blames` holds the answers to [`Command::Blame`] by timeline and token, `rendered` the
/// rendered prompts by timeline, `diagnosis` the last answer to [`Command::Diagnose`].
#[component]
pub fn Timelines(
    session: RwSignal<Session>,
    blames: RwSignal<Kept>,
    rendered: RwSignal<Kept>,
    diagnosis: RwSignal<Option<Diagnosis>>,
    command: Callback<Command>,
) -> impl IntoView {
    let board = Board::new(session, command);
    super::lane::open_on_demand(session, board.opened, board.active);
    let is_empty = move || board.rows.with(Vec::is_empty);
    let facts = bench::facts(board);
    view! {
        <div class="timelines">
            <svg class="hidden-defs" width="0" height="0" aria-hidden="true"><defs inner_html=HATCH></defs></svg>
            <bench::Conditions board facts/>
            <section class="tl-card" aria-labelledby="tl-lanes-title">
                <header class="tl-head">
                    <h2 id="tl-lanes-title">"Timelines"</h2>
                    <toolbar::Toolbar board/>
                </header>
                <p class="tl-empty" class:gone=move || !is_empty()>
                    "No request yet: send a prompt, or several at once, and each gets a lane here that shows what it waits for \
                     and what it computes."
                </p>
                <div class:gone=is_empty>
                    <lanes::Lanes board/>
                    <Legend/>
                    <div class="tl-tables">
                        <tables::LaneTable board/>
                        <tables::StepTable board/>
                    </div>
                </div>
            </section>
            <opened::Opened board blames rendered/>
            <bench::Slowest board facts blames/>
            <report::Report board/>
            <diagnosis::Diagnosis board told=diagnosis/>
            <budget::Budget board/>
            <lanes::TipLayer board/>
        </div>
    }
}

#[component]
fn Legend() -> impl IntoView {
    let item = |(class, words, waste): (&'static str, &'static str, bool)| {
        view! {
            <li>
                <span class=format!("swatch part-{class}") class:hatched=waste aria-hidden="true"></span>
                {words}
            </li>
        }
    };
    let sign = |path: &'static str, class: &'static str, words: &'static str| {
        view! {
            <li>
                <svg width="12" height="12" aria-hidden="true"><path class=class d=path></path></svg>
                {words}
            </li>
        }
    };
    view! {
        <ul class="legend" aria-label="Legend">
            {LEGEND.map(item).collect_view()}
            {sign("M6 1l4 5l-4 5l-4 -5z", "mark-token", "first token")}
            {sign("M6 2l4 7h-8z", "mark-write", "first write")}
            {sign("M6 10l-5 -8h10z", "mark-evicted", "eviction")}
            {sign("M6 0v12", "tick-slow", "slow token")}
            {sign("M2 2l8 8m0 -8l-8 8", "mark-cross", "ended without its answer")}
        </ul>
    }
}

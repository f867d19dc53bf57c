//! What a bench came to, beside its timelines: the conditions, the run that is shown, and the slowest requests with what is
//! to blame.
//!
//! Shown where a bench's result was opened. Invariant: nothing is blamed here: who has the steps is asked, once a gap.

use leptos::prelude::*;

use super::board::{Board, Mode};
use crate::protocol::{BenchFacts, Command};
use crate::view::bars::requests;
use crate::view::gaps::{gap_name, longest};
use crate::view::kept::Kept;
use crate::view::rows::find;
use crate::view::words;

/// Requests that are explained.
const SLOWEST: usize = 5;

/// The result that is open, if there is one.
pub fn facts(board: Board) -> Memo<Option<BenchFacts>> {
    Memo::new(move |_| {
        board.frame.track();
        board.session.with_untracked(|session| session.backend.as_ref()?.bench.clone())
    })
}

/// Everything that the figures depend on, and which of the runs is shown.
#[component]
pub fn Conditions(board: Board, facts: Memo<Option<BenchFacts>>) -> impl IntoView {
    // A run is over: all of it is what there is to see.
    Effect::new(move |_| facts.with(Option::is_some).then(|| board.mode.set(Mode::Fit)));
    let card = move || facts.get().map(|facts| card(board, facts));
    view! { {card} }
}

fn card(board: Board, facts: BenchFacts) -> AnyView {
    let option = |(idx, name): (usize, String)| {
        view! { <option value=idx.to_string() selected=idx == facts.shown>{name}</option> }
    };
    let choose = move |event| {
        if let Ok(run) = event_target_value(&event).parse() {
            board.command.run(Command::ShowRun { run });
        }
    };
    let several = facts.runs.len() > 1;
    let options = facts.runs.into_iter().enumerate().map(option).collect_view();
    let row = |(name, value): (String, String)| view! { <div><dt>{name}</dt><dd>{value}</dd></div> };
    view! {
        <section class="tl-card" aria-labelledby="tl-bench-title">
            <header class="tl-head">
                <h2 id="tl-bench-title">"What was measured"</h2>
                <label class:gone=!several>"Run "<select on:change=choose>{options}</select></label>
            </header>
            <dl class="bench-facts">{facts.conditions.into_iter().map(row).collect_view()}</dl>
        </section>
    }
    .into_any()
}

/// A request, and the token that came latest after the one before it.
#[derive(Clone, PartialEq)]
struct Slow {
    engine_id: u64,
    id: String,
    first_token: String,
    late_token: Option<usize>,
}

fn slowest(board: Board) -> Vec<Slow> {
    board.session.with_untracked(|session| {
        let of = |engine_id: u64| {
            let record = find(session, engine_id)?;
            Some(Slow {
                engine_id,
                id: record.id.clone(),
                first_token: words::first_token(record).unwrap_or_default(),
                late_token: longest(&record.token_at),
            })
        };
        requests(&session.sealed).iter().take(SLOWEST).filter_map(|bar| of(bar.engine_id?)).collect()
    })
}

/// The requests whose first token took longest: what that went to, and what is to blame for their slowest gap.
#[component]
pub fn Slowest(board: Board, facts: Memo<Option<BenchFacts>>, blames: RwSignal<Kept>) -> impl IntoView {
    let all = Memo::new(move |_| {
        board.frame.track();
        if facts.with(Option::is_some) { slowest(board) } else { Vec::new() }
    });
    Effect::new(move |_| {
        for slow in all.get() {
            let known = |token_idx| {
                blames.with_untracked(|blames| blames.get(&gap_name(&slow.id, token_idx)).is_some())
            };
            if let Some(token_idx) = slow.late_token.filter(|token_idx| !known(*token_idx)) {
                board.command.run(Command::Blame { id: slow.id, token_idx });
            }
        }
    });
    let row = move |slow: Slow| {
        let Slow { engine_id, id, first_token, late_token } = slow;
        let blame = move || {
            let name = gap_name(&id, late_token?);
            blames.with(|blames| blames.get(&name).map(|sentence| format!(" Slowest gap: {sentence}")))
        };
        view! {
            <li>
                <button type="button" class="link" on:click=move |_| board.toggle(engine_id)>"r"{engine_id}</button>
                {first_token}"."
                <span class="tl-note">{blame}</span>
            </li>
        }
    };
    view! {
        <section class="tl-card" class:gone=move || all.with(Vec::is_empty) aria-labelledby="tl-slowest-title">
            <header class="tl-head"><h2 id="tl-slowest-title">"The slowest requests"</h2></header>
            <ol class="slowest">{move || all.get().into_iter().map(row).collect_view()}</ol>
        </section>
    }
}

//! The budget: dials over a cost model, for a reference stack and for what answers here, with this session's own figures beside
//! the predictions.
//!
//! Invariant: nothing is computed while the card is closed.

use firstlight_engine::budget::{Budget as Costed, Knobs, Stack};
use leptos::prelude::*;

use super::board::Board;
use super::tables::Table;
use crate::view::budget::{
    Against, DIALS, Measured, StageRow, Turned, at_first, at_lengths_of, basis, chart, figures,
    measured_batches, measured_lengths, side_by_side, stages, stop, turned,
};
use crate::view::duration::share;
use crate::view::format::count;
use crate::view::markup;

/// See the module.
#[component]
pub fn Budget(board: Board) -> impl IntoView {
    let open = RwSignal::new(false);
    view! {
        <section class="tl-card" aria-labelledby="tl-budget-title">
            <header class="tl-head"><h2 id="tl-budget-title">"Budget"</h2></header>
            <details on:toggle=move |event| {
                let details: web_sys::HtmlDetailsElement = event_target(&event);
                open.set(details.open());
            }>
                <summary>"What a request costs by arithmetic, and what was measured"</summary>
                {move || open.get().then(|| view! { <Opened board/> })}
            </details>
        </section>
    }
    .into_any()
}

#[component]
fn Opened(board: Board) -> impl IntoView {
    let dials = RwSignal::new(at_first());
    let stack = Memo::new(move |_| {
        board.frame.track();
        board.session.with_untracked(|session| session.stack.clone())
    });
    let wants_own = RwSignal::new(true);
    let own = Memo::new(move |_| stack.get().filter(|_| wants_own.get()));
    let budget = Memo::new(move |_| own.with(|own| turned(own.as_ref(), &dials.get())));
    let dial = move |idx: usize| view! { <Dial idx dials own/> };
    let title = move || budget.with(|budget| format!("{} on {}", budget.model, budget.computed_by));
    let choose = move |is_own: bool| {
        let pressed = move || (own.with(Option::is_some) == is_own).to_string();
        (pressed, move |_| wants_own.set(is_own))
    };
    let ((own_pressed, own_click), (reference_pressed, reference_click)) = (choose(true), choose(false));
    view! {
        <div class="tl-tools" role="group" aria-label="Stack">
            <button type="button" aria-pressed=own_pressed disabled=move || stack.with(Option::is_none) on:click=own_click>
                "What answers here"
            </button>
            <button type="button" aria-pressed=reference_pressed on:click=reference_click>"Reference: 8B on an H100"</button>
        </div>
        <p class="tl-context">{title}", "{move || own.with(|own| basis(own.as_ref()))}</p>
        <div class="dials">{(0..DIALS.len()).map(dial).collect_view()}</div>
        <Figures budget/>
        <Stages budget/>
        <div class="curve-grid">
            <Predicted board own budget against=Against::Batch title="A decode step against the batch"/>
            <Predicted board own budget against=Against::Length title="A prefill against the prompt"/>
        </div>
    }
    .into_any()
}

#[component]
fn Dial(idx: usize, dials: RwSignal<Turned>, own: Memo<Option<Stack>>) -> impl IntoView {
    let dial = DIALS[idx];
    let words = move || count(stop(&dials.get(), idx) as u64, dial.unit);
    let stored = move || dial.is_stored && own.with(Option::is_some);
    view! {
        <label class="dial">
            <span>{dial.name}</span>
            <input type="range" min="0" max=dial.stops.len() - 1 step="1" prop:value=move || dials.get()[idx].to_string()
                disabled=stored aria-valuetext=words
                on:input=move |event| if let Ok(at) = event_target_value(&event).parse() {
                    dials.update(|dials| dials[idx] = at);
                }/>
            <b>{move || if stored() { "as stored".to_owned() } else { words() }}</b>
        </label>
    }
    .into_any()
}

#[component]
fn Figures(budget: Memo<Costed>) -> impl IntoView {
    let row = |[name, figure, note]: [String; 3]| {
        view! { <tr><th scope="row">{name}</th><td>{figure}</td><td class="words">{note}</td></tr> }
    };
    view! {
        <table class="tl-table">
            <caption>"What it comes to"</caption>
            <thead><tr><th scope="col">"what"</th><th scope="col">"figure"</th><th scope="col">"of which"</th></tr></thead>
            <tbody>{move || budget.with(figures).into_iter().map(row).collect_view()}</tbody>
        </table>
    }
    .into_any()
}

#[component]
fn Stages(budget: Memo<Costed>) -> impl IntoView {
    let row = |stage: StageRow| {
        let bar = stage.share.map(|share| {
            view! { <span class="tl-bar" aria-hidden="true"><span class="tl-piece part-prefill" style=format!("width:{:.2}%", 100.0 * share)></span></span> }
        });
        view! {
            <tr class:leaf=stage.is_inner>
                <th scope="row">{stage.name}</th>
                <td>{stage.time}</td>
                <td>{stage.share.map(|part| share(part, 1.0))}</td>
                <td>{stage.bound}</td>
                <td class="stage-bar">{bar}</td>
            </tr>
        }
    };
    view! {
        <table class="tl-table">
            <caption>"Twelve stages; 8 and 9 are parts of 7, hosts are not modelled"</caption>
            <thead><tr>
                <th scope="col">"stage"</th><th scope="col">"time"</th><th scope="col">"share"</th><th scope="col">"bound by"</th><th scope="col">"share"</th>
            </tr></thead>
            <tbody>{move || budget.with(stages).into_iter().map(row).collect_view()}</tbody>
        </table>
    }
    .into_any()
}

#[component]
fn Predicted(
    board: Board,
    own: Memo<Option<Stack>>,
    budget: Memo<Costed>,
    against: Against,
    title: &'static str,
) -> impl IntoView {
    // What was measured here says nothing of another stack.
    let measured = Memo::new(move |_| -> Vec<Measured> {
        board.frame.track();
        if own.with(Option::is_none) {
            return Vec::new();
        }
        board.session.with_untracked(|session| match against {
            Against::Batch => session.report.as_ref().map(measured_batches).unwrap_or_default(),
            Against::Length => measured_lengths(&session.sealed),
        })
    });
    // A step is as long as its context: predictions beside measurements are of the lengths that these had.
    let knobs = Memo::new(move |_| {
        let knobs = budget.with(|budget| budget.knobs);
        match measured.with(Vec::is_empty) {
            true => knobs,
            false => board.session.with_untracked(|session| at_lengths_of(&session.sealed, knobs)),
        }
    });
    let picture = move || {
        let draw =
            |budget: &Costed| measured.with(|measured| markup::chart(&chart(budget, against, measured)));
        own.with(|own| match own {
            Some(stack) => draw(&firstlight_engine::budget::budget(stack, knobs.get())),
            None => budget.with(draw),
        })
    };
    let rows = Signal::derive(move || {
        let knobs = knobs.get();
        own.with(|own| match own {
            Some(stack) => measured.with(|measured| side_by_side(stack, knobs, against, measured)),
            None => Vec::new(),
        })
    });
    let note = move || match measured.with(Vec::len) {
        0 => "The line is predicted.".to_owned(),
        n => {
            let (dots, Knobs { prompt_tokens, output_tokens, .. }) = (count(n as u64, "dot"), knobs.get());
            format!(
                "The line is predicted, {dots} measured in this session: prompts of {prompt_tokens} tokens and answers of \
                 {output_tokens} on average."
            )
        }
    };
    view! {
        <figure class="curve-box">
            <figcaption>{title}</figcaption>
            <svg viewBox="0 0 380 206" role="img" aria-label=format!("{title}; the table beneath has the figures")>
                <g inner_html=picture></g>
            </svg>
            <p class="tl-note">{note}</p>
            <Table caption=title head=&["at", "predicted", "measured", "off by", "n"] rows/>
        </figure>
    }
    .into_any()
}

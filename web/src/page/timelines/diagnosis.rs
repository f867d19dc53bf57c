//! The diagnosis: which stage to look at, with its evidence, when somebody asks.
//!
//! It judges nothing. Invariant: nothing is diagnosed unasked, and the answer says over what it was made.

use leptos::prelude::*;

use super::board::Board;
use crate::page::forms::Tick;
use crate::protocol::{Command, Diagnosis as Told};

/// See the module. `told` is the last answer.
#[component]
pub fn Diagnosis(board: Board, told: RwSignal<Option<Told>>) -> impl IntoView {
    let worse_answers = RwSignal::new(false);
    let none = move || {
        board.frame.track();
        board.session.with_untracked(|session| session.sealed.is_empty())
    };
    let ask = move |halves: bool| {
        move |_| board.command.run(Command::Diagnose { halves, worse_answers: worse_answers.get() })
    };
    view! {
        <section class="tl-card" aria-labelledby="tl-diagnosis-title">
            <header class="tl-head">
                <h2 id="tl-diagnosis-title">"Diagnosis"</h2>
                <div class="tl-tools" role="group" aria-label="Diagnose">
                    <button type="button" disabled=none on:click=ask(false)>"Which stage to look at"</button>
                    <button type="button" disabled=none on:click=ask(true)>"Later half against the earlier"</button>
                </div>
            </header>
            <Tick label="The answers seem worse" ticked=worse_answers on_change=Callback::new(move |on| worse_answers.set(on))/>
            <div role="status">{move || told.get().map(shown)}</div>
        </section>
    }
    .into_any()
}

fn shown(told: Told) -> AnyView {
    let line = |words: String| view! { <p class="tl-context">{words}</p> };
    let finding = |sentences: Vec<String>| {
        let mut sentences = sentences.into_iter();
        let title = sentences.next();
        view! { <h3>{title}</h3><ul>{sentences.map(|words| view! { <li>{words}</li> }).collect_view()}</ul> }
    };
    let checked = |[symptom, sentence]: [String; 2]| view! { <li><b>{symptom}</b>": "{sentence}</li> };
    view! {
        <p class="diagnosis-summary">{told.summary}</p>
        {told.conditions.into_iter().map(line).collect_view()}
        <div class="findings">{told.findings.into_iter().map(finding).collect_view()}</div>
        <details class="tl-details">
            <summary>"Checked besides"</summary>
            <ul class="findings">{told.checked.into_iter().map(checked).collect_view()}</ul>
        </details>
    }
    .into_any()
}

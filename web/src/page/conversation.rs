//! The conversation: prompts and their answers, side by side where there are several.
//!
//! Invariant: a token changes the nodes of its own answer's last block, and nothing else.

use leptos::prelude::*;

use super::answers::{Answer, AnswerState, Turn};
use super::files;
use super::link::now;
use super::prose::Prose;
use super::state::{Page, Tab, page};
use crate::view::format::{count, rate};
use crate::view::words;

/// What can be asked with one click.
const IDEAS: [&str; 3] =
    ["Why is the sky blue?", "Write a haiku about the sea.", "Name three uses of a paper clip."];

/// See the module.
#[component]
pub fn Conversation() -> impl IntoView {
    let page = page();
    let empty = Memo::new(move |_| page.turns.with(Vec::is_empty));
    view! {
        <div id="log" class="log" tabindex="0" role="region" aria-label="Conversation">
            <h2 class="visually-hidden">"Conversation"</h2>
            <Show when=move || empty.get()><Empty/></Show>
            <For each=move || page.turns.get() key=|turn| turn.id let(turn)><TurnView turn/></For>
        </div>
    }
    .into_any()
}

#[component]
fn Empty() -> impl IntoView {
    let page = page();
    let ideas = IDEAS.map(|idea| {
        let ask = move |_| match page.sampling.with_untracked(|form| form.read()) {
            Ok(sampling) => page.submit(idea.to_owned(), sampling, 1),
            Err(error) => page.say(format!("Not sent. {error}")),
        };
        view! { <button type="button" on:click=ask>{idea}</button> }
    });
    view! {
        <p class="empty" hidden=move || !page.replays()>"The answers of the recording appear here."</p>
        <div class="empty" hidden=move || page.replays()>
            <p>"Ask something, or the same thing several times at once: the answers stand side by side, "
                "and their timelines show who waited for whom."</p>
            <div class="row ideas">{ideas.collect_view()}</div>
        </div>
    }
    .into_any()
}

#[component]
fn TurnView(turn: Turn) -> impl IntoView {
    let shown = turn.asked.with_value(|asked| asked.shown.clone());
    let many = Memo::new(move |_| turn.answers.with(|answers| answers.len() > 1));
    let numbered = move || turn.answers.get().into_iter().enumerate().collect::<Vec<_>>();
    view! {
        <article class="turn" id=format!("turn-{}", turn.id)>
            <div class="prompt"><h3 class="visually-hidden">"You"</h3><p>{shown}</p></div>
            <p class="hint pick" hidden=move || !many.get()>
                "The conversation goes on from the answer that is picked."
            </p>
            <div class="answers" class:many=move || many.get()>
                <For each=numbered key=|(_, answer)| answer.ask let((at, answer))>
                    <AnswerView turn answer at many/>
                </For>
            </div>
        </article>
    }
    .into_any()
}

#[component]
fn AnswerView(turn: Turn, answer: Answer, at: usize, many: Memo<bool>) -> impl IntoView {
    let title = move || match many.get() {
        true => format!("Answer {} of {}", at + 1, turn.answers.with(Vec::len)),
        false => "Answer".to_owned(),
    };
    let state = move || {
        answer.state.with(|state| match state {
            AnswerState::Sent | AnswerState::Queued => "waits",
            AnswerState::Reading => "reads",
            AnswerState::Streaming => "streams",
            AnswerState::Ended { reason, .. } if words::is_trouble(*reason) => "trouble",
            AnswerState::Ended { .. } => "done",
        })
    };
    let busy = move || (!answer.ended()).to_string();
    view! {
        <div class="answer" role="group" data-ask=answer.ask.0.to_string() data-state=state aria-label=title aria-busy=busy>
            <div class="answer-head" hidden=move || !many.get()>
                <label class="choose">
                    <input
                        type="radio"
                        name=format!("turn-{}", turn.id)
                        prop:checked=move || turn.chosen.get() == at
                        on:change=move |_| turn.chosen.set(at)
                    />
                    <span>{title}</span>
                </label>
            </div>
            <div class="answer-text" id=format!("answer-{}", answer.ask.0) tabindex="0" role="group" aria-label="Text">
                <Prose text=answer.text/>
                <Detail answer/>
            </div>
            <Foot turn answer/>
        </div>
    }
    .into_any()
}

/// Why an answer ended, where that is no ordinary end.
#[component]
fn Detail(answer: Answer) -> impl IntoView {
    move || {
        answer.state.with(|state| match state {
            AnswerState::Ended { reason, detail } if words::is_trouble(*reason) => {
                let detail =
                    detail.clone().unwrap_or_else(|| format!("The answer {}.", words::finish(*reason)));
                Some(view! { <p class="wrong">{words::sentence(&detail)}</p> })
            }
            _ => None,
        })
    }
}

/// The figures of an answer, as far as they are known.
fn figures(answer: Answer) -> String {
    answer.state.with(|state| match state {
        AnswerState::Sent => "On its way".to_owned(),
        AnswerState::Queued => "Waiting in the queue".to_owned(),
        AnswerState::Reading => "Reading the prompt".to_owned(),
        AnswerState::Streaming => live_speed(answer),
        AnswerState::Ended { reason, .. } => {
            let speed = answer.figures.with(|figures| figures.as_ref().map(|figures| figures.speed.clone()));
            let speed = speed.unwrap_or_else(|| count(u64::from(answer.tokens.get().0), "token"));
            let mut end = words::finish(*reason).to_owned();
            end[..1].make_ascii_uppercase();
            format!("{end}: {speed}")
        }
    })
}

/// Tokens and speed by the page's own clock, while text comes.
fn live_speed(answer: Answer) -> String {
    let (tokens, first, last) = answer.tokens.get();
    let tokens_said = count(u64::from(tokens), "token");
    let ns = last.min(now()).saturating_sub(first);
    // A rate over less than a quarter of a second jumps about.
    match ns > 250_000_000 {
        true => {
            let per_second = f64::from(tokens.saturating_sub(1)) * 1e9 / ns as f64;
            format!("{tokens_said}, {} tokens/s", rate(per_second))
        }
        false => tokens_said,
    }
}

#[component]
fn Foot(turn: Turn, answer: Answer) -> impl IntoView {
    let page = page();
    let split = move || answer.figures.with(|f| f.as_ref().and_then(|f| f.first_token.clone()));
    view! {
        <div class="answer-foot">
            <p class="figures">{move || figures(answer)}</p>
            <p class="split">{split}</p>
            <div class="row small">
                <Show
                    when=move || answer.ended()
                    fallback=move || view! {
                        <button type="button" class="stop" on:click=move |_| page.cancel(answer.ask)>"Stop"</button>
                    }
                >
                    <Copy answer/>
                    <button
                        type="button"
                        class="quiet"
                        disabled=move || page.replays() || page.backend.with(Option::is_none)
                        on:click=move |_| page.again(turn)
                    >
                        "Again"</button>
                </Show>
                <Lane page answer/>
            </div>
        </div>
    }
    .into_any()
}

#[component]
fn Copy(answer: Answer) -> impl IntoView {
    let page = page();
    let copy = move |_| {
        files::copy(&answer.text.get_untracked(), move |done| {
            page.say(if done {
                "Copied."
            } else {
                "This browser does not let the page copy; select the text instead."
            });
        });
    };
    view! { <button type="button" class="quiet" on:click=copy>"Copy"</button> }
}

#[component]
fn Lane(page: Page, answer: Answer) -> impl IntoView {
    let show = move |_| {
        if let Some(id) = answer.id.get_untracked() {
            page.lane.set(Some(id));
            page.tab.set(Tab::Timelines);
            // What is opened is on the page by then.
            request_animation_frame(|| {
                files::into_view("timelines");
                files::focus("timelines");
            });
        }
    };
    view! {
        <button type="button" class="quiet" disabled=move || answer.id.with(Option::is_none) on:click=show>
            "Timeline"
        </button>
    }
}

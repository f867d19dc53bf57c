//! Where prompts are written and sent, once or many times at one instant.
//!
//! Invariant: sending never waits for an answer that runs.

use leptos::prelude::*;

use super::files;
use super::sampling::SamplingPanel;
use super::state::{Page, page};
use crate::view::chat;

/// How often a prompt can be sent at once.
const COPIES: [usize; 4] = [1, 2, 4, 8];
/// The longest prompt that a person types: engines refuse long ones with the figures, this only keeps a page from choking.
const LONGEST: usize = 1_000_000;

/// Sends what stands in the composer, or says why not.
fn send(page: Page, text: RwSignal<String>, copies: RwSignal<usize>) {
    let said = text.get_untracked();
    if said.trim().is_empty() {
        page.say("Write a prompt first.");
        return files::focus("composer");
    }
    if said.len() > LONGEST {
        return page.say("The prompt is longer than a million bytes; shorten it.");
    }
    if page.backend.with_untracked(Option::is_none) {
        return page.say("Nothing can answer now: load a model or connect to a server first.");
    }
    if page.replays_untracked() {
        return page.say("This is a recording: it answers nothing new.");
    }
    match page.sampling.with_untracked(|form| form.read()) {
        Ok(sampling) => {
            let count = copies.get_untracked();
            page.submit(said, sampling, count);
            text.set(String::new());
            page.say(if count == 1 { "Sent.".to_owned() } else { format!("Sent {count} times at once.") });
        }
        Err(error) => {
            page.say(format!("Not sent. {error}"));
            files::open_details("settings");
            files::focus(&format!("sampling-{}", error.field));
        }
    }
}

/// See the module.
#[component]
pub fn Composer() -> impl IntoView {
    let page = page();
    let (text, copies) = (RwSignal::new(String::new()), RwSignal::new(1_usize));
    let replays = move || page.replays();
    let unable = move || replays() || page.backend.with(Option::is_none);
    let key = move |ev: leptos::ev::KeyboardEvent| {
        // Enter that ends an input method's word sends nothing.
        if ev.key() == "Enter" && !ev.shift_key() && !ev.is_composing() && ev.key_code() != 229 {
            ev.prevent_default();
            send(page, text, copies);
        }
    };
    let submit = move |ev: leptos::ev::SubmitEvent| {
        ev.prevent_default();
        send(page, text, copies);
    };
    let knows = move || match () {
        () if page.backend.with(Option::is_none) => "Nothing can answer now.".to_owned(),
        () if replays() => "A recording is being played: it answers nothing new.".to_owned(),
        () if page.is_raw() => "Continues this text as it is.".to_owned(),
        () => chat::knows(&page.past()),
    };
    view! {
            <form class="composer" on:submit=submit>
                <label class="visually-hidden" for="composer">"Your prompt"</label>
                <textarea
                    id="composer"
                    rows="2"
                    placeholder="Ask something"
                    prop:value=move || text.get()
                    aria-describedby="composer-hint"
                    on:input=move |ev| text.set(event_target_value(&ev))
                    on:keydown=key
                ></textarea>
                <div class="row composer-row">
                    <Copies copies/>
                    <button type="submit" class="primary" disabled=unable>"Send"</button>
                    <button
                        type="button"
                        disabled=move || page.running.get() == 0
                        on:click=move |_| page.cancel_all()
                    >
                        {move || match page.running.get() {
                            0 | 1 => "Stop".to_owned(),
                            n => format!("Stop all {n}"),
                        }}
                    </button>
                </div>
                <div class="row knows">
    <p id="composer-hint" class="hint">{knows}</p>
                    <button
                        type="button"
                        class="quiet"
                        disabled=move || page.turns.with(Vec::is_empty)
                        on:click=move |_| page.new_conversation()
                    >
                        "New chat"
                    </button>
    </div>
                <SamplingPanel/>
            </form>
        }
    .into_any()
}

#[component]
fn Copies(copies: RwSignal<usize>) -> impl IntoView {
    let options = COPIES.map(|n| {
        let label = match n {
            1 => "1 answer".to_owned(),
            n => format!("{n} answers"),
        };
        view! { <option value=n.to_string() selected=move || copies.get() == n>{label}</option> }
    });
    view! {
        <label>
            <span class="visually-hidden">"How many answers at once"</span>
            <select on:change=move |ev| copies.set(event_target_value(&ev).parse().unwrap_or(1))>
                {options.collect_view()}
            </select>
        </label>
    }
    .into_any()
}

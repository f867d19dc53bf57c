//! How answers are made: the sampling settings, their presets, the system message, the raw switch.
//!
//! Invariant: what is sent is what stands here; a value that is out of range is told beside its field, and nothing is sent.

use leptos::prelude::*;

use super::forms::{Tick, setting};
use super::state::page;
use crate::view::settings::{SAMPLING, SamplingForm};

/// See the module.
#[component]
pub fn SamplingPanel() -> impl IntoView {
    let page = page();
    let form = page.sampling;
    let error = Memo::new(move |_| form.with(|form| form.read()).err());
    let wrong =
        move |name: &'static str| error.get().filter(|error| error.field == name).map(|error| error.sentence);
    let fields = SAMPLING.iter().filter(|field| field.name != "stop").map(|field| {
        let field = *field;
        setting(
            field,
            "sampling",
            move || form.with(|form| form.get(field.name).to_owned()),
            move |value| form.update(|form| form.set(field.name, &value)),
            move || wrong(field.name),
        )
    });
    let preset = move |change: fn(SamplingForm) -> SamplingForm| {
        move |_| form.update(|form| *form = change(std::mem::take(form)))
    };
    view! {
        <details class="settings">
            <summary>"Settings " <span class="hint">{move || summary(&form.get())}</span></summary>
            <div class="settings-body">
                <div class="row">
                    <button type="button" on:click=preset(SamplingForm::greedy)>"Greedy"</button>
                    <button type="button" on:click=preset(SamplingForm::creative)>"Creative"</button>
                </div>
                <div class="field">
                    <label for="system">"System message"</label>
                    <textarea
                        id="system"
                        rows="2"
                        maxlength="20000"
                        prop:value=move || page.system.get()
                        disabled=move || page.is_raw()
                        aria-describedby="system-hint"
                        on:input=move |ev| page.system.set(event_target_value(&ev))
                    ></textarea>
                    <p id="system-hint" class="hint">"Stands before every conversation; empty: the model's own, if it has one"</p>
                </div>
                <div class="fields">{fields.collect_view()}</div>
                <Stop error=Signal::derive(move || wrong("stop"))/>
                <Ticks/>
            </div>
        </details>
    }
    .into_any()
}

#[component]
fn Stop(error: Signal<Option<String>>) -> impl IntoView {
    let form = page().sampling;
    let hint = SAMPLING.iter().find(|field| field.name == "stop").map_or("", |field| field.hint);
    view! {
        <div class="field">
            <label for="sampling-stop">"Stop texts"</label>
            <textarea
                id="sampling-stop"
                rows="2"
                prop:value=move || form.with(|form| form.get("stop").to_owned())
                aria-describedby="sampling-stop-hint"
                aria-invalid=move || error.with(Option::is_some).then_some("true")
                on:input=move |ev| {
                    let typed = event_target_value(&ev);
                    form.update(|form| form.set("stop", &typed));
                }
            ></textarea>
            <p id="sampling-stop-hint" class="hint" class:wrong=move || error.with(Option::is_some)>
                {move || error.get().unwrap_or_else(|| hint.to_owned())}
            </p>
        </div>
    }
    .into_any()
}

#[component]
fn Ticks() -> impl IntoView {
    let page = page();
    let form = page.sampling;
    let no_chat = move || page.backend.with(|backend| backend.as_ref().is_some_and(|backend| !backend.chat));
    view! {
        <Tick
            label="Go on past the end token"
            ticked=Signal::derive(move || form.with(|form| form.ignore_eos))
            on_change=Callback::new(move |on| form.update(|form| form.ignore_eos = on))
        />
        <Show
            when=move || !no_chat()
            fallback=|| view! { <p class="hint">"This model has no chat template: prompts are continued as they are."</p> }
        >
            <Tick
                label="Raw completion: continue the text as it is, without chat template and conversation"
                ticked=Signal::derive(move || page.raw.get())
                on_change=Callback::new(move |on| page.raw.set(on))
            />
        </Show>
    }
    .into_any()
}

/// The settings in a few words.
fn summary(form: &SamplingForm) -> String {
    let temperature = form.get("temperature").trim();
    let manner = match temperature.parse::<f32>() {
        Ok(0.0) => "greedy".to_owned(),
        _ => format!("temperature {temperature}"),
    };
    format!("{manner}, at most {} tokens", form.get("max_tokens").trim())
}

//! Models to open: beside the page, in this browser, from elsewhere; and servers to connect to.
//!
//! Invariant: the first model can be had with one click, and its size is said before.

use leptos::prelude::*;

use super::forms::{Tick, setting};
use super::progress::OpeningPanel;
use super::sources::{FromFiles, FromHub, FromUrl, ToServer};
use super::state::page;
use crate::protocol::{BesideModel, Command, KvCache, ModelChoice, StoredModel};
use crate::view::format::bytes;
use crate::view::settings::ENGINE;

/// What a page offers that has no model beside it: its name on the hub, what to call it, and how much that is.
const HUB_MODEL: (&str, &str, &str) =
    // 134,515,008 weights of two bytes.
    ("HuggingFaceTB/SmolLM2-135M-Instruct", "SmolLM2-135M-Instruct", "about 270\u{a0}MB");

/// See the module.
#[component]
pub fn Models() -> impl IntoView {
    let page = page();
    let has_chat = move || page.has_chat();
    let opens = Memo::new(move |_| page.opening.with(Option::is_some));
    view! {
        <div class="start">
            <Show when=has_chat fallback=Welcome>
                <div class="row spread">
                    <h2>"Models and servers"</h2>
                    <button type="button" on:click=move |_| page.panel.set(false) disabled=move || opens.get()>
                        "Back to the chat"
                    </button>
                </div>
            </Show>
            <div class="lead-place">
                <Show when=move || opens.get() fallback=Lead><OpeningPanel/></Show>
            </div>
            <div class="choices">
                <div class="column">
                    <Stored/>
                    <Show when=move || page.no_webgpu.with(Option::is_none)>
                        <ToServer/>
                    </Show>
                    <Engine/>
                </div>
                <div class="column">
                    <section class="card" aria-label="Another model">
                        <h2>"Another model"</h2>
                        <p class="hint">"GGUF or safetensors of the Llama architecture. It stays in this browser."</p>
                        <FromHub/>
                        <FromUrl/>
                        <FromFiles/>
                    </section>
                </div>
            </div>
        </div>
    }
    .into_any()
}

#[component]
fn Welcome() -> impl IntoView {
    view! {
        <div class="welcome">
            <h2>"A language model in this tab, and where its time goes"</h2>
            <p>
                "Ask many things at once. Every answer carries a timeline that comes apart to the nanosecond: "
                "queue, prefill, every token. Nothing you write leaves this machine unless you connect to a server."
            </p>
        </div>
    }
}

/// What to begin with: a model beside the page, or a server where no model can run.
#[component]
fn Lead() -> impl IntoView {
    let page = page();
    view! { <Show when=move || page.no_webgpu.with(Option::is_some) fallback=Beside><ToServer/></Show> }
        .into_any()
}

#[component]
fn Beside() -> impl IntoView {
    let page = page();
    let unable = move || page.cannot_open();
    let stored = move |model: &BesideModel| {
        page.catalogue.with(|c| {
            c.stored.iter().any(|s| s.sha256.as_deref() == Some(&model.sha256) && s.bytes_here >= s.bytes)
        })
    };
    let row = move |model: BesideModel| {
        let what = if stored(&model) { "no download".to_owned() } else { bytes(model.bytes) };
        // The size stays in one piece where the line is short.
        let label = format!("Load {} ({})", model.name, what.replace(' ', "\u{a0}"));
        view! {
            <button type="button" class="primary big" disabled=unable on:click=move |_| page.open_beside(&model)>
                {label}
            </button>
        }
    };
    let list = move || {
        let catalogue = page.catalogue.get();
        match (catalogue.known, catalogue.beside.is_empty()) {
            (false, _) => view! { <p class="hint waiting">"Looking for models\u{2026}"</p> }.into_any(),
            (true, true) => view! { <Hub/> }.into_any(),
            _ => catalogue.beside.into_iter().map(row).collect_view().into_any(),
        }
    };
    view! {
        <section class="card lead" aria-label="Beside this page">
            <h2>"Start here"</h2>
            {list}
            <p class="hint">"Small, quick to load, and kept in this browser for the next visit."</p>
        </section>
    }
    .into_any()
}

/// A small model of the hub, for a page that has none beside it.
#[component]
fn Hub() -> impl IntoView {
    let page = page();
    let load = move |_| {
        let name = HUB_MODEL.0.to_owned();
        page.open_model(name.clone(), ModelChoice::Hub { name });
    };
    view! {
        <button type="button" class="primary big" disabled=move || page.cannot_open() on:click=load>
            {format!("Load {} ({})", HUB_MODEL.1, HUB_MODEL.2)}
        </button>
        <p class="hint">{format!("From {} of the Hugging Face hub: no model lies beside this page.", HUB_MODEL.0)}</p>
    }
}

#[component]
fn Stored() -> impl IntoView {
    let page = page();
    let any = Memo::new(move |_| page.catalogue.with(|c| !c.stored.is_empty()));
    let storage = move || {
        page.catalogue.with(|c| {
            c.storage
                .map(|s| format!("{} of {} of this site's storage in use.", bytes(s.used), bytes(s.quota)))
        })
    };
    let stored = move || page.catalogue.with(|c| c.stored.clone());
    view! {
        <Show when=move || any.get()>
            <section class="card" aria-label="In this browser">
                <h2>"In this browser"</h2>
                <ul class="stored">
                    <For each=stored key=|model| (model.key.clone(), model.bytes_here) let(model)>
                        <StoredRow model/>
                    </For>
                </ul>
                <p class="hint">{storage}</p>
            </section>
        </Show>
    }
    .into_any()
}

#[component]
fn StoredRow(model: StoredModel) -> impl IntoView {
    let page = page();
    let unable = move || page.cannot_open();
    let sure = RwSignal::new(false);
    let whole = model.bytes_here >= model.bytes;
    let size = match whole {
        true => format!("{}, no download", bytes(model.bytes)),
        false => format!("{} of {} here", bytes(model.bytes_here), bytes(model.bytes)),
    };
    let (name, key) = (model.name.clone(), model.key.clone());
    let spoken = format!(" {name}");
    let ask = format!("Delete {name} from this browser? It would have to be downloaded again.");
    let buttons = move || match sure.get() {
        false => {
            let model = model.clone();
            view! {
                <button type="button" disabled=unable on:click=move |_| page.open_stored(&model)>
                    {if whole { "Load" } else { "Resume" }}
                    <span class="visually-hidden">{spoken.clone()}</span>
                </button>
                <button type="button" class="quiet" on:click=move |_| sure.set(true)>
                    "Delete"
                    <span class="visually-hidden">{spoken.clone()}</span>
                </button>
            }
            .into_any()
        }
        true => {
            let key = key.clone();
            view! {
                <p class="sentence">{ask.clone()}</p>
                <button type="button" class="danger" on:click=move |_| page.send(&Command::Delete { key: key.clone() })>
                    "Delete it"
                </button>
                <button type="button" on:click=move |_| sure.set(false)>"Keep it"</button>
            }
            .into_any()
        }
    };
    view! {
        <li>
            <p class="name"><strong>{name}</strong><span class="hint">{size}</span></p>
            <div class="row">{buttons}</div>
        </li>
    }
    .into_any()
}

#[component]
fn Engine() -> impl IntoView {
    let page = page();
    let form = page.engine;
    let error = Memo::new(move |_| form.with(|form| form.read()).err());
    let fields = ENGINE.map(|field| {
        setting(
            field,
            "engine",
            move || form.with(|form| form.get(field.name).to_owned()),
            move |value| form.update(|form| form.set(field.name, &value)),
            move || error.get().filter(|error| error.field == field.name).map(|error| error.sentence),
        )
    });
    view! {
        <details class="card">
            <summary>"Engine settings"</summary>
            <p class="hint">"For the next model that is loaded in this tab."</p>
            <div class="fields">{fields.collect_view()}</div>
            <Tick
                label="Prompts that begin alike share KV blocks (prefix cache)"
                ticked=Signal::derive(move || form.with(|form| form.prefix_cache))
                on_change=Callback::new(move |on| form.update(|form| form.prefix_cache = on))
            />
            <Tick
                label="WebGPU's default limits and no optional features"
                ticked=Signal::derive(move || form.with(|form| form.default_limits))
                on_change=Callback::new(move |on| form.update(|form| form.default_limits = on))
            />
            <Tick
                label="Activations in 8 bits, not exact (f32): faster without a GPU, for 4-bit models"
                ticked=Signal::derive(move || form.with(|form| form.i8_activations))
                on_change=Callback::new(move |on| form.update(|form| form.i8_activations = on))
            />
            <label class="tick">
                "Keys and values (KV cache) in "
                <select on:change=move |ev| {
                    let word = event_target_value(&ev);
                    let chosen = KvCache::ALL.into_iter().find(|kv| kv.name() == word).unwrap_or_default();
                    form.update(|form| form.kv = chosen);
                }>
                    {KvCache::ALL
                        .map(|kv| {
                            let chosen = move || form.with(|form| form.kv == kv);
                            view! { <option value=kv.name() selected=chosen>{kv.name()}</option> }
                        })
                        .collect_view()}
                </select>
            </label>
            <p class="hint">
                "Of 2,000 tokens of prose 97.8% have the same likeliest next token as with f32."
            </p>
        </details>
    }
    .into_any()
}

//! The head of the page: what answers, the way to models and servers, the theme.
//!
//! Invariant: the theme that was chosen is kept where the browser lets it, and never asked for again.

use leptos::prelude::*;

use super::files;
use super::state::{Tab, page};
use crate::protocol::{Backend, BackendKind};

const THEMES: [&str; 3] = ["auto", "light", "dark"];
const THEME_KEY: &str = "firstlight-theme";

/// See the module.
#[component]
pub fn Header() -> impl IntoView {
    let page = page();
    view! {
        <header class="top">
            <h1 class="brand"><span class="mark" aria-hidden="true"></span>"Firstlight"</h1>
            <Chip/>
            {(!page.is_report).then(tabs)}
            <div class="top-buttons">
                <Show when=move || page.has_chat() && !page.is_report>
                    <button
                        type="button"
                        class="quiet"
                        aria-expanded=move || page.panel.get().to_string()
                        on:click=move |_| {
                            page.panel.update(|open| *open = !*open);
                            page.tab.set(Tab::Chat);
                        }
                    >
                        "Models"
                    </button>
                </Show>
                <button
                    type="button"
                    class="quiet keys-button"
                    class:gone=page.is_report
                    aria-expanded=move || page.keys.get().to_string()
                    on:click=move |_| page.keys.update(|open| *open = !*open)
                >
                    "Keys"
                </button>
                <Theme/>
            </div>
        </header>
    }
    .into_any()
}

fn tabs() -> AnyView {
    view! {
        <nav class="tabs" aria-label="Views">
            <TabButton tab=Tab::Chat label="Chat"/>
            <TabButton tab=Tab::Timelines label="Timelines"/>
        </nav>
    }
    .into_any()
}

#[component]
fn TabButton(tab: Tab, label: &'static str) -> impl IntoView {
    let page = page();
    view! {
        <button
            type="button"
            class="tab"
            aria-current=move || (page.tab.get() == tab).then_some("true")
            on:click=move |_| page.tab.set(tab)
        >
            {label}
        </button>
    }
}

/// What answers, in a few words.
fn said(backend: &Backend) -> (&'static str, String, String) {
    let place = match backend.kind {
        BackendKind::Tab => "This tab",
        BackendKind::Server => "Server",
        BackendKind::Replay if backend.bench.is_some() => "Report",
        BackendKind::Replay => "Recording",
    };
    let quantisation = &backend.model.quantisation;
    // A file's name often says it already; that of no quantisation is in every name.
    let model = match backend.model.name.contains(quantisation.as_str()) {
        true => backend.model.name.clone(),
        false => format!("{} ({quantisation})", backend.model.name),
    };
    let adapter = backend.url.clone().filter(|_| backend.adapter.is_empty());
    (place, model, adapter.unwrap_or_else(|| backend.adapter.clone()))
}

#[component]
fn Chip() -> impl IntoView {
    let page = page();
    let chip = move || {
        page.backend.with(|backend| match backend {
            Some(backend) => {
                let (place, model, adapter) = said(backend);
                let title = format!("{place}: {model}, {adapter}");
                let rest = (!adapter.is_empty()).then(|| format!(" on {adapter}"));
                view! {
                    <p class="chip" title=title>
                        <span class="chip-place">{place}</span>
                        <span class="chip-model">{model}</span>
                        <span class="chip-adapter">{rest}</span>
                    </p>
                }
                .into_any()
            }
            None => view! { <p class="chip chip-none">"No model yet"</p> }.into_any(),
        })
    };
    view! { <div class="chip-place-holder">{chip}</div> }.into_any()
}

#[component]
fn Theme() -> impl IntoView {
    let kept = files::kept(THEME_KEY).filter(|theme| THEMES.contains(&theme.as_str()));
    let theme = RwSignal::new(kept.unwrap_or_else(|| "auto".to_owned()));
    Effect::new(move |_| {
        if let Some(root) = document().document_element() {
            drop(root.set_attribute("data-theme", &theme.get()));
        }
    });
    let choose = move |ev| {
        let chosen = event_target_value(&ev);
        files::keep(THEME_KEY, &chosen);
        theme.set(chosen);
    };
    let options = THEMES.map(|name| {
        let label = match name {
            "auto" => "Auto",
            "light" => "Light",
            _ => "Dark",
        };
        view! { <option value=name selected=move || theme.get() == name>{label}</option> }
    });
    view! {
        <label class="theme">
            <span class="visually-hidden">"Theme"</span>
            <select on:change=choose>{options.collect_view()}</select>
        </label>
    }
    .into_any()
}

//! Models from elsewhere, and servers: the forms that name them.
//!
//! Invariant: what cannot be right is told before anything is asked of a network.

use leptos::prelude::*;
use wasm_bindgen::JsCast;
use web_sys::{DragEvent, File, HtmlInputElement};

use super::files;
use super::forms::TextField;
use super::state::{Page, page};
use crate::protocol::ModelChoice;
use crate::view::query::{hub_name, model_files, web_address};

/// A form of one field and one button; `read` says what is wrong, or goes ahead.
fn one_field(
    id: &'static str,
    label: &'static str,
    hint: &'static str,
    button: &'static str,
    disabled: impl Fn() -> bool + Send + 'static,
    read: impl Fn(String) -> Result<(), String> + Send + 'static,
) -> AnyView {
    let (value, error) = (RwSignal::new(String::new()), RwSignal::new(None));
    let submit = move |ev: leptos::ev::SubmitEvent| {
        ev.prevent_default();
        error.set(read(value.get_untracked()).err());
        if error.with_untracked(Option::is_some) {
            files::focus(id);
        }
    };
    view! {
        <form class="source" on:submit=submit novalidate>
            <TextField
                id=id.to_owned()
                label
                hint
                inputmode="url"
                value
                on_input=Callback::new(move |typed| {
                    value.set(typed);
                    error.set(None);
                })
                error
            />
            <button type="submit" disabled=disabled>{button}</button>
        </form>
    }
    .into_any()
}

/// From the Hugging Face hub.
#[component]
pub fn FromHub() -> impl IntoView {
    let page = page();
    one_field(
        "hub",
        "From the Hugging Face hub",
        "OWNER/REPO, or OWNER/REPO:file.gguf",
        "Load",
        move || page.cannot_open(),
        move |typed| {
            let name = hub_name(&typed)?;
            page.open_model(name.clone(), ModelChoice::Hub { name });
            Ok(())
        },
    )
}

/// From an address.
#[component]
pub fn FromUrl() -> impl IntoView {
    let page = page();
    one_field(
        "url",
        "From an address",
        "Of a .gguf file, or of a folder's config.json; its host must allow other pages to read it",
        "Load",
        move || page.cannot_open(),
        move |typed| {
            let url = web_address(&typed)?;
            page.open_model(url.clone(), ModelChoice::Url { url });
            Ok(())
        },
    )
}

fn open_files(page: Page, files: Vec<File>) -> Result<(), String> {
    let names: Vec<String> = files.iter().map(File::name).collect();
    let what = model_files(&names)?;
    page.open_files(what, files);
    Ok(())
}

/// Files of this machine, dropped or chosen.
#[component]
pub fn FromFiles() -> impl IntoView {
    let page = page();
    let (over, error) = (RwSignal::new(false), RwSignal::new(None));
    let drop_files = move |ev: DragEvent| {
        ev.prevent_default();
        over.set(false);
        let dropped = files::listed(ev.data_transfer().and_then(|data| data.files()));
        error.set(open_files(page, dropped).err());
    };
    let choose = move |ev: leptos::ev::Event| {
        let Some(input) = ev.target().and_then(|target| target.dyn_into::<HtmlInputElement>().ok()) else {
            return;
        };
        let chosen = files::listed(input.files());
        if !chosen.is_empty() {
            error.set(open_files(page, chosen).err());
        }
        // The same file can be chosen again.
        input.set_value("");
    };
    let hint = "One .gguf file, or .safetensors files together with config.json and tokenizer.json";
    view! {
        <div
            class="drop"
            class:over=move || over.get()
            on:dragover=move |ev: DragEvent| {
                ev.prevent_default();
                over.set(true);
            }
            on:dragleave=move |_| over.set(false)
            on:drop=drop_files
        >
            <label for="files">"From this machine: drop files here, or choose them"</label>
            <input
                id="files"
                type="file"
                multiple
                accept=".gguf,.safetensors,.json"
                aria-describedby="files-hint"
                disabled=move || page.cannot_open()
                on:change=choose
            />
            <p id="files-hint" class="hint" class:wrong=move || error.with(Option::is_some)>
                {move || error.get().unwrap_or_else(|| hint.to_owned())}
            </p>
        </div>
    }
    .into_any()
}

/// A server.
#[component]
pub fn ToServer() -> impl IntoView {
    let page = page();
    let own = files::own_server().unwrap_or_default();
    let (url, key, error) = (RwSignal::new(own), RwSignal::new(String::new()), RwSignal::new(None));
    let submit = move |ev: leptos::ev::SubmitEvent| {
        ev.prevent_default();
        match web_address(&url.get_untracked()) {
            Ok(address) => {
                let key = key.get_untracked().trim().to_owned();
                page.connect(address, Some(key).filter(|key| !key.is_empty()));
            }
            Err(sentence) => {
                error.set(Some(sentence));
                files::focus("server");
            }
        }
    };
    view! {
        <section class="card" aria-label="A server">
            <h2>"A Firstlight server"</h2>
            <form class="server" on:submit=submit novalidate>
                <TextField
                    id="server".to_owned()
                    label="Address"
                    hint="As firstlight serve prints it, like http://127.0.0.1:8080; elsewhere it needs --cors"
                    inputmode="url"
                    value=url
                    on_input=Callback::new(move |typed| {
                        url.set(typed);
                        error.set(None);
                    })
                    error
                />
                <TextField
                    id="server-key".to_owned()
                    label="Key"
                    hint="If the server asks for one; it is not kept"
                    kind="password"
                    value=key
                    on_input=Callback::new(move |typed| key.set(typed))
                    error=Signal::derive(|| None::<String>)
                />
                <button type="submit" disabled=move || page.is_opening()>"Connect"</button>
            </form>
        </section>
    }
    .into_any()
}

//! What went wrong or is worth knowing, with the button that helps, above everything else.
//!
//! Invariant: nothing lies over the page: a banner pushes it down and goes when it is dismissed or over.

use leptos::prelude::*;

use super::state::{Page, page};
use crate::protocol::Command;
use crate::view::words;

/// See the module.
#[component]
pub fn Banners() -> impl IntoView {
    let page = page();
    view! {
        <div class="banners">
            {move || page.died.get().map(|why| died(page, why))}
            {move || page.unreadable().map(unreadable)}
            {move || page.trouble.get().map(|trouble| device(page, trouble.sentence, trouble.reopening))}
            {move || page.no_webgpu.get().map(no_webgpu)}
            <For each=move || page.notices.get() key=|notice| notice.clone() let(notice)>
                {
                    let this = notice.clone();
                    let dismiss = move |_| page.notices.update(|notices| notices.retain(|other| *other != this));
                    view! {
                        <div class="banner info" role="note">
                            <p>{words::sentence(&notice)}</p>
                            <button type="button" class="quiet" on:click=dismiss>"Dismiss"</button>
                        </div>
                    }
                }
            </For>
        </div>
    }
    .into_any()
}

fn unreadable(why: String) -> AnyView {
    view! { <div class="banner error" role="alert"><p>{words::sentence(&why)}</p></div> }.into_any()
}

fn died(page: Page, why: String) -> AnyView {
    let again = page.last_opened.get_untracked();
    let label = match &again {
        Some((what, _)) => format!("Restart and load {what} again"),
        None => "Restart".to_owned(),
    };
    let restart = move |_| {
        page.start_worker();
        if let Some((what, command)) = again.clone() {
            page.open_again(what, command);
        }
    };
    view! {
        <div class="banner error" role="alert">
            <p>
                <strong>"The engine's worker has ended. "</strong>
                {format!("{} ", words::sentence(&why))}
                "A new one has to load the model again; what is stored in this browser is still there."
            </p>
            <button type="button" class="primary" on:click=restart>{label}</button>
        </div>
    }
    .into_any()
}

fn device(page: Page, sentence: String, reopening: bool) -> AnyView {
    let action = match reopening {
        true => view! { <p class="working">"It is being opened again\u{2026}"</p> }.into_any(),
        false => view! {
            <button type="button" class="primary" on:click=move |_| page.send(&Command::Reopen)>"Reopen"</button>
        }
        .into_any(),
    };
    view! {
        <div class="banner error" role="alert">
            <p><strong>"The graphics device failed. "</strong>{words::sentence(&sentence)}</p>
            {action}
        </div>
    }
    .into_any()
}

fn no_webgpu(sentence: String) -> AnyView {
    view! {
        <div class="banner warning" role="note">
            <div>
                <p><strong>"No model can run in this tab. "</strong>{words::sentence(&sentence)}</p>
                <p>
                    "Chrome and Edge have WebGPU from 113 on (on Linux only with "
                    <code>"chrome://flags/#enable-unsafe-webgpu"</code>
                    "), Safari from 26 on, Firefox from 141 on where its system has it; all of them only at addresses that "
                    "begin with https:// or are this machine. A server, below, answers in every browser."
                </p>
            </div>
        </div>
    }
    .into_any()
}

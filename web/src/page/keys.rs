//! The keyboard: what its keys do everywhere on the page, and the list of them.
//!
//! Invariant: no key is taken away from a field that is being typed in, Escape excepted.

use leptos::prelude::*;

use super::files;
use super::state::{Page, Tab, page};
use crate::protocol::AskId;

const KEYS: [(&str, &str); 6] = [
    ("Enter", "sends the prompt"),
    ("Shift + Enter", "begins a new line in it"),
    ("/", "goes to the prompt"),
    ("Escape", "stops the answer that has the focus; closes what is open"),
    ("t", "shows chat or timelines in a narrow window"),
    ("?", "shows this list"),
];

/// Hears keys from now on.
pub fn listen(page: Page) {
    let handle = window_event_listener(leptos::ev::keydown, move |ev| {
        if ev.ctrl_key() || ev.meta_key() || ev.alt_key() || ev.default_prevented() || ev.is_composing() {
            return;
        }
        match ev.key().as_str() {
            "Escape" => escape(page),
            _ if files::is_typing() => {}
            "/" => {
                ev.prevent_default();
                page.panel.set(false);
                page.tab.set(Tab::Chat);
                request_animation_frame(|| files::focus("composer"));
            }
            "t" => page.tab.update(|tab| *tab = if *tab == Tab::Chat { Tab::Timelines } else { Tab::Chat }),
            "?" => page.keys.update(|open| *open = !*open),
            _ => {}
        }
    });
    on_cleanup(move || handle.remove());
}

fn escape(page: Page) {
    if let Some(ask) = files::focused_answer() {
        page.cancel(AskId(ask));
    } else if page.keys.get_untracked() {
        page.keys.set(false);
    } else if page.panel.get_untracked() {
        page.panel.set(false);
        request_animation_frame(|| files::focus("composer"));
    }
}

/// The list.
#[component]
pub fn Keys() -> impl IntoView {
    let page = page();
    let list = || {
        let rows = KEYS.map(|(key, does)| view! { <div><dt><kbd>{key}</kbd></dt><dd>{does}</dd></div> });
        view! { <section class="banner info keys" aria-label="Keys"><dl>{rows.collect_view()}</dl></section> }
    };
    view! { <Show when=move || page.keys.get()>{list()}</Show> }.into_any()
}

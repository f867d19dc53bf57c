//! The page's frame.

use leptos::prelude::*;

use super::link::{Link, now};
use crate::browser::performance;
use crate::protocol::{Command, Event};

/// The whole page.
#[component]
pub fn App() -> impl IntoView {
    let (log, set_log) = signal(String::new());
    let hear = move |event: Event| set_log.update(|log| log.push_str(&format!("{event:?}\n")));
    if let Ok(link) = Link::start(hear, |_| ()) {
        let page_url = web_sys::window().and_then(|w| w.location().href().ok()).unwrap_or_default();
        link.send(&Command::Hello { origin_unix_ms: performance().0, sent_at: now(), page_url, hub: None });
    }
    view! { <main><h1>"Firstlight"</h1><pre>{log}</pre></main> }
}

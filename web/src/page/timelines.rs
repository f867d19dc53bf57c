//! Where the timelines will stand.

use std::collections::BTreeMap;

use leptos::prelude::*;

use crate::protocol::Command;
use crate::view::session::Session;

/// The lanes and their figures.
#[component]
pub fn Timelines(
    /// All that is known.
    session: RwSignal<Session>,
    /// Why tokens were late.
    blames: RwSignal<BTreeMap<(String, usize), String>>,
    /// What chat templates made of prompts.
    rendered: RwSignal<BTreeMap<String, String>>,
    /// To the worker.
    command: Callback<Command>,
) -> impl IntoView {
    let _ = (blames, rendered, command);
    view! { <p>{move || session.with(|session| format!("{} timelines", session.sealed.len()))}</p> }
}

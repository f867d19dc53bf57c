//! The page's frame: what stands where.
//!
//! It decides only what is shown. Invariant: everything can be reached with the keyboard, in the order in which it is seen.

use leptos::prelude::*;

use super::banners::Banners;
use super::composer::Composer;
use super::conversation::Conversation;
use super::files;
use super::header::Header;
use super::keys::{Keys, listen};
use super::models::Models;
use super::state::{Page, Tab, page};
use super::timelines::Timelines;
use crate::protocol::Command;
use crate::view::query::Query;

/// The whole page.
#[component]
pub fn App() -> impl IntoView {
    let figures = files::own_figures();
    let page = Page::new(Query::read(files::parameter), figures.is_some());
    provide_context(page);
    page.start_worker();
    match figures {
        Some(figures) => page.open_figures(figures),
        None => page.open_at_start(files::own_server()),
    }
    listen(page);
    let tab = move || if page.tab.get() == Tab::Chat && !page.is_report { "chat" } else { "timelines" };
    let kind = move || match (page.is_report, page.has_chat()) {
        (true, _) => "report",
        (false, true) => "work",
        (false, false) => "start",
    };
    let chat = (!page.is_report).then(|| {
        view! { <section class="pane chat-pane" aria-label="Chat"><ChatPane/></section> }
    });
    view! {
        <a class="skip" href="#main">"Skip to the content"</a>
        <Header/>
        <main id="main" tabindex="-1">
            <Banners/>
            <Keys/>
            <div class="panes" data-tab=tab data-kind=kind>
                {chat}
                <TimelinesPane/>
            </div>
        </main>
        <footer class="status"><div role="status" aria-live="polite">{page.status}</div></footer>
    }
    .into_any()
}

/// Models and servers, or the conversation.
#[component]
fn ChatPane() -> impl IntoView {
    let page = page();
    let has_chat = Memo::new(move |_| page.has_chat());
    let opens = move || page.opening.with(Option::is_some);
    let shows_models = Memo::new(move |_| !has_chat.get() || page.panel.get() || opens());
    view! {
        <Show when=move || shows_models.get()><Models/></Show>
        <Show when=move || has_chat.get()>
            <div class="chat" hidden=move || shows_models.get()>
                <Conversation/>
                <Composer/>
            </div>
        </Show>
    }
    .into_any()
}

/// The lanes, once there is something that can have some.
#[component]
fn TimelinesPane() -> impl IntoView {
    let page = page();
    let shown = Memo::new(move |_| page.has_chat());
    let command = Callback::new(move |command: Command| page.send(&command));
    view! {
        <Show when=move || shown.get()>
            <section id="timelines" class="pane timelines-pane" aria-label="Timelines and report" tabindex="-1">
                <Timelines session=page.session blames=page.blames rendered=page.rendered diagnosis=page.diagnosis command=command/>
            </section>
        </Show>
    }
    .into_any()
}

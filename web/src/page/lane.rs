//! The way from an answer to its lane.
//!
//! Invariant: a wish is granted once, as soon as the request is known to the timelines.

use leptos::prelude::*;

use super::state::Page;
use crate::view::session::Session;

/// Opens the request that an answer's button points at, and gives its lane the focus.
pub fn open_on_demand(
    session: RwSignal<Session>,
    opened: RwSignal<Option<u64>>,
    active: RwSignal<Option<u64>>,
) {
    let Some(page) = use_context::<Page>() else { return };
    Effect::new(move |_| {
        let Some(id) = page.lane.get() else { return };
        // The request may be known to the page's answer before the first word of its timeline: then this runs again.
        let found = session.with(|session| {
            let mut known = session.sealed.iter().rev().chain(session.live.values());
            known.find(|timeline| timeline.id == id).map(|timeline| timeline.engine_id.0)
        });
        if found.is_some() {
            opened.set(found);
            active.set(found);
            page.lane.set(None);
        }
    });
}

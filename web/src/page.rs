//! The page: leptos components over what the worker says.
//!
//! It computes nothing that takes long. Invariant: nothing is loaded from another host unless the user asked for it.

mod app;
mod link;
pub mod timelines;

/// Makes the page.
pub fn start() {
    leptos::mount::mount_to_body(app::App);
}

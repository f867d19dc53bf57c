//! The page: leptos components over what the worker says.
//!
//! It computes nothing that takes long. Invariant: nothing is loaded from another host unless the user asked for it.

mod answers;
mod app;
mod banners;
mod composer;
mod conversation;
mod files;
mod forms;
mod header;
mod keys;
mod lane;
mod link;
mod models;
mod opening;
mod progress;
mod prose;
mod sampling;
mod sources;
mod state;
mod timelines;

/// Makes the page.
pub fn start() {
    files::remove("boot");
    leptos::mount::mount_to_body(app::App);
}

//! The page: leptos components over what the worker says.
//!
//! It computes nothing that takes long. Invariant: nothing is loaded from another host unless the user asked for it.

pub mod answers;
mod app;
mod banners;
pub mod composer;
pub mod conversation;
pub mod files;
mod forms;
mod header;
pub mod keys;
pub mod lane;
pub mod link;
mod models;
mod opening;
mod progress;
pub mod prose;
mod sampling;
mod sources;
pub mod state;
mod timelines;

/// Makes the page.
pub fn start() {
    files::remove("boot");
    leptos::mount::mount_to_body(app::App);
}

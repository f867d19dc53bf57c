//! The page of Firstlight: many requests at once, in this tab or on a server, and where each one's time goes.
//!
//! One module for two threads: [`start`] makes the page of a window and the worker of a worker. What both say to each other
//! and everything that can be decided without a browser compiles on every target and is tested there.
//! Invariant: the page's thread computes nothing that takes long; engine, files and networks are the worker's.

pub mod protocol;
pub mod view;

#[cfg(target_arch = "wasm32")]
mod browser;
#[cfg(target_arch = "wasm32")]
mod page;
#[cfg(target_arch = "wasm32")]
mod worker;

/// Where either thread begins.
#[cfg(target_arch = "wasm32")]
#[wasm_bindgen::prelude::wasm_bindgen(start)]
pub fn start() {
    browser::report_panics();
    match web_sys::window() {
        Some(_) => page::start(),
        None => worker::start(),
    }
}

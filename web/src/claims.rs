//! The crate once more, with claims about what only a browser shows: storage, fetches, frames, focus.
//!
//! `cargo xtask test` compiles this for browsers, and `tests/browser/claims.mjs` runs every claim on the thread it is about,
//! page or worker. A claim is a function that panics where it does not hold. Invariant: [`names`] is all there are, for a
//! function that stands in no list is dead code and does not pass the lints.
#![cfg(target_arch = "wasm32")]

mod browser;
mod page;
pub mod protocol;
pub mod view;
mod worker;

#[path = "claims/list.rs"]
mod claims;

use wasm_bindgen::prelude::*;
use web_sys::js_sys;

/// The names of all claims about a thread, `page` or `worker`, in their order.
#[wasm_bindgen]
pub fn names(thread: &str) -> Vec<String> {
    claims::of(thread).map(|(name, _)| name).collect()
}

/// Holds when this resolves. Where it does not, its sentence goes to the function `failed` of the global scope: after a
/// panic this never resolves.
#[wasm_bindgen]
pub async fn prove(name: String) {
    std::panic::set_hook(Box::new(|panic| {
        let failed = js_sys::Reflect::get(&browser::scope(), &"failed".into());
        if let Some(failed) = failed.ok().and_then(|failed| failed.dyn_into::<js_sys::Function>().ok()) {
            drop(failed.call1(&JsValue::UNDEFINED, &panic.to_string().into()));
        }
    }));
    let thread = if web_sys::window().is_some() { "page" } else { "worker" };
    let claim = claims::of(thread).find(|(known, _)| *known == name);
    let (_, claim) = claim.unwrap_or_else(|| panic!("there is no claim {name} about the {thread}"));
    claim().await;
}

/// Starts what [`prove`] is about as a whole, as the library does.
#[wasm_bindgen]
pub fn start() {
    browser::report_panics();
    match web_sys::window() {
        Some(_) => page::start(),
        None => worker::start(),
    }
}

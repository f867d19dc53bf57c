//! All claims, and what they are made with.
//!
//! Invariant: a claim leaves nothing behind that another one sees.

mod both;
mod events;
mod incoming;
mod page;
mod requests;
mod store;
mod time;

use std::future::Future;
use std::pin::Pin;

use wasm_bindgen::prelude::*;
use wasm_bindgen_futures::JsFuture;
use web_sys::js_sys;

/// Panics where the claim does not hold.
type Prove = fn() -> Pin<Box<dyn Future<Output = ()>>>;
/// A claim's name, and itself.
type Claim = (&'static str, Prove);

/// Makes a module's list of its functions.
macro_rules! claims {
    ($($name:ident),* $(,)?) => {
        /// All of them.
        pub const CLAIMS: &[super::Claim] = &[$((stringify!($name), || Box::pin($name()))),*];
    };
}
use claims;

const PAGE: &[(&str, &[Claim])] =
    &[("both", both::CLAIMS), ("page", page::CLAIMS), ("events", events::CLAIMS)];
const WORKER: &[(&str, &[Claim])] = &[
    ("both", both::CLAIMS),
    ("store", store::CLAIMS),
    ("incoming", incoming::CLAIMS),
    ("requests", requests::CLAIMS),
    ("time", time::CLAIMS),
];

/// Those about `page` or `worker`, by the names under which they are listed.
pub fn of(thread: &str) -> impl Iterator<Item = (String, Prove)> {
    let (thread, modules) = if thread == "page" { ("page", PAGE) } else { ("worker", WORKER) };
    modules.iter().flat_map(move |(module, claims)| {
        claims.iter().map(move |(name, prove)| (format!("{thread}: {module}::{name}"), *prove))
    })
}

/// What a JavaScript expression gives; one that throws is told.
fn js(expression: &str) -> JsValue {
    js_sys::eval(expression).unwrap_or_else(|error| panic!("{expression}: {}", crate::browser::words(&error)))
}

/// What a promise of a JavaScript expression resolves to.
async fn js_later(expression: &str) -> JsValue {
    let promise: js_sys::Promise = js(expression).unchecked_into();
    JsFuture::from(promise)
        .await
        .unwrap_or_else(|error| panic!("{expression}: {}", crate::browser::words(&error)))
}

/// Lets every task of the event loop that is due go first.
async fn turn() {
    js_later("new Promise((next) => setTimeout(next, 0))").await;
}

/// Looks until it is so. What never comes ends with the script that runs the claims.
async fn until(mut so: impl FnMut() -> bool) {
    while !so() {
        turn().await;
    }
}

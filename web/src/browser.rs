//! The few things of a browser that both threads need.
//!
//! Invariant: a panic is told on the console and to the other thread, never lost.

use firstlight_engine::clock::Nanos;
use wasm_bindgen::prelude::*;
use web_sys::{console, js_sys};

/// The scope of this thread, window or worker.
pub fn scope() -> JsValue {
    js_sys::global().into()
}

/// Tells panics on the console.
pub fn report_panics() {
    std::panic::set_hook(Box::new(|panic| console::error_1(&format!("firstlight: {panic}").into())));
}

/// What went wrong in a browser's words, for a sentence of ours.
pub fn words(error: &JsValue) -> String {
    match error.dyn_ref::<js_sys::Error>() {
        Some(error) => format!("{}: {}", error.name(), error.message()),
        None => error.as_string().unwrap_or_else(|| format!("{error:?}")),
    }
}

/// `performance.timeOrigin` and `performance.now()` of this thread, in milliseconds.
pub fn performance() -> (f64, f64) {
    let get = |of: &JsValue, name: &str| js_sys::Reflect::get(of, &name.into()).unwrap_or(JsValue::UNDEFINED);
    let performance: web_sys::Performance = get(&scope(), "performance").unchecked_into();
    (performance.time_origin(), performance.now())
}

/// Milliseconds as nanoseconds.
pub fn nanos(ms: f64) -> Nanos {
    // A page would have to be open for 104 days to leave 2^53.
    (ms.max(0.0) * 1e6) as Nanos
}

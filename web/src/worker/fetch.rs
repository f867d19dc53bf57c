//! What the worker asks of other machines: requests that can be ended, bodies that are read piece by piece, timers.
//!
//! It knows no server's words. Invariant: nothing waits forever and no body grows without a limit; whoever ends a request
//! says why, and finds that reason again.

use std::cell::Cell;
use std::rc::Rc;

use wasm_bindgen::prelude::*;
use wasm_bindgen_futures::JsFuture;
use web_sys::{
    AbortController, Headers, ReadableStreamDefaultReader, RequestCache, RequestInit, Response,
    WorkerGlobalScope, js_sys,
};

use crate::browser::words;

/// Milliseconds of silence after which a request is given up: four times as long as a server of ours is ever silent.
const PATIENCE_MS: i32 = 60_000;

fn scope() -> WorkerGlobalScope {
    js_sys::global().unchecked_into()
}

/// Calls something later, unless it is dropped before.
pub struct Timer {
    id: Option<i32>,
    _call: Closure<dyn FnMut()>,
}

impl Timer {
    /// After so many milliseconds.
    pub fn after(millis: i32, call: impl FnOnce() + 'static) -> Self {
        let call = Closure::once(call);
        let set = scope()
            .set_timeout_with_callback_and_timeout_and_arguments_0(call.as_ref().unchecked_ref(), millis);
        Self { id: set.ok(), _call: call }
    }
}

impl Drop for Timer {
    fn drop(&mut self) {
        if let Some(id) = self.id {
            scope().clear_timeout_with_handle(id);
        }
    }
}

/// Waits so many milliseconds.
pub async fn sleep(millis: i32) {
    let promise = js_sys::Promise::new(&mut |resolve, _| {
        // A worker that cannot set a timer is about to end.
        let _ = scope().set_timeout_with_callback_and_timeout_and_arguments_0(&resolve, millis);
    });
    let _ = JsFuture::from(promise).await;
}

/// Why a request was ended from here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Why {
    /// Nobody wants its answer any more.
    Unwanted,
    /// Nothing came for too long.
    Silent,
}

/// Ends a request, and whatever else was begun with it.
#[derive(Clone)]
pub struct Abort {
    controller: AbortController,
    why: Rc<Cell<Option<Why>>>,
}

impl Abort {
    /// For requests to come.
    ///
    /// # Errors
    /// The browser has no such thing.
    pub fn new() -> Result<Self, FetchError> {
        let controller = AbortController::new().map_err(|error| FetchError::Unreachable(words(&error)))?;
        Ok(Self { controller, why: Rc::default() })
    }

    /// Ends them; the first reason counts.
    pub fn end(&self, why: Why) {
        self.why.set(self.why.get().or(Some(why)));
        self.controller.abort();
    }

    /// Whether they were ended.
    pub fn is_ended(&self) -> bool {
        self.why.get().is_some()
    }

    fn or(&self, error: FetchError) -> FetchError {
        self.why.get().map_or(error, FetchError::Ended)
    }

    /// Ends it unless this is dropped before.
    fn impatience(&self) -> Timer {
        let abort = self.clone();
        Timer::after(PATIENCE_MS, move || abort.end(Why::Silent))
    }
}

/// Why there is no answer, or no more of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FetchError {
    /// Ended from here.
    Ended(Why),
    /// No answer came; a browser's words.
    Unreachable(String),
    /// The answer broke off; a browser's words.
    Broken(String),
    /// The answer has more bytes than anybody waits for.
    TooLong(usize),
}

impl FetchError {
    /// The same in a sentence without its subject: "ADDRESS ...".
    pub fn predicate(&self) -> String {
        match self {
            Self::Ended(Why::Unwanted) => "was asked to stop".to_owned(),
            Self::Ended(Why::Silent) => format!("was silent for {} s", PATIENCE_MS / 1000),
            Self::Unreachable(words) => format!("does not answer ({words})"),
            Self::Broken(words) => format!("broke the connection off ({words})"),
            Self::TooLong(limit) => format!("sent more than {limit} bytes"),
        }
    }
}

/// A request, or why there is none.
pub struct Call<'c> {
    /// Where.
    pub url: &'c str,
    /// Sent as `authorization: Bearer`.
    pub api_key: Option<&'c str>,
    /// JSON; without it, it is a GET.
    pub body: Option<&'c str>,
}

/// Sends a request, and returns when its head is here.
///
/// # Errors
/// No answer came, or it was ended.
pub async fn send(call: &Call<'_>, abort: &Abort) -> Result<Answer, FetchError> {
    let unsent = |error: JsValue| FetchError::Unreachable(words(&error));
    let (init, headers) = (RequestInit::new(), Headers::new().map_err(unsent)?);
    if let Some(key) = call.api_key {
        headers.append("authorization", &format!("Bearer {key}")).map_err(unsent)?;
    }
    init.set_method(if call.body.is_some() { "POST" } else { "GET" });
    if let Some(body) = call.body {
        headers.append("content-type", "application/json").map_err(unsent)?;
        init.set_body(&body.into());
    }
    init.set_headers(&headers);
    init.set_cache(RequestCache::NoStore);
    init.set_signal(Some(&abort.controller.signal()));
    let _impatience = abort.impatience();
    let response = JsFuture::from(scope().fetch_with_str_and_init(call.url, &init)).await;
    let response: Response = response.map_err(|error| abort.or(unsent(error)))?.unchecked_into();
    Ok(Answer { response, reader: None, abort: abort.clone() })
}

/// An answer, of which the head is here.
pub struct Answer {
    response: Response,
    reader: Option<ReadableStreamDefaultReader>,
    abort: Abort,
}

impl Answer {
    /// The status.
    pub fn status(&self) -> u16 {
        self.response.status()
    }

    /// A header that the server lets pages see.
    pub fn header(&self, name: &str) -> Option<String> {
        self.response.headers().get(name).ok().flatten()
    }

    /// The next piece of the body; `None` at its end.
    ///
    /// # Errors
    /// It broke off, or was ended.
    pub async fn next(&mut self) -> Result<Option<Vec<u8>>, FetchError> {
        let broken = |error: JsValue| FetchError::Broken(words(&error));
        let reader = match (&self.reader, self.response.body()) {
            (Some(reader), _) => reader.clone(),
            (None, Some(body)) => {
                let reader: ReadableStreamDefaultReader = body.get_reader().unchecked_into();
                self.reader.insert(reader).clone()
            }
            (None, None) => return Ok(None),
        };
        let _impatience = self.abort.impatience();
        let read = JsFuture::from(reader.read()).await;
        let read = read.map_err(|error| self.abort.or(broken(error)))?;
        let field = |name: &str| js_sys::Reflect::get(&read, &name.into()).map_err(broken);
        if field("done")?.is_truthy() {
            return Ok(None);
        }
        Ok(Some(js_sys::Uint8Array::new(&field("value")?).to_vec()))
    }

    /// The whole body.
    ///
    /// # Errors
    /// It broke off, was ended, or has more than `limit` bytes.
    pub async fn whole(mut self, limit: usize) -> Result<Vec<u8>, FetchError> {
        let mut bytes = Vec::new();
        while let Some(piece) = self.next().await? {
            if bytes.len() + piece.len() > limit {
                return Err(FetchError::TooLong(limit));
            }
            bytes.extend_from_slice(&piece);
        }
        Ok(bytes)
    }
}

impl Drop for Answer {
    /// What was not read to its end does not go on in the background.
    fn drop(&mut self) {
        if let Some(reader) = &self.reader {
            // It may have ended already; what that says interests nobody.
            let cancelled = JsFuture::from(reader.cancel());
            wasm_bindgen_futures::spawn_local(async { drop(cancelled.await) });
        }
    }
}

//! Bytes on their way in: over HTTP, resumable, or out of a file that was dropped on the page.
//!
//! It keeps nothing. Invariant: what comes begins at the byte that [`Incoming::from`] names, and a stream that ends early is
//! an error with both figures.

use wasm_bindgen::prelude::*;
use wasm_bindgen_futures::JsFuture;
use web_sys::{
    AbortSignal, Headers, ReadableStreamDefaultReader, RequestInit, Response, WorkerGlobalScope, js_sys,
};

use crate::browser::words;

/// Where the bytes of a file are.
#[derive(Clone, Debug)]
pub enum Origin {
    /// An address.
    Http(String),
    /// Dropped on the page.
    File(web_sys::File),
}

/// A stream of bytes.
pub struct Incoming {
    reader: ReadableStreamDefaultReader,
    name: String,
    /// Its first byte: where it was asked to begin, or 0 where the server sends no ranges.
    pub from: u64,
    /// Bytes of the whole file, where that is told.
    pub total: Option<u64>,
    at: u64,
}

/// Fetches `url`; `from` is the first byte that is wanted.
///
/// # Errors
/// No answer, or a status that is none of success.
pub async fn fetch(url: &str, from: u64, stop: &AbortSignal) -> Result<Response, String> {
    let headers = Headers::new().map_err(|error| words(&error))?;
    if from > 0 {
        headers.set("range", &format!("bytes={from}-")).map_err(|error| words(&error))?;
    }
    let init = RequestInit::new();
    init.set_headers(&headers);
    init.set_signal(Some(stop));
    let scope: WorkerGlobalScope = js_sys::global().unchecked_into();
    let answer = JsFuture::from(scope.fetch_with_str_and_init(url, &init)).await.map_err(|error| {
        if stop.aborted() {
            return STOPPED.to_owned();
        }
        format!("{url} cannot be reached ({}); check the address and the network, and that its host allows other sites to read it (CORS)", words(&error))
    })?;
    let response: Response = answer.unchecked_into();
    match response.status() {
        200 | 206 => Ok(response),
        // Nothing lies behind that byte: perhaps all of it is here.
        416 if from > 0 => Ok(response),
        404 => Err(format!("{url} is not there (404); check the name")),
        401 | 403 => Err(format!(
            "{url} may not be read without signing in ({}); choose a public model, or download it and drop the file here",
            response.status()
        )),
        status => Err(format!("{url} answers with status {status}; try again later")),
    }
}

/// What stands for "somebody pressed stop".
pub const STOPPED: &str = "stopped";

impl Incoming {
    /// Opens a stream from byte `from` on.
    ///
    /// # Errors
    /// As [`fetch`].
    pub async fn open(origin: &Origin, from: u64, stop: &AbortSignal) -> Result<Self, String> {
        let (stream, name, from, total) = match origin {
            Origin::Http(url) => {
                let response = fetch(url, from, stop).await?;
                let header = |name: &str| response.headers().get(name).ok().flatten();
                let length = header("content-length").and_then(|text| text.parse::<u64>().ok());
                let range = header("content-range").and_then(|text| parse_range(&text));
                if response.status() == 416 {
                    let total =
                        header("content-range").and_then(|text| text.strip_prefix("bytes */")?.parse().ok());
                    if total != Some(from) {
                        return Err(format!(
                            "{url} has no byte {from}: it has changed; delete the model and fetch it anew"
                        ));
                    }
                    return Self::empty(url, from);
                }
                let (from, total) = match (response.status(), range) {
                    (206, Some((begin, total))) if begin == from => (from, total),
                    (206, _) => return Err(format!("{url} sent another range than the one asked for")),
                    // A compressed body is longer than its header says; nothing is promised then.
                    _ => (0, length.filter(|_| header("content-encoding").is_none())),
                };
                let body = response.body().ok_or_else(|| format!("{url} has no bytes"))?;
                (body, url.clone(), from, total)
            }
            Origin::File(file) => {
                let rest = file.slice_with_f64(from as f64).map_err(|error| words(&error))?;
                (rest.stream(), file.name(), from, Some(file.size() as u64))
            }
        };
        let reader: ReadableStreamDefaultReader = stream.get_reader().unchecked_into();
        Ok(Self { reader, name, from, total, at: from })
    }

    /// Of a file of which nothing is missing.
    fn empty(name: &str, from: u64) -> Result<Self, String> {
        let nothing = web_sys::Blob::new().map_err(|error| words(&error))?;
        let reader: ReadableStreamDefaultReader = nothing.stream().get_reader().unchecked_into();
        Ok(Self { reader, name: name.to_owned(), from, total: Some(from), at: from })
    }

    /// The next bytes; `None` at the end.
    ///
    /// # Errors
    /// The stream broke off.
    pub async fn next(&mut self) -> Result<Option<js_sys::Uint8Array>, String> {
        let broke = |why: String, at: u64, total: Option<u64>| {
            let of = total.map_or(String::new(), |total| format!(" of {total}"));
            format!("{} broke off at byte {at}{of}: {why}", self.name)
        };
        let step = JsFuture::from(self.reader.read()).await;
        let step = step.map_err(|error| broke(words(&error), self.at, self.total))?;
        let field = |name: &str| js_sys::Reflect::get(&step, &name.into()).unwrap_or(JsValue::UNDEFINED);
        if field("done").is_truthy() {
            return match self.total.filter(|total| *total != self.at) {
                Some(_) => Err(broke("the connection was closed".into(), self.at, self.total)),
                None => Ok(None),
            };
        }
        let bytes: js_sys::Uint8Array = field("value").unchecked_into();
        self.at += u64::from(bytes.length());
        Ok(Some(bytes))
    }

    /// Lets the rest go.
    pub fn cancel(&self) {
        // Nobody waits for it.
        drop(self.reader.cancel());
    }
}

/// `bytes 100-199/200` as the first byte and the total.
fn parse_range(text: &str) -> Option<(u64, Option<u64>)> {
    let (range, total) = text.strip_prefix("bytes ")?.split_once('/')?;
    Some((range.split_once('-')?.0.parse().ok()?, total.parse().ok()))
}

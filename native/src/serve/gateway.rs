//! Who asks, and whether they may: API keys, request ids, W3C trace context, and the count of what was answered.
//!
//! Invariant: every response carries the request's id and is counted by its status, whoever made it.

mod keys;

use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use axum::extract::{MatchedPath, Request, State};
use axum::http::{HeaderMap, HeaderName, HeaderValue, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};

use self::keys::ApiKeys;
use super::errors::ApiError;
use super::server::Server;
use super::telemetry::{TRACEPARENT, TraceContext};
use crate::cli::ServeArgs;
use crate::failure::Failure;

const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
/// Longer request ids are replaced: they stand on every timeline.
const MAX_REQUEST_ID: usize = 128;

/// Who asks.
#[derive(Clone, Debug)]
pub struct Caller {
    /// A word that no other request of any process has.
    pub serial: String,
    /// As it was sent, or made from the serial.
    pub request_id: String,
    /// The trace that it belongs to.
    pub trace: Option<TraceContext>,
    /// The path's pattern.
    pub route: String,
}

/// Keys and numbers.
pub struct Gateway {
    keys: ApiKeys,
    /// Whose pages may ask where nobody needs a key; `None` lets all.
    origins: Option<Vec<String>>,
    /// Of this process, so that ids differ between two starts.
    process: u64,
    count: AtomicU64,
}

impl Gateway {
    /// With the keys, origins and permissions of `args`.
    ///
    /// # Errors
    /// The file of keys cannot be read or holds none.
    pub fn new(args: &ServeArgs) -> Result<Self, Failure> {
        let everybody =
            args.insecure || args.api_keys.is_some() || args.cors.iter().any(|origin| origin == "*");
        let origin = |origin: &String| origin.trim_end_matches('/').to_ascii_lowercase();
        Ok(Self {
            keys: ApiKeys::open(args.api_keys.clone())?,
            origins: (!everybody).then(|| args.cors.iter().map(origin).collect()),
            process: RandomState::new().hash_one(std::process::id()),
            count: AtomicU64::new(0),
        })
    }

    /// A page somewhere on the web whose name was made to point here could ask as if it were ours; browsers say where a
    /// page is from. Whoever has an address on this machine, or none as programs do, may ask.
    fn admits_origin(&self, origin: Option<&str>) -> bool {
        let (Some(allowed), Some(origin)) = (&self.origins, origin) else { return true };
        let origin = origin.to_ascii_lowercase();
        let host = origin.split_once("://").map_or("", |(_, host)| host);
        let name = host.rsplit_once(':').filter(|(_, port)| port.bytes().all(|b| b.is_ascii_digit()));
        let name = name.map_or(host, |(name, _)| name);
        ["localhost", "127.0.0.1", "[::1]"].contains(&name) || allowed.contains(&origin)
    }

    /// Reads the keys again; where that fails, those from before stay.
    ///
    /// # Errors
    /// As [`Self::new`].
    pub fn reload(&self) -> Result<(), Failure> {
        self.keys.reload()
    }

    fn caller(&self, request: &Request, begin_traces: bool) -> Caller {
        let serial = format!("{:016x}{:x}", self.process, self.count.fetch_add(1, Ordering::Relaxed));
        let headers = request.headers();
        let route = request.extensions().get::<MatchedPath>().map_or("unknown", MatchedPath::as_str);
        Caller {
            request_id: request_id(headers).unwrap_or_else(|| format!("req-{serial}")),
            trace: TraceContext::of(headers, begin_traces),
            route: route.to_owned(),
            serial,
        }
    }
}

fn request_id(headers: &HeaderMap) -> Option<String> {
    let id = headers.get(REQUEST_ID)?.to_str().ok()?;
    let printable = |byte: u8| byte.is_ascii_graphic();
    (!id.is_empty() && id.len() <= MAX_REQUEST_ID && id.bytes().all(printable)).then(|| id.to_owned())
}

/// Names the request, and the response after it. The outermost layer: what is refused below is named and counted too.
pub async fn name(State(server): State<Arc<Server>>, mut request: Request, next: Next) -> Response {
    let caller = server.gateway().caller(&request, server.telemetry().traces());
    request.extensions_mut().insert(caller.clone());
    let mut response = next.run(request).await;
    server.ledger().count_status(&caller.route, response.status().as_u16());
    let headers = response.headers_mut();
    if let Ok(id) = HeaderValue::from_str(&caller.request_id) {
        headers.insert(REQUEST_ID, id);
    }
    if let Some(trace) = &caller.trace
        && let Ok(parent) = HeaderValue::from_str(&trace.outgoing())
    {
        headers.insert(TRACEPARENT, parent);
    }
    response
}

/// Lets nobody past without a key, where there are keys. Health is for everybody: it says nothing about requests.
pub async fn authorise(State(server): State<Arc<Server>>, request: Request, next: Next) -> Response {
    let key = request.headers().get(header::AUTHORIZATION).and_then(|value| value.to_str().ok());
    let key = key
        .and_then(|value| value.split_once(' '))
        .filter(|(scheme, _)| scheme.eq_ignore_ascii_case("bearer"));
    let origin = request.headers().get(header::ORIGIN).map(|value| value.to_str().unwrap_or("?"));
    if !server.gateway().admits_origin(origin) {
        return ApiError::origin(origin.unwrap_or_default()).into_response();
    }
    let open = request.uri().path() == "/health";
    match open || server.gateway().keys.admits(key.map(|(_, key)| key.trim())) {
        true => next.run(request).await,
        false => ApiError::unauthorised().into_response(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::{self, Command, Parsed};

    fn gateway(line: &str) -> Gateway {
        let words = ["firstlight", "serve"].into_iter().chain(line.split_whitespace()).map(Into::into);
        match cli::parse(words) {
            Ok(Parsed::Command(cli)) => match cli.command {
                Command::Serve(args) => Gateway::new(&args).unwrap(),
                other => panic!("{other:?} is not serve"),
            },
            _ => panic!("{line} is right"),
        }
    }

    #[test]
    fn without_keys_only_pages_of_this_machine_or_of_an_allowed_origin_may_ask() {
        let check = |line: &str, origin: Option<&str>, expected: bool| {
            assert_eq!(gateway(line).admits_origin(origin), expected, "{line}: {origin:?}");
        };
        check("", None, true);
        check("", Some("http://localhost:3000"), true);
        check("", Some("http://127.0.0.1:8080"), true);
        check("", Some("http://[::1]:8080"), true);
        check("", Some("http://[::1]"), true);
        check("", Some("https://example.org"), false);
        check("", Some("http://127.0.0.1.example.org:8080"), false);
        check("", Some("http://localhost:x.example.org"), false);
        check("", Some("null"), false);
        check("--cors https://example.org/", Some("https://Example.org"), true);
        check("--cors https://example.org", Some("https://example.com"), false);
        check("--cors *", Some("https://example.com"), true);
        check("--insecure", Some("https://example.com"), true);
    }
}

//! Who asks, and whether they may: API keys, request ids, W3C trace context, and the count of what was answered.
//!
//! Invariant: every response carries the request's id and is counted by its status, whoever made it.

mod keys;
mod upstream;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use axum::extract::{Extension, MatchedPath, Request, State};
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, Version, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};

use firstlight_engine::clock::Clock;
use firstlight_engine::timeline::RequestLabels;

use self::keys::ApiKeys;
use self::upstream::RequestStart;
use super::errors::ApiError;
use super::server::Server;
use super::telemetry::{TRACEPARENT, TraceContext};
use crate::cli::ServeArgs;
use crate::clock::InstantClock;
use crate::failure::Failure;
use crate::quota::{Account, Limits, Meter, Quota};
use crate::run::draw_seed;

const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
const REPLICA: HeaderName = HeaderName::from_static("x-firstlight-replica");
/// What a client whose use is limited is told: limit, what is left and seconds until all of it is there again, of requests
/// and of tokens.
pub(super) const QUOTA_HEADERS: [[&str; 3]; 2] = [
    ["x-ratelimit-limit-requests", "x-ratelimit-remaining-requests", "x-ratelimit-reset-requests"],
    ["x-ratelimit-limit-tokens", "x-ratelimit-remaining-tokens", "x-ratelimit-reset-tokens"],
];
/// nginx's status for a client that went away before its answer began; nobody receives it, and it is counted.
const CLIENT_CLOSED_REQUEST: u16 = 499;
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
    /// What the file of keys calls whoever's key it is.
    pub key_name: Option<String>,
    /// May ask: has a key, or needs none.
    admitted: bool,
    /// Where what it uses is counted.
    meter: Option<Meter>,
    /// When a proxy had the request, by its own clock.
    request_start: Option<RequestStart>,
    /// How long a proxy had it before it was whole here, in ns; see [`Self::is_received`].
    upstream_estimate_ns: Option<i64>,
}

impl Caller {
    /// Where what it uses is counted; `None` where nothing is limited.
    pub fn meter(&self) -> Option<&Meter> {
        self.meter.as_ref()
    }

    /// The request is whole: what a proxy said about its beginning is held against this machine's clock.
    pub fn is_received(&mut self) {
        self.upstream_estimate_ns = self.request_start.and_then(RequestStart::until_now);
    }
}

/// Keys and numbers.
pub struct Gateway {
    keys: ApiKeys,
    /// What everybody together may use where nobody needs a key.
    everybody: Option<Arc<Account>>,
    /// For quotas: they count before the engine is there.
    clock: InstantClock,
    /// This server's name among others, where it has one.
    replica: Option<HeaderValue>,
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
        let any_origin =
            args.insecure || args.api_keys.is_some() || args.cors.iter().any(|origin| origin == "*");
        let origin = |origin: &String| origin.trim_end_matches('/').to_ascii_lowercase();
        let usual = Limits { requests: args.requests_per_minute, tokens: args.tokens_per_minute };
        let is_limited = args.api_keys.is_none() && usual != Limits::default();
        Ok(Self {
            keys: ApiKeys::open(args.api_keys.clone(), usual)?,
            everybody: is_limited.then(|| Arc::new(Account::new(usual))),
            clock: InstantClock::start(),
            replica: args.replica.as_deref().and_then(|name| HeaderValue::from_str(name).ok()),
            origins: (!any_origin).then(|| args.cors.iter().map(origin).collect()),
            process: draw_seed(),
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

    /// Whether requests need a key.
    pub fn needs_key(&self) -> bool {
        self.keys.are_needed()
    }

    /// Reads the keys again, and says whether there is a file of them; where that fails, those from before stay.
    ///
    /// # Errors
    /// As [`Self::new`].
    pub fn reload(&self) -> Result<bool, Failure> {
        self.keys.reload(self.clock.now()).map(|()| self.keys.are_needed())
    }

    /// Counts a request against its caller's quota.
    ///
    /// # Errors
    /// 429 where nothing is left of it; then nothing is counted.
    pub fn admit(&self, caller: &Caller, uses_tokens: bool) -> Result<(), ApiError> {
        let Some(meter) = &caller.meter else { return Ok(()) };
        meter.admit(uses_tokens).map_err(|over| ApiError::over_quota(&over, caller.key_name.as_deref()))
    }

    fn caller(&self, request: &Request, begin_traces: bool) -> Caller {
        let serial = format!("{:016x}{:x}", self.process, self.count.fetch_add(1, Ordering::Relaxed));
        let headers = request.headers();
        let route = request.extensions().get::<MatchedPath>().map_or("unknown", MatchedPath::as_str);
        let key = self.keys.find(bearer(headers));
        let admitted = key.is_some() || !self.keys.are_needed();
        let (key_name, account) = key.map(|key| (key.name, key.account)).unzip();
        Caller {
            request_id: request_id(headers).unwrap_or_else(|| format!("req-{serial}")),
            trace: TraceContext::of(headers, begin_traces),
            route: route.to_owned(),
            key_name: key_name.flatten(),
            admitted,
            meter: account.or_else(|| self.everybody.clone()).map(|account| Meter::new(account, self.clock)),
            request_start: upstream::request_start(headers),
            upstream_estimate_ns: None,
            serial,
        }
    }

    /// The names that one choice of the caller's answer has on its timeline. Behind a proxy the route says which replica
    /// took it: `east-1/v1/completions`.
    pub fn labels(&self, caller: &Caller, id: String) -> RequestLabels {
        let replica = self.replica.as_ref().and_then(|name| name.to_str().ok()).unwrap_or_default();
        RequestLabels {
            id,
            request_id: caller.request_id.clone(),
            trace_id: caller.trace.as_ref().map(|trace| trace.trace_id.clone()),
            route: format!("{replica}{}", caller.route),
            upstream_estimate_ns: caller.upstream_estimate_ns,
        }
    }
}

/// The key of `Authorization: Bearer KEY`.
fn bearer(headers: &HeaderMap) -> Option<&str> {
    let (scheme, key) = headers.get(header::AUTHORIZATION)?.to_str().ok()?.split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then(|| key.trim())
}

/// What OpenAI's answers say about quotas, in its spelling.
fn tell_quotas(headers: &mut HeaderMap, meter: &Meter) {
    for standing in meter.standings() {
        let names = match standing.quota {
            Quota::Requests => QUOTA_HEADERS[0],
            Quota::Tokens => QUOTA_HEADERS[1],
        };
        let seconds = standing.full_in as f64 / 1e9;
        let values = [standing.per_minute.to_string(), standing.left.to_string(), format!("{seconds:.3}s")];
        for (name, value) in names.into_iter().zip(values) {
            if let Ok(value) = HeaderValue::try_from(value) {
                headers.insert(name, value);
            }
        }
    }
}

fn request_id(headers: &HeaderMap) -> Option<String> {
    let id = headers.get(REQUEST_ID)?.to_str().ok()?;
    let printable = |byte: u8| byte.is_ascii_graphic();
    (!id.is_empty() && id.len() <= MAX_REQUEST_ID && id.bytes().all(printable)).then(|| id.to_owned())
}

/// Counts a request whose client goes away before it has an answer, which drops everything that worked on one.
struct Unanswered<'s> {
    server: &'s Server,
    /// `None` once there is an answer.
    route: Option<&'s str>,
}

impl Drop for Unanswered<'_> {
    fn drop(&mut self) {
        if let Some(route) = self.route {
            self.server.ledger().count_status(route, CLIENT_CLOSED_REQUEST);
        }
    }
}

/// Names the request, and the response after it. The outermost layer: what is refused below is named and counted too.
pub async fn name(State(server): State<Arc<Server>>, mut request: Request, next: Next) -> Response {
    let caller = server.gateway().caller(&request, server.telemetry().traces());
    let uses_quota = request.method() == Method::POST;
    request.extensions_mut().insert(caller.clone());
    let mut unanswered = Unanswered { server: &server, route: Some(&caller.route) };
    let mut response = next.run(request).await;
    unanswered.route = None;
    server.ledger().count_status(&caller.route, response.status().as_u16());
    let headers = response.headers_mut();
    if let Ok(id) = HeaderValue::from_str(&caller.request_id) {
        headers.insert(REQUEST_ID, id);
    }
    if let Some(meter) = caller.meter.as_ref().filter(|_| uses_quota && caller.admitted) {
        tell_quotas(headers, meter);
    }
    if let Some(name) = &server.gateway().replica {
        headers.insert(REPLICA, name.clone());
    }
    if let Some(trace) = &caller.trace
        && let Ok(parent) = HeaderValue::from_str(&trace.outgoing())
    {
        headers.insert(TRACEPARENT, parent);
    }
    response
}

/// Lets nobody past without a key, where there are keys. Health, the API's description and the page are for everybody:
/// they say nothing about requests.
pub async fn authorise(
    State(server): State<Arc<Server>>,
    Extension(caller): Extension<Caller>,
    request: Request,
    next: Next,
) -> Response {
    if request.version() == Version::HTTP_11 && !request.headers().contains_key(header::HOST) {
        return ApiError::no_host().into_response();
    }
    let origin = request.headers().get(header::ORIGIN).map(|value| value.to_str().unwrap_or("?"));
    if !server.gateway().admits_origin(origin) {
        return ApiError::origin(origin.unwrap_or_default()).into_response();
    }
    let path = request.uri().path();
    let open = ["/", "/health", "/openapi.json"].contains(&path) || path.starts_with("/page/");
    match open || caller.admitted {
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

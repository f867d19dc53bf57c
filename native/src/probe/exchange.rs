//! One streamed chat over a connection of its own, with the instants at which things went out and came in.
//!
//! Invariant: it ends: in bytes, in pieces of text and in time. Whatever the server does is an answer or one sentence.

use std::io::Read;
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::Value;
use ureq::Agent;
use ureq::http::{HeaderMap, Request, StatusCode};
use ureq::unversioned::resolver::DefaultResolver;
use ureq::unversioned::transport::DefaultConnector;

use firstlight_engine::clock::Nanos;

use super::account::Account;
use super::connection::{Watch, Watched};
use super::events::{Stream, begin_of, message_of};
use super::target::{Extras, Target};
use crate::cli::ProbeArgs;

/// How long a connection may take to be there.
const CONNECT: Duration = Duration::from_secs(10);
/// The most bytes of an answer.
const MAX_BYTES: usize = 64 << 20;
/// The most bytes of a list of models, and of an error.
const MAX_SMALL: u64 = 4 << 20;
/// Pieces of text a token, at most: one a byte of a long one.
const PIECES_A_TOKEN: usize = 16;

/// What is asked of whom.
pub struct Asker<'a> {
    /// The command line.
    pub args: &'a ProbeArgs,
    /// The server.
    pub target: Target,
    /// What it is asked for beyond the plain.
    pub extras: Extras,
    /// The model that is named.
    pub model: Option<String>,
    connector: Arc<DefaultConnector>,
}

/// One answer as the client saw it; all instants count from the last write of the request.
#[derive(Debug)]
pub struct Exchange {
    /// Until the connection was there.
    pub connect: Nanos,
    /// When each piece of text arrived; there is at least one.
    pub arrivals: Vec<Nanos>,
    /// When the answer had ended.
    pub total: Nanos,
    /// Tokens, where the server counts them.
    pub tokens: Option<u64>,
    /// The server's side of it.
    pub account: Option<Account>,
    /// The request's id at the server.
    pub request_id: Option<String>,
    /// Who answered, of several.
    pub replica: Option<String>,
}

/// Why there is no answer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NoAnswer {
    /// The server said why.
    #[error("answered {status}: {message}")]
    Refused { status: u16, message: String },
    /// What came is no answer, or nothing came.
    #[error("{0}")]
    Broken(String),
}

fn broken(error: &ureq::Error) -> NoAnswer {
    NoAnswer::Broken(match error {
        ureq::Error::HostNotFound => "has a name that no address is known for; check the URL".into(),
        ureq::Error::Timeout(_) => format!("did not answer in time ({error}); give it more with --timeout"),
        ureq::Error::Io(error) => format!("cannot be reached ({error}); check that a server listens there"),
        other => format!("gave no answer that can be read ({other}); check that the URL is that of an API"),
    })
}

pub fn nanos(duration: Duration) -> Nanos {
    Nanos::try_from(duration.as_nanos()).unwrap_or(Nanos::MAX)
}

impl<'a> Asker<'a> {
    /// One that names the model of `args`.
    pub fn new(args: &'a ProbeArgs, target: Target) -> Self {
        let (extras, model) = (Extras::default(), args.model.clone());
        Self { args, target, extras, model, connector: Arc::default() }
    }

    fn agent(&self, watch: &Watch) -> Agent {
        let whole = Duration::from_secs(u64::from(self.args.timeout));
        let config = Agent::config_builder()
            .http_status_as_error(false)
            .max_redirects(0)
            .max_redirects_will_error(false)
            .max_idle_connections(0)
            .user_agent(concat!("firstlight-probe/", env!("CARGO_PKG_VERSION")))
            .timeout_connect(Some(CONNECT.min(whole)))
            .timeout_global(Some(whole))
            .build();
        let connector = Watched { inner: Arc::clone(&self.connector), watch: watch.clone() };
        Agent::with_parts(config, connector, DefaultResolver::default())
    }

    fn request(&self, method: &str, url: &str, body: Vec<u8>) -> Result<Request<Vec<u8>>, NoAnswer> {
        let mut request = Request::builder().method(method).uri(url).header("accept-encoding", "identity");
        if !body.is_empty() {
            request =
                request.header("content-type", "application/json").header("accept", "text/event-stream");
        }
        if let Some(key) = self.args.api_key.as_deref().filter(|key| !key.is_empty()) {
            request = request.header("authorization", format!("Bearer {key}"));
        }
        request
            .body(body)
            .map_err(|error| NoAnswer::Broken(format!("cannot be asked: {error}; check the URL and the key")))
    }

    /// The first model that the server lists.
    ///
    /// # Errors
    /// It lists none.
    pub fn first_model(&self) -> Result<String, NoAnswer> {
        let request = self.request("GET", &self.target.models(), Vec::new())?;
        let response = self.agent(&Watch::default()).run(request).map_err(|error| broken(&error))?;
        let status = response.status();
        let (head, body) = response.into_parts();
        let bytes = small(body)?;
        if status != StatusCode::OK {
            return Err(refused(status, &head.headers, &bytes));
        }
        let list: Value = serde_json::from_slice(&bytes).unwrap_or_default();
        list["data"][0]["id"].as_str().map(str::to_owned).ok_or_else(|| {
            NoAnswer::Broken(format!(
                "lists no model under {} (it begins {:?}); it may be no OpenAI-compatible API, or give --model NAME",
                self.target.models(),
                begin_of(&bytes)
            ))
        })
    }

    /// Asks for one streamed chat and reads it to its end; asks again for less where a strict server refuses a field.
    ///
    /// # Errors
    /// There is no answer, or none that can be measured.
    pub fn ask(&self) -> Result<Exchange, NoAnswer> {
        let mut level = self.extras.level();
        loop {
            match self.ask_once(level) {
                Err(refusal @ NoAnswer::Refused { status: 400 | 422, .. }) => {
                    level = self.extras.refused(level).ok_or(refusal)?;
                }
                outcome => return outcome,
            }
        }
    }

    fn ask_once(&self, level: usize) -> Result<Exchange, NoAnswer> {
        let body = Extras::body(level, self.model.as_deref(), &self.args.prompt, self.args.max_tokens);
        let request = self.request("POST", &self.target.chat(), body.to_string().into_bytes())?;
        let watch = Watch::default();
        let response = self.agent(&watch).run(request).map_err(|error| broken(&error))?;
        let marks = watch.marks();
        let (head, body) = response.into_parts();
        if head.status != StatusCode::OK {
            return Err(refused(head.status, &head.headers, &small(body)?));
        }
        let unmeasured =
            || NoAnswer::Broken("cannot be measured: nothing was sent; report this defect".into());
        let sent = marks.sent.ok_or_else(unmeasured)?;
        let (stream, total) = self.read(body, &watch, sent)?;
        let word =
            |name: &str| head.headers.get(name).and_then(|value| value.to_str().ok()).map(str::to_owned);
        let account = stream.timeline.as_ref().and_then(Account::of);
        Ok(Exchange {
            connect: marks.connect.map_or(0, nanos),
            total,
            tokens: stream.tokens,
            arrivals: stream.arrivals,
            request_id: word("x-request-id"),
            replica: word("x-firstlight-replica").or_else(|| account.as_ref()?.replica()),
            account,
        })
    }

    /// Reads a stream to its end.
    fn read(&self, body: ureq::Body, watch: &Watch, sent: Instant) -> Result<(Stream, Nanos), NoAnswer> {
        let most = self.args.max_tokens as usize * PIECES_A_TOKEN;
        let mut reader = body.into_reader();
        let (mut stream, mut piece) = (Stream::default(), vec![0; 16 << 10]);
        let (mut begin, mut len, mut total) = (Vec::new(), 0, 0);
        while !stream.done {
            let count = match reader.read(&mut piece) {
                Ok(0) => break,
                Ok(count) => count,
                // What came after the last event is no part of the answer.
                Err(_) if stream.ended => break,
                Err(error) => {
                    return Err(NoAnswer::Broken(format!(
                        "cut the answer after {len} bytes and {} pieces of text ({error})",
                        stream.arrivals.len()
                    )));
                }
            };
            let arrived = watch.marks().arrived.unwrap_or_else(Instant::now);
            total = nanos(arrived.saturating_duration_since(sent));
            len += count;
            if len > MAX_BYTES {
                return Err(NoAnswer::Broken(format!("sent more than {MAX_BYTES} bytes for one answer")));
            }
            if begin.len() < 400 {
                begin.extend_from_slice(&piece[..count]);
            }
            stream.take(&piece[..count], total, most).map_err(|bad| NoAnswer::Broken(bad.to_string()))?;
        }
        let begins = begin_of(&begin);
        match stream {
            _ if stream.events == 0 => Err(NoAnswer::Broken(format!(
                "answered with something that is no stream of events; it begins {begins:?}: check that the URL is that of an OpenAI-compatible API"
            ))),
            _ if !stream.ended => Err(NoAnswer::Broken(format!(
                "cut the answer after {len} bytes and {} pieces of text, before its end",
                stream.arrivals.len()
            ))),
            _ if stream.arrivals.is_empty() => Err(NoAnswer::Broken(
                "answered without any text; ask for something else with --prompt".into(),
            )),
            _ => Ok((stream, total)),
        }
    }
}

fn small(body: ureq::Body) -> Result<Vec<u8>, NoAnswer> {
    let mut bytes = Vec::new();
    let read = body.into_reader().take(MAX_SMALL).read_to_end(&mut bytes);
    // The beginning of an error's text is enough to tell it.
    match read {
        Err(error) if bytes.is_empty() => Err(NoAnswer::Broken(format!("cut its answer ({error})"))),
        _ => Ok(bytes),
    }
}

fn refused(status: StatusCode, headers: &HeaderMap, bytes: &[u8]) -> NoAnswer {
    let status_code = status.as_u16();
    let location = headers.get("location").and_then(|value| value.to_str().ok());
    let message = match (serde_json::from_slice::<Value>(bytes), location) {
        (_, Some(location)) if status.is_redirection() => {
            format!("it sends its clients to {location:?}; give that URL")
        }
        (Ok(body), _) if body.get("error").is_some() => message_of(&body["error"]),
        (Ok(body), _) if body.get("message").is_some() => message_of(&body),
        _ if bytes.is_empty() => "without a word".into(),
        _ => begin_of(bytes),
    };
    let advice = match status_code {
        401 | 403 => "; give the key with --api-key",
        404 => "; check the URL's path and --model",
        429 | 503 => "; ask again later",
        500.. => "; look at the server's log",
        _ => "",
    };
    let message = format!("{message}{advice}");
    NoAnswer::Refused { status: status_code, message }
}

//! What a client is told when it does not get what it asked for, in OpenAI's form and with the right status.
//!
//! Invariant: the message says what, with which value, and what to do next; statuses that may be tried again say when.

use axum::body::Body;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};

use firstlight_engine::request::{FinishReason, RejectReason};
use firstlight_engine::timeline::RequestTimeline;

use crate::quota::OverQuota;

/// Seconds after which a request that was turned away for lack of room, or while the model loads, may come again.
const RETRY_AFTER_SECONDS: u32 = 1;

/// An answer that is none. Displayed, it is its message.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[error("{message}")]
pub struct ApiError {
    /// The status, where no byte of an answer has gone out yet.
    pub status: StatusCode,
    /// OpenAI's word for the kind of error.
    pub kind: &'static str,
    /// What is wrong and what to do.
    pub message: String,
    /// The parameter that is to blame.
    pub param: Option<&'static str>,
    /// A word for programs.
    pub code: Option<&'static str>,
    /// Seconds to wait.
    pub retry_after: Option<u32>,
}

impl ApiError {
    fn new(status: StatusCode, kind: &'static str, message: impl Into<String>) -> Self {
        Self { status, kind, message: message.into(), param: None, code: None, retry_after: None }
    }

    /// 400: the request cannot be meant.
    pub fn invalid(message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "invalid_request_error", message)
    }

    /// 400: a parameter outside its range.
    pub fn parameter(param: &'static str, message: impl Into<String>) -> Self {
        Self { param: Some(param), ..Self::invalid(message) }
    }

    /// 400: a parameter that is known and not built.
    pub fn unsupported(param: &'static str, advice: &str) -> Self {
        let message = format!("{param} is not supported by this server; {advice}");
        Self { code: Some("unsupported_parameter"), ..Self::parameter(param, message) }
    }

    /// 422: a parameter of the wrong JSON type.
    pub fn mistyped(param: &'static str, expected: &str) -> Self {
        let message = format!("{param} has the wrong type; it must be {expected}");
        let status = StatusCode::UNPROCESSABLE_ENTITY;
        Self { status, code: Some("invalid_type"), ..Self::parameter(param, message) }
    }

    /// 400: more answers in one call than the queue holds, however empty it is.
    pub fn too_many_choices(asked: usize, most: usize) -> Self {
        let message = format!(
            "this call asks for {asked} answers and the queue of this server holds {most}; ask for fewer in one call, or raise --max-waiting on the server"
        );
        Self { code: Some("too_many_choices"), ..Self::parameter("n", message) }
    }

    /// 400: the one header that HTTP/1.1 asks for is missing (RFC 9112, section 3.2).
    pub fn no_host() -> Self {
        Self::invalid("the request has no host header, which HTTP/1.1 asks for; send one")
    }

    /// 401.
    pub fn unauthorised() -> Self {
        let message = "the API key is missing or unknown; send `Authorization: Bearer KEY` with one of the server's keys";
        let code = Some("invalid_api_key");
        Self { code, ..Self::new(StatusCode::UNAUTHORIZED, "invalid_request_error", message) }
    }

    /// 403: a page of an origin that nobody allowed.
    pub fn origin(origin: &str) -> Self {
        let origin: String = origin.chars().take(80).collect();
        let message =
            format!("pages of {origin:?} may not use this server; start it with --cors {origin} if they may");
        Self {
            code: Some("origin_not_allowed"),
            ..Self::new(StatusCode::FORBIDDEN, "invalid_request_error", message)
        }
    }

    /// 404: no such path, or nothing under that name.
    pub fn not_found(message: impl Into<String>) -> Self {
        Self::new(StatusCode::NOT_FOUND, "invalid_request_error", message)
    }

    /// 404: another model than the one that is here.
    pub fn unknown_model(asked: &str, served: &str) -> Self {
        let asked: String = asked.chars().take(80).collect();
        let message = format!("the model {asked:?} is not here; this server has {served:?}");
        Self { param: Some("model"), code: Some("model_not_found"), ..Self::not_found(message) }
    }

    /// 405.
    pub fn method() -> Self {
        let message = "the path is right and the method is not; /openapi.json has both";
        Self::new(StatusCode::METHOD_NOT_ALLOWED, "invalid_request_error", message)
    }

    /// 408: too slow, on either side.
    pub fn timeout(message: impl Into<String>) -> Self {
        Self::new(StatusCode::REQUEST_TIMEOUT, "timeout_error", message)
    }

    /// 413.
    pub fn too_large(limit: u64) -> Self {
        let message =
            format!("the body has more than {limit} bytes; shorten it, or raise --max-body on the server");
        Self::new(StatusCode::PAYLOAD_TOO_LARGE, "invalid_request_error", message)
    }

    /// 415.
    pub fn media_type() -> Self {
        let message = "the body must be JSON; send the header `content-type: application/json`";
        Self::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, "invalid_request_error", message)
    }

    /// 415: a body that was compressed.
    pub fn encoded(encoding: &str) -> Self {
        let encoding: String = encoding.chars().take(40).collect();
        let message = format!("the body is encoded as {encoding:?}, which is not read; send it as it is");
        Self::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, "invalid_request_error", message)
    }

    /// 429: everything that may wait is taken.
    pub fn busy(message: impl Into<String>) -> Self {
        let error = Self::new(StatusCode::TOO_MANY_REQUESTS, "rate_limit_error", message);
        Self { code: Some("server_busy"), retry_after: Some(RETRY_AFTER_SECONDS), ..error }
    }

    /// 429: the caller's quota is used up, with the seconds until it is admitted again.
    pub fn over_quota(over: &OverQuota, key_name: Option<&str>) -> Self {
        let OverQuota { quota, per_minute, wait } = over;
        let seconds = u32::try_from(wait.div_ceil(1_000_000_000)).unwrap_or(u32::MAX);
        let message = format!(
            "the quota of {per_minute} {} a minute{} is used up; ask again in {seconds} s",
            quota.name(),
            key_name.map(|name| format!(" of the key {name}")).unwrap_or_default()
        );
        let error = Self::new(StatusCode::TOO_MANY_REQUESTS, "rate_limit_error", message);
        Self { code: Some("rate_limit_exceeded"), retry_after: Some(seconds), ..error }
    }

    /// 400: the prompt holds what this server's policy blocks. Which rule it was is not said.
    pub fn filtered() -> Self {
        let message =
            "the prompt holds what this server's content policy does not allow; change it and ask again";
        Self { code: Some("content_filter"), ..Self::invalid(message) }
    }

    /// 500: our bug, or the device's.
    pub fn failed(message: impl Into<String>) -> Self {
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, "server_error", message)
    }

    /// 503: not yet, or no more.
    pub fn unavailable(code: &'static str, message: impl Into<String>) -> Self {
        let error = Self::new(StatusCode::SERVICE_UNAVAILABLE, "server_error", message);
        Self { code: Some(code), retry_after: Some(RETRY_AFTER_SECONDS), ..error }
    }

    /// 503: the model is not there yet.
    pub fn loading() -> Self {
        Self::unavailable("loading", "the model is still being loaded; ask again in a moment")
    }

    /// 500: whatever worked on the request is gone without a word.
    pub fn lost() -> Self {
        Self::failed("the request was lost to a defect of firstlight; report it, with the server's log")
    }

    /// How an answer ended that is none; `None` for an end that is an answer.
    pub fn of_end(reason: FinishReason, detail: Option<&RejectReason>) -> Option<Self> {
        match reason {
            FinishReason::Stop
            | FinishReason::StopString
            | FinishReason::Length
            | FinishReason::ContentFilter => None,
            FinishReason::Cancelled => {
                Some(Self::unavailable("cancelled", "the answer was cancelled; ask again"))
            }
            FinishReason::Disconnected => Some(Self::failed("the client did not read its answer in time")),
            FinishReason::Deadline => Some(Self {
                code: Some("deadline_exceeded"),
                ..Self::timeout(
                    "firstlight.deadline_ms ran out before the answer's end; allow more, or ask later",
                )
            }),
            FinishReason::Failed => Some(Self::failed("the engine failed on this request; ask again")),
            FinishReason::Rejected => Some(detail.map_or_else(
                || Self::failed("the request was refused without a reason; report this defect"),
                Self::from,
            )),
        }
    }

    /// What the client of a request that ended is told in place of an answer; `None` where it has one. A prompt that holds
    /// what is blocked gets none, and no token.
    pub fn of_timeline(timeline: &RequestTimeline) -> Option<Self> {
        match timeline.finish_reason()? {
            FinishReason::ContentFilter if timeline.stamps().first_token.is_none() => Some(Self::filtered()),
            reason => Self::of_end(reason, timeline.finish_detail()),
        }
    }

    /// The object that clients read.
    pub fn json(&self) -> Value {
        let Self { kind, message, param, code, .. } = self;
        json!({ "error": { "message": message, "type": kind, "param": param, "code": code } })
    }
}

impl From<&RejectReason> for ApiError {
    fn from(reason: &RejectReason) -> Self {
        let message = reason.to_string();
        match reason {
            RejectReason::InvalidParameter { name, .. } => Self::parameter(name, message),
            RejectReason::PromptTooLong { .. }
            | RejectReason::PromptTooManyBytes { .. }
            | RejectReason::NeverFits { .. } => {
                Self { code: Some("context_length_exceeded"), ..Self::invalid(message) }
            }
            RejectReason::EmptyPrompt | RejectReason::UnknownToken { .. } | RejectReason::Preparation(_) => {
                Self::invalid(message)
            }
            RejectReason::OverQuota { .. } => {
                Self { code: Some("request_too_large"), ..Self::invalid(message) }
            }
            RejectReason::Busy { .. } => Self::busy(message),
            RejectReason::ShuttingDown => Self::unavailable("shutting_down", message),
            RejectReason::Stopped(_) => Self::unavailable("engine_stopped", message),
        }
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let mut response = Response::new(Body::from(self.json().to_string()));
        *response.status_mut() = self.status;
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
        if let Some(seconds) = self.retry_after {
            headers.insert(header::RETRY_AFTER, seconds.into());
        }
        if self.status == StatusCode::UNAUTHORIZED {
            headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        response
    }
}

//! W3C trace context: which trace a call belongs to, in and out.
//!
//! The recommendation is <https://www.w3.org/TR/trace-context/>. Invariant: the span that a response names is the one that
//! is exported, if any is.

use axum::http::{HeaderMap, HeaderName};

use crate::run::draw_seed;

/// The header that carries it.
pub const TRACEPARENT: HeaderName = HeaderName::from_static("traceparent");
const TRACESTATE: HeaderName = HeaderName::from_static("tracestate");
/// What vendors add to a trace is handed on up to this length, as the recommendation asks.
const MAX_STATE: usize = 512;
/// The flag that asks for a record.
const SAMPLED: u8 = 1;

/// See the module.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TraceContext {
    /// 32 hexadecimal digits, not all 0.
    pub trace_id: String,
    /// The span of whoever asked; `None` where the trace begins here.
    pub parent: Option<u64>,
    /// This server's own span; not 0.
    pub span: u64,
    /// As they came: whether it is recorded is for whoever began the trace to say.
    pub flags: u8,
    /// What vendors had to say; not ours to read.
    pub state: String,
}

impl TraceContext {
    /// The trace that the headers name. Where they name none, a new one if `begin` says so.
    pub fn of(headers: &HeaderMap, begin: bool) -> Option<Self> {
        let header = |name| headers.get(name).and_then(|value: &axum::http::HeaderValue| value.to_str().ok());
        if let Some((trace_id, parent, flags)) = header(TRACEPARENT).and_then(parse) {
            // Several headers of this name are one list, as the recommendation says.
            let states: Vec<&str> =
                headers.get_all(TRACESTATE).iter().filter_map(|v| v.to_str().ok()).collect();
            let state = Some(states.join(",")).filter(|state| state.len() <= MAX_STATE).unwrap_or_default();
            return Some(Self { trace_id, parent: Some(parent), span: draw_id(), flags, state });
        }
        begin.then(|| Self {
            trace_id: format!("{:016x}{:016x}", draw_id(), draw_id()),
            parent: None,
            span: draw_id(),
            flags: SAMPLED,
            state: String::new(),
        })
    }

    /// Whether its spans are wanted.
    pub fn is_sampled(&self) -> bool {
        self.flags & SAMPLED != 0
    }

    /// The `traceparent` that goes out: this server's span.
    pub fn outgoing(&self) -> String {
        format!("00-{}-{:016x}-{:02x}", self.trace_id, self.span, self.flags)
    }
}

/// An id that nobody else has, and not 0.
pub fn draw_id() -> u64 {
    // Each state has keys of its own, from the system's random numbers.
    draw_seed().max(1)
}

/// Trace id, parent and flags of `00-<32 hex>-<16 hex>-<2 hex>`; `None` for what is none, as the recommendation asks.
fn parse(header: &str) -> Option<(String, u64, u8)> {
    let is_hex = |text: &str, len: usize| {
        text.len() == len && text.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b))
    };
    let mut fields = header.trim().split('-');
    let (version, trace, parent, flags) = (fields.next()?, fields.next()?, fields.next()?, fields.next()?);
    let whole = version != "00" || fields.next().is_none();
    let valid =
        is_hex(version, 2) && version != "ff" && is_hex(trace, 32) && is_hex(parent, 16) && is_hex(flags, 2);
    if !whole || !valid || trace.bytes().all(|b| b == b'0') {
        return None;
    }
    let parent = u64::from_str_radix(parent, 16).ok().filter(|parent| *parent > 0)?;
    Some((trace.to_owned(), parent, u8::from_str_radix(flags, 16).ok()?))
}

#[cfg(test)]
mod tests {
    use axum::http::HeaderValue;

    use super::*;

    const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";

    #[test]
    fn several_headers_of_state_are_one_list() {
        let mut headers = HeaderMap::new();
        let parent = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
        headers.insert(TRACEPARENT, HeaderValue::from_static(parent));
        headers.append(TRACESTATE, HeaderValue::from_static("a=1"));
        headers.append(TRACESTATE, HeaderValue::from_static("b=2"));
        assert_eq!(
            TraceContext::of(&headers, false).map(|context| context.state).as_deref(),
            Some("a=1,b=2")
        );
    }

    fn context(traceparent: &str, tracestate: &str, begin: bool) -> Option<TraceContext> {
        let mut headers = HeaderMap::new();
        headers.insert(TRACEPARENT, HeaderValue::from_str(traceparent).unwrap());
        headers.insert(TRACESTATE, HeaderValue::from_str(tracestate).unwrap());
        TraceContext::of(&headers, begin)
    }

    #[test]
    fn a_traceparent_is_read_as_the_recommendation_says() {
        let check = |header: &str, expected: Option<&str>| {
            assert_eq!(parse(header).map(|(id, _, _)| id).as_deref(), expected, "{header}");
        };
        check(&format!("00-{TRACE}-00f067aa0ba902b7-01"), Some(TRACE));
        check(&format!("cc-{TRACE}-00f067aa0ba902b7-01-more"), Some(TRACE));
        check(&format!("00-{TRACE}-00f067aa0ba902b7-01-more"), None);
        check(&format!("ff-{TRACE}-00f067aa0ba902b7-01"), None);
        check(&format!("00-{TRACE}-0000000000000000-01"), None);
        check(&format!("00-{}-00f067aa0ba902b7-01", "0".repeat(32)), None);
        check(&format!("00-{}-00f067aa0ba902b7-01", TRACE.to_uppercase()), None);
        check("", None);
        check("00-é-x-y", None);
    }

    #[test]
    fn a_trace_goes_on_under_a_span_of_its_own_and_begins_only_where_it_is_wanted() {
        let incoming = format!("00-{TRACE}-00f067aa0ba902b7-00");
        let on = context(&incoming, "vendor=x", false).unwrap();
        assert_eq!(
            (on.trace_id.as_str(), on.parent, on.is_sampled()),
            (TRACE, Some(0xf067aa0ba902b7), false)
        );
        assert_eq!(on.state, "vendor=x");
        assert_eq!(on.outgoing(), format!("00-{TRACE}-{:016x}-00", on.span));
        assert_ne!(on.span, context(&incoming, "", false).unwrap().span);
        assert_eq!(context(&incoming, &"x".repeat(513), false).unwrap().state, "");
        assert_eq!(context("nonsense", "", false), None);
        let (new, newer) = (context("nonsense", "", true).unwrap(), context("nonsense", "", true).unwrap());
        assert!(new.is_sampled() && new.parent.is_none() && new.trace_id != newer.trace_id);
        assert_eq!(parse(&new.outgoing()), Some((new.trace_id.clone(), new.span, 1)));
    }
}

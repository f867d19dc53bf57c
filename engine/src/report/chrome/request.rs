//! One request as nested asynchronous spans.
//!
//! Two categories share its id, because they overlap: `request` has the host's parts and the stays in the engine,
//! `transport` what happens to the first token after it. Invariant: a span lies within the one around it, or is left out.

use serde_json::{Value, json};

use super::super::latency::host_id;
use super::{REQUESTS_PID, TraceEvent};
use crate::clock::Nanos;
use crate::timeline::{Place, RequestTimeline, Residency};

const REQUEST: &str = "request";
const TRANSPORT: &str = "transport";

/// From its first stamp to the last instant that it knows of; `None` without a stamp.
pub(super) fn extent(timeline: &RequestTimeline) -> Option<(Nanos, Nanos)> {
    let stamps = timeline.stamps();
    let from = stamps.host[0]?;
    let host = stamps.host.iter().copied().flatten();
    let rest = [stamps.queued, stamps.first_token, stamps.first_text, stamps.first_write];
    let ends = [stamps.last_write, stamps.finished, timeline.token_at().last().copied()];
    let stays = timeline.residency().iter().map(|stay| stay.to);
    let to = host.chain(rest.into_iter().chain(ends).flatten()).chain(stays).max()?;
    Some((from, to))
}

/// Writes spans in the order in which they open and close.
struct Pen<'e> {
    id: String,
    cat: &'static str,
    /// Nothing may begin before it.
    at: Nanos,
    /// The ends of the spans that are open.
    open: Vec<Nanos>,
    events: &'e mut Vec<TraceEvent>,
}

impl Pen<'_> {
    fn event(&mut self, ph: &'static str, name: &str, at: Nanos, args: Option<Value>) {
        let drawn = TraceEvent::new(ph, name.to_owned(), at, REQUESTS_PID);
        self.events.push(TraceEvent { cat: Some(self.cat), id: Some(self.id.clone()), args, ..drawn });
    }

    /// A span with what `inside` draws in it. One without duration, or that a broken timeline puts outside of the span
    /// around it, is left out.
    fn span(&mut self, name: &str, (from, to): (Nanos, Nanos), inside: impl FnOnce(&mut Self)) {
        if from >= to || from < self.at || self.open.last().is_some_and(|end| to > *end) {
            return;
        }
        self.event("b", name, from, None);
        self.open.push(to);
        self.at = from;
        inside(self);
        self.open.pop();
        self.at = to;
        self.event("e", name, to, None);
    }

    /// Spans that follow each other, each from one instant to the next; it ends where an instant is missing.
    fn chain(&mut self, names: &[&str], instants: &[Option<Nanos>]) {
        for (name, pair) in names.iter().zip(instants.windows(2)) {
            if let [Some(from), Some(to)] = pair {
                self.span(name, (*from, *to), |_| {});
            }
        }
    }
}

/// Draws `timeline` from `from` to `to`.
pub(super) fn draw(timeline: &RequestTimeline, (from, to): (Nanos, Nanos), events: &mut Vec<TraceEvent>) {
    let (id, name) = (timeline.id().to_string(), host_id(timeline));
    let mut pen = Pen { id, cat: REQUEST, at: from, open: vec![to], events };
    pen.event("b", &name, from, Some(args(timeline)));
    let stamps = timeline.stamps();
    // Before the spans, so that an instant at the very end still lies within.
    for (name, at) in [
        ("first_token", stamps.first_token),
        ("first_text", stamps.first_text),
        ("first_write", stamps.first_write),
    ] {
        at.into_iter().for_each(|at| pen.event("n", name, at, None));
    }
    let host = &stamps.host;
    pen.chain(&["gateway", "route"], &host[..3]);
    if let Some(routed) = host[2] {
        // One that was refused in preparation ends in it; so does one that is still there.
        let end = host[6].or(stamps.finished).unwrap_or(to);
        pen.span("preparation", (routed, end), |pen| {
            pen.chain(&["wait", "template", "tokenise", "submit"], &host[2..]);
        });
    }
    draw_stays(timeline, to, &mut pen);
    pen.event("e", &name, to, None);
    if let (Some(token), Some(text)) = (stamps.first_token, stamps.first_text) {
        let end = stamps.first_write.unwrap_or(text);
        let mut pen = Pen { cat: TRANSPORT, at: token, open: vec![to], ..pen };
        pen.span("transport", (token, end), |pen| {
            pen.chain(&["hold", "write"], &[Some(token), Some(text), stamps.first_write]);
        });
    }
}

fn args(timeline: &RequestTimeline) -> Value {
    let labels = timeline.labels();
    let mut args = json!({
        "id": host_id(timeline),
        "engine_id": timeline.id().to_string(),
        "tokens": timeline.tokens(),
        "preemptions": timeline.preemptions(),
    });
    let mut put = |name: &str, value: Option<Value>| value.into_iter().for_each(|value| args[name] = value);
    put("request_id", (!labels.request_id.is_empty()).then(|| json!(labels.request_id)));
    put("trace_id", labels.trace_id.as_ref().map(|id| json!(id)));
    put("finish_reason", timeline.finish_reason().map(|reason| json!(reason)));
    put("unfinished", timeline.stamps().finished.is_none().then_some(Value::Bool(true)));
    put("ttft_ns", timeline.ttft().map(Into::into));
    put("engine_ttft_ns", timeline.engine_ttft().map(Into::into));
    put("parts", timeline.parts().map(|parts| json!(parts)));
    args
}

/// The stays in the engine, one span each, with their parts inside.
fn draw_stays(timeline: &RequestTimeline, to: Nanos, pen: &mut Pen<'_>) {
    let stays = timeline.residency();
    let is_open = timeline.stamps().finished.is_none();
    let mut admissions = 0;
    for (idx, stay) in stays.iter().enumerate() {
        let is_last = idx + 1 == stays.len();
        let span = (stay.from, if is_last && is_open { to } else { stay.to });
        match stay.place {
            Place::Inbox => pen.span("inbox", span, |pen| draw_inbox(timeline, span, pen)),
            Place::Waiting => {
                let part = if admissions == 0 { "queue_wait" } else { "requeue" };
                pen.span("waiting", span, |pen| pen.span(part, span, |_| {}));
            }
            Place::Running => {
                let evicted = !is_last;
                pen.span("running", span, |pen| draw_running(timeline, stay, span, admissions, evicted, pen));
                admissions += 1;
            }
            Place::Host | Place::Done => {}
        }
    }
}

fn draw_inbox(timeline: &RequestTimeline, (from, to): (Nanos, Nanos), pen: &mut Pen<'_>) {
    let load = timeline.parts().and_then(|parts| parts.engine).map_or(0, |engine| engine.inbox.model_load);
    pen.chain(&["model_load", "step"], &[Some(from), Some(from + load), Some(to)]);
}

/// A stay in the batch: what was lost or led to the first token, then what was computed again, then decoding.
fn draw_running(
    timeline: &RequestTimeline,
    stay: &Residency,
    (from, to): (Nanos, Nanos),
    admission: usize,
    evicted: bool,
    pen: &mut Pen<'_>,
) {
    match timeline.stamps().first_token {
        Some(token) if (from..=to).contains(&token) => {
            pen.chain(&["prefill", "decode"], &[Some(from), Some(token), Some(to)]);
        }
        Some(token) if token < from => {
            let again = timeline.attempts().get(admission).map_or(stay.from, |attempt| attempt.to);
            pen.chain(&["recompute", "decode"], &[Some(from), Some(again), Some(to)]);
        }
        _ if evicted => pen.span("lost_prefill", (from, to), |_| {}),
        _ => pen.span("prefill", (from, to), |_| {}),
    }
}

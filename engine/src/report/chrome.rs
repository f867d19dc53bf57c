//! Timelines and steps as Chrome trace events, for Perfetto and its like.
//!
//! It leaves nothing open and draws no figure of its own. Invariant: every `b` has its `e` by category and id, no duration
//! is negative, and the events come in the order of their instants.

mod request;
#[cfg(test)]
mod tests;

use std::borrow::Cow;
use std::collections::HashSet;

use serde::Serialize;
use serde_json::{Value, json};

use crate::clock::Nanos;
use crate::order::sort_by_number;
use crate::timeline::{RequestTimeline, StepRecord, StepRing};

/// The tracks: the engine's steps and counters are one process of the trace, the requests another.
const ENGINE_PID: u32 = 1;
const REQUESTS_PID: u32 = 2;
const TID: u32 = 1;

/// One trace event. Instants are microseconds since the engine's origin; their three decimals are exact for 50 days.
#[derive(Clone, Debug, PartialEq, Serialize)]
struct TraceEvent {
    name: Cow<'static, str>,
    ph: &'static str,
    #[serde(skip)]
    at: Nanos,
    ts: f64,
    pid: u32,
    tid: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    cat: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    id: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    dur: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    args: Option<Value>,
}

impl TraceEvent {
    fn new(ph: &'static str, name: impl Into<Cow<'static, str>>, at: Nanos, pid: u32) -> Self {
        let ts = micros(at);
        Self { name: name.into(), ph, at, ts, pid, tid: TID, cat: None, id: None, dur: None, args: None }
    }

    fn with_args(self, args: Value) -> Self {
        Self { args: Some(args), ..self }
    }
}

fn micros(nanos: Nanos) -> f64 {
    nanos as f64 / 1e3
}

/// A trace: `{"traceEvents": [...], "displayTimeUnit": "ms"}`. Made by [`chrome_trace`].
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ChromeTrace {
    #[serde(rename = "traceEvents")]
    events: Vec<TraceEvent>,
    #[serde(rename = "displayTimeUnit")]
    display_time_unit: &'static str,
}

impl ChromeTrace {
    /// How many events it has, the names of its tracks included.
    pub fn num_events(&self) -> usize {
        self.events.len()
    }
}

/// The trace of `timelines`, finished or not, and of the steps that ran between their first instant and their last; of all
/// steps where there is no timeline. A request that is handed in twice is drawn once.
///
/// Each request is a span of its own, paired by id, with the host's parts and its stays inside it; a stay that an eviction
/// ended is a span that ends there. What has not finished is closed at the last instant it knows of.
pub fn chrome_trace<'t>(
    timelines: impl IntoIterator<Item = &'t RequestTimeline>,
    steps: &StepRing,
) -> ChromeTrace {
    let mut events = Vec::new();
    let (mut drawn, mut span) = (HashSet::new(), None);
    for timeline in timelines {
        let Some((from, to)) = request::extent(timeline) else { continue };
        if drawn.insert(timeline.id()) {
            request::draw(timeline, (from, to), &mut events);
            let (first, last) = span.unwrap_or((from, to));
            span = Some((from.min(first), to.max(last)));
        }
    }
    let within = |step: &&StepRecord| {
        span.is_none_or(|(first, last)| step.schedule_at <= last && step.done_at >= first)
    };
    steps.iter().filter(within).for_each(|step| draw_step(step, &mut events));
    // Stable: events of one instant keep the order in which spans open and close.
    sort_by_number(&mut events, |event| event.at);
    let mut all = track_names();
    all.append(&mut events);
    ChromeTrace { events: all, display_time_unit: "ms" }
}

fn track_names() -> Vec<TraceEvent> {
    let name = |ph_name: &'static str, pid: u32, name: &str| {
        TraceEvent::new("M", ph_name, 0, pid).with_args(json!({ "name": name }))
    };
    vec![
        name("process_name", ENGINE_PID, "engine"),
        name("thread_name", ENGINE_PID, "steps"),
        name("process_name", REQUESTS_PID, "requests"),
        name("thread_name", REQUESTS_PID, "requests"),
    ]
}

/// A step is named by what it held, so that a viewer colours them apart.
fn step_name(step: &StepRecord) -> &'static str {
    match (step.decode_rows, step.prefill.is_empty()) {
        (0, false) => "prefill",
        (_, true) => "decode",
        _ => "prefill and decode",
    }
}

fn draw_step(step: &StepRecord, events: &mut Vec<TraceEvent>) {
    let prefill: Vec<Value> =
        step.prefill.iter().map(|(id, tokens)| json!([id.to_string(), tokens])).collect();
    let preempted: Vec<String> = step.preempted.iter().map(ToString::to_string).collect();
    let mut args = json!({
        "step": step.id,
        "decode_rows": step.decode_rows,
        "prefill": prefill,
        "running": step.running,
        "waiting": step.waiting,
        "preempted": preempted,
        "submit_after_ns": step.submit_at.saturating_sub(step.schedule_at),
    });
    if let Some(gpu_ns) = step.gpu_ns {
        args["gpu_ns"] = gpu_ns.into();
    }
    if let Some(obstacle) = step.obstacle {
        args["obstacle"] = json!(obstacle);
    }
    let dur = micros(step.done_at.saturating_sub(step.schedule_at));
    let at = step.schedule_at;
    let drawn = TraceEvent::new("X", step_name(step), at, ENGINE_PID).with_args(args);
    events.push(TraceEvent { dur: Some(dur), cat: Some("step"), ..drawn });
    let counters =
        [("KV blocks used", step.blocks_used), ("running", step.running), ("waiting", step.waiting)];
    for (name, value) in counters {
        events.push(TraceEvent::new("C", name, at, ENGINE_PID).with_args(json!({ "value": value })));
    }
}

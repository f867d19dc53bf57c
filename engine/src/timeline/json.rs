//! A timeline as JSON, schema `firstlight.timeline/1`: one form for server, page and command line.
//!
//! It computes nothing that [`RequestTimeline`] does not. Invariant: integers only, instants and durations alike.

use serde::{Serialize, Serializer};

use super::{
    ClockLabel, DecodeParts, GpuTimes, ModelLabel, Parts, Place, PrefillAttempt, RequestTimeline, Stamps,
    TokenCounts,
};
use crate::clock::Nanos;
use crate::request::FinishReason;

#[derive(Serialize)]
struct TimelineJson<'a> {
    schema: &'static str,
    id: String,
    request_id: &'a str,
    trace_id: Option<&'a str>,
    /// The number that steps call the request by.
    engine_id: u64,
    route: &'a str,
    /// Two clocks made it: beside the parts, never among them.
    #[serde(skip_serializing_if = "Option::is_none")]
    upstream_estimate_ns: Option<i64>,
    model: &'a ModelLabel,
    engine_config: &'a str,
    clock: ClockLabel,
    finish_reason: Option<FinishReason>,
    #[serde(skip_serializing_if = "Option::is_none")]
    finish_detail: Option<String>,
    stamps: StampsJson,
    residency: Vec<(Place, Nanos, Nanos)>,
    #[serde(skip_serializing_if = "Option::is_none")]
    parts: Option<Parts>,
    #[serde(skip_serializing_if = "Option::is_none")]
    parts_total: Option<Nanos>,
    #[serde(skip_serializing_if = "Option::is_none")]
    ttft: Option<Nanos>,
    #[serde(skip_serializing_if = "Option::is_none")]
    engine_ttft: Option<Nanos>,
    #[serde(skip_serializing_if = "Option::is_none")]
    e2e: Option<Nanos>,
    #[serde(skip_serializing_if = "Option::is_none")]
    decode: Option<DecodeParts>,
    #[serde(skip_serializing_if = "Option::is_none")]
    gpu: Option<GpuTimes>,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    profiled: bool,
    tokens: TokenCounts,
    attempts: &'a [PrefillAttempt],
    preemptions: u32,
    token_at: &'a [Nanos],
    token_step: &'a [u64],
    /// The rule that a timeline of an ended request breaks: a defect, shown to whoever reads it.
    #[serde(skip_serializing_if = "Option::is_none")]
    broken: Option<String>,
}

#[derive(Serialize)]
struct StampsJson {
    #[serde(skip_serializing_if = "Option::is_none")]
    received: Option<Nanos>,
    #[serde(skip_serializing_if = "Option::is_none")]
    checked: Option<Nanos>,
    #[serde(skip_serializing_if = "Option::is_none")]
    routed: Option<Nanos>,
    #[serde(skip_serializing_if = "Option::is_none")]
    preparing: Option<Nanos>,
    #[serde(skip_serializing_if = "Option::is_none")]
    templated: Option<Nanos>,
    #[serde(skip_serializing_if = "Option::is_none")]
    tokenised: Option<Nanos>,
    #[serde(skip_serializing_if = "Option::is_none")]
    created: Option<Nanos>,
    #[serde(skip_serializing_if = "Option::is_none")]
    queued: Option<Nanos>,
    #[serde(skip_serializing_if = "Option::is_none")]
    first_token: Option<Nanos>,
    #[serde(skip_serializing_if = "Option::is_none")]
    first_text: Option<Nanos>,
    #[serde(skip_serializing_if = "Option::is_none")]
    first_write: Option<Nanos>,
    #[serde(skip_serializing_if = "Option::is_none")]
    last_write: Option<Nanos>,
    #[serde(skip_serializing_if = "Option::is_none")]
    finished: Option<Nanos>,
}

impl From<&Stamps> for StampsJson {
    fn from(s: &Stamps) -> Self {
        let [received, checked, routed, preparing, templated, tokenised, created] = s.host;
        Self {
            received,
            checked,
            routed,
            preparing,
            templated,
            tokenised,
            created,
            queued: s.queued,
            first_token: s.first_token,
            first_text: s.first_text,
            first_write: s.first_write,
            last_write: s.last_write,
            finished: s.finished,
        }
    }
}

impl Serialize for RequestTimeline {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let parts = self.parts();
        let id = if self.labels.id.is_empty() { self.id.to_string() } else { self.labels.id.clone() };
        TimelineJson {
            schema: "firstlight.timeline/1",
            id,
            request_id: &self.labels.request_id,
            trace_id: self.labels.trace_id.as_deref(),
            engine_id: self.id.0,
            route: &self.labels.route,
            upstream_estimate_ns: self.labels.upstream_estimate_ns,
            model: &self.engine.model,
            engine_config: &self.engine.engine_config,
            clock: self.engine.clock,
            finish_reason: self.finish_reason(),
            finish_detail: self.finish_detail().map(ToString::to_string),
            stamps: (&self.stamps).into(),
            residency: self.residency.iter().map(|stay| (stay.place, stay.from, stay.to)).collect(),
            parts,
            parts_total: parts.map(|p| p.total()),
            ttft: self.ttft(),
            engine_ttft: self.engine_ttft(),
            e2e: self.e2e(),
            decode: self.decode(),
            gpu: self.gpu,
            profiled: self.profiled,
            tokens: self.tokens,
            attempts: &self.attempts,
            preemptions: self.preemptions,
            token_at: &self.token_at,
            token_step: &self.token_step,
            broken: self.finish.as_ref().and_then(|_| self.check().err()).map(|broken| broken.to_string()),
        }
        .serialize(serializer)
    }
}

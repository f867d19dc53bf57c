//! A call as spans: one for the call, one for each choice, one for each stage, with the timeline's own instants.
//!
//! Nothing is timed here. Invariant: spans of one name in a choice add up to the part of that name, to the nanosecond.

use opentelemetry_proto::tonic::common::v1::KeyValue;
use opentelemetry_proto::tonic::trace::v1::span::{Event, SpanKind};
use opentelemetry_proto::tonic::trace::v1::status::StatusCode;
use opentelemetry_proto::tonic::trace::v1::{Span, SpanFlags, Status};

use firstlight_engine::clock::Nanos;
use firstlight_engine::request::FinishReason;
use firstlight_engine::timeline::{Place, RequestTimeline};

use super::TraceContext;
use super::call::{self, CallFacts};
use super::stages::{Stage, stages};
use super::trace_context::draw_id;
use super::values::{flag, number, text, texts, whole};
use super::{FinishedCall, PROVIDER, Whereabouts};

/// Choices of one call that are told one by one: a call may have thousands.
const MAX_CHOICES: usize = 64;

/// The spans of a call, the call's own first; none where its trace is not recorded.
pub fn of_call(call: &FinishedCall<'_>, here: &Whereabouts) -> Vec<Span> {
    let Some(trace) = call.facts.trace.as_ref().filter(|trace| trace.is_sampled()) else { return Vec::new() };
    let Some(first) = call.timelines.first() else { return Vec::new() };
    let pen = Pen { trace, origin_ns: call.facts.origin_unix_ms.saturating_mul(1_000_000) };
    let ends = call.timelines.iter().filter_map(|timeline| end_of(timeline));
    let (from, to) = (first.stamps().received().unwrap_or(0), ends.max().unwrap_or(0));
    let mut server = pen.span(trace.span, trace.parent, SpanKind::Server, from, to);
    server.name = format!("{} {}", call.facts.operation(), call.facts.asked_model());
    server.trace_state = trace.state.clone();
    server.attributes = attributes_of_call(call, here);
    server.status = Some(status_of_call(call));
    let mut spans = vec![server];
    // What lies before the prompts' ways part is the call's.
    let (shared, _) = stages(first);
    spans.extend(shared.into_iter().map(|stage| pen.stage(trace.span, stage)));
    for timeline in call.timelines.iter().take(MAX_CHOICES) {
        let id = draw_id();
        let (shared, own) = stages(timeline);
        let from = shared.last().map_or(from, |stage| stage.to);
        let mut choice =
            pen.span(id, Some(trace.span), SpanKind::Internal, from, end_of(timeline).unwrap_or(from));
        let index = timeline.labels().id.rsplit('#').next().unwrap_or_default();
        choice.name = format!("choice {index}");
        choice.attributes = attributes_of_choice(timeline);
        choice.events = pen.events(timeline);
        choice.status = Some(status(call::error_type(timeline), call::is_refusal(timeline)));
        spans.push(choice);
        spans.extend(own.into_iter().map(|stage| pen.stage(id, stage)));
    }
    spans
}

fn end_of(timeline: &RequestTimeline) -> Option<Nanos> {
    timeline.stamps().last_write.or(timeline.stamps().finished)
}

/// What all spans of a call have in common.
struct Pen<'a> {
    trace: &'a TraceContext,
    /// Unix time of instant 0.
    origin_ns: u64,
}

impl Pen<'_> {
    fn at(&self, instant: Nanos) -> u64 {
        self.origin_ns.saturating_add(instant)
    }

    fn span(&self, id: u64, parent: Option<u64>, kind: SpanKind, from: Nanos, to: Nanos) -> Span {
        let digits = self.trace.trace_id.as_bytes().chunks(2);
        let byte = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok();
        let is_remote = kind == SpanKind::Server && parent.is_some();
        let remote = if is_remote { SpanFlags::ContextIsRemoteMask as u32 } else { 0 };
        Span {
            trace_id: digits.filter_map(byte).collect(),
            span_id: id.to_be_bytes().to_vec(),
            parent_span_id: parent.map(|parent| parent.to_be_bytes().to_vec()).unwrap_or_default(),
            flags: u32::from(self.trace.flags) | SpanFlags::ContextHasIsRemoteMask as u32 | remote,
            kind: kind as i32,
            start_time_unix_nano: self.at(from),
            end_time_unix_nano: self.at(to),
            ..Span::default()
        }
    }

    fn stage(&self, parent: u64, stage: Stage) -> Span {
        let mut span = self.span(draw_id(), Some(parent), SpanKind::Internal, stage.from, stage.to);
        span.name = stage.name.to_owned();
        span.attributes = stage.attributes;
        span
    }

    fn events(&self, timeline: &RequestTimeline) -> Vec<Event> {
        let event = |name: &str, at: Nanos| Event {
            time_unix_nano: self.at(at),
            name: name.to_owned(),
            ..Event::default()
        };
        let stays = timeline.residency().windows(2);
        let evictions =
            stays.filter(|pair| pair[0].place == Place::Running && pair[1].place == Place::Waiting);
        let evictions = evictions.map(|pair| event("preempted", pair[0].to));
        let mut events: Vec<Event> = evictions.collect();
        events.extend(timeline.stamps().first_token.map(|at| event("first_token", at)));
        events.sort_by_key(|event| event.time_unix_nano);
        events
    }
}

fn status(error: Option<&str>, is_refusal: bool) -> Status {
    match error.filter(|_| !is_refusal) {
        Some(error) => Status { message: error.to_owned(), code: StatusCode::Error as i32 },
        None => Status::default(),
    }
}

fn status_of_call(call: &FinishedCall<'_>) -> Status {
    status(call.error_type(), call.failure().is_some_and(call::is_refusal))
}

/// Whose names are those of OpenTelemetry's conventions for generative models and for HTTP servers.
fn attributes_of_call(call: &FinishedCall<'_>, here: &Whereabouts) -> Vec<KeyValue> {
    let facts = call.facts;
    let mut all = vec![
        text("gen_ai.operation.name", facts.operation()),
        text("gen_ai.provider.name", PROVIDER),
        text("gen_ai.request.model", facts.asked_model()),
        text("gen_ai.response.model", &facts.model),
        text("gen_ai.response.id", &facts.response_id),
        texts("gen_ai.response.finish_reasons", call.timelines.iter().map(|timeline| wire_reason(timeline))),
        text("server.address", &here.address),
        whole("server.port", here.port),
        flag("gen_ai.request.stream", facts.stream),
        text("http.request.method", "POST"),
    ];
    all.extend(sampling(facts));
    if let Some(first) = call.timelines.first() {
        all.push(text("http.route", &first.labels().route));
        all.push(text("firstlight.request_id", &first.labels().request_id));
    }
    // Choices of one prompt share it.
    let prompts = call.timelines.iter().step_by(facts.num_choices.max(1));
    let input: u64 = prompts.map(|timeline| u64::from(timeline.tokens().prompt)).sum();
    let output: u64 = call.timelines.iter().map(|timeline| u64::from(timeline.tokens().generated)).sum();
    all.extend([whole("gen_ai.usage.input_tokens", input), whole("gen_ai.usage.output_tokens", output)]);
    if let [only] = call.timelines {
        all.extend(latencies(only));
    }
    if call.timelines.len() > MAX_CHOICES {
        all.push(whole("firstlight.choices_untold", call.timelines.len() - MAX_CHOICES));
    }
    all.extend(call.status.map(|status| whole("http.response.status_code", status)));
    all.extend(facts.key_name.as_deref().map(|name| text("firstlight.key_name", name)));
    all.extend(call.error_type().map(|error| text("error.type", error)));
    all
}

fn sampling(facts: &CallFacts) -> Vec<KeyValue> {
    let params = &facts.params;
    let float = |key: &str, value: f32| number(key, f64::from(value));
    let mut all = vec![
        float("gen_ai.request.temperature", params.temperature),
        float("gen_ai.request.top_p", params.top_p),
        float("gen_ai.request.frequency_penalty", params.frequency_penalty),
        float("gen_ai.request.presence_penalty", params.presence_penalty),
        whole("gen_ai.request.seed", params.seed.cast_signed()),
    ];
    all.extend(
        (params.max_tokens != u32::MAX).then(|| whole("gen_ai.request.max_tokens", params.max_tokens)),
    );
    all.extend((params.top_k > 0).then(|| whole("gen_ai.request.top_k", params.top_k)));
    all.extend((facts.num_choices > 1).then(|| whole("gen_ai.request.choice.count", facts.num_choices)));
    let stop = params.stop.iter().map(String::as_str);
    all.extend((stop.len() > 0).then(|| texts("gen_ai.request.stop_sequences", stop)));
    all
}

fn attributes_of_choice(timeline: &RequestTimeline) -> Vec<KeyValue> {
    let (labels, tokens) = (timeline.labels(), timeline.tokens());
    let mut all = vec![
        text("firstlight.id", &labels.id),
        text("firstlight.finish_reason", timeline.finish_reason().map_or("", FinishReason::name)),
        whole("gen_ai.usage.input_tokens", tokens.prompt),
        whole("gen_ai.usage.output_tokens", tokens.generated),
        whole("gen_ai.usage.cache_read.input_tokens", tokens.cached),
        whole("firstlight.tokens.computed", tokens.computed),
        whole("firstlight.tokens.after_disconnect", tokens.after_disconnect),
        whole("firstlight.preemptions", timeline.preemptions()),
    ];
    all.extend(latencies(timeline));
    all.extend(call::error_type(timeline).map(|error| text("error.type", error)));
    all
}

/// In seconds, under the names that other engines' spans have.
fn latencies(timeline: &RequestTimeline) -> Vec<KeyValue> {
    let seconds = |name: &str, ns: Nanos| number(&format!("gen_ai.latency.{name}"), ns as f64 / 1e9);
    let mut all = Vec::new();
    all.extend(super::first_answer(timeline).map(|ns| seconds("time_to_first_token", ns)));
    all.extend(timeline.e2e().map(|ns| seconds("e2e", ns)));
    if let Some(engine) = timeline.parts().and_then(|parts| parts.engine) {
        all.push(seconds("time_in_queue", engine.waited()));
        all.push(seconds("time_in_model_prefill", engine.prefill.total()));
        if let Some(decode) = timeline.decode() {
            all.push(seconds("time_in_model_decode", decode.total()));
            all.push(seconds("time_in_model_inference", engine.prefill.total() + decode.total()));
        }
    }
    all
}

/// OpenAI's words where it has one, and ours where it has none.
fn wire_reason(timeline: &RequestTimeline) -> &'static str {
    match timeline.finish_reason() {
        Some(FinishReason::StopString) => "stop",
        Some(reason) => reason.name(),
        None => "unknown",
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::serve::telemetry::samples::{asked, ended};

    #[test]
    fn a_call_is_judged_by_the_first_of_its_choices_that_failed() {
        let check = |ends: &[(FinishReason, Nanos)], error: Option<&str>, code: StatusCode| {
            let timelines: Vec<_> = ends.iter().map(|(end, at)| Arc::new(ended(Some(*end), *at))).collect();
            let call = FinishedCall { facts: &asked(1), timelines: &timelines, status: None };
            assert_eq!(call.error_type(), error, "{ends:?}");
            assert_eq!(status_of_call(&call).code, code as i32, "{ends:?}");
        };
        use FinishReason::{Cancelled, Failed, Rejected};
        // One prompt is too long, and the other is cancelled for it: whoever asked is to blame.
        check(&[(Cancelled, 30), (Rejected, 20)], Some("rejected"), StatusCode::Unset);
        check(&[(Cancelled, 20), (Rejected, 20)], Some("rejected"), StatusCode::Unset);
        check(&[(Rejected, 20), (Failed, 30)], Some("rejected"), StatusCode::Unset);
        check(&[(Rejected, 30), (Failed, 20)], Some("failed"), StatusCode::Error);
        check(&[(Cancelled, 20)], Some("cancelled"), StatusCode::Error);
    }
}

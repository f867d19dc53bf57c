//! The line of the log that every finished request gets.
//!
//! Names and figures only. Invariant: nothing that a client said or was told is in it.

use firstlight_engine::clock::Nanos;
use firstlight_engine::request::FinishReason;
use firstlight_engine::timeline::RequestTimeline;

use super::CallFacts;
use crate::serve::errors::ApiError;

fn ms(ns: Nanos) -> f64 {
    ns as f64 / 1e6
}

/// Logs a request that ended and was sealed. `status` is what went out over HTTP.
pub fn log_ended(facts: &CallFacts, timeline: &RequestTimeline, status: Option<u16>) {
    let (labels, tokens) = (timeline.labels(), timeline.tokens());
    let reason = timeline.finish_reason();
    let error = ApiError::of_timeline(timeline);
    let parts = timeline.parts().unwrap_or_default();
    let engine = parts.engine;
    tracing::info!(
        target: "firstlight::request",
        id = labels.id,
        request_id = labels.request_id,
        trace_id = labels.trace_id,
        route = labels.route,
        key = facts.key_name,
        model = facts.model,
        finish_reason = reason.map_or("unknown", FinishReason::name),
        error = error.and_then(|error| error.code),
        status,
        prompt_tokens = tokens.prompt,
        cached_tokens = tokens.cached,
        generated_tokens = tokens.generated,
        preemptions = timeline.preemptions(),
        ttft_ms = timeline.ttft().map(ms),
        engine_ttft_ms = timeline.engine_ttft().map(ms),
        e2e_ms = timeline.e2e().map(ms),
        gateway_ms = ms(parts.gateway),
        route_ms = ms(parts.route),
        preparation_ms = ms(parts.preparation.total()),
        inbox_ms = engine.map(|engine| ms(engine.inbox.total())),
        queue_wait_ms = engine.map(|engine| ms(engine.queue_wait.total())),
        requeue_ms = engine.map(|engine| ms(engine.requeue.total())),
        lost_prefill_ms = engine.map(|engine| ms(engine.lost_prefill)),
        prefill_ms = engine.map(|engine| ms(engine.prefill.total())),
        transport_ms = parts.transport.map(|transport| ms(transport.total())),
        decode_ms = timeline.decode().map(|decode| ms(decode.total())),
        "request finished"
    );
}

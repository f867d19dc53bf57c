//! The schema of `/v1/report`: percentiles of wholes, means of parts, and the real requests at the tail.
//!
//! Invariant: the names are those of `engine::report`.

use serde_json::{Value, json};

use firstlight_engine::request::FinishReason;

use super::schema::{about, answer, count, figure, flag, list, named, nanos, share, text, with, word};

pub(super) fn components() -> Vec<(&'static str, Value)> {
    vec![
        ("Report", report()),
        ("Distribution", distribution()),
        ("RankedRequest", ranked_request()),
        ("Gauge", gauge()),
        ("SlowestGap", slowest_gap()),
    ]
}

fn report() -> Value {
    let reasons = FinishReason::ALL.map(|reason| (reason.name(), count()));
    answer(
        [
            ("schema", word(&["firstlight.report/1"])),
            ("context", context()),
            ("n", about("Finished requests that it is about.", count())),
            ("n_answered", about("Those with a first token.", count())),
            ("n_preempted", count()),
            ("re_prefills", count()),
            ("refused_broken", about("Timelines that broke a rule: defects of the server.", count())),
            ("refused_unsealed", count()),
            ("finish_reasons", answer(reasons, [])),
            ("wholes", wholes()),
            ("engine_ttft_parts", engine_ttft_parts()),
            ("ttft_parts", ttft_parts()),
            ("decode_parts", decode_parts()),
            ("at_ttft", about("Those that hold p50, p95, p99.", list(named("RankedRequest")))),
            ("at_engine_ttft", list(named("RankedRequest"))),
            ("tokens", tokens()),
            ("gauges", gauges()),
            ("inter_token_by_batch", by_batch()),
            ("inter_token_by_position", list(gaps([("from", count()), ("to", count())]))),
        ],
        [
            ("span", answer([("from", nanos()), ("to", nanos())], [])),
            ("prefix_cache", answer([("queried", count()), ("hit", count())], [("hit_rate", share())])),
            ("slowest_gap", named("SlowestGap")),
        ],
    )
}

fn context() -> Value {
    let rate = with(figure(), json!({ "minimum": 0 }));
    answer(
        [("prefix_cache", flag()), ("model", named("ModelLabel")), ("adapter", text()), ("slots", count())],
        [("request_rate", about("Requests a second.", rate.clone())), ("concurrency", rate)],
    )
}

fn distribution() -> Value {
    let [mean, others @ ..] = ["mean", "n", "sum", "min", "max", "p50", "p90", "p95", "p99"];
    let others = others.map(|name| (name, count()));
    let [n, sum, min, max, p50, p90, p95, p99] = others;
    about(
        "Nanoseconds, by nearest rank.",
        answer([n, sum, min, (mean, figure()), max, p50, p90, p95, p99], []),
    )
}

fn wholes() -> Value {
    let names = ["ttft", "engine_ttft", "queue", "prefill", "inter_token", "time_per_output_token", "e2e"];
    answer([], names.map(|name| (name, named("Distribution"))))
}

fn engine_ttft_parts() -> Value {
    let shares = answer(["inbox", "queue", "prefill", "waste"].map(|name| (name, share())), []);
    answer(
        [("n", count()), ("engine_ttft", count()), ("parts", named("EngineParts"))],
        [("mean", figure()), ("shares", shares)],
    )
}

fn ttft_parts() -> Value {
    let names = ["gateway", "route", "preparation", "inbox", "queue", "prefill", "waste", "transport"];
    answer(
        [("n", count()), ("ttft", count()), ("parts", named("Parts"))],
        [("mean", figure()), ("shares", answer(names.map(|name| (name, share())), []))],
    )
}

fn decode_parts() -> Value {
    answer([("n", count()), ("decode", count()), ("parts", named("DecodeParts"))], [])
}

fn ranked_request() -> Value {
    answer(
        [
            ("percentile", json!({ "type": "integer", "enum": [50, 95, 99] })),
            ("rank", count()),
            ("id", text()),
            ("engine_id", count()),
            ("ttft", nanos()),
            ("parts", named("Parts")),
        ],
        [],
    )
}

fn tokens() -> Value {
    let names = ["prompt", "cached", "computed", "generated", "after_disconnect"];
    answer(names.map(|name| (name, count())), [])
}

fn gauge() -> Value {
    answer(["now", "mean", "max"].map(|name| (name, with(figure(), json!({ "minimum": 0 })))), [])
}

fn gauges() -> Value {
    let names = ["kv_cache_utilisation", "queue_depth", "running", "preemptions"];
    answer([("steps", count()), ("preemptions_in_steps", count())], names.map(|name| (name, named("Gauge"))))
}

/// Gaps between tokens that have something in common.
fn gaps<const N: usize>(common: [(&'static str, Value); N]) -> Value {
    let mut schema = answer(["n", "sum", "min", "max", "p50"].map(|name| (name, count())), []);
    for (name, value) in common {
        schema["properties"][name] = value;
        if let Some(required) = schema["required"].as_array_mut() {
            required.push(name.into());
        }
    }
    schema
}

fn by_batch() -> Value {
    answer([("buckets", list(gaps([("batch", count())]))), ("forgotten", count())], [])
}

fn slowest_gap() -> Value {
    let cause = json!({ "type": "object", "required": ["kind"], "properties": {
        "kind": word(&["evicted", "prefill", "larger_batch", "paused", "host", "step", "forgotten"]),
    } });
    let blame = answer(
        [
            ("engine_id", count()),
            ("token_idx", count()),
            ("gap", nanos()),
            ("median", nanos()),
            ("steps", count()),
            ("in_steps", nanos()),
            ("between_steps", nanos()),
            ("cause", about("What explains most of it, with its figures.", cause)),
            ("sentence", text()),
        ],
        [],
    );
    answer(
        [("id", text()), ("engine_id", count()), ("token_idx", count()), ("gap", nanos())],
        [("blame", about("Where the gap is more than twice the request's median.", blame))],
    )
}

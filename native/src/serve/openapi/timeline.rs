//! Schemas of timelines, steps and traces. All durations and instants are whole nanoseconds.
//!
//! Invariant: the names are those of `engine::timeline`; the parts sum to `parts_total` by `==`.

use serde_json::{Value, json};

use firstlight_engine::request::FinishReason;

use super::schema::{
    about, answer, count, figure, flag, list, named, nanos, or_null, text, tuple, with, word,
};

pub(super) fn components() -> Vec<(&'static str, Value)> {
    vec![
        ("Timeline", timeline()),
        ("Timelines", answer([("timelines", list(named("Timeline")))], [])),
        ("Running", running()),
        ("Stamps", stamps()),
        ("Parts", parts()),
        ("EngineParts", engine_parts()),
        ("WaitCauses", wait_causes()),
        ("DecodeParts", decode_parts()),
        ("ModelLabel", model_label()),
        ("Step", step()),
        ("Steps", answer([("steps", list(named("Step")))], [])),
        ("ChromeTrace", chrome_trace()),
    ]
}

fn timeline() -> Value {
    let reason = or_null(word(&FinishReason::ALL.map(FinishReason::name)));
    let place = word(&["inbox", "waiting", "running"]);
    let attempt =
        answer([("from", nanos()), ("to", nanos()), ("cached", count()), ("computed", count())], []);
    let tokens = ["prompt", "cached", "computed", "generated", "after_disconnect"];
    let clock = answer([("origin_unix_ms", count()), ("resolution_ns", count())], []);
    answer(
        [
            ("schema", word(&["firstlight.timeline/1"])),
            ("id", about("The answer's id, and `#` with the choice's index.", text())),
            ("request_id", about("Shared by all choices; the header `x-request-id`.", text())),
            ("trace_id", about("W3C.", or_null(text()))),
            ("engine_id", about("What steps call the request.", count())),
            ("route", text()),
            ("model", named("ModelLabel")),
            ("engine_config", text()),
            ("clock", clock),
            ("finish_reason", reason),
            ("stamps", named("Stamps")),
            (
                "residency",
                about(
                    "Where it was, from when to when, without a gap.",
                    list(tuple(&[place, nanos(), nanos()])),
                ),
            ),
            ("tokens", answer(tokens.map(|name| (name, count())), [])),
            ("attempts", about("Admissions, each with what it computed.", list(attempt))),
            ("preemptions", count()),
            ("token_at", about("When each token was on the CPU.", list(nanos()))),
            ("token_step", about("The step that made it.", list(count()))),
        ],
        [
            ("finish_detail", text()),
            ("parts", named("Parts")),
            ("parts_total", about("The sum of the parts, exactly.", nanos())),
            ("ttft", about("first_write - received.", nanos())),
            ("engine_ttft", about("first_token - created.", nanos())),
            ("e2e", nanos()),
            ("decode", named("DecodeParts")),
            ("gpu", answer([("forward_ns", nanos())], [("first_decode_ns", nanos())])),
            ("profiled", flag()),
            ("ahead_tokens", about("Tokens of steps that were submitted ahead.", count())),
            (
                "upstream_estimate_ns",
                about(
                    "How long a proxy had it before `received`: two clocks made it, and no sum uses it.",
                    json!({ "type": "integer" }),
                ),
            ),
            ("broken", about("The rule that this timeline breaks: a defect of the server.", text())),
        ],
    )
}

/// Timelines without an end, and the gauges of the same instant.
fn running() -> Value {
    let gauges = ["running", "waiting", "blocks_used", "blocks_total", "preemptions_total"];
    let gauges = answer(gauges.map(|name| (name, count())), []);
    answer(
        [
            ("now", about("The engine's clock.", nanos())),
            ("gauges", about("`running` and `waiting` together are the timelines.", gauges)),
            ("timelines", list(named("Timeline"))),
        ],
        [],
    )
}

fn stamps() -> Value {
    let names = [
        "received",
        "checked",
        "routed",
        "preparing",
        "templated",
        "tokenised",
        "created",
        "queued",
        "first_token",
        "first_text",
        "first_write",
        "last_write",
        "finished",
    ];
    about(
        "Instants since the engine's origin; absent if never reached.",
        answer([], names.map(|name| (name, nanos()))),
    )
}

fn run_parts() -> Value {
    answer([("compute", nanos()), ("stall", nanos())], [])
}

fn wait_causes() -> Value {
    let causes = ["slots", "budget", "blocks", "order", "paused"];
    answer(causes.map(|name| (name, nanos())), [])
}

fn decode_parts() -> Value {
    answer(["compute", "stall", "requeue", "recompute"].map(|name| (name, nanos())), [])
}

/// The engine's own five, by name.
fn engine_fields() -> [(&'static str, Value); 5] {
    [
        ("inbox", answer([("model_load", nanos()), ("step", nanos())], [])),
        ("queue_wait", named("WaitCauses")),
        ("requeue", named("WaitCauses")),
        ("lost_prefill", nanos()),
        ("prefill", run_parts()),
    ]
}

fn engine_parts() -> Value {
    answer(engine_fields(), [])
}

/// The engine's are there once the request has reached the inbox.
fn parts() -> Value {
    let preparation = answer(["wait", "template", "tokenise", "submit"].map(|name| (name, nanos())), []);
    let transport = answer([("hold", nanos()), ("write", nanos())], []);
    let [inbox, queue_wait, requeue, lost_prefill, prefill] = engine_fields();
    answer(
        [("gateway", nanos()), ("route", nanos()), ("preparation", preparation)],
        [inbox, queue_wait, requeue, lost_prefill, prefill, ("transport", transport)],
    )
}

fn model_label() -> Value {
    answer([("name", text()), ("sha256", or_null(text())), ("quantisation", text())], [])
}

fn step() -> Value {
    let stages = ["embed_ns", "layers_ns", "head_ns", "sample_ns"];
    answer(
        [
            ("id", count()),
            ("schedule_at", nanos()),
            ("submit_at", nanos()),
            ("done_at", nanos()),
            ("decode_rows", about("Rows that continue an answer.", count())),
            ("prefill", about("Prompt tokens by request.", list(tuple(&[count(), count()])))),
            ("running", count()),
            ("waiting", count()),
            ("blocks_used", count()),
            ("blocks_total", count()),
            ("preempted", about("Requests that the pass evicted.", list(count()))),
        ],
        [
            (
                "ahead_ns",
                about("Submitted so long before `schedule_at`, while the step before was running.", nanos()),
            ),
            ("gpu_ns", nanos()),
            ("stages", answer(stages.map(|name| (name, nanos())), [])),
            ("failed", flag()),
            (
                "obstacle",
                about("Where admission stopped.", word(&["slots", "budget", "blocks", "order", "paused"])),
            ),
        ],
    )
}

fn chrome_trace() -> Value {
    let micros = || with(figure(), json!({ "minimum": 0 }));
    let event = answer(
        [
            ("name", text()),
            ("ph", word(&["X", "b", "e", "n", "i", "C", "M"])),
            ("ts", about("Microseconds.", micros())),
            ("pid", count()),
            ("tid", count()),
        ],
        [("cat", text()), ("id", text()), ("dur", micros()), ("args", json!({ "type": "object" }))],
    );
    about(
        "What ui.perfetto.dev and chrome://tracing open.",
        answer([("traceEvents", list(event)), ("displayTimeUnit", word(&["ms"]))], []),
    )
}

//! The schema of `/v1/diagnose`: what stands out, with its evidence, and what was checked besides.
//!
//! Invariant: the names are those of `engine::report::diagnose`.

use serde_json::{Value, json};

use super::schema::{about, answer, count, figure, flag, list, named, share, text, with, word};

pub(super) fn components() -> Vec<(&'static str, Value)> {
    vec![
        ("Diagnosis", diagnosis()),
        ("DiagnosisConditions", conditions()),
        ("Finding", finding()),
        ("Checked", checked()),
    ]
}

fn diagnosis() -> Value {
    answer(
        [
            ("schema", word(&["firstlight.diagnosis/1"])),
            ("conditions", about("Under which conditions the figures hold.", named("DiagnosisConditions"))),
            ("false_alarms", about("The chance of any finding where nothing is wrong, at most.", share())),
            ("findings", about("What stands out, the surest first.", list(named("Finding")))),
            ("checked", about("What does not, and why.", list(named("Checked")))),
        ],
        [("earlier", about("Those of the earlier window.", named("DiagnosisConditions")))],
    )
}

fn conditions() -> Value {
    let rate = with(figure(), json!({ "minimum": 0 }));
    answer(
        [("n", count()), ("n_answered", count()), ("percentile", count()), ("model", text())],
        [
            ("request_rate", about("Requests a second.", rate.clone())),
            ("concurrency", rate),
            ("prefix_cache", flag()),
            ("adapter", text()),
            ("slots", count()),
        ],
    )
}

const STAGES: [&str; 9] = [
    "queue",
    "prefill",
    "prefix_cache",
    "decode",
    "host",
    "preemption",
    "client_prefill",
    "chat_template",
    "transport",
];

fn finding() -> Value {
    answer(
        [
            ("rule", text()),
            ("symptom", text()),
            ("stage", word(&STAGES)),
            ("certainty", word(&["possible", "likely", "certain"])),
            ("reason", about("Why it is so sure and no surer.", text())),
            ("n", about("Requests or steps that it rests on.", count())),
            ("effect", about("A ratio or a share; the evidence says of what.", figure())),
            ("evidence", list(text())),
            ("look_at", text()),
        ],
        [("p_value", about("By chance alone, so often at most; absent where it was counted.", share()))],
    )
}

fn checked() -> Value {
    answer(
        [
            ("rule", text()),
            ("symptom", text()),
            ("outcome", word(&["nothing", "too_little", "not_asked"])),
            ("sentence", text()),
        ],
        [],
    )
}

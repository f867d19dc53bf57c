//! Schemas of what a client is answered.
//!
//! Invariant: every field that comes is named here, and none that is named as always there is ever missing.

use serde_json::{Value, json};

use super::schema::{
    Field, about, answer, any_of, count, figure, list, named, null, one_of, or_null, share, text, with, word,
};

pub(super) fn components() -> Vec<(&'static str, Value)> {
    vec![
        ("Error", error()),
        ("ChatAnswer", chat()),
        ("ChatChunk", chat_chunk()),
        ("CompletionAnswer", completion()),
        ("CompletionChunk", completion_chunk()),
        ("Usage", usage()),
        ("ChatLogprobs", chat_logprobs()),
        ("CompletionLogprobs", completion_logprobs()),
        ("Trace", trace()),
        ("Model", model()),
        ("Models", models()),
        ("TokenizeAnswer", tokenize()),
        ("DetokenizeAnswer", answer([("prompt", text())], [])),
        ("Health", health()),
        ("Unwell", unwell()),
    ]
}

fn error_field() -> Value {
    answer(
        [
            ("message", about("What is wrong, with which value, and what to do.", text())),
            ("type", word(&["invalid_request_error", "rate_limit_error", "timeout_error", "server_error"])),
            ("param", about("The field that is to blame.", or_null(text()))),
            ("code", about("A word for programs.", or_null(text()))),
        ],
        [],
    )
}

fn error() -> Value {
    answer([("error", error_field())], [])
}

/// What all answers and chunks of both forms begin with.
fn head(object: &'static str) -> [Field; 5] {
    [
        ("id", text()),
        ("object", word(&[object])),
        ("created", about("Unix seconds.", count())),
        ("model", text()),
        ("system_fingerprint", about("Names the engine's configuration.", text())),
    ]
}

fn reason() -> Value {
    word(&["stop", "length", "content_filter"])
}

/// A whole answer of either form.
fn whole(kind: &'static str, choice: Value) -> Value {
    let [id, object, created, model, fingerprint] = head(kind);
    let (choices, usage) = (("choices", list(choice)), ("usage", named("Usage")));
    answer([id, object, created, model, fingerprint, choices, usage], [trace_field()])
}

/// A chunk of either form; usage is there when it was asked for, and null in all chunks but the last.
fn chunk(kind: &'static str, choice: Value) -> Value {
    let [id, object, created, model, fingerprint] = head(kind);
    let usage = ("usage", or_null(named("Usage")));
    answer([id, object, created, model, fingerprint, ("choices", list(choice))], [usage, trace_field()])
}

fn trace_field() -> Field {
    ("firstlight", about("Where `firstlight.trace` asked for it.", named("Trace")))
}

/// Chats name a tier, of which there is one here.
fn with_tier(mut schema: Value) -> Value {
    schema["properties"]["service_tier"] = word(&["default"]);
    if let Some(required) = schema["required"].as_array_mut() {
        required.push("service_tier".into());
    }
    schema
}

fn chat() -> Value {
    let message = answer(
        [
            ("role", word(&["assistant"])),
            ("content", text()),
            ("refusal", null()),
            ("annotations", with(list(json!({})), json!({ "maxItems": 0 }))),
        ],
        [],
    );
    let choice = answer(
        [
            ("index", count()),
            ("message", message),
            ("logprobs", or_null(named("ChatLogprobs"))),
            ("finish_reason", reason()),
        ],
        [],
    );
    with_tier(whole("chat.completion", choice))
}

fn chat_chunk() -> Value {
    let delta = answer([], [("role", word(&["assistant"])), ("content", text())]);
    let choice = answer(
        [
            ("index", count()),
            ("delta", delta),
            ("logprobs", or_null(named("ChatLogprobs"))),
            ("finish_reason", or_null(reason())),
        ],
        [],
    );
    with_tier(chunk("chat.completion.chunk", choice))
}

fn completion_choice(reason: Value) -> Value {
    answer(
        [
            ("index", count()),
            ("text", text()),
            ("logprobs", or_null(named("CompletionLogprobs"))),
            ("finish_reason", reason),
        ],
        [],
    )
}

fn completion() -> Value {
    whole("text_completion", completion_choice(reason()))
}

fn completion_chunk() -> Value {
    chunk("text_completion", completion_choice(or_null(reason())))
}

fn usage() -> Value {
    answer(
        [
            ("prompt_tokens", count()),
            ("completion_tokens", count()),
            ("total_tokens", count()),
            (
                "prompt_tokens_details",
                answer([("cached_tokens", about("Found in the prefix cache.", count()))], []),
            ),
            ("completion_tokens_details", answer([("reasoning_tokens", one_of([0]))], [])),
        ],
        [],
    )
}

fn chat_logprobs() -> Value {
    let byte = json!({ "type": "integer", "minimum": 0, "maximum": 255 });
    let entry = || [("token", text()), ("logprob", figure()), ("bytes", list(byte.clone()))];
    let [token, value, bytes] = entry();
    let chosen = answer([token, value, bytes, ("top_logprobs", list(answer(entry(), [])))], []);
    answer([("content", list(chosen)), ("refusal", null())], [])
}

fn completion_logprobs() -> Value {
    answer(
        [
            ("tokens", list(text())),
            ("token_logprobs", list(figure())),
            ("top_logprobs", list(json!({ "type": "object", "additionalProperties": figure() }))),
            ("text_offset", list(count())),
        ],
        [],
    )
}

fn trace() -> Value {
    let timelines = "One for each choice, where there are several.";
    answer(
        [
            ("timeline", about("Of the first choice, as far as it is known by now.", named("Timeline"))),
            (
                "token_ids",
                about(
                    "Of the choice, or of each where there are several.",
                    any_of([list(count()), list(list(count()))]),
                ),
            ),
        ],
        [("timelines", about(timelines, list(named("Timeline"))))],
    )
}

fn model() -> Value {
    answer(
        [
            ("id", about("What requests call it.", text())),
            ("object", word(&["model"])),
            ("created", about("When the server started, in Unix seconds.", count())),
            ("owned_by", word(&["firstlight"])),
            ("root", about("What its file calls it.", text())),
            ("max_model_len", about("The longest prompt and answer together, in tokens.", count())),
        ],
        [],
    )
}

fn models() -> Value {
    answer([("object", word(&["list"])), ("data", list(named("Model")))], [])
}

fn tokenize() -> Value {
    answer(
        [("count", count()), ("max_model_len", count()), ("tokens", list(count()))],
        [("token_strs", list(text()))],
    )
}

fn health() -> Value {
    answer(
        [
            ("status", word(&["ok"])),
            ("model", text()),
            ("open", about("Requests under way.", count())),
            ("answered", about("Of the last requests, those with a first token.", count())),
            ("ttft_p50", about("Of streamed answers, in nanoseconds.", or_null(count()))),
            ("ttft_p99", or_null(count())),
            ("queue_share", about("The queue's share of the time to the first token.", or_null(share()))),
        ],
        [],
    )
}

fn unwell() -> Value {
    answer([("error", error_field()), ("status", word(&["loading", "stopping", "stopped"]))], [])
}

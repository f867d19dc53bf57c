//! Schemas of what a client sends.
//!
//! Invariant: a body that fits its schema is not refused for its form, and one that does not fit is; what no schema says
//! (how many tokens a text has, whether there is room) is left to the answer's status.

use serde_json::{Value, json};

use firstlight_engine::request::SamplingParams;
use firstlight_engine::text::Preparer;

use super::Facts;
use super::schema::{
    Field, about, any_of, decimal_up_to, flag, list, named, null, number, one_of, or_null, request, text,
    whole, with, word,
};
use crate::serve::wire::call::Form;
use crate::serve::wire::ranges;
use crate::serve::wire::unbuilt::Unbuilt;

pub(super) fn components(facts: &Facts) -> Vec<(&'static str, Value)> {
    vec![
        ("ChatRequest", chat(facts)),
        ("CompletionRequest", completion(facts)),
        ("Message", message()),
        ("TextPart", text_part()),
        ("FirstlightExtension", extension()),
        ("TokenizeRequest", tokenize(facts)),
        ("DetokenizeRequest", detokenize(facts)),
    ]
}

fn chat(facts: &Facts) -> Value {
    let messages = about("The conversation so far.", messages());
    let optional = vec![
        ("logprobs", about("Whether each token comes with its log-probability.", or_null(flag()))),
        (
            "top_logprobs",
            about(
                "How many likely alternatives come with each token; more than 0 needs `logprobs`.",
                or_null(whole(&ranges::LOGPROBS)),
            ),
        ),
    ];
    let optional = [optional, sampling(facts, Form::Chat)].concat();
    let mut schema = with(
        request(vec![("messages", messages)], optional),
        json!({ "examples": [{
            "messages": [{ "role": "user", "content": "Why is the sky blue?" }],
            "max_tokens": 8, "temperature": 0, "firstlight": { "trace": true },
        }] }),
    );
    let asked = json!({ "properties": { "logprobs": { "enum": [true] } }, "required": ["logprobs"] });
    let none = json!({ "properties": { "top_logprobs": { "enum": [0, null] } } });
    schema["allOf"] = json!([options_need_a_stream(), any_of([asked, none])]);
    schema
}

fn completion(facts: &Facts) -> Value {
    let ids = prompt_ids(facts);
    let prompt_text =
        with(about("As it is; special tokens are read as such.", text()), json!({ "minLength": 1 }));
    let several = json!({
        "type": "array", "items": any_of([prompt_text.clone(), ids.clone()]),
        "minItems": 1, "maxItems": ranges::MAX_PROMPTS,
    });
    let prompt = about("A text, token ids, or several of either.", any_of([prompt_text, ids, several]));
    let logprobs = about(
        "How many likely alternatives come with each token and its log-probability.",
        or_null(whole(&ranges::LOGPROBS)),
    );
    let optional = [vec![("logprobs", logprobs)], sampling(facts, Form::Completion)].concat();
    let mut schema = with(
        request(vec![("prompt", prompt)], optional),
        json!({ "examples": [{ "prompt": "The sky is", "max_tokens": 4, "temperature": 0 }] }),
    );
    schema["allOf"] = json!([options_need_a_stream()]);
    schema
}

/// `stream_options` says nothing without a stream.
fn options_need_a_stream() -> Value {
    let streamed = json!({ "properties": { "stream": { "enum": [true] } }, "required": ["stream"] });
    any_of([streamed, request(vec![], vec![("stream_options", null())])])
}

fn prompt_ids(facts: &Facts) -> Value {
    let mut ids = with(list(token_id(facts)), json!({ "minItems": 1 }));
    if let Some(longest) = facts.max_model_len {
        ids["maxItems"] = longest.saturating_sub(1).into();
    }
    ids
}

fn token_id(facts: &Facts) -> Value {
    whole(&(0..=i64::from(facts.largest_token)))
}

/// The fields that both forms have.
fn sampling(facts: &Facts, form: Form) -> Vec<Field> {
    let usual_tokens = match form {
        Form::Chat => "to the end of the context".to_owned(),
        Form::Completion => ranges::COMPLETION_MAX_TOKENS.to_string(),
    };
    let tokens = format!("The most tokens of an answer; by default {usual_tokens}.");
    let mut fields = vec![
        ("model", or_null(model(facts))),
        ("stream", about("Whether the answer comes as server-sent events.", or_null(flag()))),
        (
            "stream_options",
            about("Only with `stream`.", or_null(request(vec![], vec![("include_usage", or_null(flag()))]))),
        ),
        ("n", about("Choices for each prompt; by default 1.", or_null(whole(&ranges::CHOICES)))),
        ("max_tokens", about(&tokens, or_null(whole(&ranges::TOKENS)))),
        (
            "max_completion_tokens",
            about("The same, and counts where both are there.", or_null(whole(&ranges::TOKENS))),
        ),
        ("temperature", about("0 is greedy; by default 1.", or_null(number(ranges::TEMPERATURES)))),
        ("top_p", about("By default 1: all tokens.", or_null(number(ranges::TOP_P)))),
        ("top_k", about("-1 and 0, the default, keep all tokens.", or_null(whole(&ranges::TOP_K)))),
        (
            "min_p",
            about(
                "Tokens less likely than this times the likeliest are left out.",
                or_null(number(ranges::MIN_P)),
            ),
        ),
        ("presence_penalty", or_null(number(ranges::PENALTIES))),
        ("frequency_penalty", or_null(number(ranges::PENALTIES))),
        (
            "repetition_penalty",
            about("1, the default, is none.", or_null(number(ranges::REPETITION_PENALTIES))),
        ),
        ("logit_bias", logit_bias(facts)),
        ("seed", about("Same seed, same answer; drawn where it is absent.", or_null(whole(&ranges::SEEDS)))),
        ("stop", stop()),
        ("ignore_eos", about("Whether an end token ends nothing.", or_null(flag()))),
        ("firstlight", or_null(named("FirstlightExtension"))),
    ];
    fields.extend(Unbuilt::of(form).map(|field| {
        let values = field.harmless().into_iter().chain([Value::Null]);
        (field.name, about("Known and not built: anything else is refused.", one_of(values)))
    }));
    fields
}

fn model(facts: &Facts) -> Value {
    let sentence = "The model, where one is named it must be this server's.";
    match facts.models.is_empty() {
        true => about(sentence, text()),
        false => about(sentence, word(&facts.models.iter().map(String::as_str).collect::<Vec<_>>())),
    }
}

fn logit_bias(facts: &Facts) -> Value {
    or_null(json!({
        "type": "object",
        "description": "What is added to the logits of these tokens, by token id.",
        "propertyNames": { "pattern": decimal_up_to(facts.largest_token) },
        "additionalProperties": number(ranges::BIASES),
        "maxProperties": SamplingParams::MAX_LOGIT_BIAS,
    }))
}

fn stop() -> Value {
    let (least, most) = (ranges::STOP_CHARS.start(), ranges::STOP_CHARS.end());
    let one = with(text(), json!({ "minLength": least, "maxLength": most }));
    let several = with(list(one.clone()), json!({ "maxItems": SamplingParams::MAX_STOP_STRINGS }));
    about("Texts that end the answer and are no part of it.", any_of([one, several, null()]))
}

fn extension() -> Value {
    let deadline = "Milliseconds from the request's last byte after which it ends wherever it is.";
    let fields = vec![
        ("deadline_ms", about(deadline, or_null(whole(&ranges::DEADLINES_MS)))),
        ("trace", about("Whether the answer carries its timeline and its token ids.", or_null(flag()))),
        ("priority", about("Smaller is sooner; 0 is usual.", or_null(whole(&ranges::PRIORITIES)))),
    ];
    about("What OpenAI's API does not have.", request(vec![], fields))
}

fn messages() -> Value {
    with(list(named("Message")), json!({ "minItems": 1, "maxItems": Preparer::MAX_MESSAGES }))
}

fn message() -> Value {
    let longest = Preparer::MAX_ROLE_BYTES;
    let role = json!({
        "type": "string",
        "description": "`system` (or `developer`, which is the same), `user`, `assistant`, or what else the model's template knows.",
        "pattern": format!("^[A-Za-z0-9_-]{{1,{longest}}}$"),
        "not": { "enum": ["tool", "function"] },
        "examples": ["user"],
    });
    let content = any_of([text(), list(named("TextPart"))]);
    let nothing = || one_of([Value::Null, json!([])]);
    let optional = vec![("tool_calls", nothing()), ("function_call", nothing()), ("audio", nothing())];
    request(vec![("role", role), ("content", content)], optional)
}

fn text_part() -> Value {
    request(vec![("type", word(&["text"])), ("text", text())], vec![])
}

/// Either a text or a conversation; beside a text, `messages` is ignored.
fn tokenize(facts: &Facts) -> Value {
    let shared = || {
        vec![
            ("model", or_null(model(facts))),
            ("return_token_strs", about("Whether the tokens come as texts, too.", or_null(flag()))),
        ]
    };
    let special = about("Whether a begin token stands before the text.", or_null(flag()));
    let plain = request(vec![("prompt", text())], [shared(), vec![("add_special_tokens", special)]].concat());
    let chat = request(vec![("messages", messages())], [shared(), vec![("prompt", null())]].concat());
    with(any_of([plain, chat]), json!({ "examples": [{ "prompt": "Why is the sky blue?" }] }))
}

fn detokenize(facts: &Facts) -> Value {
    let tokens = list(token_id(facts));
    let schema = request(vec![("tokens", tokens)], vec![("model", or_null(model(facts)))]);
    with(schema, json!({ "examples": [{ "tokens": [0, 1, 2] }] }))
}

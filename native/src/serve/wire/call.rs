//! One call of the API as the server understands it: prompts, how to answer them, and in which form.
//!
//! Pure: body in, call or complaint out. Invariant: sampling parameters that come out are within their ranges.

use serde_json::Value;

use firstlight_engine::request::{Request, SamplingParams};
use firstlight_engine::text::PromptInput;

use super::fields::Fields;
use super::messages;
use crate::serve::errors::ApiError;

/// Which of OpenAI's two forms.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// `/v1/chat/completions`.
    Chat,
    /// `/v1/completions`.
    Completion,
}

/// The one field that OpenAI's API does not have: `firstlight`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Extension {
    /// Milliseconds from `received` until the request ends wherever it is.
    pub deadline_ms: Option<u64>,
    /// The answer carries its timeline and its token ids.
    pub trace: bool,
    /// Smaller is sooner.
    pub priority: i32,
}

/// One call.
#[derive(Clone, Debug, PartialEq)]
pub struct Call {
    /// The form of the answer.
    pub form: Form,
    /// The model that was asked for, where one was named.
    pub model: Option<String>,
    /// At least one.
    pub prompts: Vec<PromptInput>,
    /// Choices of each prompt, at least one.
    pub num_choices: usize,
    /// How to answer each of them.
    pub params: SamplingParams,
    /// As it comes, not whole.
    pub stream: bool,
    /// The stream ends with a chunk that counts tokens.
    pub include_usage: bool,
    /// `firstlight`.
    pub extension: Extension,
}

/// The most prompts in one call.
pub const MAX_PROMPTS: usize = 64;
/// The most choices of one prompt: OpenAI's own limit.
const MAX_CHOICES: i64 = 128;
/// What OpenAI's completions get where they do not say.
const COMPLETION_MAX_TOKENS: u32 = 16;
/// vLLM's fields that bind an answer to a form.
const STRUCTURED: [&str; 5] =
    ["guided_json", "guided_regex", "guided_choice", "guided_grammar", "structured_outputs"];
/// vLLM's fields that allow and forbid tokens.
const TOKEN_RULES: [&str; 6] =
    ["min_tokens", "stop_token_ids", "bad_words", "allowed_token_ids", "use_beam_search", "prompt_logprobs"];
/// A day.
const MAX_DEADLINE_MS: i64 = 86_400_000;
const MANY: i64 = u32::MAX as i64;

impl Call {
    /// Reads the body of a call; `drawn_seed` counts where it has none.
    ///
    /// # Errors
    /// 400 or 422 with the field that is to blame.
    pub fn read(form: Form, body: &[u8], drawn_seed: u64) -> Result<Self, ApiError> {
        let mut fields = Fields::read(body)?;
        refuse_unbuilt(form, &mut fields)?;
        let prompts = match form {
            Form::Chat => vec![PromptInput::Chat(messages::read(&mut fields)?)],
            Form::Completion => prompts(&mut fields)?,
        };
        let num_choices = fields.whole("n", 1, MAX_CHOICES)?.map_or(1, |n| usize::try_from(n).unwrap_or(1));
        let params = params(form, &mut fields, drawn_seed)?;
        let stream = fields.flag("stream")?.unwrap_or(false);
        let mut options = fields.object("stream_options")?;
        if options.is_some() && !stream {
            let sentence = "stream_options says nothing without \"stream\": true; leave it out";
            return Err(ApiError::parameter("stream_options", sentence));
        }
        let include_usage = options.as_mut().map(|o| o.flag("include_usage")).transpose()?.flatten();
        Ok(Self {
            form,
            model: fields.text("model")?,
            prompts,
            num_choices,
            params,
            stream,
            include_usage: include_usage.unwrap_or(false),
            extension: extension(&mut fields)?,
        })
    }
}

fn extension(fields: &mut Fields) -> Result<Extension, ApiError> {
    let Some(mut own) = fields.object("firstlight")? else { return Ok(Extension::default()) };
    let priorities = Request::PRIORITIES;
    let (least, most) = (i64::from(*priorities.start()), i64::from(*priorities.end()));
    let priority = own.whole("priority", least, most)?.unwrap_or(0);
    Ok(Extension {
        deadline_ms: own.whole("deadline_ms", 1, MAX_DEADLINE_MS)?.map(i64::unsigned_abs),
        trace: own.flag("trace")?.unwrap_or(false),
        priority: i32::try_from(priority).unwrap_or(0),
    })
}

/// Known and not built: a client that relies on one must not get an answer that silently lacks it.
fn refuse_unbuilt(form: Form, fields: &mut Fields) -> Result<(), ApiError> {
    let empty = |value: &Value| {
        value.as_array().is_some_and(Vec::is_empty)
            || value.as_object().is_some_and(serde_json::Map::is_empty)
    };
    let one = |value: &Value| value == 1;
    fields.refuse("best_of", "leave it out", one)?;
    for name in STRUCTURED {
        fields.refuse(name, "leave it out", |_| false)?;
    }
    for name in TOKEN_RULES {
        fields.refuse(name, "leave it out", |value| empty(value) || value == 0 || value == false)?;
    }
    match form {
        Form::Chat => {
            let text = |value: &Value| value.get("type").is_some_and(|kind| kind == "text");
            fields.refuse("tools", "leave them out", empty)?;
            fields.refuse("functions", "leave them out", empty)?;
            fields.refuse("tool_choice", "leave it out", |v| v == "none" || v == "auto")?;
            fields.refuse("function_call", "leave it out", |v| v == "none" || v == "auto")?;
            fields.refuse("response_format", "only {\"type\": \"text\"} is", text)?;
            fields.refuse("modalities", "only [\"text\"] is", |v| *v == serde_json::json!(["text"]))?;
            fields.refuse("audio", "leave it out", |_| false)?;
            fields.refuse("web_search_options", "leave it out", |_| false)
        }
        Form::Completion => {
            fields.refuse("suffix", "leave it out", |v| v == "")?;
            fields.refuse("echo", "put the prompt before the answer yourself", |v| v == false)
        }
    }
}

fn prompts(fields: &mut Fields) -> Result<Vec<PromptInput>, ApiError> {
    const EXPECTED: &str = "a string, a list of strings, a list of token ids, or a list of those";
    let wrong = || ApiError::mistyped("prompt", EXPECTED);
    let prompts = match fields.take("prompt") {
        None => return Err(ApiError::parameter("prompt", "prompt is missing; send a text or token ids")),
        Some(Value::String(text)) => vec![PromptInput::Raw(text)],
        Some(Value::Array(list)) if list.first().is_some_and(Value::is_number) => vec![ids(list)?],
        Some(Value::Array(list)) => {
            let one = |value| match value {
                Value::String(text) => Ok(PromptInput::Raw(text)),
                Value::Array(list) => ids(list),
                _ => Err(wrong()),
            };
            list.into_iter().map(one).collect::<Result<_, _>>()?
        }
        Some(_) => return Err(wrong()),
    };
    match prompts.len() {
        0 => Err(ApiError::parameter("prompt", "prompt is an empty list; send a text or token ids")),
        n if n > MAX_PROMPTS => {
            let sentence =
                format!("prompt has {n} prompts and at most {MAX_PROMPTS} are taken; send several calls");
            Err(ApiError::parameter("prompt", sentence))
        }
        _ => Ok(prompts),
    }
}

fn ids(list: Vec<Value>) -> Result<PromptInput, ApiError> {
    let id = |value: &Value| {
        let Some(number) = value.as_f64() else {
            return Err(ApiError::mistyped("prompt", "token ids where it is a list of numbers"));
        };
        let id = value.as_u64().and_then(|id| u32::try_from(id).ok());
        id.ok_or_else(|| {
            ApiError::parameter("prompt", format!("{number} is no token id; ids are whole and from 0 on"))
        })
    };
    list.iter().map(id).collect::<Result<_, _>>().map(PromptInput::Ids)
}

fn params(form: Form, fields: &mut Fields, drawn_seed: u64) -> Result<SamplingParams, ApiError> {
    let limit = fields.whole("max_tokens", 0, i64::MAX)?;
    let limit = fields.whole("max_completion_tokens", 0, i64::MAX)?.or(limit);
    // Without a limit a chat runs to the end of the context, which the engine knows.
    let unlimited = if form == Form::Chat { u32::MAX } else { COMPLETION_MAX_TOKENS };
    let seed = fields.whole("seed", i64::MIN, i64::MAX)?;
    let number = |value: Result<Option<f32>, ApiError>, usual: f32| value.map(|v| v.unwrap_or(usual));
    let params = SamplingParams {
        max_tokens: limit.map_or(unlimited, |n| u32::try_from(n).unwrap_or(u32::MAX)),
        temperature: number(fields.number("temperature"), 1.0)?,
        // -1 is vLLM's word for all.
        top_k: fields.whole("top_k", -1, MANY)?.map_or(0, |k| u32::try_from(k).unwrap_or(0)),
        top_p: number(fields.number("top_p"), 1.0)?,
        min_p: number(fields.number("min_p"), 0.0)?,
        repetition_penalty: number(fields.number("repetition_penalty"), 1.0)?,
        presence_penalty: number(fields.number("presence_penalty"), 0.0)?,
        frequency_penalty: number(fields.number("frequency_penalty"), 0.0)?,
        logit_bias: logit_bias(fields)?,
        seed: seed.map_or(drawn_seed, i64::cast_unsigned),
        stop: stop(fields)?,
        logprobs: logprobs(form, fields)?,
        ignore_eos: fields.flag("ignore_eos")?.unwrap_or(false),
    };
    params.validate().map_err(|reason| ApiError::from(&reason))?;
    Ok(params)
}

/// A map from token ids, which JSON has as text, to numbers.
fn logit_bias(fields: &mut Fields) -> Result<Vec<(u32, f32)>, ApiError> {
    let Some(value) = fields.take("logit_bias") else { return Ok(Vec::new()) };
    let Value::Object(map) = value else {
        return Err(ApiError::mistyped("logit_bias", "an object of numbers by token id"));
    };
    let one = |(id, bias): (String, Value)| {
        let token = id.trim().parse().map_err(|_| {
            let shown: String = id.chars().take(40).collect();
            ApiError::parameter("logit_bias", format!("logit_bias has {shown:?}, which is no token id"))
        })?;
        let bias = bias.as_f64().ok_or_else(|| ApiError::mistyped("logit_bias", "an object of numbers"))?;
        Ok((token, bias as f32))
    };
    map.into_iter().map(one).collect()
}

fn stop(fields: &mut Fields) -> Result<Vec<String>, ApiError> {
    let wrong = || ApiError::mistyped("stop", "a string or a list of strings");
    match fields.take("stop") {
        None => Ok(Vec::new()),
        Some(Value::String(text)) => Ok(vec![text]),
        Some(Value::Array(list)) => {
            let text = |value| match value {
                Value::String(text) => Ok(text),
                _ => Err(wrong()),
            };
            list.into_iter().map(text).collect()
        }
        Some(_) => Err(wrong()),
    }
}

/// Chats ask with a switch and a number, completions with a number alone.
fn logprobs(form: Form, fields: &mut Fields) -> Result<Option<u32>, ApiError> {
    let most = i64::from(SamplingParams::MAX_LOGPROBS);
    let count = |n: i64| u32::try_from(n).unwrap_or(0);
    match form {
        Form::Completion => Ok(fields.whole("logprobs", 0, most)?.map(count)),
        Form::Chat => {
            let top = fields.whole("top_logprobs", 0, most)?;
            match (fields.flag("logprobs")?.unwrap_or(false), top) {
                (false, Some(1..)) => {
                    let sentence = "top_logprobs says nothing without \"logprobs\": true; add it";
                    Err(ApiError::parameter("top_logprobs", sentence))
                }
                (false, _) => Ok(None),
                (true, top) => Ok(Some(count(top.unwrap_or(0)))),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(form: Form, fields: &str) -> Result<Call, ApiError> {
        let needed = match form {
            Form::Chat => r#""messages": [{"role": "user", "content": "hi"}]"#,
            Form::Completion => r#""prompt": "hi""#,
        };
        let comma = if fields.is_empty() { "" } else { ", " };
        Call::read(form, format!("{{{needed}{comma}{fields}}}").as_bytes(), 99)
    }

    fn check(form: Form, fields: &str, expected: impl Fn(&mut SamplingParams)) {
        let mut params = SamplingParams {
            max_tokens: if form == Form::Chat { u32::MAX } else { 16 },
            temperature: 1.0,
            seed: 99,
            ..Default::default()
        };
        expected(&mut params);
        assert_eq!(read(form, fields).map(|call| call.params), Ok(params), "{fields}");
    }

    #[test]
    fn parameters_are_openais_with_openais_defaults() {
        check(Form::Chat, "", |_| ());
        check(Form::Completion, "", |_| ());
        check(Form::Chat, r#""max_tokens": 5"#, |p| p.max_tokens = 5);
        check(Form::Chat, r#""max_tokens": 5, "max_completion_tokens": 7"#, |p| p.max_tokens = 7);
        check(Form::Chat, r#""max_tokens": 99999999999"#, |p| p.max_tokens = u32::MAX);
        check(Form::Chat, r#""temperature": 0, "top_p": 0.5"#, |p| (p.temperature, p.top_p) = (0.0, 0.5));
        check(Form::Chat, r#""temperature": null"#, |_| ());
        check(Form::Chat, r#""seed": -1"#, |p| p.seed = u64::MAX);
        check(Form::Chat, r#""top_k": -1"#, |_| ());
        check(Form::Chat, r#""top_k": 40"#, |p| p.top_k = 40);
        check(Form::Chat, r#""stop": "x""#, |p| p.stop = vec!["x".into()]);
        check(Form::Chat, r#""stop": ["x", "y"]"#, |p| p.stop = vec!["x".into(), "y".into()]);
        check(Form::Chat, r#""logprobs": true"#, |p| p.logprobs = Some(0));
        check(Form::Chat, r#""logprobs": true, "top_logprobs": 2"#, |p| p.logprobs = Some(2));
        check(Form::Chat, r#""logprobs": false, "top_logprobs": 0"#, |_| ());
        check(Form::Completion, r#""logprobs": 3"#, |p| p.logprobs = Some(3));
        check(Form::Chat, r#""ignore_eos": true"#, |p| p.ignore_eos = true);
        check(
            Form::Chat,
            r#""tools": [], "logit_bias": {}, "n": 1, "tool_choice": "none", "store": true"#,
            |_| (),
        );
        check(Form::Chat, r#""response_format": {"type": "text"}, "modalities": ["text"]"#, |_| ());
        check(
            Form::Completion,
            r#""echo": false, "suffix": null, "best_of": 1, "stop_token_ids": []"#,
            |_| (),
        );
    }

    #[test]
    fn the_one_extension_is_read_and_the_rest_of_it_is_ignored() {
        let extension = |fields: &str| read(Form::Chat, fields).map(|call| call.extension);
        assert_eq!(extension(""), Ok(Extension::default()));
        assert_eq!(extension(r#""firstlight": {"of_tomorrow": 1}"#), Ok(Extension::default()));
        let all = r#""firstlight": {"deadline_ms": 500, "trace": true, "priority": -3}"#;
        let expected = Extension { deadline_ms: Some(500), trace: true, priority: -3 };
        assert_eq!(extension(all), Ok(expected));
    }

    #[test]
    fn prompts_come_in_four_shapes() {
        let check = |prompt: &str, expected: &[PromptInput]| {
            let body = format!("{{\"prompt\": {prompt}}}");
            let call = Call::read(Form::Completion, body.as_bytes(), 0);
            assert_eq!(call.map(|call| call.prompts).as_deref(), Ok(expected), "{prompt}");
        };
        let (raw, ids) =
            (|text: &str| PromptInput::Raw(text.into()), |ids: &[u32]| PromptInput::Ids(ids.to_vec()));
        check(r#""a""#, &[raw("a")]);
        check(r#"["a", "b"]"#, &[raw("a"), raw("b")]);
        check("[1, 2]", &[ids(&[1, 2])]);
        check("[[1, 2], [], [3]]", &[ids(&[1, 2]), ids(&[]), ids(&[3])]);
    }

    #[test]
    fn what_is_known_and_not_built_is_refused_by_name() {
        let both = ["best_of", "guided_json", "min_tokens", "stop_token_ids"];
        let chat = ["tools", "functions", "response_format", "audio", "modalities", "web_search_options"];
        let check = |form: Form, name: &str| {
            let value = r#"["x"]"#;
            let error = read(form, &format!("\"{name}\": {value}")).expect_err(name);
            assert_eq!((error.param, error.code), (Some(name), Some("unsupported_parameter")), "{name}");
        };
        both.iter().chain(&chat).for_each(|name| check(Form::Chat, name));
        both.iter().chain(&["suffix", "echo"]).for_each(|name| check(Form::Completion, name));
    }
}

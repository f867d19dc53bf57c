//! One call of the API as the server understands it: prompts, how to answer them, and in which form.
//!
//! Pure: body in, call or complaint out. Invariant: sampling parameters that come out are within their ranges.

use serde_json::Value;

use firstlight_engine::request::SamplingParams;
use firstlight_engine::text::PromptInput;

use super::fields::{Fields, number, whole};
use super::unbuilt::Unbuilt;
use super::{messages, ranges};
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

impl Call {
    /// Reads the body of a call; `drawn_seed` counts where it has none.
    ///
    /// # Errors
    /// 400 or 422 with the field that is to blame.
    pub fn read(form: Form, body: &[u8], drawn_seed: u64) -> Result<Self, ApiError> {
        let mut fields = Fields::read(body)?;
        Unbuilt::of(form).try_for_each(|field| field.refuse(&mut fields))?;
        let prompts = match form {
            Form::Chat => vec![PromptInput::Chat(messages::read(&mut fields)?)],
            Form::Completion => prompts(&mut fields)?,
        };
        let num_choices = fields.whole("n", ranges::CHOICES)?.map_or(1, |n| usize::try_from(n).unwrap_or(1));
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
    let priority = own.whole("priority", ranges::PRIORITIES)?.unwrap_or(0);
    Ok(Extension {
        deadline_ms: own.whole("deadline_ms", ranges::DEADLINES_MS)?.map(i64::unsigned_abs),
        trace: own.flag("trace")?.unwrap_or(false),
        priority: i32::try_from(priority).unwrap_or(0),
    })
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
        n if n > ranges::MAX_PROMPTS => {
            let sentence = format!(
                "prompt has {n} prompts and at most {} are taken; send several calls",
                ranges::MAX_PROMPTS
            );
            Err(ApiError::parameter("prompt", sentence))
        }
        _ => Ok(prompts),
    }
}

fn ids(list: Vec<Value>) -> Result<PromptInput, ApiError> {
    let id = |value: &Value| {
        if !value.is_number() {
            return Err(ApiError::mistyped("prompt", "token ids where it is a list of numbers"));
        }
        let id = whole(value).and_then(|id| u32::try_from(id).ok());
        id.ok_or_else(|| {
            ApiError::parameter("prompt", format!("{value} is no token id; ids are whole and from 0 on"))
        })
    };
    list.iter().map(id).collect::<Result<_, _>>().map(PromptInput::Ids)
}

fn params(form: Form, fields: &mut Fields, drawn_seed: u64) -> Result<SamplingParams, ApiError> {
    let limit = fields.whole("max_tokens", ranges::TOKENS)?;
    let limit = fields.whole("max_completion_tokens", ranges::TOKENS)?.or(limit);
    // Without a limit a chat runs to the end of the context, which the engine knows.
    let unlimited = if form == Form::Chat { u32::MAX } else { ranges::COMPLETION_MAX_TOKENS };
    let seed = fields.whole("seed", ranges::SEEDS)?;
    let mut number_or = |name, range, usual: f32| fields.number(name, range).map(|v| v.unwrap_or(usual));
    let params = SamplingParams {
        max_tokens: limit.map_or(unlimited, |n| u32::try_from(n).unwrap_or(u32::MAX)),
        temperature: number_or("temperature", ranges::TEMPERATURES, 1.0)?,
        top_p: number_or("top_p", ranges::TOP_P, 1.0)?,
        min_p: number_or("min_p", ranges::MIN_P, 0.0)?,
        repetition_penalty: number_or("repetition_penalty", ranges::REPETITION_PENALTIES, 1.0)?,
        presence_penalty: number_or("presence_penalty", ranges::PENALTIES, 0.0)?,
        frequency_penalty: number_or("frequency_penalty", ranges::PENALTIES, 0.0)?,
        top_k: fields.whole("top_k", ranges::TOP_K)?.map_or(0, |k| u32::try_from(k).unwrap_or(0)),
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
        // As it is written: " 7" and "07" would be the token 7 a second and a third time.
        let token = id.parse().ok().filter(|token: &u32| token.to_string() == id).ok_or_else(|| {
            let shown: String = id.chars().take(40).collect();
            ApiError::parameter("logit_bias", format!("logit_bias has {shown:?}, which is no token id"))
        })?;
        Ok((token, number("logit_bias", &bias, ranges::BIASES)?))
    };
    map.into_iter().map(one).collect()
}

fn stop(fields: &mut Fields) -> Result<Vec<String>, ApiError> {
    let one = |value| match value {
        Value::String(text) => {
            let (chars, most) = (text.chars().count(), *ranges::STOP_CHARS.end());
            if chars > most {
                let sentence = format!("stop has a string of {chars} characters; at most {most} are taken");
                return Err(ApiError::parameter("stop", sentence));
            }
            Ok(text)
        }
        _ => Err(ApiError::mistyped("stop", "a string or a list of strings")),
    };
    match fields.take("stop") {
        None => Ok(Vec::new()),
        Some(Value::Array(list)) => list.into_iter().map(one).collect(),
        Some(value) => Ok(vec![one(value)?]),
    }
}

/// Chats ask with a switch and a number, completions with a number alone.
fn logprobs(form: Form, fields: &mut Fields) -> Result<Option<u32>, ApiError> {
    let count = |n: i64| u32::try_from(n).unwrap_or(0);
    match form {
        Form::Completion => Ok(fields.whole("logprobs", ranges::LOGPROBS)?.map(count)),
        Form::Chat => {
            let top = fields.whole("top_logprobs", ranges::LOGPROBS)?;
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
    fn what_lies_outside_is_named() {
        let check = |fields: &str, param: &str, part: &str| {
            let error = read(Form::Chat, fields).expect_err(fields);
            assert_eq!((error.status.as_u16(), error.param), (400, Some(param)), "{fields}");
            assert!(error.message.contains(part), "{fields}: {}", error.message);
        };
        check(r#""logit_bias": {" 7": 1}"#, "logit_bias", "no token id");
        check(r#""logit_bias": {"07": 1}"#, "logit_bias", "no token id");
        check(r#""logit_bias": {"7": 100.0000001}"#, "logit_bias", "-100 to 100");
        check(&format!("\"stop\": \"{}\"", "é".repeat(1025)), "stop", "1025 characters");
        check(r#""stop": [""]"#, "stop", "0 bytes");
        check(r#""n": 129"#, "n", "from 1 to 128");
        check(r#""temperature": 100.0000001"#, "temperature", "0 to 100");
        check(r#""top_p": 0"#, "top_p", "above 0, at most 1");
        check(r#""stream_options": {}"#, "stream_options", "\"stream\": true");
        check(r#""verbosity": "low""#, "verbosity", "not supported");
        let longest = "é".repeat(1024);
        assert_eq!(
            read(Form::Chat, &format!("\"stop\": \"{longest}\"")).map(|c| c.params.stop),
            Ok(vec![longest])
        );
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
}

//! Fields that OpenAI's or vLLM's servers know and this one has not built: a client that relies on one must not get an
//! answer that silently lacks it.
//!
//! Fields that only advise (`user`, `metadata`, `store`, `service_tier`, `prediction`, `prompt_cache_key`, ...) are no
//! part of it: the answer lacks nothing without them, and they are ignored. Invariant: what is refused is told by name,
//! and what says nothing is taken.

use serde_json::Value;

use super::call::Form;
use super::fields::Fields;
use crate::serve::errors::ApiError;

/// One such field.
#[derive(Clone, Copy, Debug)]
pub struct Unbuilt {
    /// Its name.
    pub name: &'static str,
    /// The form that has it; `None` for both.
    form: Option<Form>,
    /// What to do instead.
    advice: &'static str,
    /// The values, in JSON, that ask for nothing. `null` is always one.
    harmless: &'static str,
}

const fn of(form: Option<Form>, name: &'static str, harmless: &'static str, advice: &'static str) -> Unbuilt {
    Unbuilt { name, form, advice, harmless }
}

const LEAVE_OUT: &str = "leave it out";
const CHAT: Option<Form> = Some(Form::Chat);
const COMPLETION: Option<Form> = Some(Form::Completion);

const ALL: [Unbuilt; 35] = [
    of(None, "best_of", "[1]", LEAVE_OUT),
    // vLLM's, which bind an answer to a form.
    of(None, "guided_json", "[]", LEAVE_OUT),
    of(None, "guided_regex", "[]", LEAVE_OUT),
    of(None, "guided_choice", "[]", LEAVE_OUT),
    of(None, "guided_grammar", "[]", LEAVE_OUT),
    of(None, "structured_outputs", "[]", LEAVE_OUT),
    of(None, "response_format", "[{\"type\": \"text\"}]", "only {\"type\": \"text\"} is"),
    // vLLM's, which allow and forbid tokens, or change what is said of them.
    of(None, "min_tokens", "[0]", LEAVE_OUT),
    of(None, "stop_token_ids", "[[]]", LEAVE_OUT),
    of(None, "bad_words", "[[]]", LEAVE_OUT),
    of(None, "allowed_token_ids", "[]", LEAVE_OUT),
    of(None, "use_beam_search", "[false]", LEAVE_OUT),
    of(None, "prompt_logprobs", "[]", LEAVE_OUT),
    of(None, "include_stop_str_in_output", "[false]", "add the stop string yourself"),
    of(None, "skip_special_tokens", "[true]", LEAVE_OUT),
    of(None, "truncate_prompt_tokens", "[]", "shorten the prompt yourself"),
    of(CHAT, "tools", "[[]]", "leave them out"),
    of(CHAT, "functions", "[[]]", "leave them out"),
    of(CHAT, "tool_choice", "[\"none\", \"auto\"]", LEAVE_OUT),
    of(CHAT, "function_call", "[\"none\", \"auto\"]", LEAVE_OUT),
    of(CHAT, "modalities", "[[\"text\"]]", "only [\"text\"] is"),
    of(CHAT, "audio", "[]", LEAVE_OUT),
    of(CHAT, "web_search_options", "[]", LEAVE_OUT),
    of(
        CHAT,
        "reasoning_effort",
        "[\"none\"]",
        "the model does not reason apart from its answer; leave it out",
    ),
    of(CHAT, "verbosity", "[\"medium\"]", "ask for a shorter or longer answer in a message"),
    of(CHAT, "chat_template", "[]", LEAVE_OUT),
    of(CHAT, "chat_template_kwargs", "[{}]", LEAVE_OUT),
    of(CHAT, "documents", "[[]]", "put them into a message"),
    of(CHAT, "add_generation_prompt", "[true]", "send the text to /v1/completions"),
    of(CHAT, "continue_final_message", "[false]", "send the text to /v1/completions"),
    of(CHAT, "add_special_tokens", "[false]", LEAVE_OUT),
    of(CHAT, "echo", "[false]", "put the message before the answer yourself"),
    of(COMPLETION, "echo", "[false]", "put the prompt before the answer yourself"),
    of(COMPLETION, "suffix", "[\"\"]", LEAVE_OUT),
    of(COMPLETION, "add_special_tokens", "[true]", "send token ids"),
];

impl Unbuilt {
    /// Those of a form.
    pub fn of(form: Form) -> impl Iterator<Item = &'static Self> {
        ALL.iter().filter(move |field| field.form.is_none_or(|of| of == form))
    }

    /// The values that ask for nothing, beside `null`.
    pub fn harmless(&self) -> Vec<Value> {
        serde_json::from_str(self.harmless).unwrap_or_default()
    }

    /// Refuses the field unless it asks for nothing.
    ///
    /// # Errors
    /// 400 with its name and what to do instead.
    pub fn refuse(&self, fields: &mut Fields) -> Result<(), ApiError> {
        match fields.take(self.name) {
            Some(value) if !self.harmless().iter().any(|harmless| same(harmless, &value)) => {
                Err(ApiError::unsupported(self.name, self.advice))
            }
            _ => Ok(()),
        }
    }
}

/// Equal as JSON has it: 1 is 1.0.
fn same(a: &Value, b: &Value) -> bool {
    match (a.as_f64(), b.as_f64()) {
        (Some(a), Some(b)) => a == b,
        _ => a == b,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(form: Form, name: &str, value: &Value) -> Option<ApiError> {
        let mut fields = Fields::read(serde_json::json!({ name: value }).to_string().as_bytes()).unwrap();
        Unbuilt::of(form).find_map(|field| field.refuse(&mut fields).err())
    }

    #[test]
    fn what_asks_for_something_is_refused_and_what_does_not_is_taken() {
        for form in [Form::Chat, Form::Completion] {
            for field in Unbuilt::of(form) {
                let harmless: Vec<Value> = serde_json::from_str(field.harmless).expect(field.name);
                for value in harmless.iter().chain([&Value::Null]) {
                    assert_eq!(refused(form, field.name, value), None, "{}: {value}", field.name);
                }
                let error = refused(form, field.name, &serde_json::json!(["x"])).expect(field.name);
                assert_eq!((error.param, error.code), (Some(field.name), Some("unsupported_parameter")));
            }
        }
    }

    #[test]
    fn what_only_advises_is_ignored() {
        let check = |name: &str, value: Value| {
            for form in [Form::Chat, Form::Completion] {
                assert_eq!(refused(form, name, &value), None, "{name}");
            }
        };
        check("user", "somebody".into());
        check("metadata", serde_json::json!({ "a": "b" }));
        check("store", true.into());
        check("service_tier", "priority".into());
        check("parallel_tool_calls", true.into());
        check("prediction", serde_json::json!({ "type": "content", "content": "x" }));
        check("prompt_cache_key", "k".into());
        check("safety_identifier", "k".into());
        check("best_of", serde_json::json!(1.0));
    }
}

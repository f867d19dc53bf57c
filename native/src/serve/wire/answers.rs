//! Answers in OpenAI's form: whole, or chunk by chunk.
//!
//! Pure: what was said goes in, JSON comes out. Invariant: all chunks of one answer carry the same head.

use serde_json::{Value, json};

use firstlight_engine::request::FinishReason;
use firstlight_engine::timeline::TokenCounts;

use super::call::Form;

/// What all chunks of an answer have in common.
#[derive(Clone, Debug)]
pub struct Head {
    /// The form.
    pub form: Form,
    /// The answer's id.
    pub id: String,
    /// Unix time in seconds.
    pub created: u64,
    /// The model's served name.
    pub model: String,
    /// Names the engine's configuration.
    pub fingerprint: String,
    /// Chunks say that their usage is still to come.
    pub include_usage: bool,
}

/// Tokens of all choices of an answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    prompt: u64,
    cached: u64,
    completion: u64,
}

impl Usage {
    /// Adds one choice, and its prompt where it is the first one of it. What was made for nobody is not part of the answer.
    pub fn add(&mut self, tokens: &TokenCounts, is_first: bool) {
        if is_first {
            self.prompt += u64::from(tokens.prompt);
            self.cached += u64::from(tokens.cached);
        }
        self.completion += u64::from(tokens.generated.saturating_sub(tokens.after_disconnect));
    }

    fn json(self) -> Value {
        json!({
            "prompt_tokens": self.prompt,
            "completion_tokens": self.completion,
            "total_tokens": self.prompt + self.completion,
            "prompt_tokens_details": { "cached_tokens": self.cached },
            "completion_tokens_details": { "reasoning_tokens": 0 },
        })
    }
}

/// A choice of a whole answer.
#[derive(Clone, Debug)]
pub struct WholeChoice {
    /// Its text.
    pub text: String,
    /// `logprobs`, or null.
    pub logprobs: Value,
    /// Why it ended.
    pub reason: FinishReason,
}

/// OpenAI's word; the ends that are no answers never get here.
fn word(reason: FinishReason) -> &'static str {
    match reason {
        FinishReason::Length => "length",
        FinishReason::ContentFilter => "content_filter",
        _ => "stop",
    }
}

impl Head {
    fn object(&self, kind: &str, choices: Value) -> Value {
        let mut object = json!({
            "id": self.id,
            "object": kind,
            "created": self.created,
            "model": self.model,
            "system_fingerprint": self.fingerprint,
            "choices": choices,
        });
        if self.form == Form::Chat {
            // There is one tier here, whichever was asked for.
            object["service_tier"] = "default".into();
        }
        object
    }

    fn chunk(&self, choice: Value) -> Value {
        let mut chunk = self.object(self.chunk_kind(), json!([choice]));
        if self.include_usage {
            chunk["usage"] = Value::Null;
        }
        chunk
    }

    fn chunk_kind(&self) -> &'static str {
        match self.form {
            Form::Chat => "chat.completion.chunk",
            Form::Completion => "text_completion",
        }
    }

    /// The chunk that says who speaks; completions have none.
    pub fn opening(&self, index: usize) -> Option<Value> {
        let delta = json!({ "role": "assistant", "content": "" });
        let choice = json!({ "index": index, "delta": delta, "logprobs": null, "finish_reason": null });
        (self.form == Form::Chat).then(|| self.chunk(choice))
    }

    /// A piece of text, with the log-probabilities of its tokens or null.
    pub fn content(&self, index: usize, text: &str, logprobs: Value) -> Value {
        self.chunk(match self.form {
            Form::Chat => json!({
                "index": index, "delta": { "content": text }, "logprobs": logprobs, "finish_reason": null,
            }),
            Form::Completion => json!({
                "index": index, "text": text, "logprobs": logprobs, "finish_reason": null,
            }),
        })
    }

    /// A choice's last chunk.
    pub fn end(&self, index: usize, reason: FinishReason) -> Value {
        let reason = word(reason);
        self.chunk(match self.form {
            Form::Chat => json!({ "index": index, "delta": {}, "logprobs": null, "finish_reason": reason }),
            Form::Completion => {
                json!({ "index": index, "text": "", "logprobs": null, "finish_reason": reason })
            }
        })
    }

    /// The chunk without a choice that counts tokens.
    pub fn usage(&self, usage: Usage) -> Value {
        let mut chunk = self.object(self.chunk_kind(), json!([]));
        chunk["usage"] = usage.json();
        chunk
    }

    /// A whole answer.
    pub fn whole(&self, choices: Vec<WholeChoice>, usage: Usage) -> Value {
        let kind = match self.form {
            Form::Chat => "chat.completion",
            Form::Completion => "text_completion",
        };
        let choice = |(index, choice): (usize, WholeChoice)| {
            let WholeChoice { text, logprobs, reason } = choice;
            let reason = word(reason);
            match self.form {
                Form::Chat => json!({
                    "index": index,
                    "message": { "role": "assistant", "content": text, "refusal": null, "annotations": [] },
                    "logprobs": logprobs,
                    "finish_reason": reason,
                }),
                Form::Completion => {
                    json!({ "index": index, "text": text, "logprobs": logprobs, "finish_reason": reason })
                }
            }
        };
        let mut answer = self.object(kind, choices.into_iter().enumerate().map(choice).collect());
        answer["usage"] = usage.json();
        answer
    }
}

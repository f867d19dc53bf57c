//! What is known of a call beside its timelines: what was asked, by whom, as part of which trace.
//!
//! Plain data, set when the call is taken up, but for the mark that it was counted. Invariant: no prompt and no answer is among it.

use std::sync::atomic::{AtomicBool, Ordering};

use firstlight_engine::request::{FinishReason, SamplingParams};
use firstlight_engine::timeline::RequestTimeline;

use super::TraceContext;
use crate::serve::errors::ApiError;
use crate::serve::wire::call::Form;

/// See the module.
#[derive(Debug)]
pub struct CallFacts {
    /// Which of the two calls.
    pub form: Form,
    /// The answer's id.
    pub response_id: String,
    /// What the model is called here.
    pub model: String,
    /// The model that was asked for, where one was named.
    pub asked_model: Option<String>,
    /// How it is to be answered.
    pub params: SamplingParams,
    /// Choices of each prompt.
    pub num_choices: usize,
    /// The most tokens of a prompt and its answer.
    pub max_model_len: u32,
    /// As it comes, not whole.
    pub stream: bool,
    /// The trace that it belongs to.
    pub trace: Option<TraceContext>,
    /// The name of the key that it came with, where keys have names.
    pub key_name: Option<String>,
    /// Unix time of instant 0 of the timelines, in milliseconds.
    pub origin_unix_ms: u64,
    /// The call was counted. Its choices may end one by one, and it is one call all the same.
    pub is_counted: AtomicBool,
}

impl CallFacts {
    /// Marks the call as counted; whether it was not yet.
    pub fn mark_counted(&self) -> bool {
        !self.is_counted.swap(true, Ordering::AcqRel)
    }

    /// The operation, in the words of OpenTelemetry's conventions.
    pub fn operation(&self) -> &'static str {
        match self.form {
            Form::Chat => "chat",
            Form::Completion => "text_completion",
        }
    }

    /// The model that was asked for.
    pub fn asked_model(&self) -> &str {
        self.asked_model.as_deref().unwrap_or(&self.model)
    }

    /// Tokens that an answer to a prompt of `prompt_len` may have: where nobody said, what the context leaves.
    pub fn max_tokens(&self, prompt_len: u32) -> u32 {
        match self.params.max_tokens {
            u32::MAX => self.max_model_len.saturating_sub(prompt_len),
            limit => limit,
        }
    }
}

/// The word for an end that is no answer.
pub fn error_type(timeline: &RequestTimeline) -> Option<&'static str> {
    ApiError::of_timeline(timeline).and(timeline.finish_reason()).map(FinishReason::name)
}

/// Whether whoever asked is to blame for the end, not the server: it was turned away for what it asked.
pub fn is_refusal(timeline: &RequestTimeline) -> bool {
    let was_refused =
        matches!(timeline.finish_reason(), Some(FinishReason::Rejected | FinishReason::ContentFilter));
    was_refused && ApiError::of_timeline(timeline).is_some_and(|error| error.status.is_client_error())
}

//! One choice of an answer, as it grows.
//!
//! Invariant: what has been said of it goes out once, in order.

use serde_json::Value;

use firstlight_engine::clock::Nanos;
use firstlight_engine::engine::RequestEvent;
use firstlight_engine::request::{RequestId, SampledToken};
use firstlight_engine::text::Tokenizer;

use crate::answer::Answer;
use crate::serve::wire::call::Form;
use crate::serve::wire::logprobs;

/// A choice.
pub(super) struct Choice {
    pub(super) id: RequestId,
    pub(super) answer: Answer,
    /// Tokens that its caller's quota was charged with.
    charged: u32,
    /// Its opening chunk is out.
    pub(super) opened: bool,
    /// Characters whose tokens' log-probabilities are out.
    offset: usize,
}

impl Choice {
    pub(super) fn new(id: RequestId) -> Self {
        Self { id, answer: Answer::default(), charged: 0, opened: false, offset: 0 }
    }

    pub(super) fn has_ended(&self) -> bool {
        self.answer.ended.is_some()
    }

    /// Tokens that an event brings and that nobody was charged with yet: its own, or at the end those that nobody saw.
    pub(super) fn to_charge(&mut self, event: &RequestEvent) -> u32 {
        let more = match event {
            RequestEvent::Token { .. } => 1,
            RequestEvent::Finished { timeline, .. } => {
                timeline.tokens().generated.saturating_sub(self.charged)
            }
        };
        self.charged += more;
        more
    }

    /// Takes an event that came at `at`; returns the text that it adds and the tokens that may be told with it.
    pub(super) fn take(&mut self, event: RequestEvent, at: Nanos) -> (String, Vec<SampledToken>) {
        let before = self.answer.settled;
        let text = self.answer.take(event, at);
        (text, self.answer.tokens[before..self.answer.settled].to_vec())
    }

    /// The tokens' log-probabilities in the form's way; null where none were asked for. End tokens are no part of the
    /// answer.
    pub(super) fn logprobs(
        &mut self,
        form: Form,
        tokens: &[SampledToken],
        tokenizer: Option<&Tokenizer>,
        ignore_eos: bool,
    ) -> Value {
        let Some(tokenizer) = tokenizer else { return Value::Null };
        let is_said = |sampled: &&SampledToken| {
            sampled.logprobs.is_some() && (ignore_eos || !tokenizer.end_tokens().contains(&sampled.token))
        };
        let said: Vec<SampledToken> = tokens.iter().filter(is_said).cloned().collect();
        match form {
            _ if said.is_empty() => Value::Null,
            Form::Chat => logprobs::chat(tokenizer, &said),
            Form::Completion => logprobs::completion(tokenizer, &said, &mut self.offset),
        }
    }
}

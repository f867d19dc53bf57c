//! One choice of an answer, as it grows.
//!
//! Invariant: what has been said of it goes out once, in order; and no alternative is told that would complete what the
//! policy blocks.

use std::sync::Arc;

use serde_json::Value;

use firstlight_engine::clock::Nanos;
use firstlight_engine::engine::RequestEvent;
use firstlight_engine::policy::{ContentPolicy, Screen};
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
    /// Behind the tokens whose log-probabilities are out: what the policy says to those that might have come next.
    screen: Option<Screen>,
}

impl Choice {
    pub(super) fn new(id: RequestId, policy: Option<Arc<ContentPolicy>>) -> Self {
        let screen = policy.map(Screen::new);
        Self { id, answer: Answer::default(), charged: 0, opened: false, offset: 0, screen }
    }

    pub(super) fn has_ended(&self) -> bool {
        self.answer.ended.is_some()
    }

    /// Tokens that an event brings and that nobody was charged with yet: its own, or at the end those that nobody saw.
    pub(super) fn newly_made(&mut self, event: &RequestEvent) -> u32 {
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
    /// answer. Of the alternatives, those that would complete what the policy blocks are left out.
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
        let mut said: Vec<SampledToken> = tokens.iter().filter(is_said).cloned().collect();
        if let Some(screen) = &mut self.screen {
            let text = |token| String::from_utf8_lossy(&tokenizer.bytes_of(token)).into_owned();
            said.iter_mut().for_each(|sampled| drop_blocked(sampled, screen, text));
        }
        match form {
            _ if said.is_empty() => Value::Null,
            Form::Chat => logprobs::chat(tokenizer, &said),
            Form::Completion => logprobs::completion(tokenizer, &said, &mut self.offset),
        }
    }
}

/// Leaves out the alternatives with which the text behind the screen, should it end there, would hold what is blocked;
/// then the token itself goes behind the screen.
fn drop_blocked(sampled: &mut SampledToken, screen: &mut Screen, text: impl Fn(u32) -> String) {
    if let Some((chosen, top)) = &mut sampled.logprobs {
        top.retain(|one| {
            let mut screen = screen.clone();
            one.token == chosen.token || !(screen.push(&text(one.token)).blocked || screen.finish().blocked)
        });
    }
    screen.push(&text(sampled.token));
}

#[cfg(test)]
mod tests {
    use firstlight_engine::request::TokenLogprob;

    use super::*;

    #[test]
    fn an_alternative_that_completes_what_is_blocked_is_not_told() {
        let texts = ["a", " secret", " word", " sea", "cat", " cat", "ret", "\u{e9}"];
        let rules = [ContentPolicy::phrase("secret word"), "\\bcat\\b".to_owned()];
        let policy = Arc::new(ContentPolicy::new(&rules).unwrap());
        let check = |said: &[u32], chosen: u32, expected: &[u32]| {
            let mut screen = Screen::new(Arc::clone(&policy));
            let text = |token: u32| texts[token as usize].to_owned();
            let of = |token| TokenLogprob { token, logprob: -1.0 };
            let top: Vec<TokenLogprob> = (0..8).map(of).collect();
            let sampled = |token| SampledToken { token, logprobs: Some((of(token), top.clone())) };
            for token in said {
                drop_blocked(&mut sampled(*token), &mut screen, text);
            }
            let mut last = sampled(chosen);
            drop_blocked(&mut last, &mut screen, text);
            let told: Vec<u32> = last.logprobs.unwrap().1.iter().map(|one| one.token).collect();
            assert_eq!(told, expected, "after {said:?}");
        };
        check(&[], 0, &[0, 1, 2, 3, 6, 7]);
        check(&[0], 1, &[0, 1, 2, 3, 4, 6, 7]);
        check(&[0, 1], 3, &[0, 1, 3, 4, 6, 7]);
        check(&[1, 0], 3, &[0, 1, 2, 3, 4, 6, 7]);
    }
}

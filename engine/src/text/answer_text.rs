//! The text of one answer on its way from tokens to the reader: detokenised, cut at a stop string, screened.
//!
//! Invariant: a token counts as settled once every byte of its text is out, and never where a part of it is withheld.

use std::collections::VecDeque;
use std::sync::Arc;

use super::detokenizer::Detokenizer;
use super::tokenizer::Tokenizer;
use crate::policy::{ContentPolicy, Screen};
use crate::request::FinishReason;

/// See the module.
#[derive(Debug)]
pub struct AnswerText {
    detokenizer: Detokenizer,
    screen: Option<Screen>,
    /// Bytes that the screen was given.
    given: usize,
    /// Where the text of each token ends that is not settled yet, in bytes of the answer.
    ends: VecDeque<usize>,
    settled: u32,
}

impl AnswerText {
    /// For an answer that ends before the first of `stop`, and before what `policy` blocks.
    pub fn new(tokenizer: Arc<Tokenizer>, stop: &[String], policy: Option<Arc<ContentPolicy>>) -> Self {
        Self {
            detokenizer: Detokenizer::new(tokenizer, stop),
            screen: policy.map(Screen::new),
            given: 0,
            ends: VecDeque::new(),
            settled: 0,
        }
    }

    /// Takes the next token: the text that is certain by now, and why the answer ends with it, if it does.
    pub fn push(&mut self, token: u32) -> (String, Option<FinishReason>) {
        let piece = self.detokenizer.push(token);
        let stopped = piece.stopped.then_some(FinishReason::StopString);
        let Some(screen) = &mut self.screen else {
            self.settled += 1;
            return (piece.text, stopped);
        };
        self.given += piece.text.len();
        self.ends.push_back(self.given + self.detokenizer.num_held_bytes());
        let screened = screen.push(&piece.text);
        self.settle();
        (screened.text, if screened.blocked { Some(FinishReason::ContentFilter) } else { stopped })
    }

    /// Takes a token that ends the answer and is no part of its text.
    pub fn push_end(&mut self) {
        if self.screen.is_none() {
            self.settled += 1;
        } else {
            self.ends.push_back(self.given + self.detokenizer.num_held_bytes());
            self.settle();
        }
    }

    /// The answer has no more tokens: the text that had been held back, and whether the answer turns out to be blocked.
    pub fn finish(&mut self) -> (String, bool) {
        let held = self.detokenizer.finish();
        let Some(screen) = &mut self.screen else { return (held, false) };
        let (more, last) = (screen.push(&held), screen.finish());
        (more.text + &last.text, last.blocked)
    }

    /// Tokens from the first on whose text is out whole.
    pub fn settled(&self) -> u32 {
        self.settled
    }

    fn settle(&mut self) {
        let shown = self.screen.as_ref().map_or(self.given, Screen::shown);
        while self.ends.front().is_some_and(|end| *end <= shown) {
            self.ends.pop_front();
            self.settled += 1;
        }
    }
}

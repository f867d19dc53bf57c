//! Token ids into text, one at a time, as they are sampled.
//!
//! It never prints half a character, a special token, or any part of a stop string. Invariant: the pieces and what
//! [`Detokenizer::finish`] adds, put together, are the decode of the whole sequence up to its first stop string,
//! however the text falls into tokens.

use std::sync::Arc;

use super::token_bytes::LeadingSpace;
use super::tokenizer::Tokenizer;

/// What one token added to the answer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Piece {
    /// Text that is certain to belong to the answer; often empty, sometimes several tokens' worth.
    pub text: String,
    /// A stop string is complete: the answer ends before it.
    pub stopped: bool,
}

/// The state of one answer. Amortised, a token costs its own bytes times the number of stop strings.
#[derive(Debug)]
pub struct Detokenizer {
    tokenizer: Arc<Tokenizer>,
    /// The first bytes of a character whose rest has not come yet; at most three.
    partial: Vec<u8>,
    /// Text that may be the start of a stop string.
    held: String,
    stops: Vec<StopString>,
    leading: LeadingSpace,
    stopped: bool,
}

impl Detokenizer {
    /// For an answer that ends before the first of `stop`; empty strings among them are ignored.
    pub fn new(tokenizer: Arc<Tokenizer>, stop: &[String]) -> Self {
        let leading = tokenizer.token_bytes().leading();
        let stops = stop.iter().filter(|s| !s.is_empty()).map(|s| StopString::new(s)).collect();
        Self { tokenizer, partial: Vec::new(), held: String::new(), stops, leading, stopped: false }
    }

    /// Takes the next token. After a stop string nothing more comes out.
    pub fn push(&mut self, token: u32) -> Piece {
        if self.stopped {
            return Piece { text: String::new(), stopped: true };
        }
        let tokenizer = Arc::clone(&self.tokenizer);
        let table = tokenizer.token_bytes();
        let mut bytes = table.get(token);
        if table.is_special(token) || token as usize >= table.len() {
            return Piece::default();
        }
        let spaceless: Vec<u8>;
        match self.leading {
            LeadingSpace::Keep => {}
            LeadingSpace::DropOne => {
                bytes = bytes.strip_prefix(b" ").unwrap_or(bytes);
                if !table.get(token).is_empty() {
                    self.leading = LeadingSpace::Keep;
                }
            }
            LeadingSpace::DropInFirstToken => {
                spaceless = bytes.iter().copied().filter(|&b| b != b' ').collect();
                bytes = &spaceless;
                self.leading = LeadingSpace::Keep;
            }
        }
        let fresh = self.complete_characters(bytes);
        self.accept(&fresh)
    }

    /// What was held back and is part of the answer after all. Half a character at the very end is dropped.
    pub fn finish(&mut self) -> String {
        self.partial.clear();
        self.stops.iter_mut().for_each(|s| s.matched = 0);
        std::mem::take(&mut self.held)
    }

    /// Bytes of text that have come and are not out.
    pub fn num_held_bytes(&self) -> usize {
        self.held.len() + self.partial.len()
    }

    /// The characters that are complete with `bytes`; bytes that can never become one are U+FFFD each run.
    fn complete_characters(&mut self, bytes: &[u8]) -> String {
        self.partial.extend_from_slice(bytes);
        let mut text = String::with_capacity(self.partial.len());
        let mut rest = self.partial.as_slice();
        loop {
            match std::str::from_utf8(rest) {
                Ok(valid) => {
                    text.push_str(valid);
                    rest = &[];
                    break;
                }
                Err(error) => {
                    let (valid, after) = rest.split_at(error.valid_up_to());
                    text.push_str(&String::from_utf8_lossy(valid));
                    let Some(bad) = error.error_len() else {
                        rest = after;
                        break;
                    };
                    text.push(char::REPLACEMENT_CHARACTER);
                    rest = &after[bad..];
                }
            }
        }
        self.partial = rest.to_vec();
        text
    }

    /// Appends `fresh` to what is held, and lets out all that no stop string can claim any more.
    fn accept(&mut self, fresh: &str) -> Piece {
        let before = self.held.len();
        self.held.push_str(fresh);
        for (i, &byte) in fresh.as_bytes().iter().enumerate() {
            let mut longest = 0;
            for stop in &mut self.stops {
                if stop.advance(byte) {
                    longest = longest.max(stop.bytes.len());
                }
            }
            if longest > 0 {
                // A stop string starts with a whole character, so this is a character boundary.
                self.held.truncate(before + i + 1 - longest);
                self.stopped = true;
                self.partial.clear();
                return Piece { text: std::mem::take(&mut self.held), stopped: true };
            }
        }
        let keep = self.stops.iter().map(|s| s.matched).max().unwrap_or(0);
        let kept = self.held.split_off(self.held.len() - keep);
        Piece { text: std::mem::replace(&mut self.held, kept), stopped: false }
    }
}

/// One stop string and how much of it the text ends with (Knuth, Morris and Pratt).
#[derive(Debug)]
struct StopString {
    bytes: Vec<u8>,
    /// `[len]` for each prefix, the longest proper prefix that is also its suffix.
    border: Vec<usize>,
    matched: usize,
}

impl StopString {
    fn new(text: &str) -> Self {
        let bytes = text.as_bytes().to_vec();
        let mut border = vec![0; bytes.len()];
        let mut k = 0;
        for i in 1..bytes.len() {
            while k > 0 && bytes[i] != bytes[k] {
                k = border[k - 1];
            }
            if bytes[i] == bytes[k] {
                k += 1;
            }
            border[i] = k;
        }
        Self { bytes, border, matched: 0 }
    }

    /// Whether `byte` completes it.
    fn advance(&mut self, byte: u8) -> bool {
        while self.matched > 0 && self.bytes[self.matched] != byte {
            self.matched = self.border[self.matched - 1];
        }
        if self.bytes[self.matched] == byte {
            self.matched += 1;
        }
        if self.matched == self.bytes.len() {
            self.matched = self.border[self.matched - 1];
            return true;
        }
        false
    }
}

//! Finding the added tokens of a tokenizer (markers such as `<|im_end|>`, tool tags, runs of spaces) in a text.
//!
//! The library does this too, but it cannot say "these bytes were written by a user". Invariant: a special token is
//! never found over a byte that the caller marked as plain.

use std::ops::Range;

use aho_corasick::{AhoCorasick, Input, MatchKind};
use tokenizers::{AddedToken, NormalizedString, Normalizer, NormalizerWrapper};

/// Which bytes of a text can hold no special token.
#[derive(Clone, Copy, Debug)]
pub(super) enum Plain<'a> {
    Nothing,
    Everything,
    /// In rising order, not overlapping.
    Ranges(&'a [Range<usize>]),
}

impl Plain<'_> {
    fn touches(self, range: &Range<usize>) -> bool {
        match self {
            Self::Nothing => false,
            Self::Everything => true,
            Self::Ranges(ranges) => {
                let next = ranges.partition_point(|r| r.end <= range.start);
                ranges.get(next).is_some_and(|r| r.start < range.end)
            }
        }
    }
}

/// A part of a text: an added token, or text between them.
pub(super) type Part = (Option<u32>, Range<usize>);

/// All added tokens, by what they are compared with.
#[derive(Debug)]
pub(super) struct AddedTokens {
    /// Compared with the text as written.
    pub(super) raw: Matcher,
    /// Compared with the text after the tokenizer's normaliser; never special.
    pub(super) normalized: Matcher,
}

impl AddedTokens {
    /// Special tokens are always compared with the raw text, where the caller's marks lie.
    pub(super) fn new(
        tokens: Vec<(u32, AddedToken)>,
        normalizer: Option<&NormalizerWrapper>,
    ) -> Result<Self, String> {
        let (normalized, raw): (Vec<_>, Vec<_>) =
            tokens.into_iter().partition(|(_, token)| token.normalized && !token.special);
        let patterns = |tokens: &[(u32, AddedToken)]| -> Vec<String> {
            tokens.iter().map(|(_, token)| token.content.clone()).collect()
        };
        let raw_patterns = patterns(&raw);
        let mut normalized_patterns = patterns(&normalized);
        if let Some(normalizer) = normalizer {
            for pattern in &mut normalized_patterns {
                let mut text = NormalizedString::from(pattern.as_str());
                normalizer.normalize(&mut text).map_err(|e| e.to_string())?;
                *pattern = text.get().to_owned();
            }
        }
        Ok(Self {
            raw: Matcher::new(raw, &raw_patterns)?,
            normalized: Matcher::new(normalized, &normalized_patterns)?,
        })
    }
}

/// Finds the leftmost, and there the longest, of many tokens.
#[derive(Debug)]
pub(super) struct Matcher {
    automaton: AhoCorasick,
    tokens: Vec<(u32, AddedToken)>,
}

impl Matcher {
    fn new(tokens: Vec<(u32, AddedToken)>, patterns: &[String]) -> Result<Self, String> {
        if let Some(i) = patterns.iter().position(String::is_empty) {
            return Err(format!("the added token with id {} is empty", tokens[i].0));
        }
        let automaton = AhoCorasick::builder()
            .match_kind(MatchKind::LeftmostLongest)
            .build(patterns)
            .map_err(|e| e.to_string())?;
        Ok(Self { automaton, tokens })
    }

    /// Cuts `text` into added tokens and what lies between; the parts cover it in order, and none is empty.
    pub(super) fn split(&self, text: &str, plain: Plain<'_>) -> Vec<Part> {
        let mut parts = Vec::new();
        let mut done = 0;
        let mut from = 0;
        while let Some(found) = self.automaton.find(Input::new(text).range(from..)) {
            let (id, token) = &self.tokens[found.pattern().as_usize()];
            let range = found.range();
            if (token.special && plain.touches(&range)) || !stands_alone(token, text, &range) {
                // Another token may begin inside the one that was refused.
                from = range.start + text[range.start..].chars().next().map_or(1, char::len_utf8);
                continue;
            }
            let range = with_spaces(token, text, &range, done);
            if done < range.start {
                parts.push((None, done..range.start));
            }
            done = range.end;
            from = range.end;
            parts.push((Some(*id), range));
        }
        if done < text.len() {
            parts.push((None, done..text.len()));
        }
        parts
    }
}

fn is_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

/// A `single_word` token is one only between characters that are not part of a word.
fn stands_alone(token: &AddedToken, text: &str, range: &Range<usize>) -> bool {
    !token.single_word
        || !(text[..range.start].chars().next_back().is_some_and(is_word)
            || text[range.end..].chars().next().is_some_and(is_word))
}

/// Some tokens swallow the white space before or after them.
fn with_spaces(token: &AddedToken, text: &str, range: &Range<usize>, done: usize) -> Range<usize> {
    let start = if token.lstrip { text[done..range.start].trim_end().len() + done } else { range.start };
    let end = if token.rstrip { text.len() - text[range.end..].trim_start().len() } else { range.end };
    start..end
}

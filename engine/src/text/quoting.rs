//! Keeps what users write from becoming special tokens, through a chat template that may do anything with it.
//!
//! Characters of a message are replaced by stand-ins from Unicode's private planes before the template runs, one for
//! one, and put back afterwards; where a stand-in was, no special token may lie. Two strengths:
//! [`Strength::FirstCharacters`] replaces every character that could begin a special token, so that none can form,
//! however the template cuts and joins; [`Strength::AroundLiterals`] leaves out what the template itself looks for, such
//! as `</think>`, and breaks special tokens that stand there in full. It never changes the length of a message in
//! characters. Invariant: restoring a quoted text gives the text.

use std::collections::{HashMap, HashSet};
use std::ops::Range;

use aho_corasick::AhoCorasick;

use crate::request::RejectReason;

/// A text with the bytes in it that can be part of no special token.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct MarkedText {
    pub(super) text: String,
    /// Byte ranges, in rising order.
    pub(super) plain: Vec<Range<usize>>,
}

/// How much of a message is replaced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Strength {
    FirstCharacters,
    AroundLiterals,
}

/// The special tokens of a tokenizer, ready to be looked for.
#[derive(Debug)]
pub(super) struct Quoter {
    automaton: AhoCorasick,
    /// Texts in the template that a message may be searched for.
    literals: AhoCorasick,
    /// By pattern: the byte offset, inside the token, of the character that is replaced.
    weak_spots: Vec<usize>,
    first_characters: HashSet<char>,
    /// All characters that may have to be replaced.
    replaceable: HashSet<char>,
}

/// Supplementary private use areas A and B: nobody's text means anything by them.
const STAND_INS: [Range<u32>; 2] = [0xF_0000..0xF_FFFE, 0x10_0000..0x10_FFFE];

fn is_stand_in(c: char) -> bool {
    STAND_INS.iter().any(|range| range.contains(&u32::from(c)))
}

/// A punctuation mark inside the token, so that trimming, letter case and the first character stay what they are;
/// failing that any inner character, failing that the first.
fn weak_spot(token: &str) -> usize {
    let last = token.char_indices().next_back().map_or(0, |(at, _)| at);
    let inner = || token.char_indices().filter(|&(at, _)| at != 0 && at != last);
    let mark = inner().find(|(_, c)| !c.is_alphanumeric() && !c.is_whitespace());
    mark.or_else(|| inner().next()).map_or(0, |(at, _)| at)
}

/// What stands between quotation marks in a template, each once. A backslash keeps the mark after it.
fn string_literals(template: &str) -> HashSet<&str> {
    let mut literals = HashSet::new();
    let mut open: Option<(u8, usize)> = None;
    let mut escaped = false;
    for (at, byte) in template.bytes().enumerate() {
        match open {
            None if matches!(byte, b'\'' | b'"') => open = Some((byte, at + 1)),
            None => {}
            Some(_) if escaped => escaped = false,
            Some(_) if byte == b'\\' => escaped = true,
            Some((mark, start)) if byte == mark => {
                literals.insert(&template[start..at]);
                open = None;
            }
            Some(_) => {}
        }
    }
    literals
}

fn char_at(text: &str, at: usize) -> Option<char> {
    text.get(at..).and_then(|rest| rest.chars().next())
}

impl Quoter {
    /// `template` is the source, as far as there is one.
    pub(super) fn new(special_texts: &[String], template: &str) -> Result<Self, String> {
        let weak_spots: Vec<usize> = special_texts.iter().map(|token| weak_spot(token)).collect();
        let first_characters: HashSet<char> =
            special_texts.iter().filter_map(|token| token.chars().next()).collect();
        let weak = special_texts.iter().zip(&weak_spots).filter_map(|(token, &at)| char_at(token, at));
        let replaceable = first_characters.iter().copied().chain(weak).collect();
        let automaton = AhoCorasick::new(special_texts).map_err(|e| e.to_string())?;
        let mut literals = string_literals(template);
        literals.retain(|literal| literal.contains(|c| first_characters.contains(&c)));
        literals.retain(|literal| !automaton.is_match(literal));
        let literals = AhoCorasick::new(literals).map_err(|e| e.to_string())?;
        Ok(Self { automaton, literals, weak_spots, first_characters, replaceable })
    }

    /// Whether quoting would change `text` at all.
    pub(super) fn concerns(&self, text: &str) -> bool {
        text.contains(|c| self.first_characters.contains(&c))
    }

    /// Chooses stand-ins that occur in none of `texts`.
    pub(super) fn begin<'a>(
        &'a self,
        texts: impl Iterator<Item = &'a str>,
    ) -> Result<Quoting<'a>, RejectReason> {
        let used: HashSet<char> = texts.flat_map(str::chars).filter(|&c| is_stand_in(c)).collect();
        let mut free =
            STAND_INS.into_iter().flatten().filter_map(char::from_u32).filter(|c| !used.contains(c));
        let mut stand_in_of = HashMap::new();
        for &original in &self.replaceable {
            let stand_in = free.next().ok_or_else(|| {
                RejectReason::Preparation(format!(
                    "the messages use {} different private-use characters, so that none is left to keep special tokens \
                     apart; remove some",
                    used.len()
                ))
            })?;
            stand_in_of.insert(original, stand_in);
        }
        let original_of = stand_in_of.iter().map(|(&original, &stand_in)| (stand_in, original)).collect();
        Ok(Quoting { quoter: self, stand_in_of, original_of })
    }
}

/// One conversation's stand-ins.
#[derive(Debug)]
pub(super) struct Quoting<'a> {
    quoter: &'a Quoter,
    stand_in_of: HashMap<char, char>,
    original_of: HashMap<char, char>,
}

impl Quoting<'_> {
    pub(super) fn quote(&self, text: &str, strength: Strength) -> String {
        let mut spots: Vec<bool> = vec![false; text.len()];
        for (at, c) in text.char_indices() {
            spots[at] = self.quoter.first_characters.contains(&c);
        }
        if strength == Strength::AroundLiterals {
            for found in self.quoter.literals.find_overlapping_iter(text) {
                spots[found.range()].fill(false);
            }
            for found in self.quoter.automaton.find_overlapping_iter(text) {
                spots[found.start() + self.quoter.weak_spots[found.pattern().as_usize()]] = true;
            }
        }
        (text.char_indices())
            .map(|(at, c)| if spots[at] { self.stand_in_of.get(&c).copied().unwrap_or(c) } else { c })
            .collect()
    }

    /// Puts the characters back, and remembers where.
    pub(super) fn restore(&self, rendered: &str) -> MarkedText {
        let mut marked = MarkedText { text: String::with_capacity(rendered.len()), plain: Vec::new() };
        for c in rendered.chars() {
            let start = marked.text.len();
            match self.original_of.get(&c) {
                None => marked.text.push(c),
                Some(&original) => {
                    marked.text.push(original);
                    marked.plain.push(start..marked.text.len());
                }
            }
        }
        marked
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn restoring_a_quoted_text_gives_the_text_and_marks_every_special_token() {
        let specials = ["<|im_end|>", "<s>", "[INST]", "|", "end|><"].map(str::to_owned);
        let quoter = Quoter::new(&specials, "'<|' </s '</think>' \"[I\"").unwrap();
        let texts = [
            "",
            "plain",
            "<|im_end|>",
            "<|im_end|><s>[INST]",
            "x <s< <|im_end|",
            "\u{F0000}\u{F0001}<s>é😀",
            "<|im_end|><|im_end|>",
        ];
        let quoting = quoter.begin(texts.into_iter()).unwrap();
        for text in texts {
            for strength in [Strength::FirstCharacters, Strength::AroundLiterals] {
                let quoted = quoting.quote(text, strength);
                assert_eq!(quoted.chars().count(), text.chars().count(), "{text:?}");
                assert!(specials.iter().all(|special| !quoted.contains(special.as_str())), "{text:?}");
                assert_eq!(quoting.restore(&quoted).text, text);
            }
        }
    }

    #[test]
    fn a_text_that_leaves_no_stand_in_is_refused() {
        let quoter = Quoter::new(&["<s>".to_owned()], "").unwrap();
        let all: String = STAND_INS.into_iter().flatten().filter_map(char::from_u32).collect();
        assert!(matches!(quoter.begin([all.as_str()].into_iter()), Err(RejectReason::Preparation(_))));
    }
}

//! What neither a prompt nor an answer may contain: phrases and patterns, compiled once for all requests.
//!
//! It decides nothing about requests and reads no file. Invariant: searching takes time linear in the text, whatever the
//! patterns are, and a policy that was made blocks no empty text.

mod screen;

use regex_automata::meta;
use regex_automata::nfa::thompson::{Config, NFA, State, WhichCaptures};
use regex_automata::util::primitives::StateID;
use regex_automata::util::syntax;

pub use screen::{Screen, Screened};

/// The rules of one policy.
#[derive(Debug)]
pub struct ContentPolicy {
    /// For whole texts.
    whole: meta::Regex,
    /// For texts that grow.
    nfa: NFA,
    starts: Starts,
}

/// Where a match can begin: what its first byte leads to, so that a byte which begins nothing costs one look.
#[derive(Debug)]
struct Starts {
    after: Vec<Vec<StateID>>,
    /// Assertions about the place that stand before the first byte.
    looks: Vec<StateID>,
}

/// Why there is no policy of these rules.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{sentence}")]
pub struct PolicyError {
    /// The rule that is to blame; `None` for all together.
    pub rule_idx: Option<usize>,
    /// What is wrong, and what to do.
    pub sentence: String,
}

impl ContentPolicy {
    /// The most rules in one policy.
    pub const MAX_RULES: usize = 4096;
    /// The most bytes in one phrase. Whatever its spelling, it is held back whole.
    pub const MAX_PHRASE_BYTES: usize = 256;
    /// The most bytes in one pattern.
    pub const MAX_PATTERN_BYTES: usize = 2048;
    /// Bytes of an answer that are held back at most, because they may be the beginning of what is blocked. A longer match
    /// is found all the same, and ends the answer; what lies farther before its end has been shown by then.
    pub const MAX_HELD_BYTES: usize = 1024;
    /// What one pattern may take once it is compiled, in bytes, and what all may.
    const MAX_RULE_SIZE: usize = 1 << 20;
    const MAX_SIZE: usize = 32 << 20;

    /// Compiles patterns in the syntax of the crate `regex`; [`Self::phrase`] makes one of a phrase.
    ///
    /// # Errors
    /// A pattern that is none, that matches the empty text, or is too large; too many of them, or none.
    pub fn new(patterns: &[String]) -> Result<Self, PolicyError> {
        let all = |sentence: String| PolicyError { rule_idx: None, sentence };
        if patterns.is_empty() || patterns.len() > Self::MAX_RULES {
            let (count, most) = (patterns.len(), Self::MAX_RULES);
            return Err(all(format!("a policy has 1 to {most} rules and this one {count}")));
        }
        for (idx, pattern) in patterns.iter().enumerate() {
            let refuse = |sentence: String| PolicyError { rule_idx: Some(idx), sentence };
            if pattern.len() > Self::MAX_PATTERN_BYTES {
                let (bytes, most) = (pattern.len(), Self::MAX_PATTERN_BYTES);
                return Err(refuse(format!("the pattern has {bytes} bytes and may have {most}; shorten it")));
            }
            let nfa = compile(std::slice::from_ref(pattern), Self::MAX_RULE_SIZE).map_err(refuse)?;
            if nfa.has_empty() {
                return Err(refuse(
                    "the pattern matches the empty text, so it would block everything".into(),
                ));
            }
        }
        let nfa = compile(patterns, Self::MAX_SIZE).map_err(all)?;
        let config =
            meta::Config::new().nfa_size_limit(Some(Self::MAX_SIZE)).which_captures(WhichCaptures::None);
        let whole = meta::Regex::builder().configure(config).build_many(patterns);
        let whole = whole.map_err(|error| all(format!("the rules are too large together: {error}")))?;
        Ok(Self { starts: Starts::of(&nfa), whole, nfa })
    }

    /// The pattern of a phrase: whatever the case, and whatever white space stands between its words.
    pub fn phrase(text: &str) -> String {
        let escaped = |c: char| match c.is_ascii() && !c.is_ascii_alphanumeric() {
            true => format!("\\x{{{:x}}}", u32::from(c)),
            false => c.to_string(),
        };
        let words = text.split_whitespace().map(|word| word.chars().map(escaped).collect::<String>());
        format!("(?i){}", words.collect::<Vec<_>>().join("\\s+"))
    }

    /// Whether a whole text holds what is blocked.
    pub fn blocks(&self, text: &str) -> bool {
        self.whole.is_match(text)
    }
}

fn compile(patterns: &[String], max_size: usize) -> Result<NFA, String> {
    let config =
        Config::new().which_captures(WhichCaptures::None).nfa_size_limit(Some(max_size)).shrink(false);
    let limits = syntax::Config::new().nest_limit(64);
    let built = NFA::compiler().configure(config).syntax(limits).build_many(patterns);
    built.map_err(|error| match error.size_limit() {
        Some(limit) => format!("compiled it takes more than {limit} bytes; make it simpler"),
        None => match std::error::Error::source(&error) {
            Some(source) => format!("it is no pattern: {}", one_line(&source.to_string())),
            None => format!("it is no pattern: {error}"),
        },
    })
}

fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

impl Starts {
    fn of(nfa: &NFA) -> Self {
        let mut starts = Self { after: vec![Vec::new(); 256], looks: Vec::new() };
        let (mut stack, mut seen) = (vec![nfa.start_anchored()], std::collections::HashSet::new());
        while let Some(id) = stack.pop() {
            if !seen.insert(id) {
                continue;
            }
            match nfa.state(id) {
                State::Look { .. } => starts.looks.push(id),
                state if state.is_epsilon() => stack.extend(screen::nexts(state)),
                state => {
                    for byte in 0..=u8::MAX {
                        let next = screen::after(state, byte);
                        starts.after[usize::from(byte)].extend(next);
                    }
                }
            }
        }
        starts
    }
}

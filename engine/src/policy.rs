//! What neither a prompt nor an answer may contain: phrases and patterns, compiled once for all requests.
//!
//! It decides nothing about requests and reads no file. Invariant: searching takes time linear in the text, whatever the
//! patterns are, and a policy that was made blocks no empty text.

mod screen;

use std::collections::HashSet;

use regex_automata::meta;
use regex_automata::nfa::thompson::{Compiler, Config, NFA, State, WhichCaptures};
use regex_automata::util::look::Look;
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
    /// Without a word about the place.
    free: Firsts,
    /// Where an assertion about the place comes first: each that there is once, however many rules begin with it.
    asserted: Vec<(Look, Firsts)>,
}

/// What can come first.
#[derive(Debug)]
struct Firsts {
    /// For each byte, what it leads to.
    after: Vec<Vec<StateID>>,
    /// Assertions that stand before the first byte.
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
    pub const MAX_RULES: usize = 1024;
    /// What one search may remember of its way through the rules.
    const SEARCH_CACHE_BYTES: usize = 16 << 20;
    /// The most bytes in one phrase. Whatever the case, it is held back whole, unless so much white space stands between
    /// its words that it is longer than [`Self::MAX_HELD_BYTES`].
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
            if pattern.len() > Self::MAX_PATTERN_BYTES {
                let (bytes, most) = (pattern.len(), Self::MAX_PATTERN_BYTES);
                let sentence = format!("the pattern has {bytes} bytes and may have {most}; shorten it");
                return Err(PolicyError { rule_idx: Some(idx), sentence });
            }
        }
        let nfa = compile(&compiler(Self::MAX_SIZE), patterns);
        // Rule by rule only where one of them may be to blame: all together take at least what the largest takes.
        let is_fine = |nfa: &NFA| !nfa.has_empty() && nfa.memory_usage() <= Self::MAX_RULE_SIZE;
        if !nfa.as_ref().is_ok_and(is_fine) {
            check_each(patterns)?;
        }
        let nfa = nfa.map_err(all)?;
        // Many rules make many states of the searching automaton; one that keeps throwing them away is a slow one.
        let config = meta::Config::new()
            .nfa_size_limit(Some(Self::MAX_SIZE))
            .hybrid_cache_capacity(Self::SEARCH_CACHE_BYTES)
            .which_captures(WhichCaptures::None);
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

fn compiler(max_size: usize) -> Compiler {
    let config =
        Config::new().which_captures(WhichCaptures::None).nfa_size_limit(Some(max_size)).shrink(false);
    let mut compiler = NFA::compiler();
    compiler.configure(config).syntax(syntax::Config::new().nest_limit(64));
    compiler
}

/// Names the first rule that cannot be one.
fn check_each(patterns: &[String]) -> Result<(), PolicyError> {
    // One for all: what it keeps between two rules is most of what a short rule takes.
    let compiler = compiler(ContentPolicy::MAX_RULE_SIZE);
    for (idx, pattern) in patterns.iter().enumerate() {
        let refuse = |sentence: String| PolicyError { rule_idx: Some(idx), sentence };
        if compile(&compiler, std::slice::from_ref(pattern)).map_err(refuse)?.has_empty() {
            return Err(refuse("the pattern matches the empty text, so it would block everything".into()));
        }
    }
    Ok(())
}

fn compile(compiler: &Compiler, patterns: &[String]) -> Result<NFA, String> {
    compiler.build_many(patterns).map_err(|error| match error.size_limit() {
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
        let free = Firsts::of(nfa, vec![nfa.start_anchored()]);
        let mut behind: Vec<(Look, Vec<StateID>)> = Vec::new();
        for &id in &free.looks {
            let State::Look { look, next } = nfa.state(id) else { continue };
            match behind.iter_mut().find(|(known, _)| known == look) {
                Some((_, nexts)) => nexts.push(*next),
                None => behind.push((*look, vec![*next])),
            }
        }
        let asserted = behind.into_iter().map(|(look, nexts)| (look, Firsts::of(nfa, nexts))).collect();
        Self { free, asserted }
    }
}

impl Firsts {
    fn of(nfa: &NFA, from: Vec<StateID>) -> Self {
        let mut firsts = Self { after: vec![Vec::new(); 256], looks: Vec::new() };
        let (mut stack, mut seen) = (from, HashSet::new());
        while let Some(id) = stack.pop() {
            if !seen.insert(id) {
                continue;
            }
            match nfa.state(id) {
                State::Look { .. } => firsts.looks.push(id),
                state if state.is_epsilon() => stack.extend(screen::nexts(state)),
                state => {
                    for byte in 0..=u8::MAX {
                        firsts.after[usize::from(byte)].extend(screen::after(state, byte));
                    }
                }
            }
        }
        firsts
    }

    /// Whether nothing begins with `byte`.
    fn lack(&self, byte: u8) -> bool {
        self.after[usize::from(byte)].is_empty() && self.looks.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_assertion_that_many_rules_begin_with_is_asked_once() {
        let check = |pattern: fn(usize) -> String, expected: &[(Look, usize)]| {
            let patterns: Vec<String> = (0..200).map(pattern).collect();
            let starts = ContentPolicy::new(&patterns).unwrap().starts;
            let got: Vec<_> =
                starts.asserted.iter().map(|(look, f)| (*look, f.after[usize::from(b'w')].len())).collect();
            assert_eq!(got, expected, "{}", patterns[0]);
        };
        check(|n| format!("w{n}"), &[]);
        check(|n| format!(r"\bw{n}\b"), &[(Look::WordUnicode, 200)]);
        check(|n| format!("(?m)^w{n}$"), &[(Look::StartLF, 200)]);
    }
}

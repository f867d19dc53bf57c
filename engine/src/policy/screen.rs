//! An answer's text on its way out, held back where it may be the beginning of what is blocked.
//!
//! All places where a match may begin are followed at once, byte by byte, as states of one automaton. Invariant: no byte
//! of a match goes out that lies within [`ContentPolicy::MAX_HELD_BYTES`] of the match's end, however the text is cut
//! into pieces.

use std::collections::HashSet;
use std::sync::Arc;

use regex_automata::nfa::thompson::State;
use regex_automata::util::look::Look;
use regex_automata::util::primitives::StateID;

use super::{ContentPolicy, Firsts};

/// What a piece of text came to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Screened {
    /// Text that is certain to be no part of a match within the bound.
    pub text: String,
    /// Blocked text is complete: the answer ends before it.
    pub blocked: bool,
}

/// A match that may have begun.
#[derive(Clone, Copy, Debug)]
struct Thread {
    state: StateID,
    /// Bytes of the answer before it.
    start: usize,
}

/// The state of one answer.
#[derive(Clone, Debug)]
pub struct Screen {
    policy: Arc<ContentPolicy>,
    /// What is held back, and before it one character that is out: assertions look at it.
    text: String,
    /// Bytes of the answer before `text`.
    base: usize,
    /// Bytes of the answer that are out.
    shown: usize,
    /// After the last byte; the earliest beginning first, each state once.
    threads: Vec<Thread>,
    seen: HashSet<StateID>,
    blocked: bool,
}

impl Screen {
    /// For an answer that has no text yet.
    pub fn new(policy: Arc<ContentPolicy>) -> Self {
        Self {
            policy,
            text: String::new(),
            base: 0,
            shown: 0,
            threads: Vec::new(),
            seen: HashSet::new(),
            blocked: false,
        }
    }

    /// Bytes of the answer that are out.
    pub fn shown(&self) -> usize {
        self.shown
    }

    /// Takes more of the text. After a match nothing more comes out.
    pub fn push(&mut self, fresh: &str) -> Screened {
        if self.blocked {
            return Screened { text: String::new(), blocked: true };
        }
        let from = self.text.len();
        self.text.push_str(fresh);
        for at in from..self.text.len() {
            if let Some(start) = self.step(at) {
                return self.block(start);
            }
        }
        // What depends on no character behind it need not wait for one.
        if let Some(start) = self.follow(None).1 {
            return self.block(start);
        }
        let end = self.base + self.text.len();
        let held_from = self.threads.iter().map(|thread| thread.start).min().unwrap_or(end);
        let mut until = held_from.max(end.saturating_sub(ContentPolicy::MAX_HELD_BYTES));
        while !self.text.is_char_boundary(until - self.base) {
            until += 1;
        }
        Screened { text: self.show(until), blocked: false }
    }

    /// The text ends here: what was held back and is no match after all.
    pub fn finish(&mut self) -> Screened {
        if self.blocked {
            return Screened { text: String::new(), blocked: true };
        }
        match self.follow(Some(self.text.len())).1 {
            Some(start) => self.block(start),
            None => {
                self.threads.clear();
                Screened { text: self.show(self.base + self.text.len()), blocked: false }
            }
        }
    }

    fn block(&mut self, start: usize) -> Screened {
        self.blocked = true;
        self.threads.clear();
        Screened { text: self.show(start), blocked: true }
    }

    /// Lets out what lies before `until`, and forgets what no assertion looks at any more.
    fn show(&mut self, until: usize) -> String {
        let until = until.max(self.shown);
        let out = self.text[self.shown - self.base..until - self.base].to_owned();
        self.shown = until;
        let mut context = (until - self.base).saturating_sub(4);
        while !self.text.is_char_boundary(context) {
            context -= 1;
        }
        self.text.drain(..context);
        self.base += context;
        out
    }

    /// Reads the byte at `at`; returns where a match begins that ends before it.
    fn step(&mut self, at: usize) -> Option<usize> {
        let byte = self.text.as_bytes()[at];
        let policy = Arc::clone(&self.policy);
        let starts = &policy.starts;
        let begins = self.text.is_char_boundary(at);
        let begins_nothing = || starts.free.lack(byte) && starts.asserted.iter().all(|(_, f)| f.lack(byte));
        if self.threads.is_empty() && (!begins || begins_nothing()) {
            return None;
        }
        let (mut here, matched) = self.follow(Some(at));
        if matched.is_some() {
            return matched;
        }
        let start = self.base + at;
        let holds = |look| policy.nfa.look_matcher().matches(look, self.text.as_bytes(), at);
        let is_open = |(look, firsts): &(Look, Firsts)| begins && !firsts.lack(byte) && holds(*look);
        // One bit for each assertion that comes first; there are fewer than 32 kinds of them.
        let open = (0..u32::BITS).zip(&starts.asserted).filter(|(_, one)| is_open(one));
        let open = open.fold(0_u32, |open, (idx, _)| open | 1 << idx);
        let asserted = || {
            let firsts = (0..u32::BITS).zip(&starts.asserted).filter(|(idx, _)| open >> idx & 1 == 1);
            firsts.map(|(_, (_, firsts))| firsts)
        };
        for firsts in asserted().filter(|firsts| !firsts.looks.is_empty()) {
            // One more assertion behind the first is rare. The set of states that were seen still is that of this place.
            let looks = firsts.looks.iter().map(|&state| Thread { state, start });
            let (more, _) = self.closure(looks.collect(), Some(at));
            here.extend(more);
        }
        self.seen.clear();
        self.threads.clear();
        let moved = here.into_iter().flat_map(|thread| {
            let next = after(policy.nfa.state(thread.state), byte);
            next.map(|state| Thread { state, ..thread })
        });
        let firsts = begins.then_some(&starts.free).into_iter().chain(asserted());
        let begun = firsts.flat_map(|firsts| &firsts.after[usize::from(byte)]);
        let begun = begun.map(|&state| Thread { state, start });
        for thread in moved.chain(begun) {
            if self.seen.insert(thread.state) {
                self.threads.push(thread);
            }
        }
        None
    }

    /// The states that the threads are in without another byte, and where the earliest match begins that ends here.
    /// Assertions are asked about the place `at`; without a place none of them holds.
    fn follow(&mut self, at: Option<usize>) -> (Vec<Thread>, Option<usize>) {
        self.seen.clear();
        let threads = self.threads.clone();
        self.closure(threads, at)
    }

    fn closure(&mut self, from: Vec<Thread>, at: Option<usize>) -> (Vec<Thread>, Option<usize>) {
        let nfa = &self.policy.nfa;
        let (mut here, mut matched) = (Vec::new(), None);
        let mut stack = Vec::new();
        for thread in from {
            stack.push(thread);
            while let Some(thread) = stack.pop() {
                if !self.seen.insert(thread.state) {
                    continue;
                }
                match nfa.state(thread.state) {
                    State::Match { .. } => {
                        matched.get_or_insert(thread.start);
                    }
                    State::Look { look, next } => {
                        let holds =
                            at.is_some_and(|at| nfa.look_matcher().matches(*look, self.text.as_bytes(), at));
                        stack.extend(holds.then_some(Thread { state: *next, ..thread }));
                    }
                    state if state.is_epsilon() => {
                        stack.extend(nexts(state).into_iter().map(|state| Thread { state, ..thread }));
                    }
                    _ => here.push(thread),
                }
            }
        }
        (here, matched)
    }
}

/// Where an epsilon state that asserts nothing leads.
pub(super) fn nexts(state: &State) -> Vec<StateID> {
    match state {
        State::Union { alternates } => alternates.to_vec(),
        State::BinaryUnion { alt1, alt2 } => vec![*alt1, *alt2],
        State::Capture { next, .. } => vec![*next],
        _ => Vec::new(),
    }
}

/// Where a byte leads from a state that reads one.
pub(super) fn after(state: &State, byte: u8) -> Option<StateID> {
    match state {
        State::ByteRange { trans } => trans.matches_byte(byte).then_some(trans.next),
        State::Sparse(sparse) => sparse.matches_byte(byte),
        State::Dense(dense) => dense.matches_byte(byte),
        _ => None,
    }
}

//! SentencePiece's BPE: merge, again and again, the two neighbours whose union has the best score.
//!
//! Written out instead of turned into a list of merges: a list has to rank the ways to cut one token in two, which
//! SentencePiece treats as equal, the leftmost first. It never sees an added token. Invariant: the ids spell the text,
//! character by character or byte by byte.

use std::cmp::{Ordering, Reverse};
use std::collections::{BinaryHeap, HashMap};

use super::token_bytes::fallback_byte;

/// The vocabulary, as the merge needs it.
#[derive(Debug)]
pub(super) struct SentencePiece {
    /// Ordinary tokens: id and score.
    tokens: HashMap<String, (u32, f32)>,
    /// `[256]` the tokens `<0x00>` to `<0xFF>`.
    bytes: Vec<Option<u32>>,
    unk: Option<u32>,
}

/// A token in the making: bytes `start..end` of the text, and its neighbours.
#[derive(Clone, Copy)]
struct Symbol {
    start: usize,
    end: usize,
    prev: Option<usize>,
    next: Option<usize>,
}

/// Two neighbours that may merge; stale once either has changed.
struct Pair {
    score: f32,
    left: usize,
    right: usize,
    num_bytes: usize,
}

impl Ord for Pair {
    /// The best score first, and of equal ones the leftmost.
    fn cmp(&self, other: &Self) -> Ordering {
        self.score.total_cmp(&other.score).then_with(|| Reverse(self.left).cmp(&Reverse(other.left)))
    }
}

impl PartialOrd for Pair {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Pair {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Pair {}

impl SentencePiece {
    /// From `(text, id, score)` of the ordinary tokens and `(text, id)` of the byte tokens. Of equal texts the first
    /// counts.
    pub(super) fn new<'a>(
        ordinary: impl Iterator<Item = (&'a str, u32, f32)>,
        byte_tokens: impl Iterator<Item = (&'a str, u32)>,
        unk: Option<u32>,
    ) -> Self {
        let mut tokens = HashMap::new();
        for (text, id, score) in ordinary {
            tokens.entry(text.to_owned()).or_insert((id, score));
        }
        let mut bytes = vec![None; 256];
        for (text, id) in byte_tokens {
            if let Some(byte) = fallback_byte(text) {
                bytes[usize::from(byte)].get_or_insert(id);
            }
        }
        Self { tokens, bytes, unk }
    }

    /// A character that the vocabulary can spell in no way.
    pub(super) fn tokenize(&self, text: &str) -> Result<Vec<u32>, String> {
        let mut symbols: Vec<Symbol> = (text.char_indices().enumerate())
            .map(|(i, (start, c))| Symbol {
                start,
                end: start + c.len_utf8(),
                prev: i.checked_sub(1),
                next: Some(i + 1),
            })
            .collect();
        if let Some(last) = symbols.last_mut() {
            last.next = None;
        }
        self.merge(text, &mut symbols);
        let mut ids = Vec::new();
        let mut at = if symbols.is_empty() { None } else { Some(0) };
        while let Some(i) = at {
            self.spell(&text[symbols[i].start..symbols[i].end], &mut ids)?;
            at = symbols[i].next;
        }
        Ok(ids)
    }

    fn merge(&self, text: &str, symbols: &mut [Symbol]) {
        let mut queue: BinaryHeap<Pair> =
            (1..symbols.len()).filter_map(|right| self.pair(text, symbols, right - 1, right)).collect();
        while let Some(Pair { left, right, num_bytes, .. }) = queue.pop() {
            let (l, r) = (symbols[left], symbols[right]);
            // A symbol that was merged into its left neighbour is empty; one that grew makes the union longer.
            let is_empty = l.start == l.end || r.start == r.end;
            if is_empty || l.next != Some(right) || r.end - l.start != num_bytes {
                continue;
            }
            symbols[left].end = r.end;
            symbols[left].next = r.next;
            symbols[right].end = r.start;
            if let Some(next) = r.next {
                symbols[next].prev = Some(left);
                queue.extend(self.pair(text, symbols, left, next));
            }
            if let Some(prev) = l.prev {
                queue.extend(self.pair(text, symbols, prev, left));
            }
        }
    }

    fn pair(&self, text: &str, symbols: &[Symbol], left: usize, right: usize) -> Option<Pair> {
        let union = &text[symbols[left].start..symbols[right].end];
        let &(_, score) = self.tokens.get(union)?;
        Some(Pair { score, left, right, num_bytes: union.len() })
    }

    fn spell(&self, piece: &str, ids: &mut Vec<u32>) -> Result<(), String> {
        if let Some(&(id, _)) = self.tokens.get(piece) {
            ids.push(id);
            return Ok(());
        }
        for byte in piece.bytes() {
            match self.bytes[usize::from(byte)].or(self.unk) {
                Some(id) => ids.push(id),
                None => return Err(format!("the vocabulary has no token for {piece:?}")),
            }
        }
        Ok(())
    }
}

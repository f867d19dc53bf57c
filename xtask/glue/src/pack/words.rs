//! The module's data as differences between words, wherever that gzips smaller: tables of numbers that rise are most of it,
//! and their differences are few and small.
//!
//! The Sub filter of PNG, for words of 4 bytes. Invariant: what [`starter`]'s function does to the bytes that are written gives
//! the bytes that were taken.

use std::ops::Range;

use wasm_encoder::{BlockType, Function, MemArg, ValType};
use wasmparser::{Data, DataKind, Operator};

/// Bytes of a word.
const WORD: usize = 4;
/// Words over which one distance serves.
const BLOCK: usize = 128;
/// How far back the word lies that is subtracted: the tables' rows have up to so many words.
const DISTANCES: Range<usize> = 1..5;
/// A distance has to save a tenth, or nothing is subtracted: what gzip finds in the bytes as they are is lost with it.
const WORTHWHILE: f64 = 0.9;

/// A piece of the data, and what has to be added to it again.
#[derive(Debug, PartialEq)]
pub struct Differences {
    /// As it is written.
    pub bytes: Vec<u8>,
    /// In the order in which they are to be restored.
    pub runs: Vec<Run>,
}

/// Words from which others were subtracted.
#[derive(Clone, Debug, PartialEq)]
pub struct Run {
    /// Where in memory the first of them is.
    from: u32,
    /// Where they end.
    to: u32,
    /// How many bytes before each word the word is that was subtracted.
    back: u32,
}

impl Differences {
    /// Of the data that belongs at `at` in memory; of data whose place is not known there are none.
    pub fn of(at: Option<u32>, data: &[u8]) -> Self {
        let Some(at) = at else { return Self { bytes: data.to_vec(), runs: Vec::new() } };
        let (whole, rest) = data.as_chunks::<WORD>();
        let words: Vec<u32> = whole.iter().map(|word| u32::from_le_bytes(*word)).collect();
        let mut written = Self { bytes: Vec::with_capacity(data.len()), runs: Vec::new() };
        for from in (0..words.len()).step_by(BLOCK) {
            let block = from..words.len().min(from + BLOCK);
            let (back, bytes) = smallest(&words, &block);
            written.bytes.extend(bytes);
            if let Some(back) = back {
                let address = |word: usize| at + (word * WORD) as u32;
                written.add(Run {
                    from: address(block.start),
                    to: address(block.end),
                    back: (back * WORD) as u32,
                });
            }
        }
        written.bytes.extend(rest);
        written
    }

    fn add(&mut self, run: Run) {
        match self.runs.last_mut() {
            Some(last) if last.to == run.from && last.back == run.back => last.to = run.to,
            _ => self.runs.push(run),
        }
    }
}

/// A block's words, each less the one so many before it, or as they are: whichever gzips smallest.
fn smallest(words: &[u32], block: &Range<usize>) -> (Option<usize>, Vec<u8>) {
    let bytes = |word: &dyn Fn(usize) -> u32| -> Vec<u8> {
        block.clone().flat_map(|idx| word(idx).to_le_bytes()).collect()
    };
    let plain = bytes(&|idx| words[idx]);
    let mut best = (entropy(&plain) * WORTHWHILE, None, plain);
    for back in DISTANCES.filter(|back| *back <= block.start) {
        let less = bytes(&|idx| words[idx].wrapping_sub(words[idx - back]));
        let size = entropy(&less);
        if size < best.0 {
            best = (size, Some(back), less);
        }
    }
    (best.1, best.2)
}

/// The bits that a code for single bytes needs at least.
fn entropy(bytes: &[u8]) -> f64 {
    let mut counts = [0_u32; 256];
    for byte in bytes {
        counts[usize::from(*byte)] += 1;
    }
    let whole = bytes.len() as f64;
    let bits = |count: u32| f64::from(count) * (whole / f64::from(count)).log2();
    counts.into_iter().filter(|count| *count > 0).map(bits).sum()
}

/// Where a piece of the data belongs, if it says so itself.
pub fn place(data: &Data<'_>) -> wasmparser::Result<Option<u32>> {
    let DataKind::Active { memory_index: 0, offset_expr } = &data.kind else { return Ok(None) };
    let address = match offset_expr.get_operators_reader().read()? {
        Operator::I32Const { value } => Some(value.cast_unsigned()),
        _ => None,
    };
    Ok(address)
}

/// The function that restores one run: it takes where it begins, where it ends, and how far back to look.
pub fn restorer() -> Function {
    let (from, to, back) = (0, 1, 2);
    let word = MemArg { offset: 0, align: 0, memory_index: 0 };
    let mut function = Function::new([]);
    let mut code = function.instructions();
    code.loop_(BlockType::Empty);
    code.local_get(from);
    code.local_get(from).i32_load(word);
    code.local_get(from).local_get(back).i32_sub().i32_load(word);
    code.i32_add().i32_store(word);
    code.local_get(from).i32_const(WORD as i32).i32_add().local_tee(from);
    code.local_get(to).i32_lt_u().br_if(0);
    code.end().end();
    function
}

/// The types of what [`restorer`] takes.
pub const RESTORER_TAKES: [ValType; 3] = [ValType::I32; 3];

/// The function that restores all of them; `restorer` is the other one's number.
pub fn starter(pieces: &[Differences], restorer: u32) -> Function {
    let mut function = Function::new([]);
    let mut code = function.instructions();
    for run in pieces.iter().flat_map(|piece| &piece.runs) {
        for number in [run.from, run.to, run.back] {
            code.i32_const(number.cast_signed());
        }
        code.call(restorer);
    }
    code.end();
    function
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What [`restorer`] does, of data at `at`.
    fn restored(at: u32, differences: &Differences) -> Vec<u8> {
        let mut bytes = differences.bytes.clone();
        for run in &differences.runs {
            for word in (run.from..run.to).step_by(WORD) {
                let load = |address: u32| {
                    let at = (address - at) as usize;
                    u32::from_le_bytes(bytes[at..at + WORD].try_into().unwrap())
                };
                let sum = load(word).wrapping_add(load(word - run.back));
                bytes[(word - at) as usize..][..WORD].copy_from_slice(&sum.to_le_bytes());
            }
        }
        bytes
    }

    fn check(data: &[u8], some: bool) {
        let differences = Differences::of(Some(1 << 20), data);
        assert_eq!(!differences.runs.is_empty(), some, "{:?}", differences.runs);
        assert_eq!(restored(1 << 20, &differences), data);
        assert!(!some || entropy(&differences.bytes) < entropy(data));
    }

    #[test]
    fn tables_become_differences_and_texts_stay_and_both_come_back() {
        let table = |step: u32| {
            (0..2000_u32)
                .flat_map(move |n| n.wrapping_mul(step).wrapping_add(n % 3).to_le_bytes())
                .collect::<Vec<u8>>()
        };
        check(&table(5), true);
        check(&table(u32::MAX / 7), true);
        check(&"what a page says, in words ".repeat(100).into_bytes(), false);
        check(b"", false);
        check(b"abc", false);
        // Rows of a name's place, its length and a number; and bytes that make up no word.
        let rows = (0..900_u32).flat_map(|n| [(1 << 20) + n * 12, n % 9, n * n]).flat_map(u32::to_le_bytes);
        check(&rows.chain(*b"end").collect::<Vec<u8>>(), true);
    }

    #[test]
    fn runs_that_touch_are_one() {
        let table: Vec<u8> = (0..10 * BLOCK as u32).flat_map(|n| (n * 40).to_le_bytes()).collect();
        assert_eq!(Differences::of(Some(64), &table).runs.len(), 1);
    }
}

//! The arrays of one forward pass. A batch is plain data: the runner needs nothing else.

use std::sync::Arc;

use super::{SchedulerConfig, Sequence};
use crate::request::SamplingParams;

/// A page of `block_size` token slots in the KV cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BlockId(pub u32);

/// One position to sample from.
#[derive(Clone, Debug, PartialEq)]
pub struct SampleRow {
    /// Index into the batch's rows: the last token of a sequence whose difference closes.
    pub row: u32,
    /// How to choose.
    pub params: Arc<SamplingParams>,
    /// Position of the token to be chosen (prompt length + tokens generated so far): with the seed it makes the random
    /// numbers, so that they depend on nothing else in the batch.
    pub position: u32,
    /// Prompt and generated tokens; empty unless `params.needs_history()`.
    pub history: Vec<u32>,
    /// How many of `history` belong to the prompt.
    pub prompt_len: u32,
}

/// One forward pass: `num_rows` tokens of `num_seqs` sequences, rows of a sequence in position order and adjacent.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Batch {
    /// It was submitted before the tokens of the pass before it were read, and names some of them: see [`Batch::SAMPLED`].
    pub ahead: bool,
    /// Blocks to copy before anything else of the pass, in this order: (from, to). A sequence that shares a block and has
    /// to write into it gets a copy of its own.
    pub block_copies: Vec<(BlockId, BlockId)>,
    /// `[num_rows]` token ids; in a batch ahead, names of sampled tokens.
    pub token_ids: Vec<u32>,
    /// `[num_rows]` positions in their sequence, from 0.
    pub positions: Vec<u32>,
    /// `[num_rows]` where each row's K and V go: block id * block_size + offset in the block.
    pub slot_mapping: Vec<u32>,
    /// `[num_seqs + 1]` first row of each sequence; the last entry is `num_rows`.
    pub query_start: Vec<u32>,
    /// `[num_seqs]` tokens of the sequence that have K and V once this pass is done.
    pub seq_lens: Vec<u32>,
    /// `[num_seqs]` the blocks of each sequence, in position order.
    pub block_tables: Vec<Vec<BlockId>>,
    /// The rows to sample from, in row order.
    pub sample_rows: Vec<SampleRow>,
}

impl Batch {
    /// Token ids from here on are names: `SAMPLED + i` is the token that the pass before chose for its sample row `i`.
    pub const SAMPLED: u32 = firstlight_shaders::embed::SAMPLED;

    /// A batch ahead, still without sequences.
    pub(super) fn ahead() -> Self {
        Self { ahead: true, query_start: vec![0], ..Self::default() }
    }

    /// The next `num_tokens` uncomputed tokens of each sequence, whose block tables reach that far once the copies are made.
    pub(super) fn build<'a>(
        sequences: impl Iterator<Item = (&'a Sequence, u32)>,
        block_copies: Vec<(BlockId, BlockId)>,
        config: &SchedulerConfig,
    ) -> Self {
        let mut batch = Self { block_copies, query_start: vec![0], ..Self::default() };
        for (sequence, num_tokens) in sequences {
            batch.push(sequence, num_tokens as usize, config.block_size as usize);
        }
        batch
    }

    fn push(&mut self, sequence: &Sequence, num_tokens: usize, block_size: usize) {
        let from = sequence.num_computed_tokens();
        let to = from + num_tokens;
        let table = sequence.block_table();
        for position in from..to {
            self.token_ids.push(sequence.tokens()[position]);
            self.positions.push(position as u32);
            self.slot_mapping.push(slot(table, position, block_size));
        }
        let num_rows = self.num_rows() as u32;
        self.query_start.push(num_rows);
        self.seq_lens.push(to as u32);
        self.block_tables.push(table.to_vec());
        if to == sequence.tokens().len() {
            self.sample_rows.push(sequence.sample_row(num_rows - 1));
        }
    }

    /// One row for the token that the pass before samples for this sequence, as its `sampled_idx`-th; the block table
    /// reaches that far.
    pub(super) fn push_ahead(&mut self, sequence: &Sequence, sampled_idx: u32, block_size: usize) {
        let position = sequence.tokens().len();
        let row = self.num_rows() as u32;
        self.token_ids.push(Self::SAMPLED + sampled_idx);
        self.positions.push(position as u32);
        self.slot_mapping.push(slot(sequence.block_table(), position, block_size));
        self.query_start.push(row + 1);
        self.seq_lens.push(position as u32 + 1);
        self.block_tables.push(sequence.block_table().to_vec());
        let mut sample = sequence.sample_row(row);
        sample.position += 1;
        self.sample_rows.push(sample);
    }

    /// Tokens in this pass.
    pub fn num_rows(&self) -> usize {
        self.token_ids.len()
    }

    /// Sequences in this pass.
    pub fn num_seqs(&self) -> usize {
        self.seq_lens.len()
    }
}

/// Where the K and V of `position` lie.
fn slot(table: &[BlockId], position: usize, block_size: usize) -> u32 {
    let block = table[position / block_size].0 as usize;
    (block * block_size + position % block_size) as u32
}

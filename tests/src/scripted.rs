//! A runner without a GPU: the next token is a hash of the sequence's history, read back from a shadow of the KV cache.
//!
//! It never schedules. Invariant: a token can come out right only if every position of the history was written to the
//! slot that the block table names, and nobody wrote over it since.

use std::collections::HashSet;

use firstlight_engine::clock::{Clock, ManualClock, Nanos};
use firstlight_engine::engine::{Engine, StepFailed, StepOutput};
use firstlight_engine::replay::poll_once;
use firstlight_engine::request::{FinishReason, SampledToken, SamplingParams};
use firstlight_engine::runner::{ModelRunner, RunnerError, RunnerOutput};
use firstlight_engine::sched::{Batch, BlockId};

/// One slot of the shadow KV: which history came before it, where it stands, and its token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Slot {
    /// Hash of all tokens before this position: the sequence's key, which no two different histories share.
    key: u64,
    position: u32,
    token: u32,
}

/// Executes batches on the shadow KV.
pub struct ScriptedRunner<'c> {
    vocab_size: u32,
    block_size: u32,
    slots: Vec<Option<Slot>>,
    /// Moved by up to so many nanoseconds in each execution.
    clock: Option<(&'c ManualClock, Nanos)>,
    fail_next: bool,
    /// Takes batches ahead; and what the one that it has taken gives.
    runs_ahead: bool,
    ahead: Option<(Batch, Vec<SampledToken>)>,
    /// Blocks copied so far.
    pub block_copies: u64,
    /// Executions so far.
    pub executions: u64,
    /// The last batch, to look at.
    pub last_batch: Batch,
}

impl<'c> ScriptedRunner<'c> {
    /// A shadow of `num_blocks` empty blocks.
    pub fn new(num_blocks: u32, block_size: u32, vocab_size: u32) -> Self {
        Self {
            vocab_size,
            block_size,
            slots: vec![None; (num_blocks * block_size) as usize],
            clock: None,
            fail_next: false,
            runs_ahead: false,
            ahead: None,
            block_copies: 0,
            executions: 0,
            last_batch: Batch::default(),
        }
    }

    /// Each execution takes `1..=max_ns` on `clock`.
    pub fn taking(mut self, clock: &'c ManualClock, max_ns: Nanos) -> Self {
        self.clock = Some((clock, max_ns));
        self
    }

    /// Whether it takes batches ahead.
    pub fn running_ahead(mut self, runs_ahead: bool) -> Self {
        self.runs_ahead = runs_ahead;
        self
    }

    /// The next execution loses the device and everything in its memory.
    pub fn fail_next(&mut self) {
        self.fail_next = true;
    }

    /// Empties a block, so that nobody can live on what an earlier owner left there.
    pub fn forget(&mut self, block: BlockId) {
        let from = (block.0 * self.block_size) as usize;
        self.slots[from..from + self.block_size as usize].fill(None);
    }

    fn read(&self, table: &[BlockId], position: u32) -> Slot {
        let block = table[(position / self.block_size) as usize];
        let slot = block.0 * self.block_size + position % self.block_size;
        match self.slots[slot as usize] {
            Some(found) if found.position == position => found,
            found => panic!("position {position} resolves to slot {slot}, which holds {found:?}"),
        }
    }

    /// The first `len` tokens of a sequence as its block table tells them; each must be of this very history.
    fn history(&self, table: &[BlockId], len: u32) -> Vec<u32> {
        let mut key = EMPTY_HISTORY;
        let mut tokens = Vec::with_capacity(len as usize);
        for position in 0..len {
            let slot = self.read(table, position);
            assert!(slot.key == key, "position {position} in {table:?} is another sequence's: {slot:?}");
            key = mix(key, slot.token);
            tokens.push(slot.token);
        }
        tokens
    }

    fn write(&mut self, batch: &Batch, written: &mut HashSet<u32>) {
        for seq in 0..batch.num_seqs() {
            let rows = batch.query_start[seq] as usize..batch.query_start[seq + 1] as usize;
            assert!(!rows.is_empty(), "sequence {seq} has no row");
            let first = batch.positions[rows.start];
            let mut key = hash(&self.history(&batch.block_tables[seq], first));
            for (row, position) in rows.zip(first..) {
                assert!(batch.positions[row] == position, "rows of a sequence are in position order");
                let slot = batch.slot_mapping[row];
                assert!(written.insert(slot), "slot {slot} is written twice in one step");
                let token = batch.token_ids[row];
                self.slots[slot as usize] = Some(Slot { key, position, token });
                key = mix(key, token);
            }
        }
    }

    fn sample(&self, batch: &Batch) -> Vec<SampledToken> {
        let mut sample_rows = batch.sample_rows.iter().peekable();
        let mut tokens = Vec::new();
        for seq in 0..batch.num_seqs() {
            let last_row = batch.query_start[seq + 1] - 1;
            let seq_len = batch.seq_lens[seq];
            assert!(batch.positions[last_row as usize] + 1 == seq_len, "seq_lens counts this pass in");
            let history = self.history(&batch.block_tables[seq], seq_len);
            if let Some(sample) = sample_rows.next_if(|sample| sample.row == last_row) {
                assert!(sample.position == seq_len && sample.prompt_len <= seq_len);
                assert!(!sample.params.needs_history() || sample.history == history, "penalties see all");
                tokens.push(SampledToken { token: next_token(&history, self.vocab_size), logprobs: None });
            }
        }
        assert!(sample_rows.next().is_none(), "sample rows are last rows, in order");
        tokens
    }
}

impl ScriptedRunner<'_> {
    fn run(&mut self, batch: &Batch) -> Vec<SampledToken> {
        for &(from, to) in &batch.block_copies {
            self.block_copies += 1;
            assert!(from != to, "{from:?} is copied onto itself");
            let block = |id: BlockId| (id.0 * self.block_size) as usize;
            self.slots.copy_within(block(from)..block(from) + self.block_size as usize, block(to));
        }
        assert!(batch.query_start.last() == Some(&(batch.num_rows() as u32)));
        self.write(batch, &mut HashSet::new());
        self.sample(batch)
    }
}

impl ModelRunner for ScriptedRunner<'_> {
    async fn execute(&mut self, batch: &Batch) -> Result<RunnerOutput, RunnerError> {
        self.executions += 1;
        self.last_batch = batch.clone();
        if let Some((clock, max_ns)) = self.clock {
            clock.advance(1 + mix(self.executions, clock.now() as u32) % max_ns);
        }
        let tokens = match (self.ahead.take(), batch.ahead) {
            (Some((begun, tokens)), true) => {
                assert!(begun == *batch, "another batch is read than was submitted");
                tokens
            }
            (None, true) => panic!("a batch ahead is read that was never submitted"),
            (_, false) => self.run(batch),
        };
        if std::mem::take(&mut self.fail_next) {
            self.slots.fill(None);
            return Err(RunnerError::DeviceLost("injected".into()));
        }
        Ok(RunnerOutput { tokens, gpu_ns: Some(self.executions % 7), stages: None })
    }

    fn runs_ahead(&self, batch: &Batch) -> bool {
        self.runs_ahead && batch.sample_rows.iter().all(|sample| !sample.params.needs_history())
    }

    async fn execute_ahead(&mut self, batch: &Batch, next: &Batch) -> Result<RunnerOutput, RunnerError> {
        assert!(self.runs_ahead(batch) && next.ahead && next.block_copies.is_empty());
        let output = self.execute(batch).await?;
        let mut named = next.clone();
        for token in &mut named.token_ids {
            let sampled_idx = token.checked_sub(Batch::SAMPLED).expect("a batch ahead names its tokens");
            *token = output.tokens[sampled_idx as usize].token;
        }
        let tokens = self.run(&named);
        self.ahead = Some((next.clone(), tokens));
        Ok(output)
    }
}

const EMPTY_HISTORY: u64 = 0x9e37_79b9_7f4a_7c15;

/// Extends a history hash by one token (the finaliser of splitmix64 over a running sum).
fn mix(key: u64, token: u32) -> u64 {
    let mut z =
        key.wrapping_add(EMPTY_HISTORY).wrapping_add(u64::from(token).wrapping_mul(0xd6e8_feb8_6659_fd93));
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

fn hash(history: &[u32]) -> u64 {
    history.iter().fold(EMPTY_HISTORY, |key, &token| mix(key, token))
}

/// The token that follows `history`.
pub fn next_token(history: &[u32], vocab_size: u32) -> u32 {
    (hash(history) % u64::from(vocab_size)) as u32
}

/// What the scripted model answers to `prompt`, computed without batch, blocks or scheduler. `longest` is the most tokens
/// of prompt and answer together.
pub fn scripted_answer(
    prompt: &[u32],
    params: &SamplingParams,
    eos_tokens: &[u32],
    longest: usize,
    vocab_size: u32,
) -> (Vec<u32>, FinishReason) {
    let mut tokens = prompt.to_vec();
    loop {
        let token = next_token(&tokens, vocab_size);
        tokens.push(token);
        let generated = tokens.len() - prompt.len();
        if eos_tokens.contains(&token) && !params.ignore_eos {
            return (tokens.split_off(prompt.len()), FinishReason::Stop);
        }
        if generated >= params.max_tokens as usize || tokens.len() >= longest {
            return (tokens.split_off(prompt.len()), FinishReason::Length);
        }
    }
}

/// One step of an engine whose runner is always ready: a single poll, no executor.
pub fn step_now<R: ModelRunner, C: Clock>(engine: &mut Engine<R, C>) -> Result<StepOutput, Box<StepFailed>> {
    poll_once(engine.step()).expect("a scripted runner is always ready")
}

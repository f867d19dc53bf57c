//! The scheduler's state for one request: its tokens, its KV blocks, and where it is.
//!
//! It decides nothing. Invariant: [`Sequence::transition`] is the only way from one state to the next and the only writer
//! of engine stamps; an illegal move is a defect of ours and panics.

use std::sync::Arc;

use super::wait_ledger::{Stay, WaitLedger};
use super::wait_queue::Rank;
use super::{BlockId, PrefixId, SampleRow};
use crate::clock::Nanos;
use crate::request::{Request, RequestId, SamplingParams};
use crate::timeline::{Edge, RequestTimeline};

/// Where a sequence is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SequenceState {
    /// Handed in, not yet seen by a pass.
    Inbox,
    /// In the queue.
    Waiting,
    /// Holds KV blocks and takes part in steps.
    Running,
    /// Ended.
    Finished,
}

/// One request while it lives. `num_computed_tokens` against the number of tokens is all there is to prefill and decode:
/// a sequence is scheduled for some of the difference, and samples when the difference closes.
#[derive(Debug)]
pub struct Sequence {
    id: RequestId,
    params: Arc<SamplingParams>,
    prompt_len: usize,
    /// Prompt and generated tokens.
    tokens: Vec<u32>,
    /// Leading tokens that have K and V.
    num_computed: usize,
    block_table: Vec<BlockId>,
    /// The beginnings that its blocks end, as far as they are full and kept for others.
    kept: Vec<PrefixId>,
    fork_of: Option<RequestId>,
    arrival: u64,
    priority: i32,
    rank: Rank,
    deadline: Option<Nanos>,
    state: SequenceState,
    stay: Stay,
    timeline: Box<RequestTimeline>,
}

impl Sequence {
    /// A sequence in the inbox, the `arrival`-th of all. `timeline` has its host stamps.
    pub(super) fn new(request: Request, timeline: RequestTimeline, arrival: u64) -> Self {
        Self {
            id: request.id,
            params: Arc::new(request.params),
            prompt_len: request.prompt.len(),
            tokens: request.prompt,
            num_computed: 0,
            block_table: Vec::new(),
            kept: Vec::new(),
            fork_of: request.fork_of,
            arrival,
            priority: request.priority,
            rank: Rank::default(),
            deadline: request.deadline,
            state: SequenceState::Inbox,
            stay: Stay::default(),
            timeline: Box::new(timeline),
        }
    }

    /// The one door: moves the sequence along `edge` at `now` and stamps its timeline.
    pub(super) fn transition(&mut self, edge: Edge, now: Nanos) {
        use SequenceState::{Finished, Inbox, Running, Waiting};
        let next = match (&edge, self.state) {
            (Edge::Queued, Inbox) => Waiting,
            (Edge::Admitted { .. }, Waiting) => Running,
            (Edge::Chunk { .. } | Edge::Computed { .. } | Edge::Token { .. }, Running) => Running,
            (Edge::Preempted, Running) => Waiting,
            (Edge::Finished { .. }, Inbox | Waiting | Running) => Finished,
            (edge, state) => panic!("sequence {} has no edge {edge:?} from {state:?}", self.id),
        };
        if matches!(next, Waiting | Finished) {
            assert!(self.block_table.is_empty(), "sequence {} leaves the batch with its blocks", self.id);
            self.num_computed = 0;
            self.kept.clear();
        }
        if let Edge::Admitted { cached } = edge {
            self.num_computed = cached as usize;
        }
        if let Edge::Computed { tokens, .. } = edge {
            self.num_computed += tokens as usize;
            assert!(self.num_computed <= self.tokens.len(), "sequence {} is ahead of its tokens", self.id);
        }
        self.state = next;
        self.timeline.advance(edge, now);
    }

    /// Takes a sampled token; the difference is 1 again.
    pub(super) fn push_token(&mut self, token: u32, step: u64, now: Nanos) {
        assert!(self.num_uncomputed() == 0, "sequence {} samples before its difference closes", self.id);
        self.tokens.push(token);
        self.transition(Edge::Token { step }, now);
    }

    /// Enters the queue for the first time, which settles its place in it for good.
    pub(super) fn enqueue(&mut self, priority_step_ns: Nanos, ledger: &WaitLedger, now: Nanos) {
        self.rank = Rank::new(now, self.priority, priority_step_ns, self.arrival);
        self.transition(Edge::Queued, now);
        self.begin_wait(ledger, now);
    }

    /// A stay in the queue begins.
    pub(super) fn begin_wait(&mut self, ledger: &WaitLedger, now: Nanos) {
        self.stay = Stay::begin(ledger, now);
    }

    /// Whether it is the first in the queue, which decides who is billed for missing blocks.
    pub(super) fn set_first(&mut self, is_first: bool, ledger: &WaitLedger, now: Nanos) {
        self.stay.set_first(is_first, ledger, now);
    }

    /// The stay in the queue ends.
    pub(super) fn end_wait(&mut self, ledger: &WaitLedger, now: Nanos) {
        let waited = self.stay.end(ledger, now);
        self.timeline.bill_wait(waited);
    }

    pub(super) fn push_block(&mut self, block: BlockId) {
        self.block_table.push(block);
    }

    pub(super) fn take_blocks(&mut self) -> Vec<BlockId> {
        std::mem::take(&mut self.block_table)
    }

    /// Starts from blocks that hold its beginning; the first of them end the beginnings `kept`.
    pub(super) fn start_from(&mut self, blocks: Vec<BlockId>, kept: Vec<PrefixId>) {
        assert!(self.block_table.is_empty(), "sequence {} has blocks before it starts", self.id);
        self.block_table = blocks;
        self.kept = kept;
    }

    /// The next full block that nobody else can find yet: the block, what comes before it, and its tokens.
    pub(super) fn unkept_block(&self, block_size: usize) -> Option<(BlockId, PrefixId, &[u32])> {
        let from = self.kept.len() * block_size;
        let to = from + block_size;
        let before = self.kept.last().copied().unwrap_or(PrefixId::EMPTY);
        (to <= self.num_computed).then(|| (self.block_table[self.kept.len()], before, &self.tokens[from..to]))
    }

    /// The block that [`Self::unkept_block`] told is kept now; with it, the beginning is `prefix`.
    pub(super) fn block_kept(&mut self, prefix: PrefixId) {
        self.kept.push(prefix);
    }

    /// The beginnings that its full blocks end.
    pub(super) fn kept(&self) -> &[PrefixId] {
        &self.kept
    }

    /// It is a request like any other from now on.
    pub(super) fn take_fork_of(&mut self) -> Option<RequestId> {
        self.fork_of.take()
    }

    /// The request of which it is another choice, until it has started.
    pub(super) fn fork_of(&self) -> Option<RequestId> {
        self.fork_of
    }

    /// The client asked for the end, or went away, at `at`.
    pub(super) fn client_gone(&mut self, at: Nanos) {
        self.timeline.client_gone(at);
    }

    pub(super) fn into_timeline(self) -> Box<RequestTimeline> {
        self.timeline
    }

    /// What to sample once the difference has closed; `row` is the batch row of the last token.
    pub(super) fn sample_row(&self, row: u32) -> SampleRow {
        let history = if self.params.needs_history() { self.tokens.clone() } else { Vec::new() };
        SampleRow {
            row,
            params: Arc::clone(&self.params),
            position: self.tokens.len() as u32,
            history,
            prompt_len: self.prompt_len as u32,
        }
    }

    /// The request's name.
    pub fn id(&self) -> RequestId {
        self.id
    }
    /// How to answer.
    pub fn params(&self) -> &SamplingParams {
        &self.params
    }
    /// Tokens of the prompt.
    pub fn prompt_len(&self) -> usize {
        self.prompt_len
    }
    /// Prompt and generated tokens.
    pub fn tokens(&self) -> &[u32] {
        &self.tokens
    }
    /// Tokens sampled so far.
    pub fn num_generated(&self) -> usize {
        self.tokens.len() - self.prompt_len
    }
    /// Leading tokens that have K and V.
    pub fn num_computed_tokens(&self) -> usize {
        self.num_computed
    }
    /// The difference.
    pub fn num_uncomputed(&self) -> usize {
        self.tokens.len() - self.num_computed
    }
    /// Its KV blocks, in position order.
    pub fn block_table(&self) -> &[BlockId] {
        &self.block_table
    }
    /// What it was asked with.
    pub fn priority(&self) -> i32 {
        self.priority
    }
    /// Its claim to be served, once it has been queued.
    pub fn rank(&self) -> Rank {
        self.rank
    }
    /// The instant at which it ends, wherever it is.
    pub fn deadline(&self) -> Option<Nanos> {
        self.deadline
    }
    /// Where it is.
    pub fn state(&self) -> SequenceState {
        self.state
    }
    /// Its timeline so far.
    pub fn timeline(&self) -> &RequestTimeline {
        &self.timeline
    }
}

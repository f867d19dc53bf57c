//! Who runs in a step, and for how many tokens: continuous batching over a pool of KV blocks.
//!
//! It never names a GPU, is never `async` and never reads a clock.
//! Invariant: running, then waiting, then inbox hold all live sequences in order of arrival. Running is a prefix of that
//! order because admission takes the first of the queue and eviction gives the last of the batch back to its front.
//!
//! Who gets tokens: the batch is gone through in order of arrival, and admission stops where the step's tokens are spent.
//! Only the last of the batch can therefore be in the middle of its prompt: all before it are a row each, so going in
//! order is decode rows first, then one prompt chunk of what they leave. And running never exceeds the tokens of a step,
//! because whoever is admitted got a token after everyone before it got theirs: everyone gets at least one in each step.
//!
//! Why nothing starves: the oldest sequence, `running[0]`, is never evicted while another runs, so a free block can
//! always be had for it, and so can a token. It computes in every step and generates after at most as many steps as it
//! has tokens, so it ends after finitely many; then the next is the oldest. Two sequences cannot evict each other
//! forever, because only the older evicts the younger. With nothing running the pool is empty, and the first of the
//! queue fits: a new one was checked against the whole pool on arrival, and an evicted one wanted at most one more block
//! than it held while another held at least one.

use std::collections::VecDeque;

use super::wait_ledger::WaitLedger;
use super::{Batch, BlockPool, SchedulerConfig, Sequence};
use crate::clock::Nanos;
use crate::request::{FinishReason, RejectReason, Request, RequestId};
use crate::timeline::{Edge, Obstacle, RequestTimeline};

/// One sequence's share of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Scheduled {
    /// Whose.
    pub id: RequestId,
    /// Tokens of this step.
    pub num_tokens: u32,
    /// It continues an answer: one row, the last token, with an answer begun.
    pub is_decode: bool,
    /// Where it is in the batch's sequences until `apply`.
    running_idx: usize,
}

/// What one pass decided.
#[derive(Debug)]
pub struct SchedulerOutput {
    /// Counts the passes of one scheduler that gave work.
    pub step: u64,
    /// Everyone in the batch, in order of arrival: answers going on, then at most one chunk of a prompt.
    pub scheduled: Vec<Scheduled>,
    /// Evicted by this pass, youngest first.
    pub preempted: Vec<RequestId>,
    /// Ended by this pass with `length`: the one that ran alone and outgrew the pool.
    pub outgrown: Option<Box<RequestTimeline>>,
    /// Where admission stopped, if it left anyone waiting.
    pub obstacle: Option<Obstacle>,
}

/// A pass in progress.
struct Pass {
    now: Nanos,
    /// Tokens of the step that are left.
    budget: u32,
    /// Tokens given so far, beside `running`.
    grants: Vec<u32>,
    preempted: Vec<RequestId>,
    outgrown: Option<Box<RequestTimeline>>,
}

/// The scheduler. See the module.
#[derive(Debug)]
pub struct Scheduler {
    config: SchedulerConfig,
    pool: BlockPool,
    inbox: VecDeque<Sequence>,
    waiting: VecDeque<Sequence>,
    running: Vec<Sequence>,
    ledger: WaitLedger,
    next_step: u64,
    num_preemptions: u64,
}

impl Scheduler {
    /// A scheduler with an empty pool.
    ///
    /// # Panics
    /// If the configuration is not valid; hosts call [`SchedulerConfig::validate`] first.
    pub fn new(config: SchedulerConfig) -> Self {
        if let Err(reason) = config.validate() {
            panic!("scheduler configuration: {reason}");
        }
        Self {
            config,
            pool: BlockPool::new(config.num_blocks),
            inbox: VecDeque::new(),
            waiting: VecDeque::new(),
            running: Vec::new(),
            ledger: WaitLedger::default(),
            next_step: 0,
            num_preemptions: 0,
        }
    }

    /// Whether `request` could ever run here and there is room to queue it; otherwise the reason, with its numbers.
    pub fn accepts(&self, request: &Request) -> Result<(), RejectReason> {
        request.params.validate()?;
        if request.prompt.is_empty() {
            return Err(RejectReason::EmptyPrompt);
        }
        let config = &self.config;
        let prompt_len = request.prompt.len();
        if prompt_len >= config.max_model_len as usize {
            let prompt_len = u32::try_from(prompt_len).unwrap_or(u32::MAX);
            return Err(RejectReason::PromptTooLong { prompt_len, max_model_len: config.max_model_len });
        }
        let vocab_size = config.vocab_size;
        if let Some(&id) = request.prompt.iter().find(|&&id| id >= vocab_size) {
            return Err(RejectReason::UnknownToken { id, vocab_size });
        }
        let needed_blocks = config.blocks_for(prompt_len + 1);
        if needed_blocks > self.pool.num_blocks() {
            let needed_blocks = u32::try_from(needed_blocks).unwrap_or(u32::MAX);
            return Err(RejectReason::NeverFits { needed_blocks, total_blocks: config.num_blocks });
        }
        let waiting = self.num_waiting();
        if waiting >= config.max_waiting as usize {
            return Err(RejectReason::Busy { waiting: waiting as u32 });
        }
        Ok(())
    }

    /// Puts a sequence on the inbox, or ends it at once with the reason it cannot run.
    pub fn add(
        &mut self,
        request: Request,
        timeline: RequestTimeline,
        now: Nanos,
    ) -> Result<(), Box<RequestTimeline>> {
        let verdict = self.accepts(&request);
        let mut sequence = Sequence::new(request, timeline);
        match verdict {
            Ok(()) => {
                self.inbox.push_back(sequence);
                Ok(())
            }
            Err(detail) => {
                let edge = Edge::Finished { reason: FinishReason::Rejected, detail: Some(detail) };
                sequence.transition(edge, now);
                Err(sequence.into_timeline())
            }
        }
    }

    /// Ends a sequence wherever it is and frees its blocks; `None` if it is not here (any more).
    pub fn finish(
        &mut self,
        id: RequestId,
        reason: FinishReason,
        now: Nanos,
    ) -> Option<Box<RequestTimeline>> {
        let mut sequence = self.remove(id, now)?;
        self.release(&mut sequence);
        sequence.transition(Edge::Finished { reason, detail: None }, now);
        Some(sequence.into_timeline())
    }

    fn remove(&mut self, id: RequestId, now: Nanos) -> Option<Sequence> {
        if let Some(idx) = self.running.iter().position(|s| s.id() == id) {
            return Some(self.running.remove(idx));
        }
        if let Some(idx) = self.waiting.iter().position(|s| s.id() == id) {
            let mut sequence = self.waiting.remove(idx)?;
            sequence.end_wait(&self.ledger, now);
            self.update_first(now);
            return Some(sequence);
        }
        let idx = self.inbox.iter().position(|s| s.id() == id)?;
        self.inbox.remove(idx)
    }

    /// The device failed: all running sequences end, the queue stays and is paused until the next pass.
    pub fn fail_running(&mut self, now: Nanos) -> Vec<Box<RequestTimeline>> {
        self.ledger.set(Some(Obstacle::Paused), now);
        let ids: Vec<RequestId> = self.running.iter().map(Sequence::id).collect();
        ids.into_iter().filter_map(|id| self.finish(id, FinishReason::Failed, now)).collect()
    }

    /// One pass: decides what the next step computes. `apply` or `fail_running` follows, unless nothing is scheduled.
    pub fn schedule(&mut self, now: Nanos) -> SchedulerOutput {
        self.ledger.set(None, now);
        while let Some(mut sequence) = self.inbox.pop_front() {
            sequence.transition(Edge::Queued, now);
            sequence.begin_wait(&self.ledger, now);
            self.waiting.push_back(sequence);
        }
        let mut pass = Pass {
            now,
            budget: self.config.max_batch_tokens,
            grants: Vec::with_capacity(self.running.len() + 1),
            preempted: Vec::new(),
            outgrown: None,
        };
        self.grant_running(&mut pass);
        let obstacle = self.admit(&mut pass);
        self.ledger.set(obstacle, now);
        self.update_first(now);
        for (sequence, &tokens) in self.running.iter_mut().zip(&pass.grants) {
            sequence.transition(Edge::Chunk { tokens }, now);
        }
        let scheduled = self.scheduled(&pass.grants);
        let step = self.next_step;
        if !scheduled.is_empty() {
            self.next_step += 1;
        }
        SchedulerOutput { step, scheduled, preempted: pass.preempted, outgrown: pass.outgrown, obstacle }
    }

    /// Tokens for those who run, oldest first. A younger one may be evicted before its turn.
    fn grant_running(&mut self, pass: &mut Pass) {
        while pass.grants.len() < self.running.len() {
            self.grant_next(pass);
        }
    }

    /// As many tokens for the next in the batch as budget and blocks allow, at least one: younger sequences are evicted
    /// for it. Where it is the youngest itself it goes back to the queue; alone, it has outgrown the pool and ends.
    fn grant_next(&mut self, pass: &mut Pass) {
        let idx = pass.grants.len();
        let sequence = &self.running[idx];
        let in_table = sequence.block_table().len() * self.config.block_size as usize;
        let room_in_table = in_table - sequence.num_computed_tokens();
        while room_in_table == 0 && self.pool.num_free() == 0 {
            let youngest = self.running.len() - 1;
            if youngest == 0 {
                let id = self.running[0].id();
                pass.outgrown = self.finish(id, FinishReason::Length, pass.now);
                return;
            }
            self.preempt_youngest(pass);
            if youngest == idx {
                return;
            }
        }
        let room = room_in_table + self.pool.num_free() * self.config.block_size as usize;
        self.grant(idx, room, pass);
    }

    /// Tokens for `running[idx]`, which has `room` slots for them.
    fn grant(&mut self, idx: usize, room: usize, pass: &mut Pass) {
        let num_tokens = self.running[idx].num_uncomputed().min(room).min(pass.budget as usize);
        assert!(num_tokens > 0, "{} is in the batch and gets nothing", self.running[idx].id());
        self.extend_table(idx, num_tokens);
        pass.grants.push(num_tokens as u32);
        pass.budget -= num_tokens as u32;
    }

    /// Takes blocks until the table holds `num_tokens` more than are computed. The caller knows that they are free.
    fn extend_table(&mut self, idx: usize, num_tokens: usize) {
        let sequence = &mut self.running[idx];
        let needed = self.config.blocks_for(sequence.num_computed_tokens() + num_tokens);
        while sequence.block_table().len() < needed {
            match self.pool.allocate() {
                Some(block) => sequence.push_block(block),
                None => panic!("no free block for {}, though they were counted", sequence.id()),
            }
        }
    }

    /// Recompute preemption: the blocks go back, the generated tokens stay, the sequence goes to the queue's front.
    fn preempt_youngest(&mut self, pass: &mut Pass) {
        let Some(mut sequence) = self.running.pop() else { return };
        self.release(&mut sequence);
        sequence.transition(Edge::Preempted, pass.now);
        sequence.begin_wait(&self.ledger, pass.now);
        pass.preempted.push(sequence.id());
        self.num_preemptions += 1;
        if let Some(first) = self.waiting.front_mut() {
            first.set_first(false, &self.ledger, pass.now);
        }
        self.waiting.push_front(sequence);
    }

    /// Takes from the queue's front while slots, budget and blocks allow. Says what stopped it.
    ///
    /// A sequence is admitted only if all the tokens it has would fit now: a prompt is evicted because answers grew, not
    /// because it was let in where it could not fit. One that this pass evicted does not fit now: it left for want of a
    /// block, or for one that an older sequence took since.
    fn admit(&mut self, pass: &mut Pass) -> Option<Obstacle> {
        while let Some(first) = self.waiting.front() {
            if self.running.len() >= self.config.max_num_seqs as usize {
                return Some(Obstacle::Slots);
            }
            if pass.budget == 0 {
                return Some(Obstacle::Budget);
            }
            let needed = self.config.blocks_for(first.tokens().len());
            if needed > self.pool.num_free() {
                assert!(!self.running.is_empty(), "{} needs {needed} blocks of an empty pool", first.id());
                return Some(Obstacle::Blocks);
            }
            let Some(mut sequence) = self.waiting.pop_front() else { break };
            sequence.end_wait(&self.ledger, pass.now);
            sequence.transition(Edge::Admitted { cached: 0 }, pass.now);
            let room = sequence.num_uncomputed();
            self.running.push(sequence);
            self.grant(self.running.len() - 1, room, pass);
        }
        None
    }

    fn scheduled(&self, grants: &[u32]) -> Vec<Scheduled> {
        let given = self.running.iter().zip(grants).enumerate();
        given
            .map(|(running_idx, (sequence, &num_tokens))| {
                let is_decode = sequence.num_generated() > 0 && sequence.num_uncomputed() == 1;
                Scheduled { id: sequence.id(), num_tokens, is_decode, running_idx }
            })
            .collect()
    }

    /// The arrays of the forward pass that `output` decided.
    pub fn batch(&self, output: &SchedulerOutput) -> Batch {
        Batch::build(output.scheduled.iter().map(|one| (self.sequence(one), one.num_tokens)), &self.config)
    }

    fn sequence(&self, one: &Scheduled) -> &Sequence {
        let sequence = &self.running[one.running_idx];
        assert!(sequence.id() == one.id, "the batch changed between schedule and apply");
        sequence
    }

    /// The step is done: `tokens` has one token per sample row. Gives back whose they are, in that order.
    pub fn apply(&mut self, output: &SchedulerOutput, tokens: &[u32], now: Nanos) -> Vec<RequestId> {
        let mut sampled = Vec::with_capacity(tokens.len());
        let mut tokens = tokens.iter();
        for one in &output.scheduled {
            let sequence = &mut self.running[one.running_idx];
            assert!(sequence.id() == one.id, "the batch changed between schedule and apply");
            sequence.transition(Edge::Computed { tokens: one.num_tokens }, now);
            if sequence.num_uncomputed() == 0 {
                let Some(&token) = tokens.next() else { panic!("fewer tokens than sample rows") };
                sequence.push_token(token, output.step, now);
                sampled.push(one.id);
            }
        }
        assert!(tokens.next().is_none(), "more tokens than sample rows");
        sampled
    }

    fn update_first(&mut self, now: Nanos) {
        if let Some(first) = self.waiting.front_mut() {
            first.set_first(true, &self.ledger, now);
        }
    }

    fn release(&mut self, sequence: &mut Sequence) {
        for block in sequence.take_blocks() {
            self.pool.release(block);
        }
    }

    /// A running sequence, for what the engine must know to end it.
    pub fn running(&self, id: RequestId) -> Option<&Sequence> {
        self.running.iter().find(|s| s.id() == id)
    }
    /// Sequences in the batch, oldest first.
    pub fn num_running(&self) -> usize {
        self.running.len()
    }
    /// Sequences in inbox and queue.
    pub fn num_waiting(&self) -> usize {
        self.inbox.len() + self.waiting.len()
    }
    /// Whether a pass has anything to do.
    pub fn has_work(&self) -> bool {
        self.num_running() + self.num_waiting() > 0
    }
    /// Evictions so far.
    pub fn num_preemptions(&self) -> u64 {
        self.num_preemptions
    }
    /// The KV blocks.
    pub fn pool(&self) -> &BlockPool {
        &self.pool
    }
    /// The limits.
    pub fn config(&self) -> &SchedulerConfig {
        &self.config
    }
    /// All live sequences: running, waiting, inbox; which is the order of their arrival.
    pub fn sequences(&self) -> impl Iterator<Item = &Sequence> {
        self.running.iter().chain(&self.waiting).chain(&self.inbox)
    }

    /// Holds pool, tables and limits against each other.
    ///
    /// # Panics
    /// If they do not agree: a defect of ours.
    pub fn check_integrity(&self) {
        self.pool.check_integrity(self.sequences().map(Sequence::block_table));
        let most = self.config.max_num_seqs.min(self.config.max_batch_tokens) as usize;
        assert!(self.running.len() <= most, "{} run, {most} may", self.running.len());
        let older = &self.running[..self.running.len().saturating_sub(1)];
        assert!(older.iter().all(|s| s.num_uncomputed() <= 1), "only the youngest is amid its prompt");
        for sequence in self.sequences() {
            let slots = sequence.block_table().len() * self.config.block_size as usize;
            assert!(sequence.num_computed_tokens() <= slots, "{} computed beyond its blocks", sequence.id());
        }
    }
}

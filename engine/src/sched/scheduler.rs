//! Who runs in a step, and for how many tokens: continuous batching over a pool of KV blocks.
//!
//! It never names a GPU, is never `async` and never reads a clock.
//! Invariant: every live sequence is in exactly one of inbox, queue and batch, and the batch is in order of rank.
//!
//! Rank is order of arrival, moved by priority; it never changes. Admission takes the first of the queue, eviction the
//! last of the batch. Where all have the same priority, the batch is therefore a prefix of the order of arrival.
//!
//! Who gets tokens: the batch is gone through in order of rank. Each gets what it lacks out of what the step has left,
//! but for one token that is set aside for everyone behind it: an answer going on gets its row, and a prompt never stands
//! still. Running never exceeds the tokens of a step, because whoever is admitted needs one of its own.
//!
//! Why nothing starves: whoever has the smallest rank of all, S, is let in before everyone else in the queue, and is never
//! evicted while another runs. In the batch, whoever has the smallest rank computes in every step, generates after at most
//! as many steps as it has tokens, and so ends after finitely many; while S waits nobody else is let in, so the batch
//! empties, and S fits into an empty pool: a new one was checked against the whole pool on arrival, and an evicted one
//! wanted at most one more block than it held while another held at least one. And S becomes the smallest: a request that
//! comes later by more than all priorities are worth has a larger rank.

mod admission;
mod ahead;
mod grants;

pub use ahead::{Ahead, Confirmed};

use std::collections::{BTreeSet, HashSet, VecDeque};

use super::forks::Forks;
use super::wait_ledger::WaitLedger;
use super::wait_queue::WaitQueue;
use super::{Batch, BlockId, BlockPool, SchedulerConfig, Sequence};
use crate::clock::Nanos;
use crate::request::{FinishReason, RejectReason, Request, RequestId};
use crate::timeline::{Edge, Obstacle, PassTimes, RequestTimeline};

/// One sequence's share of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Scheduled {
    /// Whose.
    pub id: RequestId,
    /// Tokens of this step.
    pub num_tokens: u32,
    /// It continues an answer: one row, the last token, with an answer begun.
    pub is_decode: bool,
    /// Where it is among those who run, until `apply`.
    running_idx: usize,
    /// Where it is in the batch that the runner has, which may hold others who have ended.
    seq_idx: usize,
}

/// What one pass decided.
#[derive(Debug)]
pub struct SchedulerOutput {
    /// Counts the passes of one scheduler that gave work.
    pub step: u64,
    /// Everyone in the batch, in order of rank.
    pub scheduled: Vec<Scheduled>,
    /// Evicted by this pass, youngest first.
    pub preempted: Vec<RequestId>,
    /// Ended by this pass: out of time, or alone and too large for the pool.
    pub ended: Vec<Box<RequestTimeline>>,
    /// Where admission stopped, if it left anyone waiting.
    pub obstacle: Option<Obstacle>,
    /// Blocks to copy first, in this order: from, to.
    copies: Vec<(BlockId, BlockId)>,
}

/// Who sampled a token, in the order of the batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sampled {
    /// Whose.
    pub id: RequestId,
    /// Where it is in the batch until somebody ends.
    pub running_idx: usize,
}

/// What was asked of the prefix cache, in tokens, each request once.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PrefixCounts {
    /// Prompt tokens looked up at a first admission.
    pub queries: u64,
    /// Those of them that were found.
    pub hits: u64,
}

/// A pass in progress.
#[expect(clippy::vec_box, reason = "timelines are handed on in the boxes that they live in")]
struct Pass {
    now: Nanos,
    /// Tokens of the step that are left.
    budget: u32,
    /// Tokens given so far, beside `running`.
    grants: Vec<u32>,
    preempted: Vec<RequestId>,
    ended: Vec<Box<RequestTimeline>>,
    copies: Vec<(BlockId, BlockId)>,
}

/// The scheduler. See the module.
#[derive(Debug)]
pub struct Scheduler {
    config: SchedulerConfig,
    pool: BlockPool,
    inbox: VecDeque<Sequence>,
    waiting: WaitQueue,
    /// In order of rank.
    running: Vec<Sequence>,
    ids: HashSet<RequestId>,
    deadlines: BTreeSet<(Nanos, RequestId)>,
    /// Copies that a pass asked for and no step is known to have made: a step may be dropped half-way.
    unmade_copies: Vec<(BlockId, BlockId)>,
    forks: Forks,
    ledger: WaitLedger,
    /// Who was told to be the first in the queue.
    first: Option<RequestId>,
    next_step: u64,
    next_arrival: u64,
    num_preemptions: u64,
    prefix_counts: PrefixCounts,
    prompt_tokens: u64,
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
            pool: if config.prefix_cache {
                BlockPool::with_prefix_cache(config.num_blocks, config.prefix_hash_bits)
            } else {
                BlockPool::new(config.num_blocks)
            },
            inbox: VecDeque::new(),
            waiting: WaitQueue::default(),
            running: Vec::new(),
            ids: HashSet::new(),
            deadlines: BTreeSet::new(),
            unmade_copies: Vec::new(),
            forks: Forks::default(),
            ledger: WaitLedger::default(),
            first: None,
            next_step: 0,
            next_arrival: 0,
            num_preemptions: 0,
            prefix_counts: PrefixCounts::default(),
            prompt_tokens: 0,
        }
    }

    /// Whether `request` could ever run here and there is room to queue it; otherwise the reason, with its numbers.
    pub fn accepts(&self, request: &Request) -> Result<(), RejectReason> {
        request.params.validate()?;
        if !Request::PRIORITIES.contains(&request.priority) {
            let value = request.priority.to_string();
            return Err(RejectReason::InvalidParameter { name: "priority", value, range: "-100 to 100" });
        }
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
        let biased = request.params.logit_bias.iter().map(|(id, _)| id);
        if let Some(&id) = request.prompt.iter().chain(biased).find(|&&id| id >= vocab_size) {
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
    ///
    /// # Panics
    /// If a request of the same id is still here: ids are the host's to keep apart.
    pub fn add(
        &mut self,
        request: Request,
        timeline: RequestTimeline,
        now: Nanos,
    ) -> Result<(), Box<RequestTimeline>> {
        let verdict = self.accepts(&request);
        let mut sequence = Sequence::new(request, timeline, self.next_arrival);
        assert!(!self.ids.contains(&sequence.id()), "request {} is submitted twice", sequence.id());
        match verdict {
            Ok(()) => {
                self.next_arrival += 1;
                self.ids.insert(sequence.id());
                self.deadlines.extend(sequence.deadline().map(|at| (at, sequence.id())));
                self.expect_fork(&mut sequence);
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

    /// Another choice waits for the first one's prompt; where that one is gone, or is not what it should be, it waits for
    /// nobody.
    fn expect_fork(&mut self, sequence: &mut Sequence) {
        let Some(id) = sequence.fork_of() else { return };
        let usable = self.get(id).is_some_and(|first| {
            let prompt = &first.tokens()[..first.prompt_len()];
            prompt == sequence.tokens()
                && first.priority() == sequence.priority()
                && first.num_generated() == 0
        });
        if usable {
            self.forks.expect(id);
        } else {
            sequence.take_fork_of();
        }
    }

    /// Ends a sequence wherever it is and frees its blocks; `None` if it is not here (any more).
    pub fn finish(
        &mut self,
        id: RequestId,
        reason: FinishReason,
        now: Nanos,
    ) -> Option<Box<RequestTimeline>> {
        self.remove(id, now).map(|sequence| self.end(sequence, reason, now))
    }

    /// The same for a client that asked for it, or went away, at `asked_at`: tokens since then are counted apart.
    pub fn abort(
        &mut self,
        id: RequestId,
        reason: FinishReason,
        asked_at: Nanos,
        now: Nanos,
    ) -> Option<Box<RequestTimeline>> {
        let mut sequence = self.remove(id, now)?;
        sequence.client_gone(asked_at);
        Some(self.end(sequence, reason, now))
    }

    fn end(&mut self, mut sequence: Sequence, reason: FinishReason, now: Nanos) -> Box<RequestTimeline> {
        self.release(&mut sequence);
        self.ids.remove(&sequence.id());
        if let Some(first) = sequence.take_fork_of() {
            self.forks.settle(first, &mut self.pool);
        }
        if let Some(at) = sequence.deadline() {
            self.deadlines.remove(&(at, sequence.id()));
        }
        sequence.transition(Edge::Finished { reason, detail: None }, now);
        sequence.into_timeline()
    }

    fn remove(&mut self, id: RequestId, now: Nanos) -> Option<Sequence> {
        if !self.ids.contains(&id) {
            return None;
        }
        if let Some(idx) = self.running.iter().position(|s| s.id() == id) {
            return Some(self.running.remove(idx));
        }
        if let Some(mut sequence) = self.waiting.remove(id) {
            sequence.end_wait(&self.ledger, now);
            self.update_first(now);
            return Some(sequence);
        }
        let idx = self.inbox.iter().position(|s| s.id() == id)?;
        self.inbox.remove(idx)
    }

    /// A live sequence, wherever it is.
    fn get(&self, id: RequestId) -> Option<&Sequence> {
        if !self.ids.contains(&id) {
            return None;
        }
        let with_id = |s: &&Sequence| s.id() == id;
        let waiting = || self.waiting.get(id);
        self.inbox.iter().rev().find(with_id).or_else(waiting).or_else(|| self.running.iter().find(with_id))
    }

    /// The device failed: all running sequences end, what the blocks held is gone, the queue stays and is paused until the
    /// next pass.
    pub fn fail_running(&mut self, now: Nanos) -> Vec<Box<RequestTimeline>> {
        self.ledger.set(Some(Obstacle::Paused), now);
        self.pool.forget_all();
        self.unmade_copies.clear();
        self.forks.give_up_all(&mut self.pool);
        let running = std::mem::take(&mut self.running);
        running.into_iter().map(|sequence| self.end(sequence, FinishReason::Failed, now)).collect()
    }

    /// One pass: decides what the next step computes. `apply` or `fail_running` follows, unless nothing is scheduled.
    pub fn schedule(&mut self, now: Nanos) -> SchedulerOutput {
        self.ledger.set(None, now);
        let mut pass = Pass {
            now,
            budget: self.config.max_batch_tokens,
            grants: Vec::with_capacity(self.running.len() + 1),
            preempted: Vec::new(),
            ended: self.expire(now),
            // Nothing was written since, so they can still be made, before those of this pass.
            copies: std::mem::take(&mut self.unmade_copies),
        };
        while let Some(mut sequence) = self.inbox.pop_front() {
            sequence.enqueue(self.config.priority_step_ns, &self.ledger, now);
            self.waiting.push(sequence);
        }
        let blocked = self.admit_ahead(&mut pass);
        while pass.grants.len() < self.running.len() {
            self.grant_next(&mut pass);
        }
        // Whoever would have been let in ahead but for blocks does not wait for the tokens that went to others instead.
        let still_first =
            blocked.is_some_and(|id| self.waiting.first().is_some_and(|first| first.id() == id));
        let obstacle = match self.admit(&mut pass) {
            Some(Obstacle::Budget) if still_first => Some(Obstacle::Blocks),
            obstacle => obstacle,
        };
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
        let Pass { preempted, ended, copies, .. } = pass;
        self.unmade_copies.clone_from(&copies);
        SchedulerOutput { step, scheduled, preempted, ended, obstacle, copies }
    }

    /// Ends everyone whose time is up, wherever they are.
    pub fn expire(&mut self, now: Nanos) -> Vec<Box<RequestTimeline>> {
        let mut ended = Vec::new();
        while let Some(&(at, id)) = self.deadlines.first().filter(|(at, _)| *at <= now) {
            self.deadlines.remove(&(at, id));
            ended.extend(self.finish(id, FinishReason::Deadline, now));
        }
        ended
    }

    fn scheduled(&self, grants: &[u32]) -> Vec<Scheduled> {
        let given = self.running.iter().zip(grants).enumerate();
        given
            .map(|(running_idx, (sequence, &num_tokens))| {
                let is_decode = sequence.num_generated() > 0 && sequence.num_uncomputed() == 1;
                Scheduled { id: sequence.id(), num_tokens, is_decode, running_idx, seq_idx: running_idx }
            })
            .collect()
    }

    /// The arrays of the forward pass that `output` decided.
    pub fn batch(&self, output: &SchedulerOutput) -> Batch {
        let sequences = output.scheduled.iter().map(|one| (self.sequence(one), one.num_tokens));
        Batch::build(sequences, output.copies.clone(), &self.config)
    }

    fn sequence(&self, one: &Scheduled) -> &Sequence {
        let sequence = &self.running[one.running_idx];
        assert!(sequence.id() == one.id, "the batch changed between schedule and apply");
        sequence
    }

    /// The step is done: `tokens` has one token per sample row. Gives back whose they are, in that order.
    pub fn apply(
        &mut self,
        output: &SchedulerOutput,
        tokens: &[u32],
        gpu: PassTimes,
        now: Nanos,
    ) -> Vec<Sampled> {
        self.unmade_copies.clear();
        let mut sampled = Vec::with_capacity(tokens.len());
        let mut tokens = tokens.iter();
        for one in &output.scheduled {
            let sequence = &mut self.running[one.running_idx];
            assert!(sequence.id() == one.id, "the batch changed between schedule and apply");
            sequence.transition(Edge::Computed { tokens: one.num_tokens, gpu }, now);
            while let Some((block, parent, full)) = sequence.unkept_block(self.config.block_size as usize) {
                let prefix = self.pool.keep(block, parent, full);
                sequence.block_kept(prefix);
            }
            if sequence.num_uncomputed() == 0 {
                let Some(&token) = tokens.next() else { panic!("fewer tokens than sample rows") };
                if sequence.num_generated() == 0 {
                    self.forks.prompt_computed(sequence, self.config.block_size as usize, &mut self.pool);
                }
                sequence.push_token(token, output.step, now);
                sampled.push(Sampled { id: one.id, running_idx: one.running_idx });
            }
        }
        assert!(tokens.next().is_none(), "more tokens than sample rows");
        sampled
    }

    /// Blocks bill the first in the queue: tells who that is now, and who no longer.
    fn update_first(&mut self, now: Nanos) {
        let first = self.waiting.first().map(Sequence::id);
        if first == self.first {
            return;
        }
        for (id, is_first) in [(self.first, false), (first, true)] {
            if let Some(sequence) = id.and_then(|id| self.waiting.get_mut(id)) {
                sequence.set_first(is_first, &self.ledger, now);
            }
        }
        self.first = first;
    }

    /// The tail of a beginning is given up before its head: it is the first to be taken by others.
    fn release(&mut self, sequence: &mut Sequence) {
        for block in sequence.take_blocks().into_iter().rev() {
            self.pool.release(block);
        }
    }

    /// The sequence that [`Sampled::running_idx`] tells, for what the engine must know to end it.
    pub fn running(&self, sampled: Sampled) -> &Sequence {
        let sequence = &self.running[sampled.running_idx];
        assert!(sequence.id() == sampled.id, "somebody of the batch ended before its tokens were read");
        sequence
    }
    /// Sequences in the batch.
    pub fn num_running(&self) -> usize {
        self.running.len()
    }
    /// Sequences in inbox and queue.
    pub fn num_waiting(&self) -> usize {
        self.inbox.len() + self.waiting.len()
    }
    /// Sequences in the queue: those that a pass has seen.
    pub fn num_queued(&self) -> usize {
        self.waiting.len()
    }
    /// Whether a pass has anything to do.
    pub fn has_work(&self) -> bool {
        !self.ids.is_empty()
    }
    /// Evictions so far.
    pub fn num_preemptions(&self) -> u64 {
        self.num_preemptions
    }
    /// What was asked of the prefix cache so far.
    pub fn prefix_counts(&self) -> PrefixCounts {
        self.prefix_counts
    }
    /// Prompt tokens of all requests that were ever admitted.
    pub fn prompt_tokens(&self) -> u64 {
        self.prompt_tokens
    }
    /// The KV blocks.
    pub fn pool(&self) -> &BlockPool {
        &self.pool
    }
    /// The limits.
    pub fn config(&self) -> &SchedulerConfig {
        &self.config
    }
    /// All live sequences: running and waiting, each in order of rank, then the inbox in order of arrival.
    pub fn sequences(&self) -> impl Iterator<Item = &Sequence> {
        self.running.iter().chain(self.waiting.iter()).chain(&self.inbox)
    }

    /// Holds pool, tables and limits against each other.
    ///
    /// # Panics
    /// If they do not agree: a defect of ours.
    pub fn check_integrity(&self) {
        self.pool.check_integrity(self.sequences().map(Sequence::block_table).chain(self.forks.tables()));
        let most = self.config.max_num_seqs.min(self.config.max_batch_tokens) as usize;
        assert!(self.running.len() <= most, "{} run, {most} may", self.running.len());
        assert!(self.running.is_sorted_by_key(Sequence::rank), "the batch is in order of rank");
        assert!(self.waiting.iter().is_sorted_by_key(Sequence::rank), "the queue is in order of rank");
        assert!(self.sequences().count() == self.ids.len(), "{} ids are known", self.ids.len());
        let with_deadline = self.sequences().filter(|s| s.deadline().is_some()).count();
        assert!(with_deadline == self.deadlines.len(), "{} deadlines are known", self.deadlines.len());
        for sequence in self.sequences() {
            let slots = sequence.block_table().len() * self.config.block_size as usize;
            assert!(sequence.num_computed_tokens() <= slots, "{} computed beyond its blocks", sequence.id());
        }
    }
}

//! From the queue into the batch: who is let in, and what of its beginning is in the pool already.
//!
//! It evicts nobody. Invariant: the first of the queue is let in before everyone else in it.

use super::{Pass, Scheduler};
use crate::request::RequestId;
use crate::sched::{BlockId, PrefixId, Sequence};
use crate::timeline::{Edge, Obstacle};

/// Blocks that hold the beginning of a sequence already.
struct Match {
    /// To be shared, in position order.
    blocks: Vec<BlockId>,
    /// The beginnings that they end, as far as others can find them.
    kept: Vec<PrefixId>,
    /// Holds all that is left of the sequence. Its last token has to be computed all the same, to sample after it, and
    /// nobody writes into a block that others may read: it is copied.
    tail: Option<BlockId>,
}

impl Scheduler {
    /// Lets in whoever outranks a prompt that is still on its way: that prompt would otherwise take all that the step has,
    /// step after step, until it is done. Says whom blocks kept out.
    pub(super) fn admit_ahead(&mut self, pass: &mut Pass) -> Option<RequestId> {
        let most = self.config.max_num_seqs.min(self.config.max_batch_tokens) as usize;
        while let Some(first) = self.waiting.first() {
            let outranks = |s: &Sequence| s.num_uncomputed() > 1 && first.rank() < s.rank();
            if self.running.len() >= most || !self.running.iter().any(outranks) || self.awaits_prompt(first) {
                return None;
            }
            // Those before it have not got their tokens yet; those behind it give way.
            let before = self.running.iter().filter(|s| s.rank() < first.rank());
            // Whoever was part of a step ahead that was dropped may have a block more than it has tokens.
            let lacks =
                |s: &Sequence| self.config.blocks_for(s.tokens().len()).saturating_sub(s.block_table().len());
            let promised = before.map(lacks).sum();
            let id = first.id();
            if self.admit_first(promised, pass).is_none() && !self.forks.give_up_one(&mut self.pool) {
                return Some(id);
            }
        }
        None
    }

    /// Takes from the queue's front while slots, budget and blocks allow. Says what stopped it.
    pub(super) fn admit(&mut self, pass: &mut Pass) -> Option<Obstacle> {
        while let Some(first) = self.waiting.first() {
            if self.running.len() >= self.config.max_num_seqs as usize {
                return Some(Obstacle::Slots);
            }
            if pass.budget == 0 {
                return Some(Obstacle::Budget);
            }
            if self.awaits_prompt(first) {
                return Some(Obstacle::Order);
            }
            let id = first.id();
            let Some(idx) = self.admit_first(0, pass) else {
                if self.forks.give_up_one(&mut self.pool) {
                    continue;
                }
                assert!(!self.running.is_empty(), "{id} does not fit into an empty pool");
                return Some(Obstacle::Blocks);
            };
            let room = self.running[idx].num_uncomputed();
            self.grant(idx, room, pass);
        }
        None
    }

    /// Lets in the first of the queue and says where it is in the batch, or `None` where too few blocks are free beside the
    /// `promised` ones.
    ///
    /// A sequence is admitted only if all the tokens it has would fit now: a prompt is evicted because answers grew, not
    /// because it was let in where it could not fit.
    fn admit_first(&mut self, promised: usize, pass: &mut Pass) -> Option<usize> {
        let first = self.waiting.first()?;
        let found = self.match_first_choice(first).unwrap_or_else(|| self.match_prefix(first));
        let shared = found.blocks.iter().filter(|&&block| self.pool.ref_count(block) > 0).count();
        if self.config.blocks_for(first.tokens().len()) - shared + promised > self.pool.num_free() {
            return None;
        }
        let mut sequence = self.waiting.pop_first()?;
        sequence.end_wait(&self.ledger, pass.now);
        let cached = self.start_from(&mut sequence, found, pass);
        if let Some(first) = sequence.take_fork_of() {
            self.forks.settle(first, &mut self.pool);
        }
        if sequence.timeline().attempts().is_empty() {
            let queries = sequence.prompt_len() as u64;
            self.prompt_tokens += queries;
            if self.config.prefix_cache {
                self.prefix_counts.queries += queries;
                self.prefix_counts.hits += u64::from(cached);
            }
        }
        sequence.transition(Edge::Admitted { cached }, pass.now);
        let idx = self.running.partition_point(|other| other.rank() < sequence.rank());
        self.running.insert(idx, sequence);
        Some(idx)
    }

    /// Whether `sequence` is another choice of a request that is still at their prompt. That one has the smaller rank, so it
    /// runs or has ended.
    fn awaits_prompt(&self, sequence: &Sequence) -> bool {
        let at_its_prompt = |first: RequestId| self.ids.contains(&first) && !self.forks.is_computed(first);
        sequence.fork_of().is_some_and(at_its_prompt)
    }

    /// The blocks of the first choice's prompt, as far as they are still held. The last, which is not full, is copied from
    /// the first choice while it runs: what it writes there lies behind the prompt.
    fn match_first_choice(&self, sequence: &Sequence) -> Option<Match> {
        let first = sequence.fork_of()?;
        let held = self.forks.held(first)?;
        let (prompt_len, block_size) = (sequence.prompt_len(), self.config.block_size as usize);
        let num_shared = (prompt_len - 1) / block_size;
        let computed = |s: &&Sequence| s.id() == first && s.num_computed_tokens() >= prompt_len;
        let copied = || self.running.iter().find(computed).map(|first| first.block_table()[num_shared]);
        let last = held.blocks.get(num_shared).copied().or_else(copied);
        // Where the prompt's last token is the block's first, there is nothing in it to be spared.
        let tail = last.filter(|_| !(prompt_len - 1).is_multiple_of(block_size));
        let kept = held.kept[..num_shared].to_vec();
        Some(Match { blocks: held.blocks[..num_shared].to_vec(), kept, tail })
    }

    /// The blocks that hold the longest beginning of `sequence`, but for its last token.
    fn match_prefix(&self, sequence: &Sequence) -> Match {
        let mut found = Match { blocks: Vec::new(), kept: Vec::new(), tail: None };
        if !self.config.prefix_cache {
            return found;
        }
        let (tokens, block_size) = (sequence.tokens(), self.config.block_size as usize);
        for (idx, full) in tokens.chunks_exact(block_size).enumerate() {
            let before = found.kept.last().copied().unwrap_or(PrefixId::EMPTY);
            let Some((block, prefix)) = self.pool.find(before, full) else { break };
            if (idx + 1) * block_size == tokens.len() {
                // A block of one token would be copied only to be computed again.
                found.tail = (block_size > 1).then_some(block);
                break;
            }
            found.blocks.push(block);
            found.kept.push(prefix);
        }
        found
    }

    /// Gives `sequence` the blocks that hold its beginning; how many tokens that is.
    fn start_from(&mut self, sequence: &mut Sequence, found: Match, pass: &mut Pass) -> u32 {
        let Match { mut blocks, kept, tail } = found;
        blocks.iter().for_each(|&block| self.pool.share(block));
        let mut cached = blocks.len() * self.config.block_size as usize;
        if let Some(own) = tail.and_then(|tail| self.copy(tail, pass)) {
            cached = sequence.tokens().len() - 1;
            blocks.push(own);
        }
        sequence.start_from(blocks, kept);
        cached as u32
    }

    /// A copy of `block`, which stays as it is for others; `None` where no other block is free.
    fn copy(&mut self, block: BlockId, pass: &mut Pass) -> Option<BlockId> {
        // Nobody may take it before it is copied, this copy least of all.
        self.pool.share(block);
        let own = self.pool.allocate();
        self.pool.release(block);
        pass.copies.extend(own.map(|own| (block, own)));
        own
    }
}

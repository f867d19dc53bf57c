//! From the queue into the batch: who is let in, and what of its beginning is in the pool already.
//!
//! It evicts nobody. Invariant: the first of the queue is let in before everyone else in it.

use super::{Pass, Scheduler};
use crate::sched::{BlockId, PrefixId, Sequence};
use crate::timeline::{Edge, Obstacle};

/// Blocks that hold the beginning of a sequence already.
struct Match {
    /// To be shared, in position order.
    blocks: Vec<BlockId>,
    /// What they hold.
    prefix: PrefixId,
    /// Holds all that is left of the sequence. Its last token has to be computed all the same, to sample after it, and
    /// nobody writes into a block of others': it is copied, or taken where it is free. With the beginning that it ends,
    /// by which what follows it is found.
    tail: Option<(BlockId, PrefixId)>,
}

impl Scheduler {
    /// Lets in whoever outranks a prompt that is still on its way: that prompt would otherwise take all that the step has,
    /// step after step, until it is done.
    pub(super) fn admit_ahead(&mut self, pass: &mut Pass) {
        let most = self.config.max_num_seqs.min(self.config.max_batch_tokens) as usize;
        while let Some(first) = self.waiting.first() {
            let outranks = |s: &Sequence| s.num_uncomputed() > 1 && first.rank() < s.rank();
            if self.running.len() >= most || !self.running.iter().any(outranks) {
                return;
            }
            // Those before it have not got their tokens yet; those behind it give way.
            let before = self.running.iter().filter(|s| s.rank() < first.rank());
            let lacks = |s: &Sequence| self.config.blocks_for(s.tokens().len()) - s.block_table().len();
            let promised = before.map(lacks).sum();
            if self.admit_first(promised, pass).is_none() {
                return;
            }
        }
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
            let id = first.id();
            let Some(idx) = self.admit_first(0, pass) else {
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
        let found = self.match_prefix(first);
        let shared = found.blocks.iter().filter(|&&block| self.pool.ref_count(block) > 0).count();
        if self.config.blocks_for(first.tokens().len()) - shared + promised > self.pool.num_free() {
            return None;
        }
        let mut sequence = self.waiting.pop_first()?;
        sequence.end_wait(&self.ledger, pass.now);
        let cached = self.start_from(&mut sequence, found, pass);
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

    /// The blocks that hold the longest beginning of `sequence`, but for its last token.
    fn match_prefix(&self, sequence: &Sequence) -> Match {
        let mut found = Match { blocks: Vec::new(), prefix: PrefixId::EMPTY, tail: None };
        if !self.config.prefix_cache {
            return found;
        }
        let (tokens, block_size) = (sequence.tokens(), self.config.block_size as usize);
        for (idx, full) in tokens.chunks_exact(block_size).enumerate() {
            let Some((block, prefix)) = self.pool.find(found.prefix, full) else { break };
            if (idx + 1) * block_size == tokens.len() {
                // A block of one token would be copied only to be computed again.
                found.tail = (block_size > 1).then_some((block, prefix));
                break;
            }
            found.blocks.push(block);
            found.prefix = prefix;
        }
        found
    }

    /// Gives `sequence` the blocks that hold its beginning; how many tokens that is.
    fn start_from(&mut self, sequence: &mut Sequence, found: Match, pass: &mut Pass) -> u32 {
        let Match { mut blocks, prefix, tail } = found;
        blocks.iter().for_each(|&block| self.pool.share(block));
        let num_kept = blocks.len();
        let mut cached = num_kept * self.config.block_size as usize;
        if let Some((tail, _)) = tail {
            cached = sequence.tokens().len() - 1;
            if self.pool.ref_count(tail) == 0 {
                self.pool.claim(tail);
                blocks.push(tail);
            } else {
                let Some(own) = self.pool.allocate() else {
                    panic!("no free block for a copy, though counted")
                };
                pass.copies.push((tail, own));
                blocks.push(own);
            }
        }
        sequence.start_from(blocks, num_kept, prefix, tail.map(|(_, ended)| ended));
        cached as u32
    }
}

//! Tokens and blocks for those who run, and eviction where there are too few blocks.
//!
//! It lets nobody in. Invariant: everyone in the batch gets at least one token in each pass, or leaves it.

use super::{Pass, Scheduler};
use crate::request::FinishReason;
use crate::timeline::Edge;

impl Scheduler {
    /// As many tokens for the next in the batch as budget and blocks allow, at least one: those behind it are evicted for
    /// it, last first. Where it is the last itself it goes back to the queue; alone, it has outgrown the pool and ends.
    pub(super) fn grant_next(&mut self, pass: &mut Pass) {
        let idx = pass.grants.len();
        let sequence = &self.running[idx];
        let in_table = sequence.block_table().len() * self.config.block_size as usize;
        let room_in_table = in_table - sequence.num_computed_tokens();
        while room_in_table == 0 && self.pool.num_free() == 0 {
            if self.forks.give_up_one(&mut self.pool) {
                continue;
            }
            let last = self.running.len() - 1;
            if last == 0 {
                let id = self.running[0].id();
                pass.ended.extend(self.finish(id, FinishReason::Length, pass.now));
                return;
            }
            self.preempt_last(pass);
            if last == idx {
                return;
            }
        }
        let room = room_in_table + self.pool.num_free() * self.config.block_size as usize;
        self.grant(idx, room, pass);
    }

    /// Tokens for `running[idx]`, which has `room` slots for them.
    pub(super) fn grant(&mut self, idx: usize, room: usize, pass: &mut Pass) {
        let set_aside = self.running.len() - 1 - pass.grants.len();
        let affordable = (pass.budget as usize).saturating_sub(set_aside);
        let num_tokens = self.running[idx].num_uncomputed().min(room).min(affordable);
        assert!(num_tokens > 0, "{} is in the batch and gets nothing", self.running[idx].id());
        self.extend_table_to(idx, self.running[idx].num_computed_tokens() + num_tokens);
        pass.grants.insert(idx, num_tokens as u32);
        pass.budget -= num_tokens as u32;
    }

    /// Takes blocks until the table of `running[idx]` holds `len` tokens. The caller knows that they are free.
    pub(super) fn extend_table_to(&mut self, idx: usize, len: usize) {
        let sequence = &mut self.running[idx];
        let needed = self.config.blocks_for(len);
        while sequence.block_table().len() < needed {
            match self.pool.allocate() {
                Some(block) => sequence.push_block(block),
                None => panic!("no free block for {}, though they were counted", sequence.id()),
            }
        }
        let first = sequence.num_computed_tokens() / self.config.block_size as usize;
        for &block in &sequence.block_table()[first..needed] {
            let own = self.pool.ref_count(block) == 1 && !self.pool.is_cached(block);
            assert!(own, "{} would write into {block:?}, which others read", sequence.id());
        }
    }

    /// Recompute preemption: the blocks go back, the generated tokens stay, the sequence goes back to its place in the queue.
    ///
    /// A copy into one of its blocks that a dropped step still owes is made all the same: all copies come before all writes,
    /// so whoever has the block by then writes over it.
    fn preempt_last(&mut self, pass: &mut Pass) {
        let Some(mut sequence) = self.running.pop() else { return };
        self.release(&mut sequence);
        sequence.transition(Edge::Preempted, pass.now);
        sequence.begin_wait(&self.ledger, pass.now);
        pass.preempted.push(sequence.id());
        self.num_preemptions += 1;
        self.waiting.push(sequence);
    }
}

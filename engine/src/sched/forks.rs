//! Several choices from one prompt: who waits for whose, and the blocks that are held for them meanwhile.
//!
//! It moves no sequence. Invariant: blocks are held only while another choice waits for them, and they are the first to be
//! given up where blocks are short: a choice that finds none computes the prompt again.

use std::collections::BTreeMap;

use super::{BlockId, BlockPool, PrefixId, Sequence};
use crate::request::RequestId;

/// A prompt that is computed, for the choices that wait for it.
#[derive(Debug)]
pub(super) struct HeldPrompt {
    /// Its full blocks, each with one reference.
    pub(super) blocks: Vec<BlockId>,
    /// The beginnings that they end.
    pub(super) kept: Vec<PrefixId>,
}

/// What is known of one request with further choices.
#[derive(Debug, Default)]
struct Family {
    /// Choices that wait.
    waiting: usize,
    /// Once the prompt is computed, until the blocks are needed by others.
    held: Option<HeldPrompt>,
    computed: bool,
}

/// All requests with choices that wait for them, by the first choice's id.
#[derive(Debug, Default)]
pub(super) struct Forks(BTreeMap<RequestId, Family>);

impl Forks {
    /// One more choice of `first` waits.
    pub(super) fn expect(&mut self, first: RequestId) {
        self.0.entry(first).or_default().waiting += 1;
    }

    /// A choice of `first` waits no more: it started, or ended. The last one frees what is held.
    pub(super) fn settle(&mut self, first: RequestId, pool: &mut BlockPool) {
        let Some(family) = self.0.get_mut(&first) else { return };
        family.waiting -= 1;
        if family.waiting == 0 {
            self.0
                .remove(&first)
                .and_then(|family| family.held)
                .into_iter()
                .for_each(|held| held.release(pool));
        }
    }

    /// The prompt of `first` is computed: its full blocks are held for those who wait for them.
    pub(super) fn prompt_computed(&mut self, first: &Sequence, block_size: usize, pool: &mut BlockPool) {
        let Some(family) = self.0.get_mut(&first.id()).filter(|family| !family.computed) else { return };
        family.computed = true;
        let num_full = first.prompt_len() / block_size;
        let blocks = first.block_table()[..num_full].to_vec();
        blocks.iter().for_each(|&block| pool.share(block));
        family.held = Some(HeldPrompt { blocks, kept: first.kept()[..num_full].to_vec() });
    }

    /// Whether the prompt of `first` was computed at some time.
    pub(super) fn is_computed(&self, first: RequestId) -> bool {
        self.0.get(&first).is_some_and(|family| family.computed)
    }

    /// What is held for the choices of `first`.
    pub(super) fn held(&self, first: RequestId) -> Option<&HeldPrompt> {
        self.0.get(&first)?.held.as_ref()
    }

    /// Gives up one prompt that is held, of the youngest request. Says whether there was one.
    pub(super) fn give_up_one(&mut self, pool: &mut BlockPool) -> bool {
        let held = self.0.values_mut().rev().find_map(|family| family.held.take());
        let was_held = held.is_some();
        held.into_iter().for_each(|held| held.release(pool));
        was_held
    }

    /// Gives up everything: the memory is gone.
    pub(super) fn give_up_all(&mut self, pool: &mut BlockPool) {
        while self.give_up_one(pool) {}
    }

    /// The tables that hold blocks, for the pool's check.
    pub(super) fn tables(&self) -> impl Iterator<Item = &[BlockId]> {
        self.0.values().filter_map(|family| family.held.as_ref()).map(|held| held.blocks.as_slice())
    }
}

impl HeldPrompt {
    fn release(self, pool: &mut BlockPool) {
        self.blocks.into_iter().rev().for_each(|block| pool.release(block));
    }
}

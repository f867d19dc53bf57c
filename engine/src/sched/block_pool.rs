//! The KV blocks: who holds how many references, and which are free.
//!
//! It never touches the cache itself and knows no sequence. Invariant: every block is either free with no reference, or
//! used with at least one; `free + used == total`. Breaking it is a defect of ours, asserted in release builds too.

use std::collections::VecDeque;

use super::BlockId;

/// A fixed number of blocks, taken and given back one reference at a time.
#[derive(Debug)]
pub struct BlockPool {
    /// References to each block, by block id.
    ref_counts: Vec<u32>,
    /// Blocks without references, the longest free first.
    free: VecDeque<BlockId>,
}

impl BlockPool {
    /// `num_blocks` free blocks.
    pub fn new(num_blocks: u32) -> Self {
        Self { ref_counts: vec![0; num_blocks as usize], free: (0..num_blocks).map(BlockId).collect() }
    }

    /// A free block with one reference now, or `None`.
    pub fn allocate(&mut self) -> Option<BlockId> {
        let block = self.free.pop_front()?;
        let count = &mut self.ref_counts[block.0 as usize];
        assert!(*count == 0, "block {block:?} was free with {count} references");
        *count = 1;
        Some(block)
    }

    /// Gives one reference back; the last one frees the block.
    pub fn release(&mut self, block: BlockId) {
        let count = &mut self.ref_counts[block.0 as usize];
        assert!(*count > 0, "block {block:?} was given back without a reference");
        *count -= 1;
        if *count == 0 {
            self.free.push_back(block);
        }
    }

    /// Blocks without references.
    pub fn num_free(&self) -> usize {
        self.free.len()
    }

    /// Blocks with references.
    pub fn num_used(&self) -> usize {
        self.ref_counts.len() - self.free.len()
    }

    /// All blocks.
    pub fn num_blocks(&self) -> usize {
        self.ref_counts.len()
    }

    /// References to `block`.
    pub fn ref_count(&self, block: BlockId) -> u32 {
        self.ref_counts[block.0 as usize]
    }

    /// The free blocks, the next to be taken first.
    pub fn free_blocks(&self) -> impl Iterator<Item = BlockId> + '_ {
        self.free.iter().copied()
    }

    /// Holds the invariant against every block, and the reference counts against the tables of all who hold blocks.
    ///
    /// # Panics
    /// If it does not hold.
    pub fn check_integrity<'a>(&self, tables: impl Iterator<Item = &'a [BlockId]>) {
        let mut held = vec![0u32; self.ref_counts.len()];
        for block in tables.flatten() {
            held[block.0 as usize] += 1;
        }
        assert!(held == self.ref_counts, "references {:?}, tables hold {held:?}", self.ref_counts);
        let mut is_free = vec![false; self.ref_counts.len()];
        for block in &self.free {
            assert!(!is_free[block.0 as usize], "{block:?} is free twice");
            is_free[block.0 as usize] = true;
        }
        for (idx, (&count, &free)) in self.ref_counts.iter().zip(&is_free).enumerate() {
            assert!((count == 0) == free, "block {idx} has {count} references and free is {free}");
        }
        let used = self.ref_counts.iter().filter(|&&count| count > 0).count();
        assert!(self.free.len() + used == self.num_blocks(), "{} free + {used} used", self.free.len());
    }
}

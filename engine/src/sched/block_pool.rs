//! The KV blocks: who holds how many references, which are free, and which full ones can be found again by their tokens.
//!
//! It never touches the cache's memory and knows no sequence. Invariant: every block is either free with no reference, or
//! used with at least one; `free + used == total`. Breaking it is a defect of ours, asserted in release builds too.

use super::BlockId;
use super::free_list::FreeList;
use super::prefix_cache::{PrefixCache, PrefixId};

/// A fixed number of blocks, taken and given back one reference at a time.
///
/// A full block that is given back keeps its contents while it is free, and can be shared until somebody else needs it:
/// free blocks that hold nothing are taken first, then the one that has not been used for the longest time.
#[derive(Debug)]
pub struct BlockPool {
    /// References to each block, by block id.
    ref_counts: Vec<u32>,
    /// Blocks without references, in the order in which they are taken.
    free: FreeList,
    /// `None` where the prefix cache is off.
    prefixes: Option<PrefixCache>,
}

impl BlockPool {
    /// `num_blocks` free blocks, of which none can be found by its tokens.
    pub fn new(num_blocks: u32) -> Self {
        Self { ref_counts: vec![0; num_blocks as usize], free: FreeList::full(num_blocks), prefixes: None }
    }

    /// The same with full blocks kept and found by hashes of `hash_bits` bits, 1 to 64.
    pub fn with_prefix_cache(num_blocks: u32, hash_bits: u32) -> Self {
        Self { prefixes: Some(PrefixCache::new(num_blocks, hash_bits)), ..Self::new(num_blocks) }
    }

    /// A free block with one reference now, or `None`. What it held is forgotten.
    pub fn allocate(&mut self) -> Option<BlockId> {
        let block = self.free.pop_front()?;
        let count = &mut self.ref_counts[block.0 as usize];
        assert!(*count == 0, "block {block:?} was free with {count} references");
        *count = 1;
        if let Some(prefixes) = &mut self.prefixes {
            prefixes.forget(block);
        }
        Some(block)
    }

    /// One more reference to a block that [`Self::find`] gave, or that somebody holds.
    pub fn share(&mut self, block: BlockId) {
        let holds = self.is_cached(block) || self.ref_counts[block.0 as usize] > 0;
        assert!(holds, "block {block:?} is shared and holds nothing");
        let count = &mut self.ref_counts[block.0 as usize];
        if *count == 0 {
            self.free.remove(block);
        }
        *count += 1;
    }

    /// Gives one reference back; the last one frees the block.
    pub fn release(&mut self, block: BlockId) {
        let count = &mut self.ref_counts[block.0 as usize];
        assert!(*count > 0, "block {block:?} was given back without a reference");
        *count -= 1;
        if *count > 0 {
            return;
        }
        if self.is_cached(block) {
            self.free.push_back(block);
        } else {
            self.free.push_front(block);
        }
    }

    /// The block that continues `parent` with `tokens`, and the beginning that it ends.
    pub fn find(&self, parent: PrefixId, tokens: &[u32]) -> Option<(BlockId, PrefixId)> {
        self.prefixes.as_ref()?.find(parent, tokens)
    }

    /// `block` is full: it continues `parent` with `tokens`, and is written no more. Gives back the beginning that it ends.
    pub fn keep(&mut self, block: BlockId, parent: PrefixId, tokens: &[u32]) -> PrefixId {
        assert!(self.ref_counts[block.0 as usize] > 0, "block {block:?} is kept and belongs to nobody");
        self.prefixes.as_mut().map_or(PrefixId::EMPTY, |prefixes| prefixes.insert(block, parent, tokens))
    }

    /// Whether the block can be found by its tokens, and so may not be written.
    pub fn is_cached(&self, block: BlockId) -> bool {
        self.prefixes.as_ref().is_some_and(|prefixes| prefixes.contains(block))
    }

    /// The memory is gone, and with it what the blocks held.
    pub fn forget_all(&mut self) {
        if let Some(prefixes) = &mut self.prefixes {
            prefixes.clear();
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
        self.free.iter()
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
        for block in self.free.iter() {
            assert!(!is_free[block.0 as usize], "{block:?} is free twice");
            is_free[block.0 as usize] = true;
        }
        for (idx, (&count, &free)) in self.ref_counts.iter().zip(&is_free).enumerate() {
            assert!((count == 0) == free, "block {idx} has {count} references and free is {free}");
        }
        let used = self.ref_counts.iter().filter(|&&count| count > 0).count();
        assert!(self.free.len() + used == self.num_blocks(), "{} free + {used} used", self.free.len());
        self.prefixes.iter().for_each(PrefixCache::check_integrity);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_given_back_is_found_until_it_is_taken_and_the_longest_unused_is_taken_first() {
        let mut pool = BlockPool::with_prefix_cache(3, 64);
        let blocks: Vec<BlockId> = (0..3).filter_map(|_| pool.allocate()).collect();
        let a = pool.keep(blocks[0], PrefixId::EMPTY, &[1, 2]);
        let ab = pool.keep(blocks[1], a, &[3, 4]);
        blocks.iter().rev().for_each(|&block| pool.release(block));
        // The one that holds nothing is first in line, then the tail of what was given back, then its head.
        assert_eq!(pool.free_blocks().collect::<Vec<_>>(), [blocks[2], blocks[1], blocks[0]]);
        pool.share(blocks[1]);
        pool.share(blocks[1]);
        assert_eq!((pool.ref_count(blocks[1]), pool.num_free()), (2, 2));
        pool.release(blocks[1]);
        pool.release(blocks[1]);
        // Used last, so taken last.
        assert_eq!(pool.free_blocks().collect::<Vec<_>>(), [blocks[2], blocks[0], blocks[1]]);
        assert_eq!((pool.allocate(), pool.allocate()), (Some(blocks[2]), Some(blocks[0])));
        assert_eq!(pool.find(PrefixId::EMPTY, &[1, 2]), None);
        assert_eq!(pool.find(a, &[3, 4]), Some((blocks[1], ab)));
        assert_eq!(pool.allocate(), Some(blocks[1]));
        assert_eq!((pool.find(a, &[3, 4]), pool.allocate()), (None, None));
    }

    #[test]
    fn without_a_prefix_cache_nothing_is_found() {
        let mut pool = BlockPool::new(1);
        let block = pool.allocate().expect("it is free");
        pool.keep(block, PrefixId::EMPTY, &[1]);
        pool.release(block);
        assert_eq!(pool.find(PrefixId::EMPTY, &[1]), None);
    }

    #[test]
    #[should_panic(expected = "without a reference")]
    fn a_block_is_not_given_back_twice() {
        let mut pool = BlockPool::new(1);
        let block = pool.allocate().expect("it is free");
        pool.release(block);
        pool.release(block);
    }
}

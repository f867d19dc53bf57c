//! The free KV blocks in the order in which they are to be taken: a list that gives up any block in constant time.
//!
//! It counts no references. Invariant: a block is in it at most once, and `next` and `prev` are each other's mirror.

use super::BlockId;

/// Stands for "no block" in a link; a pool has fewer blocks.
const NONE: u32 = u32::MAX;

#[derive(Clone, Copy, Debug)]
struct Link {
    prev: u32,
    next: u32,
    listed: bool,
}

/// A doubly linked list over block ids, its links in one array taken at start.
#[derive(Debug)]
pub(super) struct FreeList {
    links: Vec<Link>,
    first: u32,
    last: u32,
    len: usize,
}

impl FreeList {
    /// All of `num_blocks` blocks, block 0 first.
    pub(super) fn full(num_blocks: u32) -> Self {
        let unlisted = Link { prev: NONE, next: NONE, listed: false };
        let mut list = Self { links: vec![unlisted; num_blocks as usize], first: NONE, last: NONE, len: 0 };
        (0..num_blocks).map(BlockId).for_each(|block| list.push_back(block));
        list
    }

    /// To be taken after all others.
    pub(super) fn push_back(&mut self, block: BlockId) {
        self.insert(block, self.last, NONE);
    }

    /// To be taken next.
    pub(super) fn push_front(&mut self, block: BlockId) {
        self.insert(block, NONE, self.first);
    }

    /// The next to be taken.
    pub(super) fn pop_front(&mut self) -> Option<BlockId> {
        let block = (self.first != NONE).then_some(BlockId(self.first))?;
        self.remove(block);
        Some(block)
    }

    /// Takes a block out of the middle.
    pub(super) fn remove(&mut self, block: BlockId) {
        let Link { prev, next, listed } = self.links[block.0 as usize];
        assert!(listed, "{block:?} is not free");
        self.join(prev, next);
        self.links[block.0 as usize].listed = false;
        self.len -= 1;
    }

    fn insert(&mut self, block: BlockId, prev: u32, next: u32) {
        let link = &mut self.links[block.0 as usize];
        assert!(!link.listed, "{block:?} is free twice");
        link.listed = true;
        self.join(prev, block.0);
        self.join(block.0, next);
        self.len += 1;
    }

    /// Makes `next` follow `prev`; either may be the list's end.
    fn join(&mut self, prev: u32, next: u32) {
        match self.links.get_mut(prev as usize) {
            Some(link) => link.next = next,
            None => self.first = next,
        }
        match self.links.get_mut(next as usize) {
            Some(link) => link.prev = prev,
            None => self.last = prev,
        }
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// The next to be taken first.
    pub(super) fn iter(&self) -> impl Iterator<Item = BlockId> + '_ {
        let mut at = self.first;
        std::iter::from_fn(move || {
            let block = (at != NONE).then_some(BlockId(at))?;
            at = self.links[at as usize].next;
            Some(block)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(list: &FreeList, expected: &[u32]) {
        let found: Vec<u32> = list.iter().map(|block| block.0).collect();
        assert_eq!((found.as_slice(), list.len()), (expected, expected.len()));
    }

    #[test]
    fn blocks_leave_and_come_back_at_either_end_and_in_the_middle() {
        let mut list = FreeList::full(4);
        check(&list, &[0, 1, 2, 3]);
        assert_eq!(list.pop_front(), Some(BlockId(0)));
        list.remove(BlockId(2));
        check(&list, &[1, 3]);
        list.push_back(BlockId(0));
        list.push_front(BlockId(2));
        check(&list, &[2, 1, 3, 0]);
        [2, 0, 3, 1].into_iter().for_each(|block| list.remove(BlockId(block)));
        check(&list, &[]);
        assert_eq!(list.pop_front(), None);
        list.push_front(BlockId(3));
        list.push_back(BlockId(1));
        check(&list, &[3, 1]);
    }

    #[test]
    #[should_panic(expected = "is free twice")]
    fn a_block_is_not_free_twice() {
        FreeList::full(2).push_back(BlockId(1));
    }
}

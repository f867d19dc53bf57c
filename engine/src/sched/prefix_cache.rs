//! Which full KV blocks hold which beginnings of prompts: an index by hash, in which the tokens decide.
//!
//! It counts no references and moves no block. A beginning that has been seen gets a name of its own, and a block is
//! found by the name of what comes before it and by its own tokens, compared one by one. Two different beginnings never
//! have the same name, so a collision of hashes costs a comparison and never gives away another prompt's keys and values.
//! Invariant: a block is in the index at most once, and at most one block is indexed for any beginning.

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};

use super::BlockId;

/// Names one beginning: equal names, equal tokens from the first on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PrefixId(u64);

impl PrefixId {
    /// No token at all: what comes before the first block.
    pub const EMPTY: Self = Self(0);
}

/// What an indexed block holds.
#[derive(Debug)]
struct Content {
    hash: u64,
    /// What comes before it.
    parent: PrefixId,
    /// The beginning that ends with it.
    prefix: PrefixId,
    tokens: Box<[u32]>,
}

/// The index. See the module.
#[derive(Debug)]
pub(super) struct PrefixCache {
    by_hash: HashMap<u64, Vec<BlockId>>,
    /// By block id.
    contents: Vec<Option<Content>>,
    last_name: u64,
    hash_bits: u32,
}

impl PrefixCache {
    /// An empty index over `num_blocks` blocks, with hashes of `hash_bits` bits.
    pub(super) fn new(num_blocks: u32, hash_bits: u32) -> Self {
        let contents = std::iter::repeat_with(|| None).take(num_blocks as usize).collect();
        Self { by_hash: HashMap::new(), contents, last_name: PrefixId::EMPTY.0, hash_bits }
    }

    /// The block that continues `parent` with `tokens`, and the beginning that it ends.
    pub(super) fn find(&self, parent: PrefixId, tokens: &[u32]) -> Option<(BlockId, PrefixId)> {
        let same_hash = self.by_hash.get(&self.hash(parent, tokens))?;
        same_hash.iter().find_map(|&block| {
            let content = self.contents[block.0 as usize].as_ref()?;
            let same = content.parent == parent && *content.tokens == *tokens;
            same.then_some((block, content.prefix))
        })
    }

    /// Takes `block`, which continues `parent` with `tokens`, into the index; where another block holds the same already,
    /// that one stays. Gives back the name of the beginning.
    pub(super) fn insert(&mut self, block: BlockId, parent: PrefixId, tokens: &[u32]) -> PrefixId {
        if let Some((_, prefix)) = self.find(parent, tokens) {
            return prefix;
        }
        assert!(!self.contains(block), "{block:?} is indexed for something else");
        self.last_name += 1;
        let prefix = PrefixId(self.last_name);
        let hash = self.hash(parent, tokens);
        self.by_hash.entry(hash).or_default().push(block);
        self.contents[block.0 as usize] = Some(Content { hash, parent, prefix, tokens: tokens.into() });
        prefix
    }

    /// Takes a block out, where it is in: somebody else will write into it.
    pub(super) fn forget(&mut self, block: BlockId) {
        let Some(content) = self.contents[block.0 as usize].take() else { return };
        let Some(same_hash) = self.by_hash.get_mut(&content.hash) else { return };
        same_hash.retain(|&other| other != block);
        if same_hash.is_empty() {
            self.by_hash.remove(&content.hash);
        }
    }

    /// The memory is gone, and with it everything that the blocks held.
    pub(super) fn clear(&mut self) {
        self.by_hash.clear();
        self.contents.fill_with(|| None);
    }

    pub(super) fn contains(&self, block: BlockId) -> bool {
        self.contents[block.0 as usize].is_some()
    }

    fn hash(&self, parent: PrefixId, tokens: &[u32]) -> u64 {
        let mut hasher = DefaultHasher::new();
        (parent, tokens).hash(&mut hasher);
        hasher.finish() >> (64 - self.hash_bits)
    }

    /// Holds the index against the contents.
    ///
    /// # Panics
    /// If they do not agree.
    pub(super) fn check_integrity(&self) {
        let indexed: usize = self.by_hash.values().map(Vec::len).sum();
        let held = self.contents.iter().flatten().count();
        assert!(indexed == held, "{indexed} blocks are indexed and {held} have contents");
        for (hash, blocks) in &self.by_hash {
            assert!(!blocks.is_empty(), "nothing is indexed under {hash}, and it takes memory");
            for block in blocks {
                let content = self.contents[block.0 as usize].as_ref();
                assert!(content.is_some_and(|c| c.hash == *hash), "{block:?} is under the wrong hash");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whatever the hash is worth, also nothing but one bit.
    fn check(hash_bits: u32) {
        let mut cache = PrefixCache::new(8, hash_bits);
        let a = cache.insert(BlockId(0), PrefixId::EMPTY, &[1, 2]);
        let b = cache.insert(BlockId(1), PrefixId::EMPTY, &[3, 4]);
        // The same two tokens after different beginnings.
        let a5 = cache.insert(BlockId(2), a, &[5, 5]);
        let b5 = cache.insert(BlockId(3), b, &[5, 5]);
        assert!(a != b && a5 != b5);
        assert_eq!(cache.find(PrefixId::EMPTY, &[1, 2]), Some((BlockId(0), a)));
        assert_eq!(cache.find(a, &[5, 5]), Some((BlockId(2), a5)));
        assert_eq!(cache.find(b, &[5, 5]), Some((BlockId(3), b5)));
        assert_eq!(cache.find(PrefixId::EMPTY, &[5, 5]), None);
        assert_eq!(cache.find(a, &[5, 6]), None);
        // A second block with the same tokens is not indexed, and goes by the same name.
        assert_eq!(cache.insert(BlockId(4), a, &[5, 5]), a5);
        assert!(!cache.contains(BlockId(4)));
        cache.check_integrity();
        // What follows a beginning that was forgotten is not found under the new one of the same tokens' name.
        cache.forget(BlockId(0));
        assert_eq!(cache.find(PrefixId::EMPTY, &[1, 2]), None);
        let again = cache.insert(BlockId(5), PrefixId::EMPTY, &[1, 2]);
        assert!(again != a);
        assert_eq!(cache.find(again, &[5, 5]), None);
        cache.check_integrity();
        cache.clear();
        assert_eq!(cache.find(PrefixId::EMPTY, &[3, 4]), None);
        cache.check_integrity();
    }

    #[test]
    fn the_tokens_decide_whatever_the_hash_is_worth() {
        [1, 2, 64].into_iter().for_each(check);
    }
}

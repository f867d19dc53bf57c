//! Prompts that nobody wrote: token ids from the seed, of exactly the length that is asked for.
//!
//! Ordinary tokens only, so that no prompt closes a turn or ends an answer. Invariant: no two prompts of one maker are
//! alike beyond what is meant to be shared, so that a prefix cache finds nothing else.

use super::random::Random;

/// Keeps the streams of shared beginnings apart from those of prompts.
const SHARED: u64 = 1;
const OWN: u64 = 2;

/// Makes the prompts of a whole bench.
#[derive(Clone, Debug)]
pub struct PromptMaker {
    /// Ids that a prompt may have; never empty.
    ordinary: Vec<u32>,
    seed: u64,
    made: u64,
}

impl PromptMaker {
    /// Prompts of ids below `vocab_size`, without those that are special. Where all are special, of all.
    pub fn new(vocab_size: u32, is_special: impl Fn(u32) -> bool, seed: u64) -> Self {
        let mut ordinary: Vec<u32> = (0..vocab_size).filter(|id| !is_special(*id)).collect();
        if ordinary.is_empty() {
            ordinary = (0..vocab_size.max(1)).collect();
        }
        Self { ordinary, seed, made: 0 }
    }

    /// The next prompt, of `len` tokens. It begins with at most `shared` tokens that all prompts of the same `group` begin
    /// with; at least its last token is its own.
    pub fn next(&mut self, len: u32, shared: u32, group: u64) -> Vec<u32> {
        let shared = shared.min(len.saturating_sub(1));
        let mut common = Random::named(&[self.seed, SHARED, group]);
        let mut own = Random::named(&[self.seed, OWN, self.made]);
        let mut prompt: Vec<u32> = (0..shared).map(|_| self.draw(&mut common)).collect();
        // The first own token counts the prompts, so that even the shortest differ until the vocabulary is used up.
        let start = Random::named(&[self.seed]).below(self.ordinary.len());
        let turn = (start as u64).wrapping_add(self.made) % self.ordinary.len() as u64;
        prompt.push(self.ordinary.get(turn as usize).copied().unwrap_or(0));
        prompt.extend((shared + 1..len).map(|_| self.draw(&mut own)));
        self.made += 1;
        prompt
    }

    fn draw(&self, stream: &mut Random) -> u32 {
        self.ordinary.get(stream.below(self.ordinary.len())).copied().unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    fn check(vocab_size: u32, len: u32, shared: u32, in_common: usize) {
        let special = |id: u32| id.is_multiple_of(10);
        let mut maker = PromptMaker::new(vocab_size, special, 3);
        let prompts: Vec<Vec<u32>> = (0..8).map(|_| maker.next(len, shared, 0)).collect();
        for prompt in &prompts {
            assert_eq!(prompt.len(), len as usize);
            assert!(prompt.iter().all(|id| *id < vocab_size && !special(*id)), "{prompt:?}");
            assert_eq!(prompt[..in_common], prompts[0][..in_common], "the beginning is shared");
        }
        let after: HashSet<u32> = prompts.iter().map(|prompt| prompt[in_common]).collect();
        assert_eq!(after.len(), 8, "nothing else is: {prompts:?}");
        let other = maker.next(len, shared, 1);
        assert!(
            in_common < 2 || other[..in_common] != prompts[0][..in_common],
            "another group shares nothing"
        );
        let mut again = PromptMaker::new(vocab_size, special, 3);
        assert_eq!(again.next(len, shared, 0), prompts[0], "the same seed makes the same prompts");
        let mut seeded = PromptMaker::new(vocab_size, special, 4);
        assert!(len < 2 || seeded.next(len, shared, 0) != prompts[0], "another seed makes others");
    }

    #[test]
    fn prompts_are_ordinary_of_the_length_asked_and_differ() {
        check(100, 1, 0, 0);
        check(100, 64, 0, 0);
        check(49_152, 64, 16, 16);
        check(49_152, 8, 8, 7);
        check(49_152, 1, 5, 0);
    }

    #[test]
    fn a_vocabulary_of_special_tokens_only_still_makes_prompts() {
        let mut maker = PromptMaker::new(3, |_| true, 1);
        assert!(maker.next(5, 2, 0).iter().all(|id| *id < 3));
    }
}

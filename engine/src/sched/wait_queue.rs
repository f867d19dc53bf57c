//! The queue: who waits, in the order in which they are to be let in.
//!
//! It decides nothing and bills nothing. Invariant: every sequence in it is found by its id and by its rank, and no two
//! have the same rank.

use std::collections::{BTreeMap, HashMap};

use super::Sequence;
use crate::clock::Nanos;
use crate::request::RequestId;

/// A claim to be served: smaller goes first. It never changes, so the order of any two requests is settled once, and one
/// that came later by more than its priority is worth never overtakes: that is all the aging there is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Rank {
    /// When it was queued, put off by so much a level of priority.
    at: i64,
    /// Breaks ties in order of arrival.
    arrival: u64,
}

impl Rank {
    /// The rank of the `arrival`-th request of all, queued at `now`.
    pub(super) fn new(now: Nanos, priority: i32, step_ns: Nanos, arrival: u64) -> Self {
        let signed = |ns: Nanos| i64::try_from(ns).unwrap_or(i64::MAX);
        let worth = signed(step_ns).saturating_mul(i64::from(priority));
        Self { at: signed(now).saturating_add(worth), arrival }
    }
}

/// Sequences in order of their ranks.
#[derive(Debug, Default)]
pub(super) struct WaitQueue {
    by_rank: BTreeMap<Rank, Sequence>,
    ranks: HashMap<RequestId, Rank>,
}

impl WaitQueue {
    pub(super) fn push(&mut self, sequence: Sequence) {
        let (id, rank) = (sequence.id(), sequence.rank());
        let displaced = self.by_rank.insert(rank, sequence);
        assert!(displaced.is_none() && self.ranks.insert(id, rank).is_none(), "{id} is queued twice");
    }

    pub(super) fn first(&self) -> Option<&Sequence> {
        self.by_rank.first_key_value().map(|(_, sequence)| sequence)
    }

    pub(super) fn pop_first(&mut self) -> Option<Sequence> {
        let (_, sequence) = self.by_rank.pop_first()?;
        self.ranks.remove(&sequence.id());
        Some(sequence)
    }

    pub(super) fn remove(&mut self, id: RequestId) -> Option<Sequence> {
        let rank = self.ranks.remove(&id)?;
        self.by_rank.remove(&rank)
    }

    pub(super) fn get(&self, id: RequestId) -> Option<&Sequence> {
        self.by_rank.get(self.ranks.get(&id)?)
    }

    pub(super) fn get_mut(&mut self, id: RequestId) -> Option<&mut Sequence> {
        self.by_rank.get_mut(self.ranks.get(&id)?)
    }

    pub(super) fn len(&self) -> usize {
        self.by_rank.len()
    }

    /// The next to be let in first.
    pub(super) fn iter(&self) -> impl Iterator<Item = &Sequence> {
        self.by_rank.values()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_level_of_priority_is_worth_so_much_waiting_and_no_more() {
        let rank = |now, priority, arrival| Rank::new(now, priority, 1_000, arrival);
        assert!(rank(5, 0, 0) < rank(5, 0, 1));
        assert!(rank(5, 0, 0) < rank(6, 0, 1));
        // One level more urgent overtakes those of the last thousand nanoseconds, and nobody else.
        assert!(rank(1_004, -1, 1) < rank(5, 0, 0));
        assert!(rank(1_006, -1, 1) > rank(5, 0, 0));
        assert!(rank(50_000, 100, 0) > rank(149_999, 0, 1));
        assert!(rank(50_000, 100, 0) < rank(150_001, 0, 1));
        let far = Rank::new(u64::MAX, i32::MAX, u64::MAX, 0);
        assert!(far > rank(0, 0, 1));
    }
}

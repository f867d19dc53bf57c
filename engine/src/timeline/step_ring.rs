//! The last steps of an engine, so that a token's gap can be looked into after the fact.
//!
//! Invariant: it holds at most its capacity, the youngest, with ids that follow each other.

use std::collections::VecDeque;

use super::StepRecord;

/// A bounded ring of step records.
#[derive(Clone, Debug, Default)]
pub struct StepRing {
    records: VecDeque<StepRecord>,
    capacity: usize,
}

impl StepRing {
    /// Room for the last `capacity` steps.
    pub fn new(capacity: usize) -> Self {
        Self { records: VecDeque::with_capacity(capacity), capacity }
    }

    /// Takes the next step; the oldest goes where the ring is full.
    pub fn push(&mut self, record: StepRecord) {
        let follows = self.records.back().is_none_or(|last| last.id < record.id);
        assert!(follows, "step {} comes after a later one", record.id);
        if self.records.len() == self.capacity {
            self.records.pop_front();
        }
        self.records.push_back(record);
    }

    /// The step with this id, while the ring still has it.
    pub fn get(&self, id: u64) -> Option<&StepRecord> {
        let idx = self.records.binary_search_by_key(&id, |record| record.id).ok()?;
        self.records.get(idx)
    }

    /// All that it has, oldest first.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = &StepRecord> + ExactSizeIterator {
        self.records.iter()
    }

    /// The youngest `count`, oldest of them first.
    pub fn last(&self, count: usize) -> impl Iterator<Item = &StepRecord> {
        self.records.iter().skip(self.records.len().saturating_sub(count))
    }
}

impl FromIterator<StepRecord> for StepRing {
    /// A ring that just holds them.
    fn from_iter<I: IntoIterator<Item = StepRecord>>(records: I) -> Self {
        let records: VecDeque<StepRecord> = records.into_iter().collect();
        Self { capacity: records.len(), records }
    }
}

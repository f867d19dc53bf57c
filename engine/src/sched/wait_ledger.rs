//! Why the queue waits, in time that grows by one addition a pass however long the queue is.
//!
//! A pass that leaves anyone waiting finds one obstacle; the time until the next pass is billed to it, in running totals.
//! A request takes a reading when it enters the queue, becomes first, stops being first, or leaves, and is billed the
//! difference. Invariant: while a request waits, every nanosecond is in exactly one total.

use crate::clock::Nanos;
use crate::timeline::{Obstacle, WaitCauses};

/// Readings of the five totals at one instant.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Totals {
    slots: Nanos,
    budget: Nanos,
    blocks: Nanos,
    order: Nanos,
    paused: Nanos,
}

/// The running totals of one scheduler.
#[derive(Debug, Default)]
pub(super) struct WaitLedger {
    totals: Totals,
    obstacle: Option<Obstacle>,
    since: Nanos,
}

impl WaitLedger {
    /// From `now` on, whoever waits is held up by `obstacle`.
    pub(super) fn set(&mut self, obstacle: Option<Obstacle>, now: Nanos) {
        self.totals = self.read(now);
        self.obstacle = obstacle;
        self.since = now;
    }

    fn read(&self, now: Nanos) -> Totals {
        let mut totals = self.totals;
        // A clock that went back is found by the timeline's own rule; here no time passes, and nothing panics.
        let elapsed = now.saturating_sub(self.since);
        match self.obstacle {
            Some(Obstacle::Slots) => totals.slots += elapsed,
            Some(Obstacle::Budget) => totals.budget += elapsed,
            Some(Obstacle::Blocks) => totals.blocks += elapsed,
            Some(Obstacle::Order) => totals.order += elapsed,
            Some(Obstacle::Paused) => totals.paused += elapsed,
            None => {}
        }
        totals
    }
}

/// One request's stay in the queue.
#[derive(Debug, Default)]
pub(super) struct Stay {
    mark: Totals,
    is_first: bool,
    waited: WaitCauses,
}

impl Stay {
    /// Enters the queue at `now`.
    pub(super) fn begin(ledger: &WaitLedger, now: Nanos) -> Self {
        Self { mark: ledger.read(now), is_first: false, waited: WaitCauses::default() }
    }

    /// Becomes the first in the queue, or stops being it. Blocks bill the first; those behind it wait for the order.
    pub(super) fn set_first(&mut self, is_first: bool, ledger: &WaitLedger, now: Nanos) {
        if self.is_first != is_first {
            self.settle(ledger, now);
            self.is_first = is_first;
        }
    }

    /// Leaves the queue: what the stay is made of.
    pub(super) fn end(&mut self, ledger: &WaitLedger, now: Nanos) -> WaitCauses {
        self.settle(ledger, now);
        std::mem::take(&mut self.waited)
    }

    fn settle(&mut self, ledger: &WaitLedger, now: Nanos) {
        let totals = ledger.read(now);
        let blocked = totals.blocks.saturating_sub(self.mark.blocks);
        self.waited.slots += totals.slots.saturating_sub(self.mark.slots);
        self.waited.budget += totals.budget.saturating_sub(self.mark.budget);
        self.waited.order += totals.order.saturating_sub(self.mark.order);
        self.waited.paused += totals.paused.saturating_sub(self.mark.paused);
        if self.is_first {
            self.waited.blocks += blocked
        } else {
            self.waited.order += blocked
        }
        self.mark = totals;
    }
}

//! The page's clock, read in the worker: both threads' stamps are instants of one clock.
//!
//! Invariant: it never goes back, and never reads less than an instant that the page has told of.

use std::cell::Cell;
use std::rc::Rc;

use firstlight_engine::clock::{Clock, Nanos};

use crate::browser::{nanos, performance};

/// Nanoseconds since the page's time origin.
#[derive(Clone, Debug)]
pub struct PageClock {
    origin_unix_ms: f64,
    /// Added to this thread's own reading.
    offset_ns: Rc<Cell<i64>>,
    /// The largest instant known so far.
    last: Rc<Cell<Nanos>>,
}

impl PageClock {
    /// `origin_unix_ms` is the page's `performance.timeOrigin`.
    pub fn new(origin_unix_ms: f64) -> Self {
        let (own_origin, _) = performance();
        let offset = ((own_origin - origin_unix_ms) * 1e6) as i64;
        Self { origin_unix_ms, offset_ns: Rc::new(Cell::new(offset)), last: Rc::default() }
    }

    /// Corrects what the difference of the two origins left, as seen at a round trip.
    pub fn adjust(&self, nanos: i64) {
        self.offset_ns.set(self.offset_ns.get() + nanos);
    }

    /// The page has stamped `at`: what comes now comes after it, also where this thread's coarse clock lags a tick behind.
    pub fn witness(&self, at: Nanos) {
        self.last.set(self.last.get().max(at));
    }
}

impl Clock for PageClock {
    fn now(&self) -> Nanos {
        let own = nanos(performance().1);
        let now = own.saturating_add_signed(self.offset_ns.get()).max(self.last.get());
        self.last.set(now);
        now
    }

    fn origin_unix_ms(&self) -> u64 {
        self.origin_unix_ms as u64
    }

    fn resolution_ns(&self) -> u64 {
        // Browsers round: 5 microseconds on isolated pages, 100 elsewhere. Ours asks for no isolation.
        100_000
    }
}

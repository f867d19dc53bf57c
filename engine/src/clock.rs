//! Time as an argument. The engine asks a [`Clock`] that its host owns; it never reads one of its own.
//!
//! Invariant: all instants of one process are integer nanoseconds since one origin, and never decrease.

use std::cell::Cell;

/// Nanoseconds since the engine's origin; always below 2^53, so that JSON readers keep every digit.
pub type Nanos = u64;

/// A monotonic clock, owned by the host.
pub trait Clock {
    /// Nanoseconds since the origin; never less than an earlier answer.
    fn now(&self) -> Nanos;
    /// The origin as Unix time in milliseconds, for people who correlate logs; no sum uses it.
    fn origin_unix_ms(&self) -> u64;
    /// The smallest step this clock can show, in nanoseconds.
    fn resolution_ns(&self) -> u64;
}

/// A clock that tests move by hand.
#[derive(Debug, Default)]
pub struct ManualClock {
    now: Cell<Nanos>,
}

impl ManualClock {
    /// A clock that stands at zero.
    pub fn new() -> Self {
        Self::default()
    }

    /// Moves the clock forward by `by` nanoseconds and returns the new instant.
    pub fn advance(&self, by: Nanos) -> Nanos {
        self.now.set(self.now.get() + by);
        self.now.get()
    }
}

impl Clock for ManualClock {
    fn now(&self) -> Nanos {
        self.now.get()
    }
    fn origin_unix_ms(&self) -> u64 {
        0
    }
    fn resolution_ns(&self) -> u64 {
        1
    }
}

impl<C: Clock + ?Sized> Clock for &C {
    fn now(&self) -> Nanos {
        (**self).now()
    }
    fn origin_unix_ms(&self) -> u64 {
        (**self).origin_unix_ms()
    }
    fn resolution_ns(&self) -> u64 {
        (**self).resolution_ns()
    }
}

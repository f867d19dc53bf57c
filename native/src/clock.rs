//! The native clock: the operating system's monotonic one, from an origin at start.
//!
//! Never reads wall-clock time after it was made; Unix time is told once, for people who correlate logs.

use std::time::{Instant, SystemTime, UNIX_EPOCH};

use firstlight_engine::clock::{Clock, Nanos};

/// Nanoseconds since the moment it was made.
#[derive(Clone, Copy, Debug)]
pub struct InstantClock {
    origin: Instant,
    origin_unix_ms: u64,
    resolution_ns: u64,
}

impl InstantClock {
    /// A clock whose origin is now.
    pub fn start() -> Self {
        let origin = Instant::now();
        let unix = SystemTime::now().duration_since(UNIX_EPOCH).map(|since| since.as_millis());
        Self {
            origin,
            origin_unix_ms: unix.ok().and_then(|ms| u64::try_from(ms).ok()).unwrap_or(0),
            resolution_ns: smallest_step(origin),
        }
    }
}

impl InstantClock {
    /// Unix time of `at`, in whole seconds.
    pub fn unix_seconds(&self, at: Nanos) -> u64 {
        (self.origin_unix_ms + at / 1_000_000) / 1000
    }
}

/// The smallest step seen in a few readings: an upper bound of the clock's own.
fn smallest_step(origin: Instant) -> u64 {
    let mut smallest = u64::MAX;
    let mut last = nanos_since(origin);
    for _ in 0..64 {
        let now = nanos_since(origin);
        if now > last {
            smallest = smallest.min(now - last);
        }
        last = now;
    }
    if smallest == u64::MAX { 1_000_000 } else { smallest }
}

fn nanos_since(origin: Instant) -> Nanos {
    // A process would have to run for 584 years to leave a u64.
    u64::try_from(origin.elapsed().as_nanos()).unwrap_or(u64::MAX)
}

impl Clock for InstantClock {
    fn now(&self) -> Nanos {
        nanos_since(self.origin)
    }
    fn origin_unix_ms(&self) -> u64 {
        self.origin_unix_ms
    }
    fn resolution_ns(&self) -> u64 {
        self.resolution_ns
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_never_goes_back_and_copies_share_their_origin() {
        let clock = InstantClock::start();
        let copy = clock;
        let mut last = 0;
        for _ in 0..1000 {
            let (a, b) = (clock.now(), copy.now());
            assert!(last <= a && a <= b, "{last} {a} {b}");
            last = b;
        }
        assert!(clock.resolution_ns() >= 1 && clock.origin_unix_ms() > 1_600_000_000_000);
    }
}

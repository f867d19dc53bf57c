//! Percentiles of a set of durations, by nearest rank.
//!
//! It interpolates nothing: each percentile is a value that was measured. Invariant: ranks are integers, computed
//! without a float.

use serde::{Deserialize, Serialize};

use crate::clock::Nanos;

/// The percentiles that a [`Distribution`] has.
pub const PERCENTILES: [u32; 4] = [50, 90, 95, 99];

/// The rank, from 1, of the `q`-th percentile of `n` values: ceil(q/100*n), at least 1 and at most `n`; 0 where `n` is 0.
pub fn nearest_rank(q: u32, n: usize) -> usize {
    let rank = (u128::from(q.min(100)) * n as u128).div_ceil(100);
    (rank as usize).max(usize::from(n > 0))
}

/// A set of durations in nanoseconds. It has at least one: an empty set has no distribution.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize, Serialize)]
pub struct Distribution {
    /// How many.
    pub n: usize,
    /// All together.
    pub sum: Nanos,
    /// The shortest.
    pub min: Nanos,
    /// `sum / n`.
    pub mean: f64,
    /// The longest.
    pub max: Nanos,
    /// The ceil(0.50 n)-th smallest.
    pub p50: Nanos,
    /// The ceil(0.90 n)-th smallest.
    pub p90: Nanos,
    /// The ceil(0.95 n)-th smallest.
    pub p95: Nanos,
    /// The ceil(0.99 n)-th smallest.
    pub p99: Nanos,
}

impl Distribution {
    /// The distribution of `values`, which are reordered; `None` where there are none. Takes time linear in their number.
    pub fn of(values: &mut [Nanos]) -> Option<Self> {
        let (n, min, max) = (values.len(), *values.iter().min()?, *values.iter().max()?);
        let sum = values.iter().sum();
        // Each selection leaves what is greater on its right, so that the next one searches there only.
        let (mut done, mut found) = (0, [0; PERCENTILES.len()]);
        for (q, value) in PERCENTILES.into_iter().zip(&mut found) {
            let idx = nearest_rank(q, n) - 1;
            *value = *values[done..].select_nth_unstable(idx - done).1;
            done = idx;
        }
        let [p50, p90, p95, p99] = found;
        Some(Self { n, sum, min, mean: sum as f64 / n as f64, max, p50, p90, p95, p99 })
    }

    /// The percentile `q`, one of [`PERCENTILES`]; `None` for any other.
    pub fn percentile(&self, q: u32) -> Option<Nanos> {
        match q {
            50 => Some(self.p50),
            90 => Some(self.p90),
            95 => Some(self.p95),
            99 => Some(self.p99),
            _ => None,
        }
    }
}

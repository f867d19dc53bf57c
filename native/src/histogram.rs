//! A histogram whose sum is exact: integers in, and what a Prometheus page or a collector asks for out.
//!
//! Sums are integer nanoseconds or tokens and are printed without rounding, so that they equal the sums over the timelines
//! exactly; that is why they are not kept by a library whose sums are floats. Invariant: its count is the number of calls
//! of [`Histogram::observe`].

use std::fmt::Write;

const S: u64 = 1_000_000_000;

/// What a value is, and so how it is printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// Kept in nanoseconds, printed as seconds.
    Seconds,
    /// Tokens, choices: printed as they are.
    Count,
}

impl Unit {
    /// The value as a decimal number, exactly.
    pub fn show(self, value: u64) -> String {
        match self {
            Self::Count => value.to_string(),
            Self::Seconds => {
                let text = format!("{}.{:09}", value / S, value % S);
                text.trim_end_matches('0').trim_end_matches('.').to_owned()
            }
        }
    }

    /// The value as a float, for who takes no integers.
    pub fn float(self, value: u64) -> f64 {
        match self {
            Self::Count => value as f64,
            Self::Seconds => value as f64 / S as f64,
        }
    }
}

/// See the module.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Histogram {
    unit: Unit,
    bounds: &'static [u64],
    /// Values up to each bound and above the one before; the last for those above all.
    counts: Vec<u64>,
    sum: u64,
}

impl Histogram {
    /// An empty one; `bounds` are the upper bounds of its buckets, rising.
    pub fn new(unit: Unit, bounds: &'static [u64]) -> Self {
        Self { unit, bounds, counts: vec![0; bounds.len() + 1], sum: 0 }
    }

    /// Counts a value.
    pub fn observe(&mut self, value: u64) {
        self.counts[self.bounds.partition_point(|&bound| bound < value)] += 1;
        self.sum = self.sum.saturating_add(value);
    }

    /// Of all values.
    pub fn sum(&self) -> u64 {
        self.sum
    }

    /// Values so far.
    pub fn count(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// Values of each bucket alone; one more than there are bounds.
    pub fn counts(&self) -> &[u64] {
        &self.counts
    }

    /// The buckets' upper bounds in the unit that is shown.
    pub fn bounds(&self) -> impl Iterator<Item = f64> {
        self.bounds.iter().map(|&bound| self.unit.float(bound))
    }

    /// The sum in the unit that is shown.
    pub fn float_sum(&self) -> f64 {
        self.unit.float(self.sum)
    }

    /// Its lines on a Prometheus page; `labels` are those of the series, such as `model="m"`.
    pub fn write(&self, out: &mut String, name: &str, labels: &str) {
        let mut up_to = 0;
        for (idx, count) in self.counts.iter().enumerate() {
            up_to += count;
            let bound =
                self.bounds.get(idx).map_or_else(|| "+Inf".to_owned(), |&bound| self.unit.show(bound));
            let _ = writeln!(out, "{name}_bucket{{{labels},le=\"{bound}\"}} {up_to}");
        }
        let _ = writeln!(out, "{name}_sum{{{labels}}} {}", self.unit.show(self.sum));
        let _ = writeln!(out, "{name}_count{{{labels}}} {up_to}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_count_what_is_at_most_their_bound() {
        const BOUNDS: &[u64] = &[1_000_000, 5_000_000, 2_560 * S];
        let mut histogram = Histogram::new(Unit::Seconds, BOUNDS);
        [0, 1_000_000, 1_000_001, 2_560 * S, 2_560 * S + 1]
            .into_iter()
            .for_each(|value| histogram.observe(value));
        let mut out = String::new();
        histogram.write(&mut out, "x", "a=\"b\"");
        let value = |series: &str| out.lines().find_map(|line| line.strip_prefix(series)?.strip_prefix(' '));
        assert_eq!(value("x_bucket{a=\"b\",le=\"0.001\"}"), Some("2"));
        assert_eq!(value("x_bucket{a=\"b\",le=\"0.005\"}"), Some("3"));
        assert_eq!(value("x_bucket{a=\"b\",le=\"2560\"}"), Some("4"));
        assert_eq!(value("x_bucket{a=\"b\",le=\"+Inf\"}"), Some("5"));
        assert_eq!(value("x_count{a=\"b\"}"), Some("5"));
        assert_eq!(value("x_sum{a=\"b\"}"), Some("5120.002000002"));
        assert_eq!((histogram.counts(), histogram.count()), (&[2, 1, 1, 1][..], 5));
        assert_eq!(histogram.bounds().collect::<Vec<_>>(), [0.001, 0.005, 2560.0]);
    }
}

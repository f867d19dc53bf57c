//! Numbers that look random and are the same everywhere for the same seed: SplitMix64.
//!
//! For loads and prompts, not for secrets. Invariant: a stream depends on the numbers it was made from and nothing else.

/// A stream of random numbers.
#[derive(Clone, Debug)]
pub struct Random {
    state: u64,
}

impl Random {
    /// The stream that belongs to `names`: two streams whose names differ have nothing in common.
    pub fn named(names: &[u64]) -> Self {
        let mut stream = Self { state: 0 };
        for name in names {
            stream.state = stream.next_u64() ^ name;
        }
        stream
    }

    /// The next 64 bits.
    pub fn next_u64(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.state;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// Evenly from 0 up to, but not including, `bound`; 0 where `bound` is 0.
    pub fn below(&mut self, bound: usize) -> usize {
        // The high half of the product: its bias is below bound / 2^64.
        ((u128::from(self.next_u64()) * bound as u128) >> 64) as usize
    }

    /// A gap of a Poisson process of `rate` a second, in seconds: exponential, mean 1 / rate.
    pub fn exponential(&mut self, rate: f64) -> f64 {
        // 53 bits, from (0, 1]: the logarithm of 0 is no gap.
        let unit = ((self.next_u64() >> 11) + 1) as f64 / (1u64 << 53) as f64;
        -unit.ln() / rate
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(names: &[u64], other: &[u64], same: bool) {
        let draw = |names: &[u64]| {
            let mut stream = Random::named(names);
            [(); 4].map(|()| stream.next_u64())
        };
        assert_eq!(draw(names) == draw(other), same, "{names:?} {other:?}");
    }

    #[test]
    fn a_stream_is_its_names() {
        check(&[1, 2], &[1, 2], true);
        check(&[1, 2], &[2, 1], false);
        check(&[1], &[1, 0], false);
        check(&[0], &[0, 0], false);
        check(&[7, 1], &[7, 2], false);
    }

    #[test]
    fn numbers_below_a_bound_are_even() {
        let mut stream = Random::named(&[5]);
        let mut seen = [0u32; 7];
        for _ in 0..7000 {
            seen[stream.below(7)] += 1;
        }
        // Each is binomial with mean 1000 and deviation 29.
        assert!(seen.iter().all(|count| (850..1150).contains(count)), "{seen:?}");
        assert_eq!((stream.below(1), stream.below(0)), (0, 0));
    }

    #[test]
    fn gaps_have_the_mean_and_the_spread_of_a_poisson_process() {
        for rate in [0.5, 4.0, 1000.0] {
            let mut stream = Random::named(&[9]);
            let gaps: Vec<f64> = (0..20_000).map(|_| stream.exponential(rate)).collect();
            let mean = gaps.iter().sum::<f64>() / gaps.len() as f64;
            let above = gaps.iter().filter(|gap| **gap > 1.0 / rate).count() as f64 / gaps.len() as f64;
            assert!((mean * rate - 1.0).abs() < 0.03, "{rate}: {mean}");
            // One in e of all gaps is longer than the mean.
            assert!((above - 0.3679).abs() < 0.015, "{rate}: {above}");
            assert!(gaps.iter().all(|gap| gap.is_finite() && *gap >= 0.0));
        }
    }
}

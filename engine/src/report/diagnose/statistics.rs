//! Tests that ask nothing of the shape of a latency: ranks, trends, and the tail of a coin.
//!
//! Latencies are skewed, have ties on a coarse clock and follow each other: a mean with a standard deviation says little of
//! them. It knows no rule and no request. Invariant: a test of too few values is absent, never a large p.
//!
//! Sources: Mann and Whitney 1947 with ties corrected (Hollander, Wolfe and Chicken 2014, 4.1); Kendall 1970 with ties in
//! both (for instants without ties it is Mann 1945); Theil 1950 and Sen 1968 for the slope; Yue and Wang 2004 for values that
//! depend on the one before; Vargha and Delaney 2000 for the effect of a rank test.

use crate::order::sort_pairs;
use crate::report::nearest_rank;

/// Points that a trend is looked for in at most: each is held against each other one.
const MAX_POINTS: usize = 400;
/// From here on two sets hardly overlap.
const APART: f64 = 0.97;
/// How much wider dependence makes a rank test's variance at most, where they do not: as much as lets two of the smallest windows
/// be told apart that do not overlap at all.
const MOST_WIDENED: f64 = 1.7;
/// The dependence that is believed at most.
const MAX_DEPENDENCE: f64 = 0.95;

/// The chance of a standard normal variable to be above `z`; within 1.2e-7 of itself (Press et al. 1992, 6.2, `erfcc`).
pub fn normal_tail(z: f64) -> f64 {
    const SERIES: [f64; 10] = [
        0.170_872_77,
        -0.822_152_23,
        1.488_515_87,
        -1.135_203_98,
        0.278_868_07,
        -0.186_288_06,
        0.096_784_18,
        0.374_091_96,
        1.000_023_68,
        -1.265_512_23,
    ];
    let x = z.abs() / std::f64::consts::SQRT_2;
    let t = 1.0 / (1.0 + 0.5 * x);
    let exponent = SERIES.iter().fold(0.0, |sum, term| sum * t + term);
    let tail = 0.5 * t * (exponent - x * x).exp();
    if z < 0.0 { 1.0 - tail } else { tail }
}

/// The chance of `heads` or more among `n` throws of a fair coin.
pub fn coin_tail(heads: usize, n: usize) -> f64 {
    let mut ln_term = -(n as f64) * std::f64::consts::LN_2;
    let mut tail = 0.0;
    for k in 0..=n {
        if k >= heads {
            tail += ln_term.exp();
        }
        ln_term += ((n - k) as f64 / (k + 1) as f64).ln();
    }
    tail.min(1.0)
}

/// The `q`-th percentile by nearest rank; `None` of nothing.
pub fn percentile(q: u32, values: &[u64]) -> Option<u64> {
    let rank = nearest_rank(q, values.len()).checked_sub(1)?;
    Some(*values.to_vec().select_nth_unstable(rank).1)
}

/// The median of numbers that may be negative.
fn median_of(values: impl Iterator<Item = f64>) -> Option<f64> {
    // Bits in the order of the numbers, so that the one selection of whole numbers serves.
    let sign = 1 << 63;
    let ordered = |value: f64| match value.to_bits() {
        bits if bits & sign == 0 => bits | sign,
        bits => !bits,
    };
    let median = percentile(50, &values.map(ordered).collect::<Vec<u64>>())?;
    Some(f64::from_bits(if median & sign == 0 { !median } else { median ^ sign }))
}

/// Whether the values of one set tend to be larger than those of another.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RankTest {
    /// The chance that one of the second set is larger than one of the first, a tie being half: 0.5 is no difference.
    pub superiority: f64,
    /// The chance of such an order of ranks, or one further up, where there is no difference.
    pub p_up: f64,
}

/// Mann and Whitney's test that `second` is larger than `first`; the variance is widened by how much the values, which are
/// in the order of time, depend on each other in the set where they do more. Of sets that hardly overlap it is widened a little at
/// most: a dozen values in a few slow phases have no order of ranks that is rare enough otherwise, however far apart the sets are.
/// `None` where one set is empty or all values are the same.
pub fn mann_whitney(first: &[u64], second: &[u64]) -> Option<RankTest> {
    let (n, m) = (first.len() as f64, second.len() as f64);
    let mut all: Vec<(u64, u64)> = first.iter().map(|value| (*value, 0)).collect();
    all.extend(second.iter().map(|value| (*value, 1)));
    sort_pairs(&mut all);
    let (mut below, mut rank_sum, mut ties) = (0.0, 0.0, 0.0);
    for alike in all.chunk_by(|a, b| a.0 == b.0) {
        let count = alike.len() as f64;
        let of_second = alike.iter().filter(|(_, set)| *set == 1).count() as f64;
        rank_sum += of_second * (below + (count + 1.0) / 2.0);
        ties += count * (count * count - 1.0);
        below += count;
    }
    let u = rank_sum - m * (m + 1.0) / 2.0;
    let total = n + m;
    let variance = n * m / 12.0 * (total + 1.0 - ties / (total * (total - 1.0)));
    let superiority = u / (n * m);
    let of = |set: &[u64]| dependence(&set.iter().map(|value| *value as f64).collect::<Vec<f64>>());
    let wider = of(first).max(of(second));
    let wider = if superiority >= APART { wider.min(MOST_WIDENED) } else { wider };
    // Half a rank towards the middle, because ranks are whole.
    let z = (u - n * m / 2.0 - 0.5) / (variance * wider).sqrt();
    (variance > 0.0).then(|| RankTest { superiority, p_up: normal_tail(z) })
}

/// By how much the variance of a mean of these values is larger than that of independent ones: (1 + r) / (1 - r), where r is
/// how far a value depends on the one before it. At least 1.
pub fn dependence(values: &[f64]) -> f64 {
    // Of ranks, as the tests are: one value that stands out hides nothing.
    let order = ranks(values);
    let mean = (order.len() as f64 - 1.0) / 2.0;
    let spread: f64 = order.iter().map(|rank| (rank - mean).powi(2)).sum();
    let shared: f64 = order.windows(2).map(|pair| (pair[0] - mean) * (pair[1] - mean)).sum();
    let r = if spread > 0.0 { (shared / spread).clamp(0.0, MAX_DEPENDENCE) } else { 0.0 };
    (1.0 + r) / (1.0 - r)
}

/// The rank of each value from 0 on, a tie having the mean of its ranks.
fn ranks(values: &[f64]) -> Vec<f64> {
    let least = values.iter().copied().fold(f64::INFINITY, f64::min);
    // No value is below the least, and what is not negative has its bits in its own order.
    let mut order: Vec<(u64, u64)> = values.iter().map(|v| (v - least).to_bits()).zip(0..).collect();
    sort_pairs(&mut order);
    let (mut ranks, mut below) = (vec![0.0; values.len()], 0);
    for alike in order.chunk_by(|a, b| a.0 == b.0) {
        let rank = below as f64 + (alike.len() as f64 - 1.0) / 2.0;
        alike.iter().for_each(|(_, idx)| ranks[*idx as usize] = rank);
        below += alike.len();
    }
    ranks
}

/// Whether y rises with x.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Trend {
    /// The middle of the slopes between all pairs of points: y for each x.
    pub slope: f64,
    /// Where the line through the middle of the points meets x = 0.
    pub intercept: f64,
    /// The chance of so many pairs that rise, or more, where y has nothing to do with x.
    pub p_up: f64,
    /// Points that were looked at.
    pub n: usize,
}

impl Trend {
    /// The line's y at x.
    pub fn at(&self, x: u64) -> f64 {
        self.intercept + self.slope * x as f64
    }
}

/// Kendall's test for a rise of y with x, points in the order of time, with the slope of Theil and Sen. Of more than 400 points
/// every second, third and so on is taken. `None` where x or y never moves.
pub fn trend(points: &[(u64, u64)]) -> Option<Trend> {
    let stride = points.len().div_ceil(MAX_POINTS).max(1);
    let points: Vec<(f64, f64)> =
        points.iter().step_by(stride).map(|(x, y)| (*x as f64, *y as f64)).collect();
    let (mut score, mut slopes) = (0_i64, Vec::new());
    for (idx, a) in points.iter().enumerate() {
        for b in &points[idx + 1..] {
            let (dx, dy) = (b.0 - a.0, b.1 - a.1);
            if dx != 0.0 {
                slopes.push(dy / dx);
                score += i64::from(dy * dx > 0.0) - i64::from(dy * dx < 0.0);
            }
        }
    }
    let slope = median_of(slopes.into_iter())?;
    let left: Vec<f64> = points.iter().map(|(x, y)| y - slope * x).collect();
    let variance = score_variance(&points) * dependence(&left);
    let z = (score as f64 - 1.0) / variance.sqrt();
    let intercept = median_of(left.into_iter())?;
    (variance > 0.0).then(|| Trend { slope, intercept, p_up: normal_tail(z), n: points.len() })
}

/// The variance of Kendall's score with ties in x and in y.
fn score_variance(points: &[(f64, f64)]) -> f64 {
    let n = points.len() as f64;
    let ties = |values: Vec<f64>| {
        let mut order: Vec<(u64, u64)> = values.iter().map(|value| (value.to_bits(), 0)).collect();
        sort_pairs(&mut order);
        let sizes = order.chunk_by(|a, b| a.0 == b.0).map(|alike| alike.len() as f64);
        sizes.fold([0.0; 3], |[cubes, triples, pairs], t| {
            let pair = t * (t - 1.0);
            [cubes + pair * (2.0 * t + 5.0), triples + pair * (t - 2.0), pairs + pair]
        })
    };
    let x = ties(points.iter().map(|point| point.0).collect());
    let y = ties(points.iter().map(|point| point.1).collect());
    let all = n * (n - 1.0);
    let triples = if n > 2.0 { x[1] * y[1] / (9.0 * all * (n - 2.0)) } else { 0.0 };
    (all * (2.0 * n + 5.0) - x[0] - y[0]) / 18.0 + triples + x[2] * y[2] / (2.0 * all)
}

#[cfg(test)]
mod tests;

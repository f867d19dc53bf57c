//! Inter-token latency against batch and against position: points and axes of a small chart.
//!
//! It fits no line. Invariant: every point lies within its axes.

use firstlight_engine::report::{GapFigures, LatencyReport};

use super::axis::round_up;
use super::duration::{count, short, short_f64};

/// A point and its range.
#[derive(Clone, Debug, PartialEq)]
pub struct Point {
    /// 0 to 1, from left to right.
    pub x: f64,
    /// The median, 0 to 1, from the bottom up.
    pub y: f64,
    /// The shortest.
    pub low: f64,
    /// The longest, cut at the top of the chart.
    pub high: f64,
    /// Where it stands, in words.
    pub at: String,
    /// Its figures.
    pub gaps: GapFigures,
}

/// A chart.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Chart {
    /// From left to right.
    pub points: Vec<Point>,
    /// A line that does not go through the points, 0 to 1 from left to right and from the bottom up; empty where it does.
    pub line: Vec<(f64, f64)>,
    /// Where on the x axis, and what it says.
    pub x_ticks: Vec<(f64, String)>,
    /// The same of the y axis.
    pub y_ticks: Vec<(f64, String)>,
    /// What the x axis is.
    pub x_name: &'static str,
    /// Gaps that are not in it, because their steps are no longer known.
    pub forgotten: usize,
}

/// ITL against the sequences in the step.
pub fn by_batch(report: &LatencyReport) -> Chart {
    let by = &report.inter_token_by_batch;
    let largest = by.buckets.iter().map(|bucket| bucket.batch).max().unwrap_or(1).max(1);
    let x = |batch: f64| batch / (f64::from(largest) + 0.5);
    let entries = by.buckets.iter().map(|b| (x(f64::from(b.batch)), count(b.batch.into()), b.gaps));
    let step = round_up(f64::from(largest) / 6.0).max(1.0) as usize;
    let x_ticks = (0..=largest).step_by(step).map(|batch| (x(f64::from(batch)), batch.to_string())).collect();
    let points = entries.collect();
    Chart { x_name: "sequences in the step", forgotten: by.forgotten, ..chart(points, x_ticks) }
}

/// ITL against the position of the token, on a scale of powers of two.
pub fn by_position(report: &LatencyReport) -> Chart {
    let buckets = &report.inter_token_by_position;
    let log = |position: u64| f64::from(position.max(1).ilog2());
    let first = buckets.first().map_or(0.0, |bucket| log(bucket.from));
    let last = buckets.last().map_or(1.0, |bucket| log(bucket.from) + 1.0);
    let x = |at: f64| (at - first) / (last - first).max(1.0);
    let entries = buckets.iter().map(|b| {
        let at = format!("{} to {}", count(b.from), count(b.to.saturating_sub(1)));
        (x(log(b.from) + 0.5), at, b.gaps)
    });
    let points = entries.collect();
    let edges = buckets.iter().map(|b| (x(log(b.from)), count(b.from)));
    let end = buckets.last().map(|b| (1.0, count(b.to)));
    Chart { x_name: "position of the token", ..chart(points, edges.chain(end).collect()) }
}

fn chart(entries: Vec<(f64, String, GapFigures)>, x_ticks: Vec<(f64, String)>) -> Chart {
    // One outlier must not flatten the rest: the axis ends at twice the largest median, or at the longest gap below that.
    let longest = entries.iter().map(|(.., gaps)| gaps.max).max().unwrap_or(0) as f64;
    let median = entries.iter().map(|(.., gaps)| gaps.p50).max().unwrap_or(0) as f64;
    let wanted = longest.min(2.0 * median).max(1.0);
    let step = round_up(wanted / 4.0);
    let top = (wanted / step).ceil() * step;
    let y = |nanos: u64| (nanos as f64 / top).clamp(0.0, 1.0);
    let points = entries.into_iter().map(|(x, at, gaps)| Point {
        x: x.clamp(0.0, 1.0),
        y: y(gaps.p50),
        low: y(gaps.min),
        high: y(gaps.max),
        at,
        gaps,
    });
    let lines = (top / step).round() as u32;
    let label = |line: u32| if line == 0 { "0".to_owned() } else { short_f64(f64::from(line) * step) };
    let y_ticks = (0..=lines).map(|line| (f64::from(line) * step / top, label(line)));
    Chart { points: points.collect(), x_ticks, y_ticks: y_ticks.collect(), ..Chart::default() }
}

/// The mean of a bucket.
pub fn mean(gaps: &GapFigures) -> String {
    gaps.sum.checked_div(gaps.n as u64).map_or("–".to_owned(), short)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn points_lie_within_round_axes() {
        let gaps = |p50: u64| GapFigures { n: 3, sum: 3 * p50, min: p50 / 2, max: p50 * 40, p50 };
        let check = |medians: &[u64]| {
            let entries =
                medians.iter().enumerate().map(|(idx, p50)| (idx as f64 / 9.0, String::new(), gaps(*p50)));
            let chart = chart(entries.collect(), Vec::new());
            let within = |value: f64| (0.0..=1.0).contains(&value);
            assert!(
                chart.points.iter().all(|p| within(p.x) && within(p.y) && within(p.low) && within(p.high))
            );
            assert!((2..=6).contains(&chart.y_ticks.len()), "{:?}", chart.y_ticks);
            assert!(chart.y_ticks.iter().all(|(y, _)| within(*y)));
        };
        check(&[]);
        check(&[0]);
        check(&[1]);
        check(&[43_000_000, 187_000_000, 9_000]);
        check(&[u64::MAX / 64; 10]);
    }
}

//! The time axis: which instants are in view, where they stand, and which of them get a label.
//!
//! It knows no request. Invariant: whatever it is asked, every position is finite and the scale stays within its bounds.

use firstlight_engine::clock::Nanos;

/// The closest look: one nanosecond a pixel.
const MIN_NS_PER_PX: f64 = 1.0;
/// The widest: all instants below 2^53 on ten pixels.
const MAX_NS_PER_PX: f64 = 1e15;
/// A picture is never narrower, so that nothing divides by 0.
const MIN_WIDTH: f64 = 40.0;
/// The span that a view which follows shows at least.
const FOLLOW_AT_LEAST: f64 = 1e9;

/// What of the time is in view.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Viewport {
    /// The instant at the left edge, in nanoseconds.
    pub from: f64,
    /// The scale.
    pub ns_per_px: f64,
    /// In pixels.
    pub width: f64,
}

impl Default for Viewport {
    fn default() -> Self {
        Self { from: 0.0, ns_per_px: 1e7, width: 600.0 }
    }
}

/// A label on the axis.
#[derive(Clone, Debug, PartialEq)]
pub struct AxisTick {
    /// Where.
    pub x: f64,
    /// What it says.
    pub label: String,
}

impl Viewport {
    fn bounded(from: f64, ns_per_px: f64, width: f64) -> Self {
        let finite = |value: f64, instead: f64| if value.is_finite() { value } else { instead };
        Self {
            from: finite(from, 0.0).clamp(-2e19, 2e19),
            ns_per_px: finite(ns_per_px, 1e7).clamp(MIN_NS_PER_PX, MAX_NS_PER_PX),
            width: finite(width, MIN_WIDTH).clamp(MIN_WIDTH, 20_000.0),
        }
    }

    /// Where an instant stands, in pixels from the left edge.
    pub fn x(&self, at: Nanos) -> f64 {
        (at as f64 - self.from) / self.ns_per_px
    }

    /// The instant at a position; nothing comes before 0.
    pub fn at(&self, x: f64) -> Nanos {
        (self.from + x * self.ns_per_px).max(0.0) as Nanos
    }

    /// The instant at the right edge.
    pub fn to(&self) -> f64 {
        self.from + self.width * self.ns_per_px
    }

    /// The same left edge and scale on another width.
    pub fn resized(&self, width: f64) -> Self {
        Self::bounded(self.from, self.ns_per_px, width)
    }

    /// The same span of time on another width.
    pub fn rescaled(&self, width: f64) -> Self {
        let width = width.max(MIN_WIDTH);
        Self::bounded(self.from, self.ns_per_px * self.width / width, width)
    }

    /// From `from` to `to`, with a little air at both ends.
    pub fn fit(from: Nanos, to: Nanos, width: f64) -> Self {
        let width = width.max(MIN_WIDTH);
        let span = (to.max(from) - from) as f64;
        let scale = (span / (width * 0.96)).max(MIN_NS_PER_PX);
        Self::bounded(from as f64 - scale * width * 0.02, scale, width)
    }

    /// Zoomed by `factor` (above 1 is closer) about the position `x`, whose instant stays where it is.
    pub fn zoomed(&self, factor: f64, x: f64) -> Self {
        let wanted = self.ns_per_px / if factor.is_finite() && factor > 0.0 { factor } else { 1.0 };
        let scale = wanted.clamp(MIN_NS_PER_PX, MAX_NS_PER_PX);
        Self::bounded(self.from + x * (self.ns_per_px - scale), scale, self.width)
    }

    /// Moved so that what was at `px` comes to the left edge.
    pub fn panned(&self, px: f64) -> Self {
        Self::bounded(self.from + px * self.ns_per_px, self.ns_per_px, self.width)
    }

    /// What a view shows that follows: from the oldest request that lives up to now, on a scale that jumps only when it
    /// has to, so that bars grow on a still axis.
    pub fn follow(&self, oldest: Nanos, now: Nanos) -> Self {
        let (oldest, now) = (oldest as f64, now.max(oldest) as f64);
        let span = self.width * self.ns_per_px;
        let still = self.from <= oldest && now <= self.to() - span * 0.02 && oldest - self.from <= span / 2.0;
        // A view that was drawn far too wide is no view.
        if still && (now - self.from) * 50.0 >= span.min(FOLLOW_AT_LEAST * 50.0) {
            return *self;
        }
        let scale = round_up((now - oldest).max(FOLLOW_AT_LEAST) * 1.06) / self.width;
        Self::bounded(oldest - scale * self.width * 0.02, scale, self.width)
    }

    /// Round ticks, at most one every `apart` pixels, labelled by the time since `origin`.
    pub fn ticks(&self, origin: Nanos, apart: f64) -> Vec<AxisTick> {
        let step = round_up(self.ns_per_px * apart.max(20.0)).max(1.0);
        let origin = origin as f64;
        let first = ((self.from - origin) / step).ceil();
        let count = (self.width * self.ns_per_px / step).floor().min(1_000.0) as u32;
        (0..=count)
            .map(|idx| (first + f64::from(idx)) * step)
            .map(|since| AxisTick {
                x: (origin + since - self.from) / self.ns_per_px,
                label: label(since, step),
            })
            .filter(|tick| (0.0..=self.width).contains(&tick.x))
            .collect()
    }
}

/// The smallest of 1, 2, 5, 10, 20, 50, ... that is not below `value`.
pub fn round_up(value: f64) -> f64 {
    if !value.is_finite() || value <= 0.0 {
        return 1.0;
    }
    let decade = 10f64.powf(value.log10().floor());
    let steps = [1.0, 2.0, 5.0, 10.0].map(|of| of * decade);
    // The logarithm of a round number may come out a hair below it.
    steps.into_iter().find(|step| *step >= value * (1.0 - 1e-9)).unwrap_or(10.0 * decade)
}

/// In the unit of the step, so that labels of one axis have one unit; whole where the step is.
fn label(since: f64, step: f64) -> String {
    let (scale, unit) = match step {
        ..1e3 => (1.0, "ns"),
        ..1e6 => (1e3, "µs"),
        ..1e8 => (1e6, "ms"),
        _ => (1e9, "s"),
    };
    let decimals = if step < scale { 1 } else { usize::from((step / scale).fract() > 1e-9) };
    let value = since / scale;
    // No "-0".
    let value = if value.abs() < 1e-9 { 0.0 } else { value };
    format!("{value:.decimals$} {unit}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_are_round() {
        let check =
            |value: f64, expected: f64| assert!((round_up(value) / expected - 1.0).abs() < 1e-9, "{value}");
        for (value, expected) in [
            (0.7, 1.0),
            (1.0, 1.0),
            (1.01, 2.0),
            (2.0, 2.0),
            (3.0, 5.0),
            (5.1, 10.0),
            (1e9, 1e9),
            (1.3e9, 2e9),
        ] {
            check(value, expected);
        }
        for nonsense in [0.0, -5.0, f64::NAN, f64::INFINITY] {
            assert_eq!(round_up(nonsense), 1.0);
        }
    }

    #[test]
    fn ticks_are_few_round_and_relative_to_the_origin() {
        let check = |span: Nanos, origin: Nanos, expected: &[&str]| {
            let view = Viewport { from: origin as f64, ns_per_px: span as f64 / 500.0, width: 500.0 };
            let labels: Vec<String> = view.ticks(origin, 100.0).into_iter().map(|tick| tick.label).collect();
            assert_eq!(labels, expected, "{span}");
        };
        check(1_000, 77, &["0 ns", "200 ns", "400 ns", "600 ns", "800 ns", "1000 ns"]);
        check(5_000_000, 0, &["0 ms", "1 ms", "2 ms", "3 ms", "4 ms", "5 ms"]);
        check(2_500_000_000, 9, &["0.0 s", "0.5 s", "1.0 s", "1.5 s", "2.0 s", "2.5 s"]);
        check(600_000_000_000, 5, &["0 s", "200 s", "400 s", "600 s"]);
    }

    #[test]
    fn a_zoom_leaves_the_instant_under_the_cursor_where_it_is() {
        let view = Viewport { from: 5e9, ns_per_px: 1e6, width: 800.0 };
        for (factor, x) in [
            (2.0, 0.0),
            (2.0, 400.0),
            (0.5, 799.0),
            (1e12, 13.0),
            (1e-12, 13.0),
            (f64::NAN, 3.0),
            (-1.0, 3.0),
        ] {
            let zoomed = view.zoomed(factor, x);
            let (before, after) = (view.from + x * view.ns_per_px, zoomed.from + x * zoomed.ns_per_px);
            assert!(
                (before - after).abs() <= zoomed.ns_per_px * 1e-6 + 1.0,
                "{factor} about {x}: {before} {after}"
            );
            assert!((MIN_NS_PER_PX..=MAX_NS_PER_PX).contains(&zoomed.ns_per_px));
        }
    }

    #[test]
    fn what_is_fitted_lies_within() {
        for (from, to) in [(0, 0), (5, 5), (1_000, 9_000), (0, 1 << 53), (7, 3)] {
            let view = Viewport::fit(from, to, 300.0);
            assert!(view.x(from) >= 0.0 && view.x(to.max(from)) <= 300.0, "{from} {to} {view:?}");
        }
    }

    #[test]
    fn a_view_that_follows_holds_still_until_it_has_to_jump() {
        let start = 3_000_000_000;
        let mut view = Viewport::default().resized(500.0);
        let mut jumps = 0;
        for tenth in 0..600 {
            let now = start + tenth * 100_000_000;
            let next = view.follow(start, now);
            assert!(next.x(start) >= 0.0 && next.x(now) <= 500.0, "{tenth}: {next:?}");
            jumps += u32::from(next != view);
            view = next;
        }
        // 2, 5, 10, 20, 50, 100 seconds.
        assert!((5..=8).contains(&jumps), "{jumps}");
        // The old ones ended: the next burst starts at the left again.
        let next = view.follow(start + 600_000_000_000, start + 600_000_000_000);
        assert!(next.x(start + 600_000_000_000) < 50.0);
    }
}

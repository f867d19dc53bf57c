//! The gaps between one request's tokens as little bars.
//!
//! Invariant: gap `i` is the one before token `i`, counted from 1, and stands in column `i - 1`.

use std::fmt::Write;

use firstlight_engine::clock::Nanos;

use super::lanes::slow_limit;

/// A column, in pixels: wide enough for a finger with a little aim.
pub const GAP_WIDTH: f64 = 8.0;
/// The strip, in pixels.
pub const STRIP_HEIGHT: f64 = 64.0;

/// What the blame for the gap before a token of a request is kept by.
pub fn gap_name(request: &str, token_idx: usize) -> String {
    format!("{request} {token_idx}")
}

/// The gap before a token.
pub fn gap_before(token_at: &[Nanos], token_idx: usize) -> Option<Nanos> {
    let before = *token_at.get(token_idx.checked_sub(1)?)?;
    Some(token_at.get(token_idx)?.saturating_sub(before))
}

/// The token after the longest gap; the first of equal ones.
pub fn longest(token_at: &[Nanos]) -> Option<usize> {
    let gaps = (1..token_at.len()).rev().filter_map(|idx| Some((gap_before(token_at, idx)?, idx)));
    gaps.max_by_key(|(gap, _)| *gap).map(|(_, idx)| idx)
}

/// The bars, on a scale that ends at the longest gap.
pub fn gap_svg(token_at: &[Nanos]) -> String {
    let top = longest(token_at).and_then(|idx| gap_before(token_at, idx)).unwrap_or(0).max(1) as f64;
    let limit = slow_limit(token_at);
    let (mut usual, mut slow) = (String::new(), String::new());
    for idx in 1..token_at.len() {
        let Some(gap) = gap_before(token_at, idx) else { continue };
        let height = (gap as f64 / top * (STRIP_HEIGHT - 4.0)).max(1.0);
        let is_slow = limit.is_some_and(|limit| gap > limit);
        let path = if is_slow { &mut slow } else { &mut usual };
        let x = GAP_WIDTH * (idx - 1) as f64 + 1.0;
        // Text can be written to a string without an error.
        let _ = write!(path, "M{x} {STRIP_HEIGHT}v-{height:.1}h{}V{STRIP_HEIGHT}z", GAP_WIDTH - 2.0);
    }
    format!(r#"<path class="gap" d="{usual}"/><path class="gap-slow" d="{slow}"/>"#)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_gap_is_the_first_of_equal_ones() {
        let check = |token_at: &[Nanos], expected: Option<usize>| {
            assert_eq!(longest(token_at), expected, "{token_at:?}")
        };
        check(&[], None);
        check(&[5], None);
        check(&[5, 9], Some(1));
        check(&[5, 9, 19, 20, 30], Some(2));
        assert_eq!(
            (gap_before(&[5, 9], 1), gap_before(&[5, 9], 0), gap_before(&[5, 9], 2)),
            (Some(4), None, None)
        );
    }

    #[test]
    fn every_gap_has_a_bar_and_slow_ones_have_another_colour() {
        let svg = gap_svg(&[0, 10, 20, 30, 300, 310]);
        let bars = |class: &str| {
            svg.split(class).nth(1).and_then(|rest| rest.split("/>").next()).map(|d| d.matches('M').count())
        };
        assert_eq!((bars(r#"class="gap""#), bars(r#"class="gap-slow""#)), (Some(4), Some(1)));
        assert!(!gap_svg(&[]).contains("NaN") && !gap_svg(&[7, 7, 7]).contains("NaN"));
    }
}

//! Whether the worker's clock agrees with the page's.
//!
//! It never reads a clock. Invariant: after the correction, what the worker heard was heard within the round trip.

use firstlight_engine::clock::Nanos;

/// What must be added to the worker's clock: `None` if `heard_at` lies within the round trip; else the way to its middle.
pub fn correction(sent_at: Nanos, heard_at: Nanos, back_at: Nanos) -> Option<i64> {
    if (sent_at..=back_at).contains(&heard_at) {
        return None;
    }
    let middle = sent_at + back_at.saturating_sub(sent_at) / 2;
    // Instants are below 2^53.
    Some(middle as i64 - heard_at as i64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clock_outside_the_round_trip_is_moved_to_its_middle() {
        let cases = [
            ((100, 150, 200), None),
            ((100, 100, 200), None),
            ((100, 200, 200), None),
            ((100, 99, 200), Some(51)),
            ((100, 1150, 200), Some(-1000)),
            // A page's clock that went back: the correction still leads to an instant that the page knows.
            ((200, 500, 100), Some(-300)),
        ];
        for ((sent, heard, back), expected) in cases {
            assert_eq!(correction(sent, heard, back), expected, "{sent} {heard} {back}");
        }
    }
}

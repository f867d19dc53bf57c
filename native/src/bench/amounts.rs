//! Figures as a person reads them: digits in groups, and parts that sum to the whole that stands above them.
//!
//! Pure. Invariant: parts are rounded at the edges between them, so no part is off by more than one unit of what is
//! printed, and the printed parts sum to the printed whole.

use firstlight_engine::clock::Nanos;

/// `12345678` as `12,345,678`.
pub fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (idx, digit) in digits.chars().enumerate() {
        if idx > 0 && (digits.len() - idx).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// Hundredths, in groups: `123456` is `1,234.56`.
fn hundredths(units: u64) -> String {
    format!("{}.{:02}", grouped(units / 100), units % 100)
}

/// Nanoseconds as `1,234.56 ms`.
pub fn milliseconds(ns: f64) -> String {
    format!("{} ms", hundredths((ns / 1e4).round() as u64))
}

/// Nanoseconds as `12.34 s`.
pub fn seconds(ns: f64) -> String {
    format!("{} s", hundredths((ns / 1e7).round() as u64))
}

/// Hundredths of a millisecond as `1,234.56 ms`.
pub fn milliseconds_of(units: u64) -> String {
    format!("{} ms", hundredths(units))
}

/// The means of parts, which are given as sums over `n`: each in hundredths of a millisecond, and at last their whole.
/// Empty where n is 0.
pub fn mean_parts(sums: &[Nanos], n: usize) -> Vec<u64> {
    rounded_at_edges(sums, |at| {
        // Hundredths of a millisecond, rounded half up.
        let doubled = 2 * u128::from(at) + 10_000 * n as u128;
        (n > 0).then(|| (doubled / (20_000 * n as u128)) as u64)
    })
}

/// The shares of parts as percentages with one digit, and at last 100.0. Empty where there is nothing to share.
pub fn shares(sums: &[Nanos]) -> Vec<String> {
    let whole: u128 = sums.iter().map(|sum| u128::from(*sum)).sum();
    rounded_at_edges(sums, |at| (whole > 0).then(|| ((2000 * u128::from(at) + whole) / (2 * whole)) as u64))
        .into_iter()
        .map(|tenths| format!("{}.{} %", tenths / 10, tenths % 10))
        .collect()
}

/// Each part in units, and the whole; `unit` rounds a running sum.
fn rounded_at_edges(sums: &[Nanos], unit: impl Fn(Nanos) -> Option<u64>) -> Vec<u64> {
    let mut at: Nanos = 0;
    let mut parts = Vec::new();
    for sum in sums {
        let from = unit(at);
        at = at.saturating_add(*sum);
        let (Some(from), Some(to)) = (from, unit(at)) else { return Vec::new() };
        parts.push(to - from);
    }
    parts.extend(unit(at));
    parts
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check_shares(sums: &[Nanos], expected: &[&str]) {
        assert_eq!(shares(sums), expected, "{sums:?}");
        let tenths = |text: &str| text.replace(['.', ' ', '%'], "").parse::<u64>().unwrap();
        if let Some((whole, parts)) = shares(sums).split_last() {
            assert_eq!(tenths(whole), 1000, "{sums:?}");
            assert_eq!(parts.iter().map(|part| tenths(part)).sum::<u64>(), 1000, "{sums:?}");
        }
    }

    #[test]
    fn printed_shares_sum_to_exactly_a_hundred() {
        check_shares(&[1, 1, 1], &["33.3 %", "33.4 %", "33.3 %", "100.0 %"]);
        check_shares(&[0, 0, 7], &["0.0 %", "0.0 %", "100.0 %", "100.0 %"]);
        check_shares(&[4, 4, 4, 9988], &["0.0 %", "0.1 %", "0.0 %", "99.9 %", "100.0 %"]);
        check_shares(&[u64::MAX / 2, u64::MAX / 2], &["50.0 %", "50.0 %", "100.0 %"]);
        check_shares(&[0, 0], &[]);
        check_shares(&[], &[]);
        for seed in 1..500u64 {
            let sums = [seed * 7919, seed * seed * 104_729, seed * 31, 1 << (seed % 40)];
            let parts = shares(&sums);
            check_shares(&sums, &parts.iter().map(String::as_str).collect::<Vec<_>>());
        }
    }

    fn check_means(sums: &[Nanos], n: usize, expected: &[&str]) {
        let got: Vec<String> = mean_parts(sums, n).into_iter().map(milliseconds_of).collect();
        assert_eq!(got, expected, "{sums:?} {n}");
    }

    #[test]
    fn printed_parts_sum_to_the_printed_mean() {
        check_means(&[4_000, 4_000, 4_000], 1, &["0.00 ms", "0.01 ms", "0.00 ms", "0.01 ms"]);
        check_means(
            &[10_000_000, 0, 5_000_000_000_000],
            2,
            &["5.00 ms", "0.00 ms", "2,500,000.00 ms", "2,500,005.00 ms"],
        );
        check_means(&[1], 0, &[]);
    }

    #[test]
    fn digits_stand_in_groups() {
        for (number, expected) in [(0, "0"), (999, "999"), (1000, "1,000"), (1_234_567, "1,234,567")] {
            assert_eq!(grouped(number), expected);
        }
        assert_eq!(milliseconds(1_234_567_890.0), "1,234.57 ms");
        assert_eq!(milliseconds(0.0), "0.00 ms");
        assert_eq!(seconds(7_124_000_000.0), "7.12 s");
    }
}

//! Figures as people read them: bytes, rates, durations, counts.
//!
//! It never decides what is shown. Invariant: the same figure is written the same way everywhere on the page.

use firstlight_engine::clock::Nanos;

/// Bytes in the decimal units that downloads are announced in: `98.4 MB`.
pub fn bytes(n: u64) -> String {
    const UNITS: [&str; 4] = ["kB", "MB", "GB", "TB"];
    if n < 1000 {
        return format!("{n} B");
    }
    let (mut value, mut unit) = (n as f64 / 1000.0, 0);
    // 999.95 would be written 1000.0.
    while value >= 999.95 && unit + 1 < UNITS.len() {
        value /= 1000.0;
        unit += 1;
    }
    match value < 99.95 {
        true => format!("{value:.1} {}", UNITS[unit]),
        false => format!("{value:.0} {}", UNITS[unit]),
    }
}

/// A duration with three figures that matter: `0.412 ms`, `84.1 ms`, `1.23 s`, `2 min 05 s`.
pub fn duration(ns: Nanos) -> String {
    let ms = ns as f64 / 1e6;
    match ms {
        _ if ns == 0 => "0 ms".to_owned(),
        ms if ms < 0.9995 => format!("{ms:.3} ms"),
        ms if ms < 9.995 => format!("{ms:.2} ms"),
        ms if ms < 99.95 => format!("{ms:.1} ms"),
        ms if ms < 999.5 => format!("{ms:.0} ms"),
        ms if ms < 9_995.0 => format!("{:.2} s", ms / 1e3),
        ms if ms < 59_950.0 => format!("{:.1} s", ms / 1e3),
        ms => seconds((ms / 1e3).round() as u64),
    }
}

/// Whole seconds: `12 s`, `2 min 05 s`, `1 h 02 min`.
pub fn seconds(s: u64) -> String {
    match s {
        0..60 => format!("{s} s"),
        60..3600 => format!("{} min {:02} s", s / 60, s % 60),
        _ => format!("{} h {:02} min", s / 3600, s % 3600 / 60),
    }
}

/// How long `left` takes at `per_second`; `None` where that cannot be said.
pub fn time_left(left: u64, per_second: f64) -> Option<String> {
    let left = left as f64 / per_second;
    // A rate that would take days is no rate yet.
    (per_second > 0.0 && left.is_finite() && left < 360_000.0).then(|| seconds(left.ceil() as u64))
}

/// Tokens a second: `43.1`.
pub fn rate(per_second: f64) -> String {
    match per_second {
        r if !r.is_finite() || r <= 0.0 => "0".to_owned(),
        r if r < 99.95 => format!("{r:.1}"),
        r => format!("{r:.0}"),
    }
}

/// `1 token`, `2 tokens`.
pub fn count(n: u64, one: &str) -> String {
    match n {
        1 => format!("1 {one}"),
        n => format!("{} {one}s", grouped(n)),
    }
}

/// Thousands apart: `12,345`.
pub fn grouped(n: u64) -> String {
    let digits = n.to_string();
    let mut out = String::with_capacity(digits.len() + digits.len() / 3);
    for (idx, digit) in digits.chars().enumerate() {
        if idx > 0 && (digits.len() - idx).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check<I: std::fmt::Debug + Clone>(write: impl Fn(I) -> String, cases: &[(I, &str)]) {
        for (input, expected) in cases {
            assert_eq!(write(input.clone()), *expected, "{input:?}");
        }
    }

    #[test]
    fn bytes_are_written_as_downloads_are_announced() {
        let cases = [
            (0, "0 B"),
            (999, "999 B"),
            (1000, "1.0 kB"),
            (98_362_432, "98.4 MB"),
            (999_960, "1.0 MB"),
            (134_000_000, "134 MB"),
            (5_000_000_000, "5.0 GB"),
            (u64::MAX, "18446744 TB"),
        ];
        check(bytes, &cases);
    }

    #[test]
    fn durations_keep_three_figures() {
        let cases = [
            (0, "0 ms"),
            (412_000, "0.412 ms"),
            (999_999, "1.00 ms"),
            (84_123_000, "84.1 ms"),
            (842_000_000, "842 ms"),
            (999_900_000, "1.00 s"),
            (12_340_000_000, "12.3 s"),
            (59_990_000_000, "1 min 00 s"),
            (125_000_000_000, "2 min 05 s"),
            (3_720_000_000_000, "1 h 02 min"),
        ];
        check(duration, &cases);
    }

    #[test]
    fn what_is_left_takes_as_long_as_the_rate_says() {
        let words = |(left, rate): (u64, f64)| time_left(left, rate).unwrap_or_default();
        let cases = [
            ((57_200_000, 5_200_000.0), "11 s"),
            ((0, 1.0), "0 s"),
            ((1, 0.0), ""),
            ((1, f64::NAN), ""),
            ((u64::MAX, 1.0), ""),
        ];
        check(words, &cases);
    }

    #[test]
    fn counts_have_their_plural_and_their_groups() {
        check(
            |n| count(n, "token"),
            &[(0, "0 tokens"), (1, "1 token"), (2, "2 tokens"), (1234, "1,234 tokens")],
        );
        check(grouped, &[(0, "0"), (999, "999"), (1000, "1,000"), (1_234_567, "1,234,567")]);
        check(rate, &[(43.14, "43.1"), (0.0, "0"), (f64::INFINITY, "0"), (1234.0, "1234")]);
    }
}

//! Figures as people read them: bytes, rates, counts, what is left.
//!
//! It never decides what is shown. Invariant: the same figure is written the same way everywhere on the page.

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
        n => format!("{} {one}s", super::duration::count(n)),
    }
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
        check(rate, &[(43.14, "43.1"), (0.0, "0"), (f64::INFINITY, "0"), (1234.0, "1234")]);
    }
}

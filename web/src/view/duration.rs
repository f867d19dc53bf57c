//! Durations, shares and counts in words that a person reads.
//!
//! It rounds for the eye and never for a sum: [`exact`] keeps every nanosecond. Invariant: no figure is "NaN" or "inf".

use firstlight_engine::clock::Nanos;

/// Three figures and the unit that suits them: `1.06 s`, `187 ms`, `61.8 µs`, `20 ns`.
pub fn short(nanos: Nanos) -> String {
    short_f64(nanos as f64)
}

/// As [`short`], of a mean. Anything that is no number is a dash.
pub fn short_f64(nanos: f64) -> String {
    if !nanos.is_finite() || nanos < 0.0 {
        return "–".to_owned();
    }
    // A unit is left where its figures would round to 1,000 of it.
    let units = [(1.0, "ns"), (1e3, "µs"), (1e6, "ms"), (1e9, "s")];
    let (scale, unit) = units.into_iter().find(|(scale, _)| nanos < 999.5 * scale).unwrap_or((1e9, "s"));
    format!("{} {unit}", three_figures(nanos / scale))
}

/// Three significant figures, without an exponent and without zeros at the end of whole numbers.
pub fn three_figures(value: f64) -> String {
    if !value.is_finite() {
        return "–".to_owned();
    }
    match value.abs() {
        0.0 => "0".to_owned(),
        ..99.95 if value.fract() == 0.0 => format!("{value}"),
        ..9.995 => format!("{value:.2}"),
        ..99.95 => format!("{value:.1}"),
        ..1e15 => grouped(value.abs().round() as u64, value < 0.0),
        _ => "–".to_owned(),
    }
}

/// A whole number with a comma every three digits.
pub fn count(value: u64) -> String {
    grouped(value, false)
}

fn grouped(value: u64, negative: bool) -> String {
    let digits = value.to_string();
    let mut out = String::with_capacity(digits.len() + digits.len() / 3 + 1);
    if negative {
        out.push('-');
    }
    for (idx, digit) in digits.chars().enumerate() {
        if idx > 0 && (digits.len() - idx).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

/// Every nanosecond: `360,700,123 ns`.
pub fn exact(nanos: Nanos) -> String {
    format!("{} ns", count(nanos))
}

/// Milliseconds with three decimals, cut, not rounded: a column of them reads like the column of nanoseconds beside it.
pub fn millis(nanos: Nanos) -> String {
    format!("{}.{:03}", count(nanos / 1_000_000), nanos / 1_000 % 1_000)
}

/// `part / whole` in per cent; a dash where there is no whole.
pub fn share(part: f64, whole: f64) -> String {
    let percent = 100.0 * part / whole;
    match percent {
        _ if !percent.is_finite() => "–".to_owned(),
        0.0 => "0 %".to_owned(),
        ..0.1 => "< 0.1 %".to_owned(),
        ..99.95 => format!("{percent:.1} %"),
        _ => format!("{percent:.0} %"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_duration_has_three_figures_and_the_unit_that_suits_it() {
        let check = |nanos: Nanos, expected: &str| assert_eq!(short(nanos), expected, "{nanos}");
        check(0, "0 ns");
        check(20, "20 ns");
        check(7, "7 ns");
        check(999, "999 ns");
        check(1_000, "1 µs");
        check(61_817, "61.8 µs");
        check(999_499, "999 µs");
        check(999_500, "1.00 ms");
        check(187_000_000, "187 ms");
        check(1_055_018_122, "1.06 s");
        check(7_200_000_000_000, "7,200 s");
    }

    #[test]
    fn an_exact_figure_keeps_every_nanosecond() {
        let check = |nanos: Nanos, ns: &str, ms: &str| {
            assert_eq!((exact(nanos).as_str(), millis(nanos).as_str()), (ns, ms))
        };
        check(0, "0 ns", "0.000");
        check(999, "999 ns", "0.000");
        check(360_700_123, "360,700,123 ns", "360.700");
        check(1_055_018_122, "1,055,018,122 ns", "1,055.018");
        check((1 << 53) - 1, "9,007,199,254,740,991 ns", "9,007,199,254.740");
    }

    #[test]
    fn what_is_no_number_is_a_dash() {
        for no in [f64::NAN, f64::INFINITY, -1.0] {
            assert_eq!(short_f64(no), "–");
        }
        assert_eq!((share(1.0, 0.0), share(0.0, 0.0)), ("–".into(), "–".into()));
        assert_eq!(
            (share(1.0, 3.0), share(3.0, 3.0), share(1.0, 1e9)),
            ("33.3 %".into(), "100 %".into(), "< 0.1 %".into())
        );
    }
}

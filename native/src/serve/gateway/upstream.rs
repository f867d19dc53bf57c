//! When a proxy had the request: `x-request-start`, in the spellings that proxies have for it.
//!
//! Two clocks make the difference, the proxy's and this machine's: it is an estimate, and nothing is added to it or to
//! anything by it. Invariant: a time that cannot be meant gives no estimate.

use std::time::{SystemTime, UNIX_EPOCH};

use axum::http::{HeaderMap, HeaderName};

const REQUEST_START: HeaderName = HeaderName::from_static("x-request-start");
/// What a proxy's clock may be ahead of this machine's.
const MAX_AHEAD_NS: i128 = 1_000_000_000;
/// No proxy holds a request so long; what is older is another unit or a wrong clock.
const MAX_AGE_NS: i128 = 3_600_000_000_000;

/// When a proxy had the request, in Unix ns of its clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct RequestStart(i128);

/// Reads the header, where there is one.
pub(super) fn request_start(headers: &HeaderMap) -> Option<RequestStart> {
    headers.get(REQUEST_START)?.to_str().ok().and_then(read)
}

impl RequestStart {
    /// Nanoseconds from then to now; below 0 where the proxy's clock is a little ahead.
    pub(super) fn until_now(self) -> Option<i64> {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).ok()?;
        self.until(i128::try_from(now.as_nanos()).ok()?)
    }

    fn until(self, now_unix_ns: i128) -> Option<i64> {
        let estimate = now_unix_ns - self.0;
        let meant = (-MAX_AHEAD_NS..=MAX_AGE_NS).contains(&estimate);
        meant.then(|| i64::try_from(estimate).ok()).flatten()
    }
}

/// `t=1700000000.123` as nginx writes it, and the same without `t=`; milliseconds, microseconds and nanoseconds, which
/// the number's size tells apart: for the centuries to come they lie a thousandfold from each other.
fn read(header: &str) -> Option<RequestStart> {
    let text = header.trim();
    let text = text.strip_prefix("t=").unwrap_or(text);
    let (whole, fraction) = text.split_once('.').unwrap_or((text, ""));
    let is_number = |digits: &str| digits.bytes().all(|byte| byte.is_ascii_digit());
    if whole.is_empty() || whole.len() > 19 || fraction.len() > 9 || !is_number(whole) || !is_number(fraction)
    {
        return None;
    }
    let number: i128 = whole.parse().ok()?;
    let unit_ns: i128 = match number {
        ..100_000_000_000 => 1_000_000_000,
        ..100_000_000_000_000 => 1_000_000,
        ..100_000_000_000_000_000 => 1_000,
        _ => 1,
    };
    // The fraction's digits, as billionths of the unit.
    let billionths: i128 = format!("{fraction:0<9}").parse().ok()?;
    Some(RequestStart(number * unit_ns + billionths * unit_ns / 1_000_000_000))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_start_is_read_in_every_unit_that_proxies_write() {
        let check = |header: &str, expected: Option<i128>| {
            assert_eq!(read(header), expected.map(RequestStart), "{header:?}");
        };
        const AT: i128 = 1_700_000_000_123_000_000;
        check("t=1700000000.123", Some(AT));
        check("1700000000.123", Some(AT));
        check(" 1700000000123 ", Some(AT));
        check("1700000000123.5", Some(AT + 500_000));
        check("t=1700000000123000", Some(AT));
        check("1700000000123000000", Some(AT));
        check("t=1700000000", Some(AT - 123_000_000));
        check("t=", None);
        check("", None);
        check("t=-5", None);
        check("t=1e9", None);
        check("t=1700000000.123.4", None);
        check("t=1700000000.1234567890", None);
        check("99999999999999999999", None);
        check("now", None);
    }

    #[test]
    fn an_estimate_is_within_a_second_ahead_and_an_hour_behind_or_none() {
        let check = |start: i128, now: i128, expected: Option<i64>| {
            assert_eq!(RequestStart(start).until(now), expected, "{start} at {now}");
        };
        const S: i128 = 1_000_000_000;
        check(10 * S, 10 * S + 7, Some(7));
        check(10 * S, 10 * S - 7, Some(-7));
        check(10 * S, 9 * S, Some(-1_000_000_000));
        check(10 * S, 9 * S - 1, None);
        check(0, 3600 * S, Some(3_600_000_000_000));
        check(0, 3600 * S + 1, None);
    }
}

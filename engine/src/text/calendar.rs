//! Dates for chat templates: Unix seconds into the fields that `strftime` prints, in UTC.
//!
//! It never reads a clock or a time zone. Invariant: one instant and one format give one text, on every machine.

const DAYS: [&str; 7] = ["Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday"];
const MONTHS: [&str; 12] = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
];

/// Seconds from 1970 to the last day this calendar prints, 31 December 9999.
const LAST_SECOND: u64 = 253_402_300_799;

fn is_leap(year: u64) -> bool {
    year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400))
}

fn month_len(year: u64, month: usize) -> u64 {
    match month {
        1 if is_leap(year) => 29,
        1 => 28,
        3 | 5 | 8 | 10 => 30,
        _ => 31,
    }
}

struct Date {
    year: u64,
    /// From 0.
    month: usize,
    /// From 1.
    day: u64,
    /// From 1.
    day_of_year: u64,
    /// 0 is Sunday.
    weekday: usize,
    second_of_day: u64,
}

impl Date {
    fn from_unix(seconds: u64) -> Self {
        let seconds = seconds.min(LAST_SECOND);
        let days = seconds / 86_400;
        // Whole 400-year cycles first (146,097 days each), so that the loop below runs at most 400 times.
        let mut year = 1970 + 400 * (days / 146_097);
        let mut rest = days % 146_097;
        while rest >= 365 + u64::from(is_leap(year)) {
            rest -= 365 + u64::from(is_leap(year));
            year += 1;
        }
        let day_of_year = rest + 1;
        let mut month = 0;
        while rest >= month_len(year, month) {
            rest -= month_len(year, month);
            month += 1;
        }
        // 1 January 1970 was a Thursday.
        let weekday = ((days + 4) % 7) as usize;
        Self { year, month, day: rest + 1, day_of_year, weekday, second_of_day: seconds % 86_400 }
    }
}

/// Prints `unix_seconds` in UTC as Python's `strftime` does in the C locale. A field that is not known here is an
/// error that names it.
pub(super) fn strftime(format: &str, unix_seconds: u64) -> Result<String, String> {
    let date = Date::from_unix(unix_seconds);
    let mut out = String::with_capacity(format.len() * 2);
    let mut chars = format.chars();
    while let Some(c) = chars.next() {
        if c != '%' {
            out.push(c);
            continue;
        }
        match chars.next() {
            // glibc's flag for "no padding", which template authors use for the day of the month.
            Some('-') => {
                let field = chars.next().unwrap_or(' ');
                let padded = field_text(field, &date).ok_or_else(|| unknown(&format!("%-{field}")))?;
                let bare = padded.trim_start_matches('0');
                out.push_str(if bare.is_empty() { "0" } else { bare });
            }
            Some(field) => {
                out.push_str(&field_text(field, &date).ok_or_else(|| unknown(&format!("%{field}")))?);
            }
            None => return Err(unknown("%")),
        }
    }
    Ok(out)
}

fn unknown(field: &str) -> String {
    format!("strftime_now knows no field {field}")
}

fn field_text(field: char, date: &Date) -> Option<String> {
    let (hour, minute, second) =
        (date.second_of_day / 3600, date.second_of_day / 60 % 60, date.second_of_day % 60);
    let hour12 = (hour + 11) % 12 + 1;
    Some(match field {
        'Y' => format!("{:04}", date.year),
        'y' => format!("{:02}", date.year % 100),
        'm' => format!("{:02}", date.month + 1),
        'B' => MONTHS[date.month].to_owned(),
        'b' | 'h' => MONTHS[date.month][..3].to_owned(),
        'd' => format!("{:02}", date.day),
        'e' => format!("{:2}", date.day),
        'j' => format!("{:03}", date.day_of_year),
        'A' => DAYS[date.weekday].to_owned(),
        'a' => DAYS[date.weekday][..3].to_owned(),
        'w' => date.weekday.to_string(),
        'u' => (if date.weekday == 0 { 7 } else { date.weekday }).to_string(),
        'H' => format!("{hour:02}"),
        'I' => format!("{hour12:02}"),
        'M' => format!("{minute:02}"),
        'S' => format!("{second:02}"),
        'p' => (if hour < 12 { "AM" } else { "PM" }).to_owned(),
        'F' => format!("{:04}-{:02}-{:02}", date.year, date.month + 1, date.day),
        'T' => format!("{hour:02}:{minute:02}:{second:02}"),
        'R' => format!("{hour:02}:{minute:02}"),
        'Z' => "UTC".to_owned(),
        'z' => "+0000".to_owned(),
        '%' => "%".to_owned(),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::strftime;

    #[test]
    fn instants_print_as_the_c_library_prints_them() {
        let check = |seconds: u64, format: &str, expected: &str| {
            assert_eq!(strftime(format, seconds).as_deref(), Ok(expected), "{seconds} {format}");
        };
        check(0, "%A %d %B %Y %H:%M:%S %j", "Thursday 01 January 1970 00:00:00 001");
        check(951_782_399, "%d %b %Y", "28 Feb 2000");
        check(951_782_400, "%a %d %b %Y %j", "Tue 29 Feb 2000 060");
        check(1_709_251_199, "%F %T %p", "2024-02-29 23:59:59 PM");
        check(1_735_689_599, "%F %j", "2024-12-31 366");
        check(4_102_444_800, "%Y-%m-%d %y", "2100-01-01 00");
        check(4_107_542_400, "%F", "2100-03-01");
        check(1_700_006_400, "%-d %e %-m %I %-I %u %w", "15 15 11 12 12 3 3");
        check(1_700_000_000, "100%% %Z", "100% UTC");
        check(u64::MAX, "%F", "9999-12-31");
    }

    #[test]
    fn an_unknown_field_is_named() {
        for (format, field) in [("%Q", "%Q"), ("%-Q", "%-Q"), ("at %", "%")] {
            assert!(strftime(format, 0).is_err_and(|e| e.ends_with(field)), "{format}");
        }
    }
}

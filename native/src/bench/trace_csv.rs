//! A trace of requests as CSV: when each arrived, how long its prompt was, how many tokens it was answered with.
//!
//! Pure: text in, rows out. Two headers are known: `TIMESTAMP,ContextTokens,GeneratedTokens` with dates, as the Azure
//! traces have it, and `arrival_s,prompt_tokens,output_tokens` with seconds. Invariant: arrivals never go back.

use std::io::Read;
use std::path::Path;

use firstlight_engine::clock::Nanos;

use crate::failure::Failure;

/// The most bytes of a trace.
const MAX_BYTES: u64 = 64 << 20;
/// The most requests of a trace.
const MAX_ROWS: usize = 1_000_000;
/// The most tokens that a row may name.
const MAX_TOKENS: u32 = 10_000_000;
/// Seconds that an arrival may name: some 31 years.
const MAX_SECONDS: f64 = 1e9;

const AZURE: [&str; 3] = ["TIMESTAMP", "ContextTokens", "GeneratedTokens"];
const PLAIN: [&str; 3] = ["arrival_s", "prompt_tokens", "output_tokens"];

/// One request of a trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TraceRow {
    /// Its line in the file, from 1.
    pub line: usize,
    /// From the same origin as all others'.
    pub arrival: Nanos,
    /// As the file says, before any scaling.
    pub prompt_tokens: u32,
    /// As the file says, before any scaling.
    pub output_tokens: u32,
}

/// Reads a trace.
///
/// # Errors
/// A file that cannot be read, that is too large, or a line that is no request; with file, line and value.
pub fn read(path: &Path) -> Result<Vec<TraceRow>, Failure> {
    let name = path.display().to_string();
    let unreadable = |error: std::io::Error| {
        Failure::usage(format!(
            "the trace {name} cannot be read: {error}; name a readable CSV file with --trace"
        ))
    };
    let mut bytes = Vec::new();
    let file = std::fs::File::open(path).map_err(unreadable)?;
    file.take(MAX_BYTES + 1).read_to_end(&mut bytes).map_err(unreadable)?;
    if bytes.len() as u64 > MAX_BYTES {
        return Err(Failure::usage(format!(
            "the trace {name} has more than {MAX_BYTES} bytes; cut it into smaller files"
        )));
    }
    let text = String::from_utf8(bytes).map_err(|error| {
        Failure::usage(format!("the trace {name} is no UTF-8 ({error}); give a CSV file"))
    })?;
    parse(&text, &name)
}

/// The rows of `text`, which came from the file `name`.
///
/// # Errors
/// As [`read`].
pub fn parse(text: &str, name: &str) -> Result<Vec<TraceRow>, Failure> {
    // Spreadsheets write a byte order mark.
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let mut lines = text.lines().zip(1..).filter(|(line, _)| !line.trim().is_empty());
    let Some((header, at)) = lines.next() else {
        return Err(Failure::usage(format!(
            "the trace {name} is empty; its first line must be {}",
            PLAIN.join(",")
        )));
    };
    let read_arrival = match fields(header) {
        Some(names) if names == AZURE => azure_arrival,
        Some(names) if names == PLAIN => plain_arrival,
        _ => {
            return Err(Failure::usage(format!(
                "line {at} of {name} is {}; the first line must be {} or {}",
                shown(header),
                PLAIN.join(","),
                AZURE.join(",")
            )));
        }
    };
    let mut rows: Vec<TraceRow> = Vec::new();
    for (line, number) in lines {
        let wrong = |what: String| Failure::usage(format!("line {number} of {name}: {what}"));
        if rows.len() == MAX_ROWS {
            return Err(wrong(format!("a trace has at most {MAX_ROWS} requests; cut it into smaller files")));
        }
        let row = row(line, number, read_arrival).map_err(wrong)?;
        if rows.last().is_some_and(|last| row.arrival < last.arrival) {
            return Err(wrong(format!(
                "{} arrives before the line above; sort the file by arrival",
                shown(line)
            )));
        }
        rows.push(row);
    }
    Ok(rows)
}

fn fields(line: &str) -> Option<[&str; 3]> {
    let mut fields = line.split(',').map(str::trim);
    let three = [fields.next()?, fields.next()?, fields.next()?];
    fields.next().is_none().then_some(three)
}

fn row(line: &str, number: usize, arrival: fn(&str) -> Result<Nanos, String>) -> Result<TraceRow, String> {
    let Some([at, prompt, output]) = fields(line) else {
        return Err(format!(
            "{} is no request; it must have three fields: arrival, prompt tokens, generated tokens",
            shown(line)
        ));
    };
    let tokens = |text: &str, what: &str| {
        let number = text.parse().ok().filter(|number: &u32| *number <= MAX_TOKENS);
        number.ok_or_else(|| {
            format!("{what} are {}; they must be a whole number up to {MAX_TOKENS}", shown(text))
        })
    };
    Ok(TraceRow {
        line: number,
        arrival: arrival(at)?,
        prompt_tokens: tokens(prompt, "the prompt tokens")?,
        output_tokens: tokens(output, "the generated tokens")?,
    })
}

fn plain_arrival(text: &str) -> Result<Nanos, String> {
    let seconds = text.parse().ok().filter(|seconds: &f64| (0.0..=MAX_SECONDS).contains(seconds));
    let seconds = seconds.ok_or_else(|| {
        format!("the arrival is {}; it must be seconds from 0 to {MAX_SECONDS}, such as 1.25", shown(text))
    })?;
    Ok((seconds * 1e9).round() as Nanos)
}

/// `2023-11-16 18:15:46.6805900`, in UTC.
fn azure_arrival(text: &str) -> Result<Nanos, String> {
    instant(text).ok_or_else(|| {
        format!(
            "the arrival is {}; it must be a date and time such as 2023-11-16 18:15:46.6805900",
            shown(text)
        )
    })
}

fn instant(text: &str) -> Option<Nanos> {
    let text = text.strip_suffix('Z').or_else(|| text.strip_suffix("+00:00")).unwrap_or(text);
    let (date, time) = text.split_once([' ', 'T'])?;
    let (time, fraction) = time.split_once('.').unwrap_or((time, "0"));
    let [year, month, day] = numbers(date, '-')?;
    let [hour, minute, second] = numbers(time, ':')?;
    let leap = year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
    let days_before = [0, 31, 59, 90, 120, 151, 181, 212, 243, 273, 304, 334, 365];
    let month_idx = month.checked_sub(1).filter(|idx| *idx < 12)? as usize;
    let days_in_month = days_before[month_idx + 1] - days_before[month_idx] + u64::from(leap && month == 2);
    // A leap second is a second that Unix time has not; it counts as the one after.
    let valid = (1970..=2400).contains(&year)
        && (1..=days_in_month).contains(&day)
        && hour < 24
        && minute < 60
        && second <= 60;
    let digits = !fraction.is_empty() && fraction.len() <= 9 && fraction.bytes().all(|b| b.is_ascii_digit());
    if !valid || !digits {
        return None;
    }
    let past = year - 1;
    let leap_days = |years: u64| years / 4 - years / 100 + years / 400;
    let days = 365 * (year - 1970) + leap_days(past) - leap_days(1969)
        + days_before[month_idx]
        + u64::from(leap && month > 2)
        + day
        - 1;
    let seconds = ((days * 24 + hour) * 60 + minute) * 60 + second;
    let nanos: u64 = format!("{fraction:0<9}").parse().ok()?;
    Some(seconds * 1_000_000_000 + nanos)
}

/// Three short numbers of digits only.
fn numbers(text: &str, between: char) -> Option<[u64; 3]> {
    let mut words = text.split(between).map(|word| {
        let short = (1..=4).contains(&word.len()) && word.bytes().all(|byte| byte.is_ascii_digit());
        short.then(|| word.parse().ok()).flatten()
    });
    let three = [words.next()??, words.next()??, words.next()??];
    words.next().is_none().then_some(three)
}

/// In quotes, without control characters, not longer than a person reads.
fn shown(text: &str) -> String {
    const MOST: usize = 60;
    let short: String = text.chars().take(MOST).collect();
    if short.len() < text.len() { format!("{short:?}...") } else { format!("{short:?}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(text: &str, expected: Result<&[(usize, Nanos, u32, u32)], &str>) {
        match (parse(text, "t.csv"), expected) {
            (Ok(rows), Ok(expected)) => {
                let first = rows.first().map_or(0, |row| row.arrival);
                let rows: Vec<_> = rows
                    .iter()
                    .map(|row| (row.line, row.arrival - first, row.prompt_tokens, row.output_tokens))
                    .collect();
                assert_eq!(rows, expected, "{text:?}");
            }
            (Err(failure), Err(part)) => {
                assert!(failure.sentence.contains(part), "{text:?}: {failure} says {part:?}");
                assert!(!failure.sentence.contains('\n') && failure.sentence.len() < 300, "{failure}");
            }
            (got, expected) => panic!("{text:?}: {got:?} where {expected:?} was expected"),
        }
    }

    #[test]
    fn both_headers_are_read() {
        let azure = "TIMESTAMP,ContextTokens,GeneratedTokens\r\n2023-11-16 18:15:46.6805900,374,44\r\n\
                     2023-11-16 18:15:50.9951690,396,109\r\n";
        check(azure, Ok(&[(2, 0, 374, 44), (3, 4_314_579_000, 396, 109)]));
        let plain = "\u{feff}arrival_s,prompt_tokens,output_tokens\n0.5,1,2\n\n 1.75 , 3 , 4 \n1.75,0,0";
        check(plain, Ok(&[(2, 0, 1, 2), (4, 1_250_000_000, 3, 4), (5, 1_250_000_000, 0, 0)]));
        check("arrival_s,prompt_tokens,output_tokens\n", Ok(&[]));
        let end_of_year =
            "TIMESTAMP,ContextTokens,GeneratedTokens\n2024-12-31T23:59:59.5Z,1,1\n2025-01-01 00:00:00,1,1";
        check(end_of_year, Ok(&[(2, 0, 1, 1), (3, 500_000_000, 1, 1)]));
        let leap_day = "TIMESTAMP,ContextTokens,GeneratedTokens\n2024-02-28 00:00:00,1,1\n2024-02-29 00:00:00,1,1\n2024-03-01 00:00:00,1,1";
        const DAY: Nanos = 86_400_000_000_000;
        check(leap_day, Ok(&[(2, 0, 1, 1), (3, DAY, 1, 1), (4, 2 * DAY, 1, 1)]));
    }

    #[test]
    fn days_are_counted_from_1970() {
        let seconds = |text: &str| instant(text).map(|at| at / 1_000_000_000);
        assert_eq!(seconds("1970-01-01 00:00:00"), Some(0));
        assert_eq!(seconds("2000-03-01 00:00:00"), Some(951_868_800));
        assert_eq!(seconds("2023-11-16 18:15:46"), Some(1_700_158_546));
        assert_eq!(seconds("2100-03-01 00:00:00"), Some(4_107_542_400));
    }

    #[test]
    fn a_bad_line_is_told_with_its_number_and_value() {
        let plain = |lines: &str| format!("arrival_s,prompt_tokens,output_tokens\n{lines}");
        let azure = |lines: &str| format!("TIMESTAMP,ContextTokens,GeneratedTokens\n{lines}");
        check("", Err("t.csv is empty"));
        check("a,b,c\n1,2,3", Err("line 1 of t.csv is \"a,b,c\""));
        check("0,1,2\n", Err("the first line must be arrival_s,prompt_tokens,output_tokens or TIMESTAMP"));
        check(&plain("0,1,2\n1,2"), Err("line 3 of t.csv: \"1,2\" is no request"));
        check(&plain("1,2,3,4"), Err("line 2 of t.csv"));
        check(&plain("0,-1,2"), Err("the prompt tokens are \"-1\""));
        check(&plain("0,1,2.5"), Err("the generated tokens are \"2.5\""));
        check(&plain("0,99999999999,2"), Err("\"99999999999\""));
        for at in ["NaN", "inf", "-1", "1e300", "", "soon", "2023-11-16 18:15:46"] {
            check(&plain(&format!("{at},1,2")), Err(&format!("the arrival is {at:?}")));
        }
        check(&plain("2,1,1\n1,1,1"), Err("line 3 of t.csv: \"1,1,1\" arrives before"));
        for at in
            ["2023-13-01 00:00:00", "2023-02-29 00:00:00", "2023-1-1", "0-0-0 0:0:0", "2023-00-10 1:2:3"]
        {
            check(&azure(&format!("{at},1,2")), Err(&format!("the arrival is {at:?}")));
        }
        check(&azure("2023-11-16 18:15:46.1234567890,1,1"), Err("date and time"));
        check(&azure("2023-11-16 24:00:00,1,1"), Err("date and time"));
        check(&azure("é023-11-16 18:15:46,1,1"), Err("date and time"));
        check(&plain(&format!("{},1,1", "9".repeat(100_000))), Err("9\"..."));
    }
}

//! The rows as a table for a person, at most 100 columns wide.
//!
//! Invariant: the times of the rows that stand inside no other sum to the total as they are printed: they are rounded at
//! the edges between the rows.

use firstlight_engine::clock::Nanos;
use firstlight_engine::timeline::{RequestTimeline, StageTimes, StepRecord};

use super::rows::{Place, Row, answer_steps, prompt_steps};
use super::work::StageSums;
use crate::split;

/// The widest line.
pub const WIDTH: usize = 100;

/// The table of `rows`, whose top ones sum to `whole`.
pub fn table(rows: &[Row], whole: Nanos) -> String {
    let mut text = line(["", "stage", "time, ms", "share", "where", "in", "out", "bounded by"]);
    let (mut at, mut shown) = (0, 0);
    for (idx, row) in rows.iter().enumerate() {
        let units = match (row.ns, row.inside) {
            (Some(ns), None) => {
                at += ns;
                let units = micros(at) - shown;
                shown += units;
                Some(units)
            }
            (ns, _) => ns.map(micros),
        };
        let time = units.map_or("-".to_owned(), milliseconds);
        let share = row.share.map_or(String::new(), |share| format!("{:.1}%", share * 100.0));
        let (name, time, share) = match row.inside {
            Some(_) => (format!("{} {}", branch(rows, idx), row.name), bracketed(&time), bracketed(&share)),
            None => (row.name.to_owned(), format!("{time} "), format!("{share} ")),
        };
        let place = match row.place {
            Place::Host => "host",
            Place::Engine => "engine",
            Place::Gpu => "GPU",
        };
        let bytes = |bytes: Option<u64>| bytes.map_or(String::new(), short_bytes);
        let stage = row.stage.to_string();
        let (bytes_in, bytes_out) = (bytes(row.bytes_in), bytes(row.bytes_out));
        text.push_str(&line([&stage, &name, &time, &share, place, &bytes_in, &bytes_out, &row.bound]));
    }
    let total = format!("{} ", milliseconds(micros(whole)));
    text.push_str(&line(["", "end to end", &total, "100.0% ", "", "", "", ""]));
    text
}

fn line(cells: [&str; 8]) -> String {
    let [stage, name, time, share, place, bytes_in, bytes_out, bound] = cells;
    let text = format!(
        "{stage:>2}  {name:<25}{time:>11}{share:>8} {place:<6} {bytes_in:>6}  {bytes_out:>6}  {bound}"
    );
    format!("{}\n", text.trim_end())
}

/// A stroke that leads from a row to the one that holds it, which may come before or after.
fn branch(rows: &[Row], idx: usize) -> char {
    let is_inner = |row: Option<&Row>| row.is_some_and(|row| row.inside.is_some());
    let before = idx.checked_sub(1).and_then(|before| rows.get(before));
    match (is_inner(before), is_inner(rows.get(idx + 1))) {
        (false, true) if before.map(|row| row.stage) == rows.get(idx).and_then(|row| row.inside) => '├',
        (false, true) => '┌',
        (true, false)
            if rows.get(idx + 1).map(|row| row.stage) != rows.get(idx).and_then(|row| row.inside) =>
        {
            '└'
        }
        _ => '├',
    }
}

fn bracketed(text: &str) -> String {
    match text {
        "" | "-" => format!("{text} "),
        text => format!("({text})"),
    }
}

/// Whole microseconds, rounded half up.
fn micros(ns: Nanos) -> u64 {
    (ns + 500) / 1000
}

fn milliseconds(micros: u64) -> String {
    format!("{}.{:03}", micros / 1000, micros % 1000)
}

/// Two digits, or all before the point; at most six characters up to a terabyte.
fn short_bytes(bytes: u64) -> String {
    let scaled = |unit: f64, name: &str| {
        let value = bytes as f64 / unit;
        if value < 9.95 { format!("{value:.1} {name}") } else { format!("{value:.0} {name}") }
    };
    match bytes {
        0..=999 => format!("{bytes} B"),
        1_000..=999_499 => scaled(1e3, "kB"),
        999_500..=999_499_999 => scaled(1e6, "MB"),
        _ => scaled(1e9, "GB"),
    }
}

/// What the adapter's clock says of the steps before the first token and of those after it, which the host's clock held
/// against; empty where it says nothing.
pub fn adapter_times(timeline: &RequestTimeline, steps: &[StepRecord]) -> Vec<String> {
    let prompt = StageSums::of(prompt_steps(timeline, steps));
    let answer = StageSums::of(answer_steps(timeline, steps));
    let engine = timeline.parts().and_then(|parts| parts.engine);
    let computing = engine.map(|engine| engine.lost_prefill + engine.prefill.total());
    let decoding = timeline.decode().map(|decode| decode.total());
    let line = |what: &str, sums: Option<StageSums>, of: Option<Nanos>| {
        let (sums, of) = (sums.filter(|sums| sums.timed)?, of?);
        let StageTimes { embed_ns, layers_ns, head_ns, sample_ns } = sums.times;
        let parts =
            [("embedding", embed_ns), ("layers", layers_ns), ("head", head_ns), ("sample", sample_ns)];
        let parts = parts.into_iter().filter(|(_, ns)| *ns > 0);
        let words: Vec<String> =
            parts.map(|(name, ns)| format!("{name} {}", milliseconds(micros(ns)))).collect();
        let of = milliseconds(micros(of));
        let plural = if sums.steps == 1 { "" } else { "s" };
        Some(format!("GPU, {} step{plural} {what}: {}; of {of} ms", sums.steps, words.join(" + ")))
    };
    let both = [line("of the prompt", prompt, computing), line("after it", answer, decoding)];
    both.into_iter().flatten().collect()
}

/// What the table does not show: the split of the first token's time, and what each admission found and computed.
pub fn notes(timeline: &RequestTimeline) -> Vec<String> {
    let split = split::line(timeline);
    let mut lines: Vec<String> =
        split.split("; ").filter(|part| !part.is_empty()).map(str::to_owned).collect();
    let last = timeline.attempts().len();
    for (idx, attempt) in timeline.attempts().iter().enumerate() {
        let number = if last > 1 { format!(" {} of {last}", idx + 1) } else { String::new() };
        let lost = if idx + 1 < last { ", then evicted" } else { "" };
        lines.push(format!(
            "admission{number}: {} prompt tokens, {} from the prefix cache, {} computed in {} ms{lost}",
            timeline.tokens().prompt,
            attempt.cached,
            attempt.computed,
            milliseconds(micros(attempt.to - attempt.from)),
        ));
    }
    lines
}

/// `line` in lines of at most [`WIDTH`], where its words allow it; all but the first are indented.
pub fn wrap(line: &str) -> String {
    if line.chars().count() <= WIDTH {
        return line.to_owned();
    }
    let (mut text, mut column) = (String::new(), 0);
    for word in line.split(' ') {
        let length = word.chars().count();
        if column > 0 && column + 1 + length > WIDTH {
            text.push_str("\n  ");
            column = 2;
        } else if column > 0 {
            text.push(' ');
            column += 1;
        }
        text.push_str(word);
        column += length;
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(stage: u8, inside: Option<u8>, ns: Option<Nanos>) -> Row {
        Row {
            stage,
            name: "KV blocks, prefix match",
            inside,
            ns,
            share: ns.map(|_| 0.999),
            place: Place::Engine,
            bound: "not measured on this adapter".to_owned(),
            bytes_in: Some(999_499),
            bytes_out: Some(u64::from(u32::MAX)),
        }
    }

    #[test]
    fn lines_keep_to_the_width_and_the_printed_times_sum() {
        let rows = [
            row(4, None, Some(1_499)),
            row(5, Some(7), None),
            row(6, Some(7), Some(99_999_999_499)),
            row(7, None, Some(99_999_999_400)),
            row(8, Some(7), Some(0)),
            row(9, Some(7), None),
            row(10, None, Some(501)),
        ];
        let text = table(&rows, 99_999_999_400 + 1_499 + 501);
        let lines: Vec<&str> = text.lines().collect();
        assert!(lines.iter().all(|line| line.chars().count() <= WIDTH), "{text}");
        let strokes: Vec<char> = text.chars().filter(|c| "┌├└".contains(*c)).collect();
        assert_eq!(strokes, ['┌', '├', '├', '└']);
        let shown = |line: &str| -> u64 {
            let digits: String = line.chars().skip(29).take(11).filter(char::is_ascii_digit).collect();
            digits.parse().unwrap_or(0)
        };
        let top: u64 = [1, 4, 7].into_iter().map(|idx| shown(lines[idx])).sum();
        assert_eq!(top, shown(lines[8]), "{text}");
    }

    #[test]
    fn long_lines_are_wrapped_between_words() {
        let check = |line: &str, expected: &[usize]| {
            let wrapped = wrap(line);
            let lengths: Vec<usize> = wrapped.lines().map(|line| line.chars().count()).collect();
            assert_eq!(lengths, expected, "{wrapped}");
            assert_eq!(wrapped.replace("\n  ", " "), line);
        };
        check("short", &[5]);
        check(&["word"; 20].join(" "), &[99]);
        check(&["word"; 21].join(" "), &[99, 6]);
        check(&"x".repeat(120), &[120]);
        check(&format!("see {}", "x".repeat(120)), &[3, 122]);
    }

    #[test]
    fn bytes_take_six_characters() {
        for (bytes, expected) in [
            (0, "0 B"),
            (999, "999 B"),
            (1_000, "1.0 kB"),
            (9_940, "9.9 kB"),
            (9_960, "10 kB"),
            (999_499, "999 kB"),
            (999_500, "1.0 MB"),
            (96_600_000, "97 MB"),
            (999_499_999, "999 MB"),
            (4_294_967_295, "4.3 GB"),
            (999_000_000_000, "999 GB"),
        ] {
            assert_eq!(short_bytes(bytes), expected);
            assert!(expected.len() <= 6);
        }
    }
}

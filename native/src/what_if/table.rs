//! The result as lines for a terminal: conditions and error, two tables with a row for each setting, and a picture.
//!
//! Pure. Invariant: no line is wider than `plot::WIDTH`, and in every row of a prediction stands what is known of its error.

use firstlight_engine::clock::Nanos;
use firstlight_engine::report::Distribution;
use firstlight_engine::sched::SchedulerConfig;

use super::WhatIf;
use super::outcome::{Prediction, ReplayError, median};
use crate::bench::amounts::{grouped, shares};
use crate::bench::outcome::CaseOutcome;
use crate::bench::page::mean_ttft;
use crate::bench::plot::{MAX_BARS, wrapped};
use crate::bench::style::Style;
use crate::bench::table::four_parts;

/// Cells of a label.
const LABEL: usize = 22;
/// What stands where there is no figure.
const NONE: &str = "-";

/// A row: its label, what is said of its error, its figures, and how many answers were cut short.
struct Row<'r> {
    label: String,
    error: String,
    outcome: &'r CaseOutcome,
    cut_short: usize,
}

/// All lines.
pub fn lines(found: &WhatIf, style: Style) -> Vec<String> {
    let rows = rows(found);
    let unit = Unit::of(&rows);
    let mut lines = paragraph(&header(found), style);
    lines.extend(paragraph(&error_words(found), style));
    lines.push(String::new());
    lines.extend(first_tokens(&rows, unit, style));
    lines.push(String::new());
    lines.extend(throughput(&rows, unit, style));
    lines.push(String::new());
    let bars = rows.iter().take(MAX_BARS).map(|row| (row.label.as_str(), row.outcome));
    lines.extend(mean_ttft(bars, style));
    let notes: Vec<String> = notes(found);
    if !notes.is_empty() {
        lines.push(String::new());
    }
    lines.extend(notes.iter().flat_map(|note| wrapped(note, "")).map(|line| style.quiet(&line)));
    lines
}

/// A line is one line where a program may read it, and wrapped where a person does.
fn paragraph(text: &str, style: Style) -> Vec<String> {
    if style == Style::PLAIN { vec![text.to_owned()] } else { wrapped(text, "") }
}

fn header(found: &WhatIf) -> String {
    let recording = &found.recording;
    let limits = &recording.limits;
    let model = &recording.context.model;
    let on = match (model.name.as_str(), recording.context.adapter.as_str()) {
        ("", _) => String::new(),
        (name, "") => format!(" of {name}"),
        (name, adapter) => format!(" of {name} on {adapter}"),
    };
    let runs = recording.plans.len();
    let (plural, cache) = (if runs == 1 { "" } else { "s" }, if limits.prefix_cache { "on" } else { "off" });
    format!(
        "{}{on}: {} requests in {runs} run{plural} ({}); {} slots, {} tokens a step, {} blocks of {}, prefix cache {cache} where nothing else is said; {}; replayed in {:.2} s",
        recording.name,
        grouped(recording.requests() as u64),
        recording.words,
        limits.max_num_seqs,
        limits.max_batch_tokens,
        grouped(u64::from(limits.num_blocks)),
        limits.block_size,
        found.costs.words(),
        found.seconds
    )
}

/// What a reader may expect of the predictions.
fn error_words(found: &WhatIf) -> String {
    let own = match &found.self_error {
        None => "error: not known, because nothing was measured".to_owned(),
        Some(error) => format!(
            "error: replayed under its own settings the recording comes out {} in mean engine TTFT and {} in the queue's share{}; no prediction is better than that",
            signed(error.mean_ttft),
            points(error.queue_share),
            spread_words(error)
        ),
    };
    match &found.compared {
        None => own,
        Some(compared) => format!(
            "{own}. Predicted for {} against measured there: {} and {}{}",
            compared.name,
            signed(compared.error.mean_ttft),
            points(compared.error.queue_share),
            spread_words(&compared.error)
        ),
    }
}

fn spread_words(error: &ReplayError) -> String {
    error.spread.map(|spread| format!(" (its runs differ by {:.1} %)", spread * 100.0)).unwrap_or_default()
}

/// `+3.1 %`.
fn signed(share: f64) -> String {
    format!("{:+.1} %", share * 100.0)
}

fn points(share: f64) -> String {
    format!("{:+.1} points", share * 100.0)
}

fn rows(found: &WhatIf) -> Vec<Row<'_>> {
    let own = found
        .self_error
        .map_or_else(|| "unknown".to_owned(), |error| format!("±{:.1} %", error.mean_ttft.abs() * 100.0));
    let measured = |label: String, outcome| Row { label, error: "measured".into(), outcome, cut_short: 0 };
    let predicted = |prediction: &'_ Prediction, error: String| {
        let mark = if is_beyond(prediction) { " *" } else { "" };
        (format!("{}{mark}", prediction.setting.label), error, prediction.cut_short)
    };
    let mut rows = Vec::new();
    let slots = found.recording.limits.max_num_seqs;
    rows.extend(found.measured.as_ref().map(|outcome| measured(format!("recorded, {slots} slots"), outcome)));
    for prediction in &found.predictions {
        let (label, error, cut_short) = predicted(prediction, own.clone());
        rows.push(Row { label, error, outcome: &prediction.outcome, cut_short });
    }
    if let Some(compared) = &found.compared {
        let slots = compared.predicted.setting.limits.max_num_seqs;
        let (label, error, cut_short) = predicted(&compared.predicted, signed(compared.error.mean_ttft));
        rows.push(Row {
            label: format!("for it: {label}"),
            error,
            outcome: &compared.predicted.outcome,
            cut_short,
        });
        rows.push(measured(format!("compared, {slots} slots"), &compared.measured));
    }
    rows
}

/// Whether more than a hundredth of its time is of steps that nobody has seen the like of.
fn is_beyond(prediction: &Prediction) -> bool {
    prediction.beyond.is_some_and(|share| share > 0.01)
}

/// Milliseconds, or seconds where there are too many of them.
#[derive(Clone, Copy)]
enum Unit {
    Ms,
    S,
}

impl Unit {
    fn of(rows: &[Row<'_>]) -> Self {
        let tail = |row: &Row<'_>| row.outcome.pooled.wholes.engine_ttft.map(|all| all.p99);
        let longest = rows.iter().filter_map(tail).max().unwrap_or(0);
        if longest < 100_000_000_000 { Self::Ms } else { Self::S }
    }

    fn name(self) -> &'static str {
        match self {
            Self::Ms => "ms",
            Self::S => "s",
        }
    }

    /// With one digit, in groups.
    fn figure(self, ns: f64) -> String {
        let unit = match self {
            Self::Ms => 1e6,
            Self::S => 1e9,
        };
        let tenths = (ns / unit * 10.0).round() as u64;
        format!("{}.{}", grouped(tenths / 10), tenths % 10)
    }
}

fn figure(unit: Unit, ns: Option<f64>) -> String {
    ns.map_or_else(|| NONE.to_owned(), |ns| unit.figure(ns))
}

fn percentile(all: Option<Distribution>, q: u32) -> Option<f64> {
    all.and_then(|all| all.percentile(q)).map(|ns: Nanos| ns as f64)
}

fn first_tokens(rows: &[Row<'_>], unit: Unit, style: Style) -> Vec<String> {
    let heading = format!(
        "{:<LABEL$} {:>9} {:>8} {:>6} {:>6} {:>7} {:>6} {:>9} {:>9} {:>9}",
        format!("engine TTFT in {}", unit.name()),
        "mean",
        "error",
        "inbox",
        "queue",
        "prefill",
        "waste",
        "p50",
        "p95",
        "p99"
    );
    let mut lines = vec![style.heading(&heading)];
    for row in rows {
        let report = median(row.outcome);
        let shares =
            report.map(|report| shares(&four_parts(&report.engine_ttft_parts.parts).map(|(_, sum)| sum)));
        let share = |idx: usize| {
            shares.as_ref().and_then(|shares| shares.get(idx)).map_or(NONE, String::as_str).replace(' ', "")
        };
        let wholes = row.outcome.pooled.wholes.engine_ttft;
        let at = |q| figure(unit, percentile(wholes, q));
        lines.push(format!(
            "{:<LABEL$} {:>9} {:>8} {:>6} {:>6} {:>7} {:>6} {:>9} {:>9} {:>9}",
            cut(&row.label),
            figure(unit, report.and_then(|report| report.engine_ttft_parts.mean())),
            row.error,
            share(0),
            share(1),
            share(2),
            share(3),
            at(50),
            at(95),
            at(99)
        ));
    }
    lines
}

fn throughput(rows: &[Row<'_>], unit: Unit, style: Style) -> Vec<String> {
    let heading = format!(
        "{:<LABEL$} {:>10} {:>8} {:>8} {:>9} {:>8} {:>7} {:>7} {:>8}",
        "",
        format!("TTFT, {}", unit.name()),
        "ITL p50",
        "p99, ms",
        "tokens/s",
        "wall, s",
        "evicted",
        "cached",
        "refused"
    );
    let mut lines = vec![style.heading(&heading)];
    for row in rows {
        let (pooled, run) = (&row.outcome.pooled, row.outcome.runs.get(row.outcome.median_idx));
        let gaps = pooled.wholes.inter_token;
        let cached = pooled.tokens.cached as f64 / (pooled.tokens.prompt as f64).max(1.0);
        let refused = pooled.finish_reasons.rejected + row.cut_short;
        lines.push(format!(
            "{:<LABEL$} {:>10} {:>8} {:>8} {:>9} {:>8} {:>7} {:>7} {:>8}",
            cut(&row.label),
            figure(unit, run.and_then(|run| run.report.ttft_parts.mean())),
            figure(Unit::Ms, percentile(gaps, 50)),
            figure(Unit::Ms, percentile(gaps, 99)),
            run.map_or_else(|| NONE.to_owned(), |run| format!("{:.1}", run.output_tokens_per_s)),
            figure(Unit::S, run.map(|run| run.wall_ns as f64)),
            grouped(pooled.re_prefills),
            format!("{:.1}%", cached * 100.0),
            grouped(refused as u64)
        ));
    }
    lines
}

fn notes(found: &WhatIf) -> Vec<String> {
    let mut notes = Vec::new();
    notes.extend(throughout(found));
    let beyond: Vec<String> = (found.predictions.iter().filter(|prediction| is_beyond(prediction)))
        .map(|prediction| {
            let share = prediction.beyond.unwrap_or_default() * 100.0;
            format!("{} {share:.0} %", prediction.setting.label)
        })
        .collect();
    if !beyond.is_empty() {
        notes.push(format!(
            "* time in steps with more rows than any recorded one, whose cost is carried on from smaller ones: {}",
            beyond.join("; ")
        ));
    }
    let cut_short: usize = found.predictions.iter().map(|prediction| prediction.cut_short).sum();
    if cut_short > 0 {
        notes.push(format!(
            "refused counts {cut_short} answers that ended early, because the pool held no more"
        ));
    }
    notes.extend(found.recording.notes.iter().cloned());
    notes
}

/// What no label tells because it is the same in every prediction, and another than recorded.
fn throughout(found: &WhatIf) -> Option<String> {
    let first = found.predictions.first()?;
    let changed = |value: fn(&SchedulerConfig) -> u32, name: &str| {
        let predicted = value(&first.setting.limits);
        let is_same = found.predictions.iter().all(|one| value(&one.setting.limits) == predicted);
        let is_told = is_same && predicted != value(&found.recording.limits);
        is_told.then(|| format!("{} {name}", grouped(u64::from(predicted))))
    };
    let told = [
        changed(|limits| limits.max_num_seqs, "slots"),
        changed(|limits| limits.max_batch_tokens, "tokens a step"),
        changed(|limits| limits.num_blocks, "blocks"),
    ];
    let told: Vec<String> = told.into_iter().flatten().collect();
    (!told.is_empty()).then(|| format!("predicted with {} throughout", told.join(", ")))
}

fn cut(label: &str) -> String {
    label.chars().take(LABEL).collect()
}

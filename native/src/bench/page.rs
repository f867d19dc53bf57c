//! The whole result as lines for a terminal: the conditions, then each case's tables, then its pictures.
//!
//! Pure. Invariant: no figure stands without the conditions, which are the first line.

use std::collections::BTreeSet;

use firstlight_engine::clock::Nanos;
use firstlight_engine::report::GapFigures;
use firstlight_engine::sched::SchedulerConfig;

use super::amounts::{grouped, milliseconds};
use super::load::{Load, Planned};
use super::outcome::{CaseOutcome, Run};
use super::plot::{self, Bar, Lane, MAX_BARS, MAX_LANES, Stacked};
use super::style::{Stretch, Style};
use super::table;

/// What the first line says beside the load.
pub struct Conditions<'c> {
    /// The model and how its weights are stored.
    pub model: String,
    /// Adapter and kernels.
    pub adapter: &'c str,
    /// Slots, batch tokens, prefix cache.
    pub limits: SchedulerConfig,
    /// Tokens that prompts begin with in common.
    pub shared_tokens: u32,
    /// Runs of the same load.
    pub repeats: u32,
    /// Of prompts and arrivals.
    pub seed: u64,
}

/// All lines; `runs` are, for each case, one a repeat.
pub fn lines(
    load: &Load,
    conditions: &Conditions,
    runs: &[Vec<Run>],
    outcomes: &[CaseOutcome],
    style: Style,
) -> Vec<String> {
    let header = header(load, conditions);
    // A line is one line where a program may read it, and wrapped where a person does.
    let mut lines = if style == Style::PLAIN { vec![header] } else { plot::wrapped(&header, "") };
    for (outcome, runs) in outcomes.iter().zip(runs) {
        for block in [
            table::means(outcome, style),
            table::percentiles(outcome, style),
            table::real_requests(&outcome.pooled, style),
            table::facts(outcome, style),
            lanes(outcome, runs, style),
            against_batch(outcome, style),
            against_position(outcome, style),
        ] {
            if !block.is_empty() {
                lines.push(String::new());
                lines.extend(block);
            }
        }
    }
    lines.push(String::new());
    lines.extend(mean_ttft(outcomes.iter().map(|outcome| (outcome.name, outcome)), style));
    lines
}

/// Everything that the figures depend on.
fn header(load: &Load, conditions: &Conditions) -> String {
    let limits = &conditions.limits;
    let cache = if limits.prefix_cache { "on" } else { "off" };
    let shared = match conditions.shared_tokens {
        0 => String::new(),
        tokens => format!(" (the first {tokens} in common)"),
    };
    let prompts = range(load, |request| request.prompt_tokens);
    let outputs = range(load, |request| request.output_tokens);
    let requests = load.requests().count() / load.cases.len().max(1);
    let runs = if conditions.repeats == 1 { "run" } else { "runs" };
    let cases = if load.cases.len() > 1 { format!(" x {} cases", load.cases.len()) } else { String::new() };
    format!(
        "{} on {}; prefix cache {cache}; {} slots, {} batch tokens; {}: {}; {prompts} prompt tokens{shared}, {outputs} output tokens; {requests} requests{cases} x {} {runs}; seed {}",
        conditions.model,
        conditions.adapter,
        limits.max_num_seqs,
        limits.max_batch_tokens,
        load.name,
        load.words,
        conditions.repeats,
        conditions.seed
    )
}

/// `64`, or `1 to 500 (mean 70)`.
fn range(load: &Load, tokens: fn(&Planned) -> u32) -> String {
    let all = || load.requests().map(tokens);
    let (least, most) = (all().min().unwrap_or(0), all().max().unwrap_or(0));
    if least == most {
        return least.to_string();
    }
    let mean = all().map(f64::from).sum::<f64>() / all().count().max(1) as f64;
    format!("{least} to {most} (mean {mean:.0})")
}

/// One bar each, with its label, to one scale.
pub fn mean_ttft<'o>(
    outcomes: impl IntoIterator<Item = (&'o str, &'o CaseOutcome)>,
    style: Style,
) -> Vec<String> {
    let mut shown = vec![Stretch::Inbox, Stretch::Queue, Stretch::Prefill];
    let mut bars = Vec::new();
    for (label, outcome) in outcomes {
        let Some(run) = outcome.runs.get(outcome.median_idx) else { continue };
        let sums = &run.report.engine_ttft_parts;
        let Some(mean) = sums.mean() else { continue };
        let [inbox, queue, prefill, waste] =
            table::four_parts(&sums.parts).map(|(_, sum)| sum / sums.n as Nanos);
        if waste > 0 && !shown.contains(&Stretch::Waste) {
            shown.insert(2, Stretch::Waste);
        }
        bars.push(Stacked {
            label: label.to_owned(),
            stretches: vec![
                (Stretch::Inbox, inbox),
                (Stretch::Queue, queue),
                (Stretch::Waste, waste),
                (Stretch::Prefill, prefill),
            ],
            value: milliseconds(mean),
        });
    }
    if bars.is_empty() {
        return Vec::new();
    }
    let mut lines = vec![format!("{}   {}", style.heading("mean engine TTFT"), plot::legend(&shown, style))];
    lines.extend(plot::stacked(&bars, style));
    lines
}

/// A lane for each request of the median run, where they are few and share the engine.
fn lanes(outcome: &CaseOutcome, runs: &[Run], style: Style) -> Vec<String> {
    let Some(run) = runs.get(outcome.median_idx) else { return Vec::new() };
    if run.timelines.len() > MAX_LANES || run.timelines.len() < 2 || !run.background.is_empty() {
        return Vec::new();
    }
    let mut timelines: Vec<_> =
        run.timelines.iter().filter(|timeline| !timeline.residency().is_empty()).collect();
    timelines.sort_by_key(|timeline| timeline.id());
    let all: Vec<Lane> =
        timelines.into_iter().map(|timeline| Lane::of(timeline, timeline.id().to_string())).collect();
    let names: BTreeSet<&str> = all
        .iter()
        .flat_map(|lane| &lane.stretches)
        .filter(|(_, from, to)| from < to)
        .map(|(stretch, ..)| stretch.name())
        .collect();
    let order = [Stretch::Inbox, Stretch::Queue, Stretch::Waste, Stretch::Prefill, Stretch::Decode];
    let shown: Vec<Stretch> = order.into_iter().filter(|stretch| names.contains(stretch.name())).collect();
    let which = if runs.len() > 1 {
        format!("requests of run {}", outcome.median_idx + 1)
    } else {
        "requests".into()
    };
    let mut lines = vec![format!(
        "{}   {}   engine TTFT on the right",
        style.heading(&which),
        plot::legend(&shown, style)
    )];
    lines.extend(plot::lanes(&all, style));
    lines
}

fn against_batch(outcome: &CaseOutcome, style: Style) -> Vec<String> {
    let buckets = &outcome.pooled.inter_token_by_batch.buckets;
    let bars = buckets.iter().map(|bucket| {
        let noun = if bucket.batch == 1 { "sequence" } else { "sequences" };
        bar(format!("{} {noun}", bucket.batch), &bucket.gaps)
    });
    picture("inter-token latency against the batch, median", bars.collect(), style)
}

fn against_position(outcome: &CaseOutcome, style: Style) -> Vec<String> {
    let bars = outcome.pooled.inter_token_by_position.iter().map(|bucket| {
        bar(format!("position {} to {}", bucket.from, bucket.to.saturating_sub(1)), &bucket.gaps)
    });
    picture("inter-token latency against the position, median", bars.collect(), style)
}

fn bar(label: String, gaps: &GapFigures) -> Bar {
    Bar {
        label,
        length: gaps.p50,
        value: format!("{}, n {}", milliseconds(gaps.p50 as f64), grouped(gaps.n as u64)),
    }
}

/// One bar alone compares nothing. Of too many, some that lie evenly among them.
fn picture(title: &str, bars: Vec<Bar>, style: Style) -> Vec<String> {
    if bars.len() < 2 {
        return Vec::new();
    }
    let every = bars.len().div_ceil(MAX_BARS);
    let shown: Vec<Bar> = bars.iter().step_by(every).cloned().collect();
    let some = if every > 1 { format!(" ({} of {})", shown.len(), bars.len()) } else { String::new() };
    let mut lines = vec![style.heading(&format!("{title}{some}"))];
    lines.extend(plot::bars(&shown, style));
    lines
}

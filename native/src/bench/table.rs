//! A case's figures as tables of at most `plot::WIDTH` cells.
//!
//! Pure: reports in, lines out. Invariant: a figure that was not measured is a dash, and every percentile stands beside
//! the number of values it is of.

use firstlight_engine::clock::Nanos;
use firstlight_engine::report::{Distribution, FinishCounts, Gauge, LatencyReport, PERCENTILES, SlowestGap};
use firstlight_engine::timeline::{EngineParts, WaitCauses};

use super::amounts::{grouped, mean_parts, milliseconds, milliseconds_of, seconds, shares};
use super::outcome::{CaseOutcome, RunFigures, Spread};
use super::plot::wrapped;
use super::style::Style;

/// What stands where there is no figure.
const NONE: &str = "-";
/// Cells of a label.
const LABEL: usize = 26;

/// inbox, queue, prefill and waste of an engine TTFT.
pub fn four_parts(parts: &EngineParts) -> [(&'static str, Nanos); 4] {
    [
        ("inbox", parts.inbox.total()),
        ("queue", parts.queue_wait.total()),
        ("prefill", parts.prefill.total()),
        ("waste", parts.waste()),
    ]
}

/// Mean TTFT with its parts, decode, wall clock and rates: over the repeats.
pub fn means(outcome: &CaseOutcome, style: Style) -> Vec<String> {
    let num_runs = outcome.runs.len();
    let heading = if num_runs == 1 { "1 run".to_owned() } else { format!("median of {num_runs}") };
    let spread_heading = if num_runs == 1 { "" } else { "min to max" };
    let row = |label: &str, share: &str, value: &str, spread: &str| {
        format!("{label:<LABEL$}{share:>9}{value:>18}   {spread:>28}").trim_end().to_owned()
    };
    let mut lines = vec![style.heading(&row(outcome.name, "share", &heading, spread_heading))];
    let spread_of = |spread: Option<Spread>, unit: fn(f64) -> String| {
        spread.filter(|_| num_runs > 1).map(|s| between(s, unit)).unwrap_or_default()
    };
    let whole = |label: &str, spread: Option<Spread>, unit: fn(f64) -> String| {
        let value = spread.map_or_else(|| NONE.to_owned(), |spread| unit(spread.median));
        row(label, "", &value, &spread_of(spread, unit))
    };
    let of = |figure: fn(&RunFigures) -> Option<f64>| outcome.spread(figure);
    lines.push(whole("mean engine TTFT", of(|run| run.report.engine_ttft_parts.mean()), milliseconds));
    lines.extend(parts_rows(outcome, &row, &spread_of));
    lines.extend([
        whole("mean TTFT", of(|run| run.report.ttft_parts.mean()), milliseconds),
        whole("mean decode", of(|run| run.report.decode_parts.mean()), milliseconds),
        whole("wall clock", of(|run| Some(run.wall_ns as f64)), seconds),
    ]);
    if !outcome.has_background {
        // Of an engine that served others too these would be a part that looks like the whole.
        lines.extend([
            whole("answered", of(|run| Some(run.requests_per_s)), |rate| format!("{rate:.2} requests/s")),
            whole("generated", of(|run| Some(run.output_tokens_per_s)), |rate| format!("{rate:.1} tokens/s")),
        ]);
    }
    lines
}

/// The four parts of the median run, each with its share, and below them their exact sums.
fn parts_rows(
    outcome: &CaseOutcome,
    row: &impl Fn(&str, &str, &str, &str) -> String,
    spread_of: &impl Fn(Option<Spread>, fn(f64) -> String) -> String,
) -> Vec<String> {
    let Some(median) = outcome.runs.get(outcome.median_idx) else { return Vec::new() };
    let sums = &median.report.engine_ttft_parts;
    let parts = four_parts(&sums.parts);
    let exact = parts.map(|(_, sum)| sum);
    let (means, shares) = (mean_parts(&exact, sums.n), shares(&exact));
    let mut lines = Vec::new();
    for (idx, (name, _)) in parts.into_iter().enumerate() {
        // Rounded like the figure beside it, so that no median stands outside its own spread.
        let of_run = |run: &RunFigures| {
            let sums = &run.report.engine_ttft_parts;
            let means = mean_parts(&four_parts(&sums.parts).map(|(_, sum)| sum), sums.n);
            means.get(idx).map(|units| *units as f64 * 1e4)
        };
        let share = shares.get(idx).map_or(NONE, String::as_str);
        let mean = means.get(idx).map_or_else(|| NONE.to_owned(), |units| milliseconds_of(*units));
        lines.push(row(&format!("  {name}"), share, &mean, &spread_of(outcome.spread(of_run), milliseconds)));
    }
    if sums.n > 0 {
        let which = if outcome.runs.len() > 1 {
            format!(" in run {}", outcome.median_idx + 1)
        } else {
            String::new()
        };
        let words = parts.map(|(name, sum)| format!("{name} {}", grouped(sum))).join(" + ");
        lines.push(format!("  to the nanosecond, {} first tokens{which}:", sums.n));
        lines.extend(wrapped(&format!("{} = {words}", grouped(sums.engine_ttft)), "  "));
    }
    lines
}

/// `1.00 to 2.00 ms`: the unit once.
fn between(spread: Spread, unit: fn(f64) -> String) -> String {
    let (min, max) = (unit(spread.min), unit(spread.max));
    let number = min.split(' ').next().unwrap_or(&min);
    format!("{number} to {max}")
}

/// Percentiles of wholes.
pub fn percentiles(outcome: &CaseOutcome, style: Style) -> Vec<String> {
    let wholes = &outcome.pooled.wholes;
    let runs = if outcome.runs.len() == 1 {
        "in ms".into()
    } else {
        format!("over {} runs, in ms", outcome.runs.len())
    };
    let rows = [
        ("engine TTFT", wholes.engine_ttft),
        ("TTFT", wholes.ttft),
        ("queue time", wholes.queue),
        ("prefill time", wholes.prefill),
        ("inter-token latency", wholes.inter_token),
        ("time per output token", wholes.time_per_output_token),
        ("end to end", wholes.e2e),
    ];
    let heading = format!(
        "{:<LABEL$}{:>8}{:>13}{:>13}{:>13}{:>13}{:>13}",
        runs, "n", "p50", "p90", "p95", "p99", "max"
    );
    let mut lines = vec![style.heading(&heading)];
    let mut is_short = false;
    for (label, distribution) in rows {
        let cells = PERCENTILES.map(|q| percentile(distribution.as_ref(), q));
        is_short |= distribution.is_some() && cells.iter().any(Option::is_none);
        let max = distribution.map(|d| bare_ms(d.max));
        let cells: String = cells
            .into_iter()
            .chain([max])
            .map(|cell| format!("{:>13}", cell.as_deref().unwrap_or(NONE)))
            .collect();
        let n = distribution.map_or_else(|| "0".to_owned(), |d| grouped(d.n as u64));
        lines.push(format!("{label:<LABEL$}{n:>8}{cells}"));
    }
    if is_short {
        lines.push(
            style.quiet("a percentile needs values above it: p90 ten in all, p95 twenty, p99 a hundred"),
        );
    }
    lines
}

/// Where there are enough values that at least one lies above it.
fn percentile(distribution: Option<&Distribution>, q: u32) -> Option<String> {
    let distribution = distribution.filter(|d| d.n >= (100 / (100 - q).max(1)) as usize)?;
    distribution.percentile(q).map(bare_ms)
}

fn bare_ms(ns: Nanos) -> String {
    milliseconds(ns as f64).trim_end_matches(" ms").to_owned()
}

/// The rest: causes of waiting, gauges, cache, ends.
pub fn facts(outcome: &CaseOutcome, style: Style) -> Vec<String> {
    let report = &outcome.pooled;
    let mut lines = vec![style.heading(&format!("{:<LABEL$}{:>12}{:>12}", "over the steps", "mean", "max"))];
    let gauge = |label: &str, gauge: Option<Gauge>, show: &dyn Fn(f64) -> String| {
        let cell = |of: fn(&Gauge) -> f64| gauge.as_ref().map_or_else(|| NONE.to_owned(), |g| show(of(g)));
        format!("{label:<LABEL$}{:>12}{:>12}", cell(|g| g.mean), cell(|g| g.max))
    };
    let gauges = &report.gauges;
    lines.push(gauge("KV cache use", gauges.kv_cache_utilisation, &|used| format!("{:.1} %", used * 100.0)));
    lines.push(gauge("queue depth", gauges.queue_depth, &|depth| format!("{depth:.2}")));
    lines.push(gauge("running", gauges.running, &|running| format!("{running:.2}")));
    let step =
        outcome.mean_step_ns.map(|ns| format!(", {} each on average", milliseconds(ns))).unwrap_or_default();
    let fact = |label: &str, words: String| format!("{label:<LABEL$}  {words}");
    lines.push(fact(
        "preemptions",
        format!("{} in {} steps{step}", grouped(gauges.preemptions_in_steps), grouped(gauges.steps as u64)),
    ));
    lines.push(fact("queue time by cause", causes(report)));
    lines.push(fact("prefix cache", prefix_cache(report)));
    if let Some(slowest) = &report.slowest_gap {
        let mut wrapped = wrapped(&slowest_gap(slowest), &" ".repeat(LABEL + 2)).into_iter();
        lines.extend(wrapped.next().map(|first| fact("slowest token gap", first.trim_start().to_owned())));
        lines.extend(wrapped);
    }
    lines.push(fact("ended by", finish_reasons(&report.finish_reasons)));
    lines.push(fact("load", conditions(outcome)));
    lines.extend(punctuality(outcome).map(|words| fact("latest arrival", words)));
    lines
}

/// Whose, and what is to blame for it.
fn slowest_gap(slowest: &SlowestGap) -> String {
    let whose = format!("{}, before token {}", slowest.engine_id, slowest.token_idx + 1);
    match &slowest.blame {
        Some(blame) => format!("{whose}: {blame}"),
        None => format!("{whose}: {}, no more than twice the median", milliseconds(slowest.gap as f64)),
    }
}

fn causes(report: &LatencyReport) -> String {
    let sums = &report.engine_ttft_parts;
    let mut causes = sums.parts.queue_wait;
    causes.add(sums.parts.requeue);
    let WaitCauses { slots, budget, blocks, order, paused } = causes;
    let named = [
        ("slots", slots),
        ("token budget", budget),
        ("KV blocks", blocks),
        ("order", order),
        ("device paused", paused),
    ];
    let shares = shares(&named.map(|(_, sum)| sum));
    let told: Vec<String> = (named.iter().zip(&shares))
        .filter(|((_, sum), _)| *sum > 0)
        .map(|((name, _), share)| format!("{name} {share}"))
        .collect();
    if told.is_empty() { "nobody waited".into() } else { told.join(", ") }
}

fn prefix_cache(report: &LatencyReport) -> String {
    match report.prefix_cache {
        None => "off".into(),
        Some(tokens) => {
            let rate =
                tokens.hit_rate.map_or_else(|| NONE.to_owned(), |rate| format!("{:.1} %", rate * 100.0));
            format!("{rate}: {} of {} prompt tokens were there", grouped(tokens.hit), grouped(tokens.queried))
        }
    }
}

fn finish_reasons(counts: &FinishCounts) -> String {
    let named = [
        ("length", counts.length),
        ("stop", counts.stop),
        ("stop string", counts.stop_string),
        ("content filter", counts.content_filter),
        ("cancelled", counts.cancelled),
        ("disconnected", counts.disconnected),
        ("deadline", counts.deadline),
        ("failed", counts.failed),
        ("rejected", counts.rejected),
    ];
    let told: Vec<String> = (named.into_iter().filter(|(_, count)| *count > 0))
        .map(|(name, count)| format!("{name} {}", grouped(count as u64)))
        .collect();
    if told.is_empty() { NONE.into() } else { told.join(", ") }
}

/// Rate and concurrency.
fn conditions(outcome: &CaseOutcome) -> String {
    let context = &outcome.pooled.context;
    let rate = context.request_rate.map(|rate| format!("{rate:.2} requests/s offered"));
    let concurrency = context.concurrency.map(|count| format!("{count:.2} under way at once"));
    let told: Vec<String> = [rate, concurrency].into_iter().flatten().collect();
    if told.is_empty() { NONE.into() } else { told.join(", ") }
}

/// How punctual the arrivals were, where they had an instant to keep.
fn punctuality(outcome: &CaseOutcome) -> Option<String> {
    let latest = outcome.runs.iter().map(|run| run.latest_ns).max().filter(|latest| *latest > 0)?;
    Some(format!("{} after its instant", milliseconds(latest as f64)))
}

/// The requests that hold the ranks, each with its own parts.
pub fn real_requests(report: &LatencyReport, style: Style) -> Vec<String> {
    if report.at_engine_ttft.is_empty() {
        return Vec::new();
    }
    let heading = format!(
        "{:<LABEL$}{:>8}{:>13}{:>13}{:>13}{:>13}{:>13}",
        "real requests, in ms", "", "engine TTFT", "inbox", "queue", "prefill", "waste"
    );
    let mut lines = vec![style.heading(&heading)];
    let mut ranked = report.at_engine_ttft.iter().peekable();
    while let Some(first) = ranked.next() {
        // Of few requests one holds several ranks.
        let mut names = format!("p{}", first.percentile);
        while let Some(same) = ranked.next_if(|next| next.rank == first.rank) {
            names.push_str(&format!(", p{}", same.percentile));
        }
        let Some(engine) = &first.parts.engine else { continue };
        let cells = mean_parts(&four_parts(engine).map(|(_, part)| part), 1);
        let Some((whole, parts)) = cells.split_last() else { continue };
        let cells: String = (std::iter::once(whole).chain(parts))
            .map(|units| format!("{:>13}", milliseconds_of(*units).trim_end_matches(" ms")))
            .collect();
        let label = format!("{names}: {}, {} of {}", first.engine_id, ordinal(first.rank), report.n_answered);
        lines.push(format!("{label:<34}{cells}"));
    }
    lines
}

/// `1st`, `2nd`, `13th`.
fn ordinal(rank: usize) -> String {
    let ending = match (rank % 10, rank % 100) {
        (_, 11..=13) => "th",
        (1, _) => "st",
        (2, _) => "nd",
        (3, _) => "rd",
        _ => "th",
    };
    format!("{rank}{ending}")
}

//! `firstlight bench --sweep`: what a decode step costs as its batch and its context grow, and what their keys and values take.
//!
//! It runs no engine and no scheduler. Invariant: every point is measured once in each round, so that what disturbs a while
//! disturbs all of them.

use firstlight_engine::runner::StepShape;
use serde::Serialize;

use super::amounts::{grouped, milliseconds};
use super::micro::{PROFILES_A_REPEAT, profile};
use super::plot::{Bar, bars};
use super::save;
use super::steps::{Opened, decode, fits, median, open};
use super::style::Style;
use crate::cli::{BenchArgs, JsonTarget};
use crate::failure::Failure;
use crate::terminal::write_line;

/// Sequences in a step, each with this many tokens of context.
const BATCHES: [u32; 6] = [1, 2, 4, 8, 16, 32];
const CONTEXT: u32 = 128;
/// Tokens of context of one sequence.
const CONTEXTS: [u32; 7] = [128, 512, 1024, 2048, 4096, 6144, 8192];

/// A step of one shape.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
struct Point {
    num_seqs: u32,
    context: u32,
    /// The median of its time.
    whole_ns: u64,
    /// Bytes of the blocks that hold its keys and values.
    kv_bytes: u64,
}

impl Point {
    fn tokens_per_second(&self) -> f64 {
        f64::from(self.num_seqs) * 1e9 / self.whole_ns.max(1) as f64
    }
}

/// The result as JSON.
#[derive(Debug, Serialize)]
struct SweepJson {
    schema: &'static str,
    adapter: String,
    kv_cache: &'static str,
    kv_bytes_a_token: u64,
    repeats: u32,
    batches: Vec<Point>,
    contexts: Vec<Point>,
}

/// Runs the command.
///
/// # Errors
/// The model, the adapter, an adapter without a clock for its passes.
pub fn run(args: &BenchArgs, target: &JsonTarget) -> Result<(), Failure> {
    let Some(Opened { mut runner, limits, kv, kv_bytes_a_token, .. }) = open(&args.engine)? else {
        return Ok(());
    };
    let handle = runner.device().handle().clone();
    let batches = BATCHES.map(|num_seqs| decode(num_seqs, CONTEXT));
    let contexts = CONTEXTS.map(|context| decode(1, context));
    let mut times: Vec<(StepShape, Vec<u64>)> = Vec::new();
    for shape in batches.iter().chain(&contexts).filter(|shape| fits(shape, &limits)) {
        if times.iter().all(|(known, _)| known != shape) {
            times.push((*shape, Vec::new()));
        }
    }
    let repeats = args.repeats * PROFILES_A_REPEAT;
    for _ in 0..repeats {
        for (shape, times) in &mut times {
            times.push(profile(&handle, &mut runner, *shape)?.whole_ns);
        }
    }
    let points = |shapes: &[StepShape]| -> Vec<Point> {
        let point = |(shape, times): &(StepShape, Vec<u64>)| {
            let blocks = u64::from(shape.context.div_ceil(limits.block_size) * shape.num_seqs);
            Point {
                num_seqs: shape.num_seqs,
                context: shape.context,
                whole_ns: median(times.iter().copied()),
                kv_bytes: blocks * u64::from(limits.block_size) * kv_bytes_a_token,
            }
        };
        times.iter().filter(|(shape, _)| shapes.contains(shape)).map(point).collect()
    };
    let result = SweepJson {
        schema: "firstlight.sweep/1",
        adapter: runner.device().facts().name.clone(),
        kv_cache: kv.name(),
        kv_bytes_a_token,
        repeats,
        batches: points(&batches),
        contexts: points(&contexts),
    };
    save(target, &result)?;
    if *target == JsonTarget::Stdout {
        return Ok(());
    }
    write_line(&lines(&result, Style::of_stdout()).join("\n"))
}

fn lines(result: &SweepJson, style: Style) -> Vec<String> {
    let told = format!(
        "decode steps on {}, KV cache in {}, {} bytes a token; medians of {}",
        result.adapter,
        result.kv_cache,
        grouped(result.kv_bytes_a_token),
        result.repeats
    );
    let mut lines = vec![told];
    for (heading, points, label) in [
        (
            format!("against the batch, {CONTEXT} tokens of context each"),
            &result.batches,
            &(|point: &Point| format!("{} sequences", point.num_seqs)) as &dyn Fn(&Point) -> String,
        ),
        ("against the context, one sequence".to_owned(), &result.contexts, &|point| {
            format!("{} tokens", grouped(point.context.into()))
        }),
    ] {
        lines.extend([String::new(), style.heading(&heading)]);
        lines.push(style.quiet(&format!(
            "{:<18}{:>14}{:>12}{:>18}{:>16}",
            "", "a step", "tokens/s", "than the first", "keys, values"
        )));
        let first = points.first().map_or(0, |point| point.whole_ns);
        lines.extend(points.iter().map(|point| {
            let more = point.whole_ns as f64 - first as f64;
            let sign = if more < 0.0 { "-" } else { "+" };
            format!(
                "{:<18}{:>14}{:>12.1}{:>18}{:>12.1} MiB",
                label(point),
                milliseconds(point.whole_ns as f64),
                point.tokens_per_second(),
                format!("{sign}{}", milliseconds(more.abs())),
                point.kv_bytes as f64 / f64::from(1 << 20)
            )
        }));
        let plotted: Vec<Bar> = points
            .iter()
            .map(|point| Bar {
                label: label(point),
                length: point.whole_ns,
                value: milliseconds(point.whole_ns as f64),
            })
            .collect();
        lines.extend(bars(&plotted, style));
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_and_a_plot_stand_for_each_way_to_grow() {
        let point = |num_seqs, context, ms: u64| Point {
            num_seqs,
            context,
            whole_ns: ms * 1_000_000,
            kv_bytes: u64::from(num_seqs * context) * 46_080,
        };
        let result = SweepJson {
            schema: "firstlight.sweep/1",
            adapter: "a GPU".into(),
            kv_cache: "f32",
            kv_bytes_a_token: 46_080,
            repeats: 5,
            batches: vec![point(1, 128, 20), point(32, 128, 160)],
            contexts: vec![point(1, 128, 20), point(1, 8192, 18)],
        };
        let lines = lines(&result, Style::PLAIN);
        assert!(lines.iter().all(|line| line.chars().count() <= super::super::plot::WIDTH), "{lines:?}");
        let words = |begin: &str| -> Vec<String> {
            let line = lines.iter().find(|line| line.starts_with(begin)).expect("a line");
            line.split_whitespace().map(str::to_owned).collect()
        };
        assert_eq!(words("32 sequences").join(" "), "32 sequences 160.00 ms 200.0 +140.00 ms 180.0 MiB");
        assert_eq!(words("8,192 tokens").join(" "), "8,192 tokens 18.00 ms 55.6 -2.00 ms 360.0 MiB");
        assert_eq!(lines.iter().filter(|line| line.starts_with("32 sequences")).count(), 2, "row and bar");
    }
}

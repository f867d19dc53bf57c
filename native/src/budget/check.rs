//! `firstlight budget --check`: predictions held against what is measured beside them.
//!
//! Invariant: in each round the classes that costs are made of and the points that are predicted are all timed once; no point
//! is a class.

use std::fmt;

use firstlight_engine::costs::{StepCosts, StepLoad};
use serde::Serialize;

use crate::bench::amounts::{grouped, milliseconds};
use crate::bench::pace::{self, Asked};
use crate::bench::steps::{Opened, Timed, decode, fits, median};
use crate::bench::style::Style;
use crate::cli::BudgetArgs;
use crate::costs;
use crate::doctor::costs::{Measurement, lines as costs_lines};
use crate::failure::Failure;
use crate::terminal::{write_json, write_line};

/// Sequences that decode in an engine.
const BATCHES: [u32; 3] = [3, 6, 12];
/// Sequences and their context: steps on the GPU's clock.
const CONTEXTS: [(u32, u32); 3] = [(1, 300), (1, 1500), (3, 300)];
/// Tokens of a prompt in an engine.
const PROMPTS: [u32; 4] = [40, 100, 200, 500];
/// Decode steps of a round, without the prompts' step and the one after it.
const STEPS: usize = 8;
const WARM_UP: usize = 2;
/// How far a prediction may be off.
const GOAL: f64 = 0.25;

/// What a point is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
enum Kind {
    /// A decode step of an engine, from token to token.
    Decode,
    /// A decode step on the GPU's clock: without the loop.
    DecodeOnGpu,
    /// A prompt of an engine, from its first step to its first token.
    Prefill,
}

/// A point that was predicted and measured.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
struct Held {
    what: Kind,
    num_seqs: u32,
    /// Tokens of context, or of the prompt.
    tokens: u32,
    predicted_ns: u64,
    measured_ns: u64,
    /// Predicted over measured, less one.
    error: f64,
}

/// The result as JSON.
#[derive(Debug, Serialize)]
struct CheckJson {
    schema: &'static str,
    costs: StepCosts,
    repeats: u32,
    points: Vec<Held>,
    /// The largest error, whatever its sign.
    worst_error: f64,
}

/// A point on its way.
struct Point {
    what: Kind,
    num_seqs: u32,
    tokens: u32,
    times: Vec<u64>,
}

/// Runs the command.
///
/// # Errors
/// Wrong usage; the model, the adapter, a step that fails.
pub fn run(args: &BudgetArgs) -> Result<(), Failure> {
    if args.reference || args.costs.is_some() {
        return Err(Failure::usage(
            "--check measures the model and the adapter that are here; give it without --reference and without --costs",
        ));
    }
    let mut opened = costs::open(&args.engine)?;
    let mut points = points(&opened);
    if points.is_empty() {
        return Err(Failure::usage(
            "nothing can be checked within these limits; raise --slots, --max-model-len or --batch-tokens",
        ));
    }
    let mut measurement = Measurement::begin(&mut opened.runner, &opened.limits)?;
    for _ in 0..args.repeats {
        measurement.round(&mut opened.runner)?;
        points.iter_mut().try_for_each(|point| point.take(&mut opened))?;
    }
    let costs = measurement.costs(&opened, costs::dispatch_ns(&opened)?);
    let chunk = opened.limits.max_batch_tokens;
    let points: Vec<Held> = points.iter().map(|point| point.held(&costs, chunk)).collect();
    let worst_error = points.iter().map(|held| held.error.abs()).fold(0.0, f64::max);
    let result =
        CheckJson { schema: "firstlight.budget-check/1", costs, repeats: args.repeats, points, worst_error };
    if args.output.json {
        return write_json(&result);
    }
    let style = Style::of_stdout();
    let mut lines = costs_lines(&result.costs, style);
    lines.push(String::new());
    lines.push(style.heading("predicted from them, and measured beside them"));
    lines.push(style.quiet(&format!("  {:<46}{:>14}{:>14}{:>10}", "", "predicted", "measured", "error")));
    lines.extend(result.points.iter().map(ToString::to_string));
    write_line(&lines.join("\n"))
}

/// The points within the limits.
fn points(opened: &Opened) -> Vec<Point> {
    let limits = &opened.limits;
    let point = |what, num_seqs, tokens| Point { what, num_seqs, tokens, times: Vec::new() };
    let last = (WARM_UP + STEPS + 1) as u32;
    let batches = BATCHES.into_iter().filter(|n| fits(&decode(*n, last), limits));
    let contexts = CONTEXTS.into_iter().filter(|(n, context)| fits(&decode(*n, *context), limits));
    let prompts = PROMPTS.into_iter().filter(|tokens| fits(&decode(1, *tokens + 1), limits));
    batches
        .map(|n| point(Kind::Decode, n, (WARM_UP + STEPS / 2) as u32 + 1))
        .chain(contexts.map(|(n, context)| point(Kind::DecodeOnGpu, n, context)))
        .chain(prompts.map(|tokens| point(Kind::Prefill, 1, tokens)))
        .collect()
}

impl Point {
    /// Measures it once.
    fn take(&mut self, opened: &mut Opened) -> Result<(), Failure> {
        let ahead = pace::ways(&opened.runner).ends_with(&[true]);
        let chunks = self.tokens.div_ceil(opened.limits.max_batch_tokens) as usize;
        let (prompt_tokens, steps) =
            if self.what == Kind::Prefill { (self.tokens, chunks) } else { (1, WARM_UP + STEPS) };
        if self.what == Kind::DecodeOnGpu {
            let mut timed = Timed::new(decode(self.num_seqs, self.tokens), self.num_seqs);
            timed.take(&mut opened.runner)?;
            self.times.push(timed.ns());
            return Ok(());
        }
        let asked = Asked { num_seqs: self.num_seqs, prompt_tokens, steps, ahead };
        let seen = pace::watch(&mut opened.runner, &opened.limits, asked)?;
        let (Some(first), Some(last)) = (seen.first(), seen.last()) else {
            return Err(Failure::failed("an engine that was asked took no step; report this defect"));
        };
        match self.what {
            Kind::Prefill => self.times.push(last.done_at - first.schedule_at),
            _ => {
                let gaps = seen.windows(2).skip(WARM_UP - 1).map(|pair| pair[1].done_at - pair[0].done_at);
                self.times.push(median(gaps));
            }
        }
        Ok(())
    }

    fn held(&self, costs: &StepCosts, chunk: u32) -> Held {
        let predicted_ns = match self.what {
            Kind::Decode => costs.step_ns(&StepLoad::decode(self.num_seqs, self.tokens)),
            Kind::DecodeOnGpu => {
                let parts = costs.parts(&StepLoad::decode(self.num_seqs, self.tokens));
                (parts.total_ns() - parts.host_ns).round() as u64
            }
            Kind::Prefill => StepLoad::chunks(self.tokens, chunk).map(|load| costs.step_ns(&load)).sum(),
        };
        let measured_ns = median(self.times.iter().copied());
        let error = predicted_ns as f64 / measured_ns.max(1) as f64 - 1.0;
        Held {
            what: self.what,
            num_seqs: self.num_seqs,
            tokens: self.tokens,
            predicted_ns,
            measured_ns,
            error,
        }
    }
}

impl fmt::Display for Held {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let tokens = grouped(self.tokens.into());
        let what = match self.what {
            Kind::Decode => format!("decode of {}, from token to token", self.num_seqs),
            Kind::DecodeOnGpu => format!("decode of {}, context {tokens}, on the GPU", self.num_seqs),
            Kind::Prefill => format!("prompt of {tokens}, to its first token"),
        };
        let verdict = if self.error.abs() > GOAL { "  off" } else { "" };
        write!(
            f,
            "  {what:<46}{:>14}{:>14}{:>+9.1}%{verdict}",
            milliseconds(self.predicted_ns as f64),
            milliseconds(self.measured_ns as f64),
            self.error * 100.0
        )
    }
}

#[cfg(test)]
mod tests {
    use firstlight_engine::costs::ClassCost;

    use super::*;

    #[test]
    fn a_point_is_held_against_the_steps_that_it_takes() {
        let rows = vec![ClassCost { rows: 1, ns: 1_000_000 }, ClassCost { rows: 101, ns: 101_000_000 }];
        let costs =
            StepCosts { rows, host: vec![ClassCost { rows: 1, ns: 500_000 }], ..StepCosts::default() };
        let check = |what, num_seqs, tokens, times: &[u64], predicted, error: f64, says: &str| {
            let held = Point { what, num_seqs, tokens, times: times.to_vec() }.held(&costs, 60);
            assert_eq!(held.predicted_ns, predicted, "{held:?}");
            assert!((held.error - error).abs() < 1e-9, "{held:?}");
            assert!(held.to_string().contains(says), "{held}");
        };
        check(Kind::Decode, 3, 7, &[3_500_000, 9, 9_000_000], 3_500_000, 0.0, "decode of 3");
        check(Kind::DecodeOnGpu, 3, 300, &[2_000_000], 3_000_000, 0.5, "off");
        check(Kind::Prefill, 1, 100, &[202_000_000], 101_000_000, -0.5, "prompt of 100");
    }
}

//! What a step costs in a replay: measured classes, scaled to recorded steps, or recorded steps alone.
//!
//! Invariant: how much of a replay's time is of steps larger than any that was seen is always known.

use std::ffi::OsString;
use std::path::Path;

use firstlight_engine::clock::Nanos;
use firstlight_engine::costs::{StepCosts, StepLoad};
use firstlight_engine::replay::{LinearCosts, Observed};
use firstlight_engine::sched::Batch;

use super::recording::Recording;
use crate::cli::{self, Command, Parsed, WhatIfArgs};
use crate::failure::Failure;

/// What steps cost, and how quick the machine was in each recorded run.
#[derive(Clone, Debug, PartialEq)]
pub struct Costs {
    source: Source,
    /// One a run: the time of its steps over what they cost by `source`. One machine is not as quick in every run, and a run
    /// is replayed as quick as it was.
    paces: Vec<f64>,
}

/// Where a step's time comes from.
#[derive(Clone, Debug, PartialEq)]
enum Source {
    /// Classes that were measured on the adapter.
    Measured {
        /// The costs, scaled to the recorded steps where there are any.
        costs: Box<StepCosts>,
        /// To so many steps.
        corrected_by: usize,
    },
    /// A line through so many recorded steps.
    Fitted(LinearCosts, usize),
}

impl Costs {
    /// What `args` name, else what the recorded steps tell.
    ///
    /// # Errors
    /// A file that is no costs; neither a file, nor steps, nor what the doctor kept.
    pub fn of(args: &WhatIfArgs, recording: &Recording) -> Result<Self, Failure> {
        let observed: Observed = recording.observed.concat();
        let source = match &args.costs {
            Some(path) => {
                let costs = crate::costs::named(path)?;
                let costs = if observed.is_empty() { costs } else { costs.corrected(&observed) };
                Source::Measured { costs: Box::new(costs), corrected_by: observed.len() }
            }
            None => match LinearCosts::fit(&observed) {
                Some(fitted) => Source::Fitted(fitted, observed.len()),
                None => Source::Measured { costs: Box::new(kept(&args.trace)?), corrected_by: 0 },
            },
        };
        let paces = recording.observed.iter().map(|run| source.pace(run)).collect();
        Ok(Self { source, paces })
    }

    /// How quick the machine was in the run `idx`: 2 where its steps took twice what they cost.
    pub fn pace(&self, idx: usize) -> f64 {
        self.paces.get(idx).copied().unwrap_or(1.0)
    }

    /// Whether steps are submitted before those before them are read.
    pub fn runs_ahead(&self) -> bool {
        matches!(&self.source, Source::Measured { costs, .. } if costs.runs_ahead)
    }

    /// In words.
    pub fn words(&self) -> String {
        match &self.source {
            Source::Measured { costs, corrected_by: 0 } => {
                format!("step costs as measured on {}", costs.adapter)
            }
            Source::Measured { costs, corrected_by } => {
                format!(
                    "step costs as measured on {}, scaled to {corrected_by} recorded steps",
                    costs.adapter
                )
            }
            Source::Fitted(_, steps) => format!("step costs fitted to {steps} recorded steps"),
        }
    }
}

impl Source {
    /// Nanoseconds of a step that holds `load`.
    fn step_ns(&self, load: &StepLoad) -> Nanos {
        match self {
            Self::Measured { costs, .. } => costs.step_ns(load),
            Self::Fitted(costs, _) => costs.step_ns(load),
        }
    }

    fn pace(&self, run: &Observed) -> f64 {
        let took: f64 = run.iter().map(|(_, ns)| *ns as f64).sum();
        let cost: f64 = run.iter().map(|(load, _)| self.step_ns(load) as f64).sum();
        if took > 0.0 && cost > 0.0 { took / cost } else { 1.0 }
    }
}

/// What the doctor measured and kept of the model and the adapter that it looks at where it is told nothing.
fn kept(trace: &Path) -> Result<StepCosts, Failure> {
    let usual = cli::parse(["firstlight", "doctor"].map(OsString::from))?;
    let costs = match usual {
        Parsed::Command(cli) => match cli.command {
            // Without a model there are none either.
            Command::Doctor(args) => crate::costs::kept(&args.engine).unwrap_or_default(),
            _ => None,
        },
        Parsed::Text(_) => None,
    };
    costs.ok_or_else(|| {
        Failure::usage(format!(
            "{} has no steps, so nothing says what a step costs; run `firstlight doctor`, which measures and keeps it, or name a file with --costs, or steps of the server with --steps",
            trace.display()
        ))
    })
}

/// Tells a replay what its steps cost, and notes how many of them nobody has seen the like of.
pub struct Meter<'c> {
    costs: &'c Costs,
    pace: f64,
    /// The most rows of answers, and rows at all, of an observed step.
    seen: Option<(u32, u32)>,
    total_ns: u128,
    beyond_ns: u128,
}

impl<'c> Meter<'c> {
    /// For a replay of a recording with the `observed` steps of each run.
    pub fn new(costs: &'c Costs, observed: &[Observed]) -> Self {
        let most = |rows: fn(&StepLoad) -> u32| observed.iter().flatten().map(|(load, _)| rows(load)).max();
        let seen = most(|load| load.decode_rows).zip(most(StepLoad::num_rows));
        Self { costs, pace: 1.0, seen, total_ns: 0, beyond_ns: 0 }
    }

    /// What follows is a replay of the run `idx`.
    pub fn begin(&mut self, idx: usize) {
        self.pace = self.costs.pace(idx);
    }

    /// Nanoseconds of a step.
    pub fn step_ns(&mut self, batch: &Batch) -> Nanos {
        let load = StepLoad::of(batch);
        let ns = (self.costs.source.step_ns(&load) as f64 * self.pace).round() as Nanos;
        self.total_ns += u128::from(ns);
        if self.seen.is_some_and(|(decode, rows)| load.decode_rows > decode || load.num_rows() > rows) {
            self.beyond_ns += u128::from(ns);
        }
        ns
    }

    /// The share of the steps' time, 0 to 1, that is of steps with more rows than any observed one; absent where none was
    /// observed.
    pub fn beyond(&self) -> Option<f64> {
        self.seen.map(|_| self.beyond_ns as f64 / (self.total_ns as f64).max(1.0))
    }
}

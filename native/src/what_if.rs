//! `firstlight what-if`: a recorded load, or a trace, replayed through the real scheduler under other settings.
//!
//! No model is loaded and nothing is computed: steps take as long as recorded ones or measured costs say. Invariant: no
//! prediction is shown without the error that the same replay makes where the answer is known, or the words that it is not.

use std::sync::Arc;
use std::time::Instant;

use firstlight_engine::replay::{Replayed, replay};
use firstlight_engine::report::ReportContext;
use firstlight_engine::timeline::RequestTimeline;

use self::costs::{Costs, Meter};
use self::grid::Setting;
use self::outcome::{Compared, Prediction, ReplayError, measured};
use self::recording::Recording;
use self::result_json::ResultJson;
use crate::bench::outcome::{CaseOutcome, Run};
use crate::bench::style::Style;
use crate::cli::WhatIfArgs;
use crate::failure::Failure;
use crate::terminal::{write_json, write_line};

pub mod costs;
pub mod grid;
pub mod outcome;
pub mod recording;
pub mod result_json;
pub mod table;

/// All that the command found out.
pub struct WhatIf {
    /// What was replayed.
    pub recording: Recording,
    /// What steps cost.
    pub costs: Costs,
    /// As it was recorded; absent for a trace of lengths.
    pub measured: Option<CaseOutcome>,
    /// How far a replay under the recorded settings is from what was measured.
    pub self_error: Option<ReplayError>,
    /// Another recording, beside what is predicted for its settings.
    pub compared: Option<Compared>,
    /// One a setting.
    pub predictions: Vec<Prediction>,
    /// Seconds that the replays took.
    pub seconds: f64,
}

/// Runs the command.
///
/// # Errors
/// Wrong usage; a file that cannot be read, or that is no recording; a load that would last for weeks.
pub fn run(args: &WhatIfArgs) -> Result<(), Failure> {
    let found = WhatIf::of(args)?;
    if args.output.json {
        return write_json(&ResultJson::of(&found));
    }
    write_line(&table::lines(&found, Style::of_stdout()).join("\n"))
}

impl WhatIf {
    /// Reads what `args` name, and replays it.
    ///
    /// # Errors
    /// As [`run`].
    pub fn of(args: &WhatIfArgs) -> Result<Self, Failure> {
        let recording = Recording::read(&args.trace, args)?;
        let other = match &args.compare {
            Some(path) => Some(Recording::read(path, args)?),
            None => None,
        };
        let costs = Costs::of(args, &recording)?;
        let settings = grid::settings(args, &recording.limits)?;
        let started = Instant::now();
        let measured = measured(&recording);
        let mut predictions = Vec::with_capacity(settings.len());
        for setting in &settings {
            predictions.push(predict(&recording, &costs, setting)?);
        }
        let self_error = match &measured {
            Some(measured) => {
                let recorded = Setting::recorded(&recording.limits);
                let known = predictions.iter().find(|prediction| prediction.setting.is_same(&recorded));
                let again = match known {
                    Some(known) => known.outcome.clone(),
                    None => predict(&recording, &costs, &recorded)?.outcome,
                };
                ReplayError::between(&again, measured)
            }
            None => None,
        };
        let compared = match other {
            Some(other) => Some(compare(&recording, &costs, &other, args)?),
            None => None,
        };
        let seconds = started.elapsed().as_secs_f64();
        Ok(Self { recording, costs, measured, self_error, compared, predictions, seconds })
    }
}

/// Replays every run of `recording` under `setting`.
fn predict(recording: &Recording, costs: &Costs, setting: &Setting) -> Result<Prediction, Failure> {
    let mut meter = Meter::new(costs, &recording.observed);
    let mut runs = Vec::with_capacity(recording.plans.len());
    let (mut cut_short, mut steps) = (0, 0);
    for (idx, plan) in recording.plans.iter().enumerate() {
        meter.begin(idx);
        let mut plan = plan.clone();
        plan.prioritise(setting.urgent.below, setting.urgent.priority);
        // A recording's steps tell it themselves.
        plan.host.runs_ahead |= recording.runs.is_empty() && costs.runs_ahead();
        let replayed = replay(&plan, &setting.limits, |batch| meter.step_ns(batch))
            .map_err(|error| Failure::failed(error.to_string()))?;
        cut_short += replayed.cut_short;
        steps += replayed.steps;
        runs.push(run_of(replayed));
    }
    let context = context(recording, setting);
    Ok(Prediction {
        setting: setting.clone(),
        outcome: CaseOutcome::of(&recording.case, &runs, &context),
        cut_short,
        steps,
        beyond: meter.beyond(),
    })
}

/// A replay as a bench would have measured it.
fn run_of(replayed: Replayed) -> Run {
    let shared = |timelines: Vec<RequestTimeline>| timelines.into_iter().map(Arc::new).collect();
    Run { timelines: shared(replayed.timelines), background: shared(replayed.background), ..Run::default() }
}

fn context(recording: &Recording, setting: &Setting) -> ReportContext {
    ReportContext {
        prefix_cache: setting.limits.prefix_cache,
        slots: setting.limits.max_num_seqs,
        ..recording.context.clone()
    }
}

/// What `other` measured, beside what a replay of `recording` says of its settings.
fn compare(
    recording: &Recording,
    costs: &Costs,
    other: &Recording,
    args: &WhatIfArgs,
) -> Result<Compared, Failure> {
    let name = args.compare.as_ref().map(|path| path.display().to_string()).unwrap_or_default();
    let Some(measured) = measured(other) else {
        return Err(Failure::usage(format!(
            "--compare is {name}, a trace of lengths in which nothing was measured; give a file of `bench --json`"
        )));
    };
    let predicted = predict(recording, costs, &Setting::recorded(&other.limits))?;
    let error = ReplayError::between(&predicted.outcome, &measured).ok_or_else(|| {
        Failure::usage(format!("--compare is {name}, and nobody was answered in it; record it again"))
    })?;
    Ok(Compared { name, measured, predicted, error })
}

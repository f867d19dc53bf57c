//! What replays came to, and how far they are from what was measured.
//!
//! Pure. Invariant: an error is always predicted against measured, of the median run of either.

use firstlight_engine::report::LatencyReport;
use serde::Serialize;

use super::grid::Setting;
use super::recording::Recording;
use crate::bench::outcome::CaseOutcome;

/// A replay under one setting.
pub struct Prediction {
    /// The setting.
    pub setting: Setting,
    /// The figures, as those of a bench.
    pub outcome: CaseOutcome,
    /// Answers that ended before their length because the pool or the context held no more.
    pub cut_short: usize,
    /// Steps.
    pub steps: u64,
    /// The share of the steps' time that is of steps larger than any recorded one.
    pub beyond: Option<f64>,
}

/// Another recording beside a prediction.
pub struct Compared {
    /// Its file.
    pub name: String,
    /// Its own figures.
    pub measured: CaseOutcome,
    /// What was predicted for its settings.
    pub predicted: Prediction,
    /// The error.
    pub error: ReplayError,
}

/// How far a prediction is from what was measured.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct ReplayError {
    /// The mean engine TTFT: predicted over measured, less 1.
    pub mean_ttft: f64,
    /// The queue's share of it: predicted less measured, both 0 to 1.
    pub queue_share: f64,
    /// The measured runs' own spread of the mean: greatest over least, less 1; absent where there was one run.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub spread: Option<f64>,
}

impl ReplayError {
    /// `predicted` against `measured`; `None` where one of them answered nobody.
    pub fn between(predicted: &CaseOutcome, measured: &CaseOutcome) -> Option<Self> {
        let mean = |outcome: &CaseOutcome| median(outcome)?.engine_ttft_parts.mean();
        let queue = |outcome: &CaseOutcome| median(outcome)?.engine_ttft_parts.queue_share();
        let spread = measured.spread(|run| run.report.engine_ttft_parts.mean());
        Some(Self {
            mean_ttft: mean(predicted)? / mean(measured)? - 1.0,
            queue_share: queue(predicted)? - queue(measured)?,
            spread: spread.filter(|_| measured.runs.len() > 1).map(|s| s.max / s.min - 1.0),
        })
    }
}

/// The report of the run with the median mean.
pub fn median(outcome: &CaseOutcome) -> Option<&LatencyReport> {
    outcome.runs.get(outcome.median_idx).map(|run| &run.report)
}

/// What was recorded; `None` where only lengths were.
pub fn measured(recording: &Recording) -> Option<CaseOutcome> {
    (!recording.runs.is_empty())
        .then(|| CaseOutcome::of(&recording.case, &recording.runs, &recording.context))
}

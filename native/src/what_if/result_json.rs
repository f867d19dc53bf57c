//! The whole result as JSON, schema `firstlight.what-if/1`.
//!
//! It computes nothing. Invariant: every prediction stands beside the error of the replay, or beside a null.

use firstlight_engine::clock::Nanos;
use firstlight_engine::report::LatencyReport;
use serde::Serialize;

use super::WhatIf;
use super::grid::Setting;
use super::outcome::{Prediction, ReplayError, median};
use crate::bench::outcome::CaseOutcome;
use crate::bench::result_json::Settings;

/// The result.
#[derive(Serialize)]
pub struct ResultJson<'r> {
    schema: &'static str,
    trace: &'r str,
    words: &'r str,
    requests: usize,
    adapter: &'r str,
    costs: String,
    notes: &'r [String],
    seconds: f64,
    recorded: SettingJson,
    /// Absent for a trace of lengths.
    #[serde(skip_serializing_if = "Option::is_none")]
    measured: Option<Figures<'r>>,
    self_error: Option<ReplayError>,
    #[serde(skip_serializing_if = "Option::is_none")]
    compared: Option<ComparedJson<'r>>,
    predictions: Vec<PredictionJson<'r>>,
}

#[derive(Serialize)]
struct SettingJson {
    #[serde(flatten)]
    limits: Settings,
    /// Prompts of fewer tokens have `priority`.
    urgent_below: u32,
    priority: i32,
}

impl SettingJson {
    fn of(setting: &Setting) -> Self {
        let urgent = setting.urgent;
        let limits = Settings::of(&setting.limits, "");
        Self { limits, urgent_below: urgent.below, priority: urgent.priority }
    }
}

/// Figures of the median run, and a report over all of them.
#[derive(Serialize)]
struct Figures<'r> {
    mean_engine_ttft_ns: Option<f64>,
    /// inbox, queue, prefill, waste: 0 to 1.
    shares: Option<[f64; 4]>,
    mean_ttft_ns: Option<f64>,
    wall_ns: Option<Nanos>,
    output_tokens_per_s: Option<f64>,
    runs: usize,
    report: &'r LatencyReport,
}

impl<'r> Figures<'r> {
    fn of(outcome: &'r CaseOutcome) -> Self {
        let run = outcome.runs.get(outcome.median_idx);
        let sums = median(outcome).map(|report| &report.engine_ttft_parts);
        let shares = sums.and_then(|sums| {
            Some([sums.inbox_share()?, sums.queue_share()?, sums.prefill_share()?, sums.waste_share()?])
        });
        Self {
            mean_engine_ttft_ns: sums.and_then(|sums| sums.mean()),
            shares,
            mean_ttft_ns: median(outcome).and_then(|report| report.ttft_parts.mean()),
            wall_ns: run.map(|run| run.wall_ns),
            output_tokens_per_s: run.map(|run| run.output_tokens_per_s),
            runs: outcome.runs.len(),
            report: &outcome.pooled,
        }
    }
}

#[derive(Serialize)]
struct PredictionJson<'r> {
    label: &'r str,
    settings: SettingJson,
    #[serde(flatten)]
    figures: Figures<'r>,
    /// As `self_error`: what to expect of this.
    error: Option<ReplayError>,
    cut_short: usize,
    steps: u64,
    beyond_recorded: Option<f64>,
}

impl<'r> PredictionJson<'r> {
    fn of(prediction: &'r Prediction, error: Option<ReplayError>) -> Self {
        Self {
            label: &prediction.setting.label,
            settings: SettingJson::of(&prediction.setting),
            figures: Figures::of(&prediction.outcome),
            error,
            cut_short: prediction.cut_short,
            steps: prediction.steps,
            beyond_recorded: prediction.beyond,
        }
    }
}

#[derive(Serialize)]
struct ComparedJson<'r> {
    file: &'r str,
    measured: Figures<'r>,
    predicted: PredictionJson<'r>,
}

impl<'r> ResultJson<'r> {
    /// The result of `found`.
    pub fn of(found: &'r WhatIf) -> Self {
        let recording = &found.recording;
        let compared = found.compared.as_ref().map(|compared| ComparedJson {
            file: &compared.name,
            measured: Figures::of(&compared.measured),
            predicted: PredictionJson::of(&compared.predicted, Some(compared.error)),
        });
        let prediction = |prediction| PredictionJson::of(prediction, found.self_error);
        Self {
            schema: "firstlight.what-if/1",
            trace: &recording.name,
            words: &recording.words,
            requests: recording.requests(),
            adapter: &recording.context.adapter,
            costs: found.costs.words(),
            notes: &recording.notes,
            seconds: found.seconds,
            recorded: SettingJson::of(&Setting::recorded(&recording.limits)),
            measured: found.measured.as_ref().map(Figures::of),
            self_error: found.self_error,
            compared,
            predictions: found.predictions.iter().map(prediction).collect(),
        }
    }
}

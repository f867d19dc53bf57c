//! The whole result of a bench as JSON, schema `firstlight.bench/1`: what was asked, under which conditions, and every
//! timeline and step of every run.
//!
//! It computes nothing. Invariant: whatever the terminal shows can be computed again from it.

use std::sync::Arc;

use firstlight_engine::clock::Nanos;
use firstlight_engine::report::LatencyReport;
use firstlight_engine::sched::SchedulerConfig;
use firstlight_engine::timeline::{ModelLabel, RequestTimeline, StepRecord};
use serde::{Deserialize, Serialize};

use super::load::Load;
use super::outcome::{CaseOutcome, Run};
use crate::cli::BenchArgs;
use crate::driver::EngineHandle;

/// The schema's name.
pub const SCHEMA: &str = "firstlight.bench/1";

/// The result.
#[derive(Serialize)]
pub struct ResultJson<'r> {
    schema: &'static str,
    /// As it was typed.
    command: Vec<String>,
    version: &'static str,
    model: &'r ModelLabel,
    adapter: &'r str,
    load: LoadJson<'r>,
    settings: Settings,
    /// KV blocks without an owner after the last run; all of them, unless something is wrong.
    blocks_free_at_end: usize,
    /// One an execution: each case of each repeat.
    repeats: Vec<RunJson<'r>>,
}

#[derive(Serialize)]
struct LoadJson<'r> {
    name: &'static str,
    words: &'r str,
    #[serde(skip_serializing_if = "Option::is_none")]
    rate: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    concurrency: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    trace: Option<TraceJson>,
    /// Measured requests of one repeat, over all cases.
    requests: usize,
    /// Absent where a trace says the lengths.
    #[serde(skip_serializing_if = "Option::is_none")]
    prompt_tokens: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    output_tokens: Option<u32>,
    shared_tokens: u32,
    repeats: u32,
    seed: u64,
    cases: &'r [super::load::Case],
}

#[derive(Serialize)]
struct TraceJson {
    file: String,
    shrink: f64,
    speed: f64,
    skip: u32,
}

/// The limits of an engine, as results name them.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[allow(missing_docs, reason = "each is the flag of the same name")]
pub struct Settings {
    pub slots: u32,
    pub batch_tokens: u32,
    pub block_size: u32,
    pub blocks_total: u32,
    pub max_model_len: u32,
    pub max_waiting: u32,
    pub prefix_cache: bool,
    /// A hash of all that the engine was set up with; empty where no engine was.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub engine_config: String,
}

#[derive(Serialize)]
struct RunJson<'r> {
    case: &'static str,
    repeat: usize,
    /// Whether this is the run whose requests the terminal shows: of its case, the one with the median mean TTFT.
    median: bool,
    wall_ns: Nanos,
    output_tokens_per_s: f64,
    requests_per_s: f64,
    /// By how much the latest arrival came after its instant.
    latest_arrival_ns: Nanos,
    broken: &'r [String],
    report: &'r LatencyReport,
    timelines: Vec<&'r RequestTimeline>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    background_timelines: Vec<&'r RequestTimeline>,
    steps: &'r [StepRecord],
}

impl<'r> ResultJson<'r> {
    /// The result of `load` on `engine`; `runs` are, for each case, one a repeat.
    pub fn new(
        args: &BenchArgs,
        load: &'r Load,
        engine: &'r EngineHandle,
        runs: &'r [Vec<Run>],
        outcomes: &'r [CaseOutcome],
    ) -> Self {
        let limits = engine.limits();
        let repeats = runs.iter().zip(outcomes).flat_map(|(runs, outcome)| {
            runs.iter().zip(&outcome.runs).enumerate().map(|(repeat, (run, figures))| RunJson {
                case: outcome.name,
                repeat,
                median: repeat == outcome.median_idx,
                wall_ns: figures.wall_ns,
                output_tokens_per_s: figures.output_tokens_per_s,
                requests_per_s: figures.requests_per_s,
                latest_arrival_ns: run.latest_ns,
                broken: &run.broken,
                report: &figures.report,
                timelines: run.timelines.iter().map(Arc::as_ref).collect(),
                background_timelines: run.background.iter().map(Arc::as_ref).collect(),
                steps: &run.steps,
            })
        });
        Self {
            schema: SCHEMA,
            command: std::env::args_os().map(|word| word.to_string_lossy().into_owned()).collect(),
            version: env!("CARGO_PKG_VERSION"),
            model: &engine.labels().model,
            adapter: engine.adapter(),
            load: load_json(args, load),
            settings: Settings::of(&limits, &engine.labels().engine_config),
            blocks_free_at_end: engine.counters().blocks_free,
            repeats: repeats.collect(),
        }
    }
}

fn load_json<'r>(args: &BenchArgs, load: &'r Load) -> LoadJson<'r> {
    let trace = args.trace.as_ref().map(|path| TraceJson {
        file: path.display().to_string(),
        shrink: args.cut.trace_shrink,
        speed: args.cut.trace_speed,
        skip: args.cut.trace_skip,
    });
    let lengths = |tokens: u32| trace.is_none().then_some(tokens);
    LoadJson {
        name: load.name,
        words: &load.words,
        rate: args.rate,
        concurrency: args.concurrency,
        requests: load.requests().count(),
        prompt_tokens: lengths(args.prompt_tokens),
        output_tokens: lengths(args.output_tokens),
        shared_tokens: args.shared_tokens,
        repeats: args.repeats,
        seed: args.seed,
        cases: &load.cases,
        trace,
    }
}

impl Settings {
    /// Of an engine with these limits.
    pub fn of(limits: &SchedulerConfig, engine_config: &str) -> Self {
        Self {
            slots: limits.max_num_seqs,
            batch_tokens: limits.max_batch_tokens,
            block_size: limits.block_size,
            blocks_total: limits.num_blocks,
            max_model_len: limits.max_model_len,
            max_waiting: limits.max_waiting,
            prefix_cache: limits.prefix_cache,
            engine_config: engine_config.to_owned(),
        }
    }
}

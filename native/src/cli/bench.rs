//! The flags of `firstlight bench`: which load, how often, and where the figures go.

use std::path::PathBuf;

use clap::builder::FalseyValueParser;
use clap::{Args, ValueEnum};

use super::EngineArgs;
use super::values::{self, JsonTarget};

/// A load that is one word.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Scenario {
    /// One request at a time on an idle engine
    Alone,
    /// Eight requests at once on 2 slots
    #[value(name = "burst-8x2")]
    Burst8x2,
    /// Eight requests at once on 4 slots
    #[value(name = "burst-8x4")]
    Burst8x4,
    /// Six requests, one each second, on 2 slots
    #[value(name = "staggered-6x2")]
    Staggered6x2,
    /// One request on an idle engine, under load, and under load with its prefix cached
    Contexts,
}

/// Which part of a trace is played, and how it is scaled.
#[derive(Clone, Debug, Args)]
pub struct TraceCut {
    /// Divide the trace's lengths by this
    #[arg(long, env = "FIRSTLIGHT_TRACE_SHRINK", value_name = "X", default_value_t = 1.0, value_parser = values::positive)]
    pub trace_shrink: f64,
    /// Play the trace so many times as fast
    #[arg(long, env = "FIRSTLIGHT_TRACE_SPEED", value_name = "X", default_value_t = 1.0, value_parser = values::positive)]
    pub trace_speed: f64,
    /// Leave out so many requests at the trace's start
    #[arg(long, env = "FIRSTLIGHT_TRACE_SKIP", value_name = "N", default_value_t = 0, value_parser = values::whole(0, 1_000_000))]
    pub trace_skip: u32,
}

/// `firstlight bench`.
#[derive(Debug, Args)]
pub struct BenchArgs {
    /// A load that is one word; where no load is named, alone
    #[arg(long, env = "FIRSTLIGHT_SCENARIO", value_name = "NAME", conflicts_with_all = ["rate", "concurrency", "trace"])]
    pub scenario: Option<Scenario>,
    /// No load: the time of every kernel in a step, beside what the adapter can do at best
    #[arg(long, env = "FIRSTLIGHT_MICRO", conflicts_with_all = ["scenario", "rate", "concurrency", "trace"])]
    pub micro: bool,
    /// No load: what the adapter reaches of its memory bandwidth and arithmetic with this model, held against the goals
    #[arg(long, env = "FIRSTLIGHT_GOALS", conflicts_with_all = ["scenario", "micro", "rate", "concurrency", "trace"])]
    pub goals: bool,
    /// With --goals: known answers to compare with, JSON with prompts that have input_ids and greedy_ids
    #[arg(long, env = "FIRSTLIGHT_GOLDEN", value_name = "FILE.json", requires = "goals")]
    pub golden: Option<PathBuf>,
    /// No load: the time of a decode step against the sequences in it and against their context, and the memory of their keys and
    /// values; as far as --slots and --max-model-len go
    #[arg(long, env = "FIRSTLIGHT_SWEEP", conflicts_with_all = ["scenario", "rate", "concurrency", "trace"])]
    pub sweep: bool,
    /// No load: the time from starting the program to the first token of an answer, with cold and with warm caches of compiled
    /// kernels
    #[arg(long, env = "FIRSTLIGHT_STARTUP", conflicts_with_all = ["scenario", "micro", "rate", "concurrency", "trace"])]
    pub startup: bool,
    /// What --startup starts: one start, and its times as JSON
    #[arg(long, env = "FIRSTLIGHT_STARTUP_ONCE", hide = true, requires = "startup", value_parser = FalseyValueParser::new())]
    pub startup_once: bool,
    /// Open loop: requests arrive at random (Poisson), so many a second on average, whatever becomes of those before
    #[arg(long, env = "FIRSTLIGHT_RATE", value_name = "R", conflicts_with_all = ["concurrency", "trace"], value_parser = values::positive)]
    pub rate: Option<f64>,
    /// Closed loop: so many clients, each of which asks again once it has its answer
    #[arg(long, env = "FIRSTLIGHT_CONCURRENCY", value_name = "N", conflicts_with = "trace", value_parser = values::whole(1, 1024))]
    pub concurrency: Option<u32>,
    /// Replay the arrivals and lengths of a CSV file: arrival, prompt tokens, generated tokens
    #[arg(long, env = "FIRSTLIGHT_TRACE", value_name = "FILE.csv")]
    pub trace: Option<PathBuf>,
    /// How much of it, and how it is scaled.
    #[command(flatten)]
    pub cut: TraceCut,
    /// Requests of one run; by default what the scenario says (4 for alone and contexts), 32 for the loops, and the whole
    /// trace
    #[arg(long, env = "FIRSTLIGHT_REQUESTS", value_name = "N", value_parser = values::whole(1, 1_000_000))]
    pub requests: Option<u32>,
    /// Tokens of a prompt
    #[arg(long, env = "FIRSTLIGHT_PROMPT_TOKENS", value_name = "N", default_value_t = 64, value_parser = values::whole(1, 1_000_000))]
    pub prompt_tokens: u32,
    /// Tokens at the beginning of each prompt that all of one run have in common
    #[arg(long, env = "FIRSTLIGHT_SHARED_TOKENS", value_name = "N", default_value_t = 0, value_parser = values::whole(0, 1_000_000))]
    pub shared_tokens: u32,
    /// Tokens of an answer
    #[arg(long, env = "FIRSTLIGHT_OUTPUT_TOKENS", value_name = "N", default_value_t = 32, value_parser = values::whole(1, 1_000_000))]
    pub output_tokens: u32,
    /// Runs of the same load; the spread between them is printed
    #[arg(long, env = "FIRSTLIGHT_REPEATS", value_name = "N", default_value_t = 3, value_parser = values::whole(1, 100))]
    pub repeats: u32,
    /// Same seed, same prompts and arrivals
    #[arg(long, env = "FIRSTLIGHT_SEED", value_name = "N", default_value_t = 1, value_parser = values::seed)]
    pub seed: u64,
    /// Write the whole result, every timeline included, to a file; without a name to stdout, and nothing else there
    #[arg(long, env = "FIRSTLIGHT_JSON", value_name = "FILE", num_args = 0..=1, default_missing_value = "-", value_parser = values::json_target)]
    pub json: Option<JsonTarget>,
    /// Write the whole result to a file that a browser opens without a network: the page's timelines and report
    #[arg(long, env = "FIRSTLIGHT_HTML", value_name = "FILE", conflicts_with_all = ["micro", "goals", "sweep", "startup"])]
    pub html: Option<PathBuf>,
    /// The flags that were typed, by their names in this struct; those that came from the environment are not among them.
    #[arg(skip)]
    pub typed: Vec<String>,
    /// Model and room.
    #[command(flatten)]
    pub engine: EngineArgs,
}

impl BenchArgs {
    /// Whether this flag, by its name in this struct, was typed.
    pub fn has_typed(&self, flag: &str) -> bool {
        self.typed.iter().any(|typed| typed == flag)
    }
}

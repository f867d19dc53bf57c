//! The command line: what can be typed, and nothing of what it does.
//!
//! Invariant: every flag is also an environment variable `FIRSTLIGHT_...`; a flag that is typed wins.

use std::path::PathBuf;

use clap::builder::FalseyValueParser;
use clap::{Args, Parser, Subcommand};

use firstlight_engine::request::SamplingParams;

use crate::failure::Failure;
use crate::models::DEFAULT_MODEL;

mod bench;
mod budget;
mod diagnose;
mod parse;
mod probe;
mod serve;
mod trace;
mod values;
mod what_if;

pub use bench::{BenchArgs, Scenario, TraceCut};
pub use budget::BudgetArgs;
pub use diagnose::DiagnoseArgs;
pub use parse::{Parsed, parse};
pub use probe::ProbeArgs;
pub use serve::ServeArgs;
pub use trace::TraceArgs;
pub use values::name as parse_name;
pub use values::{Activations, Autotune, JsonTarget, KvCache, LogFormat, Switch, TokenIds, Urgent};
pub(crate) use values::{names_a_host, otlp_endpoint, without_password};
pub use what_if::WhatIfArgs;

/// How to begin, and what a script gets back.
const START: &str = "\
Start with:
  firstlight pull
  firstlight run -p \"Why is the sky blue?\"

Exit codes: 0 done, 1 failed, 2 wrong usage, 3 no usable adapter, 4 model missing, unreadable or unsupported, 130 stopped by Ctrl-C.";

/// An LLM inference engine on wgpu. Every request says where its first token's time went.
#[derive(Debug, Parser)]
#[command(name = "firstlight", version, propagate_version = true, max_term_width = 100, after_help = START)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// The commands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Complete one prompt, or several side by side in one batch
    Run(RunArgs),
    /// Talk in the terminal; Ctrl-C stops the answer, /quit leaves
    Chat(ChatArgs),
    /// Answer over HTTP as OpenAI's API does, on 127.0.0.1:8080
    Serve(ServeArgs),
    /// Measure a server from the client's side, and say when something on the way buffers its streams
    Probe(ProbeArgs),
    /// Measure under a load that is one word, and say where the time goes
    Bench(Box<BenchArgs>),
    /// Replay what was recorded, or a trace, under other settings: what would its latencies have been?
    WhatIf(Box<WhatIfArgs>),
    /// Take one request apart into twelve stages, each with its time, its share and what bounds it
    Trace(TraceArgs),
    /// Name the stage to look at where answers are slow or late, with the evidence
    Diagnose(DiagnoseArgs),
    /// Say where the time of a request would go, how many users there is room for, and where the lines bend
    Budget(Box<BudgetArgs>),
    /// Show adapters, test and measure the one that is used, and say what is missing
    Doctor(DoctorArgs),
    /// List the models on this machine and the one that can be had
    Models(OutputArgs),
    /// Bring a model: the default one, or OWNER/REPO[:file.gguf] from the Hugging Face hub
    Pull(PullArgs),
}

/// How a result is printed.
#[derive(Clone, Debug, Args)]
pub struct OutputArgs {
    /// Print a machine-readable result on stdout and nothing else there
    #[arg(long, env = "FIRSTLIGHT_JSON", value_parser = FalseyValueParser::new())]
    pub json: bool,
}

/// Which adapter, within which limits.
#[derive(Clone, Debug, Args)]
pub struct AdapterArgs {
    /// The adapter's index or a part of its name, as `firstlight doctor` lists them; by default the strongest
    #[arg(long, env = "FIRSTLIGHT_ADAPTER", value_name = "INDEX|SUBSTRING")]
    pub adapter: Option<String>,
    /// Use WebGPU's default limits and no optional features
    #[arg(long, env = "FIRSTLIGHT_DEFAULT_LIMITS", value_parser = FalseyValueParser::new())]
    pub default_limits: bool,
    /// Pin the kernels: a JSON file with what `doctor --json` prints, or with a part of it such as {"weights": "buffer"}
    #[arg(long, env = "FIRSTLIGHT_KERNELS", value_name = "FILE")]
    pub kernels: Option<PathBuf>,
    /// Whether several sets of kernels are tried at the first start, and the quickest is kept: auto does so on GPUs, on also
    /// where the CPU computes, again tries anew, off takes what the adapter's facts suggest
    #[arg(long, env = "FIRSTLIGHT_AUTOTUNE", value_name = "auto|on|again|off", default_value = "auto", value_parser = values::autotune)]
    pub autotune: Autotune,
}

/// Which model, and how much room it gets.
#[derive(Clone, Debug, Args)]
pub struct EngineArgs {
    /// A model's name, a .gguf file, a folder, or a repository that was pulled
    #[arg(long, env = "FIRSTLIGHT_MODEL", value_name = "NAME|FILE|DIR|REPO", default_value = DEFAULT_MODEL.name)]
    pub model: String,
    /// The adapter to run on.
    #[command(flatten)]
    pub adapter: AdapterArgs,
    /// The most sequences that are computed side by side, 1 to 256
    #[arg(long, env = "FIRSTLIGHT_SLOTS", value_name = "N", default_value_t = 8, value_parser = values::whole(1, 256))]
    pub slots: u32,
    /// Memory for keys and values (the KV cache): bytes, or with a unit such as 512MiB. By default room for one whole
    /// context or for 1,024 tokens a slot, whichever is more, but at most 1 GiB
    #[arg(long, env = "FIRSTLIGHT_KV_MEMORY", value_name = "BYTES", value_parser = values::bytes)]
    pub kv_memory: Option<u64>,
    /// The same as a number of blocks of --block-size tokens
    #[arg(long, env = "FIRSTLIGHT_KV_BLOCKS", value_name = "N", conflicts_with = "kv_memory", value_parser = values::whole(1, u32::MAX))]
    pub kv_blocks: Option<u32>,
    /// Tokens in a block of the KV cache: a multiple of 8, up to 256
    #[arg(long, env = "FIRSTLIGHT_BLOCK_SIZE", value_name = "TOKENS", default_value_t = 16, value_parser = values::block_size)]
    pub block_size: u32,
    /// The most tokens, of prompts and answers together, that one step computes
    #[arg(long, env = "FIRSTLIGHT_BATCH_TOKENS", value_name = "TOKENS", default_value_t = 256, value_parser = values::whole(1, 16_384))]
    pub batch_tokens: u32,
    /// The most tokens of one prompt and its answer together; by default the model's context
    #[arg(long, env = "FIRSTLIGHT_MAX_MODEL_LEN", value_name = "TOKENS", value_parser = values::whole(2, u32::MAX))]
    pub max_model_len: Option<u32>,
    /// Whether prompts that begin alike share what was computed for their beginning
    #[arg(long, env = "FIRSTLIGHT_PREFIX_CACHE", value_name = "on|off", default_value = "on", value_parser = values::switch)]
    pub prefix_cache: Switch,
    /// What products with 4-bit weights take: f32, exactly, or i8, faster on CPU drivers and rounded to 8 bits; auto for the
    /// engine's choice, which is f32
    #[arg(long, env = "FIRSTLIGHT_ACTIVATIONS", value_name = "f32|i8|auto", default_value = "auto", value_parser = values::activations)]
    pub activations: Activations,
    /// How keys and values are kept: f32, exactly; f16, in half the memory; q8, 8 bits, in little more than a quarter of it; auto for the
    /// engine's choice for the adapter
    #[arg(long, env = "FIRSTLIGHT_KV_CACHE", value_name = "f32|f16|q8|auto", default_value = "auto", value_parser = values::kv_cache)]
    pub kv_cache: KvCache,
}

/// How the next token is chosen.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Sampling")]
pub struct SamplingArgs {
    /// Tokens to generate at most
    #[arg(long, env = "FIRSTLIGHT_MAX_TOKENS", value_name = "N", default_value_t = 256, value_parser = values::whole(0, u32::MAX))]
    pub max_tokens: u32,
    /// How freely a token is drawn, 0 to 100: 0 takes the likeliest each time, 1 draws as the model's probabilities say
    #[arg(long, env = "FIRSTLIGHT_TEMPERATURE", value_name = "T", default_value_t = 0.0, value_parser = values::number)]
    pub temperature: f32,
    /// Keep the k likeliest tokens; 0 keeps all
    #[arg(long, env = "FIRSTLIGHT_TOP_K", value_name = "K", default_value_t = 0, value_parser = values::whole(0, u32::MAX))]
    pub top_k: u32,
    /// Keep the likeliest tokens whose probabilities reach this sum; 1 keeps all
    #[arg(long, env = "FIRSTLIGHT_TOP_P", value_name = "P", default_value_t = 1.0, value_parser = values::number)]
    pub top_p: f32,
    /// Keep tokens at least this fraction as likely as the likeliest; 0 keeps all
    #[arg(long, env = "FIRSTLIGHT_MIN_P", value_name = "P", default_value_t = 0.0, value_parser = values::number)]
    pub min_p: f32,
    /// Makes tokens of the prompt and the answer less likely where above 1; 1 is off
    #[arg(long, env = "FIRSTLIGHT_REPETITION_PENALTY", value_name = "X", default_value_t = 1.0, value_parser = values::number)]
    pub repetition_penalty: f32,
    /// Taken from the logit of each token that the answer has; 0 is off
    #[arg(long, env = "FIRSTLIGHT_PRESENCE_PENALTY", value_name = "X", default_value_t = 0.0, value_parser = values::number)]
    pub presence_penalty: f32,
    /// Taken from it once for each time that the answer has the token; 0 is off
    #[arg(long, env = "FIRSTLIGHT_FREQUENCY_PENALTY", value_name = "X", default_value_t = 0.0, value_parser = values::number)]
    pub frequency_penalty: f32,
    /// Same seed, same tokens; by default another one each time
    #[arg(long, env = "FIRSTLIGHT_SEED", value_name = "N", value_parser = values::seed)]
    pub seed: Option<u64>,
    /// A text that ends the answer; may be given several times
    #[arg(long, env = "FIRSTLIGHT_STOP", value_name = "TEXT", allow_hyphen_values = true)]
    pub stop: Vec<String>,
    /// Report the log-probability of each token and of the N likeliest, 0 to 20; needs --json
    #[arg(long, env = "FIRSTLIGHT_LOGPROBS", value_name = "N", value_parser = values::whole(0, 20))]
    pub logprobs: Option<u32>,
    /// Go on past end tokens
    #[arg(long, env = "FIRSTLIGHT_IGNORE_EOS", value_parser = FalseyValueParser::new())]
    pub ignore_eos: bool,
}

impl SamplingArgs {
    /// The engine's parameters; `drawn_seed` counts where no seed was typed.
    ///
    /// # Errors
    /// A value outside its range is wrong usage.
    pub fn params(&self, drawn_seed: u64) -> Result<SamplingParams, Failure> {
        let params = SamplingParams {
            max_tokens: self.max_tokens,
            temperature: self.temperature,
            top_k: self.top_k,
            top_p: self.top_p,
            min_p: self.min_p,
            repetition_penalty: self.repetition_penalty,
            presence_penalty: self.presence_penalty,
            frequency_penalty: self.frequency_penalty,
            logit_bias: Vec::new(),
            seed: self.seed.unwrap_or(drawn_seed),
            stop: self.stop.clone(),
            logprobs: self.logprobs,
            ignore_eos: self.ignore_eos,
        };
        params.validate()?;
        Ok(params)
    }
}

/// `firstlight run`.
#[derive(Debug, Args)]
pub struct RunArgs {
    /// A prompt; several run side by side in one batch
    #[arg(short, long, env = "FIRSTLIGHT_PROMPT", value_name = "TEXT", allow_hyphen_values = true)]
    pub prompt: Vec<String>,
    /// Read the prompt from a file
    #[arg(short, long, env = "FIRSTLIGHT_FILE", conflicts_with_all = ["prompt", "ids"])]
    pub file: Option<PathBuf>,
    /// `-` reads the prompt from standard input
    #[arg(value_name = "-", value_parser = values::dash, conflicts_with_all = ["prompt", "file", "ids"])]
    pub stdin: Option<String>,
    /// Feed token ids instead of text, such as 1,2,3; may be given several times
    #[arg(long, env = "FIRSTLIGHT_IDS", value_name = "N,N,...", conflicts_with = "prompt", value_parser = values::token_ids)]
    pub ids: Vec<TokenIds>,
    /// Send the text as it is, without the model's chat template; special tokens in it are read as such
    #[arg(long, env = "FIRSTLIGHT_RAW", value_parser = FalseyValueParser::new())]
    pub raw: bool,
    /// Read special tokens in a chat message as such; by default they are plain text
    #[arg(long, env = "FIRSTLIGHT_PARSE_SPECIAL", value_parser = FalseyValueParser::new())]
    pub parse_special: bool,
    /// How the result is printed.
    #[command(flatten)]
    pub output: OutputArgs,
    /// Model and room.
    #[command(flatten)]
    pub engine: EngineArgs,
    /// How the next token is chosen.
    #[command(flatten)]
    pub sampling: SamplingArgs,
}

/// `firstlight chat`.
#[derive(Debug, Args)]
pub struct ChatArgs {
    /// What the model is told before the first question
    #[arg(long, env = "FIRSTLIGHT_SYSTEM", value_name = "TEXT", allow_hyphen_values = true)]
    pub system: Option<String>,
    /// Read special tokens in a chat message as such; by default they are plain text
    #[arg(long, env = "FIRSTLIGHT_PARSE_SPECIAL", value_parser = FalseyValueParser::new())]
    pub parse_special: bool,
    /// Model and room.
    #[command(flatten)]
    pub engine: EngineArgs,
    /// How the next token is chosen.
    #[command(flatten)]
    pub sampling: SamplingArgs,
}

/// `firstlight doctor`.
#[derive(Debug, Args)]
pub struct DoctorArgs {
    /// How the result is printed.
    #[command(flatten)]
    pub output: OutputArgs,
    /// The adapter to look at, and the model whose steps are timed on it.
    #[command(flatten)]
    pub engine: EngineArgs,
}

/// `firstlight pull`.
#[derive(Debug, Args)]
pub struct PullArgs {
    /// The default model's name, or OWNER/REPO[:file.gguf]
    #[arg(default_value = DEFAULT_MODEL.name)]
    pub name: String,
    /// Only look: fails with exit code 4 where the model is not on this machine
    #[arg(long, env = "FIRSTLIGHT_CACHED", value_parser = FalseyValueParser::new())]
    pub cached: bool,
    /// How the result is printed.
    #[command(flatten)]
    pub output: OutputArgs,
}

//! The flags of `firstlight what-if`: what was recorded, and which other settings it is replayed under.

use std::path::PathBuf;

use clap::Args;

use super::values::{self, Switch, Urgent};
use super::{OutputArgs, TraceCut};

/// `firstlight what-if`.
#[derive(Debug, Args)]
pub struct WhatIfArgs {
    /// What is replayed: a file of `bench --json`, timelines of a server (`/v1/timelines`), or a CSV file of arrivals, prompt
    /// tokens and generated tokens
    #[arg(long, env = "FIRSTLIGHT_TRACE", value_name = "FILE")]
    pub trace: PathBuf,
    /// Beside the timelines of a server: its steps (`/v1/steps`), which tell what a step costs
    #[arg(long, env = "FIRSTLIGHT_STEPS", value_name = "FILE")]
    pub steps: Option<PathBuf>,
    /// Which case of a bench that has several
    #[arg(long, env = "FIRSTLIGHT_CASE", value_name = "NAME")]
    pub case: Option<String>,
    /// What steps cost: JSON with schema firstlight.costs/1; scaled to the recorded steps where there are any. By default the
    /// recorded steps alone tell, and where there are none what `firstlight doctor` kept
    #[arg(long, env = "FIRSTLIGHT_COSTS", value_name = "FILE")]
    pub costs: Option<PathBuf>,
    /// A recording under other settings: its own figures beside what is predicted for them, and the error
    #[arg(long, env = "FIRSTLIGHT_COMPARE", value_name = "FILE")]
    pub compare: Option<PathBuf>,
    /// Slots to replay under; several make a row each, and with other lists a row for each combination
    #[arg(long, env = "FIRSTLIGHT_SLOTS", value_name = "N,N,...", value_delimiter = ',', value_parser = values::whole(1, 1024))]
    pub slots: Vec<u32>,
    /// Tokens of a step to replay under
    #[arg(long, env = "FIRSTLIGHT_BATCH_TOKENS", value_name = "N,N,...", value_delimiter = ',', value_parser = values::whole(1, 65_536))]
    pub batch_tokens: Vec<u32>,
    /// Blocks of the KV cache to replay under
    #[arg(long, env = "FIRSTLIGHT_KV_BLOCKS", value_name = "N,N,...", value_delimiter = ',', conflicts_with = "kv_memory", value_parser = values::whole(1, 16_777_216))]
    pub kv_blocks: Vec<u32>,
    /// The same as memory: bytes, or with a unit such as 512MiB
    #[arg(long, env = "FIRSTLIGHT_KV_MEMORY", value_name = "BYTES,...", value_delimiter = ',', value_parser = values::bytes)]
    pub kv_memory: Vec<u64>,
    /// Bytes of keys and values of one token, for --kv-memory; by default those of the default model in f16
    #[arg(long, env = "FIRSTLIGHT_KV_BYTES_A_TOKEN", value_name = "BYTES", default_value_t = 23_040, value_parser = values::whole(1, 1 << 30))]
    pub kv_bytes_a_token: u32,
    /// Whether prompts that begin alike share what was computed: on, off, or on,off for both
    #[arg(long, env = "FIRSTLIGHT_PREFIX_CACHE", value_name = "on|off,...", value_delimiter = ',', value_parser = values::switch)]
    pub prefix_cache: Vec<Switch>,
    /// Priorities to replay under: prompts of fewer tokens than the first number get the second as priority (smaller is
    /// sooner), such as 256:-5; none for no priorities
    #[arg(long, env = "FIRSTLIGHT_PRIORITIES", value_name = "TOKENS:PRIORITY,...", value_delimiter = ',', allow_hyphen_values = true, value_parser = values::urgent)]
    pub priorities: Vec<Urgent>,
    /// Tokens in a block of the KV cache, where the recording does not say
    #[arg(long, env = "FIRSTLIGHT_BLOCK_SIZE", value_name = "TOKENS", default_value_t = 16, value_parser = values::block_size)]
    pub block_size: u32,
    /// The most tokens of one prompt and its answer together, where the recording does not say; by default what the longest
    /// request needs
    #[arg(long, env = "FIRSTLIGHT_MAX_MODEL_LEN", value_name = "TOKENS", value_parser = values::whole(2, 1 << 30))]
    pub max_model_len: Option<u32>,
    /// Tokens at the beginning of each prompt of a CSV file that all have in common
    #[arg(long, env = "FIRSTLIGHT_SHARED_TOKENS", value_name = "N", default_value_t = 0, value_parser = values::whole(0, 1_000_000))]
    pub shared_tokens: u32,
    /// Requests of a CSV file that are replayed; by default all
    #[arg(long, env = "FIRSTLIGHT_REQUESTS", value_name = "N", value_parser = values::whole(1, 1_000_000))]
    pub requests: Option<u32>,
    /// How much of a CSV file, and how it is scaled.
    #[command(flatten)]
    pub cut: TraceCut,
    /// How the result is printed.
    #[command(flatten)]
    pub output: OutputArgs,
}

//! The flags of `firstlight budget`: which stack, and what is turned.

use std::path::PathBuf;

use clap::Args;
use clap::builder::FalseyValueParser;

use super::{EngineArgs, OutputArgs, values};

/// `firstlight budget`.
#[derive(Debug, Args)]
pub struct BudgetArgs {
    /// A model of 8 billion parameters in 16 bits on an H100, by its rates, in place of the model and the adapter that are here
    #[arg(long, env = "FIRSTLIGHT_REFERENCE", value_parser = FalseyValueParser::new())]
    pub reference: bool,
    /// Tokens of the prompt
    #[arg(long, env = "FIRSTLIGHT_PROMPT_TOKENS", value_name = "N", default_value_t = 2000, value_parser = values::whole(1, 1_000_000))]
    pub prompt_tokens: u32,
    /// Tokens of the answer
    #[arg(long, env = "FIRSTLIGHT_OUTPUT_TOKENS", value_name = "N", default_value_t = 300, value_parser = values::whole(1, 1_000_000))]
    pub output_tokens: u32,
    /// Sequences that decode side by side
    #[arg(long, env = "FIRSTLIGHT_BATCH", value_name = "N", default_value_t = 1, value_parser = values::whole(1, 65_536))]
    pub batch: u32,
    /// Tokens of a user on average, for the users that a paged pool has room for; by default prompt and answer
    #[arg(long, env = "FIRSTLIGHT_AVERAGE_TOKENS", value_name = "N", value_parser = values::whole(1, 1_000_000))]
    pub average_tokens: Option<u32>,
    /// With --reference: bits of a weight, 16 where nothing is said
    #[arg(long, env = "FIRSTLIGHT_WEIGHT_BITS", value_name = "BITS", value_parser = values::bits)]
    pub weight_bits: Option<f64>,
    /// With --reference: bits of a key's or a value's number, 16 where nothing is said
    #[arg(long, env = "FIRSTLIGHT_KV_BITS", value_name = "BITS", value_parser = values::bits)]
    pub kv_bits: Option<f64>,
    /// Costs of steps, as `firstlight doctor --json` prints them; by default those that were kept, else they are measured
    #[arg(long, env = "FIRSTLIGHT_COSTS", value_name = "FILE")]
    pub costs: Option<PathBuf>,
    /// Measure the costs, and beside them steps and prompts that no cost was taken from: predicted, measured, and how far apart
    #[arg(long, env = "FIRSTLIGHT_CHECK", value_parser = FalseyValueParser::new())]
    pub check: bool,
    /// With --check: how often everything is measured; medians count
    #[arg(long, env = "FIRSTLIGHT_REPEATS", value_name = "N", default_value_t = 5, value_parser = values::whole(1, 100))]
    pub repeats: u32,
    /// How the result is printed.
    #[command(flatten)]
    pub output: OutputArgs,
    /// Model and room.
    #[command(flatten)]
    pub engine: EngineArgs,
}

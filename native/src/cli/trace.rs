//! The flags of `firstlight trace`: which request, and where the picture of it goes.

use std::path::PathBuf;

use clap::Args;
use clap::builder::FalseyValueParser;

use super::{EngineArgs, OutputArgs, values};

/// `firstlight trace`.
#[derive(Debug, Args)]
pub struct TraceArgs {
    /// The prompt of the request that is taken apart
    #[arg(
        short,
        long,
        env = "FIRSTLIGHT_PROMPT",
        value_name = "TEXT",
        default_value = "What is gravity? Answer in one sentence.",
        allow_hyphen_values = true
    )]
    pub prompt: String,
    /// Send the text as it is, without the model's chat template
    #[arg(long, env = "FIRSTLIGHT_RAW", value_parser = FalseyValueParser::new())]
    pub raw: bool,
    /// Tokens to generate at most
    #[arg(long, env = "FIRSTLIGHT_MAX_TOKENS", value_name = "N", default_value_t = 32, value_parser = values::whole(1, u32::MAX))]
    pub max_tokens: u32,
    /// Other requests that are answered at the same time
    #[arg(long, env = "FIRSTLIGHT_BESIDE", value_name = "N", default_value_t = 0, value_parser = values::whole(0, 1024))]
    pub beside: u32,
    /// Write Chrome trace JSON, which Perfetto (ui.perfetto.dev) and chrome://tracing open
    #[arg(long, env = "FIRSTLIGHT_PERFETTO", value_name = "FILE")]
    pub perfetto: Option<PathBuf>,
    /// How the result is printed.
    #[command(flatten)]
    pub output: OutputArgs,
    /// Model and room.
    #[command(flatten)]
    pub engine: EngineArgs,
}

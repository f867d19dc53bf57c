//! The flags of `firstlight probe`: which server, how much it is asked, and how the result is printed.

use clap::Args;

use super::{OutputArgs, values};

/// `firstlight probe`.
#[derive(Clone, Debug, Args)]
pub struct ProbeArgs {
    /// The server, such as http://127.0.0.1:8080; its API lies under /v1 unless the URL ends in another path
    #[arg(value_name = "URL")]
    pub url: String,
    /// Streamed chats to ask for
    #[arg(short = 'n', long, env = "FIRSTLIGHT_REQUESTS", value_name = "N", default_value_t = 4, value_parser = values::whole(1, 10_000))]
    pub requests: u32,
    /// The most of them that are under way at once
    #[arg(long, env = "FIRSTLIGHT_CONCURRENCY", value_name = "N", default_value_t = 1, value_parser = values::whole(1, 256))]
    pub concurrency: u32,
    /// Tokens to ask for; fewer than 16 say little about buffering
    #[arg(long, env = "FIRSTLIGHT_MAX_TOKENS", value_name = "N", default_value_t = 48, value_parser = values::whole(1, 65_536))]
    pub max_tokens: u32,
    /// What is asked
    #[arg(
        short,
        long,
        env = "FIRSTLIGHT_PROMPT",
        value_name = "TEXT",
        default_value = "Tell me in a few sentences how rain comes about.",
        allow_hyphen_values = true
    )]
    pub prompt: String,
    /// The key that the server asks for; better given as a variable, which no list of processes shows
    #[arg(long, env = "FIRSTLIGHT_API_KEY", value_name = "KEY", hide_env_values = true)]
    pub api_key: Option<String>,
    /// The model to name; by default the first that the server lists
    // Not --model alone: its variable names a file, as everywhere else.
    #[arg(
        long = "served-model-name",
        visible_alias = "model",
        env = "FIRSTLIGHT_SERVED_MODEL_NAME",
        value_name = "NAME"
    )]
    pub model: Option<String>,
    /// Seconds that one answer may take in all
    #[arg(long, env = "FIRSTLIGHT_TIMEOUT", value_name = "SECONDS", default_value_t = 120, value_parser = values::whole(1, 86_400))]
    pub timeout: u32,
    /// How the result is printed.
    #[command(flatten)]
    pub output: OutputArgs,
}

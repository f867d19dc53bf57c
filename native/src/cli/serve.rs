//! The flags of `firstlight serve`: where it listens, who may ask, and how patient it is.

use std::path::PathBuf;

use clap::Args;
use clap::builder::FalseyValueParser;

use super::{EngineArgs, values};

/// `firstlight serve`.
#[derive(Clone, Debug, Args)]
pub struct ServeArgs {
    /// The address to listen on. One that other machines reach needs --api-keys, or --insecure
    #[arg(long, env = "FIRSTLIGHT_HOST", value_name = "ADDRESS", default_value = "127.0.0.1")]
    pub host: String,
    /// The port; 0 takes a free one and prints it
    #[arg(long, env = "FIRSTLIGHT_PORT", value_name = "PORT", default_value_t = 8080)]
    pub port: u16,
    /// Seconds that running answers get to end after SIGTERM or Ctrl-C; a second signal ends at once
    #[arg(long, env = "FIRSTLIGHT_GRACE", value_name = "SECONDS", default_value_t = 30, value_parser = values::whole(0, 86_400))]
    pub grace: u32,
    /// Let everybody who reaches the address ask, without a key
    #[arg(long, env = "FIRSTLIGHT_INSECURE", value_parser = FalseyValueParser::new())]
    pub insecure: bool,
    /// A file with one API key a line, and after it requests=N, tokens=N (a minute) and name=WORD where wanted. SIGHUP reads it again
    #[arg(long, env = "FIRSTLIGHT_API_KEYS", value_name = "FILE")]
    pub api_keys: Option<PathBuf>,
    /// Requests that each key may send a minute, or everybody together where there are no keys
    #[arg(long, env = "FIRSTLIGHT_REQUESTS_PER_MINUTE", value_name = "N", value_parser = values::whole(1, u32::MAX))]
    pub requests_per_minute: Option<u32>,
    /// Tokens of prompts and answers that each key may use a minute, or everybody together where there are no keys
    #[arg(long, env = "FIRSTLIGHT_TOKENS_PER_MINUTE", value_name = "N", value_parser = values::whole(1, u32::MAX))]
    pub tokens_per_minute: Option<u32>,
    /// A file of phrases and /patterns/, one a line, that neither prompts nor answers may contain. SIGHUP reads it again
    #[arg(long, env = "FIRSTLIGHT_POLICY", value_name = "FILE")]
    pub policy: Option<PathBuf>,
    /// An origin whose pages may ask, such as https://example.org, or *; may be given several times
    #[arg(long, env = "FIRSTLIGHT_CORS", value_name = "ORIGIN")]
    pub cors: Vec<String>,
    /// The most bytes of a request's body
    #[arg(long, env = "FIRSTLIGHT_MAX_BODY", value_name = "BYTES", default_value = "8MiB", value_parser = values::bytes)]
    pub max_body: u64,
    /// The most connections that are open at once; more are answered 503
    #[arg(long, env = "FIRSTLIGHT_MAX_CONNECTIONS", value_name = "N", default_value_t = 512, value_parser = values::whole(1, 65_536))]
    pub max_connections: u32,
    /// The most requests that wait for a slot; more are answered 429
    #[arg(long, env = "FIRSTLIGHT_MAX_WAITING", value_name = "N", default_value_t = 256, value_parser = values::whole(1, 65_536))]
    pub max_waiting: u32,
    /// Seconds after which a client that neither reads nor sends what it began is let go
    #[arg(long, env = "FIRSTLIGHT_STALL_LIMIT", value_name = "SECONDS", default_value_t = 30, value_parser = values::whole(1, 86_400))]
    pub stall_limit: u32,
    /// What /v1/models calls the model; by default what --model calls it
    #[arg(long, env = "FIRSTLIGHT_SERVED_MODEL_NAME", value_name = "NAME")]
    pub served_model_name: Option<String>,
    /// What this server is called among others behind one proxy: told on every timeline and in every answer's head
    #[arg(long, env = "FIRSTLIGHT_REPLICA", value_name = "NAME", value_parser = values::name)]
    pub replica: Option<String>,
    /// Model and room.
    #[command(flatten)]
    pub engine: EngineArgs,
}

//! The flags of `firstlight diagnose`: what is looked at, what it is compared with, and how the outcome is printed.

use clap::Args;
use clap::builder::FalseyValueParser;

use super::{OutputArgs, values};

/// `firstlight diagnose`.
#[derive(Clone, Debug, Args)]
pub struct DiagnoseArgs {
    /// What is looked at: the URL of a running server, a file that `firstlight bench --json` or /v1/timelines wrote ("steps" of
    /// /v1/steps may stand beside its "timelines"), or - for such a file on standard input
    #[arg(value_name = "REPORT|URL", default_value = "http://127.0.0.1:8080")]
    pub subject: String,
    /// What it is compared with, where all was well: another such file or URL
    #[arg(long, env = "FIRSTLIGHT_BASELINE", value_name = "REPORT|URL")]
    pub baseline: Option<String>,
    /// Look at the youngest N requests only; by default at all that there are
    #[arg(long, env = "FIRSTLIGHT_LAST", value_name = "N", value_parser = values::whole(1, 65_536))]
    pub last: Option<u32>,
    /// Compare them with the N requests before them
    #[arg(long, env = "FIRSTLIGHT_BASELINE_LAST", value_name = "N", requires = "last", conflicts_with = "baseline", value_parser = values::whole(1, 65_536))]
    pub baseline_last: Option<u32>,
    /// The case to look at, where a bench measured several
    #[arg(long, env = "FIRSTLIGHT_CASE", value_name = "NAME")]
    pub case: Option<String>,
    /// Somebody says that the answers are worse: names the chat template where no figure explains it
    #[arg(long, env = "FIRSTLIGHT_WORSE_ANSWERS", value_parser = FalseyValueParser::new())]
    pub worse_answers: bool,
    /// Ask the server for N short chats, one after the other, to see when their text arrives here: what lies between server and
    /// client can be seen in no other way. Needs a URL; 0 asks for none
    #[arg(long, env = "FIRSTLIGHT_PROBE", value_name = "N", default_value_t = 0, value_parser = values::whole(0, 100))]
    pub probe: u32,
    /// The key that the server asks for; better given as a variable, which no list of processes shows
    #[arg(long, env = "FIRSTLIGHT_API_KEY", value_name = "KEY", hide_env_values = true)]
    pub api_key: Option<String>,
    /// How the outcome is printed.
    #[command(flatten)]
    pub output: OutputArgs,
}

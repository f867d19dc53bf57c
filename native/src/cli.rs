//! The command line: what can be typed, and nothing of what it does.
//!
//! Invariant: every flag is also an environment variable `FIRSTLIGHT_...`; a flag that is typed wins.

use std::path::PathBuf;

use clap::builder::FalseyValueParser;
use clap::{Args, CommandFactory, FromArgMatches, Parser, Subcommand};

use firstlight_engine::request::SamplingParams;

use crate::failure::Failure;
use crate::models::DEFAULT_MODEL;

/// An LLM inference engine on wgpu. Every request says where its first token's time went.
#[derive(Debug, Parser)]
#[command(name = "firstlight", version, propagate_version = true, max_term_width = 100)]
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
    /// The adapter's index, or a part of its name
    #[arg(long, env = "FIRSTLIGHT_ADAPTER", value_name = "INDEX|SUBSTRING")]
    pub adapter: Option<String>,
    /// Use WebGPU's default limits and no optional features
    #[arg(long, env = "FIRSTLIGHT_DEFAULT_LIMITS", value_parser = FalseyValueParser::new())]
    pub default_limits: bool,
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
    /// The most sequences in a batch
    #[arg(long, env = "FIRSTLIGHT_SLOTS", default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..=256))]
    pub slots: u32,
    /// Memory for keys and values, such as 512MiB; by default room for one whole context and 1,024 tokens a slot, at most 1 GiB
    #[arg(long, env = "FIRSTLIGHT_KV_MEMORY", value_name = "BYTES", value_parser = parse_bytes)]
    pub kv_memory: Option<u64>,
    /// The same as a number of blocks
    #[arg(long, env = "FIRSTLIGHT_KV_BLOCKS", conflicts_with = "kv_memory", value_parser = clap::value_parser!(u32).range(1..))]
    pub kv_blocks: Option<u32>,
    /// Tokens in a block of the KV cache, a multiple of 8
    #[arg(long, env = "FIRSTLIGHT_BLOCK_SIZE", default_value_t = 16, value_parser = parse_block_size)]
    pub block_size: u32,
    /// Prompt and decode tokens of one step
    #[arg(long, env = "FIRSTLIGHT_BATCH_TOKENS", default_value_t = 256, value_parser = clap::value_parser!(u32).range(1..=16_384))]
    pub batch_tokens: u32,
    /// The longest prompt and answer together; by default the model's context
    #[arg(long, env = "FIRSTLIGHT_MAX_MODEL_LEN", value_parser = clap::value_parser!(u32).range(2..))]
    pub max_model_len: Option<u32>,
    /// How activations are kept: f32, or auto for the engine's choice
    #[arg(long, env = "FIRSTLIGHT_ACTIVATIONS", default_value = "auto", value_parser = parse_activations)]
    pub activations: Activations,
}

/// How activations are kept between kernels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Activations {
    /// 32-bit floats.
    F32,
    /// The engine's choice for the adapter.
    Auto,
}

fn parse_activations(text: &str) -> Result<Activations, String> {
    match text {
        "f32" => Ok(Activations::F32),
        "auto" => Ok(Activations::Auto),
        "i8" => Err("i8 activations are not built yet; use f32 or auto".into()),
        _ => Err("it must be f32 or auto".into()),
    }
}

fn parse_block_size(text: &str) -> Result<u32, String> {
    let size: Option<u32> = text.parse().ok();
    size.filter(|size| (8..=256).contains(size) && size.is_multiple_of(8))
        .ok_or_else(|| "it must be a multiple of 8, from 8 to 256".into())
}

/// A number of bytes, with an optional unit: `1048576`, `512MiB`, `2G`.
fn parse_bytes(text: &str) -> Result<u64, String> {
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let factor: u64 = match text[digits.len()..].to_ascii_lowercase().as_str() {
        "" | "b" => 1,
        "k" | "kib" => 1 << 10,
        "m" | "mib" => 1 << 20,
        "g" | "gib" => 1 << 30,
        "kb" => 1_000,
        "mb" => 1_000_000,
        "gb" => 1_000_000_000,
        unit => return Err(format!("the unit {unit} is unknown; use KiB, MiB, GiB, kB, MB or GB")),
    };
    let number: u64 = digits.trim().parse().map_err(|_| format!("{text} is not a number of bytes"))?;
    let bytes = number.checked_mul(factor).ok_or_else(|| format!("{text} is more than any memory"))?;
    if bytes == 0 { Err("it must be above 0".into()) } else { Ok(bytes) }
}

/// How the next token is chosen.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Sampling")]
pub struct SamplingArgs {
    /// Tokens to generate at most
    #[arg(long, env = "FIRSTLIGHT_MAX_TOKENS", default_value_t = 256)]
    pub max_tokens: u32,
    /// 0 takes the likeliest token each time
    #[arg(long, env = "FIRSTLIGHT_TEMPERATURE", default_value_t = 0.0)]
    pub temperature: f32,
    /// Keep the k likeliest tokens; 0 keeps all
    #[arg(long, env = "FIRSTLIGHT_TOP_K", default_value_t = 0)]
    pub top_k: u32,
    /// Keep the likeliest tokens whose probabilities reach this sum
    #[arg(long, env = "FIRSTLIGHT_TOP_P", default_value_t = 1.0)]
    pub top_p: f32,
    /// Keep tokens at least this fraction as likely as the likeliest
    #[arg(long, env = "FIRSTLIGHT_MIN_P", default_value_t = 0.0)]
    pub min_p: f32,
    /// Divides the logits of tokens that occurred; 1 is off
    #[arg(long, env = "FIRSTLIGHT_REPETITION_PENALTY", default_value_t = 1.0)]
    pub repetition_penalty: f32,
    /// Taken once from the logits of tokens in the answer
    #[arg(long, env = "FIRSTLIGHT_PRESENCE_PENALTY", default_value_t = 0.0, allow_negative_numbers = true)]
    pub presence_penalty: f32,
    /// Taken from them once per occurrence
    #[arg(long, env = "FIRSTLIGHT_FREQUENCY_PENALTY", default_value_t = 0.0, allow_negative_numbers = true)]
    pub frequency_penalty: f32,
    /// Same seed, same tokens; drawn where absent
    #[arg(long, env = "FIRSTLIGHT_SEED")]
    pub seed: Option<u64>,
    /// A text that ends the answer; may be given several times
    #[arg(long, env = "FIRSTLIGHT_STOP", allow_hyphen_values = true)]
    pub stop: Vec<String>,
    /// Report log-probabilities, with this many alternatives
    #[arg(long, env = "FIRSTLIGHT_LOGPROBS", value_name = "N")]
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
    #[arg(short, long, env = "FIRSTLIGHT_PROMPT", allow_hyphen_values = true)]
    pub prompt: Vec<String>,
    /// Read the prompt from a file
    #[arg(short, long, env = "FIRSTLIGHT_FILE", conflicts_with_all = ["prompt", "ids"])]
    pub file: Option<PathBuf>,
    /// `-` reads the prompt from standard input
    #[arg(value_name = "-", value_parser = ["-"], conflicts_with_all = ["prompt", "file", "ids"])]
    pub stdin: Option<String>,
    /// Feed token ids instead of text, such as 1,2,3; may be given several times
    #[arg(long, env = "FIRSTLIGHT_IDS", conflicts_with = "prompt")]
    pub ids: Vec<String>,
    /// Send the text as it is, without the chat template
    #[arg(long, env = "FIRSTLIGHT_RAW", value_parser = FalseyValueParser::new())]
    pub raw: bool,
    /// Read special tokens in the user's text as such
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

impl RunArgs {
    /// The token ids of each `--ids`.
    ///
    /// # Errors
    /// Anything but numbers and commas is wrong usage.
    pub fn id_prompts(&self) -> Result<Vec<Vec<u32>>, Failure> {
        self.ids.iter().map(|text| parse_ids(text)).collect()
    }
}

fn parse_ids(text: &str) -> Result<Vec<u32>, Failure> {
    let number = |word: &str| {
        word.trim().parse().map_err(|_| {
            Failure::usage(format!("--ids {text}: {word:?} is no token id; give numbers such as 1,2,3"))
        })
    };
    text.split(',').map(number).collect()
}

/// `firstlight chat`.
#[derive(Debug, Args)]
pub struct ChatArgs {
    /// What the model is told before the first question
    #[arg(long, env = "FIRSTLIGHT_SYSTEM")]
    pub system: Option<String>,
    /// Read special tokens in the user's text as such
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
    /// The adapter to look at.
    #[command(flatten)]
    pub adapter: AdapterArgs,
    /// How the result is printed.
    #[command(flatten)]
    pub output: OutputArgs,
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

/// What [`parse`] found instead of a command.
#[derive(Debug)]
pub enum Parsed {
    /// A command to run.
    Command(Box<Cli>),
    /// Help or the version was asked for.
    Text(String),
}

/// The variables follow one rule, so the help states the rule and stays readable.
fn command() -> clap::Command {
    const VARIABLES: &str =
        "Every flag is also a variable: --max-tokens is FIRSTLIGHT_MAX_TOKENS. A flag that is typed wins.";
    Cli::command().mut_subcommands(|command| command.mut_args(|arg| arg.hide_env(true)).after_help(VARIABLES))
}

/// Reads the command line.
///
/// # Errors
/// Wrong usage, told in one sentence.
pub fn parse(words: impl IntoIterator<Item = std::ffi::OsString>) -> Result<Parsed, Failure> {
    use clap::error::ErrorKind;
    let parsed = command().try_get_matches_from(words).and_then(|found| Cli::from_arg_matches(&found));
    let error = match parsed {
        Ok(cli) => return Ok(Parsed::Command(Box::new(cli))),
        Err(error) => error,
    };
    match error.kind() {
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => Ok(Parsed::Text(error.to_string())),
        ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => {
            Err(Failure::usage("no command was given; `firstlight --help` lists them"))
        }
        _ => Err(Failure::usage(one_sentence(&error.to_string()))),
    }
}

/// clap's message up to its first empty line, without its prefix, and where to read on.
fn one_sentence(message: &str) -> String {
    let lines = message.lines().map(str::trim).take_while(|line| !line.is_empty());
    let text = lines.collect::<Vec<_>>().join(" ");
    format!("{}; `firstlight --help` shows the usage", text.trim_start_matches("error: "))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(line: &str) -> Vec<std::ffi::OsString> {
        std::iter::once("firstlight").chain(line.split_whitespace()).map(Into::into).collect()
    }

    fn check(line: &str, expected: Result<(), &str>) {
        let got = parse(words(line)).map(drop).map_err(|failure| failure.sentence);
        match expected {
            Ok(()) => assert_eq!(got, Ok(()), "{line}"),
            Err(part) => {
                let sentence = got.expect_err(line);
                assert!(sentence.contains(part) && !sentence.contains('\n'), "{line}: {sentence}");
            }
        }
    }

    #[test]
    fn the_command_line_is_well_formed() {
        Cli::command().debug_assert();
    }

    #[test]
    fn wrong_usage_is_one_sentence_that_names_the_value() {
        check("run -p hello --slots 2 --kv-memory 64MiB", Ok(()));
        check("run -", Ok(()));
        check("--help", Ok(()));
        check("", Err("no command"));
        check("run --flux", Err("--flux"));
        check("run --slots 0", Err("0"));
        check("run --kv-memory 0", Err("above 0"));
        check("run --kv-memory 3parsecs", Err("parsecs"));
        check("run --kv-memory 99999999999G", Err("more than any memory"));
        check("run --kv-memory 1G --kv-blocks 4", Err("--kv-blocks"));
        check("run --block-size 12", Err("multiple of 8"));
        check("run --activations i8", Err("not built yet"));
        check("run --activations bf16", Err("f32 or auto"));
        check("run -p a -f b", Err("--file"));
    }

    #[test]
    fn every_flag_has_its_variable() {
        for command in Cli::command().get_subcommands() {
            let flags = command
                .get_arguments()
                .filter(|arg| arg.get_long().is_some_and(|l| l != "help" && l != "version"));
            for flag in flags {
                let long = flag.get_long().unwrap();
                let expected = format!("FIRSTLIGHT_{}", long.replace('-', "_").to_uppercase());
                assert_eq!(
                    flag.get_env().and_then(|name| name.to_str()),
                    Some(expected.as_str()),
                    "--{long}"
                );
            }
        }
    }

    #[test]
    fn bytes_take_units_and_ids_take_numbers() {
        assert_eq!(parse_bytes("1048576"), Ok(1 << 20));
        assert_eq!(parse_bytes("2GiB"), Ok(2 << 30));
        assert_eq!(parse_bytes("3 MB"), Ok(3_000_000));
        assert!(parse_bytes("-1").is_err() && parse_bytes("").is_err() && parse_bytes("1é").is_err());
        assert_eq!(parse_ids("1, 2,3"), Ok(vec![1, 2, 3]));
        assert!(parse_ids("1,,2").is_err() && parse_ids("x").is_err());
    }
}

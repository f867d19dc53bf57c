//! From the typed words and the environment to a command, or to one sentence that says what is wrong.
//!
//! The words are read twice: first without the environment, so that what was typed is known and its mistakes are told
//! as typed; then with it. Invariant: a flag that is typed wins over every variable that stands against it.

use std::ffi::OsString;

use clap::builder::Resettable;
use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::parser::ValueSource;
use clap::{Arg, ArgMatches, CommandFactory, FromArgMatches};

use super::{Cli, Command, without_password};
use crate::failure::Failure;

/// What [`parse`] found instead of a command.
#[derive(Debug)]
pub enum Parsed {
    /// A command to run.
    Command(Box<Cli>),
    /// Help or the version was asked for.
    Text(String),
}

/// Flags of which one at most counts: a typed one silences the others' variables.
const RIVALS: [&[&str]; 3] = [
    &["prompt", "file", "stdin", "ids"],
    &["kv_memory", "kv_blocks"],
    &["scenario", "rate", "concurrency", "trace"],
];

/// The variables follow one rule, so the help states the rule and stays readable.
const VARIABLES: &str = "Every flag is also a variable: --max-tokens is FIRSTLIGHT_MAX_TOKENS. A flag that is typed wins; a variable that is empty counts as absent.";

/// Where a value came from that is told to be wrong.
#[derive(Clone, Copy, PartialEq)]
enum Source {
    Typed,
    Variable,
}

/// Reads the command line.
///
/// # Errors
/// Wrong usage, told in one sentence.
pub fn parse(words: impl IntoIterator<Item = OsString>) -> Result<Parsed, Failure> {
    let words: Vec<OsString> = words.into_iter().collect();
    let typed = match command(|_| false).try_get_matches_from(&words) {
        Ok(found) => typed_flags(&found),
        Err(error) => return told(&error, Source::Typed, &words),
    };
    let heard = |arg: &Arg| {
        let given = arg.get_env().and_then(std::env::var_os).is_some_and(|value| !value.is_empty());
        given && !is_silenced(arg.get_id().as_str(), &typed)
    };
    let parsed = command(heard).try_get_matches_from(&words).and_then(|found| Cli::from_arg_matches(&found));
    match parsed {
        Ok(mut cli) => {
            if let Command::Bench(args) = &mut cli.command {
                args.typed = typed;
            }
            Ok(Parsed::Command(Box::new(cli)))
        }
        Err(error) => told(&error, Source::Variable, &words),
    }
}

/// The command line in which only the variables of flags that `heard` names count.
fn command(heard: impl Fn(&Arg) -> bool) -> clap::Command {
    let for_arg = |arg: Arg| {
        // Otherwise a value such as -1 is told to be an unknown flag.
        let arg = if arg.get_action().takes_values() { arg.allow_negative_numbers(true) } else { arg };
        if heard(&arg) { arg.hide_env(true) } else { arg.env(Resettable::Reset) }
    };
    Cli::command().mut_subcommands(|command| command.mut_args(&for_arg).after_help(VARIABLES))
}

fn typed_flags(found: &ArgMatches) -> Vec<String> {
    let Some((_, flags)) = found.subcommand() else { return Vec::new() };
    let typed = |id: &&clap::Id| flags.value_source(id.as_str()) == Some(ValueSource::CommandLine);
    flags.ids().filter(typed).map(ToString::to_string).collect()
}

/// Whether a rival of this flag was typed.
fn is_silenced(id: &str, typed: &[String]) -> bool {
    let rival = |other: &&str| *other != id && typed.iter().any(|flag| flag == other);
    RIVALS.iter().any(|group| group.contains(&id) && group.iter().any(rival))
}

/// Help is a result; everything else is wrong usage.
fn told(error: &clap::Error, source: Source, words: &[OsString]) -> Result<Parsed, Failure> {
    match error.kind() {
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => Ok(Parsed::Text(error.to_string())),
        ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => {
            Err(Failure::usage("no command was given; `firstlight --help` lists them"))
        }
        _ => Err(Failure::usage(sentence(error, source, words))),
    }
}

fn sentence(error: &clap::Error, source: Source, words: &[OsString]) -> String {
    let help = format!("`{} --help`", command_of(words));
    let text = |kind| error.get(kind).and_then(words_of);
    let flag = text(ContextKind::InvalidArg).map(|flag| named(&flag, source));
    let value = text(ContextKind::InvalidValue).unwrap_or_default();
    let hint = |kind| text(kind).map(|near| format!("did you mean {near}? ")).unwrap_or_default();
    match (error.kind(), flag) {
        (ErrorKind::ValueValidation, Some(flag)) => {
            let reason = std::error::Error::source(error).map(ToString::to_string).unwrap_or_default();
            match flag.starts_with('[') {
                true => format!("{} stands without a flag; {reason}", shown(&value)),
                false => format!("{flag} is {}; {reason}", shown(&without_password(&value))),
            }
        }
        (ErrorKind::InvalidValue, Some(flag)) if value.is_empty() => {
            format!("{flag} has no value; {help} says what it takes")
        }
        (ErrorKind::UnknownArgument, Some(flag)) => {
            let near = hint(ContextKind::SuggestedArg);
            format!("{} is unknown; {near}{help} lists the flags", shown(&flag))
        }
        (ErrorKind::InvalidSubcommand, _) => {
            let name = text(ContextKind::InvalidSubcommand).unwrap_or_default();
            let near = hint(ContextKind::SuggestedSubcommand);
            format!("the command {} is unknown; {near}`firstlight --help` lists them", shown(&name))
        }
        (ErrorKind::ArgumentConflict, Some(flag)) => match text(ContextKind::PriorArg) {
            Some(prior) if named(&prior, source) == flag => format!("{flag} was given twice; give it once"),
            Some(prior) => {
                format!("{flag} and {} exclude each other; give one of them", named(&prior, source))
            }
            None => format!("{flag} was given together with a flag that excludes it; give one of them"),
        },
        (ErrorKind::InvalidUtf8, _) => match words.iter().find(|word| word.to_str().is_none()) {
            Some(word) => format!("the argument {word:?} is no UTF-8; convert it first"),
            None => "a FIRSTLIGHT_ variable is no UTF-8; convert its value first".into(),
        },
        _ => format!("{}; {help} shows the usage", first_paragraph(&error.to_string())),
    }
}

fn words_of(value: &ContextValue) -> Option<String> {
    match value {
        ContextValue::String(one) => Some(one.clone()),
        ContextValue::Strings(several) if !several.is_empty() => Some(several.join(" or ")),
        _ => None,
    }
}

/// `--slots <N>` as the user gave it: `--slots`, or the variable's name.
fn named(flag: &str, source: Source) -> String {
    let name = flag.split([' ', '=']).next().unwrap_or(flag);
    match (source, name.strip_prefix("--")) {
        (Source::Variable, Some(long)) => format!("FIRSTLIGHT_{}", long.replace('-', "_").to_uppercase()),
        _ => name.to_owned(),
    }
}

/// A value in quotes, on one line, not longer than a person reads.
fn shown(value: &str) -> String {
    const MOST: usize = 80;
    let short: String = value.chars().take(MOST).collect();
    if short.len() < value.len() { format!("{short:?}...") } else { format!("{value:?}") }
}

fn command_of(words: &[OsString]) -> String {
    let name = words.get(1).and_then(|word| word.to_str()).unwrap_or_default();
    let known = Cli::command().get_subcommands().any(|command| command.get_name() == name);
    if known { format!("firstlight {name}") } else { "firstlight".into() }
}

/// clap's message up to its first empty line, without its prefix.
fn first_paragraph(message: &str) -> String {
    let lines = message.lines().map(str::trim).take_while(|line| !line.is_empty());
    let text = lines.collect::<Vec<_>>().join(" ");
    text.trim_start_matches("error: ").to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(line: &str) -> Vec<OsString> {
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
        command(|_| false).debug_assert();
        command(|_| true).debug_assert();
    }

    #[test]
    fn wrong_usage_is_one_sentence_that_names_flag_and_value() {
        check("run -p hello --slots 2 --kv-memory 64MiB", Ok(()));
        check("run -p -1 --presence-penalty -1 --stop -x", Ok(()));
        check("run -", Ok(()));
        check("--help", Ok(()));
        check("", Err("no command"));
        check("dance", Err("the command \"dance\" is unknown"));
        check("cht", Err("did you mean chat?"));
        check("run --flux", Err("\"--flux\" is unknown; `firstlight run --help`"));
        check("run --slot 3", Err("did you mean --slots?"));
        check("run hello", Err("\"hello\" stands without a flag; give the prompt with -p TEXT"));
        check("run --file", Err("--file"));
        check("run --slots=", Err("--slots"));
        check("run --kv-memory 1G --kv-blocks 4", Err("exclude each other"));
        check("run -p a -f b", Err("exclude each other"));
        check("run - -p b", Err("exclude each other"));
        check("run --seed 1 --seed 2", Err("--seed was given twice"));
        check("run --json=1", Err("--json"));
        check("bench --rate 2 --json", Ok(()));
        check("bench --json out.json --scenario burst-8x2", Ok(()));
        check("bench --scenario burst", Err("--scenario"));
        check("bench --scenario alone --rate 1", Err("exclude each other"));
        check("bench --rate 1 --concurrency 2", Err("exclude each other"));
        check("bench --trace x.csv --concurrency 2", Err("exclude each other"));
        check("bench --rate 0", Err("--rate is \"0\"; it must be a number above 0"));
        check("bench --seed one", Err("--seed is \"one\"; it must be a whole number"));
        let endpoint = "--otlp-endpoint is \"...@c:4318\"; a name and a password";
        check("serve --otlp-endpoint http://user:word@c:4318", Err(endpoint));
        check(&format!("run --slots {}", "9".repeat(5000)), Err("9\"...; it must be a whole number"));
    }

    #[test]
    fn every_flag_with_a_value_names_itself_when_it_is_wrong() {
        let whole = ["max-tokens", "top-k", "seed", "logprobs", "slots", "kv-memory", "kv-blocks"];
        let other = ["block-size", "batch-tokens", "max-model-len", "activations", "kv-cache"];
        for flag in whole.into_iter().chain(other) {
            for value in ["-1", "NaN", "1.5", "99999999999999999999999", "1e39"] {
                check(&format!("run -p x --{flag} {value}"), Err(&format!("--{flag} is \"{value}\"; ")));
            }
        }
        for flag in ["temperature", "top-p", "min-p", "repetition-penalty", "presence-penalty"] {
            check(
                &format!("run -p x --{flag} warm"),
                Err(&format!("--{flag} is \"warm\"; it must be a number")),
            );
        }
    }

    #[test]
    fn a_typed_flag_silences_its_rivals_and_no_other() {
        let typed = |flags: &[&str]| flags.iter().map(|flag| (*flag).to_owned()).collect::<Vec<_>>();
        assert!(is_silenced("prompt", &typed(&["file"])) && is_silenced("kv_memory", &typed(&["kv_blocks"])));
        assert!(
            !is_silenced("prompt", &typed(&["prompt"])) && !is_silenced("prompt", &typed(&["kv_blocks"]))
        );
        assert!(!is_silenced("slots", &typed(&["slots", "file"])));
        assert!(is_silenced("scenario", &typed(&["rate"])) && is_silenced("rate", &typed(&["trace"])));
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
}

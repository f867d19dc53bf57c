//! `cargo xtask ...`: brings what a machine lacks, then runs the demo or the tests.
//!
//! It depends on none of our crates, so that it compiles in seconds on a machine that has only Rust. What is present
//! is skipped in silence; what is installed is named first; what fails is one sentence with the command to run.

#![warn(clippy::print_stdout, clippy::print_stderr)]

mod browser;
mod command;
mod demo;
mod dist;
mod gpu;
mod model;
mod nginx;
mod packages;
mod page;
mod peers;
mod python;
mod suite;
mod vulkan;
mod wasm;
mod workspace;

use std::process::ExitCode;

use command::{complain, say};

const USAGE: &str = "\
cargo xtask demo [--once]   sets up, builds, serves, asks a first question and stays up; --once ends after the answer
cargo xtask test [--full]   sets up, checks formatting and lints, runs the tests; --full adds the long ones
cargo xtask page [--with-model]   makes the page in web/dist, for any static host; --with-model puts the default model beside it
cargo xtask dist            makes the archive for this system under target/dist, and tries the program in it
cargo xtask peers           measures Firstlight beside other engines, natively and in a browser; `cargo xtask peers --help` says how
cargo xtask gpu [--small|--large]   measures the adapter's shares of its peaks on the default model and on a random one, beside the goals
cargo xtask ci              what CI runs: the same as `test`
cargo xtask setup           only brings what the machine lacks: Vulkan driver, wasm32 std, model, Python clients, nginx, Chromium and Node";

/// What was asked for on the command line.
#[derive(Debug, PartialEq)]
enum Task {
    Demo { once: bool },
    Test { full: bool },
    Setup,
    Dist,
    Page { with_model: bool },
    Peers(peers::Options),
    PeersHelp,
    Gpu(gpu::Size),
    Help,
}

fn parse(args: &[String]) -> Result<Task, String> {
    let words: Vec<&str> = args.iter().map(String::as_str).collect();
    match words.as_slice() {
        ["demo"] => Ok(Task::Demo { once: false }),
        ["demo", "--once"] => Ok(Task::Demo { once: true }),
        ["test"] | ["ci"] => Ok(Task::Test { full: false }),
        ["test", "--full"] | ["ci", "--full"] => Ok(Task::Test { full: true }),
        ["setup"] => Ok(Task::Setup),
        ["dist"] => Ok(Task::Dist),
        ["page"] => Ok(Task::Page { with_model: false }),
        ["page", "--with-model"] => Ok(Task::Page { with_model: true }),
        ["peers", "--help" | "-h"] => Ok(Task::PeersHelp),
        ["gpu"] => Ok(Task::Gpu(gpu::Size::ByMachine)),
        ["gpu", "--small"] => Ok(Task::Gpu(gpu::Size::Small)),
        ["gpu", "--large"] => Ok(Task::Gpu(gpu::Size::Large)),
        ["peers", rest @ ..] => peers::Options::read(rest).map(Task::Peers),
        [] | ["help" | "--help" | "-h"] => Ok(Task::Help),
        _ => Err(format!("`cargo xtask {}` is not a task; these are:\n{USAGE}", words.join(" "))),
    }
}

fn main() -> ExitCode {
    // `args` would panic on words that are no UTF-8.
    let args: Vec<String> =
        std::env::args_os().skip(1).map(|word| word.to_string_lossy().into_owned()).collect();
    let task = match parse(&args) {
        Ok(task) => task,
        Err(sentence) => {
            complain(&sentence);
            return ExitCode::from(2);
        }
    };
    let outcome = match task {
        Task::Demo { once } => demo::run(once),
        Task::Test { full } => suite::run(full),
        Task::Setup => setup(),
        Task::Dist => dist::run().map(drop),
        Task::Page { with_model } => page::run(with_model),
        Task::Peers(options) => peers::run(&options),
        Task::Gpu(size) => gpu::run(size),
        Task::PeersHelp => {
            say(&peers::usage());
            Ok(())
        }
        Task::Help => {
            say(USAGE);
            Ok(())
        }
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(sentence) => {
            complain(&format!("cargo xtask: {sentence}"));
            ExitCode::FAILURE
        }
    }
}

/// Everything a test needs, in the order in which a missing piece is found soonest.
fn setup() -> Result<(), String> {
    let workspace = workspace::Workspace::find()?;
    vulkan::ensure()?;
    wasm::ensure()?;
    nginx::ensure(&workspace)?;
    workspace.fetch_crates()?;
    page::build(&workspace, None)?;
    workspace.build_binary()?;
    let model = model::ensure(&workspace)?;
    python::ensure_curl()?;
    python::ensure(&workspace, python::Environment::Clients)?;
    browser::ensure(&workspace)?;
    say(&format!("set up; the default model is {}", model.display()));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(line: &str, expected: Option<Task>) {
        let args: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
        assert_eq!(parse(&args).ok(), expected, "cargo xtask {line}");
    }

    #[test]
    fn a_task_is_named_by_one_word_and_its_own_flag() {
        check("demo", Some(Task::Demo { once: false }));
        check("demo --once", Some(Task::Demo { once: true }));
        check("test", Some(Task::Test { full: false }));
        check("ci", Some(Task::Test { full: false }));
        check("test --full", Some(Task::Test { full: true }));
        check("dist", Some(Task::Dist));
        check("page", Some(Task::Page { with_model: false }));
        check("page --with-model", Some(Task::Page { with_model: true }));
        check("peers", Some(Task::Peers(peers::Options::default())));
        check("peers --help", Some(Task::PeersHelp));
        check("peers --rounds", None);
        check("gpu", Some(Task::Gpu(gpu::Size::ByMachine)));
        check("gpu --small", Some(Task::Gpu(gpu::Size::Small)));
        check("gpu --huge", None);
        check("", Some(Task::Help));
        check("demo --full", None);
        check("tset", None);
    }
}

//! The command `firstlight`: reads the command line, runs one command, and turns its failure into an exit code.

#![warn(clippy::print_stdout, clippy::print_stderr)]

use std::process::ExitCode;

use firstlight::cli::{self, Command, Parsed};
use firstlight::failure::Failure;
use firstlight::{bench, budget, chat, diagnose, doctor, library, probe, serve, terminal, trace, what_if};

fn main() -> ExitCode {
    let outcome = cli::parse(std::env::args_os()).and_then(|parsed| match parsed {
        Parsed::Text(text) => terminal::write(&text),
        Parsed::Command(cli) => run(cli.command),
    });
    let code = match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            terminal::fail(&format!("firstlight: {failure}"));
            ExitCode::from(failure.exit as u8)
        }
    };
    terminal::settle();
    code
}

fn run(command: Command) -> Result<(), Failure> {
    match command {
        Command::Run(args) => firstlight::run::run(&args),
        Command::Chat(args) => chat::run(&args),
        Command::Serve(args) => serve::run(&args),
        Command::Probe(args) => probe::run(&args),
        Command::Bench(args) => bench::run(&args),
        Command::WhatIf(args) => what_if::run(&args),
        Command::Trace(args) => trace::run(&args),
        Command::Diagnose(args) => diagnose::run(&args),
        Command::Budget(args) => budget::run(&args),
        Command::Doctor(args) => doctor::run(&args),
        Command::Models(args) => library::list(&args),
        Command::Pull(args) => library::pull(&args),
    }
}

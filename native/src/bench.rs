//! `firstlight bench`: a load that is one word, a table that says where its time goes.
//!
//! stdout carries the result only; all else goes to stderr. Invariant: what is measured is measured after a warm-up, and
//! every repeat is the same load with other prompts.

use std::fs::OpenOptions;
use std::path::Path;
use std::time::Duration;

use firstlight_engine::report::ReportContext;
use serde::Serialize;

use self::clients::Clients;
use self::html::HtmlFile;
use self::load::{Case, Load};
use self::outcome::{CaseOutcome, Run};
use self::page::Conditions;
use self::prompts::PromptMaker;
use self::result_json::ResultJson;
use self::style::Style;
use crate::cli::{BenchArgs, JsonTarget};
use crate::driver::EngineHandle;
use crate::failure::Failure;
use crate::interrupt::Interrupt;
use crate::load::Needs;
use crate::progress::Progress;
use crate::terminal::{note, write_json, write_line};

pub mod amounts;
pub mod clients;
pub mod goals;
pub mod html;
pub mod load;
pub mod micro;
pub mod outcome;
pub mod pace;
pub mod page;
pub mod plot;
pub mod prompts;
pub mod random;
pub mod result_json;
pub mod startup;
pub mod steps;
pub mod style;
pub mod sweep;
pub mod table;
pub mod trace_csv;

/// Runs the command.
///
/// # Errors
/// Wrong usage, then the model, then the adapter; then a request that failed, or a timeline that broke a rule.
pub fn run(args: &BenchArgs) -> Result<(), Failure> {
    if args.startup_once {
        return startup::once(args);
    }
    let without_load = args.micro || args.startup || args.sweep || args.goals;
    let load = if without_load { None } else { Some(Load::of(args)?) };
    let target = args.json.clone().unwrap_or(JsonTarget::Nowhere);
    if let JsonTarget::File(path) = &target {
        check_writable(path, JSON_FLAG)?;
    }
    let html = args.html.as_deref().map(HtmlFile::at).transpose()?;
    let Some(load) = load else {
        return match (args.startup, args.sweep, args.goals) {
            (true, ..) => startup::run(args, &target),
            (_, true, _) => sweep::run(args, &target),
            (.., true) => goals::run(args, &target),
            _ => micro::run(args, &target),
        };
    };
    let mut engine_args = args.engine.clone();
    if let Some(slots) = load.slots.filter(|slots| *slots != engine_args.slots) {
        note(&format!("{} runs on {slots} slots", load.name));
        engine_args.slots = slots;
    }
    let thread = crate::load::engine_thread(&engine_args, Needs::Ids, load.at_once())?;
    let engine = thread.handle();
    let advice = match args.trace {
        Some(_) => "shrink the lengths with --trace-shrink",
        None => "lower --prompt-tokens or --output-tokens",
    };
    load.check_fit(&engine.limits(), advice)?;
    let runs = measure(args, &load, &engine)?;
    let context = ReportContext {
        request_rate: None,
        concurrency: None,
        prefix_cache: engine.limits().prefix_cache,
        model: engine.labels().model.clone(),
        adapter: engine.adapter().to_owned(),
        slots: engine.limits().max_num_seqs,
    };
    let outcomes: Vec<CaseOutcome> =
        load.cases.iter().zip(&runs).map(|(case, runs)| CaseOutcome::of(case, runs, &context)).collect();
    let result = ResultJson::new(args, &load, &engine, &runs, &outcomes);
    html.map_or(Ok(()), |html| html.write(&result))?;
    show(args, &load, &engine, &target, &result, &runs, &outcomes)?;
    thread.shut_down(Duration::ZERO);
    judge(&runs, &outcomes)
}

const JSON_FLAG: &str = "--json";

fn unwritable(path: &Path, flag: &str, error: &std::io::Error) -> Failure {
    Failure::usage(format!(
        "the result cannot be written to {}: {error}; name a writable file with {flag}",
        path.display()
    ))
}

/// Told before the measurement, not after it.
fn check_writable(path: &Path, flag: &str) -> Result<(), Failure> {
    let opened = OpenOptions::new().create(true).append(true).open(path);
    opened.map(drop).map_err(|error| unwritable(path, flag, &error))
}

fn put(path: &Path, text: &str, flag: &str) -> Result<(), Failure> {
    std::fs::write(path, text).map_err(|error| unwritable(path, flag, &error))
}

fn as_json(result: &impl Serialize) -> Result<String, Failure> {
    serde_json::to_string(result)
        .map_err(|error| Failure::failed(format!("the result is no JSON: {error}; report this defect")))
}

/// Writes a result where it was asked for.
fn save(target: &JsonTarget, result: &impl Serialize) -> Result<(), Failure> {
    match target {
        JsonTarget::Stdout => write_json(result),
        JsonTarget::File(path) => put(path, &(as_json(result)? + "\n"), JSON_FLAG),
        JsonTarget::Nowhere => Ok(()),
    }
}

/// All runs: for each case, one a repeat.
fn measure(args: &BenchArgs, load: &Load, engine: &EngineHandle) -> Result<Vec<Vec<Run>>, Failure> {
    let interrupt = Interrupt::install()?;
    interrupt.answering();
    let tokenizer = engine.preparer().tokenizer();
    let vocab_size = engine.limits().vocab_size;
    // A checkpoint may have more rows than its tokenizer has tokens.
    let known = tokenizer.map_or(vocab_size, |tokenizer| tokenizer.vocab_size().min(vocab_size));
    let is_special = |id: u32| {
        tokenizer.is_some_and(|tokenizer| tokenizer.is_special(id) || tokenizer.end_tokens().contains(&id))
    };
    let total = load.requests().count() as u64 * u64::from(args.repeats);
    let progress = Progress::requests(load.name, total);
    let ended = || progress.advance();
    let interrupted = || interrupt.take();
    let mut clients = Clients {
        engine,
        maker: PromptMaker::new(known, is_special, args.seed),
        shared_tokens: args.shared_tokens,
        group: 0,
        interrupted: &interrupted,
        ended: &ended,
    };
    let mut runs: Vec<Vec<Run>> = load.cases.iter().map(|_| Vec::new()).collect();
    let outcome = all_runs(&mut clients, &load.cases, args.repeats, &mut runs);
    progress.finish();
    outcome.map(|()| runs)
}

fn all_runs(
    clients: &mut Clients<'_>,
    cases: &[Case],
    repeats: u32,
    runs: &mut [Vec<Run>],
) -> Result<(), Failure> {
    if let Some(first) = cases.first() {
        clients.warm_up(first)?;
    }
    for _ in 0..repeats {
        for (case, runs) in cases.iter().zip(runs.iter_mut()) {
            runs.push(clients.run(case)?);
        }
    }
    Ok(())
}

fn show(
    args: &BenchArgs,
    load: &Load,
    engine: &EngineHandle,
    target: &JsonTarget,
    result: &ResultJson<'_>,
    runs: &[Vec<Run>],
    outcomes: &[CaseOutcome],
) -> Result<(), Failure> {
    save(target, result)?;
    match target {
        JsonTarget::Stdout => return Ok(()),
        JsonTarget::File(path) => note(&format!("every timeline and step is in {}", path.display())),
        JsonTarget::Nowhere => {}
    }
    let model = &engine.labels().model;
    let conditions = Conditions {
        model: format!("{} {}", model.name, model.quantisation),
        adapter: engine.adapter(),
        limits: engine.limits(),
        shared_tokens: args.shared_tokens,
        repeats: args.repeats,
        seed: args.seed,
    };
    write_line(&page::lines(load, &conditions, runs, outcomes, Style::of_stdout()).join("\n"))
}

/// A result that was shown and still is none to rely on.
fn judge(runs: &[Vec<Run>], outcomes: &[CaseOutcome]) -> Result<(), Failure> {
    let broken: Vec<&String> = runs.iter().flatten().flat_map(|run| &run.broken).collect();
    if let Some(first) = broken.first() {
        return Err(Failure::failed(format!(
            "{} timelines broke a rule, the first of them so: {first}; report this defect",
            broken.len()
        )));
    }
    for outcome in outcomes {
        let reports = outcome.runs.iter().map(|run| &run.report).chain([&outcome.pooled]);
        for report in reports {
            report.check().map_err(|mismatch| Failure::failed(mismatch.to_string()))?;
        }
        let failed = outcome.pooled.finish_reasons.failed;
        if failed > 0 {
            return Err(Failure::failed(format!(
                "{failed} of {} requests failed with the device; run the bench again",
                outcome.pooled.n
            )));
        }
    }
    Ok(())
}

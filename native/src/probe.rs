//! `firstlight probe`: measures a server from the client's side.
//!
//! Asks any OpenAI-compatible server for streamed chats and notes when each piece of text arrives. Our own server tells
//! its side with every answer, so that what lies between the two is known, and whether something there holds the stream
//! back. Invariant: it ends, whatever the server does.

mod account;
mod connection;
mod events;
mod exchange;
mod print;
pub(crate) mod report;
pub(crate) mod target;
pub(crate) mod verdict;

use std::sync::Mutex;
use std::sync::PoisonError;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Instant;

use serde_json::json;

use self::exchange::{Asker, Exchange, NoAnswer};
use self::report::{Asked, ProbeReport};
use self::target::Target;
use crate::cli::ProbeArgs;
use crate::failure::Failure;
use crate::terminal;

/// Sentences that are kept of answers that failed.
const MAX_FAILURES: usize = 16;

/// Runs the command.
///
/// # Errors
/// Wrong usage, a server that cannot be reached or answers no model, and any chat that failed, after the figures of the
/// others.
pub fn run(args: &ProbeArgs) -> Result<(), Failure> {
    let (report, failures) = measure(args)?;
    show(args, &report)?;
    match failures.first() {
        Some(first) => Err(Failure::failed(format!(
            "{} of {} chats failed, the first because {}",
            failures.len(),
            args.requests,
            first.sentence
        ))),
        None => Ok(()),
    }
}

/// Asks for the chats: the figures of those that were answered, and what became of the others.
///
/// # Errors
/// As [`run`], where no chat was answered.
pub(crate) fn measure(args: &ProbeArgs) -> Result<(ProbeReport, Vec<Failure>), Failure> {
    let target = Target::parse(&args.url)?;
    let url = target.api.clone();
    let failed = |reason: NoAnswer| Failure::failed(format!("{url} {reason}"));
    let mut asker = Asker::new(args, target);
    if asker.model.is_none() {
        asker.model = Some(asker.first_model().map_err(failed)?);
    }
    let began = Instant::now();
    let outcomes = ask_all(&asker);
    let wall = exchange::nanos(began.elapsed());
    let (mut exchanges, mut failures) = (Vec::new(), Vec::new());
    for outcome in outcomes {
        match outcome {
            Ok(exchange) => exchanges.push(exchange),
            Err(reason) => failures.push(failed(reason)),
        }
    }
    if exchanges.is_empty()
        && let Some(first) = failures.first()
    {
        return Err(first.clone());
    }
    let asked = Asked {
        url: url.clone(),
        model: asker.model.clone(),
        requests: args.requests,
        concurrency: args.concurrency,
        max_tokens: args.max_tokens,
    };
    let sentences = failures.iter().take(MAX_FAILURES).map(|failure| failure.sentence.clone()).collect();
    let report = ProbeReport::new(asked, exchanges, sentences, wall);
    Ok((report, failures))
}

fn show(args: &ProbeArgs, report: &ProbeReport) -> Result<(), Failure> {
    if !args.output.json {
        return terminal::write(&(print::lines(report).join("\n") + "\n"));
    }
    let mut value = serde_json::to_value(report)
        .map_err(|error| Failure::failed(format!("the result is no JSON: {error}; report this defect")))?;
    value["verdict"]["sentence"] = json!(print::sentence(&report.verdict));
    terminal::write_json(&value)
}

/// Asks for all chats, as many at once as was said.
fn ask_all(asker: &Asker<'_>) -> Vec<Result<Exchange, NoAnswer>> {
    let (next, outcomes) = (AtomicU32::new(0), Mutex::new(Vec::new()));
    let (requests, concurrency) = (asker.args.requests, asker.args.concurrency);
    let client = || {
        while next.fetch_add(1, Ordering::Relaxed) < requests {
            let outcome = asker.ask();
            outcomes.lock().unwrap_or_else(PoisonError::into_inner).push(outcome);
        }
    };
    std::thread::scope(|scope| {
        let threads = concurrency.min(requests).saturating_sub(1);
        // Where the system gives no more threads, fewer are asked at once.
        let started = (0..threads).map_while(|_| {
            std::thread::Builder::new().name("firstlight-probe".into()).spawn_scoped(scope, client).ok()
        });
        let _started: Vec<_> = started.collect();
        client();
    });
    outcomes.into_inner().unwrap_or_else(PoisonError::into_inner)
}

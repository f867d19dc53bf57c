//! What arrives when: a load as a list of requests, fixed before the first of them is sent.
//!
//! Pure but for reading a trace's file. Invariant: the same flags and the same seed give the same load, and a load that
//! is given out fits its limits.

use std::path::Path;

use firstlight_engine::clock::Nanos;
use firstlight_engine::report::MAX_WINDOW;
use firstlight_engine::sched::SchedulerConfig;
use serde::Serialize;

use super::random::Random;
use super::trace_csv::{self, TraceRow};
use crate::cli::{BenchArgs, Scenario, TraceCut};
use crate::failure::Failure;

/// A run's arrivals are spread over a day at most.
const MAX_SPAN: Nanos = 24 * 3600 * SECOND;
/// The most prompt tokens and the most generated ones of a whole bench: every timeline is kept, with an instant and a
/// step for each token.
const MAX_TOKENS: u64 = 16 << 20;
const SECOND: Nanos = 1_000_000_000;
/// Requests of one run of a loop, where nothing is said.
const DEFAULT_REQUESTS: u32 = 32;
/// Requests of one run on an engine that serves one at a time, where nothing is said.
const DEFAULT_ALONE: u32 = 4;
/// Slots of the scenario `contexts`, and the clients that keep them full.
const CONTEXTS_SLOTS: u32 = 4;

/// One request that will be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Planned {
    /// From the run's start; 0 where clients wait for answers.
    pub arrival_ns: Nanos,
    /// Tokens of its prompt.
    pub prompt_tokens: u32,
    /// Tokens of its answer, exactly.
    pub output_tokens: u32,
}

/// When the requests of a case are sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Pace {
    /// Each at its instant, whatever becomes of those before.
    Open,
    /// By so many clients, each of which sends the next one when its last one has ended.
    Closed {
        /// How many.
        clients: u32,
    },
}

/// Clients beside the measured ones, who ask without a pause until those are done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Background {
    /// How many.
    pub clients: u32,
    /// Tokens of each prompt.
    pub prompt_tokens: u32,
    /// Tokens of each answer; the first ones are shorter, so that they do not end all at once.
    pub output_tokens: u32,
}

/// Requests that are measured together.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Case {
    /// Its name among the cases of a load.
    pub name: &'static str,
    /// When the requests are sent.
    pub pace: Pace,
    /// The measured requests, by arrival.
    #[serde(skip)]
    pub requests: Vec<Planned>,
    /// Who else is there.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub background: Option<Background>,
    /// Each prompt was answered once before it is measured, so that its beginning is in the prefix cache.
    pub primed: bool,
}

/// A whole load.
#[derive(Clone, Debug, PartialEq)]
pub struct Load {
    /// The scenario's name, or the kind of loop.
    pub name: &'static str,
    /// In words: how requests arrive.
    pub words: String,
    /// Slots that the scenario sets.
    pub slots: Option<u32>,
    /// What is measured; all cases are run in each repeat.
    pub cases: Vec<Case>,
}

impl Load {
    /// The load that `args` name.
    ///
    /// # Errors
    /// Flags that contradict each other, a trace that cannot be read, a load beyond its limits.
    pub fn of(args: &BenchArgs) -> Result<Self, Failure> {
        check_flags(args)?;
        let load = match (args.rate, args.concurrency, &args.trace) {
            (Some(rate), ..) => poisson(args, rate)?,
            (_, Some(clients), _) => closed(args, clients),
            (.., Some(path)) => replay(args, path, &trace_csv::read(path)?)?,
            _ => scenario(args, args.scenario.unwrap_or(Scenario::Alone)),
        };
        load.check_slots(args)?;
        load.check_totals(args.repeats)?;
        Ok(load)
    }

    /// All measured requests of one repeat.
    pub fn requests(&self) -> impl Iterator<Item = &Planned> {
        self.cases.iter().flat_map(|case| &case.requests)
    }

    /// Requests that a bounded queue must take because the load is there at once; a loop at a rate is told `Busy`.
    pub fn at_once(&self) -> usize {
        let waits = |case: &Case| match case.pace {
            Pace::Closed { clients } => clients as usize,
            Pace::Open => case.requests.iter().filter(|request| request.arrival_ns == 0).count(),
        };
        let others = |case: &Case| case.background.map_or(0, |others| others.clients as usize);
        self.cases.iter().map(|case| waits(case) + others(case)).max().unwrap_or(0)
    }

    /// Says before anything is sent where a request is longer than the engine can hold.
    ///
    /// # Errors
    /// The lengths, the limit, and what to change.
    pub fn check_fit(&self, limits: &SchedulerConfig, advice: &str) -> Result<(), Failure> {
        let whole = |request: &&Planned| request.prompt_tokens.saturating_add(request.output_tokens);
        let Some(longest) = self.requests().max_by_key(whole) else { return Ok(()) };
        let (prompt, output, tokens) = (longest.prompt_tokens, longest.output_tokens, whole(&longest));
        if tokens > limits.max_model_len {
            return Err(Failure::usage(format!(
                "a request of {prompt} prompt and {output} output tokens is longer than the context of {} tokens; {advice}",
                limits.max_model_len
            )));
        }
        // The last token of an answer is never computed again.
        let blocks = limits.blocks_for(tokens as usize - 1);
        if blocks > limits.num_blocks as usize {
            return Err(Failure::usage(format!(
                "a request of {prompt} prompt and {output} output tokens needs {blocks} KV blocks and the pool has {}; raise the KV memory (--kv-memory), or {advice}",
                limits.num_blocks
            )));
        }
        Ok(())
    }

    fn check_slots(&self, args: &BenchArgs) -> Result<(), Failure> {
        match self.slots {
            Some(slots) if slots != args.engine.slots && args.has_typed("slots") => {
                Err(Failure::usage(format!(
                    "--slots is {} and --scenario {} runs on {slots}; leave out --slots",
                    args.engine.slots, self.name
                )))
            }
            _ => Ok(()),
        }
    }

    fn check_totals(&self, repeats: u32) -> Result<(), Failure> {
        let sum = |tokens: fn(&Planned) -> u32| {
            self.requests().map(|request| u64::from(tokens(request))).sum::<u64>() * u64::from(repeats)
        };
        let totals = [("prompt", sum(|r| r.prompt_tokens)), ("output", sum(|r| r.output_tokens))];
        for (what, tokens) in totals {
            if tokens > MAX_TOKENS {
                return Err(Failure::usage(format!(
                    "this load has {tokens} {what} tokens over all repeats and a bench keeps at most {MAX_TOKENS}; lower --requests, --repeats or the lengths"
                )));
            }
        }
        let count = self.requests().count() as u64 * u64::from(repeats);
        if count > MAX_WINDOW as u64 {
            return Err(Failure::usage(format!(
                "this load has {count} requests over all repeats and a report holds at most {MAX_WINDOW}; lower --requests or --repeats"
            )));
        }
        let last = self.requests().map(|request| request.arrival_ns).max().unwrap_or(0);
        if last > MAX_SPAN {
            let faster = if self.name == "trace" { "--trace-speed" } else { "--rate" };
            return Err(Failure::usage(format!(
                "the last request would arrive after {} hours and a run lasts at most {}; raise {faster} or lower --requests",
                last / (3600 * SECOND),
                MAX_SPAN / (3600 * SECOND)
            )));
        }
        Ok(())
    }
}

fn check_flags(args: &BenchArgs) -> Result<(), Failure> {
    let of_traces = ["trace_shrink", "trace_speed", "trace_skip"].iter().find(|flag| args.has_typed(flag));
    let of_others =
        ["prompt_tokens", "output_tokens"].iter().find(|flag| args.trace.is_some() && args.has_typed(flag));
    let typed = |flag: &&str| format!("--{}", flag.replace('_', "-"));
    match (of_traces, of_others, &args.trace) {
        (Some(flag), _, None) => {
            return Err(Failure::usage(format!(
                "{} does nothing without --trace; add --trace FILE.csv",
                typed(flag)
            )));
        }
        (_, Some(flag), Some(_)) => {
            return Err(Failure::usage(format!(
                "{} does nothing with --trace, which says the lengths; scale them with --trace-shrink",
                typed(flag)
            )));
        }
        _ => {}
    }
    if args.trace.is_none() && args.shared_tokens >= args.prompt_tokens && args.shared_tokens > 0 {
        return Err(Failure::usage(format!(
            "--shared-tokens is {} and --prompt-tokens is {}; each prompt needs a token of its own, so share fewer",
            args.shared_tokens, args.prompt_tokens
        )));
    }
    if args.scenario == Some(Scenario::Contexts) && !args.engine.prefix_cache.is_on() {
        return Err(Failure::usage(
            "--scenario contexts measures a cached prefix and --prefix-cache is off; leave it on",
        ));
    }
    Ok(())
}

/// Requests of the lengths that `args` name, one each `gap`.
fn spaced(args: &BenchArgs, count: u32, gap: Nanos) -> Vec<Planned> {
    (0..count).map(|idx| planned(args, u64::from(idx).saturating_mul(gap))).collect()
}

fn planned(args: &BenchArgs, arrival_ns: Nanos) -> Planned {
    Planned { arrival_ns, prompt_tokens: args.prompt_tokens, output_tokens: args.output_tokens }
}

fn case(name: &'static str, pace: Pace, requests: Vec<Planned>) -> Case {
    Case { name, pace, requests, background: None, primed: false }
}

fn scenario(args: &BenchArgs, scenario: Scenario) -> Load {
    let count = |usual: u32| args.requests.unwrap_or(usual);
    let burst = |name, slots| Load {
        name,
        words: format!("{} at once", of_them(count(8), "request")),
        slots: Some(slots),
        cases: vec![case(name, Pace::Open, spaced(args, count(8), 0))],
    };
    let one_client = Pace::Closed { clients: 1 };
    match scenario {
        Scenario::Alone => Load {
            name: "alone",
            words: "one request at a time".into(),
            slots: None,
            cases: vec![case("alone", one_client, spaced(args, count(DEFAULT_ALONE), 0))],
        },
        Scenario::Burst8x2 => burst("burst-8x2", 2),
        Scenario::Burst8x4 => burst("burst-8x4", 4),
        Scenario::Staggered6x2 => Load {
            name: "staggered-6x2",
            words: format!("{}, one each second", of_them(count(6), "request")),
            slots: Some(2),
            cases: vec![case("staggered-6x2", Pace::Open, spaced(args, count(6), SECOND))],
        },
        Scenario::Contexts => {
            let idle = case("idle engine", one_client, spaced(args, count(DEFAULT_ALONE), 0));
            let background = Some(Background {
                clients: CONTEXTS_SLOTS,
                prompt_tokens: args.prompt_tokens,
                output_tokens: args.output_tokens,
            });
            let loaded = Case { name: "under load", background, ..idle.clone() };
            let cached = Case { name: "under load, cached", primed: true, ..loaded.clone() };
            Load {
                name: "contexts",
                words: format!(
                    "one request at a time, beside {CONTEXTS_SLOTS} other clients where under load"
                ),
                slots: Some(CONTEXTS_SLOTS),
                cases: vec![idle, loaded, cached],
            }
        }
    }
}

fn poisson(args: &BenchArgs, rate: f64) -> Result<Load, Failure> {
    let mut stream = Random::named(&[args.seed, u64::from(b'p')]);
    let mut at = 0.0;
    let mut requests = Vec::new();
    for _ in 0..args.requests.unwrap_or(DEFAULT_REQUESTS) {
        // From float to integer Rust saturates: what is too far away is refused with the other limits.
        requests.push(planned(args, (at * 1e9) as Nanos));
        at += stream.exponential(rate);
    }
    Ok(Load {
        name: "rate",
        words: format!("open loop at {} (Poisson)", of_them(rate, "request/s")),
        slots: None,
        cases: vec![case("rate", Pace::Open, requests)],
    })
}

fn closed(args: &BenchArgs, clients: u32) -> Load {
    let requests = spaced(args, args.requests.unwrap_or(DEFAULT_REQUESTS), 0);
    Load {
        name: "concurrency",
        words: format!("closed loop of {}", of_them(clients, "client")),
        slots: None,
        cases: vec![case("concurrency", Pace::Closed { clients }, requests)],
    }
}

fn replay(args: &BenchArgs, path: &Path, rows: &[TraceRow]) -> Result<Load, Failure> {
    let (requests, words) = cut_trace(&args.cut, args.requests, path, rows)?;
    Ok(Load { name: "trace", words, slots: None, cases: vec![case("trace", Pace::Open, requests)] })
}

/// The requests of a trace that are played, scaled, and in words how they arrive.
///
/// # Errors
/// More requests than the trace has.
pub fn cut_trace(
    cut: &TraceCut,
    requests: Option<u32>,
    path: &Path,
    rows: &[TraceRow],
) -> Result<(Vec<Planned>, String), Failure> {
    let skip = cut.trace_skip as usize;
    let left = rows.get(skip..).unwrap_or_default();
    let count = requests.map_or(left.len(), |count| count as usize);
    if left.is_empty() || count > left.len() {
        return Err(Failure::usage(format!(
            "the trace {} has {} requests, and {} are asked for after the first {skip}; lower --requests or --trace-skip",
            path.display(),
            rows.len(),
            count.max(1)
        )));
    }
    let first = left.first().map_or(0, |row| row.arrival);
    let shrunk = |tokens: u32| ((f64::from(tokens) / cut.trace_shrink).round() as u32).max(1);
    let requests: Vec<Planned> = (left.iter().take(count))
        .map(|row| Planned {
            arrival_ns: ((row.arrival - first) as f64 / cut.trace_speed) as Nanos,
            prompt_tokens: shrunk(row.prompt_tokens),
            output_tokens: shrunk(row.output_tokens),
        })
        .collect();
    let file =
        path.file_name().map_or_else(|| path.display().to_string(), |name| name.to_string_lossy().into());
    let span = requests.last().map_or(0, |last| last.arrival_ns) as f64 / 1e9;
    // The first arrival is where the clock starts: the others come within the span.
    let rate = if span > 0.0 { (requests.len() - 1) as f64 / span } else { 0.0 };
    let mut words = file;
    if skip > 0 {
        words.push_str(&format!(" from request {}", skip + 1));
    }
    if rate > 0.0 {
        words.push_str(&format!(" at {rate:.2} requests/s"));
    }
    if cut.trace_speed != 1.0 {
        words.push_str(&format!(" ({} times its speed)", cut.trace_speed));
    }
    if cut.trace_shrink != 1.0 {
        words.push_str(&format!(", lengths / {}", cut.trace_shrink));
    }
    Ok((requests, words))
}

/// `1 client`, `2 clients`, `0.5 requests/s`.
fn of_them(count: impl Into<f64>, what: &str) -> String {
    let count: f64 = count.into();
    let (noun, unit) =
        what.split_once('/').map_or((what, String::new()), |(noun, unit)| (noun, format!("/{unit}")));
    let plural = if count == 1.0 { "" } else { "s" };
    format!("{count} {noun}{plural}{unit}")
}

#[cfg(test)]
mod tests;

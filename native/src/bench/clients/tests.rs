//! Clients against an engine without a model.

use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Poll;

use firstlight_engine::engine::{Engine, EngineConfig};
use firstlight_engine::report::ReportContext;
use firstlight_engine::request::SampledToken;
use firstlight_engine::runner::{ModelRunner, RunnerError, RunnerOutput};
use firstlight_engine::sched::{Batch, PRIORITY_STEP_NS, SampleRow, SchedulerConfig};
use firstlight_engine::text::Preparer;
use firstlight_engine::timeline::RequestTimeline;

use super::*;
use crate::bench::load::Load;
use crate::bench::outcome::CaseOutcome;
use crate::bench::page::{self, Conditions};
use crate::bench::plot;
use crate::bench::style::Style;
use crate::driver::{EngineThread, Parts};
use crate::failure::Exit;

/// Answers every row with its position, once its gate is open; or fails at its first step, for good.
struct CountingRunner {
    gate: Arc<AtomicBool>,
    fails: bool,
}

impl ModelRunner for CountingRunner {
    async fn execute(&mut self, batch: &Batch) -> Result<RunnerOutput, RunnerError> {
        let open = || if self.gate.load(Ordering::SeqCst) { Poll::Ready(()) } else { Poll::Pending };
        std::future::poll_fn(|_| open()).await;
        if self.fails {
            return Err(RunnerError::DeviceLost("pulled out".into()));
        }
        let token = |row: &SampleRow| SampledToken { token: row.position % 100, logprobs: None };
        let tokens = batch.sample_rows.iter().map(token).collect();
        Ok(RunnerOutput { tokens, gpu_ns: None, stages: None })
    }
}

fn engine(max_waiting: u32, gate: Arc<AtomicBool>) -> EngineThread {
    engine_of(max_waiting, CountingRunner { gate, fails: false })
}

fn engine_of(max_waiting: u32, runner: CountingRunner) -> EngineThread {
    let scheduler = SchedulerConfig {
        max_num_seqs: 2,
        max_batch_tokens: 16,
        block_size: 8,
        num_blocks: 64,
        max_model_len: 64,
        max_waiting,
        vocab_size: 100,
        prefix_cache: true,
        prefix_hash_bits: 64,
        priority_step_ns: PRIORITY_STEP_NS,
    };
    let build = move || {
        let config = EngineConfig {
            scheduler,
            eos_tokens: vec![7],
            model: Default::default(),
            engine_config: String::new(),
        };
        Ok(Parts {
            engine: Engine::new(runner, InstantClock::start(), config, None),
            drive: Box::new(std::thread::yield_now),
            rebuild: Box::new(|| Err(Failure::failed("there is no second device"))),
            preparer: Arc::new(Preparer::new(None, 100, 64)?),
            adapter: "none".into(),
        })
    };
    EngineThread::start(build).expect("the engine starts")
}

fn case(pace: Pace, arrivals: &[Nanos]) -> Case {
    let planned = |at: &Nanos| Planned { arrival_ns: *at, prompt_tokens: 17, output_tokens: 5 };
    let requests = arrivals.iter().map(planned).collect();
    Case { name: "test", pace, requests, background: None, primed: false }
}

fn run(case: &Case, shared_tokens: u32) -> Run {
    let thread = engine(64, Arc::new(true.into()));
    let handle = thread.handle();
    let num_ended = Cell::new(0);
    let run = {
        let ended = || num_ended.set(num_ended.get() + 1);
        let mut clients = Clients {
            engine: &handle,
            maker: PromptMaker::new(100, |_| false, 1),
            shared_tokens,
            group: 0,
            interrupted: &|| false,
            ended: &ended,
        };
        clients.warm_up(case).expect("a warm-up");
        let first = clients.run(case).expect("a run");
        let second = clients.run(case).expect("a run");
        assert_eq!(second.timelines.len(), first.timelines.len());
        second
    };
    assert_eq!(num_ended.get(), 2 * case.requests.len(), "the warm-up counts nowhere");
    let counters = handle.counters();
    assert_eq!((counters.running, counters.waiting, counters.blocks_free), (0, 0, 64), "nothing is left");
    thread.shut_down(Duration::ZERO);
    run
}

/// How many of these were under way at once at most.
fn most_at_once(timelines: &[Arc<RequestTimeline>]) -> usize {
    let ends = |t: &RequestTimeline| (t.stamps().received().unwrap(), t.stamps().last_write.unwrap());
    let at_once =
        |at: Nanos| timelines.iter().filter(|other| (ends(other).0..ends(other).1).contains(&at)).count();
    timelines.iter().map(|timeline| at_once(ends(timeline).0)).max().unwrap_or(0)
}

fn check(case: &Case, expected: (FinishReason, usize, u32)) -> Run {
    let run = run(case, 0);
    let (reason, at_once, cached) = expected;
    assert_eq!(run.timelines.len(), case.requests.len());
    assert_eq!(run.broken, Vec::<String>::new());
    for timeline in &run.timelines {
        timeline.check().expect("a timeline that holds");
        assert!(timeline.is_sealed());
        assert_eq!(timeline.finish_reason(), Some(reason));
        let tokens = timeline.tokens();
        assert_eq!((tokens.prompt, tokens.generated, tokens.cached), (17, 5, cached));
        let steps = timeline.token_step();
        assert!(steps.iter().all(|id| run.steps.iter().any(|step| step.id == *id)), "its steps are known");
    }
    assert!(most_at_once(&run.timelines) <= at_once, "{case:?}");
    assert!(run.steps.windows(2).all(|pair| pair[0].id < pair[1].id), "each step is there once");
    run
}

#[test]
fn an_open_loop_sends_each_request_at_its_instant() {
    let arrivals: Vec<Nanos> = (0..20).map(|idx| idx * 1_000_000).collect();
    let run = check(&case(Pace::Open, &arrivals), (FinishReason::Length, 20, 0));
    let mut received: Vec<Nanos> = run.timelines.iter().map(|t| t.stamps().received().unwrap()).collect();
    received.sort_unstable();
    // None comes early, and none later than is told.
    for (at, planned) in received.iter().zip(&arrivals) {
        assert!(at - received[0] + run.latest_ns >= *planned, "{at} {planned}");
    }
    let burst = check(&case(Pace::Open, &[0; 8]), (FinishReason::Length, 8, 0));
    let queued = burst.timelines[0].stamps().queued;
    assert!(burst.timelines.iter().all(|t| t.stamps().queued == queued), "one pass sees the whole burst");
    check(&case(Pace::Open, &[]), (FinishReason::Length, 0, 0));
}

#[test]
fn a_closed_loop_has_no_more_under_way_than_it_has_clients() {
    check(&case(Pace::Closed { clients: 1 }, &[0; 5]), (FinishReason::Length, 1, 0));
    check(&case(Pace::Closed { clients: 3 }, &[0; 9]), (FinishReason::Length, 3, 0));
    check(&case(Pace::Closed { clients: 30 }, &[0; 2]), (FinishReason::Length, 2, 0));
}

#[test]
fn a_background_is_there_before_and_gone_after() {
    let background = Some(Background { clients: 2, prompt_tokens: 9, output_tokens: 40 });
    let loaded = Case { background, ..case(Pace::Closed { clients: 1 }, &[0; 3]) };
    let run = check(&loaded, (FinishReason::Length, 1, 0));
    let first = run.timelines.iter().map(|t| t.stamps().received().unwrap()).min().unwrap();
    let begun =
        run.background.iter().filter(|t| t.stamps().first_token.is_some_and(|at| at <= first)).count();
    assert!(begun >= 2, "the load had begun");
    assert!(run.background.iter().all(|timeline| timeline.check().is_ok()));
    // Two blocks of the prompt are full, and its last token is always computed.
    check(&Case { primed: true, ..loaded }, (FinishReason::Length, 1, 16));
}

#[test]
fn a_beginning_is_shared_within_a_run_and_not_between_runs() {
    let run = run(&case(Pace::Closed { clients: 1 }, &[0; 4]), 16);
    let mut timelines = run.timelines;
    timelines.sort_by_key(|timeline| timeline.id());
    let cached: Vec<u32> = timelines.iter().map(|timeline| timeline.tokens().cached).collect();
    assert_eq!(cached, [0, 16, 16, 16]);
}

#[test]
fn a_full_inbox_is_an_answer_that_is_counted() {
    let gate = Arc::new(AtomicBool::new(false));
    let thread = engine(1, Arc::clone(&gate));
    let handle = thread.handle();
    // Asked for the first time when all that is due was sent.
    let interrupted = || {
        gate.store(true, Ordering::SeqCst);
        false
    };
    let mut clients = Clients {
        engine: &handle,
        maker: PromptMaker::new(100, |_| false, 1),
        shared_tokens: 0,
        group: 0,
        interrupted: &interrupted,
        ended: &|| (),
    };
    let run = clients.run(&case(Pace::Open, &[0; 40])).expect("a run");
    let ended = |reason: FinishReason| {
        run.timelines.iter().filter(|timeline| timeline.finish_reason() == Some(reason)).count()
    };
    let (rejected, answered) = (ended(FinishReason::Rejected), ended(FinishReason::Length));
    assert!(rejected > 30 && answered > 0, "{rejected} rejected, {answered} answered");
    assert_eq!((rejected + answered, run.broken), (40, Vec::new()));
}

#[test]
fn an_interrupt_ends_everything() {
    let thread = engine(64, Arc::new(true.into()));
    let handle = thread.handle();
    let asked = Cell::new(0);
    let interrupted = || {
        asked.set(asked.get() + 1);
        asked.get() > 3
    };
    let mut clients = Clients {
        engine: &handle,
        maker: PromptMaker::new(100, |_| false, 1),
        shared_tokens: 0,
        group: 0,
        interrupted: &interrupted,
        ended: &|| (),
    };
    let failure = clients.run(&case(Pace::Open, &[0, 0, 0, 3_600_000_000_000])).expect_err("it was stopped");
    assert_eq!(failure.exit, Exit::Interrupted);
    let counters = handle.counters();
    assert_eq!((counters.running, counters.waiting, counters.blocks_free), (0, 0, 64));
}

#[test]
fn an_engine_that_stops_ends_the_bench() {
    let thread = engine_of(64, CountingRunner { gate: Arc::new(true.into()), fails: true });
    let handle = thread.handle();
    let mut clients = Clients {
        engine: &handle,
        maker: PromptMaker::new(100, |_| false, 1),
        shared_tokens: 0,
        group: 0,
        interrupted: &|| false,
        ended: &|| (),
    };
    let failure = clients.run(&case(Pace::Open, &[0, 0, 3_600_000_000_000])).expect_err("it has stopped");
    assert_eq!(failure.exit, Exit::Failed);
    assert!(failure.sentence.contains("there is no second device"), "{failure}");
}

#[test]
fn a_page_says_everything_within_its_width() {
    let background = Some(Background { clients: 2, prompt_tokens: 9, output_tokens: 9 });
    let loaded = Case { name: "under load", background, ..case(Pace::Closed { clients: 1 }, &[0; 3]) };
    let cases = vec![case(Pace::Open, &[0, 0, 0, 1_000_000]), loaded];
    let runs: Vec<Vec<Run>> = cases.iter().map(|case| vec![run(case, 0), run(case, 0)]).collect();
    let context = ReportContext { prefix_cache: true, ..ReportContext::default() };
    let outcomes: Vec<CaseOutcome> =
        cases.iter().zip(&runs).map(|(case, runs)| CaseOutcome::of(case, runs, &context)).collect();
    let load = Load { name: "test", words: "a few requests".into(), slots: None, cases };
    let thread = engine(64, Arc::new(true.into()));
    let conditions = Conditions {
        model: "a model".into(),
        adapter: "an adapter",
        limits: thread.handle().limits(),
        shared_tokens: 0,
        repeats: 2,
        seed: 1,
    };
    let colourless = Style { blocks: true, colours: false };
    let drawn = page::lines(&load, &conditions, &runs, &outcomes, colourless);
    let wide: Vec<&String> = drawn.iter().filter(|line| line.chars().count() > plot::WIDTH).collect();
    assert_eq!(wide, Vec::<&String>::new());
    let plain = page::lines(&load, &conditions, &runs, &outcomes, Style::PLAIN);
    assert!(plain.iter().all(|line| line.is_ascii()), "{plain:#?}");
    let header = &plain[0];
    for part in
        ["a model", "an adapter", "prefix cache on", "2 slots", "16 batch tokens", "a few requests", "seed 1"]
    {
        assert!(header.contains(part), "{header} says {part:?}");
    }
    let text = plain.join("\n");
    for part in ["mean engine TTFT", "to the nanosecond", "p99", "KV cache use", "length 8", "under load"] {
        assert!(text.contains(part), "the page says {part:?}: {text}");
    }
}

//! A device that is lost, answers nonsense or is too slow, and a clock that goes back: nothing is lost, nobody waits forever.

use std::cell::Cell;
use std::future::Future;
use std::pin::pin;
use std::task::{Context, Poll, Waker};

use firstlight_engine::clock::{Clock, ManualClock, Nanos};
use firstlight_engine::engine::{Engine, RequestEvent};
use firstlight_engine::request::{FinishReason, SampledToken, SamplingParams};
use firstlight_engine::runner::{ModelRunner, RunnerError, RunnerOutput};
use firstlight_engine::sched::{Batch, SchedulerConfig};
use firstlight_tests::scripted::{ScriptedRunner, step_now};

use super::TIGHT;
use super::bench::{Bench, ROOMY, VOCAB_SIZE, answer, config, prompt, request};

#[test]
fn a_lost_device_ends_those_who_run_and_pauses_those_who_wait() {
    let clock = ManualClock::new();
    let mut bench = Bench::new(&clock, SchedulerConfig { max_num_seqs: 2, ..ROOMY });
    for id in 0..4 {
        bench.submit(id, &prompt(100 * id as u32, 5), 6);
    }
    bench.step().expect("no failure yet");
    bench.engine.runner_mut().fail_next();
    assert_eq!(bench.step(), Err(RunnerError::DeviceLost("injected".into())));
    assert_eq!(bench.ended.len(), 2, "the events of the failed step are not lost");
    for id in [0, 1] {
        assert_eq!((bench.ended(id).reason, bench.ended(id).tokens.len()), (FinishReason::Failed, 1));
    }
    let counters = bench.engine.counters();
    assert_eq!((counters.blocks_free, counters.steps_total), (64, 2), "a failed step is one too");
    // The host builds the device again, which takes a while.
    clock.advance(7_000);
    let fresh = ScriptedRunner::new(64, 4, VOCAB_SIZE).taking(&clock, 1);
    bench.engine.replace_runner(fresh);
    bench.finish();
    for id in [2, 3] {
        assert_eq!(bench.ended(id).tokens, answer(&prompt(100 * id as u32, 5), 6));
        let waited = bench.ended(id).engine_parts().queue_wait;
        assert_eq!((waited.slots, waited.paused, waited.total()), (2, 7_000, 7_002));
    }
}

/// Gives the same answer to everything.
struct Fixed(Vec<SampledToken>);

impl ModelRunner for Fixed {
    async fn execute(&mut self, _batch: &Batch) -> Result<RunnerOutput, RunnerError> {
        Ok(RunnerOutput { tokens: self.0.clone(), gpu_ns: None, stages: None })
    }
}

#[test]
fn a_runner_that_answers_nonsense_has_failed() {
    let token = |token: u32| SampledToken { token, logprobs: None };
    for nonsense in [vec![], vec![token(1), token(2)], vec![token(VOCAB_SIZE)]] {
        let clock = ManualClock::new();
        let mut engine = Engine::new(Fixed(nonsense), &clock, config(ROOMY, &[]), None);
        engine.submit(request(0, &[1], SamplingParams::default(), 0));
        let failed = step_now(&mut engine).expect_err("one row is sampled from");
        assert!(matches!(failed.error, RunnerError::Internal(_)), "{failed}");
        assert!(matches!(
            failed.output.events[..],
            [RequestEvent::Finished { reason: FinishReason::Failed, .. }]
        ));
        assert!(!engine.has_work());
    }
}

/// Not ready in one of its executions: that step is dropped.
struct Slow<'c> {
    runner: ScriptedRunner<'c>,
    /// Executions before that one.
    ready_for: Option<u32>,
}

impl ModelRunner for Slow<'_> {
    async fn execute(&mut self, batch: &Batch) -> Result<RunnerOutput, RunnerError> {
        let ready_for = self.ready_for;
        self.ready_for = ready_for.and_then(|executions| executions.checked_sub(1));
        if ready_for == Some(0) {
            std::future::pending::<()>().await;
        }
        self.runner.execute(batch).await
    }

    fn runs_ahead(&self, batch: &Batch) -> bool {
        self.runner.runs_ahead(batch)
    }

    async fn execute_ahead(&mut self, batch: &Batch, next: &Batch) -> Result<RunnerOutput, RunnerError> {
        let ready_for = self.ready_for;
        self.ready_for = ready_for.and_then(|executions| executions.checked_sub(1));
        let output = self.runner.execute_ahead(batch, next).await;
        if ready_for == Some(0) {
            // Both were submitted by then.
            std::future::pending::<()>().await;
        }
        output
    }
}

#[test]
fn a_step_dropped_while_the_device_works_loses_nothing() {
    // The second prompt comes with step `comes_at`.
    let check_running = |ahead: bool, prompts: [&[u32]; 2], comes_at: u32, dropped: u32, copies: u64| {
        let clock = ManualClock::new();
        let runner = ScriptedRunner::new(64, 4, VOCAB_SIZE).running_ahead(ahead);
        let runner = Slow { runner, ready_for: Some(dropped) };
        let scheduler = SchedulerConfig { prefix_cache: true, ..ROOMY };
        let mut engine = Engine::new(runner, &clock, config(scheduler, &[]), None);
        let submit = |engine: &mut Engine<Slow<'_>, _>, id: usize| {
            let params = SamplingParams { max_tokens: 5, ..SamplingParams::default() };
            engine.submit(request(id as u64, prompts[id], params, 0));
        };
        submit(&mut engine, 0);
        let (mut tokens, mut ended) = ([vec![], vec![]], 0);
        for step in 0.. {
            if step == comes_at {
                submit(&mut engine, 1);
            }
            if !engine.has_work() {
                break;
            }
            if step == dropped {
                let polled = pin!(engine.step()).poll(&mut Context::from_waker(Waker::noop()));
                assert!(matches!(polled, Poll::Pending));
                continue;
            }
            for event in step_now(&mut engine).expect("no failure was injected").events {
                match event {
                    RequestEvent::Token { id, token, .. } => tokens[id.0 as usize].push(token.token),
                    RequestEvent::Finished { reason, timeline, .. } => {
                        timeline.check().expect("sums are exact");
                        let is_empty = timeline.tokens().prompt == 0;
                        assert_eq!(reason == FinishReason::Rejected, is_empty);
                        ended += 1;
                    }
                }
            }
        }
        let whole = prompts.map(|prompt| if prompt.is_empty() { Vec::new() } else { answer(prompt, 5) });
        assert_eq!((tokens, ended), (whole, 2));
        assert_eq!(engine.runner().runner.block_copies, copies);
    };
    let check = |prompts, comes_at, dropped, copies| {
        check_running(false, prompts, comes_at, dropped, copies);
    };
    check([&[5, 6], &[]], 0, 0, 0);
    // With a step on its way behind the one that is dropped, and with one that was itself ahead.
    check_running(true, [&[5, 6], &[]], 0, 0, 0);
    check_running(true, [&[5, 6], &[7]], 2, 1, 0);
    check_running(true, [&[5, 6], &[7]], 1, 2, 0);
    check([&[5, 6], &[7]], 2, 2, 0);
    // The step that would have copied the block with the prompt's last token is the one that is dropped.
    let full = prompt(1, 8);
    check([&full, &full], 1, 1, 1);
}

/// Goes back by one nanosecond whenever it is asked.
struct Backwards(Cell<Nanos>);

impl Clock for Backwards {
    fn now(&self) -> Nanos {
        self.0.set(self.0.get() - 1);
        self.0.get()
    }
    fn origin_unix_ms(&self) -> u64 {
        0
    }
    fn resolution_ns(&self) -> u64 {
        1
    }
}

#[test]
fn a_clock_that_goes_back_breaks_timelines_and_no_answer() {
    let runner = ScriptedRunner::new(8, 2, VOCAB_SIZE);
    let scheduler = SchedulerConfig { max_num_seqs: 3, ..TIGHT };
    let mut engine = Engine::new(runner, Backwards(Cell::new(1_000)), config(scheduler, &[]), None);
    let prompts = [prompt(1, 2), prompt(100, 9), prompt(200, 3), prompt(300, 3)];
    for (id, prompt) in prompts.iter().enumerate() {
        let params = SamplingParams { max_tokens: 6, ..SamplingParams::default() };
        engine.submit(request(id as u64, prompt, params, 990));
    }
    let mut tokens = vec![Vec::new(); 4];
    let mut ended = [None; 4];
    while engine.has_work() {
        for event in step_now(&mut engine).expect("no failure was injected").events {
            match event {
                RequestEvent::Token { id, token, .. } => tokens[id.0 as usize].push(token.token),
                RequestEvent::Finished { id, reason, timeline, .. } => {
                    ended[id.0 as usize] = Some(reason);
                    assert!(timeline.check().is_err());
                    let json = serde_json::to_value(&*timeline).expect("a broken timeline is JSON too");
                    assert!(json["broken"].as_str().is_some_and(|rule| rule.contains("Monotonic")));
                }
            }
        }
    }
    assert_eq!(ended, [Some(FinishReason::Length); 4]);
    assert!(prompts.iter().zip(&tokens).all(|(prompt, tokens)| *tokens == answer(prompt, 6)));
    assert_eq!(engine.counters().timelines_broken_total, 4);
    assert!(engine.last_broken().is_some());
}

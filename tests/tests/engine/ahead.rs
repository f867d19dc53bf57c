//! Decode steps that are submitted before the tokens of the step before them are read.

use firstlight_engine::clock::ManualClock;
use firstlight_engine::request::{FinishReason, RequestId, SamplingParams};
use firstlight_engine::sched::SchedulerConfig;
use firstlight_engine::timeline::Obstacle;

use super::bench::{Bench, ROOMY, answer, prompt};

fn bench(clock: &ManualClock, scheduler: SchedulerConfig) -> Bench<'_> {
    Bench::running_ahead(clock, scheduler, &[])
}

fn num_ahead(bench: &Bench<'_>) -> usize {
    bench.steps.iter().filter(|step| step.ahead_ns.is_some()).count()
}

#[test]
fn answers_are_those_of_one_step_at_a_time_and_every_token_behind_the_first_ran_ahead() {
    let lens = [(1, 3), (100, 17), (200, 1), (300, 40)];
    let check = |scheduler: SchedulerConfig, all_ahead: bool| {
        let clock = ManualClock::new();
        let mut bench = bench(&clock, scheduler);
        for (id, (first, len)) in lens.into_iter().enumerate() {
            bench.submit(id as u64, &prompt(first, len), 12);
        }
        bench.finish();
        for (id, (first, len)) in lens.into_iter().enumerate() {
            let ended = bench.ended(id as u64);
            assert_eq!(ended.tokens, answer(&prompt(first, len), 12));
            let ahead = ended.timeline.ahead_tokens();
            assert!(!all_ahead || ahead == 11, "{ahead} of 12");
            assert_eq!(ended.timeline.record().ahead_tokens, ahead);
        }
        // All ends were foreseen.
        assert_eq!(bench.engine.counters().surplus_tokens_total, 0);
        assert!(num_ahead(&bench) > 0);
    };
    check(ROOMY, true);
    check(SchedulerConfig { max_num_seqs: 2, ..ROOMY }, false);
    check(SchedulerConfig { max_batch_tokens: 5, block_size: 1, ..ROOMY }, false);
    // Few blocks: nobody runs ahead into one that is not there.
    check(SchedulerConfig { num_blocks: 14, max_model_len: 56, ..ROOMY }, false);
}

#[test]
fn an_end_that_nobody_foresaw_costs_one_token_for_nobody() {
    let clock = ManualClock::new();
    let ends = answer(&prompt(1, 4), 5)[4];
    let mut bench = Bench::running_ahead(&clock, ROOMY, &[ends]);
    bench.submit(0, &prompt(1, 4), 20);
    let ignore_eos = SamplingParams { max_tokens: 20, ignore_eos: true, ..SamplingParams::default() };
    bench.submit_with(1, &prompt(50, 4), ignore_eos);
    bench.finish();
    let tokens = &bench.ended(0).tokens;
    let expected = answer(&prompt(1, 4), 20);
    let len = 1 + expected.iter().position(|token| *token == ends).expect("the fifth at the latest");
    assert_eq!((tokens.as_slice(), bench.ended(0).reason), (&expected[..len], FinishReason::Stop));
    assert_eq!(bench.ended(1).tokens, answer(&prompt(50, 4), 20));
    let counters = bench.engine.counters();
    assert_eq!((counters.surplus_tokens_total, counters.generation_tokens_total), (1, len as u64 + 20));
}

#[test]
fn who_comes_meanwhile_is_seen_by_the_first_pass_that_is_not_ahead() {
    let clock = ManualClock::new();
    let mut bench = bench(&clock, ROOMY);
    bench.submit(0, &prompt(1, 4), 10);
    bench.step().expect("the prompt");
    // The step after it is on its way.
    bench.submit(1, &prompt(50, 4), 3);
    bench.step().expect("the step ahead");
    assert_eq!(bench.steps[1].ahead_ns, Some(1), "submitted as the prompt's step began to run");
    assert_eq!((bench.steps[1].running, bench.steps[1].waiting), (1, 0));
    bench.step().expect("both");
    assert_eq!((bench.steps[2].ahead_ns, bench.steps[2].prefill.len()), (None, 1));
    bench.finish();
    assert_eq!(bench.ended(1).tokens, answer(&prompt(50, 4), 3));
    let parts = bench.ended(1).engine_parts();
    assert_eq!((parts.inbox.step, parts.queue_wait.total(), parts.prefill.compute), (1, 0, 1));
}

#[test]
fn a_full_batch_runs_ahead_while_others_wait_for_its_slots() {
    let clock = ManualClock::new();
    let mut bench = bench(&clock, SchedulerConfig { max_num_seqs: 1, ..ROOMY });
    bench.submit(0, &prompt(1, 4), 6);
    bench.submit(1, &prompt(50, 4), 6);
    bench.finish();
    let waited = bench.ended(1).engine_parts().queue_wait;
    assert_eq!((waited.slots, waited.total()), (6, 6), "not a step longer than without");
    let meanwhile = bench.steps.iter().filter(|step| step.ahead_ns.is_some() && step.waiting > 0);
    assert!(meanwhile.map(|step| step.obstacle).eq([Some(Obstacle::Slots); 5]));
}

#[test]
fn who_is_gone_before_the_step_ahead_leaves_it_for_nobody() {
    let clock = ManualClock::new();
    let mut bench = bench(&clock, ROOMY);
    bench.submit(0, &prompt(1, 4), 50);
    bench.submit(1, &prompt(50, 4), 8);
    bench.step().expect("the prompts");
    bench.step().expect("the step ahead");
    let steps = bench.steps.len();
    assert!(bench.engine.abort(RequestId(0), FinishReason::Cancelled, 2));
    bench.step().expect("the step ahead, for one");
    assert_eq!((bench.steps[steps].decode_rows, bench.steps[steps].running), (1, 1));
    assert!(bench.engine.abort(RequestId(1), FinishReason::Cancelled, 3));
    bench.finish();
    assert_eq!(bench.steps.len(), steps + 1, "a step for nobody is not waited for");
    assert_eq!(bench.ended(1).tokens, answer(&prompt(50, 4), 3));
    assert_eq!(bench.engine.counters().surplus_tokens_total, 2);
}

#[test]
fn a_deadline_ends_a_request_before_the_step_ahead_is_its_own() {
    let clock = ManualClock::new();
    let mut bench = bench(&clock, ROOMY);
    let params = SamplingParams { max_tokens: 50, ..SamplingParams::default() };
    let soon = super::bench::request(0, &prompt(1, 4), params, 0);
    bench.engine.submit(firstlight_engine::request::Request { deadline: Some(4), ..soon });
    bench.finish();
    assert_eq!((bench.ended(0).reason, bench.ended(0).tokens.len()), (FinishReason::Deadline, 4));
}

#[test]
fn penalties_need_the_tokens_before_and_wait_for_them() {
    let clock = ManualClock::new();
    let mut bench = bench(&clock, ROOMY);
    let params = SamplingParams { max_tokens: 6, repetition_penalty: 1.1, ..SamplingParams::default() };
    bench.submit_with(0, &prompt(1, 4), params);
    bench.finish();
    assert_eq!((num_ahead(&bench), bench.ended(0).timeline.ahead_tokens()), (0, 0));
}

#[test]
fn switched_off_no_step_runs_ahead() {
    let clock = ManualClock::new();
    let mut bench = bench(&clock, ROOMY);
    bench.engine.run_ahead(false);
    bench.submit(0, &prompt(1, 4), 6);
    bench.finish();
    assert_eq!(num_ahead(&bench), 0);
}

#[test]
fn a_lost_device_takes_the_step_ahead_with_it() {
    let clock = ManualClock::new();
    let mut bench = bench(&clock, ROOMY);
    bench.submit(0, &prompt(1, 4), 50);
    bench.step().expect("the prompt");
    bench.engine.runner_mut().fail_next();
    bench.step().expect_err("the device is lost");
    assert_eq!(bench.ended(0).reason, FinishReason::Failed);
    bench.submit(1, &prompt(50, 4), 5);
    bench.finish();
    assert_eq!(bench.ended(1).tokens, answer(&prompt(50, 4), 5));
}

//! Several choices from one prompt: computed once, started from copies, billed `order` meanwhile.

use firstlight_engine::clock::{Clock, ManualClock};
use firstlight_engine::request::{FinishReason, Request, RequestId, SamplingParams};
use firstlight_engine::sched::SchedulerConfig;
use firstlight_engine::timeline::Obstacle;

use super::bench::{Bench, ROOMY, answer, prompt, request};

/// `num` choices of one prompt, submitted together.
fn choices(bench: &mut Bench<'_>, num: u64, prompt: &[u32], max_tokens: u32) {
    for id in 0..num {
        let params = SamplingParams { max_tokens, ..SamplingParams::default() };
        let fork_of = (id > 0).then_some(RequestId(0));
        bench.engine.submit(Request { fork_of, ..request(id, prompt, params, bench.clock.now()) });
    }
}

/// Tokens that each choice found, whether the prefix cache is on or off.
fn check(scheduler: SchedulerConfig, prompt_len: u32, expected: &[u32], copies: u64) {
    for prefix_cache in [false, true] {
        let clock = ManualClock::new();
        let mut bench = Bench::new(&clock, SchedulerConfig { prefix_cache, ..scheduler });
        choices(&mut bench, expected.len() as u64, &prompt(1, prompt_len), 6);
        bench.finish();
        for (id, &cached) in (0..).zip(expected) {
            let ended = bench.ended(id);
            assert_eq!(ended.tokens, answer(&prompt(1, prompt_len), 6));
            let attempts: Vec<_> = ended.timeline.attempts().iter().map(|a| (a.cached, a.computed)).collect();
            assert_eq!(attempts, [(cached, prompt_len - cached)], "choice {id} of {prompt_len} tokens");
        }
        assert_eq!(bench.engine.runner().block_copies, copies, "{prompt_len} tokens");
    }
}

#[test]
fn choices_start_from_the_prompt_of_the_first_and_compute_one_token() {
    // Blocks of four tokens; the last, full or not, is copied for each.
    check(ROOMY, 10, &[0, 9, 9], 2);
    check(ROOMY, 8, &[0, 7, 7, 7], 3);
    check(ROOMY, 4, &[0, 3], 1);
    // A block of which the last token is the first is not worth a copy.
    check(ROOMY, 1, &[0, 0], 0);
    check(ROOMY, 9, &[0, 8], 0);
    check(SchedulerConfig { block_size: 1, ..ROOMY }, 5, &[0, 4, 4], 0);
}

#[test]
fn the_prompt_is_held_for_choices_that_come_to_a_slot_when_the_first_has_ended() {
    // What is not full went with the first.
    check(SchedulerConfig { max_num_seqs: 1, ..ROOMY }, 10, &[0, 8, 8], 0);
}

#[test]
fn waiting_for_the_first_is_billed_order() {
    let clock = ManualClock::new();
    // A hundred tokens by eights, all of them the first's; one nanosecond a step.
    let mut bench = Bench::new(&clock, SchedulerConfig { max_batch_tokens: 8, ..ROOMY });
    choices(&mut bench, 3, &prompt(1, 98), 2);
    bench.finish();
    let obstacles: Vec<_> = bench.steps.iter().filter_map(|step| step.obstacle).collect();
    assert_eq!(obstacles[..12], [Obstacle::Budget; 12]);
    // The last chunk leaves room, and there is nothing to start from yet.
    assert_eq!(obstacles[12..], [Obstacle::Order]);
    let waited = bench.ended(1).engine_parts().queue_wait;
    assert_eq!((waited.budget, waited.order, waited.total()), (12, 1, 13));
    assert_eq!(bench.ended(1).engine_parts().prefill.compute, 1);
}

#[test]
fn a_choice_of_nobody_is_a_request_like_any_other() {
    let clock = ManualClock::new();
    let mut bench = Bench::new(&clock, ROOMY);
    let params = SamplingParams { max_tokens: 3, ..SamplingParams::default() };
    // The first is unknown; another has a different prompt; the third's first ends before its prompt is computed.
    let ask = |id, tokens: &[u32], first: u64| Request {
        fork_of: Some(RequestId(first)),
        ..request(id, tokens, params.clone(), clock.now())
    };
    bench.engine.submit(ask(1, &prompt(1, 9), 77));
    bench.engine.submit(ask(2, &prompt(50, 9), 1));
    bench.engine.submit(ask(3, &prompt(50, 9), 2));
    assert!(bench.engine.abort(RequestId(2), FinishReason::Cancelled, clock.now()));
    bench.finish();
    assert_eq!(bench.ended(1).tokens, answer(&prompt(1, 9), 3));
    assert_eq!(bench.ended(3).tokens, answer(&prompt(50, 9), 3));
    assert_eq!(bench.ended(3).timeline.attempts()[0].cached, 0);
}

#[test]
fn what_is_held_for_choices_is_given_up_before_anyone_is_evicted() {
    let clock = ManualClock::new();
    let tight = SchedulerConfig { max_num_seqs: 2, num_blocks: 7, ..ROOMY };
    let mut bench = Bench::new(&clock, tight);
    choices(&mut bench, 1, &prompt(1, 12), 2);
    let params = SamplingParams { max_tokens: 16, ..SamplingParams::default() };
    bench.engine.submit(request(1, &prompt(100, 3), params.clone(), 0));
    // A choice that waits for a slot behind somebody else, while its prompt is held.
    bench.engine.submit(request(2, &prompt(200, 8), params.clone(), 0));
    bench.engine.submit(Request { fork_of: Some(RequestId(0)), ..request(3, &prompt(1, 12), params, 0) });
    bench.finish();
    assert_eq!(bench.ended(3).tokens, answer(&prompt(1, 12), 16));
    assert_eq!(bench.ended(2).tokens, answer(&prompt(200, 8), 16));
    assert_eq!(bench.ended(1).tokens, answer(&prompt(100, 3), 16));
}

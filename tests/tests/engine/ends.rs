//! Ends and order: deadlines wherever a request is, tokens made for nobody, priorities that are worth so much waiting.

use firstlight_engine::clock::{Clock, ManualClock, Nanos};
use firstlight_engine::request::{FinishReason, RejectReason, Request, RequestId, SamplingParams};
use firstlight_engine::sched::SchedulerConfig;
use firstlight_engine::timeline::Place;

use super::bench::{Bench, ROOMY, answer, prompt, request};

fn greedy(max_tokens: u32) -> SamplingParams {
    SamplingParams { max_tokens, ..SamplingParams::default() }
}

#[test]
fn a_deadline_ends_a_request_wherever_it_is_at_the_next_pass() {
    // Steps that are taken before the deadline, of one nanosecond each.
    let check = |slots: u32, deadline: Nanos, place: Place, generated: usize| {
        let clock = ManualClock::new();
        let mut bench =
            Bench::new(&clock, SchedulerConfig { max_num_seqs: slots, max_batch_tokens: 8, ..ROOMY });
        bench.submit(0, &prompt(1, 4), 12);
        let late = request(1, &prompt(100, 20), greedy(12), clock.now());
        bench.engine.submit(Request { deadline: Some(deadline), ..late });
        bench.finish();
        let ended = bench.ended(1);
        assert_eq!((ended.reason, ended.last_place()), (FinishReason::Deadline, Some(place)));
        assert_eq!(ended.timeline.stamps().finished, Some(deadline), "not a step later");
        assert_eq!(ended.tokens, answer(&prompt(100, 20), 12)[..generated]);
        assert_eq!(bench.ended(0).tokens, answer(&prompt(1, 4), 12));
    };
    check(2, 0, Place::Inbox, 0);
    check(1, 1, Place::Waiting, 0);
    check(1, 7, Place::Waiting, 0);
    check(2, 1, Place::Running, 0);
    check(2, 2, Place::Running, 0);
    check(2, 5, Place::Running, 2);
}

#[test]
fn an_answer_that_is_done_in_time_has_no_deadline_any_more() {
    let clock = ManualClock::new();
    let mut bench = Bench::new(&clock, ROOMY);
    let soon = request(0, &prompt(1, 4), greedy(3), 0);
    bench.engine.submit(Request { deadline: Some(4), ..soon });
    bench.finish();
    assert_eq!((bench.ended(0).reason, bench.ended(0).tokens.len()), (FinishReason::Length, 3));
    clock.advance(100);
    // The same id again is a new request.
    bench.ended.clear();
    bench.submit(0, &prompt(1, 4), 3);
    bench.finish();
    assert_eq!(bench.ended(0).reason, FinishReason::Length);
}

#[test]
fn tokens_that_came_after_the_client_had_gone_are_counted_apart() {
    // The first token comes at 1, then one each nanosecond; the host learns of the end at 6.
    let check = |gone_at: Nanos, for_nobody: u32| {
        let clock = ManualClock::new();
        let mut bench = Bench::new(&clock, ROOMY);
        bench.submit(0, &prompt(1, 4), 50);
        for _ in 0..6 {
            bench.step().expect("no failure was injected");
        }
        assert!(bench.engine.abort(RequestId(0), FinishReason::Disconnected, gone_at));
        let steps = bench.steps.len();
        bench.finish();
        assert_eq!(bench.steps.len(), steps, "no new step includes it");
        let tokens = *bench.ended(0).timeline.tokens();
        assert_eq!((tokens.generated, tokens.after_disconnect), (6, for_nobody));
    };
    check(0, 6);
    check(4, 2);
    check(6, 0);
    check(1_000, 0);
}

#[test]
fn a_policy_ends_an_answer_like_any_other_end() {
    let clock = ManualClock::new();
    let mut bench = Bench::new(&clock, ROOMY);
    bench.submit(0, &prompt(1, 4), 50);
    bench.step().expect("no failure was injected");
    assert!(bench.engine.abort(RequestId(0), FinishReason::ContentFilter, clock.now()));
    bench.finish();
    assert_eq!(bench.ended(0).reason, FinishReason::ContentFilter);
    let json = serde_json::to_value(&bench.ended(0).timeline).expect("a timeline is JSON");
    assert_eq!(json["finish_reason"], "content_filter");
}

/// One slot, and a level of priority is worth five nanoseconds of waiting.
const ONE_BY_ONE: SchedulerConfig = SchedulerConfig { max_num_seqs: 1, priority_step_ns: 5, ..ROOMY };

fn order(bench: &Bench<'_>) -> Vec<u64> {
    let mut ends: Vec<_> = bench.ended.iter().map(|(id, e)| (e.timeline.stamps().finished, id.0)).collect();
    ends.sort_unstable();
    ends.into_iter().map(|(_, id)| id).collect()
}

#[test]
fn the_more_urgent_goes_first_and_nobody_waits_forever() {
    let clock = ManualClock::new();
    let mut bench = Bench::new(&clock, ONE_BY_ONE);
    let submit = |bench: &mut Bench<'_>, id: u64, priority: i32| {
        let usual = request(id, &prompt(10 * id as u32, 3), greedy(4), clock.now());
        bench.engine.submit(Request { priority, ..usual });
    };
    // All at once: by priority, and among equals in order of arrival.
    for (id, priority) in [(0, 0), (1, 2), (2, -1), (3, 0), (4, -3)] {
        submit(&mut bench, id, priority);
    }
    bench.finish();
    assert_eq!(order(&bench), [4, 2, 0, 3, 1]);
    // An urgent one every four nanoseconds, as fast as they are served: the usual one waits for those of its first five
    // nanoseconds, and is served before the rest.
    bench.ended.clear();
    submit(&mut bench, 10, 0);
    for id in 11..20 {
        submit(&mut bench, id, -1);
        (0..4).for_each(|_| bench.step().expect("no failure was injected"));
    }
    bench.finish();
    assert_eq!(order(&bench)[..4], [11, 12, 10, 13]);
}

#[test]
fn an_urgent_prompt_does_not_wait_for_the_end_of_a_long_one() {
    let check = |priority: i32, first_token: Nanos, shares: &[(u64, u32)]| {
        let clock = ManualClock::new();
        let mut bench =
            Bench::new(&clock, SchedulerConfig { max_batch_tokens: 8, priority_step_ns: 5, ..ROOMY });
        bench.submit(0, &prompt(1, 60), 3);
        (0..2).for_each(|_| bench.step().expect("no failure was injected"));
        let late = request(1, &prompt(100, 10), greedy(3), clock.now());
        bench.engine.submit(Request { priority, ..late });
        bench.finish();
        assert_eq!(bench.ended(1).timeline.stamps().first_token, Some(first_token));
        let step: Vec<_> = bench.steps[2].prefill.iter().map(|(id, tokens)| (id.0, *tokens)).collect();
        assert_eq!(step, shares);
        assert_eq!(bench.ended(0).tokens, answer(&prompt(1, 60), 3));
        assert_eq!(bench.ended(1).tokens, answer(&prompt(100, 10), 3));
        // Whoever runs gets something in every step: nobody stalls.
        assert_eq!(bench.ended(0).engine_parts().prefill.stall, 0);
    };
    check(0, 9, &[(0, 8)]);
    check(-1, 4, &[(1, 7), (0, 1)]);
}

#[test]
fn an_urgent_prompt_is_not_let_in_on_blocks_that_those_before_it_are_about_to_take() {
    let clock = ManualClock::new();
    let tight = SchedulerConfig { max_num_seqs: 5, max_batch_tokens: 5, num_blocks: 6, ..ROOMY };
    let mut bench = Bench::new(&clock, tight);
    // One token of each in steps 0 to 3, which fill a block of each; then request 2 ends.
    for (id, priority, len, max_tokens) in
        [(0, 0, 1, 6), (1, 0, 1, 9), (2, 0, 1, 4), (3, 0, 1, 9), (4, 1, 8, 1)]
    {
        let usual = request(id, &prompt(100 * id as u32 + 1, len), greedy(max_tokens), clock.now());
        bench.engine.submit(Request { priority, ..usual });
    }
    bench.step().expect("no failure was injected");
    bench.submit(5, &[7], 2);
    bench.finish();
    // Request 5 outranks the prompt of request 4, and step 4 has a free slot; but those before it take the two free blocks
    // and that of request 4, and it waits for the end of request 0.
    assert_eq!(bench.steps[4].preempted, [RequestId(4)]);
    assert_eq!(bench.ended(5).timeline.preemptions(), 0);
    let waited = bench.ended(5).engine_parts().queue_wait;
    assert_eq!((waited.slots, waited.blocks, waited.total()), (3, 2, 5));
}

#[test]
fn of_two_urgent_prompts_one_waits_where_both_do_not_fit() {
    let clock = ManualClock::new();
    let mut bench = Bench::new(&clock, SchedulerConfig { max_batch_tokens: 8, num_blocks: 21, ..ROOMY });
    let usual = request(0, &prompt(1, 40), greedy(1), clock.now());
    bench.engine.submit(Request { priority: 1, ..usual });
    (0..2).for_each(|_| bench.step().expect("no failure was injected"));
    // Four blocks are in use; each takes nine, and the first one's answer two more.
    bench.submit(1, &prompt(100, 36), 8);
    bench.submit(2, &prompt(200, 36), 8);
    bench.finish();
    assert_eq!(bench.engine.counters().preemptions_total, 0);
    assert_eq!(bench.ended(1).engine_parts().queue_wait.total(), 0);
    let waited = bench.ended(2).engine_parts().queue_wait;
    // While the long prompt takes all that a step has left, that is what stops admission.
    assert!(waited.blocks > 0 && waited.budget + waited.blocks == waited.total(), "{waited:?}");
}

#[test]
fn an_urgent_prompt_that_does_not_fit_beside_an_answer_evicts_none() {
    let clock = ManualClock::new();
    let mut bench = Bench::new(&clock, SchedulerConfig { num_blocks: 3, ..ROOMY });
    let usual = request(0, &prompt(1, 4), greedy(6), clock.now());
    bench.engine.submit(Request { priority: 1, ..usual });
    bench.step().expect("no failure was injected");
    // Two blocks are free and it takes two; but the answer needs one of them in this very step.
    bench.submit(1, &prompt(100, 5), 2);
    bench.finish();
    assert_eq!(bench.engine.counters().preemptions_total, 0);
    let waited = bench.ended(1).engine_parts().queue_wait;
    assert_eq!((waited.blocks, waited.total()), (5, 5));
}

#[test]
fn a_priority_out_of_range_is_refused_with_its_value() {
    let clock = ManualClock::new();
    let mut bench = Bench::new(&clock, ROOMY);
    let usual = request(0, &[1], greedy(3), 0);
    bench.engine.submit(Request { priority: -101, ..usual });
    bench.finish();
    let range = "-100 to 100";
    let expected = RejectReason::InvalidParameter { name: "priority", value: "-101".into(), range };
    assert_eq!(bench.ended(0).detail, Some(expected));
}

#[test]
fn gpu_times_stand_beside_the_sums() {
    let clock = ManualClock::new();
    let mut bench = Bench::new(&clock, SchedulerConfig { max_batch_tokens: 8, ..ROOMY });
    bench.submit(0, &prompt(1, 20), 4);
    bench.finish();
    // The scripted runner tells 1, 2, 3 for the three chunks, then 4 for the second token.
    let json = serde_json::to_value(&bench.ended(0).timeline).expect("a timeline is JSON");
    assert_eq!(json["gpu"], serde_json::json!({"forward_ns": 6, "first_decode_ns": 4}));
    assert!(json.get("profiled").is_none());
    assert_eq!(
        bench.engine.steps().iter().map(|step| step.gpu_ns).collect::<Vec<_>>(),
        (1..=6).map(Some).collect::<Vec<_>>()
    );
}

#[test]
fn an_urgent_prompt_that_blocks_keep_out_is_billed_blocks_and_not_the_tokens_of_others() {
    let clock = ManualClock::new();
    // Twelve blocks of four. The long prompt takes two more each step, and leaves none of the step's eight tokens.
    let scheduler = SchedulerConfig { max_batch_tokens: 8, num_blocks: 12, priority_step_ns: 5, ..ROOMY };
    let mut bench = Bench::new(&clock, scheduler);
    bench.submit(0, &prompt(1, 46), 1);
    (0..3).for_each(|_| bench.step().expect("no failure was injected"));
    let late = request(1, &prompt(100, 26), greedy(1), clock.now());
    bench.engine.submit(Request { priority: -1, ..late });
    bench.finish();
    // Seven blocks are needed and six are free; three steps later the long prompt is done.
    let waited = bench.ended(1).engine_parts().queue_wait;
    assert_eq!((waited.blocks, waited.total()), (3, 3));
}

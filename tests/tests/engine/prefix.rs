//! The prefix cache over a scripted runner: hits counted by hand, copies before writes, nothing found that is not there.

use firstlight_engine::clock::{Clock, ManualClock};
use firstlight_engine::engine::EngineCounters;
use firstlight_engine::request::{FinishReason, RequestId};
use firstlight_engine::sched::SchedulerConfig;
use firstlight_tests::scripted::ScriptedRunner;

use super::TIGHT;
use super::bench::{Bench, ROOMY, VOCAB_SIZE, answer, prompt};

/// Blocks of four tokens.
const CACHING: SchedulerConfig = SchedulerConfig { prefix_cache: true, ..ROOMY };

/// `len` tokens, the first `common` of which all `own` have in common.
fn shared(common: u32, len: u32, own: u32) -> Vec<u32> {
    prompt(1, common).into_iter().chain(prompt(100 * own, len - common)).collect()
}

fn counts(counters: EngineCounters) -> (u64, u64) {
    (counters.prefix_queries_total, counters.prefix_hits_total)
}

#[test]
fn prompts_that_begin_alike_are_computed_once_and_answered_as_without_the_cache() {
    // Common tokens and prompt length -> tokens found by each that comes after the first.
    let check = |common: u32, len: u32, found: u32| {
        for prefix_hash_bits in [64, 1] {
            let clock = ManualClock::new();
            let mut bench = Bench::new(&clock, SchedulerConfig { prefix_hash_bits, ..CACHING });
            for id in 0..4 {
                bench.submit(u64::from(id), &shared(common, len, id + 1), 6);
                bench.finish();
            }
            for id in 0..4 {
                let ended = bench.ended(u64::from(id));
                assert_eq!(ended.tokens, answer(&shared(common, len, id + 1), 6), "{common} of {len}");
                let cached = if id == 0 { 0 } else { found };
                let attempts: Vec<_> =
                    ended.timeline.attempts().iter().map(|a| (a.cached, a.computed)).collect();
                assert_eq!(attempts, [(cached, len - cached)], "{common} of {len}, prompt {id}");
                assert_eq!(ended.timeline.tokens().cached, cached);
            }
            let total = (u64::from(len) * 4, u64::from(found) * 3);
            assert_eq!(counts(bench.engine.counters()), total);
        }
    };
    check(0, 10, 0);
    check(3, 10, 0);
    check(4, 10, 4);
    check(7, 10, 4);
    check(8, 10, 8);
    check(8, 9, 8);
    // Everything but the last token, which must be computed to sample after it.
    check(8, 8, 7);
    check(12, 12, 11);
}

#[test]
fn switched_off_it_finds_nothing_and_counts_nothing() {
    let clock = ManualClock::new();
    let mut bench = Bench::new(&clock, ROOMY);
    for id in 0..3 {
        bench.submit(id, &prompt(1, 12), 3);
        bench.finish();
    }
    assert!((0..3).all(|id| bench.ended(id).timeline.tokens().cached == 0));
    assert_eq!(counts(bench.engine.counters()), (0, 0));
}

#[test]
fn a_conversation_goes_on_from_its_own_answer() {
    let clock = ManualClock::new();
    let mut bench = Bench::new(&clock, CACHING);
    bench.submit(0, &prompt(1, 6), 9);
    bench.finish();
    // 6 + 8 tokens have keys and values: three full blocks. The ninth token was sampled and never computed.
    let next: Vec<u32> = prompt(1, 6).into_iter().chain(answer(&prompt(1, 6), 9)).chain([500, 501]).collect();
    bench.submit(1, &next, 4);
    bench.finish();
    assert_eq!(bench.ended(1).timeline.tokens().cached, 12);
    assert_eq!(bench.ended(1).tokens, answer(&next, 4));
}

#[test]
fn a_block_that_others_read_or_may_read_is_copied_before_it_is_written() {
    let check = |still_running: bool| {
        let clock = ManualClock::new();
        let mut bench = Bench::new(&clock, CACHING);
        bench.submit(0, &prompt(1, 8), 12);
        bench.step().expect("no failure was injected");
        if !still_running {
            bench.finish();
        }
        let used = bench.engine.scheduler().pool().num_used();
        bench.submit(1, &prompt(1, 8), 12);
        bench.step().expect("no failure was injected");
        // The first block is shared where somebody has it; the second is one's own in any case. The older one's next token
        // and the younger's one row need no further block but the older's third.
        let more = bench.engine.scheduler().pool().num_used() - used;
        assert_eq!(more, 2, "still running: {still_running}");
        bench.finish();
        assert_eq!(bench.engine.runner().block_copies, 1);
        for id in 0..2 {
            assert_eq!(bench.ended(id).tokens, answer(&prompt(1, 8), 12));
        }
        assert_eq!(bench.ended(1).timeline.tokens().cached, 7);
    };
    check(true);
    check(false);
}

#[test]
fn a_prompt_that_is_asked_again_does_not_cut_off_what_follows_it() {
    let clock = ManualClock::new();
    let mut bench = Bench::new(&clock, CACHING);
    let (short, long) = (prompt(1, 8), prompt(1, 17));
    for (id, prompt) in [&long, &short, &long].into_iter().enumerate() {
        bench.submit(id as u64, prompt, 3);
        bench.finish();
    }
    let cached = [0, 1, 2].map(|id| bench.ended(id).timeline.tokens().cached);
    assert_eq!(cached, [0, 7, 16]);
}

#[test]
fn where_no_block_is_free_for_a_copy_the_last_one_is_computed_again() {
    let clock = ManualClock::new();
    let mut bench = Bench::new(&clock, SchedulerConfig { num_blocks: 3, ..CACHING });
    bench.submit(0, &prompt(1, 8), 1);
    bench.finish();
    // Somebody has the third block, and the two others are what is asked for.
    bench.submit(1, &prompt(50, 2), 3);
    bench.submit(2, &prompt(1, 8), 1);
    bench.finish();
    assert_eq!(bench.ended(2).tokens, answer(&prompt(1, 8), 1));
    let attempt = bench.ended(2).timeline.attempts()[0];
    assert_eq!((attempt.cached, attempt.computed), (4, 4));
    assert_eq!(bench.engine.runner().block_copies, 0);
}

#[test]
fn a_prompt_is_let_in_where_nothing_but_what_it_shares_makes_it_fit() {
    let clock = ManualClock::new();
    let mut bench = Bench::new(&clock, SchedulerConfig { num_blocks: 5, ..CACHING });
    bench.submit(0, &shared(12, 13, 1), 3);
    bench.step().expect("no failure was injected");
    // Four of five blocks are in use, and it takes four: three of those.
    bench.submit(1, &shared(12, 14, 2), 2);
    bench.finish();
    assert_eq!(bench.ended(1).engine_parts().queue_wait.total(), 0);
    assert_eq!((bench.ended(0).tokens.len(), bench.engine.counters().preemptions_total), (3, 0));
}

#[test]
fn a_block_of_one_token_is_computed_again_rather_than_copied() {
    let clock = ManualClock::new();
    let mut bench = Bench::new(&clock, SchedulerConfig { block_size: 1, ..CACHING });
    bench.submit(0, &prompt(1, 8), 12);
    bench.step().expect("no failure was injected");
    bench.submit(1, &prompt(1, 8), 12);
    bench.finish();
    assert_eq!(bench.engine.runner().block_copies, 0);
    assert_eq!(bench.ended(1).timeline.tokens().cached, 7);
}

#[test]
fn recomputation_after_an_eviction_is_no_hit() {
    let clock = ManualClock::new();
    let scheduler = SchedulerConfig { max_batch_tokens: 16, prefix_cache: true, ..TIGHT };
    let mut bench = Bench::new(&clock, scheduler);
    let (older, younger) = (prompt(1, 2), prompt(100, 4));
    bench.submit(0, &older, 10);
    bench.submit(1, &younger, 11);
    bench.finish();
    assert_eq!(
        (bench.ended(0).tokens.clone(), bench.ended(1).tokens.clone()),
        (answer(&older, 10), answer(&younger, 11))
    );
    let timeline = &bench.ended(1).timeline;
    assert!(timeline.preemptions() > 0);
    // Of its four full blocks the older one took two, the last first; the other two are found where they were.
    let attempts: Vec<_> = timeline.attempts().iter().map(|a| (a.cached, a.computed)).collect();
    assert_eq!(attempts, [(0, 4), (4, 5)]);
    assert_eq!((timeline.tokens().cached, counts(bench.engine.counters())), (0, (6, 0)));
}

#[test]
fn random_prompts_under_eviction_hit_nothing() {
    let clock = ManualClock::new();
    let mut bench = Bench::new(&clock, SchedulerConfig { num_blocks: 12, max_batch_tokens: 16, ..CACHING });
    let prompts: Vec<Vec<u32>> =
        (0..40).map(|id| (0..9 + id % 7).map(|at| (id * 331 + at * 97 + 7) % VOCAB_SIZE).collect()).collect();
    for (chunk, ids) in prompts.chunks(8).zip((0u64..).step_by(8)) {
        chunk.iter().zip(ids..).for_each(|(prompt, id)| bench.submit(id, prompt, 15));
        bench.finish();
    }
    for (prompt, id) in prompts.iter().zip(0..) {
        assert_eq!(bench.ended(id).tokens, answer(prompt, 15));
    }
    assert!(bench.engine.counters().preemptions_total > 0);
    let queries = prompts.iter().map(|prompt| prompt.len() as u64).sum();
    assert_eq!(counts(bench.engine.counters()), (queries, 0));
}

#[test]
fn the_longest_unused_prefix_goes_first_when_room_is_needed() {
    let clock = ManualClock::new();
    // Six blocks: two prompts of eight tokens keep two each, and the answers' blocks are not full.
    let mut bench = Bench::new(&clock, SchedulerConfig { num_blocks: 6, ..CACHING });
    let mut ask = |id: u64, first: u32, len: u32| {
        bench.submit(id, &prompt(first, len), 2);
        bench.finish();
        bench.ended(id).timeline.tokens().cached
    };
    assert_eq!((ask(0, 1, 9), ask(1, 100, 9)), (0, 0));
    // Used again, so the other is the longest unused one now.
    assert_eq!(ask(2, 1, 9), 8);
    // Four blocks: the two that hold nothing, and the two of prompt 1, its tail first.
    assert_eq!(ask(3, 200, 15), 0);
    assert_eq!((ask(4, 1, 9), ask(5, 100, 9)), (8, 0));
}

#[test]
fn a_lost_device_takes_the_cache_with_it() {
    let clock = ManualClock::new();
    let mut bench = Bench::new(&clock, CACHING);
    bench.submit(0, &prompt(1, 12), 3);
    bench.finish();
    bench.submit(1, &prompt(100, 3), 9);
    bench.step().expect("no failure yet");
    bench.engine.runner_mut().fail_next();
    bench.step().expect_err("the device is lost");
    bench.engine.replace_runner(ScriptedRunner::new(64, 4, VOCAB_SIZE).taking(&clock, 1));
    bench.submit(2, &prompt(1, 12), 3);
    bench.finish();
    assert_eq!(bench.ended(1).reason, FinishReason::Failed);
    assert_eq!(
        (bench.ended(2).timeline.tokens().cached, bench.ended(2).tokens.clone()),
        (0, answer(&prompt(1, 12), 3))
    );
}

#[test]
fn the_shared_part_costs_no_prefill_time() {
    let clock = ManualClock::new();
    // Prefill goes by chunks of eight, a nanosecond a step.
    let mut bench = Bench::new(&clock, SchedulerConfig { max_batch_tokens: 8, ..CACHING });
    let mut prefill = |id: u64, own: u32| {
        bench.submit(id, &shared(40, 48, own), 1);
        bench.finish();
        bench.ended(id).engine_parts().prefill.compute
    };
    assert_eq!((prefill(0, 1), prefill(1, 2), prefill(2, 3)), (6, 1, 1));
    assert!(!bench.engine.abort(RequestId(0), FinishReason::Cancelled, clock.now()));
}

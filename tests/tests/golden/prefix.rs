//! The prefix cache on the real model: what is shared is not computed again, and the ids are those without it.

use firstlight_tests::TestRng;
use firstlight_tests::full;
use firstlight_tests::served::{Answer, Asked, LIMITS, Schedule, Setup, greedy, load, run, run_waves};

use super::{default_model, named};

/// `num` prompts of `common` tokens that all have, the golden long prompt's over and over, and `own` of their own.
fn prompts(num: u64, common: usize, own: usize) -> Vec<Asked> {
    let long = named("long300").expect("a golden prompt").prompt;
    let prompt = |seed: u64| -> Vec<u32> {
        let mut random = TestRng::new(seed);
        let suffix = std::iter::repeat_with(|| 1_000 + random.below(40_000) as u32).take(own);
        long.iter().copied().cycle().take(common).chain(suffix).collect()
    };
    (1..=num).map(|seed| (prompt(seed), greedy(8))).collect()
}

fn ids(answers: &[Answer]) -> Vec<Vec<u32>> {
    answers.iter().map(|answer| answer.ids()).collect()
}

#[test]
fn a_shared_system_prompt_is_computed_once_and_the_ids_are_those_without_the_cache() {
    let (num, common, own) = if full() { (8, 400, 20) } else { (4, 112, 9) };
    let asked = prompts(num, common, own);
    let mut runner = load(&default_model(), Setup::default());
    let without = run(&mut runner, LIMITS, LIMITS.into(), &asked);
    let schedule = Schedule { prefix_cache: true, ..LIMITS.into() };
    let (first, others) = asked.split_at(1);
    let (answers, counters) = run_waves(&mut runner, LIMITS, schedule, &[first, others]);
    assert_eq!(ids(&answers), ids(&without));
    // Counted by hand: the common tokens fill whole blocks of 16, and everyone but the first finds them.
    let (len, common) = ((common + own) as u32, common as u32);
    assert_eq!(common % LIMITS.block_size, 0);
    for (idx, answer) in answers.iter().enumerate() {
        let cached = if idx == 0 { 0 } else { common };
        let attempts: Vec<_> = answer.timeline.attempts().iter().map(|a| (a.cached, a.computed)).collect();
        assert_eq!(attempts, [(cached, len - cached)]);
    }
    let (queries, hits) = (u64::from(len) * num, u64::from(common) * (num - 1));
    assert_eq!((counters.prefix_queries_total, counters.prefix_hits_total), (queries, hits));
}

#[test]
fn the_same_prompt_again_computes_one_token_in_a_copy_of_its_last_block() {
    // 48 tokens: three full blocks. One prompt goes on behind them and shares all three, so the third is not to be written
    // by the other, which has nothing behind them.
    let whole = prompts(1, 48, 0).remove(0);
    let longer = prompts(1, 48, 5).remove(0);
    let mut runner = load(&default_model(), Setup::default());
    let asked = [whole.clone(), longer.clone(), whole.clone()];
    let without = run(&mut runner, LIMITS, LIMITS.into(), &asked);
    let schedule = Schedule { prefix_cache: true, ..LIMITS.into() };
    let (answers, counters) = run_waves(&mut runner, LIMITS, schedule, &[&asked[..1], &asked[1..]]);
    assert_eq!(ids(&answers), ids(&without));
    let computed: Vec<_> = answers.iter().map(|answer| answer.timeline.attempts()[0].computed).collect();
    assert_eq!(computed, [48, 5, 1]);
    assert_eq!(counters.prefix_hits_total, 48 + 47);
}

#[test]
fn random_prompts_under_eviction_hit_nothing() {
    // Three blocks each, and a fourth once the answer has come to nine tokens.
    let asked: Vec<Asked> = prompts(4, 0, 40).into_iter().map(|(prompt, _)| (prompt, greedy(12))).collect();
    let mut runner = load(&default_model(), Setup::default());
    let free = run(&mut runner, LIMITS, LIMITS.into(), &asked);
    let tight = Schedule { slots: 4, batch_tokens: 48, blocks: 7, prefix_cache: true };
    let (answers, counters) = run_waves(&mut runner, LIMITS, tight, &[&asked]);
    assert_eq!(ids(&answers), ids(&free));
    assert!(counters.preemptions_total > 0, "the pool is too small for two answers");
    assert_eq!((counters.prefix_queries_total, counters.prefix_hits_total), (160, 0));
}

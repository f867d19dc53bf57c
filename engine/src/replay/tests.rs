//! Replays against recordings of an engine whose steps cost what is known.

use super::*;
use crate::costs::StepLoad;
use crate::report::ReportWindow;

const LIMITS: SchedulerConfig = SchedulerConfig {
    max_num_seqs: 2,
    max_batch_tokens: 32,
    block_size: 4,
    num_blocks: 64,
    max_model_len: 200,
    max_waiting: 100,
    vocab_size: 1,
    prefix_cache: true,
    prefix_hash_bits: 64,
    priority_step_ns: 1_000,
};

fn cost(batch: &Batch) -> Nanos {
    let load = StepLoad::of(batch);
    100 + 10 * u64::from(load.decode_rows) + 7 * u64::from(load.prefill_rows) + load.attended / 5
}

/// Requests at several instants, some of them at once.
fn plan() -> Plan {
    Plan::of_lengths((0..30).map(|n: u32| (u64::from(n / 3) * 900, 1 + n * 7 % 40, 1 + n * 5 % 17)), 9)
}

fn run(plan: &Plan, limits: SchedulerConfig) -> Replayed {
    let replayed = replay(plan, &limits, cost).unwrap();
    assert_eq!(replayed.timelines.len() + replayed.background.len(), plan.arrivals.len());
    let mut window = ReportWindow::default();
    replayed.timelines.iter().for_each(|timeline| window.push(timeline.clone()).unwrap());
    replayed
}

#[test]
fn a_replay_of_a_replay_is_the_same() {
    let check = |limits: SchedulerConfig| {
        let first = run(&plan(), limits);
        assert_eq!(first.timelines, run(&plan(), limits).timelines);
        let again = Plan::recorded(&first.timelines, [], HostTimes::default(), limits.block_size);
        let second = run(&again, limits);
        let told = |replayed: &Replayed| -> Vec<_> {
            let of = |t: &RequestTimeline| (t.id(), *t.tokens(), t.parts(), t.token_at().to_vec());
            replayed.timelines.iter().map(of).collect()
        };
        assert_eq!(told(&second), told(&first), "{limits:?}");
        assert_eq!(second.steps, first.steps);
    };
    check(LIMITS);
    check(SchedulerConfig { max_num_seqs: 8, ..LIMITS });
    check(SchedulerConfig { prefix_cache: false, ..LIMITS });
    // With evictions.
    check(SchedulerConfig { max_num_seqs: 8, num_blocks: 15, prefix_cache: false, ..LIMITS });
}

#[test]
fn more_slots_shorten_the_queue_and_a_smaller_pool_evicts() {
    let queued = |replayed: &Replayed| -> Nanos {
        let waits = replayed.timelines.iter().filter_map(|t| t.parts()?.engine).map(|e| e.waited());
        waits.sum()
    };
    let two = run(&plan(), LIMITS);
    let eight = run(&plan(), SchedulerConfig { max_num_seqs: 8, ..LIMITS });
    assert!(queued(&eight) < queued(&two) / 2);
    let tight = run(&plan(), SchedulerConfig { max_num_seqs: 8, num_blocks: 15, ..LIMITS });
    assert!(tight.timelines.iter().any(|timeline| timeline.preemptions() > 0));
    assert_eq!(tight.cut_short, 0);
    let small = SchedulerConfig { num_blocks: 5, ..LIMITS };
    let refused = run(&plan(), small);
    assert!(refused.cut_short > 0 && refused.timelines.iter().any(|t| t.tokens().generated == 0));
}

#[test]
fn a_prefix_cache_is_worth_what_was_found() {
    let cached = |replayed: &Replayed| -> u64 {
        replayed.timelines.iter().map(|t| u64::from(t.tokens().cached)).sum()
    };
    let with = run(&plan(), LIMITS);
    assert!(cached(&with) > 0);
    let recorded = Plan::recorded(&with.timelines, [], HostTimes::default(), LIMITS.block_size);
    assert_eq!(cached(&run(&recorded, LIMITS)), cached(&with));
    assert_eq!(cached(&run(&recorded, SchedulerConfig { prefix_cache: false, ..LIMITS })), 0);
    // A window that begins after the beginnings were computed: they were there before it.
    let later: Vec<_> = with.timelines.iter().filter(|t| t.tokens().cached > 0).collect();
    let recorded = Plan::recorded(later.iter().copied(), [], HostTimes::default(), LIMITS.block_size);
    assert!(!recorded.primers.is_empty());
    let found = run(&recorded, LIMITS);
    assert_eq!(cached(&found), later.iter().map(|t| u64::from(t.tokens().cached)).sum::<u64>());
    assert!(found.timelines.iter().all(|t| t.stamps().first_token > t.stamps().created()));
}

#[test]
fn the_urgent_go_first() {
    let mut plan = Plan::of_lengths((0..12).map(|n| (0, if n % 2 == 0 { 30 } else { 5 }, 8)), 0);
    let mean = |replayed: &Replayed, short: bool| -> Nanos {
        let of = replayed.timelines.iter().filter(|t| (t.tokens().prompt < 10) == short);
        of.filter_map(RequestTimeline::engine_ttft).sum()
    };
    let before = run(&plan, LIMITS);
    plan.prioritise(10, -5);
    let after = run(&plan, LIMITS);
    assert!(mean(&after, true) < mean(&before, true) && mean(&after, false) > mean(&before, false));
}

#[test]
fn steps_are_told_by_their_rows_and_their_time() {
    let clock = ManualClock::new();
    let config = EngineConfig {
        scheduler: SchedulerConfig { vocab_size: VOCAB_SIZE, ..LIMITS },
        eos_tokens: Vec::new(),
        model: ModelLabel::default(),
        engine_config: String::new(),
    };
    for limits in [LIMITS, SchedulerConfig { max_num_seqs: 8, num_blocks: 15, ..LIMITS }] {
        let scheduler = SchedulerConfig { vocab_size: VOCAB_SIZE, ..limits };
        let mut loads = Vec::new();
        let counting = |batch: &Batch| {
            loads.push(StepLoad::of(batch));
            cost(batch)
        };
        let runner = CostRunner::new(&clock, counting, false);
        let mut engine = Engine::new(runner, &clock, EngineConfig { scheduler, ..config.clone() }, None);
        let (mut steps, mut timelines) = (Vec::new(), Vec::new());
        for (id, arrival) in (0..).zip(&plan().arrivals) {
            let stamps = crate::request::HostStamps::at(clock.now());
            let params = SamplingParams { max_tokens: arrival.output_len, ..SamplingParams::default() };
            engine.submit(Request::new(RequestId(id), arrival.prompt.tokens(), params, stamps));
        }
        while engine.has_work() {
            let output = poll_once(engine.step()).unwrap().unwrap();
            steps.extend(output.step);
            timelines.extend(output.events.into_iter().filter_map(|event| match event {
                RequestEvent::Finished { timeline, .. } => Some(*timeline),
                RequestEvent::Token { .. } => None,
            }));
        }
        let evicted = timelines.iter().any(|timeline| timeline.preemptions() > 0);
        assert_eq!(evicted, limits.num_blocks < 20);
        let observed = observed_steps(&timelines, &steps);
        drop(engine);
        assert_eq!(observed.iter().map(|(load, _)| *load).collect::<Vec<_>>(), loads);
        let times: Vec<Nanos> = steps.iter().map(|step| step.done_at - step.schedule_at).collect();
        assert_eq!(observed.iter().map(|(_, ns)| *ns).collect::<Vec<_>>(), times);
        // Of a request whose timeline is gone the rows are nobody's, and its steps are not told.
        let fewer = observed_steps(&timelines[1..], &steps);
        assert!(fewer.len() < steps.len());
    }
}

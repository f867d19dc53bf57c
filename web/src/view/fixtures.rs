//! What tests draw: the lives of a small engine over a scripted runner, whole and in the middle.
//!
//! Nothing is made up by hand but the runner. Invariant: every story that ended passes the engine's own check.

use std::collections::{BTreeMap, VecDeque};
use std::pin::pin;
use std::task::{Context, Poll, Waker};

use firstlight_engine::clock::{Clock, ManualClock, Nanos};
use firstlight_engine::engine::{Engine, EngineConfig, RequestEvent, StepOutput};
use firstlight_engine::request::{
    FinishReason, HostStamps, Request, RequestId, SampledToken, SamplingParams,
};
use firstlight_engine::runner::{ModelRunner, RunnerError, RunnerOutput};
use firstlight_engine::sched::{Batch, PRIORITY_STEP_NS, SchedulerConfig};
use firstlight_engine::timeline::{ModelLabel, RequestLabels, StepRecord, TimelineRecord};

/// A step from `schedule_at` to `done_at` with two decode rows.
pub fn step(id: u64, schedule_at: Nanos, done_at: Nanos) -> StepRecord {
    StepRecord {
        id,
        schedule_at,
        submit_at: schedule_at,
        done_at,
        ahead_ns: None,
        gpu_ns: None,
        stages: None,
        decode_rows: 2,
        prefill: Vec::new(),
        running: 2,
        waiting: 0,
        failed: false,
        obstacle: None,
        blocks_used: 3,
        blocks_total: 8,
        preempted: Vec::new(),
    }
}

/// A life, the steps that were known, and the instant of looking.
#[derive(Clone, Debug)]
pub struct Story {
    /// What is special in it.
    pub name: String,
    /// What was recorded.
    pub record: TimelineRecord,
    /// Oldest first.
    pub steps: VecDeque<StepRecord>,
    /// When one looks.
    pub now: Nanos,
}

impl Story {
    /// A copy of it.
    pub fn record(&self) -> TimelineRecord {
        self.record.clone()
    }
}

struct Scripted<'c> {
    clock: &'c ManualClock,
}

impl ModelRunner for Scripted<'_> {
    async fn execute(&mut self, batch: &Batch) -> Result<RunnerOutput, RunnerError> {
        self.clock.advance(1_000_003 + 100_000 * batch.token_ids.len() as Nanos);
        let token = |row: u32| SampledToken { token: 3 + row % 5, logprobs: None };
        let tokens = batch.sample_rows.iter().map(|sample| token(sample.position)).collect();
        Ok(RunnerOutput { tokens, gpu_ns: None, stages: None })
    }
}

const TIGHT: SchedulerConfig = SchedulerConfig {
    max_num_seqs: 4,
    max_batch_tokens: 6,
    block_size: 4,
    num_blocks: 20,
    max_model_len: 72,
    max_waiting: 64,
    vocab_size: 1000,
    prefix_cache: false,
    prefix_hash_bits: 64,
    priority_step_ns: PRIORITY_STEP_NS,
};

fn stepped(engine: &mut Engine<Scripted<'_>, &ManualClock>) -> StepOutput {
    let mut context = Context::from_waker(Waker::noop());
    match pin!(engine.step()).poll(&mut context) {
        Poll::Ready(Ok(output)) => output,
        Poll::Ready(Err(failed)) => panic!("no failure was injected: {failed}"),
        Poll::Pending => panic!("the runner never waits"),
    }
}

/// Twelve requests on four slots and twenty blocks: queues of every cause, evictions before and after the first token,
/// streams and whole answers, one cancelled; each as it ended, and all that lived after every step as it was then.
pub fn stories() -> Vec<Story> {
    let clock = ManualClock::new();
    clock.advance(5_000_000);
    let model = ModelLabel { name: "scripted".into(), sha256: None, quantisation: "none".into() };
    let config = EngineConfig { scheduler: TIGHT, eos_tokens: Vec::new(), model, engine_config: "c0".into() };
    let mut engine = Engine::new(Scripted { clock: &clock }, &clock, config, None);
    for id in 0..12u64 {
        let at = |by| clock.advance(by);
        let stamps = HostStamps {
            received: at(0),
            checked: at(3_000),
            routed: at(1_000),
            preparing: at(20_000),
            templated: at(9_000),
            tokenised: at(40_000),
            created: at(2_000),
        };
        let prompt = (0..12 + 3 * id as u32).map(|token| 10 + token % 900).collect();
        let params = SamplingParams { max_tokens: 9 + id as u32, ..SamplingParams::default() };
        let labels = RequestLabels { id: format!("cmpl-{id}#0"), ..RequestLabels::default() };
        engine.submit_labelled(Request::new(RequestId(id), prompt, params, stamps), labels);
        if id % 3 == 2 {
            stepped_and_taken(&mut engine, &clock, &mut BTreeMap::new(), &mut Vec::new());
        }
    }
    let (mut first_tokens, mut told) = (BTreeMap::new(), Vec::new());
    engine.abort(RequestId(11), FinishReason::Cancelled, clock.now());
    let mut live: Vec<Story> = Vec::new();
    while engine.has_work() {
        stepped_and_taken(&mut engine, &clock, &mut first_tokens, &mut told);
        let steps: VecDeque<StepRecord> = engine.steps().iter().cloned().collect();
        for timeline in engine.scheduler().sequences().map(firstlight_engine::sched::Sequence::timeline) {
            let record = timeline.record();
            let name = format!("{} in {:?} after {} steps", record.id, timeline.place(), steps.len());
            live.push(Story { name, record, steps: steps.clone(), now: clock.now() });
        }
    }
    let steps: VecDeque<StepRecord> = engine.steps().iter().cloned().collect();
    let ended = told.into_iter().map(|record: TimelineRecord| {
        let name = format!("{} {:?}", record.id, record.finish_reason);
        Story { name, record, steps: steps.clone(), now: clock.now() }
    });
    ended.chain(live).collect()
}

fn stepped_and_taken(
    engine: &mut Engine<Scripted<'_>, &ManualClock>,
    clock: &ManualClock,
    first_tokens: &mut BTreeMap<RequestId, Nanos>,
    told: &mut Vec<TimelineRecord>,
) {
    let output = stepped(engine);
    let now = clock.advance(10_000);
    for event in output.events {
        match event {
            RequestEvent::Token { id, .. } => {
                first_tokens.entry(id).or_insert(now);
            }
            RequestEvent::Finished { id, mut timeline, .. } => {
                // Every third is a whole answer, the others are streamed.
                if let Some(first) = first_tokens.get(&id).filter(|_| !id.0.is_multiple_of(3)) {
                    timeline.first_text(first + 1_000);
                    timeline.first_write(first + 5_000);
                    timeline.last_write(now + 5_000);
                }
                timeline.seal().expect("sums are exact");
                told.push(timeline.record());
            }
        }
    }
}

//! An engine over a scripted runner, what came out of it, and the scripted truth.

use std::collections::BTreeMap;

use firstlight_engine::clock::{Clock, ManualClock, Nanos};
use firstlight_engine::engine::{Engine, EngineConfig, RequestEvent};
use firstlight_engine::request::{
    FinishReason, HostStamps, RejectReason, Request, RequestId, SamplingParams,
};
use firstlight_engine::runner::RunnerError;
use firstlight_engine::sched::{PRIORITY_STEP_NS, SchedulerConfig};
use firstlight_engine::timeline::{EngineParts, ModelLabel, Place, RequestTimeline, StepRecord};
use firstlight_tests::scripted::{ScriptedRunner, scripted_answer, step_now};

pub const VOCAB_SIZE: u32 = 1000;

/// Room for everything; tests tighten what they are about.
pub const ROOMY: SchedulerConfig = SchedulerConfig {
    max_num_seqs: 8,
    max_batch_tokens: 64,
    block_size: 4,
    num_blocks: 64,
    max_model_len: 256,
    max_waiting: 16,
    vocab_size: VOCAB_SIZE,
    prefix_cache: false,
    prefix_hash_bits: 64,
    priority_step_ns: PRIORITY_STEP_NS,
};

/// What is left of a request.
#[derive(Debug)]
pub struct Ended {
    pub tokens: Vec<u32>,
    pub reason: FinishReason,
    pub detail: Option<RejectReason>,
    pub timeline: RequestTimeline,
}

impl Ended {
    pub fn engine_parts(&self) -> EngineParts {
        self.timeline.parts().and_then(|parts| parts.engine).expect("it reached the inbox")
    }

    pub fn last_place(&self) -> Option<Place> {
        self.timeline.residency().last().map(|stay| stay.place)
    }
}

/// An engine whose steps take exactly one nanosecond each, and what came out of it.
pub struct Bench<'c> {
    pub clock: &'c ManualClock,
    pub engine: Engine<ScriptedRunner<'c>, &'c ManualClock>,
    pub tokens: BTreeMap<RequestId, Vec<u32>>,
    pub ended: BTreeMap<RequestId, Ended>,
    pub steps: Vec<StepRecord>,
}

impl<'c> Bench<'c> {
    pub fn new(clock: &'c ManualClock, scheduler: SchedulerConfig) -> Self {
        Self::with_eos(clock, scheduler, &[])
    }

    pub fn with_eos(clock: &'c ManualClock, scheduler: SchedulerConfig, eos_tokens: &[u32]) -> Self {
        let runner =
            ScriptedRunner::new(scheduler.num_blocks, scheduler.block_size, VOCAB_SIZE).taking(clock, 1);
        let engine = Engine::new(runner, clock, config(scheduler, eos_tokens), None);
        Self { clock, engine, tokens: BTreeMap::new(), ended: BTreeMap::new(), steps: Vec::new() }
    }

    /// The same, where steps run ahead.
    pub fn running_ahead(clock: &'c ManualClock, scheduler: SchedulerConfig, eos_tokens: &[u32]) -> Self {
        let mut bench = Self::with_eos(clock, scheduler, eos_tokens);
        let runner = ScriptedRunner::new(scheduler.num_blocks, scheduler.block_size, VOCAB_SIZE);
        drop(bench.engine.replace_runner(runner.taking(clock, 1).running_ahead(true)));
        bench
    }

    pub fn submit(&mut self, id: u64, prompt: &[u32], max_tokens: u32) {
        self.submit_with(id, prompt, SamplingParams { max_tokens, ..SamplingParams::default() });
    }

    pub fn submit_with(&mut self, id: u64, prompt: &[u32], params: SamplingParams) {
        self.engine.submit(request(id, prompt, params, self.clock.now()));
    }

    pub fn take(&mut self, events: Vec<RequestEvent>) {
        for event in events {
            match event {
                RequestEvent::Token { id, token, .. } => self.tokens.entry(id).or_default().push(token.token),
                RequestEvent::Finished { id, reason, detail, timeline, .. } => {
                    timeline.check().expect("sums are exact");
                    let tokens = self.tokens.remove(&id).unwrap_or_default();
                    let ended = Ended { tokens, reason, detail, timeline: *timeline };
                    assert!(self.ended.insert(id, ended).is_none(), "{id} ends twice");
                }
            }
        }
    }

    pub fn step(&mut self) -> Result<(), RunnerError> {
        let (output, result) = match step_now(&mut self.engine) {
            Ok(output) => (output, Ok(())),
            Err(failed) => (failed.output, Err(failed.error)),
        };
        self.engine.scheduler().check_integrity();
        self.steps.extend(output.step);
        self.take(output.events);
        result
    }

    pub fn finish(&mut self) {
        while self.engine.has_work() {
            self.step().expect("no failure was injected");
        }
        assert_eq!(self.engine.counters().blocks_free, self.engine.counters().blocks_total);
        assert_eq!(self.engine.counters().timelines_broken_total, 0);
    }

    pub fn ended(&self, id: u64) -> &Ended {
        &self.ended[&RequestId(id)]
    }
}

pub fn config(scheduler: SchedulerConfig, eos_tokens: &[u32]) -> EngineConfig {
    let model = ModelLabel { name: "scripted".into(), sha256: None, quantisation: "none".into() };
    EngineConfig { scheduler, eos_tokens: eos_tokens.to_vec(), model, engine_config: "c0ffee".into() }
}

pub fn request(id: u64, prompt: &[u32], params: SamplingParams, now: Nanos) -> Request {
    Request::new(RequestId(id), prompt.to_vec(), params, HostStamps::at(now))
}

pub fn answer(prompt: &[u32], max_tokens: u32) -> Vec<u32> {
    let params = SamplingParams { max_tokens, ..SamplingParams::default() };
    scripted_answer(prompt, &params, &[], usize::MAX, VOCAB_SIZE).0
}

pub fn prompt(first: u32, len: u32) -> Vec<u32> {
    (first..first + len).collect()
}

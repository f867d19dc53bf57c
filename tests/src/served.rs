//! A model on a device behind an engine, for tests: prompts in, whole answers with their timelines out.

use std::cell::Cell;
use std::collections::BTreeMap;

use firstlight_engine::clock::{Clock, Nanos};
use firstlight_engine::engine::{Engine, EngineConfig, EngineCounters, RequestEvent};
use firstlight_engine::gpu::{Device, DeviceOptions, KernelChoice};
use firstlight_engine::model::{Checkpoint, PassLimits, WeightSource};
use firstlight_engine::request::{
    FinishReason, HostStamps, Request, RequestId, SampledToken, SamplingParams,
};
use firstlight_engine::runner::GpuRunner;
use firstlight_engine::sched::{PRIORITY_STEP_NS, SchedulerConfig};
use firstlight_engine::timeline::{ModelLabel, RequestTimeline};
use firstlight_shaders::KvFormat;

use crate::gpu::{drive, open};

/// A clock that moves by one nanosecond whenever it is read: every instant is its own.
#[derive(Default)]
pub struct TickClock(Cell<Nanos>);

impl Clock for TickClock {
    fn now(&self) -> Nanos {
        self.0.set(self.0.get() + 1);
        self.0.get()
    }
    fn origin_unix_ms(&self) -> u64 {
        0
    }
    fn resolution_ns(&self) -> u64 {
        1
    }
}

/// How a model is served in a test.
#[derive(Clone, Copy)]
pub struct Setup {
    /// WebGPU's default limits and no optional features.
    pub default_limits: bool,
    /// Kernels other than the adapter's own, which then compute exactly: see [`exact`].
    pub choice: Option<KernelChoice>,
    /// Sizes.
    pub limits: PassLimits,
}

/// Sizes that hold the golden prompts.
pub const LIMITS: PassLimits = PassLimits {
    max_num_seqs: 8,
    max_batch_tokens: 512,
    block_size: 16,
    num_blocks: 128,
    max_model_len: 1024,
};

impl Default for Setup {
    fn default() -> Self {
        Self { default_limits: false, choice: None, limits: LIMITS }
    }
}

/// The kernels of an adapter where nothing is rounded on the way, the KV cache included.
pub fn exact(device: &Device) -> KernelChoice {
    KernelChoice { kv: KvFormat::F32, ..KernelChoice::for_adapter(device.facts()) }
}

/// Loads `checkpoint` as `setup` says, warmed up.
pub fn load<S: WeightSource>(checkpoint: &Checkpoint<S>, setup: Setup) -> GpuRunner {
    let device = open(DeviceOptions { default_limits: setup.default_limits });
    let choice = setup.choice.unwrap_or_else(|| exact(&device));
    let mut silent = |_| ();
    let handle = device.handle().clone();
    let loaded = GpuRunner::load(device, checkpoint, setup.limits, choice, &mut silent);
    let mut runner = drive(&handle, loaded).expect("the model loads");
    drive(&handle, runner.warm_up()).expect("the kernels run");
    runner
}

/// One answer.
#[derive(Debug)]
pub struct Answer {
    /// Its tokens.
    pub tokens: Vec<SampledToken>,
    /// Why it ended.
    pub reason: FinishReason,
    /// Its timeline, which has passed `check()`.
    pub timeline: RequestTimeline,
}

impl Answer {
    /// The token ids.
    pub fn ids(&self) -> Vec<u32> {
        self.tokens.iter().map(|t| t.token).collect()
    }
}

/// What a run may differ in.
#[derive(Clone, Copy, Debug)]
pub struct Schedule {
    /// Sequences in a batch.
    pub slots: u32,
    /// Tokens of a step: a prompt chunk is what decode rows leave.
    pub batch_tokens: u32,
    /// KV blocks in the pool.
    pub blocks: u32,
    /// Whether prompts that begin alike share blocks.
    pub prefix_cache: bool,
}

impl From<PassLimits> for Schedule {
    fn from(limits: PassLimits) -> Self {
        Self {
            slots: limits.max_num_seqs,
            batch_tokens: limits.max_batch_tokens,
            blocks: limits.num_blocks,
            prefix_cache: false,
        }
    }
}

/// A prompt and how to answer it.
pub type Asked = (Vec<u32>, SamplingParams);

/// Submits all `requests` at once and runs them to their ends, in order of submission. Every timeline is checked, and the
/// pool must be whole again.
pub fn run(
    runner: &mut GpuRunner,
    limits: PassLimits,
    schedule: Schedule,
    requests: &[Asked],
) -> Vec<Answer> {
    run_waves(runner, limits, schedule, &[requests]).0
}

/// The same for requests of which each wave comes when the one before has ended. Tells the counters at the end too.
pub fn run_waves(
    runner: &mut GpuRunner,
    limits: PassLimits,
    schedule: Schedule,
    waves: &[&[Asked]],
) -> (Vec<Answer>, EngineCounters) {
    let handle = runner.device().handle().clone();
    let config = EngineConfig {
        scheduler: SchedulerConfig {
            max_num_seqs: schedule.slots,
            max_batch_tokens: schedule.batch_tokens,
            block_size: limits.block_size,
            num_blocks: schedule.blocks,
            max_model_len: limits.max_model_len,
            max_waiting: 1000,
            vocab_size: runner.vocab_size(),
            prefix_cache: schedule.prefix_cache,
            prefix_hash_bits: 64,
            priority_step_ns: PRIORITY_STEP_NS,
        },
        eos_tokens: vec![2],
        model: ModelLabel::default(),
        engine_config: String::new(),
    };
    let mut engine = Engine::new(runner, TickClock::default(), config, None);
    let mut tokens: BTreeMap<RequestId, Vec<SampledToken>> = BTreeMap::new();
    let mut answers = BTreeMap::new();
    let mut ids = (0..).map(RequestId);
    for wave in waves {
        for ((prompt, params), id) in wave.iter().zip(ids.by_ref()) {
            let stamps = HostStamps::at(engine.clock().now());
            engine.submit(Request::new(id, prompt.clone(), params.clone(), stamps));
        }
        while engine.has_work() {
            for event in drive(&handle, engine.step()).expect("the step runs").events {
                match event {
                    RequestEvent::Token { id, token, .. } => tokens.entry(id).or_default().push(token),
                    RequestEvent::Finished { id, reason, mut timeline, .. } => {
                        timeline.seal().expect("the timeline keeps every rule");
                        let tokens = tokens.remove(&id).unwrap_or_default();
                        answers.insert(id, Answer { tokens, reason, timeline: *timeline });
                    }
                }
            }
        }
    }
    let counters = engine.counters();
    assert_eq!(counters.blocks_free, counters.blocks_total, "every block is free again");
    assert_eq!(answers.len(), waves.iter().map(|wave| wave.len()).sum::<usize>(), "every request ends once");
    (answers.into_values().collect(), counters)
}

/// Greedy for `max_tokens`, past end tokens.
pub fn greedy(max_tokens: u32) -> SamplingParams {
    SamplingParams { max_tokens, ignore_eos: true, ..SamplingParams::default() }
}

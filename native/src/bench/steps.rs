//! Made-up steps of a model that is loaded without an engine: what the measurements of steps have in common.
//!
//! Whose times are compared take turns. Invariant: a shape that [`fits`] is one that the runner takes.

use firstlight_engine::clock::Clock;
use firstlight_engine::runner::{GpuRunner, StepShape};
use firstlight_engine::sched::SchedulerConfig;
use firstlight_shaders::KvFormat;

use crate::cache::{Cache, process_environment};
use crate::cli::EngineArgs;
use crate::clock::InstantClock;
use crate::executor::block_on_gpu;
use crate::failure::Failure;
use crate::load::gpu;
use crate::{model_text, models, sizing};

/// A model on its adapter.
pub struct Opened {
    /// The model's name.
    pub model: String,
    /// The runner.
    pub runner: GpuRunner,
    /// What it was loaded for.
    pub limits: SchedulerConfig,
    /// How it stores keys and values.
    pub kv: KvFormat,
    /// Bytes of them for one token.
    pub kv_bytes_a_token: u64,
}

/// Loads the model of `args`.
///
/// # Errors
/// The model, its room, the adapter.
pub fn open(args: &EngineArgs) -> Result<Option<Opened>, Failure> {
    let cache = Cache::locate(&process_environment)?;
    let files = models::resolve(&args.model, &cache, &process_environment)?;
    let checkpoint = model_text::open(&files)?.checkpoint;
    let kv = args.kv_cache.format(KvFormat::default());
    let limits = sizing::limits(args, checkpoint.config(), kv)?;
    let place = gpu::Place::default();
    let loaded = gpu::load(&place, args, &checkpoint, &limits, None, &mut |_| ())?;
    let kv_bytes_a_token = checkpoint.config().kv_bytes_a_token(loaded.choice.kv);
    let opened = |runner: Box<GpuRunner>| Opened {
        model: checkpoint.config().name.clone(),
        runner: *runner,
        limits: loaded.limits,
        kv: loaded.choice.kv,
        kv_bytes_a_token,
    };
    Ok(place.take().map(opened))
}

/// Whether a runner of these limits can take a step of this shape.
pub fn fits(shape: &StepShape, limits: &SchedulerConfig) -> bool {
    shape.context <= limits.max_model_len
        && shape.num_seqs <= limits.max_num_seqs
        && shape.num_rows() <= limits.max_batch_tokens
        && shape.context.div_ceil(limits.block_size) * shape.num_seqs <= limits.num_blocks
}

/// A step of answers, `context` tokens each.
pub const fn decode(num_seqs: u32, context: u32) -> StepShape {
    StepShape { num_seqs, tokens_per_seq: 1, context }
}

/// A step whose time is wanted, and its times so far.
#[derive(Clone, Debug)]
pub struct Timed {
    /// Its shape.
    pub shape: StepShape,
    /// Sequences of it that are sampled.
    pub samples: u32,
    /// Nanoseconds, one a round.
    pub times: Vec<u64>,
}

impl Timed {
    /// One that was not timed yet.
    pub fn new(shape: StepShape, samples: u32) -> Self {
        Self { shape, samples, times: Vec::new() }
    }

    /// Takes the step once and keeps its time: on the GPU's clock, or on ours where it has none.
    ///
    /// # Errors
    /// A step that fails.
    pub fn take(&mut self, runner: &mut GpuRunner) -> Result<(), Failure> {
        let handle = runner.device().handle().clone();
        let clock = InstantClock::start();
        let start = clock.now();
        let on_gpu = block_on_gpu(&handle, runner.time_step_sampling(self.shape, self.samples))?;
        self.times.push(on_gpu.unwrap_or_else(|| clock.now() - start).max(1));
        Ok(())
    }

    /// The time in the middle.
    pub fn ns(&self) -> u64 {
        median(self.times.iter().copied())
    }
}

/// The one in the middle; 0 of none.
pub fn median(values: impl Iterator<Item = u64>) -> u64 {
    let mut values: Vec<u64> = values.collect();
    values.sort_unstable();
    values.get(values.len() / 2).copied().unwrap_or(0)
}

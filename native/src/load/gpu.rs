//! The device's side of loading: the adapter that is meant, the weights on it, every pipeline run once.
//!
//! Invariant: while a runner is loaded no other one of the same place is in memory.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Instant;

use firstlight_engine::gpu::{Device, DeviceOptions, KernelChoice};
use firstlight_engine::model::{Checkpoint, LoadProgress, PassLimits};
use firstlight_engine::runner::{GpuRunner, ModelRunner, RunnerError, RunnerOutput};
use firstlight_engine::sched::{Batch, SchedulerConfig};

use crate::cli::AdapterArgs;
use crate::driver::Drive;
use crate::executor::{block_on_gpu, drive};
use crate::failure::Failure;
use crate::progress::Progress;
use crate::source::FileSource;
use crate::terminal::note;
use crate::{adapters, executor};

/// The place of a runner that an engine uses and its host can empty: a failed one gives its memory back before its
/// successor is loaded, because a device has not always room for two.
#[derive(Clone, Default)]
pub struct Place(Rc<Cell<Option<Box<GpuRunner>>>>);

impl ModelRunner for Place {
    async fn execute(&mut self, batch: &Batch) -> Result<RunnerOutput, RunnerError> {
        let Some(mut runner) = self.0.take() else {
            return Err(RunnerError::DeviceLost("it was given up after a failure".into()));
        };
        let result = runner.execute(batch).await;
        self.0.set(Some(runner));
        result
    }

    fn profile(&mut self, on: bool) {
        if let Some(mut runner) = self.0.take() {
            runner.profile(on);
            self.0.set(Some(runner));
        }
    }
}

/// A runner that is warm and in its place.
pub struct Loaded {
    /// Drives its device.
    pub drive: Drive,
    /// Adapter and kernels, in words.
    pub described: String,
}

/// Empties `place`, opens the device, brings the weights onto it and warms it up; says on stderr how long each took.
/// `opened` is told of the device.
///
/// # Errors
/// Exit code 3 for the adapter, 4 for the model's bytes, 1 for memory and kernels.
pub fn load(
    place: &Place,
    args: &AdapterArgs,
    checkpoint: &Checkpoint<FileSource>,
    limits: &SchedulerConfig,
    opened: &mut dyn FnMut(&wgpu::Device),
) -> Result<Loaded, Failure> {
    drop(place.0.take());
    let start = Instant::now();
    let (index, adapter) = adapters::choose(args.adapter.as_deref())?;
    let options = DeviceOptions { default_limits: args.default_limits };
    let device = executor::block_on(Device::open(&adapter, index, options), std::thread::yield_now)?;
    let handle = device.handle().clone();
    let choice = KernelChoice::for_adapter(device.facts());
    let described = format!("{}: {choice}", device.facts().name);
    opened(&handle);
    let open = Instant::now();
    let progress = Progress::bytes("loading the weights", 0, checkpoint.total_bytes());
    let mut show = |loaded: LoadProgress| progress.set(loaded.bytes_done);
    let load = GpuRunner::load(device, checkpoint, pass_limits(limits), choice, &mut show);
    let loaded = block_on_gpu(&handle, load);
    progress.finish();
    let mut runner = loaded?;
    let weights = Instant::now();
    block_on_gpu(&handle, runner.warm_up())?;
    note(&format!(
        "{} on {}: device {:.2} s, weights {:.2} s, warm-up of {} kernels {:.2} s",
        checkpoint.config().name,
        described,
        (open - start).as_secs_f64(),
        (weights - open).as_secs_f64(),
        runner.num_kernels(),
        weights.elapsed().as_secs_f64()
    ));
    place.0.set(Some(Box::new(runner)));
    Ok(Loaded { drive: Box::new(move || drive(&handle)), described })
}

fn pass_limits(limits: &SchedulerConfig) -> PassLimits {
    PassLimits {
        max_num_seqs: limits.max_num_seqs,
        max_batch_tokens: limits.max_batch_tokens,
        block_size: limits.block_size,
        num_blocks: limits.num_blocks,
        max_model_len: limits.max_model_len,
    }
}

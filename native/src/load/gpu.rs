//! The device's side of loading: the adapter that is meant, the weights on it, every pipeline run once.

use std::time::Instant;

use firstlight_engine::gpu::{Device, DeviceOptions, KernelChoice};
use firstlight_engine::model::{Checkpoint, LoadProgress, PassLimits};
use firstlight_engine::runner::GpuRunner;
use firstlight_engine::sched::SchedulerConfig;

use crate::cli::AdapterArgs;
use crate::executor::{block_on_gpu, drive};
use crate::failure::Failure;
use crate::progress::Progress;
use crate::source::FileSource;
use crate::terminal::note;
use crate::{adapters, executor};

/// A runner that is warm.
pub struct LoadedRunner {
    /// The runner.
    pub runner: GpuRunner,
    /// Drives its device.
    pub drive: Box<dyn FnMut()>,
    /// Adapter and kernels, in words.
    pub described: String,
}

/// Opens the device, brings the weights onto it and warms it up; says on stderr how long each took.
///
/// # Errors
/// Exit code 3 for the adapter, 4 for the model's bytes, 1 for memory and kernels.
pub fn load(
    args: &AdapterArgs,
    checkpoint: &Checkpoint<FileSource>,
    limits: &SchedulerConfig,
) -> Result<LoadedRunner, Failure> {
    let start = Instant::now();
    let (index, adapter) = adapters::choose(args.adapter.as_deref())?;
    let options = DeviceOptions { default_limits: args.default_limits };
    let device = executor::block_on(Device::open(&adapter, index, options), std::thread::yield_now)?;
    let handle = device.handle().clone();
    let choice = KernelChoice::for_adapter(device.facts());
    let described = format!("{}: {choice}", device.facts().name);
    let opened = Instant::now();
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
        (opened - start).as_secs_f64(),
        (weights - opened).as_secs_f64(),
        runner.num_kernels(),
        weights.elapsed().as_secs_f64()
    ));
    Ok(LoadedRunner { runner, drive: Box::new(move || drive(&handle)), described })
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

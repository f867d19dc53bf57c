//! The device's side of loading: the adapter that is meant, the weights on it, every pipeline run once.
//!
//! Invariant: while a runner is loaded no other one of the same place is in memory.

use std::time::{Duration, Instant};

use firstlight_engine::gpu::{Device, DeviceOptions, KernelChoice};
use firstlight_engine::model::{Checkpoint, LoadProgress, Sketch};
use firstlight_engine::runner::{self, GpuRunner};
use firstlight_engine::sched::SchedulerConfig;
use firstlight_shaders::KvFormat;

use super::kernels::{self, Wishes};
use crate::cli::EngineArgs;
use crate::driver::Drive;
use crate::executor::{block_on_gpu, drive_awaited};
use crate::failure::Failure;
use crate::progress::Progress;
use crate::source::FileSource;
use crate::terminal::note;
use crate::{adapters, executor, sizing};

/// Where the engine finds its runner.
pub type Place = runner::Place<GpuRunner>;

/// A runner that is warm and in its place.
pub struct Loaded {
    /// Drives its device.
    pub drive: Drive,
    /// Adapter and kernels, in words.
    pub described: String,
    /// The kernels.
    pub choice: KernelChoice,
    /// The limits that it was loaded with: those that were given, with as many blocks as the format makes of the memory.
    pub limits: SchedulerConfig,
    /// How its KV cache is stored.
    pub kv: KvFormat,
    /// What took how long.
    pub times: Times,
}

/// The times of one load, one after another.
#[derive(Clone, Copy, Debug, Default)]
pub struct Times {
    /// Finding the adapter and opening the device.
    pub device: Duration,
    /// Reading, packing and uploading the weights, while the driver compiles.
    pub weights: Duration,
    /// Waiting for what the driver had not done by then.
    pub warm_up: Duration,
}

/// Empties `place`, opens the device, brings the weights onto it and warms it up; says on stderr how long each took.
/// `opened` is told of the device. The kernels are `choice`, or what the command line and the adapter say.
///
/// # Errors
/// Exit code 2 for a file that pins no kernels, 3 for the adapter, 4 for the model's bytes, 1 for memory and kernels.
pub fn load(
    place: &Place,
    args: &EngineArgs,
    checkpoint: &Checkpoint<FileSource>,
    limits: &SchedulerConfig,
    choice: Option<KernelChoice>,
    opened: &mut dyn FnMut(&wgpu::Device),
) -> Result<Loaded, Failure> {
    drop(place.take());
    let start = Instant::now();
    let (index, adapter) = adapters::choose(args.adapter.adapter.as_deref())?;
    let options = DeviceOptions { default_limits: args.adapter.default_limits };
    let device = executor::block_on(Device::open(&adapter, index, options), std::thread::yield_now)?;
    let (handle, awaited) = (device.handle().clone(), device.awaited());
    let open = Instant::now();
    let choice = match choice {
        Some(choice) => choice,
        None => {
            let wishes = Wishes {
                adapter: &args.adapter,
                activations: args.activations,
                kv_cache: args.kv_cache,
                block_size: args.block_size,
            };
            kernels::choose(wishes, device.facts(), || Sketch::of(checkpoint))?.choice
        }
    };
    let num_blocks = sizing::limits(args, checkpoint.config(), choice.kv)?.num_blocks;
    let limits = SchedulerConfig { num_blocks, ..*limits };
    let described = format!("{}: {choice}", device.facts().name);
    opened(&handle);
    let chosen = Instant::now();
    let progress = Progress::bytes("loading the weights", 0, checkpoint.total_bytes());
    let mut show = |loaded: LoadProgress| progress.set(loaded.bytes_done);
    let load = GpuRunner::load(device, checkpoint, (&limits).into(), choice, &mut show);
    let loaded = block_on_gpu(&handle, load);
    progress.finish();
    let mut runner = loaded?;
    let weights = Instant::now();
    block_on_gpu(&handle, runner.warm_up())?;
    let times = Times { device: open - start, weights: weights - chosen, warm_up: weights.elapsed() };
    note(&format!(
        "{} on {}: device {:.2} s, weights {:.2} s, warm-up of {} kernels {:.2} s",
        checkpoint.config().name,
        described,
        times.device.as_secs_f64(),
        times.weights.as_secs_f64(),
        runner.num_kernels(),
        times.warm_up.as_secs_f64()
    ));
    place.put(runner);
    let kv = choice.kv;
    Ok(Loaded {
        drive: Box::new(move || drive_awaited(&handle, &awaited)),
        described,
        choice,
        limits,
        kv,
        times,
    })
}

//! The device's side of loading: the adapter that is meant, the weights on it, every pipeline run once.
//!
//! Invariant: while a runner is loaded no other one of the same place is in memory.

use std::time::Instant;

use firstlight_engine::gpu::{Device, DeviceOptions, KernelChoice};
use firstlight_engine::model::{Checkpoint, LoadProgress, Sketch};
use firstlight_engine::runner::{self, GpuRunner};
use firstlight_engine::sched::SchedulerConfig;

use super::kernels::{self, Wishes};
use crate::cli::EngineArgs;
use crate::driver::Drive;
use crate::executor::{block_on_gpu, drive_awaited};
use crate::failure::Failure;
use crate::progress::Progress;
use crate::source::FileSource;
use crate::terminal::note;
use crate::{adapters, executor};

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
            let wishes =
                Wishes { adapter: &args.adapter, activations: args.activations, block_size: args.block_size };
            kernels::choose(wishes, device.facts(), || Sketch::of(checkpoint))?.choice
        }
    };
    let described = format!("{}: {choice}", device.facts().name);
    opened(&handle);
    let chosen = Instant::now();
    let progress = Progress::bytes("loading the weights", 0, checkpoint.total_bytes());
    let mut show = |loaded: LoadProgress| progress.set(loaded.bytes_done);
    let load = GpuRunner::load(device, checkpoint, limits.into(), choice, &mut show);
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
        (weights - chosen).as_secs_f64(),
        runner.num_kernels(),
        weights.elapsed().as_secs_f64()
    ));
    place.put(runner);
    Ok(Loaded { drive: Box::new(move || drive_awaited(&handle, &awaited)), described, choice })
}

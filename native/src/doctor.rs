//! `firstlight doctor`: what the machine offers, whether its kernels compute what they should, how fast it is, what it lacks.
//!
//! Never changes anything, but for what it keeps of a trial that it was asked for, and the costs of steps. Invariant: an adapter that computes wrongly ends it with exit code 3, after the whole report.

pub mod costs;
pub mod measures;
mod report;

use std::path::Path;

use firstlight_engine::gpu::{self, Checked, Device, DeviceOptions, KernelCache, ProbeError, Shapes};
use firstlight_engine::model::Sketch;
use firstlight_shaders::WeightFormat;

use crate::adapters;
use crate::cli::{DoctorArgs, EngineArgs};
use crate::executor::{block_on, block_on_gpu};
use crate::failure::{Exit, Failure};
use crate::load::kernels::{self, Wishes};
use crate::terminal::{self, write_json, write_line};

pub use report::{AdapterReport, ChosenReport, KernelReport, Measure, Report, TrialReport};

/// Every format, the default model's first: Q4_1 layers and a Q8_0 embedding.
pub const FORMATS: [WeightFormat; 6] = [
    WeightFormat::Q4_1,
    WeightFormat::Q8_0,
    WeightFormat::Q4_0,
    WeightFormat::F16,
    WeightFormat::Bf16,
    WeightFormat::F32,
];

impl From<ProbeError> for Failure {
    fn from(error: ProbeError) -> Self {
        match error {
            ProbeError::Device(error) => error.into(),
            ProbeError::Runner(error) => error.into(),
            ProbeError::Compose(error) => Self::failed(error.to_string()),
        }
    }
}

/// Runs the command.
///
/// # Errors
/// Exit code 3 where no adapter is there, none matches, or one computes wrongly, with what to do.
pub fn run(args: &DoctorArgs) -> Result<(), Failure> {
    let wanted = args.engine.adapter.adapter.as_deref();
    // Also without a wish: an empty machine is to be told what it lacks.
    let (index, chosen) = adapters::choose(wanted)?;
    let found: Vec<AdapterReport> = match wanted {
        Some(_) => vec![AdapterReport::of(index, &chosen)],
        None => {
            adapters::list().iter().enumerate().map(|(i, adapter)| AdapterReport::of(i, adapter)).collect()
        }
    };
    let default_limits = args.engine.adapter.default_limits;
    let device =
        block_on(Device::open(&chosen, index, DeviceOptions { default_limits }), std::thread::yield_now)?;
    let (chosen, checked) = examine(&device, index, &args.engine)?;
    let facts = device.facts().clone();
    drop(device);
    let only_cpu = found.iter().all(|adapter| adapter.kind == "Cpu");
    let mut missing = if only_cpu { vec![missing_gpu()] } else { Vec::new() };
    let is_right = checked.iter().all(Checked::ok);
    if default_limits {
        missing.push("what a model's steps cost: not measured with --default-limits".to_owned());
    }
    let costs = match (is_right && !default_limits).then(|| crate::costs::again(&args.engine)).transpose() {
        Ok(costs) => costs,
        // A machine without a model is looked at all the same.
        Err(failure) if failure.exit == Exit::Model => {
            missing.push(format!("what a model's steps cost: {}", failure.sentence));
            None
        }
        Err(failure) => return Err(failure),
    };
    let report = Report { adapters: found, chosen, costs, missing };
    if args.output.json {
        write_json(&report)?;
    } else {
        write_line(&report.to_string())?;
    }
    gpu::refuse_wrong(&facts, &checked)?;
    Ok(())
}

/// Self-test and measurements of the adapter that is used.
fn examine(
    device: &Device,
    index: usize,
    args: &EngineArgs,
) -> Result<(ChosenReport, Vec<Checked>), Failure> {
    // As a load of the default model would choose.
    let wishes = Wishes {
        adapter: &args.adapter,
        activations: args.activations,
        kv_cache: args.kv_cache,
        block_size: args.block_size,
    };
    let chosen = kernels::choose(wishes, device.facts(), Sketch::of_default_model)?;
    let choice = chosen.choice;
    let cases = gpu::cases(choice, &Shapes::of_default_model(&FORMATS, choice, device.facts()))
        .map_err(ProbeError::from)?;
    let count = cases.len();
    terminal::note(&format!("testing {count} kernels; the first run of a driver compiles each of them"));
    let mut kernels = KernelCache::default();
    let checked = block_on_gpu(device.handle(), gpu::measure(device, &mut kernels, &cases))?;
    let report = ChosenReport {
        index,
        default_limits: args.adapter.default_limits,
        kernels: choice.to_string(),
        choice: choice.to_json(),
        chosen_by: chosen.how.name(),
        why: chosen.how.to_string(),
        trials: chosen.how.trials().iter().map(TrialReport::from).collect(),
        self_test: checked.iter().map(KernelReport::from).collect(),
        measures: measures::all(device, &mut kernels, choice.home)?,
    };
    Ok((report, checked))
}

/// What to do where only a CPU driver answers.
fn missing_gpu() -> String {
    let nodes = ["/dev/dri/renderD128", "/dev/nvidia0"];
    let seen = nodes.into_iter().find(|node| Path::new(node).exists());
    missing_gpu_sentence(cfg!(target_os = "linux"), seen)
}

fn missing_gpu_sentence(linux: bool, node: Option<&str>) -> String {
    match (linux, node) {
        (false, _) => "a GPU's driver: install your GPU's current one; until then the CPU computes".into(),
        (true, Some(node)) => format!(
            "a GPU's Vulkan driver, though {node} is there: `sudo apt-get install mesa-vulkan-drivers` for AMD and \
             Intel, `sudo apt-get install nvidia-driver` (on Ubuntu `sudo ubuntu-drivers install`) for NVIDIA; until \
             then the CPU computes"
        ),
        (true, None) => {
            "a GPU: the system shows none (no /dev/dri/renderD128, no /dev/nvidia0), so the CPU computes; \
             in a container, hand it in with `--device /dev/dri` or `--gpus all`"
                .into()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_missing_comes_with_a_command() {
        assert!(missing_gpu_sentence(true, Some("/dev/nvidia0")).contains("nvidia-driver"));
        assert!(missing_gpu_sentence(true, None).contains("--device /dev/dri"));
        assert!(missing_gpu_sentence(false, None).contains("install"));
    }
}

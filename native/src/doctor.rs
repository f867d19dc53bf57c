//! `firstlight doctor`: what the machine offers, and what it lacks.
//!
//! Never changes anything; it opens no device.

use serde::Serialize;

use crate::adapters;
use crate::cli::DoctorArgs;
use crate::failure::Failure;
use crate::terminal::{write_json, write_line};

/// What one adapter says of itself.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct AdapterReport {
    /// What `--adapter` takes.
    pub index: usize,
    /// The adapter's name.
    pub name: String,
    /// Vulkan, Metal, Dx12.
    pub backend: String,
    /// What kind of device: discrete, integrated, CPU.
    pub kind: String,
    /// The driver and its version.
    pub driver: String,
    /// Bytes of the largest buffer.
    pub max_buffer_bytes: u64,
    /// Bytes of the largest storage binding.
    pub max_binding_bytes: u64,
    /// Bytes of workgroup memory.
    pub workgroup_memory_bytes: u32,
    /// Invocations of a workgroup.
    pub max_workgroup_invocations: u32,
    /// Storage buffers of one stage.
    pub max_storage_buffers: u32,
    /// Lanes of a subgroup, least and most; `None` where there are no subgroups.
    pub subgroup_size: Option<(u32, u32)>,
    /// Half floats in shaders.
    pub shader_f16: bool,
    /// Timestamps on the GPU's clock.
    pub timestamps: bool,
}

impl std::fmt::Display for AdapterReport {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mib = |bytes: u64| bytes >> 20;
        let yes = |value: bool| if value { "yes" } else { "no" };
        writeln!(
            f,
            "adapter {}: {} ({}, {}; {})",
            self.index, self.name, self.kind, self.backend, self.driver
        )?;
        writeln!(
            f,
            "  largest buffer {} MiB, storage binding {} MiB",
            mib(self.max_buffer_bytes),
            mib(self.max_binding_bytes)
        )?;
        writeln!(
            f,
            "  workgroup: {} invocations, {} KiB memory; {} storage buffers",
            self.max_workgroup_invocations,
            self.workgroup_memory_bytes >> 10,
            self.max_storage_buffers
        )?;
        let subgroups = match self.subgroup_size {
            Some((least, most)) => format!("{least} to {most} lanes"),
            None => "no".into(),
        };
        write!(
            f,
            "  subgroups: {subgroups}; f16: {}; timestamps: {}",
            yes(self.shader_f16),
            yes(self.timestamps)
        )
    }
}

/// Runs the command.
///
/// # Errors
/// Exit code 3 where no adapter is there or none matches, with what to install.
pub fn run(args: &DoctorArgs) -> Result<(), Failure> {
    let wanted = args.adapter.adapter.as_deref();
    // Also without a wish: an empty machine is to be told what it lacks.
    let (chosen_idx, chosen) = adapters::choose(wanted)?;
    let found: Vec<AdapterReport> = match wanted {
        Some(_) => vec![report(chosen_idx, &chosen)],
        None => adapters::list().iter().enumerate().map(|(idx, adapter)| report(idx, adapter)).collect(),
    };
    if args.output.json {
        return write_json(&found);
    }
    found.iter().try_for_each(|adapter| write_line(&adapter.to_string()))?;
    match found.iter().all(|adapter| adapter.kind == "Cpu") {
        true => write_line(
            "only a software adapter is here; a GPU's driver would be used as soon as it is installed",
        ),
        false => write_line(&format!("adapter {chosen_idx} is used unless --adapter names another")),
    }
}

fn report(index: usize, adapter: &wgpu::Adapter) -> AdapterReport {
    let info = adapter.get_info();
    let limits = adapter.limits();
    let features = adapter.features();
    let subgroups = features.contains(wgpu::Features::SUBGROUP);
    AdapterReport {
        index,
        name: info.name,
        backend: format!("{:?}", info.backend),
        kind: format!("{:?}", info.device_type),
        driver: format!("{} {}", info.driver, info.driver_info).trim().to_owned(),
        max_buffer_bytes: limits.max_buffer_size,
        max_binding_bytes: limits.max_storage_buffer_binding_size,
        workgroup_memory_bytes: limits.max_compute_workgroup_storage_size,
        max_workgroup_invocations: limits.max_compute_invocations_per_workgroup,
        max_storage_buffers: limits.max_storage_buffers_per_shader_stage,
        subgroup_size: subgroups.then_some((info.subgroup_min_size, info.subgroup_max_size)),
        shader_f16: features.contains(wgpu::Features::SHADER_F16),
        timestamps: features.contains(wgpu::Features::TIMESTAMP_QUERY),
    }
}

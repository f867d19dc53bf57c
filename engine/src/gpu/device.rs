//! Adapters and the device: what they can do, as plain facts, and a device that reports its errors as values.
//!
//! Never polls: the host drives the device. Invariant: no wgpu error reaches wgpu's default handler, which would panic.

use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use crate::error::DeviceError;
use crate::error::RunnerError;

/// What an adapter is and can do.
#[derive(Clone, Debug, PartialEq)]
pub struct AdapterFacts {
    /// Position in the host's list; what `--adapter` takes.
    pub index: usize,
    /// The adapter's name; empty in browsers.
    pub name: String,
    /// Driver and version.
    pub driver: String,
    /// vulkan, metal, dx12, browser_webgpu or noop.
    pub backend: String,
    /// A driver that computes on the CPU: it wants other kernels. Everything else counts as a GPU, since browsers do not tell
    /// what kind they have.
    pub is_cpu: bool,
    /// Subgroup operations.
    pub subgroups: bool,
    /// Smallest subgroup.
    pub subgroup_min_size: u32,
    /// Largest subgroup.
    pub subgroup_max_size: u32,
    /// 16-bit floats in shaders.
    pub f16: bool,
    /// GPU timestamps.
    pub timestamps: bool,
    /// Largest storage binding in bytes.
    pub max_binding_bytes: u64,
    /// Largest buffer in bytes.
    pub max_buffer_bytes: u64,
    /// Largest side of a 2D texture in texels.
    pub max_texture_side: u32,
    /// Workgroup memory in bytes.
    pub max_workgroup_bytes: u32,
    /// Workgroups in one dimension of a grid.
    pub max_workgroups: u32,
    /// Storage buffers that a kernel binds.
    pub max_storage_buffers: u32,
    /// Storage textures that a kernel binds.
    pub max_storage_textures: u32,
}

impl AdapterFacts {
    /// Reads the facts of `adapter`.
    pub fn of(index: usize, adapter: &wgpu::Adapter) -> Self {
        Self::new(index, &adapter.get_info(), adapter.features(), &adapter.limits())
    }

    fn new(index: usize, info: &wgpu::AdapterInfo, features: wgpu::Features, limits: &wgpu::Limits) -> Self {
        Self {
            index,
            name: info.name.clone(),
            driver: format!("{} {}", info.driver, info.driver_info).trim().to_string(),
            backend: info.backend.to_string(),
            is_cpu: info.device_type == wgpu::DeviceType::Cpu,
            subgroups: features.contains(wgpu::Features::SUBGROUP),
            subgroup_min_size: info.subgroup_min_size,
            subgroup_max_size: info.subgroup_max_size,
            f16: features.contains(wgpu::Features::SHADER_F16),
            timestamps: features.contains(wgpu::Features::TIMESTAMP_QUERY),
            max_binding_bytes: limits.max_storage_buffer_binding_size,
            max_buffer_bytes: limits.max_buffer_size,
            max_texture_side: limits.max_texture_dimension_2d,
            max_workgroup_bytes: limits.max_compute_workgroup_storage_size,
            max_workgroups: limits.max_compute_workgroups_per_dimension,
            max_storage_buffers: limits.max_storage_buffers_per_shader_stage,
            max_storage_textures: limits.max_storage_textures_per_shader_stage,
        }
    }
}

/// How to open a device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DeviceOptions {
    /// WebGPU's default limits and no optional features: what every browser gives.
    pub default_limits: bool,
}

/// Limits below a device's own; see [`Device::capped`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LimitCaps {
    /// Bytes of a storage binding.
    pub max_binding_bytes: u64,
    /// Bytes of a buffer.
    pub max_buffer_bytes: u64,
    /// Texels of a texture's side.
    pub max_texture_side: u32,
}

impl Default for LimitCaps {
    fn default() -> Self {
        Self { max_binding_bytes: u64::MAX, max_buffer_bytes: u64::MAX, max_texture_side: u32::MAX }
    }
}

/// The submit that a step waits for now. Whoever waits for the device waits for this one and not for the last one, which may
/// be the step after.
#[derive(Clone, Default)]
pub struct Awaited(Arc<Mutex<Option<wgpu::SubmissionIndex>>>);

impl Awaited {
    pub(crate) fn set(&self, index: wgpu::SubmissionIndex) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(index);
    }

    /// Takes it: whoever asks again has nothing to wait for but everything.
    pub fn take(&self) -> Option<wgpu::SubmissionIndex> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

/// An open device with the facts that hold for it (not for its adapter: `--default-limits` asks for less).
pub struct Device {
    pub(crate) wgpu: wgpu::Device,
    pub(crate) queue: wgpu::Queue,
    pub(crate) awaited: Awaited,
    facts: AdapterFacts,
    doubted: bool,
    lost: Arc<OnceLock<String>>,
    fault: Arc<Mutex<Option<RunnerError>>>,
}

impl Device {
    /// Asks `adapter` for a device.
    pub async fn open(
        adapter: &wgpu::Adapter,
        index: usize,
        options: DeviceOptions,
    ) -> Result<Self, DeviceError> {
        let wanted = wgpu::Features::SUBGROUP | wgpu::Features::SHADER_F16 | wgpu::Features::TIMESTAMP_QUERY;
        let (features, limits) = if options.default_limits {
            (wgpu::Features::empty(), wgpu::Limits::default())
        } else {
            (adapter.features() & wanted, adapter.limits())
        };
        let descriptor = wgpu::DeviceDescriptor {
            label: Some("firstlight"),
            required_features: features,
            required_limits: limits.clone(),
            // One model and one KV cache, taken at start: blocks sized for throughput would waste hundreds of MiB.
            memory_hints: wgpu::MemoryHints::MemoryUsage,
            ..Default::default()
        };
        let info = adapter.get_info();
        let (device, queue) = adapter
            .request_device(&descriptor)
            .await
            .map_err(|e| DeviceError::NoDevice { adapter: info.name.clone(), reason: e.to_string() })?;
        let lost = Arc::new(OnceLock::new());
        let fault = Arc::new(Mutex::new(None));
        let (on_lost, on_fault) = (lost.clone(), fault.clone());
        device.set_device_lost_callback(move |reason, message| {
            // The first word counts; a second loss of a lost device says nothing new.
            let _ = on_lost.set(format!("{reason:?}: {message}"));
        });
        device.on_uncaptured_error(Arc::new(move |error: wgpu::Error| {
            let failure = match &error {
                wgpu::Error::OutOfMemory { .. } => RunnerError::OutOfMemory(error.to_string()),
                _ => RunnerError::Internal(error.to_string()),
            };
            // The first one is the cause, the others are its consequences.
            if let Ok(mut fault) = on_fault.lock() {
                fault.get_or_insert(failure);
            }
        }));
        let facts = AdapterFacts::new(index, &info, features, &limits);
        let doubted = !facts.is_cpu;
        let awaited = Awaited::default();
        Ok(Self { wgpu: device, queue, awaited, facts, doubted, lost, fault })
    }

    /// What this device is and can do.
    pub fn facts(&self) -> &AdapterFacts {
        &self.facts
    }

    /// The wgpu device, for the host that polls it.
    pub fn handle(&self) -> &wgpu::Device {
        &self.wgpu
    }

    /// What to wait for, for the same host.
    pub fn awaited(&self) -> Awaited {
        self.awaited.clone()
    }

    /// Whether the device is gone.
    pub(crate) fn is_lost(&self) -> bool {
        self.lost.get().is_some()
    }

    /// What failed since this was last asked, if anything. A lost device stays lost; anything else is told once, to the
    /// step that comes upon it, and the next step starts afresh: one refused call must not condemn all that follow.
    pub fn take_failure(&self) -> Option<RunnerError> {
        if let Some(reason) = self.lost.get() {
            return Some(RunnerError::DeviceLost(reason.clone()));
        }
        self.fault.lock().ok().and_then(|mut fault| fault.take())
    }

    /// The device with its kernels tested at every load, as a GPU's are from the start. Elsewhere compiling the test's
    /// pipelines would take longer than the load; there it is the host's to ask for it, and the doctor's to do it.
    pub fn doubted(mut self) -> Self {
        self.doubted = true;
        self
    }

    /// Whether kernels are tested at load.
    pub fn is_doubted(&self) -> bool {
        self.doubted
    }

    /// The device with smaller limits than its own. Weights then come in more pieces: for tests, and for drivers whose
    /// word is not to be trusted.
    pub fn capped(mut self, caps: LimitCaps) -> Self {
        self.facts.max_binding_bytes = self.facts.max_binding_bytes.min(caps.max_binding_bytes);
        self.facts.max_buffer_bytes = self.facts.max_buffer_bytes.min(caps.max_buffer_bytes);
        self.facts.max_texture_side = self.facts.max_texture_side.min(caps.max_texture_side);
        self
    }

    /// Runs `make` and turns what the driver says of it into an error: validation and memory.
    pub(crate) async fn scoped<T>(&self, make: impl FnOnce() -> T) -> Result<T, wgpu::Error> {
        let memory = self.wgpu.push_error_scope(wgpu::ErrorFilter::OutOfMemory);
        let validation = self.wgpu.push_error_scope(wgpu::ErrorFilter::Validation);
        let made = make();
        let (invalid, exhausted) = (validation.pop().await, memory.pop().await);
        match exhausted.or(invalid) {
            Some(error) => Err(error),
            None => Ok(made),
        }
    }
}

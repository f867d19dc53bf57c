//! One kernel on made-up data: what the self-test, the doctor and the tests run.
//!
//! Never part of a step. Invariant: outputs are poisoned by the caller's bytes, so that «never written» shows.

use std::rc::Rc;

use firstlight_shaders::weights::GROUP_COLUMNS;
use firstlight_shaders::{BindingKind, ComposeError, Program};

use super::memory::Resource;
use super::pass::{self, Dispatch, Extent, Pass, Tile, Timestamps, Timing};
use super::{Device, Kernel, KernelCache};
use crate::error::DeviceError;
use crate::error::RunnerError;

/// Why a probe gave nothing.
#[derive(Debug, thiserror::Error)]
pub enum ProbeError {
    /// Memory or compilation.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// Execution.
    #[error(transparent)]
    Runner(#[from] RunnerError),
    /// Our bug: a kernel's text could not be put together.
    #[error(transparent)]
    Compose(#[from] ComposeError),
}

/// A kernel bound to its data.
pub struct Probe {
    kernel: Rc<Kernel>,
    bound: wgpu::BindGroup,
    resources: Vec<(BindingKind, Resource, u64)>,
}

impl Probe {
    /// Compiles `program` and binds `contents[i]` to binding i.
    pub async fn new(
        device: &Device,
        cache: &mut KernelCache,
        program: Program,
        contents: &[&[u8]],
    ) -> Result<Self, DeviceError> {
        assert_eq!(program.bindings.len(), contents.len(), "one content per binding of {}", program.name);
        let mut resources = Vec::new();
        for (&kind, &bytes) in program.bindings.iter().zip(contents) {
            let resource = match kind {
                BindingKind::Uniform => Resource::Buffer(device.uniform("probe", bytes).await?),
                BindingKind::Read | BindingKind::ReadWrite => {
                    Resource::Buffer(device.storage_with("probe", bytes).await?)
                }
                BindingKind::ReadTexture(format) | BindingKind::WriteTexture(format) => {
                    let line_bytes = u64::from(GROUP_COLUMNS * format.bytes());
                    let texture = device
                        .line_texture("probe", format, (bytes.len() as u64).div_ceil(line_bytes))
                        .await?;
                    texture.write(device, 0, bytes);
                    Resource::Texture(texture)
                }
            };
            resources.push((kind, resource, bytes.len() as u64));
        }
        let kernel = cache.get(device, program).await?;
        let bindings: Vec<_> = resources.iter().map(|(_, resource, _)| resource.binding()).collect();
        let bound = kernel.bind(device, &bindings);
        Ok(Self { kernel, bound, resources })
    }

    /// Dispatches `grid` `times` times in one pass and returns what each written binding then holds.
    pub async fn run(&self, device: &Device, grid: [u32; 3], times: u32) -> Result<Vec<Vec<u8>>, ProbeError> {
        let mut encoder = device.wgpu.create_command_encoder(&wgpu::CommandEncoderDescriptor::default());
        {
            let mut pass = encoder.begin_compute_pass(&wgpu::ComputePassDescriptor::default());
            pass.set_pipeline(self.kernel.pipeline());
            pass.set_bind_group(0, &self.bound, &[]);
            for _ in 0..times {
                pass.dispatch_workgroups(grid[0], grid[1], grid[2]);
            }
        }
        let mut staged = Vec::new();
        for (kind, resource, bytes) in &self.resources {
            if matches!(kind, BindingKind::ReadWrite | BindingKind::WriteTexture(_)) {
                let staging = device.readback("probe", *bytes).await?;
                resource.copy_out(&mut encoder, 0, (&staging, 0), *bytes);
                staged.push((staging, *bytes));
            }
        }
        device.queue.submit([encoder.finish()]);
        let mut contents = Vec::new();
        for (staging, bytes) in staged {
            let mut content = Vec::new();
            let read = staging.read(device, bytes, &mut |bytes| content = bytes.to_vec()).await;
            contents.push(read.map(|()| content));
        }
        // Why the device failed says more than that its buffer could not be read.
        match device.take_failure() {
            Some(failure) => Err(failure.into()),
            None => Ok(contents.into_iter().collect::<Result<_, _>>()?),
        }
    }

    /// Dispatches `grid` `times` times in one pass, over `probes` of one kernel in turn, so that its data need not come out of
    /// a cache. Gives back the pass's nanoseconds on the GPU's clock; `None` where there is none, and the host's has to do.
    ///
    /// # Errors
    /// As [`Self::run`].
    pub async fn time(
        device: &Device,
        probes: &[Self],
        grid: [u32; 3],
        times: u32,
    ) -> Result<Option<u64>, ProbeError> {
        let timestamps = Timestamps::of_parts(device, 1);
        let dispatches: Vec<Dispatch> = (probes.iter().cycle().take(times as usize))
            .map(|probe| {
                let bindings: Vec<_> =
                    probe.resources.iter().map(|(_, resource, _)| resource.binding()).collect();
                let kernel = probe.kernel.clone();
                let tile = Tile { min_rows: 1, tile_rows: 1, grid_x: grid[0], kernel };
                Dispatch::tiled(device, Extent::Rows, vec![tile], &bindings)
            })
            .collect();
        let stamp_bytes = timestamps.as_ref().map_or(16, Timestamps::bytes);
        let readback = device.readback("probe timestamps", stamp_bytes).await?;
        let pass = Pass {
            copies: &[],
            dispatches: &dispatches,
            rows: grid[1],
            samples: 0,
            wanted: &[],
            timing: timestamps.as_ref().map_or(Timing::Off, Timing::Whole),
        };
        let elapsed = pass::run(device, &pass, &readback).await?;
        Ok(elapsed.pass_ns)
    }
}

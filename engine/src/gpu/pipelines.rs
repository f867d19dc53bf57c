//! From a kernel's text to a pipeline and bind groups on one device.
//!
//! Never decides which kernel runs. Invariant: each distinct text is compiled once per device.

use std::cell::Cell;
use std::collections::HashMap;
use std::rc::Rc;

use firstlight_shaders::{BindingKind, Program, TexelFormat};

use super::Device;
use crate::error::DeviceError;

/// A compiled kernel.
pub struct Kernel {
    name: String,
    pipeline: wgpu::ComputePipeline,
    layout: wgpu::BindGroupLayout,
    has_run: Cell<bool>,
}

impl Kernel {
    /// The kernel's name and choices.
    pub fn name(&self) -> &str {
        &self.name
    }

    pub(crate) fn pipeline(&self) -> &wgpu::ComputePipeline {
        &self.pipeline
    }

    /// Whether a dispatch of it was submitted while the model was loaded: drivers compile at the first one.
    pub fn has_run(&self) -> bool {
        self.has_run.get()
    }

    pub(crate) fn runs(&self) {
        self.has_run.set(true);
    }

    /// Binds `resources` to the kernel's bindings, in their order.
    pub fn bind(&self, device: &Device, resources: &[wgpu::BindingResource<'_>]) -> wgpu::BindGroup {
        let entries: Vec<_> = resources
            .iter()
            .zip(0u32..)
            .map(|(resource, binding)| wgpu::BindGroupEntry { binding, resource: resource.clone() })
            .collect();
        device.wgpu.create_bind_group(&wgpu::BindGroupDescriptor {
            label: Some(&self.name),
            layout: &self.layout,
            entries: &entries,
        })
    }
}

/// The pipelines of one device.
#[derive(Default)]
pub struct KernelCache {
    kernels: HashMap<Program, Rc<Kernel>>,
    layouts: HashMap<Vec<BindingKind>, (wgpu::BindGroupLayout, wgpu::PipelineLayout)>,
}

impl KernelCache {
    /// The compiled kernel of `program`.
    pub async fn get(&mut self, device: &Device, program: Program) -> Result<Rc<Kernel>, DeviceError> {
        if let Some(kernel) = self.kernels.get(&program) {
            return Ok(kernel.clone());
        }
        let (layout, pipeline_layout) = self.layout(device, &program.bindings);
        let text = if device.facts().backend == wgpu::Backend::BrowserWebGpu.to_string() {
            program.wgsl_for_browsers()
        } else {
            program.wgsl.clone()
        };
        let name = program.name.clone();
        let pipeline = device
            .scoped(|| {
                let module = device.wgpu.create_shader_module(wgpu::ShaderModuleDescriptor {
                    label: Some(&name),
                    source: wgpu::ShaderSource::Wgsl(text.into()),
                });
                device.wgpu.create_compute_pipeline(&wgpu::ComputePipelineDescriptor {
                    label: Some(&name),
                    layout: Some(&pipeline_layout),
                    module: &module,
                    entry_point: Some("main"),
                    // Every kernel writes its workgroup memory before it reads it.
                    compilation_options: wgpu::PipelineCompilationOptions {
                        zero_initialize_workgroup_memory: false,
                        ..Default::default()
                    },
                    cache: None,
                })
            })
            .await
            .map_err(|error| DeviceError::Kernel {
                kernel: program.name.clone(),
                adapter: device.facts().name.clone(),
                reason: error.to_string(),
            })?;
        let kernel =
            Rc::new(Kernel { name: program.name.clone(), pipeline, layout, has_run: Cell::new(false) });
        self.kernels.insert(program, kernel.clone());
        Ok(kernel)
    }

    /// All kernels compiled so far.
    pub fn kernels(&self) -> impl Iterator<Item = &Rc<Kernel>> {
        self.kernels.values()
    }

    fn layout(
        &mut self,
        device: &Device,
        bindings: &[BindingKind],
    ) -> (wgpu::BindGroupLayout, wgpu::PipelineLayout) {
        let made = self.layouts.entry(bindings.to_vec()).or_insert_with(|| {
            let entries: Vec<_> = bindings
                .iter()
                .zip(0u32..)
                .map(|(&kind, binding)| wgpu::BindGroupLayoutEntry {
                    binding,
                    visibility: wgpu::ShaderStages::COMPUTE,
                    ty: binding_type(kind),
                    count: None,
                })
                .collect();
            let layout = device.wgpu.create_bind_group_layout(&wgpu::BindGroupLayoutDescriptor {
                label: None,
                entries: &entries,
            });
            let pipeline_layout = device.wgpu.create_pipeline_layout(&wgpu::PipelineLayoutDescriptor {
                label: None,
                bind_group_layouts: &[Some(&layout)],
                immediate_size: 0,
            });
            (layout, pipeline_layout)
        });
        made.clone()
    }
}

fn binding_type(kind: BindingKind) -> wgpu::BindingType {
    let buffer = |ty| wgpu::BindingType::Buffer { ty, has_dynamic_offset: false, min_binding_size: None };
    let texture = |access, format| wgpu::BindingType::StorageTexture {
        access,
        format: texture_format(format),
        view_dimension: wgpu::TextureViewDimension::D2,
    };
    match kind {
        BindingKind::Uniform => buffer(wgpu::BufferBindingType::Uniform),
        BindingKind::Read => buffer(wgpu::BufferBindingType::Storage { read_only: true }),
        BindingKind::ReadWrite => buffer(wgpu::BufferBindingType::Storage { read_only: false }),
        BindingKind::ReadTexture(format) => texture(wgpu::StorageTextureAccess::ReadOnly, format),
        BindingKind::WriteTexture(format) => texture(wgpu::StorageTextureAccess::WriteOnly, format),
    }
}

/// wgpu's name for a texel.
pub(crate) fn texture_format(format: TexelFormat) -> wgpu::TextureFormat {
    match format {
        TexelFormat::R32 => wgpu::TextureFormat::R32Uint,
        TexelFormat::Rg32 => wgpu::TextureFormat::Rg32Uint,
        TexelFormat::Rgba32 => wgpu::TextureFormat::Rgba32Uint,
    }
}

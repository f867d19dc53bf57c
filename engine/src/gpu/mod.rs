//! The only code that names wgpu: device, pipelines, memory, one pass per step, read-back.
//!
//! Never has an idea of requests.

mod device;
mod memory;
mod pipelines;
mod probe;
mod readback;

pub use device::{AdapterFacts, Device, DeviceOptions};
pub use memory::{Buffer, Resource, WeightTexture};
pub use pipelines::{Kernel, KernelCache};
pub use probe::{Probe, ProbeError};

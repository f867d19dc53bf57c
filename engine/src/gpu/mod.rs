//! The only code that names wgpu: device, pipelines, memory, one pass per step, read-back.
//!
//! Never has an idea of requests.

mod choice;
mod device;
mod memory;
mod pass;
mod pin;
mod pipelines;
mod probe;
mod readback;
mod selftest;
mod tiles;
mod tune;

pub use choice::{KernelChoice, MatmulFamily, SampleOn, why};
pub use device::{AdapterFacts, Awaited, Device, DeviceOptions, LimitCaps};
pub use memory::{Binding, Buffer, LineTexture, Resource};
pub use pass::{
    Copy, Dispatch, Elapsed, Extent, Pass, Stage, Submitted, TIMESTAMP_BYTES, Tile, Timestamps, Timing,
    Wanted, Work, read, run, run_first, submit,
};
pub use pin::PinError;
pub use pipelines::{Kernel, KernelCache};
pub use probe::{Probe, ProbeError};
pub use selftest::{Case, Checked, MAX_F16_NMSE, MAX_NMSE, Shapes, cases, measure, refuse_wrong, self_test};
pub use tiles::{MatmulShape, MatmulTile};
pub use tune::{Trial, TrialTimes, TuneKey, Tuned};

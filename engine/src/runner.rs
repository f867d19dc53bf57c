//! The seam between deciding and executing: a [`ModelRunner`] takes a [`Batch`] and gives back one token per sample row.
//!
//! Invariant: a runner never decides what runs, and keeps nothing of a request between steps but the KV cache.

mod gpu_runner;

use std::future::Future;

use crate::request::SampledToken;
use crate::sched::Batch;

pub use gpu_runner::GpuRunner;

/// What one forward pass gave back.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RunnerOutput {
    /// One token per [`Batch::sample_rows`], in that order.
    pub tokens: Vec<SampledToken>,
    /// Time of the pass on the GPU's own clock, where the adapter has timestamps.
    pub gpu_ns: Option<u64>,
}

/// The device failed. All running requests end `Failed`; the host builds a new runner.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum RunnerError {
    /// The device is gone.
    #[error("device_lost: the GPU device was lost ({0}); the engine must be built again")]
    DeviceLost(String),
    /// An allocation failed.
    #[error("out_of_memory: {0}")]
    OutOfMemory(String),
    /// The driver refused something that validation should have caught.
    #[error("the GPU refused the step: {0}")]
    Internal(String),
}

/// Executes batches on one model.
pub trait ModelRunner {
    /// Runs one forward pass over `batch` and samples.
    fn execute(&mut self, batch: &Batch) -> impl Future<Output = Result<RunnerOutput, RunnerError>>;
}

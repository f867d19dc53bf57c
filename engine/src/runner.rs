//! The seam between deciding and executing: a [`ModelRunner`] takes a [`Batch`] and gives back one token per sample row.
//!
//! Invariant: a runner never decides what runs, and keeps nothing of a request between steps but the KV cache.

mod gpu_runner;

use std::future::Future;

use crate::request::SampledToken;
use crate::sched::Batch;

pub use crate::error::RunnerError;
pub use gpu_runner::GpuRunner;

/// What one forward pass gave back.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RunnerOutput {
    /// One token per [`Batch::sample_rows`], in that order.
    pub tokens: Vec<SampledToken>,
    /// Time of the pass on the GPU's own clock, where the adapter has timestamps.
    pub gpu_ns: Option<u64>,
}

/// Executes batches on one model.
pub trait ModelRunner {
    /// Runs one forward pass over `batch` and samples.
    fn execute(&mut self, batch: &Batch) -> impl Future<Output = Result<RunnerOutput, RunnerError>>;
}

impl<R: ModelRunner + ?Sized> ModelRunner for &mut R {
    fn execute(&mut self, batch: &Batch) -> impl Future<Output = Result<RunnerOutput, RunnerError>> {
        (**self).execute(batch)
    }
}

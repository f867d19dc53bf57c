//! The seam between deciding and executing: a [`ModelRunner`] takes a [`Batch`] and gives back one token per sample row.
//!
//! Invariant: a runner never decides what runs, and keeps nothing of a request between steps but the KV cache.

mod gpu_runner;
mod place;
mod step_profile;
mod trial;

use std::future::Future;

use crate::request::SampledToken;
use crate::sched::Batch;
use crate::timeline::StageTimes;

pub use crate::error::RunnerError;
pub use gpu_runner::GpuRunner;
pub use place::Place;
pub use step_profile::{KernelTime, StepProfile, StepShape};
pub use trial::trial;

/// What one forward pass gave back.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RunnerOutput {
    /// One token per [`Batch::sample_rows`], in that order.
    pub tokens: Vec<SampledToken>,
    /// Time of the pass on the GPU's own clock, where the adapter has timestamps.
    pub gpu_ns: Option<u64>,
    /// The same by stage, where the runner was asked for it and the adapter has timestamps.
    pub stages: Option<StageTimes>,
}

/// Executes batches on one model.
pub trait ModelRunner {
    /// Runs one forward pass over `batch` and samples.
    fn execute(&mut self, batch: &Batch) -> impl Future<Output = Result<RunnerOutput, RunnerError>>;

    /// Asks for [`RunnerOutput::stages`] from the next pass on, which makes passes slower; a runner that cannot tell says
    /// nothing.
    fn profile(&mut self, _on: bool) {}
}

impl<R: ModelRunner + ?Sized> ModelRunner for &mut R {
    fn execute(&mut self, batch: &Batch) -> impl Future<Output = Result<RunnerOutput, RunnerError>> {
        (**self).execute(batch)
    }
    fn profile(&mut self, on: bool) {
        (**self).profile(on);
    }
}

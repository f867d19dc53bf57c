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
pub use trial::Contender;

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
    /// Runs one forward pass over `batch` and samples. A batch [ahead](Batch::ahead) runs already: it was the `next` of the
    /// call before, and is only read.
    fn execute(&mut self, batch: &Batch) -> impl Future<Output = Result<RunnerOutput, RunnerError>>;

    /// Whether a next batch may be handed over together with this one: it can, where the tokens of this one are chosen on
    /// the device.
    fn runs_ahead(&self, _batch: &Batch) -> bool {
        false
    }

    /// The same as [`Self::execute`], and submits `next`, a batch ahead, before it waits. Where the call after this one is
    /// for another batch, what `next` gives is never read. Only called where `batch` [allows](Self::runs_ahead) it.
    fn execute_ahead(
        &mut self,
        batch: &Batch,
        _next: &Batch,
    ) -> impl Future<Output = Result<RunnerOutput, RunnerError>> {
        self.execute(batch)
    }

    /// Asks for [`RunnerOutput::stages`] from the next pass on, which makes passes slower; a runner that cannot tell says
    /// nothing.
    fn profile(&mut self, _on: bool) {}
}

impl<R: ModelRunner + ?Sized> ModelRunner for &mut R {
    fn execute(&mut self, batch: &Batch) -> impl Future<Output = Result<RunnerOutput, RunnerError>> {
        (**self).execute(batch)
    }
    fn runs_ahead(&self, batch: &Batch) -> bool {
        (**self).runs_ahead(batch)
    }
    fn execute_ahead(
        &mut self,
        batch: &Batch,
        next: &Batch,
    ) -> impl Future<Output = Result<RunnerOutput, RunnerError>> {
        (**self).execute_ahead(batch, next)
    }
    fn profile(&mut self, on: bool) {
        (**self).profile(on);
    }
}

//! The device's side of loading.

use firstlight_engine::model::Checkpoint;
use firstlight_engine::runner::{ModelRunner, RunnerError, RunnerOutput};
use firstlight_engine::sched::{Batch, SchedulerConfig};

use crate::cli::EngineArgs;
use crate::failure::Failure;
use crate::source::FileSource;

/// Placeholder until the GPU runner is merged.
pub enum Runner {}

impl ModelRunner for Runner {
    async fn execute(&mut self, _: &Batch) -> Result<RunnerOutput, RunnerError> {
        match *self {}
    }
}

/// A runner that is warm.
pub struct LoadedRunner {
    /// It.
    pub runner: Runner,
    /// Drives its device.
    pub drive: Box<dyn FnMut()>,
    /// Adapter and kernels, in words.
    pub described: String,
}

pub fn load(
    _: &EngineArgs,
    _: &Checkpoint<FileSource>,
    _: &SchedulerConfig,
) -> Result<LoadedRunner, Failure> {
    Err(Failure::failed("the GPU runner is not merged yet"))
}

//! Models: files, hyper-parameters, weights, and the forward pass of the Llama family.

mod checkpoint;
mod config;
mod config_gguf;
mod config_hf;
mod dequantise;
mod gguf;
mod gguf_parser;
mod kv_cache;
pub mod llama;
mod matrix;
mod plan;
mod repository;
mod roles;
mod rope;
mod safetensors;
mod sketch;
mod source;

pub use checkpoint::Checkpoint;
pub use config::{Activation, ModelConfig, RopeLayout, RopeScaling};
pub use dequantise::dequantise;
pub use gguf::{GgufFile, GgufValue};
pub use repository::{INDEX_NAME, NoModel, files_of_model, is_plain_file};
pub use safetensors::{open_safetensors, shard_names};
pub use sketch::{Sketch, Zeros};
pub use source::{MemorySource, TensorInfo, TensorRole, WeightSource};

pub use kv_cache::{KvCache, LayerCache};
pub use llama::{Llama, PassLimits};
pub use matrix::MatrixLoader;
pub use plan::{Planner, RowBuffer};

use firstlight_shaders::ComposeError;

use crate::error::{DeviceError, LoadError, RunnerError};
use crate::gpu::ProbeError;

/// How far loading has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LoadProgress {
    /// Bytes read.
    pub bytes_done: u64,
    /// Bytes to read.
    pub bytes_total: u64,
}

/// Why a model did not get onto the GPU.
#[derive(Debug, thiserror::Error)]
pub enum LoadFailure {
    /// The files.
    #[error(transparent)]
    Load(#[from] LoadError),
    /// Memory or compilation.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// The first dispatches.
    #[error(transparent)]
    Runner(#[from] RunnerError),
    /// Our bug: a kernel's text could not be put together.
    #[error(transparent)]
    Compose(#[from] ComposeError),
}

impl From<ProbeError> for LoadFailure {
    fn from(error: ProbeError) -> Self {
        match error {
            ProbeError::Device(error) => error.into(),
            ProbeError::Runner(error) => error.into(),
            ProbeError::Compose(error) => error.into(),
        }
    }
}

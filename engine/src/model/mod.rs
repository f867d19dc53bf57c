//! Models: files, hyper-parameters, weights, and the forward pass of the Llama family.

mod config;
mod gguf;
mod gguf_parser;
mod source;

pub use config::{Activation, ModelConfig, RopeLayout, RopeScaling};
pub use gguf::{GgufFile, GgufValue};
pub use source::{MemorySource, TensorInfo, TensorRole, TensorType, WeightSource};

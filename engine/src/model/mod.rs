//! Models: files, hyper-parameters, weights, and the forward pass of the Llama family.

mod checkpoint;
mod config;
mod config_gguf;
mod config_hf;
mod dequantise;
mod gguf;
mod gguf_parser;
mod roles;
mod safetensors;
mod source;

pub use checkpoint::Checkpoint;
pub use config::{Activation, ModelConfig, RopeLayout, RopeScaling};
pub use dequantise::dequantise;
pub use gguf::{GgufFile, GgufValue};
pub use safetensors::{open_safetensors, shard_names};
pub use source::{MemorySource, TensorInfo, TensorRole, TensorType, WeightSource};

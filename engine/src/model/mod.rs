//! Models: files, hyper-parameters, weights, and the forward pass of the Llama family.

mod config;
mod source;

pub use config::{Activation, ModelConfig, RopeLayout, RopeScaling};
pub use source::{TensorInfo, TensorRole, TensorType, WeightSource};

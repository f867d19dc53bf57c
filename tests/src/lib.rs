//! Shared fixtures of the test suite.

mod files;
pub mod gguf_writer;
pub mod gpu;
pub mod lint;
pub mod programs;
mod random;
pub mod scripted;
pub mod tiny_model;

pub use files::{FileSource, default_model_path, gguf_tokenizer, golden_path};
pub use random::TestRng;

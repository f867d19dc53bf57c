//! Shared fixtures of the test suite.

pub mod gguf_writer;
pub mod gpu;
pub mod lint;
pub mod programs;
pub mod scripted;
pub mod tiny_model;

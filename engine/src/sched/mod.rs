//! Deciding what runs in a step: sequences, KV blocks, the scheduler, and the batch it hands to a runner.
//!
//! Never names wgpu, is never `async`, never reads a clock: `now` is an argument.

mod batch;

pub use batch::{Batch, BlockId, SampleRow};

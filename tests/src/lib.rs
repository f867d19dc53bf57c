//! Shared fixtures of the test suite.

pub mod gpu;
pub mod lint;
pub mod programs;

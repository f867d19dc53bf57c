//! Shared fixtures of the test suite.

pub mod gpu;

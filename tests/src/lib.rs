//! Shared fixtures of the test suite.

pub mod scripted;

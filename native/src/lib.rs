//! The native host of Firstlight, as a library so that the test suite can call what the command line calls.

pub mod cache;
pub mod cli;
pub mod clock;
pub mod doctor;
pub mod download;
pub mod executor;
pub mod failure;
pub mod hub;
pub mod library;
pub mod models;
pub mod progress;
pub mod source;
pub mod wheel;

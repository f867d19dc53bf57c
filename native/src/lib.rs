//! The native host of Firstlight, as a library so that the test suite can call what the command line calls.

// These macros panic where the reader has gone: `terminal` does not.
#![warn(clippy::print_stdout, clippy::print_stderr)]

pub mod adapters;
pub mod answer;
pub mod ask;
pub mod bench;
pub mod budget;
pub mod built_page;
pub mod cache;
pub mod chat;
pub mod cli;
pub mod clock;
pub mod costs;
pub mod diagnose;
pub mod doctor;
pub mod download;
pub mod driver;
pub mod executor;
pub mod failure;
pub mod guide;
pub mod histogram;
pub mod hub;
pub mod interrupt;
pub mod library;
pub mod load;
pub mod model_text;
pub mod models;
pub mod probe;
pub mod progress;
pub mod quota;
pub mod run;
pub mod scratch;
pub mod serve;
pub mod session;
pub mod sizing;
pub mod source;
pub mod split;
pub mod terminal;
pub mod trace;
pub mod what_if;
pub mod wheel;

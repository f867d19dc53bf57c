//! Firstlight's inference engine: time, bytes and requests are handed in; events and a timeline come out.
//!
//! It never does HTTP, never touches the DOM, threads, sockets, files or the wall clock: those belong to the
//! hosts (`native`, `web`). It is the same code on a laptop and in a browser tab.

pub mod artifact;
pub mod budget;
pub mod clock;
pub mod costs;
pub mod engine;
pub mod error;
pub mod gpu;
pub mod model;
pub mod order;
pub mod policy;
pub mod refusal;
pub mod replay;
pub mod report;
pub mod request;
pub mod runner;
pub mod sampling;
pub mod sched;
pub mod text;
pub mod timeline;

//! What the page shows, computed without a browser: plain data in, plain data out.
//!
//! It never names the DOM. Invariant: everything in here is pure, and is tested natively.

pub mod address;
pub mod answer;
pub mod feed;
pub mod history;
pub mod recording;
pub mod session;
pub mod sse;

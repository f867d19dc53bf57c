//! What the page shows, computed without a browser: plain data in, plain data out.
//!
//! It never names the DOM. Invariant: everything in here is pure, and is tested natively.

pub mod chat;
pub mod format;
pub mod handshake;
pub mod markdown;
pub mod query;
pub mod session;
pub mod settings;
pub mod words;

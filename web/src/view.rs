//! What the page shows, computed without a browser: plain data in, plain data out.
//!
//! It never names the DOM. Invariant: everything in here is pure, and is tested natively.

pub mod address;
pub mod answer;
pub mod axis;
pub mod bars;
pub mod bench;
pub mod budget;
pub mod charts;
pub mod chat;
pub mod cut;
pub mod detail;
pub mod diagnosis;
pub mod duration;
pub mod feed;
pub mod figures;
#[cfg(test)]
mod fixtures;
pub mod format;
pub mod gaps;
pub mod handshake;
pub mod history;
pub mod kept;
pub mod lanes;
pub mod markdown;
pub mod markup;
pub mod meters;
#[cfg(test)]
mod palette;
pub mod part;
pub mod query;
pub mod recording;
pub mod rows;
pub mod session;
pub mod settings;
pub mod sse;
pub mod stages;
pub mod steps;
pub mod words;

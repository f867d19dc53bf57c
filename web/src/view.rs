//! What the page shows, computed without a browser: plain data in, plain data out.
//!
//! It never names the DOM. Invariant: everything in here is pure, and is tested natively.

pub mod axis;
pub mod bars;
pub mod charts;
pub mod cut;
pub mod detail;
pub mod duration;
pub mod figures;
#[cfg(test)]
mod fixtures;
pub mod gaps;
pub mod lanes;
pub mod markup;
pub mod meters;
#[cfg(test)]
mod palette;
pub mod part;
pub mod rows;
pub mod session;
pub mod stages;
pub mod steps;

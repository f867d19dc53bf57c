//! `firstlight trace`: takes one request apart.

mod print;
mod rates;
mod rows;
mod shape;
mod work;

pub use rates::Rates;
pub use rows::{Facts, Place, Row, TextBytes, rows, whole};
pub use shape::ModelShape;

use crate::cli::TraceArgs;
use crate::failure::Failure;

/// Runs the command.
///
/// # Errors
/// Wrong usage, then the model, then the adapter.
pub fn run(_args: &TraceArgs) -> Result<(), Failure> {
    Err(Failure::failed("`firstlight trace` is not there yet"))
}

#[cfg(test)]
mod tests;

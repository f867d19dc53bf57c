//! `firstlight trace`: takes one request apart.

use crate::cli::TraceArgs;
use crate::failure::Failure;

/// Runs the command.
///
/// # Errors
/// Wrong usage, then the model, then the adapter.
pub fn run(_args: &TraceArgs) -> Result<(), Failure> {
    Err(Failure::failed("`firstlight trace` is not there yet"))
}

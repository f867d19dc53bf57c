//! `firstlight bench`: measures under a load.

use crate::cli::BenchArgs;
use crate::failure::Failure;

/// Runs the command.
///
/// # Errors
/// Wrong usage, then the model, then the adapter.
pub fn run(_args: &BenchArgs) -> Result<(), Failure> {
    Err(Failure::failed("`firstlight bench` is not there yet"))
}

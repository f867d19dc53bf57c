//! `firstlight bench`: measures under a load.

use crate::cli::BenchArgs;
use crate::failure::Failure;

pub mod load;
pub mod prompts;
pub mod random;
pub mod trace_csv;

/// Runs the command.
///
/// # Errors
/// Wrong usage, then the model, then the adapter.
pub fn run(args: &BenchArgs) -> Result<(), Failure> {
    let load = load::Load::of(args)?;
    Err(Failure::failed(load.words))
}

//! Writing to standard output and standard error, where a reader that has gone away is an answer and not a panic.
//!
//! Invariant: nothing else in this crate writes to either, but for the progress bar.

use std::io::Write;

use crate::failure::Failure;

/// Writes a line for a person to stderr. One that nobody can read any more is no reason to stop, and no panic either.
pub fn note(text: &str) {
    let _ = writeln!(std::io::stderr().lock(), "{text}");
}

/// Writes `text` and hands it on at once.
///
/// # Errors
/// The reader closed the pipe, or the disk is full.
pub fn write(text: &str) -> Result<(), Failure> {
    let mut stdout = std::io::stdout().lock();
    stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()).map_err(|error| {
        Failure::failed(format!("the result cannot be written: {error}; check where stdout leads"))
    })
}

/// Writes `text` and a line's end.
///
/// # Errors
/// As [`write`].
pub fn write_line(text: &str) -> Result<(), Failure> {
    write(&format!("{text}\n"))
}

/// Writes `value` as one line of JSON.
///
/// # Errors
/// As [`write`].
pub fn write_json(value: &impl serde::Serialize) -> Result<(), Failure> {
    let text = serde_json::to_string(value)
        .map_err(|error| Failure::failed(format!("the result is no JSON: {error}; report this defect")))?;
    write_line(&text)
}

//! Writing to standard output and standard error, where a reader that has gone away is an answer and not a panic.
//!
//! A server logs through [`start_log`]; every other command writes its notes as they are. Invariant: nothing else in this
//! crate writes to either, but for the progress bar.

mod lines;

use std::io::{IsTerminal, Write};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

pub use self::lines::Lines;
use crate::failure::Failure;

/// What the log calls lines that are sentences for a person and carry no fields.
pub const NOTE: &str = "firstlight::note";

/// How long the last lines of a log may take to be written.
const LAST_WORDS: Duration = Duration::from_secs(1);

/// Every line on stderr is for a program.
static FOR_PROGRAMS: AtomicBool = AtomicBool::new(false);

/// Tells a person something on stderr, or in the log where there is one. A line that nobody can read any more is no reason
/// to stop, and no panic either.
pub fn note(text: &str) {
    match lines::log() {
        Some(_) => tracing::info!(target: NOTE, "{text}"),
        None => write_note(text),
    }
}

/// The same of something that is not as it should be.
pub fn warn(text: &str) {
    match lines::log() {
        Some(_) => tracing::warn!(target: NOTE, "{text}"),
        None => write_note(text),
    }
}

/// The same of something that ends a command; no level keeps it out of the log.
pub fn fail(text: &str) {
    match lines::log() {
        Some(_) => tracing::error!(target: NOTE, "{text}"),
        None => write_note(text),
    }
}

fn write_note(text: &str) {
    let _ = writeln!(std::io::stderr().lock(), "{text}");
}

/// From now on stderr is a log: lines go to the returned writer, which never waits. `for_programs` keeps bars off it.
///
/// # Errors
/// The system gives no thread.
pub fn start_log(for_programs: bool) -> Result<&'static Lines, Failure> {
    FOR_PROGRAMS.store(for_programs, Ordering::Relaxed);
    lines::start()
}

/// Lines of the log that found no reader.
pub fn lines_lost() -> u64 {
    lines::log().map_or(0, Lines::num_lost)
}

/// Before the process ends: waits, for a moment, until what was logged is written.
pub fn settle() {
    if let Some(log) = lines::log() {
        log.settle(LAST_WORDS);
    }
}

/// Whether a person sees stderr, so that a bar on it is a help.
pub fn shows_bars() -> bool {
    std::io::stderr().is_terminal() && !FOR_PROGRAMS.load(Ordering::Relaxed)
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

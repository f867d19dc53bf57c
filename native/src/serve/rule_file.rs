//! Files of rules that an operator writes by hand, one a line: read whole, and taken apart with their lines' numbers.
//!
//! It knows no rule. Invariant: no more than the limit is read, and a line keeps its number.

use std::io::Read;
use std::path::Path;

use crate::failure::Failure;

/// The most bytes of such a file.
const MAX_BYTES: u64 = 4 << 20;

/// Reads the file; `what` says what it holds, in the plural.
///
/// # Errors
/// It cannot be read, is no text, or too long.
pub(super) fn read(file: &Path, what: &str) -> Result<String, Failure> {
    let refuse = |error: std::io::Error| {
        let shown = file.display();
        Failure::usage(format!("{what} in {shown} cannot be read: {error}; name a readable file"))
    };
    let mut text = String::new();
    let mut opened = std::fs::File::open(file).map_err(refuse)?.take(MAX_BYTES + 1);
    opened.read_to_string(&mut text).map_err(refuse)?;
    match text.len() as u64 > MAX_BYTES {
        true => {
            let shown = file.display();
            Err(Failure::usage(format!("{what} in {shown} take more than {MAX_BYTES} bytes; write fewer")))
        }
        false => Ok(text),
    }
}

/// The lines that say something, without the white space around them, and their numbers from 1. A line that begins with
/// `#` is a comment.
pub(super) fn lines(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let trimmed = (1..).zip(text.lines().map(str::trim));
    trimmed.filter(|(_, line)| !line.is_empty() && !line.starts_with('#'))
}

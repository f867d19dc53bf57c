//! Running other programs, with failures told in one sentence.
//!
//! Never prints a captured program's output unless it failed; then only its most telling line.

use std::io::Write;
use std::process::{Command, Stdio};

/// What a captured program printed, if it succeeded.
pub type Captured = Result<String, String>;

/// Tells a person what goes on. Somebody who stopped reading is no reason to stop, and no panic either.
pub fn say(line: &str) {
    let _ = writeln!(std::io::stdout().lock(), "{line}");
}

/// The same on stderr, for what went wrong.
pub fn complain(line: &str) {
    let _ = writeln!(std::io::stderr().lock(), "{line}");
}

/// A command as a person would type it.
pub fn line(command: &Command) -> String {
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    words.map(|word| word.to_string_lossy().into_owned()).collect::<Vec<_>>().join(" ")
}

/// Runs `command` with its output captured and nothing on its standard input. The error is its most telling line.
pub fn capture(command: &mut Command) -> Captured {
    let output = command
        .stdin(Stdio::null())
        .output()
        .map_err(|error| format!("`{}` does not start: {error}", line(command)))?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    let text =
        String::from_utf8_lossy(if output.stderr.is_empty() { &output.stdout } else { &output.stderr });
    Err(telling_line(&text).unwrap_or_else(|| format!("`{}` ended with {}", line(command), output.status)))
}

/// Runs `command` with our own output, for programs that people want to watch.
pub fn watch(command: &mut Command) -> Result<(), String> {
    let status = command.status().map_err(|error| format!("`{}` does not start: {error}", line(command)))?;
    match status.success() {
        true => Ok(()),
        false => Err(format!("`{}` ended with {status}", line(command))),
    }
}

/// Whether a program of this name can be started.
pub fn exists(program: &str) -> bool {
    Command::new(program).arg("--version").stdin(Stdio::null()).output().is_ok()
}

/// The line of an error message that says most: the last cause of a chain, else the first line that names an error,
/// else the last one.
fn telling_line(text: &str) -> Option<String> {
    let lines: Vec<&str> = text.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
    let named = |line: &&&str| {
        let lower = line.to_lowercase();
        ["error", "err:", "e:", "could not", "unable"].iter().any(|word| lower.starts_with(word))
            // As compilers write it, behind the place.
            || [": error: ", ": fatal error: "].iter().any(|word| lower.contains(word))
    };
    let chained = lines.contains(&"Caused by:");
    let found = if chained { lines.last() } else { lines.iter().find(named).or(lines.last()) };
    found.map(|line| line.trim_end_matches('.').to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(text: &str, expected: Option<&str>) {
        assert_eq!(telling_line(text).as_deref(), expected, "{text:?}");
    }

    #[test]
    fn the_telling_line_is_the_cause() {
        check("", None);
        check("warning: slow\nE: Unable to locate package x\n", Some("E: Unable to locate package x"));
        check("error: a\n\nCaused by:\n  b\n\nCaused by:\n  no route to host.\n", Some("no route to host"));
        check("one\ntwo\n", Some("two"));
        check(
            "[1/2] x\na.cpp:1:2: error: no such name\nninja: stopped\n",
            Some("a.cpp:1:2: error: no such name"),
        );
    }
}

//! The user's guide, as pages of this documentation (`cargo doc -p firstlight --no-deps --open`) and as text in
//! `native/guide`.
//!
//! It has no code. Invariant: every command in it, and every one in README.md, is one that the program takes.

#[doc = include_str!("../guide/reading-the-page.md")]
pub mod reading_the_page {}

#[doc = include_str!("../guide/from-symptom-to-stage.md")]
pub mod from_symptom_to_stage {}

#[cfg(test)]
mod tests {
    use std::ffi::OsString;

    use crate::cli;

    /// The commands in the fenced blocks of a text, each as the words that the program gets.
    fn commands(text: &str) -> Vec<Vec<String>> {
        let mut in_block = false;
        let mut found = Vec::new();
        for line in text.lines() {
            if line.trim_start().starts_with("```") {
                in_block = !in_block;
            } else if in_block && line.starts_with("firstlight ") {
                let line = line.split("  #").next().unwrap_or(line);
                // Several on a line, and what follows a pipe or goes to a file, is the shell's.
                let several = line.split(';').map(|one| one.split(['|', '>']).next().unwrap_or(one).trim());
                found.extend(several.filter(|one| one.starts_with("firstlight")).map(words));
            }
        }
        found
    }

    /// Words as a shell cuts them: quotes hold them together.
    fn words(command: &str) -> Vec<String> {
        let mut out = vec![String::new()];
        let mut quoted = false;
        for c in command.chars() {
            match c {
                '"' => quoted = !quoted,
                ' ' if !quoted => out.push(String::new()),
                _ => out.last_mut().unwrap().push(c),
            }
        }
        out.retain(|word| !word.is_empty() && word != "&");
        out
    }

    fn check(name: &str, text: &str, at_least: usize) {
        let commands = commands(text);
        assert!(commands.len() >= at_least, "{name} has {} commands", commands.len());
        for command in commands {
            if let Err(failure) = cli::parse(command.iter().map(OsString::from)) {
                panic!("{name} says {command:?}: {failure}");
            }
        }
    }

    #[test]
    fn every_command_of_guide_and_readme_is_one() {
        check("README.md", include_str!("../../README.md"), 8);
        check("from-symptom-to-stage.md", include_str!("../guide/from-symptom-to-stage.md"), 8);
    }

    #[test]
    #[should_panic(expected = "--slotz")]
    fn a_wrong_command_is_found() {
        check("a text", "```\nfirstlight bench --slotz 2   # no such flag\n```\n", 1);
    }
}

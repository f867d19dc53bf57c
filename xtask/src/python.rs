//! Python environments for the tests: other people's programs, unmodified, in the versions that tests/ pins.
//!
//! Never touches the system's Python or its packages. Invariant: an environment with a stamp holds exactly what its
//! requirements file says; the stamp is written last, so one that was interrupted is made anew.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::command::{capture, exists, say};
use crate::packages::{self, Thing};
use crate::workspace::Workspace;

/// Names the environment variable by which the suite knows the Python that has the clients.
pub const CLIENTS_VARIABLE: &str = "FIRSTLIGHT_TEST_PYTHON";
/// The same for the load generator, which only the full suite has.
pub const LOAD_VARIABLE: &str = "FIRSTLIGHT_TEST_LOAD_PYTHON";

/// The file in an environment that holds the requirements it was made from.
const STAMP: &str = "requirements.made";

/// A Python environment: a requirements file in tests/, and a folder of that name beside the builds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Environment {
    /// API clients: small.
    Clients,
    /// The load generator, with everything that it brings: gigabytes.
    Load,
    /// What prepares models for other engines.
    Peers,
    /// What builds llama.cpp, and what its bindings import.
    Llama,
    /// Transformers with torch: gigabytes.
    Transformers,
}

impl Environment {
    #[cfg(test)]
    const ALL: [Self; 5] = [Self::Clients, Self::Load, Self::Peers, Self::Llama, Self::Transformers];

    fn name(self) -> &'static str {
        match self {
            Self::Clients => "clients",
            Self::Load => "load",
            Self::Peers => "peers",
            Self::Llama => "llama",
            Self::Transformers => "transformers",
        }
    }

    /// The requirements file, from the workspace's root.
    fn file(self) -> &'static str {
        match self {
            Self::Clients => "tests/python/clients.txt",
            Self::Load => "tests/python/load.txt",
            Self::Peers => "tests/peers/requirements.txt",
            Self::Llama => "tests/peers/llama.txt",
            Self::Transformers => "tests/peers/transformers.txt",
        }
    }
}

/// The environment's Python, made or made anew where the requirements changed.
///
/// # Errors
/// No Python that makes environments, or no network: one sentence with what to do.
pub fn ensure(workspace: &Workspace, environment: Environment) -> Result<PathBuf, String> {
    let name = environment.name();
    let file = workspace.root.join(environment.file());
    let wanted = std::fs::read_to_string(&file)
        .map_err(|error| format!("{} cannot be read: {error}", file.display()))?;
    let target = workspace.profile_folder.parent().unwrap_or(&workspace.profile_folder);
    let folder = target.join("python").join(name);
    let python = interpreter(&folder);
    let made = std::fs::read_to_string(folder.join(STAMP)).is_ok_and(|made| made == wanted);
    // The Python that it was made from may have gone since.
    if made && capture(Command::new(&python).arg("--version")).is_ok() {
        return Ok(python);
    }
    let system = system()?;
    say(&format!("installing into {}: {}", folder.display(), titles(&wanted).join(", ")));
    make(&system, &folder, &file)?;
    std::fs::write(folder.join(STAMP), wanted)
        .map_err(|error| format!("{} cannot be written: {error}", folder.join(STAMP).display()))?;
    Ok(python)
}

fn make(system: &str, folder: &Path, requirements: &Path) -> Result<(), String> {
    if folder.exists() {
        std::fs::remove_dir_all(folder)
            .map_err(|error| format!("{} cannot be removed: {error}", folder.display()))?;
    }
    capture(Command::new(system).args(["-m", "venv"]).arg(folder))
        .map_err(|reason| format!("`{system} -m venv {}` failed: {reason}", folder.display()))?;
    let mut pip = pip(&interpreter(folder));
    pip.args(["install", "--quiet", "-r"]).arg(requirements);
    capture(&mut pip).map(drop).map_err(|reason| {
        format!(
            "the Python packages of {} could not be installed ({reason}); run `cargo xtask setup` where the network can be reached",
            requirements.display()
        )
    })
}

/// pip of an environment's Python, without the settings that name folders: they would lead it out of the environment.
pub fn pip(python: &Path) -> Command {
    let mut pip = Command::new(python);
    pip.args(["-m", "pip", "--disable-pip-version-check", "--no-input", "--retries", "2"]);
    pip.env_remove("PIP_TARGET").env_remove("PIP_USER").env_remove("PIP_PREFIX");
    pip
}

/// The Python inside an environment.
fn interpreter(folder: &Path) -> PathBuf {
    match cfg!(windows) {
        true => folder.join("Scripts").join("python.exe"),
        false => folder.join("bin").join("python"),
    }
}

/// curl, which is a client too.
///
/// # Errors
/// It is missing and cannot be installed.
pub fn ensure_curl() -> Result<(), String> {
    match exists("curl") {
        true => Ok(()),
        false => packages::install(Thing::Clients),
    }
}

/// A Python that makes environments; on Debian that is a package of its own.
///
/// # Errors
/// There is none, and none can be installed.
pub fn system() -> Result<String, String> {
    if let Some(python) = able_python() {
        return Ok(python);
    }
    packages::install(Thing::Clients)?;
    able_python().ok_or_else(|| {
        "no Python on this machine has the modules venv and ensurepip; install a Python 3.10 or newer that has them and run the same command again".to_owned()
    })
}

fn able_python() -> Option<String> {
    // The system's own comes last: it is there when another Python before it in the path was built without the modules.
    let able = |python: &&str| capture(Command::new(python).args(["-c", "import venv, ensurepip"])).is_ok();
    ["python3", "python", "/usr/bin/python3"].into_iter().find(able).map(str::to_owned)
}

/// The packages that were asked for by name, with their versions: those above the first comment that follows one.
fn titles(requirements: &str) -> Vec<&str> {
    let lines =
        requirements.lines().map(str::trim).skip_while(|line| line.is_empty() || line.starts_with('#'));
    lines.take_while(|line| !line.starts_with('#')).filter(|line| !line.is_empty()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_asked_for_is_named_and_what_it_brings_is_not() {
        let check = |text: &str, expected: &[&str]| assert_eq!(titles(text), expected, "{text:?}");
        check("", &[]);
        check("# clients\nopenai==1\n\nx==2\n# brought\nh11==3\n", &["openai==1", "x==2"]);
        check("a==1\n", &["a==1"]);
    }

    #[test]
    fn every_environment_has_a_requirements_file_that_pins_every_version() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        for environment in Environment::ALL {
            let file = root.join(environment.file());
            let text = std::fs::read_to_string(&file).unwrap();
            let loose: Vec<&str> = text
                .lines()
                .filter(|line| !line.is_empty() && !line.starts_with('#') && !line.contains("=="))
                .collect();
            assert!(loose.is_empty() && !titles(&text).is_empty(), "{}: {loose:?}", file.display());
        }
    }
}

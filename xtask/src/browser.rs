//! What the tests of the page need: a browser with WebGPU, Node, and two packages that drive and judge it.
//!
//! A browser and a Node that are there are used as they are. Invariant: a folder of packages with a stamp holds exactly what
//! its package-lock.json in tests/ says; the stamp is written last.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::command::{capture, exists, say};
use crate::packages::{self, Thing};
use crate::workspace::Workspace;

/// Names a browser to be used instead of the first one found, for people and for the suite.
const NAMED: &str = "FIRSTLIGHT_BROWSER";
/// By which the suite knows the browser, Node, its packages and the page.
pub const BROWSER_VARIABLE: &str = "FIRSTLIGHT_TEST_BROWSER";
/// See [`BROWSER_VARIABLE`].
pub const NODE_VARIABLE: &str = "FIRSTLIGHT_TEST_NODE";
/// See [`BROWSER_VARIABLE`].
pub const MODULES_VARIABLE: &str = "FIRSTLIGHT_TEST_NODE_MODULES";
/// See [`BROWSER_VARIABLE`].
pub const PAGE_VARIABLE: &str = "FIRSTLIGHT_TEST_PAGE";

/// A script of another name on Windows.
const NPM: &str = if cfg!(windows) { "npm.cmd" } else { "npm" };
/// The oldest Node that drives the browser.
const NODE_MAJOR: u32 = 20;
/// The programs' names on a path, best first.
const ON_PATH: [&str; 6] = [
    "chromium",
    "chromium-browser",
    "google-chrome-stable",
    "google-chrome",
    "microsoft-edge-stable",
    "brave-browser",
];
/// Where they lie on systems that put programs on no path.
const ELSEWHERE: [&str; 6] = [
    "/Applications/Google Chrome.app/Contents/MacOS/Google Chrome",
    "/Applications/Chromium.app/Contents/MacOS/Chromium",
    "/Applications/Microsoft Edge.app/Contents/MacOS/Microsoft Edge",
    "C:\\Program Files\\Google\\Chrome\\Application\\chrome.exe",
    "C:\\Program Files (x86)\\Microsoft\\Edge\\Application\\msedge.exe",
    "C:\\Program Files\\Microsoft\\Edge\\Application\\msedge.exe",
];

/// What the suite gets.
pub struct Tools {
    browser: PathBuf,
    node: PathBuf,
    modules: PathBuf,
}

impl Tools {
    /// The Node that drives the browser.
    pub fn node(&self) -> &Path {
        &self.node
    }

    /// As variables for the suite.
    pub fn settings(&self, workspace: &Workspace) -> Vec<(&'static str, PathBuf)> {
        vec![
            (BROWSER_VARIABLE, self.browser.clone()),
            (NODE_VARIABLE, self.node.clone()),
            (MODULES_VARIABLE, self.modules.clone()),
            (PAGE_VARIABLE, crate::page::folder(workspace)),
        ]
    }
}

/// Brings what is missing.
///
/// # Errors
/// No browser or no Node, and none can be installed; or no network for the packages.
pub fn ensure(workspace: &Workspace) -> Result<Tools, String> {
    Ok(Tools { browser: browser()?, node: node()?, modules: modules(workspace, Packages::Tests)? })
}

/// Packages of Node: a package-lock.json in a folder of tests/, and a folder of that name beside the builds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Packages {
    /// What drives a browser and judges a page: small.
    Tests,
    /// Other engines that run in a browser: half a gigabyte.
    Peers,
}

impl Packages {
    fn name(self) -> &'static str {
        match self {
            Self::Tests => "browser",
            Self::Peers => "peers",
        }
    }

    /// Those that were asked for.
    fn titles(self) -> &'static str {
        match self {
            Self::Tests => "playwright-core, axe-core",
            Self::Peers => "@huggingface/transformers, @wllama/wllama",
        }
    }
}

fn browser() -> Result<PathBuf, String> {
    if let Some(named) = std::env::var_os(NAMED).filter(|path| !path.is_empty()).map(PathBuf::from) {
        return match named.is_file() {
            true => Ok(named),
            false => {
                Err(format!("{NAMED} is {}, which is no file; name a Chrome or Chromium", named.display()))
            }
        };
    }
    if let Some(found) = find_browser() {
        return Ok(found);
    }
    packages::install(Thing::Browser)?;
    find_browser().ok_or_else(|| format!("no Chromium was found after its installation; name one in {NAMED}"))
}

fn find_browser() -> Option<PathBuf> {
    ON_PATH
        .iter()
        .find_map(|name| on_path(name))
        .or_else(|| ELSEWHERE.iter().map(PathBuf::from).find(|path| path.is_file()))
}

/// Where a program of this name lies; a browser is not started to find out.
fn on_path(name: &str) -> Option<PathBuf> {
    let folders = std::env::var_os("PATH")?;
    let name = format!("{name}{}", std::env::consts::EXE_SUFFIX);
    std::env::split_paths(&folders).map(|folder| folder.join(&name)).find(|path| path.is_file())
}

/// Node from the path, or from the package manager.
fn node() -> Result<PathBuf, String> {
    let able = |path: &PathBuf| {
        let version = capture(Command::new(path).arg("--version")).unwrap_or_default();
        major(&version).is_some_and(|major| major >= NODE_MAJOR)
    };
    if let Some(found) = on_path("node").filter(able).filter(|_| exists(NPM)) {
        return Ok(found);
    }
    if !(exists("node") && exists(NPM)) {
        packages::install(Thing::Node)?;
    }
    if let Some(found) = on_path("node").filter(able) {
        return Ok(found);
    }
    Err(format!(
        "the tests of the page need Node {NODE_MAJOR} or newer and none was found; install one and run the same command again"
    ))
}

fn major(version: &str) -> Option<u32> {
    version.trim().strip_prefix('v')?.split('.').next()?.parse().ok()
}

/// The packages, in a folder beside the builds: their `node_modules`.
///
/// # Errors
/// No network, or what came is not what the lock says.
pub fn modules(workspace: &Workspace, packages: Packages) -> Result<PathBuf, String> {
    let source = workspace.root.join("tests").join(packages.name());
    let folder = workspace.target_folder().join(packages.name());
    let stamp = folder.join("package-lock.made");
    let lock = source.join("package-lock.json");
    let wanted = std::fs::read_to_string(&lock)
        .map_err(|error| format!("{} cannot be read: {error}", lock.display()))?;
    let made = folder.join("node_modules");
    if made.is_dir() && std::fs::read_to_string(&stamp).is_ok_and(|found| found == wanted) {
        return Ok(made);
    }
    let failed =
        |path: &Path, error: std::io::Error| format!("{} cannot be written: {error}", path.display());
    std::fs::create_dir_all(&folder).map_err(|error| failed(&folder, error))?;
    for name in ["package.json", "package-lock.json"] {
        std::fs::copy(source.join(name), folder.join(name))
            .map_err(|error| failed(&folder.join(name), error))?;
    }
    say(&format!("installing into {}: {}", folder.display(), packages.titles()));
    let mut npm = Command::new(NPM);
    npm.args(["ci", "--no-audit", "--no-fund", "--ignore-scripts"]).current_dir(&folder);
    capture(&mut npm).map_err(|reason| {
        format!("the Node packages of {} could not be installed ({reason}); run the same command where the network can be reached", lock.display())
    })?;
    std::fs::write(&stamp, wanted).map_err(|error| failed(&stamp, error))?;
    Ok(made)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_version_of_node_is_read_by_its_first_number() {
        let check = |text: &str, expected: Option<u32>| assert_eq!(major(text), expected, "{text:?}");
        check("v20.20.2\n", Some(20));
        check("v18.0.0", Some(18));
        check("20.1", None);
        check("", None);
    }

    #[test]
    fn the_lock_names_no_registry() {
        for packages in [Packages::Tests, Packages::Peers] {
            let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests").join(packages.name());
            let text = std::fs::read_to_string(folder.join("package-lock.json")).unwrap();
            assert!(text.contains("\"integrity\"") && !text.contains("://"), "{packages:?}: {text}");
        }
    }
}

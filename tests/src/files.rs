//! Files that tests read: the default model, the golden references, other people's clients.

use std::path::{Path, PathBuf};

use firstlight::cache::{Cache, process_environment};
use firstlight::models;

/// The default model's file: `FIRSTLIGHT_MODEL_FILE`, else where `firstlight pull` keeps it. Panics where there is none: a
/// test that needs the model never passes without it.
pub fn default_model_path() -> PathBuf {
    let cache = Cache::locate(&process_environment).unwrap_or_else(|failure| panic!("{failure:?}"));
    let file =
        models::default_file(&cache, &process_environment).unwrap_or_else(|failure| panic!("{failure:?}"));
    file.expect("the default model is not on this machine: run `cargo xtask test`, which fetches it")
}

/// A file under `tests/golden`.
pub fn golden_path(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("golden").join(name)
}

/// The Python that has the API clients of `tests/python/clients.txt`: `FIRSTLIGHT_TEST_PYTHON`, else where `cargo xtask
/// setup` makes it. Panics where there is none: a test of a client never passes without it.
pub fn clients_python() -> PathBuf {
    python("FIRSTLIGHT_TEST_PYTHON", "clients", "cargo xtask test")
}

/// The same for the load generator of `tests/python/load.txt`.
pub fn load_python() -> PathBuf {
    python("FIRSTLIGHT_TEST_LOAD_PYTHON", "load", "cargo xtask test --full")
}

fn python(variable: &str, environment: &str, command: &str) -> PathBuf {
    let named = std::env::var_os(variable).filter(|path| !path.is_empty()).map(PathBuf::from);
    let test = std::env::current_exe().expect("a running test has a path");
    let inside = if cfg!(windows) { "Scripts/python.exe" } else { "bin/python" };
    // A test lies in <target>/<profile>/deps.
    let target = test.ancestors().nth(3).expect("a test lies in the target folder");
    let path = named.unwrap_or_else(|| target.join("python").join(environment).join(inside));
    assert!(path.is_file(), "{} is missing: run `{command}`, which makes it", path.display());
    path
}

/// What the tests of the page are run with: Node, and the variables that it is given. Each is named by a variable of `cargo xtask
/// test`, else it lies where `cargo xtask setup` puts it. Panics where one is missing.
pub fn browser_tools() -> (PathBuf, Vec<(&'static str, PathBuf)>) {
    let test = std::env::current_exe().expect("a running test has a path");
    let target = test.ancestors().nth(3).expect("a test lies in the target folder");
    let find = |variable: &str, usual: PathBuf| {
        let named = std::env::var_os(variable).filter(|path| !path.is_empty()).map(PathBuf::from);
        named.unwrap_or(usual)
    };
    let needed = |variable: &'static str, usual: PathBuf| {
        let path = find(variable, usual);
        assert!(path.exists(), "{} is missing: run `cargo xtask test`, which brings it", path.display());
        (variable, path)
    };
    let dist = Path::new(env!("CARGO_MANIFEST_DIR")).join("../web/dist");
    let page = needed("FIRSTLIGHT_TEST_PAGE", dist);
    assert!(page.1.join("index.html").is_file(), "there is no page: run `cargo xtask page`, which makes it");
    let settings = vec![
        page,
        needed("FIRSTLIGHT_TEST_BROWSER", find("FIRSTLIGHT_BROWSER", "/usr/bin/chromium".into())),
        needed("FIRSTLIGHT_TEST_NODE_MODULES", target.join("browser/node_modules")),
        ("FIRSTLIGHT_TEST_ARTEFACTS", find("FIRSTLIGHT_TEST_ARTEFACTS", target.join("browser/artefacts"))),
        ("FIRSTLIGHT_MODEL_FILE", default_model_path()),
    ];
    (find("FIRSTLIGHT_TEST_NODE", "node".into()), settings)
}

/// A script under `tests/browser`.
pub fn browser_script(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("browser").join(name)
}

/// A script under `tests/python`.
pub fn script_path(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("python").join(name)
}

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

/// A script under `tests/python`.
pub fn script_path(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("python").join(name)
}

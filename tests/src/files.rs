//! Files that tests read: the default model and the golden references.

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

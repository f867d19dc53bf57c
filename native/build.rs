//! Puts the built page into the program: a table of the files that `cargo xtask page` left in `web/dist`.
//!
//! Without them the table is empty and the program is built all the same. Invariant: models never get in.

use std::fmt::Write;
use std::path::{Path, PathBuf};

/// The document and the folder of all that it names.
const INDEX: &str = "index.html";
const FOLDER: &str = "page";

fn main() {
    let manifest = PathBuf::from(std::env::var_os("CARGO_MANIFEST_DIR").unwrap_or_default());
    let dist = manifest.join("../web/dist");
    // The folder is in the checkout, so that cargo has something to watch before there is a page. An archive of the sources
    // may lack it, and then there is nothing to watch.
    let watched = if dist.is_dir() { &dist } else { &manifest.join("build.rs") };
    println!("cargo::rerun-if-changed={}", watched.display());
    let out = PathBuf::from(std::env::var_os("OUT_DIR").unwrap_or_default()).join("page_files.rs");
    if let Err(error) = std::fs::write(&out, table(&dist)) {
        println!("cargo::error={} cannot be written: {error}", out.display());
    }
}

/// The table as Rust: a slice of `PageFile`.
fn table(dist: &Path) -> String {
    let mut names: Vec<String> = vec![INDEX.to_owned()];
    let entries = std::fs::read_dir(dist.join(FOLDER)).into_iter().flatten().flatten();
    names.extend(entries.map(|entry| format!("{FOLDER}/{}", entry.file_name().to_string_lossy())));
    names.sort();
    let whole = dist.join(INDEX).is_file();
    let mut rust = String::from("&[\n");
    for name in names.iter().filter(|name| whole && !name.ends_with(".gz")) {
        let include = |name: &str| format!("include_bytes!({:?})", dist.join(name).display().to_string());
        let gzipped = format!("{name}.gz");
        let gzipped = match names.contains(&gzipped) {
            true => format!("Some({})", include(&gzipped)),
            false => "None".to_owned(),
        };
        // Writing into a string never fails.
        let _ =
            writeln!(rust, "PageFile {{ path: {name:?}, bytes: {}, gzipped: {gzipped} }},", include(name));
    }
    rust + "]\n"
}

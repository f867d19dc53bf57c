//! `firstlight-glue WASM WEB DIST [--model NAME FILE]`: makes the page's folder DIST from the compiled module and the files
//! in WEB. `firstlight-glue --module WASM DIR`: makes of another compiled module what a browser loads, and nothing around it.
//!
//! A program of its own, because it brings wasm-bindgen's crates, which the tasks that need no page do without. Invariant:
//! DIST is whole or as it was before: it is put together beside its place, and stays as it is where nothing has changed.

mod dist;
mod pack;
mod page;

use std::ffi::OsString;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use dist::Model;

const USAGE: &str = "firstlight-glue WASM WEB DIST [--model NAME FILE], or --module WASM DIR";

/// What is to be made.
#[derive(Debug, PartialEq)]
enum Work {
    Page(Task),
    /// Of a compiled module, in a folder.
    Module(PathBuf, PathBuf),
}

/// The page: what is to be made of what.
#[derive(Debug, PartialEq)]
struct Task {
    wasm: PathBuf,
    web: PathBuf,
    dist: PathBuf,
    model: Option<Model>,
}

fn parse(words: &[OsString]) -> Option<Work> {
    if let [flag, wasm, folder] = words
        && flag == "--module"
    {
        return Some(Work::Module(wasm.into(), folder.into()));
    }
    let (files, model) = match words {
        [files @ .., flag, name, file] if flag == "--model" => {
            (files, Some(Model { name: name.to_string_lossy().into_owned(), file: file.into() }))
        }
        files => (files, None),
    };
    let [wasm, web, dist] = files else { return None };
    Some(Work::Page(Task { wasm: wasm.into(), web: web.into(), dist: dist.into(), model }))
}

fn run(task: &Task) -> Result<String, String> {
    let mut module = page::bind(&task.wasm)?;
    module.wasm = pack::pack(&module.wasm)?;
    let page = page::assemble(module, &Sources::read(&task.web)?)?;
    let sizes = page.sizes;
    let changed = dist::put(&task.dist, &page.files, task.model.as_ref())?;
    let place = task.dist.display();
    Ok(format!("{place}: {sizes}{}", if changed { "" } else { "; nothing has changed" }))
}

fn put_module(wasm: &Path, folder: &Path) -> Result<String, String> {
    let module = page::bind(wasm)?;
    let mb = module.wasm.len() as f64 / 1e6;
    let put = |name: &str, bytes: &[u8]| {
        let file = folder.join(name);
        std::fs::write(&file, bytes).map_err(|error| format!("{} cannot be written: {error}", file.display()))
    };
    std::fs::create_dir_all(folder)
        .map_err(|error| format!("{} cannot be made: {error}", folder.display()))?;
    put("firstlight.js", module.script.as_bytes())?;
    put("firstlight.wasm", &module.wasm)?;
    Ok(format!("{}: wasm {mb:.2} MB", folder.display()))
}

/// The page's files as they stand in the checkout.
struct Sources {
    /// With the names of the others in it as they stand beside it.
    index: String,
    /// Starts either thread.
    boot: String,
    /// Name and text, in the order in which they are to apply.
    styles: Vec<(String, String)>,
    icon: String,
    /// The page in one document, with places for what is in the others.
    report: String,
    /// Comes before `boot` in it.
    unpack: String,
}

impl Sources {
    fn read(web: &Path) -> Result<Self, String> {
        let text = |name: &str| {
            let file = web.join(name);
            std::fs::read_to_string(&file)
                .map_err(|error| format!("{} cannot be read: {error}", file.display()))
        };
        let entries =
            std::fs::read_dir(web).map_err(|error| format!("{} cannot be read: {error}", web.display()))?;
        let names = entries.flatten().map(|entry| entry.file_name().to_string_lossy().into_owned());
        let mut names: Vec<String> = names.filter(|name| name.ends_with(".css")).collect();
        names.sort();
        let styles = names.into_iter().map(|name| text(&name).map(|text| (name, text)));
        Ok(Self {
            styles: styles.collect::<Result<_, _>>()?,
            index: text("index.html")?,
            boot: text("boot.js")?,
            icon: text("icon.svg")?,
            report: text("report.html")?,
            unpack: text("report.js")?,
        })
    }
}

fn main() -> ExitCode {
    let words: Vec<OsString> = std::env::args_os().skip(1).collect();
    let outcome = match parse(&words) {
        Some(Work::Page(task)) => run(&task),
        Some(Work::Module(wasm, folder)) => put_module(&wasm, &folder),
        None => Err(format!("the arguments are {USAGE}; `cargo xtask page` gives them")),
    };
    match outcome {
        Ok(sentence) => {
            let _ = writeln!(std::io::stdout().lock(), "{sentence}");
            ExitCode::SUCCESS
        }
        Err(sentence) => {
            let _ = writeln!(std::io::stderr().lock(), "{sentence}");
            ExitCode::FAILURE
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn three_places_are_named_and_a_model_where_there_is_one() {
        let parsed = |line: &str| parse(&line.split(' ').map(OsString::from).collect::<Vec<_>>());
        let task = |model| Work::Page(Task { wasm: "a".into(), web: "b".into(), dist: "c".into(), model });
        assert_eq!(parsed("a b c"), Some(task(None)));
        let model = Model { name: "n".into(), file: "f".into() };
        assert_eq!(parsed("a b c --model n f"), Some(task(Some(model))));
        assert_eq!(parsed("--module a b"), Some(Work::Module("a".into(), "b".into())));
        assert_eq!(parsed("a b"), None);
        assert_eq!(parsed("a b c --model n"), None);
    }
}

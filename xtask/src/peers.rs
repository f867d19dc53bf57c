//! Measures the page beside other engines that run the same model in a browser, on the same machine and the same prompt.
//!
//! Never part of the tests: it takes long, and other people's engines are none of our claims. Each measurement is a browser of
//! its own, driven by tests/peers/browser.mjs; rounds go through all engines in turn, so that what else the machine does
//! falls upon all of them. Invariant: every engine that was asked for has a row, with figures or with the reason why not.

mod table;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use crate::browser::{self, Packages, Tools};
use crate::command::{capture, say};
use crate::python::{self, Environment};
use crate::workspace::Workspace;
use crate::{model, page, wasm};

use table::{Row, Run};

/// What else an engine needs than the browser.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Need {
    /// It is ours.
    Nothing,
    /// Its package.
    Package,
    /// That, and the model as ONNX.
    Onnx,
}

/// One way to run the model.
#[derive(Debug)]
pub struct Peer {
    /// As `--only` and tests/peers/browser.mjs call it.
    name: &'static str,
    engine: &'static str,
    backend: &'static str,
    weights: &'static str,
    need: Need,
    /// Tokens of the answer at most, where it is too slow for more.
    most_tokens: usize,
    /// Whether it is measured without being named.
    usual: bool,
    /// What to know about the figures.
    remark: &'static str,
}

const Q4: &str = "4-bit ONNX";
const F32: &str = "f32 ONNX";
const GGUF: &str = "Q4_1 GGUF";
/// Of an engine that is fast enough.
const MANY: usize = usize::MAX;
const WORSE: &str = "of the two formats the slower one on this backend";

/// Ours is the first: the ratios are to it.
const PEERS: &[Peer] = &[
    peer("firstlight", "Firstlight", "WebGPU", GGUF, Need::Nothing),
    Peer { most_tokens: 4, ..peer("transformers.js-webgpu-q4", "transformers.js", "WebGPU", Q4, Need::Onnx) },
    Peer {
        most_tokens: 4,
        usual: false,
        remark: WORSE,
        ..peer("transformers.js-webgpu-f32", "transformers.js", "WebGPU", F32, Need::Onnx)
    },
    peer("transformers.js-wasm-f32", "transformers.js", "wasm, 2 threads", F32, Need::Onnx),
    Peer {
        usual: false,
        remark: WORSE,
        ..peer("transformers.js-wasm-q4", "transformers.js", "wasm, 2 threads", Q4, Need::Onnx)
    },
    peer("wllama-webgpu", "wllama", "WebGPU", GGUF, Need::Package),
    peer("wllama-wasm-1", "wllama", "wasm, 1 thread", GGUF, Need::Package),
    peer("wllama-wasm-2", "wllama", "wasm, 2 threads", GGUF, Need::Package),
];

const fn peer(
    name: &'static str,
    engine: &'static str,
    backend: &'static str,
    weights: &'static str,
    need: Need,
) -> Peer {
    Peer { name, engine, backend, weights, need, most_tokens: MANY, usual: true, remark: "" }
}

/// What was asked for.
#[derive(Debug, PartialEq, Eq)]
pub struct Options {
    rounds: usize,
    tokens: usize,
    /// Part of the names of those to be measured beside ours.
    only: Option<String>,
    json: Option<PathBuf>,
}

impl Default for Options {
    fn default() -> Self {
        Self { rounds: 3, tokens: 16, only: None, json: None }
    }
}

impl Options {
    /// Reads the words after `peers`.
    ///
    /// # Errors
    /// An unknown flag, or one with a value that it cannot have.
    pub fn read(words: &[&str]) -> Result<Self, String> {
        let mut options = Self::default();
        let mut words = words.iter();
        while let Some(flag) = words.next() {
            let value =
                words.next().ok_or_else(|| format!("{flag} is unknown, or lacks its value\n{}", usage()))?;
            let number = |least: usize, most: usize| {
                let read = value.parse().ok().filter(|number| (least..=most).contains(number));
                read.ok_or_else(|| format!("{flag} {value}: it must be a number from {least} to {most}"))
            };
            match *flag {
                "--rounds" => options.rounds = number(1, 100)?,
                "--tokens" => options.tokens = number(2, 256)?,
                "--only" if PEERS.iter().any(|peer| peer.name.contains(value)) => {
                    options.only = Some((*value).to_owned());
                }
                "--only" => return Err(format!("no engine's name has {value} in it\n{}", usage())),
                "--json" => options.json = Some(PathBuf::from(value)),
                _ => return Err(format!("{flag} is unknown\n{}", usage())),
            }
        }
        Ok(options)
    }

    /// Those to be measured: ours always.
    fn chosen(&self) -> impl Iterator<Item = &'static Peer> {
        PEERS.iter().filter(|peer| {
            let named = self.only.as_ref().map(|only| peer.name.contains(only.as_str()));
            peer.need == Need::Nothing || named.unwrap_or(peer.usual)
        })
    }
}

/// For people.
pub fn usage() -> String {
    let names: Vec<&str> = PEERS.iter().map(|peer| peer.name).collect();
    format!(
        "\
cargo xtask peers [--rounds N] [--tokens N] [--only NAME] [--json FILE]

Measures Firstlight's page and other engines that run a model in a browser tab: the same model, the same Chromium, the same
prompt of some 50 tokens, the same greedy answer of --tokens tokens (16; 4 where an engine takes seconds for each). Every
measurement has a browser with an empty profile, and a short other answer first. --rounds (3) times each engine in turn; the
table has medians with the least and the most. Use a machine that does nothing else.

  load     from the visit of the page until a prompt can be sent, the model coming from a host on this machine
  first    from the prompt's sending to its first token in the page
  prefill  the prompt's tokens by that time
  decode   the tokens after the first by the time from it to the last
  ours     Firstlight's prefill and decode divided by this engine's: above 1 Firstlight is faster

  --only   measures those with NAME in their name, beside Firstlight, of: {}
  --json   writes every figure of every round into FILE

FIRSTLIGHT_TEST_PAGE names a page that was made already, FIRSTLIGHT_MODEL_FILE the model that lies beside it.",
        names.join(", ")
    )
}

/// The task.
///
/// # Errors
/// Ours cannot be built, or there is no browser or Node. What fails of others is in their rows.
pub fn run(options: &Options) -> Result<(), String> {
    let workspace = Workspace::find()?;
    let bench = Bench::prepare(&workspace, options)?;
    let mut rows: Vec<Row> = options.chosen().map(Row::new).collect();
    for round in 1..=options.rounds {
        for row in &mut rows {
            // What failed once fails again, and takes as long to do so.
            if row.failed.is_some() {
                continue;
            }
            let start = Instant::now();
            match bench.measure(row.peer, options.tokens) {
                Ok(run) => row.runs.push(run),
                Err(reason) => row.failed = Some(reason),
            }
            let end = row.failed.as_deref().unwrap_or("measured");
            let took = start.elapsed().as_secs_f64();
            say(&format!("round {round} of {}: {}: {end} ({took:.0} s)", options.rounds, row.peer.name));
        }
    }
    say("");
    for line in table::lines(&rows) {
        say(&line);
    }
    if let Some(file) = &options.json {
        std::fs::write(file, table::json(&rows))
            .map_err(|error| format!("{} cannot be written: {error}", file.display()))?;
    }
    Ok(())
}

/// What all measurements use.
struct Bench<'a> {
    workspace: &'a Workspace,
    tools: Tools,
    page: PathBuf,
    model: PathBuf,
    /// Of the engines' packages and model.
    folder: PathBuf,
    packages: Result<(), String>,
    onnx: Result<(), String>,
}

impl<'a> Bench<'a> {
    fn prepare(workspace: &'a Workspace, options: &Options) -> Result<Self, String> {
        let (page, model) = timed("the page", || ours(workspace))?;
        let tools = timed("the browser", || browser::ensure(workspace))?;
        let folder = workspace.target_folder().join("peers");
        let needs: Vec<Need> = options.chosen().map(|peer| peer.need).collect();
        let packages = match needs.iter().any(|need| *need != Need::Nothing) {
            true => timed("the engines", || browser::modules(workspace, Packages::Peers).map(drop)),
            false => Ok(()),
        };
        let onnx = match needs.contains(&Need::Onnx) {
            true => timed("the model as ONNX", || onnx(workspace, &model, &folder.join("model"))),
            false => Ok(()),
        };
        Ok(Self { workspace, tools, page, model, folder, packages, onnx })
    }

    fn measure(&self, peer: &Peer, tokens: usize) -> Result<Run, String> {
        if peer.need != Need::Nothing {
            self.packages.clone()?;
        }
        if peer.need == Need::Onnx {
            self.onnx.clone()?;
        }
        let mut node = Command::new(self.tools.node());
        node.arg(self.workspace.root.join("tests/peers/browser.mjs"));
        node.arg(peer.name).arg(tokens.min(peer.most_tokens).to_string());
        node.envs(self.tools.settings(self.workspace)).env(browser::PAGE_VARIABLE, &self.page);
        node.env("FIRSTLIGHT_MODEL_FILE", &self.model).env("FIRSTLIGHT_PEERS_FOLDER", &self.folder);
        Run::read(&capture(&mut node)?)
    }
}

/// The page with the model beside it, and the model: those that are named, or made now.
fn ours(workspace: &Workspace) -> Result<(PathBuf, PathBuf), String> {
    let named =
        |variable: &str| std::env::var_os(variable).filter(|path| !path.is_empty()).map(PathBuf::from);
    if let (Some(page), Some(model)) = (named(browser::PAGE_VARIABLE), named("FIRSTLIGHT_MODEL_FILE")) {
        return Ok((page, model));
    }
    wasm::ensure()?;
    workspace.fetch_crates()?;
    page::build(workspace, None)?;
    workspace.build_binary()?;
    Ok((page::folder(workspace), model::ensure(workspace)?))
}

/// Writes the model as ONNX, unless that was done by the same script from the same file.
fn onnx(workspace: &Workspace, model: &Path, folder: &Path) -> Result<(), String> {
    let script = workspace.root.join("tests/peers/onnx_model.py");
    let failed = |path: &Path, error| format!("{} cannot be used: {error}", path.display());
    let text = std::fs::read_to_string(&script).map_err(|error| failed(&script, error))?;
    let bytes = std::fs::metadata(model).map_err(|error| failed(model, error))?.len();
    let wanted = format!("{}, {bytes} bytes\n{text}", model.display());
    let stamp = folder.join("made");
    if std::fs::read_to_string(&stamp).is_ok_and(|made| made == wanted) {
        return Ok(());
    }
    let python = python::ensure(workspace, Environment::Peers)?;
    capture(Command::new(python).arg(&script).arg(model).arg(folder))
        .map_err(|reason| format!("the model could not be written as ONNX: {reason}"))?;
    std::fs::write(&stamp, wanted).map_err(|error| failed(&stamp, error))
}

fn timed<T>(name: &str, step: impl FnOnce() -> Result<T, String>) -> Result<T, String> {
    let start = Instant::now();
    let outcome = step();
    say(&format!("{name}: {:.1} s", start.elapsed().as_secs_f64()));
    outcome
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_are_read_and_wrong_ones_refused() {
        let check = |line: &str, expected: Option<Options>| {
            let words: Vec<&str> = line.split_whitespace().collect();
            assert_eq!(Options::read(&words).ok(), expected, "peers {line}");
        };
        let usual = Options::default;
        check("", Some(usual()));
        check("--rounds 5 --tokens 8", Some(Options { rounds: 5, tokens: 8, ..usual() }));
        check("--only wllama", Some(Options { only: Some("wllama".to_owned()), ..usual() }));
        check("--json x.json", Some(Options { json: Some(PathBuf::from("x.json")), ..usual() }));
        check("--only nobody", None);
        check("--rounds 0", None);
        check("--tokens 1", None);
        check("--tokens", None);
        check("--fast 1", None);
    }

    #[test]
    fn ours_is_measured_beside_whatever_is_named() {
        let check = |only: Option<&str>, expected: &[&str]| {
            let options = Options { only: only.map(str::to_owned), ..Options::default() };
            let names: Vec<&str> = options.chosen().map(|peer| peer.name).collect();
            assert_eq!(names, expected, "{only:?}");
        };
        check(Some("wllama-wasm"), &["firstlight", "wllama-wasm-1", "wllama-wasm-2"]);
        check(Some("wasm-q4"), &["firstlight", "transformers.js-wasm-q4"]);
        check(Some("firstlight"), &["firstlight"]);
        let usual = [
            "firstlight",
            "transformers.js-webgpu-q4",
            "transformers.js-wasm-f32",
            "wllama-webgpu",
            "wllama-wasm-1",
            "wllama-wasm-2",
        ];
        check(None, &usual);
    }
}

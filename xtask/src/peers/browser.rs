//! Engines that run the model in a browser tab, each measurement in a browser of its own by tests/peers/browser.mjs.
//!
//! Never installs a browser's profile or keeps one. Invariant: what an engine lacks is the reason in its row and in no
//! other's.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::browser::{self, Packages, Tools};
use crate::command::capture;
use crate::python::{self, Environment};
use crate::workspace::Workspace;
use crate::{model, page, wasm};

use super::run::{Column, Figure, Sheet};
use super::{GGUF, Need, Peer, peer, timed};

const Q4: &str = "4-bit ONNX";
const F32: &str = "f32 ONNX";
const WORSE: &str = "of the two formats the slower one on this backend";
/// Tokens of an answer.
const TOKENS: usize = 16;

/// Ours is the first.
pub const PEERS: &[Peer] = &[
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

/// What tests/peers/browser.mjs tells.
pub const SHEET: Sheet = Sheet {
    needed: &["load", "warm", "first", "rest", "prompt_tokens", "tokens"],
    columns: &[
        Column { head: "load s", key: "load_seconds", figure: Figure::Seconds("load"), ratio: None },
        Column { head: "prompt", key: "prompt_tokens", figure: Figure::Count("prompt_tokens"), ratio: None },
        Column { head: "first s", key: "first_seconds", figure: Figure::Seconds("first"), ratio: None },
        Column {
            head: "prefill tok/s",
            key: "prefill_tokens_per_second",
            figure: Figure::Rate("prompt_tokens", "first"),
            ratio: Some("ours: prefill"),
        },
        Column {
            head: "decode tok/s",
            key: "decode_tokens_per_second",
            figure: Figure::RateAfterFirst("tokens", "rest"),
            ratio: Some("decode"),
        },
    ],
};

/// What all measurements use.
pub struct Bench<'a> {
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
    /// Makes the page and brings what is needed.
    ///
    /// # Errors
    /// There is no page, browser or Node.
    pub fn prepare(workspace: &'a Workspace, needs: &[Need]) -> Result<Self, String> {
        let (page, model) = timed("the page", || ours(workspace))?;
        let tools = timed("the browser", || browser::ensure(workspace))?;
        let folder = workspace.target_folder().join("peers");
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
}

impl super::Bench for Bench<'_> {
    fn measure(&self, peer: &Peer, tokens: Option<usize>) -> Result<String, String> {
        if peer.need != Need::Nothing {
            self.packages.clone()?;
        }
        if peer.need == Need::Onnx {
            self.onnx.clone()?;
        }
        let tokens = tokens.unwrap_or(TOKENS).min(peer.most_tokens);
        let mut node = Command::new(self.tools.node());
        node.arg(self.workspace.root.join("tests/peers/browser.mjs")).arg(peer.name).arg(tokens.to_string());
        node.envs(self.tools.settings(self.workspace)).env(browser::PAGE_VARIABLE, &self.page);
        node.env("FIRSTLIGHT_MODEL_FILE", &self.model).env("FIRSTLIGHT_PEERS_FOLDER", &self.folder);
        capture(&mut node)
    }

    fn remarks(&self, _peer: &Peer) -> Vec<String> {
        Vec::new()
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

//! Engines and servers that run the model natively, measured by tests/peers/native.py and tests/peers/server.py.
//!
//! Never takes part in what it measures: the scripts hold the clocks, and ours tells its own timelines. Invariant: what an
//! engine lacks is the reason in its row and in no other's.

use std::path::PathBuf;
use std::process::Command;

use crate::command::capture;
use crate::python::{self, Environment};
use crate::workspace::Workspace;

use super::llama::{self, Backend};
use super::run::{Column, Figure, Sheet};
use super::{Field, GGUF, Need, Peer, peer, program_and_model, timed};

/// Tokens of an answer.
const TOKENS: usize = 64;
const CPU: Need = Need::Llama(Backend::Cpu);
const GPU: Need = Need::Llama(Backend::Vulkan);

const NOT_ASKED: &str = "it was not asked for, and so not brought";

/// Ours is the first.
pub const ENGINES: &[Peer] = &[
    peer("firstlight", "Firstlight", "Vulkan", GGUF, Need::Nothing),
    peer("llama.cpp-cpu", "llama.cpp", "CPU", GGUF, CPU),
    peer("llama.cpp-vulkan", "llama.cpp", "Vulkan", GGUF, GPU),
    peer("transformers-cpu", "transformers", "CPU", "f32 of the GGUF", Need::Transformers),
];

/// Ours is the first.
pub const SERVERS: &[Peer] = &[
    peer("firstlight-serve", "Firstlight", "Vulkan", GGUF, Need::Nothing),
    peer("llama-server-cpu", "llama-server", "CPU", GGUF, CPU),
    peer("llama-server-vulkan", "llama-server", "Vulkan", GGUF, GPU),
];

/// What tests/peers/native.py tells.
pub const ENGINE_SHEET: Sheet = Sheet {
    needed: &["prompt_tokens", "prefill", "tokens", "decode", "together_tokens", "together"],
    columns: &[
        Column {
            head: "prefill tok/s",
            key: "prefill_tokens_per_second",
            figure: Figure::Rate("prompt_tokens", "prefill"),
            ratio: Some("ours: prefill"),
        },
        Column {
            head: "decode tok/s",
            key: "decode_tokens_per_second",
            figure: Figure::RateAfterFirst("tokens", "decode"),
            ratio: Some("decode"),
        },
        Column {
            head: "8 together tok/s",
            key: "together_tokens_per_second",
            figure: Figure::Rate("together_tokens", "together"),
            ratio: Some("together"),
        },
    ],
};

/// What tests/peers/server.py tells.
pub const SERVER_SHEET: Sheet = Sheet {
    needed: &["first", "slowest_first", "wall", "prompt_tokens", "tokens"],
    columns: &[
        Column {
            head: "first s, mean",
            key: "mean_ttft_seconds",
            figure: Figure::Seconds("first"),
            ratio: Some("ours: first"),
        },
        Column {
            head: "last s",
            key: "slowest_ttft_seconds",
            figure: Figure::Seconds("slowest_first"),
            ratio: None,
        },
        Column { head: "wall s", key: "wall_seconds", figure: Figure::Seconds("wall"), ratio: Some("wall") },
    ],
};

/// What all measurements use.
pub struct Bench<'a> {
    workspace: &'a Workspace,
    field: Field,
    model: PathBuf,
    /// A Python with its standard library.
    python: String,
    /// A build of llama.cpp for each backend that is needed.
    builds: Vec<(Backend, Result<llama::Build, String>)>,
    transformers: Result<PathBuf, String>,
    threads: usize,
}

impl<'a> Bench<'a> {
    /// Builds our program and brings what is needed.
    ///
    /// # Errors
    /// Ours cannot be built, or there is no Python.
    pub fn prepare(workspace: &'a Workspace, field: Field, needs: &[Need]) -> Result<Self, String> {
        let model = timed("Firstlight and the model", || program_and_model(workspace))?;
        let python = python::system()?;
        let wanted = Backend::ALL.into_iter().filter(|backend| needs.contains(&Need::Llama(*backend)));
        let builds = wanted.map(|backend| {
            let name = format!("llama.cpp, {}", backend.title());
            (backend, timed(&name, || llama::ensure(workspace, backend)))
        });
        let builds = builds.collect();
        let transformers = match needs.contains(&Need::Transformers) {
            true => timed("transformers", || python::ensure(workspace, Environment::Transformers)),
            false => Err(NOT_ASKED.to_owned()),
        };
        let threads = std::thread::available_parallelism().map_or(1, usize::from);
        Ok(Self { workspace, field, model, python, builds, transformers, threads })
    }

    fn build(&self, backend: Backend) -> Result<&llama::Build, String> {
        match self.builds.iter().find(|(of, _)| *of == backend) {
            Some((_, Ok(build))) => Ok(build),
            Some((_, Err(reason))) => Err(reason.clone()),
            None => Err(NOT_ASKED.to_owned()),
        }
    }

    /// The Python for an engine's script, with what the script is told about the engine.
    fn python(&self, need: Need) -> Result<Command, String> {
        Ok(match need {
            Need::Llama(backend) => {
                let build = self.build(backend)?;
                let mut python = Command::new(&build.python);
                python.env("FIRSTLIGHT_PEERS_SOURCE", &build.source);
                python.env("FIRSTLIGHT_PEERS_BUILD", &build.folder);
                python.env("FIRSTLIGHT_PEERS_VERSION", &build.commit);
                python
            }
            Need::Transformers => Command::new(self.transformers.clone()?),
            _ => Command::new(&self.python),
        })
    }
}

impl super::Bench for Bench<'_> {
    fn measure(&self, peer: &Peer, tokens: Option<usize>) -> Result<String, String> {
        let mut python = self.python(peer.need)?;
        let scripts = self.workspace.root.join("tests/peers");
        match self.field {
            Field::Server => python.arg(scripts.join("server.py")).arg(peer.name),
            _ => {
                let tokens = tokens.unwrap_or(TOKENS).min(peer.most_tokens).to_string();
                python.arg(scripts.join("native.py")).arg(peer.name).arg(tokens)
            }
        };
        python.arg(self.threads.to_string()).envs(self.workspace.driver_settings());
        python.env("FIRSTLIGHT_MODEL_FILE", &self.model).env("FIRSTLIGHT_BINARY", self.workspace.binary());
        capture(&mut python)
    }

    fn remarks(&self, peer: &Peer) -> Vec<String> {
        match peer.need {
            Need::Llama(backend) => self.build(backend).map(llama::Build::remark).into_iter().collect(),
            _ => Vec::new(),
        }
    }
}

//! Measures Firstlight beside other engines that run the same model: natively, as a server under a burst, and in a browser.
//!
//! Never part of the tests: it takes long, and other people's engines are none of our claims. Each measurement is a process
//! or a browser of its own; rounds go through all engines in turn, so that what else the machine does falls upon all of
//! them. Invariant: every engine that was asked for has a row, with figures or with the reason why not.

mod browser;
mod llama;
mod native;
mod run;
mod table;

use std::path::PathBuf;
use std::time::Instant;

use crate::command::say;
use crate::workspace::Workspace;
use crate::{model, vulkan};

use run::{Row, Run, Sheet};

/// Engines that are measured in the same way, and have a table in common.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Field {
    /// The engine alone: prefill, and decode of one and of eight.
    Native,
    /// Servers under a burst of requests.
    Server,
    /// In a tab.
    Browser,
}

impl Field {
    const ALL: [Self; 3] = [Self::Native, Self::Server, Self::Browser];

    fn name(self) -> &'static str {
        match self {
            Self::Native => "native",
            Self::Server => "server",
            Self::Browser => "browser",
        }
    }

    /// Ours is the first: the ratios are to it.
    fn peers(self) -> &'static [Peer] {
        match self {
            Self::Native => native::ENGINES,
            Self::Server => native::SERVERS,
            Self::Browser => browser::PEERS,
        }
    }

    fn sheet(self) -> &'static Sheet {
        match self {
            Self::Native => &native::ENGINE_SHEET,
            Self::Server => &native::SERVER_SHEET,
            Self::Browser => &browser::SHEET,
        }
    }
}

/// What an engine needs beside our own program and page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Need {
    /// It is ours.
    Nothing,
    /// Its package of Node.
    Package,
    /// That, and the model as ONNX.
    Onnx,
    /// llama.cpp, built.
    Llama(llama::Backend),
    /// torch and transformers.
    Transformers,
}

/// One way to run the model.
#[derive(Debug)]
pub struct Peer {
    /// As `--only` and the measuring scripts call it.
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

const GGUF: &str = "Q4_1 GGUF";

const fn peer(
    name: &'static str,
    engine: &'static str,
    backend: &'static str,
    weights: &'static str,
    need: Need,
) -> Peer {
    Peer { name, engine, backend, weights, need, most_tokens: usize::MAX, usual: true, remark: "" }
}

/// What was asked for.
#[derive(Debug, PartialEq, Eq)]
pub struct Options {
    /// All of them, where none is named.
    field: Option<Field>,
    rounds: usize,
    /// Tokens of an answer, where the field's own number is not good enough.
    tokens: Option<usize>,
    /// Part of the names of those to be measured beside ours.
    only: Option<String>,
    json: Option<PathBuf>,
}

impl Default for Options {
    fn default() -> Self {
        Self { field: None, rounds: 3, tokens: None, only: None, json: None }
    }
}

impl Options {
    /// Reads the words after `peers`.
    ///
    /// # Errors
    /// An unknown word or flag, or one with a value that it cannot have.
    pub fn read(words: &[&str]) -> Result<Self, String> {
        let mut options = Self::default();
        let mut words = words.iter();
        while let Some(flag) = words.next() {
            if let Some(field) = Field::ALL.into_iter().find(|field| field.name() == *flag) {
                options.field = Some(field);
                continue;
            } else if *flag == "all" {
                options.field = None;
                continue;
            }
            let value =
                words.next().ok_or_else(|| format!("{flag} is unknown, or lacks its value\n{}", usage()))?;
            let number = |least: usize, most: usize| {
                let read = value.parse().ok().filter(|number| (least..=most).contains(number));
                read.ok_or_else(|| format!("{flag} {value}: it must be a number from {least} to {most}"))
            };
            match *flag {
                "--rounds" => options.rounds = number(1, 100)?,
                "--tokens" => options.tokens = Some(number(2, 128)?),
                "--only" => options.only = Some((*value).to_owned()),
                "--json" => options.json = Some(PathBuf::from(value)),
                _ => return Err(format!("{flag} is unknown\n{}", usage())),
            }
        }
        match (options.fields().is_empty(), &options.only) {
            (true, Some(only)) => Err(format!("no engine's name has {only} in it\n{}", usage())),
            _ => Ok(options),
        }
    }

    /// Those with an engine to be measured.
    fn fields(&self) -> Vec<Field> {
        let named = |field: &Field| self.field.is_none_or(|named| named == *field);
        let has = |field: &Field| {
            self.only.as_ref().is_none_or(|only| field.peers().iter().any(|peer| peer.name.contains(only)))
        };
        Field::ALL.into_iter().filter(named).filter(has).collect()
    }

    /// Those of a field to be measured: ours always.
    fn chosen(&self, field: Field) -> impl Iterator<Item = &'static Peer> {
        field.peers().iter().filter(|peer| {
            let named = self.only.as_ref().map(|only| peer.name.contains(only.as_str()));
            peer.need == Need::Nothing || named.unwrap_or(peer.usual)
        })
    }

    fn needs(&self, field: Field) -> Vec<Need> {
        self.chosen(field).map(|peer| peer.need).collect()
    }
}

/// For people.
pub fn usage() -> String {
    let names = |field: Field| field.peers().iter().map(|peer| peer.name).collect::<Vec<_>>().join(", ");
    let [native, server, browser] = Field::ALL.map(names);
    format!(
        "\
cargo xtask peers [native|server|browser|all] [--rounds N] [--tokens N] [--only NAME] [--json FILE]

Measures Firstlight and other engines on the same model and the same prompts, --rounds (3) times each in turn; the tables have
medians with the least and the most, and beneath each what is to be known about its rows. Engines come from PyPI and npm into
folders beside the builds; llama.cpp is compiled from the source that llama-cpp-python brings, which takes a quarter of an hour
on two cores, and its Vulkan part asks the system's packages for glslc and headers. transformers brings 5 GB. Use a machine that
does nothing else, and one run to bring everything before the one that counts.

native: {native}
  prefill  a prompt's 64 tokens by the time to the first token of the answer; the middle one of three prompts
  decode   of one answer: the tokens after the first (--tokens, 64, in all) by the time from it to the last
  together the same of eight answers to eight prompts of 64 tokens, added up, while all eight are under way: Firstlight's
           eight requests of one `run`, llama.cpp's eight sequences in one batch (llama_decode), eight rows in one `generate`
server: {server}
  first    from sending to the first piece of the answer, mean of eight prompts of 67 tokens sent at once to four slots
  last     the same of the one that waited longest
  wall     from the first sending to the last of 8 x 32 tokens
browser: {browser}
  load     from the visit of the page until a prompt can be sent, the model coming from a host on this machine
  first    from the sending of a prompt of some 50 tokens to its first token in the page; a shorter answer came before
  prefill  the prompt's tokens by that time
  decode   the tokens after the first (--tokens, 16, in all) by the time from it to the last
ours: Firstlight's figure by this engine's, or for times the other way: above 1 Firstlight is faster

  --only   measures those with NAME in their name, beside Firstlight
  --json   writes every figure of every round into FILE

FIRSTLIGHT_TEST_PAGE names a page that was made already, FIRSTLIGHT_MODEL_FILE the model."
    )
}

/// Measures one engine once.
trait Bench {
    /// What the measuring script printed.
    fn measure(&self, peer: &Peer, tokens: Option<usize>) -> Result<String, String>;

    /// What to know about an engine's figures that was found while it was made ready.
    fn remarks(&self, peer: &Peer) -> Vec<String>;
}

/// The task.
///
/// # Errors
/// Ours cannot be built, or there is nothing to measure it with. What fails of others is in their rows.
pub fn run(options: &Options) -> Result<(), String> {
    let workspace = Workspace::find()?;
    let mut measured = Vec::new();
    let mut failed = Vec::new();
    for field in options.fields() {
        match measure(&workspace, field, options) {
            Ok(rows) => measured.push((field, rows)),
            Err(reason) => failed.push(format!("{}: {reason}", field.name())),
        }
    }
    for (field, rows) in &measured {
        say(&format!("\n{}", field.name()));
        for line in table::lines(field.sheet(), rows) {
            say(&line);
        }
    }
    if let Some(file) = &options.json {
        let fields: Vec<_> =
            measured.iter().map(|(field, rows)| (field.name(), field.sheet(), rows.as_slice())).collect();
        std::fs::write(file, table::json(&fields))
            .map_err(|error| format!("{} cannot be written: {error}", file.display()))?;
    }
    match failed.is_empty() {
        true => Ok(()),
        false => Err(failed.join("; ")),
    }
}

fn measure(workspace: &Workspace, field: Field, options: &Options) -> Result<Vec<Row>, String> {
    let needs = options.needs(field);
    let bench: Box<dyn Bench + '_> = match field {
        Field::Native | Field::Server => Box::new(native::Bench::prepare(workspace, field, &needs)?),
        Field::Browser => Box::new(browser::Bench::prepare(workspace, &needs)?),
    };
    let row = |peer| Row { remarks: bench.remarks(peer), ..Row::new(peer) };
    let mut rows: Vec<Row> = options.chosen(field).map(row).collect();
    for round in 1..=options.rounds {
        for row in &mut rows {
            // What failed once fails again, and takes as long to do so.
            if row.failed.is_some() {
                continue;
            }
            let start = Instant::now();
            let told = bench.measure(row.peer, options.tokens);
            match told.and_then(|text| Run::read(&text, field.sheet().needed)) {
                Ok(run) => row.runs.push(run),
                Err(reason) => row.failed = Some(reason),
            }
            let end = row.failed.as_deref().unwrap_or("measured");
            let took = start.elapsed().as_secs_f64();
            say(&format!("round {round} of {}: {}: {end} ({took:.0} s)", options.rounds, row.peer.name));
        }
    }
    Ok(rows)
}

/// A Vulkan driver, our program and the model: those that are there, or made now.
fn program_and_model(workspace: &Workspace) -> Result<PathBuf, String> {
    vulkan::ensure()?;
    workspace.fetch_crates()?;
    workspace.build_binary()?;
    model::ensure(workspace)
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
        check("all", Some(usual()));
        check("native --rounds 5", Some(Options { field: Some(Field::Native), rounds: 5, ..usual() }));
        check("--rounds 5 --tokens 8", Some(Options { rounds: 5, tokens: Some(8), ..usual() }));
        check("--only wllama", Some(Options { only: Some("wllama".to_owned()), ..usual() }));
        check("--json x.json", Some(Options { json: Some(PathBuf::from("x.json")), ..usual() }));
        check("--only nobody", None);
        check("native --only wllama", None);
        check("--rounds 0", None);
        check("--tokens 1", None);
        check("--tokens", None);
        check("--fast 1", None);
        check("nativ", None);
    }

    #[test]
    fn a_name_is_looked_for_in_every_field() {
        let check = |line: &str, expected: &[Field]| {
            let words: Vec<&str> = line.split_whitespace().collect();
            assert_eq!(Options::read(&words).unwrap().fields(), expected, "{line}");
        };
        check("", &Field::ALL);
        check("server", &[Field::Server]);
        check("--only llama.cpp", &[Field::Native]);
        check("--only transformers", &[Field::Native, Field::Browser]);
        check("--only llama-server-cpu", &[Field::Server]);
        check("--only firstlight", &Field::ALL);
    }

    #[test]
    fn ours_is_measured_beside_whatever_is_named() {
        let check = |field: Field, only: Option<&str>, expected: &[&str]| {
            let options = Options { only: only.map(str::to_owned), ..Options::default() };
            let names: Vec<&str> = options.chosen(field).map(|peer| peer.name).collect();
            assert_eq!(names, expected, "{field:?} {only:?}");
        };
        check(Field::Browser, Some("wllama-wasm"), &["firstlight", "wllama-wasm-1", "wllama-wasm-2"]);
        check(Field::Browser, Some("wasm-q4"), &["firstlight", "transformers.js-wasm-q4"]);
        check(Field::Browser, Some("firstlight"), &["firstlight"]);
        let usual = [
            "firstlight",
            "transformers.js-webgpu-q4",
            "transformers.js-wasm-f32",
            "wllama-webgpu",
            "wllama-wasm-1",
            "wllama-wasm-2",
        ];
        check(Field::Browser, None, &usual);
        let native = ["firstlight", "llama.cpp-cpu", "llama.cpp-vulkan", "transformers-cpu"];
        check(Field::Native, None, &native);
        check(Field::Native, Some("vulkan"), &["firstlight", "llama.cpp-vulkan"]);
        check(Field::Server, None, &["firstlight-serve", "llama-server-cpu", "llama-server-vulkan"]);
    }

    #[test]
    fn ours_is_the_first_of_every_field_and_the_only_one_that_needs_nothing() {
        for field in Field::ALL {
            let nothing: Vec<bool> = field.peers().iter().map(|peer| peer.need == Need::Nothing).collect();
            assert!(nothing[0] && !nothing[1..].contains(&true), "{field:?}");
        }
    }
}

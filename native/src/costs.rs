//! Where the costs of steps come from: a file that is named, what was kept of a measurement before, or one now.
//!
//! Invariant: what is kept holds for the adapter, driver, engine, model and kernels that it was measured with, and for nothing
//! else.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use firstlight_engine::costs::{SCHEMA, StepCosts};
use firstlight_engine::gpu::{AdapterFacts, KernelCache, TuneKey};
use firstlight_engine::model::Checkpoint;
use firstlight_shaders::Activations;
use serde_json::{Value, json};

use crate::bench::steps::{self, Opened};
use crate::cache::{self, Cache, process_environment};
use crate::cli::{Autotune, EngineArgs};
use crate::doctor::costs::Measurement;
use crate::doctor::measures;
use crate::failure::Failure;
use crate::source::FileSource;
use crate::terminal::{note, warn};
use crate::{adapters, model_text, models};

/// After so long no further round begins: where steps are slow, one round has to do.
const LONG_ENOUGH: Duration = Duration::from_secs(20);

/// The costs of the model and the adapter of `args`: those of `file` where it is given, else those that were kept, else
/// measured now and kept.
///
/// # Errors
/// A file that has no costs; the model, its room, the adapter, a step that fails.
pub fn find(args: &EngineArgs, file: Option<&Path>) -> Result<StepCosts, Failure> {
    if let Some(path) = file {
        return named(path);
    }
    let kept = Kept::locate(args)?;
    if let Some(costs) = kept.recall() {
        return Ok(costs);
    }
    note("no costs of this model on this adapter are kept; measuring them now, once");
    measure(args, &kept)
}

/// Those that were kept, if any.
///
/// # Errors
/// The model, the adapter.
pub fn kept(args: &EngineArgs) -> Result<Option<StepCosts>, Failure> {
    Ok(Kept::locate(args)?.recall())
}

/// Measures them anew, and keeps them.
///
/// # Errors
/// As [`find`].
pub fn again(args: &EngineArgs) -> Result<StepCosts, Failure> {
    measure(args, &Kept::locate(args)?)
}

fn measure(args: &EngineArgs, kept: &Kept) -> Result<StepCosts, Failure> {
    let mut opened = open(args)?;
    let mut measurement = Measurement::begin(&mut opened.runner, &opened.limits)?;
    let begun = Instant::now();
    for _ in 0..Measurement::ROUNDS {
        measurement.round(&mut opened.runner)?;
        if begun.elapsed() > LONG_ENOUGH {
            break;
        }
    }
    let costs = measurement.costs(&opened, dispatch_ns(&opened)?);
    kept.keep(&costs);
    Ok(costs)
}

/// The model of `args`, loaded for measurements.
///
/// # Errors
/// The model, its room, the adapter.
pub fn open(args: &EngineArgs) -> Result<Opened, Failure> {
    steps::open(args)?.ok_or_else(|| Failure::failed("the runner went away; run the command again"))
}

/// One more dispatch in a pass, in nanoseconds.
///
/// # Errors
/// A device that was lost, or one too busy to measure.
pub fn dispatch_ns(opened: &Opened) -> Result<u64, Failure> {
    let micros = measures::dispatches(opened.runner.device(), &mut KernelCache::default())?.median;
    Ok((micros * 1e3).round() as u64)
}

/// The costs in a file: bare, or under `costs` as the doctor prints them and as they are kept.
///
/// # Errors
/// It cannot be read, or has none.
pub fn named(path: &Path) -> Result<StepCosts, Failure> {
    let advice = "`firstlight doctor --json` prints costs that can be read";
    let bytes = cache::read_short(path).map_err(|error| {
        Failure::usage(format!("--costs {} cannot be read: {error}; {advice}", path.display()))
    })?;
    of_json(&bytes)
        .map_err(|why| Failure::usage(format!("--costs {} has none: {why}; {advice}", path.display())))
}

fn of_json(bytes: &[u8]) -> Result<StepCosts, String> {
    let value: Value = serde_json::from_slice(bytes).map_err(|error| format!("it is no JSON, {error}"))?;
    let costs = value.get("costs").cloned().unwrap_or(value);
    match costs.get("schema").and_then(Value::as_str) {
        Some(SCHEMA) => {}
        Some(other) => return Err(format!("its schema is {other:?} where {SCHEMA:?} is wanted")),
        None => return Err(format!("no object in it has the schema {SCHEMA:?}")),
    }
    let costs: StepCosts = serde_json::from_value(costs).map_err(|error| error.to_string())?;
    match costs.check() {
        Some(wrong) => Err(wrong.to_owned()),
        None => Ok(costs),
    }
}

/// Where costs are kept, and for what they hold.
struct Kept {
    key: String,
    /// Absent where there is no home folder.
    path: Option<PathBuf>,
}

impl Kept {
    fn locate(args: &EngineArgs) -> Result<Self, Failure> {
        let cache = Cache::locate(&process_environment);
        let files = models::resolve(&args.model, &cache.clone()?, &process_environment)?;
        let checkpoint = model_text::open(&files)?.checkpoint;
        let (index, adapter) = adapters::choose(args.adapter.adapter.as_deref())?;
        let key = key(args, &checkpoint, &AdapterFacts::of(index, &adapter));
        let path = cache.ok().map(|cache| cache.kernels(&key.file_name("costs")));
        Ok(Self { key: key.text().to_owned(), path })
    }

    fn recall(&self) -> Option<StepCosts> {
        let bytes = cache::read_short(self.path.as_deref()?).ok()?;
        let value: Value = serde_json::from_slice(&bytes).ok()?;
        (value.get("key")?.as_str()? == self.key).then(|| of_json(&bytes).ok())?
    }

    fn keep(&self, costs: &StepCosts) {
        let Some(path) = &self.path else { return };
        let text = json!({ "key": self.key, "costs": costs }).to_string();
        match cache::write_whole(path, text.as_bytes()) {
            Ok(()) => note(&format!("the costs are kept in {}", path.display())),
            Err(error) => {
                warn(&format!(
                    "{} cannot be written ({error}); costs are measured again next time",
                    path.display()
                ));
            }
        }
    }
}

/// All that costs depend on.
fn key(args: &EngineArgs, checkpoint: &Checkpoint<FileSource>, facts: &AdapterFacts) -> TuneKey {
    let config = checkpoint.config();
    let pinned = args.adapter.kernels.as_deref().and_then(|path| std::fs::read_to_string(path).ok());
    let model = format!(
        "{} {} bytes in {}, {:?}; {:?} {:?}, default limits {}, autotune {}, kernels {}; {} slots, {} tokens a step, {:?} a sequence, blocks of {}, {:?} {:?}",
        config.name,
        checkpoint.total_bytes(),
        checkpoint.quantisation(),
        (config.hidden_size, config.num_layers, config.vocab_size),
        args.activations,
        args.kv_cache,
        args.adapter.default_limits,
        args.adapter.autotune != Autotune::Off,
        pinned.unwrap_or_default(),
        args.slots,
        args.batch_tokens,
        args.max_model_len,
        args.block_size,
        args.kv_memory,
        args.kv_blocks,
    );
    TuneKey::new(facts, &model, Activations::default())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(text: &str, expected: Result<u64, &str>) {
        let got = of_json(text.as_bytes());
        match (got, expected) {
            (Ok(costs), Ok(ns)) => assert_eq!(costs.first_row_ns(), ns as f64, "{text}"),
            (Err(why), Err(part)) => assert!(why.contains(part), "{text}: {why}"),
            (got, expected) => panic!("{text}: {got:?} where {expected:?} was expected"),
        }
    }

    #[test]
    fn costs_are_read_bare_and_out_of_a_report() {
        let bare = r#"{"schema": "firstlight.costs/1", "model": "m", "adapter": "a", "activations": "f32",
            "kv_cache": "f32", "runs_ahead": false, "rows": [{"rows": 1, "ns": 7}], "head": [], "decode_attention": [],
            "prompt_attention": [], "host": [], "dispatches": 3, "dispatch_ns": 1}"#;
        check(bare, Ok(7));
        check(&format!(r#"{{"adapters": [], "costs": {bare}}}"#), Ok(7));
        check(&bare.replace("costs/1", "costs/9"), Err("firstlight.costs/9"));
        check(&bare.replace(r#"[{"rows": 1, "ns": 7}]"#, "[]"), Err("rows"));
        check(&bare.replace(r#""ns": 7"#, r#""ns": -7"#), Err("-7"));
        check(
            &bare.replace(r#"{"rows": 1, "ns": 7}"#, r#"{"rows": 4, "ns": 7}, {"rows": 1, "ns": 7}"#),
            Err("order"),
        );
        check("{}", Err("schema"));
        check("[", Err("no JSON"));
    }
}

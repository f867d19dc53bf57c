//! From the command line to an engine that answers: model files, adapter, device, weights, warm-up.
//!
//! Invariant: the model is found and its headers are checked before any adapter is touched.

use std::sync::Arc;
use std::time::{Duration, Instant};

use firstlight_engine::engine::{Engine, EngineConfig};
use firstlight_engine::sched::SchedulerConfig;
use firstlight_engine::text::Preparer;
use firstlight_engine::timeline::ModelLabel;
use firstlight_shaders::KvFormat;

use crate::cache::{Cache, process_environment};
use crate::cli::{EngineArgs, KvCache};
use crate::clock::InstantClock;
use crate::driver::{EngineThread, Parts};
use crate::failure::Failure;
use crate::model_text::OpenModel;
use crate::models::{self, ModelFiles, ModelName};
use crate::session::Session;
use crate::{model_text, sizing};

pub mod gpu;
pub mod kernels;

/// What the prompts are, and so what the model must have beside its weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Needs {
    /// Token ids: nothing.
    Ids,
    /// Text as it is: a tokenizer.
    Text,
    /// Conversations: a chat template too.
    Chat,
}

/// A session with the engine of [`engine_thread`].
///
/// # Errors
/// As there.
pub fn session(args: &EngineArgs, needs: Needs, num_prompts: usize) -> Result<Session, Failure> {
    engine_thread(args, needs, num_prompts).map(Session::new)
}

/// An engine with the model and the room that `args` name, and with a queue for at least `num_prompts`. Where its device
/// fails it opens the adapter again and brings the weights there from the same file.
///
/// # Errors
/// Exit code 4 for the model, 2 for room that does not fit it or prompts that it cannot read, 3 for the adapter.
pub fn engine_thread(args: &EngineArgs, needs: Needs, num_prompts: usize) -> Result<EngineThread, Failure> {
    engine_thread_watched(args, needs, num_prompts, |_| ())
}

/// The same, where exactly `max_waiting` requests may wait.
///
/// # Errors
/// As [`engine_thread`].
pub fn engine_thread_queued(
    args: &EngineArgs,
    needs: Needs,
    max_waiting: u32,
) -> Result<EngineThread, Failure> {
    start(args, needs, Queue::Exactly(max_waiting), |_| ())
}

/// The same; `opened` is told, on the engine's thread, of each device before anything is loaded onto it.
///
/// # Errors
/// As [`engine_thread`].
pub fn engine_thread_watched(
    args: &EngineArgs,
    needs: Needs,
    num_prompts: usize,
    opened: impl FnMut(&wgpu::Device) + Send + 'static,
) -> Result<EngineThread, Failure> {
    start(args, needs, Queue::AtLeast(u32::try_from(num_prompts).unwrap_or(u32::MAX)), opened)
}

/// The same as [`engine_thread`], with what took how long; the first is finding the model and reading its headers.
///
/// # Errors
/// As [`engine_thread`].
pub fn engine_thread_timed(
    args: &EngineArgs,
    needs: Needs,
) -> Result<(EngineThread, Duration, gpu::Times), Failure> {
    let clock = InstantClock::start();
    let args = args.clone();
    let (sender, times) = std::sync::mpsc::sync_channel(1);
    let thread = EngineThread::start(move || {
        let (parts, open, loading) = parts(clock, args, needs, Queue::AtLeast(1), |_| ())?;
        // Whoever waits for the start takes them behind it.
        let _ = sender.send((open, loading));
        Ok(parts)
    })?;
    let (open, loading) = times.recv().unwrap_or_default();
    Ok((thread, open, loading))
}

/// How many requests may wait.
#[derive(Clone, Copy)]
enum Queue {
    AtLeast(u32),
    Exactly(u32),
}

fn start(
    args: &EngineArgs,
    needs: Needs,
    queue: Queue,
    opened: impl FnMut(&wgpu::Device) + Send + 'static,
) -> Result<EngineThread, Failure> {
    let clock = InstantClock::start();
    let args = args.clone();
    EngineThread::start(move || parts(clock, args, needs, queue, opened).map(|(parts, ..)| parts))
}

fn parts(
    clock: InstantClock,
    mut args: EngineArgs,
    needs: Needs,
    queue: Queue,
    mut opened: impl FnMut(&wgpu::Device) + 'static,
) -> Result<(Parts<gpu::Place>, Duration, gpu::Times), Failure> {
    let start = Instant::now();
    let cache = Cache::locate(&process_environment)?;
    let files = models::resolve(&args.model, &cache, &process_environment)?;
    let model = model_text::open(&files)?;
    check_text(needs, &files.title(), &model)?;
    // Told now where it is wrong, whatever the adapter will store.
    let kv = args.kv_cache.format(KvFormat::default());
    let mut limits = sizing::limits(&args, model.checkpoint.config(), kv)?;
    limits.max_waiting = match queue {
        // Prompts that came on one command line are here already: none of them is told to come back later.
        Queue::AtLeast(num_prompts) => limits.max_waiting.max(num_prompts),
        Queue::Exactly(max_waiting) => max_waiting,
    };
    let preparer = Preparer::new(model.tokenizer.clone(), limits.vocab_size, limits.max_model_len)?;
    let place = gpu::Place::default();
    let open = start.elapsed();
    let loaded = gpu::load(&place, &args, &model.checkpoint, &limits, None, &mut opened)?;
    // A device that comes after this one keeps to what the scheduler has counted.
    let limits = loaded.limits;
    args.kv_cache = KvCache::Stored(loaded.kv);
    let config = EngineConfig {
        scheduler: limits,
        eos_tokens: model.end_tokens(),
        model: label(&args, &files, &model),
        engine_config: fingerprint(&limits, &args, &loaded.described),
    };
    let engine = Engine::new(place.clone(), clock, config, model.tokenizer);
    let checkpoint = model.checkpoint;
    let choice = loaded.choice;
    let rebuild = move || {
        let loaded = gpu::load(&place, &args, &checkpoint, &limits, Some(choice), &mut opened)?;
        Ok((place.clone(), loaded.drive))
    };
    let parts = Parts {
        engine,
        drive: loaded.drive,
        rebuild: Box::new(rebuild),
        preparer: Arc::new(preparer),
        adapter: loaded.described,
    };
    Ok((parts, open, loaded.times))
}

/// Told now, because loading the weights first would be for nothing.
fn check_text(needs: Needs, title: &str, model: &OpenModel) -> Result<(), Failure> {
    let template = model.tokenizer.as_ref().map(|tokenizer| tokenizer.chat_template().is_some());
    match (needs, template) {
        (Needs::Text | Needs::Chat, None) => Err(Failure::usage(format!(
            "{title} has no tokenizer; put its tokenizer.json beside it, or use `firstlight run --ids 1,2,3`"
        ))),
        (Needs::Chat, Some(false)) => Err(Failure::usage(format!(
            "{title} has no chat template; use `firstlight run --raw -p TEXT`, which sends the text as it is"
        ))),
        _ => Ok(()),
    }
}

fn label(args: &EngineArgs, files: &ModelFiles, model: &OpenModel) -> ModelLabel {
    let is_default = matches!(models::parse_name(&args.model), Ok(ModelName::Default));
    ModelLabel {
        name: files.title(),
        // Known without reading the file again: the default model's was checked when it came or when it was named.
        sha256: is_default.then(|| models::DEFAULT_MODEL.sha256.to_owned()),
        quantisation: model.checkpoint.quantisation(),
    }
}

/// Names what decides speed: two timelines with the same one can be compared.
fn fingerprint(limits: &SchedulerConfig, args: &EngineArgs, described: &str) -> String {
    use sha2::{Digest, Sha256};
    let text = format!("{limits:?} {} {:?} {described}", args.model, args.activations);
    crate::cache::hex(&Sha256::digest(text.as_bytes())[..8])
}

//! Which kernels an engine gets: those that a file pins, those that won a trial before, those that win one now, or those that
//! the adapter's facts alone suggest.
//!
//! Never touches the device that the model is loaded onto. Invariant: a trial runs once for an adapter, driver, engine and
//! shapes; where its result cannot be kept, that is said and costs another trial the next time.

use std::path::{Path, PathBuf};
use std::time::Instant;

use firstlight_engine::gpu::{
    AdapterFacts, Device, DeviceOptions, KernelChoice, Trial, TrialTimes, TuneKey, Tuned, why,
};
use firstlight_engine::model::Sketch;
use firstlight_engine::runner::Contender;
use firstlight_shaders::Activations;

use crate::cache::{Cache, process_environment};
use crate::cli::{self, AdapterArgs, Autotune, KvCache};
use crate::clock::InstantClock;
use crate::executor::{block_on, block_on_gpu};
use crate::failure::Failure;
use crate::terminal::{note, warn};
use crate::{adapters, cache};

/// A choice, and where it comes from.
#[derive(Clone, Debug, PartialEq)]
pub struct Chosen {
    /// The kernels.
    pub choice: KernelChoice,
    /// Where they come from.
    pub how: How,
}

/// Where a choice comes from.
#[derive(Clone, Debug, PartialEq)]
pub enum How {
    /// What the adapter says of itself.
    Facts(String),
    /// A file that `--kernels` names.
    Pinned(PathBuf),
    /// A trial before.
    Remembered(Tuned),
    /// A trial now.
    Measured(Tuned),
}

impl How {
    /// One word for scripts.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Facts(_) => "facts",
            Self::Pinned(_) => "pinned",
            Self::Remembered(_) => "remembered",
            Self::Measured(_) => "measured",
        }
    }

    /// What was tried.
    pub fn trials(&self) -> &[Trial] {
        match self {
            Self::Facts(_) | Self::Pinned(_) => &[],
            Self::Remembered(tuned) | Self::Measured(tuned) => &tuned.trials,
        }
    }
}

impl std::fmt::Display for How {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Facts(why) => write!(f, "{why}"),
            Self::Pinned(path) => write!(f, "{} pins them", path.display()),
            Self::Remembered(tuned) => write!(f, "quickest of {} in a trial before", tuned.trials.len()),
            Self::Measured(tuned) => write!(f, "quickest of {} in a trial now", tuned.trials.len()),
        }
    }
}

/// What is asked for on the command line.
#[derive(Clone, Copy)]
pub struct Wishes<'a> {
    /// Which adapter, and which kernels on it.
    pub adapter: &'a AdapterArgs,
    /// The activations.
    pub activations: cli::Activations,
    /// How keys and values are kept.
    pub kv_cache: KvCache,
    /// Slots of a KV block.
    pub block_size: u32,
}

/// The kernels for a device of these facts; `sketch` has the shapes of the model that they are for.
///
/// # Errors
/// A file that pins none, or some that do not fit; an adapter that went away.
pub fn choose(
    wishes: Wishes<'_>,
    facts: &AdapterFacts,
    sketch: impl FnOnce() -> Sketch,
) -> Result<Chosen, Failure> {
    let args = wishes.adapter;
    let wanted = match wishes.activations {
        cli::Activations::Auto => None,
        cli::Activations::F32 => Some(Activations::F32),
        cli::Activations::I8 => Some(Activations::I8),
    };
    if let Some(path) = &args.kernels {
        let choice = pinned(path, facts)?;
        // A flag that is typed wins.
        let activations = wanted.unwrap_or(choice.activations);
        let choice = KernelChoice { activations, kv: wishes.kv_cache.format(choice.kv), ..choice };
        return Ok(Chosen { choice, how: How::Pinned(path.clone()) });
    }
    let activations = wanted.unwrap_or_default();
    let with =
        |choice: KernelChoice| KernelChoice { activations, kv: wishes.kv_cache.format(choice.kv), ..choice };
    let by_facts = || Chosen { choice: with(KernelChoice::for_adapter(facts)), how: How::Facts(why(facts)) };
    if args.autotune == Autotune::Off {
        return Ok(by_facts());
    }
    let candidates: Vec<KernelChoice> = KernelChoice::candidates(facts)
        .into_iter()
        .map(with)
        .filter(|choice| choice.fits(facts).is_ok())
        .collect();
    let sketch = sketch();
    let key = TuneKey::new(facts, &format!("{} {:?}", sketch.shapes, wishes.kv_cache), activations);
    let kept = Cache::locate(&process_environment).ok().map(|cache| cache.kernels(&key.file_name("kernels")));
    if args.autotune != Autotune::Again
        && let Some(tuned) = kept.as_deref().and_then(|path| recall(path, &key, facts))
    {
        return Ok(Chosen { choice: tuned.choice, how: How::Remembered(tuned) });
    }
    // On a CPU driver compiling the kernels of the others takes longer than they could save in a short run.
    let worth_it = candidates.len() > 1 && (args.autotune != Autotune::Auto || !facts.is_cpu);
    if !worth_it {
        return Ok(by_facts());
    }
    let start = Instant::now();
    let trials = try_all(args, wishes.block_size, &candidates, &sketch)?;
    note(&format!("the trial took {:.1} s", start.elapsed().as_secs_f64()));
    let Some(tuned) = Tuned::of(key, trials) else {
        warn("no set of kernels got through its trial; the adapter's own is used");
        return Ok(by_facts());
    };
    if let Some(path) = &kept
        && let Err(error) = cache::write_whole(path, tuned.to_json().as_bytes())
    {
        warn(&format!("{} cannot be written ({error}); kernels are tried again next time", path.display()));
    }
    Ok(Chosen { choice: tuned.choice, how: How::Measured(tuned) })
}

fn pinned(path: &Path, facts: &AdapterFacts) -> Result<KernelChoice, Failure> {
    let advice = "`firstlight doctor --json` prints a choice that fits this adapter";
    let bytes = cache::read_short(path).map_err(|error| {
        Failure::usage(format!("--kernels {} cannot be read: {error}; {advice}", path.display()))
    })?;
    KernelChoice::pinned(&bytes, facts).map_err(|error| {
        Failure::usage(format!("--kernels {} pins no kernels: {error}; {advice}", path.display()))
    })
}

fn recall(path: &Path, key: &TuneKey, facts: &AdapterFacts) -> Option<Tuned> {
    Tuned::recall(&cache::read_short(path).ok()?, key, facts)
}

fn open(args: &AdapterArgs) -> Result<Device, Failure> {
    let (index, adapter) = adapters::choose(args.adapter.as_deref())?;
    let options = DeviceOptions { default_limits: args.default_limits };
    Ok(block_on(Device::open(&adapter, index, options), std::thread::yield_now)?)
}

/// All of them in turn, each on a device of its own: one that fails takes its device with it.
fn try_all(
    args: &AdapterArgs,
    block_size: u32,
    candidates: &[KernelChoice],
    sketch: &Sketch,
) -> Result<Vec<Trial>, Failure> {
    note(&format!(
        "trying {} sets of kernels on this adapter, once; --autotune off leaves that out",
        candidates.len()
    ));
    let mut running = Vec::with_capacity(candidates.len());
    for &choice in candidates {
        let device = open(args)?;
        let handle = device.handle().clone();
        let prepared = block_on_gpu(&handle, Contender::prepare(device, sketch, block_size, choice));
        running.push((choice, prepared.map_err(|failure| Failure::from(failure).sentence), None));
    }
    let clock = InstantClock::start();
    for _ in 0..Contender::ROUNDS {
        for (_, contender, least) in &mut running {
            let Ok(ready) = contender else { continue };
            let handle = ready.device().handle().clone();
            match block_on_gpu(&handle, ready.round(&clock)) {
                Ok(times) => *least = Some(least.map_or(times, |least: TrialTimes| least.least(times))),
                Err(error) => *contender = Err(error.to_string()),
            }
        }
    }
    let trial =
        |(choice, contender, least): (KernelChoice, Result<Contender, String>, Option<TrialTimes>)| {
            let times = contender.and_then(|_| least.ok_or_else(|| "it was not timed".to_owned()));
            Trial { choice, times }
        };
    Ok(running.into_iter().map(trial).collect())
}

//! Which kernels a model gets in this tab: on a GPU those that are the quickest in a trial, which runs once and is kept.
//!
//! Never touches the device that the model is loaded onto. Invariant: whatever goes wrong in a trial, the adapter's own kernels
//! are there.

use firstlight_engine::clock::Clock;
use firstlight_engine::gpu::{
    AdapterFacts, Device, DeviceOptions, KernelChoice, Trial, TrialTimes, TuneKey, Tuned,
};
use firstlight_engine::model::Sketch;
use firstlight_engine::runner::Contender;
use firstlight_shaders::Activations;

use super::super::store::Store;
use super::model::open_device;
use crate::protocol::KvCache;

/// What a trial is for.
pub struct Wanted {
    /// How devices are opened.
    pub options: DeviceOptions,
    /// How products take their left factor.
    pub activations: Activations,
    /// How keys and values are kept.
    pub kv: KvCache,
    /// Slots of a KV block.
    pub block_size: u32,
}

/// The kernels for a device of these facts and a model of the shapes of `sketch`.
pub async fn choose(
    wanted: &Wanted,
    facts: &AdapterFacts,
    sketch: &Sketch,
    store: Option<&Store>,
    clock: &impl Clock,
) -> KernelChoice {
    let with = |choice: KernelChoice| KernelChoice {
        activations: wanted.activations,
        kv: wanted.kv.stored().unwrap_or(choice.kv),
        ..choice
    };
    let own = with(KernelChoice::for_adapter(facts));
    let candidates: Vec<_> = KernelChoice::candidates(facts)
        .into_iter()
        .map(with)
        .filter(|choice| choice.fits(facts).is_ok())
        .collect();
    // Where the CPU computes, compiling the kernels of the others takes longer than they could save.
    let (Some(store), false, true) = (store, facts.is_cpu, candidates.len() > 1) else { return own };
    let key = TuneKey::new(facts, &format!("{} {}", sketch.shapes, own.kv.name()), wanted.activations);
    let kept = store.kernels(&key.file_name()).await;
    if let Some(tuned) = kept.and_then(|text| Tuned::recall(text.as_bytes(), &key, facts)) {
        return tuned.choice;
    }
    let mut running = Vec::new();
    for choice in candidates {
        let prepared = match open_device(wanted.options).await {
            Ok(device) => prepare(device, sketch, wanted.block_size, choice).await,
            Err(reason) => Err(reason),
        };
        running.push((choice, prepared));
    }
    let mut times: Vec<Option<TrialTimes>> = vec![None; running.len()];
    for _ in 0..Contender::ROUNDS {
        for ((_, contender), least) in running.iter_mut().zip(&mut times) {
            let Ok(ready) = contender else { continue };
            match ready.round(clock).await {
                Ok(round) => *least = Some(least.map_or(round, |least| least.least(round))),
                Err(error) => *contender = Err(error.to_string()),
            }
        }
    }
    let trial = |((choice, contender), least): ((KernelChoice, Result<Contender, String>), _)| Trial {
        choice,
        times: contender.and_then(|_| Option::ok_or(least, String::new())),
    };
    let trials = running.into_iter().zip(times).map(trial).collect();
    let Some(tuned) = Tuned::of(key, trials) else { return own };
    store.set_kernels(&tuned.key.file_name(), &tuned.to_json()).await;
    tuned.choice
}

async fn prepare(
    device: Device,
    sketch: &Sketch,
    block_size: u32,
    choice: KernelChoice,
) -> Result<Contender, String> {
    Contender::prepare(device, sketch, block_size, choice).await.map_err(|failure| failure.to_string())
}

//! What the trace says of the adapter: its name, whether it has timestamps, where it samples, how fast it is.
//!
//! Never runs a model. Invariant: it is opened as the engine opened it, so that the facts are those of the engine's device.

use firstlight_engine::gpu::{Device, DeviceOptions, KernelChoice, SampleOn};
use firstlight_shaders::KvFormat;
use firstlight_shaders::sample::MAX_VOCAB;
use serde::Serialize;

use super::Rates;
use crate::cli::AdapterArgs;
use crate::executor::block_on;
use crate::failure::Failure;
use crate::{adapters, terminal};

/// An adapter, measured.
#[derive(Clone, Debug, Serialize)]
pub struct Adapter {
    /// Its name.
    pub name: String,
    /// A driver that computes on the CPU.
    pub is_cpu: bool,
    /// Whether it has timestamps.
    pub timestamps: bool,
    /// Whether tokens are chosen there.
    pub samples: bool,
    /// How it stores keys and values where nobody says how.
    #[serde(skip)]
    pub own_kv: KvFormat,
    /// Its rates.
    pub rates: Rates,
}

impl Adapter {
    /// Opens the adapter of `args` once more and measures it; `vocab_size` is the model's.
    ///
    /// # Errors
    /// Exit code 3 where it is gone, 1 where it cannot be measured.
    pub fn measure(args: &AdapterArgs, vocab_size: u32) -> Result<Self, Failure> {
        let (index, adapter) = adapters::choose(args.adapter.as_deref())?;
        let options = DeviceOptions { default_limits: args.default_limits };
        let device = block_on(Device::open(&adapter, index, options), std::thread::yield_now)?;
        terminal::note("measuring the adapter's memory bandwidth and arithmetic");
        let facts = device.facts();
        let choice = KernelChoice::for_adapter(facts);
        let on_gpu = choice.sample_on == SampleOn::Gpu;
        Ok(Self {
            name: facts.name.clone(),
            is_cpu: facts.is_cpu,
            timestamps: facts.timestamps,
            samples: on_gpu && vocab_size <= MAX_VOCAB,
            own_kv: choice.kv,
            rates: Rates::measure(&device)?,
        })
    }
}

//! A model opened in this tab: headers, tokenizer, device, weights, kernels.
//!
//! Invariant: the headers are checked before any adapter is touched, and no answer is given by kernels that were found wrong.

use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;

use firstlight_engine::artifact;
use firstlight_engine::budget::Stack;
use firstlight_engine::costs::StepCosts;
use firstlight_engine::engine::{Engine, EngineConfig};
use firstlight_engine::error::{DeviceError, LoadError};
use firstlight_engine::gpu::{AdapterFacts, Device, DeviceOptions, KernelChoice};
use firstlight_engine::model::{Checkpoint, LoadFailure, LoadProgress};
use firstlight_engine::runner::{GpuRunner, Place};
use firstlight_engine::sched::SchedulerConfig;
use firstlight_engine::text::{Preparer, Tokenizer};
use firstlight_engine::timeline::ModelLabel;
use firstlight_shaders::{Activations, KvFormat};
use sha2::{Digest, Sha256};

use super::super::blob::BlobSource;
use super::super::clock::PageClock;
use super::super::meter::Meter;
use super::super::obtain::Obtained;
use super::super::store::Store;
use super::room;
use crate::protocol::{Backend, BackendKind, EngineSettings, KvCache, Stage};

/// The most bytes of one text file of a model: the largest published tokenizers have some 35 MB.
const MAX_TEXT_FILE_BYTES: u64 = 256 << 20;

/// Where the engine finds its runner.
pub type RunnerPlace = Place<GpuRunner>;

/// What opens the device and loads it, as often as it has to be.
pub struct Loader {
    checkpoint: Checkpoint<BlobSource>,
    limits: SchedulerConfig,
    options: DeviceOptions,
    activations: Activations,
    kv: KvCache,
    store: Option<Store>,
    place: RunnerPlace,
    /// How keys and values are stored, on the device that was opened last.
    stored: Cell<KvFormat>,
}

/// An engine that can answer.
pub struct Opened {
    /// The engine.
    pub engine: Engine<RunnerPlace, PageClock>,
    /// Loads its runner anew.
    pub loader: Loader,
    /// The model's text side.
    pub preparer: Arc<Preparer>,
    /// What to tell the page.
    pub backend: Backend,
}

/// Opens a model whose files are here.
///
/// # Errors
/// What is wrong with the model, the adapter, or the room asked for, in a sentence.
pub async fn open(
    obtained: Obtained,
    settings: &EngineSettings,
    clock: PageClock,
    store: Option<Store>,
) -> Result<Opened, String> {
    let (checkpoint, tokenizer) = read_headers(&obtained).await.map_err(|error| error.to_string())?;
    let limits = room::limits(settings, checkpoint.config())?;
    let preparer = Preparer::new(tokenizer.clone(), limits.vocab_size, limits.max_model_len)
        .map_err(|error| error.to_string())?;
    let sha256 = match obtained.list.files.as_slice() {
        [one] => one.sha256.clone(),
        _ => None,
    };
    let model =
        ModelLabel { name: obtained.list.name.clone(), sha256, quantisation: checkpoint.quantisation() };
    let chat = tokenizer.as_ref().is_some_and(|tokenizer| tokenizer.chat_template().is_some());
    let eos_tokens = artifact::end_tokens(checkpoint.config(), tokenizer.as_deref());
    let options = DeviceOptions { default_limits: settings.default_limits };
    let activations = if settings.i8_activations { Activations::I8 } else { Activations::F32 };
    let kv = settings.kv;
    let loader = Loader {
        checkpoint,
        limits,
        options,
        activations,
        kv,
        store,
        place: RunnerPlace::default(),
        stored: Cell::default(),
    };
    let adapter = loader.load().await?;
    let fingerprint = format!("{limits:?} {} {adapter}", model.name);
    let config = EngineConfig {
        scheduler: limits,
        eos_tokens,
        model: model.clone(),
        engine_config: hex(&Sha256::digest(fingerprint.as_bytes())[..8]),
    };
    let backend = Backend {
        kind: BackendKind::Tab,
        url: None,
        model,
        adapter,
        slots: Some(limits.max_num_seqs),
        max_model_len: Some(limits.max_model_len),
        chat,
        kept: obtained.kept,
        bench: None,
    };
    let engine = Engine::new(loader.place.clone(), clock, config, tokenizer);
    Ok(Opened { engine, loader, preparer: Arc::new(preparer), backend })
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

type Headers = (Checkpoint<BlobSource>, Option<Arc<Tokenizer>>);

async fn read_headers(obtained: &Obtained) -> Result<Headers, LoadError> {
    let Some(config) = obtained.file("config.json") else {
        // The catalog gives one file where there is no configuration.
        let source = obtained.files.first().cloned();
        let none = || LoadError::Read { name: obtained.list.name.clone(), reason: "it has no file".into() };
        let checkpoint = Checkpoint::open_gguf(source.ok_or_else(none)?).await?;
        let metadata = checkpoint.gguf().map(artifact::gguf_tokenizer).transpose()?.flatten();
        let tokenizer = metadata.map(Tokenizer::from_gguf).transpose()?.map(Arc::new);
        return Ok((checkpoint, tokenizer));
    };
    let config = config.whole(MAX_TEXT_FILE_BYTES).await?;
    let is_shard = |source: &&BlobSource| source.name.ends_with(".safetensors");
    let shards = obtained.files.iter().filter(is_shard).cloned().collect();
    let checkpoint = Checkpoint::open_safetensors(&config, shards).await?;
    let Some(json) = text(obtained, "tokenizer.json").await? else { return Ok((checkpoint, None)) };
    let settings = text(obtained, "tokenizer_config.json").await?;
    let generation = text(obtained, "generation_config.json").await?;
    let template = text(obtained, "chat_template.jinja").await?;
    let template = template.as_deref().map(String::from_utf8_lossy);
    let tokenizer = Tokenizer::from_files(
        &json,
        settings.as_deref(),
        generation.as_deref(),
        Some(&config),
        template.as_deref(),
    )?;
    Ok((checkpoint, Some(Arc::new(tokenizer))))
}

async fn text(obtained: &Obtained, name: &str) -> Result<Option<Vec<u8>>, LoadError> {
    match obtained.file(name) {
        Some(source) => source.whole(MAX_TEXT_FILE_BYTES).await.map(Some),
        None => Ok(None),
    }
}

impl Loader {
    /// Empties the place, opens the device, brings the weights onto it, tests kernels that are new here and runs each once.
    /// Says which adapter and kernels it has.
    ///
    /// # Errors
    /// In a sentence: no adapter, no memory (with what and how much), a kernel that computes wrong.
    pub async fn load(&self) -> Result<String, String> {
        drop(self.place.take());
        let device = open_device(self.options).await?;
        let own = KernelChoice::for_adapter(device.facts());
        let kv = self.kv.stored().unwrap_or(own.kv);
        let choice = KernelChoice { activations: self.activations, kv, ..own };
        self.stored.set(kv);
        let name = adapter_name(device.facts());
        let described = format!("{name}: {choice}");
        // Other kernels after an update of ours or of the browser are to be tested anew.
        let identity =
            format!("{} {:?} {choice} {:?}", env!("CARGO_PKG_VERSION"), user_agent(), device.facts());
        let is_new = match &self.store {
            Some(store) => !store.is_tested(&identity).await,
            None => true,
        };
        let device = if is_new { device.doubted() } else { device };
        let total = self.checkpoint.total_bytes();
        let mut upload = Meter::begin(Stage::Upload, None, 0, Some(total));
        let mut show = |progress: LoadProgress| upload.set(progress.bytes_done);
        let limits = (&self.limits).into();
        let loaded = GpuRunner::load(device, &self.checkpoint, limits, choice, &mut show).await;
        let mut runner = loaded.map_err(|failure| in_the_tab(failure, &name))?;
        let kernels = runner.num_kernels() as u64;
        let mut compile = Meter::begin(Stage::Compile, None, 0, Some(kernels));
        runner.warm_up().await.map_err(|error| error.to_string())?;
        compile.set(kernels);
        if let Some(store) = self.store.as_ref().filter(|_| is_new) {
            store.set_tested(&identity).await;
        }
        self.place.put(runner);
        Ok(described)
    }

    /// Lets the device go.
    pub fn unload(&self) {
        drop(self.place.take());
    }

    /// The model by the costs of its steps.
    pub fn stack(&self, costs: StepCosts) -> Stack {
        Stack::measured(&self.checkpoint, self.stored.get(), &self.limits, costs)
    }

    /// The limits of the engine.
    pub fn limits(&self) -> SchedulerConfig {
        self.limits
    }
}

/// What failed, in words that fit a page: no flags of a program, and no adapter without a name.
fn in_the_tab(failure: LoadFailure, name: &str) -> String {
    match failure {
        LoadFailure::Device(DeviceError::OutOfMemory { what, needed_bytes, reason }) => format!(
            "out_of_memory: {what} needs {needed_bytes} bytes, and {reason}; lower KV blocks, slots, tokens a step or the longest context in the engine settings, or take a smaller model"
        ),
        LoadFailure::Load(LoadError::Activations { name, reason }) => {
            format!("{name} is not supported: {reason}; untick 8 bits in the engine settings")
        }
        LoadFailure::Device(DeviceError::SelfTest { kernel, adapter, nmse }) if adapter.trim().is_empty() => {
            DeviceError::SelfTest { kernel, adapter: name.to_owned(), nmse }.to_string()
        }
        other => other.to_string(),
    }
}

/// Browsers give an adapter's name only in part, if at all.
fn adapter_name(facts: &AdapterFacts) -> String {
    match (facts.name.trim(), facts.is_cpu) {
        ("", true) => "this browser's CPU renderer".into(),
        ("", false) => "this browser's GPU".into(),
        (name, _) => name.to_owned(),
    }
}

fn user_agent() -> String {
    use wasm_bindgen::JsCast;
    let scope: web_sys::WorkerGlobalScope = web_sys::js_sys::global().unchecked_into();
    scope.navigator().user_agent().unwrap_or_default()
}

async fn open_device(options: DeviceOptions) -> Result<Device, String> {
    let instance = Rc::new(wgpu::Instance::new(wgpu::InstanceDescriptor::new_without_display_handle()));
    let wanted = wgpu::RequestAdapterOptions {
        power_preference: wgpu::PowerPreference::HighPerformance,
        ..Default::default()
    };
    let adapter =
        instance.request_adapter(&wanted).await.map_err(|error| format!("{NO_ADAPTER} ({error})"))?;
    Device::open(&adapter, 0, options).await.map_err(|error| error.to_string())
}

/// What a person can do about a browser without an adapter.
pub const NO_ADAPTER: &str = "WebGPU is there, but this browser gives no GPU to it: update the browser and the graphics driver, turn on hardware acceleration in its settings, or use a server (firstlight serve)";

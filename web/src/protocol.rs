//! What page and worker say to each other: typed messages, written as JSON text.
//!
//! The name of a message is the one key of its object: a name among the fields would have every field read twice.
//! Instants are nanoseconds since the page's time origin. Invariant: every [`Ask`] that was submitted is answered by exactly
//! one [`Event::Finished`], whatever becomes of engine, server or network.

use firstlight_engine::budget::Stack;
use firstlight_engine::clock::Nanos;
use firstlight_engine::report::LatencyReport;
use firstlight_engine::request::{FinishReason, SamplingParams};
use firstlight_engine::timeline::{ModelLabel, StepRecord, TimelineRecord};
use firstlight_shaders::KvFormat;
use serde::{Deserialize, Serialize};

/// Names one prompt that the page sent; the page counts them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Deserialize, Serialize)]
pub struct AskId(pub u64);

/// From the page to the worker.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Command {
    /// The first word: where the page lies and what its clock says. Answered by [`Event::Hello`].
    Hello {
        /// `performance.timeOrigin` of the page, in Unix milliseconds.
        origin_unix_ms: f64,
        /// The page's clock at the moment of sending.
        sent_at: Nanos,
        /// The page's address: models are looked for beside it.
        page_url: String,
        /// Where the Hugging Face hub is looked for, if not at its usual address.
        hub: Option<String>,
    },
    /// The worker's clock was seen `nanos` off the page's at the round trip.
    AdjustClock {
        /// To be added to it.
        nanos: i64,
    },
    /// Asks for [`Event::Models`].
    ListModels,
    /// Opens a model in the tab. Files travel beside the message.
    Open {
        /// Which.
        model: ModelChoice,
        /// How much room the engine gets.
        settings: EngineSettings,
    },
    /// Stops whatever [`Command::Open`] is at; what was downloaded stays, to be resumed.
    StopOpening,
    /// Forgets a stored model. Answered by [`Event::Models`].
    Delete {
        /// [`StoredModel::key`].
        key: String,
    },
    /// Uses a server instead of the tab.
    Connect {
        /// Its address.
        url: String,
        /// Sent as `authorization: Bearer`.
        api_key: Option<String>,
    },
    /// Plays recorded events, as if they came from an engine. The recording may travel beside the message.
    Replay {
        /// Where it is, or what to call it: a JSON list of `{"at": nanoseconds, "event": ...}`, or what `firstlight bench --json` wrote.
        url: String,
    },
    /// Shows another run of what a bench came to, [`Backend::bench`]. Answered by [`Event::Ready`] and all that is in the run.
    ShowRun {
        /// Which of [`BenchFacts::runs`], from 0.
        run: usize,
    },
    /// Opens the device again after it failed.
    Reopen,
    /// Sends prompts that arrived at one instant.
    Submit {
        /// Each of them.
        asks: Vec<Ask>,
    },
    /// Ends one.
    Cancel {
        /// Whose.
        ask: AskId,
    },
    /// Asks why a token was late. Answered by [`Event::Blame`].
    Blame {
        /// The timeline's id.
        id: String,
        /// The token at the gap's end, from 1.
        token_idx: usize,
    },
    /// Asks which stage to look at. Answered by [`Event::Diagnosis`].
    Diagnose {
        /// Whether the later half of the requests is compared with the earlier one.
        halves: bool,
        /// Whether the answers seem worse.
        worse_answers: bool,
    },
    /// Asks for a file, or for what one is made of. Answered by [`Event::Exported`].
    Export {
        /// Of which kind.
        kind: ExportKind,
    },
}

/// Where a model comes from.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ModelChoice {
    /// One of [`Event::Models`]' `beside`.
    Beside {
        /// Its file.
        file: String,
    },
    /// One of [`Event::Models`]' `stored`.
    Stored {
        /// [`StoredModel::key`].
        key: String,
    },
    /// An address.
    Url {
        /// Of a GGUF file, or of a folder's config.json.
        url: String,
    },
    /// The Hugging Face hub.
    Hub {
        /// OWNER/REPO, or OWNER/REPO:file.gguf.
        name: String,
    },
    /// Files that were dropped on the page, beside the message.
    Files,
}

/// Room for the engine in the tab.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
pub struct EngineSettings {
    /// Sequences in a batch at most.
    pub slots: u32,
    /// Prompt and decode tokens of a step at most.
    pub batch_tokens: u32,
    /// Tokens of a KV block.
    pub block_size: u32,
    /// KV blocks; chosen by the model where absent.
    pub kv_blocks: Option<u32>,
    /// The longest prompt and answer together; the model's own where absent.
    pub max_model_len: Option<u32>,
    /// Whether prompts that begin alike share blocks.
    pub prefix_cache: bool,
    /// WebGPU's default limits and no optional feature, whatever the adapter has.
    pub default_limits: bool,
    /// Whether the products of the layers take activations in 8 bits instead of f32: where the adapter's kernels can, and the
    /// layers' weights have 4 bits.
    pub i8_activations: bool,
    /// How keys and values are kept.
    pub kv: KvCache,
}

/// How keys and values are kept.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum KvCache {
    /// As suits the adapter.
    #[default]
    Auto,
    /// 32-bit floats.
    F32,
    /// 16-bit floats.
    F16,
    /// 8 bits.
    Q8,
}

impl KvCache {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Auto, Self::F32, Self::F16, Self::Q8];

    /// The word for it, which is the program's.
    pub fn name(self) -> &'static str {
        self.stored().map_or("auto", KvFormat::name)
    }

    /// The format, unless the adapter's is meant.
    pub fn stored(self) -> Option<KvFormat> {
        match self {
            Self::Auto => None,
            Self::F32 => Some(KvFormat::F32),
            Self::F16 => Some(KvFormat::F16),
            Self::Q8 => Some(KvFormat::Q8),
        }
    }
}

impl Default for EngineSettings {
    fn default() -> Self {
        Self {
            slots: 4,
            batch_tokens: 512,
            block_size: 16,
            kv_blocks: None,
            max_model_len: None,
            prefix_cache: true,
            default_limits: false,
            i8_activations: false,
            kv: KvCache::Auto,
        }
    }
}

/// One prompt.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
pub struct Ask {
    /// The page's number for it.
    pub id: AskId,
    /// The call was made: the page's clock.
    pub received: Nanos,
    /// What is asked.
    pub prompt: Prompt,
    /// How it is to be answered.
    pub sampling: Sampling,
}

/// What is asked.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Prompt {
    /// A conversation, for the model's chat template.
    Chat(Vec<Message>),
    /// Text as it is.
    Raw(String),
}

/// One message of a conversation.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
pub struct Message {
    /// system, user, assistant.
    pub role: String,
    /// What was said.
    pub content: String,
}

/// How tokens are chosen, in OpenAI's words. See the engine's `SamplingParams` for ranges.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[allow(missing_docs, reason = "each is the field of SamplingParams of the same name")]
pub struct Sampling {
    pub max_tokens: u32,
    pub temperature: f32,
    pub top_k: u32,
    pub top_p: f32,
    pub min_p: f32,
    pub repetition_penalty: f32,
    pub presence_penalty: f32,
    pub frequency_penalty: f32,
    /// Drawn where absent.
    pub seed: Option<u64>,
    pub stop: Vec<String>,
    pub ignore_eos: bool,
}

impl Default for Sampling {
    fn default() -> Self {
        Self {
            max_tokens: 256,
            temperature: 0.0,
            top_k: 0,
            top_p: 1.0,
            min_p: 0.0,
            repetition_penalty: 1.0,
            presence_penalty: 0.0,
            frequency_penalty: 0.0,
            seed: None,
            stop: Vec::new(),
            ignore_eos: false,
        }
    }
}

impl Sampling {
    /// The same as the engine takes it, with this seed where none is set.
    pub fn params(&self, seed: impl FnOnce() -> u64) -> SamplingParams {
        SamplingParams {
            max_tokens: self.max_tokens,
            temperature: self.temperature,
            top_k: self.top_k,
            top_p: self.top_p,
            min_p: self.min_p,
            repetition_penalty: self.repetition_penalty,
            presence_penalty: self.presence_penalty,
            frequency_penalty: self.frequency_penalty,
            seed: self.seed.unwrap_or_else(seed),
            stop: self.stop.clone(),
            ignore_eos: self.ignore_eos,
            ..SamplingParams::default()
        }
    }
}

/// Files that a person can keep.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ExportKind {
    /// `{"timelines": [...], "steps": [...], "report": {...}}`.
    Json,
    /// The same, for the page to put into a document that shows it.
    Html,
    /// For Perfetto and its like.
    ChromeTrace,
}

/// From the worker to the page.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Event {
    /// The answer to [`Command::Hello`].
    Hello {
        /// As it came.
        sent_at: Nanos,
        /// The worker's clock when it came.
        heard_at: Nanos,
        /// Absent where this tab can run a model; else why not, and what to do.
        no_webgpu: Option<String>,
    },
    /// The models that can be had.
    Models {
        /// Beside the page.
        beside: Vec<BesideModel>,
        /// In this browser.
        stored: Vec<StoredModel>,
        /// Of this site's storage.
        storage: Option<StorageFigures>,
    },
    /// How far opening has come.
    Progress(Progress),
    /// Something that needs no answer: the model runs and is not kept, and the like.
    Notice {
        /// In a sentence.
        sentence: String,
    },
    /// Prompts are answered from now on.
    Ready(Backend),
    /// What was asked for could not be had; whatever ran before goes on if it did.
    OpenFailed {
        /// What, with which value, what to do next.
        sentence: String,
    },
    /// The device failed. While `reopening` it comes back by itself; else [`Command::Reopen`] tries again.
    DeviceFailed {
        /// What the driver said.
        sentence: String,
        /// Whether it is being opened again already.
        reopening: bool,
    },
    /// The device is open again after [`Event::DeviceFailed`].
    Reopened {
        /// Adapter and kernels, in words.
        adapter: String,
    },
    /// A prompt was taken.
    Accepted {
        /// Whose.
        ask: AskId,
        /// The timeline's id.
        id: String,
        /// What the chat template made of it, where that is known.
        rendered: Option<String>,
        /// Its tokens, where that is known.
        prompt_tokens: Option<u32>,
    },
    /// More of an answer.
    Text {
        /// Whose.
        ask: AskId,
        /// What came.
        text: String,
        /// Tokens of the answer so far.
        tokens: u32,
        /// The tokens since the last such event; empty where only the server knows them.
        token_ids: Vec<u32>,
    },
    /// An answer ended.
    Finished {
        /// Whose.
        ask: AskId,
        /// Why.
        reason: FinishReason,
        /// In a sentence, where it is no ordinary end.
        detail: Option<String>,
    },
    /// What goes on: at most some times a second, and once more when nothing goes on any more.
    Live(Live),
    /// A timeline is whole and sealed; in the order of their ends.
    Sealed {
        /// It.
        timeline: Box<TimelineRecord>,
    },
    /// The report over the last finished timelines.
    Report {
        /// It.
        report: Box<LatencyReport>,
    },
    /// What steps cost there.
    Stack {
        /// It.
        stack: Box<Stack>,
    },
    /// The answer to [`Command::Blame`].
    Blame {
        /// As asked.
        id: String,
        /// As asked.
        token_idx: usize,
        /// The gap before the token and what is to blame, in a sentence.
        sentence: String,
    },
    /// The answer to [`Command::Diagnose`].
    Diagnosis(Diagnosis),
    /// The answer to [`Command::Export`].
    Exported {
        /// As asked.
        kind: ExportKind,
        /// What to call the file.
        file: String,
        /// What is in it.
        json: String,
    },
}

/// Which stage to look at, in sentences.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
pub struct Diagnosis {
    /// All of it in one.
    pub summary: String,
    /// Under which conditions the figures hold; those of the earlier half behind them.
    pub conditions: Vec<String>,
    /// What stands out: a title, then its evidence, how sure it is, and what to look at.
    pub findings: Vec<Vec<String>>,
    /// What was looked at besides: symptoms, each with its sentence.
    pub checked: Vec<[String; 2]>,
}

/// A model beside the page.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
pub struct BesideModel {
    /// What to call it.
    pub name: String,
    /// Its file, beside the page.
    pub file: String,
    /// Its length.
    pub bytes: u64,
    /// Of its bytes, in hexadecimal.
    pub sha256: String,
}

/// A model in this browser's storage.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
pub struct StoredModel {
    /// What names it among the others.
    pub key: String,
    /// What to call it.
    pub name: String,
    /// Its length, all files together; of one that is not whole, that of what is to come as well.
    pub bytes: u64,
    /// What is here of it.
    pub bytes_here: u64,
    /// Of a single file, where it is known.
    pub sha256: Option<String>,
}

/// This site's storage in the browser.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
pub struct StorageFigures {
    /// Bytes in use.
    pub used: u64,
    /// Bytes that may be used.
    pub quota: u64,
}

/// What opening a model is at.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Stage {
    /// Another tab is at the same model.
    Waiting,
    /// From the network.
    Download,
    /// Against its SHA-256.
    Check,
    /// To the GPU.
    Upload,
    /// Kernels.
    Compile,
}

/// How far it is.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
pub struct Progress {
    /// At what.
    pub stage: Stage,
    /// Which file, where there are several.
    pub file: Option<String>,
    /// Bytes; kernels while compiling.
    pub done: u64,
    /// Of so many, where that is known.
    pub total: Option<u64>,
    /// Over the last seconds; 0 before that can be said.
    pub per_second: f64,
}

/// What kind of backend answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum BackendKind {
    /// The engine in this tab.
    Tab,
    /// A server.
    Server,
    /// A recording.
    Replay,
}

/// What answers.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
pub struct Backend {
    /// Which kind.
    pub kind: BackendKind,
    /// The server's address, or the recording's.
    pub url: Option<String>,
    /// The model.
    pub model: ModelLabel,
    /// Adapter and kernels, in words; empty where a server does not say.
    pub adapter: String,
    /// Sequences in a batch at most.
    pub slots: Option<u32>,
    /// The longest prompt and answer together.
    pub max_model_len: Option<u32>,
    /// Whether conversations can be had (the model has a chat template).
    pub chat: bool,
    /// Of a model in the tab: whether it is kept for the next visit.
    pub kept: bool,
    /// Of a recording that a bench wrote: under which conditions, and which run is shown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bench: Option<BenchFacts>,
}

/// What a bench's result says beside timelines, steps and reports.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
pub struct BenchFacts {
    /// Names and values.
    pub conditions: Vec<(String, String)>,
    /// What each run is called.
    pub runs: Vec<String>,
    /// Which of them is shown, from 0.
    pub shown: usize,
}

/// Gauges and counters at one instant.
#[derive(Clone, Copy, Debug, Default, PartialEq, Deserialize, Serialize)]
pub struct Gauges {
    /// Sequences in the batch.
    pub running: u32,
    /// In inbox and queue.
    pub waiting: u32,
    /// KV blocks that have an owner.
    pub blocks_used: u32,
    /// KV blocks in the pool; 0 where that is not known.
    pub blocks_total: u32,
    /// Evictions so far.
    pub preemptions_total: u64,
}

/// What goes on.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
pub struct Live {
    /// The engine's clock when this was put together.
    pub now: Nanos,
    /// Gauges and counters.
    pub gauges: Gauges,
    /// The timelines of all that have not ended.
    pub timelines: Vec<TimelineRecord>,
    /// The steps since the last such event.
    pub steps: Vec<StepRecord>,
}

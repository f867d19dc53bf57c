//! What leaves the server about its requests: the log on stderr, and traces and metrics to a collector that was asked for.
//!
//! Unless a collector was named, nothing leaves the machine. Invariant: nothing in here makes a request wait; what finds no
//! room is dropped and counted.

mod call;
mod exporter;
mod instruments;
pub(super) mod logs;
mod requests;
#[cfg(test)]
pub(super) mod samples;
mod settings;
mod spans;
mod stages;
mod trace_context;
mod values;

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use firstlight_engine::clock::Nanos;
use firstlight_engine::request::FinishReason;
use firstlight_engine::timeline::RequestTimeline;

pub use self::call::CallFacts;
use self::exporter::Exporter;
pub use self::requests::log_ended;
use self::settings::Settings;
pub use self::trace_context::{TRACEPARENT, TraceContext};
use crate::cache::Environment;
use crate::cli::ServeArgs;
use crate::driver::EngineHandle;
use crate::failure::Failure;

/// What the conventions call whose model answers.
const PROVIDER: &str = "firstlight";
/// How long the last traces and metrics may take to reach their collector.
const LAST_WORDS: Duration = Duration::from_secs(3);

/// Where the server is.
#[derive(Clone, Debug)]
pub struct Whereabouts {
    /// As it was asked to listen.
    pub address: String,
    /// The port that it has.
    pub port: u16,
}

/// A call whose choices have all ended.
#[derive(Clone, Copy, Debug)]
pub struct FinishedCall<'a> {
    /// What was asked.
    pub facts: &'a CallFacts,
    /// Of all choices, in order, sealed.
    pub timelines: &'a [Arc<RequestTimeline>],
    /// The status that went out; `None` where nobody was there to be told.
    pub status: Option<u16>,
}

impl FinishedCall<'_> {
    /// Of the choices that ended in no answer the first that did: where one fails, the others are cancelled for it.
    fn failure(&self) -> Option<&RequestTimeline> {
        let failures = self.timelines.iter().filter(|timeline| call::error_type(timeline).is_some());
        let in_time = |timeline: &&Arc<RequestTimeline>| {
            (timeline.stamps().finished, timeline.finish_reason() == Some(FinishReason::Cancelled))
        };
        failures.min_by_key(in_time).map(Arc::as_ref)
    }

    /// Why there is no answer.
    fn error_type(&self) -> Option<&'static str> {
        self.failure().and_then(call::error_type)
    }
}

/// See the module.
pub struct Telemetry {
    here: Whereabouts,
    exporter: Option<Exporter>,
    engine: Arc<OnceLock<EngineHandle>>,
}

impl Telemetry {
    /// For the collector that `args` name, or else the environment; for none if neither does.
    ///
    /// # Errors
    /// A setting that cannot be understood, or the system gives no thread.
    pub fn start(args: &ServeArgs, environment: Environment<'_>, here: Whereabouts) -> Result<Self, Failure> {
        let settings = Settings::read(args.otlp_endpoint.as_deref(), environment)?;
        let engine = Arc::default();
        let start = |settings| Exporter::start(settings, here.clone(), Arc::clone(&engine));
        Ok(Self { exporter: settings.map(start).transpose()?, here, engine })
    }

    /// For no collector.
    #[cfg(test)]
    pub fn nowhere() -> Self {
        let here = Whereabouts { address: "127.0.0.1".to_owned(), port: 0 };
        Self { here, exporter: None, engine: Arc::default() }
    }

    /// Whose gauges are told, once it is there.
    pub fn watch(&self, engine: EngineHandle) {
        // Called once.
        let _ = self.engine.set(engine);
    }

    /// Whether a call that belongs to no trace begins one.
    pub fn traces(&self) -> bool {
        self.exporter.as_ref().is_some_and(Exporter::sends_traces)
    }

    /// Takes a call that ended.
    pub fn take(&self, call: &FinishedCall<'_>) {
        let Some(exporter) = &self.exporter else { return };
        exporter.count(call);
        if exporter.sends_traces() {
            exporter.push(spans::of_call(call, &self.here));
        }
    }

    /// Spans that no collector got.
    pub fn num_dropped(&self) -> u64 {
        self.exporter.as_ref().map_or(0, Exporter::num_dropped)
    }

    /// Sends what there is, for a moment, and then no more.
    pub fn shut_down(&self) {
        if let Some(exporter) = &self.exporter {
            exporter.shut_down(LAST_WORDS);
        }
    }
}

/// From `received` to the first content that was written, or to the first token where the answer went out whole.
fn first_answer(timeline: &RequestTimeline) -> Option<Nanos> {
    let stamps = timeline.stamps();
    timeline.ttft().or_else(|| stamps.first_token?.checked_sub(stamps.received()?))
}

//! The way to the collector: a bounded queue, and one thread that empties it over HTTP.
//!
//! Whoever hands something in never waits. Invariant: at most [`MAX_SPANS`] spans wait, at most [`BATCH_SPANS`] more are
//! under way in one delivery, which has an end; what a collector did not take is counted.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use opentelemetry_proto::tonic::collector::metrics::v1::ExportMetricsServiceRequest;
use opentelemetry_proto::tonic::collector::trace::v1::{
    ExportTraceServiceRequest, ExportTraceServiceResponse,
};
use opentelemetry_proto::tonic::common::v1::InstrumentationScope;
use opentelemetry_proto::tonic::metrics::v1::{ResourceMetrics, ScopeMetrics};
use opentelemetry_proto::tonic::resource::v1::Resource;
use opentelemetry_proto::tonic::trace::v1::{ResourceSpans, ScopeSpans, Span};
use prost::Message;

use super::instruments::{self, Instruments};
use super::settings::Destination;
use super::{FinishedCall, PROVIDER, Settings, Whereabouts};
use crate::driver::EngineHandle;
use crate::failure::Failure;

/// Spans that wait at most.
const MAX_SPANS: usize = 8192;
/// Spans that make a delivery of their own, whatever the time.
const BATCH_SPANS: usize = 512;
/// A delivery that may succeed later is tried so often.
const MAX_TRIES: u32 = 4;
/// Before the second try; twice as long before each further one.
const PAUSE: Duration = Duration::from_secs(1);
/// After a delivery of spans whose tries were all in vain, before the next one.
const BACK_OFF: Duration = Duration::from_secs(30);
/// A collector that takes nothing is told of no more often than this.
const BETWEEN_WARNINGS: Duration = Duration::from_secs(60);
/// The most of a collector's answer that is read.
const MAX_ANSWER_BYTES: u64 = 64 << 10;

/// See the module.
pub struct Exporter {
    shared: Arc<Shared>,
}

struct Shared {
    settings: Settings,
    here: Whereabouts,
    engine: Arc<OnceLock<EngineHandle>>,
    resource: Resource,
    since: u64,
    instruments: Mutex<Instruments>,
    queue: Mutex<Queue>,
    /// There is a batch, or the end is near.
    called: Condvar,
    /// The thread has ended.
    gone: Condvar,
    dropped: AtomicU64,
}

#[derive(Default)]
struct Queue {
    spans: Vec<Span>,
    /// Until when the last deliveries may take.
    ends_at: Option<Instant>,
    has_ended: bool,
}

/// What became of a delivery.
#[derive(Debug)]
enum Delivery {
    /// With this answer.
    Taken(Vec<u8>),
    /// It may be taken later.
    NotNow(String),
    Refused(String),
}

impl Exporter {
    /// Starts the thread.
    ///
    /// # Errors
    /// The system gives none.
    pub fn start(
        settings: Settings,
        here: Whereabouts,
        engine: Arc<OnceLock<EngineHandle>>,
    ) -> Result<Self, Failure> {
        let shared = Arc::new(Shared::new(settings, here, engine));
        let courier = Courier::new(Arc::clone(&shared));
        let named = std::thread::Builder::new().name("firstlight-otlp".into());
        named.spawn(move || courier.run()).map_err(|error| {
            Failure::failed(format!(
                "the telemetry's thread cannot be started: {error}; close other programs"
            ))
        })?;
        Ok(Self { shared })
    }

    /// Whether spans go anywhere.
    pub fn sends_traces(&self) -> bool {
        self.shared.settings.traces.is_some()
    }

    /// Counts a call that ended.
    pub fn count(&self, call: &FinishedCall<'_>) {
        self.shared.instruments().count(call);
    }

    /// Takes the spans of a call; all of them, or none where there is no room.
    pub fn push(&self, spans: Vec<Span>) {
        let mut queue = self.shared.queue();
        if queue.ends_at.is_some() || queue.spans.len() + spans.len() > MAX_SPANS {
            self.shared.drop_spans(spans.len());
            return;
        }
        queue.spans.extend(spans);
        if queue.spans.len() >= BATCH_SPANS {
            self.shared.called.notify_one();
        }
    }

    /// Spans that no collector got.
    pub fn num_dropped(&self) -> u64 {
        self.shared.dropped.load(Ordering::Relaxed)
    }

    /// Takes no more, and waits until what there is was delivered, but no longer than `limit`.
    pub fn shut_down(&self, limit: Duration) {
        let mut queue = self.shared.queue();
        queue.ends_at = Some(Instant::now() + limit);
        self.shared.called.notify_one();
        // What is under way then is left to itself.
        let waited = self.shared.gone.wait_timeout_while(queue, limit, |queue| !queue.has_ended);
        if waited.is_ok_and(|(_, outcome)| outcome.timed_out()) {
            let seconds = limit.as_secs();
            tracing::warn!(target: "firstlight::otlp", "the collector did not take what was left within {seconds} s; the last spans and metrics are lost");
        }
    }
}

impl Shared {
    fn new(settings: Settings, here: Whereabouts, engine: Arc<OnceLock<EngineHandle>>) -> Self {
        Self {
            resource: Resource { attributes: instruments::resource(&settings), ..Resource::default() },
            settings,
            here,
            engine,
            since: unix_nanos(),
            instruments: Mutex::default(),
            queue: Mutex::default(),
            called: Condvar::new(),
            gone: Condvar::new(),
            dropped: AtomicU64::new(0),
        }
    }

    fn queue(&self) -> MutexGuard<'_, Queue> {
        // Each change is whole.
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn instruments(&self) -> MutexGuard<'_, Instruments> {
        // A count that a panic left half done is still the best there is.
        self.instruments.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn drop_spans(&self, count: usize) {
        self.dropped.fetch_add(count as u64, Ordering::Relaxed);
    }

    /// Waits until `at`, or less where a batch is full or the end is near.
    fn wait(&self, at: Instant, batch: usize) {
        let limit = at.saturating_duration_since(Instant::now());
        let idle = |queue: &mut Queue| queue.spans.len() < batch && queue.ends_at.is_none();
        drop(self.called.wait_timeout_while(self.queue(), limit, idle));
    }
}

/// What runs on the thread.
struct Courier {
    shared: Arc<Shared>,
    agent: ureq::Agent,
    /// Before the second try.
    pause: Duration,
    /// When the spans that wait then are due, be they few.
    spans_at: Instant,
    /// Their collector is away: none are due before, be they many.
    backs_off: bool,
    metrics_at: Instant,
    warned_at: Option<Instant>,
}

impl Courier {
    fn new(shared: Arc<Shared>) -> Self {
        let config = ureq::Agent::config_builder()
            .http_status_as_error(false)
            .max_redirects(0)
            .max_redirects_will_error(false)
            .user_agent(concat!("firstlight/", env!("CARGO_PKG_VERSION")));
        let now = Instant::now();
        Self {
            agent: config.build().into(),
            pause: PAUSE,
            spans_at: now + shared.settings.traces_delay,
            backs_off: false,
            metrics_at: now + shared.settings.metrics_interval,
            warned_at: None,
            shared,
        }
    }

    fn run(mut self) {
        while !self.turn() {}
        self.shared.queue().has_ended = true;
        self.shared.gone.notify_all();
    }

    /// Waits until something is due and delivers it: one batch of spans and the metrics at most, so that neither waits for
    /// more than one delivery of the other. Whether that was the last, which is all that is left.
    fn turn(&mut self) -> bool {
        let batch = if self.backs_off { usize::MAX } else { BATCH_SPANS };
        self.shared.wait(self.spans_at.min(self.metrics_at), batch);
        if self.shared.queue().ends_at.is_some() {
            while self.deliver_batch() == Some(true) {}
            let left = std::mem::take(&mut self.shared.queue().spans).len();
            self.shared.drop_spans(left);
            self.deliver_metrics();
            return true;
        }
        let (delay, interval) = (self.shared.settings.traces_delay, self.shared.settings.metrics_interval);
        if self.spans_are_due(Instant::now()) {
            self.backs_off = self.deliver_batch() == Some(false);
            self.spans_at = Instant::now() + if self.backs_off { delay.max(BACK_OFF) } else { delay };
        }
        if Instant::now() >= self.metrics_at {
            self.deliver_metrics();
            self.metrics_at = Instant::now() + interval;
        }
        false
    }

    fn spans_are_due(&self, now: Instant) -> bool {
        now >= self.spans_at || (!self.backs_off && self.shared.queue().spans.len() >= BATCH_SPANS)
    }

    fn scope() -> Option<InstrumentationScope> {
        let version = env!("CARGO_PKG_VERSION").to_owned();
        Some(InstrumentationScope { name: PROVIDER.to_owned(), version, ..InstrumentationScope::default() })
    }

    /// The spans that have waited longest. Whether the collector was there to answer; `None` where there are none.
    fn deliver_batch(&mut self) -> Option<bool> {
        let to = self.shared.settings.traces.clone()?;
        let spans: Vec<Span> = {
            let mut queue = self.shared.queue();
            let count = queue.spans.len().min(BATCH_SPANS);
            queue.spans.drain(..count).collect()
        };
        if spans.is_empty() {
            return None;
        }
        let count = spans.len();
        let scope_spans = vec![ScopeSpans { scope: Self::scope(), spans, ..ScopeSpans::default() }];
        let resource = Some(self.shared.resource.clone());
        let of_all = ResourceSpans { resource, scope_spans, ..ResourceSpans::default() };
        let body = ExportTraceServiceRequest { resource_spans: vec![of_all] }.encode_to_vec();
        let (lost, why, is_there) = match self.deliver(&to, &body) {
            Delivery::Taken(answer) => {
                let partial = ExportTraceServiceResponse::decode(answer.as_slice()).ok();
                let rejected = partial.and_then(|answer| answer.partial_success).unwrap_or_default();
                let lost = usize::try_from(rejected.rejected_spans).unwrap_or(0);
                (lost.min(count), rejected.error_message, true)
            }
            Delivery::Refused(why) => (count, why, true),
            Delivery::NotNow(why) => (count, why, false),
        };
        if lost > 0 {
            self.shared.drop_spans(lost);
            self.warn(&to.url, &why);
        }
        Some(is_there)
    }

    /// Sums over the server's life: what is not taken now is in the next ones.
    fn deliver_metrics(&mut self) {
        let Some(to) = self.shared.settings.metrics.clone() else { return };
        let shared = &self.shared;
        let (since, now) = (shared.since, unix_nanos());
        let mut metrics = shared.instruments().metrics(&shared.here, since, now);
        let counters = shared.engine.get().map(EngineHandle::counters).unwrap_or_default();
        let num_dropped = shared.dropped.load(Ordering::Relaxed);
        metrics.extend(instruments::gauges(&counters, num_dropped, since, now));
        let scope_metrics = vec![ScopeMetrics { scope: Self::scope(), metrics, ..ScopeMetrics::default() }];
        let resource = Some(shared.resource.clone());
        let of_all = ResourceMetrics { resource, scope_metrics, ..ResourceMetrics::default() };
        let body = ExportMetricsServiceRequest { resource_metrics: vec![of_all] }.encode_to_vec();
        if let Delivery::NotNow(why) | Delivery::Refused(why) = self.deliver(&to, &body) {
            self.warn(&to.url, &why);
        }
    }

    /// Delivers, again and again for a while where that may help.
    fn deliver(&self, to: &Destination, body: &[u8]) -> Delivery {
        let mut pause = self.pause;
        let mut tried = 1;
        loop {
            let ends_at = self.shared.queue().ends_at;
            match self.post(to, body, ends_at) {
                Delivery::NotNow(_) if tried < MAX_TRIES && ends_at.is_none() => {
                    self.shared.wait(Instant::now() + pause, usize::MAX);
                    pause *= 2;
                    tried += 1;
                }
                outcome => return outcome,
            }
        }
    }

    fn post(&self, to: &Destination, body: &[u8], ends_at: Option<Instant>) -> Delivery {
        let left = ends_at.map(|at| at.saturating_duration_since(Instant::now()));
        let limit = left.map_or(to.timeout, |left| left.min(to.timeout));
        let request = self.agent.post(&to.url).config().timeout_global(Some(limit)).build();
        let request = request.content_type("application/x-protobuf");
        let request = to.headers.iter().fold(request, |request, (name, value)| request.header(name, value));
        let mut response = match request.send(body) {
            Ok(response) => response,
            Err(error) => return Delivery::NotNow(error.to_string()),
        };
        let status = response.status();
        match status.as_u16() {
            200..300 => {
                let answer = response.body_mut().with_config().limit(MAX_ANSWER_BYTES).read_to_vec();
                // Taken is taken, whatever becomes of the answer.
                Delivery::Taken(answer.unwrap_or_default())
            }
            429 | 502 | 503 | 504 => Delivery::NotNow(format!("it answered {status}")),
            _ => Delivery::Refused(format!("it answered {status}")),
        }
    }

    fn warn(&mut self, url: &str, why: &str) {
        let now = Instant::now();
        if self.warned_at.is_none_or(|at| now.duration_since(at) >= BETWEEN_WARNINGS) {
            self.warned_at = Some(now);
            let dropped = self.shared.dropped.load(Ordering::Relaxed);
            tracing::warn!(target: "firstlight::otlp", url, spans_dropped = dropped, "the collector does not take what it is sent: {why}");
        }
    }
}

fn unix_nanos() -> u64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    since.ok().and_then(|since| u64::try_from(since.as_nanos()).ok()).unwrap_or(0)
}

#[cfg(test)]
mod tests;

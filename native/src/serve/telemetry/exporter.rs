//! The way to the collector: a bounded queue, and one thread that empties it over HTTP.
//!
//! Whoever hands something in never waits. Invariant: at most [`MAX_SPANS`] spans wait, one delivery is under way, and each
//! has an end; what a collector did not take is counted.

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
enum Delivery {
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
        let resource = Resource { attributes: instruments::resource(&settings), ..Resource::default() };
        let shared = Arc::new(Shared {
            settings,
            here,
            engine,
            resource,
            since: unix_nanos(),
            instruments: Mutex::default(),
            queue: Mutex::default(),
            called: Condvar::new(),
            gone: Condvar::new(),
            dropped: AtomicU64::new(0),
        });
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
        drop(self.shared.gone.wait_timeout_while(queue, limit, |queue| !queue.has_ended));
    }
}

impl Shared {
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
    warned_at: Option<Instant>,
}

impl Courier {
    fn new(shared: Arc<Shared>) -> Self {
        let config = ureq::Agent::config_builder()
            .http_status_as_error(false)
            .max_redirects(0)
            .max_redirects_will_error(false)
            .user_agent(concat!("firstlight/", env!("CARGO_PKG_VERSION")));
        Self { shared, agent: config.build().into(), warned_at: None }
    }

    fn run(mut self) {
        let settings = self.shared.settings.clone();
        let now = Instant::now();
        let (mut spans_at, mut metrics_at) = (now + settings.traces_delay, now + settings.metrics_interval);
        loop {
            self.shared.wait(spans_at.min(metrics_at), BATCH_SPANS);
            let is_last = self.shared.queue().ends_at.is_some();
            let now = Instant::now();
            let num_waiting = self.shared.queue().spans.len();
            if is_last || now >= spans_at || num_waiting >= BATCH_SPANS {
                self.deliver_spans();
                spans_at = Instant::now() + settings.traces_delay;
            }
            if is_last || now >= metrics_at {
                self.deliver_metrics();
                metrics_at = Instant::now() + settings.metrics_interval;
            }
            if is_last {
                self.shared.queue().has_ended = true;
                self.shared.gone.notify_all();
                return;
            }
        }
    }

    fn scope() -> Option<InstrumentationScope> {
        let version = env!("CARGO_PKG_VERSION").to_owned();
        Some(InstrumentationScope { name: PROVIDER.to_owned(), version, ..InstrumentationScope::default() })
    }

    /// All that wait, batch by batch.
    fn deliver_spans(&mut self) {
        let mut left = std::mem::take(&mut self.shared.queue().spans);
        let Some(url) = self.shared.settings.traces.clone() else { return };
        while !left.is_empty() {
            let rest = left.split_off(left.len().min(BATCH_SPANS));
            let spans = std::mem::replace(&mut left, rest);
            let count = spans.len();
            let scope_spans = vec![ScopeSpans { scope: Self::scope(), spans, ..ScopeSpans::default() }];
            let resource = Some(self.shared.resource.clone());
            let of_all = ResourceSpans { resource, scope_spans, ..ResourceSpans::default() };
            let body = ExportTraceServiceRequest { resource_spans: vec![of_all] }.encode_to_vec();
            let lost = match self.deliver(&url, &body) {
                Ok(answer) => {
                    let partial = ExportTraceServiceResponse::decode(answer.as_slice()).ok();
                    let rejected = partial.and_then(|answer| answer.partial_success);
                    rejected.map(|partial| (partial.rejected_spans, partial.error_message))
                }
                Err(why) => Some((i64::try_from(count).unwrap_or(i64::MAX), why)),
            };
            if let Some((lost, why)) = lost.filter(|(lost, _)| *lost > 0) {
                self.shared.drop_spans(usize::try_from(lost).unwrap_or(0).min(count));
                self.warn(&url, &why);
            }
        }
    }

    /// Sums over the server's life: what is not taken now is in the next ones.
    fn deliver_metrics(&mut self) {
        let Some(url) = self.shared.settings.metrics.clone() else { return };
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
        if let Err(why) = self.deliver(&url, &body) {
            self.warn(&url, &why);
        }
    }

    /// Delivers, again and again for a while where that may help.
    fn deliver(&self, url: &str, body: &[u8]) -> Result<Vec<u8>, String> {
        let mut pause = PAUSE;
        for tried in 1.. {
            let ends_at = self.shared.queue().ends_at;
            let why = match self.post(url, body, ends_at) {
                Delivery::Taken(answer) => return Ok(answer),
                Delivery::Refused(why) => return Err(why),
                Delivery::NotNow(why) => why,
            };
            if tried == MAX_TRIES || ends_at.is_some() {
                return Err(why);
            }
            self.shared.wait(Instant::now() + pause, usize::MAX);
            pause *= 2;
        }
        Err("it was never tried".to_owned())
    }

    fn post(&self, url: &str, body: &[u8], ends_at: Option<Instant>) -> Delivery {
        let settings = &self.shared.settings;
        let left = ends_at.map(|at| at.saturating_duration_since(Instant::now()));
        let limit = left.map_or(settings.timeout, |left| left.min(settings.timeout));
        let request = self.agent.post(url).config().timeout_global(Some(limit)).build();
        let request = request.content_type("application/x-protobuf");
        let request =
            settings.headers.iter().fold(request, |request, (name, value)| request.header(name, value));
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

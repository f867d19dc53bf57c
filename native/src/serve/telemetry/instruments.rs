//! What a collector is told in numbers: OpenTelemetry's metrics for servers of generative models, and the engine's gauges.
//!
//! Sums over the server's life, so that a delivery that is lost loses nothing. Invariant: every call that left
//! a sound timeline is in `gen_ai.server.request.duration` once.

use std::collections::BTreeMap;

use opentelemetry_proto::tonic::common::v1::KeyValue;
use opentelemetry_proto::tonic::metrics::v1::metric::Data;
use opentelemetry_proto::tonic::metrics::v1::number_data_point::Value;
use opentelemetry_proto::tonic::metrics::v1::{
    AggregationTemporality, Gauge, Histogram as HistogramData, HistogramDataPoint, Metric, NumberDataPoint,
    Sum,
};

use firstlight_engine::engine::EngineCounters;

use super::values::{text, whole};
use super::{FinishedCall, PROVIDER, Whereabouts};
use crate::histogram::{Histogram, Unit};
use crate::serve::metrics;

const MS: u64 = 1_000_000;

/// Of the time to the first token: the conventions have our buckets up to 10 seconds.
const TTFT_BOUNDS: &[u64] = metrics::TTFT_BOUNDS.split_at(16).0;
/// Of the time between tokens: up to 2.5 seconds.
const PER_TOKEN_BOUNDS: &[u64] = metrics::GAP_BOUNDS.split_at(13).0;
/// Of whole requests.
const DURATION_BOUNDS: &[u64] = &[
    10 * MS,
    20 * MS,
    40 * MS,
    80 * MS,
    160 * MS,
    320 * MS,
    640 * MS,
    1_280 * MS,
    2_560 * MS,
    5_120 * MS,
    10_240 * MS,
    20_480 * MS,
    40_960 * MS,
    81_920 * MS,
];

/// What tells series apart; each has few values.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Series {
    operation: &'static str,
    asked_model: String,
    model: String,
    error: Option<&'static str>,
}

#[derive(Clone, Debug)]
struct Times {
    duration: Histogram,
    first_token: Histogram,
    per_token: Histogram,
}

/// See the module.
#[derive(Clone, Debug, Default)]
pub struct Instruments {
    series: BTreeMap<Series, Times>,
}

impl Instruments {
    /// Counts a call that ended.
    pub fn count(&mut self, call: &FinishedCall<'_>) {
        let series = Series {
            operation: call.facts.operation(),
            asked_model: call.facts.asked_model().to_owned(),
            model: call.facts.model.clone(),
            error: call.error_type(),
        };
        let is_answered = series.error.is_none();
        let times = self.series.entry(series).or_insert_with(|| Times {
            duration: Histogram::new(Unit::Seconds, DURATION_BOUNDS),
            first_token: Histogram::new(Unit::Seconds, TTFT_BOUNDS),
            per_token: Histogram::new(Unit::Seconds, PER_TOKEN_BOUNDS),
        });
        let whole = call.timelines.iter().filter_map(|timeline| timeline.e2e()).max();
        times.duration.observe(whole.unwrap_or(0));
        if !is_answered {
            return;
        }
        let first = call.timelines.iter().filter_map(|timeline| super::first_answer(timeline)).min();
        first.into_iter().for_each(|ns| times.first_token.observe(ns));
        for timeline in call.timelines {
            timeline.time_per_output_token().into_iter().for_each(|ns| times.per_token.observe(ns));
        }
    }

    /// As metrics of a server that began at `since`, Unix nanoseconds, and is `now`.
    pub fn metrics(&self, here: &Whereabouts, since: u64, now: u64) -> Vec<Metric> {
        let of = |name: &str, description: &str, pick: fn(&Times) -> &Histogram| {
            let points = self.series.iter().map(|(series, times)| (series, pick(times)));
            let points = points.filter(|(_, histogram)| histogram.count() > 0);
            let data_points =
                points.map(|(series, histogram)| point(series, histogram, here, since, now)).collect();
            let cumulative = AggregationTemporality::Cumulative as i32;
            let data = Data::Histogram(HistogramData { data_points, aggregation_temporality: cumulative });
            metric(name, description, "s", data)
        };
        vec![
            of("gen_ai.server.request.duration", "To the last byte of an answer.", |times| &times.duration),
            of("gen_ai.server.time_to_first_token", "To the first token of an answer.", |times| {
                &times.first_token
            }),
            of("gen_ai.server.time_per_output_token", "Between two tokens after the first.", |times| {
                &times.per_token
            }),
        ]
    }
}

fn point(
    series: &Series,
    histogram: &Histogram,
    here: &Whereabouts,
    since: u64,
    now: u64,
) -> HistogramDataPoint {
    let mut attributes = vec![
        text("gen_ai.operation.name", series.operation),
        text("gen_ai.provider.name", PROVIDER),
        text("gen_ai.request.model", &series.asked_model),
        text("gen_ai.response.model", &series.model),
        text("server.address", &here.address),
        whole("server.port", here.port),
    ];
    attributes.extend(series.error.map(|error| text("error.type", error)));
    HistogramDataPoint {
        attributes,
        start_time_unix_nano: since,
        time_unix_nano: now,
        count: histogram.count(),
        sum: Some(histogram.float_sum()),
        bucket_counts: histogram.counts().to_vec(),
        explicit_bounds: histogram.bounds().collect(),
        ..HistogramDataPoint::default()
    }
}

/// The engine as it is, and what was dropped on the way to the collector.
pub fn gauges(now: &EngineCounters, num_dropped: u64, since: u64, at: u64) -> Vec<Metric> {
    let point = |value, since| NumberDataPoint {
        start_time_unix_nano: since,
        time_unix_nano: at,
        value: Some(value),
        ..NumberDataPoint::default()
    };
    let int = |value: u64| Value::AsInt(i64::try_from(value).unwrap_or(i64::MAX));
    let gauge = |name: &str, description: &str, unit: &str, value| {
        metric(name, description, unit, Data::Gauge(Gauge { data_points: vec![point(value, 0)] }))
    };
    let sum = |name: &str, description: &str, unit: &str, value| {
        let data = Sum {
            data_points: vec![point(int(value), since)],
            aggregation_temporality: AggregationTemporality::Cumulative as i32,
            is_monotonic: true,
        };
        metric(name, description, unit, Data::Sum(data))
    };
    vec![
        gauge("firstlight.requests.running", "Sequences in the batch.", "{request}", int(now.running as u64)),
        gauge("firstlight.requests.waiting", "In inbox and queue.", "{request}", int(now.waiting as u64)),
        gauge(
            "firstlight.kv_cache.usage",
            "KV blocks in use, 0 to 1.",
            "1",
            Value::AsDouble(now.kv_cache_usage()),
        ),
        sum("firstlight.preemptions", "Evictions.", "{eviction}", now.preemptions_total),
        sum("firstlight.tokens.prompt", "Of admitted requests.", "{token}", now.prompt_tokens_total),
        sum("firstlight.tokens.generated", "Sampled.", "{token}", now.generation_tokens_total),
        sum(
            "firstlight.prefix_cache.queries",
            "Prompt tokens looked up.",
            "{token}",
            now.prefix_queries_total,
        ),
        sum("firstlight.prefix_cache.hits", "Those that were found.", "{token}", now.prefix_hits_total),
        sum("firstlight.otlp.dropped", "Spans that no collector got.", "{span}", num_dropped),
    ]
}

fn metric(name: &str, description: &str, unit: &str, data: Data) -> Metric {
    Metric {
        name: name.to_owned(),
        description: description.to_owned(),
        unit: unit.to_owned(),
        data: Some(data),
        ..Metric::default()
    }
}

/// For a resource: what the server is, in the standard's words.
pub fn resource(settings: &super::Settings) -> Vec<KeyValue> {
    const OWN: [&str; 3] = ["service.name", "service.version", "service.instance.id"];
    let mut all = vec![
        text("service.name", &settings.service_name),
        text("telemetry.sdk.language", "rust"),
        text("telemetry.sdk.name", PROVIDER),
        text("telemetry.sdk.version", env!("CARGO_PKG_VERSION")),
    ];
    let given = |key: &str| settings.resource.iter().any(|(known, _)| known == key);
    let instance = format!("{:016x}", super::trace_context::draw_id());
    for (key, value) in [(OWN[1], env!("CARGO_PKG_VERSION")), (OWN[2], &instance)] {
        all.extend((!given(key)).then(|| text(key, value)));
    }
    let theirs = settings.resource.iter().filter(|(key, _)| key != OWN[0]);
    all.extend(theirs.map(|(key, value)| text(key, value)));
    all
}

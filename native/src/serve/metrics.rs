//! Prometheus metrics: counters and histograms over all requests that ended; the page adds the engine's gauges.
//!
//! Names and buckets follow vLLM's. Invariant: every request that had a timeline is observed once, however it ended.

mod page;
mod process;

use std::collections::BTreeMap;

use firstlight_engine::clock::Nanos;
use firstlight_engine::request::FinishReason;
use firstlight_engine::timeline::{Parts, RequestTimeline};

pub use self::page::Readings;
use crate::histogram::{Histogram, Unit};

const MS: u64 = 1_000_000;
const S: u64 = 1_000 * MS;

/// Upper bounds of the buckets for times to a first token and for their parts, in nanoseconds.
pub(super) const TTFT_BOUNDS: &[u64] = &[
    MS,
    5 * MS,
    10 * MS,
    20 * MS,
    40 * MS,
    60 * MS,
    80 * MS,
    100 * MS,
    250 * MS,
    500 * MS,
    750 * MS,
    S,
    2_500 * MS,
    5 * S,
    7_500 * MS,
    10 * S,
    20 * S,
    40 * S,
    80 * S,
    160 * S,
    640 * S,
    2_560 * S,
];
/// Of the time between two tokens.
pub(super) const GAP_BOUNDS: &[u64] = &[
    10 * MS,
    25 * MS,
    50 * MS,
    75 * MS,
    100 * MS,
    150 * MS,
    200 * MS,
    300 * MS,
    400 * MS,
    500 * MS,
    750 * MS,
    S,
    2_500 * MS,
    5 * S,
    7_500 * MS,
    10 * S,
    20 * S,
    40 * S,
    80 * S,
];
/// Of whole requests.
const REQUEST_BOUNDS: &[u64] = &[
    300 * MS,
    500 * MS,
    800 * MS,
    S,
    1_500 * MS,
    2 * S,
    2_500 * MS,
    5 * S,
    10 * S,
    15 * S,
    20 * S,
    30 * S,
    40 * S,
    50 * S,
    60 * S,
    120 * S,
    240 * S,
    480 * S,
    960 * S,
    1_920 * S,
    7_680 * S,
];
/// Of token counts.
const TOKEN_BOUNDS: &[u64] =
    &[1, 2, 5, 10, 20, 50, 100, 200, 500, 1_000, 2_000, 5_000, 10_000, 20_000, 50_000, 100_000];
/// Of choices that a call asks for.
const CHOICE_BOUNDS: &[u64] = &[1, 2, 5, 10, 20];

/// One series for each way to end.
#[derive(Clone, Debug)]
struct Ended {
    count: u64,
    e2e: Histogram,
}

/// Everything that is counted over requests that ended.
#[derive(Clone, Debug)]
pub struct Metrics {
    ended: Vec<Ended>,
    ttft: Histogram,
    inter_token: Histogram,
    per_token: Histogram,
    queue: Histogram,
    prefill: Histogram,
    decode: Histogram,
    inference: Histogram,
    prompt_tokens: Histogram,
    generation_tokens: Histogram,
    computed_tokens: Histogram,
    max_tokens: Histogram,
    num_choices: Histogram,
    /// Of the time to the first token, by part.
    parts: BTreeMap<&'static str, Histogram>,
    after_disconnect: u64,
    broken: u64,
}

impl Default for Metrics {
    fn default() -> Self {
        let seconds = |bounds| Histogram::new(Unit::Seconds, bounds);
        let tokens = || Histogram::new(Unit::Count, TOKEN_BOUNDS);
        Self {
            ended: FinishReason::ALL.map(|_| Ended { count: 0, e2e: seconds(REQUEST_BOUNDS) }).to_vec(),
            ttft: seconds(TTFT_BOUNDS),
            inter_token: seconds(GAP_BOUNDS),
            per_token: seconds(GAP_BOUNDS),
            queue: seconds(TTFT_BOUNDS),
            prefill: seconds(TTFT_BOUNDS),
            decode: seconds(REQUEST_BOUNDS),
            inference: seconds(REQUEST_BOUNDS),
            prompt_tokens: tokens(),
            generation_tokens: tokens(),
            computed_tokens: tokens(),
            max_tokens: tokens(),
            num_choices: Histogram::new(Unit::Count, CHOICE_BOUNDS),
            parts: BTreeMap::new(),
            after_disconnect: 0,
            broken: 0,
        }
    }
}

impl Metrics {
    /// Counts a request that ended and was sealed. One whose timeline breaks a rule is counted as such and as ended; its
    /// times are worth nothing and enter no histogram. `max_tokens` is what it was allowed.
    pub fn observe(&mut self, timeline: &RequestTimeline, max_tokens: u32, is_broken: bool) {
        let idx = FinishReason::ALL.iter().position(|reason| Some(*reason) == timeline.finish_reason());
        let Some(ended) = idx.and_then(|idx| self.ended.get_mut(idx)) else { return };
        ended.count += 1;
        if is_broken {
            self.broken += 1;
            return;
        }
        timeline.e2e().into_iter().for_each(|e2e| ended.e2e.observe(e2e));
        timeline.ttft().into_iter().for_each(|ttft| self.ttft.observe(ttft));
        for pair in timeline.token_at().windows(2) {
            self.inter_token.observe(pair[1] - pair[0]);
        }
        let tokens = timeline.tokens();
        self.prompt_tokens.observe(tokens.prompt.into());
        self.generation_tokens.observe(tokens.generated.into());
        self.computed_tokens.observe(tokens.computed);
        self.max_tokens.observe(max_tokens.into());
        self.after_disconnect += u64::from(tokens.after_disconnect);
        let Some(parts) = timeline.parts() else { return };
        for (part, sum) in named(&parts) {
            let part = self.parts.entry(part).or_insert_with(|| Histogram::new(Unit::Seconds, TTFT_BOUNDS));
            part.observe(sum);
        }
        let Some(engine) = parts.engine else { return };
        self.queue.observe(engine.waited());
        self.prefill.observe(engine.prefill.total());
        let Some(decode) = timeline.decode() else { return };
        self.decode.observe(decode.total());
        self.inference.observe(engine.prefill.total() + decode.total());
        timeline.time_per_output_token().into_iter().for_each(|ns| self.per_token.observe(ns));
    }

    /// Calls that were counted.
    #[cfg(test)]
    pub fn num_calls(&self) -> u64 {
        self.num_choices.count()
    }

    /// Counts a call, however many prompts it had; `num_choices` is what it asked for of each.
    pub fn observe_call(&mut self, num_choices: usize) {
        self.num_choices.observe(num_choices as u64);
    }
}

/// The parts by name; their sums over all requests add up to the sum of what was waited for.
fn named(parts: &Parts) -> Vec<(&'static str, Nanos)> {
    let mut named =
        vec![("gateway", parts.gateway), ("route", parts.route), ("preparation", parts.preparation.total())];
    if let Some(engine) = parts.engine {
        named.extend([
            ("inbox", engine.inbox.total()),
            ("queue_wait", engine.queue_wait.total()),
            ("requeue", engine.requeue.total()),
            ("lost_prefill", engine.lost_prefill),
            ("prefill", engine.prefill.total()),
        ]);
    }
    named.extend(parts.transport.map(|transport| ("transport", transport.total())));
    named
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use firstlight_engine::engine::EngineCounters;
    use firstlight_engine::request::{HostStamps, RequestId};
    use firstlight_engine::timeline::{Edge, PassTimes, RequestLabels};

    use super::*;

    /// Received at 0, created at 10, queued and admitted at 30, a token at each of `tokens_at`, streamed.
    fn answered(tokens_at: &[Nanos]) -> RequestTimeline {
        let stamps = HostStamps { created: 10, ..HostStamps::at(0) };
        let mut timeline =
            RequestTimeline::created(RequestId(1), RequestLabels::default(), Arc::default(), &stamps, 3);
        timeline.advance(Edge::Queued, 30);
        timeline.advance(Edge::Admitted { cached: 0 }, 30);
        timeline.advance(Edge::Chunk { tokens: 3 }, 30);
        for (step, &at) in (0..).zip(tokens_at) {
            timeline.advance(Edge::Computed { tokens: 1, gpu: PassTimes::default() }, at);
            timeline.advance(Edge::Token { step }, at);
            timeline.advance(Edge::Chunk { tokens: 1 }, at);
        }
        let last = *tokens_at.last().unwrap();
        timeline.advance(Edge::Finished { reason: FinishReason::Length, detail: None }, last);
        timeline.first_text(tokens_at[0] + 1);
        timeline.first_write(tokens_at[0] + 5);
        timeline.last_write(last + 5);
        timeline.seal().unwrap();
        timeline
    }

    fn value(page: &str, series: &str) -> String {
        let line = page.lines().find_map(|line| line.strip_prefix(series)?.strip_prefix(' '));
        line.unwrap_or_else(|| panic!("{series} is missing in\n{page}")).to_owned()
    }

    fn page(metrics: &Metrics) -> String {
        let readings = Readings {
            model: "m\"1",
            engine: EngineCounters::default(),
            step_tokens: Histogram::new(Unit::Count, TOKEN_BOUNDS),
            statuses: BTreeMap::from([(("/x".to_owned(), 200), 3)]),
            started: 1_700_000_000,
            log_lines_lost: 0,
            spans_dropped: 0,
        };
        metrics.page(&readings)
    }

    #[test]
    fn sums_are_those_of_the_timelines_to_the_nanosecond() {
        let mut metrics = Metrics::default();
        let timelines = [answered(&[3_000_000_007, 3_000_000_100]), answered(&[1_000_000, 90_000_000])];
        timelines.iter().for_each(|timeline| metrics.observe(timeline, 5, false));
        let page = page(&metrics);
        let model = "model=\"m\\\"1\"";
        assert_eq!(
            value(&page, &format!("firstlight_time_to_first_token_seconds_sum{{{model}}}")),
            "3.001000017"
        );
        assert_eq!(value(&page, &format!("firstlight_time_to_first_token_seconds_count{{{model}}}")), "2");
        assert_eq!(
            value(&page, &format!("firstlight_inter_token_latency_seconds_sum{{{model}}}")),
            "0.089000093"
        );
        let part = |part: &str| {
            value(&page, &format!("firstlight_ttft_part_seconds_sum{{{model},part=\"{part}\"}}"))
        };
        assert_eq!((part("inbox").as_str(), part("transport").as_str()), ("0.00000004", "0.00000001"));
        let whole: Nanos = timelines.iter().filter_map(RequestTimeline::ttft).sum();
        assert_eq!(metrics.parts.values().map(Histogram::sum).sum::<Nanos>(), whole);
        let ended = |reason: &str| {
            value(&page, &format!("firstlight_request_success_total{{{model},finished_reason=\"{reason}\"}}"))
        };
        assert_eq!((ended("length").as_str(), ended("rejected").as_str()), ("2", "0"));
        assert_eq!(value(&page, "firstlight_http_requests_total{route=\"/x\",status=\"200\"}"), "3");
    }

    #[test]
    fn every_line_is_of_the_format_and_every_bucket_list_rises() {
        let mut metrics = Metrics::default();
        metrics.observe(&answered(&[50, 60, 70]), 5, false);
        metrics.observe(&answered(&[50]), 5, true);
        let page = page(&metrics);
        for line in page.lines().filter(|line| !line.starts_with('#')) {
            let (series, value) = line.rsplit_once(' ').unwrap();
            let ours = series.starts_with("firstlight_") || series.starts_with("process_");
            assert!(ours && !series.contains(':'), "{line}");
            assert!(value.parse::<f64>().is_ok_and(f64::is_finite), "{line}");
        }
        for bounds in [TTFT_BOUNDS, GAP_BOUNDS, REQUEST_BOUNDS, TOKEN_BOUNDS, CHOICE_BOUNDS] {
            assert!(bounds.is_sorted_by(|a, b| a < b));
        }
        assert_eq!(value(&page, "firstlight_timelines_broken_total{model=\"m\\\"1\"}"), "1");
    }
}

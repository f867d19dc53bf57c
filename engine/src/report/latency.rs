//! The latency report: one pure fold over a window of finished timelines, and over the steps that were handed in.
//!
//! It prints nothing and keeps nothing between two folds. Invariant: [`LatencyReport::check`] holds for every window.

#[cfg(test)]
mod tests;

use std::borrow::Cow;

use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize};

use super::buckets::{by_batch_and_position, gaps};
use super::window::ended;
use super::{
    DecodeSums, Distribution, EngineTtftSums, GapsByBatch, GaugeReadings, Gauges, PositionBucket,
    ReportContext, ReportWindow, SlowestGap, SumMismatch, TtftSums, nearest_rank, slowest_gap_of,
};
use crate::clock::Nanos;
use crate::order::sort_by_number;
use crate::request::{FinishReason, RequestId};
use crate::timeline::{Parts, RequestTimeline, StepRing};

/// From the first arrival of a window to its last end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
pub struct Span {
    /// The first `received`.
    pub from: Nanos,
    /// The last `finished` or `last_write`.
    pub to: Nanos,
}

impl Span {
    /// Whether an instant lies within, both ends included.
    pub fn holds(&self, at: Nanos) -> bool {
        (self.from..=self.to).contains(&at)
    }
}

/// How many requests ended how.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[allow(missing_docs, reason = "each is the FinishReason of the same name")]
pub struct FinishCounts {
    pub stop: usize,
    pub stop_string: usize,
    pub length: usize,
    pub content_filter: usize,
    pub cancelled: usize,
    pub disconnected: usize,
    pub deadline: usize,
    pub failed: usize,
    pub rejected: usize,
}

impl FinishCounts {
    fn add(&mut self, reason: FinishReason) {
        let count = match reason {
            FinishReason::Stop => &mut self.stop,
            FinishReason::StopString => &mut self.stop_string,
            FinishReason::Length => &mut self.length,
            FinishReason::ContentFilter => &mut self.content_filter,
            FinishReason::Cancelled => &mut self.cancelled,
            FinishReason::Disconnected => &mut self.disconnected,
            FinishReason::Deadline => &mut self.deadline,
            FinishReason::Failed => &mut self.failed,
            FinishReason::Rejected => &mut self.rejected,
        };
        *count += 1;
    }
}

/// Percentiles of wholes, each its own metric over answered requests; absent without a sample. The four timers are
/// `ttft`, `inter_token`, `time_per_output_token` and `e2e`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Deserialize, Serialize)]
pub struct Wholes {
    /// `first_write - received`: streamed answers.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ttft: Option<Distribution>,
    /// `first_token - created`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub engine_ttft: Option<Distribution>,
    /// Time in the queue before the first token: queue_wait + requeue.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub queue: Option<Distribution>,
    /// From the last admission to the first token.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prefill: Option<Distribution>,
    /// Every gap between two tokens of a request.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub inter_token: Option<Distribution>,
    /// `(finished - first_token) / (generated - 1)`, rounded down: requests with two tokens or more.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub time_per_output_token: Option<Distribution>,
    /// `last_write`, else `finished`, minus `received`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub e2e: Option<Distribution>,
}

/// A real request that holds a percentile's rank, with its own parts.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
pub struct RankedRequest {
    /// 50, 95 or 99.
    pub percentile: u32,
    /// Its rank, from 1; of equal ones, the one that came first is before.
    pub rank: usize,
    /// What the host calls it; `r<number>` where it has no name.
    pub id: String,
    /// Its number in the engine.
    pub engine_id: RequestId,
    /// The TTFT that was ranked, in nanoseconds.
    pub ttft: Nanos,
    /// Its parts. Those of a streamed answer sum to its TTFT; `parts.engine` alone sums to its engine TTFT.
    pub parts: Parts,
}

/// Tokens of all requests of a window.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
pub struct TokenTotals {
    /// In the prompts.
    pub prompt: u64,
    /// Found in the pool at the first admissions.
    pub cached: u64,
    /// Rows computed, those of evicted residencies included.
    pub computed: u64,
    /// Sampled.
    pub generated: u64,
    /// Sampled after the client had gone.
    pub after_disconnect: u64,
}

/// The prefix cache in tokens. Each request is looked up once, at its first admission: finding its own blocks again after
/// an eviction is no hit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Deserialize, Serialize)]
pub struct PrefixCacheTokens {
    /// Prompt tokens of the requests that were admitted.
    pub queried: u64,
    /// Those of them that were found.
    pub hit: u64,
    /// `hit / queried`; absent where nothing was looked up.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hit_rate: Option<f64>,
}

/// What a window of finished requests says together. Durations are nanoseconds.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
pub struct LatencyReport {
    /// `firstlight.report/1`.
    #[serde(deserialize_with = "schema")]
    pub schema: Cow<'static, str>,
    /// Under which conditions.
    pub context: ReportContext,
    /// Absent where the window is empty.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub span: Option<Span>,
    /// Requests in the window. Those without a first token count here, among the finish reasons, evictions and tokens,
    /// and in no latency.
    pub n: usize,
    /// With a first token.
    pub n_answered: usize,
    /// Evicted at least once.
    pub n_preempted: usize,
    /// Admissions after the first one of their request.
    pub re_prefills: u64,
    /// Timelines that were refused because they broke a rule, since the window was made.
    pub refused_broken: u64,
    /// Those that were refused because they were not sealed.
    pub refused_unsealed: u64,
    /// How they ended.
    pub finish_reasons: FinishCounts,
    /// Percentiles.
    pub wholes: Wholes,
    /// Means and shares of the engine TTFT's parts.
    pub engine_ttft_parts: EngineTtftSums,
    /// Means and shares of the TTFT's parts.
    pub ttft_parts: TtftSums,
    /// Sums of the time after the first token.
    pub decode_parts: DecodeSums,
    /// The real requests at p50, p95, p99 of the TTFT; empty without streamed answers.
    pub at_ttft: Vec<RankedRequest>,
    /// The same of the engine TTFT.
    pub at_engine_ttft: Vec<RankedRequest>,
    /// Tokens.
    pub tokens: TokenTotals,
    /// Absent where the prefix cache is off.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prefix_cache: Option<PrefixCacheTokens>,
    /// The four gauges.
    pub gauges: Gauges,
    /// The longest gap between two tokens, and what is to blame for it; absent where nobody has two.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub slowest_gap: Option<SlowestGap>,
    /// Inter-token latency against the batch.
    pub inter_token_by_batch: GapsByBatch,
    /// Inter-token latency against the position.
    pub inter_token_by_position: Vec<PositionBucket>,
}

/// A report of another schema is none.
fn schema<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Cow<'static, str>, D::Error> {
    let name = String::deserialize(deserializer)?;
    match name == LatencyReport::SCHEMA {
        true => Ok(Cow::Borrowed(LatencyReport::SCHEMA)),
        false => {
            Err(D::Error::custom(format!("the report's schema is {name:?}, not {}", LatencyReport::SCHEMA)))
        }
    }
}

impl LatencyReport {
    /// The schema's name.
    pub const SCHEMA: &'static str = "firstlight.report/1";

    /// Folds `window`; `steps` and `readings` (gauges at this instant) are of the engine that served it.
    ///
    /// Linear in the tokens of the window: 1,024 timelines of 256 tokens each, against 4,096 steps, take 7 ms on one of two
    /// Zen 4 cores (11 ms where others keep both busy); two thirds of it are the buckets.
    pub fn fold(
        window: &ReportWindow,
        steps: &StepRing,
        readings: Option<GaugeReadings>,
        context: ReportContext,
    ) -> Self {
        let mut report = Self {
            schema: Cow::Borrowed(Self::SCHEMA),
            span: span(window),
            n: window.len(),
            n_answered: answered(window).count(),
            n_preempted: window.iter().filter(|timeline| timeline.preemptions() > 0).count(),
            re_prefills: window
                .iter()
                .map(|timeline| timeline.attempts().len().saturating_sub(1) as u64)
                .sum(),
            refused_broken: window.refused_broken(),
            refused_unsealed: window.refused_unsealed(),
            finish_reasons: FinishCounts::default(),
            wholes: wholes(window),
            engine_ttft_parts: EngineTtftSums::default(),
            ttft_parts: TtftSums::default(),
            decode_parts: DecodeSums::default(),
            at_ttft: ranked(window, RequestTimeline::ttft),
            at_engine_ttft: ranked(window, RequestTimeline::engine_ttft),
            tokens: token_totals(window),
            prefix_cache: context.prefix_cache.then(|| prefix_cache_tokens(window)),
            gauges: Gauges::of(steps, span(window), readings),
            slowest_gap: slowest_gap_of(window, steps),
            inter_token_by_batch: GapsByBatch::default(),
            inter_token_by_position: Vec::new(),
            context,
        };
        for timeline in window.iter() {
            timeline.finish_reason().into_iter().for_each(|reason| report.finish_reasons.add(reason));
            report.engine_ttft_parts.add(timeline);
            report.ttft_parts.add(timeline);
            report.decode_parts.add(timeline);
        }
        (report.inter_token_by_batch, report.inter_token_by_position) =
            by_batch_and_position(window.iter(), steps);
        report
    }

    /// Holds every sum of parts against the sum of its wholes, by `==`.
    pub fn check(&self) -> Result<(), SumMismatch> {
        self.engine_ttft_parts.check()?;
        self.ttft_parts.check()?;
        self.decode_parts.check()
    }
}

fn span(window: &ReportWindow) -> Option<Span> {
    let from = window.iter().filter_map(|timeline| timeline.stamps().received()).min()?;
    Some(Span { from, to: window.iter().filter_map(ended).max()? })
}

fn answered(window: &ReportWindow) -> impl Iterator<Item = &RequestTimeline> {
    window.iter().filter(|timeline| timeline.stamps().first_token.is_some())
}

fn distribution(values: impl Iterator<Item = Nanos>) -> Option<Distribution> {
    Distribution::of(&mut values.collect::<Vec<Nanos>>())
}

fn wholes(window: &ReportWindow) -> Wholes {
    let engine = |timeline: &RequestTimeline| timeline.parts().and_then(|parts| parts.engine);
    Wholes {
        ttft: distribution(answered(window).filter_map(RequestTimeline::ttft)),
        engine_ttft: distribution(answered(window).filter_map(RequestTimeline::engine_ttft)),
        queue: distribution(answered(window).filter_map(engine).map(|e| e.waited())),
        prefill: distribution(answered(window).filter_map(engine).map(|e| e.prefill.total())),
        inter_token: distribution(answered(window).flat_map(gaps).map(|(_, gap)| gap)),
        time_per_output_token: distribution(
            answered(window).filter_map(RequestTimeline::time_per_output_token),
        ),
        e2e: distribution(answered(window).filter_map(RequestTimeline::e2e)),
    }
}

fn ranked(window: &ReportWindow, ttft: fn(&RequestTimeline) -> Option<Nanos>) -> Vec<RankedRequest> {
    let mut order: Vec<(Nanos, &RequestTimeline)> =
        window.iter().filter_map(|timeline| Some((ttft(timeline)?, timeline))).collect();
    sort_by_number(&mut order, |(ttft, _)| *ttft);
    let at = |percentile: u32| {
        let rank = nearest_rank(percentile, order.len());
        let (ttft, timeline) = order.get(rank.checked_sub(1)?)?;
        let (id, engine_id) = (host_id(timeline), timeline.id());
        Some(RankedRequest { percentile, rank, id, engine_id, ttft: *ttft, parts: timeline.parts()? })
    };
    [50, 95, 99].into_iter().filter_map(at).collect()
}

/// What the host calls a request, else its number.
pub(super) fn host_id(timeline: &RequestTimeline) -> String {
    let id = &timeline.labels().id;
    if id.is_empty() { timeline.id().to_string() } else { id.clone() }
}

fn token_totals(window: &ReportWindow) -> TokenTotals {
    let mut totals = TokenTotals::default();
    for tokens in window.iter().map(RequestTimeline::tokens) {
        totals.prompt += u64::from(tokens.prompt);
        totals.cached += u64::from(tokens.cached);
        totals.computed += tokens.computed;
        totals.generated += u64::from(tokens.generated);
        totals.after_disconnect += u64::from(tokens.after_disconnect);
    }
    totals
}

fn prefix_cache_tokens(window: &ReportWindow) -> PrefixCacheTokens {
    let mut tokens = PrefixCacheTokens::default();
    for timeline in window.iter() {
        if let Some(first) = timeline.attempts().first() {
            tokens.queried += u64::from(timeline.tokens().prompt);
            tokens.hit += u64::from(first.cached);
        }
    }
    tokens.hit_rate = (tokens.queried > 0).then(|| tokens.hit as f64 / tokens.queried as f64);
    tokens
}

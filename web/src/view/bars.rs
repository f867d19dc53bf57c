//! Times to first token as stacked bars: the mean of all, and request by request.
//!
//! Invariant: the segments of a bar sum to its whole, in integers; means are those of one n.

use std::collections::VecDeque;

use firstlight_engine::clock::Nanos;
use firstlight_engine::order::sort_by_number;
use firstlight_engine::report::LatencyReport;
use firstlight_engine::timeline::{EngineParts, Parts, TimelineRecord};

use super::part::{CAUSES, Cause, Part};

/// The most bars of single requests.
pub const MOST_BARS: usize = 40;

/// A piece of a bar.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment {
    /// What it shows.
    pub part: Part,
    /// What to call it.
    pub name: &'static str,
    /// Its time; of a mean, that of all n together.
    pub nanos: Nanos,
}

/// A bar.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bar {
    /// Whose.
    pub name: String,
    /// The engine's number of a single request.
    pub engine_id: Option<u64>,
    /// Requests in it.
    pub n: u64,
    /// The whole; of a mean, that of all n together.
    pub whole: Nanos,
    /// Its pieces, those that are not 0.
    pub segments: Vec<Segment>,
}

impl Bar {
    /// What a bar of one request is long, and a bar of a mean.
    pub fn mean(&self) -> Nanos {
        self.whole.checked_div(self.n).unwrap_or(0)
    }
}

fn engine_segments(e: &EngineParts) -> Vec<Segment> {
    let of = |part: Part, name: &'static str, nanos: Nanos| Segment { part, name, nanos };
    let mut all = vec![of(Part::InboxStep, "inbox", e.inbox.total())];
    let queue = |cause: Cause| match cause {
        Cause::Slots => "queue: batch full",
        Cause::Budget => "queue: token budget",
        Cause::Blocks => "queue: KV blocks",
        Cause::Order => "queue: one before it",
        Cause::Paused => "queue: device rebuilt",
    };
    all.extend(CAUSES.map(|cause| of(Part::Queue(Some(cause)), queue(cause), cause.of(&e.queue_wait))));
    all.extend([
        of(Part::Requeue(None), "requeue", e.requeue.total()),
        of(Part::LostPrefill, "lost prefill", e.lost_prefill),
        of(Part::Prefill, "prefill: compute", e.prefill.compute),
        of(Part::PrefillStall, "prefill: stall", e.prefill.stall),
    ]);
    all
}

fn segments(parts: &Parts) -> Vec<Segment> {
    let of = |part: Part, name: &'static str, nanos: Nanos| Segment { part, name, nanos };
    let mut all = vec![
        of(Part::Gateway, "gateway", parts.gateway),
        of(Part::Route, "route", parts.route),
        of(Part::Template, "preparation", parts.preparation.total()),
    ];
    all.extend(parts.engine.iter().flat_map(engine_segments));
    all.extend(parts.transport.map(|t| of(Part::Write, "transport", t.total())));
    all
}

fn some(segments: Vec<Segment>) -> Vec<Segment> {
    segments.into_iter().filter(|segment| segment.nanos > 0).collect()
}

/// The mean engine TTFT over all answered requests, and the mean TTFT over those that were streamed.
pub fn means(report: &LatencyReport) -> Vec<Bar> {
    let (engine, ttft) = (&report.engine_ttft_parts, &report.ttft_parts);
    let bar = |name: &str, n: usize, whole: Nanos, segments: Vec<Segment>| Bar {
        name: name.to_owned(),
        engine_id: None,
        n: n as u64,
        whole,
        segments: some(segments),
    };
    let bars = [
        bar("engine TTFT", engine.n, engine.engine_ttft, engine_segments(&engine.parts)),
        bar("TTFT", ttft.n, ttft.ttft, segments(&ttft.parts)),
    ];
    bars.into_iter().filter(|bar| bar.n > 0).collect()
}

/// The last answered requests, the slowest first token first: at most [`MOST_BARS`].
pub fn requests(sealed: &VecDeque<TimelineRecord>) -> Vec<Bar> {
    let bar = |one: &TimelineRecord| {
        let parts = one.parts?;
        let (whole, segments) = match one.ttft {
            Some(ttft) => (ttft, segments(&parts)),
            None => (one.engine_ttft?, engine_segments(&parts.engine?)),
        };
        let engine_id = Some(one.engine_id.0);
        Some(Bar { name: one.engine_id.to_string(), engine_id, n: 1, whole, segments: some(segments) })
    };
    let mut bars: Vec<Bar> = sealed.iter().rev().filter_map(bar).take(MOST_BARS).collect();
    sort_by_number(&mut bars, |bar| u64::MAX - bar.whole);
    bars
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::view::fixtures;

    #[test]
    fn segments_sum_to_the_whole() {
        let sealed: VecDeque<TimelineRecord> = fixtures::stories()
            .into_iter()
            .map(|story| story.record)
            .filter(|r| r.finish_reason.is_some())
            .collect();
        let bars = requests(&sealed);
        assert!(bars.len() > 5 && bars.len() <= MOST_BARS);
        assert!(bars.windows(2).all(|pair| pair[0].whole >= pair[1].whole));
        for bar in bars {
            assert_eq!(bar.segments.iter().map(|segment| segment.nanos).sum::<Nanos>(), bar.whole, "{bar:?}");
        }
    }
}

//! The parts of all first tokens together: exact integer sums with one n, from which means and shares are derived.
//!
//! It has no percentiles: those of parts sum to nothing. Invariant: the sums of the parts equal the sum of the TTFTs.

use serde::{Deserialize, Serialize, Serializer};

use crate::clock::Nanos;
use crate::timeline::{DecodeParts, EngineParts, Parts, Preparation, RequestTimeline, RunParts, Transport};

/// Sums that do not add up: a defect of ours.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "the parts of {n} requests sum to {parts} ns and their {whole} to {total} ns; report this as a defect"
)]
pub struct SumMismatch {
    /// Of what.
    pub whole: &'static str,
    /// Requests.
    pub n: usize,
    /// The sum of the parts.
    pub parts: Nanos,
    /// The sum of the wholes.
    pub total: Nanos,
}

/// `part / whole`; `None` where the whole is 0.
fn share(part: Nanos, whole: Nanos) -> Option<f64> {
    (whole > 0).then(|| part as f64 / whole as f64)
}

/// `sum / n` in nanoseconds; `None` where n is 0.
fn mean(sum: Nanos, n: usize) -> Option<f64> {
    (n > 0).then(|| sum as f64 / n as f64)
}

fn add_run(to: &mut RunParts, more: &RunParts) {
    to.compute += more.compute;
    to.stall += more.stall;
}

fn add_engine(to: &mut EngineParts, more: &EngineParts) {
    to.inbox.model_load += more.inbox.model_load;
    to.inbox.step += more.inbox.step;
    to.queue_wait.add(more.queue_wait);
    to.requeue.add(more.requeue);
    to.lost_prefill += more.lost_prefill;
    add_run(&mut to.prefill, &more.prefill);
}

fn add_preparation(to: &mut Preparation, more: &Preparation) {
    to.wait += more.wait;
    to.template += more.template;
    to.tokenise += more.tokenise;
    to.submit += more.submit;
}

/// The engine TTFTs of all answered requests, and their five parts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
pub struct EngineTtftSums {
    /// Requests with a first token.
    pub n: usize,
    /// Their engine TTFTs together, in nanoseconds.
    pub engine_ttft: Nanos,
    /// Each part of them together, by cause.
    pub parts: EngineParts,
}

impl EngineTtftSums {
    pub(super) fn add(&mut self, timeline: &RequestTimeline) {
        let engine = timeline.parts().and_then(|parts| parts.engine);
        if let (Some(ttft), Some(engine)) = (timeline.engine_ttft(), engine) {
            self.n += 1;
            self.engine_ttft += ttft;
            add_engine(&mut self.parts, &engine);
        }
    }

    /// Holds the parts against the whole, by `==`.
    pub fn check(&self) -> Result<(), SumMismatch> {
        let parts = self.parts.total();
        let mismatch = SumMismatch { whole: "engine TTFTs", n: self.n, parts, total: self.engine_ttft };
        if parts == self.engine_ttft { Ok(()) } else { Err(mismatch) }
    }

    /// The mean engine TTFT in nanoseconds.
    pub fn mean(&self) -> Option<f64> {
        self.mean_of(self.engine_ttft)
    }
    /// The mean of one of the parts in nanoseconds.
    pub fn mean_of(&self, part: Nanos) -> Option<f64> {
        mean(part, self.n)
    }
    /// The inbox's share, 0 to 1. The four shares sum to 1.
    pub fn inbox_share(&self) -> Option<f64> {
        share(self.parts.inbox.total(), self.engine_ttft)
    }
    /// The share of waiting for the first admission.
    pub fn queue_share(&self) -> Option<f64> {
        share(self.parts.queue_wait.total(), self.engine_ttft)
    }
    /// The share of the prefill that led to the token.
    pub fn prefill_share(&self) -> Option<f64> {
        share(self.parts.prefill.total(), self.engine_ttft)
    }
    /// The share of what evictions cost: requeue + lost_prefill.
    pub fn waste_share(&self) -> Option<f64> {
        share(self.parts.waste(), self.engine_ttft)
    }
}

/// The TTFTs of all requests that were streamed, and all their parts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
pub struct TtftSums {
    /// Requests with a first write.
    pub n: usize,
    /// Their TTFTs together, in nanoseconds.
    pub ttft: Nanos,
    /// Each part of them together. `engine` and `transport` are always here.
    pub parts: Parts,
}

impl Default for TtftSums {
    fn default() -> Self {
        let parts = Parts {
            engine: Some(EngineParts::default()),
            transport: Some(Transport::default()),
            ..Parts::default()
        };
        Self { n: 0, ttft: 0, parts }
    }
}

impl TtftSums {
    pub(super) fn add(&mut self, timeline: &RequestTimeline) {
        let (Some(ttft), Some(more)) = (timeline.ttft(), timeline.parts()) else { return };
        self.n += 1;
        self.ttft += ttft;
        self.parts.gateway += more.gateway;
        self.parts.route += more.route;
        add_preparation(&mut self.parts.preparation, &more.preparation);
        if let (Some(to), Some(more)) = (&mut self.parts.engine, &more.engine) {
            add_engine(to, more);
        }
        if let (Some(to), Some(more)) = (&mut self.parts.transport, &more.transport) {
            to.hold += more.hold;
            to.write += more.write;
        }
    }

    /// Holds the parts against the whole, by `==`.
    pub fn check(&self) -> Result<(), SumMismatch> {
        let parts = self.parts.total();
        let mismatch = SumMismatch { whole: "TTFTs", n: self.n, parts, total: self.ttft };
        if parts == self.ttft { Ok(()) } else { Err(mismatch) }
    }

    /// The mean TTFT in nanoseconds.
    pub fn mean(&self) -> Option<f64> {
        self.mean_of(self.ttft)
    }
    /// The mean of one of the parts in nanoseconds.
    pub fn mean_of(&self, part: Nanos) -> Option<f64> {
        mean(part, self.n)
    }

    /// The eight shares of the TTFT by name, 0 to 1, which sum to 1; `None` where the TTFTs sum to 0.
    pub fn shares(&self) -> Option<[(&'static str, f64); 8]> {
        let (engine, transport) =
            (self.parts.engine.unwrap_or_default(), self.parts.transport.unwrap_or_default());
        let sums = [
            ("gateway", self.parts.gateway),
            ("route", self.parts.route),
            ("preparation", self.parts.preparation.total()),
            ("inbox", engine.inbox.total()),
            ("queue", engine.queue_wait.total()),
            ("prefill", engine.prefill.total()),
            ("waste", engine.waste()),
            ("transport", transport.total()),
        ];
        share(0, self.ttft)?;
        Some(sums.map(|(name, sum)| (name, sum as f64 / self.ttft as f64)))
    }
}

/// The time after the first token of all answered requests, by its parts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
pub struct DecodeSums {
    /// Requests with a first token.
    pub n: usize,
    /// `finished - first_token` together, in nanoseconds.
    pub decode: Nanos,
    /// Each part together.
    pub parts: DecodeParts,
}

impl DecodeSums {
    pub(super) fn add(&mut self, timeline: &RequestTimeline) {
        let stamps = timeline.stamps();
        let (Some(more), Some(from), Some(to)) = (timeline.decode(), stamps.first_token, stamps.finished)
        else {
            return;
        };
        self.n += 1;
        self.decode += to - from;
        self.parts.compute += more.compute;
        self.parts.stall += more.stall;
        self.parts.requeue += more.requeue;
        self.parts.recompute += more.recompute;
    }

    /// Holds the parts against the whole, by `==`.
    pub fn check(&self) -> Result<(), SumMismatch> {
        let parts = self.parts.total();
        let mismatch = SumMismatch { whole: "decode times", n: self.n, parts, total: self.decode };
        if parts == self.decode { Ok(()) } else { Err(mismatch) }
    }

    /// The mean decode time in nanoseconds.
    pub fn mean(&self) -> Option<f64> {
        mean(self.decode, self.n)
    }
}

#[derive(Serialize)]
struct EngineTtftJson<'s> {
    n: usize,
    engine_ttft: Nanos,
    parts: &'s EngineParts,
    #[serde(skip_serializing_if = "Option::is_none")]
    mean: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    shares: Option<EngineShares>,
}

#[derive(Serialize)]
struct EngineShares {
    inbox: f64,
    queue: f64,
    prefill: f64,
    waste: f64,
}

impl Serialize for EngineTtftSums {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let shares = || {
            Some(EngineShares {
                inbox: self.inbox_share()?,
                queue: self.queue_share()?,
                prefill: self.prefill_share()?,
                waste: self.waste_share()?,
            })
        };
        let (n, engine_ttft, mean) = (self.n, self.engine_ttft, self.mean());
        EngineTtftJson { n, engine_ttft, parts: &self.parts, mean, shares: shares() }.serialize(serializer)
    }
}

/// The shares by name.
struct TtftShares([(&'static str, f64); 8]);

impl Serialize for TtftShares {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.0)
    }
}

#[derive(Serialize)]
struct TtftJson<'s> {
    n: usize,
    ttft: Nanos,
    parts: &'s Parts,
    #[serde(skip_serializing_if = "Option::is_none")]
    mean: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    shares: Option<TtftShares>,
}

impl Serialize for TtftSums {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let shares = self.shares().map(TtftShares);
        TtftJson { n: self.n, ttft: self.ttft, parts: &self.parts, mean: self.mean(), shares }
            .serialize(serializer)
    }
}

//! Names on a timeline: what answered, what was asked by whom, and which clock the stamps are of.
//!
//! No sum uses any of them. Invariant: labels are set once, before the first stamp.

use serde::{Deserialize, Serialize};

use crate::clock::{Clock, Nanos};

/// What the timelines of one engine have in common.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EngineLabels {
    /// The model that answers.
    pub model: ModelLabel,
    /// Hash of the engine's configuration.
    pub engine_config: String,
    /// The clock's origin and step.
    pub clock: ClockLabel,
    /// When the engine could first run a step; time in the inbox before it is `model_load`.
    pub ready_at: Option<Nanos>,
}

/// Which model artifact answered.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
pub struct ModelLabel {
    /// What it is called.
    pub name: String,
    /// Of the file, in hexadecimal, where it is known.
    pub sha256: Option<String>,
    /// How most of its weights are stored.
    pub quantisation: String,
}

/// The clock that made the stamps.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
pub struct ClockLabel {
    /// Unix time of instant 0, in milliseconds; no sum uses it.
    pub origin_unix_ms: u64,
    /// The smallest step the clock shows.
    pub resolution_ns: u64,
}

impl ClockLabel {
    /// The label of `clock`.
    pub fn of(clock: &impl Clock) -> Self {
        Self { origin_unix_ms: clock.origin_unix_ms(), resolution_ns: clock.resolution_ns() }
    }
}

/// What a host calls one request. Empty where the host has no such name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RequestLabels {
    /// Response id and `#index` of the choice; `r<number>` where empty.
    pub id: String,
    /// Shared by the choices of one call.
    pub request_id: String,
    /// W3C trace id.
    pub trace_id: Option<String>,
    /// The path or command it came by; where the host has a name among others, that name stands before the path.
    pub route: String,
    /// How long a proxy had the request before `received`, in ns: the proxy's clock against this machine's. The two
    /// differ, so it is an estimate, may be negative, and is part of no sum.
    pub upstream_estimate_ns: Option<i64>,
}

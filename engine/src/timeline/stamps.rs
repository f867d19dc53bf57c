//! What a timeline records: instants, stays, admissions and token counts.
//!
//! Plain data, written by `RequestTimeline::advance` alone. Invariant: an instant that was never reached is absent, not 0.

use serde::{Deserialize, Serialize};

use super::Place;
use crate::clock::Nanos;

/// One stay in one place, half-open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Residency {
    /// Where.
    pub place: Place,
    /// From this instant.
    pub from: Nanos,
    /// To this instant; equal to `from` while the stay is open.
    pub to: Nanos,
}

/// One admission and what it computed until the first token, or until the position before an eviction was reached again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
pub struct PrefillAttempt {
    /// Admitted.
    pub from: Nanos,
    /// First token, position reached again, eviction or end.
    pub to: Nanos,
    /// Tokens found in the pool.
    pub cached: u32,
    /// Tokens computed.
    pub computed: u32,
    #[serde(skip)]
    pub(super) open: bool,
}

/// Tokens of one request, counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
pub struct TokenCounts {
    /// In the prompt.
    pub prompt: u32,
    /// Found in the pool at the first admission; what an eviction finds again is no hit, and stands with its attempt.
    pub cached: u32,
    /// Rows computed in all steps, those of evicted residencies included.
    pub computed: u64,
    /// Sampled.
    pub generated: u32,
    /// Sampled after the client had gone, and shown to nobody.
    pub after_disconnect: u32,
}

/// What the GPU's own clock says, beside all sums.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
pub struct GpuTimes {
    /// The passes of the last admission up to the first token.
    pub forward_ns: u64,
    /// The pass that made the second token; absent without one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub first_decode_ns: Option<u64>,
}

/// The stamps; `None` if never reached.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stamps {
    /// received, checked, routed, preparing, templated, tokenised, created: always a prefix of these.
    pub host: [Option<Nanos>; 7],
    /// First seen by a pass.
    pub queued: Option<Nanos>,
    /// First sampled token on the CPU.
    pub first_token: Option<Nanos>,
    /// First printable text.
    pub first_text: Option<Nanos>,
    /// First chunk with content handed on.
    pub first_write: Option<Nanos>,
    /// Last chunk handed on.
    pub last_write: Option<Nanos>,
    /// The end.
    pub finished: Option<Nanos>,
}

impl Stamps {
    /// The request is whole at the edge.
    pub fn received(&self) -> Option<Nanos> {
        self.host[0]
    }
    /// Put on the inbox.
    pub fn created(&self) -> Option<Nanos> {
        self.host[6]
    }
    /// Where the parts are cut: the first token, or the end where there is none.
    pub fn cut(&self) -> Option<Nanos> {
        self.first_token.or(self.finished)
    }
}

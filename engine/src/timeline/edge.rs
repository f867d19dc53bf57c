//! The edges of a request's state machine and the places between them.
//!
//! It says what can happen, not when. Invariant: every engine stamp is an edge from here, and so is every host stamp.

use serde::{Deserialize, Serialize};

use crate::request::{FinishReason, RejectReason};

/// One edge of a request's state machine.
#[derive(Clone, Debug, PartialEq)]
pub enum Edge {
    /// Whole at the edge of the host.
    Received,
    /// Authorisation, quota, parameters checked.
    Checked,
    /// Model or replica chosen.
    Routed,
    /// A preparation worker took it up.
    Preparing,
    /// Chat template rendered.
    Templated,
    /// The prompt is token ids.
    Tokenised,
    /// Put on the inbox.
    Created,
    /// A scheduling pass saw it for the first time.
    Queued,
    /// Waiting to running; `cached` tokens need no computation.
    Admitted {
        /// Tokens whose K and V were found in the pool.
        cached: u32,
    },
    /// A pass gave a running request this many tokens; 0 is a stall.
    Chunk {
        /// Tokens of this step.
        tokens: u32,
    },
    /// The step is done: so many tokens have K and V now.
    Computed {
        /// Tokens of this step.
        tokens: u32,
        /// What the GPU's clock says of it.
        gpu: PassTimes,
    },
    /// A sampled token is on the CPU.
    Token {
        /// The step that made it.
        step: u64,
    },
    /// Running to waiting; what was computed is lost.
    Preempted,
    /// The end, from anywhere.
    Finished {
        /// Why.
        reason: FinishReason,
        /// Why it was refused, where it was.
        detail: Option<RejectReason>,
    },
    /// The first printable text exists.
    FirstText,
    /// The first chunk with content was handed on.
    FirstWrite,
    /// The last chunk was handed on.
    LastWrite,
}

/// What is known of a pass beside the host's clock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PassTimes {
    /// Its time on the GPU's clock, where the adapter has one.
    pub gpu_ns: Option<u64>,
    /// It was cut into stages, which makes it slower.
    pub profiled: bool,
    /// It was submitted before the tokens of the pass before were read.
    pub ahead: bool,
}

/// Where a request is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Place {
    /// With the host, before `created`.
    Host,
    /// Handed in, not yet seen by a pass.
    Inbox,
    /// Seen, not admitted, or evicted.
    Waiting,
    /// Holds KV blocks and takes part in steps.
    Running,
    /// Ended.
    Done,
}

impl Edge {
    /// Which of the seven host stamps it writes.
    pub(super) fn host_idx(&self) -> Option<usize> {
        match self {
            Self::Received => Some(0),
            Self::Checked => Some(1),
            Self::Routed => Some(2),
            Self::Preparing => Some(3),
            Self::Templated => Some(4),
            Self::Tokenised => Some(5),
            Self::Created => Some(6),
            _ => None,
        }
    }
}

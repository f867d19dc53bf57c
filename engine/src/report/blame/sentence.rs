//! A blame as one sentence for a person, and as JSON that carries the sentence.
//!
//! It finds no cause. Invariant: every sentence begins with the gap.

use std::fmt;

use serde::{Serialize, Serializer};

use super::{Blame, BlameCause, SharedChunk};
use crate::clock::Nanos;
use crate::request::RequestId;

/// A duration in the unit that suits it, with one decimal; whole nanoseconds below a microsecond.
pub(in crate::report) struct Lasted(pub Nanos);

impl fmt::Display for Lasted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (unit, name) = match self.0 {
            0..1_000 => return write!(f, "{} ns", self.0),
            1_000..1_000_000 => (1_000, "us"),
            1_000_000..10_000_000_000 => (1_000_000, "ms"),
            _ => (1_000_000_000, "s"),
        };
        let tenths = (self.0 + unit / 20) / (unit / 10);
        write!(f, "{}.{} {name}", tenths / 10, tenths % 10)
    }
}

/// Chunks that are named one by one; the rest is counted.
const NAMED: usize = 3;

fn chunk_list(f: &mut fmt::Formatter<'_>, chunks: &[SharedChunk]) -> fmt::Result {
    let named = &chunks[..chunks.len().min(NAMED)];
    for (idx, SharedChunk { id, tokens }) in named.iter().enumerate() {
        let last = idx + 1 == named.len() && chunks.len() == named.len();
        let before = match idx {
            0 => "",
            _ if last => " and ",
            _ => ", ",
        };
        write!(f, "{before}{id}'s {tokens}-token chunk")?;
    }
    match chunks.len() - named.len() {
        0 => Ok(()),
        1 => write!(f, " and one more"),
        more => write!(f, " and {more} more"),
    }
}

impl fmt::Display for Blame {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", Lasted(self.gap))?;
        match &self.cause {
            BlameCause::Evicted { waited, recomputed, .. } => {
                let (waited, recomputed) = (Lasted(*waited), Lasted(*recomputed));
                write!(
                    f,
                    ", because {} was evicted: it waited {waited} and recomputing took {recomputed}",
                    self.id
                )
            }
            BlameCause::Prefill { chunks, .. } => {
                write!(f, ", because ")?;
                chunk_list(f, chunks)?;
                write!(f, " shared the step")
            }
            BlameCause::LargerBatch { decode_rows, usual_rows, .. } => {
                write!(
                    f,
                    ", because the step decoded {decode_rows} requests instead of the usual {usual_rows}"
                )
            }
            BlameCause::Paused { lasted } => {
                write!(f, ", because the device was being rebuilt for {}", Lasted(*lasted))
            }
            BlameCause::Host { lasted } => {
                write!(
                    f,
                    ", because no step ran for {} of it: the host was at something else",
                    Lasted(*lasted)
                )
            }
            BlameCause::Step { lasted, decode_rows: 0 | 1, .. } => {
                write!(f, ", because the step itself took {}; nothing else shared it", Lasted(*lasted))
            }
            BlameCause::Step { lasted, decode_rows, .. } => {
                let lasted = Lasted(*lasted);
                write!(
                    f,
                    ", because the step itself took {lasted}; it decoded {decode_rows} requests, no more than usual"
                )
            }
            BlameCause::Forgotten { step } => {
                write!(f, "; step {step} and those before it are no longer remembered")
            }
        }
    }
}

#[derive(Serialize)]
struct BlameJson<'b> {
    engine_id: RequestId,
    token_idx: usize,
    gap: Nanos,
    median: Nanos,
    steps: usize,
    in_steps: Nanos,
    between_steps: Nanos,
    cause: &'b BlameCause,
    sentence: String,
}

impl Serialize for Blame {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        BlameJson {
            engine_id: self.id,
            token_idx: self.token_idx,
            gap: self.gap,
            median: self.median,
            steps: self.num_steps,
            in_steps: self.in_steps,
            between_steps: self.between_steps,
            cause: &self.cause,
            sentence: self.to_string(),
        }
        .serialize(serializer)
    }
}

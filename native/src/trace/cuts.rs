//! The time from a request's first token to its last write, cut into three stages.
//!
//! Invariant: the three sum to that time by `==`, and none of them is what is left over.

use firstlight_engine::clock::Nanos;
use firstlight_engine::timeline::RequestTimeline;

/// The time after the first token, apart.
pub struct Cuts {
    /// First token to first write, where the engine decodes meanwhile; else end to first write.
    pub stream_out: Nanos,
    /// The rest up to the end.
    pub decode: Nanos,
    /// From the end, or the first write after it, to the last write.
    pub teardown: Nanos,
}

impl Cuts {
    /// The first text leaves while the engine decodes on, or, where it was held back that long, once it has ended. Either
    /// way the three follow each other from the first token (or the end, without one) to the last write.
    pub fn of(timeline: &RequestTimeline) -> Self {
        let stamps = timeline.stamps();
        let finished = stamps.finished.unwrap_or_default();
        let end = finished.max(stamps.last_write.unwrap_or(finished));
        let first_token = stamps.first_token.unwrap_or(finished);
        match stamps.first_write.filter(|write| *write <= end) {
            Some(write) if write <= finished => {
                Self { stream_out: write - first_token, decode: finished - write, teardown: end - finished }
            }
            Some(write) => {
                Self { stream_out: write - finished, decode: finished - first_token, teardown: end - write }
            }
            None => Self { stream_out: 0, decode: finished - first_token, teardown: end - finished },
        }
    }
}

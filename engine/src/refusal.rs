//! The end of a request that the engine does not have: refused in preparation, by a full inbox, or left by an engine that
//! is gone.
//!
//! Invariant: its timeline has the stamps that were reached and no others, and keeps every rule of those that the engine
//! makes.

use std::sync::Arc;

use crate::clock::Nanos;
use crate::engine::RequestEvent;
use crate::request::{FinishReason, HostStamps, RejectReason, Request, RequestId};
use crate::timeline::{Edge, EngineLabels, RequestLabels, RequestTimeline};

/// What is known of a request outside the engine.
#[derive(Clone, Debug)]
pub struct Outside {
    /// Its number.
    pub id: RequestId,
    /// What the host calls it.
    pub labels: RequestLabels,
    /// The stamps that it reached; the others are 0, which no clock of a host says once it runs.
    pub stamps: HostStamps,
    /// Tokens of its prompt; 0 where it was not prepared.
    pub prompt_len: u32,
}

impl Outside {
    /// Of a request that was made.
    pub fn of(request: &Request, labels: RequestLabels) -> Self {
        let prompt_len = u32::try_from(request.prompt.len()).unwrap_or(u32::MAX);
        Self { id: request.id, labels, stamps: request.stamps, prompt_len }
    }

    /// Its end at `now`, `Rejected` with this reason. `engine` is what the engine's timelines have in common.
    pub fn refused(self, engine: &Arc<EngineLabels>, reason: RejectReason, now: Nanos) -> RequestEvent {
        self.end(engine, FinishReason::Rejected, Some(reason), now)
    }

    /// Its end at `now`, `Failed`.
    pub fn failed(self, engine: &Arc<EngineLabels>, now: Nanos) -> RequestEvent {
        self.end(engine, FinishReason::Failed, None, now)
    }

    /// Its end at `now`, because nobody waits for it any more.
    pub fn left(self, engine: &Arc<EngineLabels>, reason: FinishReason, now: Nanos) -> RequestEvent {
        self.end(engine, reason, None, now)
    }

    fn end(
        self,
        engine: &Arc<EngineLabels>,
        reason: FinishReason,
        detail: Option<RejectReason>,
        now: Nanos,
    ) -> RequestEvent {
        let mut timeline = Box::new(self.timeline(Arc::clone(engine)));
        timeline.advance(Edge::Finished { reason, detail: detail.clone() }, now);
        RequestEvent::Finished { id: timeline.id(), reason, detail, text: String::new(), timeline }
    }

    fn timeline(self, engine: Arc<EngineLabels>) -> RequestTimeline {
        let stamps = self.stamps;
        if stamps.created > 0 {
            return RequestTimeline::created(self.id, self.labels, engine, &stamps, self.prompt_len);
        }
        let mut timeline = RequestTimeline::new(self.id, self.labels, engine);
        timeline.advance(Edge::Received, stamps.received);
        let edges = [
            (Edge::Checked, stamps.checked),
            (Edge::Routed, stamps.routed),
            (Edge::Preparing, stamps.preparing),
            (Edge::Templated, stamps.templated),
            (Edge::Tokenised, stamps.tokenised),
        ];
        for (edge, at) in edges.into_iter().take_while(|(_, at)| *at > 0) {
            timeline.advance(edge, at);
        }
        timeline
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(stamps: HostStamps, prompt_len: u32, expected_parts: &[(&str, u64)]) {
        let labels = RequestLabels::default();
        let engine = EngineLabels { ready_at: Some(85), ..Default::default() };
        let outside = Outside { id: RequestId(7), labels, stamps, prompt_len };
        let reason = RejectReason::Busy { waiting: 3 };
        let event = outside.refused(&Arc::new(engine), reason.clone(), 100);
        let RequestEvent::Finished { id, reason: why, detail, mut timeline, .. } = event else {
            panic!("an end")
        };
        assert_eq!((id, why, detail), (RequestId(7), FinishReason::Rejected, Some(reason)));
        timeline.seal().unwrap();
        let json = serde_json::to_value(&timeline).unwrap();
        for (pointer, expected) in expected_parts {
            let got = json.pointer(pointer).and_then(serde_json::Value::as_u64);
            assert_eq!(got, Some(*expected), "{pointer}: {json:#}");
        }
    }

    #[test]
    fn a_request_ends_in_the_part_that_it_had_come_to() {
        let received = HostStamps { received: 10, ..Default::default() };
        check(received, 0, &[("/parts_total", 90), ("/parts/gateway", 90)]);
        let routed = HostStamps { checked: 20, routed: 30, ..received };
        check(routed, 0, &[("/parts_total", 90), ("/parts/gateway", 10), ("/parts/preparation/wait", 70)]);
        let templated = HostStamps { preparing: 40, templated: 60, ..routed };
        check(templated, 0, &[("/parts/preparation/tokenise", 40)]);
        let created = HostStamps { tokenised: 70, created: 80, ..templated };
        check(
            created,
            5,
            &[
                ("/parts_total", 90),
                ("/tokens/prompt", 5),
                ("/parts/inbox/model_load", 5),
                ("/parts/inbox/step", 15),
            ],
        );
    }
}

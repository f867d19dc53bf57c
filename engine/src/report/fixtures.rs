//! Timelines and steps made by hand, for the tests of this module.
//!
//! Invariant: a timeline from here has been through the state machine, edge by edge, like any other.

use std::sync::Arc;

use crate::clock::Nanos;
use crate::request::{FinishReason, HostStamps, RequestId};
use crate::timeline::{
    Edge, EngineLabels, PassTimes, Place, RequestLabels, RequestTimeline, StepRecord, StepRing, WaitCauses,
};

/// Received at `received`, one nanosecond more for each boundary, created 6 later; then the edges. Waits are billed to
/// `slots`. The prompt has three tokens.
pub(super) fn live(id: u64, received: Nanos, edges: &[(Edge, Nanos)]) -> RequestTimeline {
    let stamps = HostStamps {
        received,
        checked: received + 1,
        routed: received + 2,
        preparing: received + 3,
        templated: received + 4,
        tokenised: received + 5,
        created: received + 6,
    };
    let labels = RequestLabels { id: format!("cmpl-{id}#0"), ..RequestLabels::default() };
    let engine = EngineLabels { ready_at: Some(0), ..EngineLabels::default() };
    let mut timeline = RequestTimeline::created(RequestId(id), labels, Arc::new(engine), &stamps, 3);
    for (edge, now) in edges {
        if timeline.place() == Place::Waiting {
            let since = timeline.residency().last().map_or(0, |stay| stay.from);
            timeline.bill_wait(WaitCauses { slots: now.saturating_sub(since), ..WaitCauses::default() });
        }
        timeline.advance(edge.clone(), *now);
    }
    timeline
}

/// A step gave it so many tokens; the GPU's clock says nothing of it.
pub(super) fn computed(tokens: u32) -> Edge {
    Edge::Computed { tokens, gpu: PassTimes::default() }
}

pub(super) fn finished(reason: FinishReason) -> Edge {
    Edge::Finished { reason, detail: None }
}

/// Seen at once, admitted 4 later, with tokens from these steps at these instants; the last token ends it. A stream
/// with 2 of hold and 3 of write, unless it is a whole answer.
pub(super) fn answered(id: u64, received: Nanos, tokens: &[(u64, Nanos)], streamed: bool) -> RequestTimeline {
    let created = received + 6;
    let mut edges = vec![
        (Edge::Queued, created),
        (Edge::Admitted { cached: 0 }, created + 4),
        (Edge::Chunk { tokens: 3 }, created + 4),
    ];
    for (idx, (step, at)) in tokens.iter().enumerate() {
        edges.push((computed(if idx == 0 { 3 } else { 1 }), *at));
        edges.push((Edge::Token { step: *step }, *at));
    }
    let last = tokens.last().map_or(created + 4, |(_, at)| *at);
    edges.push((finished(FinishReason::Length), last));
    let mut timeline = live(id, received, &edges);
    if let (true, Some((_, first))) = (streamed, tokens.first()) {
        timeline.first_text(first + 2);
        timeline.first_write(first + 5);
        timeline.last_write((first + 5).max(last));
    }
    seal(timeline)
}

pub(super) fn seal(mut timeline: RequestTimeline) -> RequestTimeline {
    // Whether it passes is what the window says.
    timeline.seal().ok();
    timeline
}

/// A step from `schedule_at` to `done_at` in which `decode_rows` answers go on.
pub(super) fn step(id: u64, schedule_at: Nanos, done_at: Nanos, decode_rows: u32) -> StepRecord {
    StepRecord {
        id,
        schedule_at,
        submit_at: schedule_at,
        done_at,
        ahead_ns: None,
        gpu_ns: None,
        stages: None,
        failed: false,
        decode_rows,
        prefill: Vec::new(),
        running: decode_rows,
        waiting: 0,
        obstacle: None,
        blocks_used: decode_rows,
        blocks_total: 8,
        preempted: Vec::new(),
    }
}

pub(super) fn ring(steps: impl IntoIterator<Item = StepRecord>) -> StepRing {
    steps.into_iter().collect()
}

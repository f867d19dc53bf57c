//! The stages of a request as intervals, cut where its timeline says.
//!
//! Pure. Invariant: the intervals of one name do not overlap, and add up to the timeline's part of that name; those of
//! `decode` and `decode_requeue` together to all that came after the first token.

use opentelemetry_proto::tonic::common::v1::KeyValue;

use firstlight_engine::clock::Nanos;
use firstlight_engine::timeline::{Place, RequestTimeline, WaitCauses};

use super::values::whole;

/// An interval with a name.
#[derive(Clone, Debug, PartialEq)]
pub struct Stage {
    /// The part that it belongs to.
    pub name: &'static str,
    /// From this instant.
    pub from: Nanos,
    /// To this instant.
    pub to: Nanos,
    /// What is known of it beside its length.
    pub attributes: Vec<KeyValue>,
}

/// The stages of a call, and those of this request alone.
pub fn stages(timeline: &RequestTimeline) -> (Vec<Stage>, Vec<Stage>) {
    let stamps = timeline.stamps();
    let end = stamps.finished.unwrap_or(0);
    // A boundary that was not reached is where the end is.
    let between = |name, from: usize, to: usize| {
        let from = stamps.host[from]?;
        Some(Stage { name, from, to: stamps.host[to].unwrap_or(end), attributes: Vec::new() })
    };
    let shared = [between("gateway", 0, 1), between("route", 1, 2)].into_iter().flatten().collect();
    let mut own = Vec::new();
    let parts = timeline.parts().unwrap_or_default();
    if let Some(mut preparation) = between("preparation", 2, 6) {
        let part = parts.preparation;
        preparation.attributes = vec![
            whole("firstlight.wait_ns", part.wait),
            whole("firstlight.template_ns", part.template),
            whole("firstlight.tokenise_ns", part.tokenise),
            whole("firstlight.submit_ns", part.submit),
        ];
        own.push(preparation);
    }
    own.extend(stays(timeline));
    if let (Some(transport), Some(from), Some(to)) = (parts.transport, stamps.first_token, stamps.first_write)
    {
        let attributes =
            vec![whole("firstlight.hold_ns", transport.hold), whole("firstlight.write_ns", transport.write)];
        own.push(Stage { name: "transport", from, to, attributes });
    }
    (shared, own)
}

/// Where it was from `created` to its end.
fn stays(timeline: &RequestTimeline) -> Vec<Stage> {
    let first_token = timeline.stamps().first_token;
    let engine = timeline.parts().and_then(|parts| parts.engine).unwrap_or_default();
    // An attempt ends with the first token; those before it ended with an eviction, earlier.
    let prefill_idx =
        first_token.and_then(|at| timeline.attempts().iter().position(|attempt| attempt.to >= at));
    let (mut stages, mut attempt_idx, mut has_waited) = (Vec::new(), 0, false);
    let num_stays = timeline.residency().len();
    for (idx, stay) in timeline.residency().iter().enumerate() {
        let mut stage = |name, from, to, attributes| stages.push(Stage { name, from, to, attributes });
        let (from, to) = (stay.from, stay.to);
        let answers = prefill_idx.is_some_and(|prefill| attempt_idx > prefill);
        match stay.place {
            Place::Inbox => stage(
                "inbox",
                from,
                to,
                vec![
                    whole("firstlight.model_load_ns", engine.inbox.model_load),
                    whole("firstlight.step_ns", engine.inbox.step),
                ],
            ),
            Place::Waiting if answers => stage("decode_requeue", from, to, Vec::new()),
            Place::Waiting if has_waited => stage("requeue", from, to, Vec::new()),
            Place::Waiting => {
                has_waited = true;
                stage("queue_wait", from, to, causes(engine.queue_wait));
            }
            Place::Running => {
                let attempt = timeline.attempts().get(attempt_idx);
                let tokens = attempt.map_or_else(Vec::new, |attempt| {
                    vec![
                        whole("firstlight.tokens.cached", attempt.cached),
                        whole("firstlight.tokens.computed", attempt.computed),
                    ]
                });
                let is_prefill = prefill_idx == Some(attempt_idx);
                match first_token {
                    Some(at) if is_prefill => {
                        stage("prefill", from, at, tokens);
                        stage("decode", at, to, Vec::new());
                    }
                    Some(_) if answers => stage("decode", from, to, tokens),
                    None if idx + 1 == num_stays => stage("prefill", from, to, tokens),
                    _ => stage("lost_prefill", from, to, tokens),
                }
            }
            Place::Host | Place::Done => {}
        }
        attempt_idx += usize::from(stay.place == Place::Running);
    }
    stages
}

fn causes(waited: WaitCauses) -> Vec<KeyValue> {
    let WaitCauses { slots, budget, blocks, order, paused } = waited;
    let named = [
        ("firstlight.slots_ns", slots),
        ("firstlight.budget_ns", budget),
        ("firstlight.blocks_ns", blocks),
        ("firstlight.order_ns", order),
        ("firstlight.paused_ns", paused),
    ];
    named.into_iter().filter(|(_, ns)| *ns > 0).map(|(name, ns)| whole(name, ns)).collect()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use firstlight_engine::request::{FinishReason, HostStamps, RequestId};
    use firstlight_engine::timeline::{Edge, PassTimes, RequestLabels};

    use super::*;

    /// Received at 0, created at 6; then the edges; ended at 100.
    fn check(edges: &[(Edge, Nanos)], expected: &[(&str, Nanos, Nanos)]) {
        let stamps = HostStamps { checked: 1, routed: 2, preparing: 3, created: 6, ..HostStamps::at(4) };
        let stamps = HostStamps { received: 0, ..stamps };
        let mut timeline =
            RequestTimeline::created(RequestId(1), RequestLabels::default(), Arc::default(), &stamps, 3);
        edges.iter().for_each(|(edge, at)| timeline.advance(edge.clone(), *at));
        timeline.advance(Edge::Finished { reason: FinishReason::Length, detail: None }, 100);
        let (shared, own) = stages(&timeline);
        let plain = |stages: Vec<Stage>| -> Vec<(&str, Nanos, Nanos)> {
            stages.into_iter().map(|stage| (stage.name, stage.from, stage.to)).collect()
        };
        assert_eq!(plain(shared), [("gateway", 0, 1), ("route", 1, 2)]);
        let host = [("preparation", 2, 6)];
        assert_eq!(plain(own), host.iter().chain(expected).copied().collect::<Vec<_>>(), "{edges:?}");
    }

    #[test]
    fn each_stay_is_the_stage_that_its_timeline_counts_it_to() {
        let admitted = || Edge::Admitted { cached: 0 };
        let computed = |tokens| Edge::Computed { tokens, gpu: PassTimes::default() };
        let token = |step| Edge::Token { step };
        check(&[], &[("inbox", 6, 100)]);
        check(&[(Edge::Queued, 10)], &[("inbox", 6, 10), ("queue_wait", 10, 100)]);
        let running = [(Edge::Queued, 10), (admitted(), 20)];
        check(&running, &[("inbox", 6, 10), ("queue_wait", 10, 20), ("prefill", 20, 100)]);
        let evicted = [&running[..], &[(Edge::Preempted, 30)]].concat();
        let lost = [("inbox", 6, 10), ("queue_wait", 10, 20), ("lost_prefill", 20, 30)];
        check(&evicted, &[&lost[..], &[("requeue", 30, 100)]].concat());
        let answered = [&evicted[..], &[(admitted(), 40), (computed(3), 50), (token(0), 50)]].concat();
        let prefill = [&lost[..], &[("requeue", 30, 40), ("prefill", 40, 50)]].concat();
        check(&answered, &[&prefill[..], &[("decode", 50, 100)]].concat());
        let again = [&answered[..], &[(Edge::Preempted, 60), (admitted(), 70)]].concat();
        let decode = [("decode", 50, 60), ("decode_requeue", 60, 70), ("decode", 70, 100)];
        check(&again, &[&prefill[..], &decode[..]].concat());
    }
}

//! Which lives a timeline accepts, and what it makes of them.

use std::sync::Arc;

use super::*;
use crate::request::RejectReason;

fn blank(ready_at: Option<Nanos>) -> RequestTimeline {
    let engine = EngineLabels { ready_at, ..EngineLabels::default() };
    RequestTimeline::new(RequestId(7), RequestLabels::default(), Arc::new(engine))
}

fn finished() -> Edge {
    Edge::Finished { reason: FinishReason::Length, detail: None }
}

/// Received at 0, one nanosecond more for each boundary, created at 6.
fn created() -> RequestTimeline {
    let stamps = HostStamps {
        received: 0,
        checked: 1,
        routed: 2,
        preparing: 3,
        templated: 4,
        tokenised: 5,
        created: 6,
    };
    RequestTimeline::created(RequestId(7), RequestLabels::default(), Arc::default(), &stamps, 3)
}

/// `created`, then the edges; waits are billed to `slots` in full.
fn live(edges: &[(Edge, Nanos)]) -> RequestTimeline {
    let mut timeline = created();
    for (edge, now) in edges {
        if timeline.place == Place::Waiting {
            let since = timeline.residency.last().map_or(0, |stay| stay.from);
            timeline.bill_wait(WaitCauses { slots: now.saturating_sub(since), ..WaitCauses::default() });
        }
        timeline.advance(edge.clone(), *now);
    }
    timeline
}

fn admitted() -> Edge {
    Edge::Admitted { cached: 0 }
}

fn chunk(tokens: u32) -> Edge {
    Edge::Chunk { tokens }
}

fn computed(tokens: u32) -> Edge {
    Edge::Computed { tokens, gpu: PassTimes::default() }
}

fn token(step: u64) -> Edge {
    Edge::Token { step }
}

#[test]
fn a_life_that_the_state_machine_does_not_have_is_broken() {
    use TimelineRule::{BelowLimit, Ended, LegalEdge, Monotonic};
    let check = |edges: &[(Edge, Nanos)], expected: TimelineRule| {
        let rule = live(edges).check().map_err(|broken| broken.rule);
        assert_eq!(rule, Err(expected), "{edges:?}");
    };
    check(&[], Ended);
    check(&[(Edge::Queued, 9)], Ended);
    check(&[(admitted(), 9), (finished(), 10)], LegalEdge);
    check(&[(Edge::Queued, 9), (Edge::Queued, 10), (finished(), 11)], LegalEdge);
    check(&[(Edge::Queued, 9), (Edge::Preempted, 10), (finished(), 11)], LegalEdge);
    check(&[(Edge::Queued, 9), (token(0), 10), (finished(), 11)], LegalEdge);
    check(&[(Edge::Queued, 9), (finished(), 10), (finished(), 11)], LegalEdge);
    check(&[(Edge::Queued, 9), (finished(), 10), (admitted(), 11)], LegalEdge);
    check(&[(Edge::Queued, 9), (finished(), 10), (Edge::FirstText, 11)], LegalEdge);
    check(&[(Edge::Checked, 9), (finished(), 10)], LegalEdge);
    check(&[(Edge::Queued, 5), (finished(), 10)], Monotonic);
    check(&[(Edge::Queued, 9), (finished(), 8)], Monotonic);
    check(&[(Edge::Queued, NANOS_LIMIT), (finished(), NANOS_LIMIT + 1)], BelowLimit);
}

#[test]
fn transport_stamps_are_set_once_each_in_order_and_not_after_the_seal() {
    let answered = || {
        live(&[
            (Edge::Queued, 9),
            (admitted(), 9),
            (chunk(3), 9),
            (computed(3), 20),
            (token(0), 20),
            (finished(), 30),
        ])
    };
    let check = |stamp: fn(&mut RequestTimeline), expected: Result<(), TimelineRule>| {
        let mut timeline = answered();
        stamp(&mut timeline);
        assert_eq!(timeline.seal().map_err(|broken| broken.rule), expected);
    };
    check(|_| {}, Ok(()));
    check(|t| t.last_write(35), Ok(()));
    check(|t| (t.first_text(22), t.first_write(25), t.last_write(40)).2, Ok(()));
    check(|t| t.first_write(25), Err(TimelineRule::LegalEdge));
    check(|t| (t.first_text(22), t.first_text(23)).1, Err(TimelineRule::LegalEdge));
    check(|t| (t.seal().ok(), t.last_write(40)).1, Err(TimelineRule::LegalEdge));
    check(|t| t.first_text(19), Err(TimelineRule::Monotonic));
    check(|t| (t.first_text(22), t.first_write(21)).1, Err(TimelineRule::Monotonic));
    check(|t| (t.first_text(22), t.first_write(25), t.last_write(24)).2, Err(TimelineRule::Monotonic));
    let mut timeline = answered();
    timeline.first_text(22);
    timeline.first_write(25);
    timeline.last_write(40);
    assert_eq!(timeline.parts().and_then(|p| p.transport), Some(Transport { hold: 2, write: 3 }));
    assert_eq!(timeline.parts().map(|p| p.total()), Some(25));
    assert_eq!((timeline.ttft(), timeline.engine_ttft(), timeline.e2e()), (Some(25), Some(14), Some(40)));
}

#[test]
fn a_sum_that_misses_a_nanosecond_is_broken() {
    let check = |damage: fn(&mut RequestTimeline), expected: TimelineRule| {
        let mut timeline = evicted_before_and_after_its_first_token();
        timeline.check().unwrap();
        damage(&mut timeline);
        assert_eq!(timeline.check().map_err(|broken| broken.rule), Err(expected));
    };
    check(|t| t.queue_wait.slots -= 1, TimelineRule::QueueWait);
    check(|t| t.requeue.order += 1, TimelineRule::Requeue);
    check(|t| t.lost_prefill -= 1, TimelineRule::LostPrefill);
    check(|t| t.prefill.stall += 1, TimelineRule::Prefill);
    check(|t| t.decode.recompute -= 1, TimelineRule::DecodeSum);
    check(|t| t.residency[1].to -= 1, TimelineRule::Residency);
    check(|t| (t.residency.pop(), ()).1, TimelineRule::Residency);
    check(|t| t.stamps.first_token = Some(69), TimelineRule::Prefill);
    check(|t| t.preemptions += 1, TimelineRule::Attempts);
    check(|t| (t.attempts.pop(), ()).1, TimelineRule::Attempts);
    check(|t| (t.token_step.pop(), ()).1, TimelineRule::Tokens);
    check(|t| t.token_at[0] += 1, TimelineRule::Tokens);
    check(|t| t.stamps.host[6] = Some(7), TimelineRule::Residency);
}

fn evicted_before_and_after_its_first_token() -> RequestTimeline {
    live(&[
        (Edge::Queued, 10),
        (admitted(), 12),
        (chunk(2), 12),
        (computed(2), 19),
        (chunk(0), 20),
        (Edge::Preempted, 25),
        (admitted(), 40),
        (chunk(0), 40),
        (chunk(3), 43),
        (computed(3), 70),
        (token(3), 70),
        (chunk(1), 75),
        (computed(1), 80),
        (token(4), 80),
        (chunk(0), 82),
        (Edge::Preempted, 90),
        (admitted(), 95),
        (chunk(2), 95),
        (computed(2), 99),
        (chunk(3), 101),
        (computed(3), 110),
        (token(6), 110),
        (chunk(0), 113),
        (finished(), 120),
    ])
}

#[test]
fn the_parts_are_those_that_a_person_would_add_up() {
    let timeline = evicted_before_and_after_its_first_token();
    let parts = timeline.parts().unwrap();
    let engine = parts.engine.unwrap();
    assert_eq!((parts.gateway, parts.route), (1, 1));
    assert_eq!(parts.preparation, Preparation { wait: 1, template: 1, tokenise: 1, submit: 1 });
    // The engine that this timeline knows never said that it was ready.
    assert_eq!(engine.inbox, InboxParts { model_load: 4, step: 0 });
    assert_eq!((engine.queue_wait.slots, engine.requeue.slots), (2, 15));
    assert_eq!((engine.lost_prefill, engine.prefill), (13, RunParts { compute: 27, stall: 3 }));
    assert_eq!(timeline.engine_ttft(), Some(64));
    // Recompute ends at 110, where four tokens have K and V again; from 110 the pass that gave tokens runs on.
    let decode = timeline.decode().unwrap();
    assert_eq!(decode, DecodeParts { compute: 5 + 7 + 3, stall: 8 + 7, requeue: 5, recompute: 15 });
    let attempts: Vec<_> = timeline.attempts().iter().map(|a| (a.from, a.to, a.computed)).collect();
    assert_eq!(attempts, [(12, 25, 2), (40, 70, 3), (95, 110, 5)]);
    assert_eq!((timeline.tokens().computed, timeline.tokens().generated), (11, 3));
}

/// An answer of three tokens, five of which have K and V, is evicted at 30; then `edges`.
fn evicted_at_30(edges: &[(Edge, Nanos)]) -> RequestTimeline {
    let mut all = vec![(Edge::Queued, 6), (admitted(), 6), (chunk(3), 6)];
    for (step, at) in [(0, 10), (1, 20), (2, 30)] {
        all.extend([(computed(if step == 0 { 3 } else { 1 }), at), (token(step), at), (chunk(1), at)]);
    }
    all.pop();
    all.push((Edge::Preempted, 30));
    all.extend_from_slice(edges);
    live(&all)
}

#[test]
fn recomputing_lasts_until_the_old_position_however_often_it_is_interrupted() {
    let timeline = evicted_at_30(&[
        (admitted(), 40),
        (chunk(2), 40),
        (computed(2), 50),
        (Edge::Preempted, 50),
        (admitted(), 60),
        (chunk(4), 60),
        (computed(4), 70),
        (chunk(1), 70),
        (computed(1), 80),
        // Five have K and V again.
        (chunk(1), 85),
        (computed(1), 90),
        (token(3), 90),
        (finished(), 95),
    ]);
    timeline.check().unwrap();
    let expected = DecodeParts { compute: 20 + 15, stall: 0, requeue: 10 + 10, recompute: 10 + 20 };
    assert_eq!(timeline.decode(), Some(expected));
}

#[test]
fn an_answer_that_finds_all_its_tokens_again_recomputes_nothing() {
    let timeline = evicted_at_30(&[
        (Edge::Admitted { cached: 5 }, 40),
        (chunk(1), 40),
        (computed(1), 50),
        (token(3), 50),
        (finished(), 50),
    ]);
    timeline.check().unwrap();
    let expected = DecodeParts { compute: 20 + 10, stall: 0, requeue: 10, recompute: 0 };
    assert_eq!(timeline.decode(), Some(expected));
    let again = timeline.attempts()[1];
    assert_eq!((again.from, again.to, again.cached, again.computed), (40, 40, 5, 0));
    // What an eviction finds again is no hit.
    assert_eq!(timeline.tokens().cached, 0);
}

#[test]
fn a_request_with_one_profiled_pass_is_profiled() {
    let pass = |profiled| Edge::Computed { tokens: 1, gpu: PassTimes { profiled, ..PassTimes::default() } };
    let check = |passes: [bool; 3], expected: bool| {
        let mut edges = vec![(Edge::Queued, 6), (admitted(), 6)];
        edges.extend(passes.into_iter().map(|profiled| (pass(profiled), 9)));
        assert_eq!(live(&edges).is_profiled(), expected);
    };
    check([false, false, false], false);
    check([false, true, false], true);
    check([true, false, false], true);
}

#[test]
fn on_a_clock_that_stands_still_the_stay_with_the_first_token_is_not_lost() {
    let timeline = live(&[
        (Edge::Queued, 6),
        (admitted(), 6),
        (chunk(3), 6),
        (computed(3), 9),
        (token(0), 9),
        (Edge::Preempted, 9),
        (admitted(), 9),
        (chunk(4), 9),
        (computed(4), 9),
        (token(1), 9),
        (finished(), 9),
    ]);
    timeline.check().unwrap();
    let engine = timeline.parts().unwrap().engine.unwrap();
    assert_eq!((engine.lost_prefill, engine.prefill.total(), engine.requeue.total()), (0, 3, 0));
}

#[test]
fn a_request_refused_by_the_host_ends_in_the_part_it_had_reached() {
    let all =
        [Edge::Received, Edge::Checked, Edge::Routed, Edge::Preparing, Edge::Templated, Edge::Tokenised];
    // gateway, route, then wait, template, tokenise, submit of the preparation.
    for reached in 1..=all.len() {
        let mut timeline = blank(Some(0));
        for (edge, now) in all[..reached].iter().zip((100..).step_by(10)) {
            timeline.advance(edge.clone(), now);
        }
        let detail = Some(RejectReason::EmptyPrompt);
        let last = 100 + 10 * reached as Nanos - 10;
        timeline.advance(Edge::Finished { reason: FinishReason::Rejected, detail }, last + 7);
        timeline.check().unwrap();
        let parts = timeline.parts().unwrap();
        let p = parts.preparation;
        let leaves = [parts.gateway, parts.route, p.wait, p.template, p.tokenise, p.submit];
        let expected: Vec<_> = (1..=6)
            .map(|idx| [10, 7, 0][1 + usize::from(idx > reached) - usize::from(idx < reached)])
            .collect();
        assert_eq!(leaves.as_slice(), expected.as_slice());
        assert_eq!((parts.engine, timeline.residency()), (None, &[][..]));
    }
}

#[test]
fn model_load_is_the_part_of_the_inbox_before_the_engine_was_ready() {
    let check = |ready_at: Option<Nanos>, queued: Option<Nanos>, expected: (Nanos, Nanos)| {
        let mut timeline = blank(ready_at);
        for edge in [Edge::Received, Edge::Checked, Edge::Routed, Edge::Preparing] {
            timeline.advance(edge, 10);
        }
        for edge in [Edge::Templated, Edge::Tokenised, Edge::Created] {
            timeline.advance(edge, 10);
        }
        if let Some(queued) = queued {
            timeline.advance(Edge::Queued, queued);
            timeline.bill_wait(WaitCauses { paused: 30 - queued, ..WaitCauses::default() });
        }
        timeline.advance(finished(), 30);
        timeline.check().unwrap();
        let inbox = timeline.parts().unwrap().engine.unwrap().inbox;
        assert_eq!((inbox.model_load, inbox.step), expected);
    };
    check(Some(0), Some(20), (0, 10));
    check(Some(10), Some(20), (0, 10));
    check(Some(13), Some(20), (3, 7));
    check(Some(25), Some(20), (10, 0));
    check(Some(13), None, (3, 17));
    check(None, None, (20, 0));
}

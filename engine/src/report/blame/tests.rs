//! Who is to blame for gaps that were made by hand.

use super::super::fixtures::{answered, computed, finished, live, ring, seal, step};
use super::*;
use crate::request::FinishReason;
use crate::timeline::Edge;

const MS: Nanos = 1_000_000;

/// A request with tokens from steps 0, 1, 2, 3 and `last`; the last gap ends at `to` milliseconds, the others take 10.
fn slow(last: u64, to: Nanos) -> RequestTimeline {
    let tokens = [(0, 20), (1, 30), (2, 40), (3, 50), (last, to)].map(|(step, at)| (step, at * MS));
    answered(1, 0, &tokens, false)
}

/// Steps 0 to 3 of it, with two answers in each.
fn before() -> Vec<StepRecord> {
    (0..4).map(|id| step(id, (10 + 10 * id) * MS, (20 + 10 * id) * MS, 2)).collect()
}

fn with(mut steps: Vec<StepRecord>, last: impl IntoIterator<Item = StepRecord>) -> StepRing {
    steps.extend(last);
    ring(steps)
}

fn chunk(id: u64, tokens: u32) -> (RequestId, u32) {
    (RequestId(id), tokens)
}

/// What is said of the gap before token 4, and that its time in and between steps sums to it.
fn check(timeline: &RequestTimeline, steps: &StepRing, cause: BlameCause, sentence: &str) {
    let blame = blame(timeline, 4, steps).unwrap();
    assert_eq!((&blame.cause, blame.to_string().as_str()), (&cause, sentence));
    let gap = timeline.token_at()[4] - timeline.token_at()[3];
    let forgotten = matches!(cause, BlameCause::Forgotten { .. });
    assert_eq!((blame.gap, blame.median), (gap, 10 * MS));
    assert_eq!(blame.in_steps + blame.between_steps, if forgotten { 0 } else { gap });
    let json = serde_json::to_value(&blame).unwrap();
    assert_eq!((&json["sentence"], &json["engine_id"]), (&sentence.into(), &1.into()));
    assert!(json["cause"]["kind"].is_string());
}

#[test]
fn a_gap_is_slow_beyond_twice_the_median_of_its_request() {
    for (to, slow_enough) in [(60, false), (70, false), (71, true)] {
        let steps = with(before(), [step(4, 50 * MS, to * MS, 2)]);
        assert_eq!(blame(&slow(4, to), 4, &steps).is_some(), slow_enough, "{to}");
    }
    let steps = ring(before());
    for token_idx in [0, 1, 2, 3, 5, usize::MAX] {
        assert_eq!(blame(&slow(4, 500), token_idx, &steps), None);
    }
    // A request with one gap has no other to be slow against.
    let two = answered(1, 0, &[(0, 20), (1, 900)], false);
    assert_eq!(blame(&two, 1, &steps), None);
    assert_eq!(slowest_gap(&two, &steps).map(|slowest| (slowest.gap, slowest.blame)), Some((880, None)));
    assert_eq!(slowest_gap(&answered(1, 0, &[(0, 20)], false), &steps), None);
}

#[test]
fn prompt_chunks_that_shared_the_step_are_named_largest_first() {
    let named = |prefill: &[(RequestId, u32)], sentence: &str| {
        let mut shared = step(4, 52 * MS, 234 * MS + 200_000, 2);
        shared.prefill = prefill.to_vec();
        let mut chunks: Vec<_> =
            prefill.iter().map(|(id, tokens)| SharedChunk { id: *id, tokens: *tokens }).collect();
        chunks.sort_by_key(|chunk| u32::MAX - chunk.tokens);
        let cause = BlameCause::Prefill { step: 4, lasted: 182 * MS + 200_000, chunks };
        let tokens = [(0, 20 * MS), (1, 30 * MS), (2, 40 * MS), (3, 50 * MS), (4, 234 * MS + 200_000)];
        check(&answered(1, 0, &tokens, false), &with(before(), [shared]), cause, sentence);
    };
    named(&[chunk(7, 512)], "184.2 ms, because r7's 512-token chunk shared the step");
    named(
        &[chunk(8, 3), chunk(7, 512)],
        "184.2 ms, because r7's 512-token chunk and r8's 3-token chunk shared the step",
    );
    named(
        &[chunk(2, 5), chunk(3, 6), chunk(4, 9), chunk(5, 7), chunk(6, 8)],
        "184.2 ms, because r4's 9-token chunk, r6's 8-token chunk, r5's 7-token chunk and 2 more shared the step",
    );
}

#[test]
fn a_batch_larger_than_usual_is_blamed_unless_chunks_were_the_more() {
    let larger = BlameCause::LargerBatch { step: 4, lasted: 90 * MS, decode_rows: 8, usual_rows: 2 };
    let sentence = "90.0 ms, because the step decoded 8 requests instead of the usual 2";
    check(&slow(4, 140), &with(before(), [step(4, 50 * MS, 140 * MS, 8)]), larger.clone(), sentence);
    let mut both = step(4, 50 * MS, 140 * MS, 8);
    both.prefill = vec![chunk(7, 5)];
    check(&slow(4, 140), &with(before(), [both.clone()]), larger, sentence);
    both.prefill = vec![chunk(7, 6)];
    let chunks = vec![SharedChunk { id: RequestId(7), tokens: 6 }];
    let cause = BlameCause::Prefill { step: 4, lasted: 90 * MS, chunks };
    let sentence = "90.0 ms, because r7's 6-token chunk shared the step";
    check(&slow(4, 140), &with(before(), [both]), cause, sentence);
}

#[test]
fn a_step_that_held_no_more_than_usual_is_said_to_have_been_slow_itself() {
    let cause = |decode_rows| BlameCause::Step { step: 4, lasted: 90 * MS, decode_rows };
    let alone = "90.0 ms, because the step itself took 90.0 ms; nothing else shared it";
    let usual = "90.0 ms, because the step itself took 90.0 ms; it decoded 2 requests, no more than usual";
    check(&slow(4, 140), &with(before(), [step(4, 50 * MS, 140 * MS, 1)]), cause(1), alone);
    check(&slow(4, 140), &with(before(), [step(4, 50 * MS, 140 * MS, 2)]), cause(2), usual);
    // One row more than eight explains no doubling.
    let eight: Vec<_> = before().into_iter().map(|s| StepRecord { decode_rows: 8, ..s }).collect();
    let nine = "90.0 ms, because the step itself took 90.0 ms; it decoded 9 requests, no more than usual";
    check(&slow(4, 140), &with(eight, [step(4, 50 * MS, 140 * MS, 9)]), cause(9), nine);
}

#[test]
fn time_without_a_step_is_the_hosts_beyond_the_usual_step() {
    let sentence = "33.0 ms, because no step ran for 16.0 ms of it: the host was at something else";
    let steps = with(before(), [step(4, 66 * MS, 83 * MS, 2)]);
    check(&slow(4, 83), &steps, BlameCause::Host { lasted: 16 * MS }, sentence);
}

#[test]
fn a_device_that_was_rebuilt_is_blamed_for_the_time_until_the_next_pass() {
    let mut paused = step(4, 50 * MS, 55 * MS, 2);
    paused.failed = true;
    let steps = with(before(), [paused, step(5, 12_055 * MS, 12_065 * MS, 2)]);
    let sentence = "12.0 s, because the device was being rebuilt for 12.0 s";
    check(&slow(5, 12_065), &steps, BlameCause::Paused { lasted: 12_005 * MS }, sentence);
}

#[test]
fn an_eviction_of_the_request_is_told_by_its_two_halves() {
    let [admitted, given] = [Edge::Admitted { cached: 0 }, Edge::Chunk { tokens: 3 }];
    let mut edges = vec![(Edge::Queued, 6), (admitted.clone(), 6), (given.clone(), 6)];
    for (step, at) in [(0, 20), (1, 30), (2, 40), (3, 50)] {
        edges.push((computed(if step == 0 { 3 } else { 1 }), at * MS));
        edges.push((Edge::Token { step }, at * MS));
    }
    edges.extend([
        (Edge::Preempted, 50 * MS),
        (admitted, 90 * MS),
        (given, 90 * MS),
        (computed(7), 120 * MS),
        (Edge::Token { step: 6 }, 120 * MS),
        (finished(FinishReason::Length), 120 * MS),
    ]);
    let timeline = seal(live(1, 0, &edges));
    let mut evicting = step(4, 50 * MS, 70 * MS, 1);
    evicting.preempted = vec![RequestId(1)];
    // What else was in these steps explains less: the request was not.
    evicting.prefill = vec![chunk(7, 512)];
    let mut readmitting = step(6, 90 * MS, 120 * MS, 1);
    readmitting.prefill = vec![chunk(1, 7)];
    let steps = with(before(), [evicting, step(5, 70 * MS, 90 * MS, 1), readmitting]);
    let cause = BlameCause::Evicted { step: 4, waited: 40 * MS, recomputed: 30 * MS };
    let sentence = "70.0 ms, because r1 was evicted: it waited 40.0 ms and recomputing took 30.0 ms";
    check(&timeline, &steps, cause, sentence);
}

#[test]
fn what_the_ring_lost_is_not_made_up() {
    let sentence = "90.0 ms; step 5 and those before it are no longer remembered";
    let cause = BlameCause::Forgotten { step: 5 };
    let rings = [
        StepRing::default(),
        ring([step(5, 60 * MS, 140 * MS, 2)]),
        ring([step(6, 60 * MS, 140 * MS, 2)]),
        ring(before()),
    ];
    for steps in rings {
        check(&slow(5, 140), &steps, cause.clone(), sentence);
    }
}

#[test]
fn the_slowest_gap_of_a_window_is_the_first_of_the_longest() {
    let even = answered(1, 0, &[(0, 20), (1, 50), (2, 80)], false);
    assert_eq!(slowest_gap(&even, &StepRing::default()).map(|slowest| slowest.token_idx), Some(1));
    let mut window = ReportWindow::default();
    assert_eq!(slowest_gap_of(&window, &StepRing::default()), None);
    for (id, to) in [(3, 70), (1, 140), (2, 140)] {
        let tokens = [(0, 20), (1, 30), (2, 40), (3, 50), (4, to)].map(|(step, at)| (step, at * MS));
        window.push(answered(id, 0, &tokens, false)).unwrap();
    }
    let slowest = slowest_gap_of(&window, &with(before(), [step(4, 50 * MS, 140 * MS, 2)])).unwrap();
    assert_eq!((slowest.engine_id, slowest.token_idx, slowest.gap), (RequestId(1), 4, 90 * MS));
    assert_eq!((slowest.id.as_str(), slowest.blame.is_some()), ("cmpl-1#0", true));
}

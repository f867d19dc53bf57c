//! What a viewer would find in the traces of timelines that were made by hand.

use std::collections::{BTreeMap, BTreeSet};

use super::super::fixtures::{answered, computed, finished, live, ring, seal, step};
use super::*;
use crate::request::{FinishReason, RequestId};
use crate::timeline::{Edge, RequestLabels};

fn events(timelines: &[RequestTimeline], steps: &StepRing) -> Vec<Value> {
    let trace = chrome_trace(timelines, steps);
    let text = serde_json::to_string(&trace).unwrap();
    let json: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(json["displayTimeUnit"], "ms");
    let events = json["traceEvents"].as_array().unwrap().clone();
    assert_eq!(events.len(), trace.num_events());
    well_formed(&events);
    events
}

/// The rules of the format: each event has its fields, spans pair and nest by category and id, instants ascend.
fn well_formed(events: &[Value]) {
    let mut open: BTreeMap<(String, String), Vec<String>> = BTreeMap::new();
    let mut before = 0.0;
    for event in events {
        let (ph, ts) = (event["ph"].as_str().unwrap(), event["ts"].as_f64().unwrap());
        assert!(ts >= before && event["pid"].is_u64() && event["tid"].is_u64(), "{event} after {before}");
        before = ts;
        let name = event["name"].as_str().unwrap().to_owned();
        let key = || (event["cat"].as_str().unwrap().to_owned(), event["id"].as_str().unwrap().to_owned());
        match ph {
            "b" => open.entry(key()).or_default().push(name),
            "e" => assert_eq!(open.get_mut(&key()).and_then(Vec::pop), Some(name), "{event}"),
            "n" => assert!(!open[&key()].is_empty(), "{event} lies outside of its request"),
            "X" => assert!(event["dur"].as_f64().unwrap() >= 0.0),
            "C" => assert!(event["args"].as_object().unwrap().values().all(Value::is_number)),
            "M" => assert!(event["args"]["name"].is_string()),
            other => panic!("no event {other}"),
        }
    }
    assert!(open.values().all(Vec::is_empty), "left open: {open:?}");
}

/// `(name, from, to)` of the spans of a category in nanoseconds, in the order in which they open.
fn spans(events: &[Value], cat: &str) -> Vec<(String, u64, u64)> {
    let nanos = |event: &Value| (event["ts"].as_f64().unwrap() * 1e3).round() as u64;
    let mut spans: Vec<(String, u64, u64)> = Vec::new();
    let mut open = Vec::new();
    for event in events.iter().filter(|event| event["cat"] == cat) {
        match event["ph"].as_str().unwrap() {
            "b" => {
                open.push(spans.len());
                spans.push((event["name"].as_str().unwrap().to_owned(), nanos(event), 0));
            }
            "e" => spans[open.pop().unwrap()].2 = nanos(event),
            _ => {}
        }
    }
    spans
}

fn check(timeline: RequestTimeline, expected: &[(&str, u64, u64)]) {
    let drawn = events(&[timeline], &StepRing::default());
    let found = spans(&drawn, "request");
    let found: Vec<_> = found.iter().map(|(name, from, to)| (name.as_str(), *from, *to)).collect();
    assert_eq!(found, expected);
}

#[test]
fn a_request_is_drawn_by_its_parts_and_split_where_it_was_evicted() {
    let (admitted, chunk) = (Edge::Admitted { cached: 0 }, |tokens| Edge::Chunk { tokens });
    let timeline = live(
        1,
        0,
        &[
            (Edge::Queued, 10),
            (admitted.clone(), 12),
            (chunk(2), 12),
            (computed(2), 19),
            (Edge::Preempted, 25),
            (admitted.clone(), 40),
            (chunk(3), 40),
            (computed(3), 70),
            (Edge::Token { step: 3 }, 70),
            (chunk(1), 70),
            (computed(1), 75),
            (Edge::Token { step: 4 }, 75),
            (Edge::Preempted, 90),
            (admitted, 95),
            (chunk(5), 95),
            (computed(5), 105),
            (Edge::Token { step: 6 }, 105),
            (finished(FinishReason::Stop), 110),
        ],
    );
    check(
        seal(timeline),
        &[
            ("cmpl-1#0", 0, 110),
            ("gateway", 0, 1),
            ("route", 1, 2),
            ("preparation", 2, 6),
            ("wait", 2, 3),
            ("template", 3, 4),
            ("tokenise", 4, 5),
            ("submit", 5, 6),
            ("inbox", 6, 10),
            ("step", 6, 10),
            ("waiting", 10, 12),
            ("queue_wait", 10, 12),
            ("running", 12, 25),
            ("lost_prefill", 12, 25),
            ("waiting", 25, 40),
            ("requeue", 25, 40),
            ("running", 40, 90),
            ("prefill", 40, 70),
            ("decode", 70, 90),
            ("waiting", 90, 95),
            ("requeue", 90, 95),
            ("running", 95, 110),
            ("recompute", 95, 105),
            ("decode", 105, 110),
        ],
    );
}

#[test]
fn what_has_not_finished_is_closed_at_its_last_instant() {
    let host = [
        ("cmpl-1#0", 0, 20),
        ("gateway", 0, 1),
        ("route", 1, 2),
        ("preparation", 2, 6),
        ("wait", 2, 3),
        ("template", 3, 4),
        ("tokenise", 4, 5),
        ("submit", 5, 6),
        ("inbox", 6, 7),
        ("step", 6, 7),
        ("waiting", 7, 9),
        ("queue_wait", 7, 9),
        ("running", 9, 20),
        ("prefill", 9, 20),
    ];
    let edges = [
        (Edge::Queued, 7),
        (Edge::Admitted { cached: 0 }, 9),
        (Edge::Chunk { tokens: 3 }, 9),
        (computed(3), 20),
        (Edge::Token { step: 0 }, 20),
    ];
    check(live(1, 0, &edges), &host);
    let refused_after = |edges: &[(Edge, Nanos)]| {
        let mut timeline = RequestTimeline::new(RequestId(1), RequestLabels::default(), Default::default());
        edges.iter().for_each(|(edge, at)| timeline.advance(edge.clone(), *at));
        timeline
    };
    let edges = [(Edge::Received, 3), (Edge::Checked, 5), (Edge::Routed, 6), (Edge::Preparing, 8)];
    check(
        refused_after(&edges),
        &[("r1", 3, 8), ("gateway", 3, 5), ("route", 5, 6), ("preparation", 6, 8), ("wait", 6, 8)],
    );
    check(refused_after(&[(Edge::Received, 3)]), &[("r1", 3, 3)]);
    check(refused_after(&[]), &[]);
}

#[test]
fn a_broken_timeline_leaves_out_what_does_not_fit_and_nothing_open() {
    let edges = [(Edge::Queued, 4), (Edge::Preempted, 30), (finished(FinishReason::Failed), 2)];
    let mut timeline = answered(1, 0, &[(0, 40)], false);
    timeline.first_write(30);
    for timeline in [live(1, 0, &edges), timeline] {
        assert!(events(&[timeline], &StepRing::default()).len() > 4);
    }
}

#[test]
fn transport_has_its_own_track_because_decoding_goes_on_meanwhile() {
    let drawn = events(&[answered(1, 0, &[(0, 20), (1, 22), (2, 60)], true)], &StepRing::default());
    let expected = [("transport", 20, 25), ("hold", 20, 22), ("write", 22, 25)];
    assert_eq!(spans(&drawn, "transport"), expected.map(|(name, from, to)| (name.to_owned(), from, to)));
    let instants: Vec<_> =
        drawn.iter().filter(|event| event["ph"] == "n").map(|e| e["name"].clone()).collect();
    assert_eq!(instants, ["first_token", "first_text", "first_write"]);
}

#[test]
fn requests_are_told_apart_by_both_their_ids() {
    let twice = answered(3, 0, &[(0, 20)], true);
    let timelines =
        [answered(1, 0, &[(0, 20)], true), answered(2, 5, &[(0, 20)], false), twice.clone(), twice];
    let drawn = events(&timelines, &StepRing::default());
    let requests: Vec<&Value> =
        drawn.iter().filter(|event| event["ph"] == "b" && !event["args"].is_null()).collect();
    let ids: BTreeSet<&str> = requests.iter().map(|event| event["id"].as_str().unwrap()).collect();
    assert_eq!((requests.len(), ids), (3, BTreeSet::from(["r1", "r2", "r3"])));
    for event in requests {
        let number = event["id"].as_str().unwrap().trim_start_matches('r');
        assert_eq!((&event["args"]["engine_id"], &event["args"]["id"]), (&event["id"], &event["name"]));
        assert_eq!(event["name"], format!("cmpl-{number}#0"));
        assert_eq!(event["args"]["finish_reason"], "length");
    }
}

#[test]
fn steps_are_on_one_track_with_their_counters() {
    let mut mixed = step(1, 1_234_567, 2_345_678, 2);
    mixed.prefill = vec![(RequestId(7), 512)];
    mixed.preempted = vec![RequestId(4)];
    (mixed.gpu_ns, mixed.submit_at, mixed.waiting) = (Some(1_000_001), 1_234_600, 3);
    let drawn = events(&[], &ring([step(0, 0, 1_000, 1), mixed]));
    let of = |ph: &str| drawn.iter().filter(|event| event["ph"] == ph).collect::<Vec<_>>();
    let (steps, counters) = (of("X"), of("C"));
    assert_eq!((steps.len(), counters.len(), of("M").len()), (2, 6, 4));
    assert!(steps.iter().all(|event| event["tid"] == steps[0]["tid"]));
    assert_eq!((&steps[0]["name"], &steps[1]["name"]), (&json!("decode"), &json!("prefill and decode")));
    // To the nanosecond.
    assert_eq!(
        (steps[1]["ts"].to_string(), steps[1]["dur"].to_string()),
        ("1234.567".into(), "1111.111".into())
    );
    let expected = json!({
        "step": 1, "decode_rows": 2, "prefill": [["r7", 512]], "running": 2, "waiting": 3, "preempted": ["r4"],
        "submit_after_ns": 33, "gpu_ns": 1_000_001,
    });
    assert_eq!(steps[1]["args"], expected);
    let last: BTreeMap<_, _> = counters[3..]
        .iter()
        .map(|event| (event["name"].as_str().unwrap(), event["args"]["value"].clone()))
        .collect();
    assert_eq!(
        last,
        BTreeMap::from([("KV blocks used", json!(2)), ("running", json!(2)), ("waiting", json!(3))])
    );
    // Fifty days in, three decimals are still those of the nanosecond.
    for nanos in [4_320_000_000_000_001, 4_320_000_000_123_457, 4_320_000_000_999_999] {
        assert_eq!(json!(micros(nanos)).to_string(), format!("{}.{:03}", nanos / 1000, nanos % 1000));
    }
}

#[test]
fn only_steps_that_the_requests_saw_are_drawn() {
    let steps = ring([step(0, 0, 9, 1), step(1, 9, 10, 1), step(2, 30, 60, 1), step(3, 61, 70, 1)]);
    let drawn = events(&[answered(1, 10, &[(1, 40), (2, 60)], false)], &steps);
    let ids: Vec<_> =
        drawn.iter().filter(|event| event["ph"] == "X").map(|event| event["args"]["step"].clone()).collect();
    assert_eq!(ids, [1, 2]);
}

//! What a report says of windows that were made by hand.

use super::super::fixtures::{answered, computed, finished, live, ring, seal, step};
use super::super::{GapFigures, Gauge, MAX_WINDOW, ReportContext, ReportWindow, TimelineRefused};
use super::*;
use crate::timeline::Edge;

fn window(timelines: impl IntoIterator<Item = RequestTimeline>) -> ReportWindow {
    let mut window = ReportWindow::default();
    for timeline in timelines {
        window.push(timeline).unwrap();
    }
    window
}

fn fold(window: &ReportWindow, steps: &StepRing) -> LatencyReport {
    let report = LatencyReport::fold(window, steps, None, ReportContext::default());
    report.check().unwrap();
    report
}

/// Evicted in the middle of its prefill, and again while it decodes.
fn evicted_twice(id: u64, received: Nanos) -> RequestTimeline {
    let at = |offset: Nanos| received + offset;
    let (admitted, chunk) = (Edge::Admitted { cached: 0 }, |tokens| Edge::Chunk { tokens });
    let timeline = live(
        id,
        received,
        &[
            (Edge::Queued, at(10)),
            (admitted.clone(), at(12)),
            (chunk(2), at(12)),
            (computed(2), at(19)),
            (Edge::Preempted, at(25)),
            (admitted.clone(), at(40)),
            (chunk(0), at(40)),
            (chunk(3), at(43)),
            (computed(3), at(70)),
            (Edge::Token { step: 3 }, at(70)),
            (chunk(0), at(75)),
            (Edge::Preempted, at(90)),
            (admitted, at(95)),
            (chunk(4), at(95)),
            (computed(4), at(110)),
            (Edge::Token { step: 6 }, at(110)),
            (finished(FinishReason::Stop), at(110)),
        ],
    );
    seal(timeline)
}

#[test]
fn only_sealed_timelines_that_pass_their_check_enter_and_the_oldest_goes() {
    let mut window = ReportWindow::new(2);
    let unsealed = live(1, 0, &[(finished(FinishReason::Cancelled), 9)]);
    let refused = window.push(unsealed).unwrap_err();
    assert_eq!(refused, TimelineRefused::Unsealed { id: RequestId(1) });
    let broken = seal(live(2, 0, &[(Edge::Preempted, 8), (finished(FinishReason::Cancelled), 9)]));
    assert!(matches!(window.push(broken), Err(TimelineRefused::Broken(_))));
    for id in 3..=5 {
        window.push(answered(id, 0, &[(0, 20)], true)).unwrap();
    }
    let ids: Vec<u64> = window.iter().map(|timeline| timeline.id().0).collect();
    assert_eq!((ids, window.dropped()), (vec![4, 5], 1));
    let report = fold(&window, &StepRing::default());
    assert_eq!((report.n, report.refused_broken, report.refused_unsealed), (2, 1, 1));
    assert_eq!(ReportWindow::new(0).capacity(), 1);
    assert_eq!(ReportWindow::new(usize::MAX).capacity(), MAX_WINDOW);
}

#[test]
fn an_empty_window_has_no_figures_and_no_zero_in_their_place() {
    let unanswered = seal(live(1, 0, &[(Edge::Queued, 7), (finished(FinishReason::Deadline), 7)]));
    for (window, n) in [(ReportWindow::default(), 0), (window([unanswered]), 1)] {
        let report = fold(&window, &StepRing::default());
        assert_eq!((report.n, report.n_answered, report.wholes), (n, 0, Wholes::default()));
        assert_eq!((report.engine_ttft_parts.n, report.engine_ttft_parts.mean()), (0, None));
        assert_eq!((report.ttft_parts.shares(), report.engine_ttft_parts.queue_share()), (None, None));
        assert!(report.at_ttft.is_empty() && report.at_engine_ttft.is_empty());
        assert!(report.gauges.running.is_none() && report.prefix_cache.is_none());
        let json = serde_json::to_value(&report).unwrap();
        assert_eq!(
            (&json["wholes"], &json["schema"]),
            (&serde_json::json!({}), &"firstlight.report/1".into())
        );
        assert!(json["engine_ttft_parts"].get("mean").is_none());
        // The one null is the model's sha-256: a figure that is not a number would be another.
        assert_eq!(json.to_string().matches("null").count(), 1);
    }
    assert_eq!(
        (ReportWindow::default().request_rate(), ReportWindow::default().mean_concurrency()),
        (None, None)
    );
}

#[test]
fn a_percentile_is_the_nearest_rank() {
    for n in 1..=200usize {
        // Scattered, with equal ones among them, and not in order.
        let values: Vec<Nanos> = (0..n as u64).map(|i| i * 7919 % 101).collect();
        let mut sorted = values.clone();
        sorted.sort();
        let found = Distribution::of(&mut values.clone()).unwrap();
        for q in 1..=100u32 {
            // The smallest value that at least q percent of all do not exceed.
            let at_most = |v: Nanos| values.iter().filter(|other| **other <= v).count();
            let expected = sorted.iter().find(|v| 100 * at_most(**v) >= q as usize * n).unwrap();
            assert_eq!(sorted[nearest_rank(q, n) - 1], *expected, "p{q} of {n}");
            assert!(found.percentile(q).is_none_or(|value| value == *expected), "p{q} of {n}");
        }
        let sum: Nanos = values.iter().sum();
        assert_eq!((found.n, found.sum, found.min, found.max), (n, sum, sorted[0], sorted[n - 1]));
    }
    assert_eq!((nearest_rank(50, 0), nearest_rank(0, 9), nearest_rank(100, 9)), (0, 1, 9));
    assert_eq!((nearest_rank(99, 100), nearest_rank(99, 101), nearest_rank(50, 1)), (99, 100, 1));
    assert_eq!(Distribution::of(&mut []), None);
}

#[test]
fn every_reason_is_counted_as_itself() {
    use FinishReason::*;
    let reasons =
        [Stop, StopString, Length, ContentFilter, Cancelled, Disconnected, Deadline, Failed, Rejected];
    let mut timelines = Vec::new();
    for (idx, reason) in reasons.into_iter().enumerate() {
        timelines.extend((0..=idx as u64).map(|id| seal(live(id, 0, &[(finished(reason), 9)]))));
    }
    let report = fold(&window(timelines), &StepRing::default());
    let json = serde_json::to_value(report.finish_reasons).unwrap();
    for (idx, reason) in reasons.into_iter().enumerate() {
        let word = serde_json::to_value(reason).unwrap();
        assert_eq!(json[word.as_str().unwrap()], idx + 1, "{reason:?}");
    }
    assert_eq!(json.as_object().unwrap().len(), reasons.len());
}

#[test]
fn the_parts_sum_to_the_wholes_and_the_evicted_request_shows_what_it_lost() {
    let timelines = [
        evicted_twice(1, 0),
        answered(2, 5, &[(0, 40), (1, 52), (2, 60)], true),
        answered(3, 9, &[(1, 52)], false),
        seal(live(4, 2, &[(Edge::Queued, 12), (finished(FinishReason::Cancelled), 50)])),
    ];
    let total = |of: fn(&RequestTimeline) -> Option<Nanos>| timelines.iter().filter_map(of).sum::<Nanos>();
    let report = fold(&window(timelines.clone()), &StepRing::default());
    assert_eq!((report.n, report.n_answered, report.n_preempted, report.re_prefills), (4, 3, 1, 2));
    let engine = &report.engine_ttft_parts;
    assert_eq!((engine.n, engine.engine_ttft), (3, total(RequestTimeline::engine_ttft)));
    assert_eq!((engine.parts.requeue.slots, engine.parts.lost_prefill), (15, 13));
    assert_eq!(engine.parts.queue_wait.slots, 2 + 4 + 4);
    assert_eq!((report.ttft_parts.n, report.ttft_parts.ttft), (1, total(RequestTimeline::ttft)));
    assert_eq!(report.decode_parts.parts.requeue, 5);
    let shares: f64 = report.ttft_parts.shares().unwrap().iter().map(|(_, share)| share).sum();
    assert!((shares - 1.0).abs() < 1e-12, "{shares}");
    let shares = [engine.inbox_share(), engine.queue_share(), engine.prefill_share(), engine.waste_share()];
    assert!((shares.map(Option::unwrap).iter().sum::<f64>() - 1.0).abs() < 1e-12, "{shares:?}");
    // The gaps: 40 of the evicted one, 12 and 8 of the second. Per output token: 40 and 10.
    let gaps = report.wholes.inter_token.unwrap();
    assert_eq!((gaps.n, gaps.sum, gaps.min, gaps.p50, gaps.max), (3, 60, 8, 12, 40));
    let per_token = report.wholes.time_per_output_token.unwrap();
    assert_eq!((per_token.n, per_token.min, per_token.max), (2, 10, 40));
    let queue = report.wholes.queue.unwrap();
    assert_eq!((queue.n, queue.max), (3, 2 + 15));
    assert_eq!((report.tokens.generated, report.tokens.prompt, report.tokens.computed), (6, 12, 9 + 5 + 3));
    let damaged = EngineTtftSums { engine_ttft: engine.engine_ttft + 1, ..*engine };
    let mismatch =
        SumMismatch { whole: "engine TTFTs", n: 3, parts: engine.engine_ttft, total: engine.engine_ttft + 1 };
    assert_eq!(damaged.check(), Err(mismatch));
}

#[test]
fn the_tail_is_shown_by_a_request_that_was_there() {
    // TTFTs 120 down to 21, one nanosecond apart; the hundredth request is the fastest.
    let timelines = (0..100).map(|id| answered(id, id, &[(0, 115)], true));
    let report = fold(&window(timelines), &StepRing::default());
    let at: Vec<_> = report.at_ttft.iter().map(|one| (one.percentile, one.rank, one.engine_id.0)).collect();
    assert_eq!(at, [(50, 50, 50), (95, 95, 5), (99, 99, 1)]);
    for one in &report.at_ttft {
        assert_eq!((one.ttft, &one.id), (one.parts.total(), &format!("cmpl-{}#0", one.engine_id.0)));
        assert_eq!(report.wholes.ttft.unwrap().percentile(one.percentile), Some(one.ttft));
    }
    for one in &report.at_engine_ttft {
        assert_eq!(one.parts.engine.unwrap().total(), one.ttft);
    }
}

#[test]
fn gaps_stand_by_the_batch_that_made_the_token_and_by_its_position() {
    let mut late = step(3, 52, 60, 1);
    late.prefill = vec![(RequestId(9), 512), (RequestId(10), 7)];
    let steps = ring([step(2, 40, 52, 2), late]);
    // Prompts of 3 tokens: the tokens after the first stand at 4, 5, 6.
    let timelines =
        [answered(1, 0, &[(1, 40), (2, 52), (3, 60)], true), answered(2, 0, &[(0, 30), (1, 40)], true)];
    let report = fold(&window(timelines), &steps);
    let one = |gap: Nanos| GapFigures { n: 1, sum: gap, min: gap, max: gap, p50: gap };
    let batches: Vec<_> = report.inter_token_by_batch.buckets.iter().map(|b| (b.batch, b.gaps)).collect();
    assert_eq!((batches, report.inter_token_by_batch.forgotten), (vec![(2, one(12)), (3, one(8))], 1));
    let positions: Vec<_> = report.inter_token_by_position.iter().map(|b| (b.from, b.to, b.gaps)).collect();
    assert_eq!(positions, [(4, 8, GapFigures { n: 3, sum: 30, min: 8, max: 12, p50: 10 })]);
    let json = serde_json::to_value(&report.inter_token_by_position).unwrap();
    assert_eq!(
        json,
        serde_json::json!([{"from": 4, "to": 8, "n": 3, "sum": 30, "min": 8, "max": 12, "p50": 10}])
    );
}

#[test]
fn gauges_are_of_the_steps_within_the_window() {
    let mut evicting = step(1, 20, 30, 4);
    evicting.preempted = vec![RequestId(3), RequestId(4)];
    let steps = ring([step(0, 1, 15, 8), evicting, step(2, 30, 40, 2), step(3, 900, 950, 8)]);
    let window = window([answered(1, 10, &[(1, 30), (2, 40)], false)]);
    let gauges = fold(&window, &steps).gauges;
    assert_eq!((gauges.steps, gauges.preemptions_in_steps), (2, 2));
    assert_eq!(gauges.running, Some(Gauge { now: 2.0, mean: 3.0, max: 4.0 }));
    assert_eq!(gauges.kv_cache_utilisation, Some(Gauge { now: 0.25, mean: 0.375, max: 0.5 }));
    assert_eq!(gauges.preemptions, Some(Gauge { now: 0.0, mean: 1.0, max: 2.0 }));
    let readings =
        GaugeReadings { running: 7, blocks_used: 8, blocks_total: 8, waiting: 5, preemptions_total: 40 };
    let gauges = LatencyReport::fold(&window, &steps, Some(readings), ReportContext::default()).gauges;
    let now = [gauges.running, gauges.kv_cache_utilisation, gauges.queue_depth, gauges.preemptions];
    assert_eq!(now.map(|gauge| gauge.unwrap().now), [7.0, 1.0, 5.0, 40.0]);
}

#[test]
fn the_prefix_cache_counts_the_first_admission_of_each_request() {
    let admitted = |cached| (Edge::Admitted { cached }, 10);
    let once = [(Edge::Queued, 9), admitted(2), (finished(FinishReason::Cancelled), 11)];
    // Evicted, it finds its own blocks again: no hit.
    let again = [
        (Edge::Queued, 9),
        admitted(0),
        (Edge::Preempted, 10),
        admitted(2),
        (finished(FinishReason::Cancelled), 11),
    ];
    let never = [(Edge::Queued, 9), (finished(FinishReason::Cancelled), 11)];
    let window = window([seal(live(1, 0, &once)), seal(live(2, 0, &again)), seal(live(3, 0, &never))]);
    let with = |prefix_cache| {
        let context = ReportContext { prefix_cache, ..ReportContext::default() };
        LatencyReport::fold(&window, &StepRing::default(), None, context).prefix_cache
    };
    let expected = PrefixCacheTokens { queried: 6, hit: 2, hit_rate: Some(2.0 / 6.0) };
    assert_eq!((with(true), with(false)), (Some(expected), None));
}

#[test]
fn a_rate_is_counted_between_arrivals_and_concurrency_by_the_time_under_way() {
    let timelines = [0, 500, 1000].map(|at| answered(at, at, &[(0, at + 1000)], false));
    let window = window(timelines);
    assert_eq!(window.request_rate(), Some(2.0 * 1e9 / 1000.0));
    assert_eq!(window.mean_concurrency(), Some(3000.0 / 2000.0));
}

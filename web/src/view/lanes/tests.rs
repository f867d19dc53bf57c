//! Whether lanes keep their promises at every zoom.

use super::*;
use crate::view::fixtures;

fn views(cut: &Cut) -> Vec<Viewport> {
    let (from, to) = (cut.from().unwrap_or(0), cut.to().unwrap_or(1));
    let fitted = Viewport::fit(from, to, 700.0);
    let zooms = [1e-6, 1e-3, 0.1, 1.0, 3.0, 40.0, 1e3, 1e6].map(|factor| fitted.zoomed(factor, 350.0));
    let pans = [-5_000.0, -300.0, 300.0, 5_000.0].map(|px| fitted.panned(px));
    zooms.into_iter().chain(pans).collect()
}

#[test]
fn rectangles_touch_are_bounded_and_have_a_width_at_every_zoom() {
    for story in fixtures::stories() {
        let cut = cut(&story.record, &story.steps, story.now);
        for view in views(&cut) {
            let lane = lane(&cut, &story.record.token_at, &view);
            assert!(lane.rects.len() <= 704, "{}: {} at {view:?}", story.name, lane.rects.len());
            assert!(lane.ticks.len() <= 236, "{}: {} ticks", story.name, lane.ticks.len());
            let sane = |rect: &Rect| rect.x.is_finite() && rect.w >= 1.0 - 1e-9 && rect.w <= 702.0;
            assert!(lane.rects.iter().chain(&lane.transport).all(sane), "{}: {:?}", story.name, lane.rects);
            let touch = |pair: &[Rect]| (pair[0].x + pair[0].w - pair[1].x).abs() < 1e-9;
            assert!(lane.rects.windows(2).all(touch), "{}: {:?}", story.name, lane.rects);
            // Nothing is further than a pixel from where it belongs.
            if let (Some(first), Some(last)) = (lane.rects.first(), lane.rects.last()) {
                let from = view.x(cut.spans[0].from).max(-1.0);
                let to = view.x(cut.spans[cut.spans.len() - 1].to).min(701.0);
                assert!((first.x - from).abs() < 1.0 + 1e-9, "{}: {first:?} {from}", story.name);
                assert!((last.x + last.w - to).abs() < 1.0 + 1e-9, "{}: {last:?} {to}", story.name);
            }
        }
    }
}

#[test]
fn widths_sum_to_the_parts_where_every_span_is_wide_enough() {
    for story in fixtures::stories().into_iter().filter(|story| story.record.finish_reason.is_some()) {
        let cut = cut(&story.record, &story.steps, story.now);
        let shortest = cut.spans.iter().map(Span::lasted).min().unwrap_or(1) as f64;
        let from = cut.from().unwrap_or(0) as f64;
        let ns_per_px = shortest / WIDE;
        let width = (cut.to().unwrap_or(0) as f64 - from) / ns_per_px + 10.0;
        let view = Viewport { from, ns_per_px, width };
        let lane = lane(&cut, &[], &view);
        assert_eq!(lane.rects.len(), cut.spans.len(), "{}", story.name);
        for span in &cut.spans {
            let drawn: f64 = lane.rects.iter().filter(|rect| rect.part == span.part).map(|rect| rect.w).sum();
            let lasted = cut.sum(|part| part == span.part) as f64;
            assert!(
                (drawn * ns_per_px - lasted).abs() <= lasted * 1e-9 + 1.0,
                "{:?} of {}",
                span.part,
                story.name
            );
        }
    }
}

#[test]
fn no_slow_gap_is_lost_however_dense_the_tokens() {
    // A thousand tokens a millisecond apart, three of which come late.
    let mut at = 0;
    let token_at: Vec<Nanos> = (0..1_000)
        .map(|idx| {
            at += if [100, 101, 700].contains(&idx) { 9_000_000 } else { 1_000_000 };
            at
        })
        .collect();
    for (ns_per_px, slow) in [(1e4, 3), (1e6, 3), (1e7, 2), (1e9, 1)] {
        let view = Viewport { from: 0.0, ns_per_px, width: 2e9 / ns_per_px };
        let ticks = ticks(&token_at, &view);
        assert_eq!(ticks.iter().filter(|tick| tick.slow).count(), slow, "{ns_per_px}");
        assert_eq!(ticks.iter().map(|tick| tick.tokens).sum::<usize>(), 1_000, "{ns_per_px}");
        assert!(ticks.windows(2).all(|pair| pair[1].x - pair[0].x >= TICKS_APART), "{ns_per_px}");
    }
}

#[test]
fn what_lies_under_the_cursor_is_found() {
    for story in fixtures::stories() {
        let cut = cut(&story.record, &story.steps, story.now);
        for (idx, span) in cut.spans.iter().enumerate() {
            assert_eq!((span_at(&cut, span.from), span_at(&cut, span.to - 1)), (Some(idx), Some(idx)));
        }
        assert_eq!(span_at(&cut, cut.spans[cut.spans.len() - 1].to), None);
        assert_eq!(span_at(&cut, 0), None);
    }
}

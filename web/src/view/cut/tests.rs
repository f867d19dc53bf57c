//! Whether lives are cut without a gap, and into what the engine billed.

use super::*;
use crate::view::fixtures;

fn covers(cut: &Cut) -> bool {
    cut.spans.windows(2).all(|pair| pair[0].to == pair[1].from)
        && cut.spans.iter().all(|span| span.lasted() > 0)
}

#[test]
fn spans_cover_a_life_from_received_to_its_end() {
    for story in fixtures::stories() {
        let cut = cut(&story.record, &story.steps, story.now);
        let end = story.record.stamps.finished.unwrap_or(story.now);
        assert!(covers(&cut), "{}: {:?}", story.name, cut.spans);
        assert_eq!(cut.from(), story.record.stamps.received, "{}", story.name);
        assert_eq!(cut.spans.last().map(|span| span.to), Some(end), "{}", story.name);
    }
}

#[test]
fn spans_of_a_sealed_timeline_sum_to_its_parts() {
    for story in fixtures::stories().into_iter().filter(|story| story.record.finish_reason.is_some()) {
        let (record, name) = (&story.record, &story.name);
        let cut = cut(record, &story.steps, story.now);
        let (Some(parts), decode) = (record.parts, record.decode.unwrap_or_default()) else {
            panic!("{name} has no parts");
        };
        let engine = parts.engine.unwrap_or_default();
        let check = |what: &str, holds: fn(Part) -> bool, expected: Nanos| {
            assert_eq!(cut.sum(holds), expected, "{what} of {name}: {:?}", cut.spans);
        };
        check("gateway", |part| part == Part::Gateway, parts.gateway);
        check("template", |part| part == Part::Template, parts.preparation.template);
        check("preparation", |part| part.class() == "preparation", parts.preparation.total());
        check("inbox", |part| part.class() == "inbox", engine.inbox.total());
        check("queue", |part| matches!(part, Part::Queue(_)), engine.queue_wait.total());
        check("requeue", |part| matches!(part, Part::Requeue(_)), engine.requeue.total());
        check("lost prefill", |part| part == Part::LostPrefill, engine.lost_prefill);
        check("prefill", |part| part == Part::Prefill, engine.prefill.compute);
        check("prefill stall", |part| part == Part::PrefillStall, engine.prefill.stall);
        check("decode", |part| part == Part::Decode, decode.compute + decode.stall);
        check("decode requeue", |part| matches!(part, Part::DecodeRequeue(_)), decode.requeue);
        check("recompute", |part| part == Part::Recompute, decode.recompute);
        let transport = parts.transport.unwrap_or_default();
        check("transport", |part| part.class() == "transport", transport.total());
        let chunks: u64 = cut.spans.iter().filter_map(|span| span.tokens).map(u64::from).sum();
        let decoded = record.token_at.len() as u64;
        assert!(chunks <= record.tokens.computed && chunks + decoded >= record.tokens.computed, "{name}");
    }
}

#[test]
fn the_stories_hold_every_kind_of_part() {
    let stories = fixtures::stories();
    let all: Vec<Part> = stories
        .iter()
        .flat_map(|story| cut(&story.record, &story.steps, story.now).spans)
        .map(|span| span.part)
        .collect();
    let some = |what: &str, holds: fn(&Part) -> bool| assert!(all.iter().any(holds), "no {what}");
    some("wait for slots or budget", |part| matches!(part, Part::Queue(Some(Cause::Slots | Cause::Budget))));
    some("wait for blocks", |part| matches!(part, Part::Queue(Some(Cause::Blocks))));
    some("requeue", |part| matches!(part, Part::Requeue(_)));
    some("lost prefill", |part| *part == Part::LostPrefill);
    some("requeue in decode", |part| matches!(part, Part::DecodeRequeue(_)));
    some("recompute", |part| *part == Part::Recompute);
    assert!(stories.iter().any(|story| story.record.finish_reason == Some(FinishReason::Cancelled)));
}

#[test]
fn without_steps_a_stay_is_one_span_and_the_sums_still_hold() {
    let none = VecDeque::new();
    for story in fixtures::stories() {
        let (with, without) =
            (cut(&story.record, &story.steps, story.now), cut(&story.record, &none, story.now));
        assert!(covers(&without), "{}", story.name);
        for holds in [
            (|part| matches!(part, Part::Queue(_))) as fn(Part) -> bool,
            |part| part == Part::LostPrefill,
            |part| matches!(part, Part::Prefill | Part::PrefillStall),
            |part| part == Part::Decode,
        ] {
            assert_eq!(with.sum(holds), without.sum(holds), "{}", story.name);
        }
    }
}

#[test]
fn evictions_and_ends_are_marked() {
    for story in fixtures::stories().into_iter().filter(|story| story.record.finish_reason.is_some()) {
        let marks = cut(&story.record, &story.steps, story.now).marks;
        let evicted = marks.iter().filter(|mark| mark.kind == MarkKind::Evicted).count();
        assert_eq!(evicted, story.record.preemptions as usize, "{}", story.name);
        assert!(marks.iter().any(|mark| matches!(mark.kind, MarkKind::Finished(_))), "{}", story.name);
    }
}

#[test]
fn nonsense_from_elsewhere_is_cut_without_a_panic() {
    let mut record = fixtures::stories().remove(0).record;
    let steps = fixtures::stories().remove(0).steps;
    record.residency.reverse();
    record.stamps.created = Some(3);
    record.stamps.finished = Some(1);
    record.token_at.reverse();
    for now in [0, 1, u64::MAX] {
        assert!(covers(&cut(&record, &steps, now)));
    }
    record.stamps.received = None;
    record.residency.clear();
    assert_eq!(cut(&record, &steps, 9).spans, []);
}

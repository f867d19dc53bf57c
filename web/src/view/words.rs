//! What the page says of an answer and of opening a model, in words.
//!
//! It never rounds a sum: parts are written one by one, as the timeline has them. Invariant: every finish reason and every
//! stage has its words.

use firstlight_engine::request::FinishReason;
use firstlight_engine::timeline::{TimelineRecord, WaitCauses};

use super::duration::short;
use super::format::{bytes, count, rate, time_left};
use crate::protocol::{Progress, Stage};

/// Why an answer ended, in a few words.
pub fn finish(reason: FinishReason) -> &'static str {
    match reason {
        FinishReason::Stop => "finished",
        FinishReason::StopString => "ended at a stop text",
        FinishReason::Length => "cut at the length limit",
        FinishReason::ContentFilter => "ended by the content policy",
        FinishReason::Cancelled => "stopped",
        FinishReason::Disconnected => "connection lost",
        FinishReason::Deadline => "ran out of time",
        FinishReason::Failed => "failed",
        FinishReason::Rejected => "refused",
    }
}

/// Whether an end is one that a reader has to be warned of.
pub fn is_trouble(reason: FinishReason) -> bool {
    use FinishReason::*;
    matches!(reason, ContentFilter | Disconnected | Deadline | Failed | Rejected)
}

/// Tokens and speed of an answer: `128 tokens, 43.1 tokens/s`. The first token is not part of the speed.
pub fn speed(timeline: &TimelineRecord) -> String {
    let generated = timeline.tokens.generated;
    let tokens = count(u64::from(generated), "token");
    let decode = timeline.stamps.first_token.zip(timeline.stamps.finished);
    match decode.map(|(from, to)| to.saturating_sub(from)) {
        Some(ns) if ns > 0 && generated > 1 => {
            format!("{tokens}, {} tokens/s", rate(f64::from(generated - 1) * 1e9 / ns as f64))
        }
        _ => tokens,
    }
}

/// Where the time to the first token went: `First token after 842 ms: 512 ms in the queue (batch full), 330 ms prefill`.
pub fn first_token(timeline: &TimelineRecord) -> Option<String> {
    let parts = timeline.parts?;
    let engine = parts.engine.unwrap_or_default();
    let host = parts.gateway + parts.route + parts.preparation.total();
    let again = engine.requeue.total();
    let named = [
        (host, "to prepare".to_owned()),
        (engine.inbox.total(), "in the inbox".to_owned()),
        (engine.queue_wait.total(), format!("in the queue{}", cause(&engine.queue_wait))),
        (again, format!("waiting again{}", cause(&engine.requeue))),
        (engine.lost_prefill, "prefill lost to an eviction".to_owned()),
        (engine.prefill.total(), "prefill".to_owned()),
        (parts.transport.map_or(0, |transport| transport.total()), "to the page".to_owned()),
    ];
    // Small parts are told together, so that the sentence stays short and its parts still make the whole.
    let total = timeline.parts_total.unwrap_or_else(|| parts.total());
    let counts = |ns: u64| ns.saturating_mul(100) >= total.max(1);
    let mut told: Vec<String> = named
        .iter()
        .filter(|(ns, _)| counts(*ns))
        .map(|(ns, what)| format!("{} {what}", short(*ns)))
        .collect();
    let other: u64 = named.iter().map(|(ns, _)| *ns).filter(|ns| !counts(*ns)).sum();
    if other > 0 {
        told.push(format!("{} other", short(other)));
    }
    let whole = short(total);
    Some(match timeline.stamps.first_token {
        Some(_) => format!("First token after {whole}: {}", told.join(", ")),
        None => format!("Ended after {whole} without a token: {}", told.join(", ")),
    })
}

/// The cause that took the most of a wait.
fn cause(waits: &WaitCauses) -> &'static str {
    let causes = [
        (waits.slots, " (batch full)"),
        (waits.budget, " (token budget spent)"),
        (waits.blocks, " (no free KV blocks)"),
        (waits.order, " (behind another)"),
        (waits.paused, " (device being reopened)"),
    ];
    causes.iter().max_by_key(|(ns, _)| *ns).filter(|(ns, _)| *ns > 0).map_or("", |(_, what)| what)
}

/// A worker's or driver's words as a sentence: begun with a capital, ended with a full stop.
pub fn sentence(said: &str) -> String {
    let said = said.trim();
    let mut rest = said.chars();
    let Some(first) = rest.next() else { return String::new() };
    // A first word with figures or capitals in it is a name: `m.gguf`, `maxBufferSize`.
    let word = said.split_whitespace().next().unwrap_or_default();
    let plain = word.chars().all(|c| c.is_lowercase() || ",;:'".contains(c));
    let mut sentence: String =
        if plain { first.to_uppercase().chain(rest).collect() } else { said.to_owned() };
    if !sentence.ends_with(['.', '!', '?', '\u{2026}']) {
        sentence.push('.');
    }
    sentence
}

/// What a stage is called.
pub fn stage(stage: Stage) -> &'static str {
    match stage {
        Stage::Waiting => "Waiting for another tab",
        Stage::Download => "Download",
        Stage::Check => "Check",
        Stage::Upload => "To the GPU",
        Stage::Compile => "Compile kernels",
    }
}

/// How far a stage is: `41.2 MB of 98.4 MB, 5.1 MB/s, 11 s left`.
pub fn progress(progress: &Progress) -> String {
    let kernels = progress.stage == Stage::Compile;
    let amount = |n: u64| if kernels { n.to_string() } else { bytes(n) };
    if progress.stage == Stage::Waiting {
        return "Another tab is at the same model; this one goes on when that one is done.".to_owned();
    }
    let whole = progress.total.filter(|total| *total > 0 && progress.done >= *total);
    if let Some(total) = whole {
        let what = if kernels { " kernels" } else { "" };
        return format!("{}{what}: done. What comes next is being prepared.", amount(total));
    }
    let mut said = match progress.total {
        Some(total) => format!("{} of {}", amount(progress.done), amount(total)),
        None => amount(progress.done),
    };
    if kernels {
        said.push_str(" kernels");
    }
    if progress.per_second > 0.0 && !kernels {
        said.push_str(&format!(", {}/s", bytes(progress.per_second as u64)));
    }
    let left = progress.total.map(|total| total.saturating_sub(progress.done)).filter(|left| *left > 0);
    if let Some(left) = left.and_then(|left| time_left(left, progress.per_second)) {
        said.push_str(&format!(", {left} left"));
    }
    said
}

#[cfg(test)]
mod tests {
    use super::*;
    use firstlight_engine::timeline::{EngineParts, InboxParts, Parts, RunParts};

    fn timeline() -> TimelineRecord {
        let json = serde_json::json!({
            "schema": "firstlight.timeline/1", "id": "a#0", "engine_id": 1,
            "model": {"name": "m", "sha256": null, "quantisation": "q"},
            "clock": {"origin_unix_ms": 0, "resolution_ns": 1},
            "stamps": {"first_token": 842_000_000u64, "finished": 1_842_000_000u64},
            "residency": [], "attempts": [], "preemptions": 0, "token_at": [], "token_step": [],
            "tokens": {"prompt": 3, "cached": 0, "computed": 46, "generated": 44, "after_disconnect": 0}
        });
        let mut timeline: TimelineRecord = serde_json::from_value(json).expect("a timeline");
        let engine = EngineParts {
            inbox: InboxParts { model_load: 0, step: 0 },
            queue_wait: WaitCauses { slots: 500_000_000, order: 12_000_000, ..WaitCauses::default() },
            prefill: RunParts { compute: 330_000_000, stall: 0 },
            ..EngineParts::default()
        };
        timeline.parts = Some(Parts { engine: Some(engine), ..Parts::default() });
        timeline.parts_total = Some(842_000_000);
        timeline
    }

    #[test]
    fn an_answer_says_how_fast_it_was_and_where_its_first_token_waited() {
        let mut told = timeline();
        assert_eq!(speed(&told), "44 tokens, 43.0 tokens/s");
        let split = "First token after 842 ms: 512 ms in the queue (batch full), 330 ms prefill";
        assert_eq!(first_token(&told).as_deref(), Some(split));
        if let Some(parts) = told.parts.as_mut() {
            (parts.gateway, told.parts_total) = (1_000_000, Some(843_000_000));
        }
        let split = "First token after 843 ms: 512 ms in the queue (batch full), 330 ms prefill, 1 ms other";
        assert_eq!(first_token(&told).as_deref(), Some(split));
        told.tokens.generated = 1;
        assert_eq!(speed(&told), "1 token");
        told.stamps.first_token = None;
        let split = "Ended after 843 ms without a token: 512 ms in the queue (batch full), 330 ms prefill, 1 ms other";
        assert_eq!(first_token(&told).as_deref(), Some(split));
        told.parts = None;
        assert_eq!(first_token(&told), None);
    }

    #[test]
    fn a_stage_says_how_far_it_is() {
        let check = |stage, done, total, per_second, expected: &str| {
            let input = Progress { stage, file: None, done, total, per_second };
            assert_eq!(progress(&input), expected);
        };
        let (mb, all) = (1_000_000, Some(98_362_432));
        check(Stage::Download, 41 * mb, all, 5.1e6, "41.0 MB of 98.4 MB, 5.1 MB/s, 12 s left");
        check(Stage::Download, 41 * mb, None, 0.0, "41.0 MB");
        check(Stage::Check, 98_362_432, all, 1e9, "98.4 MB: done. What comes next is being prepared.");
        check(Stage::Compile, 7, Some(21), 3.0, "7 of 21 kernels, 5 s left");
        let waiting = "Another tab is at the same model; this one goes on when that one is done.";
        check(Stage::Waiting, 0, None, 0.0, waiting);
    }

    #[test]
    fn words_become_a_sentence() {
        let cases = [
            ("the device was lost", "The device was lost."),
            ("m.gguf is damaged", "m.gguf is damaged."),
            ("Done.", "Done."),
            ("what now? ", "What now?"),
            ("", ""),
        ];
        for (said, expected) in cases {
            assert_eq!(sentence(said), expected);
        }
    }

    #[test]
    fn an_end_that_nobody_asked_for_is_trouble() {
        let trouble: Vec<_> = FinishReason::ALL.into_iter().filter(|reason| is_trouble(*reason)).collect();
        assert_eq!(
            trouble.iter().map(|r| finish(*r)).collect::<Vec<_>>(),
            ["ended by the content policy", "connection lost", "ran out of time", "failed", "refused"]
        );
    }
}

//! The line after an answer: where the time to its first token went, and how fast it went on.
//!
//! Invariant: the figures shown sum to the total shown. They are rounded at the edges between the parts, so no part is
//! off by more than one unit of what is printed.

use firstlight_engine::clock::Nanos;
use firstlight_engine::request::FinishReason;
use firstlight_engine::timeline::{Parts, RequestTimeline};

/// The split of one ended request; empty where it never came to a first token.
pub fn line(timeline: &RequestTimeline) -> String {
    let (Some(parts), Some(first), Some(finished)) =
        (timeline.parts(), timeline.stamps().first_token, timeline.stamps().finished)
    else {
        return String::new();
    };
    let counts = timeline.tokens();
    let mut text = format!("TTFT {}", sum(&named(&parts)));
    text.push_str(&format!("; {} tokens in, {} out", counts.prompt, counts.generated));
    // An answer that was cut reads like one that is complete.
    if let Some(reason) = timeline.finish_reason().filter(|reason| *reason != FinishReason::Stop) {
        text.push_str(&format!(" (ended by {})", word(reason)));
    }
    // The first token belongs to the prefill.
    let decoded = counts.generated.saturating_sub(1);
    if decoded > 0 && finished > first {
        let rate = f64::from(decoded) * 1e9 / (finished - first) as f64;
        text.push_str(&format!(", {rate:.1} tokens/s"));
    }
    text
}

/// A reason as the JSON writes it, with spaces.
pub fn word(reason: FinishReason) -> &'static str {
    match reason {
        FinishReason::Stop => "stop",
        FinishReason::StopString => "stop string",
        FinishReason::Length => "length",
        FinishReason::ContentFilter => "content filter",
        FinishReason::Cancelled => "Ctrl-C",
        FinishReason::Disconnected => "disconnect",
        FinishReason::Deadline => "deadline",
        FinishReason::Failed => "failure",
        FinishReason::Rejected => "refusal",
    }
}

/// The parts that a person sees; those that are usually nothing only when they are something.
fn named(parts: &Parts) -> Vec<(&'static str, Nanos)> {
    let before = parts.gateway + parts.route;
    let mut named = vec![("prepare", before + parts.preparation.total())];
    if let Some(engine) = &parts.engine {
        named.extend([("inbox", engine.inbox.total()), ("queue", engine.queue_wait.total())]);
        let rare = [("requeue", engine.requeue.total()), ("lost prefill", engine.lost_prefill)];
        named.extend(rare.into_iter().filter(|(_, duration)| *duration > 0));
        named.push(("prefill", engine.prefill.total()));
    }
    named.extend(parts.transport.map(|transport| ("write", transport.total())));
    named
}

/// `12.34 ms = a 1.20 + b 11.14`.
fn sum(parts: &[(&str, Nanos)]) -> String {
    // Hundredths of a millisecond, rounded half up.
    let unit = |at: Nanos| (at + 5_000) / 10_000;
    let shown = |units: u64| format!("{}.{:02}", units / 100, units % 100);
    let (mut at, mut words) = (0, Vec::new());
    for (name, duration) in parts {
        let from = unit(at);
        at += duration;
        words.push(format!("{name} {}", shown(unit(at) - from)));
    }
    format!("{} ms = {}", shown(unit(at)), words.join(" + "))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(parts: &[(&str, Nanos)], expected: &str) {
        assert_eq!(sum(parts), expected);
    }

    #[test]
    fn what_is_shown_sums_even_where_rounding_would_not() {
        check(&[("a", 1_204_000), ("b", 11_134_000)], "12.34 ms = a 1.20 + b 11.14");
        check(&[("a", 4_000), ("b", 4_000), ("c", 4_000)], "0.01 ms = a 0.00 + b 0.01 + c 0.00");
        check(&[("a", 0)], "0.00 ms = a 0.00");
        check(&[("a", 123_456_789_012)], "123456.79 ms = a 123456.79");
    }
}

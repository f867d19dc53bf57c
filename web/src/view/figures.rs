//! The figures of what lies under a cursor, in words: for pointer, keyboard and screen reader alike.
//!
//! Invariant: whatever is drawn has figures, and they are those that were measured.

use firstlight_engine::clock::Nanos;
use firstlight_engine::timeline::{StepRecord, TimelineRecord, WaitCauses};

use super::cut::{Cut, MarkKind, Span};
use super::duration::{count, exact, share, short};
use super::lanes::slow_limit;
use super::part::{CAUSES, Part};
use super::steps::{obstacle_name, prefill_tokens};

/// A title and lines of name and value.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Figures {
    /// What it is.
    pub title: String,
    /// The end of `--part-...`; empty without a colour.
    pub class: &'static str,
    /// Its figures.
    pub lines: Vec<(String, String)>,
}

impl Figures {
    fn new(title: impl Into<String>, class: &'static str) -> Self {
        Self { title: title.into(), class, lines: Vec::new() }
    }

    fn line(&mut self, name: impl Into<String>, value: impl Into<String>) {
        self.lines.push((name.into(), value.into()));
    }

    /// All of it in one line, for a screen reader.
    pub fn spoken(&self) -> String {
        let lines = self.lines.iter().map(|(name, value)| format!("{name} {value}"));
        std::iter::once(self.title.clone()).chain(lines).collect::<Vec<_>>().join("; ")
    }
}

/// What stands within `reach` nanoseconds of `at` in a lane: a mark, else the span. `None` where there is nothing.
pub fn at(record: &TimelineRecord, cut: &Cut, at: Nanos, reach: Nanos) -> Option<Figures> {
    let near = cut.marks.iter().filter(|mark| mark.at.abs_diff(at) <= reach);
    if let Some(mark) = near.min_by_key(|mark| (mark.at.abs_diff(at), mark.kind != MarkKind::FirstToken)) {
        return Some(of_mark(record, mark.kind, mark.at));
    }
    let idx = super::lanes::span_at(cut, at)?;
    Some(of_span(record, &cut.spans[idx], at))
}

fn since_received(record: &TimelineRecord, at: Nanos) -> String {
    short(at.saturating_sub(record.stamps.received.unwrap_or(0)))
}

/// A mark's.
pub fn of_mark(record: &TimelineRecord, kind: MarkKind, at: Nanos) -> Figures {
    let name = match kind {
        MarkKind::Finished(reason) => format!("{} {}: {}", record.engine_id, kind.name(), reason.name()),
        _ => format!("{} {}", record.engine_id, kind.name()),
    };
    let mut figures = Figures::new(name, if kind == MarkKind::Evicted { "requeue" } else { "" });
    figures.line("after received", since_received(record, at));
    match kind {
        MarkKind::FirstToken => {
            figures.line("engine TTFT", record.engine_ttft.map_or("–".into(), exact));
        }
        MarkKind::FirstWrite => figures.line("TTFT", record.ttft.map_or("–".into(), exact)),
        MarkKind::LastWrite | MarkKind::Finished(_) => {
            figures.line("end to end", record.e2e.map_or("–".into(), exact));
        }
        MarkKind::Evicted | MarkKind::FirstText => {}
    }
    if let (MarkKind::Finished(_), Some(detail)) = (kind, &record.finish_detail) {
        figures.line("why", detail.as_str());
    }
    figures
}

/// A span's, and those of the token that was made up to `at`.
pub fn of_span(record: &TimelineRecord, span: &Span, at: Nanos) -> Figures {
    let mut figures = Figures::new(format!("{} {}", record.engine_id, span.part.name()), span.part.class());
    figures.line("lasted", format!("{} = {}", short(span.lasted()), exact(span.lasted())));
    figures.line("from", format!("{} after received", since_received(record, span.from)));
    figures.line("what", span.part.sentence());
    if let Some(tokens) = span.tokens {
        figures.line("chunk", format!("{} tokens", count(tokens.into())));
    }
    if let Some(step) = span.step {
        figures.line("step", count(step));
    }
    let engine = record.parts.and_then(|parts| parts.engine);
    match (span.part, engine) {
        (Part::Queue(_), Some(engine)) => billed(&mut figures, &engine.queue_wait),
        (Part::Requeue(_), Some(engine)) => billed(&mut figures, &engine.requeue),
        (Part::Decode, _) => token(&mut figures, record, at),
        _ => {}
    }
    figures
}

fn billed(figures: &mut Figures, causes: &WaitCauses) {
    for cause in CAUSES.into_iter().filter(|cause| cause.of(causes) > 0) {
        let nanos = cause.of(causes);
        let of_all = share(nanos as f64, causes.total() as f64);
        figures.line(format!("billed to {}", cause.name()), format!("{} ({of_all})", short(nanos)));
    }
}

fn token(figures: &mut Figures, record: &TimelineRecord, at: Nanos) {
    let after = record.token_at.partition_point(|token| *token < at);
    let idx = after.min(record.token_at.len().saturating_sub(1));
    let gap = idx.checked_sub(1).map(|before| record.token_at[idx].saturating_sub(record.token_at[before]));
    if let Some(gap) = gap {
        let slow = slow_limit(&record.token_at).is_some_and(|limit| gap > limit);
        let words = if slow { " (slow: more than twice the median)" } else { "" };
        figures.line(format!("gap before token {idx}"), format!("{}{words}", short(gap)));
    }
    figures.line("tokens so far", count(after as u64));
}

/// A step's.
pub fn of_step(step: &StepRecord, origin: Nanos) -> Figures {
    let mut figures = Figures::new(format!("step {}", count(step.id)), "");
    let lasted = step.done_at.saturating_sub(step.schedule_at);
    figures.line("lasted", format!("{} = {}", short(lasted), exact(lasted)));
    figures.line("began", short(step.schedule_at.saturating_sub(origin)));
    if let Some(ahead) = step.ahead_ns {
        figures.line("submitted ahead by", short(ahead));
    }
    figures.line("prompt tokens", count(prefill_tokens(step).into()));
    let named = step.prefill.iter().take(4).map(|(id, tokens)| format!("{id}: {tokens}"));
    let named: Vec<String> = named.collect();
    if !named.is_empty() {
        let more = step.prefill.len().saturating_sub(4);
        let more = if more > 0 { format!(" and {more} more") } else { String::new() };
        figures.line("chunks", named.join(", ") + &more);
    }
    figures.line("decode rows", count(step.decode_rows.into()));
    figures.line("running / waiting", format!("{} / {}", step.running, step.waiting));
    if let Some(obstacle) = step.obstacle {
        figures.line("admission stopped at", obstacle_name(obstacle));
    }
    figures.line(
        "KV blocks",
        format!("{} of {}", count(step.blocks_used.into()), count(step.blocks_total.into())),
    );
    if let Some(gpu) = step.gpu_ns {
        figures.line("GPU clock", short(gpu));
    }
    if !step.preempted.is_empty() {
        let ids: Vec<String> = step.preempted.iter().take(8).map(ToString::to_string).collect();
        figures.line("evicted", ids.join(", "));
    }
    if step.failed {
        figures.line("failed", "the device was lost in it");
    }
    figures
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::view::cut::cut;
    use crate::view::fixtures;

    #[test]
    fn whatever_is_drawn_has_figures() {
        for story in fixtures::stories() {
            let cut = cut(&story.record, &story.steps, story.now);
            for span in &cut.spans {
                let figures = of_span(&story.record, span, span.to);
                assert!(figures.spoken().contains(&exact(span.lasted())), "{figures:?}");
                assert!(at(&story.record, &cut, span.from, 0).is_some());
            }
            for mark in &cut.marks {
                assert!(at(&story.record, &cut, mark.at, 1).is_some());
            }
            assert!(story.steps.iter().all(|step| of_step(step, 0).lines.len() >= 5));
        }
    }
}

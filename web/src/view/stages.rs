//! The twelve stages of one request, with what is measured of them here.
//!
//! Invariant: the rows that stand inside no other sum to the time from `received` to the last write, by `==`; what nobody
//! measured has no time.

use std::collections::VecDeque;

use firstlight_engine::clock::Nanos;
use firstlight_engine::timeline::{StageTimes, StepRecord, TimelineRecord};

/// Where a stage runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RanOn {
    /// Server, page or command.
    Host,
    /// The engine's thread.
    Engine,
    /// The adapter.
    Gpu,
}

impl RanOn {
    /// In a word.
    pub fn name(self) -> &'static str {
        match self {
            Self::Host => "host",
            Self::Engine => "engine",
            Self::Gpu => "GPU",
        }
    }
}

/// One stage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stage {
    /// 1 to 12.
    pub number: u8,
    /// What it is called.
    pub name: &'static str,
    /// The stage whose time holds this one's.
    pub inside: Option<u8>,
    /// Its time; `None` where nobody measured it.
    pub nanos: Option<Nanos>,
    /// Where it ran.
    pub ran_on: RanOn,
    /// What its time is made of, or why there is none.
    pub note: &'static str,
}

const NOT_MEASURED: &str = "not measured: only a profiled request is cut into stages";

/// What the top rows sum to: the time from `received` to the end or the last write, whichever is later. `None` while the
/// request lives.
pub fn whole(record: &TimelineRecord) -> Option<Nanos> {
    let finished = record.stamps.finished?;
    finished.max(record.stamps.last_write.unwrap_or(finished)).checked_sub(record.stamps.received?)
}

/// The table of an ended request; empty while it lives.
pub fn stages(record: &TimelineRecord, steps: &VecDeque<StepRecord>) -> Vec<Stage> {
    let (Some(parts), Some(_)) = (record.parts, whole(record)) else { return Vec::new() };
    let engine = parts.engine.unwrap_or_default();
    let own = prompt_steps(record, steps);
    let times = profiled(&own);
    let of = |pick: fn(&StageTimes) -> Nanos| times.as_ref().map(|all| all.iter().map(pick).sum());
    let last = |pick: fn(&StageTimes) -> Nanos| times.as_ref().and_then(|all| all.last().map(pick));
    let matched = own.iter().filter(|step| record.attempts.iter().any(|a| a.from == step.schedule_at));
    let matched: Vec<Nanos> = matched.map(|step| step.submit_at.saturating_sub(step.schedule_at)).collect();
    let (stream_out, decode, teardown) = after_first_token(record);
    let top = |number, name, ran_on, nanos, note| Stage {
        number,
        name,
        inside: None,
        nanos: Some(nanos),
        ran_on,
        note,
    };
    let inner = |number, name, ran_on, nanos: Option<Nanos>, note| {
        let note = if nanos.is_some() { note } else { NOT_MEASURED };
        Stage { number, name, inside: Some(7), nanos, ran_on, note }
    };
    let admission = parts.preparation.submit + engine.inbox.total() + engine.waited();
    let passes = Stage {
        note: if matched.is_empty() {
            "not measured: its steps are no longer known"
        } else {
            "the passes that admitted it"
        },
        ..inner(
            5,
            "KV blocks, prefix match",
            RanOn::Engine,
            (!matched.is_empty()).then(|| matched.iter().sum()),
            "",
        )
    };
    vec![
        top(
            1,
            "parse",
            RanOn::Host,
            parts.gateway + parts.route + parts.preparation.wait,
            "gateway + route + wait",
        ),
        top(2, "chat template", RanOn::Host, parts.preparation.template, "template"),
        top(3, "tokenise", RanOn::Host, parts.preparation.tokenise, "tokenise"),
        top(4, "admission", RanOn::Engine, admission, "submit + inbox + queue + requeue"),
        passes,
        inner(6, "embedding", RanOn::Gpu, of(|t| t.embed_ns), "GPU clock"),
        top(7, "prefill", RanOn::Gpu, engine.lost_prefill + engine.prefill.total(), "lost prefill + prefill"),
        inner(8, "output head", RanOn::Gpu, last(|t| t.head_ns), "GPU clock"),
        inner(9, "sample", RanOn::Gpu, last(|t| t.sample_ns), "GPU clock; 0 where the CPU samples"),
        top(10, "detokenise, stream out", RanOn::Host, stream_out, "up to the first write"),
        top(11, "decode loop", RanOn::Gpu, decode, "up to the end"),
        top(12, "teardown", RanOn::Host, teardown, "up to the last write"),
    ]
}

/// The steps that computed some of its prompt before the first token.
fn prompt_steps<'s>(record: &TimelineRecord, steps: &'s VecDeque<StepRecord>) -> Vec<&'s StepRecord> {
    let cut = record.stamps.first_token.or(record.stamps.finished).unwrap_or_default();
    let own = |step: &&StepRecord| {
        step.done_at <= cut && step.prefill.iter().any(|(id, _)| *id == record.engine_id)
    };
    steps.iter().filter(own).collect()
}

/// The stages of the steps, where all of them were cut.
fn profiled(steps: &[&StepRecord]) -> Option<Vec<StageTimes>> {
    let times: Option<Vec<StageTimes>> = steps.iter().map(|step| step.stages).collect();
    times.filter(|times| !times.is_empty())
}

/// Stages 10, 11 and 12. The first text leaves while the engine decodes on, or once it has ended; either way the three
/// follow each other from the first token, or the end without one, to the last write.
fn after_first_token(record: &TimelineRecord) -> (Nanos, Nanos, Nanos) {
    let stamps = &record.stamps;
    let finished = stamps.finished.unwrap_or_default();
    let end = finished.max(stamps.last_write.unwrap_or(finished));
    let token = stamps.first_token.unwrap_or(finished);
    let between = |from: Nanos, to: Nanos| to.saturating_sub(from);
    match stamps.first_write.filter(|write| *write <= end) {
        Some(write) if write <= finished => {
            (between(token, write), between(write, finished), between(finished, end))
        }
        Some(write) => (between(finished, write), between(token, finished), between(write, end)),
        None => (0, between(token, finished), between(finished, end)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::view::fixtures;

    #[test]
    fn the_top_rows_sum_to_the_whole() {
        for story in fixtures::stories() {
            let record = story.record();
            let rows = stages(&record, &story.steps);
            if record.finish_reason.is_none() {
                assert_eq!((rows.len(), whole(&record)), (0, None), "{}", story.name);
                continue;
            }
            let top: Nanos = rows.iter().filter(|row| row.inside.is_none()).filter_map(|row| row.nanos).sum();
            assert_eq!(Some(top), whole(&record), "{}", story.name);
            assert_eq!(rows.iter().map(|row| row.number).collect::<Vec<_>>(), (1..=12).collect::<Vec<u8>>());
            assert!(rows.iter().all(|row| row.nanos.is_some() || row.note.starts_with("not measured")));
        }
    }
}

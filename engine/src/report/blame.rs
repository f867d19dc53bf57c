//! Why one token was late: what shared the steps between it and the token before it.
//!
//! It guesses nothing: where the steps are gone it says so, and where nothing shared the step it says that. Invariant: the
//! time in steps and the time between steps sum to the gap by `==`.

mod sentence;
#[cfg(test)]
mod tests;

use serde::{Deserialize, Serialize};

pub(super) use self::sentence::Lasted;
use super::buckets::gaps;
use super::latency::host_id;
use super::{ReportWindow, nearest_rank};
use crate::clock::Nanos;
use crate::order::sort_by_number;
use crate::request::RequestId;
use crate::timeline::{Place, RequestTimeline, StepRecord, StepRing};

/// A prompt chunk of another request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
pub struct SharedChunk {
    /// Whose.
    pub id: RequestId,
    /// Tokens of it in the step.
    pub tokens: u32,
}

/// What explains most of a slow gap. Durations are nanoseconds.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum BlameCause {
    /// The request itself was evicted: it waited again and was recomputed.
    Evicted {
        /// The step whose pass evicted it.
        step: u64,
        /// Waiting again, within the gap.
        waited: Nanos,
        /// From its readmission to the token.
        recomputed: Nanos,
    },
    /// Prompt chunks of others shared the step.
    Prefill {
        /// The step; where several had chunks, the longest.
        step: u64,
        /// How long it took.
        lasted: Nanos,
        /// The chunks, largest first; at least one.
        chunks: Vec<SharedChunk>,
    },
    /// More answers than usual went on in the step.
    LargerBatch {
        /// The step; where there are several such, the longest.
        step: u64,
        /// How long it took.
        lasted: Nanos,
        /// Rows in it that continue an answer.
        decode_rows: u32,
        /// The median over the steps that made this request's tokens.
        usual_rows: u32,
    },
    /// The device was being rebuilt.
    Paused {
        /// For so long.
        lasted: Nanos,
    },
    /// No step ran: the host was at something else.
    Host {
        /// The time between the steps.
        lasted: Nanos,
    },
    /// The step itself took long, with no more in it than usual.
    Step {
        /// The step; where there are several, the longest.
        step: u64,
        /// How long it took.
        lasted: Nanos,
        /// Rows in it that continue an answer; 1 is this request's alone.
        decode_rows: u32,
    },
    /// The ring no longer has all the steps of the gap.
    Forgotten {
        /// The step that made the token.
        step: u64,
    },
}

/// A gap of more than twice its request's median, and what is to blame. It is shown as a sentence.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct Blame {
    /// The request.
    #[serde(rename = "engine_id")]
    pub id: RequestId,
    /// The token at the gap's end, from 1.
    pub token_idx: usize,
    /// The gap in nanoseconds.
    pub gap: Nanos,
    /// The median of the request's gaps.
    pub median: Nanos,
    /// Steps between the two tokens, the one that made the second included; 0 where they are forgotten.
    #[serde(rename = "steps")]
    pub num_steps: usize,
    /// Time of the gap within steps, from a pass to the tokens on the CPU; 0 where they are forgotten.
    pub in_steps: Nanos,
    /// The rest: the time between steps.
    pub between_steps: Nanos,
    /// What explains most of it.
    pub cause: BlameCause,
}

/// The longest gap of a request, or of all requests in a window.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
pub struct SlowestGap {
    /// What the host calls the request; `r<number>` where it has no name.
    pub id: String,
    /// Its number in the engine.
    pub engine_id: RequestId,
    /// The token at the gap's end, from 1.
    pub token_idx: usize,
    /// The gap in nanoseconds.
    pub gap: Nanos,
    /// Absent where it is no more than twice the request's median.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub blame: Option<Blame>,
}

/// What the time of a gap went to, in the order in which a tie is decided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Evicted,
    Prefill,
    LargerBatch,
    Paused,
    Host,
    Step,
}

const KINDS: [Kind; 6] =
    [Kind::Evicted, Kind::Prefill, Kind::LargerBatch, Kind::Paused, Kind::Host, Kind::Step];

/// One step of a gap: its kind, and its time that lies within the gap.
struct Slice<'s> {
    step: &'s StepRecord,
    kind: Kind,
    lasted: Nanos,
}

/// Blames the gap before token `token_idx` of `timeline`; `None` unless it exceeds twice the median of the request's gaps.
/// The steps looked at are those after the previous token's, up to the one that made this token.
///
/// The median stays with the step that made the token, and what the rest of the gap went to is compared: an eviction of
/// the request, a rebuilt device, the time between steps, and the steps by what they held. Chunks of others or a larger
/// batch are to blame where they add a quarter to the rows that this request's steps usually decode: the more of the two.
pub fn blame(timeline: &RequestTimeline, token_idx: usize, steps: &StepRing) -> Option<Blame> {
    let (from, to) =
        (*timeline.token_at().get(token_idx.checked_sub(1)?)?, *timeline.token_at().get(token_idx)?);
    let gap = to.checked_sub(from)?;
    let median = median(gaps(timeline).map(|(_, gap)| gap).collect())?;
    if gap <= median.saturating_mul(2) {
        return None;
    }
    let id = timeline.id();
    let Some(held) = steps_between(timeline, token_idx, steps) else {
        let cause = BlameCause::Forgotten { step: *timeline.token_step().get(token_idx)? };
        return Some(Blame {
            id,
            token_idx,
            gap,
            median,
            num_steps: 0,
            in_steps: 0,
            between_steps: 0,
            cause,
        });
    };
    let usual_rows = usual_rows(timeline, token_idx, steps);
    let cut = Cut::of(&held, id, (from, to), usual_rows);
    let (in_steps, num_steps) = (cut.slices.iter().map(|slice| slice.lasted).sum(), held.len());
    let cause = cut.cause(timeline, (from, to), median, usual_rows);
    Some(Blame { id, token_idx, gap, median, num_steps, in_steps, between_steps: gap - in_steps, cause })
}

/// The longest gap of `timeline`, the first of equal ones; `None` below two tokens.
pub fn slowest_gap(timeline: &RequestTimeline, steps: &StepRing) -> Option<SlowestGap> {
    let (token_idx, gap) = longest(timeline)?;
    let (id, engine_id) = (host_id(timeline), timeline.id());
    Some(SlowestGap { id, engine_id, token_idx, gap, blame: blame(timeline, token_idx, steps) })
}

/// The longest gap of all requests in `window`, the first of equal ones; `None` where nobody has two tokens.
pub fn slowest_gap_of(window: &ReportWindow, steps: &StepRing) -> Option<SlowestGap> {
    let longest = window.iter().rev().filter_map(|timeline| Some((longest(timeline)?.1, timeline)));
    let (_, timeline) = longest.max_by_key(|(gap, _)| *gap)?;
    slowest_gap(timeline, steps)
}

fn longest(timeline: &RequestTimeline) -> Option<(usize, Nanos)> {
    // `max_by_key` gives the last of equal ones.
    let mut longest: Option<(usize, Nanos)> = None;
    for (idx, gap) in gaps(timeline) {
        if longest.is_none_or(|(_, best)| gap > best) {
            longest = Some((idx, gap));
        }
    }
    longest
}

fn median<T: Ord + Copy>(mut values: Vec<T>) -> Option<T> {
    let rank = nearest_rank(50, values.len()).checked_sub(1)?;
    Some(*values.select_nth_unstable(rank).1)
}

/// All steps after the previous token's, up to the one that made the token; `None` where one of them is gone.
fn steps_between<'s>(
    timeline: &RequestTimeline,
    token_idx: usize,
    steps: &'s StepRing,
) -> Option<Vec<&'s StepRecord>> {
    let ids = timeline.token_step();
    let (before, own) = (*ids.get(token_idx.checked_sub(1)?)?, *ids.get(token_idx)?);
    let held: Vec<&StepRecord> = steps.iter().filter(|step| step.id > before && step.id <= own).collect();
    (own.checked_sub(before) == Some(held.len() as u64)).then_some(held)
}

/// The median of the decode rows in the steps that made this request's other tokens; 1 where none is remembered.
fn usual_rows(timeline: &RequestTimeline, token_idx: usize, steps: &StepRing) -> u32 {
    let others = timeline.token_step().iter().enumerate().skip(1).filter(|(idx, _)| *idx != token_idx);
    let rows = others.filter_map(|(_, id)| Some(steps.get(*id)?.decode_rows));
    median(rows.collect()).unwrap_or(1).max(1)
}

/// Chunks of others in a step, largest first.
fn chunks_of_others(step: &StepRecord, id: RequestId) -> Vec<SharedChunk> {
    let others = step.prefill.iter().filter(|(other, _)| *other != id);
    let mut chunks: Vec<SharedChunk> =
        others.map(|(id, tokens)| SharedChunk { id: *id, tokens: *tokens }).collect();
    sort_by_number(&mut chunks, |chunk| u64::from(u32::MAX - chunk.tokens));
    chunks
}

fn kind_by_rows(step: &StepRecord, id: RequestId, usual_rows: u32) -> Kind {
    let chunk_rows: u64 = chunks_of_others(step, id).iter().map(|chunk| u64::from(chunk.tokens)).sum();
    let more_rows = u64::from(step.decode_rows.saturating_sub(usual_rows));
    if 4 * (chunk_rows + more_rows) < u64::from(usual_rows) || chunk_rows + more_rows == 0 {
        Kind::Step
    } else if chunk_rows >= more_rows {
        Kind::Prefill
    } else {
        Kind::LargerBatch
    }
}

/// A gap cut at its steps' edges.
struct Cut<'s> {
    slices: Vec<Slice<'s>>,
    host: Nanos,
    /// Between steps, after one in which the device failed.
    paused: Nanos,
}

impl<'s> Cut<'s> {
    /// Every nanosecond of the gap goes to one step or between steps, also where steps overlap.
    fn of(held: &[&'s StepRecord], id: RequestId, (from, to): (Nanos, Nanos), usual_rows: u32) -> Self {
        let mut cut = Self { slices: Vec::with_capacity(held.len()), host: 0, paused: 0 };
        let (mut at, mut is_evicted, mut is_paused) = (from, false, false);
        for step in held {
            let begun = step.schedule_at.clamp(at, to);
            cut.between(begun - at, is_paused);
            is_evicted |= step.preempted.contains(&id);
            is_paused = step.failed;
            let kind = match (is_paused, is_evicted) {
                (true, _) => Kind::Paused,
                (_, true) => Kind::Evicted,
                _ => kind_by_rows(step, id, usual_rows),
            };
            at = step.done_at.clamp(begun, to);
            cut.slices.push(Slice { step, kind, lasted: at - begun });
        }
        cut.between(to - at, is_paused);
        cut
    }

    fn between(&mut self, elapsed: Nanos, is_paused: bool) {
        if is_paused { self.paused += elapsed } else { self.host += elapsed }
    }

    /// Time that went to `kind`; the usual time of a gap is taken off the step that made the token.
    fn beyond(&self, kind: Kind, median: Nanos) -> Nanos {
        let own = self.slices.len().saturating_sub(1);
        let within = self.slices.iter().enumerate().filter(|(_, slice)| slice.kind == kind);
        let lasted =
            within.map(|(idx, slice)| slice.lasted.saturating_sub(if idx == own { median } else { 0 }));
        let between = match kind {
            Kind::Host => self.host,
            Kind::Paused => self.paused,
            _ => 0,
        };
        lasted.sum::<Nanos>() + between
    }

    fn cause(
        &self,
        timeline: &RequestTimeline,
        gap: (Nanos, Nanos),
        median: Nanos,
        usual_rows: u32,
    ) -> BlameCause {
        let most = KINDS.iter().rev().max_by_key(|kind| self.beyond(**kind, median));
        let kind = most.copied().unwrap_or(Kind::Host);
        let longest = self.slices.iter().filter(|slice| slice.kind == kind).max_by_key(|slice| slice.lasted);
        let paused = self.slices.iter().filter(|slice| slice.kind == Kind::Paused).map(|slice| slice.lasted);
        let Some(Slice { step, lasted, .. }) = longest else {
            return match kind {
                Kind::Paused => BlameCause::Paused { lasted: self.paused },
                _ => BlameCause::Host { lasted: self.host },
            };
        };
        let (step, lasted) = (*step, *lasted);
        match kind {
            Kind::Evicted => self.evicted(timeline, gap),
            Kind::Prefill => {
                BlameCause::Prefill { step: step.id, lasted, chunks: chunks_of_others(step, timeline.id()) }
            }
            Kind::LargerBatch => {
                BlameCause::LargerBatch { step: step.id, lasted, decode_rows: step.decode_rows, usual_rows }
            }
            Kind::Paused => BlameCause::Paused { lasted: self.paused + paused.sum::<Nanos>() },
            Kind::Host => BlameCause::Host { lasted: self.host },
            Kind::Step => BlameCause::Step { step: step.id, lasted, decode_rows: step.decode_rows },
        }
    }

    fn evicted(&self, timeline: &RequestTimeline, (from, to): (Nanos, Nanos)) -> BlameCause {
        let by = self.slices.iter().find(|slice| slice.step.preempted.contains(&timeline.id()));
        let within = |stay: &&crate::timeline::Residency| stay.from >= from && stay.to <= to;
        let waits = || timeline.residency().iter().filter(|s| s.place == Place::Waiting).filter(within);
        let readmitted = waits().map(|stay| stay.to).max().unwrap_or(to);
        BlameCause::Evicted {
            step: by.map_or(0, |slice| slice.step.id),
            waited: waits().map(|stay| stay.to - stay.from).sum(),
            recomputed: to - readmitted,
        }
    }
}

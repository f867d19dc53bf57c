//! Inter-token latency against the batch and against the position, as data to plot.
//!
//! It fits no line. Invariant: every gap of the window stands in one bucket by position, and in one bucket by batch or in
//! the count of those whose step is forgotten.

use serde::{Deserialize, Serialize};

use super::nearest_rank;
use crate::clock::Nanos;
use crate::order::sort_pairs;
use crate::timeline::{RequestTimeline, StepRecord, StepRing};

/// The gaps of one bucket, in nanoseconds; there is at least one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
pub struct GapFigures {
    /// How many.
    pub n: usize,
    /// All together.
    pub sum: Nanos,
    /// The shortest.
    pub min: Nanos,
    /// The longest.
    pub max: Nanos,
    /// The ceil(0.50 n)-th smallest.
    pub p50: Nanos,
}

/// Gaps before tokens that were made in a batch of one size.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
pub struct BatchBucket {
    /// Sequences in the step that made the token: those that decode and those that prefill.
    pub batch: u32,
    /// The gaps.
    #[serde(flatten)]
    pub gaps: GapFigures,
}

/// Inter-token latency against the batch.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
pub struct GapsByBatch {
    /// One bucket for each size that occurred, ascending.
    pub buckets: Vec<BatchBucket>,
    /// Gaps whose step the ring no longer had.
    pub forgotten: usize,
}

/// Gaps before tokens at positions in `from..to`, where `to` is twice `from`. Powers of two, because they tell a context of
/// 40 tokens from one of 80 and are still few at 100,000.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
pub struct PositionBucket {
    /// The first position; a token's position is its index in the answer plus the tokens of the prompt.
    pub from: u64,
    /// The position after the last.
    pub to: u64,
    /// The gaps.
    #[serde(flatten)]
    pub gaps: GapFigures,
}

/// The batch of each step in a ring, looked up by id without a search: ids follow each other.
struct BatchSizes(Vec<(u64, u32)>);

impl BatchSizes {
    fn of(steps: &StepRing) -> Self {
        Self(steps.iter().map(|step| (step.id, batch_size(step))).collect())
    }

    fn get(&self, id: u64) -> Option<u32> {
        let first = self.0.first()?.0;
        let guess = usize::try_from(id.checked_sub(first)?).ok()?;
        match self.0.get(guess) {
            Some((found, batch)) if *found == id => Some(*batch),
            // A ring with holes, put together by hand.
            _ => self.0.binary_search_by_key(&id, |entry| entry.0).ok().map(|idx| self.0[idx].1),
        }
    }
}

/// Sequences that a step computed for.
pub(super) fn batch_size(step: &StepRecord) -> u32 {
    step.decode_rows + step.prefill.len() as u32
}

/// Every gap between two tokens of `timeline`, with the index of the token after it.
pub(super) fn gaps(timeline: &RequestTimeline) -> impl Iterator<Item = (usize, Nanos)> {
    timeline.token_at().windows(2).enumerate().map(|(idx, pair)| (idx + 1, pair[1] - pair[0]))
}

fn figures(mut gaps: Vec<Nanos>) -> Option<GapFigures> {
    let (n, min, max) = (gaps.len(), *gaps.iter().min()?, *gaps.iter().max()?);
    let sum = gaps.iter().sum();
    let p50 = *gaps.select_nth_unstable(nearest_rank(50, n) - 1).1;
    Some(GapFigures { n, sum, min, max, p50 })
}

/// Both views of all gaps of `timelines`.
pub(super) fn by_batch_and_position<'t>(
    timelines: impl Iterator<Item = &'t RequestTimeline>,
    steps: &StepRing,
) -> (GapsByBatch, Vec<PositionBucket>) {
    let sizes = BatchSizes::of(steps);
    let mut by_batch: Vec<(u64, Nanos)> = Vec::new();
    let mut by_position: [Vec<Nanos>; 64] = std::array::from_fn(|_| Vec::new());
    let mut forgotten = 0;
    for timeline in timelines {
        let prompt = u64::from(timeline.tokens().prompt);
        for (idx, gap) in gaps(timeline) {
            // A token after the first one stands at 1 at least.
            let position = prompt + idx as u64;
            by_position[position.ilog2() as usize].push(gap);
            match timeline.token_step().get(idx).and_then(|id| sizes.get(*id)) {
                Some(batch) => by_batch.push((batch.into(), gap)),
                None => forgotten += 1,
            }
        }
    }
    sort_pairs(&mut by_batch);
    let batches = by_batch.chunk_by(|a, b| a.0 == b.0).filter_map(|alike| {
        let gaps = figures(alike.iter().map(|(_, gap)| *gap).collect())?;
        Some(BatchBucket { batch: u32::try_from(alike.first()?.0).ok()?, gaps })
    });
    let positions = by_position.into_iter().enumerate().filter_map(|(log2, gaps)| {
        let from = 1u64 << log2;
        Some(PositionBucket { from, to: from.saturating_mul(2), gaps: figures(gaps)? })
    });
    (GapsByBatch { buckets: batches.collect(), forgotten }, positions.collect())
}

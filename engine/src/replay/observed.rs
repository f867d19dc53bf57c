//! What the recorded steps held and how long they took, and what the engine's loop took between them.
//!
//! Pure arithmetic over records. Invariant: a step is told only where every row of it is accounted for by a timeline.

use std::collections::BTreeMap;

use crate::clock::Nanos;
use crate::costs::StepLoad;
use crate::timeline::{RequestTimeline, StepRecord};

/// Steps as they were run: what each held, and nanoseconds from its beginning to its end.
pub type Observed = Vec<(StepLoad, Nanos)>;

/// What the engine's loop takes beside its steps.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct HostTimes {
    /// From a step's end to the beginning of the next, while there is work.
    pub gap_ns: Nanos,
    /// From an arrival at an idle engine to the beginning of a step.
    pub wake_ns: Nanos,
    /// Whether steps were submitted before those before them were read.
    pub runs_ahead: bool,
    /// The steps that the engine was woken up for: the instant that it was asked, and that of the step.
    wakes: Vec<(Nanos, Nanos)>,
}

impl HostTimes {
    /// Of a recorded run. Medians: a loop that something held up once is not one that is slow.
    pub fn of<'t>(timelines: impl IntoIterator<Item = &'t RequestTimeline>, steps: &[StepRecord]) -> Self {
        // The first of those that a step saw first, by the step's instant.
        let mut seen: BTreeMap<Nanos, Nanos> = BTreeMap::new();
        for stamps in timelines.into_iter().map(RequestTimeline::stamps) {
            if let (Some(created), Some(queued)) = (stamps.created(), stamps.queued) {
                let first = seen.entry(queued).or_insert(created);
                *first = created.min(*first);
            }
        }
        let mut gaps = Vec::new();
        let mut wakes = Vec::new();
        let mut last_end = None;
        for step in steps {
            let asked_at = seen.get(&step.schedule_at).copied();
            match (last_end, asked_at) {
                (None, Some(asked)) => wakes.push((asked, step.schedule_at)),
                (Some(end), Some(asked)) if asked > end => wakes.push((asked, step.schedule_at)),
                (Some(end), _) => gaps.push(step.schedule_at.saturating_sub(end)),
                (None, None) => {}
            }
            last_end = Some(step.done_at);
        }
        Self {
            gap_ns: median(gaps),
            wake_ns: median(wakes.iter().map(|(asked, at)| at - asked).collect()),
            runs_ahead: steps.iter().any(|step| step.ahead_ns.is_some()),
            wakes,
        }
    }

    /// How long the engine took to wake up for this request, where it did.
    pub(super) fn wake_of(&self, timeline: &RequestTimeline) -> Option<Nanos> {
        let created = timeline.stamps().created()?;
        let idx = self.wakes.binary_search_by_key(&created, |(asked, _)| *asked).ok()?;
        self.wakes.get(idx).map(|(asked, at)| at - asked)
    }
}

fn median(mut values: Vec<Nanos>) -> Nanos {
    values.sort_unstable();
    values.get(values.len().saturating_sub(1) / 2).copied().unwrap_or_default()
}

/// A step while its rows are counted.
#[derive(Default)]
struct Counted {
    load: StepLoad,
    /// Rows that continue an answer.
    decode_rows: u32,
    /// Requests whose prompts it has a part of.
    chunks: usize,
}

/// Each of `steps` whose rows all belong to `timelines`, with its time. Steps that failed and those that were cut into stages
/// are not like others.
pub fn observed_steps<'t>(
    timelines: impl IntoIterator<Item = &'t RequestTimeline>,
    steps: &[StepRecord],
) -> Observed {
    let mut counted: Vec<Counted> = Vec::new();
    counted.resize_with(steps.len(), Counted::default);
    let mut chunks: BTreeMap<u64, Vec<(usize, u32)>> = BTreeMap::new();
    for (idx, step) in steps.iter().enumerate() {
        for (id, tokens) in &step.prefill {
            chunks.entry(id.0).or_default().push((idx, *tokens));
        }
    }
    let idx_of = |id: u64| steps.binary_search_by_key(&id, |step| step.id).ok();
    for timeline in timelines {
        let none = Vec::new();
        let own = chunks.get(&timeline.id().0).unwrap_or(&none);
        let mut admissions = timeline.attempts().iter().peekable();
        let mut position = 0;
        for &(idx, tokens) in own {
            while let Some(attempt) = admissions.next_if(|next| next.from <= steps[idx].schedule_at) {
                position = attempt.cached;
            }
            counted[idx].load.add(position, tokens);
            counted[idx].chunks += 1;
            position = position.saturating_add(tokens);
        }
        let prompt = timeline.tokens().prompt;
        for (step, number) in timeline.token_step().iter().zip(0u32..) {
            let Some(idx) = idx_of(*step) else { continue };
            counted[idx].load.sampled_rows += 1;
            if own.binary_search_by_key(&idx, |(idx, _)| *idx).is_err() {
                // The row is that of the token before, which stands behind the prompt and those before it.
                counted[idx].load.add(prompt.saturating_add(number).saturating_sub(1), 1);
                counted[idx].decode_rows += 1;
            }
        }
    }
    let whole = |(step, counted): &(&StepRecord, Counted)| {
        !step.failed
            && step.stages.is_none()
            && counted.decode_rows == step.decode_rows
            && counted.chunks == step.prefill.len()
    };
    let told = |(step, counted): (&StepRecord, Counted)| (counted.load, step.done_at - step.schedule_at);
    steps.iter().zip(counted).filter(whole).map(told).collect()
}

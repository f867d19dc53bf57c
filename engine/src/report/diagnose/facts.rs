//! What a window comes to for the rules: one line for each answered request, one for each step that only decodes, and sums.
//!
//! It judges nothing. Invariant: the parts of an answer's first token sum to it by `==`.

use super::Observed;
use super::statistics::percentile;
use crate::clock::Nanos;
use crate::order::sort_by_number;
use crate::report::buckets::gaps;
use crate::report::window::ended;
use crate::timeline::{Preparation, RequestTimeline, StepRecord, WaitCauses};

/// An answered request. Durations are nanoseconds.
pub(super) struct Answer<'w> {
    pub timeline: &'w RequestTimeline,
    /// To the first write, or to the first token where the answer was not streamed: the sum of the next six.
    pub first: Nanos,
    pub host: Nanos,
    pub inbox: Nanos,
    pub queue: Nanos,
    pub waste: Nanos,
    pub prefill: Nanos,
    pub transport: Nanos,
    /// Tokens.
    pub prompt: u64,
    pub cached: u64,
    /// The median gap between two tokens.
    pub gap: Option<Nanos>,
    pub e2e: Nanos,
    /// From the end to the last write.
    pub tail: Nanos,
}

/// A step in which nobody's prompt was computed.
pub(super) struct DecodeStep {
    pub rows: u64,
    pub lasted: Nanos,
    /// Of its rows, on average.
    pub position: u64,
}

/// See the module.
pub(super) struct Facts<'w> {
    pub n: usize,
    /// In the order in which they arrived.
    pub answers: Vec<Answer<'w>>,
    pub decode_steps: Vec<DecodeStep>,
    /// All steps within the window.
    pub steps: Vec<&'w StepRecord>,
    pub preempted: usize,
    pub preemptions: u64,
    /// What evictions cost, of all requests' time from arrival to end.
    pub evicted: Nanos,
    pub e2e: Nanos,
    pub waits: WaitCauses,
    pub gateway: Nanos,
    pub route: Nanos,
    pub preparation: Preparation,
    /// Time with a request under way, and how much of it the device was at work.
    pub under_way: Nanos,
    pub busy: Nanos,
    /// Time in which the batch was not empty and no step ran.
    pub between_steps: Nanos,
    /// Gaps in whose step a prompt of others was computed, and all whose step is known.
    pub gaps_beside_prompts: Nanos,
    pub gaps: Nanos,
    /// Gaps in steps that only decode.
    pub plain_gaps: Vec<u64>,
    pub tokens_per_s: f64,
}

fn answer(timeline: &RequestTimeline) -> Option<Answer<'_>> {
    timeline.stamps().first_token?;
    let parts = timeline.parts()?;
    let engine = parts.engine?;
    let own: Vec<u64> = gaps(timeline).map(|(_, gap)| gap).collect();
    let tail = timeline.stamps().last_write.zip(timeline.stamps().finished);
    let first_admission = timeline.attempts().first()?;
    Some(Answer {
        timeline,
        first: parts.total(),
        host: parts.gateway + parts.route + parts.preparation.total(),
        inbox: engine.inbox.total(),
        queue: engine.queue_wait.total(),
        waste: engine.waste(),
        prefill: engine.prefill.total(),
        transport: parts.transport.map_or(0, |transport| transport.total()),
        prompt: timeline.tokens().prompt.into(),
        cached: first_admission.cached.into(),
        gap: percentile(50, &own),
        e2e: timeline.e2e()?,
        tail: tail.map_or(0, |(write, end)| write.saturating_sub(end)),
    })
}

impl<'w> Facts<'w> {
    pub fn of(observed: Observed<'w>) -> Self {
        let window = observed.window;
        let mut answers: Vec<Answer<'w>> = window.iter().filter_map(answer).collect();
        sort_by_number(&mut answers, |answer| answer.timeline.stamps().received().unwrap_or(0));
        let from = window.iter().filter_map(|timeline| timeline.stamps().received()).min().unwrap_or(0);
        let to = window.iter().filter_map(ended).max().unwrap_or(0);
        let within = |step: &&StepRecord| (from..=to).contains(&step.schedule_at);
        let mut facts = Self {
            n: window.len(),
            answers,
            decode_steps: Vec::new(),
            steps: observed.steps.iter().filter(within).collect(),
            preempted: 0,
            preemptions: 0,
            evicted: 0,
            e2e: 0,
            waits: WaitCauses::default(),
            gateway: 0,
            route: 0,
            preparation: Preparation::default(),
            under_way: 0,
            busy: 0,
            between_steps: 0,
            gaps_beside_prompts: 0,
            gaps: 0,
            plain_gaps: Vec::new(),
            tokens_per_s: 0.0,
        };
        let mut generated = 0_u64;
        for timeline in window.iter() {
            facts.add(timeline);
            generated += u64::from(timeline.tokens().generated);
        }
        facts.look_at_gaps();
        facts.look_at_steps(window.iter());
        if to > from {
            facts.tokens_per_s = generated as f64 * 1e9 / (to - from) as f64;
        }
        facts
    }

    fn add(&mut self, timeline: &RequestTimeline) {
        self.preempted += usize::from(timeline.preemptions() > 0);
        self.preemptions += u64::from(timeline.preemptions());
        self.e2e += timeline.e2e().unwrap_or(0);
        if let Some(decode) = timeline.decode() {
            self.evicted += decode.requeue + decode.recompute;
        }
        let Some(parts) = timeline.parts() else { return };
        self.gateway += parts.gateway;
        self.route += parts.route;
        self.preparation.wait += parts.preparation.wait;
        self.preparation.template += parts.preparation.template;
        self.preparation.tokenise += parts.preparation.tokenise;
        self.preparation.submit += parts.preparation.submit;
        if let Some(engine) = parts.engine {
            self.evicted += engine.waste();
            self.waits.add(engine.queue_wait);
        }
    }

    fn step_idx(&self, id: u64) -> Option<usize> {
        self.steps.binary_search_by_key(&id, |step| step.id).ok()
    }

    /// Gaps by whether prompts shared their step, and the positions of the steps' rows.
    fn look_at_gaps(&mut self) {
        let mut positions = vec![(0_u64, 0_u64); self.steps.len()];
        for answer in &self.answers {
            for (idx, gap) in gaps(answer.timeline) {
                let id = answer.timeline.token_step().get(idx);
                let Some(step_idx) = id.and_then(|id| self.step_idx(*id)) else { continue };
                positions[step_idx].0 += answer.prompt + idx as u64;
                positions[step_idx].1 += 1;
                self.gaps += gap;
                match self.steps[step_idx].prefill.is_empty() {
                    true => self.plain_gaps.push(gap),
                    false => self.gaps_beside_prompts += gap,
                }
            }
        }
        for (step, (sum, rows)) in self.steps.iter().zip(positions) {
            // A step of others has no position that is known.
            if step.prefill.is_empty() && !step.failed && rows > 0 {
                let (lasted, rows_of_step) = (step.done_at - step.schedule_at, step.decode_rows.into());
                self.decode_steps.push(DecodeStep { rows: rows_of_step, lasted, position: sum / rows });
            }
        }
    }

    /// Time under way, and what of it the steps took: on the GPU's clock where every step has it.
    fn look_at_steps(&mut self, timelines: impl Iterator<Item = &'w RequestTimeline>) {
        let Some(first) = self.steps.first() else { return };
        // A ring forgets: what was before it is not looked at.
        let forgotten = self
            .answers
            .iter()
            .filter_map(|answer| answer.timeline.token_step().first())
            .any(|id| *id < first.id);
        let begin = if forgotten { first.schedule_at } else { 0 };
        let mut stays: Vec<(Nanos, Nanos)> = timelines
            .filter_map(|timeline| Some((timeline.stamps().received()?, ended(timeline)?)))
            .filter(|(_, to)| *to > begin)
            .map(|(from, to)| (from.max(begin), to))
            .collect();
        crate::order::sort_pairs(&mut stays);
        let mut covered = 0;
        for (from, to) in stays {
            self.under_way += to.saturating_sub(from.max(covered));
            covered = covered.max(to);
        }
        let on_gpu: Option<Nanos> = self.steps.iter().map(|step| step.gpu_ns).sum();
        let lasted = |step: &&StepRecord| step.done_at - step.schedule_at;
        self.busy = on_gpu.unwrap_or_else(|| self.steps.iter().map(lasted).sum());
        for pair in self.steps.windows(2) {
            // Who goes on in the later step was in the batch all the while.
            if pair[1].decode_rows > 0 && pair[0].id + 1 == pair[1].id && !pair[0].failed {
                self.between_steps += pair[1].schedule_at.saturating_sub(pair[0].done_at);
            }
        }
    }

    /// One figure of every answer, in the order in which they arrived.
    pub fn each(&self, figure: impl Fn(&Answer) -> Nanos) -> Vec<u64> {
        self.answers.iter().map(figure).collect()
    }

    /// The mean of a figure; 0 of nothing.
    pub fn mean(&self, figure: impl Fn(&Answer) -> Nanos) -> f64 {
        self.each(figure).iter().sum::<u64>() as f64 / self.answers.len().max(1) as f64
    }

    /// Every answer's median gap.
    pub fn own_gaps(&self) -> Vec<u64> {
        self.answers.iter().filter_map(|answer| answer.gap).collect()
    }
}

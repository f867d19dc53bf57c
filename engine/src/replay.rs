//! A recorded or made-up load, replayed through the real engine and scheduler with a clock that steps move by what they
//! would cost: timelines of a run that never took place.
//!
//! It computes no token, reads no clock and knows no file. What a step costs is asked of the caller; what decides is
//! [`Engine`] itself. Invariant: the same plan, limits and costs give the same timelines, and each of them passes its check.
//!
//! What a replay cannot know: a client that waits for its answer before it asks again (arrivals stay where they were
//! recorded), whether requests that were let in side by side begin alike, priorities and deadlines of a recording (they are
//! on no timeline), and the answer of a request that never got a token (it is left out).

mod fit;
mod observed;
mod plan;
mod prompts;
mod runner;

pub use fit::LinearCosts;
pub use observed::{HostTimes, Observed, observed_steps};
pub use plan::{Arrival, Plan, TransportTimes};

use std::future::Future;
use std::pin::pin;
use std::task::{Context, Poll, Waker};

use self::runner::CostRunner;
use crate::clock::{Clock, ManualClock, Nanos};
use crate::engine::{Engine, EngineConfig, RequestEvent};
use crate::request::{HostStamps, Request, RequestId, SamplingParams};
use crate::runner::RunnerError;
use crate::sched::{Batch, SchedulerConfig};
use crate::timeline::{ModelLabel, NANOS_LIMIT, RequestLabels, RequestTimeline};

/// Where a replay gives up: half of what a timeline can hold, some 52 days.
const LONGEST: Nanos = NANOS_LIMIT / 2;

/// Ids of a replay's prompts are numbers of requests, and below this.
pub const VOCAB_SIZE: u32 = 1 << 31;

/// Why there is no replay.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum ReplayError {
    /// It would take longer than instants can be told.
    #[error(
        "the load is too much: {left} of its requests would still wait after {} days; shorten or slow it down, or give it more slots",
        LONGEST / 86_400_000_000_000
    )]
    TooLong {
        /// Requests that had not ended.
        left: usize,
    },
    /// The engine and the runner that computes nothing do not agree: a defect of ours.
    #[error("{0}; report this defect")]
    Defect(#[from] RunnerError),
}

/// What a replay gave.
#[derive(Clone, Debug, Default)]
pub struct Replayed {
    /// Of the measured requests, sealed, in the order in which they ended.
    pub timelines: Vec<RequestTimeline>,
    /// Of those that were there to be a load.
    pub background: Vec<RequestTimeline>,
    /// Answers that ended before their length because the pool or the context held no more.
    pub cut_short: usize,
    /// Steps.
    pub steps: u64,
}

/// Replays `plan` within `limits`, whose `vocab_size` does not count; a step takes as long as `step_ns` says of its batch.
///
/// # Errors
/// A load that would last for weeks; a defect of ours.
///
/// # Panics
/// If the limits are not valid; hosts call [`SchedulerConfig::validate`] first.
pub fn replay(
    plan: &Plan,
    limits: &SchedulerConfig,
    step_ns: impl FnMut(&Batch) -> Nanos,
) -> Result<Replayed, ReplayError> {
    let clock = ManualClock::new();
    let runner = CostRunner::new(&clock, step_ns, plan.host.runs_ahead);
    clock.advance(plan.ready_at);
    let config = EngineConfig {
        scheduler: SchedulerConfig { vocab_size: VOCAB_SIZE, ..*limits },
        eos_tokens: Vec::new(),
        model: ModelLabel::default(),
        engine_config: String::new(),
    };
    let engine = Engine::new(runner, &clock, config, None);
    let mut play = Play { plan, clock: &clock, engine, next: 0, out: Replayed::default() };
    play.prime()?;
    play.run()?;
    Ok(play.out)
}

/// The output of a future that never waits; `None` where it does.
pub fn poll_once<F: Future>(future: F) -> Option<F::Output> {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(output) => Some(output),
        Poll::Pending => None,
    }
}

/// A replay while it lasts.
struct Play<'p, F: FnMut(&Batch) -> Nanos> {
    plan: &'p Plan,
    clock: &'p ManualClock,
    engine: Engine<CostRunner<'p, F>, &'p ManualClock>,
    /// The next arrival.
    next: usize,
    out: Replayed,
}

impl<F: FnMut(&Batch) -> Nanos> Play<'_, F> {
    /// Fills the prefix cache with beginnings that were in it before the first arrival; takes no time.
    fn prime(&mut self) -> Result<(), ReplayError> {
        if !self.engine.scheduler().config().prefix_cache {
            return Ok(());
        }
        self.engine.runner_mut().is_free = true;
        for (primer, id) in self.plan.primers.iter().zip(self.plan.arrivals.len() as u64..) {
            let params = SamplingParams { max_tokens: 1, ignore_eos: true, ..SamplingParams::default() };
            let stamps = HostStamps::at(self.clock.now());
            self.engine.submit(Request::new(RequestId(id), primer.tokens(), params, stamps));
            while self.engine.has_work() {
                self.step()?;
            }
        }
        self.engine.runner_mut().is_free = false;
        Ok(())
    }

    fn run(&mut self) -> Result<(), ReplayError> {
        while self.next < self.plan.arrivals.len() || self.engine.has_work() {
            if !self.engine.has_work() {
                self.wake();
            }
            self.submit_due();
            let events = self.step()?;
            for event in events {
                if let RequestEvent::Finished { id, timeline, .. } = event {
                    self.ended(id, *timeline);
                }
            }
            let left = self.plan.arrivals.len() - self.out.timelines.len() - self.out.background.len();
            if self.clock.advance(self.plan.host.gap_ns) > LONGEST {
                return Err(ReplayError::TooLong { left });
            }
        }
        Ok(())
    }

    /// The engine sleeps until somebody comes, and takes a moment to wake up.
    fn wake(&self) {
        let Some(arrival) = self.plan.arrivals.get(self.next) else { return };
        let at = arrival.stamps.created + arrival.wake_ns.unwrap_or(self.plan.host.wake_ns);
        self.clock.advance(at.saturating_sub(self.clock.now()));
    }

    fn submit_due(&mut self) {
        let now = self.clock.now();
        while let Some(arrival) = self.plan.arrivals.get(self.next).filter(|a| a.stamps.created <= now) {
            let params = SamplingParams {
                max_tokens: arrival.output_len,
                ignore_eos: true,
                ..SamplingParams::default()
            };
            let id = RequestId(self.next as u64);
            let request = Request::new(id, arrival.prompt.tokens(), params, arrival.stamps);
            let fork_of = arrival.fork_of.map(|first| RequestId(first as u64));
            let labels = RequestLabels { id: arrival.name.clone(), ..RequestLabels::default() };
            self.engine.submit_labelled(Request { priority: arrival.priority, fork_of, ..request }, labels);
            self.next += 1;
        }
    }

    fn step(&mut self) -> Result<Vec<RequestEvent>, ReplayError> {
        let output = poll_once(self.engine.step())
            .ok_or_else(|| RunnerError::Internal("a runner that computes nothing waits".into()))?
            .map_err(|failed| failed.error)?;
        self.out.steps += u64::from(output.step.is_some());
        Ok(output.events)
    }

    /// What a host would still stamp, as far as the recording tells.
    fn ended(&mut self, id: RequestId, mut timeline: RequestTimeline) {
        let Some(arrival) = self.plan.arrivals.get(id.0 as usize) else { return };
        let stamps = timeline.stamps();
        if let (Some(times), Some(first_token), Some(finished)) =
            (arrival.transport, stamps.first_token, stamps.finished)
        {
            let first_write = first_token + times.hold_ns + times.write_ns;
            timeline.first_text(first_token + times.hold_ns);
            timeline.first_write(first_write);
            timeline.last_write(first_write.max(finished + times.last_ns));
        }
        let answered = timeline.tokens().generated;
        self.out.cut_short += usize::from(answered > 0 && answered < arrival.output_len);
        // Whoever folds it refuses one that is broken, and counts it.
        let _ = timeline.seal();
        match arrival.is_measured {
            true => self.out.timelines.push(timeline),
            false => self.out.background.push(timeline),
        }
    }
}

#[cfg(test)]
mod tests;

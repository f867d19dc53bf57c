//! All that the page knows, folded from the worker's events.
//!
//! Invariant: bounded, however long the page is open.

use std::collections::{BTreeMap, VecDeque};

use firstlight_engine::budget::Stack;
use firstlight_engine::clock::Nanos;
use firstlight_engine::report::LatencyReport;
use firstlight_engine::timeline::{StepRecord, TimelineRecord};

use crate::protocol::{Backend, Event, Gauges};

/// Finished timelines that are kept.
pub const TIMELINES_KEPT: usize = 1024;
/// Steps that are kept, as in the engine.
pub const STEPS_KEPT: usize = 4096;

/// See the module.
#[derive(Clone, Debug, Default)]
pub struct Session {
    /// What answers.
    pub backend: Option<Backend>,
    /// Finished timelines, oldest first.
    pub sealed: VecDeque<TimelineRecord>,
    /// Those that live, by the engine's number.
    pub live: BTreeMap<u64, TimelineRecord>,
    /// The last steps, oldest first.
    pub steps: VecDeque<StepRecord>,
    /// Gauges and counters.
    pub gauges: Gauges,
    /// The engine's clock at the last word.
    pub now: Nanos,
    /// The report over the last finished timelines.
    pub report: Option<LatencyReport>,
    /// What computes the model and what its steps cost, where that is known.
    pub stack: Option<Stack>,
}

impl Session {
    /// Takes what an event says of timelines, steps and figures; other events change nothing here.
    pub fn apply(&mut self, event: &Event) {
        match event {
            Event::Ready(backend) => *self = Self { backend: Some(backend.clone()), ..Self::default() },
            Event::Live(live) => {
                self.now = live.now;
                self.gauges = live.gauges;
                let by_number =
                    live.timelines.iter().map(|timeline| (timeline.engine_id.0, timeline.clone()));
                self.live = by_number.collect();
                self.steps.extend(live.steps.iter().cloned());
                let over = self.steps.len().saturating_sub(STEPS_KEPT);
                self.steps.drain(..over);
            }
            Event::Sealed { timeline } => {
                self.live.remove(&timeline.engine_id.0);
                self.now = self.now.max(timeline.stamps.finished.unwrap_or(0));
                self.sealed.push_back((**timeline).clone());
                let over = self.sealed.len().saturating_sub(TIMELINES_KEPT);
                self.sealed.drain(..over);
            }
            Event::Report { report } => self.report = Some((**report).clone()),
            Event::Stack { stack } => self.stack = Some((**stack).clone()),
            _ => {}
        }
    }
}

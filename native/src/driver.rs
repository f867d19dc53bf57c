//! The engine's thread: one thread builds and owns the engine, everybody else has a handle to it.
//!
//! The inbox between them is bounded, and full is an answer. Invariant: every submission that was taken ends in exactly
//! one `Finished` event, whatever becomes of the device.

use std::sync::Arc;
use std::time::Duration;

use firstlight_engine::clock::Nanos;
use firstlight_engine::engine::{Engine, EngineCounters, RequestEvent};
use firstlight_engine::request::{FinishReason, RejectReason, Request, RequestId};
use firstlight_engine::runner::ModelRunner;
use firstlight_engine::sched::SchedulerConfig;
use firstlight_engine::text::Preparer;
use firstlight_engine::timeline::{EngineLabels, RequestLabels, StepRecord};

use crate::clock::InstantClock;
use crate::failure::Failure;

/// Takes the events of one request, on the engine's thread: it must not wait. `false` says that nobody listens any more.
pub type EventSink = Box<dyn FnMut(RequestEvent) -> bool + Send>;

/// Drives the device while a step waits for it.
pub type Drive = Box<dyn FnMut()>;

/// What the engine's thread is made of. Built on that thread, because the engine never leaves it.
pub struct Parts<R: ModelRunner> {
    /// The engine.
    pub engine: Engine<R, InstantClock>,
    /// Drives its device.
    pub drive: Drive,
    /// Builds a runner anew after the device was lost.
    pub rebuild: Box<dyn FnMut() -> Result<(R, Drive), Failure>>,
    /// The model's text front end.
    pub preparer: Arc<Preparer>,
    /// Adapter and kernels, in words.
    pub adapter: String,
}

/// One request on its way to the engine.
pub struct Submission {
    /// The request.
    pub request: Request,
    /// What the host calls it.
    pub labels: RequestLabels,
    /// Where its events go.
    pub events: EventSink,
}

/// A submission that was not taken.
pub struct Refused {
    /// `Busy` or `ShuttingDown`.
    pub reason: RejectReason,
    /// Comes back, so that the caller can end its timeline.
    pub submission: Box<Submission>,
}

/// A handle to the engine's thread.
#[derive(Clone)]
pub struct EngineHandle {}

#[allow(unused_variables)]
impl EngineHandle {
    /// Puts a request on the inbox. Never waits.
    pub fn submit(&self, submission: Submission) -> Result<(), Refused> {
        unimplemented!()
    }
    /// Ends a request wherever it is; tokens after `asked_at` are counted as made for nobody.
    pub fn abort(&self, id: RequestId, reason: FinishReason, asked_at: Nanos) {
        unimplemented!()
    }
    /// A number that no other request of this engine has.
    pub fn next_id(&self) -> RequestId {
        unimplemented!()
    }
    /// The model's text front end.
    pub fn preparer(&self) -> &Arc<Preparer> {
        unimplemented!()
    }
    /// The engine's clock.
    pub fn clock(&self) -> InstantClock {
        unimplemented!()
    }
    /// What all timelines have in common.
    pub fn labels(&self) -> &Arc<EngineLabels> {
        unimplemented!()
    }
    /// The scheduler's limits.
    pub fn limits(&self) -> SchedulerConfig {
        unimplemented!()
    }
    /// Adapter and kernels, in words.
    pub fn adapter(&self) -> &str {
        unimplemented!()
    }
    /// Gauges and counters after the last step.
    pub fn counters(&self) -> EngineCounters {
        unimplemented!()
    }
    /// The last `count` steps, oldest first.
    pub fn steps(&self, count: usize) -> Vec<StepRecord> {
        unimplemented!()
    }
    /// Asks the runner for times by stage, from the next step on.
    pub fn profile(&self, on: bool) {
        unimplemented!()
    }
}

/// The engine's thread, and the way to its end.
pub struct EngineThread {}

#[allow(unused_variables)]
impl EngineThread {
    /// Starts the thread and waits until `build` has built the engine on it.
    ///
    /// # Errors
    /// What `build` said.
    pub fn start<R: ModelRunner + 'static>(
        build: impl FnOnce() -> Result<Parts<R>, Failure> + Send + 'static,
    ) -> Result<Self, Failure> {
        unimplemented!()
    }
    /// A handle.
    pub fn handle(&self) -> EngineHandle {
        unimplemented!()
    }
    /// Takes no more requests, gives those that are here `grace` to end, ends the rest `Cancelled`, and joins the thread.
    pub fn shut_down(self, grace: Duration) {
        unimplemented!()
    }
}

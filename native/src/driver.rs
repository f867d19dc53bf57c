//! The engine's thread: one thread builds and owns the engine, everybody else has a handle to it.
//!
//! The inbox between them is bounded, and full is an answer. Invariant: every submission that was taken ends in exactly
//! one `Finished` event, whatever becomes of the device.

mod engine_loop;
mod inbox;
#[cfg(test)]
pub(crate) mod tests;

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc};
use std::thread::JoinHandle;
use std::time::Duration;

use firstlight_engine::clock::{Clock, Nanos};
use firstlight_engine::engine::{Engine, EngineCounters, RequestEvent, STEPS_KEPT};
use firstlight_engine::refusal::Outside;
use firstlight_engine::request::{FinishReason, RejectReason, Request, RequestId};
use firstlight_engine::runner::ModelRunner;
use firstlight_engine::sched::SchedulerConfig;
use firstlight_engine::text::Preparer;
use firstlight_engine::timeline::{EngineLabels, RequestLabels, RequestTimeline, StepRecord, StepRing};

use self::engine_loop::EngineLoop;
use self::inbox::{Command, Inbox};
use crate::clock::InstantClock;
use crate::failure::Failure;
use crate::histogram::{Histogram, Unit};

/// Loading and compiling kernels recurse as deep as they did on a main thread, which has this much on most systems.
const STACK_BYTES: usize = 8 << 20;

/// Upper bounds of the buckets for the tokens of one step.
const STEP_TOKEN_BOUNDS: &[u64] = &[1, 8, 16, 32, 64, 128, 256, 512, 1_024, 2_048, 4_096, 8_192, 16_384];

/// Takes the events of one request, on the engine's thread: it must not wait. `false` says that nobody listens any more:
/// the request is ended `Disconnected`, and the sink hears nothing more but that end, so that its host can count it.
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
    /// The request. Its id is from [`EngineHandle::next_id`], and `stamps.created` is the moment before it is submitted:
    /// time on the inbox is the inbox's.
    pub request: Request,
    /// What the host calls it.
    pub labels: RequestLabels,
    /// Where its events go.
    pub events: EventSink,
}

/// Those who are with the engine, as they were at one instant between two steps.
#[derive(Clone, Debug)]
pub struct LiveRequests {
    /// The instant, on the engine's clock.
    pub now: Nanos,
    /// The batch and the queue in order of rank, then those that no pass has seen yet; as many as `counters` says.
    pub timelines: Vec<RequestTimeline>,
    /// Gauges and counters of the same instant.
    pub counters: EngineCounters,
}

/// Takes what was asked for, on the engine's thread: it must not wait. Dropped unused where the engine has gone.
pub type LiveReply = Box<dyn FnOnce(Arc<LiveRequests>) + Send>;

/// A submission that was not taken.
pub struct Refused {
    /// `Busy`, `ShuttingDown` or `Stopped`.
    pub reason: RejectReason,
    /// Comes back, so that the caller can end its timeline.
    pub submission: Box<Submission>,
}

impl Refused {
    /// Tells the submission's own sink, with the timeline that it came to.
    pub fn answer(self, engine: &EngineHandle) {
        let Submission { request, labels, mut events } = *self.submission;
        let outside = Outside::of(&request, labels);
        events(outside.refused(engine.labels(), self.reason, engine.clock().now()));
    }
}

/// What the thread and its handles share. Nothing of the engine itself: what it shows is copied here after each step.
struct Shared {
    inbox: Inbox,
    published: Mutex<Published>,
    next_id: AtomicU64,
    clock: InstantClock,
    labels: Arc<EngineLabels>,
    limits: SchedulerConfig,
    preparer: Arc<Preparer>,
    adapter: String,
}

/// The engine as it was after its last step.
struct Published {
    counters: EngineCounters,
    steps: StepRing,
    step_tokens: Histogram,
}

impl Shared {
    fn published(&self) -> MutexGuard<'_, Published> {
        // Counters and ring are each replaced or pushed whole.
        self.published.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A handle to the engine's thread.
#[derive(Clone)]
pub struct EngineHandle {
    shared: Arc<Shared>,
}

impl EngineHandle {
    /// Puts requests on the inbox that arrived at one instant: the engine's next pass sees all of them, or none. Never
    /// waits. Those that were not taken come back: `Busy` where the inbox is full, `ShuttingDown`, or `Stopped` where the
    /// engine is gone.
    pub fn submit_together(&self, submissions: Vec<Submission>) -> Vec<Refused> {
        self.shared.inbox.submit_together(submissions)
    }

    /// Ends a request wherever it is; tokens after `asked_at` are counted as made for nobody. Of a request that has ended,
    /// or was never here, it is no more than a word. It gets through a full inbox too.
    pub fn abort(&self, id: RequestId, reason: FinishReason, asked_at: Nanos) {
        self.shared.inbox.tell(Command::Abort { id, reason, asked_at });
    }

    /// A number that no other request of this engine has.
    pub fn next_id(&self) -> RequestId {
        RequestId(self.shared.next_id.fetch_add(1, Ordering::Relaxed))
    }

    /// The model's text front end.
    pub fn preparer(&self) -> &Arc<Preparer> {
        &self.shared.preparer
    }

    /// The engine's clock.
    pub fn clock(&self) -> InstantClock {
        self.shared.clock
    }

    /// What all timelines have in common.
    pub fn labels(&self) -> &Arc<EngineLabels> {
        &self.shared.labels
    }

    /// The scheduler's limits.
    pub fn limits(&self) -> SchedulerConfig {
        self.shared.limits
    }

    /// Adapter and kernels, in words.
    pub fn adapter(&self) -> &str {
        &self.shared.adapter
    }

    /// Gauges and counters as they were between the last two steps; `waiting` has the inbox in it. Together `running` and
    /// `waiting` are all who are here; whom the step that runs has admitted counts as waiting until it ends.
    pub fn counters(&self) -> EngineCounters {
        let mut counters = self.shared.published().counters;
        counters.waiting += self.shared.inbox.num_submissions();
        counters
    }

    /// The last `count` steps, oldest first.
    pub fn steps(&self, count: usize) -> Vec<StepRecord> {
        self.shared.published().steps.last(count).cloned().collect()
    }

    /// Tokens of every step so far, of prompts and answers together; counted with [`EngineCounters::steps_total`].
    pub fn step_tokens(&self) -> Histogram {
        self.shared.published().step_tokens.clone()
    }

    /// Asks who is with the engine. `reply` is called between two steps, and never where the engine has gone. Whoever asks
    /// at the same time is answered with one list; it is as long as the batch and the inbox allow.
    pub fn live_requests(&self, reply: LiveReply) {
        self.shared.inbox.tell(Command::Live(reply));
    }

    /// Asks the runner for times by stage, from the next step on.
    pub fn profile(&self, on: bool) {
        self.shared.inbox.tell(Command::Profile(on));
    }

    /// Why no request is taken any more: `ShuttingDown`, or `Stopped` with what happened. `None` while they are.
    pub fn closed(&self) -> Option<RejectReason> {
        self.shared.inbox.closed()
    }

    /// Waits, on a thread of the caller's, until no request is taken any more; says why, as [`Self::closed`] does.
    pub fn wait_until_closed(&self) -> RejectReason {
        self.shared.inbox.wait_until_closed()
    }
}

/// The engine's thread, and the way to its end. Dropped, it shuts down without grace.
pub struct EngineThread {
    handle: EngineHandle,
    thread: Option<JoinHandle<()>>,
}

impl EngineThread {
    /// Starts the thread and waits until `build` has built the engine on it.
    ///
    /// # Errors
    /// What `build` said.
    pub fn start<R: ModelRunner + 'static>(
        build: impl FnOnce() -> Result<Parts<R>, Failure> + Send + 'static,
    ) -> Result<Self, Failure> {
        let (ready, started) = mpsc::sync_channel(1);
        let body = move || match build() {
            Ok(parts) => {
                let (engine_loop, shared) = EngineLoop::new(parts);
                // Whoever waits for the start cannot have gone: it waits.
                let _ = ready.send(Ok(EngineHandle { shared }));
                engine_loop.run_to_the_end();
            }
            Err(failure) => {
                let _ = ready.send(Err(failure));
            }
        };
        let named = std::thread::Builder::new().name("firstlight-engine".into()).stack_size(STACK_BYTES);
        let thread = named.spawn(body).map_err(|error| {
            Failure::failed(format!("the engine's thread cannot be started: {error}; close other programs"))
        })?;
        match started.recv() {
            Ok(Ok(handle)) => Ok(Self { handle, thread: Some(thread) }),
            Ok(Err(failure)) => {
                let _ = thread.join();
                Err(failure)
            }
            Err(_) => {
                let panic = thread.join().err().map(|panic| engine_loop::panic_words(&*panic));
                let words = panic.unwrap_or_default();
                Err(Failure::failed(format!("the engine could not be built: {words}; report this defect")))
            }
        }
    }

    /// A handle.
    pub fn handle(&self) -> EngineHandle {
        self.handle.clone()
    }

    /// Takes no more requests, gives those that are here `grace` to end, ends the rest `Cancelled`, and joins the thread.
    pub fn shut_down(mut self, grace: Duration) {
        self.end(grace);
    }

    fn end(&mut self, grace: Duration) {
        let Some(thread) = self.thread.take() else { return };
        let shared = &self.handle.shared;
        let grace = Nanos::try_from(grace.as_nanos()).unwrap_or(Nanos::MAX);
        let at = shared.clock.now().saturating_add(grace);
        shared.inbox.close(RejectReason::ShuttingDown, Some(Command::ShutDown { at }));
        // It catches its panics; one that it did not catch was printed, and there is nobody else to tell.
        let _ = thread.join();
    }
}

impl Drop for EngineThread {
    fn drop(&mut self) {
        self.end(Duration::ZERO);
    }
}

/// [`EngineHandle::step_tokens`] before the first step.
pub fn no_steps() -> Histogram {
    Histogram::new(Unit::Count, STEP_TOKEN_BOUNDS)
}

fn new_published(counters: EngineCounters) -> Mutex<Published> {
    Mutex::new(Published { counters, steps: StepRing::new(STEPS_KEPT), step_tokens: no_steps() })
}

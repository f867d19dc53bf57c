//! What runs on the engine's thread: drain the inbox, step, hand the events out, and open the device again when it fails.
//!
//! It waits for the inbox or for the device, never for a client. Invariant: a request has a route from the moment it is
//! taken until its `Finished` has been handed out.

use std::any::Any;
use std::collections::{HashMap, VecDeque};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use firstlight_engine::clock::{Clock, Nanos};
use firstlight_engine::engine::{Engine, RequestEvent, StepFailed, StepOutput};
use firstlight_engine::refusal::Outside;
use firstlight_engine::request::{FinishReason, RejectReason, RequestId};
use firstlight_engine::runner::{ModelRunner, RunnerError};
use firstlight_engine::timeline::StepRecord;

use super::{
    Command, Drive, EventSink, Inbox, LiveReply, LiveRequests, Parts, Shared, Submission, new_published,
};
use crate::clock::InstantClock;
use crate::executor::block_on;
use crate::failure::Failure;
use crate::terminal::warn;

/// The device is opened again so often without a step that succeeds in between.
pub(super) const MAX_REBUILDS: u32 = 3;

/// The loop and all that it owns.
pub(super) struct EngineLoop<R: ModelRunner> {
    engine: Engine<R, InstantClock>,
    drive: Drive,
    rebuild: Box<dyn FnMut() -> Result<(R, Drive), Failure>>,
    shared: Arc<Shared>,
    routes: HashMap<RequestId, Route>,
    /// Taken from the inbox, not yet obeyed.
    commands: VecDeque<Command>,
    /// Without a step that succeeded in between.
    rebuilds: u32,
    profiled: bool,
    /// When the grace of a shutdown ends.
    ends_at: Option<Nanos>,
}

/// The way of a request's events.
struct Route {
    events: EventSink,
    /// Nobody listens; only its end is still told.
    deaf: bool,
    /// For the end that it gets if the engine is gone.
    outside: Outside,
}

impl<R: ModelRunner> EngineLoop<R> {
    pub(super) fn new(parts: Parts<R>) -> (Self, Arc<Shared>) {
        let Parts { engine, drive, rebuild, preparer, adapter } = parts;
        let limits = *engine.scheduler().config();
        let shared = Arc::new(Shared {
            inbox: Inbox::new(limits.max_waiting as usize),
            published: new_published(engine.counters()),
            next_id: AtomicU64::new(0),
            clock: *engine.clock(),
            labels: Arc::clone(engine.labels()),
            limits,
            preparer,
            adapter,
        });
        let engine_loop = Self {
            engine,
            drive,
            rebuild,
            shared: Arc::clone(&shared),
            routes: HashMap::new(),
            commands: VecDeque::new(),
            rebuilds: 0,
            profiled: false,
            ends_at: None,
        };
        (engine_loop, shared)
    }

    /// Runs until a shutdown or until the engine is gone. Then nobody waits for anything any more.
    pub(super) fn run_to_the_end(mut self) {
        let gone = match catch_unwind(AssertUnwindSafe(|| self.run())) {
            Ok(Ok(())) => None,
            Ok(Err(why)) => Some(why),
            Err(panic) => Some(format!("a defect of firstlight, to be reported: {}", panic_words(&*panic))),
        };
        if let Some(why) = gone {
            warn(&format!("the engine has stopped: {why}"));
            self.shared.inbox.close(RejectReason::Stopped(why), None);
        }
        let left = self.shared.inbox.leave();
        self.commands.extend(left);
        self.fail_all();
    }

    fn run(&mut self) -> Result<(), String> {
        loop {
            self.obey();
            if self.ends_at.is_some_and(|at| self.engine.clock().now() >= at) {
                self.abort_all(FinishReason::Cancelled);
            }
            if self.engine.has_work() {
                self.step()?;
            } else if self.commands.is_empty() {
                if self.ends_at.is_some() {
                    return Ok(());
                }
                self.commands.extend(self.shared.inbox.wait());
            }
        }
    }

    /// All that the inbox holds, in its order.
    fn obey(&mut self) {
        self.commands.extend(self.shared.inbox.take());
        if self.commands.is_empty() {
            return;
        }
        let mut curious = Vec::new();
        while let Some(command) = self.commands.pop_front() {
            match command {
                Command::Submit(submission) => self.submit(*submission),
                Command::Abort { id, reason, asked_at } => {
                    self.engine.abort(id, reason, asked_at);
                }
                Command::Profile(on) => {
                    self.profiled = on;
                    self.engine.runner_mut().profile(on);
                }
                Command::Live(reply) => curious.push(reply),
                Command::ShutDown { at } => self.ends_at = Some(at),
            }
        }
        self.publish(None);
        self.tell_live(curious);
    }

    /// One list for all who ask: it is copied here, while no step runs, and read elsewhere.
    fn tell_live(&self, curious: Vec<LiveReply>) {
        if curious.is_empty() {
            return;
        }
        let sequences = self.engine.scheduler().sequences();
        let live = Arc::new(LiveRequests {
            now: self.engine.clock().now(),
            timelines: sequences.map(|sequence| sequence.timeline().clone()).collect(),
            counters: self.engine.counters(),
        });
        for reply in curious {
            // Whoever panics on it takes nobody with it.
            drop(catch_unwind(AssertUnwindSafe(|| reply(Arc::clone(&live)))));
        }
    }

    fn submit(&mut self, submission: Submission) {
        let Submission { request, labels, events } = submission;
        let route = Route { events, deaf: false, outside: Outside::of(&request, labels.clone()) };
        self.routes.insert(request.id, route);
        self.engine.submit_labelled(request, labels);
    }

    fn abort_all(&mut self, reason: FinishReason) {
        let now = self.engine.clock().now();
        for id in self.routes.keys() {
            self.engine.abort(*id, reason, now);
        }
    }

    fn step(&mut self) -> Result<(), String> {
        match block_on(self.engine.step(), &mut self.drive) {
            Ok(output) => {
                if output.step.is_some() {
                    self.rebuilds = 0;
                }
                self.hand_out(output);
                Ok(())
            }
            Err(failed) => {
                let StepFailed { error, output } = *failed;
                // Before the device is opened again, which takes a while.
                self.hand_out(output);
                self.replace_runner(&error)
            }
        }
    }

    fn replace_runner(&mut self, error: &RunnerError) -> Result<(), String> {
        if self.rebuilds == MAX_REBUILDS {
            return Err(format!(
                "the device failed again after it was opened {MAX_REBUILDS} times in a row ({error})"
            ));
        }
        self.rebuilds += 1;
        warn(&format!("the answers that were running are lost, and the device is opened again: {error}"));
        let (runner, drive) = (self.rebuild)()
            .map_err(|failure| format!("the device failed and could not be opened again ({failure})"))?;
        // The old runner is still driven by the old device's handle while it is dropped.
        drop(self.engine.replace_runner(runner));
        self.drive = drive;
        if self.profiled {
            self.engine.runner_mut().profile(true);
        }
        Ok(())
    }

    /// What a step gave: first the figures, so that whoever hears of an end finds its step, then the events.
    fn hand_out(&mut self, output: StepOutput) {
        self.publish(output.step.as_ref());
        // An abort that came while the step ran: its token was made for nobody, and is shown to nobody.
        self.commands.extend(self.shared.inbox.take());
        let unwanted = unwanted(&self.commands, &output);
        for event in output.events {
            let unseen = matches!(&event, RequestEvent::Token { id, .. } if unwanted.contains(id));
            if !unseen {
                self.route(event);
            }
        }
    }

    fn route(&mut self, event: RequestEvent) {
        let (id, is_end) = match &event {
            RequestEvent::Token { id, .. } => (*id, false),
            RequestEvent::Finished { id, .. } => (*id, true),
        };
        if is_end {
            if let Some(mut route) = self.routes.remove(&id) {
                tell(&mut route.events, event);
            }
            return;
        }
        let Some(route) = self.routes.get_mut(&id).filter(|route| !route.deaf) else { return };
        if !tell(&mut route.events, event) {
            route.deaf = true;
            self.engine.abort(id, FinishReason::Disconnected, self.shared.clock.now());
        }
    }

    fn publish(&self, step: Option<&StepRecord>) {
        let mut published = self.shared.published();
        published.counters = self.engine.counters();
        if let Some(record) = step {
            let prefill: u64 = record.prefill.iter().map(|(_, tokens)| u64::from(*tokens)).sum();
            published.step_tokens.observe(u64::from(record.decode_rows) + prefill);
            published.steps.push(record.clone());
        }
    }

    /// Ends everything that is still here `Failed`. By the engine as long as it holds together, and without it where it
    /// does not: after a panic it may be in any state.
    fn fail_all(&mut self) {
        let by_engine = catch_unwind(AssertUnwindSafe(|| {
            self.abort_all(FinishReason::Failed);
            // Nothing is left to compute: this step only hands the ends out.
            match block_on(self.engine.step(), &mut self.drive) {
                Ok(output) => self.hand_out(output),
                Err(failed) => self.hand_out(failed.output),
            }
        }));
        // What is told here is told in words already, or was printed when it panicked.
        drop(by_engine);
        for command in std::mem::take(&mut self.commands) {
            if let Command::Submit(submission) = command {
                let Submission { request, labels, events } = *submission;
                let route = Route { events, deaf: false, outside: Outside::of(&request, labels) };
                self.routes.insert(request.id, route);
            }
        }
        for (_, mut route) in std::mem::take(&mut self.routes) {
            let end = route.outside.failed(&self.shared.labels, self.shared.clock.now());
            tell(&mut route.events, end);
        }
    }
}

/// Whose tokens of this step nobody wants: an abort came before they were made. A request that ended with the step is not
/// among them: its end says what it got.
fn unwanted(commands: &VecDeque<Command>, output: &StepOutput) -> Vec<RequestId> {
    let Some(step) = &output.step else { return Vec::new() };
    let ended = |wanted: RequestId| {
        let mut ends = output.events.iter();
        ends.any(|event| matches!(event, RequestEvent::Finished { id, .. } if *id == wanted))
    };
    let aborted = commands.iter().filter_map(|command| match command {
        Command::Abort { id, asked_at, .. } if *asked_at < step.done_at && !ended(*id) => Some(*id),
        _ => None,
    });
    aborted.collect()
}

/// Whether the sink still listens. One that panics does not, and takes nobody else with it.
fn tell(events: &mut EventSink, event: RequestEvent) -> bool {
    catch_unwind(AssertUnwindSafe(|| events(event))).unwrap_or(false)
}

/// What a panic said.
pub(super) fn panic_words(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().copied().or(panic.downcast_ref::<String>().map(String::as_str));
    text.unwrap_or("a panic without words").to_owned()
}

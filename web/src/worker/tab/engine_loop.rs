//! The loop that drives the engine in a tab: drain what came, step, tell; and open the device again when it fails.
//!
//! It gives way at every step, so that the worker hears the page meanwhile. Invariant: a request has a route from the moment
//! it is taken until its end has been told.

use std::cell::{Cell, RefCell};
use std::collections::{HashMap, VecDeque};
use std::rc::Rc;
use std::sync::Arc;

use firstlight_engine::clock::{Clock, Nanos};
use firstlight_engine::engine::{Engine, EngineCounters, RequestEvent, StepFailed, StepOutput};
use firstlight_engine::refusal::Outside;
use firstlight_engine::report::{GaugeReadings, ReportContext};
use firstlight_engine::request::{FinishReason, Request, RequestId};
use firstlight_engine::timeline::{RequestLabels, RequestTimeline, StepRecord};
use futures_channel::{mpsc, oneshot};

use super::super::clock::PageClock;
use super::super::tell;
use super::Shared;
use super::model::{Loader, Opened, RunnerPlace};
use crate::protocol::{AskId, Event, Gauges, Live};
use crate::view::history::History;

/// The device is opened again so often without a step that succeeds in between.
const MAX_REBUILDS: u32 = 3;
/// Between two words on what goes on.
const LIVE_NS: Nanos = 200_000_000;
/// Between two reports while requests end.
const REPORT_NS: Nanos = 500_000_000;

/// What the loop is told.
pub(super) enum Task {
    /// Requests that arrived at one instant.
    Submit(Vec<Arrival>),
    /// One is to end.
    Cancel { ask: AskId, asked_at: Nanos },
    /// The device is to be opened again.
    Reopen,
    /// All is to end.
    Close(oneshot::Sender<()>),
}

/// A prepared request.
pub(super) struct Arrival {
    pub(super) ask: AskId,
    pub(super) request: Request,
    pub(super) labels: RequestLabels,
}

/// Where a request's events go, and what its host knows of it.
struct Route {
    ask: AskId,
    outside: Outside,
    writes: Writes,
    tokens: u32,
}

/// The host's stamps after the first token.
#[derive(Clone, Copy, Default)]
pub(super) struct Writes {
    first_text: Option<Nanos>,
    first_write: Option<Nanos>,
    last_write: Option<Nanos>,
}

struct EngineLoop {
    engine: Engine<RunnerPlace, PageClock>,
    loader: Loader,
    shared: Rc<Shared>,
    heard: mpsc::UnboundedReceiver<Task>,
    tasks: VecDeque<Task>,
    routes: HashMap<RequestId, Route>,
    rebuilds: u32,
    /// The device failed and was not opened again.
    is_down: bool,
    new_steps: Vec<StepRecord>,
    told_live: Nanos,
    told_report: Nanos,
    report_is_due: bool,
}

/// Starts the loop.
pub(super) fn start(opened: Opened, heard: mpsc::UnboundedReceiver<Task>) -> Rc<Shared> {
    let Opened { engine, loader, preparer, backend } = opened;
    let limits = loader.limits();
    let context = ReportContext {
        prefix_cache: limits.prefix_cache,
        model: backend.model,
        adapter: backend.adapter,
        slots: limits.max_num_seqs,
        ..ReportContext::default()
    };
    let shared = Rc::new(Shared {
        clock: engine.clock().clone(),
        preparer,
        labels: Arc::clone(engine.labels()),
        limits,
        history: RefCell::new(History::new(context)),
        next_id: Cell::new(1),
        open: Cell::new(0),
    });
    let engine_loop = EngineLoop {
        engine,
        loader,
        shared: Rc::clone(&shared),
        heard,
        tasks: VecDeque::new(),
        routes: HashMap::new(),
        rebuilds: 0,
        is_down: false,
        new_steps: Vec::new(),
        told_live: 0,
        told_report: 0,
        report_is_due: false,
    };
    wasm_bindgen_futures::spawn_local(engine_loop.run());
    shared
}

/// Seals a timeline, tells of it and of the end.
pub(super) fn finish(
    shared: &Shared,
    ask: AskId,
    reason: FinishReason,
    detail: Option<String>,
    mut timeline: Box<RequestTimeline>,
    writes: Option<Writes>,
) {
    let writes = writes.unwrap_or_default();
    writes.first_text.into_iter().for_each(|at| timeline.first_text(at));
    writes.first_write.into_iter().for_each(|at| timeline.first_write(at));
    writes.last_write.into_iter().for_each(|at| timeline.last_write(at));
    // What broke is told by the history.
    let _ = timeline.seal();
    tell(&Event::Finished { ask, reason, detail });
    tell(&Event::Sealed { timeline: Box::new(timeline.record()) });
    let notice = shared.history.borrow_mut().push(*timeline);
    notice.iter().for_each(tell);
}

impl EngineLoop {
    async fn run(mut self) {
        loop {
            while let Ok(task) = self.heard.try_recv() {
                self.tasks.push_back(task);
            }
            while let Some(task) = self.tasks.pop_front() {
                match task {
                    Task::Submit(arrivals) => self.take(arrivals),
                    Task::Cancel { ask, asked_at } => self.cancel(ask, asked_at),
                    Task::Reopen => self.reopen().await,
                    Task::Close(done) => {
                        self.end_all(FinishReason::Cancelled).await;
                        self.loader.unload();
                        // Whoever asked may have gone.
                        let _ = done.send(());
                        return;
                    }
                }
            }
            if self.engine.has_work() && !self.is_down {
                self.step().await;
                self.tell_live(false);
                continue;
            }
            if self.is_down && self.engine.has_work() {
                self.end_all(FinishReason::Failed).await;
            }
            self.tell_live(true);
            match self.heard.recv().await {
                Ok(task) => self.tasks.push_back(task),
                // The worker has let go of it without closing: nobody can hear any more.
                Err(_) => return,
            }
        }
    }

    fn take(&mut self, arrivals: Vec<Arrival>) {
        for Arrival { ask, request, labels } in arrivals {
            let outside = Outside::of(&request, labels.clone());
            let route = Route { ask, outside, writes: Writes::default(), tokens: 0 };
            self.routes.insert(request.id, route);
            self.engine.submit_labelled(request, labels);
        }
    }

    fn cancel(&mut self, ask: AskId, asked_at: Nanos) {
        let wanted = self.routes.iter().find(|(_, route)| route.ask == ask).map(|(id, _)| *id);
        if let Some(id) = wanted {
            self.engine.abort(id, FinishReason::Cancelled, asked_at);
        }
    }

    /// Ends everybody, and tells it.
    async fn end_all(&mut self, reason: FinishReason) {
        let now = self.engine.clock().now();
        let ids: Vec<RequestId> = self.routes.keys().copied().collect();
        ids.into_iter().for_each(|id| {
            self.engine.abort(id, reason, now);
        });
        // Nothing is left to compute: this step only hands the ends out.
        match self.engine.step().await {
            Ok(output) => self.hand_out(output),
            Err(failed) => self.hand_out(failed.output),
        }
        for (_, route) in std::mem::take(&mut self.routes) {
            let now = self.engine.clock().now();
            if let RequestEvent::Finished { reason, timeline, .. } =
                route.outside.left(&self.shared.labels, reason, now)
            {
                self.shared.open.set(self.shared.open.get().saturating_sub(1));
                finish(&self.shared, route.ask, reason, None, timeline, None);
            }
        }
        self.tell_live(true);
    }

    async fn step(&mut self) {
        match self.engine.step().await {
            Ok(output) => {
                if output.step.is_some() {
                    self.rebuilds = 0;
                }
                self.hand_out(output);
            }
            Err(failed) => {
                let StepFailed { error, output } = *failed;
                // Before the device is opened again, which takes a while.
                let sentence = error.to_string();
                self.hand_out_failed(output, &sentence);
                self.device_failed(&sentence).await;
            }
        }
    }

    async fn device_failed(&mut self, sentence: &str) {
        if self.rebuilds == MAX_REBUILDS {
            self.is_down = true;
            let sentence = format!(
                "the device failed again after it was opened {MAX_REBUILDS} times in a row: {sentence}"
            );
            tell(&Event::DeviceFailed { sentence, reopening: false });
            return;
        }
        self.rebuilds += 1;
        tell(&Event::DeviceFailed { sentence: sentence.to_owned(), reopening: true });
        self.load_again().await;
    }

    async fn reopen(&mut self) {
        if self.is_down {
            self.rebuilds = 0;
            self.load_again().await;
        }
    }

    async fn load_again(&mut self) {
        match self.loader.load().await {
            Ok(adapter) => {
                self.is_down = false;
                tell(&Event::Reopened { adapter });
            }
            Err(sentence) => {
                self.is_down = true;
                tell(&Event::DeviceFailed { sentence, reopening: false });
            }
        }
    }

    fn hand_out(&mut self, output: StepOutput) {
        self.hand_out_failed(output, "the device is not there; open it again");
    }

    /// `failure` is what an end `Failed` is explained by.
    fn hand_out_failed(&mut self, output: StepOutput, failure: &str) {
        let at = self.engine.clock().now();
        if let Some(step) = output.step {
            self.shared.history.borrow_mut().steps([step.clone()]);
            self.new_steps.push(step);
        }
        for event in output.events {
            match event {
                RequestEvent::Token { id, token, text, .. } => self.token(id, token.token, text, at),
                RequestEvent::Finished { id, reason, detail, text, timeline } => {
                    let Some(mut route) = self.routes.remove(&id) else { continue };
                    self.shared.open.set(self.shared.open.get().saturating_sub(1));
                    if !text.is_empty() {
                        write(&self.shared.clock, &mut route, text, Vec::new(), at);
                    }
                    let detail = match (detail, reason) {
                        (Some(why), _) => Some(why.to_string()),
                        (None, FinishReason::Failed) => Some(failure.to_owned()),
                        (None, _) => None,
                    };
                    self.report_is_due = true;
                    finish(&self.shared, route.ask, reason, detail, timeline, Some(route.writes));
                }
            }
        }
    }

    fn token(&mut self, id: RequestId, token: u32, text: String, at: Nanos) {
        let Some(route) = self.routes.get_mut(&id) else { return };
        route.tokens += 1;
        write(&self.shared.clock, route, text, vec![token], at);
    }

    /// Says what goes on: now and then, and always when it ends.
    fn tell_live(&mut self, is_idle: bool) {
        let now = self.engine.clock().now();
        let is_news = !self.new_steps.is_empty();
        if !is_news || (!is_idle && now < self.told_live + LIVE_NS) {
            return;
        }
        self.told_live = now;
        let counters = self.engine.counters();
        let sequences = self.engine.scheduler().sequences();
        tell(&Event::Live(Live {
            now,
            gauges: gauges(&counters),
            timelines: sequences.map(|sequence| sequence.timeline().record()).collect(),
            steps: std::mem::take(&mut self.new_steps),
        }));
        if self.report_is_due && (is_idle || now >= self.told_report + REPORT_NS) {
            self.report_is_due = false;
            self.told_report = now;
            let report = self.shared.history.borrow().report(Some(readings(&counters)));
            tell(&Event::Report { report: Box::new(report) });
            if is_idle && let Some(costs) = self.shared.history.borrow().costs() {
                // While steps run they have the worker to themselves.
                tell(&Event::Stack { stack: Box::new(self.loader.stack(costs)) });
            }
        }
    }
}

/// Hands text to the page and stamps it.
fn write(clock: &PageClock, route: &mut Route, text: String, token_ids: Vec<u32>, at: Nanos) {
    let has_text = !text.is_empty();
    tell(&Event::Text { ask: route.ask, text, tokens: route.tokens, token_ids });
    if has_text {
        let now = clock.now();
        route.writes.first_text.get_or_insert(at);
        route.writes.first_write.get_or_insert(now);
        route.writes.last_write = Some(now);
    }
}

fn small(number: usize) -> u32 {
    u32::try_from(number).unwrap_or(u32::MAX)
}

fn gauges(counters: &EngineCounters) -> Gauges {
    Gauges {
        running: small(counters.running),
        waiting: small(counters.waiting),
        blocks_used: small(counters.blocks_used()),
        blocks_total: small(counters.blocks_total),
        preemptions_total: counters.preemptions_total,
    }
}

fn readings(counters: &EngineCounters) -> GaugeReadings {
    GaugeReadings {
        blocks_used: small(counters.blocks_used()),
        blocks_total: small(counters.blocks_total),
        waiting: small(counters.waiting),
        running: small(counters.running),
        preemptions_total: counters.preemptions_total,
    }
}

//! The clients: they send each request at its instant, hear the answers, and stamp what a client sees.
//!
//! One thread, beside the engine's. It never waits for an answer before it sends what is due. Invariant: every request
//! that was sent has ended before a run is over, and its timeline is sealed.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::time::Duration;

use firstlight_engine::clock::{Clock, Nanos};
use firstlight_engine::engine::{RequestEvent, STEPS_KEPT};
use firstlight_engine::request::{FinishReason, HostStamps, Request, RequestId, SamplingParams};
use firstlight_engine::timeline::RequestLabels;

use super::load::{Background, Case, Pace, Planned};
use super::outcome::Run;
use super::prompts::PromptMaker;
use crate::answer::Answer;
use crate::clock::InstantClock;
use crate::driver::{EngineHandle, Submission};
use crate::failure::Failure;

/// How long Ctrl-C may go unheard.
const TICK: Duration = Duration::from_millis(50);
/// Steps are fetched before the engine forgets them: it keeps some more than this.
const STEPS_FETCHED: u64 = STEPS_KEPT as u64 / 4;

/// What a run needs beside its load.
pub struct Clients<'e> {
    /// The engine.
    pub engine: &'e EngineHandle,
    /// Makes every prompt of the bench.
    pub maker: PromptMaker,
    /// Tokens that the prompts of one run begin with in common.
    pub shared_tokens: u32,
    /// Numbers the runs, so that no two share a beginning.
    pub group: u64,
    /// Asked now and then whether to stop.
    pub interrupted: &'e dyn Fn() -> bool,
    /// Told of each measured request that ended.
    pub ended: &'e dyn Fn(),
}

/// A request that is ready to be sent.
struct Ready {
    arrival_ns: Nanos,
    output_tokens: u32,
    prompt: Vec<u32>,
}

impl Clients<'_> {
    /// Runs a case once.
    ///
    /// # Errors
    /// Ctrl-C, or an engine that has stopped; whatever becomes of single requests stands on their timelines.
    pub fn run(&mut self, case: &Case) -> Result<Run, Failure> {
        self.group += 1;
        let ready: Vec<Ready> = case.requests.iter().map(|planned| self.ready(planned)).collect();
        if case.primed {
            // One token is enough: what is cached is the prompt.
            let prime = |one: &Ready| Ready { arrival_ns: 0, output_tokens: 1, prompt: one.prompt.clone() };
            let primes = ready.iter().map(prime).collect();
            Play::new(self, Pace::Closed { clients: 1 }, primes, None, &|| ()).finish()?;
        }
        let ended = self.ended;
        Play::new(self, case.pace, ready, case.background, ended).finish()
    }

    /// Sends requests like the first ones of `case`, which count nowhere: the first steps of an engine are not like others.
    ///
    /// # Errors
    /// As [`Self::run`].
    pub fn warm_up(&mut self, case: &Case) -> Result<(), Failure> {
        const REQUESTS: usize = 2;
        const TOKENS: u32 = 8;
        let like = |planned: &Planned| Planned {
            arrival_ns: 0,
            output_tokens: planned.output_tokens.min(TOKENS),
            ..*planned
        };
        let warm: Vec<Ready> =
            case.requests.iter().take(REQUESTS).map(like).map(|p| self.ready(&p)).collect();
        Play::new(self, Pace::Open, warm, None, &|| ()).finish().map(drop)
    }

    fn ready(&mut self, planned: &Planned) -> Ready {
        let prompt = self.maker.next(planned.prompt_tokens, self.shared_tokens, self.group);
        Ready { arrival_ns: planned.arrival_ns, output_tokens: planned.output_tokens, prompt }
    }
}

/// A request on its way.
struct Flight {
    answer: Answer,
    is_measured: bool,
}

/// One run while it lasts.
struct Play<'p, 'e> {
    clients: &'p mut Clients<'e>,
    clock: InstantClock,
    pace: Pace,
    waiting: VecDeque<Ready>,
    background: Option<Background>,
    ended: &'p dyn Fn(),
    flights: HashMap<RequestId, Flight>,
    num_measured: usize,
    /// Background clients whose first answer has begun.
    num_begun: u32,
    speak: Sender<RequestEvent>,
    hear: Receiver<RequestEvent>,
    start: Nanos,
    /// The last step that is known, and how many there had been.
    last_step: Option<u64>,
    steps_seen: u64,
    run: Run,
}

impl<'p, 'e> Play<'p, 'e> {
    fn new(
        clients: &'p mut Clients<'e>,
        pace: Pace,
        ready: Vec<Ready>,
        background: Option<Background>,
        ended: &'p dyn Fn(),
    ) -> Self {
        let (speak, hear) = mpsc::channel();
        let clock = clients.engine.clock();
        Self {
            clock,
            pace,
            waiting: ready.into(),
            background,
            ended,
            flights: HashMap::new(),
            num_measured: 0,
            num_begun: 0,
            speak,
            hear,
            start: clock.now(),
            last_step: clients.engine.steps(1).last().map(|step| step.id),
            steps_seen: clients.engine.counters().steps_total,
            run: Run::default(),
            clients,
        }
    }

    fn finish(mut self) -> Result<Run, Failure> {
        let played = self.play();
        // The load goes when those that it was there for have gone; after Ctrl-C all go.
        self.background = None;
        for id in self.flights.keys() {
            self.clients.engine.abort(*id, FinishReason::Cancelled, self.clock.now());
        }
        while !self.flights.is_empty() {
            self.listen(TICK);
        }
        self.fetch_steps();
        played.map(|()| self.run)
    }

    fn play(&mut self) -> Result<(), Failure> {
        self.begin_background();
        // Whoever is measured under a load comes when the load is there.
        while self.background.is_some_and(|others| self.num_begun < others.clients) {
            self.listen(TICK);
            self.check()?;
        }
        self.start = self.clock.now();
        loop {
            self.send_due();
            if self.waiting.is_empty() && self.num_measured == 0 {
                return Ok(());
            }
            self.listen(self.time_to_next());
            self.check()?;
        }
    }

    /// Whether it makes sense to go on.
    fn check(&self) -> Result<(), Failure> {
        if let Some(reason) = self.clients.engine.closed() {
            return Err(Failure::failed(reason.to_string()));
        }
        match (self.clients.interrupted)() {
            true => Err(Failure::interrupted(
                "the bench was stopped by Ctrl-C, and what it had measured is not shown; run it again with fewer --requests or --repeats",
            )),
            false => Ok(()),
        }
    }

    fn begin_background(&mut self) {
        let Some(others) = self.background else { return };
        let first = |client: u32| {
            // Shorter at first, so that they do not end all at once ever after.
            let output = u64::from(others.output_tokens) * u64::from(client) / u64::from(others.clients);
            (output as u32).max(2)
        };
        let ready = (1..=others.clients).map(|client| self.background_request(others, first(client)));
        let ready = ready.collect();
        self.send(ready, false);
    }

    fn background_request(&mut self, others: Background, output_tokens: u32) -> Ready {
        let planned = Planned { arrival_ns: 0, prompt_tokens: others.prompt_tokens, output_tokens };
        self.clients.ready(&planned)
    }

    fn send_due(&mut self) {
        let mut due = Vec::new();
        match self.pace {
            Pace::Closed { clients } => {
                let free = (clients as usize).saturating_sub(self.num_measured);
                due.extend(self.waiting.drain(..free.min(self.waiting.len())));
            }
            Pace::Open => {
                let (start, now) = (self.start, self.clock.now());
                while let Some(ready) = self.waiting.pop_front_if(|ready| start + ready.arrival_ns <= now) {
                    due.push(ready);
                }
            }
        }
        self.send(due, true);
    }

    fn time_to_next(&self) -> Duration {
        match (self.pace, self.waiting.front()) {
            (Pace::Open, Some(ready)) => {
                let left = (self.start + ready.arrival_ns).saturating_sub(self.clock.now());
                Duration::from_nanos(left).min(TICK)
            }
            _ => TICK,
        }
    }

    /// Sends them together, so that the engine does not wake up between two.
    fn send(&mut self, due: Vec<Ready>, is_measured: bool) {
        let engine = self.clients.engine;
        let mut submissions = Vec::with_capacity(due.len());
        for ready in due {
            let planned = self.start + ready.arrival_ns;
            let submission = self.submission(ready);
            if is_measured && self.pace == Pace::Open {
                let late = submission.request.stamps.received.saturating_sub(planned);
                self.run.latest_ns = self.run.latest_ns.max(late);
            }
            submissions.push(submission);
        }
        for submission in &mut submissions {
            self.flights.insert(submission.request.id, Flight { answer: Answer::default(), is_measured });
            self.num_measured += usize::from(is_measured);
            submission.request.stamps.created = self.clock.now();
        }
        for refused in engine.submit_together(submissions) {
            // Its end comes the same way as any other.
            refused.answer(engine);
        }
    }

    fn submission(&self, ready: Ready) -> Submission {
        let id = self.clients.engine.next_id();
        let params =
            SamplingParams { max_tokens: ready.output_tokens, ignore_eos: true, ..Default::default() };
        // A client in the same process, with token ids: there is nothing to check, to route or to prepare.
        let stamps = HostStamps::at(self.clock.now());
        let request_id = format!("bench-{}", id.0);
        let labels = RequestLabels {
            id: format!("{request_id}#0"),
            request_id,
            route: "bench".into(),
            ..RequestLabels::default()
        };
        let speak = self.speak.clone();
        Submission {
            request: Request::new(id, ready.prompt, params, stamps),
            labels,
            events: Box::new(move |event| speak.send(event).is_ok()),
        }
    }

    /// Hears what there is to hear, for at most `timeout`.
    fn listen(&mut self, timeout: Duration) {
        match self.hear.recv_timeout(timeout) {
            Ok(event) => self.take(event),
            // This side holds a sender, so nobody ever hangs up.
            Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => {}
        }
        if self.clients.engine.counters().steps_total >= self.steps_seen + STEPS_FETCHED {
            self.fetch_steps();
        }
    }

    fn take(&mut self, event: RequestEvent) {
        let now = self.clock.now();
        let (RequestEvent::Token { id, .. } | RequestEvent::Finished { id, .. }) = &event;
        let id = *id;
        let Some(flight) = self.flights.get_mut(&id) else { return };
        let is_first = flight.answer.tokens.is_empty();
        if !flight.answer.take(event, now).is_empty() {
            flight.answer.wrote(now);
        }
        if flight.answer.ended.is_some() {
            self.end(id, now);
        } else if is_first && !flight.is_measured {
            self.num_begun += 1;
        }
    }

    fn end(&mut self, id: RequestId, now: Nanos) {
        let Some(mut flight) = self.flights.remove(&id) else { return };
        self.run.broken.extend(flight.answer.seal(Some(now)));
        let Some(ended) = flight.answer.ended else { return };
        let timeline = Arc::new(*ended.timeline);
        if flight.is_measured {
            self.run.timelines.push(timeline);
            self.num_measured -= 1;
            (self.ended)();
            return;
        }
        self.run.background.push(timeline);
        // A background that is refused or fails again and again must not spin.
        if let (Some(others), FinishReason::Length) = (self.background, ended.reason) {
            let next = self.background_request(others, others.output_tokens);
            self.send(vec![next], false);
        } else {
            self.num_begun += 1;
        }
    }

    /// Copies the steps that are new before the engine forgets them.
    fn fetch_steps(&mut self) {
        let engine = self.clients.engine;
        self.steps_seen = engine.counters().steps_total;
        let last = self.last_step;
        let new = engine.steps(STEPS_KEPT).into_iter().filter(|step| last.is_none_or(|last| step.id > last));
        self.run.steps.extend(new);
        self.last_step = self.run.steps.last().map(|step| step.id).or(last);
    }
}

#[cfg(test)]
mod tests;

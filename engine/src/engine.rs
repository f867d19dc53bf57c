//! The engine: requests and instants in, events and timelines out. One step is a pass, one await, and its application.
//!
//! It never loops, sleeps or polls: a driver in the host calls [`Engine::step`] while there is work.
//! Invariant: every submitted request ends in exactly one [`RequestEvent::Finished`].

use std::collections::HashMap;
use std::sync::Arc;

use firstlight_shaders::sample::NO_TOKEN;

use crate::clock::{Clock, Nanos};
use crate::request::{FinishReason, RejectReason, Request, RequestId, SampledToken};
use crate::runner::{ModelRunner, RunnerError, RunnerOutput};
use crate::sched::{Ahead, Batch, Sampled, Scheduler, SchedulerConfig, SchedulerOutput};
use crate::text::{AnswerText, Tokenizer};
use crate::timeline::{
    ClockLabel, EngineLabels, ModelLabel, PassTimes, RequestLabels, RequestTimeline, StepRecord, StepRing,
    TimelineBroken,
};

/// Steps that an engine remembers: some three minutes of decoding at 25 steps a second.
pub const STEPS_KEPT: usize = 4096;

/// How an engine is set up.
#[derive(Clone, Debug)]
pub struct EngineConfig {
    /// The limits; see [`SchedulerConfig::validate`].
    pub scheduler: SchedulerConfig,
    /// Tokens that end an answer, unless the request ignores them.
    pub eos_tokens: Vec<u32>,
    /// The model artifact, for timelines.
    pub model: ModelLabel,
    /// Hash of the configuration, for timelines; may be empty.
    pub engine_config: String,
}

/// What happened to a request.
#[derive(Clone, Debug, PartialEq)]
pub enum RequestEvent {
    /// A token was sampled.
    Token {
        /// Whose.
        id: RequestId,
        /// The token.
        token: SampledToken,
        /// Text that is certain by now; may be empty, may belong to earlier tokens. Never part of a stop string.
        text: String,
        /// Tokens of this request, from its first, of whose text nothing is held back because of a content policy: what may
        /// be told of them (ids, log-probabilities). All so far where there is no policy; and at the end all of them, unless
        /// it is [`FinishReason::ContentFilter`].
        settled: u32,
    },
    /// The request ended; nothing follows.
    Finished {
        /// Whose.
        id: RequestId,
        /// Why.
        reason: FinishReason,
        /// Why it was refused, where it was.
        detail: Option<RejectReason>,
        /// Text that had been held back.
        text: String,
        /// Its timeline; the host adds its own stamps and seals it.
        timeline: Box<RequestTimeline>,
    },
}

/// What a step gave.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct StepOutput {
    /// In order; also those of `submit` and `abort` since the last step.
    pub events: Vec<RequestEvent>,
    /// What the step held; `None` if there was nothing to compute.
    pub step: Option<StepRecord>,
}

/// The device failed. The running requests have ended `Failed`: their events are here and must be routed like any
/// others. The queue is kept; the host hands a new runner to [`Engine::replace_runner`] and goes on.
#[derive(Debug, thiserror::Error)]
#[error("{error}")]
pub struct StepFailed {
    /// What the runner said.
    pub error: RunnerError,
    /// The events that are still owed, and the step that failed.
    pub output: StepOutput,
}

/// Gauges and counters at one instant.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EngineCounters {
    /// Sequences in the batch.
    pub running: usize,
    /// Sequences in inbox and queue.
    pub waiting: usize,
    /// KV blocks without an owner.
    pub blocks_free: usize,
    /// KV blocks in the pool.
    pub blocks_total: usize,
    /// Evictions so far.
    pub preemptions_total: u64,
    /// Steps executed, failed ones included.
    pub steps_total: u64,
    /// Timelines that broke a rule.
    pub timelines_broken_total: u64,
    /// Prompt tokens looked up in the prefix cache, each request once, at its first admission.
    pub prefix_queries_total: u64,
    /// Those of them that were found.
    pub prefix_hits_total: u64,
    /// Prompt tokens of admitted requests.
    pub prompt_tokens_total: u64,
    /// Tokens sampled.
    pub generation_tokens_total: u64,
    /// Tokens computed ahead for requests that had ended by then.
    pub surplus_tokens_total: u64,
}

impl EngineCounters {
    /// KV blocks that have an owner.
    pub fn blocks_used(&self) -> usize {
        self.blocks_total - self.blocks_free
    }

    /// The same as a share of the pool, 0 to 1; 0 where there is none.
    pub fn kv_cache_usage(&self) -> f64 {
        self.blocks_used() as f64 / self.blocks_total.max(1) as f64
    }
}

/// A step on its way: what was decided, and what of its tokens is anybody's.
struct StepInHand {
    pass: SchedulerOutput,
    batch: Batch,
    /// For each sample row of a step ahead, whether its request is still there; empty where all are.
    wanted: Vec<bool>,
    record: StepRecord,
}

/// A step that was submitted while the one before it was running.
struct StepAhead {
    decided: Ahead,
    submit_at: Nanos,
}

/// The engine. See the module.
pub struct Engine<R: ModelRunner, C: Clock> {
    runner: R,
    clock: C,
    scheduler: Scheduler,
    eos_tokens: Vec<u32>,
    labels: Arc<EngineLabels>,
    tokenizer: Option<Arc<Tokenizer>>,
    texts: HashMap<RequestId, AnswerText>,
    /// Not yet handed out. A step that is dropped at its await loses none.
    events: Vec<RequestEvent>,
    steps_total: u64,
    generation_tokens_total: u64,
    surplus_tokens_total: u64,
    /// Submitted, and not yet the present step.
    ahead: Option<StepAhead>,
    runs_ahead: bool,
    steps: StepRing,
    timelines_broken_total: u64,
    last_broken: Option<TimelineBroken>,
}

impl<R: ModelRunner, C: Clock> Engine<R, C> {
    /// An engine that is ready now. Without a tokenizer the text of all events is empty.
    ///
    /// # Panics
    /// If the scheduler's configuration is not valid; hosts call [`SchedulerConfig::validate`] first.
    pub fn new(runner: R, clock: C, config: EngineConfig, tokenizer: Option<Arc<Tokenizer>>) -> Self {
        let labels = EngineLabels {
            model: config.model,
            engine_config: config.engine_config,
            clock: ClockLabel::of(&clock),
            ready_at: Some(clock.now()),
        };
        Self {
            runner,
            clock,
            scheduler: Scheduler::new(config.scheduler),
            eos_tokens: config.eos_tokens,
            labels: Arc::new(labels),
            tokenizer,
            texts: HashMap::new(),
            events: Vec::new(),
            steps_total: 0,
            generation_tokens_total: 0,
            surplus_tokens_total: 0,
            ahead: None,
            runs_ahead: true,
            steps: StepRing::new(STEPS_KEPT),
            timelines_broken_total: 0,
            last_broken: None,
        }
    }

    /// Takes a request that has no names outside. See [`Self::submit_labelled`].
    pub fn submit(&mut self, request: Request) {
        self.submit_labelled(request, RequestLabels::default());
    }

    /// Takes a request. One that cannot run is answered with a `Finished` event, reason `Rejected`, in the next output.
    ///
    /// # Panics
    /// If a request of the same id is still here: ids are the host's to keep apart.
    pub fn submit_labelled(&mut self, request: Request, labels: RequestLabels) {
        let id = request.id;
        let prompt_len = u32::try_from(request.prompt.len()).unwrap_or(u32::MAX);
        let timeline =
            RequestTimeline::created(id, labels, Arc::clone(&self.labels), &request.stamps, prompt_len);
        let text = self
            .tokenizer
            .as_ref()
            .map(|t| AnswerText::new(Arc::clone(t), &request.params.stop, request.policy.clone()));
        match self.scheduler.add(request, timeline, self.clock.now()) {
            Ok(()) => self.texts.extend(text.map(|text| (id, text))),
            Err(timeline) => self.finished(timeline),
        }
    }

    /// Ends a request wherever it is; its blocks and its slot are free at once. Says whether it was still here. Tokens that
    /// came after `asked_at`, when the client asked or went away, are counted as made for nobody.
    pub fn abort(&mut self, id: RequestId, reason: FinishReason, asked_at: Nanos) -> bool {
        let ended = self.scheduler.abort(id, reason, asked_at, self.clock.now());
        let was_here = ended.is_some();
        ended.into_iter().for_each(|timeline| self.finished(timeline));
        was_here
    }

    /// Whether a step has anything to compute or to tell.
    pub fn has_work(&self) -> bool {
        self.scheduler.has_work() || !self.events.is_empty()
    }

    /// One step: decide, execute, apply. An `Err` still carries every event.
    ///
    /// Where the tokens are chosen on the device, the step after this one is decided and submitted before this one's tokens
    /// are read, so that the device does not wait for us: see [`Scheduler::schedule_ahead`].
    pub async fn step(&mut self) -> Result<StepOutput, Box<StepFailed>> {
        let Some(mut step) = self.next_step() else { return Ok(self.output(None)) };
        let next = self.decide_ahead(&step);
        if step.record.ahead_ns.is_none() {
            step.record.submit_at = self.clock.now();
        }
        let result = match &next {
            Some(next) => self.runner.execute_ahead(&step.batch, &next.decided.batch).await,
            None => self.runner.execute(&step.batch).await,
        };
        let now = self.clock.now();
        step.record.done_at = now;
        self.steps_total += 1;
        match result.and_then(|output| self.plausible(&step.batch, output)) {
            Ok(output) => {
                // Only now: where this step is dropped at its await, so is what was to follow it.
                self.ahead = next;
                step.record.gpu_ns = output.gpu_ns;
                step.record.stages = output.stages;
                self.apply(&step, output.tokens, now);
                Ok(self.output(Some(step.record)))
            }
            Err(error) => {
                step.record.failed = true;
                for timeline in self.scheduler.fail_running(now) {
                    self.finished(timeline);
                }
                Err(Box::new(StepFailed { error, output: self.output(Some(step.record)) }))
            }
        }
    }

    /// The step that was submitted ahead, if anybody of it is left; else what a pass decides, if there is anything to do.
    fn next_step(&mut self) -> Option<StepInHand> {
        let schedule_at = self.clock.now();
        if let Some(StepAhead { decided, submit_at }) = self.ahead.take() {
            for timeline in self.scheduler.expire(schedule_at) {
                self.finished(timeline);
            }
            let rows = decided.batch.sample_rows.len() as u64;
            if let Some(confirmed) = self.scheduler.confirm(&decided, schedule_at) {
                self.surplus_tokens_total += rows - confirmed.pass.scheduled.len() as u64;
                let mut record = self.record(&confirmed.pass, schedule_at);
                record.ahead_ns = Some(schedule_at - submit_at);
                let Ahead { batch, .. } = decided;
                return Some(StepInHand { pass: confirmed.pass, batch, wanted: confirmed.wanted, record });
            }
            self.surplus_tokens_total += rows;
        }
        let mut pass = self.scheduler.schedule(schedule_at);
        for timeline in std::mem::take(&mut pass.ended) {
            self.finished(timeline);
        }
        if pass.scheduled.is_empty() {
            return None;
        }
        let batch = self.scheduler.batch(&pass);
        let record = self.record(&pass, schedule_at);
        Some(StepInHand { pass, batch, wanted: Vec::new(), record })
    }

    /// The step after `step`, where it can be decided without its tokens.
    fn decide_ahead(&mut self, step: &StepInHand) -> Option<StepAhead> {
        if !self.runs_ahead || !self.runner.runs_ahead(&step.batch) {
            return None;
        }
        let decided = self.scheduler.schedule_ahead(&step.pass)?;
        Some(StepAhead { decided, submit_at: self.clock.now() })
    }

    /// A device that answers nonsense has failed: its tokens must not reach a table that they index.
    fn plausible(&self, batch: &Batch, output: RunnerOutput) -> Result<RunnerOutput, RunnerError> {
        let (rows, tokens) = (batch.sample_rows.len(), output.tokens.len());
        if rows != tokens {
            return Err(RunnerError::Internal(format!("it gave {tokens} tokens for {rows} sample rows")));
        }
        let vocab_size = self.scheduler.config().vocab_size;
        match output.tokens.iter().find(|sampled| sampled.token >= vocab_size) {
            Some(SampledToken { token: NO_TOKEN, .. }) => Err(RunnerError::Internal(
                "no logit is a finite number: the model file or the driver is broken; `firstlight doctor` tests the kernels"
                    .into(),
            )),
            Some(SampledToken { token, .. }) => Err(RunnerError::Internal(format!(
                "it sampled token {token}, outside the vocabulary of {vocab_size}"
            ))),
            None => Ok(output),
        }
    }

    fn apply(&mut self, step: &StepInHand, mut tokens: Vec<SampledToken>, now: Nanos) {
        let mut wanted = step.wanted.iter();
        tokens.retain(|_| *wanted.next().unwrap_or(&true));
        let ids: Vec<u32> = tokens.iter().map(|sampled| sampled.token).collect();
        let gpu = PassTimes {
            gpu_ns: step.record.gpu_ns,
            profiled: step.record.stages.is_some(),
            ahead: step.record.ahead_ns.is_some(),
        };
        let owners = self.scheduler.apply(&step.pass, &ids, gpu, now);
        self.generation_tokens_total += ids.len() as u64;
        let mut ends = Vec::new();
        for (owner, token) in owners.into_iter().zip(tokens) {
            let (text, end) = self.read_token(owner, token.token);
            let settled = self.texts.get(&owner.id).map_or(u32::MAX, AnswerText::settled);
            self.events.push(RequestEvent::Token { id: owner.id, token, text, settled });
            ends.extend(end.map(|reason| (owner.id, reason)));
        }
        for (id, reason) in ends {
            // Known before the end is stamped: what had been held back may turn out to be blocked.
            let (text, blocked) = self.last_text(id);
            let reason = if blocked { FinishReason::ContentFilter } else { reason };
            if let Some(timeline) = self.scheduler.finish(id, reason, now) {
                self.finished_with(timeline, text);
            }
        }
    }

    /// The text that a new token makes certain, and whether the answer ends with it.
    fn read_token(&mut self, owner: Sampled, token: u32) -> (String, Option<FinishReason>) {
        let sequence = self.scheduler.running(owner);
        if self.eos_tokens.contains(&token) && !sequence.params().ignore_eos {
            self.texts.get_mut(&owner.id).into_iter().for_each(AnswerText::push_end);
            return (String::new(), Some(FinishReason::Stop));
        }
        let is_full = sequence.num_generated() >= sequence.params().max_tokens as usize
            || sequence.tokens().len() >= self.scheduler.config().max_model_len as usize;
        let (text, end) = self.texts.get_mut(&owner.id).map(|text| text.push(token)).unwrap_or_default();
        (text, end.or(is_full.then_some(FinishReason::Length)))
    }

    /// The text of an answer that had been held back, once it has no more tokens; and whether it turns out to be blocked.
    fn last_text(&mut self, id: RequestId) -> (String, bool) {
        self.texts.remove(&id).map(|mut text| text.finish()).unwrap_or_default()
    }

    fn finished(&mut self, timeline: Box<RequestTimeline>) {
        let (text, _) = self.last_text(timeline.id());
        self.finished_with(timeline, text);
    }

    /// The one place that makes a `Finished` event.
    fn finished_with(&mut self, timeline: Box<RequestTimeline>, text: String) {
        if let Err(broken) = timeline.check() {
            self.timelines_broken_total += 1;
            self.last_broken = Some(broken);
        }
        let id = timeline.id();
        let reason = timeline.finish_reason().unwrap_or(FinishReason::Failed);
        let detail = timeline.finish_detail().cloned();
        self.events.push(RequestEvent::Finished { id, reason, detail, text, timeline });
    }

    fn output(&mut self, step: Option<StepRecord>) -> StepOutput {
        if let Some(record) = &step {
            self.steps.push(record.clone());
        }
        StepOutput { events: std::mem::take(&mut self.events), step }
    }

    fn record(&self, pass: &SchedulerOutput, schedule_at: Nanos) -> StepRecord {
        let decodes = pass.scheduled.iter().filter(|one| one.is_decode);
        let prefills = pass.scheduled.iter().filter(|one| !one.is_decode);
        let counters = self.counters();
        StepRecord {
            id: pass.step,
            schedule_at,
            submit_at: schedule_at,
            done_at: schedule_at,
            ahead_ns: None,
            gpu_ns: None,
            stages: None,
            failed: false,
            decode_rows: decodes.count() as u32,
            prefill: prefills.map(|one| (one.id, one.num_tokens)).collect(),
            running: counters.running as u32,
            waiting: self.scheduler.num_queued() as u32,
            obstacle: pass.obstacle,
            blocks_used: counters.blocks_used() as u32,
            blocks_total: counters.blocks_total as u32,
            preempted: pass.preempted.clone(),
        }
    }

    /// Whether steps are submitted ahead where they can be; they are until this says otherwise.
    pub fn run_ahead(&mut self, on: bool) {
        self.runs_ahead = on;
    }

    /// Gauges and counters.
    pub fn counters(&self) -> EngineCounters {
        let (pool, prefixes) = (self.scheduler.pool(), self.scheduler.prefix_counts());
        EngineCounters {
            running: self.scheduler.num_running(),
            waiting: self.scheduler.num_waiting(),
            blocks_free: pool.num_free(),
            blocks_total: pool.num_blocks(),
            preemptions_total: self.scheduler.num_preemptions(),
            steps_total: self.steps_total,
            timelines_broken_total: self.timelines_broken_total,
            prefix_queries_total: prefixes.queries,
            prefix_hits_total: prefixes.hits,
            prompt_tokens_total: self.scheduler.prompt_tokens(),
            generation_tokens_total: self.generation_tokens_total,
            surplus_tokens_total: self.surplus_tokens_total,
        }
    }

    /// The last steps.
    pub fn steps(&self) -> &StepRing {
        &self.steps
    }

    /// The last timeline that broke a rule: a defect to be reported.
    pub fn last_broken(&self) -> Option<&TimelineBroken> {
        self.last_broken.as_ref()
    }

    /// What the timelines of this engine have in common, for requests that a host refuses before they get here.
    pub fn labels(&self) -> &Arc<EngineLabels> {
        &self.labels
    }

    /// The scheduler, to look at.
    pub fn scheduler(&self) -> &Scheduler {
        &self.scheduler
    }

    /// The clock.
    pub fn clock(&self) -> &C {
        &self.clock
    }

    /// The runner, to look at.
    pub fn runner(&self) -> &R {
        &self.runner
    }

    /// The runner, between steps.
    pub fn runner_mut(&mut self) -> &mut R {
        &mut self.runner
    }

    /// A new runner after the device was lost; the old one comes back. No running request survives a failure, so the
    /// new runner's KV cache may hold anything.
    pub fn replace_runner(&mut self, runner: R) -> R {
        // What the old one has begun, the new one knows nothing of.
        self.ahead = None;
        std::mem::replace(&mut self.runner, runner)
    }
}

//! The timeline of one request: the edges of its state machine, stamped, and the parts its latency comes apart into.
//!
//! It decides nothing and reads no clock: [`RequestTimeline::advance`] is the one door, and `now` is an argument.
//! Invariant: the parts of a request that ended sum to its latency by `==`, or [`RequestTimeline::check`] says which
//! rule broke. A duration is never clamped to hide a negative part: an instant that goes back is recorded as broken.

mod check;
mod edge;
mod json;
mod labels;
mod parts;
mod stamps;
mod step;
mod step_ring;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use crate::clock::Nanos;
use crate::request::{FinishReason, HostStamps, RejectReason, RequestId};

pub use check::{TimelineBroken, TimelineRule};
pub use edge::{Edge, PassTimes, Place};
pub use json::{StampsRecord, TIMELINE_SCHEMA, TimelineRecord};
pub use labels::{ClockLabel, EngineLabels, ModelLabel, RequestLabels};
pub use parts::{DecodeParts, EngineParts, InboxParts, Parts, Preparation, RunParts, Transport, WaitCauses};
pub use stamps::{GpuTimes, PrefillAttempt, Residency, Stamps, TokenCounts};
pub use step::{Obstacle, StageTimes, StepRecord};
pub use step_ring::StepRing;

/// Instants stay below this, so that a JSON reader with doubles keeps every nanosecond.
pub const NANOS_LIMIT: Nanos = 1 << 53;

/// The timeline of one request. See the module.
#[derive(Clone, Debug, PartialEq)]
pub struct RequestTimeline {
    id: RequestId,
    labels: RequestLabels,
    engine: Arc<EngineLabels>,
    place: Place,
    stamps: Stamps,
    residency: Vec<Residency>,
    /// Index into `residency` of the stay that held the first token: instants alone cannot tell on a coarse clock.
    first_token_residency_idx: Option<usize>,
    /// The instant of the last engine edge; none may come before it.
    last_at: Nanos,
    slice: Slice,
    queue_wait: WaitCauses,
    requeue: WaitCauses,
    lost_prefill: Nanos,
    prefill: RunParts,
    decode: DecodeParts,
    attempts: Vec<PrefillAttempt>,
    tokens: TokenCounts,
    /// Tokens with K and V in this residency, and how many there were before a decode-time eviction.
    position: u64,
    recover_to: u64,
    preemptions: u32,
    token_at: Vec<Nanos>,
    token_step: Vec<u64>,
    /// The last pass on the GPU's clock, and the sums of it that are shown.
    pass_gpu_ns: Option<u64>,
    gpu: Option<GpuTimes>,
    profiled: bool,
    /// The last pass ran ahead; and the tokens of all that did.
    pass_ahead: bool,
    ahead_tokens: u32,
    finish: Option<(FinishReason, Option<RejectReason>)>,
    broken: Option<TimelineBroken>,
    sealed: bool,
}

/// The open slice of a running request: from the last pass on, billed to what that pass gave.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Slice {
    from: Nanos,
    given: bool,
}

impl RequestTimeline {
    /// A timeline without stamps, for a host that stamps edge by edge (a request may be refused in preparation).
    pub fn new(id: RequestId, labels: RequestLabels, engine: Arc<EngineLabels>) -> Self {
        Self {
            id,
            labels,
            engine,
            place: Place::Host,
            stamps: Stamps::default(),
            residency: Vec::new(),
            first_token_residency_idx: None,
            last_at: 0,
            slice: Slice::default(),
            queue_wait: WaitCauses::default(),
            requeue: WaitCauses::default(),
            lost_prefill: 0,
            prefill: RunParts::default(),
            decode: DecodeParts::default(),
            attempts: Vec::new(),
            tokens: TokenCounts::default(),
            position: 0,
            recover_to: 0,
            preemptions: 0,
            token_at: Vec::new(),
            token_step: Vec::new(),
            pass_gpu_ns: None,
            gpu: None,
            profiled: false,
            pass_ahead: false,
            ahead_tokens: 0,
            finish: None,
            broken: None,
            sealed: false,
        }
    }

    /// A timeline with all of a host's stamps, up to `created`.
    pub fn created(
        id: RequestId,
        labels: RequestLabels,
        engine: Arc<EngineLabels>,
        stamps: &HostStamps,
        prompt_len: u32,
    ) -> Self {
        let mut timeline = Self::new(id, labels, engine);
        timeline.advance(Edge::Received, stamps.received);
        timeline.advance(Edge::Checked, stamps.checked);
        timeline.advance(Edge::Routed, stamps.routed);
        timeline.advance(Edge::Preparing, stamps.preparing);
        timeline.advance(Edge::Templated, stamps.templated);
        timeline.advance(Edge::Tokenised, stamps.tokenised);
        timeline.advance(Edge::Created, stamps.created);
        timeline.tokens.prompt = prompt_len;
        timeline
    }

    /// Takes `edge` at `now`. An edge that the state machine does not have, or an instant that goes back, is recorded
    /// and comes out of [`Self::check`]; nothing panics here.
    pub fn advance(&mut self, edge: Edge, now: Nanos) {
        // Whoever asked must learn why it ended, also where the stamps make no sense.
        if let (Edge::Finished { reason, detail }, None) = (&edge, &self.finish) {
            self.finish = Some((*reason, detail.clone()));
        }
        if now >= NANOS_LIMIT {
            self.break_rule(TimelineRule::BelowLimit, now, NANOS_LIMIT);
            return;
        }
        if !self.permits(&edge) {
            let place = self.place;
            self.break_with(TimelineRule::LegalEdge, format!("{edge:?} at {now} from {place:?}"));
            return;
        }
        match edge {
            Edge::FirstText => self.stamps.first_text = Some(now),
            Edge::FirstWrite => self.stamps.first_write = Some(now),
            Edge::LastWrite => self.stamps.last_write = Some(now),
            edge => {
                if now < self.last_at {
                    self.break_rule(TimelineRule::Monotonic, now, self.last_at);
                    return;
                }
                self.last_at = now;
                self.take(edge, now);
            }
        }
    }

    /// The state machine: which edge leaves which place.
    fn permits(&self, edge: &Edge) -> bool {
        let stamped = self.stamps.host.iter().flatten().count();
        match edge {
            Edge::Queued => self.place == Place::Inbox,
            Edge::Admitted { .. } => self.place == Place::Waiting,
            Edge::Chunk { .. } | Edge::Computed { .. } | Edge::Token { .. } | Edge::Preempted => {
                self.place == Place::Running
            }
            Edge::Finished { .. } => self.place != Place::Done && stamped > 0,
            Edge::FirstText => {
                !self.sealed && self.stamps.first_token.is_some() && self.stamps.first_text.is_none()
            }
            Edge::FirstWrite => {
                !self.sealed && self.stamps.first_text.is_some() && self.stamps.first_write.is_none()
            }
            Edge::LastWrite => !self.sealed && self.stamps.last_write.is_none(),
            host => self.place == Place::Host && host.host_idx() == Some(stamped),
        }
    }

    fn take(&mut self, edge: Edge, now: Nanos) {
        match edge {
            Edge::Queued => {
                self.stamps.queued = Some(now);
                self.enter(Place::Waiting, now);
            }
            Edge::Admitted { cached } => {
                self.enter(Place::Running, now);
                self.slice = Slice { from: now, given: false };
                self.position = u64::from(cached);
                if self.attempts.is_empty() {
                    self.tokens.cached = cached;
                }
                self.attempts.push(PrefillAttempt { from: now, to: now, cached, computed: 0, open: true });
                match self.stamps.first_token {
                    None => self.gpu = None,
                    // Nothing of what the eviction threw away has to be computed again.
                    Some(_) if self.position >= self.recover_to => self.close_attempt(now),
                    Some(_) => {}
                }
            }
            Edge::Chunk { tokens } => {
                self.settle(now);
                self.slice.given = tokens > 0;
            }
            Edge::Computed { tokens, gpu } => {
                self.pass_was(gpu);
                self.computed(tokens, now);
            }
            Edge::Token { step } => self.token(step, now),
            Edge::Preempted => {
                self.settle(now);
                self.close_attempt(now);
                self.preemptions += 1;
                if self.stamps.first_token.is_none() {
                    self.lost_prefill += self.prefill.total();
                    self.prefill = RunParts::default();
                } else {
                    self.recover_to = self.recover_to.max(self.position);
                }
                self.position = 0;
                self.enter(Place::Waiting, now);
            }
            Edge::Finished { .. } => {
                if self.place == Place::Running {
                    self.settle(now);
                    self.close_attempt(now);
                }
                self.enter(Place::Done, now);
                self.stamps.finished = Some(now);
            }
            host => {
                if let Some(idx) = host.host_idx() {
                    self.stamps.host[idx] = Some(now);
                }
                if host == Edge::Created {
                    self.enter(Place::Inbox, now);
                }
            }
        }
    }

    fn enter(&mut self, place: Place, now: Nanos) {
        if let Some(open) = self.residency.last_mut() {
            open.to = now;
        }
        if place != Place::Done {
            self.residency.push(Residency { place, from: now, to: now });
        }
        self.place = place;
    }

    /// Bills the open slice of a running request.
    fn settle(&mut self, now: Nanos) {
        let elapsed = now - self.slice.from;
        self.slice.from = now;
        let given = self.slice.given;
        if self.stamps.first_token.is_none() {
            self.prefill.bill(given, elapsed);
        } else if self.position < self.recover_to {
            self.decode.recompute += elapsed;
        } else if given {
            self.decode.compute += elapsed;
        } else {
            self.decode.stall += elapsed;
        }
    }

    fn pass_was(&mut self, pass: PassTimes) {
        self.pass_gpu_ns = pass.gpu_ns;
        self.profiled |= pass.profiled;
        self.pass_ahead = pass.ahead;
        if let (None, Some(gpu_ns)) = (self.stamps.first_token, pass.gpu_ns) {
            self.gpu.get_or_insert_default().forward_ns += gpu_ns;
        }
    }

    fn computed(&mut self, tokens: u32, now: Nanos) {
        self.tokens.computed += u64::from(tokens);
        if let Some(attempt) = self.attempts.last_mut().filter(|a| a.open) {
            attempt.computed += tokens;
        }
        if self.position < self.recover_to {
            // The slice that reaches the old position again still belongs to recompute.
            self.settle(now);
            self.position += u64::from(tokens);
            if self.position >= self.recover_to {
                self.close_attempt(now);
            }
        } else {
            self.position += u64::from(tokens);
        }
    }

    fn token(&mut self, step: u64, now: Nanos) {
        if self.stamps.first_token.is_none() {
            self.settle(now);
            self.close_attempt(now);
            self.stamps.first_token = Some(now);
            self.first_token_residency_idx = Some(self.residency.len() - 1);
        }
        self.tokens.generated += 1;
        self.ahead_tokens += u32::from(self.pass_ahead);
        if let (2, Some(gpu)) = (self.tokens.generated, &mut self.gpu) {
            gpu.first_decode_ns = self.pass_gpu_ns;
        }
        self.token_at.push(now);
        self.token_step.push(step);
    }

    fn close_attempt(&mut self, now: Nanos) {
        if let Some(attempt) = self.attempts.last_mut().filter(|a| a.open) {
            attempt.to = now;
            attempt.open = false;
        }
    }

    /// The client asked for the end, or went away, at `at`: tokens after that were made for nobody.
    pub(crate) fn client_gone(&mut self, at: Nanos) {
        let seen = self.token_at.partition_point(|&token_at| token_at <= at);
        self.tokens.after_disconnect = u32::try_from(self.token_at.len() - seen).unwrap_or(u32::MAX);
    }

    /// The time of the stay in the queue that is about to end, by cause. Called once per stay, just before it ends.
    pub(crate) fn bill_wait(&mut self, waited: WaitCauses) {
        if self.stamps.first_token.is_some() {
            self.decode.requeue += waited.total();
        } else if self.preemptions == 0 {
            self.queue_wait.add(waited);
        } else {
            self.requeue.add(waited);
        }
    }

    /// The host: the first printable text exists.
    pub fn first_text(&mut self, at: Nanos) {
        self.advance(Edge::FirstText, at);
    }

    /// The host: the first chunk with content was handed on. After [`Self::first_text`].
    pub fn first_write(&mut self, at: Nanos) {
        self.advance(Edge::FirstWrite, at);
    }

    /// The host: the last chunk was handed on.
    pub fn last_write(&mut self, at: Nanos) {
        self.advance(Edge::LastWrite, at);
    }

    /// No more stamps; checks the whole. Only sealed timelines enter reports.
    pub fn seal(&mut self) -> Result<(), TimelineBroken> {
        self.sealed = true;
        self.check()
    }

    /// The request's number in the engine.
    pub fn id(&self) -> RequestId {
        self.id
    }
    /// What the host calls it.
    pub fn labels(&self) -> &RequestLabels {
        &self.labels
    }
    /// The model that answers.
    pub fn model(&self) -> &ModelLabel {
        &self.engine.model
    }
    /// The stamps.
    pub fn stamps(&self) -> &Stamps {
        &self.stamps
    }
    /// The stays, from `created` to `finished` without a gap.
    pub fn residency(&self) -> &[Residency] {
        &self.residency
    }
    /// Where the request is.
    pub fn place(&self) -> Place {
        self.place
    }
    /// Tokens, counted.
    pub fn tokens(&self) -> &TokenCounts {
        &self.tokens
    }
    /// One entry an admission.
    pub fn attempts(&self) -> &[PrefillAttempt] {
        &self.attempts
    }
    /// What the GPU's clock says, where the adapter has one.
    pub fn gpu(&self) -> Option<GpuTimes> {
        self.gpu
    }
    /// Whether a pass of it was cut into stages: its times are longer than usual.
    pub fn is_profiled(&self) -> bool {
        self.profiled
    }
    /// Tokens of passes that were submitted before the pass before them was read.
    pub fn ahead_tokens(&self) -> u32 {
        self.ahead_tokens
    }
    /// Evictions.
    pub fn preemptions(&self) -> u32 {
        self.preemptions
    }
    /// When each sampled token was on the CPU.
    pub fn token_at(&self) -> &[Nanos] {
        &self.token_at
    }
    /// The step that made each token.
    pub fn token_step(&self) -> &[u64] {
        &self.token_step
    }
    /// Why it ended; `None` while it lives.
    pub fn finish_reason(&self) -> Option<FinishReason> {
        self.finish.as_ref().map(|(reason, _)| *reason)
    }
    /// Why it was refused.
    pub fn finish_detail(&self) -> Option<&RejectReason> {
        self.finish.as_ref().and_then(|(_, detail)| detail.as_ref())
    }
    /// Whether the host has sealed it.
    pub fn is_sealed(&self) -> bool {
        self.sealed
    }
}

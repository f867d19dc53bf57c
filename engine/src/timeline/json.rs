//! A timeline as JSON, schema `firstlight.timeline/1`: one form for server, page and command line, written and read back.
//!
//! It computes nothing that [`RequestTimeline`] does not. Invariant: integers only, instants and durations alike; and a
//! timeline that was written, read and recalled is written again word for word.

use std::borrow::Cow;
use std::sync::Arc;

use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::{
    ClockLabel, DecodeParts, EngineLabels, GpuTimes, ModelLabel, NANOS_LIMIT, Parts, Place, PrefillAttempt,
    RequestLabels, RequestTimeline, Residency, Stamps, TimelineBroken, TimelineRule, TokenCounts, WaitCauses,
};
use crate::clock::Nanos;
use crate::request::{FinishReason, RejectReason, RequestId};

/// The schema's name.
pub const TIMELINE_SCHEMA: &str = "firstlight.timeline/1";

/// A timeline as it is written: what a page, a client and a script read.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
pub struct TimelineRecord {
    /// [`TIMELINE_SCHEMA`].
    #[serde(deserialize_with = "schema")]
    pub schema: Cow<'static, str>,
    /// Response id and `#index` of the choice; `r<number>` where the host has no name for it.
    pub id: String,
    /// Shared by the choices of one call.
    #[serde(default)]
    pub request_id: String,
    /// W3C trace id.
    #[serde(default)]
    pub trace_id: Option<String>,
    /// The number that steps call the request by.
    pub engine_id: RequestId,
    /// The path or command it came by.
    #[serde(default)]
    pub route: String,
    /// Two clocks made it: beside the parts, never among them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub upstream_estimate_ns: Option<i64>,
    /// The model that answered.
    pub model: ModelLabel,
    /// Hash of the engine's configuration.
    #[serde(default)]
    pub engine_config: String,
    /// The clock of all instants.
    pub clock: ClockLabel,
    /// Absent while the request lives.
    #[serde(default)]
    pub finish_reason: Option<FinishReason>,
    /// Why it was refused, where it was.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub finish_detail: Option<String>,
    /// The instants that were reached.
    pub stamps: StampsRecord,
    /// Stays: place, from, to. The last one of a request that lives ends where it began.
    pub residency: Vec<(Place, Nanos, Nanos)>,
    /// Absent while there is neither a first token nor an end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parts: Option<Parts>,
    /// Their sum.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parts_total: Option<Nanos>,
    /// `first_write - received`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ttft: Option<Nanos>,
    /// `first_token - created`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub engine_ttft: Option<Nanos>,
    /// `last_write`, else `finished`, minus `received`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub e2e: Option<Nanos>,
    /// `finished - first_token`, apart.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub decode: Option<DecodeParts>,
    /// On the GPU's clock, beside the sums.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gpu: Option<GpuTimes>,
    /// Its passes were cut into stages.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub profiled: bool,
    /// Tokens of passes that were submitted before the pass before them was read: the other ones waited for the CPU.
    #[serde(default)]
    pub ahead_tokens: u32,
    /// Tokens, counted.
    pub tokens: TokenCounts,
    /// One entry an admission.
    pub attempts: Vec<PrefillAttempt>,
    /// Evictions.
    pub preemptions: u32,
    /// When each token was on the CPU.
    pub token_at: Vec<Nanos>,
    /// The step that made each token.
    pub token_step: Vec<u64>,
    /// The rule that a timeline of an ended request breaks: a defect, shown to whoever reads it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub broken: Option<String>,
}

/// The stamps of a [`TimelineRecord`], by name; see `timeline`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[allow(missing_docs, reason = "each is the stamp of the same name")]
pub struct StampsRecord {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub received: Option<Nanos>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub checked: Option<Nanos>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub routed: Option<Nanos>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub preparing: Option<Nanos>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub templated: Option<Nanos>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tokenised: Option<Nanos>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub created: Option<Nanos>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub queued: Option<Nanos>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub first_token: Option<Nanos>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub first_text: Option<Nanos>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub first_write: Option<Nanos>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_write: Option<Nanos>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub finished: Option<Nanos>,
}

impl From<&Stamps> for StampsRecord {
    fn from(s: &Stamps) -> Self {
        let [received, checked, routed, preparing, templated, tokenised, created] = s.host;
        Self {
            received,
            checked,
            routed,
            preparing,
            templated,
            tokenised,
            created,
            queued: s.queued,
            first_token: s.first_token,
            first_text: s.first_text,
            first_write: s.first_write,
            last_write: s.last_write,
            finished: s.finished,
        }
    }
}

impl From<&StampsRecord> for Stamps {
    fn from(s: &StampsRecord) -> Self {
        Self {
            host: [s.received, s.checked, s.routed, s.preparing, s.templated, s.tokenised, s.created],
            queued: s.queued,
            first_token: s.first_token,
            first_text: s.first_text,
            first_write: s.first_write,
            last_write: s.last_write,
            finished: s.finished,
        }
    }
}

impl StampsRecord {
    /// All of them by name, in the order of a request's life.
    pub fn named(&self) -> [(&'static str, Option<Nanos>); 13] {
        [
            ("received", self.received),
            ("checked", self.checked),
            ("routed", self.routed),
            ("preparing", self.preparing),
            ("templated", self.templated),
            ("tokenised", self.tokenised),
            ("created", self.created),
            ("queued", self.queued),
            ("first_token", self.first_token),
            ("first_text", self.first_text),
            ("first_write", self.first_write),
            ("last_write", self.last_write),
            ("finished", self.finished),
        ]
    }
}

/// A timeline of another schema is none that this reads.
fn schema<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Cow<'static, str>, D::Error> {
    let name = String::deserialize(deserializer)?;
    match name == TIMELINE_SCHEMA {
        true => Ok(Cow::Borrowed(TIMELINE_SCHEMA)),
        false => Err(D::Error::custom(format!("the timeline's schema is {name:?}, not {TIMELINE_SCHEMA}"))),
    }
}

impl RequestTimeline {
    /// The timeline as it is written.
    pub fn record(&self) -> TimelineRecord {
        let parts = self.parts();
        let id = if self.labels.id.is_empty() { self.id.to_string() } else { self.labels.id.clone() };
        TimelineRecord {
            schema: Cow::Borrowed(TIMELINE_SCHEMA),
            id,
            request_id: self.labels.request_id.clone(),
            trace_id: self.labels.trace_id.clone(),
            engine_id: self.id,
            route: self.labels.route.clone(),
            upstream_estimate_ns: self.labels.upstream_estimate_ns,
            model: self.engine.model.clone(),
            engine_config: self.engine.engine_config.clone(),
            clock: self.engine.clock,
            finish_reason: self.finish_reason(),
            finish_detail: self.finish_detail().map(ToString::to_string),
            stamps: (&self.stamps).into(),
            residency: self.residency.iter().map(|stay| (stay.place, stay.from, stay.to)).collect(),
            parts,
            parts_total: parts.map(|p| p.total()),
            ttft: self.ttft(),
            engine_ttft: self.engine_ttft(),
            e2e: self.e2e(),
            decode: self.decode(),
            gpu: self.gpu,
            profiled: self.profiled,
            ahead_tokens: self.ahead_tokens,
            tokens: self.tokens,
            attempts: self.attempts.clone(),
            preemptions: self.preemptions,
            token_at: self.token_at.clone(),
            token_step: self.token_step.clone(),
            broken: self.finish.as_ref().and_then(|_| self.check().err()).map(|broken| broken.to_string()),
        }
    }

    /// A timeline that was written elsewhere, to be checked, folded and blamed like one's own. What its writer said of it
    /// (sums, `broken`) is not believed but computed again. One that had ended counts as sealed; one that had not is what
    /// was known of it, and takes no more edges.
    ///
    /// # Errors
    /// Stamps that decrease or are no instants, durations that are none: nothing could be computed from them.
    pub fn recall(record: &TimelineRecord) -> Result<Self, TimelineBroken> {
        let parts = record.parts.unwrap_or_default();
        let engine_parts = parts.engine.unwrap_or_default();
        let labels = RequestLabels {
            id: record.id.clone(),
            request_id: record.request_id.clone(),
            trace_id: record.trace_id.clone(),
            route: record.route.clone(),
            upstream_estimate_ns: record.upstream_estimate_ns,
        };
        let created = record.stamps.created;
        let engine = EngineLabels {
            model: record.model.clone(),
            engine_config: record.engine_config.clone(),
            clock: record.clock,
            // As much of it as any part shows.
            ready_at: created.and_then(|created| created.checked_add(engine_parts.inbox.model_load)),
        };
        let mut timeline = Self::new(record.engine_id, labels, Arc::new(engine));
        timeline.stamps = (&record.stamps).into();
        let stay = |&(place, from, to): &(Place, Nanos, Nanos)| Residency { place, from, to };
        timeline.residency = record.residency.iter().map(stay).collect();
        timeline.place = match (record.finish_reason, timeline.residency.last()) {
            (Some(_), _) => Place::Done,
            (None, Some(stay)) => stay.place,
            (None, None) => Place::Host,
        };
        timeline.queue_wait = engine_parts.queue_wait;
        timeline.requeue = engine_parts.requeue;
        timeline.lost_prefill = engine_parts.lost_prefill;
        timeline.prefill = engine_parts.prefill;
        timeline.decode = record.decode.unwrap_or_default();
        timeline.attempts = record.attempts.clone();
        timeline.tokens = record.tokens;
        timeline.preemptions = record.preemptions;
        timeline.token_at = record.token_at.clone();
        timeline.token_step = record.token_step.clone();
        timeline.gpu = record.gpu;
        timeline.profiled = record.profiled;
        timeline.ahead_tokens = record.ahead_tokens;
        let detail = record.finish_detail.clone().map(RejectReason::Preparation);
        timeline.finish = record.finish_reason.map(|reason| (reason, detail));
        timeline.sealed = record.finish_reason.is_some();
        timeline.check_order()?;
        timeline.check_size(record)?;
        timeline.first_token_residency_idx = timeline.stay_of_first_token();
        Ok(timeline)
    }

    /// Whoever wrote it may have written anything: no sum of what passes leaves 64 bits.
    fn check_size(&self, record: &TimelineRecord) -> Result<(), TimelineBroken> {
        let engine = record.parts.and_then(|parts| parts.engine).unwrap_or_default();
        let causes = |wait: &WaitCauses| [wait.slots, wait.budget, wait.blocks, wait.order, wait.paused];
        let decode = self.decode;
        let durations = [
            engine.inbox.model_load,
            engine.lost_prefill,
            engine.prefill.compute,
            engine.prefill.stall,
            decode.compute,
            decode.stall,
            decode.requeue,
            decode.recompute,
        ];
        let durations =
            durations.into_iter().chain(causes(&engine.queue_wait)).chain(causes(&engine.requeue));
        let stays = self.residency.iter().flat_map(|stay| [stay.from, stay.to]);
        let stamps = record.stamps.named().into_iter().filter_map(|(_, at)| at);
        let all = durations.chain(stays).chain(stamps).chain(self.token_at.iter().copied());
        match all.max().filter(|largest| *largest >= NANOS_LIMIT) {
            Some(largest) => {
                Err(self.violation(TimelineRule::BelowLimit, format!("{largest} against {NANOS_LIMIT}")))
            }
            None => Ok(()),
        }
    }

    /// The stay that held the first token. Several may touch its instant on a coarse clock: the one that gives the parts.
    fn stay_of_first_token(&mut self) -> Option<usize> {
        let first_token = self.stamps.first_token?;
        let holds = |stay: &Residency, is_last: bool| {
            stay.place == Place::Running && stay.from <= first_token && (first_token <= stay.to || is_last)
        };
        let last = self.residency.len().checked_sub(1)?;
        let candidates: Vec<usize> =
            (0..=last).filter(|&idx| holds(&self.residency[idx], idx == last)).collect();
        let fits = |idx: &usize| {
            self.first_token_residency_idx = Some(*idx);
            let stays = self.residency_parts();
            (stays.queue_wait, stays.requeue, stays.lost_prefill, stays.prefill)
                == (self.queue_wait.total(), self.requeue.total(), self.lost_prefill, self.prefill.total())
        };
        candidates.iter().copied().find(fits).or(candidates.first().copied())
    }
}

impl Serialize for RequestTimeline {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.record().serialize(serializer)
    }
}

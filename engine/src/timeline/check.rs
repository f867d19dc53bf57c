//! The rules a timeline must keep, each held by `==`.
//!
//! It repairs nothing. Invariant: a timeline that passes accounts for every nanosecond from `received` to `finished`.

use super::{Place, RequestTimeline};
use crate::clock::Nanos;
use crate::request::RequestId;

/// Which rule broke.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum TimelineRule {
    /// Every edge is one of the state machine's.
    LegalEdge,
    /// Instants never decrease.
    Monotonic,
    /// Instants stay below 2^53.
    BelowLimit,
    /// Only a request that ended is checked.
    Ended,
    /// The stays follow each other from `created` to `finished` without a gap.
    Residency,
    /// Evictions and admissions are as many as the stays say.
    Attempts,
    /// inbox is created -> queued.
    Inbox,
    /// The causes sum to the first stay in the queue.
    QueueWait,
    /// The causes sum to the later stays in the queue before the first token.
    Requeue,
    /// Stays in the batch before the first token that an eviction ended.
    LostPrefill,
    /// compute + stall is the stay that holds the first token, or the end.
    Prefill,
    /// The five engine parts sum to the cut minus `created`.
    EngineSum,
    /// All parts sum to `first_write` (else the cut) minus `received`.
    TotalSum,
    /// compute + stall + requeue + recompute is finished - first_token.
    DecodeSum,
    /// One instant and one step a token, the first at `first_token`.
    Tokens,
}

/// A timeline that breaks a rule: a defect of this engine, counted and exported, never dropped.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("timeline of {id} breaks {rule:?}: {detail}; {stamps}")]
pub struct TimelineBroken {
    /// Whose.
    pub id: RequestId,
    /// Which rule.
    pub rule: TimelineRule,
    /// The two sides that differ, or the edge.
    pub detail: String,
    /// The stamps and stays as they were.
    pub stamps: String,
}

impl RequestTimeline {
    pub(super) fn break_rule(&mut self, rule: TimelineRule, left: Nanos, right: Nanos) {
        self.break_with(rule, format!("{left} against {right}"));
    }

    /// Keeps the first violation: later ones follow from it.
    pub(super) fn break_with(&mut self, rule: TimelineRule, detail: String) {
        if self.broken.is_none() {
            self.broken = Some(self.violation(rule, detail));
        }
    }

    pub(super) fn violation(&self, rule: TimelineRule, detail: String) -> TimelineBroken {
        let stamps = format!("{:?}, residency {:?}", self.stamps, self.residency);
        TimelineBroken { id: self.id, rule, detail, stamps }
    }

    fn equal(&self, rule: TimelineRule, left: Nanos, right: Nanos) -> Result<(), TimelineBroken> {
        if left == right { Ok(()) } else { Err(self.violation(rule, format!("{left} != {right}"))) }
    }

    /// Holds every rule; the first that breaks comes back with the stamps.
    pub fn check(&self) -> Result<(), TimelineBroken> {
        if let Some(broken) = &self.broken {
            return Err(broken.clone());
        }
        let Some(finished) = self.stamps.finished.filter(|_| self.place == Place::Done) else {
            return Err(self.violation(TimelineRule::Ended, format!("it is in {:?}", self.place)));
        };
        self.check_order()?;
        self.check_residency(finished)?;
        self.check_sums(finished)?;
        self.check_tokens()
    }

    pub(super) fn check_order(&self) -> Result<(), TimelineBroken> {
        let s = &self.stamps;
        let engine = s.host.iter().copied().chain([s.queued, s.first_token, s.finished]);
        let transport = [s.first_token, s.first_text, s.first_write, s.last_write];
        for chain in [engine.flatten().collect::<Vec<_>>(), transport.into_iter().flatten().collect()] {
            if let Some(pair) = chain.windows(2).find(|pair| pair[0] > pair[1]) {
                let detail = format!("{} comes before {}", pair[1], pair[0]);
                return Err(self.violation(TimelineRule::Monotonic, detail));
            }
        }
        Ok(())
    }

    fn check_residency(&self, finished: Nanos) -> Result<(), TimelineBroken> {
        let broken = |detail: String| Err(self.violation(TimelineRule::Residency, detail));
        let (Some(created), Some(first), Some(last)) =
            (self.stamps.created(), self.residency.first(), self.residency.last())
        else {
            let none = self.stamps.created().is_none() && self.residency.is_empty();
            return if none {
                Ok(())
            } else {
                broken("stays without created, or created without stays".into())
            };
        };
        if (first.place, first.from, last.to) != (Place::Inbox, created, finished) {
            return broken(format!("{first:?} to {last:?} is not inbox at {created} to {finished}"));
        }
        for pair in self.residency.windows(2) {
            let legal = matches!(
                (pair[0].place, pair[1].place),
                (Place::Inbox, Place::Waiting)
                    | (Place::Waiting, Place::Running)
                    | (Place::Running, Place::Waiting)
            );
            if !legal || pair[0].to != pair[1].from {
                return broken(format!("{:?} then {:?}", pair[0], pair[1]));
            }
        }
        let running = || self.residency.iter().filter(|stay| stay.place == Place::Running);
        let ended_running = u64::from(last.place == Place::Running);
        let admissions = running().count() as u64;
        self.equal(TimelineRule::Attempts, self.attempts.len() as u64, admissions)?;
        self.equal(TimelineRule::Attempts, u64::from(self.preemptions), admissions - ended_running)?;
        for (attempt, stay) in self.attempts.iter().zip(running()) {
            if attempt.open || attempt.from != stay.from || attempt.to > stay.to {
                let detail = format!("{attempt:?} is not within {stay:?}");
                return Err(self.violation(TimelineRule::Attempts, detail));
            }
        }
        Ok(())
    }

    fn check_sums(&self, finished: Nanos) -> Result<(), TimelineBroken> {
        let (Some(parts), Some(cut), Some(received)) =
            (self.parts(), self.stamps.cut(), self.stamps.received())
        else {
            return Err(self.violation(TimelineRule::TotalSum, "no parts".into()));
        };
        if let (Some(engine), Some(created)) = (parts.engine, self.stamps.created()) {
            let stays = self.residency_parts();
            self.equal(TimelineRule::Inbox, engine.inbox.total(), stays.inbox)?;
            self.equal(TimelineRule::QueueWait, engine.queue_wait.total(), stays.queue_wait)?;
            self.equal(TimelineRule::Requeue, engine.requeue.total(), stays.requeue)?;
            self.equal(TimelineRule::LostPrefill, engine.lost_prefill, stays.lost_prefill)?;
            self.equal(TimelineRule::Prefill, engine.prefill.total(), stays.prefill)?;
            self.equal(TimelineRule::EngineSum, engine.total(), cut - created)?;
        }
        let end = self.stamps.first_write.unwrap_or(cut);
        self.equal(TimelineRule::TotalSum, parts.total(), end - received)?;
        let after = self.stamps.first_token.map_or(0, |first_token| finished - first_token);
        self.equal(TimelineRule::DecodeSum, self.decode.total(), after)
    }

    fn check_tokens(&self) -> Result<(), TimelineBroken> {
        let generated = self.token_at.len() as u64;
        self.equal(TimelineRule::Tokens, u64::from(self.tokens.generated), generated)?;
        self.equal(TimelineRule::Tokens, self.token_step.len() as u64, generated)?;
        if self.token_at.first().copied() != self.stamps.first_token {
            return Err(self.violation(TimelineRule::Tokens, format!("tokens at {:?}", self.token_at)));
        }
        let computed: u64 = self.attempts.iter().map(|a| u64::from(a.computed)).sum();
        if computed > self.tokens.computed || !self.token_at.is_sorted() || !self.token_step.is_sorted() {
            let detail = format!("{computed} of {} tokens computed in attempts", self.tokens.computed);
            return Err(self.violation(TimelineRule::Tokens, detail));
        }
        Ok(())
    }
}

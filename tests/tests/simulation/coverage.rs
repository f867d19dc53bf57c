//! Counts what the seeds met.

use std::collections::BTreeMap;

use firstlight_engine::request::FinishReason;
use firstlight_engine::timeline::{Place, RequestTimeline};

/// How often the rare things happened: a simulation that never meets them proves nothing.
#[derive(Debug, Default)]
pub struct Coverage(BTreeMap<String, u64>);

impl Coverage {
    pub fn count(&mut self, what: impl Into<String>, happened: bool) {
        *self.0.entry(what.into()).or_default() += u64::from(happened);
    }

    pub fn add(&mut self, timeline: &RequestTimeline) {
        let last = timeline.residency().last().map(|stay| stay.place);
        self.count(format!("ended {:?} in {last:?}", timeline.finish_reason()), true);
        let Some(parts) = timeline.parts().and_then(|parts| parts.engine) else { return };
        let no_token = timeline.stamps().first_token.is_none();
        let evicted = timeline.preemptions() > 0;
        self.count("model_load", parts.inbox.model_load > 0);
        self.count("inbox", parts.inbox.step > 0);
        self.count("waited for slots", parts.queue_wait.slots > 0);
        self.count("waited for budget", parts.queue_wait.budget > 0);
        self.count("waited for blocks", parts.queue_wait.blocks > 0);
        self.count("waited for order", parts.queue_wait.order > 0);
        self.count("paused", parts.queue_wait.paused > 0);
        let attempts = timeline.attempts();
        let found_again = attempts.iter().skip(1).any(|attempt| attempt.cached > 0);
        self.count("tokens found again after an eviction", found_again);
        self.count("tokens for nobody", timeline.tokens().after_disconnect > 0);
        self.count("requeue", parts.requeue.total() > 0);
        self.count("lost_prefill", parts.lost_prefill > 0);
        self.count("evicted and ended before the first token", no_token && evicted);
        self.count("ended in requeue", no_token && evicted && last == Some(Place::Waiting));
        let Some(decode) = timeline.decode() else { return };
        self.count("decode requeue", decode.requeue > 0);
        self.count("recompute", decode.recompute > 0);
        self.count("evicted twice", timeline.preemptions() > 1);
        self.count("ended in a requeue of decode", last == Some(Place::Waiting));
    }
}

impl Coverage {
    /// Everything that is counted happened, and requests ended in every way and every place.
    pub fn check(&self) {
        for (what, times) in &self.0 {
            assert!(*times > 0, "no seed met: {what}");
        }
        let aborts = [
            FinishReason::Cancelled,
            FinishReason::Disconnected,
            FinishReason::ContentFilter,
            FinishReason::Deadline,
        ];
        let places = [Place::Inbox, Place::Waiting, Place::Running];
        let anywhere = aborts.iter().flat_map(|reason| places.iter().map(move |place| (*reason, *place)));
        let only = [
            (FinishReason::Stop, Place::Running),
            (FinishReason::Length, Place::Running),
            (FinishReason::Failed, Place::Running),
            (FinishReason::Rejected, Place::Inbox),
        ];
        for (reason, place) in anywhere.chain(only) {
            let what = format!("ended {:?} in {:?}", Some(reason), Some(place));
            assert!(self.0.contains_key(&what), "no seed met: {what}");
        }
    }
}

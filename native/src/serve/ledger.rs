//! The book of finished requests: every timeline comes here once, sealed, and is kept while there is room.
//!
//! Invariant: [`Ledger::enter`] is called once for each request that had a timeline; what breaks a rule is counted and told,
//! and enters no report.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::broadcast;

use firstlight_engine::report::ReportWindow;
use firstlight_engine::timeline::RequestTimeline;

use super::metrics::Metrics;
use super::telemetry::{CallFacts, FinishedCall, Telemetry, log_ended};
use crate::terminal::warn;

/// Timelines that a listener to the live stream may lag behind before it misses some.
const LIVE_BACKLOG: usize = 256;

/// The book.
pub struct Ledger {
    window: Mutex<ReportWindow>,
    live: broadcast::Sender<Arc<RequestTimeline>>,
    metrics: Mutex<Metrics>,
    statuses: Mutex<BTreeMap<(String, u16), u64>>,
    telemetry: Arc<Telemetry>,
}

impl Ledger {
    /// A book whose calls are also told to `telemetry`.
    pub fn new(telemetry: Arc<Telemetry>) -> Self {
        Self {
            window: Mutex::default(),
            live: broadcast::Sender::new(LIVE_BACKLOG),
            metrics: Mutex::default(),
            statuses: Mutex::default(),
            telemetry,
        }
    }

    /// Takes the timelines of a call whose choices have ended and whose last byte has gone; seals those that its host has
    /// not. `status` is what went out over HTTP, if anything did. The one place where a finished request is counted.
    ///
    /// Where the relay has gone the choices come one by one: the call counts with the first of them that is sound.
    pub fn enter(&self, facts: &CallFacts, status: Option<u16>, timelines: Vec<Box<RequestTimeline>>) {
        let sound: Vec<_> =
            timelines.into_iter().filter_map(|timeline| self.enter_one(facts, status, timeline)).collect();
        // Of a call whose timelines are all broken nothing is known that could be counted.
        if !sound.is_empty() && facts.mark_counted() {
            self.metrics_mut().observe_call(facts.num_choices);
            self.telemetry.take(&FinishedCall { facts, timelines: &sound, status });
        }
    }

    /// Returns it if it keeps every rule.
    fn enter_one(
        &self,
        facts: &CallFacts,
        status: Option<u16>,
        mut timeline: Box<RequestTimeline>,
    ) -> Option<Arc<RequestTimeline>> {
        if !timeline.is_sealed() {
            // What broke is told below.
            let _ = timeline.seal();
        }
        let timeline: Arc<RequestTimeline> = Arc::from(timeline);
        let entered = self.window_mut().push(Arc::clone(&timeline));
        let max_tokens = facts.max_tokens(timeline.tokens().prompt);
        self.metrics_mut().observe(&timeline, max_tokens, entered.is_err());
        log_ended(facts, &timeline, status);
        // Nobody may be listening.
        let _ = self.live.send(Arc::clone(&timeline));
        match entered {
            Ok(()) => Some(timeline),
            Err(refused) => {
                warn(&format!("a timeline is broken, which is a defect of firstlight: {refused}"));
                None
            }
        }
    }

    /// Counts one answer over HTTP; `route` is the pattern of the path, so that there are only a few.
    pub fn count_status(&self, route: &str, status: u16) {
        tracing::debug!(target: "firstlight::http", route, status, "answered");
        let mut statuses = self.statuses.lock().unwrap_or_else(PoisonError::into_inner);
        *statuses.entry((route.to_owned(), status)).or_default() += 1;
    }

    /// Answers over HTTP so far, by route and status.
    pub fn statuses(&self) -> BTreeMap<(String, u16), u64> {
        self.statuses.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The window as it is now; its timelines are shared, not copied.
    pub fn window(&self) -> ReportWindow {
        self.window_mut().clone()
    }

    /// The last `count` timelines, oldest first.
    pub fn last(&self, count: usize) -> Vec<Arc<RequestTimeline>> {
        let window = self.window_mut();
        window.shared().skip(window.len().saturating_sub(count)).map(Arc::clone).collect()
    }

    /// Those with this id, or with this request id.
    pub fn named(&self, id: &str) -> Vec<Arc<RequestTimeline>> {
        let is_named = |timeline: &&Arc<RequestTimeline>| {
            let labels = timeline.labels();
            labels.id == id || labels.request_id == id
        };
        self.window_mut().shared().filter(is_named).map(Arc::clone).collect()
    }

    /// Every timeline from now on.
    pub fn listen(&self) -> broadcast::Receiver<Arc<RequestTimeline>> {
        self.live.subscribe()
    }

    /// What was counted over all requests that ended.
    pub fn metrics(&self) -> Metrics {
        self.metrics_mut().clone()
    }

    fn metrics_mut(&self) -> MutexGuard<'_, Metrics> {
        // A count that a panic left half done is still the best there is.
        self.metrics.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn window_mut(&self) -> MutexGuard<'_, ReportWindow> {
        // A timeline is pushed whole or not at all.
        self.window.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use firstlight_engine::request::FinishReason;

    use super::*;
    use crate::serve::telemetry::samples::{asked, ended};

    #[test]
    fn a_call_counts_once_and_not_at_all_where_nothing_sound_is_known_of_it() {
        let check = |entries: &[&[Option<FinishReason>]], expected: (u64, usize)| {
            let (ledger, facts) = (Ledger::new(Arc::new(Telemetry::nowhere())), asked(2));
            for timelines in entries {
                let timelines = timelines.iter().map(|end| Box::new(ended(*end, 10)));
                ledger.enter(&facts, None, timelines.collect());
            }
            let got = (ledger.metrics().num_calls(), ledger.window().len());
            assert_eq!(got, expected, "{entries:?}");
        };
        let (sound, broken) = (Some(FinishReason::Cancelled), None);
        check(&[&[sound, sound]], (1, 2));
        check(&[&[sound, broken]], (1, 1));
        check(&[&[broken, broken]], (0, 0));
        // The relay has gone: each choice comes alone.
        check(&[&[sound], &[sound]], (1, 2));
        check(&[&[broken], &[sound]], (1, 1));
    }
}

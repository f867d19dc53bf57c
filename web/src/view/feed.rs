//! What a server tells of itself, made into events: timelines once each and in order, steps without repetition, what lives.
//!
//! It asks nothing and believes little: whatever a server says is checked before the page sees it. Invariant: a timeline
//! is told once, however often the server tells it, and a request that was told to have ended lives no more.

use std::collections::{HashSet, VecDeque};

use firstlight_engine::clock::Nanos;
use firstlight_engine::report::{LatencyReport, ReportContext};
use firstlight_engine::request::RequestId;
use firstlight_engine::timeline::{NANOS_LIMIT, RequestTimeline, StepRecord, TimelineRecord};
use serde::Deserialize;

use super::history::History;
use super::session::TIMELINES_KEPT;
use crate::protocol::{Event, ExportKind, Gauges, Live};

/// Names that are remembered: twice as many as a server's list has, so that its order may differ from its stream's.
const NAMES_KEPT: usize = 2 * TIMELINES_KEPT;

/// The answer of `/v1/timelines`.
#[derive(Clone, Debug, Deserialize)]
pub struct TimelineList {
    /// Oldest first.
    pub timelines: Vec<TimelineRecord>,
}

/// The answer of `/v1/steps`.
#[derive(Clone, Debug, Deserialize)]
pub struct StepList {
    /// Oldest first.
    pub steps: Vec<StepRecord>,
}

/// The answer of `/v1/timelines/running`.
#[derive(Clone, Debug, Deserialize)]
pub struct RunningList {
    /// The engine's clock.
    pub now: Nanos,
    /// At the same instant.
    pub gauges: Gauges,
    /// Of those that have not ended.
    pub timelines: Vec<TimelineRecord>,
}

/// See the module.
#[derive(Clone, Debug)]
pub struct Feed {
    history: History,
    told: HashSet<String>,
    /// The same in the order in which they were told, with the engine's numbers.
    order: VecDeque<(String, RequestId)>,
    ended: HashSet<RequestId>,
    report: Option<LatencyReport>,
    /// Something that is wrong with what lives or with steps was told already; it would be told four times a second.
    has_complained: bool,
}

impl Feed {
    /// Of a server that nothing was heard of yet.
    pub fn new(context: ReportContext) -> Self {
        Self {
            history: History::new(context),
            told: HashSet::new(),
            order: VecDeque::new(),
            ended: HashSet::new(),
            report: None,
            has_complained: false,
        }
    }

    /// A timeline of a request that ended: [`Event::Sealed`], or why it is none; nothing where it was told before.
    pub fn sealed(&mut self, record: TimelineRecord) -> Option<Event> {
        if !self.told.insert(record.id.clone()) {
            return None;
        }
        self.ended.insert(record.engine_id);
        self.order.push_back((record.id.clone(), record.engine_id));
        if let Some((id, engine_id)) = self.order.pop_front_if(|_| self.told.len() > NAMES_KEPT) {
            self.told.remove(&id);
            self.ended.remove(&engine_id);
        }
        let broken = |sentence: String| Some(Event::Notice { sentence });
        let shown: String = record.id.chars().take(80).collect();
        if record.finish_reason.is_none() {
            return broken(format!("The server calls {shown} finished, and its timeline has no end."));
        }
        match RequestTimeline::recall(&record) {
            Ok(timeline) => {
                self.history.push(timeline).or_else(|| Some(Event::Sealed { timeline: Box::new(record) }))
            }
            Err(rule) => {
                broken(format!("The timeline of {shown} is broken, which is the server's defect: {rule}."))
            }
        }
    }

    /// Whether steps between those that are known and `steps` are missing, so that a longer list is to be asked for.
    pub fn misses(&self, steps: &[StepRecord]) -> bool {
        let first = steps.first().map_or(0, |step| step.id);
        self.history.last_step().map_or(first > 0, |last| first > last.saturating_add(1))
    }

    /// Of the server's last steps those that are new, and what is wrong with the others.
    pub fn steps(&mut self, steps: Vec<StepRecord>) -> (Vec<StepRecord>, Option<Event>) {
        let (mut last, mut news, mut wrong) = (self.history.last_step(), Vec::new(), None);
        for step in steps {
            if last.is_some_and(|last| step.id <= last) {
                continue;
            }
            last = Some(step.id);
            let in_order = step.schedule_at <= step.submit_at && step.submit_at <= step.done_at;
            match in_order && step.done_at < NANOS_LIMIT {
                true => news.push(step),
                false => wrong = Some(step.id),
            }
        }
        self.history.steps(news.iter().cloned());
        let complaint = wrong.and_then(|id| {
            self.complain(format!("The server's step {id} has instants that go back; it is left out."))
        });
        (news, complaint)
    }

    /// What goes on: without those that ended in the meantime, and without what no timeline can say.
    pub fn live(&mut self, running: RunningList, steps: Vec<StepRecord>) -> (Event, Option<Event>) {
        let RunningList { now, gauges, timelines } = running;
        let (mut living, mut wrong) = (Vec::new(), None);
        for record in timelines {
            if self.ended.contains(&record.engine_id) {
                continue;
            }
            match RequestTimeline::recall(&record) {
                Ok(_) => living.push(record),
                Err(rule) => wrong = Some(rule),
            }
        }
        let complaint = wrong
            .and_then(|rule| self.complain(format!("The server tells of a request that cannot be: {rule}.")));
        let now = now.min(NANOS_LIMIT - 1);
        (Event::Live(Live { now, gauges, timelines: living, steps }), complaint)
    }

    /// The server's own report: [`Event::Report`], or why it is none.
    pub fn report(&mut self, report: LatencyReport) -> Event {
        if let Err(mismatch) = report.check() {
            return Event::Notice { sentence: format!("The server's report does not add up: {mismatch}.") };
        }
        self.report = Some(report.clone());
        Event::Report { report: Box::new(report) }
    }

    /// As [`History::diagnose`].
    pub fn diagnose(&self, halves: bool, worse_answers: bool) -> Event {
        self.history.diagnose(halves, worse_answers)
    }

    /// As [`History::blame`].
    pub fn blame(&self, id: &str, token_idx: usize) -> Event {
        self.history.blame(id, token_idx)
    }

    /// As [`History::export`], with the server's own report.
    pub fn export(&self, kind: ExportKind) -> Event {
        match &self.report {
            Some(report) => self.history.export(kind, report),
            None => self.history.export(kind, &self.history.report(None)),
        }
    }

    fn complain(&mut self, sentence: String) -> Option<Event> {
        let is_first = !std::mem::replace(&mut self.has_complained, true);
        is_first.then_some(Event::Notice { sentence })
    }
}

#[cfg(test)]
mod tests {
    use super::super::history::tests::{answered, step};
    use super::*;

    fn feed() -> Feed {
        Feed::new(ReportContext::default())
    }

    fn record(id: u64) -> TimelineRecord {
        answered(id, 10, &[(0, 20), (1, 30)]).record()
    }

    fn told(event: Option<Event>) -> Option<String> {
        match event? {
            Event::Sealed { timeline } => Some(timeline.id),
            Event::Notice { sentence } => Some(sentence),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_timeline_is_told_once() {
        let mut feed = feed();
        assert_eq!(told(feed.sealed(record(1))).as_deref(), Some("cmpl-1#0"));
        assert_eq!(told(feed.sealed(record(1))), None);
        assert_eq!(told(feed.sealed(record(2))).as_deref(), Some("cmpl-2#0"));
        for id in 0..5_000 {
            feed.sealed(record(id));
        }
        assert_eq!(
            (feed.told.len(), feed.order.len(), feed.ended.len()),
            (NAMES_KEPT, NAMES_KEPT, NAMES_KEPT)
        );
        assert_eq!(told(feed.sealed(record(4_999))), None);
    }

    #[test]
    fn what_breaks_a_rule_is_told_by_name_and_not_shown() {
        let check = |change: &dyn Fn(&mut TimelineRecord), part: &str| {
            let mut broken = record(1);
            change(&mut broken);
            let sentence = told(feed().sealed(broken)).unwrap();
            assert!(sentence.contains("cmpl-1#0") && sentence.contains(part), "{sentence}");
        };
        check(&|record| record.finish_reason = None, "no end");
        check(&|record| record.stamps.first_token = Some(5), "broken");
        check(&|record| record.stamps.finished = Some(NANOS_LIMIT), "broken");
        check(&|record| record.residency.clear(), "broken");
        check(&|record| record.token_at = vec![30, 20], "broken");
    }

    #[test]
    fn what_a_server_writes_is_read_back() {
        let steps = vec![step(0, 0, 1, &[]), StepRecord { failed: true, ..step(1, 1, 2, &[(7, 16)]) }];
        let text = serde_json::json!({ "steps": steps }).to_string();
        assert_eq!(serde_json::from_str::<StepList>(&text).unwrap().steps, steps);
        let text = serde_json::json!({ "timelines": [record(1)] }).to_string();
        assert_eq!(serde_json::from_str::<TimelineList>(&text).unwrap().timelines, [record(1)]);
        let gauges = Gauges { running: 1, blocks_total: 8, ..Gauges::default() };
        let text = serde_json::json!({ "now": 5, "gauges": gauges, "timelines": [] }).to_string();
        assert_eq!(serde_json::from_str::<RunningList>(&text).unwrap().gauges, gauges);
        // To the last bit: the page's report is the server's, not one that is nearly so.
        for sevenths in 1..1_000 {
            let mean = f64::from(sevenths) * 1e9 / 7.0;
            let text = serde_json::to_string(&mean).unwrap();
            assert_eq!(serde_json::from_str::<f64>(&text).unwrap(), mean, "{text}");
        }
    }

    #[test]
    fn steps_are_told_once_and_gaps_are_noticed() {
        let mut feed = feed();
        let list = |ids: std::ops::Range<u64>| ids.map(|id| step(id, id, id + 1, &[])).collect::<Vec<_>>();
        assert!(!feed.misses(&[]) && !feed.misses(&list(0..3)) && feed.misses(&list(2..3)));
        let ids = |(news, _): (Vec<StepRecord>, Option<Event>)| news.iter().map(|s| s.id).collect::<Vec<_>>();
        assert_eq!(ids(feed.steps(list(0..3))), [0, 1, 2]);
        assert_eq!(ids(feed.steps(list(1..5))), [3, 4]);
        assert_eq!(ids(feed.steps(list(0..5))), [0_u64; 0]);
        assert!(!feed.misses(&list(5..6)) && !feed.misses(&list(3..6)) && feed.misses(&list(6..7)));
        let (news, complaint) = feed.steps(vec![step(5, 9, 8, &[]), step(6, 9, 10, &[])]);
        assert_eq!((news.len(), news[0].id), (1, 6));
        assert!(told(complaint).unwrap().contains("step 5"));
        assert_eq!(feed.steps(vec![step(7, 9, NANOS_LIMIT, &[])]), (Vec::new(), None), "complained once");
    }

    #[test]
    fn whoever_ended_lives_no_more() {
        let mut feed = feed();
        let living = |id: u64| {
            let mut record = record(id);
            record.finish_reason = None;
            record
        };
        let mut wrong = living(3);
        wrong.stamps.created = Some(25);
        feed.sealed(record(1));
        let timelines = vec![living(1), living(2), wrong.clone()];
        let gauges = Gauges { running: 2, ..Gauges::default() };
        let (event, complaint) = feed.live(RunningList { now: u64::MAX, gauges, timelines }, Vec::new());
        let Event::Live(live) = event else { panic!("{event:?}") };
        let ids: Vec<_> = live.timelines.iter().map(|timeline| timeline.id.as_str()).collect();
        assert_eq!((ids, live.gauges, live.now), (vec!["cmpl-2#0"], gauges, NANOS_LIMIT - 1));
        assert!(told(complaint).unwrap().contains("cannot be"));
    }

    #[test]
    fn a_report_that_does_not_add_up_is_not_shown() {
        let mut feed = feed();
        feed.sealed(record(1));
        let mut report = feed.history.report(None);
        assert_eq!(feed.report(report.clone()), Event::Report { report: Box::new(report.clone()) });
        report.engine_ttft_parts.engine_ttft += 1;
        let Event::Notice { sentence } = feed.report(report) else { panic!("it was taken") };
        assert!(sentence.contains("does not add up"), "{sentence}");
    }
}

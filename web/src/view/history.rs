//! What a backend keeps so that the page's questions can be answered: the last sealed timelines and the last steps.
//!
//! It asks no engine and no server. Invariant: bounded, and every timeline in it passes its check; one that does not is
//! told, never dropped silently.

use std::fmt;

use firstlight_engine::clock::Nanos;
use firstlight_engine::costs::StepCosts;
use firstlight_engine::replay::{LinearCosts, observed_steps};
use firstlight_engine::report::diagnose::{Asked, Conditions, Diagnosis, Observed};
use firstlight_engine::report::{
    GaugeReadings, LatencyReport, ReportContext, ReportWindow, blame, chrome_trace,
};
use firstlight_engine::timeline::{RequestTimeline, StepRecord, StepRing};
use serde::Serialize;

use super::diagnosis;
use super::session::{STEPS_KEPT, TIMELINES_KEPT};
use crate::protocol::{Event, ExportKind};

/// Steps below which nothing is said of what steps cost.
const FEWEST_STEPS: usize = 16;

/// See the module.
#[derive(Clone, Debug)]
pub struct History {
    context: ReportContext,
    window: ReportWindow,
    steps: StepRing,
}

/// A duration for a sentence, in milliseconds with one decimal.
struct Millis(Nanos);

impl fmt::Display for Millis {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let tenths = self.0.saturating_add(50_000) / 100_000;
        write!(f, "{}.{} ms", tenths / 10, tenths % 10)
    }
}

#[derive(Serialize)]
struct Export<'h> {
    timelines: Vec<&'h RequestTimeline>,
    steps: Vec<&'h StepRecord>,
    report: &'h LatencyReport,
}

impl History {
    /// An empty one; `context` is what its reports say of model and adapter.
    pub fn new(context: ReportContext) -> Self {
        Self { context, window: ReportWindow::new(TIMELINES_KEPT), steps: StepRing::new(STEPS_KEPT) }
    }

    /// Takes a sealed timeline. What comes back is to be told: it breaks a rule and is not kept.
    pub fn push(&mut self, timeline: RequestTimeline) -> Option<Event> {
        let id = timeline.labels().id.clone();
        let refused = self.window.push(timeline).err()?;
        Some(Event::Notice {
            sentence: format!(
                "The timeline of {id} is broken, which is a defect of whoever wrote it; it enters no report: {refused}."
            ),
        })
    }

    /// Takes the next steps; those that it has already are passed over.
    pub fn steps(&mut self, steps: impl IntoIterator<Item = StepRecord>) {
        for step in steps {
            if self.last_step().is_none_or(|last| step.id > last) {
                self.steps.push(step);
            }
        }
    }

    /// The youngest step's number.
    pub fn last_step(&self) -> Option<u64> {
        self.steps.iter().next_back().map(|step| step.id)
    }

    /// What steps cost, by those that are here and whose requests are: `None` where they are too few.
    pub fn costs(&self) -> Option<StepCosts> {
        let steps: Vec<StepRecord> = self.steps.iter().cloned().collect();
        let observed = observed_steps(self.window.iter(), &steps);
        let costs = LinearCosts::fit(&observed).filter(|_| observed.len() >= FEWEST_STEPS)?;
        Some(StepCosts {
            model: self.context.model.name.clone(),
            adapter: self.context.adapter.clone(),
            ..costs.by_class(observed.len() as u32)
        })
    }

    /// The last sealed timelines, oldest first.
    pub fn timelines(&self) -> impl DoubleEndedIterator<Item = &RequestTimeline> {
        self.window.iter()
    }

    /// The report over what is here, with the gauges of this instant.
    pub fn report(&self, readings: Option<GaugeReadings>) -> LatencyReport {
        let context = ReportContext {
            request_rate: self.window.request_rate(),
            concurrency: self.window.mean_concurrency(),
            ..self.context.clone()
        };
        LatencyReport::fold(&self.window, &self.steps, readings, context)
    }

    /// Why token `token_idx` (from 1) of a request was late, as [`Event::Blame`].
    pub fn blame(&self, id: &str, token_idx: usize) -> Event {
        let found = self.window.iter().rev().find(|timeline| timeline.labels().id == id);
        let sentence = match found {
            Some(timeline) => self.blame_sentence(timeline, token_idx),
            None => format!(
                "No request called {id:?} is among the last {TIMELINES_KEPT} that ended; one that still runs can be asked about when it has ended."
            ),
        };
        Event::Blame { id: id.to_owned(), token_idx, sentence }
    }

    fn blame_sentence(&self, timeline: &RequestTimeline, token_idx: usize) -> String {
        if let Some(blame) = blame(timeline, token_idx, &self.steps) {
            return format!("{blame}.");
        }
        let at = timeline.token_at();
        let before = token_idx.checked_sub(1).and_then(|idx| at.get(idx));
        let Some((from, to)) = before.zip(at.get(token_idx)) else {
            let tokens = at.len();
            return format!(
                "There is no gap before token {token_idx}: the answer has {tokens} tokens, counted from 0."
            );
        };
        let mut gaps: Vec<Nanos> = at.windows(2).map(|pair| pair[1].saturating_sub(pair[0])).collect();
        gaps.sort_unstable();
        let median = gaps.get(gaps.len().saturating_sub(1) / 2).copied().unwrap_or(0);
        let (gap, median) = (Millis(to.saturating_sub(*from)), Millis(median));
        format!(
            "{gap}: no more than twice the median of this request's gaps, which is {median}. Nothing is to blame."
        )
    }

    /// Which stage to look at, as [`Event::Diagnosis`]: over all that is here, or over its later half beside the earlier one.
    pub fn diagnose(&self, halves: bool, worse_answers: bool) -> Event {
        let conditions = Conditions::from(&self.context);
        let half = self.window.len() / 2;
        let (later, earlier) = (self.window.before_last(0, half), self.window.before_last(half, half));
        let over = |window| Observed { window, steps: &self.steps, conditions: &conditions };
        let asked = Asked { worse_answers, client: None };
        Event::Diagnosis(match halves {
            true => diagnosis::told(&Diagnosis::of(over(&later), Some(over(&earlier)), asked)),
            false => diagnosis::told(&Diagnosis::of(over(&self.window), None, asked)),
        })
    }

    /// A file that a person can keep, or the figures for one, as [`Event::Exported`]; `report` goes into the JSON.
    pub fn export(&self, kind: ExportKind, report: &LatencyReport) -> Event {
        let (file, json) = match kind {
            ExportKind::Json | ExportKind::Html => {
                let (timelines, steps) = (self.window.iter().collect(), self.steps.iter().collect());
                let export = Export { timelines, steps, report };
                let file = match kind {
                    ExportKind::Html => "firstlight-report.html",
                    _ => "firstlight-timelines.json",
                };
                (file, serde_json::to_string(&export))
            }
            ExportKind::ChromeTrace => {
                let trace = chrome_trace(self.window.iter(), &self.steps);
                ("firstlight-trace.json", serde_json::to_string(&trace))
            }
        };
        match json {
            Ok(json) => Event::Exported { kind, file: file.to_owned(), json },
            Err(error) => Event::Notice { sentence: format!("The file could not be written: {error}.") },
        }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use std::sync::Arc;

    use firstlight_engine::costs::StepLoad;
    use firstlight_engine::request::{FinishReason, HostStamps, RequestId};
    use firstlight_engine::timeline::{Edge, EngineLabels, PassTimes, RequestLabels};
    use serde_json::Value;

    use super::*;

    /// Created at `at`, a token from each of `steps`, and ended with the last; sealed.
    pub fn answered(id: u64, at: Nanos, steps: &[(u64, Nanos)]) -> RequestTimeline {
        let labels = RequestLabels { id: format!("cmpl-{id}#0"), ..RequestLabels::default() };
        let engine = Arc::new(EngineLabels { ready_at: Some(0), ..EngineLabels::default() });
        let mut timeline = RequestTimeline::created(RequestId(id), labels, engine, &HostStamps::at(at), 3);
        timeline.advance(Edge::Queued, at);
        timeline.advance(Edge::Admitted { cached: 0 }, at);
        timeline.advance(Edge::Chunk { tokens: 3 }, at);
        let mut ended = at;
        for (idx, (step, at)) in steps.iter().enumerate() {
            let tokens = if idx == 0 { 3 } else { 1 };
            timeline.advance(Edge::Computed { tokens, gpu: PassTimes::default() }, *at);
            timeline.advance(Edge::Token { step: *step }, *at);
            ended = *at;
        }
        timeline.advance(Edge::Finished { reason: FinishReason::Length, detail: None }, ended);
        timeline.seal().unwrap();
        timeline
    }

    pub fn step(id: u64, from: Nanos, to: Nanos, prefill: &[(u64, u32)]) -> StepRecord {
        StepRecord {
            id,
            schedule_at: from,
            submit_at: from,
            done_at: to,
            ahead_ns: None,
            gpu_ns: None,
            stages: None,
            decode_rows: 1,
            prefill: prefill.iter().map(|(id, tokens)| (RequestId(*id), *tokens)).collect(),
            running: 1,
            waiting: 0,
            failed: false,
            obstacle: None,
            blocks_used: 1,
            blocks_total: 8,
            preempted: Vec::new(),
        }
    }

    const MS: Nanos = 1_000_000;

    /// Five tokens, the fourth of them late because of another's chunk.
    fn history() -> History {
        let mut history = History::new(ReportContext { slots: 2, ..ReportContext::default() });
        let ends = [10, 20, 30, 90, 100];
        let tokens: Vec<_> = (0..).zip(ends).map(|(id, at)| (id, at * MS)).collect();
        assert_eq!(history.push(answered(7, 0, &tokens)), None);
        let steps = ends.iter().enumerate().map(|(idx, at)| {
            let from = if idx == 0 { 0 } else { ends[idx - 1] };
            step(idx as u64, from * MS, at * MS, if *at == 90 { &[(9, 512)] } else { &[] })
        });
        history.steps(steps);
        history
    }

    #[test]
    fn a_gap_is_blamed_or_it_is_said_why_not() {
        let history = history();
        let check = |id: &str, token_idx: usize, part: &str| {
            let Event::Blame { id: asked, token_idx: idx, sentence } = history.blame(id, token_idx) else {
                panic!("no blame")
            };
            assert_eq!((asked.as_str(), idx), (id, token_idx));
            assert!(sentence.contains(part) && sentence.ends_with('.'), "{id} {token_idx}: {sentence}");
        };
        check("cmpl-7#0", 3, "60.0 ms, because r9's 512-token chunk shared the step");
        check(
            "cmpl-7#0",
            2,
            "10.0 ms: no more than twice the median of this request's gaps, which is 10.0 ms",
        );
        check("cmpl-7#0", 0, "There is no gap before token 0");
        check("cmpl-7#0", 5, "the answer has 5 tokens");
        check("cmpl-8#0", 1, "No request called \"cmpl-8#0\"");
    }

    #[test]
    fn a_report_is_the_engines_own_fold_and_an_export_is_read_back() {
        let mut history = history();
        history.push(answered(8, 50 * MS, &[(4, 100 * MS)]));
        let report = history.report(None);
        report.check().unwrap();
        assert_eq!((report.n, report.context.slots), (2, 2));
        assert!(report.context.request_rate.is_some() && report.context.concurrency.is_some());
        let exported = |kind: ExportKind, expected: &str| match history.export(kind, &report) {
            Event::Exported { kind: of, file, json } => {
                assert_eq!((of, file.as_str()), (kind, expected));
                serde_json::from_str::<Value>(&json).unwrap()
            }
            other => panic!("{other:?}"),
        };
        let json = exported(ExportKind::Json, "firstlight-timelines.json");
        let ids: Vec<_> = json["timelines"].as_array().unwrap().iter().map(|t| t["id"].clone()).collect();
        assert_eq!(ids, ["cmpl-7#0", "cmpl-8#0"]);
        assert_eq!(json["steps"].as_array().unwrap().len(), 5);
        assert_eq!(serde_json::from_value::<LatencyReport>(json["report"].clone()).unwrap(), report);
        let trace = exported(ExportKind::ChromeTrace, "firstlight-trace.json");
        assert!(trace["traceEvents"].as_array().unwrap().len() > 10);
    }

    #[test]
    fn steps_tell_what_steps_cost_once_they_are_enough() {
        let answer = |steps: u64| {
            let mut history = History::new(ReportContext::default());
            // A prompt of three tokens takes 9 ms, each further token 5 ms.
            let ends: Vec<(u64, Nanos)> = (0..steps).map(|id| (id, (9 + 5 * id) * MS)).collect();
            history.push(answered(7, 0, &ends));
            history.steps(ends.iter().map(|&(id, at)| match id {
                0 => StepRecord { decode_rows: 0, ..step(0, 0, at, &[(7, 3)]) },
                _ => step(id, at - 5 * MS, at, &[]),
            }));
            history.costs()
        };
        assert_eq!(answer(FEWEST_STEPS as u64 - 1), None);
        let costs = answer(FEWEST_STEPS as u64).unwrap();
        assert_eq!((costs.check(), costs.fitted_to), (None, FEWEST_STEPS as u32));
        let took = costs.step_ns(&StepLoad::decode(1, 8)) as f64 / (5 * MS) as f64;
        assert!((took - 1.0).abs() < 0.05, "{took}");
    }

    #[test]
    fn what_is_broken_is_told_what_is_known_is_passed_over_and_all_is_bounded() {
        let mut history = history();
        let mut broken = answered(9, 0, &[(0, 10)]);
        broken.advance(Edge::Queued, 5);
        let Some(Event::Notice { sentence }) = history.push(broken) else { panic!("nothing was told") };
        assert!(sentence.contains("cmpl-9#0 is broken") && sentence.contains("Queued"), "{sentence}");
        history.steps([step(3, 0, 1, &[]), step(5, 100 * MS, 101 * MS, &[])]);
        assert_eq!((history.last_step(), history.steps.iter().len()), (Some(5), 6));
        for id in 0..3000 {
            history.push(answered(100 + id, id, &[(0, id + 1)]));
            history.steps([step(10 + 2 * id, id, id + 1, &[]), step(11 + 2 * id, id, id + 1, &[])]);
        }
        assert_eq!((history.window.len(), history.steps.iter().len()), (TIMELINES_KEPT, STEPS_KEPT));
    }
}

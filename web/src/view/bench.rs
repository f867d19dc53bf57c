//! What `firstlight bench --json` wrote, schema `firstlight.bench/1`, as events of a recording: one run at a time.
//!
//! The page's own file of timelines, steps and report is one run without a name. It folds nothing: reports are shown as they
//! were written. Invariant: a run is told whole, beginning with its backend and ending with its report.

use firstlight_engine::report::LatencyReport;
use firstlight_engine::timeline::{StepRecord, TimelineRecord};
use serde::Deserialize;
use serde_json::{Map, Value};

use crate::protocol::{Backend, BackendKind, BenchFacts, Event, Gauges, Live};

/// Steps of one event: a page reads it between two frames.
const STEPS_AT_ONCE: usize = 256;

/// A result.
#[derive(Clone, Debug)]
pub struct BenchResult {
    url: String,
    command: Vec<String>,
    version: String,
    load: Map<String, Value>,
    settings: Map<String, Value>,
    /// At least one.
    runs: Vec<Run>,
}

/// As far as it is read.
#[derive(Deserialize)]
struct Document {
    #[serde(default)]
    command: Vec<String>,
    #[serde(default)]
    version: String,
    #[serde(default)]
    load: Map<String, Value>,
    #[serde(default)]
    settings: Map<String, Value>,
    #[serde(default)]
    repeats: Vec<Run>,
}

#[derive(Clone, Debug, Deserialize)]
struct Run {
    #[serde(default)]
    case: String,
    #[serde(default)]
    repeat: usize,
    #[serde(default)]
    median: bool,
    report: LatencyReport,
    timelines: Vec<TimelineRecord>,
    /// Of requests that were there to be a load.
    #[serde(default)]
    background_timelines: Vec<TimelineRecord>,
    steps: Vec<StepRecord>,
}

impl BenchResult {
    /// Reads what lies at `url`.
    ///
    /// # Errors
    /// A sentence: it is no such result.
    pub fn read(url: &str, bytes: &[u8]) -> Result<Self, String> {
        let wrong = |error: serde_json::Error| {
            format!(
                "{url} is no result of a bench: {error}. It must be what firstlight bench --json writes, or the page's own JSON."
            )
        };
        let document: Document = serde_json::from_slice(bytes).map_err(wrong)?;
        let Document { command, version, load, settings, repeats: mut runs } = document;
        if runs.is_empty() {
            runs.push(serde_json::from_slice(bytes).map_err(wrong)?);
        }
        Ok(Self { url: url.to_owned(), command, version, load, settings, runs })
    }

    /// The run that is shown first: the one that the terminal shows.
    pub fn first(&self) -> usize {
        self.runs.iter().position(|run| run.median).unwrap_or(0)
    }

    /// All that is in a run, for a page that has heard nothing of it; nothing where there is no such run.
    pub fn events(&self, run: usize) -> Vec<Event> {
        let Some(found) = self.runs.get(run) else { return Vec::new() };
        let last = found.steps.last();
        let gauges = last.map_or_else(Gauges::default, |step| Gauges {
            running: step.running,
            waiting: step.waiting,
            blocks_used: step.blocks_used,
            blocks_total: step.blocks_total,
            preemptions_total: found.report.n_preempted as u64,
        });
        let now = last.map_or(0, |step| step.done_at);
        let live = |steps: &[StepRecord]| {
            Event::Live(Live { now, gauges, timelines: Vec::new(), steps: steps.to_vec() })
        };
        let ended = found.background_timelines.iter().chain(&found.timelines);
        let sealed = ended.map(|timeline| Event::Sealed { timeline: Box::new(timeline.clone()) });
        let mut events = vec![Event::Ready(self.backend(run, &found.report))];
        events.extend(found.steps.chunks(STEPS_AT_ONCE).map(live));
        events.extend(sealed);
        events.push(Event::Report { report: Box::new(found.report.clone()) });
        events
    }

    fn backend(&self, shown: usize, report: &LatencyReport) -> Backend {
        let context = &report.context;
        Backend {
            kind: BackendKind::Replay,
            url: Some(self.url.clone()),
            model: context.model.clone(),
            adapter: context.adapter.clone(),
            slots: Some(context.slots),
            max_model_len: None,
            chat: false,
            kept: false,
            bench: Some(BenchFacts {
                conditions: self.conditions(report),
                runs: self.runs.iter().map(|run| self.name(run)).collect(),
                shown,
            }),
        }
    }

    fn name(&self, run: &Run) -> String {
        if run.case.is_empty() {
            return "all of it".to_owned();
        }
        let of_case = self.runs.iter().filter(|other| other.case == run.case).count();
        let median = if run.median && of_case > 1 { ", the median" } else { "" };
        format!("{}, run {} of {of_case}{median}", run.case, run.repeat + 1)
    }

    fn conditions(&self, report: &LatencyReport) -> Vec<(String, String)> {
        let context = &report.context;
        let command: Vec<String> = self.command.iter().map(|word| quoted(word)).collect();
        let program =
            if self.version.is_empty() { String::new() } else { format!("firstlight {}", self.version) };
        let model = format!("{} {}", context.model.name, context.model.quantisation);
        let sha256 = context.model.sha256.clone().unwrap_or_default();
        let mut all = vec![
            ("command".to_owned(), command.join(" ")),
            ("program".to_owned(), program),
            ("model".to_owned(), model),
            ("model's SHA-256".to_owned(), sha256),
            ("adapter".to_owned(), context.adapter.clone()),
        ];
        let called = |name: &str| match name {
            "name" => "scenario".to_owned(),
            "words" => "load".to_owned(),
            other => other.replace('_', " "),
        };
        let written = self.load.iter().chain(&self.settings);
        all.extend(written.map(|(name, value)| (called(name), words(value))));
        if self.settings.is_empty() {
            all.push(("slots".to_owned(), context.slots.to_string()));
            all.push(("prefix cache".to_owned(), words(&Value::Bool(context.prefix_cache))));
        }
        all.retain(|(_, value)| !value.trim().is_empty());
        all
    }
}

/// As a shell takes it.
fn quoted(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_./:=,@%+".contains(c);
    match !word.is_empty() && word.chars().all(plain) {
        true => word.to_owned(),
        false => format!("'{}'", word.replace('\'', r"'\''")),
    }
}

/// A value in a word; empty where it takes more.
fn words(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Number(number) => number.to_string(),
        Value::Bool(true) => "on".to_owned(),
        Value::Bool(false) => "off".to_owned(),
        Value::Null | Value::Array(_) | Value::Object(_) => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use firstlight_engine::report::ReportContext;
    use serde_json::json;

    use super::super::history::History;
    use super::super::history::tests::{answered, step};
    use super::super::session::Session;
    use super::*;
    use crate::protocol::ExportKind;

    fn run(case: &str, repeat: usize, median: bool, requests: u64) -> Value {
        let context = ReportContext { slots: 2, adapter: "an adapter".into(), ..ReportContext::default() };
        let mut history = History::new(context);
        let timelines: Vec<_> = (0..requests).map(|id| answered(id, id * 10, &[(id, id * 10 + 5)])).collect();
        timelines.iter().for_each(|timeline| assert_eq!(history.push(timeline.clone()), None));
        let steps: Vec<_> = (0..600).map(|id| step(id, id * 10, id * 10 + 5, &[])).collect();
        json!({
            "case": case,
            "repeat": repeat,
            "median": median,
            "report": history.report(None),
            "timelines": timelines,
            "background_timelines": [answered(100, 0, &[(0, 5)])],
            "steps": steps,
        })
    }

    fn result() -> BenchResult {
        let written = json!({
            "schema": "firstlight.bench/1",
            "command": ["firstlight", "bench", "--model", "it's mine.gguf"],
            "version": "0.1.0",
            "load": {"name": "a", "words": "many", "rate": 1.5, "cases": [1]},
            "settings": {"slots": 2, "prefix_cache": false},
            "repeats": [run("a", 0, false, 1), run("a", 1, true, 3), run("b", 0, true, 2)],
        });
        BenchResult::read("b.json", written.to_string().as_bytes()).unwrap()
    }

    #[test]
    fn a_run_is_told_whole_as_it_was_written() {
        let result = result();
        assert_eq!(result.first(), 1);
        let mut session = Session::default();
        result.events(0).iter().for_each(|event| session.apply(event));
        result.events(1).iter().for_each(|event| session.apply(event));
        assert_eq!((session.sealed.len(), session.steps.len()), (3 + 1, 600), "and nothing of the other one");
        assert_eq!(session.report.as_ref().map(|report| report.n), Some(3));
        assert_eq!((session.gauges.blocks_total, session.now), (8, 5995));
        assert!(result.events(3).is_empty());
    }

    #[test]
    fn the_conditions_are_named_and_the_command_can_be_typed_again() {
        let result = result();
        let Some(Event::Ready(backend)) = result.events(2).into_iter().next() else { panic!() };
        let facts = backend.bench.unwrap();
        assert_eq!(facts.runs, ["a, run 1 of 2", "a, run 2 of 2, the median", "b, run 1 of 1"]);
        assert_eq!(facts.shown, 2);
        let check = |name: &str, expected: Option<&str>| {
            let found = facts.conditions.iter().find(|(known, _)| known == name);
            assert_eq!(found.map(|(_, value)| value.as_str()), expected, "{name}");
        };
        check("command", Some(r"firstlight bench --model 'it'\''s mine.gguf'"));
        check("program", Some("firstlight 0.1.0"));
        check("adapter", Some("an adapter"));
        check("prefix cache", Some("off"));
        check("rate", Some("1.5"));
        check("load", Some("many"));
        check("cases", None);
    }

    #[test]
    fn the_pages_own_file_is_one_run() {
        let mut history = History::new(ReportContext { slots: 3, ..ReportContext::default() });
        history.push(answered(1, 0, &[(0, 5)]));
        history.steps([step(0, 0, 5, &[])]);
        let Event::Exported { json, .. } = history.export(ExportKind::Html, &history.report(None)) else {
            panic!()
        };
        let events = BenchResult::read("x", json.as_bytes()).unwrap().events(0);
        assert_eq!(events.len(), 4);
        let Event::Ready(backend) = &events[0] else { panic!() };
        let facts = backend.bench.clone().unwrap();
        assert_eq!(facts.runs, ["all of it"]);
        assert!(facts.conditions.contains(&("slots".to_owned(), "3".to_owned())), "{facts:?}");
        let sentence = BenchResult::read("x.json", b"{}").unwrap_err();
        assert!(sentence.starts_with("x.json is no result of a bench: "), "{sentence}");
    }
}

//! Where a window comes from: a file of `bench --json` or of `/v1/timelines`, standard input, or a running server.
//!
//! It trusts none of them: what is no timeline, breaks a rule or is beyond all measure is left out and counted. Invariant:
//! sums over what is let in stay in 64 bits.

use std::io::Read;
use std::path::Path;
use std::time::Duration;

use serde::Deserialize;
use serde::de::DeserializeOwned;
use ureq::Agent;

use firstlight_engine::clock::Nanos;
use firstlight_engine::engine::STEPS_KEPT;
use firstlight_engine::report::diagnose::{Conditions, Observed};
use firstlight_engine::report::{DEFAULT_WINDOW, MAX_WINDOW, ReportContext, ReportWindow};
use firstlight_engine::timeline::{RequestTimeline, StepRecord, StepRing, TimelineRecord};

use crate::cli::without_password;
use crate::failure::Failure;
use crate::probe::target::Target;
use crate::terminal::note;

/// The most bytes of a file or an answer.
const MAX_BYTES: u64 = 1 << 30;
/// The longest request and step that are believed: nine hours.
const LONGEST: Nanos = 1 << 45;
/// How long a server may take to answer.
const PATIENCE: Duration = Duration::from_secs(60);

/// A window, its steps and its conditions.
pub struct Source {
    /// The requests.
    pub window: ReportWindow,
    /// The steps.
    pub steps: StepRing,
    /// As far as they are told.
    pub conditions: Conditions,
    /// Of a server.
    pub url: Option<String>,
}

/// What a file may hold: lists as the server has them, or the runs of a bench.
#[derive(Default, Deserialize)]
#[serde(default)]
struct FileJson {
    schema: Option<String>,
    timelines: Option<Vec<TimelineRecord>>,
    steps: Option<Vec<StepRecord>>,
    repeats: Option<Vec<RunJson>>,
    /// A report of the same server beside its timelines.
    report: Option<ReportJson>,
}

#[derive(Deserialize)]
struct RunJson {
    case: String,
    report: ReportJson,
    timelines: Vec<TimelineRecord>,
    steps: Vec<StepRecord>,
}

#[derive(Deserialize)]
struct ReportJson {
    context: ReportContext,
}

#[derive(Deserialize)]
struct TimelinesJson {
    timelines: Vec<TimelineRecord>,
}

#[derive(Deserialize)]
struct StepsJson {
    steps: Vec<StepRecord>,
}

impl Source {
    /// Reads what `text` names; `case` is one of a bench's.
    ///
    /// # Errors
    /// It names nothing, it cannot be read, or there is no request in it.
    pub fn read(text: &str, case: Option<&str>, api_key: Option<&str>) -> Result<Self, Failure> {
        let is_file = text == "-" || Path::new(text).exists();
        let is_url = text.contains("://") || (text.contains(':') && !is_file);
        let source = match (is_url, is_file) {
            (true, _) => Self::of_server(text, api_key)?,
            (_, true) => Self::of_file(text, case)?,
            _ => {
                return Err(Failure::usage(format!(
                    "there is no file {text:?}, and it is no URL; give what `firstlight bench --json FILE` wrote, or a server such as http://127.0.0.1:8080"
                )));
            }
        };
        match source.window.is_empty() {
            true => Err(Failure::failed(format!(
                "{} has no finished request to look at; ask it something first",
                without_password(text)
            ))),
            false => Ok(source),
        }
    }

    /// To be diagnosed.
    pub fn observed(&self) -> Observed<'_> {
        Observed { window: &self.window, steps: &self.steps, conditions: &self.conditions }
    }

    fn new(
        name: &str,
        records: &[TimelineRecord],
        steps: Vec<StepRecord>,
        context: Option<&ReportContext>,
    ) -> Self {
        let (mut window, mut left_out) = (ReportWindow::new(MAX_WINDOW), Vec::new());
        for record in records {
            let entered = RequestTimeline::recall(record).map_err(|broken| broken.to_string());
            let entered =
                entered.and_then(|timeline| match timeline.e2e().is_some_and(|e2e| e2e > LONGEST) {
                    true => Err("it lasted longer than nine hours".to_owned()),
                    false => window.push(timeline).map_err(|refused| refused.to_string()),
                });
            left_out.extend(entered.err());
        }
        if let Some(first) = left_out.first() {
            note(&format!("{} timelines of {name} are left out, the first because: {first}", left_out.len()));
        }
        let conditions = context.map(Conditions::from).unwrap_or_default();
        Self { window, steps: ring(steps), conditions, url: None }
    }

    fn of_file(name: &str, case: Option<&str>) -> Result<Self, Failure> {
        let text = text_of(name)?;
        let file: FileJson = parse(name, &text)?;
        let mut runs = file.repeats.unwrap_or_default();
        if let Some(first) = runs.first() {
            let mut names: Vec<&str> = runs.iter().map(|run| run.case.as_str()).collect();
            names.sort_unstable();
            names.dedup();
            let wanted = match case {
                None if names.len() > 1 => {
                    return Err(Failure::usage(format!(
                        "{name} has several cases; name one of {names:?} with --case"
                    )));
                }
                Some(case) if !names.contains(&case) => {
                    return Err(Failure::usage(format!(
                        "{name} has no case {case:?}; it has {names:?}, name one of them with --case"
                    )));
                }
                Some(case) => case.to_owned(),
                None => first.case.clone(),
            };
            runs.retain(|run| run.case == wanted);
            let context = runs.first().map(|run| run.report.context.clone());
            let (mut records, mut steps) = (Vec::new(), Vec::new());
            for run in runs {
                records.extend(run.timelines);
                steps.extend(run.steps);
            }
            return Ok(Self::new(name, &records, steps, context.as_ref()));
        }
        let Some(records) = file.timelines else {
            let schema = file.schema.map(|schema| format!(" (its schema is {schema:?})")).unwrap_or_default();
            return Err(Failure::failed(format!(
                "{name} has no timelines{schema}; give what `firstlight bench --json FILE` wrote, or what /v1/timelines answers"
            )));
        };
        let context = file.report.map(|report| report.context);
        Ok(Self::new(name, &records, file.steps.unwrap_or_default(), context.as_ref()))
    }

    fn of_server(url: &str, api_key: Option<&str>) -> Result<Self, Failure> {
        let api = Target::parse(url)?.api;
        let server = Server { api: &api, api_key };
        let report: ReportJson = server.get("report")?;
        let listed: TimelinesJson = server.get(&format!("timelines?last={DEFAULT_WINDOW}"))?;
        let steps: StepsJson = server.get(&format!("steps?last={STEPS_KEPT}"))?;
        let source = Self::new(&api, &listed.timelines, steps.steps, Some(&report.context));
        Ok(Self { url: Some(url.to_owned()), ..source })
    }
}

/// In their order, each once, without those that cannot be.
fn ring(mut steps: Vec<StepRecord>) -> StepRing {
    let can_be = |step: &StepRecord| {
        let in_order = step.schedule_at <= step.submit_at && step.submit_at <= step.done_at;
        in_order && step.done_at - step.schedule_at <= LONGEST && step.gpu_ns.is_none_or(|ns| ns <= LONGEST)
    };
    steps.retain(can_be);
    steps.sort_by_key(|step| step.id);
    steps.dedup_by_key(|step| step.id);
    steps.into_iter().collect()
}

fn text_of(name: &str) -> Result<String, Failure> {
    let mut text = String::new();
    let mut limit = |read: &mut dyn Read| read.take(MAX_BYTES).read_to_string(&mut text);
    let read = match name {
        "-" => limit(&mut std::io::stdin().lock()),
        path => std::fs::File::open(path).and_then(|mut file| limit(&mut file)),
    };
    match read {
        Ok(_) => Ok(text),
        Err(error) => Err(Failure::failed(format!("{name} cannot be read: {error}; name a file of JSON"))),
    }
}

fn parse<T: DeserializeOwned>(name: &str, text: &str) -> Result<T, Failure> {
    serde_json::from_str(text).map_err(|error| {
        Failure::failed(format!(
            "{name} is not what it should be: {error}; give what `firstlight bench --json FILE` wrote, or what /v1/timelines answers"
        ))
    })
}

struct Server<'a> {
    api: &'a str,
    api_key: Option<&'a str>,
}

impl Server<'_> {
    fn get<T: DeserializeOwned>(&self, path: &str) -> Result<T, Failure> {
        let url = format!("{}/{path}", self.api);
        let config =
            Agent::config_builder().http_status_as_error(false).timeout_global(Some(PATIENCE)).build();
        let mut request = Agent::new_with_config(config).get(&url);
        if let Some(key) = self.api_key.filter(|key| !key.is_empty()) {
            request = request.header("authorization", format!("Bearer {key}"));
        }
        let failed = |why: &str| Failure::failed(format!("{url} {why}"));
        let mut response = request.call().map_err(|error| {
            failed(&format!("cannot be asked ({error}); check that a Firstlight server listens there"))
        })?;
        let read = response.body_mut().with_config().limit(MAX_BYTES).read_to_string();
        let text = read.map_err(|error| failed(&format!("cut its answer ({error}); ask again")))?;
        match response.status().as_u16() {
            200 => parse(&url, &text),
            401 | 403 => Err(failed("wants a key; give it with --api-key")),
            404 => Err(failed("is not there: this is no Firstlight server; check the URL")),
            status => Err(failed(&format!("answered {status}; look at the server's log"))),
        }
    }
}

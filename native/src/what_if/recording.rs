//! What is replayed, read from a file: a bench's result, a server's timelines and steps, or a CSV file of lengths.
//!
//! It decides nothing. Invariant: a recording that is given out is within its limits, and every timeline in it could be
//! recalled.

use std::io::Read;
use std::path::Path;
use std::sync::Arc;

use firstlight_engine::replay::{HostTimes, Observed, Plan, observed_steps};
use firstlight_engine::report::{MAX_WINDOW, ReportContext};
use firstlight_engine::sched::{DEFAULT_MAX_WAITING, PRIORITY_STEP_NS, SchedulerConfig};
use firstlight_engine::timeline::{NANOS_LIMIT, Obstacle, RequestTimeline, StepRecord, TimelineRecord};
use serde::Deserialize;

use crate::bench::load::{Case, Pace, Planned, cut_trace};
use crate::bench::outcome::Run;
use crate::bench::result_json::{self, Settings};
use crate::bench::trace_csv;
use crate::cli::WhatIfArgs;
use crate::failure::Failure;

/// The most bytes of a recording.
const MAX_BYTES: u64 = 512 << 20;
/// The most prompt tokens, and the most generated ones: prompts are made while they wait, and every token has an instant.
const MAX_TOKENS: u64 = 64 << 20;
/// The most rows of a step of one kind.
const MAX_STEP_ROWS: u32 = 1 << 20;
/// The most KV blocks: each takes memory here too.
const MAX_BLOCKS: u32 = 1 << 24;
/// Slots and tokens of a step, where a recording does not say.
const USUAL_SLOTS: u32 = 8;
const USUAL_BATCH_TOKENS: u32 = 256;

/// What is replayed.
pub struct Recording {
    /// The file.
    pub name: String,
    /// In words: how requests arrive.
    pub words: String,
    /// Conditions that hold for all that is folded.
    pub context: ReportContext,
    /// The limits it was recorded under; of a trace of lengths those that a server has unasked.
    pub limits: SchedulerConfig,
    /// How requests arrive, for a report.
    pub case: Case,
    /// As recorded; empty for a trace of lengths.
    pub runs: Vec<Run>,
    /// One a run.
    pub plans: Vec<Plan>,
    /// The steps of each run.
    pub observed: Vec<Observed>,
    /// What a reader must know beside the figures.
    pub notes: Vec<String>,
}

/// A bench's result, or a server's lists; other fields are not looked at.
#[derive(Deserialize)]
struct File {
    schema: Option<String>,
    adapter: Option<String>,
    load: Option<LoadFile>,
    settings: Option<Settings>,
    repeats: Option<Vec<RunFile>>,
    timelines: Option<Vec<TimelineRecord>>,
    steps: Option<Vec<StepRecord>>,
}

#[derive(Deserialize)]
struct LoadFile {
    words: String,
    cases: Vec<CaseFile>,
}

#[derive(Deserialize)]
struct CaseFile {
    name: String,
    pace: serde_json::Value,
}

#[derive(Deserialize)]
struct RunFile {
    case: String,
    timelines: Vec<TimelineRecord>,
    #[serde(default)]
    background_timelines: Vec<TimelineRecord>,
    steps: Vec<StepRecord>,
}

/// Reads a text file of at most `most` bytes, which `flag` names.
///
/// # Errors
/// It cannot be read, is too large, or is no UTF-8.
pub fn read_limited(path: &Path, flag: &str, most: u64) -> Result<String, Failure> {
    let name = path.display();
    let unreadable = |error: std::io::Error| {
        Failure::usage(format!("{flag} is {name}, which cannot be read: {error}; name a readable file"))
    };
    let mut text = String::new();
    let file = std::fs::File::open(path).map_err(unreadable)?;
    file.take(most + 1).read_to_string(&mut text).map_err(unreadable)?;
    match text.len() as u64 > most {
        true => Err(Failure::usage(format!("{flag} is {name}, which has more than {most} bytes; cut it"))),
        false => Ok(text),
    }
}

impl Recording {
    /// Reads `path`, which is what `args` name, or what they name to compare with.
    ///
    /// # Errors
    /// A file that cannot be read or is no recording, with what is wrong with it.
    pub fn read(path: &Path, args: &WhatIfArgs) -> Result<Self, Failure> {
        let flag = if path == args.trace { "--trace" } else { "--compare" };
        let text = read_limited(path, flag, MAX_BYTES)?;
        let recording = if text.trim_start().starts_with('{') {
            Self::of_json(path, args, &text, flag)?
        } else {
            Self::of_csv(path, args, &text)?
        };
        recording.check_size()?;
        Ok(recording)
    }

    /// Requests of all runs.
    pub fn requests(&self) -> usize {
        self.plans.iter().map(|plan| plan.arrivals.iter().filter(|arrival| arrival.is_measured).count()).sum()
    }

    fn check_size(&self) -> Result<(), Failure> {
        let arrivals = || self.plans.iter().flat_map(|plan| &plan.arrivals);
        let sums = [
            ("prompt tokens", arrivals().map(|a| u64::from(a.prompt_len())).sum::<u64>(), MAX_TOKENS),
            ("generated tokens", arrivals().map(|a| u64::from(a.output_len)).sum(), MAX_TOKENS),
            ("requests", arrivals().count() as u64, MAX_WINDOW as u64),
        ];
        match sums.into_iter().find(|(_, sum, most)| sum > most) {
            Some((what, sum, most)) => Err(Failure::usage(format!(
                "{} has {sum} {what} and a replay takes at most {most}; cut it, or take fewer with --requests",
                self.name
            ))),
            None if arrivals().next().is_none() => Err(Failure::usage(format!(
                "{} has no request that was answered; record one that has",
                self.name
            ))),
            None => Ok(()),
        }
    }

    fn of_csv(path: &Path, args: &WhatIfArgs, text: &str) -> Result<Self, Failure> {
        let name = path.display().to_string();
        let rows = trace_csv::parse(text, &name)?;
        let (requests, words) = cut_trace(&args.cut, args.requests, path, &rows)?;
        let lengths = requests.iter().map(|one| (one.arrival_ns, one.prompt_tokens, one.output_tokens));
        let plan = Plan::of_lengths(lengths, args.shared_tokens);
        let longest = requests.iter().map(|one| one.prompt_tokens.saturating_add(one.output_tokens)).max();
        let context = args.max_model_len.unwrap_or(longest.unwrap_or(2)).max(2);
        let block_bytes = u64::from(args.kv_bytes_a_token) * u64::from(args.block_size);
        let blocks = SchedulerConfig::default_blocks(USUAL_SLOTS, context, args.block_size, block_bytes);
        let limits = SchedulerConfig {
            num_blocks: u32::try_from(blocks).unwrap_or(u32::MAX),
            ..usual_limits(args.block_size, context)
        };
        Ok(Self {
            name,
            words,
            context: ReportContext::default(),
            limits,
            case: Case { requests, ..case(false) },
            runs: Vec::new(),
            plans: vec![plan],
            observed: Vec::new(),
            notes: vec![
                "nothing was measured: how far these predictions are off depends on the costs alone".into(),
            ],
        })
    }

    fn of_json(path: &Path, args: &WhatIfArgs, text: &str, flag: &str) -> Result<Self, Failure> {
        let name = path.display().to_string();
        let wrong = |what: String| {
            Failure::usage(format!(
                "{flag} is {name}, which is no recording: {what}; give a file of `bench --json`, a server's timelines, or CSV"
            ))
        };
        let mut file: File = serde_json::from_str(text).map_err(|error| wrong(error.to_string()))?;
        let mut notes = Vec::new();
        let (chosen, is_closed) = match file.repeats.take() {
            Some(repeats) => {
                if file.schema.as_deref() != Some(result_json::SCHEMA) {
                    let schema = file.schema.unwrap_or_default();
                    return Err(wrong(format!("its schema is {schema:?}, not {}", result_json::SCHEMA)));
                }
                choose(repeats, file.load.as_ref(), args.case.as_deref()).map_err(wrong)?
            }
            None => {
                let Some(timelines) = file.timelines.take() else {
                    return Err(wrong("it has neither repeats nor timelines".into()));
                };
                let steps = match (&args.steps, file.steps.take()) {
                    (Some(path), _) => read_steps(path)?,
                    (None, steps) => steps.unwrap_or_default(),
                };
                let run = RunFile { case: String::new(), timelines, background_timelines: Vec::new(), steps };
                (vec![run], false)
            }
        };
        let runs: Vec<Run> = chosen.into_iter().map(recall).collect::<Result<_, _>>().map_err(wrong)?;
        let limits = match &file.settings {
            Some(settings) => limits_of(settings),
            None => {
                let limits = guessed(args, &runs);
                notes.push(format!(
                    "the recording does not say its settings: taken are {} slots, {} tokens a step, {} blocks of {}",
                    limits.max_num_seqs, limits.max_batch_tokens, limits.num_blocks, limits.block_size
                ));
                limits
            }
        };
        limits.validate()?;
        if limits.num_blocks > MAX_BLOCKS {
            return Err(wrong(format!("it has {} KV blocks, more than {MAX_BLOCKS}", limits.num_blocks)));
        }
        if is_closed {
            notes.push("clients that wait for their answers are replayed as they asked then: they would ask sooner where answers come sooner".into());
        }
        let plans: Vec<Plan> = runs.iter().map(|run| plan(run, limits.block_size)).collect();
        notes.extend(told(&plans, &runs));
        let observed = runs.iter().map(observed).collect();
        let model = runs.iter().flat_map(|run| &run.timelines).next().map(|first| first.record().model);
        Ok(Self {
            words: file.load.map_or_else(|| "as recorded".into(), |load| load.words),
            context: ReportContext {
                prefix_cache: limits.prefix_cache,
                model: model.unwrap_or_default(),
                adapter: file.adapter.unwrap_or_default(),
                slots: limits.max_num_seqs,
                ..ReportContext::default()
            },
            name,
            limits,
            case: case(is_spread(&plans)),
            runs,
            plans,
            observed,
            notes,
        })
    }
}

/// The case that is replayed: all of its runs, and whether its clients waited for their answers.
fn choose(
    repeats: Vec<RunFile>,
    load: Option<&LoadFile>,
    asked: Option<&str>,
) -> Result<(Vec<RunFile>, bool), String> {
    let mut names: Vec<&str> = repeats.iter().map(|run| run.case.as_str()).collect();
    names.dedup();
    let name = match (asked, &names[..]) {
        (Some(asked), names) if names.contains(&asked) => asked.to_owned(),
        (None, [only]) => (*only).to_owned(),
        (_, []) => return Err("it has no runs".into()),
        (Some(asked), names) => return Err(format!("it has no case {asked:?}, but {}", names.join(", "))),
        (None, names) => {
            return Err(format!("it has several cases, of which --case must name one: {}", names.join(", ")));
        }
    };
    let case = load.and_then(|load| load.cases.iter().find(|case| case.name == name));
    let is_closed = case.is_some_and(|case| case.pace.get("closed").is_some());
    Ok((repeats.into_iter().filter(|run| run.case == name).collect(), is_closed))
}

fn read_steps(path: &Path) -> Result<Vec<StepRecord>, Failure> {
    #[derive(Deserialize)]
    struct Steps {
        steps: Vec<StepRecord>,
    }
    let text = read_limited(path, "--steps", MAX_BYTES)?;
    let steps: Steps = serde_json::from_str(&text).map_err(|error| {
        Failure::usage(format!(
            "--steps is {}, which is no list of steps: {error}; give what /v1/steps answers",
            path.display()
        ))
    })?;
    Ok(steps.steps)
}

/// What was written, as far as it holds: whoever wrote it may have written anything.
fn recall(file: RunFile) -> Result<Run, String> {
    let steps = file.steps;
    if !steps.windows(2).all(|pair| pair[0].id < pair[1].id && pair[0].schedule_at <= pair[1].schedule_at) {
        return Err("its steps are not in the order in which they were run".into());
    }
    let is_whole = |step: &&StepRecord| {
        step.schedule_at <= step.done_at
            && step.done_at < NANOS_LIMIT
            && step.decode_rows <= MAX_STEP_ROWS
            && step.prefill.iter().all(|(_, tokens)| *tokens <= MAX_STEP_ROWS)
            && step.prefill.len() <= MAX_STEP_ROWS as usize
    };
    if let Some(step) = steps.iter().find(|step| !is_whole(step)) {
        return Err(format!(
            "step {} ends before it begins, or has more than {MAX_STEP_ROWS} rows of a kind",
            step.id
        ));
    }
    Ok(Run {
        timelines: recalled(&file.timelines)?,
        background: recalled(&file.background_timelines)?,
        steps,
        ..Run::default()
    })
}

/// Those that have ended, each of which must pass its check.
fn recalled(records: &[TimelineRecord]) -> Result<Vec<Arc<RequestTimeline>>, String> {
    let ended = records.iter().filter(|record| record.finish_reason.is_some());
    let recall = |record: &TimelineRecord| {
        let timeline = RequestTimeline::recall(record).map_err(|broken| broken.to_string())?;
        timeline.check().map_err(|broken| broken.to_string())?;
        let tokens = timeline.tokens();
        match u64::from(tokens.prompt.max(tokens.generated)) > MAX_TOKENS {
            true => Err(format!("{} has more than {MAX_TOKENS} tokens", timeline.id())),
            false => Ok(Arc::new(timeline)),
        }
    };
    ended.map(recall).collect()
}

fn everybody(run: &Run) -> impl Iterator<Item = &RequestTimeline> {
    run.timelines.iter().chain(&run.background).map(AsRef::as_ref)
}

fn plan(run: &Run, block_size: u32) -> Plan {
    let host = HostTimes::of(everybody(run), &run.steps);
    let (measured, background) = (run.timelines.iter(), run.background.iter());
    Plan::recorded(measured.map(AsRef::as_ref), background.map(AsRef::as_ref), host, block_size)
}

fn observed(run: &Run) -> Observed {
    observed_steps(everybody(run), &run.steps)
}

/// What a replay of these cannot know.
fn told(plans: &[Plan], runs: &[Run]) -> Vec<String> {
    let mut notes = Vec::new();
    let left_out: usize = plans.iter().map(|plan| plan.left_out).sum();
    if left_out > 0 {
        notes.push(format!(
            "{left_out} requests that never got a token are left out: nobody knows what their answers would have been"
        ));
    }
    let cached = runs.iter().flat_map(everybody).any(|timeline| timeline.tokens().cached > 0);
    notes.push(match cached {
        true => "prompts begin alike as far as was found in the cache; requests let in side by side are taken to differ".into(),
        false => "nothing was found in a prefix cache, so prompts are taken to differ: what one would be worth is not known".into(),
    });
    notes.push("priorities and deadlines of a recording are on no timeline: all are taken as usual".into());
    notes
}

fn is_spread(plans: &[Plan]) -> bool {
    let arrivals = |plan: &Plan| -> Option<u64> {
        let at = || plan.arrivals.iter().map(|arrival| arrival.stamps.received);
        Some(at().max()? - at().min()?)
    };
    // Clients of a burst are sent one after the other, some microseconds apart.
    plans.iter().filter_map(arrivals).any(|span| span > 10_000_000)
}

/// A case of requests that arrive when they arrive; `is_spread` where not all at once, so that they have a rate.
fn case(is_spread: bool) -> Case {
    let later = Planned { arrival_ns: 1, prompt_tokens: 1, output_tokens: 1 };
    let requests = if is_spread { vec![later] } else { Vec::new() };
    Case { name: "what-if", pace: Pace::Open, requests, background: None, primed: false }
}

fn usual_limits(block_size: u32, max_model_len: u32) -> SchedulerConfig {
    SchedulerConfig {
        max_num_seqs: USUAL_SLOTS,
        max_batch_tokens: USUAL_BATCH_TOKENS,
        block_size,
        num_blocks: 1,
        max_model_len,
        max_waiting: DEFAULT_MAX_WAITING,
        // Prompts of a replay have ids of their own.
        vocab_size: 1,
        prefix_cache: true,
        prefix_hash_bits: 64,
        priority_step_ns: PRIORITY_STEP_NS,
    }
}

fn limits_of(settings: &Settings) -> SchedulerConfig {
    SchedulerConfig {
        max_num_seqs: settings.slots,
        max_batch_tokens: settings.batch_tokens,
        num_blocks: settings.blocks_total,
        max_waiting: settings.max_waiting,
        prefix_cache: settings.prefix_cache,
        ..usual_limits(settings.block_size, settings.max_model_len)
    }
}

/// The limits of a server that did not say them: as far as its steps tell, else as it has them unasked.
fn guessed(args: &WhatIfArgs, runs: &[Run]) -> SchedulerConfig {
    let steps = || runs.iter().flat_map(|run| &run.steps);
    let full = steps().filter(|step| step.obstacle == Some(Obstacle::Slots)).map(|step| step.running).max();
    let most = steps().map(|step| step.running).max().unwrap_or(0).max(USUAL_SLOTS);
    let tokens = |step: &StepRecord| {
        step.prefill.iter().fold(step.decode_rows, |sum, (_, tokens)| sum.saturating_add(*tokens))
    };
    let tokens = steps().map(tokens).max().unwrap_or(0).max(USUAL_BATCH_TOKENS);
    let longest =
        |timeline: &RequestTimeline| timeline.tokens().prompt.saturating_add(timeline.tokens().generated);
    let longest = runs.iter().flat_map(everybody).map(longest).max().unwrap_or(2).max(2);
    let usual = usual_limits(args.block_size, args.max_model_len.unwrap_or(longest));
    let blocks = steps().map(|step| step.blocks_total).max();
    SchedulerConfig {
        max_num_seqs: full.unwrap_or(most).max(1),
        max_batch_tokens: tokens,
        num_blocks: blocks.unwrap_or_else(|| USUAL_SLOTS * longest.div_ceil(args.block_size)).max(1),
        ..usual
    }
}

//! `firstlight trace`: takes one request apart into twelve stages.
//!
//! stdout carries the answer and its table, with `--json` one object and nothing else. Invariant: the rows that stand
//! inside no other sum to the request's time from end to end, to the nanosecond.

mod adapter;
mod crowd;
mod cuts;
mod print;
mod rates;
mod rows;
mod shape;
#[cfg(test)]
mod tests;
mod work;

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::Path;
use std::time::Duration;

use firstlight_engine::clock::{Clock, Nanos};
use firstlight_engine::gpu::SampleOn;
use firstlight_engine::report::{SlowestGap, chrome_trace, slowest_gap};
use firstlight_engine::request::{FinishReason, HostStamps, SamplingParams};
use firstlight_engine::text::{ChatMessage, PrepareOptions, PromptInput};
use firstlight_engine::timeline::{RequestTimeline, StepRecord, StepRing};
use serde::Serialize;

use crate::answer::{Answer, Ended};
use crate::cache::{Cache, process_environment};
use crate::cli::TraceArgs;
use crate::driver::EngineHandle;
use crate::failure::Failure;
use crate::interrupt::Interrupt;
use crate::load::{self, Needs};
use crate::terminal::{note, write_json, write_line};
use crate::{model_text, models, split};

pub use adapter::Adapter;
pub use rates::{Rates, Work};
pub use rows::{Facts, Place, Row, TextBytes, rows, whole};
pub use shape::ModelShape;

/// `trace --json`.
#[derive(Serialize)]
struct TraceJson<'a> {
    schema: &'static str,
    prompt: &'a str,
    text: &'a str,
    adapter: &'a Adapter,
    model_shape: &'a ModelShape,
    beside: u32,
    e2e: Nanos,
    rows: &'a [Row],
    slowest_gap: Option<&'a SlowestGap>,
    timeline: &'a RequestTimeline,
    steps: &'a [StepRecord],
}

/// Runs the command.
///
/// # Errors
/// Wrong usage, then the model, then the adapter; then, after the table, what became of the request.
pub fn run(args: &TraceArgs) -> Result<(), Failure> {
    let params = SamplingParams { max_tokens: args.max_tokens, ..SamplingParams::default() };
    params.validate()?;
    if args.prompt.trim().is_empty() {
        return Err(Failure::usage("the prompt is empty; give the text to answer with -p TEXT"));
    }
    // Now, because after the answer it would be too late to learn that the file cannot be written.
    let perfetto = args.perfetto.as_deref().map(create).transpose()?;
    let needs = if args.raw { Needs::Text } else { Needs::Chat };
    let thread = load::engine_thread(&args.engine, needs, args.beside as usize + 1)?;
    let engine = thread.handle();
    let files =
        models::resolve(&args.engine.model, &Cache::locate(&process_environment)?, &process_environment)?;
    let adapter = Adapter::measure(&args.engine.adapter, engine.limits().vocab_size)?;
    let kv = args.engine.kv_cache.format(adapter.own_kv);
    let shape = ModelShape::of(&model_text::open(&files)?.checkpoint, kv);
    let interrupt = Interrupt::install()?;
    interrupt.answering();
    engine.profile(true);
    let crowd =
        crowd::Crowd { traced: input(args), beside: args.beside, params, streamed: !args.output.json };
    let answered = crowd.answer(&engine, &interrupt)?;
    thread.shut_down(Duration::ZERO);
    let steps = engine.steps(usize::MAX);
    let Some(Ended { timeline, .. }) = &answered.traced.ended else {
        return Err(Failure::failed("the answer did not end; the engine stopped before it"));
    };
    let facts = facts(args, &engine, shape, &adapter, &answered.traced);
    let ring: StepRing = steps.iter().cloned().collect();
    let gap = slowest_gap(timeline, &ring);
    let told = Told { args, engine: &engine, adapter: &adapter, facts, steps: &steps, gap: gap.as_ref() };
    if args.output.json {
        told.json(&answered.traced, timeline)?;
    } else {
        told.print(timeline)?;
    }
    if let (Some(file), Some(path)) = (perfetto, &args.perfetto) {
        let beside = answered.beside.iter().filter_map(|answer| answer.ended.as_ref());
        let timelines = std::iter::once(timeline.as_ref()).chain(beside.map(|ended| ended.timeline.as_ref()));
        write_perfetto(file, path, &chrome_trace(timelines, &ring))?;
    }
    verdict(&answered.traced)
}

fn input(args: &TraceArgs) -> PromptInput {
    let text = args.prompt.clone();
    match args.raw {
        true => PromptInput::Raw(text),
        false => PromptInput::Chat(vec![ChatMessage { role: "user".into(), content: text }]),
    }
}

/// The facts of the traced request. Its template is rendered once more, because only its length is wanted and no stage is
/// to carry the text along.
fn facts(
    args: &TraceArgs,
    engine: &EngineHandle,
    shape: ModelShape,
    adapter: &Adapter,
    answer: &Answer,
) -> Facts {
    let clock = engine.clock();
    let now_unix_seconds = clock.unix_seconds(clock.now());
    let options = PrepareOptions { parse_special: false, now_unix_seconds };
    let prepared = engine.preparer().prepare(input(args), &options, &clock, &mut HostStamps::default());
    let rendered = prepared.ok().and_then(|prepared| prepared.rendered);
    Facts {
        shape,
        rates: Some(adapter.rates),
        timestamps: adapter.timestamps,
        sample_on: if adapter.samples { SampleOn::Gpu } else { SampleOn::Cpu },
        block_size: engine.limits().block_size,
        text: TextBytes {
            prompt: args.prompt.len() as u64,
            rendered: rendered.map(|text| text.len() as u64),
            answer: answer.text.len() as u64,
        },
    }
}

/// What there is to tell.
struct Told<'a> {
    args: &'a TraceArgs,
    engine: &'a EngineHandle,
    adapter: &'a Adapter,
    facts: Facts,
    steps: &'a [StepRecord],
    gap: Option<&'a SlowestGap>,
}

impl Told<'_> {
    fn json(&self, answer: &Answer, timeline: &RequestTimeline) -> Result<(), Failure> {
        write_json(&TraceJson {
            schema: "firstlight.trace/1",
            prompt: &self.args.prompt,
            text: &answer.text,
            adapter: self.adapter,
            model_shape: &self.facts.shape,
            beside: self.args.beside,
            e2e: whole(timeline).unwrap_or_default(),
            rows: &rows(timeline, self.steps, &self.facts),
            slowest_gap: self.gap,
            timeline,
            steps: self.steps,
        })
    }

    fn print(&self, timeline: &RequestTimeline) -> Result<(), Failure> {
        let rows = rows(timeline, self.steps, &self.facts);
        let table = print::table(&rows, whole(timeline).unwrap_or_default());
        let mut lines = vec![String::new()];
        lines.extend(self.heading());
        lines.push(String::new());
        lines.extend(table.lines().map(str::to_owned));
        lines.push(String::new());
        let measured =
            if self.adapter.timestamps { "; those of 6, 8 and 9 are on the adapter's own clock" } else { "" };
        lines.push(format!("Times in brackets lie within stage 7{measured}."));
        if timeline.is_profiled() {
            lines.push(
                "profiled: one GPU pass a stage in one submit, which makes steps slower than usual".into(),
            );
        }
        lines.push(String::new());
        lines.extend(print::notes(timeline));
        lines.extend(print::adapter_times(timeline, self.steps));
        lines.extend(self.gap.map(gap_sentence));
        let wrapped: Vec<String> = lines.iter().map(|line| print::wrap(line)).collect();
        write_line(&wrapped.join("\n"))
    }

    fn heading(&self) -> [String; 2] {
        let model = &self.engine.labels().model;
        let Adapter { name, is_cpu, rates, .. } = self.adapter;
        let on_cpu = if *is_cpu { " on the CPU" } else { "" };
        let beside = match self.args.beside {
            0 => String::new(),
            1 => ", one other request beside it".to_owned(),
            more => format!(", {more} other requests beside it"),
        };
        let Rates { gigabytes, gigaflops } = rates;
        [
            format!("{} ({}){beside}", model.name, model.quantisation),
            format!("{name}{on_cpu}; measured peaks: {gigabytes:.1} GB/s, {gigaflops:.1} GFLOP/s"),
        ]
    }
}

fn gap_sentence(gap: &SlowestGap) -> String {
    let token = gap.token_idx + 1;
    match &gap.blame {
        Some(blame) => format!("slowest gap, before token {token}: {blame}"),
        None => {
            let ms = gap.gap as f64 / 1e6;
            format!("slowest gap, before token {token}: {ms:.1} ms, no more than twice the median")
        }
    }
}

/// What is there stays until there is something to put in its place.
fn create(path: &Path) -> Result<File, Failure> {
    let opened = File::options().write(true).create(true).truncate(false).open(path);
    opened.map_err(|error| unwritable(path, &error))
}

fn unwritable(path: &Path, error: &std::io::Error) -> Failure {
    Failure::failed(format!(
        "the trace cannot be written to {}: {error}; name another file with --perfetto",
        path.display()
    ))
}

fn write_perfetto(file: File, path: &Path, trace: &impl Serialize) -> Result<(), Failure> {
    let write = || -> std::io::Result<()> {
        file.set_len(0)?;
        let mut writer = BufWriter::new(&file);
        serde_json::to_writer(&mut writer, trace)?;
        writer.flush()
    };
    write().map_err(|error| unwritable(path, &error))?;
    note(&format!("the trace is in {}: open it at ui.perfetto.dev", path.display()));
    Ok(())
}

fn verdict(answer: &Answer) -> Result<(), Failure> {
    let Some(ended) = &answer.ended else { return Ok(()) };
    match (ended.reason, &ended.detail) {
        (FinishReason::Stop | FinishReason::StopString | FinishReason::Length, _) => Ok(()),
        (FinishReason::Rejected, Some(reason)) => Err(reason.clone().into()),
        (FinishReason::Cancelled, _) => Err(Failure::interrupted("Ctrl-C stopped the answer before its end")),
        (reason, _) => Err(Failure::failed(format!(
            "the answer ended early ({}); run the command again",
            split::word(reason)
        ))),
    }
}

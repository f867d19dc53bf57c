//! `firstlight bench --goals`: what this adapter reaches of what it could, held against the project's goals.
//!
//! It measures the adapter, a few made-up steps of the model and, where it is given them, the ids of known answers. Invariant:
//! a goal that is missed is a line of the table and no failure; a measurement that did not run is a failure and no line.

use std::path::Path;

use firstlight_engine::clock::Clock;
use firstlight_engine::gpu::{self, Device, KernelCache, KernelChoice, ProbeError, Shapes};
use firstlight_engine::request::SamplingParams;
use firstlight_engine::runner::{GpuRunner, StepShape};
use firstlight_engine::text::PromptInput;
use serde::{Deserialize, Serialize};

use super::steps::{self, Opened, Timed};
use crate::ask::Ask;
use crate::cli::{BenchArgs, JsonTarget};
use crate::doctor::{self, measures::Peaks};
use crate::executor::block_on_gpu;
use crate::failure::Failure;
use crate::interrupt::Interrupt;
use crate::load::{self, Needs};
use crate::run;
use crate::terminal::write_line;

/// Share of the memory bandwidth that decode should reach.
const DECODE_GOAL: f64 = 0.7;
/// Share of the arithmetic that prefill should reach.
const PREFILL_GOAL: f64 = 0.5;
/// How many times the tokens of one sequence a batch of eight should give: weights are read once for all of them on a GPU,
/// and a CPU has computed as much as it can before.
const BATCH_GOAL: f64 = 6.5;
const CPU_BATCH_GOAL: f64 = 2.4;
/// Steps of each shape in one repeat.
const ROUNDS: u32 = 5;
/// A prompt's tokens in one step, at most.
const MAX_PROMPT: u32 = 512;

/// One line.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Goal {
    /// What was measured.
    pub what: String,
    /// The figure.
    pub reached: f64,
    /// What it could be at best.
    pub bound: f64,
    /// The unit of both.
    pub unit: &'static str,
    /// The goal as a figure in the same unit.
    pub goal: f64,
    /// Whether it is reached.
    pub met: bool,
}

impl Goal {
    fn new(what: impl Into<String>, reached: f64, bound: f64, unit: &'static str, goal: f64) -> Self {
        Self { what: what.into(), reached, bound, unit, goal, met: reached >= goal }
    }
}

impl std::fmt::Display for Goal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { what, reached, bound, unit, goal, met } = self;
        let verdict = if *met { "PASS" } else { "SHORT" };
        let share = 100.0 * reached / bound.max(f64::MIN_POSITIVE);
        write!(f, "  {what:<52}{reached:>10.1}{bound:>10.1}  {unit:<8}{share:>6.0}%{goal:>10.1}  {verdict}")
    }
}

/// All of it.
#[derive(Debug, Serialize)]
struct GoalsJson {
    schema: &'static str,
    adapter: String,
    model: String,
    kernels: String,
    peaks: Peaks,
    goals: Vec<Goal>,
}

impl std::fmt::Display for GoalsJson {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        writeln!(f, "{} on {}: {}", self.model, self.adapter, self.kernels)?;
        let heading = ["reached", "bound"].map(|word| format!("{word:>10}")).concat();
        write!(f, "  {:<52}{heading}  {:<8}{:>7}{:>10}", "", "", "share", "goal")?;
        self.goals.iter().try_for_each(|goal| write!(f, "\n{goal}"))
    }
}

/// Runs the command.
///
/// # Errors
/// The model, the adapter, a step that failed, known answers that cannot be read.
pub fn run(args: &BenchArgs, target: &JsonTarget) -> Result<(), Failure> {
    let golden = args.golden.as_deref().map(golden).transpose()?;
    let Some(Opened { mut runner, model, .. }) = steps::open(&args.engine)? else {
        return Err(Failure::failed("the runner went away; run the command again"));
    };
    let facts = runner.device().facts().clone();
    let choice = runner.choice();
    // On either side of the steps: another program that slows the one measurement down seldom slows both.
    let before = Peaks::measure(runner.device(), choice.home)?;
    let steps = Steps::measure(&mut runner, args)?;
    let device = runner.into_device();
    let peaks = before.or_better(Peaks::measure(&device, choice.home)?);
    let mut goals = steps.goals(&peaks, facts.is_cpu);
    goals.push(tested(&device, choice)?);
    drop(device);
    if let Some(golden) = &golden {
        goals.push(answered(args, golden)?);
    }
    let kernels = choice.to_string();
    let result =
        GoalsJson { schema: "firstlight.goals/1", adapter: facts.name, model, kernels, peaks, goals };
    super::save(target, &result)?;
    if *target == JsonTarget::Stdout {
        return Ok(());
    }
    write_line(&result.to_string())
}

/// A made-up step, what it had to do, and how long it took.
struct Step {
    shape: StepShape,
    macs: u64,
    bytes: u64,
    ns: u64,
}

/// The steps that the goals speak of.
struct Steps {
    decode: Step,
    batch: Option<Step>,
    prefill: Step,
}

impl Steps {
    /// In turn, so that what else the machine does falls upon all of them; medians.
    fn measure(runner: &mut GpuRunner, args: &BenchArgs) -> Result<Self, Failure> {
        let limits = runner.limits();
        let context = limits.max_model_len.min(128);
        let prompt = limits.max_batch_tokens.min(limits.max_model_len).min(MAX_PROMPT);
        let decode = |num_seqs| StepShape { num_seqs, tokens_per_seq: 1, context };
        let mut shapes = vec![decode(1), StepShape { num_seqs: 1, tokens_per_seq: prompt, context: prompt }];
        if limits.max_num_seqs >= 8 && 8 * context.div_ceil(limits.block_size) <= limits.num_blocks {
            shapes.push(decode(8));
        }
        let mut times: Vec<Timed> = shapes.iter().map(|&shape| Timed::new(shape, shape.num_seqs)).collect();
        // The first round compiles, and does not count.
        for round in 0..=args.repeats * ROUNDS {
            for timed in &mut times {
                timed.take(runner)?;
                if round == 0 {
                    timed.times.clear();
                }
            }
        }
        let mut steps = times.iter().map(|timed| {
            let (macs, bytes) = runner.work_of(timed.shape);
            Step { shape: timed.shape, macs, bytes, ns: timed.ns() }
        });
        match (steps.next(), steps.next()) {
            (Some(decode), Some(prefill)) => Ok(Self { decode, prefill, batch: steps.next() }),
            _ => Err(Failure::failed("no step was measured; report this defect")),
        }
    }

    fn goals(&self, peaks: &Peaks, is_cpu: bool) -> Vec<Goal> {
        let per_ns = |amount: u64, step: &Step| amount as f64 / step.ns as f64;
        let (decode, prefill) = (&self.decode, &self.prefill);
        let mut goals = vec![
            Goal::new(
                format!("decode, context {}: memory", decode.shape.context),
                per_ns(decode.bytes, decode),
                peaks.gb_per_s,
                "GB/s",
                DECODE_GOAL * peaks.gb_per_s,
            ),
            Goal::new(
                format!("prefill of {} tokens: f32 arithmetic", prefill.shape.tokens_per_seq),
                per_ns(2 * prefill.macs, prefill),
                peaks.gflops,
                "GFLOP/s",
                PREFILL_GOAL * peaks.gflops,
            ),
        ];
        if let Some(batch) = &self.batch {
            let times = 8.0 * decode.ns as f64 / batch.ns as f64;
            let goal = if is_cpu { CPU_BATCH_GOAL } else { BATCH_GOAL };
            let what =
                if is_cpu { "tokens of 8 sequences over one, CPU" } else { "tokens of 8 sequences over one" };
            goals.push(Goal::new(what, times, 8.0, "times", goal));
        }
        goals
    }
}

/// The kernels against their twins on the CPU.
fn tested(device: &Device, choice: KernelChoice) -> Result<Goal, Failure> {
    let cases = gpu::cases(choice, &Shapes::of_default_model(&doctor::FORMATS, choice, device.facts()));
    let cases = cases.map_err(ProbeError::from)?;
    let mut kernels = KernelCache::default();
    let checked = block_on_gpu(device.handle(), gpu::measure(device, &mut kernels, &cases))?;
    let (right, all) = (checked.iter().filter(|one| one.ok()).count() as f64, checked.len() as f64);
    Ok(Goal::new("kernels that compute what they should", right, all, "kernels", all))
}

/// Known answers, as the project's own file of them has them.
#[derive(Debug, Deserialize)]
struct Golden {
    prompts: Vec<GoldenPrompt>,
}

#[derive(Debug, Deserialize)]
struct GoldenPrompt {
    input_ids: Vec<u32>,
    greedy_ids: Vec<u32>,
}

/// Known answers of a handful of prompts with their logits take less.
const MAX_GOLDEN_BYTES: u64 = 64 << 20;

fn golden(path: &Path) -> Result<Golden, Failure> {
    let wrong = |reason: String| {
        Failure::usage(format!(
            "--golden {}: {reason}; it must be JSON with prompts, each with input_ids and greedy_ids",
            path.display()
        ))
    };
    let bytes = std::fs::metadata(path).map_err(|error| wrong(error.to_string()))?.len();
    if bytes > MAX_GOLDEN_BYTES {
        return Err(wrong(format!("it has {bytes} bytes, and at most {MAX_GOLDEN_BYTES} are read")));
    }
    let text = std::fs::read(path).map_err(|error| wrong(error.to_string()))?;
    serde_json::from_slice(&text).map_err(|error| wrong(error.to_string()))
}

/// All known prompts at once, greedily.
fn answered(args: &BenchArgs, golden: &Golden) -> Result<Goal, Failure> {
    let mut session = load::session(&args.engine, Needs::Ids, golden.prompts.len())?;
    let interrupt = Interrupt::install()?;
    interrupt.answering();
    let received = session.clock().now();
    let asks = golden.prompts.iter().map(|prompt| {
        let max_tokens = prompt.greedy_ids.len() as u32;
        let params = SamplingParams { max_tokens, ignore_eos: true, ..SamplingParams::default() };
        Ask::new(PromptInput::Ids(prompt.input_ids.clone()), params, "bench", received)
    });
    let answers = run::listen(&mut session, asks.collect(), false, &interrupt)?;
    let equal = answers.iter().zip(&golden.prompts).filter(|(answer, prompt)| {
        answer.tokens.iter().map(|token| token.token).eq(prompt.greedy_ids.iter().copied())
    });
    let (equal, all) = (equal.count() as f64, golden.prompts.len() as f64);
    Ok(Goal::new("known answers, token by token", equal, all, "answers", all))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn step(num_seqs: u32, ns: u64) -> Step {
        let shape = StepShape { num_seqs, tokens_per_seq: 1, context: 128 };
        Step { shape, macs: 20_000_000, bytes: 50_000_000, ns }
    }

    /// Which of decode, prefill and batch meet their goals.
    fn check(is_cpu: bool, ns: [u64; 3], expected: [bool; 3]) {
        let [decode, prefill, batch] = ns;
        let steps = Steps { decode: step(1, decode), prefill: step(1, prefill), batch: Some(step(8, batch)) };
        let goals = steps.goals(&Peaks { gflops: 40.0, gb_per_s: 50.0 }, is_cpu);
        let met: Vec<bool> = goals.iter().map(|goal| goal.met).collect();
        assert_eq!(met, expected, "{ns:?}: {goals:?}");
    }

    #[test]
    fn a_goal_is_a_share_of_what_the_adapter_can_do() {
        // 50 MB at 35 GB/s; 40 MFLOP at 20 GFLOP/s.
        check(false, [1_400_000, 1_900_000, 1_700_000], [true, true, true]);
        check(false, [1_500_000, 2_100_000, 3_000_000], [false, false, false]);
        check(true, [1_500_000, 2_100_000, 3_000_000], [false, false, true]);
    }

    #[test]
    fn a_line_says_figure_bound_and_verdict() {
        let line = Goal::new("decode", 35.0, 50.0, "GB/s", 40.0).to_string();
        assert!(line.contains("35.0      50.0  GB/s        70%      40.0  SHORT"), "{line}");
    }
}

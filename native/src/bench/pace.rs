//! The loop's own pace: what a decode step takes from token to token, and what of it is our own work on the CPU.
//!
//! It runs the real engine with the real runner, without a thread, a server or text. Invariant: the two ways of running, with
//! and without the next step submitted ahead, take turns, so that a busy machine does them the same wrong.

use std::fmt;

use firstlight_engine::clock::Clock;
use firstlight_engine::engine::{Engine, EngineConfig};
use firstlight_engine::gpu::SampleOn;
use firstlight_engine::request::{HostStamps, Request, RequestId, SamplingParams};
use firstlight_engine::runner::GpuRunner;
use firstlight_engine::sched::SchedulerConfig;
use firstlight_engine::timeline::ModelLabel;
use serde::Serialize;

use super::steps::median;
use crate::clock::InstantClock;
use crate::executor::{block_on, drive_awaited};
use crate::failure::Failure;

/// Steps of one turn, without the ones that a turn begins with.
const STEPS: usize = 24;
/// The prompt's step, and the first decode step: caches are cold.
const WARM_UP: usize = 2;

/// Decode steps of one batch.
#[derive(Debug, Serialize)]
pub struct Pace {
    /// Requests together.
    pub num_seqs: u32,
    /// The next step is submitted before the tokens of the present one are read.
    pub ahead: bool,
    /// From one token to the next.
    pub step_ns: u64,
    /// The pass on the GPU's clock.
    pub gpu_ns: Option<u64>,
    /// Time of the engine's thread on a core, a step: scheduling, encoding, reading, the driver's calls. Linux tells.
    cpu_ns: Option<u64>,
    /// Steps measured.
    steps: usize,
}

/// Measures batches of 1 and 8, as far as the limits allow, in `turns` turns each.
///
/// # Errors
/// A step that fails.
pub fn measure(runner: &mut GpuRunner, limits: &SchedulerConfig, turns: u32) -> Result<Vec<Pace>, Failure> {
    let mut paces = Vec::new();
    for num_seqs in batches(limits) {
        let mut turned: Vec<Turn> = ways(runner).iter().map(|_| Turn::default()).collect();
        for _ in 0..turns {
            for (ahead, turn) in ways(runner).iter().zip(&mut turned) {
                turn.take(runner, limits, num_seqs, *ahead)?;
            }
        }
        let pace = |(ahead, turn): (&bool, Turn)| turn.pace(num_seqs, *ahead);
        paces.extend(ways(runner).iter().zip(turned).map(pace));
    }
    Ok(paces)
}

/// The batches that are measured.
pub fn batches(limits: &SchedulerConfig) -> impl Iterator<Item = u32> + use<> {
    let most = limits.max_num_seqs.min(limits.max_batch_tokens);
    [1, 8].into_iter().filter(move |n| *n <= most)
}

/// Without and with the next step ahead, the engine's own way last: tokens that the CPU chooses are known to no step before
/// they are read.
pub fn ways(runner: &GpuRunner) -> &'static [bool] {
    if runner.choice().sample_on == SampleOn::Gpu { &[false, true] } else { &[false] }
}

/// What the steps of one way of running took.
#[derive(Clone, Debug, Default)]
pub struct Turn {
    steps: Vec<u64>,
    gpu: Vec<u64>,
    cpu: Vec<u64>,
}

impl Turn {
    /// Takes one turn.
    ///
    /// # Errors
    /// A step that fails.
    pub fn take(
        &mut self,
        runner: &mut GpuRunner,
        limits: &SchedulerConfig,
        num_seqs: u32,
        ahead: bool,
    ) -> Result<(), Failure> {
        // One token each: the prompts share one step, so that everybody decodes from the second step on.
        let asked = Asked { num_seqs, prompt_tokens: 1, steps: WARM_UP + STEPS, ahead };
        let mut before: Option<Seen> = None;
        for (step, seen) in watch(runner, limits, asked)?.into_iter().enumerate() {
            if let Some(before) = before.filter(|_| step >= WARM_UP) {
                self.steps.push(seen.done_at - before.done_at);
                self.gpu.extend(seen.gpu_ns);
                let cpu = seen.cpu_ns.zip(before.cpu_ns);
                self.cpu.extend(cpu.map(|(now, before)| now.saturating_sub(before)));
            }
            before = Some(seen);
        }
        Ok(())
    }

    /// All turns together.
    pub fn pace(self, num_seqs: u32, ahead: bool) -> Pace {
        let known = |values: &Vec<u64>| (!values.is_empty()).then(|| median(values.iter().copied()));
        Pace {
            num_seqs,
            ahead,
            step_ns: median(self.steps.iter().copied()),
            gpu_ns: known(&self.gpu),
            cpu_ns: known(&self.cpu),
            steps: self.steps.len(),
        }
    }
}

/// What an engine is asked for.
#[derive(Clone, Copy, Debug)]
pub struct Asked {
    /// Requests together.
    pub num_seqs: u32,
    /// Tokens of each prompt.
    pub prompt_tokens: u32,
    /// Steps to watch.
    pub steps: usize,
    /// Whether the next step may be submitted before the tokens of the present one are read.
    pub ahead: bool,
}

/// A step of an engine.
#[derive(Clone, Copy, Debug)]
pub struct Seen {
    /// When it was decided, on a clock that began before the requests came.
    pub schedule_at: u64,
    /// When its tokens were there.
    pub done_at: u64,
    /// The pass on the GPU's clock.
    pub gpu_ns: Option<u64>,
    /// What this thread had spent on a core by then, where the system tells.
    pub cpu_ns: Option<u64>,
}

/// The first steps of an engine of its own on `runner`, of which `asked` is asked at once.
///
/// # Errors
/// A step that fails.
pub fn watch(runner: &mut GpuRunner, limits: &SchedulerConfig, asked: Asked) -> Result<Vec<Seen>, Failure> {
    let (device, awaited) = (runner.device().handle().clone(), runner.device().awaited());
    let clock = InstantClock::start();
    let config = EngineConfig {
        scheduler: SchedulerConfig { prefix_cache: false, ..*limits },
        eos_tokens: Vec::new(),
        model: ModelLabel::default(),
        engine_config: String::new(),
    };
    let mut engine = Engine::new(runner, clock, config, None);
    engine.run_ahead(asked.ahead);
    for id in 0..asked.num_seqs {
        let params = SamplingParams { max_tokens: u32::MAX, ignore_eos: true, ..SamplingParams::default() };
        let prompt = vec![1 + id; asked.prompt_tokens as usize];
        engine.submit(Request::new(RequestId(id.into()), prompt, params, HostStamps::at(clock.now())));
    }
    let mut steps = Vec::with_capacity(asked.steps);
    for _ in 0..asked.steps {
        let output = block_on(engine.step(), || drive_awaited(&device, &awaited))
            .map_err(|failed| Failure::failed(failed.error.to_string()))?;
        let Some(record) = output.step else { break };
        let (schedule_at, done_at) = (record.schedule_at, record.done_at);
        steps.push(Seen { schedule_at, done_at, gpu_ns: record.gpu_ns, cpu_ns: on_core_ns() });
    }
    Ok(steps)
}

/// Nanoseconds that this thread has spent on a core, where the system tells.
fn on_core_ns() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").ok()?;
    text.split_ascii_whitespace().next()?.parse().ok()
}

impl fmt::Display for Pace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ms = |ns: u64| ns as f64 / 1e6;
        let or_dash = |ns: Option<u64>, text: &dyn Fn(u64) -> String| ns.map_or("-".to_owned(), text);
        let share = |ns: u64| ns as f64 / self.step_ns.max(1) as f64 * 100.0;
        write!(
            f,
            "  {:<58}{:>9.2}{:>9.0}{:>12}{:>12}{:>9}",
            format!(
                "decode of {}, {}",
                self.num_seqs,
                if self.ahead { "the next step ahead" } else { "one step at a time" }
            ),
            ms(self.step_ns),
            f64::from(self.num_seqs) / ms(self.step_ns) * 1e3,
            or_dash(self.gpu_ns, &|ns| format!("{:.2}", ms(ns))),
            or_dash(self.cpu_ns, &|ns| format!("{:.0}", ns as f64 / 1e3)),
            or_dash(self.cpu_ns, &|ns| format!("{:.1}%", share(ns))),
        )
    }
}

/// The table's head.
pub fn heading() -> String {
    format!(
        "the engine's loop, from token to token\n  {:<58}{:>9}{:>9}{:>12}{:>12}{:>9}",
        "", "step, ms", "tokens/s", "GPU, ms", "CPU, us", "of step"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pace_says_what_of_a_step_is_our_own_work() {
        let check = |cpu_ns, expected: &[&str]| {
            let pace = Pace {
                num_seqs: 8,
                ahead: true,
                step_ns: 50_000_000,
                gpu_ns: Some(48_000_000),
                cpu_ns,
                steps: 72,
            };
            let text = pace.to_string();
            assert!(expected.iter().all(|part| text.contains(part)), "{text}");
        };
        check(Some(1_500_000), &["decode of 8", "ahead", "50.00", "160", "48.00", "1500", "3.0%"]);
        check(None, &["50.00", "-"]);
    }

    #[test]
    fn a_turn_gives_medians_of_what_was_told() {
        let turn = Turn { steps: vec![5, 1, 9], gpu: vec![4], cpu: Vec::new() };
        let pace = turn.pace(1, false);
        assert_eq!((pace.step_ns, pace.gpu_ns, pace.cpu_ns, pace.steps), (5, Some(4), None, 3));
    }
}

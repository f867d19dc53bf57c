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

use super::micro::median;
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
    num_seqs: u32,
    /// The next step is submitted before the tokens of the present one are read.
    ahead: bool,
    /// From one token to the next.
    step_ns: u64,
    /// The pass on the GPU's clock.
    gpu_ns: Option<u64>,
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
    let most = limits.max_num_seqs.min(limits.max_batch_tokens);
    let mut paces = Vec::new();
    for num_seqs in [1, 8].into_iter().filter(|n| *n <= most) {
        // Tokens that the CPU chooses are known to no step before they are read.
        let ways = if runner.choice().sample_on == SampleOn::Gpu { 2 } else { 1 };
        let mut turned: Vec<Turn> = (0..ways).map(|_| Turn::default()).collect();
        for _ in 0..turns {
            for (ahead, turn) in turned.iter_mut().enumerate() {
                turn.take(runner, limits, num_seqs, ahead == 1)?;
            }
        }
        let pace = |(ahead, turn): (usize, Turn)| turn.pace(num_seqs, ahead == 1);
        paces.extend(turned.into_iter().enumerate().map(pace));
    }
    Ok(paces)
}

/// What the steps of one way of running took.
#[derive(Default)]
struct Turn {
    steps: Vec<u64>,
    gpu: Vec<u64>,
    cpu: Vec<u64>,
}

impl Turn {
    fn take(
        &mut self,
        runner: &mut GpuRunner,
        limits: &SchedulerConfig,
        num_seqs: u32,
        ahead: bool,
    ) -> Result<(), Failure> {
        let (device, awaited) = (runner.device().handle().clone(), runner.device().awaited());
        let clock = InstantClock::start();
        let config = EngineConfig {
            scheduler: SchedulerConfig { prefix_cache: false, ..*limits },
            eos_tokens: Vec::new(),
            model: ModelLabel::default(),
            engine_config: String::new(),
        };
        let mut engine = Engine::new(runner, clock, config, None);
        engine.run_ahead(ahead);
        // One token each: the prompts share one step, so that everybody decodes from the second step on.
        for id in 0..num_seqs {
            let params =
                SamplingParams { max_tokens: u32::MAX, ignore_eos: true, ..SamplingParams::default() };
            engine.submit(Request::new(
                RequestId(id.into()),
                vec![1 + id],
                params,
                HostStamps::at(clock.now()),
            ));
        }
        let (mut cpu, mut done_at) = (None, None);
        for step in 0..WARM_UP + STEPS {
            let output = block_on(engine.step(), || drive_awaited(&device, &awaited))
                .map_err(|failed| Failure::failed(failed.error.to_string()))?;
            let Some(record) = output.step else { break };
            let (cpu_before, done_before) =
                (std::mem::replace(&mut cpu, on_core_ns()), done_at.replace(record.done_at));
            if let Some(before) = done_before.filter(|_| step >= WARM_UP) {
                self.steps.push(record.done_at - before);
                self.gpu.extend(record.gpu_ns);
                self.cpu.extend(cpu.zip(cpu_before).map(|(now, before)| now.saturating_sub(before)));
            }
        }
        Ok(())
    }

    fn pace(self, num_seqs: u32, ahead: bool) -> Pace {
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

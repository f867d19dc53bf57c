//! What the engine costs beside the model: whole steps over a runner that takes no time, and single scheduling passes.
//!
//! `cargo bench -p firstlight-tests` prints medians beside the bounds that they are held against. A figure, no test: it
//! never fails.

use std::future::Future;
use std::pin::pin;
use std::task::{Context, Poll, Waker};
use std::time::Instant;

use firstlight::clock::InstantClock;
use firstlight_engine::clock::{Clock, Nanos};
use firstlight_engine::engine::{Engine, EngineConfig, RequestEvent};
use firstlight_engine::request::{HostStamps, Request, RequestId, SampledToken, SamplingParams};
use firstlight_engine::runner::{ModelRunner, RunnerError, RunnerOutput};
use firstlight_engine::sched::{Batch, PRIORITY_STEP_NS, Scheduler, SchedulerConfig};
use firstlight_engine::timeline::{EngineLabels, ModelLabel, PassTimes, RequestLabels, RequestTimeline};

/// A decode step of the default model on two Zen 4 cores under lavapipe.
const DECODE_STEP_US: f64 = 22_700.0;

const ROOMY: SchedulerConfig = SchedulerConfig {
    max_num_seqs: 256,
    max_batch_tokens: 512,
    block_size: 16,
    num_blocks: 1 << 16,
    max_model_len: 8192,
    max_waiting: 1 << 17,
    vocab_size: 49_152,
    prefix_cache: true,
    prefix_hash_bits: 64,
    priority_step_ns: PRIORITY_STEP_NS,
};

/// Answers at once, with the row's position.
struct Instantaneous;

impl ModelRunner for Instantaneous {
    async fn execute(&mut self, batch: &Batch) -> Result<RunnerOutput, RunnerError> {
        let token = |row: &firstlight_engine::sched::SampleRow| SampledToken {
            token: row.position % 40_000,
            logprobs: None,
        };
        let tokens = batch.sample_rows.iter().map(token).collect();
        Ok(RunnerOutput { tokens, gpu_ns: Some(1), stages: None })
    }
}

fn request(id: u64, prompt_len: u32, max_tokens: u32, now: Nanos) -> Request {
    let prompt = (0..prompt_len).map(|at| (id as u32 * 131 + at * 7) % 49_152).collect();
    let params = SamplingParams { max_tokens, ignore_eos: true, ..SamplingParams::default() };
    Request::new(RequestId(id), prompt, params, HostStamps::at(now))
}

/// Median and 99th percentile, nearest rank, in microseconds.
fn percentiles(mut durations: Vec<f64>) -> (f64, f64) {
    durations.sort_by(f64::total_cmp);
    let rank = |percent: usize| durations[(durations.len() * percent).div_ceil(100) - 1];
    (rank(50), rank(99))
}

/// Whole steps: pass, batch, stamps, step record, and the check of the one request that ends in each.
fn whole_steps(batch: u32) {
    let clock = InstantClock::start();
    let config = EngineConfig {
        scheduler: SchedulerConfig { max_num_seqs: batch, ..ROOMY },
        eos_tokens: Vec::new(),
        model: ModelLabel::default(),
        engine_config: String::new(),
    };
    let mut engine = Engine::new(Instantaneous, clock, config, None);
    let mut next_id = 0;
    let mut ask = |engine: &mut Engine<_, _>, max_tokens| {
        engine.submit(request(next_id, 16, max_tokens, clock.now()));
        next_id += 1;
    };
    // Ends spread over the steps from the start.
    (1..=batch).for_each(|max_tokens| ask(&mut engine, max_tokens));
    let mut durations = Vec::with_capacity(10_000);
    for _ in 0..10_000 {
        let start = Instant::now();
        let step = match pin!(engine.step()).poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(Ok(output)) => output,
            _ => panic!("the runner answers at once"),
        };
        durations.push(start.elapsed().as_secs_f64() * 1e6);
        for event in step.events {
            if let RequestEvent::Finished { mut timeline, .. } = event {
                timeline.seal().expect("sums are exact");
                ask(&mut engine, batch);
            }
        }
    }
    let (median, p99) = percentiles(durations);
    println!("  batch {batch:>3}: median {median:7.1} us, p99 {p99:7.1} us (bound at 32: 100 us)");
}

/// Passes alone, with everybody decoding and so many waiting.
fn passes(running: u32, waiting: u32) {
    let mut scheduler = Scheduler::new(SchedulerConfig { max_num_seqs: running, ..ROOMY });
    let mut now = 0;
    for id in 0..u64::from(running + waiting) {
        let request = request(id, 16, 8000, now);
        let labels = RequestLabels::default();
        let engine = std::sync::Arc::new(EngineLabels::default());
        let timeline = RequestTimeline::created(request.id, labels, engine, &request.stamps, 16);
        scheduler.add(request, timeline, now).expect("there is room");
    }
    let mut durations = Vec::new();
    while durations.len() < 1_000 {
        now += 1;
        let start = Instant::now();
        let pass = scheduler.schedule(now);
        let taken = start.elapsed().as_secs_f64() * 1e6;
        if pass.scheduled.len() == running as usize && pass.scheduled.iter().all(|one| one.is_decode) {
            durations.push(taken);
        }
        let rows = scheduler.batch(&pass).sample_rows.len();
        now += 1;
        scheduler.apply(&pass, &vec![7; rows], PassTimes::default(), now);
    }
    let (median, p99) = percentiles(durations);
    let share = 100.0 * median / DECODE_STEP_US;
    println!(
        "  {running:>3} running, {waiting:>6} waiting: median {median:6.1} us, p99 {p99:6.1} us; {share:.2}% of a decode step (bound 1%)"
    );
}

fn main() {
    println!("a whole step of the engine over a runner that takes no time, 10,000 steps:");
    [1, 8, 32, 128, 256].into_iter().for_each(whole_steps);
    println!("one scheduling pass, 1,000 passes:");
    for (running, waiting) in [(32, 0), (256, 0), (256, 1_000), (256, 10_000), (256, 100_000), (32, 100_000)]
    {
        passes(running, waiting);
    }
}

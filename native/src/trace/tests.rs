//! The table of requests that an engine really ran, ended in every way.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::rc::Rc;

use firstlight_engine::clock::{Clock, Nanos};
use firstlight_engine::engine::{Engine, EngineConfig, RequestEvent};
use firstlight_engine::gpu::SampleOn;
use firstlight_engine::request::{
    FinishReason, HostStamps, Request, RequestId, SampledToken, SamplingParams,
};
use firstlight_engine::runner::{ModelRunner, RunnerError, RunnerOutput};
use firstlight_engine::sched::{Batch, PRIORITY_STEP_NS, SchedulerConfig};
use firstlight_engine::timeline::{Edge, RequestLabels, RequestTimeline, StageTimes, StepRecord};

use super::*;
use crate::executor::block_on;

/// Moves by a microsecond whenever it is read.
#[derive(Clone, Default)]
struct StepClock(Rc<Cell<Nanos>>);

impl Clock for StepClock {
    fn now(&self) -> Nanos {
        self.0.set(self.0.get() + 1_000);
        self.0.get()
    }
    fn origin_unix_ms(&self) -> u64 {
        0
    }
    fn resolution_ns(&self) -> u64 {
        1_000
    }
}

/// Takes no time, and says that each stage took some.
struct StagedRunner {
    stages: Option<StageTimes>,
}

const STAGES: StageTimes = StageTimes { embed_ns: 10, layers_ns: 200, head_ns: 30, sample_ns: 4 };

impl ModelRunner for StagedRunner {
    async fn execute(&mut self, batch: &Batch) -> Result<RunnerOutput, RunnerError> {
        let token = |row: &firstlight_engine::sched::SampleRow| SampledToken {
            token: row.position % 100,
            logprobs: None,
        };
        let tokens = batch.sample_rows.iter().map(token).collect();
        Ok(RunnerOutput { tokens, gpu_ns: self.stages.map(|_| 244), stages: self.stages })
    }
}

const FACTS: Facts = Facts {
    shape: ModelShape {
        embedding_row_bytes: 8,
        layers_bytes: 1_000,
        layers_weights: 2_000,
        head_bytes: 500,
        head_weights: 1_000,
        hidden_size: 16,
        vocab_size: 100,
        kv_bytes_a_token: 64,
        attention_operations: 32,
    },
    rates: Some(Rates { gigabytes: 10.0, gigaflops: 100.0 }),
    timestamps: true,
    sample_on: SampleOn::Gpu,
    block_size: 8,
    text: TextBytes { prompt: 20, rendered: Some(60), answer: 12 },
};

struct World {
    engine: Engine<StagedRunner, StepClock>,
    clock: StepClock,
    steps: Vec<StepRecord>,
    ended: BTreeMap<u64, RequestTimeline>,
    generated: BTreeMap<u64, u32>,
}

impl World {
    fn new(slots: u32, blocks: u32, batch_tokens: u32) -> Self {
        Self::with_blocks_of(8, slots, blocks, batch_tokens)
    }

    fn with_blocks_of(block_size: u32, slots: u32, blocks: u32, batch_tokens: u32) -> Self {
        let clock = StepClock::default();
        let scheduler = SchedulerConfig {
            max_num_seqs: slots,
            max_batch_tokens: batch_tokens,
            block_size,
            num_blocks: blocks,
            max_model_len: 64,
            max_waiting: 8,
            vocab_size: 100,
            prefix_cache: false,
            prefix_hash_bits: 64,
            priority_step_ns: PRIORITY_STEP_NS,
        };
        let config = EngineConfig {
            scheduler,
            eos_tokens: Vec::new(),
            model: Default::default(),
            engine_config: String::new(),
        };
        let engine = Engine::new(StagedRunner { stages: Some(STAGES) }, clock.clone(), config, None);
        Self { engine, clock, steps: Vec::new(), ended: BTreeMap::new(), generated: BTreeMap::new() }
    }

    fn ask(&mut self, id: u64, prompt_len: u32, max_tokens: u32) {
        let now = || self.clock.now();
        let stamps = HostStamps {
            received: now(),
            checked: now(),
            routed: now(),
            preparing: now(),
            templated: now(),
            tokenised: now(),
            created: now(),
        };
        let prompt = (0..prompt_len).map(|i| (i + id as u32 * 7) % 100).collect();
        let params = SamplingParams { max_tokens, ..Default::default() };
        self.engine.submit(Request::new(RequestId(id), prompt, params, stamps));
    }

    fn step(&mut self) {
        let output = block_on(self.engine.step(), || {}).unwrap();
        self.steps.extend(output.step);
        for event in output.events {
            match event {
                RequestEvent::Token { id, .. } => *self.generated.entry(id.0).or_default() += 1,
                RequestEvent::Finished { id, timeline, .. } => {
                    self.ended.insert(id.0, *timeline);
                }
            }
        }
    }

    fn abort(&mut self, id: u64) {
        let now = self.clock.now();
        self.engine.abort(RequestId(id), FinishReason::Cancelled, now);
    }

    fn finish(&mut self) {
        while self.engine.has_work() {
            self.step();
        }
    }

    /// The table of an ended request, with every claim that holds for all of them.
    fn check(&self, timeline: &RequestTimeline, facts: &Facts) -> Vec<Row> {
        timeline.check().unwrap();
        let rows = rows(timeline, &self.steps, facts);
        let stages: Vec<u8> = rows.iter().map(|row| row.stage).collect();
        assert_eq!(stages, (1..=12).collect::<Vec<u8>>());
        let whole = whole(timeline).unwrap();
        assert_eq!(Some(whole), timeline.e2e());
        let top = rows.iter().filter(|row| row.inside.is_none());
        assert_eq!(top.map(|row| row.ns.unwrap()).sum::<Nanos>(), whole, "{timeline:#?}");
        let inner: Vec<u8> = rows.iter().filter(|row| row.inside == Some(7)).map(|row| row.stage).collect();
        assert_eq!(inner, [5, 6, 8, 9]);
        let printed = print::table(&rows, whole);
        assert!(printed.lines().all(|line| line.chars().count() <= print::WIDTH), "{printed}");
        rows
    }
}

fn ns(rows: &[Row], stage: u8) -> Option<Nanos> {
    rows.iter().find(|row| row.stage == stage).unwrap().ns
}

fn bound(rows: &[Row], stage: u8) -> &str {
    &rows.iter().find(|row| row.stage == stage).unwrap().bound
}

#[test]
fn a_streamed_answer_is_cut_at_its_first_write_and_its_last() {
    let mut world = World::new(2, 8, 16);
    world.ask(0, 5, 4);
    while !world.generated.contains_key(&0) {
        world.step();
    }
    let (text, write) = (world.clock.now(), world.clock.now());
    world.finish();
    let mut timeline = world.ended[&0].clone();
    timeline.first_text(text);
    timeline.first_write(write);
    timeline.last_write(world.clock.now() + 500);
    timeline.seal().unwrap();
    let stamps = *timeline.stamps();
    let rows = world.check(&timeline, &FACTS);
    assert_eq!(ns(&rows, 1), Some(3_000), "received to preparing");
    assert_eq!((ns(&rows, 2), ns(&rows, 3)), (Some(1_000), Some(1_000)));
    let prefill = timeline.parts().unwrap().engine.unwrap().prefill.total();
    assert_eq!(ns(&rows, 7), Some(prefill));
    assert_eq!(ns(&rows, 10), Some(write - stamps.first_token.unwrap()));
    assert_eq!(ns(&rows, 11), Some(stamps.finished.unwrap() - write));
    assert_eq!(ns(&rows, 12), Some(stamps.last_write.unwrap() - stamps.finished.unwrap()));
    assert_eq!(ns(&rows, 5), Some(world.steps[0].submit_at - world.steps[0].schedule_at));
    assert_eq!((ns(&rows, 6), ns(&rows, 8), ns(&rows, 9)), (Some(10), Some(30), Some(4)));
    assert_eq!(bound(&rows, 5), "0/5 cached, 1 block");
    assert!(bound(&rows, 7).starts_with("compute: "), "{}", bound(&rows, 7));
}

#[test]
fn text_that_is_written_after_the_end_comes_after_the_decoding() {
    for max_tokens in [1, 5] {
        let mut world = World::new(2, 8, 16);
        world.ask(0, 5, max_tokens);
        world.finish();
        let mut timeline = world.ended[&0].clone();
        let whole_answer = timeline.clone();
        let (text, write, last) = (world.clock.now(), world.clock.now(), world.clock.now());
        timeline.first_text(text);
        timeline.first_write(write);
        timeline.last_write(last);
        timeline.seal().unwrap();
        let finished = timeline.stamps().finished.unwrap();
        let decode = timeline.decode().unwrap().total();
        let rows = world.check(&timeline, &FACTS);
        assert_eq!(ns(&rows, 10), Some(write - finished));
        assert_eq!(ns(&rows, 11), Some(decode));
        assert_eq!(ns(&rows, 12), Some(last - write));
        let rows = world.check(&whole_answer, &FACTS);
        assert_eq!((ns(&rows, 10), ns(&rows, 11), ns(&rows, 12)), (Some(0), Some(decode), Some(0)));
        assert_eq!(bound(&rows, 10), "not streamed: one write");
        assert_eq!(bound(&rows, 11) == "one token is no loop", max_tokens == 1);
    }
}

#[test]
fn an_eviction_in_mid_prefill_is_in_the_rows_that_waited_and_computed() {
    // The older answers and grows by a block every other step; the younger's prompt goes in a token a step beside it, and
    // has to go where the older needs the ninth of eight blocks.
    let mut world = World::with_blocks_of(2, 2, 8, 2);
    world.ask(0, 2, 14);
    world.ask(1, 9, 3);
    world.finish();
    let timeline = &world.ended[&1];
    let engine = timeline.parts().unwrap().engine.unwrap();
    assert!(
        timeline.preemptions() > 0 && engine.lost_prefill > 0 && engine.requeue.total() > 0,
        "{engine:?}"
    );
    let rows = world.check(timeline, &FACTS);
    assert_eq!(ns(&rows, 7), Some(engine.lost_prefill + engine.prefill.total()));
    let inbox = engine.inbox.step + engine.inbox.model_load;
    let waited = 1_000 + inbox + engine.queue_wait.total() + engine.requeue.total();
    assert_eq!(ns(&rows, 4), Some(waited));
    assert_eq!(bound(&rows, 4), "waiting: free KV blocks");
    let computed: u32 = timeline.attempts().iter().map(|attempt| attempt.computed).sum();
    assert!(computed > 9 && ns(&rows, 6) > Some(60), "each attempt is in the embedding's time: {rows:?}");
    world.check(&world.ended[&0], &FACTS);
}

#[test]
fn an_eviction_after_the_first_token_is_in_the_decode_loop() {
    let mut world = World::new(2, 3, 16);
    world.ask(0, 7, 14);
    world.ask(1, 7, 4);
    world.finish();
    let evicted = world.ended.values().find(|timeline| timeline.preemptions() > 0).unwrap();
    let decode = evicted.decode().unwrap();
    assert!(decode.requeue > 0 && decode.recompute > 0, "{decode:?}");
    let rows = world.check(evicted, &FACTS);
    assert_eq!(ns(&rows, 11), Some(decode.total()));
    assert_eq!(bound(&rows, 11), "waiting after an eviction");
    assert_eq!(ns(&rows, 6), Some(10), "what was computed again is no prefill");
}

#[test]
fn a_request_without_a_first_token_ends_in_the_row_that_it_had_come_to() {
    // In the inbox, in the queue, in mid-prefill.
    for steps in 0..3 {
        let mut world = World::new(1, 8, 4);
        world.ask(0, 4, if steps == 1 { 9 } else { 1 });
        if steps == 1 {
            world.step();
        }
        world.ask(1, 20, 5);
        (0..steps).for_each(|_| world.step());
        world.abort(1);
        world.finish();
        let timeline = &world.ended[&1];
        assert_eq!(timeline.stamps().first_token, None);
        let rows = world.check(timeline, &FACTS);
        assert_eq!(timeline.attempts().is_empty(), bound(&rows, 5) == "not reached");
        assert_eq!(timeline.attempts().is_empty(), steps < 2);
        for stage in [8, 9] {
            assert_eq!((ns(&rows, stage), bound(&rows, stage)), (None, "not reached"));
        }
        assert_eq!((ns(&rows, 10), ns(&rows, 11), bound(&rows, 11)), (Some(0), Some(0), "not reached"));
    }
}

#[test]
fn a_refused_request_has_a_table_too() {
    let mut world = World::new(1, 2, 4);
    world.ask(0, 30, 5);
    world.finish();
    let timeline = &world.ended[&0];
    assert_eq!(timeline.finish_reason(), Some(FinishReason::Rejected));
    let rows = world.check(timeline, &FACTS);
    assert!(ns(&rows, 4) > Some(0));
    // In preparation: the template was rendered and the tokenizer refused it.
    let mut timeline =
        RequestTimeline::new(RequestId(9), RequestLabels::default(), world.engine.labels().clone());
    let edges = [Edge::Received, Edge::Checked, Edge::Routed, Edge::Preparing, Edge::Templated];
    edges.into_iter().zip([100, 110, 130, 170, 250]).for_each(|(edge, at)| timeline.advance(edge, at));
    timeline.advance(Edge::Finished { reason: FinishReason::Rejected, detail: None }, 400);
    let rows = world.check(&timeline, &FACTS);
    assert_eq!((ns(&rows, 1), ns(&rows, 2), ns(&rows, 3)), (Some(70), Some(80), Some(150)));
    assert_eq!(bound(&rows, 4), "not reached");
}

#[test]
fn rows_that_nobody_measured_say_so() {
    let check = |facts: Facts, stages: Option<StageTimes>, sample: (Option<Nanos>, &str)| {
        let mut world = World::new(1, 8, 16);
        *world.engine.runner_mut() = StagedRunner { stages };
        world.ask(0, 5, 3);
        world.finish();
        let rows = world.check(&world.ended[&0], &facts);
        assert_eq!((ns(&rows, 9), bound(&rows, 9)), sample);
        for stage in [6, 8] {
            assert_eq!(bound(&rows, stage) == "not measured on this adapter", stages.is_none(), "{rows:?}");
            assert_eq!(ns(&rows, stage).is_some(), stages.is_some());
        }
        // The host's clock times these, and no adapter's is needed.
        for stage in [7, 11] {
            assert!(ns(&rows, stage) > Some(0) && bound(&rows, stage).contains("GB/s"), "{rows:?}");
        }
    };
    let bare = Facts { timestamps: false, rates: None, ..FACTS };
    let not_here = "not measured on this adapter";
    check(bare, None, (None, not_here));
    let on_cpu = "on the CPU, not timed apart";
    check(Facts { sample_on: SampleOn::Cpu, ..bare }, None, (None, on_cpu));
    let cut = StageTimes { sample_ns: 0, ..STAGES };
    let slow = Rates { gigabytes: 1.0, gigaflops: 1e6 };
    check(Facts { sample_on: SampleOn::Cpu, rates: Some(slow), ..FACTS }, Some(cut), (None, on_cpu));
    check(Facts { rates: Some(slow), ..FACTS }, Some(STAGES), (Some(4), "one workgroup a row"));
}

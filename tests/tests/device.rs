//! A real device that is lost, refuses a call, is too small or is used again: typed errors, no garbage, no leak.

mod doctor;
mod kernels_checked;
mod passes;

use std::collections::BTreeMap;

use firstlight_engine::engine::{Engine, EngineConfig, RequestEvent, StepOutput};
use firstlight_engine::error::DeviceError;
use firstlight_engine::gpu::{
    Device, DeviceOptions, KernelChoice, LimitCaps, MatmulFamily, SampleOn, TIMESTAMP_BYTES,
};
use firstlight_engine::model::{Checkpoint, LoadFailure, MemorySource, PassLimits};
use firstlight_engine::request::{FinishReason, HostStamps, Request, RequestId, SamplingParams};
use firstlight_engine::runner::{GpuRunner, RunnerError};
use firstlight_engine::sched::{Batch, BlockId, PRIORITY_STEP_NS, SampleRow, SchedulerConfig};
use firstlight_engine::timeline::ModelLabel;
use firstlight_shaders::matmul_tiled::Arithmetic;
use firstlight_shaders::{Activations, Home, KvFormat, WeightFormat};
use firstlight_tests::gpu::{drive, open};
use firstlight_tests::reference::nmse;
use firstlight_tests::served::{LIMITS, Setup, TickClock, exact, greedy, load, run};
use firstlight_tests::tiny_model::TinyModel;

fn tiny(model: &TinyModel) -> Checkpoint<MemorySource> {
    let source = MemorySource { name: "tiny.gguf".into(), bytes: model.gguf().bytes() };
    pollster::block_on(Checkpoint::open_gguf(source)).expect("the tiny model opens")
}

fn prompt(len: u32, seed: u32) -> Vec<u32> {
    (0..len).map(|i| (i * 37 + seed * 11 + 3) % 160).collect()
}

fn try_load(
    device: Device,
    checkpoint: &Checkpoint<MemorySource>,
    limits: PassLimits,
    choice: Option<KernelChoice>,
) -> Result<GpuRunner, LoadFailure> {
    let choice = choice.unwrap_or_else(|| exact(&device));
    let handle = device.handle().clone();
    let mut runner = drive(&handle, GpuRunner::load(device, checkpoint, limits, choice, &mut |_| ()))?;
    drive(&handle, runner.warm_up())?;
    Ok(runner)
}

/// A prompt and how it is answered.
type Asked = (Vec<u32>, SamplingParams);

/// The kernels of GPUs.
const SPLIT: KernelChoice = KernelChoice {
    matmul: MatmulFamily::Split,
    home: Home::Buffer,
    work_home: Home::Buffer,
    subgroups: false,
    quads: false,
    sample_on: SampleOn::Gpu,
    activations: Activations::F32,
    tile_arithmetic: Arithmetic::F32,
    kv: KvFormat::F32,
};

/// The answers of one request after another.
fn solo(runner: &mut GpuRunner, requests: &[Asked]) -> Vec<Vec<u32>> {
    let one = |request| run(runner, LIMITS, LIMITS.into(), std::slice::from_ref(request)).remove(0).ids();
    requests.iter().map(one).collect()
}

/// An engine with two slots whose events are collected.
struct Bench {
    engine: Engine<GpuRunner, TickClock>,
    tokens: BTreeMap<u64, Vec<u32>>,
    ended: BTreeMap<u64, FinishReason>,
}

impl Bench {
    fn new(runner: GpuRunner) -> Self {
        let scheduler = SchedulerConfig {
            max_num_seqs: 2,
            max_batch_tokens: LIMITS.max_batch_tokens,
            block_size: LIMITS.block_size,
            num_blocks: LIMITS.num_blocks,
            max_model_len: LIMITS.max_model_len,
            max_waiting: 10,
            vocab_size: runner.vocab_size(),
            prefix_cache: false,
            prefix_hash_bits: 64,
            priority_step_ns: PRIORITY_STEP_NS,
        };
        let config = EngineConfig {
            scheduler,
            eos_tokens: vec![],
            model: ModelLabel::default(),
            engine_config: String::new(),
        };
        let engine = Engine::new(runner, TickClock::default(), config, None);
        Self { engine, tokens: BTreeMap::new(), ended: BTreeMap::new() }
    }

    fn submit(&mut self, requests: &[Asked]) {
        for (id, (prompt, params)) in (0..).zip(requests) {
            let stamps = HostStamps::at(firstlight_engine::clock::Clock::now(self.engine.clock()));
            let request = Request::new(RequestId(id), prompt.clone(), params.clone(), stamps);
            self.engine.submit(request);
        }
    }

    fn step(&mut self) -> Result<(), RunnerError> {
        let handle = self.engine.runner().device().handle().clone();
        match drive(&handle, self.engine.step()) {
            Ok(output) => {
                self.collect(output);
                Ok(())
            }
            Err(failed) => {
                self.collect(failed.output);
                Err(failed.error)
            }
        }
    }

    fn collect(&mut self, output: StepOutput) {
        for event in output.events {
            match event {
                RequestEvent::Token { id, token, .. } => {
                    self.tokens.entry(id.0).or_default().push(token.token);
                }
                RequestEvent::Finished { id, reason, mut timeline, .. } => {
                    timeline.seal().expect("the timeline keeps every rule");
                    assert_eq!(self.ended.insert(id.0, reason), None, "{id} ends once");
                }
            }
        }
    }

    fn finish(&mut self) {
        while self.engine.has_work() {
            self.step().expect("the step runs");
        }
        let counters = self.engine.counters();
        assert_eq!(counters.blocks_free, counters.blocks_total, "every block is free again");
    }
}

/// Three requests for two slots, and their answers.
fn three_requests(checkpoint: &Checkpoint<MemorySource>) -> (Vec<Asked>, Vec<Vec<u32>>) {
    let requests: Vec<_> = (0..3).map(|i| (prompt(9 + 5 * i, i), greedy(8))).collect();
    let answers = solo(&mut load(checkpoint, Setup::default()), &requests);
    (requests, answers)
}

#[test]
fn a_destroyed_device_ends_those_who_run_by_name_and_a_new_one_goes_on() {
    let checkpoint = tiny(&TinyModel::default());
    let (requests, answers) = three_requests(&checkpoint);
    let mut bench = Bench::new(load(&checkpoint, Setup::default()));
    bench.submit(&requests);
    for _ in 0..3 {
        bench.step().expect("the device is there");
    }
    bench.engine.runner().device().handle().destroy();
    let error = bench.step().expect_err("the device is gone");
    assert!(matches!(error, RunnerError::DeviceLost(_)), "{error:?}");
    let text = error.to_string();
    assert!(text.contains("device_lost") && !text.contains("[object"), "{text}");
    assert_eq!(bench.ended, BTreeMap::from([(0, FinishReason::Failed), (1, FinishReason::Failed)]));
    for id in [0, 1] {
        assert_eq!(bench.tokens[&id], answers[id as usize][..3], "what came before was right");
    }
    let counters = bench.engine.counters();
    assert_eq!((counters.running, counters.waiting), (0, 1));
    assert_eq!(counters.blocks_free, counters.blocks_total);

    drop(bench.engine.replace_runner(load(&checkpoint, Setup::default())));
    bench.finish();
    assert_eq!(bench.ended[&2], FinishReason::Length);
    assert_eq!(bench.tokens[&2], answers[2]);
}

#[test]
fn a_lost_device_stays_lost() {
    let checkpoint = tiny(&TinyModel::default());
    let mut bench = Bench::new(load(&checkpoint, Setup::default()));
    let requests: Vec<_> = (0..4).map(|i| (prompt(5, i), greedy(3))).collect();
    bench.submit(&requests);
    bench.engine.runner().device().handle().destroy();
    for _ in 0..2 {
        assert!(matches!(bench.step(), Err(RunnerError::DeviceLost(_))));
    }
    assert_eq!(bench.ended.len(), 4, "two a step");
    assert!(bench.tokens.is_empty(), "no token ever");
}

#[test]
fn a_refused_call_fails_one_step_and_not_those_that_follow() {
    let checkpoint = tiny(&TinyModel::default());
    let (requests, answers) = three_requests(&checkpoint);
    let mut bench = Bench::new(load(&checkpoint, Setup::default()));
    bench.submit(&requests);
    bench.step().expect("nothing was refused");
    // Nobody watches this call, and it is invalid: a buffer that is mapped may not be a vertex buffer too.
    let _ = bench.engine.runner().device().handle().create_buffer(&wgpu::BufferDescriptor {
        label: Some("refused"),
        size: 64,
        usage: wgpu::BufferUsages::MAP_READ | wgpu::BufferUsages::MAP_WRITE | wgpu::BufferUsages::VERTEX,
        mapped_at_creation: false,
    });
    let error = bench.step().expect_err("the call was refused");
    assert!(matches!(&error, RunnerError::Internal(reason) if reason.contains("refused")), "{error:?}");
    assert_eq!(bench.ended.len(), 2);
    bench.finish();
    assert_eq!((bench.ended[&2], &bench.tokens[&2]), (FinishReason::Length, &answers[2]));
}

/// What the driver's allocator holds once everything that was given up is freed.
fn settled_bytes(device: &Device) -> u64 {
    device.handle().poll(wgpu::PollType::wait_indefinitely()).expect("the device answers");
    device.allocated_bytes().expect("this back end counts its allocations")
}

#[test]
fn an_engine_given_up_leaves_nothing_behind_and_the_next_one_works() {
    let checkpoint = tiny(&TinyModel { matrix_type: WeightFormat::Q8_0, ..TinyModel::default() });
    let requests = [(prompt(20, 1), greedy(6))];
    let mut device = open(DeviceOptions::default());
    let start = settled_bytes(&device);
    let (mut answers, mut rests) = (Vec::new(), Vec::new());
    for _ in 0..3 {
        let mut runner = try_load(device, &checkpoint, LIMITS, None).expect("the model loads");
        answers.push(solo(&mut runner, &requests));
        assert!(settled_bytes(runner.device()) > start, "a model takes memory");
        device = runner.into_device();
        rests.push(settled_bytes(&device));
    }
    // The driver keeps what it took when the device was opened, or less.
    assert!(rests[0] <= start && rests == [rests[0]; 3], "{start} bytes at the start, then {rests:?}");
    // And from a device of its own, after the other is gone.
    drop(device);
    answers.push(solo(&mut load(&checkpoint, Setup::default()), &requests));
    assert!(answers.iter().all(|a| a == &answers[0]), "{answers:?}");
}

/// Bytes that a model of two layers of 64 may reserve: its buffers, and what the allocator holds ready.
const RESERVED: u64 = 32 << 20;

#[test]
fn requests_one_after_another_take_nothing_for_good() {
    let checkpoint = tiny(&TinyModel::default());
    let mut runner = load(&checkpoint, Setup::default());
    let mut held = Vec::new();
    for i in 0..40 {
        // `run` sees to the blocks: all are free at the end of each.
        run(&mut runner, LIMITS, LIMITS.into(), &[(prompt(1 + 7 * i % 60, i), greedy(4))]);
        held.push(settled_bytes(runner.device()));
    }
    // What the driver stages for the first uploads comes and goes; from then on nothing is taken.
    assert_eq!(held[10], held[39], "{held:?}");
    let report = runner.device().handle().generate_allocator_report();
    let reserved = report.expect("this back end counts its allocations").total_reserved_bytes;
    println!("{} bytes are held, {reserved} reserved", held[39]);
    assert!(reserved <= RESERVED, "{reserved} bytes for {} that are held", held[39]);
}

#[test]
fn without_optional_features_the_ids_are_the_same() {
    let checkpoint = tiny(&TinyModel::default());
    let (requests, answers) = three_requests(&checkpoint);
    let mut runner = load(&checkpoint, Setup { default_limits: true, ..Setup::default() });
    let facts = runner.device().facts();
    assert_eq!((facts.f16, facts.subgroups, facts.timestamps), (false, false, false));
    assert_eq!(solo(&mut runner, &requests), answers);
}

fn check_refused(caps: LimitCaps, limits: PassLimits, wanted_what: &str, wanted_bytes: u64, limit: u64) {
    let device = open(DeviceOptions { default_limits: true }).capped(caps);
    let handle = device.handle().clone();
    let start = settled_bytes(&device);
    match try_load(device, &tiny(&TinyModel::default()), limits, None).map(|_| "a runner") {
        Err(LoadFailure::Device(DeviceError::OutOfMemory { what, needed_bytes, reason })) => {
            assert_eq!((what.as_str(), needed_bytes), (wanted_what, wanted_bytes));
            assert!(reason.contains(&limit.to_string()), "{reason}");
        }
        other => panic!("{wanted_what}: {other:?}"),
    }
    handle.poll(wgpu::PollType::wait_indefinitely()).expect("the device answers");
    let report = handle.generate_allocator_report().expect("this back end counts its allocations");
    assert!(report.total_allocated_bytes <= start, "what was taken before the refusal is given back");
}

#[test]
fn what_does_not_fit_is_refused_at_load_with_its_name_and_size() {
    // Two heads of 16 floats: 2 KiB a block. The default limit of a binding is 128 MiB.
    let binding = 128 << 20;
    let blocks = PassLimits { num_blocks: 65_537, ..LIMITS };
    check_refused(LimitCaps::default(), blocks, "KV cache (keys of a layer)", binding + 2048, binding);
    let caps = LimitCaps { max_buffer_bytes: 512 * 2048 - 4, ..LimitCaps::default() };
    let blocks = PassLimits { num_blocks: 512, ..LIMITS };
    check_refused(caps, blocks, "KV cache (keys of a layer)", 512 * 2048, 512 * 2048 - 4);
    // The read-back buffer: timestamps, a token and 192 logits for each of 200 sequences.
    let caps = LimitCaps { max_buffer_bytes: 200 * 192 * 4, ..LimitCaps::default() };
    let limits = PassLimits { max_num_seqs: 200, max_batch_tokens: 8, num_blocks: 32, ..LIMITS };
    check_refused(caps, limits, "read-back", TIMESTAMP_BYTES + 200 * 4 + 200 * 192 * 4, 200 * 192 * 4);
}

#[test]
fn kernels_of_odd_models_are_tested_at_load_and_pass() {
    let models = [
        TinyModel { matrix_type: WeightFormat::Q4_1, tied: false, biases: true, ..TinyModel::default() },
        TinyModel {
            hidden_size: 72,
            intermediate_size: 104,
            num_heads: 5,
            num_kv_heads: 1,
            head_dim: 8,
            matrix_type: WeightFormat::F16,
            ..TinyModel::default()
        },
    ];
    for (model, choice) in models.iter().zip([None, Some(SPLIT)]) {
        let device = open(DeviceOptions::default());
        assert_eq!(device.is_doubted(), !device.facts().is_cpu);
        let limits = PassLimits { block_size: 24, ..LIMITS };
        let runner = try_load(device.doubted(), &tiny(model), limits, choice);
        assert!(runner.is_ok(), "{:?}", runner.err());
    }
}

#[test]
fn while_a_model_loads_every_kernel_runs_that_a_batch_can_need() {
    let check = |max_batch_tokens, max_num_seqs, all_run: bool| {
        let limits = PassLimits { max_batch_tokens, max_num_seqs, ..LIMITS };
        let device = open(DeviceOptions::default());
        let runner = try_load(device, &tiny(&TinyModel::default()), limits, None).expect("the model loads");
        assert!(runner.num_warm_kernels() > 0);
        assert_eq!(runner.num_warm_kernels() == runner.num_kernels(), all_run, "{limits:?}");
    };
    check(8, 4, true);
    // Tiles for two rows and more are compiled, and never needed.
    check(1, 1, false);
}

#[test]
fn activations_in_8_bits_are_refused_with_what_to_do() {
    let check = |matrix_type, choice: KernelChoice, expected: &[&str]| {
        let choice = KernelChoice { activations: Activations::I8, ..choice };
        let model = tiny(&TinyModel { matrix_type, ..TinyModel::default() });
        let refused = try_load(open(DeviceOptions::default()), &model, LIMITS, Some(choice));
        let refused = refused.err().expect("it is refused").to_string();
        for part in expected.iter().chain(&["--activations f32"]) {
            assert!(refused.contains(part), "{refused:?} lacks {part:?}");
        }
    };
    let lanes = KernelChoice::for_adapter(open(DeviceOptions::default()).facts());
    check(WeightFormat::Q8_0, lanes, &["attn_q.weight is Q8_0", "Q4_0 and Q4_1"]);
    check(WeightFormat::Q4_0, SPLIT, &["i8 activations on", "f32 alone"]);
}

/// A tiny model in every way that layers can be laid out: with one matrix for gate and up or two, heads that are whole blocks or
/// not, norms fused into products or apart. The logits are those of the exact kernels, but for what 8 bits lose.
#[test]
fn activations_in_8_bits_fit_every_layout() {
    let nmse_of = |model: &TinyModel, choice: KernelChoice| {
        let exact = logits(LimitCaps::default(), model, choice).0;
        let rounded = KernelChoice { activations: Activations::I8, ..choice };
        let got = logits(LimitCaps::default(), model, rounded).0;
        nmse(&got, exact.iter().map(|&l| f64::from(l)))
    };
    let fused = KernelChoice::for_adapter(open(DeviceOptions::default()).facts());
    let apart = KernelChoice { work_home: Home::Buffer, subgroups: false, ..fused };
    let small = |head_dim| TinyModel {
        vocab_size: 5000,
        matrix_type: WeightFormat::Q4_0,
        head_dim,
        ..TinyModel::default()
    };
    let odd = TinyModel { odd_type: Some(WeightFormat::Q4_1), biases: true, ..small(32) };
    for (model, choice) in [(small(64), fused), (small(16), fused), (small(16), apart), (odd, fused)] {
        let error = nmse_of(&model, choice);
        assert!((1e-8..1e-2).contains(&error), "{choice}: {error:e}");
    }
}

/// Logits of a prompt, and how many dispatches the pass has.
fn logits(caps: LimitCaps, model: &TinyModel, choice: KernelChoice) -> (Vec<f32>, usize) {
    let limits = PassLimits { max_batch_tokens: 16, num_blocks: 16, max_model_len: 64, ..LIMITS };
    let device = open(DeviceOptions::default()).capped(caps);
    let mut runner = try_load(device, &tiny(model), limits, Some(choice)).expect("the model loads");
    let handle = runner.device().handle().clone();
    // The last token is of the last piece of the embedding.
    let tokens = [7, 2047, 2048, 4095, 4096, model.vocab_size as u32 - 1];
    let batch = Batch {
        ahead: false,
        block_copies: Vec::new(),
        token_ids: tokens.to_vec(),
        positions: (0..6).collect(),
        slot_mapping: (0..6).collect(),
        query_start: vec![0, 6],
        seq_lens: vec![6],
        block_tables: vec![vec![BlockId(0)]],
        sample_rows: vec![SampleRow {
            row: 5,
            params: Default::default(),
            position: 6,
            history: vec![],
            prompt_len: 6,
        }],
    };
    (drive(&handle, runner.logits(&batch)).expect("a pass").remove(0), runner.num_dispatches())
}

#[test]
fn weights_in_pieces_give_the_same_logits() {
    let model = |matrix_type| TinyModel {
        vocab_size: 5000,
        intermediate_size: 1536,
        num_layers: 1,
        matrix_type,
        ..TinyModel::default()
    };
    let lanes = |home| KernelChoice {
        matmul: MatmulFamily::Lanes,
        home,
        work_home: Home::Buffer,
        subgroups: false,
        quads: false,
        sample_on: SampleOn::Cpu,
        activations: Activations::F32,
        tile_arithmetic: Arithmetic::F32,
        kv: KvFormat::F32,
    };
    // 64 groups of 32 columns of 64 F32 weights take half a MiB; one more does not fit. As Q8_0 they take 131,072 bytes.
    let f32s = LimitCaps { max_binding_bytes: 65 * 8192 - 16, ..LimitCaps::default() };
    let bytes = LimitCaps { max_binding_bytes: 262_144 - 16, ..LimitCaps::default() };
    // 1,024 lines: 64 groups of 16 lines.
    let texels = LimitCaps { max_texture_side: 16, ..LimitCaps::default() };
    for (matrix_type, choice, caps) in [
        (WeightFormat::F32, SPLIT, f32s),
        (WeightFormat::Q8_0, lanes(Home::Buffer), bytes),
        (WeightFormat::F32, lanes(Home::Texture), texels),
    ] {
        let model = model(matrix_type);
        let (whole, dispatches) = logits(LimitCaps::default(), &model, choice);
        let (pieces, more) = logits(caps, &model, choice);
        // Embedding and head in three pieces, gate and up in two.
        assert_eq!(more, dispatches + 2 + 2 + 1, "{choice}");
        let bits = |logits: &[f32]| logits.iter().map(|v| v.to_bits()).collect::<Vec<_>>();
        assert_eq!(bits(&pieces), bits(&whole), "{choice}");
    }
}

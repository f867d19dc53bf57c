//! The default model against its reference, and the same ids however the work is cut.

mod activations;
mod divergence;
mod kv_cache;
mod prefix;

use std::path::PathBuf;
use std::sync::Arc;

use firstlight_engine::gpu::{KernelChoice, MatmulFamily, SampleOn};
use firstlight_engine::model::{Checkpoint, MemorySource};
use firstlight_engine::request::SamplingParams;
use firstlight_engine::runner::GpuRunner;
use firstlight_engine::sched::{Batch, BlockId, SampleRow};
use firstlight_shaders::matmul_tiled::Arithmetic;
use firstlight_shaders::{Activations, Home, KvFormat, WeightFormat};
use firstlight_tests::gpu::drive;
use firstlight_tests::reference::{frequencies, last_logits, nmse};
use firstlight_tests::served::{Answer, LIMITS, Schedule, Setup, greedy, load, run};
use firstlight_tests::tiny_model::{TinyModel, llama_gguf};
use firstlight_tests::{FileSource, default_model_path, full, golden_path};
use safetensors::SafeTensors;
use serde_json::Value;

fn default_model() -> Checkpoint<FileSource> {
    let source = FileSource::open(&default_model_path()).expect("readable");
    pollster::block_on(Checkpoint::open_gguf(source)).expect("the default model opens")
}

fn json(path: PathBuf) -> Value {
    let text = std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    serde_json::from_str(&text).expect("JSON")
}

fn ids(value: &Value) -> Vec<u32> {
    value.as_array().expect("a list").iter().map(|v| v.as_u64().expect("an id") as u32).collect()
}

struct Golden {
    name: String,
    prompt: Vec<u32>,
    greedy: Vec<u32>,
}

fn goldens() -> Vec<Golden> {
    let all = json(golden_path("golden.json"));
    let prompts = all["prompts"].as_array().expect("prompts");
    let golden = |p: &Value| Golden {
        name: p["name"].as_str().expect("a name").to_string(),
        prompt: ids(&p["input_ids"]),
        greedy: ids(&p["greedy_ids"]),
    };
    prompts.iter().map(golden).collect()
}

fn named(name: &str) -> Option<Golden> {
    goldens().into_iter().find(|g| g.name == name)
}

/// The goldens of these names and the tokens to generate for each; in a full run all eight, and all their tokens.
fn some_goldens(names: &[&str], max_tokens: u32) -> (Vec<Golden>, u32) {
    if full() {
        return (goldens(), 48);
    }
    let some: Vec<_> = names.iter().filter_map(|name| named(name)).collect();
    assert_eq!(some.len(), names.len(), "every name is a golden prompt's");
    (some, max_tokens)
}

fn requests(goldens: &[Golden], max_tokens: u32) -> Vec<(Vec<u32>, SamplingParams)> {
    goldens.iter().map(|g| (g.prompt.clone(), greedy(max_tokens))).collect()
}

fn assert_golden(goldens: &[Golden], answers: &[Answer], max_tokens: u32, what: &str) {
    assert_eq!(goldens.len(), answers.len(), "{what}");
    for (golden, answer) in goldens.iter().zip(answers) {
        let ids = answer.ids();
        assert_eq!(ids.len(), max_tokens as usize, "{} {what}", golden.name);
        assert_eq!(ids, golden.greedy[..ids.len()], "{} {what}", golden.name);
    }
}

/// One sequence's rows from `start` on, in blocks 0, 1, ..., sampled at the last.
fn rows(tokens: &[u32], start: u32, block_size: u32) -> Batch {
    let num_rows = tokens.len() as u32;
    let end = start + num_rows;
    let params = Arc::new(SamplingParams::default());
    Batch {
        ahead: false,
        block_copies: Vec::new(),
        token_ids: tokens.to_vec(),
        positions: (start..end).collect(),
        slot_mapping: (start..end).collect(),
        query_start: vec![0, num_rows],
        seq_lens: vec![end],
        block_tables: vec![(0..end.div_ceil(block_size)).map(BlockId).collect()],
        sample_rows: vec![SampleRow {
            row: num_rows - 1,
            params,
            position: end,
            history: vec![],
            prompt_len: end,
        }],
    }
}

fn logits(runner: &mut GpuRunner, tokens: &[u32], start: u32) -> Vec<f32> {
    let handle = runner.device().handle().clone();
    let batch = rows(tokens, start, LIMITS.block_size);
    drive(&handle, runner.logits(&batch)).expect("a pass").remove(0)
}

#[test]
fn the_eight_golden_prompts_give_their_ids_in_one_batch() {
    let goldens = goldens();
    assert_eq!(goldens.len(), 8);
    let mut runner = load(&default_model(), Setup::default());
    let answers = run(&mut runner, LIMITS, LIMITS.into(), &requests(&goldens, 48));
    for (golden, answer) in goldens.iter().zip(&answers) {
        assert_eq!(answer.ids(), golden.greedy, "{}", golden.name);
        assert_eq!(answer.tokens.len(), 48, "{}", golden.name);
    }
}

#[test]
fn last_logits_of_the_golden_prompts_are_the_reference_s() {
    let mut runner = load(&default_model(), Setup::default());
    let bytes = std::fs::read(golden_path("golden.safetensors")).expect("the reference");
    let reference = SafeTensors::deserialize(&bytes).expect("the reference");
    let mut worst: f64 = 0.0;
    for golden in goldens() {
        let view = reference.tensor(&format!("{}.last_logits", golden.name)).expect("a tensor");
        let wanted: Vec<f32> = bytemuck::pod_collect_to_vec(view.data());
        let got = logits(&mut runner, &golden.prompt, 0);
        let error = nmse(&got, wanted.into_iter().map(f64::from));
        println!("{}: NMSE {error:.2e}", golden.name);
        worst = worst.max(error);
    }
    assert!(worst <= 1e-8, "NMSE {worst:e}");
}

#[test]
fn chunks_of_any_size_and_evictions_give_the_same_ids() {
    let (goldens, max_tokens) = some_goldens(&["hello", "capital", "chat_gravity", "code"], 12);
    let mut runner = load(&default_model(), Setup::default());
    let all = requests(&goldens, max_tokens);
    // 336 tokens: chunks of every size cut it.
    let (long, few) = some_goldens(&["long300"], 2);
    for batch_tokens in [7, 32, 512] {
        let schedule = Schedule { batch_tokens, ..LIMITS.into() };
        let answers = run(&mut runner, LIMITS, schedule, &requests(&long, few));
        assert_golden(&long, &answers, few, &format!("in chunks of {batch_tokens}"));
    }
    for batch_tokens in [1, 7, 32, 512] {
        let schedule = Schedule { slots: 4, batch_tokens, ..LIMITS.into() };
        let answers = run(&mut runner, LIMITS, schedule, &all);
        assert_golden(&goldens, &answers, max_tokens, &format!("in chunks of {batch_tokens}"));
    }
    // Just enough blocks for the longest of the short ones alone: they cannot all be in it at once.
    let (short, _): (Vec<_>, Vec<_>) = goldens.into_iter().partition(|g| g.name != "long300");
    let longest = short.iter().map(|g| g.prompt.len() as u32 + max_tokens).max().expect("a prompt");
    let tight = Schedule {
        slots: 4,
        batch_tokens: 24,
        blocks: longest.div_ceil(LIMITS.block_size) + 1,
        prefix_cache: false,
    };
    let answers = run(&mut runner, LIMITS, tight, &requests(&short, max_tokens));
    assert_golden(&short, &answers, max_tokens, "with a pool that is too small");
    assert!(answers.iter().any(|a| a.timeline.preemptions() > 0), "somebody is evicted");
    // Five blocks: the answer of `code` takes its third while the 39 tokens of `chat_gravity`, which need three, come in by
    // fours.
    let pair: Vec<_> = ["code", "chat_gravity"].iter().flat_map(|name| named(name)).collect();
    let tight = Schedule { slots: 4, batch_tokens: 5, blocks: 5, prefix_cache: false };
    let answers = run(&mut runner, LIMITS, tight, &requests(&pair, 12));
    assert_golden(&pair, &answers, 12, "with an eviction in mid-prefill");
    let parts = answers[1].timeline.parts().and_then(|p| p.engine).expect("engine parts");
    assert!(parts.requeue.total() > 0 && parts.lost_prefill > 0, "{parts:?}");
    assert_eq!(
        Some(parts.total()),
        answers[1].timeline.engine_ttft(),
        "the parts are the time to first token"
    );
}

#[test]
fn default_limits_give_the_same_ids() {
    let (goldens, max_tokens) = some_goldens(&["capital", "code"], 12);
    let mut runner = load(&default_model(), Setup { default_limits: true, ..Setup::default() });
    let facts = runner.device().facts();
    assert_eq!((facts.max_binding_bytes, facts.subgroups), (128 << 20, false));
    let answers = run(&mut runner, LIMITS, LIMITS.into(), &requests(&goldens, max_tokens));
    assert_golden(&goldens, &answers, max_tokens, "with default limits");
}

#[test]
fn the_kernels_for_gpus_give_the_same_ids() {
    let (goldens, max_tokens) = some_goldens(&["capital"], 4);
    for choice in [GPU_CHOICE, QUADS] {
        let mut runner = load(&default_model(), Setup { choice: Some(choice), ..Setup::default() });
        let answers = run(&mut runner, LIMITS, LIMITS.into(), &requests(&goldens, max_tokens));
        assert_golden(&goldens, &answers, max_tokens, &choice.to_string());
    }
}

#[test]
fn tiles_in_half_precision_give_nearly_the_same_logits() {
    let choice = KernelChoice { tile_arithmetic: Arithmetic::F16, ..QUADS };
    assert_eq!((QUADS.same_bits(), choice.same_bits()), (true, false));
    let checkpoint = tiny(&TinyModel { matrix_type: WeightFormat::Q4_1, ..TinyModel::default() });
    let mut runner = load(&checkpoint, Setup { choice: Some(choice), ..Setup::default() });
    let prompt = tiny_prompt(70, 2);
    let error = nmse(
        &logits(&mut runner, &prompt, 0),
        last_logits(&checkpoint, &prompt, &frequencies(checkpoint.config())),
    );
    assert!((1e-9..1e-4).contains(&error), "NMSE {error:e}");
}

#[test]
fn memory_is_taken_at_load_and_never_in_a_step() {
    let checkpoint = default_model();
    let mut runner = load(&checkpoint, Setup::default());
    let (weights, kv) = runner.resident_bytes();
    let file = checkpoint.total_bytes();
    assert!(weights as f64 <= 1.1 * file as f64, "weights take {weights} bytes, the file {file}");
    // 128 blocks of 16 tokens, 30 layers, K and V of 3 heads of 64 floats.
    assert_eq!(kv, 128 * 16 * 30 * 2 * 3 * 64 * 4);
    let handle = runner.device().handle().clone();
    let step = rows(&[19556], 0, LIMITS.block_size);
    let mut held = Vec::new();
    for _ in 0..200 {
        drive(&handle, runner.logits(&step)).expect("a pass");
        held.push(runner.device().allocated_bytes().expect("this backend counts its allocations"));
    }
    // What the driver stages for the first uploads comes and goes; from then on nothing is taken.
    assert_eq!(held[20], held[199], "GPU bytes after 20 and after 200 steps");
    // Beside weights and cache: logits and read-back of 8 rows, activations of 512, angles; and what the allocator rounds up.
    let weights_held = held[199] - kv;
    assert!(
        weights_held as f64 <= 1.1 * file as f64 + 30e6,
        "{weights_held} bytes beside the cache, the file has {file}"
    );
}

/// `arch/NAME` in three ways. As it is, against the forward pass that is written down. That forward pass against the
/// reference. And the same weights as a GGUF file, with the reference's own frequencies, against the reference.
///
/// The reference was rounded to bf16 as a whole, its table of rotary frequencies too, and computed in f32 from there: what a
/// loaded checkpoint never does. So the frequencies are rounded here as well, where the reference is the measure.
fn check_architecture(name: &str) {
    let folder = golden_path("arch").join(name);
    let config = std::fs::read(folder.join("config.json")).expect("config.json");
    let bytes = std::fs::read(folder.join("model.safetensors")).expect("model.safetensors");
    let source = MemorySource { name: format!("{name}/model.safetensors"), bytes };
    let opened = Checkpoint::open_safetensors(&config, vec![source]);
    let checkpoint = pollster::block_on(opened).expect("the fixture opens");
    let exact = frequencies(checkpoint.config());
    let rounded: Vec<f64> = exact.iter().map(|&f| half::bf16::from_f64(f).to_f64()).collect();
    let as_gguf = llama_gguf(&checkpoint, &rounded);

    let mut runner = load(&checkpoint, Setup::default());
    let mut gguf_runner = load(&as_gguf, Setup::default());
    for case in json(folder.join("golden.json"))["cases"].as_array().expect("cases") {
        let prompt = ids(&case["input_ids"]);
        let what = format!("{name}, {} tokens", prompt.len());
        let golden: Vec<f64> = case["last_logits"]
            .as_array()
            .expect("logits")
            .iter()
            .map(|v| v.as_f64().expect("a number"))
            .collect();
        let error = nmse(&logits(&mut runner, &prompt, 0), last_logits(&checkpoint, &prompt, &exact));
        assert!(error <= 1e-10, "{what}: NMSE {error:e} against the forward pass");
        let plain: Vec<f32> = last_logits(&checkpoint, &prompt, &rounded).iter().map(|&v| v as f32).collect();
        let error = nmse(&plain, golden.iter().copied());
        assert!(error <= 1e-8, "{what}: NMSE {error:e} of the forward pass against the reference");
        let error = nmse(&logits(&mut gguf_runner, &prompt, 0), golden.iter().copied());
        println!("{what}: NMSE {error:.2e}");
        assert!(error <= 1e-8, "{what}: NMSE {error:e} against the reference");
        if case["min_margin"].as_f64().expect("a margin") > 0.01 {
            let answers = run(&mut gguf_runner, LIMITS, LIMITS.into(), &[(prompt, greedy(24))]);
            assert_eq!(answers[0].ids(), ids(&case["greedy_ids"]), "{what}");
        }
    }
}

#[test]
fn rope_scaling_of_llama_3_equals_the_reference() {
    check_architecture("llama3");
}

#[test]
fn biases_and_a_separate_head_equal_the_reference() {
    check_architecture("llama-untied-bias");
}

/// What a real GPU gets, but for its subgroups.
const QUADS: KernelChoice = KernelChoice { matmul: MatmulFamily::Quads { lanes: 0 }, ..GPU_CHOICE };

/// What a real GPU may get.
const GPU_CHOICE: KernelChoice = KernelChoice {
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

/// Every set of kernels that an adapter may get.
fn choices() -> Vec<KernelChoice> {
    let lanes = |home, work_home, subgroups| KernelChoice {
        matmul: MatmulFamily::Lanes,
        home,
        work_home,
        subgroups,
        // Without them only where default limits are asked for.
        quads: !subgroups,
        sample_on: SampleOn::Cpu,
        activations: Activations::F32,
        tile_arithmetic: Arithmetic::F32,
        kv: KvFormat::F32,
    };
    vec![
        lanes(Home::Texture, Home::Texture, true),
        lanes(Home::Texture, Home::Buffer, false),
        lanes(Home::Buffer, Home::Buffer, true),
        GPU_CHOICE,
        QUADS,
    ]
}

fn tiny(model: &TinyModel) -> Checkpoint<MemorySource> {
    let source = MemorySource { name: "tiny.gguf".into(), bytes: model.gguf().bytes() };
    pollster::block_on(Checkpoint::open_gguf(source)).expect("the tiny model opens")
}

fn tiny_prompt(len: u32, seed: u32) -> Vec<u32> {
    (0..len).map(|i| (i * 37 + seed * 11 + 3) % 160).collect()
}

#[test]
fn every_format_computes_the_forward_pass_that_is_written_down() {
    for matrix_type in [
        WeightFormat::F32,
        WeightFormat::F16,
        WeightFormat::Bf16,
        WeightFormat::Q8_0,
        WeightFormat::Q4_0,
        WeightFormat::Q4_1,
    ] {
        let biases = matrix_type == WeightFormat::Q4_0;
        let model = TinyModel { matrix_type, biases, tied: !biases, ..TinyModel::default() };
        let checkpoint = tiny(&model);
        let mut runner = load(&checkpoint, Setup::default());
        let prompt = tiny_prompt(21, 1);
        let error = nmse(
            &logits(&mut runner, &prompt, 0),
            last_logits(&checkpoint, &prompt, &frequencies(checkpoint.config())),
        );
        assert!(error <= 1e-10, "{matrix_type:?}: NMSE {error:e}");
    }
}

#[test]
fn parts_that_are_stored_differently_are_not_fused_and_compute_the_same() {
    // Widths that no group of 32 columns divides: what a part pads must not touch its neighbour.
    let odd_widths =
        TinyModel { num_heads: 3, num_kv_heads: 1, head_dim: 8, intermediate_size: 40, ..odd_model() };
    for model in [
        TinyModel {
            odd_type: Some(WeightFormat::Q8_0),
            matrix_type: WeightFormat::F16,
            ..TinyModel::default()
        },
        TinyModel { odd_type: Some(WeightFormat::Bf16), ..odd_widths },
    ] {
        let checkpoint = tiny(&model);
        let wanted = last_logits(&checkpoint, &tiny_prompt(21, 1), &frequencies(checkpoint.config()));
        for choice in [None, Some(GPU_CHOICE)] {
            let mut runner = load(&checkpoint, Setup { choice, ..Setup::default() });
            let error = nmse(&logits(&mut runner, &tiny_prompt(21, 1), 0), wanted.iter().copied());
            assert!(error <= 1e-10, "{model:?}: NMSE {error:e}");
        }
    }
}

#[test]
fn linear_rope_scaling_slows_every_frequency() {
    let checkpoint = tiny(&TinyModel { rope_factor: Some(4.0), ..TinyModel::default() });
    let scaled = frequencies(checkpoint.config());
    assert_eq!(scaled[0], 0.25, "the first frequency is 1 before the factor");
    let mut runner = load(&checkpoint, Setup::default());
    let prompt = tiny_prompt(70, 3);
    let error = nmse(&logits(&mut runner, &prompt, 0), last_logits(&checkpoint, &prompt, &scaled));
    assert!(error <= 1e-10, "NMSE {error:e}");
}

/// Odd sizes: head_dim 24 (not a multiple of 32), a group of 3 query heads, widths that pad.
fn odd_model() -> TinyModel {
    TinyModel {
        hidden_size: 72,
        intermediate_size: 104,
        num_heads: 6,
        num_kv_heads: 2,
        head_dim: 24,
        matrix_type: WeightFormat::F16,
        tied: false,
        biases: true,
        ..TinyModel::default()
    }
}

#[test]
fn every_choice_of_kernels_agrees_bit_for_bit_with_itself_however_the_work_is_cut() {
    for (model, choice) in
        [TinyModel { matrix_type: WeightFormat::Q4_1, ..TinyModel::default() }, odd_model()]
            .iter()
            .flat_map(|m| choices().into_iter().map(move |c| (m, c)))
    {
        let checkpoint = tiny(model);
        let mut runner = load(&checkpoint, Setup { choice: Some(choice), ..Setup::default() });
        let prompt = tiny_prompt(70, 2);
        let whole = logits(&mut runner, &prompt, 0);
        let error = nmse(&whole, last_logits(&checkpoint, &prompt, &frequencies(checkpoint.config())));
        assert!(error <= 1e-10, "{choice}: NMSE {error:e}");
        for chunk in [1, 7, 32] {
            let mut last = Vec::new();
            for (i, tokens) in prompt.chunks(chunk).enumerate() {
                last = logits(&mut runner, tokens, (i * chunk) as u32);
            }
            assert_eq!(last, whole, "{choice}: chunks of {chunk}");
        }
    }
}

#[test]
fn a_seed_gives_the_same_tokens_whatever_else_is_in_the_batch() {
    let sampled = |seed: u64| SamplingParams {
        max_tokens: 20,
        temperature: 0.9,
        top_k: 40,
        top_p: 0.95,
        seed,
        ignore_eos: true,
        ..SamplingParams::default()
    };
    let penalised = |seed: u64| SamplingParams {
        repetition_penalty: 1.2,
        frequency_penalty: 0.3,
        logprobs: Some(3),
        ..sampled(seed)
    };
    let requests: Vec<_> = (0..6)
        .map(|i| {
            (tiny_prompt(5 + 9 * i, i), if i % 2 == 0 { sampled(i.into()) } else { penalised(i.into()) })
        })
        .collect();
    let checkpoint = tiny(&TinyModel { matrix_type: WeightFormat::Q8_0, ..TinyModel::default() });
    for choice in choices() {
        let mut runner = load(&checkpoint, Setup { choice: Some(choice), ..Setup::default() });
        let alone: Vec<_> = requests
            .iter()
            .map(|r| run(&mut runner, LIMITS, LIMITS.into(), std::slice::from_ref(r)).remove(0).tokens)
            .collect();
        assert_ne!(alone[0], alone[2], "another seed and prompt, other tokens");
        for schedule in [
            LIMITS.into(),
            Schedule { slots: 3, batch_tokens: 5, ..LIMITS.into() },
            Schedule { slots: 6, batch_tokens: 64, blocks: 7, prefix_cache: false },
        ] {
            let together = run(&mut runner, LIMITS, schedule, &requests);
            let together: Vec<_> = together.into_iter().map(|a| a.tokens).collect();
            assert_eq!(together, alone, "{choice}, {schedule:?}");
        }
    }
}

#[test]
fn an_eviction_in_mid_prefill_shows_on_the_timeline_and_the_ids_stay() {
    let checkpoint = tiny(&TinyModel::default());
    let mut runner = load(&checkpoint, Setup::default());
    let requests: Vec<_> = [47, 48, 20].into_iter().map(|len| (tiny_prompt(len, len), greedy(30))).collect();
    let free = run(&mut runner, LIMITS, LIMITS.into(), &requests);
    // Six blocks of 16: the first prompt fills three, and its second answer token wants a fourth while the second prompt,
    // which would need three, is on its way in chunks of eight.
    let tight = Schedule { slots: 4, batch_tokens: 9, blocks: 6, prefix_cache: false };
    let cut = run(&mut runner, LIMITS, tight, &requests);
    for (a, b) in free.iter().zip(&cut) {
        assert_eq!(a.ids(), b.ids());
    }
    let parts = |a: &Answer| a.timeline.parts().and_then(|p| p.engine).expect("engine parts");
    let second = parts(&cut[1]);
    assert!(second.requeue.total() > 0 && second.lost_prefill > 0, "{second:?}");
    assert_eq!(Some(second.total()), cut[1].timeline.engine_ttft(), "the parts are the time to first token");
    let decode_evictions = cut.iter().filter(|a| a.timeline.decode().is_some_and(|d| d.requeue > 0));
    assert!(decode_evictions.count() > 0, "somebody is evicted after its first token");
}

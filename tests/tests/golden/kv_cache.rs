//! The KV cache in f16 and in 8 bits beside the exact one: how far it leads astray, that nothing depends on how the work is cut,
//! and a default model with 32 requests and with a context beyond 4,096 tokens.

use firstlight_engine::gpu::{DeviceOptions, KernelChoice};
use firstlight_engine::model::PassLimits;
use firstlight_shaders::{KvFormat, WeightFormat};
use firstlight_tests::full;
use firstlight_tests::gpu::open;
use firstlight_tests::served::{Answer, LIMITS, Schedule, Setup, greedy, load, run, run_waves};
use firstlight_tests::tiny_model::TinyModel;

use super::divergence::{beside_exact, measured};
use super::{
    assert_golden, choices, default_model, goldens, logits, named, odd_model, requests, some_goldens, tiny,
    tiny_prompt,
};

const ROUNDED: [KvFormat; 2] = [KvFormat::F16, KvFormat::Q8];

/// Halves are as good as exact. 8 bits are near enough to be an option, and not to be anybody's default.
#[test]
fn rounded_caches_lead_astray_by_little() {
    for (kv, nats, agreement) in [(KvFormat::F16, 1e-5, 0.998), (KvFormat::Q8, 0.002, 0.97)] {
        let mut runners = beside_exact(|choice| KernelChoice { kv, ..choice });
        let (golden, held) = measured(&format!("KV cache in {}", kv.name()), &mut runners);
        for all in [Some(golden), held].into_iter().flatten() {
            assert!(all.mean() < nats && all.agreement() > agreement, "{kv:?}: {all:?}");
        }
    }
}

/// What an adapter gets of itself, with optional features or without.
fn adapters_own(default_limits: bool) -> KernelChoice {
    KernelChoice::for_adapter(open(DeviceOptions { default_limits }).facts())
}

#[test]
fn the_format_that_an_adapter_gets_gives_the_golden_ids() {
    let choice = adapters_own(false);
    assert_eq!(choice.kv, KvFormat::F16, "{choice}");
    let mut runner = load(&default_model(), Setup { choice: Some(choice), ..Setup::default() });
    let (goldens, max_tokens) = (goldens(), 48);
    let answers = run(&mut runner, LIMITS, LIMITS.into(), &requests(&goldens, max_tokens));
    assert_golden(&goldens, &answers, max_tokens, "with a cache in f16");
}

/// Chunks, company, evictions and shared prefixes, for every choice of kernels.
#[test]
fn rounded_caches_hold_the_same_however_the_work_is_cut() {
    let models = [TinyModel { matrix_type: WeightFormat::Q4_1, ..TinyModel::default() }, odd_model()];
    for (model, choice) in models.iter().flat_map(|m| choices().into_iter().map(move |c| (m, c))) {
        let checkpoint = tiny(model);
        let [mut exact, rounded @ ..] = [KvFormat::F32, KvFormat::F16, KvFormat::Q8].map(|kv| {
            let choice = KernelChoice { kv, ..choice };
            load(&checkpoint, Setup { choice: Some(choice), ..Setup::default() })
        });
        let prompt = tiny_prompt(70, 2);
        let in_f32 = logits(&mut exact, &prompt, 0);
        for mut runner in rounded {
            let choice = runner.choice();
            let whole = logits(&mut runner, &prompt, 0);
            assert_ne!(whole, in_f32, "{choice}: nothing is rounded");
            for chunk in [1, 7, 32] {
                let mut last = Vec::new();
                for (i, tokens) in prompt.chunks(chunk).enumerate() {
                    last = logits(&mut runner, tokens, (i * chunk) as u32);
                }
                assert_eq!(last, whole, "{choice}: chunks of {chunk}");
            }
            // The third prompt begins as the first, and the last is the first again: one finds whole blocks, the other
            // gets a copy of the last of them.
            let long = tiny_prompt(48, 5);
            let own = [long.clone(), tiny_prompt(20, 6), [&long[..], &[9, 8, 7]].concat(), long.clone()];
            let asked: Vec<_> = own.into_iter().map(|prompt| (prompt, greedy(12))).collect();
            let alone = asked.iter().map(|asked| {
                run(&mut runner, LIMITS, LIMITS.into(), std::slice::from_ref(asked)).remove(0).ids()
            });
            let alone: Vec<_> = alone.collect();
            for schedule in [
                LIMITS.into(),
                Schedule { slots: 4, batch_tokens: 5, blocks: 7, prefix_cache: false },
                Schedule { prefix_cache: true, ..LIMITS.into() },
            ] {
                let waves = [&asked[..2], &asked[2..]];
                let (together, counters) = run_waves(&mut runner, LIMITS, schedule, &waves);
                let together: Vec<_> = together.iter().map(Answer::ids).collect();
                assert_eq!(together, alone, "{choice}, {schedule:?}");
                assert_eq!(counters.prefix_hits_total > 0, schedule.prefix_cache, "{choice}, {schedule:?}");
            }
        }
    }
}

/// Bytes by hand: 128 blocks of 16 tokens, 30 layers, 3 heads of 64 numbers for K and for V, two scales in 8 bits.
#[test]
fn memory_of_a_rounded_cache_is_as_computed() {
    for (kv, head_bytes) in ROUNDED.into_iter().zip([2 * 64 * 2, 2 * 64 + 2 * 4]) {
        let choice = KernelChoice { kv, ..adapters_own(false) };
        let runner = load(&default_model(), Setup { choice: Some(choice), ..Setup::default() });
        // A texture is whole rows of 2,048 texels: at most one more in each of its parts.
        let (_, bytes) = runner.resident_bytes();
        let computed = 128 * 16 * 30 * 3 * head_bytes;
        assert!((computed..computed + 60 * 2048 * 16).contains(&bytes), "{kv:?}: {bytes} for {computed}");
    }
}

#[test]
fn thirty_two_requests_at_once_give_the_golden_ids() {
    let (some, max_tokens) = some_goldens(&["hello", "capital"], 3);
    let limits = PassLimits { max_num_seqs: 32, num_blocks: 1024, ..LIMITS };
    let mut runner = load(&default_model(), Setup { limits, ..Setup::default() });
    let all: Vec<_> = requests(&some, max_tokens).into_iter().cycle().take(32).collect();
    let answers = run(&mut runner, limits, limits.into(), &all);
    for (golden, answer) in some.iter().cycle().zip(&answers) {
        assert_eq!(answer.ids(), golden.greedy[..max_tokens as usize], "{}", golden.name);
    }
}

/// A prompt beyond 4,096 tokens is one in a full run; otherwise its last rows stand behind positions that are all zeros.
#[test]
fn a_context_beyond_4_096_tokens_fits() {
    let limits = PassLimits { max_num_seqs: 1, num_blocks: 8192 / 16, max_model_len: 8192, ..LIMITS };
    let mut runner = load(&default_model(), Setup { limits, ..Setup::default() });
    let long = named("long300").expect("a golden prompt").prompt;
    if !full() {
        let far = logits(&mut runner, &long[..4], 8188);
        assert!(far.iter().all(|logit| logit.is_finite()));
        return;
    }
    let prompt: Vec<u32> = long.iter().copied().cycle().take(4200).collect();
    let asked = [(prompt, greedy(4))];
    let mut ids = |batch_tokens| {
        let schedule = Schedule { batch_tokens, ..limits.into() };
        run(&mut runner, limits, schedule, &asked).remove(0).ids()
    };
    assert_eq!(ids(512), ids(200), "in chunks of another size");
}

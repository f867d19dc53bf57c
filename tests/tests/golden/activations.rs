//! Activations in 8 bits beside the exact ones, position by position.

use firstlight_engine::gpu::KernelChoice;
use firstlight_engine::model::PassLimits;
use firstlight_engine::runner::GpuRunner;
use firstlight_engine::sched::{Batch, SampleRow};
use firstlight_engine::text::SpecialTokens;
use firstlight_shaders::Activations;
use firstlight_tests::full;
use firstlight_tests::gpu::drive;
use firstlight_tests::served::{Answer, Asked, LIMITS, Setup, load, run};

use super::{default_model, requests, rows, some_goldens};
use crate::text::fixtures::from_gguf;

/// Positions a pass.
const ROWS: u32 = 64;

/// The logits of every position of `tokens`, 64 rows a pass.
fn all_logits(runner: &mut GpuRunner, tokens: &[u32]) -> Vec<Vec<f32>> {
    let handle = runner.device().handle().clone();
    let mut logits = Vec::new();
    for (chunk, start) in tokens.chunks(ROWS as usize).zip((0..).step_by(ROWS as usize)) {
        let batch = rows(chunk, start, LIMITS.block_size);
        let last = batch.sample_rows[0].clone();
        let sample_rows = (0..chunk.len() as u32).map(|row| SampleRow { row, ..last.clone() }).collect();
        let batch = Batch { sample_rows, ..batch };
        logits.extend(drive(&handle, runner.logits(&batch)).expect("a pass"));
    }
    logits
}

/// The Kullback-Leibler divergence of the second distribution from the first, in nats, and whether both have the same best token.
fn compare(exact: &[f32], other: &[f32]) -> (f64, bool) {
    let log_probs = |logits: &[f32]| {
        let top = logits.iter().copied().fold(f32::MIN, f32::max);
        let total: f64 = logits.iter().map(|&l| f64::from(l - top).exp()).sum();
        let shift = f64::from(top) + total.ln();
        logits.iter().map(|&l| f64::from(l) - shift).collect::<Vec<_>>()
    };
    let best = |logits: &[f32]| logits.iter().enumerate().max_by(|a, b| a.1.total_cmp(b.1)).map(|(i, _)| i);
    let (p, q) = (log_probs(exact), log_probs(other));
    let kl = p.iter().zip(&q).map(|(p, q)| p.exp() * (p - q)).sum();
    (kl, best(exact) == best(other))
}

/// How far activations in 8 bits lead astray.
#[derive(Debug, Default)]
struct Error {
    positions: usize,
    divergence: f64,
    agreements: usize,
}

impl Error {
    /// Nats a position, on average.
    fn mean_divergence(&self) -> f64 {
        self.divergence / self.positions as f64
    }

    /// The share of positions at which the likeliest token is the same.
    fn agreement(&self) -> f64 {
        self.agreements as f64 / self.positions as f64
    }
}

/// The default model twice, exact and with activations in 8 bits.
fn both() -> [GpuRunner; 2] {
    let limits = PassLimits { max_num_seqs: ROWS, max_batch_tokens: 8 * ROWS, ..LIMITS };
    let exact = load(&default_model(), Setup { limits, ..Setup::default() });
    let choice = KernelChoice { activations: Activations::I8, ..exact.choice() };
    let rounded = load(&default_model(), Setup { limits, choice: Some(choice), ..Setup::default() });
    [exact, rounded]
}

fn error(runners: &mut [GpuRunner; 2], texts: &[Vec<u32>]) -> Error {
    let mut error = Error::default();
    for tokens in texts {
        let [exact, rounded] = runners.each_mut().map(|runner| all_logits(runner, tokens));
        for (exact, rounded) in exact.iter().zip(&rounded) {
            let (divergence, agree) = compare(exact, rounded);
            error.positions += 1;
            error.divergence += divergence;
            error.agreements += usize::from(agree);
        }
    }
    error
}

#[test]
fn in_8_bits_they_lead_astray_by_little() {
    let mut runners = both();
    // The reference's own answers are part of the texts.
    let (goldens, answered) = some_goldens(&["hello", "capital", "code"], 48);
    let texts = goldens.iter().map(|g| [&g.prompt, &g.greedy[..answered as usize]].concat());
    let golden = error(&mut runners, &texts.collect::<Vec<_>>());
    println!(
        "golden prompts and answers: {:.5} nats, {:.4} agree",
        golden.mean_divergence(),
        golden.agreement()
    );
    assert!(golden.mean_divergence() < 0.002 && golden.agreement() > 0.98, "{golden:?}");
    assert!(golden.divergence > 0.0, "both runners are exact");
    if full() {
        let text = include_str!("../../../README.md");
        let tokens = from_gguf().encode(text, SpecialTokens::AsText).expect("it is short");
        let texts: Vec<_> = tokens[..2_000].chunks(1_000).map(<[u32]>::to_vec).collect();
        let held = error(&mut runners, &texts);
        println!(
            "2,000 tokens of English and tables: {:.5} nats, {:.4} agree",
            held.mean_divergence(),
            held.agreement()
        );
        assert!(held.mean_divergence() < 0.003 && held.agreement() > 0.97, "{held:?}");
    }
}

#[test]
fn in_8_bits_a_batch_changes_nothing() {
    let (goldens, answered) = some_goldens(&["hello", "capital", "code"], 16);
    let requests = requests(&goldens, answered);
    let [_, mut rounded] = both();
    let mut ids = |requests: &[Asked]| -> Vec<Vec<u32>> {
        let answers = run(&mut rounded, LIMITS, LIMITS.into(), requests);
        answers.iter().map(Answer::ids).collect()
    };
    let together = ids(&requests);
    for (request, together) in requests.iter().zip(&together) {
        assert_eq!(ids(std::slice::from_ref(request)), std::slice::from_ref(together));
    }
}

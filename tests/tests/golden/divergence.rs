//! How far a choice that rounds leads astray from the exact one, position by position.

use firstlight_engine::gpu::KernelChoice;
use firstlight_engine::model::PassLimits;
use firstlight_engine::runner::GpuRunner;
use firstlight_engine::sched::{Batch, SampleRow};
use firstlight_engine::text::SpecialTokens;
use firstlight_tests::full;
use firstlight_tests::gpu::drive;
use firstlight_tests::served::{LIMITS, Setup, load};

use super::{default_model, rows, some_goldens};
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

/// How far a choice leads astray.
#[derive(Debug, Default)]
pub struct Divergence {
    positions: usize,
    nats: f64,
    agreements: usize,
}

impl Divergence {
    /// Nats a position, on average.
    pub fn mean(&self) -> f64 {
        self.nats / self.positions as f64
    }

    /// The share of positions at which the likeliest token is the same.
    pub fn agreement(&self) -> f64 {
        self.agreements as f64 / self.positions as f64
    }
}

/// The default model as it is exactly, and as `change` makes it of that.
pub fn beside_exact(change: impl Fn(KernelChoice) -> KernelChoice) -> [GpuRunner; 2] {
    let limits = PassLimits { max_num_seqs: ROWS, max_batch_tokens: 8 * ROWS, ..LIMITS };
    let exact = load(&default_model(), Setup { limits, ..Setup::default() });
    let choice = change(exact.choice());
    let rounded = load(&default_model(), Setup { limits, choice: Some(choice), ..Setup::default() });
    [exact, rounded]
}

fn between(runners: &mut [GpuRunner; 2], texts: &[Vec<u32>]) -> Divergence {
    let mut all = Divergence::default();
    for tokens in texts {
        let [exact, rounded] = runners.each_mut().map(|runner| all_logits(runner, tokens));
        for (exact, rounded) in exact.iter().zip(&rounded) {
            let (nats, agree) = compare(exact, rounded);
            all.positions += 1;
            all.nats += nats;
            all.agreements += usize::from(agree);
        }
    }
    all
}

/// Over golden prompts and the reference's own answers, and in a full run over 2,000 tokens of English and tables.
pub fn measured(what: &str, runners: &mut [GpuRunner; 2]) -> (Divergence, Option<Divergence>) {
    let say = |text: &str, all: &Divergence| {
        println!("{what}, {text}: {:.6} nats, {:.4} agree", all.mean(), all.agreement());
    };
    let (goldens, answered) = some_goldens(&["hello", "capital", "code"], 48);
    let texts = goldens.iter().map(|g| [&g.prompt, &g.greedy[..answered as usize]].concat());
    let golden = between(runners, &texts.collect::<Vec<_>>());
    say("golden prompts and answers", &golden);
    assert!(golden.nats > 0.0, "{what}: both runners are exact");
    let held = full().then(|| {
        let text = include_str!("../../../README.md");
        let tokens = from_gguf().encode(text, SpecialTokens::AsText).expect("it is short");
        let texts: Vec<_> = tokens[..2_000].chunks(1_000).map(<[u32]>::to_vec).collect();
        let held = between(runners, &texts);
        say("2,000 tokens of English and tables", &held);
        held
    });
    (golden, held)
}

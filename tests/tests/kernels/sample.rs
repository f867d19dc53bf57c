//! The sampler on the GPU against the one on the CPU, and against itself in other company.

use firstlight_shaders::sample::{self, Choice, MAX_VOCAB, Params, Row};

use super::{Bench, Random};

/// The tokens of `rows[i]` under `choices[i]`, all in one dispatch, rows `pitch` apart.
fn run(bench: &mut Bench, rows: &[Vec<f32>], choices: &[Choice], pitch: usize) -> Vec<u32> {
    let vocab = rows[0].len();
    // What lies between rows would win if it were read.
    let mut logits = vec![1e30f32; rows.len() * pitch];
    for (i, row) in rows.iter().enumerate() {
        logits[i * pitch..i * pitch + vocab].copy_from_slice(row);
    }
    let params = Params { vocab: vocab as u32, pitch: pitch as u32 };
    let choices: Vec<Row> = choices.iter().map(Row::from).collect();
    let poison = vec![0xffu8; 4 * (rows.len() + 1)];
    let written = bench.run(
        sample::program().unwrap(),
        &[
            bytemuck::bytes_of(&params),
            bytemuck::cast_slice(&logits),
            bytemuck::cast_slice(&choices),
            &poison,
        ],
        sample::workgroups(rows.len() as u32),
    );
    let (tokens, beyond) = bytemuck::cast_slice::<u8, u32>(&written).split_at(rows.len());
    assert_eq!(beyond, [u32::MAX], "nothing is written past the last row");
    tokens.to_vec()
}

const PLAIN: Choice =
    Choice { temperature: 1.0, top_k: 0, top_p: 1.0, min_p: 0.0, seed: 0xfeed_0000_beef, position: 0 };

/// Every filter alone and together, at several positions.
fn choices() -> Vec<Choice> {
    let filters = [
        PLAIN,
        Choice { temperature: 0.0, top_k: 3, ..PLAIN },
        Choice { temperature: 0.3, ..PLAIN },
        Choice { temperature: 5.0, ..PLAIN },
        Choice { top_k: 1, ..PLAIN },
        Choice { top_k: 40, ..PLAIN },
        Choice { top_k: u32::MAX, ..PLAIN },
        Choice { top_p: 0.9, ..PLAIN },
        Choice { top_p: 0.1, temperature: 2.0, ..PLAIN },
        Choice { top_p: 1e-6, ..PLAIN },
        Choice { min_p: 0.05, ..PLAIN },
        Choice { min_p: 1.0, ..PLAIN },
        Choice { top_k: 50, top_p: 0.8, min_p: 0.02, temperature: 1.5, ..PLAIN },
    ];
    let at = |position: u32| {
        filters.into_iter().map(move |c| Choice {
            position,
            seed: c.seed.wrapping_mul(u64::from(position) + 1),
            ..c
        })
    };
    (0..4).flat_map(|i| at(i * 1000 + 3)).collect()
}

/// Logits as language models have them: a few stand out.
fn logits(vocab: usize, seed: u64) -> Vec<f32> {
    let mut random = Random(seed | 1);
    (0..vocab)
        .map(|_| random.float() * 4.0 + if random.bits() % 50 == 0 { 9.0 * random.float() } else { 0.0 })
        .collect()
}

fn check(bench: &mut Bench, vocab: usize) {
    let choices = choices();
    let rows: Vec<_> = (0..choices.len()).map(|i| logits(vocab, 77 + i as u64)).collect();
    let tokens = run(bench, &rows, &choices, vocab + 7);
    for ((row, choice), token) in rows.iter().zip(&choices).zip(tokens) {
        assert_eq!(token, sample::cpu(row, choice), "{choice:?} of {vocab}");
    }
}

#[test]
fn tokens_are_the_cpus() {
    let mut bench = Bench::with_default_limits();
    for vocab in [1, 2, 255, 256, 257, 1000, 49_152] {
        check(&mut bench, vocab);
    }
}

#[test]
fn odd_logits_are_treated_as_on_the_cpu() {
    let (nan, inf) = (f32::NAN, f32::INFINITY);
    let rows: Vec<Vec<f32>> = [
        [nan, 1.0, -inf, 1.0],
        [inf, 0.0, inf, -nan],
        [-inf, nan, -inf, -inf],
        [f32::MAX, -f32::MAX, 0.0, f32::MAX],
        [-0.0, 0.0, -0.0, 0.0],
        [2.0, 2.0, 2.0, 2.0],
        [-1e-40, 1e-40, 0.0, -5.0],
    ]
    .map(Vec::from)
    .into();
    let mut bench = Bench::new();
    for choice in choices() {
        let tokens = run(&mut bench, &rows, &vec![choice; rows.len()], 4);
        let expected: Vec<u32> = rows.iter().map(|row| sample::cpu(row, &choice)).collect();
        assert_eq!(tokens, expected, "{choice:?}");
    }
}

#[test]
fn company_and_place_do_not_matter() {
    let mut bench = Bench::new();
    let choices = choices();
    let rows: Vec<_> = (0..choices.len()).map(|i| logits(300, i as u64)).collect();
    let together = run(&mut bench, &rows, &choices, 300);
    let reversed = run(
        &mut bench,
        &rows.iter().rev().cloned().collect::<Vec<_>>(),
        &choices.iter().rev().copied().collect::<Vec<_>>(),
        320,
    );
    assert_eq!(together, reversed.into_iter().rev().collect::<Vec<_>>());
    for i in [0, 7, 12] {
        assert_eq!(run(&mut bench, &rows[i..=i], &choices[i..=i], 300), together[i..=i]);
    }
}

/// Ties at the threshold are kept whole: every token of a flat distribution can come.
#[test]
fn equals_of_the_last_one_kept_are_kept() {
    let choices: Vec<Choice> =
        (0..400).map(|position| Choice { top_k: 2, top_p: 0.3, position, ..PLAIN }).collect();
    let rows = vec![vec![1.5; 4]; choices.len()];
    let tokens = run(&mut Bench::new(), &rows, &choices, 4);
    for token in 0..4 {
        assert!(tokens.contains(&token), "{token} never comes");
    }
}

/// The largest vocabulary fits the driver's limit on loops, and the sums of masses where all weigh the most.
#[test]
fn the_largest_vocabulary_fits() {
    assert!(sample::iterations(MAX_VOCAB) < 60_000);
    let vocab = MAX_VOCAB as usize;
    let flat = vec![0.25; vocab];
    let mut last = vec![-9.0; vocab];
    last[vocab - 1] = 3.0;
    let choices =
        [Choice { top_p: 0.999, top_k: MAX_VOCAB - 1, ..PLAIN }, Choice { temperature: 0.0, ..PLAIN }];
    let tokens = run(&mut Bench::new(), &[flat.clone(), last], &choices, vocab);
    assert_eq!(tokens, [sample::cpu(&flat, &choices[0]), MAX_VOCAB - 1]);
}

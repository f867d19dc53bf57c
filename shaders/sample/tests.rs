//! The CPU sampler against exact probabilities and hand-computed cases.

use super::*;

const PLAIN: Choice =
    Choice { temperature: 1.0, top_k: 0, top_p: 1.0, min_p: 0.0, seed: 0x1234_5678_9abc_def0, position: 0 };

/// Logits whose softmax is `probabilities`.
fn logits(probabilities: &[f64]) -> Vec<f32> {
    probabilities.iter().map(|p| p.ln() as f32 + 3.0).collect()
}

/// Draws 20,000 tokens at as many positions and holds their frequencies against `expected` by Pearson's chi-square.
fn check_distribution(probabilities: &[f64], choice: Choice, expected: &[f64]) {
    let (logits, draws) = (logits(probabilities), 20_000u32);
    let mut counts = vec![0u32; expected.len()];
    for position in 0..draws {
        counts[cpu(&logits, &Choice { position, ..choice }) as usize] += 1;
    }
    let total: f64 = expected.iter().sum();
    let mut chi_square = 0.0;
    for (&count, &p) in counts.iter().zip(expected) {
        if p == 0.0 {
            assert_eq!(count, 0, "{choice:?} excludes a token that was drawn: {counts:?}");
        } else {
            let mean = f64::from(draws) * p / total;
            chi_square += (f64::from(count) - mean).powi(2) / mean;
        }
    }
    // Mean n, deviation sqrt(2n): five deviations are one in a million.
    let freedom = expected.len() as f64;
    assert!(chi_square < freedom + 5.0 * (2.0 * freedom).sqrt(), "{choice:?}: {chi_square} of {counts:?}");
}

const FIVE: [f64; 5] = [0.1, 0.4, 0.05, 0.25, 0.2];

#[test]
fn tokens_come_as_often_as_they_should() {
    check_distribution(&FIVE, PLAIN, &FIVE);
    check_distribution(&FIVE, Choice { seed: 7, ..PLAIN }, &FIVE);
    check_distribution(&FIVE, Choice { temperature: 2.0, ..PLAIN }, &FIVE.map(f64::sqrt));
    check_distribution(&FIVE, Choice { temperature: 0.5, ..PLAIN }, &FIVE.map(|p| p * p));
    let many: Vec<f64> = (1..=200).map(|i| 1.0 / f64::from(i)).collect();
    check_distribution(&many, PLAIN, &many);
    check_distribution(&many, Choice { seed: 1 << 40, ..PLAIN }, &many);
}

#[test]
fn seeds_are_as_good_as_positions() {
    let logits = logits(&[0.5, 0.5]);
    for word in [0, 32] {
        let ones: u32 = (0..20_000u64).map(|s| cpu(&logits, &Choice { seed: s << word, ..PLAIN })).sum();
        assert!((9_600..10_400).contains(&ones), "{ones} of 20,000 with seeds shifted by {word}");
    }
}

#[test]
fn filters_keep_what_they_say() {
    let [a, b, _, d, e] = FIVE;
    let check = check_distribution;
    check(&FIVE, Choice { top_k: 1, ..PLAIN }, &[0.0, b, 0.0, 0.0, 0.0]);
    check(&FIVE, Choice { top_k: 3, ..PLAIN }, &[0.0, b, 0.0, d, e]);
    check(&FIVE, Choice { top_k: 5, ..PLAIN }, &FIVE);
    check(&FIVE, Choice { top_k: 9, ..PLAIN }, &FIVE);
    check(&FIVE, Choice { top_p: 0.3, ..PLAIN }, &[0.0, b, 0.0, 0.0, 0.0]);
    check(&FIVE, Choice { top_p: 0.6, ..PLAIN }, &[0.0, b, 0.0, d, 0.0]);
    check(&FIVE, Choice { top_p: 0.9, ..PLAIN }, &[a, b, 0.0, d, e]);
    check(&FIVE, Choice { min_p: 0.3, ..PLAIN }, &[0.0, b, 0.0, d, e]);
    check(&FIVE, Choice { min_p: 1.0, ..PLAIN }, &[0.0, b, 0.0, 0.0, 0.0]);
    // The survivors of top-k are renormalised: 0.4 of 0.85 is 0.4706.
    check(&FIVE, Choice { top_k: 3, top_p: 0.47, ..PLAIN }, &[0.0, b, 0.0, 0.0, 0.0]);
    check(&FIVE, Choice { top_k: 3, top_p: 0.48, ..PLAIN }, &[0.0, b, 0.0, d, 0.0]);
    // min-p goes before top-p: 0.4 of the 0.65 that it leaves reach 0.6, of everything they would not.
    check(&FIVE, Choice { min_p: 0.6, top_p: 0.6, ..PLAIN }, &[0.0, b, 0.0, 0.0, 0.0]);
    // Temperature goes before all: at 0.5 the odds of the first two are squared.
    check(&FIVE, Choice { temperature: 0.5, min_p: 0.3, ..PLAIN }, &[0.0, b * b, 0.0, d * d, 0.0]);
}

#[test]
fn equals_of_the_last_one_kept_are_kept() {
    let flat = [0.25; 4];
    check_distribution(&flat, Choice { top_k: 2, ..PLAIN }, &flat);
    check_distribution(&flat, Choice { top_p: 0.3, ..PLAIN }, &flat);
}

#[test]
fn greedy_takes_the_first_of_the_largest() {
    let check = |logits: &[f32], expected: u32| {
        for temperature in [0.0, 1e-6, f32::NAN] {
            let greedy = Choice { temperature, top_k: 2, top_p: 0.1, min_p: 0.9, ..PLAIN };
            assert_eq!(cpu(logits, &greedy), expected, "{logits:?}");
        }
    };
    check(&[1.0, 3.0, 3.0, 2.0], 1);
    check(&[-3.0, -1.0, -2.0], 1);
    check(&[-0.0, 0.0], 0);
    check(&[f32::NAN, 1.0, f32::NAN], 1);
    check(&[1.0, f32::INFINITY, f32::INFINITY], 1);
    check(&[f32::MAX, f32::INFINITY], 0);
    check(&[f32::NEG_INFINITY, -f32::MAX], 1);
    check(&[f32::NAN, f32::NEG_INFINITY], NO_TOKEN);
    check(&[], NO_TOKEN);
}

#[test]
fn odd_logits_never_win_and_never_panic() {
    let (nan, inf) = (f32::NAN, f32::INFINITY);
    for (logits, allowed) in [
        (vec![nan, 1.0, -inf, 1.0], vec![1, 3]),
        (vec![inf, 0.0, inf, nan], vec![0, 2]),
        (vec![-inf, nan, -inf], vec![NO_TOKEN]),
        (vec![f32::MAX, -f32::MAX], vec![0]),
        (vec![], vec![NO_TOKEN]),
    ] {
        for (top_k, top_p, min_p) in
            [(0, 1.0, 0.0), (1, 1.0, 0.0), (0, 0.5, 0.0), (0, 1.0, 0.5), (2, 1e-45, 1.0)]
        {
            for temperature in [1e-5, 1.0, 100.0] {
                let choice = Choice { temperature, top_k, top_p, min_p, ..PLAIN };
                let token = cpu(&logits, &choice);
                assert!(allowed.contains(&token), "{token} of {logits:?} by {choice:?}");
            }
        }
    }
}

#[test]
fn large_nuclei_are_whole() {
    // A flat start, so that the nucleus is larger than the part that is sorted first.
    let probabilities: Vec<f64> =
        (0..20_000).map(|i| if i < 9_000 { 2.0 } else { 1.0 + f64::from(i) * 1e-5 }).collect();
    let logits = logits(&probabilities);
    let lowest = (0..300)
        .map(|position| probabilities[cpu(&logits, &Choice { top_p: 0.9, position, ..PLAIN }) as usize]);
    // 90% of 30,550 hold the 9,000 and all of the rest down to about 1.118.
    let lowest = lowest.fold(2.0, f64::min);
    assert!((1.11..1.14).contains(&lowest), "{lowest}");
}

//! Choosing a token on the CPU: penalties, the sampler that the GPU's twin shares, and log-probabilities.
//!
//! Never draws from a stateful generator: a token depends on its logits, its parameters, its position and its history, and
//! on nothing else in the batch. Invariant: log-probabilities are those of the model, before penalties and temperature.
//!
//! Odd logits never panic: NaN counts as minus infinity (log-probability minus infinity), plus infinity as the largest
//! finite number; where no logit is finite, there is no token (`sample::NO_TOKEN`),
//! and the engine fails the step.

use std::cmp::Ordering;
use std::collections::BTreeMap;

use firstlight_shaders::sample::{self, Choice, ordered};

use crate::request::{SampledToken, SamplingParams, TokenLogprob};
use crate::sched::SampleRow;

/// The part of a row's parameters that the sampler needs, on either side.
pub fn choice(row: &SampleRow) -> Choice {
    let params = &*row.params;
    Choice {
        temperature: params.temperature,
        top_k: params.top_k,
        top_p: params.top_p,
        min_p: params.min_p,
        seed: params.seed,
        position: row.position,
    }
}

/// Whether the GPU can choose this row's token: it knows neither histories nor biases nor log-probabilities.
pub fn fits_gpu(params: &SamplingParams) -> bool {
    !moves_logits(params) && params.logprobs.is_none()
}

fn moves_logits(params: &SamplingParams) -> bool {
    params.needs_history() || !params.logit_bias.is_empty()
}

/// Chooses one row's token from its `[vocab_size]` logits; [`sample::NO_TOKEN`] if none is finite.
pub fn sample(logits: &[f32], row: &SampleRow) -> SampledToken {
    let choice = choice(row);
    let token = if moves_logits(&row.params) {
        let mut moved = logits.to_vec();
        bias(&mut moved, &row.params.logit_bias);
        penalise(&mut moved, row);
        sample::cpu(&moved, &choice)
    } else {
        sample::cpu(logits, &choice)
    };
    SampledToken { token, logprobs: row.params.logprobs.map(|count| logprobs(logits, token, count)) }
}

/// Adds to the logits of some tokens. Ids outside the vocabulary are passed over.
fn bias(logits: &mut [f32], biases: &[(u32, f32)]) {
    for &(token, bias) in biases {
        if let Some(logit) = logits.get_mut(token as usize) {
            *logit += bias;
        }
    }
}

/// Applies the repetition, frequency and presence penalties, in this order. Ids outside the vocabulary are passed over.
fn penalise(logits: &mut [f32], row: &SampleRow) {
    let params = &*row.params;
    // How often each token of the history occurs in the answer.
    let mut counts = BTreeMap::<u32, u32>::new();
    for (i, &token) in row.history.iter().enumerate() {
        *counts.entry(token).or_default() += u32::from(i >= row.prompt_len as usize);
    }
    for (token, count) in counts {
        let Some(logit) = logits.get_mut(token as usize) else { continue };
        if *logit > 0.0 {
            *logit /= params.repetition_penalty;
        } else {
            *logit *= params.repetition_penalty;
        }
        if count > 0 {
            *logit -= params.frequency_penalty * count as f32 + params.presence_penalty;
        }
    }
}

/// The chosen token's log-probability and the `count` largest, in falling order, lower ids first among equals.
fn logprobs(logits: &[f32], token: u32, count: u32) -> (TokenLogprob, Vec<TokenLogprob>) {
    let largest = logits.iter().map(|&x| ordered(x)).fold(f32::NEG_INFINITY, f32::max);
    let sum: f64 = logits.iter().map(|&x| (f64::from(ordered(x)) - f64::from(largest)).exp()).sum();
    let total = f64::from(largest) + sum.ln();
    let of = |token: u32| {
        let logit = logits.get(token as usize).map_or(f32::NEG_INFINITY, |&x| ordered(x));
        // Where no logit is finite, the sum is none either.
        let logprob = if logit == f32::NEG_INFINITY { logit } else { (f64::from(logit) - total) as f32 };
        TokenLogprob { token, logprob }
    };
    (of(token), largest_tokens(logits, count as usize).into_iter().map(of).collect())
}

/// The `count` tokens with the largest logits, in falling order, lower ids first among equals.
fn largest_tokens(logits: &[f32], count: usize) -> Vec<u32> {
    let order = |&a: &u32, &b: &u32| -> Ordering {
        let (x, y) = (ordered(logits[a as usize]), ordered(logits[b as usize]));
        y.partial_cmp(&x).unwrap_or(Ordering::Equal).then(a.cmp(&b))
    };
    let mut tokens: Vec<u32> = (0..logits.len() as u32).collect();
    if count < tokens.len() {
        tokens.select_nth_unstable_by(count, order);
        tokens.truncate(count);
    }
    tokens.sort_unstable_by(order);
    tokens
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    fn row(params: SamplingParams, history: &[u32], prompt_len: u32) -> SampleRow {
        let position = history.len() as u32;
        SampleRow { row: 0, params: Arc::new(params), position, history: history.to_vec(), prompt_len }
    }

    fn check_penalties(params: SamplingParams, history: &[u32], prompt_len: u32, expected: &[f32]) {
        let mut logits = [2.0, -2.0, 1.0, 0.0, 4.0];
        penalise(&mut logits, &row(params, history, prompt_len));
        assert_eq!(logits, expected);
    }

    #[test]
    fn penalties_follow_their_definitions() {
        let off = SamplingParams::default;
        // Repetition: over prompt and answer, once however often.
        let repetition = SamplingParams { repetition_penalty: 2.0, ..off() };
        check_penalties(repetition.clone(), &[0, 1, 0, 3], 2, &[1.0, -4.0, 1.0, 0.0, 4.0]);
        // Presence and frequency: over the answer only.
        let presence = SamplingParams { presence_penalty: 0.5, ..off() };
        check_penalties(presence, &[0, 1, 2, 2, 4], 2, &[2.0, -2.0, 0.5, 0.0, 3.5]);
        let frequency = SamplingParams { frequency_penalty: 0.5, ..off() };
        check_penalties(frequency, &[0, 1, 2, 2, 4], 2, &[2.0, -2.0, 0.0, 0.0, 3.5]);
        // All three: 4 / 2 - 2 * 0.25 - 1.
        let all = SamplingParams { presence_penalty: 1.0, frequency_penalty: 0.25, ..repetition.clone() };
        check_penalties(all, &[4, 4], 0, &[2.0, -2.0, 1.0, 0.0, 0.5]);
        // An id that the model lacks is passed over.
        check_penalties(repetition, &[77, u32::MAX], 1, &[2.0, -2.0, 1.0, 0.0, 4.0]);
    }

    #[test]
    fn a_bias_moves_the_token_before_the_penalties_and_not_its_logprob() {
        let check = |logit_bias: &[(u32, f32)], repetition_penalty: f32, expected: u32| {
            let params = SamplingParams {
                logit_bias: logit_bias.to_vec(),
                repetition_penalty,
                logprobs: Some(0),
                ..SamplingParams::default()
            };
            assert!(!fits_gpu(&params) || logit_bias.is_empty());
            let sampled = sample(&[2.0, 1.0, -1.0], &row(params, &[2], 1));
            let sum: f64 = [2.0f64, 1.0, -1.0].iter().map(|x| x.exp()).sum();
            let logprob = [2.0, 1.0, -1.0][expected as usize] - sum.ln();
            let (chosen, _) = sampled.logprobs.unwrap();
            assert_eq!((sampled.token, chosen.logprob), (expected, logprob as f32));
        };
        check(&[], 1.0, 0);
        check(&[(1, 1.5)], 1.0, 1);
        check(&[(0, -100.0), (1, -100.0)], 1.0, 2);
        // 2 is in the prompt: its logit is 5 with the bias, and half of that with the penalty.
        check(&[(2, 6.0)], 1.0, 2);
        check(&[(2, 6.0), (0, 1.0)], 2.0, 0);
        check(&[(u32::MAX, 9.0)], 1.0, 0);
    }

    #[test]
    fn penalties_change_the_token_and_not_its_logprob() {
        let logits = [2.0, 1.9, -1.0];
        let params =
            SamplingParams { repetition_penalty: 1.5, logprobs: Some(1), ..SamplingParams::default() };
        let sampled = sample(&logits, &row(params, &[0], 1));
        assert_eq!(sampled.token, 1);
        let sum: f64 = logits.iter().map(|&x| f64::from(x).exp()).sum();
        let (chosen, top) = sampled.logprobs.unwrap();
        assert_eq!(chosen, TokenLogprob { token: 1, logprob: (f64::from(1.9f32) - sum.ln()) as f32 });
        assert_eq!(top, [TokenLogprob { token: 0, logprob: (2.0 - sum.ln()) as f32 }]);
    }

    #[test]
    fn logprobs_are_counted_and_ordered() {
        let check = |logits: &[f32], count: Option<u32>, expected: Option<&[u32]>| {
            let params = SamplingParams { logprobs: count, ..SamplingParams::default() };
            let sampled = sample(logits, &row(params, &[], 0));
            let top = sampled.logprobs.map(|(_, top)| top.iter().map(|t| t.token).collect::<Vec<_>>());
            assert_eq!(top.as_deref(), expected, "{logits:?}");
        };
        check(&[1.0, 5.0, 3.0, 5.0], None, None);
        check(&[1.0, 5.0, 3.0, 5.0], Some(0), Some(&[]));
        check(&[1.0, 5.0, 3.0, 5.0], Some(3), Some(&[1, 3, 2]));
        check(&[1.0, 5.0, 3.0, 5.0], Some(20), Some(&[1, 3, 2, 0]));
        check(&[f32::NAN, f32::INFINITY, 0.0], Some(20), Some(&[1, 2, 0]));
        check(&[], Some(20), Some(&[]));
    }

    #[test]
    fn odd_logits_have_odd_logprobs_and_no_panic() {
        let check = |logits: &[f32], expected: (u32, f32)| {
            let params = SamplingParams { logprobs: Some(2), ..SamplingParams::default() };
            let (chosen, _) = sample(logits, &row(params, &[], 0)).logprobs.unwrap();
            assert_eq!((chosen.token, chosen.logprob), expected, "{logits:?}");
        };
        check(&[f32::NAN, f32::NEG_INFINITY], (sample::NO_TOKEN, f32::NEG_INFINITY));
        check(&[], (sample::NO_TOKEN, f32::NEG_INFINITY));
        check(&[f32::NAN, 3.0], (1, 0.0));
        check(&[0.0, f32::INFINITY], (1, 0.0));
    }

    #[test]
    fn a_token_depends_on_seed_and_position_only() {
        let logits: Vec<f32> = (0..1000).map(|i| (i % 37) as f32 * 0.1).collect();
        let token = |seed, position| {
            let params = SamplingParams { temperature: 1.0, seed, ..SamplingParams::default() };
            sample(&logits, &SampleRow { position, ..row(params, &[], 0) }).token
        };
        assert_eq!(token(5, 9), token(5, 9));
        let tokens: std::collections::BTreeSet<_> =
            (0..100).map(|i| token(5 + i % 10, i as u32 / 10)).collect();
        assert!(tokens.len() > 80, "{} different tokens of 100", tokens.len());
    }
}

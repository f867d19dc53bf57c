//! Costs held against steps that an engine has run: by how much each kind is to be scaled.
//!
//! Three factors, one regression. Invariant: what the steps say nothing of keeps the factor 1.

use serde::{Deserialize, Serialize};

use super::{MAX_DECODE_CLASS, StepCosts, StepLoad, weights};

/// What costs were multiplied by, and on what grounds.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize, Serialize)]
pub struct Correction {
    /// The classes of up to 8 rows, the head and the host.
    pub decode: f64,
    /// The classes above.
    pub prefill: f64,
    /// Attention.
    pub attention: f64,
    /// Steps that said so.
    pub steps: u32,
}

impl Default for Correction {
    fn default() -> Self {
        Self { decode: 1.0, prefill: 1.0, attention: 1.0, steps: 0 }
    }
}

impl Correction {
    /// The factor of the class of so many rows.
    pub(super) fn of_class(&self, rows: u32) -> f64 {
        if rows <= MAX_DECODE_CLASS { self.decode } else { self.prefill }
    }

    /// This one, made of costs that `before` had been made of already.
    pub(super) fn after(self, before: Self) -> Self {
        Self {
            decode: self.decode * before.decode,
            prefill: self.prefill * before.prefill,
            attention: self.attention * before.attention,
            steps: self.steps,
        }
    }
}

/// Rounds of reweighting; the factors stand still after fewer.
const ROUNDS: u32 = 30;
/// Below this share of a step a difference counts as none: clocks and machines are no finer.
const FINE: f64 = 0.01;
/// What the factor 1 weighs, in steps: next to nothing, and enough where no step says anything.
const PRIOR_STEPS: f64 = 0.005;
/// No factor goes beyond, nor below one by it: such steps are of another model or another adapter.
const FURTHEST: f64 = 100.0;

/// The factors by which `costs` come closest to `measured`: least absolute deviations, each as a share of its step, by
/// reweighted least squares, drawn to 1 by [`PRIOR_STEPS`].
pub(super) fn correction(costs: &StepCosts, measured: &[(StepLoad, u64)]) -> Correction {
    let mut steps: Vec<([f64; 3], f64)> = Vec::with_capacity(measured.len());
    for (load, ns) in measured {
        let features = features(costs, load);
        if features.iter().sum::<f64>() > 0.0 && *ns > 0 {
            // As shares of the measured time: the longest steps are not to decide for all.
            steps.push((features.map(|feature| feature / *ns as f64), 1.0));
        }
    }
    let mut factors = [1.0; 3];
    if steps.is_empty() {
        return Correction::default();
    }
    for _ in 0..ROUNDS {
        for (features, weight) in &mut steps {
            let predicted: f64 = features.iter().zip(factors).map(|(feature, factor)| feature * factor).sum();
            *weight = FINE / (1.0 - predicted).abs().max(FINE);
        }
        factors = solve(&steps);
    }
    let [decode, prefill, attention] = factors.map(|factor| factor.clamp(1.0 / FURTHEST, FURTHEST));
    let steps = u32::try_from(steps.len()).unwrap_or(u32::MAX);
    Correction { decode, prefill, attention, steps }
}

/// The time of a step as it is scaled: by the decode classes, by the classes of prompts, by attention.
fn features(costs: &StepCosts, load: &StepLoad) -> [f64; 3] {
    let parts = costs.parts(load);
    let mut features = [parts.head_ns + parts.host_ns, 0.0, parts.attention_ns];
    for (class, weight) in weights(&costs.rows, costs.computed_rows(load.num_rows())) {
        features[usize::from(class.rows > MAX_DECODE_CLASS)] += class.ns as f64 * weight;
    }
    features
}

/// The factors whose weighted squares over `steps`, the prior's with them, are least: normal equations, by elimination.
fn solve(steps: &[([f64; 3], f64)]) -> [f64; 3] {
    let weight: f64 = steps.iter().map(|(_, weight)| weight).sum();
    let prior = PRIOR_STEPS * FINE.max(weight / steps.len() as f64) / 3.0;
    let mut rows = [[0.0; 4]; 3];
    for (i, row) in rows.iter_mut().enumerate() {
        for (features, weight) in steps {
            for (cell, feature) in row.iter_mut().zip(features.iter().chain(&[1.0])) {
                *cell += weight * features[i] * feature;
            }
        }
        row[i] += prior;
        row[3] += prior;
    }
    for pivot in 0..3 {
        let lead = rows[pivot];
        for row in &mut rows[pivot + 1..] {
            let by = row[pivot] / lead[pivot];
            for (cell, above) in row.iter_mut().zip(lead) {
                *cell -= by * above;
            }
        }
    }
    let mut factors = [0.0; 3];
    for i in (0..3).rev() {
        let known: f64 = (i + 1..3).map(|j| rows[i][j] * factors[j]).sum();
        factors[i] = (rows[i][3] - known) / rows[i][i];
    }
    factors
}

#[cfg(test)]
mod tests {
    use super::super::tests::costs;
    use super::*;

    /// Steps of many shapes.
    fn loads() -> Vec<StepLoad> {
        let decodes =
            [1, 2, 3, 5, 8].into_iter().flat_map(|n| [8, 300, 2000].map(|c| StepLoad::decode(n, c)));
        let prompts =
            [20, 64, 200].into_iter().flat_map(|n| [0, 700].map(|b| StepLoad::prefill(b, n, b > 0)));
        decodes.chain(prompts).collect()
    }

    fn check(factors: [f64; 3], disturbed: usize, tolerance: f64) {
        let [decode, prefill, attention] = factors;
        let truth = Correction { decode, prefill, attention, steps: 0 };
        let steps: Vec<(StepLoad, u64)> = (loads().into_iter().enumerate())
            .map(|(i, load)| {
                let parts = features(&costs(), &load);
                let ns = parts[0] * truth.decode + parts[1] * truth.prefill + parts[2] * truth.attention;
                // Every few steps one was disturbed for long.
                (load, if disturbed > 0 && i % disturbed == 1 { ns * 8.0 } else { ns } as u64)
            })
            .collect();
        let corrected = costs().corrected(&steps);
        let got = corrected.correction.unwrap();
        for (got, expected) in [got.decode, got.prefill, got.attention].into_iter().zip(factors) {
            assert!(
                (got / expected - 1.0).abs() < tolerance,
                "{got} for {expected} of {factors:?}, {disturbed}"
            );
        }
        assert_eq!(got.steps as usize, steps.len());
        if disturbed == 0 {
            for (load, ns) in steps {
                let off = corrected.step_ns(&load) as f64 / ns as f64 - 1.0;
                assert!(off.abs() < tolerance, "{load:?}: {off}");
            }
        }
    }

    #[test]
    fn factors_are_found_also_where_some_steps_were_disturbed() {
        check([1.0, 1.0, 1.0], 0, 0.01);
        check([1.3, 0.8, 2.0], 0, 0.06);
        check([3.0, 2.5, 4.0], 0, 0.12);
        check([1.3, 0.8, 2.0], 5, 0.12);
        check([1.0, 1.0, 1.0], 4, 0.03);
    }

    #[test]
    fn what_was_not_seen_keeps_its_costs() {
        let only_decode: Vec<(StepLoad, u64)> = (0..50)
            .map(|i| (StepLoad::decode(1 + i % 4, 1), 2 * costs().step_ns(&StepLoad::decode(1 + i % 4, 1))))
            .collect();
        let corrected = costs().corrected(&only_decode).correction.unwrap();
        assert!((corrected.decode - 2.0).abs() < 0.05, "{corrected:?}");
        assert_eq!(corrected.prefill, 1.0);
        assert!((corrected.attention - 1.0).abs() < 0.2, "{corrected:?}");
        assert_eq!(costs().corrected(&[]).correction, Some(Correction::default()));
        let twice = costs().corrected(&only_decode).corrected(&only_decode).correction.unwrap();
        assert!((twice.decode - 2.0).abs() < 0.05, "factors are of what was measured: {twice:?}");
    }
}

//! What steps cost, from recorded ones alone: a line in what a step holds, where nobody has measured the adapter.
//!
//! Pure arithmetic. Invariant: no cost is negative, and the same steps give the same costs.

use std::collections::BTreeMap;

use crate::clock::Nanos;
use crate::costs::{ATTENTION_UNIT, ClassCost, MAX_DECODE_CLASS, SCHEMA, StepCosts, StepLoad};

/// Costs that grow in proportion to what a step holds.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct LinearCosts {
    /// A step of nothing: reading the weights, deciding, waiting.
    pub step_ns: f64,
    /// A row that continues an answer, with its part of the head.
    pub decode_row_ns: f64,
    /// A row of a prompt.
    pub prefill_row_ns: f64,
    /// Choosing a token, beyond that.
    pub sampled_row_ns: f64,
    /// A position that a row attends to.
    pub attended_ns: f64,
}

/// Costs that are found.
const NUM_COSTS: usize = 5;
/// How much an error of a cost that the steps do not tell counts beside their own: enough to choose among costs that
/// explain them alike, too little to move one that they do tell.
const PULL: f64 = 0.02;
/// A step that took so many times the median of its like was held up by something else.
const HELD_UP: f64 = 3.0;

type Row = [f64; NUM_COSTS];

/// Steps that hold much the same.
struct Class {
    holds: Row,
    mean_ns: f64,
    /// Of all steps' time.
    share: f64,
}

impl LinearCosts {
    /// The costs that explain `observed` best: a least squares fit of relative errors, each class of like steps weighed by
    /// the time that it took. Where the steps leave a choice (all of one shape, say), a row of an answer is taken to cost
    /// what a row of a prompt costs, and choosing a token and attention to cost nothing. `None` where there is no step.
    pub fn fit(observed: &[(StepLoad, Nanos)]) -> Option<Self> {
        let classes = classes(observed);
        let rows = equations(&classes);
        let best = (1u32..1 << NUM_COSTS).filter_map(|chosen| solve(&rows, chosen));
        let (costs, _) = best.min_by(|a, b| a.1.total_cmp(&b.1)).filter(|_| !classes.is_empty())?;
        let [step_ns, decode_row_ns, prefill_row_ns, sampled_row_ns, attended_ns] = costs;
        Some(Self { step_ns, decode_row_ns, prefill_row_ns, sampled_row_ns, attended_ns })
    }

    /// The same as costs by class, of no model and no adapter yet; `num_steps` is how many they were found from. In a step that
    /// holds both, rows of answers count as the rows of prompts that they share it with.
    pub fn by_class(&self, num_steps: u32) -> StepCosts {
        let class = |rows: u32, ns: f64| ClassCost { rows, ns: ns.round() as u64 };
        let rows = |rows: u32, row_ns: f64| class(rows, self.step_ns + f64::from(rows) * row_ns);
        let attention = vec![class(1, self.attended_ns * ATTENTION_UNIT as f64)];
        StepCosts {
            schema: SCHEMA.into(),
            rows: vec![
                rows(1, self.decode_row_ns),
                rows(MAX_DECODE_CLASS, self.decode_row_ns),
                rows(2 * MAX_DECODE_CLASS, self.prefill_row_ns),
                rows(64 * MAX_DECODE_CLASS, self.prefill_row_ns),
            ],
            head: vec![class(1, self.sampled_row_ns), class(2, 2.0 * self.sampled_row_ns)],
            decode_attention: attention.clone(),
            prompt_attention: attention,
            fitted_to: num_steps,
            ..StepCosts::default()
        }
    }

    /// Nanoseconds of a step that holds `load`.
    pub fn step_ns(&self, load: &StepLoad) -> Nanos {
        let Self { step_ns, decode_row_ns, prefill_row_ns, sampled_row_ns, attended_ns } = *self;
        let costs = [step_ns, decode_row_ns, prefill_row_ns, sampled_row_ns, attended_ns];
        dot(&costs, &holds(load)).round() as Nanos
    }
}

fn holds(load: &StepLoad) -> Row {
    let (decode, prefill) = (f64::from(load.decode_rows), f64::from(load.prefill_rows));
    [1.0, decode, prefill, f64::from(load.sampled_rows), load.attended as f64]
}

fn dot(a: &Row, b: &Row) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

/// Like steps together: the same rows, and as many positions up to a power of two.
fn classes(observed: &[(StepLoad, Nanos)]) -> Vec<Class> {
    let mut like: BTreeMap<[u32; 4], Vec<&(StepLoad, Nanos)>> = BTreeMap::new();
    for one in observed.iter().filter(|(_, ns)| *ns > 0) {
        let load = &one.0;
        let depth = load.attended.checked_ilog2().unwrap_or(0);
        like.entry([load.decode_rows, load.prefill_rows, load.sampled_rows, depth]).or_default().push(one);
    }
    let total: f64 = observed.iter().map(|(_, ns)| *ns as f64).sum();
    let class = |mut steps: Vec<&(StepLoad, Nanos)>| {
        steps.sort_by_key(|(_, ns)| *ns);
        let median = steps[(steps.len() - 1) / 2].1 as f64;
        steps.retain(|(_, ns)| *ns as f64 <= HELD_UP * median);
        let n = steps.len() as f64;
        let mut mean = [0.0; NUM_COSTS];
        for (load, _) in &steps {
            mean.iter_mut().zip(holds(load)).for_each(|(sum, held)| *sum += held / n);
        }
        let sum: f64 = steps.iter().map(|(_, ns)| *ns as f64).sum();
        Class { holds: mean, mean_ns: sum / n, share: sum / total }
    };
    like.into_values().map(class).collect()
}

/// One equation a class, relative to its time, and one for each cost that they may not tell.
fn equations(classes: &[Class]) -> Vec<(Row, f64)> {
    let mut rows: Vec<(Row, f64)> = Vec::with_capacity(classes.len() + NUM_COSTS);
    let mut scale = [0.0; NUM_COSTS];
    for class in classes {
        let weight = class.share.sqrt();
        let row = class.holds.map(|held| held / class.mean_ns * weight);
        scale.iter_mut().zip(row).for_each(|(scale, held): (&mut f64, f64)| *scale = scale.max(held));
        rows.push((row, weight));
    }
    let [step, decode, prefill, sampled, attended] = scale;
    let alike = if decode > 0.0 && prefill > 0.0 { decode.min(prefill) } else { decode.max(prefill) };
    let nothing = |idx: usize, scale: f64| {
        let mut row = [0.0; NUM_COSTS];
        row[idx] = PULL * scale;
        (row, 0.0)
    };
    rows.push(([0.0, PULL * alike, -PULL * alike, 0.0, 0.0], 0.0));
    // The step itself least of all: what does not grow is the first thing to be taken for granted.
    rows.extend([nothing(0, step / 100.0), nothing(3, sampled), nothing(4, attended)]);
    rows
}

/// The least squares solution in which only the `chosen` costs are not 0, with its error; `None` where one of them would be
/// negative or is not told by anything.
fn solve(rows: &[(Row, f64)], chosen: u32) -> Option<(Row, f64)> {
    let idxs: Vec<usize> = (0..NUM_COSTS).filter(|idx| chosen >> idx & 1 == 1).collect();
    let n = idxs.len();
    // Columns in units of their own length, so that nanoseconds a position and a step can stand side by side.
    let length = |idx: usize| rows.iter().map(|(row, _)| row[idx] * row[idx]).sum::<f64>().sqrt();
    let lengths: Vec<f64> = idxs.iter().map(|idx| length(*idx)).collect();
    if lengths.iter().any(|length| *length <= 0.0) {
        return None;
    }
    let mut normal = vec![vec![0.0; n + 1]; n];
    for (i, equation) in normal.iter_mut().enumerate() {
        for (row, target) in rows {
            let of = row[idxs[i]] / lengths[i];
            for (j, cell) in equation.iter_mut().take(n).enumerate() {
                *cell += of * row[idxs[j]] / lengths[j];
            }
            equation[n] += of * target;
        }
    }
    let solved = eliminate(normal)?;
    let mut costs = [0.0; NUM_COSTS];
    for ((idx, value), length) in idxs.iter().zip(solved).zip(&lengths) {
        costs[*idx] = value / length;
    }
    if costs.iter().any(|cost| *cost < 0.0) {
        return None;
    }
    let error = rows.iter().map(|(row, target)| (dot(row, &costs) - target).powi(2)).sum();
    Some((costs, error))
}

/// Gauss's elimination with pivots; the last column is the right side. `None` where an unknown is free.
fn eliminate(mut rows: Vec<Vec<f64>>) -> Option<Vec<f64>> {
    let n = rows.len();
    for at in 0..n {
        let pivot = (at..n).max_by(|a, b| rows[*a][at].abs().total_cmp(&rows[*b][at].abs()))?;
        rows.swap(at, pivot);
        let (head, tail) = rows.split_at_mut(at + 1);
        let lead = &head[at];
        if lead[at].abs() < 1e-12 {
            return None;
        }
        for row in tail {
            let factor = row[at] / lead[at];
            row.iter_mut().zip(lead).skip(at).for_each(|(cell, lead)| *cell -= factor * lead);
        }
    }
    let mut solved = vec![0.0; n];
    for at in (0..n).rev() {
        let known: f64 = (at + 1..n).map(|idx| rows[at][idx] * solved[idx]).sum();
        solved[at] = (rows[at][n] - known) / rows[at][at];
    }
    Some(solved)
}

#[cfg(test)]
mod tests {
    use super::*;

    const TRUE: LinearCosts = LinearCosts {
        step_ns: 2e6,
        decode_row_ns: 3e5,
        prefill_row_ns: 5e4,
        sampled_row_ns: 4e4,
        attended_ns: 200.0,
    };

    fn check(loads: &[StepLoad], truth: LinearCosts, asked: StepLoad, within: f64) {
        let observed: Vec<_> = loads.iter().map(|load| (*load, truth.step_ns(load))).collect();
        let fitted = LinearCosts::fit(&observed).unwrap();
        let (got, expected) = (fitted.step_ns(&asked) as f64, truth.step_ns(&asked) as f64);
        assert!((got / expected - 1.0).abs() <= within, "{got} for {expected}: {fitted:?}");
    }

    fn rich() -> Vec<StepLoad> {
        let mut loads = Vec::new();
        for at in 0..40u32 {
            loads.push(StepLoad::decode(1 + at % 3, 50 + 37 * at));
            loads.push(StepLoad::prefill(at * 16, 16 + at * 7 % 100, at % 2 == 0));
            let mut both = StepLoad::decode(1 + at % 2, 20 * (at + 1));
            both.add(0, 40 + at);
            loads.push(both);
        }
        loads
    }

    #[test]
    fn costs_that_the_steps_tell_are_found() {
        check(&rich(), TRUE, StepLoad::decode(8, 3000), 0.02);
        check(&rich(), TRUE, StepLoad::prefill(0, 256, true), 0.02);
        let by_row = LinearCosts { step_ns: 0.0, ..TRUE };
        check(&rich(), by_row, StepLoad::decode(8, 100), 0.02);
    }

    #[test]
    fn costs_by_class_are_the_same_costs() {
        let costs = TRUE.by_class(7);
        assert_eq!((costs.check(), costs.fitted_to), (None, 7));
        let check = |load: StepLoad| {
            let (got, expected) = (costs.step_ns(&load) as f64, TRUE.step_ns(&load) as f64);
            assert!((got / expected - 1.0).abs() < 1e-6, "{load:?}: {got} for {expected}");
        };
        for rows in [1, 2, 5, 8] {
            check(StepLoad::decode(rows, 700));
        }
        for tokens in [16, 100, 512, 4000] {
            check(StepLoad::prefill(300, tokens, false));
            check(StepLoad::prefill(0, tokens, true));
        }
    }

    #[test]
    fn of_two_shapes_the_rows_tell_what_a_step_costs() {
        let (decode, prefill) = (StepLoad::decode(2, 80), StepLoad::prefill(0, 128, true));
        // A CPU: every row costs alike, so that four rows cost twice what two cost.
        let cpu = LinearCosts { decode_row_ns: 2e7, prefill_row_ns: 2.2e7, ..LinearCosts::default() };
        check(&[decode, prefill], cpu, StepLoad::decode(4, 80), 0.05);
        check(&[decode, prefill], cpu, StepLoad::prefill(0, 256, true), 0.05);
        // A GPU: what a step costs is reading the weights, and two more rows cost next to nothing.
        let gpu =
            LinearCosts { step_ns: 3e6, decode_row_ns: 6e4, prefill_row_ns: 6e4, ..LinearCosts::default() };
        check(&[decode, prefill], gpu, StepLoad::decode(4, 80), 0.05);
        check(&[decode, prefill], gpu, StepLoad::prefill(0, 256, true), 0.05);
    }

    #[test]
    fn a_step_that_was_held_up_moves_nothing() {
        let loads = rich();
        let mut observed: Vec<_> = loads.iter().map(|load| (*load, TRUE.step_ns(load))).collect();
        observed.extend([(StepLoad::decode(2, 100), 900_000_000); 1]);
        observed.extend([(StepLoad::decode(2, 100), TRUE.step_ns(&StepLoad::decode(2, 100))); 4]);
        let fitted = LinearCosts::fit(&observed).unwrap();
        let asked = StepLoad::decode(4, 500);
        let ratio = fitted.step_ns(&asked) as f64 / TRUE.step_ns(&asked) as f64;
        assert!((ratio - 1.0).abs() < 0.05, "{ratio}: {fitted:?}");
        assert_eq!(LinearCosts::fit(&[]), None);
        assert_eq!(LinearCosts::fit(&[(StepLoad::decode(1, 1), 0)]), None);
    }
}

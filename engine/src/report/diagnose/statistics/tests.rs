//! Tests held against textbooks, against their own definitions, and against chance, by simulation with fixed seeds.

use super::*;
use crate::report::diagnose::dip::{dip, is_significant};
use crate::report::diagnose::tests::Rng;
use crate::report::diagnose::{ALPHA_EACH, FEWEST};

/// A latency as there are many, in nanoseconds.
fn latency(rng: &mut Rng) -> u64 {
    (1e8 * rng.factor()) as u64
}

fn near(got: f64, expected: f64, tolerance: f64) {
    assert!((got - expected).abs() <= tolerance, "{got} is not {expected}");
}

#[test]
fn tails_are_those_of_the_tables() {
    for (z, expected) in
        [(0.0, 0.5), (1.959_964, 0.025), (-1.959_964, 0.975), (3.090_232, 1e-3), (4.753_424, 1e-6)]
    {
        near(normal_tail(z) / expected, 1.0, 1e-5);
    }
    near(coin_tail(0, 7), 1.0, 1e-12);
    near(coin_tail(12, 12), 0.5_f64.powi(12), 1e-12);
    near(coin_tail(8, 10), 56.0 / 1024.0, 1e-12);
    // The first term is too small for a double; the sum is not.
    near(coin_tail(1000, 2000), 0.508_9, 1e-3);
    assert!(coin_tail(FEWEST, FEWEST) < ALPHA_EACH && coin_tail(FEWEST - 2, FEWEST - 2) > ALPHA_EACH);
}

#[test]
fn ranks_tell_which_set_is_larger() {
    // Hollander, Wolfe and Chicken's example 4.1: U of the second set is 15 of 5 x 10, by hand.
    let (first, second) = ([80, 83, 189, 104, 145, 138, 191, 164, 73, 146], [115, 88, 90, 74, 121]);
    let test = mann_whitney(&first, &second).unwrap();
    near(test.superiority * 50.0, 15.0, 1e-9);
    let up = mann_whitney(&second, &first).unwrap();
    near(test.superiority + up.superiority, 1.0, 1e-12);
    let ties = mann_whitney(&[1, 1, 2, 2], &[2, 2, 3, 3]).unwrap();
    near(ties.superiority, 14.0 / 16.0, 1e-12);
    assert_eq!(mann_whitney(&[5, 5], &[5, 5]), None);
    assert_eq!(mann_whitney(&[], &[5, 5]), None);
}

#[test]
fn a_trend_is_that_of_the_textbooks() {
    let points: Vec<(u64, u64)> = (0..20).map(|x| (x, 3 * x + 7)).collect();
    let line = trend(&points).unwrap();
    near(line.slope, 3.0, 1e-12);
    near(line.intercept, 7.0, 1e-12);
    // 190 pairs rise: z = 189 / sqrt(20 * 19 * 45 / 18).
    near(line.p_up, normal_tail(189.0 / 950.0_f64.sqrt()), 1e-12);
    let down: Vec<(u64, u64)> = (0..20).map(|x| (x, 100 - x)).collect();
    assert!(trend(&down).unwrap().p_up > 0.99);
    assert_eq!(trend(&[(1, 2), (1, 3)]), None, "x never moves");
    assert_eq!(trend(&[(1, 2), (2, 2), (3, 2)]), None, "y never moves");
    assert_eq!(trend(&[]), None);
    // Ties in both: tau's variance by hand for x = 1 1 2 2, y = 1 2 2 3 is (4*3*13 - 2*18 - 18) / 18 + 4*2 / 24 = 6.
    near(score_variance(&[(1.0, 1.0), (1.0, 2.0), (2.0, 2.0), (2.0, 3.0)]), 102.0 / 18.0 + 8.0 / 24.0, 1e-12);
}

#[test]
fn values_that_follow_each_other_count_for_fewer() {
    let mut rng = Rng(5);
    let alone: Vec<f64> = (0..500).map(|_| rng.next()).collect();
    assert!(dependence(&alone) < 1.3);
    let mut level = 0.0;
    let walk: Vec<f64> = (0..500)
        .map(|_| {
            level = 0.8 * level + rng.next() - 0.5;
            level
        })
        .collect();
    // (1 + 0.8) / (1 - 0.8) = 9.
    near(dependence(&walk), 9.0, 3.0);
    near(dependence(&[]), 1.0, 0.0);
    near(dependence(&[1.0; 9]), 1.0, 0.0);
}

/// Whether a distribution with one peak and no step comes within `d` of the sample, by its definition: convex below some point
/// and concave above it. The greatest convex function under the upper bounds has to stay above the lower ones.
fn is_within(x: &[f64], d: f64) -> bool {
    let n = x.len();
    let least = |idx: usize| (idx + 1) as f64 / n as f64 - d;
    let most = |idx: usize| idx as f64 / n as f64 + d;
    let chord = |bound: &dyn Fn(usize) -> f64, i: usize, k: usize, j: usize| match k == i {
        true => bound(i),
        false => bound(i) + (bound(k) - bound(i)) * (x[j] - x[i]) / (x[k] - x[i]),
    };
    // Up to a peak at point `to`, and from one at `from`: just beyond the point's step it is bounded on one side only.
    let convex = |to: usize, beyond: bool| {
        let lowest = |j: usize| {
            let ends = (0..=j).flat_map(|i| (j..=to).map(move |k| (i, k)));
            ends.map(|(i, k)| chord(&most, i, k, j)).fold(f64::INFINITY, f64::min)
        };
        (0..=to).all(|j| (beyond && j == to) || lowest(j) >= least(j) - 1e-12)
    };
    let concave = |from: usize, beyond: bool| {
        let highest = |j: usize| {
            let ends = (from..=j).flat_map(|i| (j..n).map(move |k| (i, k)));
            ends.map(|(i, k)| chord(&least, i, k, j)).fold(f64::NEG_INFINITY, f64::max)
        };
        (from..n).all(|j| (beyond && j == from) || highest(j) <= most(j) + 1e-12)
    };
    (0..n).any(|at| (convex(at, true) && concave(at, false)) || (convex(at, false) && concave(at, true)))
}

#[test]
fn a_dip_is_the_distance_to_the_nearest_distribution_with_one_peak() {
    let (mut rng, mut equal) = (Rng(11), 0);
    for n in [4, 5, 7, 9, 12] {
        for _ in 0..40 {
            let mut x: Vec<f64> =
                (0..n).map(|i| rng.next() + f64::from(u8::from(i % 3 == 0)) * 1.5).collect();
            x.sort_by(f64::total_cmp);
            let (mut none, mut some) = (0.0, 0.5);
            for _ in 0..40 {
                let middle = (none + some) / 2.0;
                if is_within(&x, middle) { some = middle } else { none = middle }
            }
            // What is checked by chords leaves open whether the two halves meet: it is never above the dip.
            assert!(dip(&x) > some - 1e-9, "{} is below {some}: {x:?}", dip(&x));
            equal += u32::from((dip(&x) - some).abs() < 1e-9);
        }
    }
    assert!(equal >= 190, "{equal} of 200 are equal");
    let even: Vec<f64> = (0..50).map(f64::from).collect();
    near(dip(&even), 0.01, 1e-12);
    let two: Vec<f64> = (0..50).map(|i| f64::from(i % 2) + f64::from(i) * 1e-9).collect();
    let mut two = two;
    two.sort_by(f64::total_cmp);
    near(dip(&two), 0.25, 0.02);
    assert_eq!((dip(&[]), dip(&[1.0; 8])), (0.0, 1.0 / 16.0));
}

/// How often `is_found` is true in `runs` samples.
fn rate(runs: u32, mut is_found: impl FnMut(&mut Rng) -> bool) -> f64 {
    let mut rng = Rng(2026);
    f64::from((0..runs).map(|_| u32::from(is_found(&mut rng))).sum::<u32>()) / f64::from(runs)
}

#[test]
fn the_dips_table_is_one_uniform_sample_in_twelve_hundred() {
    for n in [12, 50, 100, 300] {
        let mut uniform = |rng: &mut Rng| {
            // Sums of exponentials lie as a sorted uniform sample does.
            let mut at = 0.0;
            let x: Vec<f64> = (0..n)
                .map(|_| {
                    at += rng.exponential();
                    at
                })
                .collect();
            is_significant(dip(&x), n)
        };
        let got = rate(12_000, &mut uniform);
        assert!((2.0 / 12_000.0..=22.0 / 12_000.0).contains(&got), "n {n}: {got} of 10 expected in 12,000");
    }
    let two_kinds = |rng: &mut Rng| {
        let mut x: Vec<f64> =
            (0..40).map(|i| ((latency(rng) * if i % 2 == 0 { 1 } else { 20 }) as f64).ln()).collect();
        x.sort_by(f64::total_cmp);
        is_significant(dip(&x), 40)
    };
    let got = rate(500, two_kinds);
    assert!(got > 0.5, "of two kinds, 20 times apart, {got} are found");
}

#[test]
fn a_rank_test_is_wrong_as_seldom_as_it_says_and_sees_what_is_large() {
    let set = |rng: &mut Rng, n: usize, times: u64| {
        (0..n).map(|_| latency(rng) * times / 100).collect::<Vec<u64>>()
    };
    for (n, m) in [(12, 12), (20, 60), (100, 100)] {
        let at =
            |p: f64| rate(8_000, |rng| mann_whitney(&set(rng, n, 100), &set(rng, m, 100)).unwrap().p_up < p);
        assert!(
            at(0.05) < 0.055 && at(ALPHA_EACH) < 2.0 * ALPHA_EACH,
            "{n}, {m}: {} and {}",
            at(0.05),
            at(ALPHA_EACH)
        );
    }
    let seen =
        rate(500, |rng| mann_whitney(&set(rng, 24, 100), &set(rng, 24, 200)).unwrap().p_up < ALPHA_EACH);
    assert!(seen > 0.9, "of twice the latency, 24 against 24, {seen} are seen");
}

#[test]
fn the_smallest_windows_are_told_apart_however_much_their_values_depend_on_each_other() {
    // Each rises all the time: no values depend on each other more.
    let rising = |from: u64| (0..FEWEST as u64).map(|i| from + i).collect::<Vec<u64>>();
    let test = mann_whitney(&rising(60), &rising(900)).unwrap();
    assert!(test.superiority == 1.0 && test.p_up < ALPHA_EACH, "{test:?}");
    let same = mann_whitney(&rising(60), &rising(61)).unwrap();
    assert!(same.p_up > 0.1, "{same:?}");
}

#[test]
fn a_trend_is_wrong_as_seldom_as_it_says_also_in_a_queue_that_keeps_up() {
    let alone = |rng: &mut Rng| (0..40).map(|x| (x, latency(rng))).collect::<Vec<_>>();
    let got = rate(4_000, |rng| trend(&alone(rng)).unwrap().p_up < ALPHA_EACH);
    assert!(got < 2.0 * ALPHA_EACH, "{got}");
    // Lindley's recursion: waits of a queue that is used to `load`, long after it began.
    let queue = |rng: &mut Rng, load: f64| {
        let (mut wait, mut at, mut points) = (0.0, 0.0, Vec::new());
        for arrival in 0..160 {
            let between = rng.exponential();
            at += between;
            wait = f64::max(wait + load - between, 0.0);
            if arrival >= 100 {
                points.push(((at * 1e6) as u64, (wait * 1e6) as u64));
            }
        }
        points
    };
    let found = |rng: &mut Rng, load| trend(&queue(rng, load)).is_some_and(|trend| trend.p_up < ALPHA_EACH);
    let (calm, busy, over) = (
        rate(1_000, |rng| found(rng, 0.5)),
        rate(1_000, |rng| found(rng, 0.8)),
        rate(200, |rng| found(rng, 2.0)),
    );
    println!("a trend in a queue used to 50 %, 80 %, 200 %: {calm}, {busy}, {over}");
    assert!(calm < 0.01 && busy < 0.05 && over > 0.6, "{calm}, {busy}, {over}");
}

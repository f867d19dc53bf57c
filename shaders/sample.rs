//! `sample.wgsl`: one token a row of logits, and the sampler of CPU drivers.
//!
//! The order is vLLM's: temperature, min-p (relative to the likeliest token), top-k, top-p over the renormalised survivors;
//! then the token with the largest logit/temperature + Gumbel noise, which draws from exactly that distribution
//! (1411.0030). Tokens equal to the last one kept are kept too, so that no order of tokens matters.
//!
//! Odd logits: NaN counts as minus infinity, plus infinity as the largest finite number; where all are minus infinity,
//! there is no token. Invariant: a token depends on its row's logits, its `Choice`, and nothing else.

use core::mem::offset_of;

use bytemuck::{Pod, Zeroable};

use crate::{BindingKind, ComposeError, Program, compose};

/// The largest vocabulary: beyond it the kernel's sums of masses could overflow, and its loops pass Mesa's limit.
pub const MAX_VOCAB: u32 = 500_000;
/// Below this temperature a row is greedy.
pub const MIN_TEMPERATURE: f32 = 1e-5;
/// Threads of a workgroup.
const WORKGROUP: u32 = 256;

/// The uniform.
#[repr(C)]
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
pub struct Params {
    /// Logits a row; at most [`MAX_VOCAB`].
    pub vocab: u32,
    /// Floats from one row to the next.
    pub pitch: u32,
}

/// The uniform's members and where they lie.
pub const PARAMS: &[(&str, u32)] =
    &[("vocab", offset_of!(Params, vocab) as u32), ("pitch", offset_of!(Params, pitch) as u32)];

/// How the token of one row is chosen.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Choice {
    /// Logits are divided by it; below [`MIN_TEMPERATURE`] the row is greedy, whatever else is set.
    pub temperature: f32,
    /// Keep the k most likely; 0 keeps all.
    pub top_k: u32,
    /// Keep the smallest set of the most likely whose probability reaches this; 1.0 keeps all.
    pub top_p: f32,
    /// Keep those at least this fraction as likely as the likeliest; 0.0 keeps all.
    pub min_p: f32,
    /// Names the random numbers, together with `position`.
    pub seed: u64,
    /// Position of the token to be chosen.
    pub position: u32,
}

/// A [`Choice`] as the kernel reads it.
#[repr(C)]
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
pub struct Row {
    /// 0 is greedy.
    pub inverse_temperature: f32,
    /// ln(min-p): the lowest scaled logit kept.
    pub min_scaled: f32,
    /// 1 or more is off.
    pub top_p: f32,
    /// 0 is off.
    pub top_k: u32,
    /// The seed's low word.
    pub seed_low: u32,
    /// The seed's high word.
    pub seed_high: u32,
    /// Position of the token to be chosen.
    pub position: u32,
    /// Nothing: WGSL wants no padding here, a reader of both sides does.
    pub unused: u32,
}

/// A row's members and where they lie.
pub const ROW: &[(&str, u32)] = &[
    ("inverse_temperature", offset_of!(Row, inverse_temperature) as u32),
    ("min_scaled", offset_of!(Row, min_scaled) as u32),
    ("top_p", offset_of!(Row, top_p) as u32),
    ("top_k", offset_of!(Row, top_k) as u32),
    ("seed_low", offset_of!(Row, seed_low) as u32),
    ("seed_high", offset_of!(Row, seed_high) as u32),
    ("position", offset_of!(Row, position) as u32),
    ("unused", offset_of!(Row, unused) as u32),
];

impl From<&Choice> for Row {
    fn from(choice: &Choice) -> Self {
        let greedy = choice.temperature.is_nan() || choice.temperature < MIN_TEMPERATURE;
        // Scaled logits stop at -1000: what min-p keeps when it is off lies below.
        let min_scaled = if choice.min_p > 0.0 { choice.min_p.min(1.0).ln() } else { -2000.0 };
        Self {
            inverse_temperature: if greedy { 0.0 } else { 1.0 / choice.temperature },
            min_scaled,
            top_p: choice.top_p,
            top_k: choice.top_k,
            seed_low: choice.seed as u32,
            seed_high: (choice.seed >> 32) as u32,
            position: choice.position,
            unused: 0,
        }
    }
}

/// The kernel. Bindings: `Params`, logits `[rows][pitch]`, `[rows]` [`Row`]s, `[rows]` tokens out.
pub fn program() -> Result<Program, ComposeError> {
    Ok(Program {
        name: "sample".into(),
        wgsl: compose(&[("WORKGROUP", WORKGROUP)], wgsl!("sample.wgsl"), &[])?,
        bindings: vec![BindingKind::Uniform, BindingKind::Read, BindingKind::Read, BindingKind::ReadWrite],
        subgroups: false,
    })
}

/// The grid for `rows` rows.
pub fn workgroups(rows: u32) -> [u32; 3] {
    [rows, 1, 1]
}

/// Loop iterations of one invocation: Mesa 22.3.6 ends all loops after 65,535.
pub fn iterations(vocab: u32) -> u32 {
    // The likeliest, 4 digits for top-k and for top-p, the choice; thread 0 walks 256 bins a digit and adds them up once.
    10 * vocab.div_ceil(WORKGROUP) + 9 * 256 + 2 * (4 + 4 + 8)
}

/// What a row without a finite logit gives: no vocabulary has it, so that nobody takes it for a token.
pub const NO_TOKEN: u32 = u32::MAX;

/// The token of one row, or [`NO_TOKEN`].
pub fn cpu(logits: &[f32], choice: &Choice) -> u32 {
    let row = Row::from(choice);
    let (mut best, mut likeliest) = (f32::NEG_INFINITY, NO_TOKEN);
    for (token, &logit) in logits.iter().enumerate() {
        let logit = ordered(logit);
        if logit > best {
            (best, likeliest) = (logit, token as u32);
        }
    }
    if row.inverse_temperature == 0.0 || best == f32::NEG_INFINITY {
        return likeliest;
    }
    let kept = Kept { largest: best, inverse_temperature: row.inverse_temperature };
    let floor = kept.floor(logits, &row);
    kept.draw(logits, &row, floor, likeliest)
}

/// The logit with a place in the order of numbers: NaN is minus infinity, plus infinity the largest finite number.
pub fn ordered(logit: f32) -> f32 {
    if logit.is_nan() { f32::NEG_INFINITY } else { logit.min(f32::MAX) }
}

/// The scale on which one row's logits are compared.
struct Kept {
    largest: f32,
    inverse_temperature: f32,
}

impl Kept {
    /// 0 for the likeliest token, below for the others. `logit` is [`ordered`].
    fn scaled(&self, logit: f32) -> f32 {
        let scaled = (logit - self.largest) * self.inverse_temperature;
        // What is minus infinity has no chance, not even without min-p.
        if logit == f32::NEG_INFINITY { logit } else { scaled.max(-1000.0) }
    }

    /// The lowest logit that min-p, top-k and top-p keep.
    fn floor(&self, logits: &[f32], row: &Row) -> f32 {
        let top_k = row.top_k > 0 && (row.top_k as usize) < logits.len();
        if !top_k && row.top_p >= 1.0 {
            return f32::MIN;
        }
        let mut survivors: Vec<f32> =
            logits.iter().map(|&x| ordered(x)).filter(|&x| self.scaled(x) >= row.min_scaled).collect();
        let mut floor = f32::MIN;
        if top_k && (row.top_k as usize) < survivors.len() {
            let (_, &mut last, _) =
                survivors.select_nth_unstable_by(row.top_k as usize - 1, |a, b| b.total_cmp(a));
            floor = last;
            survivors.retain(|&x| x >= floor);
        }
        if row.top_p < 1.0 {
            floor = self.nucleus(&mut survivors, row.top_p);
        }
        floor
    }

    /// The lowest logit of the smallest set of the largest ones that holds `top_p` of the probability of all.
    fn nucleus(&self, survivors: &mut [f32], top_p: f32) -> f32 {
        let mass = |x: f32| (f64::from(self.scaled(x)).exp() * f64::from(1 << 26)).round();
        let goal = survivors.iter().map(|&x| mass(x)).sum::<f64>() * f64::from(top_p);
        let descending = |a: &f32, b: &f32| b.total_cmp(a);
        // Most nuclei are small: the largest are sorted first, and more of them only if need be.
        for count in [1 << 10, 1 << 13, survivors.len()] {
            let count = count.min(survivors.len());
            if count < survivors.len() {
                survivors.select_nth_unstable_by(count, descending);
            }
            let front = &mut survivors[..count];
            front.sort_unstable_by(descending);
            let mut sum = 0.0;
            for &x in front.iter() {
                sum += mass(x);
                if sum >= goal {
                    return x;
                }
            }
        }
        f32::MIN
    }

    /// The token with the largest scaled logit plus noise.
    fn draw(&self, logits: &[f32], row: &Row, floor: f32, likeliest: u32) -> u32 {
        let stream = random_stream(row);
        let (mut best, mut chosen) = (f64::NEG_INFINITY, likeliest);
        for (token, &logit) in logits.iter().enumerate() {
            let logit = ordered(logit);
            let scaled = self.scaled(logit);
            if logit < floor || scaled < row.min_scaled {
                continue;
            }
            let bits = random_bits(stream, token as u32);
            // -ln(-ln(1 - v)) is at most -ln(v): most tokens lose here, without a logarithm.
            let bound = f64::from(bits.leading_zeros() + 1) * core::f64::consts::LN_2;
            if f64::from(scaled) + bound < best {
                continue;
            }
            let v = (f64::from(bits) + 0.5) / 4_294_967_296.0;
            let score = f64::from(scaled) - (-(-v).ln_1p()).ln();
            if score > best {
                (best, chosen) = (score, token as u32);
            }
        }
        chosen
    }
}

/// A bijection that spreads every bit over all others: the last step of MurmurHash3.
fn mix(value: u32) -> u32 {
    let h = (value ^ (value >> 16)).wrapping_mul(0x85eb_ca6b);
    let h = (h ^ (h >> 13)).wrapping_mul(0xc2b2_ae35);
    h ^ (h >> 16)
}

/// Seed and position name a stream of random numbers, one for each token.
fn random_stream(row: &Row) -> [u32; 2] {
    let first = mix(mix(row.seed_low).wrapping_add(row.position));
    let second = mix(mix(row.seed_high ^ 0x9e37_79b9) ^ mix(row.seed_low.wrapping_add(0x7f4a_7c15)));
    [first, second.wrapping_add(row.position.wrapping_mul(0x9e37_79b1))]
}

fn random_bits(stream: [u32; 2], token: u32) -> u32 {
    mix(mix(token.wrapping_add(stream[0])) ^ stream[1])
}

#[cfg(test)]
mod tests;

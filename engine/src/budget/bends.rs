//! Where a budget's lines bend: the points at which another of two times becomes the larger.
//!
//! Invariant: a bend is told as a number of tokens or of sequences, and only where there is one.

use serde::{Deserialize, Serialize};

use super::Stack;
use super::stack::Times;

/// Which bend.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum BendAt {
    /// Rows, of answers or of a prompt, whose arithmetic takes as long as reading the weights.
    ReadIsArithmetic,
    /// Tokens of a prompt whose attention takes as long as all else.
    PromptLinearIsQuadratic,
    /// Tokens of context, of each sequence of the batch, whose keys and values take as long to read as the weights.
    ContextKvIsWeights,
    /// Sequences of the average length that the pool has room for: beyond, somebody waits.
    BatchFillsPool,
}

/// A bend.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize, Serialize)]
pub struct Bend {
    /// Which.
    pub at: BendAt,
    /// Where: tokens or sequences.
    pub value: f64,
}

/// The bends of `stack` for steps of `batch` sequences, and a pool that holds `users` of the average length.
pub(super) fn bends(stack: &Stack, times: &Times<'_>, batch: u32, users: f64) -> Vec<Bend> {
    let model = stack.model();
    // Far beyond the ridge, where both kinds are at their own pace.
    let (long, short) = (times.prefill(32_768), times.prefill(16_384));
    let a_token = (long.linear_ns - short.linear_ns) / 16_384.0;
    let a_pair = long.quadratic_ns / (32_768.0 * 32_768.0);
    let (near, far) = (times.step(batch, 0.0), times.step(batch, 1024.0));
    let kv_a_position = match stack {
        // Whatever the step is bound by: this bend is of what it reads.
        Stack::Rates { rates, .. } => rates.read_ns(f64::from(batch) * model.kv_bytes_a_token),
        Stack::Measured { .. } => (far.attention_ns - near.attention_ns) / 1024.0,
    };
    let weights = match stack {
        Stack::Rates { rates, .. } => rates.read_ns(model.weight_bytes),
        Stack::Measured { .. } => near.weights_ns,
    };
    let all = [
        (BendAt::ReadIsArithmetic, times.ridge(0.0).0),
        (BendAt::PromptLinearIsQuadratic, a_token / a_pair),
        (BendAt::ContextKvIsWeights, weights / kv_a_position),
        (BendAt::BatchFillsPool, users),
    ];
    all.into_iter()
        .filter(|(_, value)| value.is_finite() && *value > 0.0 && *value < 1e12)
        .map(|(at, value)| Bend { at, value })
        .collect()
}

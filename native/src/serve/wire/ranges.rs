//! What the numbers of a call may be: read by the parser, and by the description of the API.
//!
//! Constants, and no decision. Invariant: a limit of a field stands here or in the engine, and nowhere twice.

use std::fmt;
use std::ops::RangeInclusive;

use firstlight_engine::request::{Request, SamplingParams};

/// Choices of one prompt: OpenAI's own limit.
pub const CHOICES: RangeInclusive<i64> = 1..=128;
/// Prompts in one call.
pub const MAX_PROMPTS: usize = 64;
/// Tokens of an answer: what the context does not hold is cut there.
pub const TOKENS: RangeInclusive<i64> = 1..=i64::MAX;
/// What OpenAI's completions get where they do not say.
pub const COMPLETION_MAX_TOKENS: u32 = 16;
/// Seeds: any.
pub const SEEDS: RangeInclusive<i64> = i64::MIN..=i64::MAX;
/// `top_k`: -1, vLLM's word for all, and 0 keep all.
pub const TOP_K: RangeInclusive<i64> = -1..=u32::MAX as i64;
/// Alternatives to each token.
pub const LOGPROBS: RangeInclusive<i64> = 0..=SamplingParams::MAX_LOGPROBS as i64;
/// Characters of a stop string, each of which may take four bytes.
pub const STOP_CHARS: RangeInclusive<usize> = 1..=SamplingParams::MAX_STOP_BYTES / 4;
/// `firstlight.deadline_ms`: up to a day.
pub const DEADLINES_MS: RangeInclusive<i64> = 1..=86_400_000;
/// `firstlight.priority`.
pub const PRIORITIES: RangeInclusive<i64> =
    *Request::PRIORITIES.start() as i64..=*Request::PRIORITIES.end() as i64;

/// `temperature`.
pub const TEMPERATURES: NumberRange = NumberRange::closed(SamplingParams::TEMPERATURES);
/// `top_p`.
pub const TOP_P: NumberRange = NumberRange::above_zero(1.0);
/// `min_p`.
pub const MIN_P: NumberRange = NumberRange::closed(0.0..=1.0);
/// `repetition_penalty`.
pub const REPETITION_PENALTIES: NumberRange = NumberRange::above_zero(SamplingParams::MAX_REPETITION_PENALTY);
/// `presence_penalty` and `frequency_penalty`.
pub const PENALTIES: NumberRange = NumberRange::closed(SamplingParams::PENALTIES);
/// The values of `logit_bias`.
pub const BIASES: NumberRange = NumberRange::closed(SamplingParams::BIASES);

/// The numbers from `least` to `most`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct NumberRange {
    /// The lower end.
    pub least: f64,
    /// The upper end, which belongs to the range.
    pub most: f64,
    /// The lower end itself lies outside.
    pub is_open: bool,
}

impl NumberRange {
    const fn closed(range: RangeInclusive<f32>) -> Self {
        Self { least: *range.start() as f64, most: *range.end() as f64, is_open: false }
    }

    const fn above_zero(most: f32) -> Self {
        Self { least: 0.0, most: most as f64, is_open: true }
    }

    /// Whether `number` lies within.
    pub fn contains(&self, number: f64) -> bool {
        number <= self.most && if self.is_open { number > self.least } else { number >= self.least }
    }
}

/// As a sentence has it: "it must be ...".
impl fmt::Display for NumberRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.is_open {
            true => write!(f, "above {}, at most {}", self.least, self.most),
            false => write!(f, "{} to {}", self.least, self.most),
        }
    }
}

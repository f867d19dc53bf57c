//! What was asked, and how it can end. Immutable once made; the scheduler's own mutable state is `sched::Sequence`.

use std::ops::RangeInclusive;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::clock::Nanos;
use crate::policy::ContentPolicy;

/// Names one request (one choice of an answer) inside one engine; never used twice in a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Deserialize, Serialize)]
pub struct RequestId(pub u64);

impl std::fmt::Display for RequestId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "r{}", self.0)
    }
}

/// How the next token is chosen. The defaults are greedy decoding without penalties.
#[derive(Clone, Debug, PartialEq)]
pub struct SamplingParams {
    /// Tokens to generate at most; at least 1.
    pub max_tokens: u32,
    /// 0 is greedy; otherwise logits are divided by it. 0..=100.
    pub temperature: f32,
    /// Keep the k most likely tokens; 0 keeps all.
    pub top_k: u32,
    /// Keep the smallest set of most likely tokens whose probability reaches this; 1.0 keeps all.
    pub top_p: f32,
    /// Keep tokens at least this fraction as likely as the likeliest; 0.0 keeps all.
    pub min_p: f32,
    /// Over prompt and answer: a positive logit is divided by it, a negative one multiplied (CTRL, 1909.05858). 1.0 is off.
    pub repetition_penalty: f32,
    /// Over the answer: subtracted once from a token that occurred. 0.0 is off.
    pub presence_penalty: f32,
    /// Over the answer: subtracted once per occurrence. 0.0 is off.
    pub frequency_penalty: f32,
    /// Added to the logits of these tokens, before everything else; at most [`Self::MAX_LOGIT_BIAS`], each -100 to 100.
    pub logit_bias: Vec<(u32, f32)>,
    /// Same seed, same tokens, whatever shares the batch. The host draws one where the user gave none.
    pub seed: u64,
    /// Texts that end the answer and are not part of it.
    pub stop: Vec<String>,
    /// How many alternatives to report with each token's log-probability; `None` reports nothing, `Some(0)` the chosen token's only.
    pub logprobs: Option<u32>,
    /// Go on past end tokens.
    pub ignore_eos: bool,
}

impl Default for SamplingParams {
    fn default() -> Self {
        Self {
            max_tokens: 256,
            temperature: 0.0,
            top_k: 0,
            top_p: 1.0,
            min_p: 0.0,
            repetition_penalty: 1.0,
            presence_penalty: 0.0,
            frequency_penalty: 0.0,
            logit_bias: Vec::new(),
            seed: 0,
            stop: Vec::new(),
            logprobs: None,
            ignore_eos: false,
        }
    }
}

impl SamplingParams {
    /// The most tokens whose logits a request may move.
    pub const MAX_LOGIT_BIAS: usize = 1024;
    /// The most alternatives a request may ask for.
    pub const MAX_LOGPROBS: u32 = 20;
    /// The most stop strings, and the most bytes in one.
    pub const MAX_STOP_STRINGS: usize = 16;
    /// The most bytes in one stop string: 1,024 characters of any kind.
    pub const MAX_STOP_BYTES: usize = 4096;
    /// The temperatures that a request may have.
    pub const TEMPERATURES: RangeInclusive<f32> = 0.0..=100.0;
    /// The presence and frequency penalties that a request may have.
    pub const PENALTIES: RangeInclusive<f32> = -100.0..=100.0;
    /// The largest repetition penalty; the smallest is above 0.
    pub const MAX_REPETITION_PENALTY: f32 = 100.0;
    /// What a request may add to a logit.
    pub const BIASES: RangeInclusive<f32> = -100.0..=100.0;

    /// Whether choosing a token needs the tokens before it.
    pub fn needs_history(&self) -> bool {
        self.repetition_penalty != 1.0 || self.presence_penalty != 0.0 || self.frequency_penalty != 0.0
    }

    /// Refuses values outside their range, naming the parameter, the value and the range.
    pub fn validate(&self) -> Result<(), RejectReason> {
        let bad = |name: &'static str, value: String, range: &'static str| {
            Err(RejectReason::InvalidParameter { name, value, range })
        };
        let unit = |v: f32| v.is_finite() && (0.0..=1.0).contains(&v);
        if self.max_tokens == 0 {
            return bad("max_tokens", "0".into(), "at least 1");
        }
        if !Self::TEMPERATURES.contains(&self.temperature) {
            return bad("temperature", self.temperature.to_string(), "0 to 100");
        }
        if !(unit(self.top_p) && self.top_p > 0.0) {
            return bad("top_p", self.top_p.to_string(), "above 0, at most 1");
        }
        if !unit(self.min_p) {
            return bad("min_p", self.min_p.to_string(), "0 to 1");
        }
        if !(self.repetition_penalty > 0.0 && self.repetition_penalty <= Self::MAX_REPETITION_PENALTY) {
            return bad("repetition_penalty", self.repetition_penalty.to_string(), "above 0, at most 100");
        }
        for (name, v) in
            [("presence_penalty", self.presence_penalty), ("frequency_penalty", self.frequency_penalty)]
        {
            if !Self::PENALTIES.contains(&v) {
                return bad(name, v.to_string(), "-100 to 100");
            }
        }
        if self.logit_bias.len() > Self::MAX_LOGIT_BIAS {
            return bad("logit_bias", format!("{} tokens", self.logit_bias.len()), "at most 1024 tokens");
        }
        if let Some((_, bias)) = self.logit_bias.iter().find(|(_, bias)| !Self::BIASES.contains(bias)) {
            return bad("logit_bias", bias.to_string(), "-100 to 100");
        }
        if self.logprobs.is_some_and(|n| n > Self::MAX_LOGPROBS) {
            return bad("logprobs", self.logprobs.unwrap_or(0).to_string(), "0 to 20");
        }
        if self.stop.len() > Self::MAX_STOP_STRINGS {
            return bad("stop", format!("{} strings", self.stop.len()), "at most 16 strings");
        }
        if let Some(s) = self.stop.iter().find(|s| s.is_empty() || s.len() > Self::MAX_STOP_BYTES) {
            return bad("stop", format!("a string of {} bytes", s.len()), "1 to 4096 bytes each");
        }
        Ok(())
    }
}

/// The host's stamps of one request, up to the moment it goes on the inbox. See `timeline`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HostStamps {
    /// The request is whole at the edge.
    pub received: Nanos,
    /// Authorisation, quota and parameters are checked.
    pub checked: Nanos,
    /// Model or replica chosen.
    pub routed: Nanos,
    /// A preparation worker took it up.
    pub preparing: Nanos,
    /// The chat template is rendered.
    pub templated: Nanos,
    /// The prompt is token ids.
    pub tokenised: Nanos,
    /// Length checked, the text searched for what a policy blocks, put on the inbox.
    pub created: Nanos,
}

impl HostStamps {
    /// All stamps at one instant: for callers that have none of these boundaries.
    pub fn at(now: Nanos) -> Self {
        Self {
            received: now,
            checked: now,
            routed: now,
            preparing: now,
            templated: now,
            tokenised: now,
            created: now,
        }
    }
}

/// One request, as the engine takes it: a prompt of token ids and what to do with it.
#[derive(Clone, Debug)]
pub struct Request {
    /// Its name.
    pub id: RequestId,
    /// The prompt; at least one id, each below the model's vocabulary size.
    pub prompt: Vec<u32>,
    /// How to answer it.
    pub params: SamplingParams,
    /// Who goes first: smaller is sooner, as in vLLM; 0 is usual, -100 to 100. A level is worth
    /// `SchedulerConfig::priority_step_ns` of waiting, so that nobody waits forever.
    pub priority: i32,
    /// The instant at which it ends [`FinishReason::Deadline`], wherever it is then.
    pub deadline: Option<Nanos>,
    /// The request of which this is another choice: one that came before it, with the same prompt and the same priority.
    /// This one waits until that one's prompt is computed (billed `order`) and starts from its blocks, whether the prefix
    /// cache is on or off. Where that one has a token already, or has ended before, this is a request like any other.
    pub fork_of: Option<RequestId>,
    /// What its answer must not contain: it ends [`FinishReason::ContentFilter`] before that. Its prompt is the host's to
    /// look at.
    pub policy: Option<Arc<ContentPolicy>>,
    /// What the host stamped on the way here.
    pub stamps: HostStamps,
}

impl Request {
    /// The priorities that a request may have.
    pub const PRIORITIES: RangeInclusive<i32> = -100..=100;

    /// A request of the usual priority and without a deadline.
    pub fn new(id: RequestId, prompt: Vec<u32>, params: SamplingParams, stamps: HostStamps) -> Self {
        Self { id, prompt, params, priority: 0, deadline: None, fork_of: None, policy: None, stamps }
    }
}

/// Why a request ended. The JSON word is the snake_case name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum FinishReason {
    /// An end token.
    Stop,
    /// A stop string.
    StopString,
    /// `max_tokens`, the context, or a KV pool too small for more.
    Length,
    /// Policy.
    ContentFilter,
    /// The client asked, or the grace of a shutdown ended.
    Cancelled,
    /// The other end of the stream vanished.
    Disconnected,
    /// `deadline_ms` ran out.
    Deadline,
    /// Device lost, out of memory, or our bug.
    Failed,
    /// Never admitted.
    Rejected,
}

impl FinishReason {
    /// All of them, in the order of their declaration.
    pub const ALL: [Self; 9] = [
        Self::Stop,
        Self::StopString,
        Self::Length,
        Self::ContentFilter,
        Self::Cancelled,
        Self::Disconnected,
        Self::Deadline,
        Self::Failed,
        Self::Rejected,
    ];

    /// The word that JSON and metrics have for it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Stop => "stop",
            Self::StopString => "stop_string",
            Self::Length => "length",
            Self::ContentFilter => "content_filter",
            Self::Cancelled => "cancelled",
            Self::Disconnected => "disconnected",
            Self::Deadline => "deadline",
            Self::Failed => "failed",
            Self::Rejected => "rejected",
        }
    }
}

/// Why a request was refused, with the numbers in it.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum RejectReason {
    /// A parameter outside its range.
    #[error("{name} is {value}; it must be {range}")]
    InvalidParameter {
        /// The parameter's wire name.
        name: &'static str,
        /// What was given.
        value: String,
        /// What is allowed.
        range: &'static str,
    },
    /// No token at all.
    #[error("the prompt is empty; give at least one token")]
    EmptyPrompt,
    /// An id outside the vocabulary.
    #[error("token id {id} is outside the vocabulary of {vocab_size}; give ids below {vocab_size}")]
    UnknownToken {
        /// The id.
        id: u32,
        /// The model's vocabulary size.
        vocab_size: u32,
    },
    // LangChain, litellm and others know the three refusals of a long prompt by the words "prompt is too long".
    /// The prompt leaves no room for an answer.
    #[error("the prompt is too long: it has {prompt_len} tokens and the context holds {max_model_len}; shorten it to at most {} tokens", max_model_len - 1)]
    PromptTooLong {
        /// Tokens in the prompt.
        prompt_len: u32,
        /// The longest prompt and answer together.
        max_model_len: u32,
    },
    /// The prompt's text has more bytes than any that fits; it was not tokenised.
    #[error(
        "the prompt is too long: it has {bytes} bytes and a context of {max_model_len} tokens holds at most {max_bytes}; shorten it"
    )]
    PromptTooManyBytes {
        /// Bytes of the prompt's text.
        bytes: usize,
        /// The longest prompt and answer together.
        max_model_len: u32,
        /// A context full of the longest token.
        max_bytes: usize,
    },
    /// Not even alone would it fit.
    #[error(
        "the prompt is too long: it needs {needed_blocks} KV blocks and the pool has {total_blocks}; raise the KV memory (--kv-memory) or shorten the prompt"
    )]
    NeverFits {
        /// Blocks for the prompt and one token.
        needed_blocks: u32,
        /// Blocks in the pool.
        total_blocks: u32,
    },
    /// The inbox is at its limit.
    #[error("{waiting} requests are waiting, the most this engine takes; try again later")]
    Busy {
        /// Requests waiting.
        waiting: u32,
    },
    /// It may take more tokens than its caller may use in a minute at all.
    #[error(
        "prompt and answer may take {needed} tokens and the whole quota is {tokens_per_minute} tokens a minute; shorten the prompt or lower max_tokens"
    )]
    OverQuota {
        /// Tokens of the prompt and the answers that were asked for.
        needed: u64,
        /// The quota.
        tokens_per_minute: u32,
    },
    /// The host is stopping.
    #[error("the engine is shutting down; send the request elsewhere")]
    ShuttingDown,
    /// The engine is gone for good: its device could not be opened again, or a defect of ours.
    #[error("the engine has stopped: {0}; start it again")]
    Stopped(String),
    /// The chat template or the tokenizer refused it.
    #[error("{0}")]
    Preparation(String),
}

/// A token with its natural logarithm of probability, before temperature and penalties.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TokenLogprob {
    /// The token.
    pub token: u32,
    /// ln p.
    pub logprob: f32,
}

/// One sampled token.
#[derive(Clone, Debug, PartialEq)]
pub struct SampledToken {
    /// The token id.
    pub token: u32,
    /// Where asked for: the chosen token's, then the most likely ones in falling order.
    pub logprobs: Option<(TokenLogprob, Vec<TokenLogprob>)>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_finish_reason_has_one_word_in_json_and_metrics() {
        for (idx, reason) in FinishReason::ALL.into_iter().enumerate() {
            assert_eq!(serde_json::to_value(reason).unwrap(), reason.name());
            assert_eq!(reason as usize, idx);
        }
    }
}

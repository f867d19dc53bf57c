//! The limits a scheduler works within. All of them are fixed at start.
//!
//! It reads no flags: a host fills it in. Invariant: a validated configuration has room for one token.

use crate::clock::Nanos;
use crate::request::RejectReason;

/// The limits of one scheduler.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SchedulerConfig {
    /// Sequences in a batch at most (`--slots`).
    pub max_num_seqs: u32,
    /// Prompt and decode tokens of one step at most (`--batch-tokens`).
    pub max_batch_tokens: u32,
    /// Token slots of a KV block.
    pub block_size: u32,
    /// KV blocks in the pool.
    pub num_blocks: u32,
    /// Prompt and answer together at most, in tokens.
    pub max_model_len: u32,
    /// Requests in inbox and queue at most; one more is answered with `Busy`.
    pub max_waiting: u32,
    /// Token ids are below it.
    pub vocab_size: u32,
    /// Whether full KV blocks are kept for prompts that begin alike (`--prefix-cache`).
    pub prefix_cache: bool,
    /// Bits of a block's hash that count, 1 to 64. 64 but in tests: collisions cost comparisons, never a wrong block.
    pub prefix_hash_bits: u32,
    /// What one level of priority is worth in waiting.
    pub priority_step_ns: Nanos,
}

/// A second: a request one level less urgent is overtaken by those that come up to a second later.
pub const PRIORITY_STEP_NS: Nanos = 1_000_000_000;

/// Requests that wait at most, where nobody asked for another number.
pub const DEFAULT_MAX_WAITING: u32 = 1024;

/// The default pool holds a whole context and this much a slot...
const DEFAULT_TOKENS_A_SLOT: u64 = 1024;
/// ...but takes no more than this unasked.
const DEFAULT_KV_BYTES: u64 = 1 << 30;

impl SchedulerConfig {
    /// KV blocks where nobody asked for a number: a whole context or 1,024 tokens a slot, in at most 1 GiB. A block takes
    /// `block_bytes`.
    pub fn default_blocks(slots: u32, max_model_len: u32, block_size: u32, block_bytes: u64) -> u64 {
        let (context, slots) = (u64::from(max_model_len), u64::from(slots));
        let useful = context.max(slots * DEFAULT_TOKENS_A_SLOT.min(context));
        let affordable = (DEFAULT_KV_BYTES / block_bytes.max(1)).max(1);
        useful.div_ceil(u64::from(block_size.max(1))).min(affordable)
    }

    /// Refuses limits that leave no room for a token, naming the flag.
    pub fn validate(&self) -> Result<(), RejectReason> {
        let limits = [
            ("slots", self.max_num_seqs, 1),
            ("batch-tokens", self.max_batch_tokens, 1),
            ("block-size", self.block_size, 1),
            ("kv-blocks", self.num_blocks, 1),
            ("max-model-len", self.max_model_len, 2),
            ("max-waiting", self.max_waiting, 1),
            ("vocab_size", self.vocab_size, 1),
            ("prefix_hash_bits", self.prefix_hash_bits, 1),
        ];
        for (name, value, least) in limits {
            if value < least {
                let range = if least == 1 { "at least 1" } else { "at least 2" };
                return Err(RejectReason::InvalidParameter { name, value: value.to_string(), range });
            }
        }
        if self.prefix_hash_bits > 64 {
            let value = self.prefix_hash_bits.to_string();
            return Err(RejectReason::InvalidParameter { name: "prefix_hash_bits", value, range: "1 to 64" });
        }
        if self.num_blocks.checked_mul(self.block_size).is_none() {
            return Err(RejectReason::InvalidParameter {
                name: "kv-blocks",
                value: self.num_blocks.to_string(),
                range: "small enough that kv-blocks times block-size is below 2^32",
            });
        }
        Ok(())
    }

    /// Blocks that hold `tokens` tokens.
    pub fn blocks_for(&self, tokens: usize) -> usize {
        tokens.div_ceil(self.block_size as usize)
    }
}

//! How much room the engine in a tab gets: the page's wishes against the model's shape and the adapter's limits.
//!
//! Pure arithmetic. Invariant: what it gives out holds at least one block.

use firstlight_engine::model::ModelConfig;
use firstlight_engine::sched::{DEFAULT_MAX_WAITING, PRIORITY_STEP_NS, SchedulerConfig};

use crate::protocol::EngineSettings;

/// The longest context that is taken unasked: a tab shares its memory with the rest of the browser.
const DEFAULT_MAX_MODEL_LEN: u32 = 4096;

/// The scheduler's limits.
///
/// # Errors
/// A context beyond the model's, or limits that leave no room.
pub fn limits(settings: &EngineSettings, config: &ModelConfig) -> Result<SchedulerConfig, String> {
    let longest = config.max_context;
    let max_model_len = settings.max_model_len.unwrap_or(longest.min(DEFAULT_MAX_MODEL_LEN));
    if max_model_len > longest {
        return Err(format!(
            "the longest length is set to {max_model_len} tokens and {} was made for {longest}; set at most that",
            config.name
        ));
    }
    // Where the adapter is to choose, room is counted as for f32, of which nothing takes more.
    let block_bytes =
        config.kv_bytes_a_token(settings.kv.stored().unwrap_or_default()) * u64::from(settings.block_size);
    let default =
        || SchedulerConfig::default_blocks(settings.slots, max_model_len, settings.block_size, block_bytes);
    let num_blocks = settings.kv_blocks.map_or_else(default, u64::from);
    let limits = SchedulerConfig {
        max_num_seqs: settings.slots,
        max_batch_tokens: settings.batch_tokens,
        block_size: settings.block_size,
        num_blocks: u32::try_from(num_blocks).unwrap_or(u32::MAX),
        max_model_len,
        max_waiting: DEFAULT_MAX_WAITING,
        vocab_size: config.vocab_size,
        prefix_cache: settings.prefix_cache,
        prefix_hash_bits: 64,
        priority_step_ns: PRIORITY_STEP_NS,
    };
    limits.validate().map_err(|error| error.to_string())?;
    Ok(limits)
}

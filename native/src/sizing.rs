//! How much room the engine gets: the command line's wishes against the model's shape.
//!
//! Pure arithmetic; it takes nothing. Invariant: what it gives out holds at least one block, and never more than was
//! asked for.

use firstlight_engine::model::ModelConfig;
use firstlight_engine::sched::{DEFAULT_MAX_WAITING, PRIORITY_STEP_NS, SchedulerConfig};
use firstlight_shaders::KvFormat;

use crate::cli::EngineArgs;
use crate::failure::Failure;

/// The scheduler's limits for `args` on a model, whose keys and values are stored as `kv`.
///
/// # Errors
/// A context beyond the model's, or memory for less than one block.
pub fn limits(args: &EngineArgs, config: &ModelConfig, kv: KvFormat) -> Result<SchedulerConfig, Failure> {
    let max_model_len = args.max_model_len.unwrap_or(config.max_context);
    if max_model_len > config.max_context {
        return Err(Failure::usage(format!(
            "--max-model-len is {max_model_len} and {} was made for {} tokens; give at most that",
            config.name, config.max_context
        )));
    }
    let block_bytes = config.kv_bytes_a_token(kv) * u64::from(args.block_size);
    let num_blocks = match (args.kv_blocks, args.kv_memory) {
        (Some(blocks), _) => u64::from(blocks),
        (None, Some(bytes)) if bytes < block_bytes => {
            return Err(Failure::usage(format!(
                "--kv-memory is {bytes} bytes and one block of {} tokens takes {block_bytes}; give at least that",
                args.block_size
            )));
        }
        (None, Some(bytes)) => bytes / block_bytes,
        (None, None) => {
            SchedulerConfig::default_blocks(args.slots, max_model_len, args.block_size, block_bytes)
        }
    };
    let limits = SchedulerConfig {
        max_num_seqs: args.slots,
        max_batch_tokens: args.batch_tokens,
        block_size: args.block_size,
        num_blocks: u32::try_from(num_blocks).unwrap_or(u32::MAX),
        max_model_len,
        max_waiting: DEFAULT_MAX_WAITING,
        vocab_size: config.vocab_size,
        prefix_cache: args.prefix_cache.is_on(),
        prefix_hash_bits: 64,
        priority_step_ns: PRIORITY_STEP_NS,
    };
    limits.validate()?;
    Ok(limits)
}

#[cfg(test)]
mod tests {
    use firstlight_engine::model::Sketch;

    use super::*;
    use crate::cli::{Command, Parsed, parse};

    /// SmolLM2-135M: 46,080 bytes a token in f32, 8,192 tokens of context.
    fn model() -> ModelConfig {
        Sketch::of_default_model().checkpoint.config().clone()
    }

    fn check(flags: &str, expected: Result<(u32, u32), &str>) {
        let words = ["firstlight", "run"].into_iter().chain(flags.split_whitespace()).map(Into::into);
        let Ok(Parsed::Command(cli)) = parse(words) else { panic!("{flags} is no command line") };
        let Command::Run(args) = cli.command else { panic!("{flags} is not run") };
        let kv = args.engine.kv_cache.format(KvFormat::F32);
        match (limits(&args.engine, &model(), kv), expected) {
            (Ok(limits), Ok(expected)) => {
                assert_eq!((limits.num_blocks, limits.max_model_len), expected, "{flags}");
            }
            (Err(failure), Err(part)) => assert!(failure.sentence.contains(part), "{flags}: {failure}"),
            (got, expected) => panic!("{flags}: {got:?} where {expected:?} was expected"),
        }
    }

    #[test]
    fn the_pool_is_what_was_asked_for_or_a_modest_default() {
        let bytes = KvFormat::ALL.map(|format| model().kv_bytes_a_token(format));
        assert_eq!(bytes, [46_080, 23_040, 12_240]);
        check("", Ok((512, 8192)));
        check("--slots 1", Ok((512, 8192)));
        check("--slots 16", Ok((1024, 8192)));
        check("--slots 256", Ok((1456, 8192)));
        check("--slots 1 --max-model-len 100", Ok((7, 100)));
        check("--kv-blocks 3", Ok((3, 8192)));
        check("--kv-memory 1474560", Ok((2, 8192)));
        check("--kv-memory 1000", Err("one block of 16 tokens takes 737280"));
        check("--max-model-len 8193", Err("8192"));
        check("--kv-memory 1474560 --kv-cache f16", Ok((4, 8192)));
        check("--kv-memory 1474560 --kv-cache q8", Ok((7, 8192)));
        check("--slots 256 --kv-cache f16", Ok((2912, 8192)));
        check("--kv-memory 1000 --kv-cache q8", Err("one block of 16 tokens takes 195840"));
    }
}

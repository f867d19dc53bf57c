//! One choice of kernels at work on a model of zeros: how long its steps take.
//!
//! Never decides between choices, and never touches a loaded model. Invariant: all choices are tried on the same steps.

use super::{GpuRunner, StepShape};
use crate::clock::Clock;
use crate::gpu::{Device, KernelChoice, TrialTimes};
use crate::model::{LoadFailure, PassLimits, Sketch};

/// Tokens that a sequence has behind it in a trial.
const CONTEXT: u32 = 128;
/// Sequences of the batch.
const BATCH: u32 = 8;
/// Tokens of the prompt.
const PROMPT: u32 = 64;
/// Steps of each shape, of which the median counts; one more before them compiles.
const REPEATS: usize = 5;

/// Times the steps of `choice` on `sketch`, with blocks of `block_size` slots; on the GPU's clock, or on `clock` where it has
/// none. Gives `device` back, free again.
///
/// # Errors
/// What a load and a step may end with; the device is gone then.
pub async fn trial(
    device: Device,
    sketch: &Sketch,
    block_size: u32,
    choice: KernelChoice,
    clock: &impl Clock,
) -> Result<(TrialTimes, Device), LoadFailure> {
    let context = CONTEXT.min(sketch.checkpoint.config().max_context);
    let prompt = PROMPT.min(context);
    let limits = PassLimits {
        max_num_seqs: BATCH,
        max_batch_tokens: PROMPT,
        block_size,
        num_blocks: BATCH * context.div_ceil(block_size),
        max_model_len: context,
    };
    let mut runner = GpuRunner::load(device, &sketch.checkpoint, limits, choice, &mut |_| ()).await?;
    runner.warm_up().await?;
    let decode = |num_seqs| StepShape { num_seqs, tokens_per_seq: 1, context };
    let shapes =
        [decode(1), decode(BATCH), StepShape { num_seqs: 1, tokens_per_seq: prompt, context: prompt }];
    let mut medians = [0; 3];
    for (shape, median) in shapes.into_iter().zip(&mut medians) {
        runner.time_step(shape).await?;
        let mut times = [0; REPEATS];
        for time in &mut times {
            let start = clock.now();
            let on_gpu = runner.time_step(shape).await?;
            *time = on_gpu.unwrap_or_else(|| clock.now() - start);
        }
        times.sort_unstable();
        *median = times[REPEATS / 2];
    }
    let [decode_ns, batch_ns, prefill_ns] = medians;
    Ok((TrialTimes { decode_ns, batch_ns, prefill_ns }, runner.into_device()))
}

//! One choice of kernels at work on a model of zeros: how long its steps take.
//!
//! Never decides between choices, and never touches a loaded model. Invariant: all choices are tried on the same steps.

use super::{GpuRunner, RunnerError, StepShape};
use crate::clock::Clock;
use crate::gpu::{Device, KernelChoice, TrialTimes};
use crate::model::{LoadFailure, PassLimits, Sketch};

/// Tokens that a sequence has behind it in a trial.
const CONTEXT: u32 = 128;
/// Sequences of the batch.
const BATCH: u32 = 8;
/// Tokens of the prompt.
const PROMPT: u32 = 64;

/// A choice of kernels that is ready to be timed. Several of them are timed in turn, a round each: what else the machine does,
/// and how warm its GPU is, then falls upon all of them.
pub struct Contender {
    runner: GpuRunner,
    shapes: [StepShape; 3],
}

impl Contender {
    /// Rounds that a decision needs; of each time the least counts, which is the one that was disturbed least.
    pub const ROUNDS: u32 = 7;

    /// Loads `sketch` with the kernels of `choice`, and blocks of `block_size` slots, and runs each kernel once.
    ///
    /// # Errors
    /// What a load and a step may end with; the device is gone then.
    pub async fn prepare(
        device: Device,
        sketch: &Sketch,
        block_size: u32,
        choice: KernelChoice,
    ) -> Result<Self, LoadFailure> {
        let context = CONTEXT.min(sketch.checkpoint.config().max_context);
        let prompt = PROMPT.min(context);
        let limits = PassLimits {
            max_num_seqs: BATCH,
            max_batch_tokens: PROMPT,
            block_size,
            num_blocks: BATCH * context.div_ceil(block_size.max(1)),
            max_model_len: context,
        };
        let mut runner = GpuRunner::load(device, &sketch.checkpoint, limits, choice, &mut |_| ()).await?;
        runner.warm_up().await?;
        let decode = |num_seqs| StepShape { num_seqs, tokens_per_seq: 1, context };
        let prefill = StepShape { num_seqs: 1, tokens_per_seq: prompt, context: prompt };
        Ok(Self { runner, shapes: [decode(1), decode(BATCH), prefill] })
    }

    /// The device, for the host that polls it.
    pub fn device(&self) -> &Device {
        self.runner.device()
    }

    /// One round: on the GPU's clock, or on `clock` where it has none.
    ///
    /// # Errors
    /// As a step.
    pub async fn round(&mut self, clock: &impl Clock) -> Result<TrialTimes, RunnerError> {
        let mut times = [0; 3];
        for (shape, time) in self.shapes.into_iter().zip(&mut times) {
            let start = clock.now();
            let on_gpu = self.runner.time_step(shape).await?;
            *time = on_gpu.unwrap_or_else(|| clock.now() - start);
        }
        let [decode_ns, batch_ns, prefill_ns] = times;
        Ok(TrialTimes { decode_ns, batch_ns, prefill_ns })
    }
}

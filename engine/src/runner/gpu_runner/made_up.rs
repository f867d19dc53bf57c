//! Made-up steps of a runner: timed whole, cut into their dispatches, and held against what they have to do.
//!
//! Never samples for a request. Invariant: what it writes over is the first blocks of the KV cache, and what every step writes
//! anew.

use super::GpuRunner;
use crate::gpu::{self, Dispatch, Pass, Timestamps, Timing};
use crate::runner::{RunnerError, StepProfile, StepShape};

impl GpuRunner {
    /// Runs `shape` twice, whole and cut into its dispatches, on sequences made up of token 0: the first blocks of the KV
    /// cache are written over. `None` where the adapter has no clock, or too few stamps for so many dispatches.
    ///
    /// # Errors
    /// As a step. Our bug: a shape beyond the limits that the runner was loaded with.
    pub async fn profile_step(&mut self, shape: StepShape) -> Result<Option<StepProfile>, RunnerError> {
        let parts = Timestamps::of_parts(&self.device, self.model.dispatches.len() as u32);
        let (Some(_), Some(parts)) = (&self.timestamps, parts) else { return Ok(None) };
        let whole_ns = self.time_step(shape).await?.unwrap_or_default();
        let pass = self.made_up(shape, shape.num_seqs, Timing::ByDispatch(&parts));
        let readback = self.device.readback("profile read-back", parts.bytes()).await;
        let readback = readback.map_err(|error| RunnerError::OutOfMemory(error.to_string()))?;
        let cut = gpu::run(&self.device, &pass, &readback).await?;
        let mut profile = StepProfile { whole_ns, kernels: Vec::new() };
        for (idx, ns) in cut.parts {
            let dispatch = &self.model.dispatches[idx];
            let (macs, bytes) = dispatch_work(dispatch, &pass, shape);
            let rows = pass.extent(dispatch);
            profile.add(dispatch.kernel(rows).name(), ns, macs, bytes);
        }
        Ok(Some(profile))
    }

    /// Runs `shape` once, as [`GpuRunner::profile_step`] does; the nanoseconds of its pass on the GPU's clock, `None` where
    /// there is none.
    ///
    /// # Errors
    /// As there.
    pub async fn time_step(&mut self, shape: StepShape) -> Result<Option<u64>, RunnerError> {
        self.time_step_sampling(shape, shape.num_seqs).await
    }

    /// The same, where only the first `samples` sequences are sampled: with none of them the step goes without its head.
    ///
    /// # Errors
    /// As there; our bug: more samples than sequences.
    pub async fn time_step_sampling(
        &mut self,
        shape: StepShape,
        samples: u32,
    ) -> Result<Option<u64>, RunnerError> {
        if samples > shape.num_seqs {
            return Err(RunnerError::Internal(format!("{samples} samples of {shape:?}")));
        }
        self.make_up(shape)?;
        let timing = self.timestamps.as_ref().map_or(Timing::Off, Timing::Whole);
        let pass = self.made_up(shape, samples, timing);
        let elapsed = gpu::run(&self.device, &pass, &self.readbacks[0]).await?;
        Ok(elapsed.pass_ns)
    }

    /// Multiply-adds of `shape`, and the bytes that it has to move at least.
    pub fn work_of(&self, shape: StepShape) -> (u64, u64) {
        let pass = self.made_up(shape, shape.num_seqs, Timing::Off);
        let works = pass.dispatches.iter().map(|dispatch| dispatch_work(dispatch, &pass, shape));
        works.fold((0, 0), |(macs, bytes), (m, b)| (macs + m, bytes + b))
    }

    /// The pass over what [`GpuRunner::make_up`] wrote.
    fn made_up<'a>(&'a self, shape: StepShape, samples: u32, timing: Timing<'a>) -> Pass<'a> {
        Pass {
            copies: &[],
            dispatches: &self.model.dispatches,
            rows: shape.num_rows(),
            samples,
            wanted: &[],
            timing,
        }
    }

    /// Writes the arrays of a made-up step.
    fn make_up(&mut self, shape: StepShape) -> Result<(), RunnerError> {
        let StepShape { num_seqs, tokens_per_seq, context } = shape;
        let blocks_per_seq = context.div_ceil(self.limits.block_size);
        if tokens_per_seq == 0
            || context < tokens_per_seq
            || num_seqs > self.limits.max_num_seqs
            || shape.num_rows() > self.limits.max_batch_tokens
            || context > self.limits.max_model_len
            || blocks_per_seq * num_seqs > self.limits.num_blocks
        {
            return Err(RunnerError::Internal(format!("{shape:?} exceeds {:?}", self.limits)));
        }
        let (mut rows, mut sample_rows) = (Vec::new(), Vec::new());
        // They are written over.
        self.tables.clear();
        for seq in 0..num_seqs {
            let blocks: Vec<u32> = (0..blocks_per_seq).map(|block| seq * blocks_per_seq + block).collect();
            let table = u64::from(seq) * u64::from(self.model.table_pitch) * 4;
            self.device.write(&self.model.block_tables, table, bytemuck::cast_slice(&blocks));
            for position in context - tokens_per_seq..context {
                let slot = blocks[0] * self.limits.block_size + position;
                rows.extend([0, position, slot, seq]);
            }
            sample_rows.push((seq + 1) * tokens_per_seq - 1);
        }
        self.device.write(&self.model.rows, 0, bytemuck::cast_slice(&rows));
        self.device.write(&self.model.sample_rows, 0, bytemuck::cast_slice(&sample_rows));
        Ok(())
    }
}

/// Multiply-adds of one dispatch of a made-up step, and the bytes that it has to move at least.
fn dispatch_work(dispatch: &Dispatch, pass: &Pass<'_>, shape: StepShape) -> (u64, u64) {
    let (rows, work) = (u64::from(pass.extent(dispatch)), dispatch.work());
    let in_cache = u64::from(shape.num_seqs) * u64::from(shape.context);
    let macs = work.macs_per_row * rows + work.macs_per_position * shape.num_attended();
    let bytes = work.weight_bytes + work.bytes_per_row * rows + work.bytes_per_position * in_cache;
    (macs, bytes)
}

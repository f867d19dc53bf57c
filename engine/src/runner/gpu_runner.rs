//! The runner on a GPU: a batch in, one pass and one submit, tokens out.
//!
//! Never decides what runs; takes no GPU memory in a step. Invariant: what a step writes fits the buffers taken at load,
//! because the batch keeps the limits they were taken for.

mod made_up;
mod refusals;

use firstlight_shaders::{rope_kv_write, sample};

use self::refusals::{check_activations, check_limits, shapes};
use super::{ModelRunner, RunnerError, RunnerOutput};
use crate::gpu::{
    self, Buffer, Device, Dispatch, Elapsed, KernelCache, KernelChoice, Pass, Stage, Submitted,
    TIMESTAMP_BYTES, Timestamps, Timing, Wanted,
};
use crate::model::{
    Checkpoint, Llama, LoadFailure, LoadProgress, MatrixLoader, PassLimits, Planner, WeightSource, llama,
};
use crate::request::SampledToken;
use crate::sampling;
use crate::sched::{Batch, BlockId, SampleRow, SchedulerConfig};
use crate::timeline::StageTimes;

/// A model on a device.
pub struct GpuRunner {
    device: Device,
    model: Llama,
    limits: PassLimits,
    choice: KernelChoice,
    /// Passes write to them in turn: one may be on its way while the other is read.
    readbacks: [Buffer; 2],
    turn: usize,
    /// A batch ahead that was submitted.
    ahead: Option<Begun>,
    timestamps: Option<Timestamps>,
    by_stage: bool,
    num_kernels: usize,
    num_warm_kernels: usize,
    /// Bytes of the step's inputs, reused.
    upload: Vec<u32>,
    /// What the block tables on the device hold, by sequence of the batch.
    tables: Vec<Vec<BlockId>>,
}

/// A pass on its way.
struct Begun {
    submitted: Submitted,
    /// Which of the read-back buffers it goes to.
    readback_idx: usize,
    /// It is cut into stages.
    by_stage: bool,
}

impl From<&SchedulerConfig> for PassLimits {
    fn from(limits: &SchedulerConfig) -> Self {
        Self {
            max_num_seqs: limits.max_num_seqs,
            max_batch_tokens: limits.max_batch_tokens,
            block_size: limits.block_size,
            num_blocks: limits.num_blocks,
            max_model_len: limits.max_model_len,
        }
    }
}

impl GpuRunner {
    /// Loads `checkpoint` onto `device`, compiles every kernel and has each run once while the weights that come next are
    /// read; [`GpuRunner::warm_up`] then waits for that. Where the device [is doubted](Device::is_doubted), the kernels are held against their twins on the CPU.
    ///
    /// # Errors
    /// What is wrong with the model; [`DeviceError::OutOfMemory`](crate::error::DeviceError::OutOfMemory) with what and how
    /// much; [`DeviceError::SelfTest`](crate::error::DeviceError::SelfTest) with the kernel that gives wrong numbers.
    pub async fn load<S: WeightSource>(
        device: Device,
        checkpoint: &Checkpoint<S>,
        limits: PassLimits,
        choice: KernelChoice,
        progress: &mut dyn FnMut(LoadProgress),
    ) -> Result<Self, LoadFailure> {
        check_limits(checkpoint, limits)?;
        check_activations(checkpoint, choice, &device.facts().name)?;
        let mut kernels = KernelCache::default();
        let mut planner = Planner::new(&device, &mut kernels, choice, limits);
        let mut loader = MatrixLoader {
            checkpoint,
            device: &device,
            home: choice.home,
            progress,
            bytes_done: 0,
            bytes_resident: 0,
            bytes_in_flight: 0,
        };
        let model = llama::load(&mut loader, &mut planner, limits).await?;
        let products = planner.products().to_vec();
        let logits_bytes = u64::from(limits.max_num_seqs) * u64::from(model.logits_pitch) * 4;
        let readback_bytes = TIMESTAMP_BYTES + u64::from(limits.max_num_seqs) * 4 + logits_bytes;
        let readbacks = [
            device.readback("read-back", readback_bytes).await?,
            device.readback("read-back of every other pass", readback_bytes).await?,
        ];
        let timestamps = Timestamps::new(&device);
        let num_kernels = kernels.kernels().count();
        let num_warm_kernels = kernels.kernels().filter(|kernel| kernel.has_run()).count();
        if device.is_doubted() {
            let shapes = shapes(checkpoint, limits, products);
            gpu::self_test(&device, &mut kernels, choice, &shapes).await?;
        }
        Ok(Self {
            device,
            model,
            limits,
            choice,
            readbacks,
            turn: 0,
            ahead: None,
            timestamps,
            by_stage: false,
            num_kernels,
            num_warm_kernels,
            upload: Vec::new(),
            tables: Vec::new(),
        })
    }

    /// Waits until the device has done what loading submitted, and has run the whole pass once for one row: no request shall
    /// wait for it. To be called before the first request; it writes into block 0.
    pub async fn warm_up(&mut self) -> Result<(), RunnerError> {
        // All zeros: token 0 at position 0 in slot 0 of block 0.
        self.device.write(&self.model.rows, 0, &[0; 16]);
        self.device.write(&self.model.sample_rows, 0, &[0; 4]);
        self.device.write(&self.model.block_tables, 0, &[0; 4]);
        self.tables.clear();
        let begun = self.begin(1, 1, &[], false);
        self.read(begun, &mut |_| {}).await.map(|_| ())
    }

    /// The device, for the host that polls it.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// Gives the device back and frees everything of the model: another one can be loaded onto it.
    pub fn into_device(self) -> Device {
        self.device
    }

    /// The kernels in use.
    pub fn choice(&self) -> KernelChoice {
        self.choice
    }

    /// Tokens of the model's vocabulary.
    pub fn vocab_size(&self) -> u32 {
        self.model.vocab_size
    }

    /// Distinct pipelines.
    pub fn num_kernels(&self) -> usize {
        self.num_kernels
    }

    /// Those of them that ran while the model was loaded: all that a batch within the limits can need.
    pub fn num_warm_kernels(&self) -> usize {
        self.num_warm_kernels
    }

    /// Dispatches of a pass that samples.
    pub fn num_dispatches(&self) -> usize {
        self.model.dispatches.len()
    }

    /// GPU bytes of weights and of the KV cache.
    pub fn resident_bytes(&self) -> (u64, u64) {
        (self.model.weight_bytes, self.model.kv_cache.bytes())
    }

    /// The logits of the batch's sampled rows, `[vocab_size]` each: for tests and comparisons.
    pub async fn logits(&mut self, batch: &Batch) -> Result<Vec<Vec<f32>>, RunnerError> {
        self.write_batch(batch);
        let samples = batch.sample_rows.len();
        let copies = &batch.block_copies;
        let begun = self.begin(batch.num_rows() as u32, samples as u32, copies, true);
        let chosen_bytes = self.chosen_bytes(samples);
        let mut floats: Vec<f32> = Vec::new();
        let mut look = |bytes: &[u8]| floats = bytemuck::pod_collect_to_vec(&bytes[chosen_bytes..]);
        self.read(begun, &mut look).await?;
        let vocab_size = self.model.vocab_size as usize;
        Ok(floats.chunks(self.model.logits_pitch as usize).map(|row| row[..vocab_size].to_vec()).collect())
    }

    /// The sizes that it was loaded with.
    pub fn limits(&self) -> PassLimits {
        self.limits
    }

    /// Bytes of the tokens that the GPU chose, in front of what else comes back.
    fn chosen_bytes(&self, samples: usize) -> usize {
        if self.model.sampler.is_some() { samples * 4 } else { 0 }
    }

    /// Writes the batch's arrays into the buffers that the pass reads.
    fn write_batch(&mut self, batch: &Batch) {
        let (rows, samples) = (batch.num_rows(), batch.sample_rows.len());
        assert!(
            rows <= self.limits.max_batch_tokens as usize
                && samples <= self.limits.max_num_seqs as usize
                && batch.num_seqs() <= self.limits.max_num_seqs as usize,
            "a batch of {rows} rows, {samples} samples and {} sequences exceeds {:?}",
            batch.num_seqs(),
            self.limits
        );
        let is_block = |block: BlockId| block.0 < self.limits.num_blocks;
        assert!(
            batch.block_copies.iter().all(|&(from, to)| is_block(from) && is_block(to)),
            "of {} blocks, {:?} are to be copied",
            self.limits.num_blocks,
            batch.block_copies
        );
        let upload = &mut self.upload;
        upload.clear();
        for seq in 0..batch.num_seqs() {
            for row in batch.query_start[seq] as usize..batch.query_start[seq + 1] as usize {
                let place = [batch.token_ids[row], batch.positions[row], batch.slot_mapping[row], seq as u32];
                upload.extend_from_slice(&place);
            }
        }
        for _ in rows..rows.next_multiple_of(self.model.row_multiple as usize) {
            upload.extend_from_slice(&[0, 0, rope_kv_write::NOWHERE, 0]);
        }
        self.device.write(&self.model.rows, 0, bytemuck::cast_slice(upload));
        upload.clear();
        upload.extend(batch.sample_rows.iter().map(|sample| sample.row));
        self.device.write(&self.model.sample_rows, 0, bytemuck::cast_slice(upload));
        self.tables.resize(self.tables.len().max(batch.num_seqs()), Vec::new());
        for ((table, written), seq) in batch.block_tables.iter().zip(&mut self.tables).zip(0u64..) {
            // Most steps add no block to most sequences, and every upload is a buffer of its own.
            let known = written.iter().zip(table).take_while(|(a, b)| a == b).count();
            if known < table.len() {
                upload.clear();
                upload.extend(table[known..].iter().map(|block| block.0));
                let at = (seq * u64::from(self.model.table_pitch) + known as u64) * 4;
                self.device.write(&self.model.block_tables, at, bytemuck::cast_slice(upload));
                written.clone_from(table);
            }
        }
        if let Some(sampler) = &self.model.sampler {
            let choices = batch.sample_rows.iter().map(|row| sample::Row::from(&sampling::choice(row)));
            let choices: Vec<_> = choices.collect();
            self.device.write(&sampler.choices, 0, bytemuck::cast_slice(&choices));
        }
    }

    /// Submits one pass over what was written, after `block_copies`. The GPU's tokens come back, where it samples, and behind
    /// them the logits if wanted.
    fn begin(&mut self, rows: u32, samples: u32, block_copies: &[(BlockId, BlockId)], logits: bool) -> Begun {
        let model = &self.model;
        let mut wanted = Vec::with_capacity(2);
        if model.sampler.is_some() {
            wanted.push(Wanted { from: &model.sampled_tokens, bytes: u64::from(samples) * 4 });
        }
        if logits {
            let bytes = u64::from(samples) * u64::from(model.logits_pitch) * 4;
            wanted.push(Wanted { from: &model.logits, bytes });
        }
        let copies = model.kv_cache.copies(block_copies.iter().map(|(from, to)| (from.0, to.0)));
        let by_stage = self.by_stage && self.timestamps.is_some();
        let pass = Pass {
            copies: &copies,
            dispatches: &model.dispatches,
            rows,
            samples,
            wanted: &wanted,
            timing: match &self.timestamps {
                Some(timestamps) if by_stage => Timing::ByStage(timestamps),
                Some(timestamps) => Timing::Whole(timestamps),
                None => Timing::Off,
            },
        };
        let readback_idx = self.turn;
        self.turn = 1 - self.turn;
        let submitted = gpu::submit(&self.device, &pass, &self.readbacks[readback_idx]);
        Begun { submitted, readback_idx, by_stage }
    }

    async fn read(&self, begun: Begun, look: &mut dyn FnMut(&[u8])) -> Result<Elapsed, RunnerError> {
        let readback = &self.readbacks[begun.readback_idx];
        gpu::read(&self.device, begun.submitted, self.timestamps.as_ref(), readback, look).await
    }

    /// Uploads a batch and submits its pass.
    fn begin_batch(&mut self, batch: &Batch) -> Begun {
        self.write_batch(batch);
        let logits = !self.samples_all(batch);
        self.begin(batch.num_rows() as u32, batch.sample_rows.len() as u32, &batch.block_copies, logits)
    }

    /// A row is sampled in the same place whatever shares its batch: the two sides round differently.
    fn samples(&self, sample: &SampleRow) -> bool {
        self.model.sampler.is_some() && sampling::fits_gpu(&sample.params)
    }

    /// Whether all rows of a batch are sampled on the GPU.
    fn samples_all(&self, batch: &Batch) -> bool {
        batch.sample_rows.iter().all(|sample| self.samples(sample))
    }

    /// Begins the pass of `batch`, unless it runs ahead already. What ran ahead for nobody is forgotten.
    fn take_begun(&mut self, batch: &Batch) -> Result<Begun, RunnerError> {
        match (batch.ahead, self.ahead.take()) {
            (false, _) => Ok(self.begin_batch(batch)),
            (true, Some(begun)) => Ok(begun),
            (true, None) => {
                Err(RunnerError::Internal("a batch ahead is read that was never submitted".into()))
            }
        }
    }

    /// The tokens of a batch out of what came back of its pass.
    fn choose(&self, batch: &Batch, bytes: &[u8], tokens: &mut Vec<SampledToken>) {
        let (chosen, logits) = bytes.split_at(self.chosen_bytes(batch.sample_rows.len()));
        let row_bytes = self.model.logits_pitch as usize * 4;
        let vocab_bytes = self.model.vocab_size as usize * 4;
        for (i, sample) in batch.sample_rows.iter().enumerate() {
            tokens.push(if self.samples(sample) {
                let token = bytemuck::pod_read_unaligned(&chosen[i * 4..i * 4 + 4]);
                SampledToken { token, logprobs: None }
            } else {
                let bytes = &logits[i * row_bytes..][..vocab_bytes];
                // Mapped memory is aligned; what a browser copies out of its own may not be.
                match bytemuck::try_cast_slice(bytes) {
                    Ok(row) => sampling::sample(row, sample),
                    Err(_) => sampling::sample(&bytemuck::pod_collect_to_vec::<u8, f32>(bytes), sample),
                }
            });
        }
    }

    /// Reads the tokens of `batch`, whose pass has begun.
    async fn finish_batch(&self, batch: &Batch, begun: Begun) -> Result<RunnerOutput, RunnerError> {
        let by_stage = begun.by_stage;
        let mut tokens = Vec::with_capacity(batch.sample_rows.len());
        let elapsed = self.read(begun, &mut |bytes| self.choose(batch, bytes, &mut tokens)).await?;
        let stages = by_stage.then(|| stage_times(&elapsed, &self.model.dispatches));
        Ok(RunnerOutput { tokens, gpu_ns: elapsed.pass_ns, stages })
    }
}

/// The times of a pass that was timed by stage.
fn stage_times(elapsed: &Elapsed, dispatches: &[Dispatch]) -> StageTimes {
    let mut times = StageTimes::default();
    for &(first, ns) in &elapsed.parts {
        match dispatches[first].stage() {
            Stage::Embed => times.embed_ns = ns,
            Stage::Layers => times.layers_ns = ns,
            Stage::Head => times.head_ns = ns,
            Stage::Sample => times.sample_ns = ns,
        }
    }
    times
}

impl ModelRunner for GpuRunner {
    async fn execute(&mut self, batch: &Batch) -> Result<RunnerOutput, RunnerError> {
        let begun = self.take_begun(batch)?;
        self.finish_batch(batch, begun).await
    }

    fn runs_ahead(&self, batch: &Batch) -> bool {
        self.samples_all(batch)
    }

    async fn execute_ahead(&mut self, batch: &Batch, next: &Batch) -> Result<RunnerOutput, RunnerError> {
        let begun = self.take_begun(batch)?;
        self.ahead = Some(self.begin_batch(next));
        self.finish_batch(batch, begun).await
    }

    /// Times by stage from the next pass on: one compute pass a stage. Nothing changes where the adapter has no timestamps.
    fn profile(&mut self, on: bool) {
        self.by_stage = on;
    }
}

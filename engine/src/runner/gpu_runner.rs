//! The runner on a GPU: a batch in, one pass and one submit, tokens out.
//!
//! Never decides what runs; takes no GPU memory in a step. Invariant: what a step writes fits the buffers taken at load,
//! because the batch keeps the limits they were taken for.

use firstlight_shaders::sample;

use super::{ModelRunner, RunnerError, RunnerOutput, StepProfile, StepShape};
use crate::error::LoadError;
use crate::gpu::{
    self, Buffer, Device, Dispatch, Elapsed, KernelCache, KernelChoice, MatmulShape, Pass, Shapes, Stage,
    Submitted, TIMESTAMP_BYTES, Timestamps, Timing, Wanted,
};
use crate::model::{
    Checkpoint, Llama, LoadFailure, LoadProgress, MatrixLoader, PassLimits, Planner, TensorRole,
    WeightSource, llama,
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
    /// One row of logits, reused.
    logits_row: Vec<f32>,
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
            logits_row: Vec::new(),
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
        self.read(begun).await.map(|_| ())
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
        let (bytes, _) = self.read(begun).await?;
        let floats: Vec<f32> = bytemuck::pod_collect_to_vec(&bytes[self.chosen_bytes(samples)..]);
        let vocab_size = self.model.vocab_size as usize;
        Ok(floats.chunks(self.model.logits_pitch as usize).map(|row| row[..vocab_size].to_vec()).collect())
    }

    /// Runs `shape` twice, whole and cut into its dispatches, on sequences made up of token 0: the first blocks of the KV
    /// cache are written over. `None` where the adapter has no clock, or too few stamps for so many dispatches.
    ///
    /// # Errors
    /// As a step. Our bug: a shape beyond the limits that the runner was loaded with.
    pub async fn profile_step(&mut self, shape: StepShape) -> Result<Option<StepProfile>, RunnerError> {
        let parts = Timestamps::of_parts(&self.device, self.model.dispatches.len() as u32);
        let (Some(_), Some(parts)) = (&self.timestamps, parts) else { return Ok(None) };
        let whole_ns = self.time_step(shape).await?.unwrap_or_default();
        let pass = self.made_up(shape, Timing::ByDispatch(&parts));
        let readback = self.device.readback("profile read-back", parts.bytes()).await;
        let readback = readback.map_err(|error| RunnerError::OutOfMemory(error.to_string()))?;
        let (_, cut) = gpu::run(&self.device, &pass, &readback).await?;
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
        self.make_up(shape)?;
        let timing = self.timestamps.as_ref().map_or(Timing::Off, Timing::Whole);
        let (_, elapsed) = gpu::run(&self.device, &self.made_up(shape, timing), &self.readbacks[0]).await?;
        Ok(elapsed.pass_ns)
    }

    /// Multiply-adds of `shape`, and the bytes that it has to move at least.
    pub fn work_of(&self, shape: StepShape) -> (u64, u64) {
        let pass = self.made_up(shape, Timing::Off);
        let works = pass.dispatches.iter().map(|dispatch| dispatch_work(dispatch, &pass, shape));
        works.fold((0, 0), |(macs, bytes), (m, b)| (macs + m, bytes + b))
    }

    /// The sizes that it was loaded with.
    pub fn limits(&self) -> PassLimits {
        self.limits
    }

    /// The pass over what [`GpuRunner::make_up`] wrote.
    fn made_up<'a>(&'a self, shape: StepShape, timing: Timing<'a>) -> Pass<'a> {
        Pass {
            copies: &[],
            dispatches: &self.model.dispatches,
            rows: shape.num_rows(),
            samples: shape.num_seqs,
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

    async fn read(&self, begun: Begun) -> Result<(Vec<u8>, Elapsed), RunnerError> {
        let readback = &self.readbacks[begun.readback_idx];
        gpu::read(&self.device, begun.submitted, self.timestamps.as_ref(), readback).await
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

    /// Reads the tokens of `batch`, whose pass has begun.
    async fn finish_batch(&mut self, batch: &Batch, begun: Begun) -> Result<RunnerOutput, RunnerError> {
        let by_stage = begun.by_stage;
        let (bytes, elapsed) = self.read(begun).await?;
        let (chosen, logits) = bytes.split_at(self.chosen_bytes(batch.sample_rows.len()));
        let row_bytes = self.model.logits_pitch as usize * 4;
        let mut tokens = Vec::with_capacity(batch.sample_rows.len());
        for (i, sample) in batch.sample_rows.iter().enumerate() {
            if self.samples(sample) {
                let token = bytemuck::pod_read_unaligned(&chosen[i * 4..i * 4 + 4]);
                tokens.push(SampledToken { token, logprobs: None });
            } else {
                let row = &mut self.logits_row;
                row.resize(self.model.vocab_size as usize, 0.0);
                let bytes = bytemuck::cast_slice_mut::<f32, u8>(row);
                bytes.copy_from_slice(&logits[i * row_bytes..][..bytes.len()]);
                tokens.push(sampling::sample(row, sample));
            }
        }
        let stages = by_stage.then(|| stage_times(&elapsed, &self.model.dispatches));
        Ok(RunnerOutput { tokens, gpu_ns: elapsed.pass_ns, stages })
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

/// What the self-test has to know of a model.
fn shapes<S: WeightSource>(
    checkpoint: &Checkpoint<S>,
    limits: PassLimits,
    products: Vec<MatmulShape>,
) -> Shapes {
    let config = checkpoint.config();
    let embedding = checkpoint.tensor(TensorRole::Embedding);
    Shapes {
        embeddings: embedding.map(|info| info.dtype).into_iter().collect(),
        hidden_size: config.hidden_size,
        num_heads: config.num_heads,
        num_kv_heads: config.num_kv_heads,
        head_dim: config.head_dim,
        block_size: limits.block_size,
        products,
    }
}

/// Refuses activations that the layers' products cannot take.
fn check_activations<S: WeightSource>(
    checkpoint: &Checkpoint<S>,
    choice: KernelChoice,
    adapter: &str,
) -> Result<(), LoadError> {
    let name = choice.activations.name();
    let refuse =
        |reason: String| Err(LoadError::Activations { name: checkpoint.config().name.clone(), reason });
    if !choice.has(choice.activations) {
        return refuse(format!("{name} activations on {adapter}: its kernels multiply f32 alone"));
    }
    let other = checkpoint
        .tensors()
        .find(|(role, info)| role.is_layer_matrix() && !choice.activations.multiply(info.dtype));
    match other {
        None => Ok(()),
        Some((_, info)) => refuse(format!(
            "{name} activations, which Q4_0 and Q4_1 weights take: the tensor {} is {}",
            info.name,
            info.dtype.title()
        )),
    }
}

/// Refuses limits that the kernels cannot keep.
fn check_limits<S: WeightSource>(checkpoint: &Checkpoint<S>, limits: PassLimits) -> Result<(), LoadError> {
    let config = checkpoint.config();
    let refuse = |reason: String| Err(LoadError::Unsupported { name: config.name.clone(), reason });
    if limits.block_size == 0 || !limits.block_size.is_multiple_of(8) || limits.block_size > 256 {
        return refuse(format!(
            "a block size of {}; it must be a multiple of 8 up to 256",
            limits.block_size
        ));
    }
    if limits.max_batch_tokens == 0 || limits.max_batch_tokens > 16_384 {
        return refuse(format!("{} tokens in a batch; it must be 1 to 16384", limits.max_batch_tokens));
    }
    if limits.max_num_seqs == 0 || limits.max_num_seqs > 256 {
        return refuse(format!("{} sequences in a batch; it must be 1 to 256", limits.max_num_seqs));
    }
    if limits.max_model_len == 0 || limits.max_model_len > config.max_context {
        return refuse(format!(
            "a context of {} tokens; the model was made for {}",
            limits.max_model_len, config.max_context
        ));
    }
    Ok(())
}

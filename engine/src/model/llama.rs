//! The Llama family's forward pass: weights loaded, buffers taken, and every dispatch of a step laid out with its bindings.
//!
//! Never runs a step and knows nothing of requests. Invariant: rows of the batch are independent in every dispatch but
//! attention, which reads other rows only through the KV cache.

use firstlight_shaders::matmul::{Store, fused_column};
use firstlight_shaders::weights::GROUP_COLUMNS;
use firstlight_shaders::{
    Activations, MAX_ITERATIONS, embed, paged_attention, rope_kv_write, sample, silu_mul,
};

use super::kv_cache::{BlockBytes, KvCache};
use super::matrix::{Columns, Matrix, MatrixLoader, Part};
use super::plan::{Factor, Norm, Places, Planner, RowBuffer};
use super::rope::{angle_table, frequencies};
use super::{Checkpoint, LoadFailure, ModelConfig, RopeLayout, TensorInfo, TensorRole, WeightSource};
use crate::error::LoadError;
use crate::gpu::{Buffer, Device, Dispatch, Extent, KernelChoice, Resource, SampleOn, Stage};

/// Sizes fixed at load.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PassLimits {
    /// Sequences in a batch, and rows to sample from, at most.
    pub max_num_seqs: u32,
    /// Tokens in a batch at most.
    pub max_batch_tokens: u32,
    /// Slots of a KV block, a multiple of 8.
    pub block_size: u32,
    /// Blocks in the pool.
    pub num_blocks: u32,
    /// The longest sequence.
    pub max_model_len: u32,
}

/// A loaded model: what a step writes, what it dispatches, what it reads.
pub struct Llama {
    /// The pass, in order.
    pub dispatches: Vec<Dispatch>,
    /// `[max_batch_tokens][4]`: token, position, slot, sequence.
    pub rows: Buffer,
    /// What the rows of a batch are to be made up to a multiple of, with rows whose slot is [`rope_kv_write::NOWHERE`].
    pub row_multiple: u32,
    /// `[max_num_seqs]` rows to sample from.
    pub sample_rows: Buffer,
    /// `[max_num_seqs][table_pitch]` block ids.
    pub block_tables: Buffer,
    /// Blocks a row of `block_tables`.
    pub table_pitch: u32,
    /// `[max_num_seqs][logits_pitch]`.
    pub logits: Buffer,
    /// Floats a row of `logits`.
    pub logits_pitch: u32,
    /// Where the GPU samples: what it reads.
    pub sampler: Option<Sampler>,
    /// `[max_num_seqs]` token ids that the GPU sampled last, if it does: the next pass may begin with them.
    pub sampled_tokens: Buffer,
    /// Tokens of the vocabulary.
    pub vocab_size: u32,
    /// GPU bytes of weights.
    pub weight_bytes: u64,
    /// Keys and values.
    pub kv_cache: KvCache,
}

/// Sampling on the GPU.
pub struct Sampler {
    /// `[max_num_seqs]` [`sample::Row`]s.
    pub choices: Buffer,
}

/// Loads the model of `loader.checkpoint` and lays out its pass.
pub async fn load<S: WeightSource>(
    loader: &mut MatrixLoader<'_, S>,
    planner: &mut Planner<'_>,
    limits: PassLimits,
) -> Result<Llama, LoadFailure> {
    let config = loader.checkpoint.config().clone();
    let device = loader.device;
    let table_pitch = limits.max_model_len.div_ceil(limits.block_size);
    let KernelChoice { work_home, activations, subgroups, kv, .. } = planner.choice();
    let rope = rope_kv_write::Variant {
        num_heads: config.num_heads,
        num_kv_heads: config.num_kv_heads,
        head_vec4s: config.head_dim / 4,
        block_size: limits.block_size,
        work_home,
        kv,
    };
    let fuses_rope = planner.choice().fuses_rope(rope, device.facts());
    let row_capacity = planner.row_capacity(limits.max_batch_tokens);
    let rows = device.storage("batch rows", u64::from(row_capacity) * 16).await?;
    let sample_rows = device.storage("sample rows", u64::from(limits.max_num_seqs) * 4).await?;
    let sampled_tokens = device.storage("sampled tokens", u64::from(limits.max_num_seqs) * 4).await?;
    let tables_bytes = u64::from(limits.max_num_seqs) * u64::from(table_pitch) * 4;
    let block_tables = device.storage("block tables", tables_bytes).await?;
    let divisors = match loader.checkpoint.tensor(TensorRole::RopeFreqs) {
        Some(info) => Some(loader.read_vector(info).await?),
        None => None,
    };
    let angles =
        load_angles(device, &frequencies(&config, divisors.as_deref()), limits.max_model_len).await?;

    let hidden = planner.activation("hidden", row_capacity, config.hidden_size).await?;
    let normed = planner.normed("normed", row_capacity, config.hidden_size, config.rms_norm_eps).await?;
    let attended_width = config.num_heads * config.head_dim;
    let qkv_width = match fuses_rope {
        true => attended_width,
        // A part that is loaded apart pads its columns to a group: room for that behind the last one.
        false => attended_width + 2 * config.num_kv_heads * config.head_dim + GROUP_COLUMNS,
    };
    let qkv = planner.activation("qkv", row_capacity, qkv_width).await?;
    // In 8 bits a head is whole blocks of 8 lanes, or it is written as f32 before.
    let whole_blocks =
        activations == Activations::F32 || config.head_dim.is_multiple_of(paged_attention::WHOLE_HEAD);
    let attended = planner.factor("attended", row_capacity, attended_width, whole_blocks).await?;
    let gated = planner.factor("gated", row_capacity, config.intermediate_size, subgroups).await?;
    let sample_capacity = planner.row_capacity(limits.max_num_seqs);
    let sampled = planner.plain_factor("sampled", sample_capacity, config.hidden_size).await?;
    let logits = planner.activation("logits", sample_capacity, config.vocab_size).await?;

    let required = |role| tensor(loader.checkpoint, role);
    let whole = |n: u32| move |column: u32| (column < n).then_some((0, column));
    let embedding_part = [Part { weight: required(TensorRole::Embedding)?, bias: None }];
    let embedding =
        loader.load("embedding", &embedding_part, config.vocab_size, &whole(config.vocab_size)).await?;
    plan_embedding(planner, &config, &embedding, [&rows, &sampled_tokens], &hidden).await?;

    let block = BlockBytes::of(&config, kv, limits.block_size);
    let kv_cache = KvCache::take(device, work_home, kv, config.num_layers, limits.num_blocks, block).await?;
    let scene = Scene {
        config: &config,
        limits,
        rows: &rows,
        block_tables: &block_tables,
        angles: &angles,
        kv_cache: &kv_cache,
        table_pitch,
        rope,
        fuses_rope,
    };
    let buffers = Buffers { hidden, normed, qkv, attended, gated };
    // The head before the layers: what it needs is then compiled while their weights are read.
    planner.enter(Stage::Head);
    let output_norm = loader.vector("output norm", required(TensorRole::OutputNorm)?).await?;
    planner
        .norm(
            Extent::Samples,
            &buffers.hidden,
            &output_norm,
            Some(&sample_rows),
            config.rms_norm_eps,
            &sampled,
        )
        .await?;
    let head = match loader.checkpoint.tensor(TensorRole::Head) {
        Some(weight) => {
            let part = [Part { weight, bias: None }];
            Some(loader.load("head", &part, config.vocab_size, &whole(config.vocab_size)).await?)
        }
        None => None,
    };
    let head = head.as_ref().unwrap_or(&embedding);
    planner.matmul(Extent::Samples, &sampled, head, Store::Set, &logits, 0).await?;
    let sampler = plan_sampler(planner, &config, &logits, &sampled_tokens, limits.max_num_seqs).await?;

    planner.enter(Stage::Layers);
    let first = tensor(loader.checkpoint, TensorRole::AttentionNorm(0))?;
    let norm = loader.vector("attention norm", first).await?;
    planner.first_norm(&buffers.hidden, scene.norm(&norm, &buffers)).await?;
    for layer in 0..config.num_layers {
        load_layer(loader, planner, &scene, &buffers, layer).await?;
        planner.run_new();
    }

    let Resource::Buffer(logits_buffer) = logits.buffer else { unreachable!("only factors live elsewhere") };
    Ok(Llama {
        sampler,
        sampled_tokens,
        dispatches: planner.take(),
        rows,
        row_multiple: if fuses_rope { planner.row_multiple(limits.max_batch_tokens) } else { 1 },
        sample_rows,
        block_tables,
        table_pitch,
        logits_pitch: logits.pitch,
        logits: logits_buffer,
        vocab_size: config.vocab_size,
        weight_bytes: loader.bytes_resident,
        kv_cache,
    })
}

/// The table of rotary angles. The buffer comes first: a context too long for it is refused before anything is computed.
async fn load_angles(
    device: &Device,
    frequencies: &[f32],
    max_model_len: u32,
) -> Result<Buffer, LoadFailure> {
    const PIECE: u32 = 4096;
    let row_bytes = frequencies.len() as u64 * 8;
    let what = format!("the rotary angles of {max_model_len} positions (see --max-model-len)");
    let angles = device.storage(&what, u64::from(max_model_len) * row_bytes).await?;
    for first in (0..max_model_len).step_by(PIECE as usize) {
        let table = angle_table(frequencies, first..max_model_len.min(first + PIECE));
        device.write(&angles, u64::from(first) * row_bytes, bytemuck::cast_slice(&table));
        device.flush_uploads();
    }
    Ok(angles)
}

/// Adds sampling to the pass, where the choice of kernels and the vocabulary allow it.
async fn plan_sampler(
    planner: &mut Planner<'_>,
    config: &ModelConfig,
    logits: &RowBuffer,
    tokens: &Buffer,
    max_num_seqs: u32,
) -> Result<Option<Sampler>, LoadFailure> {
    if planner.choice().sample_on == SampleOn::Cpu || config.vocab_size > sample::MAX_VOCAB {
        return Ok(None);
    }
    let rows = u64::from(max_num_seqs);
    let choices =
        planner.device().storage("sampling parameters", rows * size_of::<sample::Row>() as u64).await?;
    let params = sample::Params { vocab: config.vocab_size, pitch: logits.pitch };
    planner.enter(Stage::Sample);
    let bindings = [logits.buffer.binding(), choices.binding(), tokens.binding()];
    planner.rows_in_x(Extent::Samples, sample::program()?, bytemuck::bytes_of(&params), &bindings).await?;
    planner.moves(4 * logits.pitch);
    Ok(Some(Sampler { choices }))
}

fn tensor<S: WeightSource>(checkpoint: &Checkpoint<S>, role: TensorRole) -> Result<&TensorInfo, LoadError> {
    checkpoint.tensor(role).ok_or_else(|| LoadError::Malformed {
        name: checkpoint.config().name.clone(),
        reason: format!("the tensor {role:?} is missing"),
    })
}

/// What every layer reads.
struct Scene<'a> {
    config: &'a ModelConfig,
    limits: PassLimits,
    rows: &'a Buffer,
    block_tables: &'a Buffer,
    angles: &'a Buffer,
    kv_cache: &'a KvCache,
    table_pitch: u32,
    rope: rope_kv_write::Variant,
    /// Whether the product of q, k and v does what `rope` describes.
    fuses_rope: bool,
}

impl Scene<'_> {
    fn places(&self, layer: u32) -> Places<'_> {
        let cache = self.kv_cache.layer(layer);
        Places { rope: self.rope, rows: self.rows, angles: self.angles, cache }
    }

    /// The norm by `gamma`, for the products behind it.
    fn norm<'b>(&self, gamma: &'b Buffer, buffers: &'b Buffers) -> Norm<'b> {
        Norm { gamma, eps: self.config.rms_norm_eps, to: &buffers.normed }
    }
}

/// The activations that layers share.
struct Buffers {
    hidden: RowBuffer,
    normed: Factor,
    qkv: RowBuffer,
    attended: Factor,
    gated: Factor,
}

async fn plan_embedding(
    planner: &mut Planner<'_>,
    config: &ModelConfig,
    embedding: &Matrix,
    [rows, sampled_tokens]: [&Buffer; 2],
    hidden: &RowBuffer,
) -> Result<(), LoadFailure> {
    for shard in &embedding.shards {
        let params = embed::Params {
            y_pitch: hidden.pitch / 4,
            width_vec4s: config.hidden_size / 4,
            num_units: embedding.units(),
            first_token: shard.first_column,
            num_tokens: (shard.groups * GROUP_COLUMNS).min(config.vocab_size - shard.first_column),
        };
        let program = embed::program(embedding.format, planner.choice().home)?;
        let grid = embed::workgroups(&params, 1);
        let bindings = [
            rows.binding(),
            shard.data.binding(),
            shard.scales.binding(),
            sampled_tokens.binding(),
            hidden.buffer.binding(),
        ];
        planner.rows(Extent::Rows, program, grid[0], bytemuck::bytes_of(&params), &bindings).await?;
        planner.moves(4 * hidden.pitch);
    }
    Ok(())
}

/// Loads one layer and lays out its dispatches, the norm that follows it among them.
async fn load_layer<S: WeightSource>(
    loader: &mut MatrixLoader<'_, S>,
    planner: &mut Planner<'_>,
    scene: &Scene<'_>,
    buffers: &Buffers,
    layer: u32,
) -> Result<(), LoadFailure> {
    let config = scene.config;
    let checkpoint = loader.checkpoint;
    load_qkv(loader, planner, scene, buffers, layer).await?;
    plan_attention(planner, scene, buffers, layer).await?;

    let part = part(checkpoint, TensorRole::O(layer), TensorRole::OBias(layer))?;
    let columns = |column: u32| (column < config.hidden_size).then_some((0, column));
    let output = loader.load("attention output", &[part], config.hidden_size, &columns).await?;
    let norm = loader.vector("feed-forward norm", tensor(checkpoint, TensorRole::MlpNorm(layer))?).await?;
    let (attended, hidden) = (&buffers.attended, &buffers.hidden);
    planner.residual(attended, &output, hidden, scene.norm(&norm, buffers), false).await?;
    load_mlp(loader, planner, scene, buffers, layer).await
}

fn part<S: WeightSource>(
    checkpoint: &Checkpoint<S>,
    weight: TensorRole,
    bias: TensorRole,
) -> Result<Part<'_>, LoadError> {
    Ok(Part { weight: tensor(checkpoint, weight)?, bias: checkpoint.tensor(bias) })
}

/// q, k and v as one matrix where they are stored alike, as three otherwise.
async fn load_qkv<S: WeightSource>(
    loader: &mut MatrixLoader<'_, S>,
    planner: &mut Planner<'_>,
    scene: &Scene<'_>,
    buffers: &Buffers,
    layer: u32,
) -> Result<(), LoadFailure> {
    let config = scene.config;
    let checkpoint = loader.checkpoint;
    let parts = [
        part(checkpoint, TensorRole::Q(layer), TensorRole::QBias(layer))?,
        part(checkpoint, TensorRole::K(layer), TensorRole::KBias(layer))?,
        part(checkpoint, TensorRole::V(layer), TensorRole::VBias(layer))?,
    ];
    let q_width = config.num_heads * config.head_dim;
    let kv_width = config.num_kv_heads * config.head_dim;
    let starts = [0, q_width, q_width + kv_width, q_width + 2 * kv_width];
    let stored_row = |part: usize, column: u32| {
        let row = if scene.fuses_rope { rope_kv_write::turned_row(column, config.head_dim) } else { column };
        // Values are not turned, so no file reorders their rows.
        if part < 2 && config.rope_layout == RopeLayout::Interleaved {
            paired_row(row, config.head_dim)
        } else {
            row
        }
    };
    if parts.iter().all(|p| p.weight.dtype == parts[0].weight.dtype) {
        let columns = |column: u32| {
            let part = (0..3).find(|&p| column < starts[p + 1])?;
            Some((part, stored_row(part, column - starts[part])))
        };
        let matrix = loader.load("qkv", &parts, starts[3], &columns).await?;
        return plan_qkv(planner, scene, buffers, layer, &matrix, 0).await;
    }
    for (index, name) in ["q", "k", "v"].into_iter().enumerate() {
        let width = starts[index + 1] - starts[index];
        let columns = |column: u32| (column < width).then(|| (0, stored_row(index, column)));
        let columns: &Columns<'_> = &columns;
        let matrix = loader.load(name, &parts[index..=index], width, columns).await?;
        plan_qkv(planner, scene, buffers, layer, &matrix, starts[index]).await?;
    }
    Ok(())
}

/// The product of q, k and v, or of one of them, whose columns begin at `first`.
async fn plan_qkv(
    planner: &mut Planner<'_>,
    scene: &Scene<'_>,
    buffers: &Buffers,
    layer: u32,
    matrix: &Matrix,
    first: u32,
) -> Result<(), LoadFailure> {
    let (normed, qkv) = (&buffers.normed, &buffers.qkv);
    if scene.fuses_rope {
        return planner.placed(normed, matrix, qkv, first, scene.places(layer)).await;
    }
    planner.matmul(Extent::Rows, normed, matrix, Store::Set, qkv, first).await
}

/// Where llama.cpp stores row `row` of q or k: dimensions that turn together stand side by side.
fn paired_row(row: u32, head_dim: u32) -> u32 {
    let (head, d, half) = (row / head_dim, row % head_dim, head_dim / 2);
    head * head_dim + if d < half { 2 * d } else { 2 * (d - half) + 1 }
}

async fn plan_attention(
    planner: &mut Planner<'_>,
    scene: &Scene<'_>,
    buffers: &Buffers,
    layer: u32,
) -> Result<(), LoadFailure> {
    let (config, limits) = (scene.config, scene.limits);
    let cache = scene.kv_cache.layer(layer);
    if !scene.fuses_rope {
        plan_rope(planner, scene, buffers, layer).await?;
    }
    let head_group = config.num_heads / config.num_kv_heads;
    let KernelChoice { work_home, subgroups, kv, .. } = planner.choice();
    let block_size = limits.block_size;
    let attended = buffers.attended.target();
    let variant = paged_attention::Variant {
        head_vec4s: scene.rope.head_vec4s,
        head_group,
        block_size,
        work_home,
        kv,
        y_home: attended.home,
        activations: attended.activations,
        subgroups,
        few_threads: planner.choice().few_threads(),
        teams: planner.choice().attention_teams(),
    };
    check_iterations(planner.device(), variant, scene)?;
    let params = paged_attention::Params {
        q_pitch: buffers.qkv.pitch / 4,
        y_pitch: attended.pitch / 4,
        num_kv_heads: config.num_kv_heads,
        head_group,
        table_pitch: scene.table_pitch,
        scale: (1.0 / f64::from(config.head_dim).sqrt()) as f32,
    };
    let bindings = [
        scene.rows.binding(),
        scene.block_tables.binding(),
        buffers.qkv.buffer.binding(),
        cache.keys.binding(),
        cache.values.binding(),
        attended.buffer.binding(),
    ];
    let grid = variant.workgroups(config.num_heads, 1);
    let program = variant.program()?;
    planner.rows(Extent::Rows, program, grid[0], bytemuck::bytes_of(&params), &bindings).await?;
    // q*k and p*v.
    let kv_bytes = config.kv_bytes_a_token(planner.choice().kv) / u64::from(config.num_layers);
    planner.attends(2 * u64::from(config.num_heads) * u64::from(config.head_dim), kv_bytes);
    planner.written(Extent::Rows, &buffers.attended).await
}

/// Turns q and k and writes the cache, where the product before did not.
async fn plan_rope(
    planner: &mut Planner<'_>,
    scene: &Scene<'_>,
    buffers: &Buffers,
    layer: u32,
) -> Result<(), LoadFailure> {
    let cache = scene.kv_cache.layer(layer);
    let bindings = [
        scene.rows.binding(),
        scene.angles.binding(),
        buffers.qkv.buffer.binding(),
        cache.keys.binding(),
        cache.values.binding(),
    ];
    let params = rope_kv_write::Params { pitch: buffers.qkv.pitch / 4 };
    let (program, grid) = (scene.rope.program()?, scene.rope.workgroups(1));
    planner.rows(Extent::Rows, program, grid[0], bytemuck::bytes_of(&params), &bindings).await?;
    // It reads q, k and v and writes them, each to its place.
    planner.moves(8 * buffers.qkv.width);
    Ok(())
}

/// A CPU driver ends a kernel's loops in silence when they run too long; GPUs have no such limit.
fn check_iterations(
    device: &Device,
    variant: paged_attention::Variant,
    scene: &Scene<'_>,
) -> Result<(), LoadError> {
    let context = scene.limits.max_model_len;
    if !device.facts().is_cpu || variant.iterations(context) <= MAX_ITERATIONS {
        return Ok(());
    }
    Err(LoadError::Unsupported {
        name: scene.config.name.clone(),
        reason: format!(
            "a context of {context} tokens is beyond what attention without subgroups can do on the CPU driver {}; \
             lower --max-model-len, or run without --default-limits",
            device.facts().name
        ),
    })
}

/// gate and up as one matrix with the activation fused where they are stored alike, as two otherwise; then down, and the norm
/// that follows.
async fn load_mlp<S: WeightSource>(
    loader: &mut MatrixLoader<'_, S>,
    planner: &mut Planner<'_>,
    scene: &Scene<'_>,
    buffers: &Buffers,
    layer: u32,
) -> Result<(), LoadFailure> {
    let config = scene.config;
    let checkpoint = loader.checkpoint;
    let width = config.intermediate_size;
    let gate = part(checkpoint, TensorRole::Gate(layer), TensorRole::GateBias(layer))?;
    let up = part(checkpoint, TensorRole::Up(layer), TensorRole::UpBias(layer))?;
    let mut apart = None;
    if gate.weight.dtype == up.weight.dtype {
        let fused_width = width.next_multiple_of(16) * 2;
        let columns = |column: u32| {
            let (row, is_up) = (column / 2, column % 2 == 1);
            debug_assert_eq!(fused_column(row, is_up), column);
            (row < width).then_some((usize::from(is_up), row))
        };
        let matrix = loader.load("gate and up", &[gate, up], fused_width, &columns).await?;
        let to = buffers.gated.target();
        planner.matmul(Extent::Rows, &buffers.normed, &matrix, Store::Silu, to, 0).await?;
        planner.written(Extent::Rows, &buffers.gated).await?;
    } else {
        apart = Some(plan_unfused_gate(loader, planner, [gate, up], width, buffers).await?);
    }
    let is_last = layer + 1 == config.num_layers;
    let down = part(checkpoint, TensorRole::Down(layer), TensorRole::DownBias(layer))?;
    let columns = |column: u32| (column < config.hidden_size).then_some((0, column));
    let matrix = loader.load("down", &[down], config.hidden_size, &columns).await?;
    let next = if is_last { TensorRole::OutputNorm } else { TensorRole::AttentionNorm(layer + 1) };
    let norm = loader.vector("norm", tensor(checkpoint, next)?).await?;
    let gated = apart.as_ref().unwrap_or(&buffers.gated);
    planner.residual(gated, &matrix, &buffers.hidden, scene.norm(&norm, buffers), is_last).await
}

async fn plan_unfused_gate<S: WeightSource>(
    loader: &mut MatrixLoader<'_, S>,
    planner: &mut Planner<'_>,
    parts: [Part<'_>; 2],
    width: u32,
    buffers: &Buffers,
) -> Result<Factor, LoadFailure> {
    let up_column = width.next_multiple_of(GROUP_COLUMNS);
    let rows = buffers.gated.rows.rows;
    let both = planner.activation("gate and up", rows, 2 * up_column).await?;
    let gated = planner.factor("gated", rows, width, false).await?;
    for (part, first) in parts.iter().zip([0, up_column]) {
        let columns = |column: u32| (column < width).then_some((0, column));
        let matrix = loader.load("gate or up", std::slice::from_ref(part), width, &columns).await?;
        planner.matmul(Extent::Rows, &buffers.normed, &matrix, Store::Set, &both, first).await?;
    }
    let params = silu_mul::Params {
        x_pitch: both.pitch / 4,
        up_vec4: up_column / 4,
        y_pitch: gated.target().pitch / 4,
        width_vec4s: width / 4,
    };
    let grid = silu_mul::workgroups(&params, 1);
    let bindings = [both.buffer.binding(), gated.target().buffer.binding()];
    let program = silu_mul::program()?;
    planner.rows(Extent::Rows, program, grid[0], bytemuck::bytes_of(&params), &bindings).await?;
    planner.moves(4 * (both.pitch + gated.target().pitch));
    planner.written(Extent::Rows, &gated).await?;
    Ok(gated)
}

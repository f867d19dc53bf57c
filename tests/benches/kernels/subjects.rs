//! Every kernel at the sizes of the default model, with data that stand for its own: what there is to time.
//!
//! Never runs anything. Invariant: sizes follow from the choice of kernels by the engine's own functions, so that what is
//! timed is what a step would dispatch.

use bytemuck::{NoUninit, bytes_of, cast_slice};
use firstlight_engine::gpu::{AdapterFacts, KernelChoice, MatmulShape, Shapes};
use firstlight_shaders::matmul::{Params as MatmulParams, Store, squares_pitch};
use firstlight_shaders::weights::PackedShape;
use firstlight_shaders::{
    Activations, Form, Program, WeightFormat, embed, norm_parts, paged_attention, quantise, rms_norm,
    rope_kv_write, sample, silu_mul,
};

/// The default model.
const HIDDEN: u32 = 576;
const INNER: u32 = 1536;
const HEADS: u32 = 9;
const KV_HEADS: u32 = 3;
const HEAD_DIM: u32 = 64;
const VOCAB: u32 = 49_152;
const BLOCK_SIZE: u32 = 16;
/// Positions that attention looks at.
pub const CONTEXT: u32 = 1024;
/// 0.01 as f32: neither a denormal nor anything that sums overflow with.
const SMALL: u32 = 0x3c23_d70a;

/// What a binding holds before the kernel runs.
pub enum Content {
    /// These bytes.
    Bytes(Vec<u8>),
    /// So many bytes of one word over and over.
    Fill(u32, u64),
}

impl Content {
    fn of<T: NoUninit>(values: &[T]) -> Self {
        Self::Bytes(cast_slice(values).to_vec())
    }

    /// The bytes.
    pub fn bytes(&self) -> Vec<u8> {
        match self {
            Self::Bytes(bytes) => bytes.clone(),
            Self::Fill(word, bytes) => word.to_le_bytes().repeat(bytes.div_ceil(4) as usize),
        }
    }
}

/// One kernel on one size.
pub struct Subject {
    /// What it does for the model.
    pub what: String,
    /// Its rows: tokens of a batch.
    pub rows: u32,
    /// The kernel.
    pub program: Program,
    /// Its grid.
    pub grid: [u32; 3],
    /// What its bindings hold.
    pub contents: Vec<Content>,
    /// Bytes of weights or of the KV cache, which in a model come from memory each time.
    pub cold_bytes: u64,
    /// All bytes that it has to move.
    pub bytes: u64,
    /// Multiplications and additions.
    pub operations: u64,
}

/// The products of the default model under `choice`, with weights in `format`, on `rows` rows.
pub fn products(
    (choice, facts): (KernelChoice, &AdapterFacts),
    format: WeightFormat,
    rows: u32,
) -> Vec<Subject> {
    let names = ["head", "qkv", "output", "gate and up", "down"];
    let columns = [VOCAB, (HEADS + 2 * KV_HEADS) * HEAD_DIM, HIDDEN, 2 * INNER, HIDDEN];
    let shapes = Shapes::of_default_model(&[format], choice, facts).products;
    let products = shapes.into_iter().zip(names).zip(columns);
    products.map(|((shape, name), columns)| product(choice, shape, name, columns, rows)).collect()
}

fn product(choice: KernelChoice, shape: MatmulShape, name: &str, columns: u32, rows: u32) -> Subject {
    let tile = choice.matmul_tiles().iter().rev().find(|tile| tile.rows().0 <= rows);
    let tile = tile.expect("the first tile takes one row");
    let all_rows = u64::from(rows.next_multiple_of(tile.rows().1));
    let k = shape.units * 64;
    let packed = PackedShape::new(shape.format, columns, k);
    let (program, grid) = tile.program(shape, choice, rows, packed.groups).expect("it composes");
    let y_pitch = match shape.store {
        Store::Silu => 4 * shape.written.activations.row_texels(columns / 2),
        _ => columns,
    };
    let x_pitch = shape.x.activations.row_texels(k);
    let z_pitch = shape.written.activations.row_texels(columns);
    let params = MatmulParams { x_pitch, y_pitch, y_column: 0, num_groups: packed.groups, z_pitch, eps: 0.1 };
    let (weights, scale) = match shape.format {
        WeightFormat::F32 => (SMALL, 0),
        WeightFormat::F16 => (0x211f_211f, 0),
        WeightFormat::Bf16 => (0x3c24_3c24, 0),
        _ => (0x5a96_3c71, 0x211f_211f),
    };
    let (x_bytes, y_bytes) = (16 * all_rows * u64::from(x_pitch), 4 * all_rows * u64::from(y_pitch));
    let mut contents = vec![
        Content::Bytes(bytes_of(&params).to_vec()),
        Content::Fill(SMALL, x_bytes),
        Content::Fill(weights, packed.data_bytes()),
        Content::Fill(scale, packed.scale_bytes()),
        Content::Fill(0, 16),
        Content::Fill(0, y_bytes),
    ];
    let squares_bytes = 4 * all_rows * u64::from(squares_pitch(shape.norm_width));
    if shape.store == Store::AddNorm {
        contents.extend([
            Content::Fill(SMALL, 4 * u64::from(columns)),
            Content::Fill(0, squares_bytes),
            Content::Fill(0, 16 * all_rows * u64::from(z_pitch)),
        ]);
    } else if shape.norm_width > 0 {
        contents.push(Content::Fill(SMALL, squares_bytes));
    }
    if let Store::RopeKv(_) = shape.store {
        contents.extend(places(choice, rows, all_rows as u32));
    }
    let cold_bytes = packed.data_bytes() + packed.scale_bytes();
    Subject {
        what: format!("{name} {k}x{columns}"),
        rows,
        program,
        grid,
        contents,
        cold_bytes,
        bytes: cold_bytes + x_bytes + y_bytes,
        operations: 2 * u64::from(rows) * u64::from(columns) * u64::from(k),
    }
}

/// A kernel whose data stay in caches in a model too.
fn between(what: &str, rows: u32, program: Program, grid: [u32; 3], contents: Vec<Content>) -> Subject {
    let size = |content: &Content| match content {
        Content::Bytes(bytes) => bytes.len() as u64,
        Content::Fill(_, bytes) => *bytes,
    };
    let bytes = contents.iter().map(size).sum();
    Subject { what: what.to_owned(), rows, program, grid, contents, cold_bytes: 0, bytes, operations: 0 }
}

/// Where and how the kernels of `choice` write rows of whole heads for products.
fn head_form(choice: KernelChoice) -> Form {
    match choice.activations {
        Activations::I8 if !choice.subgroups => Form::PLAIN,
        activations => Form { home: choice.work_home, activations },
    }
}

/// Attention: so many sequences that decode, or one whose last `rows` tokens are a prompt's.
pub fn attention(choice: KernelChoice, rows: u32, is_prompt: bool) -> Subject {
    let Form { home: y_home, activations } = head_form(choice);
    let head_vec4s = HEAD_DIM / 4;
    let variant = paged_attention::Variant {
        head_vec4s,
        head_group: HEADS / KV_HEADS,
        block_size: BLOCK_SIZE,
        work_home: choice.work_home,
        kv: choice.kv,
        y_home,
        activations,
        subgroups: choice.subgroups,
        few_threads: choice.few_threads(),
        teams: choice.attention_teams(),
    };
    let seqs = if is_prompt { 1 } else { rows };
    let table_pitch = CONTEXT / BLOCK_SIZE;
    let tables: Vec<u32> = (0..seqs * table_pitch).collect();
    let places: Vec<[u32; 4]> = (0..rows)
        .map(|row| if is_prompt { [0, CONTEXT - rows + row, 0, 0] } else { [0, CONTEXT - 1, 0, row] })
        .collect();
    let width = HEADS * HEAD_DIM;
    let y_texels = activations.row_texels(width);
    let params = paged_attention::Params {
        q_pitch: width / 4,
        y_pitch: y_texels,
        num_kv_heads: KV_HEADS,
        head_group: HEADS / KV_HEADS,
        table_pitch,
        scale: 0.125,
    };
    let slots = u64::from(seqs * CONTEXT * KV_HEADS);
    let (key_bytes, value_bytes) =
        (slots * choice.kv.key_bytes(HEAD_DIM), slots * choice.kv.value_bytes(HEAD_DIM));
    let contents = vec![
        Content::Bytes(bytes_of(&params).to_vec()),
        Content::of(&places),
        Content::of(&tables),
        Content::Fill(SMALL, u64::from(rows * width) * 4),
        Content::Fill(SMALL, key_bytes),
        Content::Fill(SMALL, value_bytes),
        Content::Fill(0, u64::from(rows * y_texels) * 16),
    ];
    let attended: u64 = places.iter().map(|place| u64::from(place[1]) + 1).sum();
    let what = format!("attention, {} at {CONTEXT}", if is_prompt { "prompt" } else { "decode" });
    let program = variant.program().expect("it composes");
    Subject {
        cold_bytes: key_bytes + value_bytes,
        operations: 4 * attended * u64::from(width),
        ..between(&what, rows, program, variant.workgroups(HEADS, rows), contents)
    }
}

/// The kernels between the products.
pub fn rows_kernels((choice, facts): (KernelChoice, &AdapterFacts), rows: u32) -> Vec<Subject> {
    let mut subjects = vec![norm(choice, rows), gathered_norm(choice, rows), embedding(choice, rows)];
    if !choice.fuses_rope(rope_variant(choice), facts) {
        subjects.push(rope(choice, rows));
    }
    if !choice.subgroups || choice.activations == Activations::F32 {
        subjects.push(silu(rows));
    }
    if choice.activations == Activations::I8 {
        subjects.push(quantised(choice, rows));
    }
    subjects.extend([sampling(rows.min(8), 0.0), sampling(rows.min(8), 0.8)]);
    subjects
}

fn norm(choice: KernelChoice, rows: u32) -> Subject {
    if !choice.fuses_norms() {
        return whole_norm(choice, rows, false);
    }
    let form = Form { home: choice.work_home, activations: choice.activations };
    let y_texels = form.activations.row_texels(HIDDEN);
    let params = norm_parts::Params { x_pitch: HIDDEN / 4, y_pitch: y_texels };
    let contents = vec![
        Content::Bytes(bytes_of(&params).to_vec()),
        Content::Fill(SMALL, u64::from(rows * HIDDEN) * 4),
        Content::Fill(SMALL, u64::from(HIDDEN) * 4),
        Content::Fill(0, u64::from(rows * squares_pitch(HIDDEN)) * 4),
        Content::Fill(0, u64::from(rows * y_texels) * 16),
    ];
    let program = norm_parts::program(HIDDEN, form).expect("it composes");
    between("first norm", rows, program, norm_parts::workgroups(rows), contents)
}

fn gathered_norm(choice: KernelChoice, rows: u32) -> Subject {
    whole_norm(choice, rows, true)
}

fn whole_norm(choice: KernelChoice, rows: u32, gather: bool) -> Subject {
    let params = rms_norm::Params { x_pitch: HIDDEN / 4, y_pitch: HIDDEN / 4, eps: 1e-5 };
    let sources: Vec<u32> = (0..rows).collect();
    let contents = vec![
        Content::Bytes(bytes_of(&params).to_vec()),
        Content::Fill(SMALL, u64::from(rows * HIDDEN) * 4),
        Content::Fill(SMALL, u64::from(HIDDEN) * 4),
        Content::of(&sources),
        Content::Fill(0, u64::from(rows * HIDDEN) * 4),
    ];
    let program = rms_norm::program(HIDDEN / 4, gather, choice.work_home, choice.subgroups);
    let what = if gather { "last norm" } else { "norm" };
    between(what, rows, program.expect("it composes"), rms_norm::workgroups(rows), contents)
}

fn rope_variant(choice: KernelChoice) -> rope_kv_write::Variant {
    rope_kv_write::Variant {
        num_heads: HEADS,
        num_kv_heads: KV_HEADS,
        head_vec4s: HEAD_DIM / 4,
        block_size: BLOCK_SIZE,
        work_home: choice.work_home,
        kv: choice.kv,
    }
}

/// Where `rows` rows go, made up to `all_rows` with those of nobody; the angles of their positions; keys; values.
fn places(choice: KernelChoice, rows: u32, all_rows: u32) -> [Content; 4] {
    let mut places: Vec<[u32; 4]> = (0..rows).map(|row| [0, row, row, 0]).collect();
    places.resize(all_rows as usize, [0, 0, rope_kv_write::NOWHERE, 0]);
    let slots = u64::from(rows.next_multiple_of(BLOCK_SIZE) * KV_HEADS);
    [
        Content::of(&places),
        Content::Fill(SMALL, u64::from(rows * HEAD_DIM) * 4),
        Content::Fill(0, slots * choice.kv.key_bytes(HEAD_DIM)),
        Content::Fill(0, slots * choice.kv.value_bytes(HEAD_DIM)),
    ]
}

fn rope(choice: KernelChoice, rows: u32) -> Subject {
    let variant = rope_variant(choice);
    let width = (HEADS + 2 * KV_HEADS) * HEAD_DIM;
    let [places, angles, keys, values] = places(choice, rows, rows);
    let contents = vec![
        Content::Bytes(bytes_of(&rope_kv_write::Params { pitch: width / 4 }).to_vec()),
        places,
        angles,
        Content::Fill(SMALL, u64::from(rows * width) * 4),
        keys,
        values,
    ];
    between("rope and KV", rows, variant.program().expect("it composes"), variant.workgroups(rows), contents)
}

fn embedding(choice: KernelChoice, rows: u32) -> Subject {
    let columns = 4096;
    let packed = PackedShape::new(WeightFormat::Q8_0, columns, HIDDEN);
    let params = embed::Params {
        y_pitch: HIDDEN / 4,
        width_vec4s: HIDDEN / 4,
        num_units: packed.units,
        first_token: 0,
        num_tokens: columns,
    };
    let places: Vec<[u32; 4]> = (0..rows).map(|row| [row * 61 % columns, 0, 0, 0]).collect();
    let row_bytes = u64::from(rows * HIDDEN);
    let contents = vec![
        Content::Bytes(bytes_of(&params).to_vec()),
        Content::of(&places),
        Content::Fill(0x5a96_3c71, packed.data_bytes()),
        Content::Fill(0x211f_211f, packed.scale_bytes()),
        Content::Fill(0, row_bytes * 4),
    ];
    let program = embed::program(WeightFormat::Q8_0, choice.home).expect("it composes");
    let subject = between("embedding", rows, program, embed::workgroups(&params, rows), contents);
    // A byte and a share of a scale for each number, and the number.
    Subject { bytes: row_bytes * (4 + 1) + row_bytes / 16, ..subject }
}

fn silu(rows: u32) -> Subject {
    let params = silu_mul::Params {
        x_pitch: INNER / 2,
        up_vec4: INNER / 4,
        y_pitch: INNER / 4,
        width_vec4s: INNER / 4,
    };
    let contents = vec![
        Content::Bytes(bytes_of(&params).to_vec()),
        Content::Fill(SMALL, u64::from(rows * INNER) * 8),
        Content::Fill(0, u64::from(rows * INNER) * 4),
    ];
    let program = silu_mul::program().expect("it composes");
    between("activation apart", rows, program, silu_mul::workgroups(&params, rows), contents)
}

fn quantised(choice: KernelChoice, rows: u32) -> Subject {
    let (units, y_texels) = (INNER / 64, Activations::I8.row_texels(INNER));
    let params = quantise::Params { x_pitch: INNER / 4, y_pitch: y_texels };
    let contents = vec![
        Content::Bytes(bytes_of(&params).to_vec()),
        Content::Fill(SMALL, u64::from(rows * INNER) * 4),
        Content::Fill(0, u64::from(rows * y_texels) * 16),
    ];
    let program = quantise::program(units, choice.work_home).expect("it composes");
    between("to 8 bits", rows, program, quantise::workgroups(units, rows), contents)
}

fn sampling(rows: u32, temperature: f32) -> Subject {
    let choice = sample::Choice { temperature, top_k: 40, top_p: 0.95, min_p: 0.0, seed: 7, position: 1 };
    let choices: Vec<sample::Row> = (0..rows).map(|_| sample::Row::from(&choice)).collect();
    let logits: Vec<f32> =
        (0..VOCAB).map(|i| (i.wrapping_mul(2_654_435_761) >> 16) as f32 / 4096.0).collect();
    let params = sample::Params { vocab: VOCAB, pitch: VOCAB };
    let contents = vec![
        Content::Bytes(bytes_of(&params).to_vec()),
        Content::of(&logits.repeat(rows as usize)),
        Content::of(&choices),
        Content::Fill(0, u64::from(rows) * 4),
    ];
    let what = if temperature > 0.0 { "sample, top-k and top-p" } else { "sample, greedy" };
    between(what, rows, sample::program().expect("it composes"), sample::workgroups(rows), contents)
}

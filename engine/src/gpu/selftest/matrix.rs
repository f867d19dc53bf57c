//! Made-up weights for the kernels that read packed ones: every tile of a product, and the embedding.
//!
//! Invariant: a product has one row more than its tile, so that a full tile and one that is nearly empty are both run.

use firstlight_shaders::kv_cache::CacheShape;
use firstlight_shaders::matmul::{self, Params, Store, cpu_silu, fused_column, squares_pitch};
use firstlight_shaders::weights::{BLOCK, GROUP_COLUMNS, PackedShape, UNIT, pack};
use firstlight_shaders::{Activations, ComposeError, WeightFormat, embed, quantise, rope_kv_write};
use half::{bf16, f16};

use super::{Case, Numbers, POISON, Word, bytes_of, padded, rows, rows_as};
use crate::gpu::{KernelChoice, MatmulShape, MatmulTile};

/// Columns of the made-up matrices: two groups.
const COLUMNS: u32 = 2 * GROUP_COLUMNS;

/// Columns of stored weights.
struct Weights {
    packed: (Vec<u8>, Vec<u8>),
    /// `[columns][k]`.
    plain: Vec<f32>,
}

impl Weights {
    fn new(format: WeightFormat, (columns, k): (u32, u32), numbers: &mut Numbers) -> Self {
        let shape = PackedShape::new(format, columns, k);
        let columns: Vec<Vec<u8>> = (0..columns).map(|_| stored_row(format, k, numbers)).collect();
        Self {
            packed: pack(shape, k, |column| columns.get(column as usize).map(Vec::as_slice)),
            plain: columns.iter().flat_map(|row| format.dequantise_row(row, k)).collect(),
        }
    }
}

/// `k` weights as a file stores them.
fn stored_row(format: WeightFormat, k: u32, numbers: &mut Numbers) -> Vec<u8> {
    let mut row = Vec::with_capacity(format.row_bytes(k));
    match format {
        WeightFormat::F32 => (0..k).for_each(|_| row.extend(numbers.float().to_le_bytes())),
        WeightFormat::F16 => (0..k).for_each(|_| row.extend(f16::from_f32(numbers.float()).to_le_bytes())),
        WeightFormat::Bf16 => (0..k).for_each(|_| row.extend(bf16::from_f32(numbers.float()).to_le_bytes())),
        WeightFormat::Q8_0 | WeightFormat::Q4_0 | WeightFormat::Q4_1 => {
            for _ in 0..k / BLOCK {
                let start = row.len();
                let size = if format == WeightFormat::Q8_0 { 0.01 } else { 0.1 };
                row.extend(f16::from_f32(size * (1.5 + numbers.float())).to_le_bytes());
                if format == WeightFormat::Q4_1 {
                    row.extend(f16::from_f32(numbers.float()).to_le_bytes());
                }
                while row.len() < start + format.block_bytes() {
                    row.push(numbers.bits() as u8);
                }
            }
        }
    }
    row
}

/// What is added to the mean squares of made-up norms.
const EPS: f32 = 0.1;

/// Sums of squares of rows, where a product is to divide by the root of their mean, and what that makes of the rows.
fn row_scales(shape: MatmulShape, rows: u32, numbers: &mut Numbers) -> (Vec<f32>, Vec<f64>) {
    if shape.norm_width == 0 || shape.store == Store::AddNorm {
        return (Vec::new(), vec![1.0; rows as usize]);
    }
    let groups = shape.norm_width.div_ceil(GROUP_COLUMNS);
    let mut squares = Vec::new();
    let mut scales = Vec::new();
    for _ in 0..rows {
        let row: Vec<f32> = (0..groups).map(|_| 20.0 * (1.5 + numbers.float())).collect();
        let sum: f64 = row.iter().map(|&s| f64::from(s)).sum();
        scales.push(1.0 / (sum / f64::from(shape.norm_width) + f64::from(EPS)).sqrt());
        squares.extend(padded(row, squares_pitch(shape.norm_width), 0.0));
    }
    (squares, scales)
}

/// Rows of x, as a product computes with them and as they are stored.
fn left_factor(shape: MatmulShape, rows: u32, numbers: &mut Numbers) -> (Vec<f32>, Vec<u8>) {
    let k = shape.units * UNIT;
    let x = numbers.floats(rows * k);
    if shape.x.activations == Activations::F32 {
        let bytes = bytes_of(&x);
        return (x, bytes);
    }
    let rows: Vec<_> = x.chunks(k as usize).map(quantise::cpu).collect();
    let bytes = rows.iter().flat_map(|(words, _)| bytes_of(words)).collect();
    (rows.into_iter().flat_map(|(_, numbers)| numbers).collect(), bytes)
}

/// One tile of the product of q, k and v, a head each, that turns them and writes a cache of two blocks.
pub fn placed(
    tile: MatmulTile,
    shape: MatmulShape,
    rope: rope_kv_write::Variant,
    choice: KernelChoice,
) -> Result<Case, ComposeError> {
    let mut random = Numbers(37);
    let rope = rope_kv_write::Variant { num_heads: 1, num_kv_heads: 1, ..rope };
    let (_, tile_rows) = tile.rows();
    let (rows, k) = (tile_rows + 1, shape.units * UNIT);
    let all_rows = rows.next_multiple_of(tile_rows);
    let (head_dim, block_size) = (4 * rope.head_vec4s, rope.block_size);
    let columns = 3 * head_dim;
    let weights = Weights::new(shape.format, (columns, k), &mut random);
    let (x, x_bytes) = left_factor(shape, all_rows, &mut random);
    let bias = if shape.bias { random.floats(columns) } else { vec![0.0; 4] };
    let (squares, scales) = row_scales(shape, all_rows, &mut random);
    let (frequencies, angles) = rows::made_up_angles(head_dim, rows);
    let cache = CacheShape { format: rope.kv, head_dim, block_size };
    let mut keys = vec![Word::Kept; cache.key_words(2)];
    let mut values = vec![Word::Kept; cache.value_words(2)];
    let mut y = vec![Word::Kept; (all_rows * head_dim) as usize];
    let mut places = vec![[0, 0, rope_kv_write::NOWHERE, 0]; all_rows as usize];
    for row in 0..rows {
        // Slots backwards from the end of the second block.
        let slot = 2 * block_size - 1 - row;
        places[row as usize] = [0, row, slot, 0];
        let x = &x[(row * k) as usize..][..k as usize];
        let products = matmul::cpu(x, &weights.plain, 1, columns as usize, k as usize);
        let mut heads = vec![0.0; columns as usize];
        for (column, product) in (0..columns).zip(products) {
            let bias = if shape.bias { f64::from(bias[column as usize]) } else { 0.0 };
            let value = product * scales[row as usize] + bias;
            heads[rope_kv_write::turned_row(column, head_dim) as usize] = value as f32;
        }
        let mut heads = heads.chunks(head_dim as usize);
        let mut turned = || {
            let head = heads.next().unwrap_or_default();
            (rope_kv_write::cpu(head, row, &frequencies), head)
        };
        let ((q, _), (k, _), (_, v)) = (turned(), turned(), turned());
        let start = (row * head_dim) as usize;
        y.splice(start..start + q.len(), super::numbers(q));
        let k: Vec<f32> = k.iter().map(|&x| x as f32).collect();
        let (key, value) = cache.put((slot / block_size) as usize, (slot % block_size) as usize, &k, v);
        key.into_iter().for_each(|(at, word)| keys[at] = word.into());
        value.into_iter().for_each(|(at, word)| values[at] = word.into());
    }
    let params = Params {
        x_pitch: shape.x.activations.row_texels(k),
        y_pitch: head_dim,
        y_column: 0,
        num_groups: columns / GROUP_COLUMNS,
        z_pitch: 0,
        eps: EPS,
    };
    let shape = MatmulShape { store: Store::RopeKv(rope), ..shape };
    let (program, grid) = tile.program(shape, choice, rows, params.num_groups)?;
    let (data, scales) = weights.packed;
    let poison = |words: &[Word]| bytes_of(&vec![POISON; words.len()]);
    let mut contents = vec![bytes_of(&[params]), x_bytes, data, scales, bytes_of(&bias), poison(&y)];
    if shape.norm_width > 0 {
        contents.push(bytes_of(&squares));
    }
    let first = contents.len();
    contents.extend([bytes_of(&places), bytes_of(&angles), poison(&keys), poison(&values)]);
    Ok(Case { program, contents, grid, wanted: vec![(5, y), (first + 2, keys), (first + 3, values)] })
}

/// One tile of the matrix kernel, but for the store of [`placed`].
pub fn product(tile: MatmulTile, shape: MatmulShape, choice: KernelChoice) -> Result<Case, ComposeError> {
    let mut numbers = Numbers(u64::from(shape.units));
    let (_, tile_rows) = tile.rows();
    let (rows, k) = (tile_rows + 1, shape.units * UNIT);
    let all_rows = rows.next_multiple_of(tile_rows);
    let weights = Weights::new(shape.format, (COLUMNS, k), &mut numbers);
    let (x, x_bytes) = left_factor(shape, all_rows, &mut numbers);
    let bias = if shape.bias { numbers.floats(COLUMNS) } else { vec![0.0; 4] };
    let (squares_read, scales) = row_scales(shape, all_rows, &mut numbers);
    let gamma = numbers.floats(COLUMNS);
    // The twin is slow and the rows are alike: the tile's ends and the next tile's first one stand for all.
    let checked = [0, tile_rows - 1, tile_rows];
    let (mut y, mut squares, mut z) = (Vec::new(), Vec::new(), Vec::new());
    for row in 0..all_rows {
        let x = &x[(row * k) as usize..][..k as usize];
        let products = match checked.contains(&row) {
            true => matmul::cpu(x, &weights.plain, 1, COLUMNS as usize, k as usize),
            false => vec![0.0; COLUMNS as usize],
        };
        let at = |column: u32| {
            let bias = if shape.bias { f64::from(bias[column as usize]) } else { 0.0 };
            products[column as usize] * scales[row as usize] + bias
        };
        let values: Vec<f64> = match shape.store {
            Store::Set => (0..COLUMNS).map(at).collect(),
            Store::Add | Store::AddNorm => (0..COLUMNS).map(|column| 0.5 + at(column)).collect(),
            Store::Silu => {
                let pair = |i| cpu_silu(at(fused_column(i, false)), at(fused_column(i, true)));
                (0..COLUMNS / 2).map(pair).collect()
            }
            Store::RopeKv(_) => unreachable!("`placed` is for these"),
        };
        let keep = |words: Vec<Word>| match checked.contains(&row) {
            true => words,
            false => vec![Word::Any; words.len()],
        };
        let form = if shape.store == Store::Silu { shape.written.activations } else { Activations::F32 };
        y.extend(keep(rows_as(form, values.len() as u32, &values)));
        if shape.store == Store::AddNorm {
            let sum = |group: &[f64]| group.iter().map(|v| v * v).sum();
            let sums = super::numbers(values.chunks(GROUP_COLUMNS as usize).map(sum).collect());
            squares.extend(keep(padded(sums, squares_pitch(shape.norm_width), Word::Kept)));
            let scaled: Vec<f64> = values.iter().zip(&gamma).map(|(v, &g)| v * f64::from(g)).collect();
            z.extend(keep(rows_as(shape.written.activations, COLUMNS, &scaled)));
        }
    }
    let adds = matches!(shape.store, Store::Add | Store::AddNorm);
    let before = if adds { 0.5 } else { POISON };
    let params = Params {
        x_pitch: shape.x.activations.row_texels(k),
        y_pitch: y.len() as u32 / all_rows,
        y_column: 0,
        num_groups: COLUMNS / GROUP_COLUMNS,
        z_pitch: z.len() as u32 / all_rows / 4,
        eps: EPS,
    };
    let (program, grid) = tile.program(shape, choice, rows, params.num_groups)?;
    let (data, scales) = weights.packed;
    let mut contents =
        vec![bytes_of(&[params]), x_bytes, data, scales, bytes_of(&bias), bytes_of(&vec![before; y.len()])];
    let mut wanted = vec![(5, y)];
    if shape.store == Store::AddNorm {
        let poison = |words: &[Word]| bytes_of(&vec![POISON; words.len()]);
        contents.extend([bytes_of(&gamma), poison(&squares), poison(&z)]);
        wanted.extend([(7, squares), (8, z)]);
    } else if shape.norm_width > 0 {
        contents.push(bytes_of(&squares_read));
    }
    Ok(Case { program, contents, grid, wanted })
}

/// Rows of an embedding: at the edges of a group, one that is another piece's, one twice.
pub fn embedding(format: WeightFormat, choice: KernelChoice) -> Result<Case, ComposeError> {
    let mut numbers = Numbers(7);
    let width = 2 * UNIT;
    let weights = Weights::new(format, (COLUMNS, width), &mut numbers);
    let first_token = 100;
    let tokens = [100, 131, 132, 163, 99, 117, 164, 117u32];
    let mut words = Vec::new();
    for token in tokens {
        let column = token.wrapping_sub(first_token);
        let row = (0..width).map(|i| match column < COLUMNS {
            true => Word::Number(f64::from(weights.plain[(column * width + i) as usize])),
            false => Word::Kept,
        });
        words.extend(row);
    }
    let params = embed::Params {
        y_pitch: width / 4,
        width_vec4s: width / 4,
        num_units: width / UNIT,
        first_token,
        num_tokens: COLUMNS,
    };
    // Every other token goes by its name.
    let named = |(idx, token): (usize, &u32)| if idx % 2 == 0 { *token } else { embed::SAMPLED + idx as u32 };
    let rows: Vec<[u32; 4]> = tokens.iter().enumerate().map(|one| [named(one), 0, 0, 0]).collect();
    let (data, scales) = weights.packed;
    let y = vec![POISON; words.len()];
    let contents = vec![bytes_of(&[params]), bytes_of(&rows), data, scales, bytes_of(&tokens), bytes_of(&y)];
    let grid = embed::workgroups(&params, tokens.len() as u32);
    Ok(Case { program: embed::program(format, choice.home)?, contents, grid, wanted: vec![(5, words)] })
}

//! Made-up weights for the kernels that read packed ones: every tile of a product, and the embedding.
//!
//! Invariant: a product has one row more than its tile, so that a full tile and one that is nearly empty are both run.

use firstlight_shaders::matmul::{self, Params, Store, cpu_silu, fused_column};
use firstlight_shaders::weights::{BLOCK, GROUP_COLUMNS, PackedShape, UNIT, pack};
use firstlight_shaders::{Activations, ComposeError, WeightFormat, embed, quantise};
use half::{bf16, f16};

use super::{Case, Numbers, POISON, Word, bytes_of};
use crate::gpu::{KernelChoice, MatmulShape, MatmulTile};

/// Columns of the made-up matrices: two groups.
const COLUMNS: u32 = 2 * GROUP_COLUMNS;

/// Columns of stored weights.
struct Weights {
    packed: (Vec<u8>, Vec<u8>),
    /// `[COLUMNS][k]`.
    plain: Vec<f32>,
}

impl Weights {
    fn new(format: WeightFormat, k: u32, numbers: &mut Numbers) -> Self {
        let columns: Vec<Vec<u8>> = (0..COLUMNS).map(|_| stored_row(format, k, numbers)).collect();
        let shape = PackedShape::new(format, COLUMNS, k);
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

/// One tile of the matrix kernel.
pub fn product(tile: MatmulTile, shape: MatmulShape, choice: KernelChoice) -> Result<Case, ComposeError> {
    let mut numbers = Numbers(u64::from(shape.units));
    let (_, tile_rows) = tile.rows();
    let (rows, k) = (tile_rows + 1, shape.units * UNIT);
    let all_rows = rows.next_multiple_of(tile_rows);
    let weights = Weights::new(shape.format, k, &mut numbers);
    let mut x = numbers.floats(all_rows * k);
    let mut x_bytes = bytes_of(&x);
    if shape.activations == Activations::I8 {
        let rows: Vec<_> = x.chunks(k as usize).map(quantise::cpu).collect();
        x_bytes = rows.iter().flat_map(|(words, _)| bytes_of(words)).collect();
        x = rows.into_iter().flat_map(|(_, numbers)| numbers).collect();
    }
    let bias = if shape.bias { numbers.floats(COLUMNS) } else { vec![0.0; 4] };
    let width = if shape.store == Store::Silu { COLUMNS / 2 } else { COLUMNS };
    let mut words = vec![Word::Any; (all_rows * width) as usize];
    // The twin is slow and the rows are alike: the tile's ends and the next tile's first one stand for all.
    for row in [0, tile_rows - 1, tile_rows] {
        let x = &x[(row * k) as usize..][..k as usize];
        let y = matmul::cpu(x, &weights.plain, 1, COLUMNS as usize, k as usize);
        let at = |column: u32| {
            y[column as usize] + if shape.bias { f64::from(bias[column as usize]) } else { 0.0 }
        };
        for column in 0..width {
            let wanted = match shape.store {
                Store::Set => at(column),
                Store::Add => 0.5 + at(column),
                Store::Silu => cpu_silu(at(fused_column(column, false)), at(fused_column(column, true))),
            };
            words[(row * width + column) as usize] = Word::Number(wanted);
        }
    }
    let before = if shape.store == Store::Add { 0.5 } else { POISON };
    let params = Params {
        x_pitch: shape.activations.row_texels(k),
        y_pitch: width,
        y_column: 0,
        num_groups: COLUMNS / GROUP_COLUMNS,
    };
    let (program, grid) = tile.program(shape, choice, rows, params.num_groups)?;
    let (data, scales) = weights.packed;
    let contents = vec![
        bytes_of(&[params]),
        x_bytes,
        data,
        scales,
        bytes_of(&bias),
        bytes_of(&vec![before; words.len()]),
    ];
    Ok(Case { program, contents, grid, wanted: vec![(5, words)] })
}

/// Rows of an embedding: at the edges of a group, one that is another piece's, one twice.
pub fn embedding(format: WeightFormat, choice: KernelChoice) -> Result<Case, ComposeError> {
    let mut numbers = Numbers(7);
    let width = 2 * UNIT;
    let weights = Weights::new(format, width, &mut numbers);
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
    let rows: Vec<[u32; 4]> = tokens.iter().map(|&token| [token, 0, 0, 0]).collect();
    let (data, scales) = weights.packed;
    let contents =
        vec![bytes_of(&[params]), bytes_of(&rows), data, scales, bytes_of(&vec![POISON; words.len()])];
    let grid = embed::workgroups(&params, tokens.len() as u32);
    Ok(Case { program: embed::program(format, choice.home)?, contents, grid, wanted: vec![(4, words)] })
}

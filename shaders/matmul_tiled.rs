//! `matmul_tiled.wgsl` and `matmul_tiled_f16.wgsl`: many rows on a GPU, tiles of x and W in workgroup memory.
//!
//! Weights live in buffers, no subgroups are needed, 16 KiB of workgroup memory suffice. Invariant: with f32 arithmetic the
//! order of summation is `matvec_split`'s and `matvec_quads`': a row has the same bits from each of them. With f16 it has not.

use crate::matmul::{Draft, SEGMENTS, TILE_COLUMNS};
pub use crate::matmul::{PARAMS, Params, Store};
use crate::quantise::Form;
use crate::weights::{Home, WeightFormat};
use crate::{ComposeError, ENABLE_F16, Program};

/// Groups of 32 columns of a workgroup's tile.
const TILE_GROUPS: u32 = 2;
/// Threads across a tile: 8 lanes for each group of columns.
const THREAD_COLUMNS: u32 = TILE_GROUPS * 8;
/// vec4s of a tile's column: a block of 32 along K.
const BLOCK_STEPS: u32 = 8;

/// How a tile is multiplied.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Arithmetic {
    /// In single precision: the bits of the kernels for few rows.
    F32,
    /// Weights, x, and the sums over 32 of K in half precision, the sums over all of K in single. Needs 16-bit floats in
    /// shaders. x is held within what a half can be; where 32 products add up to more than that, the sum is not finite.
    F16,
}

/// The choices of one pipeline.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Variant {
    /// How the weights are stored.
    pub format: WeightFormat,
    /// What becomes of the product.
    pub store: Store,
    /// Whether there is a bias.
    pub bias: bool,
    /// Units of 64 along K.
    pub units: u32,
    /// Rows of a tile: 32 or 64. The grid covers a multiple of it.
    pub tile_rows: u32,
    /// Rows a thread, each of four columns: `tile_rows` / 8 or / 16. With f16 it is `tile_rows` / 8.
    pub thread_rows: u32,
    /// How the tile is multiplied.
    pub arithmetic: Arithmetic,
}

impl Variant {
    /// The kernel's text and bindings.
    pub fn program(self) -> Result<Program, ComposeError> {
        let half = self.arithmetic == Arithmetic::F16;
        let (suffix, text) = match half {
            false => ("", wgsl!("matmul_tiled.wgsl")),
            true => ("_f16", wgsl!("matmul_tiled_f16.wgsl")),
        };
        let thread_lines = self.tile_rows / self.thread_rows;
        let workgroup = thread_lines * THREAD_COLUMNS;
        let mut program = Draft {
            kernel: &format!("matmul_tiled{suffix}_{}x{TILE_COLUMNS}", self.thread_rows),
            text,
            header: &[
                ("TM", self.thread_rows),
                ("TN", TILE_COLUMNS),
                ("SEGMENTS", SEGMENTS),
                ("THREAD_ROWS", thread_lines),
                ("TILE_ROWS", self.tile_rows),
                ("WORKGROUP", workgroup),
                ("W_STEPS", TILE_GROUPS * 32 * BLOCK_STEPS / workgroup),
            ],
            snippets: &[wgsl!("common/dequantise.wgsl")],
            format: self.format,
            home: Home::Buffer,
            x: Form::PLAIN,
            written: None,
            norm_width: 0,
            store: self.store,
            bias: self.bias,
            units: self.units,
            tile_rows: self.tile_rows,
            subgroups: false,
        }
        .program()?;
        if half {
            program.wgsl.insert_str(0, ENABLE_F16);
        }
        Ok(program)
    }

    /// The grid for `rows` rows and `groups` groups of 32 columns. Rows of y up to the next multiple of `tile_rows` are
    /// computed too, from whatever x holds there: the buffers have room for them.
    pub fn workgroups(self, rows: u32, groups: u32) -> [u32; 3] {
        [groups.div_ceil(TILE_GROUPS), rows.div_ceil(self.tile_rows), 1]
    }

    /// Loop iterations of one invocation over `units` units of 64: Mesa 22.3.6 ends all loops after 65,535.
    pub fn iterations(self) -> u32 {
        SEGMENTS + self.units * 2
    }
}

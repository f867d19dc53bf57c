//! `matmul_tiled.wgsl`: many rows on a GPU, tiles of x and W in workgroup memory.
//!
//! Weights live in buffers, no subgroups are needed, 16 KiB of workgroup memory suffice. Invariant: the order of summation
//! is `matvec_split`'s: a row has the same bits from either kernel.

use crate::matmul::{Draft, SEGMENTS, TILE_COLUMNS};
pub use crate::matmul::{PARAMS, Params, Store};
use crate::quantise::Form;
use crate::weights::{Home, WeightFormat};
use crate::{ComposeError, Program};

/// Groups of 32 columns of a workgroup's tile.
const TILE_GROUPS: u32 = 2;
/// Threads across the rows of a tile; 8 lanes for each group of columns.
const THREAD_ROWS: u32 = 16;

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
}

impl Variant {
    /// The kernel's text and bindings.
    pub fn program(self) -> Result<Program, ComposeError> {
        Draft {
            kernel: "matmul_tiled",
            text: wgsl!("matmul_tiled.wgsl"),
            header: &[
                ("TM", self.tile_rows / THREAD_ROWS),
                ("TN", TILE_COLUMNS),
                ("SEGMENTS", SEGMENTS),
                ("THREAD_ROWS", THREAD_ROWS),
                ("TILE_ROWS", self.tile_rows),
                ("WORKGROUP", THREAD_ROWS * TILE_GROUPS * 8),
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
        .program()
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

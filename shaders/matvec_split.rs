//! `matvec_split.wgsl`: few rows on a GPU, the length of K split over the threads of a workgroup.
//!
//! Weights live in buffers, no subgroups are needed. Invariant: the order of summation is `matmul_tiled`'s, for every
//! `tile_rows`: a row has the same bits from either kernel.

use crate::matmul::{Draft, SEGMENTS, TILE_COLUMNS};
pub use crate::matmul::{PARAMS, Params, Store};
use crate::quantise::Form;
use crate::weights::{GROUP_COLUMNS, Home, WeightFormat};
use crate::{ComposeError, Program};

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
    /// Rows a thread: 1, 2, 4 or 8. The grid covers a multiple of it.
    pub tile_rows: u32,
}

impl Variant {
    /// The kernel's text and bindings.
    pub fn program(self) -> Result<Program, ComposeError> {
        Draft {
            kernel: "matvec_split",
            text: wgsl!("matvec_split.wgsl"),
            header: &[
                ("TM", self.tile_rows),
                ("TN", TILE_COLUMNS),
                ("SEGMENTS", SEGMENTS),
                ("WORKGROUP", SEGMENTS * GROUP_COLUMNS),
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
        [groups, rows.div_ceil(self.tile_rows), 1]
    }

    /// Loop iterations of one invocation over `units` units of 64: Mesa 22.3.6 ends all loops after 65,535.
    pub fn iterations(self) -> u32 {
        self.units.div_ceil(SEGMENTS)
    }
}

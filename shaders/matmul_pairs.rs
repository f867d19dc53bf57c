//! `matmul_pairs.wgsl`, and `matmul_pairs_wide.wgsl` where there are no subgroups of 8: the matrix kernel for CPU drivers whose left factor comes in 8 bits, for 4-bit weights.
//!
//! Never uses a barrier or workgroup memory. Invariant: a row's bits do not depend on `tile_rows` or on the other rows.

use crate::matmul::Draft;
pub use crate::matmul::{PARAMS, Params, Store};
use crate::matmul_lanes::Slice;
use crate::quantise::Activations;
use crate::weights::{Home, WeightFormat};
use crate::{ComposeError, Program};

/// The choices of one pipeline.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Variant {
    /// How the weights are stored: in 4 bits.
    pub format: WeightFormat,
    /// Where they live.
    pub home: Home,
    /// Where x lives.
    pub x_home: Home,
    /// What becomes of the product.
    pub store: Store,
    /// Whether there is a bias.
    pub bias: bool,
    /// Units of 64 along K.
    pub units: u32,
    /// Rows a thread: the grid covers a multiple of it.
    pub tile_rows: u32,
    /// Whether x is handed round by subgroup operations: only where subgroups have 8 lanes or more.
    pub subgroups: bool,
}

impl Variant {
    /// The kernel's text and bindings.
    pub fn program(self) -> Result<Program, ComposeError> {
        let (text, snippet) = if self.subgroups {
            (include_str!("matmul_pairs.wgsl"), include_str!("common/spread_words_subgroup.wgsl"))
        } else {
            (include_str!("matmul_pairs_wide.wgsl"), self.format.masked_snippet())
        };
        Draft {
            kernel: "matmul_pairs",
            text,
            header: &Slice::of(self.subgroups, self.tile_rows).header(self.tile_rows),
            snippets: &[snippet],
            format: self.format,
            home: self.home,
            x_home: self.x_home,
            activations: Activations::I8,
            store: self.store,
            bias: self.bias,
            units: self.units,
            tile_rows: self.tile_rows,
            subgroups: self.subgroups,
        }
        .program()
    }

    /// The grid, as [`crate::matmul_lanes::Variant::workgroups`].
    pub fn workgroups(self, rows: u32, groups: u32) -> [u32; 3] {
        Slice::of(self.subgroups, self.tile_rows).workgroups(self.tile_rows, rows, groups)
    }

    /// Loop iterations of one invocation over `units` units of 64: Mesa 22.3.6 ends all loops after 65,535.
    pub fn iterations(self) -> u32 {
        self.units
    }
}

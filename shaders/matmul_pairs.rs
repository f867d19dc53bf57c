//! `matmul_pairs.wgsl`: the matrix kernel for CPU drivers whose left factor comes in 8 bits, for 4-bit weights.
//!
//! Never uses a barrier or workgroup memory. Invariant: a row's bits do not depend on `tile_rows` or on the other rows.

use crate::matmul::{Draft, TILE_COLUMNS};
pub use crate::matmul::{PARAMS, Params, Store};
use crate::matmul_lanes::{WORKGROUP, scale_iterations, scale_snippets, workgroups, written};
use crate::quantise::{Activations, Form};
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
    /// Where the store's rows for another product live, and how: [`Store::Silu`] with subgroups, and [`Store::AddNorm`].
    pub written: Form,
    /// The width of the norm of which the product has a half: of y with [`Store::AddNorm`], else of x; 0 without one. Only with
    /// subgroups.
    pub norm_width: u32,
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
        let spread = if self.subgroups {
            include_str!("common/spread_words_subgroup.wgsl")
        } else {
            include_str!("common/spread_words_plain.wgsl")
        };
        let mut snippets = scale_snippets(self.store, self.norm_width);
        snippets.push(spread);
        Draft {
            kernel: "matmul_pairs",
            text: include_str!("matmul_pairs.wgsl"),
            header: &[("TM", self.tile_rows), ("TN", TILE_COLUMNS), ("WORKGROUP", WORKGROUP)],
            snippets: &snippets,
            format: self.format,
            home: self.home,
            x: Form { home: self.x_home, activations: Activations::I8 },
            written: written(self.store, self.written, self.subgroups),
            norm_width: self.norm_width,
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
        workgroups(self.tile_rows, rows, groups)
    }

    /// Loop iterations of one invocation over `units` units of 64: Mesa 22.3.6 ends all loops after 65,535.
    pub fn iterations(self) -> u32 {
        self.units + scale_iterations(self.store, self.norm_width)
    }
}

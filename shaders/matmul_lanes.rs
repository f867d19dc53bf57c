//! `matmul_lanes.wgsl`, and `matmul_lanes_wide.wgsl` where there are no subgroups of 8: the matrix kernel for CPU drivers, for any number of rows.
//!
//! Never uses a barrier or workgroup memory. Invariant: a row's bits do not depend on `tile_rows` or on the other rows.

use crate::matmul::{Draft, TILE_COLUMNS};
pub use crate::matmul::{PARAMS, Params, Store, cpu, cpu_silu, fused_column};
use crate::quantise::Activations;
use crate::weights::{Home, WeightFormat};
use crate::{ComposeError, Const, Program};

/// The choices of one pipeline.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Variant {
    /// How the weights are stored.
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

/// Threads of a workgroup with subgroups: 2 slices of 8 lanes.
const WORKGROUP: u32 = 16;

/// How the lane kernels cut a group of 32 columns.
#[derive(Clone, Copy)]
pub(crate) struct Slice {
    /// Threads of a workgroup.
    workgroup: u32,
    /// Threads that share a group.
    lanes: u32,
}

impl Slice {
    pub(crate) fn of(subgroups: bool, tile_rows: u32) -> Self {
        match (subgroups, tile_rows) {
            (true, _) => Self { workgroup: WORKGROUP, lanes: 8 },
            // Wider ones read x less often, and make more code of it: SwiftShader compiles slowly.
            (false, 1) => Self { workgroup: 4, lanes: 4 },
            (false, _) => Self { workgroup: 8, lanes: 8 },
        }
    }

    /// The constants of a kernel's text.
    pub(crate) fn header(self, tile_rows: u32) -> [Const; 5] {
        [
            ("TM", tile_rows),
            ("TN", TILE_COLUMNS),
            ("WORKGROUP", self.workgroup),
            ("LANES", self.lanes),
            ("WIDE", 8 / self.lanes),
        ]
    }

    /// The grid.
    pub(crate) fn workgroups(self, tile_rows: u32, rows: u32, groups: u32) -> [u32; 3] {
        [groups.div_ceil(self.workgroup / self.lanes), rows.div_ceil(tile_rows), 1]
    }
}

impl Variant {
    /// The kernel's text and bindings.
    pub fn program(self) -> Result<Program, ComposeError> {
        let (text, snippets): (_, &[&str]) = if self.subgroups {
            let snippets = &[include_str!("common/spread_subgroup.wgsl"), include_str!("common/lanes.wgsl")];
            (include_str!("matmul_lanes.wgsl"), snippets)
        } else {
            (include_str!("matmul_lanes_wide.wgsl"), &[self.format.masked_snippet()])
        };
        Draft {
            kernel: "matmul_lanes",
            text,
            header: &Slice::of(self.subgroups, self.tile_rows).header(self.tile_rows),
            snippets,
            format: self.format,
            home: self.home,
            x_home: self.x_home,
            activations: Activations::F32,
            store: self.store,
            bias: self.bias,
            units: self.units,
            tile_rows: self.tile_rows,
            subgroups: self.subgroups,
        }
        .program()
    }

    /// The grid for `rows` rows and `groups` groups of 32 columns. Rows of y up to the next multiple of `tile_rows` are
    /// computed too, from whatever x holds there: the buffers have room for them.
    pub fn workgroups(self, rows: u32, groups: u32) -> [u32; 3] {
        Slice::of(self.subgroups, self.tile_rows).workgroups(self.tile_rows, rows, groups)
    }

    /// Loop iterations of one invocation over `units` units of 64: Mesa 22.3.6 ends all loops after 65,535.
    pub fn iterations(self) -> u32 {
        self.units
    }
}

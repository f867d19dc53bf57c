//! `matmul_lanes.wgsl` and `matmul_pairs.wgsl`: the matrix kernels for CPU drivers, for any number of rows; the second takes x
//! in 8 bits and weights in 4. Without subgroups of 8 `matmul_lanes_wide.wgsl` and `matmul_pairs_wide.wgsl` take their place.
//!
//! Never uses a barrier or workgroup memory. Invariant: a row's bits do not depend on `tile_rows` or on the other rows.

use crate::matmul::{Draft, TILE_COLUMNS, squares_pitch};
pub use crate::matmul::{PARAMS, Params, Store, cpu, cpu_silu, fused_column};
use crate::quantise::{Activations, Form};
use crate::weights::{Home, WeightFormat};
use crate::{ComposeError, Program};

/// The choices of one pipeline.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Variant {
    /// How the weights are stored.
    pub format: WeightFormat,
    /// Where they live.
    pub home: Home,
    /// Where x lives, and how: in 8 bits with 4-bit weights only.
    pub x: Form,
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
    /// Without subgroups of 8, whether threads in fours hand x round: only where subgroups have 4 lanes or more.
    pub quads: bool,
}

/// How the kernels cut a group of 32 columns.
#[derive(Clone, Copy)]
struct Slice {
    /// Threads of a workgroup.
    workgroup: u32,
    /// Threads that share a group.
    lanes: u32,
}

impl Slice {
    fn of(subgroups: bool, tile_rows: u32) -> Self {
        match (subgroups, tile_rows) {
            (true, _) => Self { workgroup: 16, lanes: 8 },
            // Wider ones read x less often, and make more code of it: SwiftShader compiles slowly.
            (false, 1) => Self { workgroup: 4, lanes: 4 },
            (false, _) => Self { workgroup: 8, lanes: 8 },
        }
    }
}

impl Variant {
    /// The kernel's text and bindings.
    pub fn program(self) -> Result<Program, ComposeError> {
        let writes_rows = self.store == Store::AddNorm || (self.subgroups && self.store == Store::Silu);
        let mut snippets = self.norm_snippets();
        snippets.extend(self.spread_snippets());
        let (kernel, text) = match (self.x.activations, self.subgroups) {
            (Activations::F32, true) => ("matmul_lanes", wgsl!("matmul_lanes.wgsl")),
            (Activations::F32, false) if self.quads => ("matmul_quads", wgsl!("matmul_lanes_wide.wgsl")),
            (Activations::F32, false) => ("matmul_lanes", wgsl!("matmul_lanes_wide.wgsl")),
            (Activations::I8, true) => ("matmul_pairs", wgsl!("matmul_pairs.wgsl")),
            (Activations::I8, false) => ("matmul_pairs", wgsl!("matmul_pairs_wide.wgsl")),
        };
        let slice = self.slice();
        Draft {
            kernel,
            text,
            header: &[
                ("TM", self.tile_rows),
                ("TN", TILE_COLUMNS),
                ("WORKGROUP", slice.workgroup),
                ("LANES", slice.lanes),
                ("WIDE", 8 / slice.lanes),
            ],
            snippets: &snippets,
            format: self.format,
            home: self.home,
            x: self.x,
            written: writes_rows.then_some(self.written),
            norm_width: self.norm_width,
            store: self.store,
            bias: self.bias,
            units: self.units,
            tile_rows: self.tile_rows,
            subgroups: self.subgroups || self.hands_round_in_fours(),
        }
        .program()
    }

    fn slice(self) -> Slice {
        Slice::of(self.subgroups, self.tile_rows)
    }

    /// How a thread gets at x; without subgroups it reads x itself, and gets at weights without shifts.
    fn spread_snippets(self) -> Vec<&'static str> {
        let broadcast = wgsl!("common/broadcast.wgsl");
        match (self.x.activations, self.subgroups) {
            (Activations::F32, true) => {
                vec![broadcast, wgsl!("common/lanes.wgsl"), wgsl!("common/spread_subgroup.wgsl")]
            }
            (Activations::I8, true) => vec![broadcast],
            (Activations::F32, false) => {
                let part =
                    if self.quads { wgsl!("common/part_quad.wgsl") } else { wgsl!("common/part_none.wgsl") };
                let mut snippets = self.format.masked_snippets();
                snippets.push(part);
                snippets
            }
            (Activations::I8, false) => self.format.masked_snippets(),
        }
    }

    fn hands_round_in_fours(self) -> bool {
        self.quads && !self.subgroups && self.x.activations == Activations::F32
    }

    /// How a thread takes a norm's half, of x or of y.
    fn norm_snippets(self) -> Vec<&'static str> {
        let none = wgsl!("common/row_scale_none.wgsl");
        match (self.norm_width, self.store) {
            (0, _) => vec![none],
            (_, Store::AddNorm) => vec![none, wgsl!("common/slice.wgsl")],
            _ => vec![wgsl!("common/row_scale_norm.wgsl"), wgsl!("common/slice.wgsl")],
        }
    }

    /// The grid for `rows` rows and `groups` groups of 32 columns. Rows of y up to the next multiple of `tile_rows` are
    /// computed too, from whatever x holds there: the buffers have room for them.
    pub fn workgroups(self, rows: u32, groups: u32) -> [u32; 3] {
        let slice = self.slice();
        [groups.div_ceil(slice.workgroup / slice.lanes), rows.div_ceil(self.tile_rows), 1]
    }

    /// Loop iterations of one invocation over `units` units of 64: Mesa 22.3.6 ends all loops after 65,535.
    pub fn iterations(self) -> u32 {
        self.units + squares_pitch(self.norm_width).div_ceil(32)
    }
}

//! `matmul_lanes.wgsl`: the matrix kernel for CPU drivers, for any number of rows.
//!
//! Never uses a barrier or workgroup memory. Invariant: a row's bits do not depend on `tile_rows` or on the other rows.

use crate::matmul::{Draft, TILE_COLUMNS, squares_pitch};
pub use crate::matmul::{PARAMS, Params, Store, cpu, cpu_silu, fused_column};
use crate::quantise::Form;
use crate::weights::{Home, WeightFormat};
use crate::{ComposeError, Program};

/// The choices of one pipeline.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Variant {
    /// How the weights are stored.
    pub format: WeightFormat,
    /// Where they live.
    pub home: Home,
    /// Where x lives, and how.
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
}

/// Threads of a workgroup: 2 slices of 8 lanes.
pub(crate) const WORKGROUP: u32 = 16;

/// What a store writes for another product.
pub(crate) fn written(store: Store, form: Form, subgroups: bool) -> Option<Form> {
    (subgroups && matches!(store, Store::Silu | Store::AddNorm)).then_some(form)
}

/// The snippets by which the lane kernels take a norm's half, of x or of y.
pub(crate) fn scale_snippets(store: Store, norm_width: u32) -> Vec<&'static str> {
    match (store, norm_width) {
        (_, 0) => vec![include_str!("common/row_scale_none.wgsl")],
        (Store::AddNorm, _) => {
            vec![include_str!("common/row_scale_none.wgsl"), include_str!("common/slice.wgsl")]
        }
        _ => vec![include_str!("common/row_scale_norm.wgsl"), include_str!("common/slice.wgsl")],
    }
}

/// Loop iterations of a norm's half.
pub(crate) fn scale_iterations(store: Store, norm_width: u32) -> u32 {
    if store == Store::AddNorm { 0 } else { squares_pitch(norm_width).div_ceil(32) }
}

/// The grid of the lane kernels.
pub(crate) fn workgroups(tile_rows: u32, rows: u32, groups: u32) -> [u32; 3] {
    [groups.div_ceil(WORKGROUP / 8), rows.div_ceil(tile_rows), 1]
}

impl Variant {
    /// The kernel's text and bindings.
    pub fn program(self) -> Result<Program, ComposeError> {
        let mut snippets = scale_snippets(self.store, self.norm_width);
        if self.subgroups {
            snippets.extend([include_str!("common/spread_subgroup.wgsl"), include_str!("common/lanes.wgsl")]);
        } else {
            snippets.push(include_str!("common/spread_plain.wgsl"));
        }
        Draft {
            kernel: "matmul_lanes",
            text: include_str!("matmul_lanes.wgsl"),
            header: &[("TM", self.tile_rows), ("TN", TILE_COLUMNS), ("WORKGROUP", WORKGROUP)],
            snippets: &snippets,
            format: self.format,
            home: self.home,
            x: self.x,
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

    /// The grid for `rows` rows and `groups` groups of 32 columns. Rows of y up to the next multiple of `tile_rows` are
    /// computed too, from whatever x holds there: the buffers have room for them.
    pub fn workgroups(self, rows: u32, groups: u32) -> [u32; 3] {
        workgroups(self.tile_rows, rows, groups)
    }

    /// Loop iterations of one invocation over `units` units of 64: Mesa 22.3.6 ends all loops after 65,535.
    pub fn iterations(self) -> u32 {
        self.units + scale_iterations(self.store, self.norm_width)
    }
}

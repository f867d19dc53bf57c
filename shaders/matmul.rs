//! What the matrix kernels share: the uniform, the bindings, what becomes of a product, and the CPU twin.
//!
//! Never a kernel itself: `matmul_lanes` serves CPU drivers, `matvec_split` and `matmul_tiled` serve GPUs. Invariant: the
//! three take the same bindings, so that one bind group serves whichever is chosen. `matvec_split` and `matmul_tiled` add
//! along K in one order (`SEGMENTS` segments) and give the same bits for a row, whatever its batch.

use core::mem::offset_of;

use bytemuck::{Pod, Zeroable};

use crate::quantise::Activations;
use crate::weights::{GROUP_COLUMNS, Home, UNIT, WeightFormat};
use crate::{BindingKind, ComposeError, Const, Program, TexelFormat, compose};

/// The uniform. A row of x is read up to 64 * units floats: past K they meet zero weights and must be finite.
#[repr(C)]
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
pub struct Params {
    /// vec4s a row of x.
    pub x_pitch: u32,
    /// Floats a row of y.
    pub y_pitch: u32,
    /// First column of y to write.
    pub y_column: u32,
    /// Groups of 32 columns.
    pub num_groups: u32,
}

/// The uniform's members and where they lie.
pub const PARAMS: &[(&str, u32)] = &[
    ("x_pitch", offset_of!(Params, x_pitch) as u32),
    ("y_pitch", offset_of!(Params, y_pitch) as u32),
    ("y_column", offset_of!(Params, y_column) as u32),
    ("num_groups", offset_of!(Params, num_groups) as u32),
];

/// What becomes of the product.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Store {
    /// y = product.
    Set,
    /// y += product.
    Add,
    /// y = silu(gate) * up, gate and up alternating every 8 columns of W.
    Silu,
}

impl Store {
    /// Every store.
    pub const ALL: [Store; 3] = [Self::Set, Self::Add, Self::Silu];

    fn name(self) -> &'static str {
        match self {
            Self::Set => "set",
            Self::Add => "add",
            Self::Silu => "silu",
        }
    }

    fn snippet(self) -> &'static str {
        match self {
            Self::Set => include_str!("common/store_set.wgsl"),
            Self::Add => include_str!("common/store_add.wgsl"),
            Self::Silu => include_str!("common/store_silu.wgsl"),
        }
    }
}

/// Columns a thread stores: with 8 lanes they make a group of 32. The store snippets are written for it.
pub(crate) const TILE_COLUMNS: u32 = 4;
/// Segments of K of the GPU kernels: `ceil(units / SEGMENTS)` units each, the last ones shorter or empty. Sums run
/// along a segment, then over the segments in order.
pub const SEGMENTS: u32 = 8;

/// The bindings of a weight matrix: texels, then scales.
pub(crate) fn weight_bindings(format: WeightFormat, home: Home) -> [BindingKind; 2] {
    match home {
        Home::Buffer => [BindingKind::Read, BindingKind::Read],
        Home::Texture => [
            BindingKind::ReadTexture(TexelFormat::Rgba32),
            BindingKind::ReadTexture(if format.scale_words() == 2 {
                TexelFormat::Rg32
            } else {
                TexelFormat::R32
            }),
        ],
    }
}

/// The snippets that read weights at home.
pub(crate) fn weight_snippets(format: WeightFormat, home: Home) -> [&'static str; 3] {
    let (data, scales) = match (home, format.scale_words()) {
        (Home::Buffer, 2) => {
            (include_str!("common/data_buffer.wgsl"), include_str!("common/scales_buffer_2.wgsl"))
        }
        (Home::Buffer, _) => {
            (include_str!("common/data_buffer.wgsl"), include_str!("common/scales_buffer_1.wgsl"))
        }
        (Home::Texture, 2) => {
            (include_str!("common/data_texture.wgsl"), include_str!("common/scales_texture_2.wgsl"))
        }
        (Home::Texture, _) => {
            (include_str!("common/data_texture.wgsl"), include_str!("common/scales_texture_1.wgsl"))
        }
    };
    [format.snippet(), data, scales]
}

/// A matrix kernel about to be composed.
pub(crate) struct Draft<'a> {
    /// The kernel's name.
    pub(crate) kernel: &'a str,
    /// Its text.
    pub(crate) text: &'a str,
    /// Its constants; `TM` and `TN` among them.
    pub(crate) header: &'a [Const],
    /// Its own snippets.
    pub(crate) snippets: &'a [&'a str],
    /// How the weights are stored.
    pub(crate) format: WeightFormat,
    /// Where they live.
    pub(crate) home: Home,
    /// Where x lives.
    pub(crate) x_home: Home,
    /// And how its numbers are stored.
    pub(crate) activations: Activations,
    /// What becomes of the product.
    pub(crate) store: Store,
    /// Whether there is a bias.
    pub(crate) bias: bool,
    /// Rows that the grid covers a multiple of.
    pub(crate) tile_rows: u32,
    /// Units of 64 along K. A constant of the text: lavapipe compiles a kernel anew for every value of a uniform that bounds
    /// a loop, at every dispatch, and a model has two or three lengths of K.
    pub(crate) units: u32,
    /// The text calls subgroup operations.
    pub(crate) subgroups: bool,
}

impl Draft<'_> {
    /// Adds the shared snippets, the name and the bindings.
    pub(crate) fn program(&self) -> Result<Program, ComposeError> {
        let bias = if self.bias {
            include_str!("common/bias_some.wgsl")
        } else {
            include_str!("common/bias_none.wgsl")
        };
        let mut snippets = self.snippets.to_vec();
        snippets.extend([
            include_str!("common/matmul_bindings.wgsl"),
            self.activations.x_snippet(self.x_home),
            self.store.snippet(),
            bias,
        ]);
        snippets.extend(weight_snippets(self.format, self.home));
        let [data, scales] = weight_bindings(self.format, self.home);
        Ok(Program {
            name: format!(
                "{}/{}/{}/k{}/{}x{TILE_COLUMNS}/{}{}{}{}",
                self.kernel,
                self.format.name(),
                self.home.name(),
                self.units * UNIT,
                self.tile_rows,
                self.store.name(),
                if self.bias { "/bias" } else { "" },
                if self.x_home == Home::Texture { "/x_texture" } else { "" },
                if self.subgroups { "/subgroups" } else { "" },
            ),
            wgsl: compose(&[self.header, &[("UNITS", self.units)]].concat(), self.text, &snippets)?,
            bindings: vec![
                BindingKind::Uniform,
                self.x_home.x_binding(),
                data,
                scales,
                BindingKind::Read,
                BindingKind::ReadWrite,
            ],
            subgroups: self.subgroups,
        })
    }
}

/// `x[rows][k] * w[n][k]^T`, in f64.
pub fn cpu(x: &[f32], w: &[f32], rows: usize, n: usize, k: usize) -> Vec<f64> {
    let mut y = vec![0.0; rows * n];
    for r in 0..rows {
        for c in 0..n {
            y[r * n + c] = (0..k).map(|i| f64::from(x[r * k + i]) * f64::from(w[c * k + i])).sum();
        }
    }
    y
}

/// silu(gate) * up.
pub fn cpu_silu(gate: f64, up: f64) -> f64 {
    gate / (1.0 + (-gate).exp()) * up
}

/// Where column `i` of gate (`is_up` false) or up (true) stands in the fused matrix: they alternate every 8 columns.
pub fn fused_column(i: u32, is_up: bool) -> u32 {
    let (group, pair, lane) = (i / 16, i % 16 / 8, i % 8);
    group * GROUP_COLUMNS + pair * 16 + u32::from(is_up) * 8 + lane
}

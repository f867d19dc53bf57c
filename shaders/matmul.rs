//! What the matrix kernels share: the uniform, the bindings, what becomes of a product, and the CPU twin.
//!
//! Never a kernel itself: `matmul_lanes` serves CPU drivers, `matvec_split`, `matvec_quads` and `matmul_tiled` serve GPUs.
//! Invariant: they take the same bindings, so that one bind group serves whichever is chosen. Those of GPUs add along K in one
//! order (`SEGMENTS` segments) and give the same bits for a row, whatever its batch, unless a tile is multiplied in f16.

use core::mem::offset_of;

use bytemuck::{Pod, Zeroable};

use crate::quantise::Form;
use crate::weights::{GROUP_COLUMNS, Home, UNIT, WeightFormat};
use crate::{BindingKind, ComposeError, Const, Program, TexelFormat, compose, rope_kv_write};

/// The uniform. A row of x is read up to 64 * units floats: past K they meet zero weights and must be finite.
#[repr(C)]
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
pub struct Params {
    /// vec4s a row of x.
    pub x_pitch: u32,
    /// Floats a row of y.
    pub y_pitch: u32,
    /// First column of y to write. This and the pitch are multiples of 4.
    pub y_column: u32,
    /// Groups of 32 columns.
    pub num_groups: u32,
    /// Texels a row of what [`Store::AddNorm`] writes for the next product.
    pub z_pitch: u32,
    /// Added to the mean square of a norm.
    pub eps: f32,
}

/// The uniform's members and where they lie.
pub const PARAMS: &[(&str, u32)] = &[
    ("x_pitch", offset_of!(Params, x_pitch) as u32),
    ("y_pitch", offset_of!(Params, y_pitch) as u32),
    ("y_column", offset_of!(Params, y_column) as u32),
    ("num_groups", offset_of!(Params, num_groups) as u32),
    ("z_pitch", offset_of!(Params, z_pitch) as u32),
    ("eps", offset_of!(Params, eps) as u32),
];

/// What becomes of the product.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Store {
    /// y = product.
    Set,
    /// y += product.
    Add,
    /// y = silu(gate) * up, gate and up alternating.
    Silu,
    /// y += product, and what the next norm's product reads of y: the lane kernels with subgroups.
    AddNorm,
    /// y = q of q, k and v, turned; k, turned, and v go into the KV cache. Columns are those of [`rope_kv_write::turned_row`]. The
    /// lane kernels with subgroups, where [`rope_kv_write::Variant::fits_a_product`].
    RopeKv(rope_kv_write::Variant),
}

impl Store {
    /// Every store that all kernels have.
    pub const ALL: [Store; 3] = [Self::Set, Self::Add, Self::Silu];

    fn name(self) -> String {
        match self {
            Self::Set => "set".into(),
            Self::Add => "add".into(),
            Self::Silu => "silu".into(),
            Self::AddNorm => "add_norm".into(),
            Self::RopeKv(rope) => format!("rope_kv/{}", rope.choices()),
        }
    }

    /// Its snippets; with `written`, 8 lanes write rows for another product together.
    fn snippets(self, written: Option<Form>) -> Vec<&'static str> {
        match (self, written) {
            (Self::Set, _) => vec![wgsl!("common/store_set.wgsl")],
            (Self::Add, _) => vec![wgsl!("common/store_add.wgsl")],
            (Self::Silu, None) => {
                vec![wgsl!("common/store_silu.wgsl"), wgsl!("common/gated.wgsl")]
            }
            (Self::Silu, Some(Form { home, activations })) => {
                let mut snippets = activations.y_halves_snippets(home);
                snippets.push(wgsl!("common/store_silu_rows.wgsl"));
                snippets.push(wgsl!("common/gated.wgsl"));
                snippets
            }
            (Self::AddNorm, written) => {
                let y = written.map(|form| form.activations.y_snippets(form.home));
                let mut snippets = y.unwrap_or_default();
                snippets.push(wgsl!("common/store_add_norm.wgsl"));
                snippets
            }
            (Self::RopeKv(rope), _) => {
                let mut snippets = rope.snippets();
                snippets.push(wgsl!("common/store_rope_kv.wgsl"));
                snippets
            }
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
        (Home::Buffer, 2) => (wgsl!("common/data_buffer.wgsl"), wgsl!("common/scales_buffer_2.wgsl")),
        (Home::Buffer, _) => (wgsl!("common/data_buffer.wgsl"), wgsl!("common/scales_buffer_1.wgsl")),
        (Home::Texture, 2) => (wgsl!("common/data_texture.wgsl"), wgsl!("common/scales_texture_2.wgsl")),
        (Home::Texture, _) => (wgsl!("common/data_texture.wgsl"), wgsl!("common/scales_texture_1.wgsl")),
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
    /// Where x lives, and how.
    pub(crate) x: Form,
    /// What the store writes for another product, where it does.
    pub(crate) written: Option<Form>,
    /// The width of the norm of which the product has a half: of y with [`Store::AddNorm`], else of x; 0 without one.
    pub(crate) norm_width: u32,
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
        let bias = if self.bias { wgsl!("common/bias_some.wgsl") } else { wgsl!("common/bias_none.wgsl") };
        let mut snippets = self.snippets.to_vec();
        snippets.extend([
            wgsl!("common/matmul_bindings.wgsl"),
            self.x.activations.x_snippet(self.x.home),
            bias,
        ]);
        snippets.extend(self.store.snippets(self.written));
        snippets.extend(weight_snippets(self.format, self.home));
        Ok(Program {
            name: format!(
                "{}/{}/{}/k{}/{}x{TILE_COLUMNS}/{}{}{}{}{}{}",
                self.kernel,
                self.format.name(),
                self.home.name(),
                self.units * UNIT,
                self.tile_rows,
                self.store.name(),
                if self.bias { "/bias" } else { "" },
                if self.norm_width > 0 { format!("/norm{}", self.norm_width) } else { String::new() },
                self.x.suffix("x"),
                self.written.map_or(String::new(), |form| form.suffix("y")),
                if self.subgroups { "/subgroups" } else { "" },
            ),
            wgsl: compose(&[self.header, &self.sizes()].concat(), self.text, &snippets)?,
            bindings: self.bindings(),
            subgroups: self.subgroups,
        })
    }

    /// The constants that follow from sizes.
    fn sizes(&self) -> Vec<Const> {
        let mut sizes = vec![("UNITS", self.units)];
        if self.norm_width > 0 {
            sizes.extend([("NORM_WIDTH", self.norm_width), ("SQUARES", squares_pitch(self.norm_width))]);
        }
        if self.written.is_some() {
            // Of the activation it is the only thing that is written.
            sizes.push(("Y_BINDING", if self.store == Store::Silu { 5 } else { 8 }));
        }
        if let Store::RopeKv(rope) = self.store {
            // Behind y, and the squares of the norm before.
            sizes.extend(rope.constants(if self.norm_width > 0 { 7 } else { 6 }));
        }
        sizes
    }

    fn bindings(&self) -> Vec<BindingKind> {
        let [data, scales] = weight_bindings(self.format, self.home);
        let x = self.x.home.x_binding();
        let mut bindings = vec![BindingKind::Uniform, x, data, scales, BindingKind::Read];
        match (self.store, self.written) {
            (Store::Silu, Some(form)) => bindings.push(form.home.y_binding()),
            (Store::AddNorm, Some(form)) => bindings.extend([
                BindingKind::ReadWrite,
                BindingKind::Read,
                BindingKind::ReadWrite,
                form.home.y_binding(),
            ]),
            _ => bindings.push(BindingKind::ReadWrite),
        }
        if self.norm_width > 0 && self.store != Store::AddNorm {
            bindings.push(BindingKind::Read);
        }
        if let Store::RopeKv(rope) = self.store {
            let cache = rope.kv.write_binding(rope.work_home);
            bindings.extend([BindingKind::Read, BindingKind::Read, cache, cache]);
        }
        bindings
    }
}

/// Sums of squares a row of a norm of `width`: one for 32 numbers, in whole vec4s.
pub fn squares_pitch(width: u32) -> u32 {
    width.div_ceil(GROUP_COLUMNS).next_multiple_of(4)
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

/// Where column `i` of gate (`is_up` false) or up (true) stands in the fused matrix: they alternate.
pub fn fused_column(i: u32, is_up: bool) -> u32 {
    2 * i + u32::from(is_up)
}

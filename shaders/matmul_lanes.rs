//! `matmul_lanes.wgsl`: the matrix kernel for CPU drivers, for any number of rows.

use bytemuck::{Pod, Zeroable};

use crate::weights::{GROUP_COLUMNS, Home, WeightFormat};
use crate::{BindingKind, ComposeError, Program, TexelFormat, compose};

/// The uniform.
#[repr(C)]
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
pub struct Params {
    /// vec4s a row of x.
    pub x_pitch: u32,
    /// Floats a row of y.
    pub y_pitch: u32,
    /// First column of y to write.
    pub y_column: u32,
    /// Units of 64 along K.
    pub num_units: u32,
    /// Groups of 32 columns.
    pub num_groups: u32,
}

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

/// The choices of one pipeline.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Variant {
    /// How the weights are stored.
    pub format: WeightFormat,
    /// Where they live.
    pub home: Home,
    /// What becomes of the product.
    pub store: Store,
    /// Whether there is a bias.
    pub bias: bool,
    /// Rows a thread: the grid covers a multiple of it.
    pub tile_rows: u32,
    /// Whether x is handed round by subgroup operations: only where subgroups have 8 lanes or more.
    pub subgroups: bool,
}

/// Columns a thread; with 8 lanes they make a group.
const TILE_COLUMNS: u32 = 4;
/// Threads of a workgroup: 4 slices of 8 lanes.
const WORKGROUP: u32 = 32;

/// The bindings of every matrix kernel and of `embed`.
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
    let two = format.scale_words() == 2;
    match home {
        Home::Buffer => [
            format.snippet(),
            include_str!("common/data_buffer.wgsl"),
            if two {
                include_str!("common/scales_buffer_2.wgsl")
            } else {
                include_str!("common/scales_buffer_1.wgsl")
            },
        ],
        Home::Texture => [
            format.snippet(),
            include_str!("common/data_texture.wgsl"),
            if two {
                include_str!("common/scales_texture_2.wgsl")
            } else {
                include_str!("common/scales_texture_1.wgsl")
            },
        ],
    }
}

impl Variant {
    /// The kernel's text and bindings.
    pub fn program(self) -> Result<Program, ComposeError> {
        let [weights, data, scales] = weight_snippets(self.format, self.home);
        let (spread, lanes) = if self.subgroups {
            (include_str!("common/spread_subgroup.wgsl"), include_str!("common/lanes.wgsl"))
        } else {
            (include_str!("common/spread_plain.wgsl"), "")
        };
        let bias = if self.bias {
            include_str!("common/bias_some.wgsl")
        } else {
            include_str!("common/bias_none.wgsl")
        };
        let wgsl = compose(
            &[("TM", self.tile_rows), ("TN", TILE_COLUMNS), ("WORKGROUP", WORKGROUP)],
            include_str!("matmul_lanes.wgsl"),
            &[spread, lanes, self.store.snippet(), bias, weights, data, scales],
        )?;
        let [data, scales] = weight_bindings(self.format, self.home);
        Ok(Program {
            name: format!(
                "matmul_lanes/{}/{}/{}x{TILE_COLUMNS}/{}{}{}",
                self.format.name(),
                self.home.name(),
                self.tile_rows,
                self.store.name(),
                if self.bias { "/bias" } else { "" },
                if self.subgroups { "/subgroups" } else { "" },
            ),
            wgsl,
            bindings: vec![
                BindingKind::Uniform,
                BindingKind::Read,
                data,
                scales,
                BindingKind::Read,
                BindingKind::ReadWrite,
            ],
            subgroups: self.subgroups,
        })
    }

    /// The grid for `rows` rows and `groups` groups of 32 columns. Rows of y up to the next multiple of `tile_rows` are
    /// computed too, from whatever x holds there: the buffers have room for them.
    pub fn workgroups(self, rows: u32, groups: u32) -> [u32; 3] {
        [groups.div_ceil(WORKGROUP / 8), rows.div_ceil(self.tile_rows), 1]
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

//! `embed.wgsl`: token ids to rows of the embedding.

use core::mem::offset_of;

use bytemuck::{Pod, Zeroable};

use crate::matmul::{weight_bindings, weight_snippets};
use crate::weights::{Home, WeightFormat};
use crate::{BindingKind, ComposeError, Program, compose};

/// The uniform.
#[repr(C)]
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
pub struct Params {
    /// vec4s a row of y.
    pub y_pitch: u32,
    /// vec4s to write a row.
    pub width_vec4s: u32,
    /// Units of 64 along the width.
    pub num_units: u32,
    /// The token of this piece's column 0.
    pub first_token: u32,
    /// Tokens in this piece.
    pub num_tokens: u32,
}

/// Tokens from here on are names: `SAMPLED + i` is the token that the pass before chose for its sample row `i`.
pub const SAMPLED: u32 = 1 << 31;

/// The uniform's members and where they lie.
pub const PARAMS: &[(&str, u32)] = &[
    ("y_pitch", offset_of!(Params, y_pitch) as u32),
    ("width_vec4s", offset_of!(Params, width_vec4s) as u32),
    ("num_units", offset_of!(Params, num_units) as u32),
    ("first_token", offset_of!(Params, first_token) as u32),
    ("num_tokens", offset_of!(Params, num_tokens) as u32),
];

/// The kernel for an embedding stored as `format`, at `home`. Bindings: `Params`, rows `[rows]` of (token or name, ...),
/// weights, scales, the tokens that names mean, y `[rows][y_pitch]`.
pub fn program(format: WeightFormat, home: Home) -> Result<Program, ComposeError> {
    let wgsl = compose(&[], wgsl!("embed.wgsl"), &weight_snippets(format, home))?;
    let [data, scales] = weight_bindings(format, home);
    Ok(Program {
        name: format!("embed/{}/{}", format.name(), home.name()),
        wgsl,
        bindings: vec![
            BindingKind::Uniform,
            BindingKind::Read,
            data,
            scales,
            BindingKind::Read,
            BindingKind::ReadWrite,
        ],
        subgroups: false,
    })
}

/// The grid for `rows` rows.
pub fn workgroups(params: &Params, rows: u32) -> [u32; 3] {
    [params.width_vec4s.div_ceil(32), rows, 1]
}

/// `table[token]` for every token.
pub fn cpu(table: &[f32], tokens: &[u32], width: usize) -> Vec<f32> {
    tokens.iter().flat_map(|&t| &table[t as usize * width..][..width]).copied().collect()
}

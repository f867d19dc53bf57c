//! `rope_kv_write.wgsl`: positions into q and k, k and v into the cache.

use core::mem::offset_of;

use bytemuck::{Pod, Zeroable};

use crate::{BindingKind, ComposeError, Program, compose};

/// The uniform.
#[repr(C)]
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
pub struct Params {
    /// vec4s a row of qkv.
    pub pitch: u32,
    /// Query heads.
    pub num_heads: u32,
    /// Key and value heads.
    pub num_kv_heads: u32,
    /// vec4s of a head, even.
    pub head_vec4s: u32,
    /// Slots of a KV block.
    pub block_size: u32,
}

/// The uniform's members and where they lie.
pub const PARAMS: &[(&str, u32)] = &[
    ("pitch", offset_of!(Params, pitch) as u32),
    ("num_heads", offset_of!(Params, num_heads) as u32),
    ("num_kv_heads", offset_of!(Params, num_kv_heads) as u32),
    ("head_vec4s", offset_of!(Params, head_vec4s) as u32),
    ("block_size", offset_of!(Params, block_size) as u32),
];

/// The kernel.
pub fn program() -> Result<Program, ComposeError> {
    Ok(Program {
        name: "rope_kv_write".into(),
        wgsl: compose(&[], include_str!("rope_kv_write.wgsl"), &[])?,
        bindings: vec![
            BindingKind::Uniform,
            BindingKind::Read,
            BindingKind::Read,
            BindingKind::ReadWrite,
            BindingKind::ReadWrite,
            BindingKind::ReadWrite,
        ],
        subgroups: false,
    })
}

/// The grid for `rows` rows.
pub fn workgroups(params: &Params, rows: u32) -> [u32; 3] {
    let turned = (params.num_heads + params.num_kv_heads) * params.head_vec4s / 2;
    let copied = params.num_kv_heads * params.head_vec4s;
    [(turned + copied).div_ceil(32), rows, 1]
}

/// One head turned to `position`; `frequencies[i]` radians a position for dimensions i and i + head_dim/2.
pub fn cpu(head: &[f32], position: u32, frequencies: &[f64]) -> Vec<f64> {
    let half = frequencies.len();
    let mut out = vec![0.0; head.len()];
    for (i, frequency) in frequencies.iter().enumerate() {
        let (sine, cosine) = (f64::from(position) * frequency).sin_cos();
        let (a, b) = (f64::from(head[i]), f64::from(head[i + half]));
        out[i] = a * cosine - b * sine;
        out[i + half] = b * cosine + a * sine;
    }
    out
}

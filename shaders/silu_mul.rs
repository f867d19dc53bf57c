//! `silu_mul.wgsl`: the gated activation, where it could not be fused into the matrix kernel.

use core::mem::offset_of;

use bytemuck::{Pod, Zeroable};

use crate::matmul::cpu_silu;
use crate::{BindingKind, ComposeError, Program, compose};

/// The uniform.
#[repr(C)]
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
pub struct Params {
    /// vec4s a row of x: gate, then up.
    pub x_pitch: u32,
    /// First vec4 of up in a row.
    pub up_vec4: u32,
    /// vec4s a row of y.
    pub y_pitch: u32,
    /// vec4s of gate, of up and of y.
    pub width_vec4s: u32,
}

/// The uniform's members and where they lie.
pub const PARAMS: &[(&str, u32)] = &[
    ("x_pitch", offset_of!(Params, x_pitch) as u32),
    ("up_vec4", offset_of!(Params, up_vec4) as u32),
    ("y_pitch", offset_of!(Params, y_pitch) as u32),
    ("width_vec4s", offset_of!(Params, width_vec4s) as u32),
];

/// The kernel.
pub fn program() -> Result<Program, ComposeError> {
    Ok(Program {
        name: "silu_mul".into(),
        wgsl: compose(&[], wgsl!("silu_mul.wgsl"), &[])?,
        bindings: vec![BindingKind::Uniform, BindingKind::Read, BindingKind::ReadWrite],
        subgroups: false,
    })
}

/// The grid for `rows` rows.
pub fn workgroups(params: &Params, rows: u32) -> [u32; 3] {
    [params.width_vec4s.div_ceil(64), rows, 1]
}

/// silu(gate) * up, element by element.
pub fn cpu(gate: &[f32], up: &[f32]) -> Vec<f64> {
    gate.iter().zip(up).map(|(&g, &u)| cpu_silu(f64::from(g), f64::from(u))).collect()
}

//! `rms_norm.wgsl`: the root-mean-square norm, of all rows or of the sampled ones.

use bytemuck::{Pod, Zeroable};

use crate::{BindingKind, ComposeError, Program, compose};

/// The uniform.
#[repr(C)]
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
pub struct Params {
    /// vec4s a row of x.
    pub x_pitch: u32,
    /// vec4s a row of y.
    pub y_pitch: u32,
    /// Added to the mean square.
    pub eps: f32,
}

/// The kernel for rows of `width_vec4s` vec4s, all of them or (`gather`) those in `sample_rows`: 8 lanes of a subgroup and no
/// barrier, or 64 threads and a tree.
pub fn program(width_vec4s: u32, gather: bool, subgroups: bool) -> Result<Program, ComposeError> {
    let (threads, sum): (_, &[&str]) = if subgroups {
        (8, &[include_str!("common/sum_lanes.wgsl"), include_str!("common/lanes.wgsl")])
    } else {
        (64, &[include_str!("common/sum_workgroup.wgsl")])
    };
    Ok(Program {
        name: format!(
            "rms_norm/{}{}/{}",
            width_vec4s * 4,
            if gather { "/gather" } else { "" },
            if subgroups { "subgroups" } else { "workgroup" }
        ),
        wgsl: compose(
            &[("WORKGROUP", threads), ("WIDTH_VEC4S", width_vec4s), ("GATHER", u32::from(gather))],
            include_str!("rms_norm.wgsl"),
            sum,
        )?,
        bindings: vec![
            BindingKind::Uniform,
            BindingKind::Read,
            BindingKind::Read,
            BindingKind::Read,
            BindingKind::ReadWrite,
        ],
        subgroups,
    })
}

/// The grid for `rows` rows of y.
pub fn workgroups(rows: u32) -> [u32; 3] {
    [rows, 1, 1]
}

/// The norm of each row of `x[rows][width]`.
pub fn cpu(x: &[f32], gamma: &[f32], eps: f32) -> Vec<f64> {
    let width = gamma.len();
    x.chunks(width)
        .flat_map(|row| {
            let mean = row.iter().map(|&v| f64::from(v).powi(2)).sum::<f64>() / width as f64;
            let scale = 1.0 / (mean + f64::from(eps)).sqrt();
            row.iter().zip(gamma).map(move |(&v, &g)| f64::from(v) * scale * f64::from(g))
        })
        .collect()
}

//! `rms_norm.wgsl`: the root-mean-square norm, of all rows or of the sampled ones.

use core::mem::offset_of;

use bytemuck::{Pod, Zeroable};

use crate::{BindingKind, ComposeError, Home, Program, compose};

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

/// The uniform's members and where they lie.
pub const PARAMS: &[(&str, u32)] = &[
    ("x_pitch", offset_of!(Params, x_pitch) as u32),
    ("y_pitch", offset_of!(Params, y_pitch) as u32),
    ("eps", offset_of!(Params, eps) as u32),
];

/// Threads a row, a power of two.
fn workgroup(subgroups: bool) -> u32 {
    if subgroups { 8 } else { 64 }
}

/// The kernel for rows of `width_vec4s` vec4s, all of them or (`gather`) those in `sample_rows`: 8 lanes of a subgroup and no
/// barrier, or 64 threads and a tree. y lives at `y_home`.
pub fn program(
    width_vec4s: u32,
    gather: bool,
    y_home: Home,
    subgroups: bool,
) -> Result<Program, ComposeError> {
    let threads = workgroup(subgroups);
    let mut snippets = vec![y_home.y_snippet()];
    if subgroups {
        snippets.extend([
            wgsl!("common/sum_lanes.wgsl"),
            wgsl!("common/broadcast.wgsl"),
            wgsl!("common/lanes.wgsl"),
        ]);
    } else {
        snippets.push(wgsl!("common/sum_workgroup.wgsl"));
    }
    Ok(Program {
        name: format!(
            "rms_norm/{}{}/{}/{}",
            width_vec4s * 4,
            if gather { "/gather" } else { "" },
            y_home.name(),
            if subgroups { "subgroups" } else { "workgroup" }
        ),
        wgsl: compose(
            &[
                ("WORKGROUP", threads),
                ("WIDTH_VEC4S", width_vec4s),
                ("GATHER", u32::from(gather)),
                ("Y_BINDING", 4),
            ],
            wgsl!("rms_norm.wgsl"),
            &snippets,
        )?,
        bindings: vec![
            BindingKind::Uniform,
            BindingKind::Read,
            BindingKind::Read,
            BindingKind::Read,
            y_home.y_binding(),
        ],
        subgroups,
    })
}

/// The grid for `rows` rows of y.
pub fn workgroups(rows: u32) -> [u32; 3] {
    [rows, 1, 1]
}

/// Loop iterations of one invocation: Mesa 22.3.6 ends all loops after 65,535.
pub fn iterations(width_vec4s: u32, subgroups: bool) -> u32 {
    // Squares, then the scaled row; without subgroups a tree between them.
    let tree = if subgroups { 0 } else { workgroup(subgroups).ilog2() };
    2 * width_vec4s.div_ceil(workgroup(subgroups)) + tree
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

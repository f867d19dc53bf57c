//! `norm_parts.wgsl`: the half of a norm that comes before a product, for the first layer: products do it for the others.

use crate::matmul::squares_pitch;
use crate::quantise::Form;
pub use crate::quantise::{PARAMS, Params};
use crate::weights::BLOCK;
use crate::{BindingKind, ComposeError, Program, compose};

/// The kernel for rows of `width` numbers, written as `y`. It needs subgroups of 8 or more.
pub fn program(width: u32, y: Form) -> Result<Program, ComposeError> {
    let mut snippets = y.activations.y_snippets(y.home);
    snippets.push(wgsl!("common/slice.wgsl"));
    Ok(Program {
        name: format!("norm_parts/{width}{}", y.suffix("y")),
        wgsl: compose(
            &[("BLOCKS", width.div_ceil(BLOCK)), ("SQUARES", squares_pitch(width)), ("Y_BINDING", 4)],
            wgsl!("norm_parts.wgsl"),
            &snippets,
        )?,
        bindings: vec![
            BindingKind::Uniform,
            BindingKind::Read,
            BindingKind::Read,
            BindingKind::ReadWrite,
            y.home.y_binding(),
        ],
        subgroups: true,
    })
}

/// The grid for `rows` rows.
pub fn workgroups(rows: u32) -> [u32; 3] {
    [rows, 1, 1]
}

/// Loop iterations of one invocation: Mesa 22.3.6 ends all loops after 65,535.
pub fn iterations(width: u32) -> u32 {
    width.div_ceil(BLOCK)
}

/// `x * gamma` and the sums of squares of 32 numbers each, of each row of `x[rows][width]`.
pub fn cpu(x: &[f32], gamma: &[f32]) -> (Vec<f64>, Vec<f64>) {
    let rows = x.chunks(gamma.len());
    let scaled =
        rows.clone().flat_map(|row| row.iter().zip(gamma).map(|(&v, &g)| f64::from(v) * f64::from(g)));
    let square = |block: &[f32]| block.iter().map(|&v| f64::from(v).powi(2)).sum();
    (scaled.collect(), rows.flat_map(|row| row.chunks(BLOCK as usize).map(square)).collect())
}

//! `peak.wgsl`: multiplies and adds as fast as the arithmetic goes, for the doctor.
//!
//! Never part of a step. Invariant: the numbers converge, so that neither infinities nor denormals slow anything down.

use core::mem::offset_of;

use bytemuck::{Pod, Zeroable};

use crate::{BindingKind, ComposeError, Program, compose};

/// The uniform: each step is `v = v * factor + addend`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
pub struct Params {
    /// Below 1.
    pub factor: f32,
    /// Small.
    pub addend: f32,
}

/// The uniform's members and where they lie.
pub const PARAMS: &[(&str, u32)] =
    &[("factor", offset_of!(Params, factor) as u32), ("addend", offset_of!(Params, addend) as u32)];

/// Turns of the loop.
const TURNS: u32 = 64;
/// Steps of a turn.
const STEPS: u32 = 16;
/// Chains of a thread.
const CHAINS: u32 = 8;

/// The kernel. Bindings: `Params`, one f32 a thread out.
pub fn program() -> Result<Program, ComposeError> {
    Ok(Program {
        name: "peak".into(),
        wgsl: compose(&[("TURNS", TURNS), ("STEPS", STEPS)], wgsl!("peak.wgsl"), &[])?,
        bindings: vec![BindingKind::Uniform, BindingKind::ReadWrite],
        subgroups: false,
    })
}

/// The grid for `threads` threads, a multiple of 64.
pub fn workgroups(threads: u32) -> [u32; 3] {
    [threads / 64, 1, 1]
}

/// Floating-point operations of `threads` threads: a multiplication and an addition a step.
pub fn operations(threads: u32) -> u64 {
    u64::from(threads) * u64::from(TURNS * STEPS * CHAINS * 2)
}

/// What thread `thread` writes.
pub fn cpu(params: &Params, thread: u32) -> f64 {
    let chain = |start: u32| {
        let step = |v: f64, _| v * f64::from(params.factor) + f64::from(params.addend);
        (0..TURNS * STEPS).fold(f64::from(start), step)
    };
    (0..CHAINS).map(|chain_index| chain(thread % 8 + chain_index)).sum()
}

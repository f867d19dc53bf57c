//! `stream.wgsl`: reads memory as fast as it comes, for the doctor.
//!
//! Never part of a step. Invariant: what is read is added up, so that no compiler leaves a read out.

use crate::{BindingKind, ComposeError, Home, Program, TexelFormat, compose};

/// Threads of the grid.
pub const THREADS: u32 = 1 << 16;

/// The kernel for [`bytes`] of `vec4s` at `home`. Bindings: the words to read, `[THREADS]` sums out.
pub fn program(vec4s: u32, home: Home) -> Result<Program, ComposeError> {
    let (words, snippet) = match home {
        Home::Buffer => (BindingKind::Read, wgsl!("common/words_buffer.wgsl")),
        Home::Texture => (BindingKind::ReadTexture(TexelFormat::Rgba32), wgsl!("common/words_texture.wgsl")),
    };
    Ok(Program {
        name: format!("stream/{}/{}MiB", home.name(), bytes(vec4s) >> 20),
        wgsl: compose(&[("VEC4S", vec4s), ("THREADS", THREADS)], wgsl!("stream.wgsl"), &[snippet])?,
        bindings: vec![words, BindingKind::ReadWrite],
        subgroups: false,
    })
}

/// Bytes that are read where each thread reads `vec4s` vec4s.
pub fn bytes(vec4s: u32) -> u64 {
    u64::from(vec4s) * u64::from(THREADS) * 16
}

/// The grid.
pub fn workgroups() -> [u32; 3] {
    [THREADS / 64, 1, 1]
}

/// Each thread's sum, modulo 2^32.
pub fn cpu(words: &[u32]) -> Vec<u32> {
    let mut sums = vec![0u32; THREADS as usize];
    for (i, vec4) in words.chunks(4).enumerate() {
        let sum = &mut sums[i % THREADS as usize];
        *sum = vec4.iter().fold(*sum, |sum, &word| sum.wrapping_add(word));
    }
    sums
}

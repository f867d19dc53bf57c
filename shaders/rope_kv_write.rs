//! `rope_kv_write.wgsl` and `rope_kv_write_q8.wgsl`: positions into q and k, k and v into the cache.

use core::mem::offset_of;

use bytemuck::{Pod, Zeroable};

use crate::{BindingKind, ComposeError, Home, KvFormat, Program, compose};

/// The uniform.
#[repr(C)]
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
pub struct Params {
    /// vec4s a row of qkv.
    pub pitch: u32,
}

/// The uniform's members and where they lie.
pub const PARAMS: &[(&str, u32)] = &[("pitch", offset_of!(Params, pitch) as u32)];

/// The choices of one pipeline.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Variant {
    /// Query heads.
    pub num_heads: u32,
    /// Key and value heads.
    pub num_kv_heads: u32,
    /// vec4s of a head, even.
    pub head_vec4s: u32,
    /// Slots of a KV block.
    pub block_size: u32,
    /// Where the KV cache lives.
    pub work_home: Home,
    /// How its numbers are stored.
    pub kv: KvFormat,
}

impl Variant {
    /// The kernel's text and bindings.
    pub fn program(self) -> Result<Program, ComposeError> {
        let Self { num_heads, num_kv_heads, head_vec4s, block_size, work_home, kv } = self;
        let cache = kv.write_binding(work_home);
        let text = match kv {
            KvFormat::F32 | KvFormat::F16 => wgsl!("rope_kv_write.wgsl"),
            KvFormat::Q8 => wgsl!("rope_kv_write_q8.wgsl"),
        };
        Ok(Program {
            name: format!(
                "rope_kv_write/{num_heads}+{num_kv_heads}x{}/b{block_size}/{}{}",
                head_vec4s * 4,
                work_home.name(),
                kv.suffix()
            ),
            wgsl: compose(
                &[
                    ("NUM_HEADS", num_heads),
                    ("NUM_KV_HEADS", num_kv_heads),
                    ("HEAD_CELLS", head_vec4s / 2),
                    ("BLOCK_SIZE", block_size),
                ],
                text,
                &kv.write_snippets(work_home),
            )?,
            bindings: vec![
                BindingKind::Uniform,
                BindingKind::Read,
                BindingKind::Read,
                BindingKind::ReadWrite,
                cache,
                cache,
            ],
            subgroups: false,
        })
    }

    /// The grid for `rows` rows.
    pub fn workgroups(self, rows: u32) -> [u32; 3] {
        let Self { num_heads, num_kv_heads, head_vec4s, .. } = self;
        let cells = head_vec4s / 2;
        let items = match self.kv {
            KvFormat::F32 | KvFormat::F16 => (num_heads + 2 * num_kv_heads) * cells,
            KvFormat::Q8 => num_heads * cells + num_kv_heads,
        };
        [items.div_ceil(32), rows, 1]
    }
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

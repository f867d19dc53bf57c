//! `rope_kv_write.wgsl` and `rope_kv_write_q8.wgsl`: positions into q and k, k and v into the cache. Where lanes are columns of a
//! product, the product itself does so as it stores ([`Store::RopeKv`](crate::matmul::Store::RopeKv)), with the same bits.

use core::mem::offset_of;

use bytemuck::{Pod, Zeroable};

use crate::weights::GROUP_COLUMNS;
use crate::{BindingKind, ComposeError, Const, Home, KvFormat, Program, compose};

/// The uniform.
#[repr(C)]
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
pub struct Params {
    /// vec4s a row of qkv.
    pub pitch: u32,
}

/// The uniform's members and where they lie.
pub const PARAMS: &[(&str, u32)] = &[("pitch", offset_of!(Params, pitch) as u32)];

/// The slot of a row that is nobody's: nothing is written for it. Only a product that stores into the cache has such rows, where
/// its tile is larger than the batch.
pub const NOWHERE: u32 = u32::MAX;

/// Row of a head, of `head_dim` dimensions, that column `column` of q, k or v comes from where their product turns them: in each
/// group of 32 columns 16 dimensions of the first half of a head, and the 16 of the second half that turn together with them.
pub fn turned_row(column: u32, head_dim: u32) -> u32 {
    let (head, d) = (column / head_dim, column % head_dim);
    let (group, place) = (d / GROUP_COLUMNS, d % GROUP_COLUMNS);
    let half = GROUP_COLUMNS / 2;
    head * head_dim + place / half * (head_dim / 2) + group * half + place % half
}

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
    /// Whether a product can do this as it stores: heads are whole groups of columns, and no number waits for its whole head.
    pub fn fits_a_product(self) -> bool {
        self.kv != KvFormat::Q8 && (self.head_vec4s * 4).is_multiple_of(GROUP_COLUMNS)
    }

    /// The constants of a product that does this as it stores, the first of whose own bindings is `first`: rows, angles, and the cache.
    pub(crate) fn constants(self, first: u32) -> Vec<Const> {
        let mut constants = self.sizes(first, first + 2).to_vec();
        constants.extend([("HEAD_GROUPS", self.head_vec4s * 4 / GROUP_COLUMNS), ("NOWHERE", NOWHERE)]);
        constants
    }

    /// The snippets that turn a head and write the cache.
    pub(crate) fn snippets(self) -> Vec<&'static str> {
        let mut snippets = self.kv.write_snippets(self.work_home).to_vec();
        snippets.push(wgsl!("common/rope.wgsl"));
        snippets
    }

    /// What it is told apart by.
    pub(crate) fn choices(self) -> String {
        let Self { num_heads, num_kv_heads, head_vec4s, block_size, work_home, kv } = self;
        format!(
            "{num_heads}+{num_kv_heads}x{}/b{block_size}/{}{}",
            head_vec4s * 4,
            work_home.name(),
            kv.suffix()
        )
    }

    /// The constants of every kernel that writes the cache, which is bound from `cache` on; rows and angles are from `rows` on.
    fn sizes(self, rows: u32, cache: u32) -> [Const; 8] {
        [
            ("NUM_HEADS", self.num_heads),
            ("NUM_KV_HEADS", self.num_kv_heads),
            ("HEAD_CELLS", self.head_vec4s / 2),
            ("BLOCK_SIZE", self.block_size),
            ("ROWS_BINDING", rows),
            ("ANGLES_BINDING", rows + 1),
            ("KEYS_BINDING", cache),
            ("VALUES_BINDING", cache + 1),
        ]
    }

    /// The kernel's text and bindings.
    pub fn program(self) -> Result<Program, ComposeError> {
        let Self { work_home, kv, .. } = self;
        let cache = kv.write_binding(work_home);
        let text = match kv {
            KvFormat::F32 | KvFormat::F16 => wgsl!("rope_kv_write.wgsl"),
            KvFormat::Q8 => wgsl!("rope_kv_write_q8.wgsl"),
        };
        Ok(Program {
            name: format!("rope_kv_write/{}", self.choices()),
            wgsl: compose(&self.sizes(1, 4), text, &self.snippets())?,
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

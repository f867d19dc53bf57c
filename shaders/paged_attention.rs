//! `paged_attention.wgsl`, `paged_attention_few.wgsl` and `paged_attention_lanes.wgsl`: causal attention of every row over its
//! sequence's cache, decode rows and prompt chunks alike.

use core::mem::offset_of;

use bytemuck::{Pod, Zeroable};

use crate::{
    Activations, BindingKind, ComposeError, Const, Home, KvFormat, Program, compose, paged_attention_lanes,
};

/// The uniform of all three.
#[repr(C)]
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
pub struct Params {
    /// vec4s a row of qkv.
    pub q_pitch: u32,
    /// vec4s a row of y.
    pub y_pitch: u32,
    /// Key and value heads.
    pub num_kv_heads: u32,
    /// Query heads that share a kv head.
    pub head_group: u32,
    /// Blocks a row of the block tables.
    pub table_pitch: u32,
    /// 1 / sqrt(head_dim).
    pub scale: f32,
}

/// The uniform's members and where they lie.
pub const PARAMS: &[(&str, u32)] = &[
    ("q_pitch", offset_of!(Params, q_pitch) as u32),
    ("y_pitch", offset_of!(Params, y_pitch) as u32),
    ("num_kv_heads", offset_of!(Params, num_kv_heads) as u32),
    ("head_group", offset_of!(Params, head_group) as u32),
    ("table_pitch", offset_of!(Params, table_pitch) as u32),
    ("scale", offset_of!(Params, scale) as u32),
];

/// Dimensions of a head of which 8 lanes hold whole blocks when they write them.
pub const WHOLE_HEAD: u32 = 64;

/// The choices of one pipeline.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Variant {
    /// vec4s of a head: head_dim / 4.
    pub head_vec4s: u32,
    /// Query heads that share a kv head.
    pub head_group: u32,
    /// Slots of a KV block, a multiple of 8. A constant of the text: CPUs divide slowly, and this is at every key and value.
    pub block_size: u32,
    /// Where the KV cache lives.
    pub work_home: Home,
    /// How its numbers are stored.
    pub kv: KvFormat,
    /// Where y lives.
    pub y_home: Home,
    /// How y is stored: in 8 bits only with subgroups, where a head is a multiple of [`WHOLE_HEAD`].
    pub activations: Activations,
    /// 8 lanes of a subgroup and no barrier, or 64 threads and workgroup memory. The first needs subgroups of 8 or more.
    pub subgroups: bool,
    /// Without subgroups, 4 threads that hold the queries instead of 64: what CPU drivers like.
    pub few_threads: bool,
}

impl Variant {
    /// Query heads a workgroup: the largest divisor of the group that registers hold.
    pub fn heads(self) -> u32 {
        (1..=4).rev().find(|&h| self.head_group.is_multiple_of(h)).unwrap_or(1)
    }

    /// The kernel's text and bindings.
    pub fn program(self) -> Result<Program, ComposeError> {
        let wgsl = if self.subgroups {
            paged_attention_lanes::text(self)?
        } else {
            compose(
                &[&self.constants()[..], &[("ITEMS", self.items())]].concat(),
                if self.few_threads {
                    wgsl!("paged_attention_few.wgsl")
                } else {
                    wgsl!("paged_attention.wgsl")
                },
                &[
                    &[wgsl!("common/attention_bindings.wgsl"), self.y_home.y_snippet()][..],
                    &self.kv.read_snippets(self.work_home),
                ]
                .concat(),
            )?
        };
        let cache = self.kv.read_binding(self.work_home);
        Ok(Program {
            name: format!(
                "{}/{}x{}/b{}/{}{}/{}{}",
                match (self.subgroups, self.few_threads) {
                    (true, _) => "paged_attention_lanes",
                    (false, true) => "paged_attention_few",
                    (false, false) => "paged_attention",
                },
                self.heads(),
                self.head_vec4s * 4,
                self.block_size,
                self.work_home.name(),
                self.kv.suffix(),
                self.activations.prefix(),
                self.y_home.name()
            ),
            wgsl,
            bindings: vec![
                BindingKind::Uniform,
                BindingKind::Read,
                BindingKind::Read,
                BindingKind::Read,
                cache,
                cache,
                self.y_home.y_binding(),
            ],
            subgroups: self.subgroups,
        })
    }

    /// The constants of all texts.
    pub(crate) fn constants(self) -> [Const; 5] {
        [
            ("HEADS", self.heads()),
            ("HEAD_VEC4S", self.head_vec4s),
            ("HEAD_CELLS", self.head_vec4s / 2),
            ("BLOCK_SIZE", self.block_size),
            ("Y_BINDING", 6),
        ]
    }

    /// What a thread holds of the output: vec4s of all heads where there are 64 threads, cells of each where there are 4.
    fn items(self) -> u32 {
        if self.few_threads {
            return self.head_vec4s.div_ceil(8);
        }
        (self.heads() * self.head_vec4s).div_ceil(64)
    }

    /// Loop iterations of one invocation over `context` positions, at most: compilers may write short loops out. Mesa 22.3.6
    /// ends all loops after 65,535, without a word.
    ///
    /// With subgroups, one in 16 positions whatever the head: 960,000 positions stay below 60,000. Without, a turn of 64
    /// positions costs its own, the head's vec4s, the maxima and the values: 129 for 64 dimensions and a group of 3, safe up
    /// to 29,696 positions; 225 for 128 dimensions and a group of 4, safe up to 17,024. With 4 threads the same two are 129 and 145.
    pub fn iterations(self, context: u32) -> u32 {
        if self.subgroups {
            return paged_attention_lanes::iterations(context);
        }
        if self.few_threads {
            return context.div_ceil(64) * (1 + 16 + self.heads() * 16 + 64);
        }
        let turn = 1 + self.head_vec4s + self.heads() * 16 + self.items() * 64;
        self.items() + context.div_ceil(64) * turn
    }

    /// The grid for `rows` rows of `num_heads` query heads.
    pub fn workgroups(self, num_heads: u32, rows: u32) -> [u32; 3] {
        [num_heads / self.heads(), rows, 1]
    }
}

/// softmax(q * K^T * scale) * V for one query head; `keys` and `values` are `[positions][head_dim]`, all of them visible.
pub fn cpu(q: &[f32], keys: &[&[f32]], values: &[&[f32]], scale: f64) -> Vec<f64> {
    let scores: Vec<f64> = keys
        .iter()
        .map(|k| q.iter().zip(*k).map(|(&a, &b)| f64::from(a) * f64::from(b)).sum::<f64>() * scale)
        .collect();
    let top = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let weights: Vec<f64> = scores.iter().map(|s| (s - top).exp()).collect();
    let total: f64 = weights.iter().sum();
    let mut out = vec![0.0; q.len()];
    for (w, v) in weights.iter().zip(values) {
        for (o, &x) in out.iter_mut().zip(*v) {
            *o += w / total * f64::from(x);
        }
    }
    out
}

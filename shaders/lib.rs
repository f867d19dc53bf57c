//! Firstlight's kernels: WGSL text, what each binds, and an independent statement of its mathematics.
//!
//! No wgpu, no async: this crate describes, `firstlight-engine` executes. A kernel is two files side by side, `x.wgsl`
//! and `x.rs` (variants of one kernel share the second); the second holds the descriptor, the uniform's layout, the grid and `cpu()`, the obvious loop with f64 sums.
//! Invariant: what a kernel's `.rs` says of bindings and uniforms is what naga reads out of its WGSL; a test keeps it.

// First, for the sake of its macro.
#[macro_use]
mod strip;

pub mod compose;
pub mod embed;
pub mod kv_cache;
pub mod matmul;
pub mod matmul_lanes;
pub mod matmul_tiled;
pub mod matvec_quads;
pub mod matvec_split;
pub mod norm_parts;
pub mod paged_attention;
mod paged_attention_lanes;
pub mod peak;
pub mod quantise;
pub mod rms_norm;
pub mod rope_kv_write;
pub mod sample;
pub mod silu_mul;
pub mod stream;
pub mod weights;

pub use compose::{ComposeError, Const, compose};
pub use kv_cache::KvFormat;
pub use quantise::{Activations, Form};
pub use weights::{Home, WeightFormat};

/// Loop iterations that one invocation may run: Mesa 22.3.6 silently ends all its loops after 65,535.
pub const MAX_ITERATIONS: u32 = 60_000;

/// The directive of a text that computes with 16-bit floats: its first line.
pub(crate) const ENABLE_F16: &str = "enable f16;\n";

/// What a binding is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum BindingKind {
    /// Binding 0: the kernel's `Params`.
    Uniform,
    /// A read-only storage buffer.
    Read,
    /// A storage buffer that is written.
    ReadWrite,
    /// A read-only storage texture.
    ReadTexture(TexelFormat),
    /// A write-only storage texture.
    WriteTexture(TexelFormat),
}

/// The texel of a storage texture.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum TexelFormat {
    /// One word.
    R32,
    /// Two words.
    Rg32,
    /// Four words.
    Rgba32,
}

impl TexelFormat {
    /// Bytes of a texel.
    pub fn bytes(self) -> u32 {
        match self {
            Self::R32 => 4,
            Self::Rg32 => 8,
            Self::Rgba32 => 16,
        }
    }
}

/// A kernel ready to be compiled: one entry point `main`, one bind group.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Program {
    /// The kernel's name and its choices, for people: `matmul_lanes/q4_1/texture/4x4/add`.
    pub name: String,
    /// The composed WGSL.
    pub wgsl: String,
    /// Binding i is `bindings[i]`.
    pub bindings: Vec<BindingKind>,
    /// The text calls subgroup operations.
    pub subgroups: bool,
}

impl Program {
    /// Whether the text computes with 16-bit floats, which a device may lack.
    pub fn f16(&self) -> bool {
        self.wgsl.starts_with(ENABLE_F16)
    }

    /// The text for a browser, which wants the directive that naga 30 does not parse.
    pub fn wgsl_for_browsers(&self) -> String {
        if self.subgroups { format!("enable subgroups;\n{}", self.wgsl) } else { self.wgsl.clone() }
    }
}

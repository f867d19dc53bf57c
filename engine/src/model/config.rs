//! A model's hyper-parameters, the same whichever file they came from.
//!
//! It never reads a file: `config_gguf` and `config_hf` fill it. Invariant: a [`ModelConfig`] from a file has passed
//! the check below, so that products of its numbers fit and the kernels' assumptions hold.

use firstlight_shaders::KvFormat;

use super::source::{malformed, unsupported};
use crate::error::LoadError;

/// Scaling of the rotary frequencies beyond the trained context.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum RopeScaling {
    /// As trained.
    None,
    /// All frequencies divided by `factor`.
    Linear {
        /// The divisor.
        factor: f32,
    },
    /// Llama 3.1: low frequencies divided, high ones kept, a smooth ramp between.
    Llama3 {
        /// The divisor of low frequencies.
        factor: f32,
        /// Wavelengths above `original_context / low_freq_factor` are divided.
        low_freq_factor: f32,
        /// Wavelengths below `original_context / high_freq_factor` are kept.
        high_freq_factor: f32,
        /// The context the model was trained with.
        original_context: u32,
    },
}

/// Which dimensions of a head rotate together in the stored q and k rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RopeLayout {
    /// (i, i + head_dim/2): HuggingFace checkpoints.
    Halves,
    /// (2i, 2i + 1): llama.cpp's GGUF files of the Llama architecture.
    Interleaved,
}

/// The gate's activation function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Activation {
    /// x * sigmoid(x).
    Silu,
}

/// Hyper-parameters of a Llama-family model.
#[derive(Clone, Debug, PartialEq)]
pub struct ModelConfig {
    /// What the file calls itself, for people.
    pub name: String,
    /// Width of the residual stream.
    pub hidden_size: u32,
    /// Width of the feed-forward layer.
    pub intermediate_size: u32,
    /// Transformer blocks.
    pub num_layers: u32,
    /// Query heads.
    pub num_heads: u32,
    /// Key and value heads; divides `num_heads`.
    pub num_kv_heads: u32,
    /// Dimensions of a head; a multiple of 8.
    pub head_dim: u32,
    /// Rows of the embedding.
    pub vocab_size: u32,
    /// The longest context the model was made for.
    pub max_context: u32,
    /// Epsilon of the RMS norm.
    pub rms_norm_eps: f32,
    /// Base of the rotary frequencies.
    pub rope_theta: f32,
    /// Scaling of the rotary frequencies.
    pub rope_scaling: RopeScaling,
    /// How q and k rows are stored.
    pub rope_layout: RopeLayout,
    /// The output head is the embedding.
    pub tie_embeddings: bool,
    /// q, k, v and o have biases.
    pub attention_bias: bool,
    /// gate, up and down have biases.
    pub mlp_bias: bool,
    /// The gate's activation.
    pub activation: Activation,
    /// First token of a text, where the model has one.
    pub bos_token: Option<u32>,
    /// Tokens that end an answer, from all places that name them.
    pub eos_tokens: Vec<u32>,
}

/// Largest accepted numbers: several times those of the largest published model of the family (Llama 3.1 405B has a
/// width of 16,384, 53,248 inside, 126 layers, 128 heads).
const MAX_HIDDEN: u32 = 1 << 17;
const MAX_INTERMEDIATE: u32 = 1 << 20;
const MAX_LAYERS: u32 = 1024;
const MAX_HEADS: u32 = 1024;
const MAX_HEAD_DIM: u32 = 256;
/// The largest published vocabularies have 262 thousand.
const MAX_VOCAB: u32 = 1 << 22;
/// Positions are exact in f32 up to here.
const MAX_CONTEXT: u32 = 1 << 24;

impl ModelConfig {
    /// Bytes of keys and values of one token in all layers, stored as `format`.
    pub fn kv_bytes_a_token(&self, format: KvFormat) -> u64 {
        let head_bytes = format.key_bytes(self.head_dim) + format.value_bytes(self.head_dim);
        u64::from(self.num_layers) * u64::from(self.num_kv_heads) * head_bytes
    }

    /// Ranges and divisibility, as every loader needs them.
    pub(super) fn check(&self, file: &str) -> Result<(), LoadError> {
        let ranges = [
            ("hidden size", self.hidden_size, MAX_HIDDEN),
            ("intermediate size", self.intermediate_size, MAX_INTERMEDIATE),
            ("number of layers", self.num_layers, MAX_LAYERS),
            ("number of heads", self.num_heads, MAX_HEADS),
            ("number of key-value heads", self.num_kv_heads, MAX_HEADS),
            ("head size", self.head_dim, MAX_HEAD_DIM),
            ("vocabulary size", self.vocab_size, MAX_VOCAB),
            ("context length", self.max_context, MAX_CONTEXT),
        ];
        for (what, value, max) in ranges {
            if !(1..=max).contains(&value) {
                return Err(unsupported(file, format!("the {what} is {value}; 1 to {max} is supported")));
            }
        }
        // The kernels move four elements of a row at once, and rotate pairs in groups of four.
        let steps = [
            ("hidden size", self.hidden_size, 8),
            ("intermediate size", self.intermediate_size, 8),
            ("head size", self.head_dim, 8),
        ];
        for (what, value, step) in steps {
            if !value.is_multiple_of(step) {
                return Err(unsupported(
                    file,
                    format!("the {what} is {value}; it must be a multiple of {step}"),
                ));
            }
        }
        if !self.num_heads.is_multiple_of(self.num_kv_heads) {
            let counts = format!("{} heads and {} key-value heads", self.num_heads, self.num_kv_heads);
            return Err(malformed(file, format!("{counts}; the second must divide the first")));
        }
        let eps = self.rms_norm_eps;
        if !(eps > 0.0 && eps <= 0.1) {
            return Err(malformed(
                file,
                format!("the norm's epsilon is {eps}; above 0 and up to 0.1 is possible"),
            ));
        }
        let theta = self.rope_theta;
        if !(1.0..=1e12).contains(&theta) {
            return Err(malformed(file, format!("the rotary base is {theta}; 1 to 1e12 is possible")));
        }
        self.check_rope_scaling(file)?;
        match self.bos_token.filter(|token| *token >= self.vocab_size) {
            None => Ok(()),
            Some(token) => {
                let reason = format!("the BOS token is {token}, and the vocabulary has {}", self.vocab_size);
                Err(malformed(file, reason))
            }
        }
    }

    fn check_rope_scaling(&self, file: &str) -> Result<(), LoadError> {
        let sane_factor = |factor: f32| (1e-6..=1e6).contains(&factor);
        let sound = match self.rope_scaling {
            RopeScaling::None => true,
            RopeScaling::Linear { factor } => sane_factor(factor),
            RopeScaling::Llama3 { factor, low_freq_factor, high_freq_factor, original_context } => {
                // Equal frequency factors would divide by zero in the ramp between them.
                sane_factor(factor)
                    && low_freq_factor > 0.0
                    && high_freq_factor > low_freq_factor
                    && high_freq_factor <= 1e6
                    && (1..=MAX_CONTEXT).contains(&original_context)
            }
        };
        if sound {
            return Ok(());
        }
        let rule = "factors must lie from 1e-6 to 1e6 and the low frequency factor below the high one";
        Err(malformed(file, format!("the rope scaling is {:?}; {rule}", self.rope_scaling)))
    }
}

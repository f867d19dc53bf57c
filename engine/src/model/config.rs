//! A model's hyper-parameters, the same whichever file they came from.

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

//! What a model's stages read and compute, from its header: the figures that a measured time is held against.
//!
//! Never reads a weight. Invariant: bytes are those of the file's own format, multiply-adds count as two operations.

use firstlight_engine::model::{Checkpoint, TensorRole, WeightSource};
use firstlight_shaders::KvFormat;
use serde::Serialize;

/// Sizes of a model's stages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct ModelShape {
    /// Bytes of one token's row in the embedding.
    pub embedding_row_bytes: u64,
    /// Bytes of all layers' weights: what a step reads at least once, however many rows it has.
    pub layers_bytes: u64,
    /// Their number: a row takes two operations for each.
    pub layers_weights: u64,
    /// Bytes of the output head, which may be the embedding.
    pub head_bytes: u64,
    /// Its number of weights.
    pub head_weights: u64,
    /// Width of the residual stream in floats.
    pub hidden_size: u64,
    /// Tokens of the vocabulary, and logits of a sampled row.
    pub vocab_size: u64,
    /// Bytes of keys and values of one token in all layers.
    pub kv_bytes_a_token: u64,
    /// Operations of attention that one row does for each position it looks at, in all layers.
    pub attention_operations: u64,
}

impl ModelShape {
    /// The shape of an opened model, whose keys and values are stored as `kv`.
    pub fn of<S: WeightSource>(checkpoint: &Checkpoint<S>, kv: KvFormat) -> Self {
        let config = checkpoint.config();
        let embedding_bytes = checkpoint.tensor(TensorRole::Embedding).map_or(0, |tensor| tensor.num_bytes);
        let (head_bytes, head_weights) = checkpoint.head_size();
        let (layers_bytes, layers_weights) = checkpoint.layers_size();
        let attention_width = u64::from(config.num_heads) * u64::from(config.head_dim);
        Self {
            embedding_row_bytes: embedding_bytes / u64::from(config.vocab_size.max(1)),
            layers_bytes,
            layers_weights,
            head_bytes,
            head_weights,
            hidden_size: u64::from(config.hidden_size),
            vocab_size: u64::from(config.vocab_size),
            kv_bytes_a_token: config.kv_bytes_a_token(kv),
            // A score and a weighted sum, each a multiply-add for every element of the heads.
            attention_operations: 4 * u64::from(config.num_layers) * attention_width,
        }
    }
}

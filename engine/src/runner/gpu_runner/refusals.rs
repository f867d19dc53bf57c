//! What a runner refuses to load, and what its self-test has to know of a model.
//!
//! Never touches a device. Invariant: a limit that a kernel cannot keep is refused before anything is loaded.

use super::PassLimits;
use crate::error::LoadError;
use crate::gpu::{KernelChoice, MatmulShape, Shapes};
use crate::model::{Checkpoint, TensorRole, WeightSource};

/// What the self-test has to know of a model.
pub(super) fn shapes<S: WeightSource>(
    checkpoint: &Checkpoint<S>,
    limits: PassLimits,
    products: Vec<MatmulShape>,
) -> Shapes {
    let config = checkpoint.config();
    let embedding = checkpoint.tensor(TensorRole::Embedding);
    Shapes {
        embeddings: embedding.map(|info| info.dtype).into_iter().collect(),
        hidden_size: config.hidden_size,
        num_heads: config.num_heads,
        num_kv_heads: config.num_kv_heads,
        head_dim: config.head_dim,
        block_size: limits.block_size,
        products,
    }
}

/// Refuses activations that the layers' products cannot take.
pub(super) fn check_activations<S: WeightSource>(
    checkpoint: &Checkpoint<S>,
    choice: KernelChoice,
    adapter: &str,
) -> Result<(), LoadError> {
    let name = choice.activations.name();
    let refuse =
        |reason: String| Err(LoadError::Activations { name: checkpoint.config().name.clone(), reason });
    if !choice.has(choice.activations) {
        return refuse(format!("{name} activations on {adapter}: its kernels multiply f32 alone"));
    }
    let other = checkpoint
        .tensors()
        .find(|(role, info)| role.is_layer_matrix() && !choice.activations.multiply(info.dtype));
    match other {
        None => Ok(()),
        Some((_, info)) => refuse(format!(
            "{name} activations, which Q4_0 and Q4_1 weights take: the tensor {} is {}",
            info.name,
            info.dtype.title()
        )),
    }
}

/// Refuses limits that the kernels cannot keep.
pub(super) fn check_limits<S: WeightSource>(
    checkpoint: &Checkpoint<S>,
    limits: PassLimits,
) -> Result<(), LoadError> {
    let config = checkpoint.config();
    let refuse = |reason: String| Err(LoadError::Unsupported { name: config.name.clone(), reason });
    if limits.block_size == 0 || !limits.block_size.is_multiple_of(8) || limits.block_size > 256 {
        return refuse(format!(
            "a block size of {}; it must be a multiple of 8 up to 256",
            limits.block_size
        ));
    }
    if limits.max_batch_tokens == 0 || limits.max_batch_tokens > 16_384 {
        return refuse(format!("{} tokens in a batch; it must be 1 to 16384", limits.max_batch_tokens));
    }
    if limits.max_num_seqs == 0 || limits.max_num_seqs > 256 {
        return refuse(format!("{} sequences in a batch; it must be 1 to 256", limits.max_num_seqs));
    }
    if limits.max_model_len == 0 || limits.max_model_len > config.max_context {
        return refuse(format!(
            "a context of {} tokens; the model was made for {}",
            limits.max_model_len, config.max_context
        ));
    }
    Ok(())
}

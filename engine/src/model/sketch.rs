//! A model of the right shapes and no content: what kernels are tried on before the real one is loaded.
//!
//! Never reads a file. Invariant: its products have the K, the formats and the biases of the model that it stands for; it has
//! fewer layers and a smaller vocabulary where the model's would take long to load.

use std::collections::BTreeMap;

use firstlight_shaders::WeightFormat;

use super::{
    Activation, Checkpoint, ModelConfig, RopeLayout, RopeScaling, TensorInfo, TensorRole, WeightSource,
};
use crate::error::LoadError;

/// A file of zeros that never ends.
#[derive(Clone, Copy, Debug)]
pub struct Zeros;

impl WeightSource for Zeros {
    fn name(&self) -> String {
        "zeros".into()
    }

    fn len(&self) -> u64 {
        u64::MAX
    }

    async fn read(&self, _offset: u64, len: usize) -> Result<Vec<u8>, LoadError> {
        Ok(vec![0; len])
    }
}

/// A checkpoint of zeros, with a text that tells models of other shapes apart.
#[derive(Debug)]
pub struct Sketch {
    /// What is loaded.
    pub checkpoint: Checkpoint<Zeros>,
    /// Sizes and formats of the whole model.
    pub shapes: String,
}

/// Weights of the layers in bytes, about: more than caches hold, so that the kernels read memory as in the model.
const MAX_LAYER_BYTES: u64 = 64 << 20;
/// Rows of the embedding and of the head.
const MAX_VOCAB: u32 = 8192;

impl Sketch {
    /// Of a model whose files are open.
    pub fn of<S: WeightSource>(checkpoint: &Checkpoint<S>) -> Self {
        Self::new(checkpoint.config(), |role| checkpoint.tensor(role).map(|info| info.dtype))
    }

    /// Of the default model: 30 layers in Q4_1 and an embedding in Q8_0.
    pub fn of_default_model() -> Self {
        let config = ModelConfig {
            name: "the default model".into(),
            hidden_size: 576,
            intermediate_size: 1536,
            num_layers: 30,
            num_heads: 9,
            num_kv_heads: 3,
            head_dim: 64,
            vocab_size: 49_152,
            max_context: 8192,
            rms_norm_eps: 1e-5,
            rope_theta: 1e5,
            rope_scaling: RopeScaling::None,
            rope_layout: RopeLayout::Interleaved,
            tie_embeddings: true,
            attention_bias: false,
            mlp_bias: false,
            activation: Activation::Silu,
            bos_token: None,
            eos_tokens: Vec::new(),
        };
        let needed = TensorRole::required(&config);
        Self::new(&config, |role| {
            needed.contains(&role).then(|| match role {
                TensorRole::Embedding => WeightFormat::Q8_0,
                role if role.is_layer_matrix() => WeightFormat::Q4_1,
                _ => WeightFormat::F32,
            })
        })
    }

    fn new(config: &ModelConfig, format: impl Fn(TensorRole) -> Option<WeightFormat>) -> Self {
        let mut roles = TensorRole::required(config);
        roles.extend(TensorRole::biases(config));
        let tensor = |config: &ModelConfig, role: TensorRole| {
            let dtype = format(role)?;
            let shape = role.shape(config);
            let num_bytes = dtype.tensor_bytes(&shape)?;
            Some(TensorInfo { name: format!("{role:?}"), dtype, shape, source_idx: 0, offset: 0, num_bytes })
        };
        let layer_bytes: u64 = (roles.iter())
            .filter(|role| role.layer() == Some(0))
            .filter_map(|&role| Some(tensor(config, role)?.num_bytes))
            .sum();
        let num_layers = (MAX_LAYER_BYTES / layer_bytes.max(1)).clamp(1, u64::from(config.num_layers)) as u32;
        let small =
            ModelConfig { num_layers, vocab_size: config.vocab_size.min(MAX_VOCAB), ..config.clone() };
        let tensors: BTreeMap<TensorRole, TensorInfo> = (roles.iter())
            .filter(|role| role.layer().is_none_or(|layer| layer < num_layers))
            .filter_map(|&role| Some((role, tensor(&small, role)?)))
            .collect();
        let formats = roles.iter().filter(|role| role.layer().is_none_or(|layer| layer == 0));
        let formats: Vec<_> = formats.map(|&role| format(role).map_or("-", |format| format.name())).collect();
        let shapes = format!(
            "{}x{}x{} {}/{}x{} {} {}",
            config.hidden_size,
            config.intermediate_size,
            config.num_layers,
            config.num_heads,
            config.num_kv_heads,
            config.head_dim,
            config.vocab_size,
            formats.join(",")
        );
        Self { checkpoint: Checkpoint::of_parts(Zeros, small, tensors), shapes }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sketch_has_the_shapes_of_its_model_and_few_layers() {
        let whole = Sketch::of_default_model();
        assert_eq!(
            whole.shapes,
            "576x1536x30 9/3x64 49152 q8_0,f32,f32,q4_1,q4_1,q4_1,q4_1,f32,q4_1,q4_1,q4_1"
        );
        let config = whole.checkpoint.config();
        // 2.2 MB a layer.
        assert_eq!((config.num_layers, config.vocab_size), (30, 8192));
        let again = Sketch::of(&whole.checkpoint);
        assert_eq!(again.checkpoint.total_bytes(), whole.checkpoint.total_bytes());
        let k = |sketch: &Sketch, role| sketch.checkpoint.tensor(role).map(|info| info.shape.clone());
        assert_eq!(k(&whole, TensorRole::Down(0)), Some(vec![576, 1536]));
        assert_eq!(k(&whole, TensorRole::Head), None);
    }

    #[test]
    fn a_large_model_is_cut_to_what_loads_quickly() {
        let small = Sketch::of_default_model();
        let config = ModelConfig {
            hidden_size: 2048,
            intermediate_size: 8192,
            num_layers: 16,
            num_heads: 32,
            num_kv_heads: 8,
            tie_embeddings: false,
            ..small.checkpoint.config().clone()
        };
        let large = Sketch::new(&config, |_| Some(WeightFormat::F16));
        let config = large.checkpoint.config();
        // 122 MB a layer: one of them is needed.
        assert_eq!((config.num_layers, config.vocab_size), (1, 8192));
        assert!(large.checkpoint.total_bytes() < 200 << 20, "{} bytes", large.checkpoint.total_bytes());
        assert_eq!(large.shapes, "2048x8192x16 32/8x64 8192 f16,f16,f16,f16,f16,f16,f16,f16,f16,f16,f16,f16");
    }
}

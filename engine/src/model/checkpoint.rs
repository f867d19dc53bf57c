//! A model's files, opened: the configuration, and for every role the tensor that plays it.
//!
//! It reads headers at open and ranges of tensors afterwards; it never keeps weights. Invariant: a [`Checkpoint`] has
//! every tensor that its configuration needs, each of the exact shape, and none that would change the mathematics.

use std::collections::{BTreeMap, HashSet};

use super::config::{ModelConfig, RopeScaling};
use super::gguf::GgufFile;
use super::roles::{Meaning, Naming};
use super::safetensors::open_safetensors;
use firstlight_shaders::WeightFormat;

use super::source::{TensorInfo, TensorRole, WeightSource, malformed, read_range, unsupported};
use crate::error::LoadError;

/// The largest published checkpoints have some hundreds.
const MAX_SHARDS: usize = 1024;

/// Open model files and what they hold.
#[derive(Debug)]
pub struct Checkpoint<S> {
    sources: Vec<S>,
    config: ModelConfig,
    tensors: BTreeMap<TensorRole, TensorInfo>,
    gguf: Option<GgufFile>,
}

impl<S: WeightSource> Checkpoint<S> {
    /// Opens a GGUF file.
    ///
    /// # Errors
    /// [`LoadError`], naming what is damaged, missing or not supported.
    pub async fn open_gguf(source: S) -> Result<Self, LoadError> {
        let file = GgufFile::open(&source).await?;
        let config = ModelConfig::from_gguf(&file)?;
        let tensors = assign(&file.name, Naming::Gguf, &config, file.tensors.clone())?;
        Ok(Self { sources: vec![source], config, tensors, gguf: Some(file) })
    }

    /// Opens the shards of a HuggingFace checkpoint, in any order, with the bytes of its `config.json`.
    ///
    /// # Errors
    /// [`LoadError`], naming what is damaged, missing or not supported.
    pub async fn open_safetensors(config_json: &[u8], shards: Vec<S>) -> Result<Self, LoadError> {
        let config = ModelConfig::from_config_json("config.json", config_json)?;
        let Some(first) = shards.first() else {
            return Err(malformed("the checkpoint", "it has no .safetensors file"));
        };
        let name = first.name();
        if shards.len() > MAX_SHARDS {
            return Err(malformed(&name, format!("{} shards; at most {MAX_SHARDS} are read", shards.len())));
        }
        let mut tensors = Vec::new();
        let mut names = HashSet::new();
        for (source_idx, shard) in shards.iter().enumerate() {
            for tensor in open_safetensors(shard, source_idx).await? {
                if !names.insert(tensor.name.clone()) {
                    let reason = format!("the tensor {} is in another shard as well", tensor.name);
                    return Err(malformed(&shard.name(), reason));
                }
                tensors.push(tensor);
            }
        }
        let tensors = assign(&name, Naming::HuggingFace, &config, tensors)?;
        Ok(Self { sources: shards, config, tensors, gguf: None })
    }

    /// A checkpoint that was made up: tensors of a configuration, all of them in `source`.
    pub(super) fn of_parts(
        source: S,
        config: ModelConfig,
        tensors: BTreeMap<TensorRole, TensorInfo>,
    ) -> Self {
        Self { sources: vec![source], config, tensors, gguf: None }
    }

    /// The hyper-parameters.
    pub fn config(&self) -> &ModelConfig {
        &self.config
    }

    /// The tensor of a role. `None` for a bias means zeros, for the head the embedding, for
    /// [`TensorRole::RopeFreqs`] that [`ModelConfig::rope_scaling`] says all.
    pub fn tensor(&self, role: TensorRole) -> Option<&TensorInfo> {
        self.tensors.get(&role)
    }

    /// All roles that are filled, in the order of [`TensorRole`].
    pub fn tensors(&self) -> impl Iterator<Item = (TensorRole, &TensorInfo)> {
        self.tensors.iter().map(|(role, info)| (*role, info))
    }

    /// `len` bytes of a tensor from its `first_byte`, so that a large one can be read in ranges of rows.
    ///
    /// # Errors
    /// [`LoadError::Malformed`] where the range leaves the tensor, [`LoadError::Read`] from the host.
    pub async fn read(&self, info: &TensorInfo, first_byte: u64, len: usize) -> Result<Vec<u8>, LoadError> {
        let range_end = first_byte.checked_add(len as u64).filter(|end| *end <= info.num_bytes);
        let offset = info.offset.checked_add(first_byte);
        let (Some(source), Some(offset), Some(_)) = (self.sources.get(info.source_idx), offset, range_end)
        else {
            let asked = format!("{len} bytes from byte {first_byte} were asked for");
            return Err(malformed(&info.name, format!("{asked}, and the tensor has {}", info.num_bytes)));
        };
        read_range(source, offset, len).await
    }

    /// The GGUF header, where the model came from one: its tokenizer and chat template are there.
    pub fn gguf(&self) -> Option<&GgufFile> {
        self.gguf.as_ref()
    }

    /// Bytes of all tensors that the model uses.
    pub fn total_bytes(&self) -> u64 {
        self.tensors.values().map(|tensor| tensor.num_bytes).sum()
    }

    /// Bytes of all layers' tensors, and how many numbers they have.
    pub fn layers_size(&self) -> (u64, u64) {
        let layers = self.tensors().filter(|(role, _)| role.layer().is_some());
        layers.fold((0, 0), |(bytes, numbers), (_, tensor)| {
            (bytes + tensor.num_bytes, numbers + tensor.shape.iter().product::<u64>())
        })
    }

    /// The same of the output head, which may be the embedding.
    pub fn head_size(&self) -> (u64, u64) {
        let head = self.tensor(TensorRole::Head).or_else(|| self.tensor(TensorRole::Embedding));
        head.map_or((0, 0), |tensor| (tensor.num_bytes, tensor.shape.iter().product()))
    }

    /// The type that most of the model's elements have, for example "Q4_1".
    pub fn quantisation(&self) -> String {
        let mut elements: Vec<(WeightFormat, u64)> = Vec::new();
        for tensor in self.tensors.values() {
            let count: u64 = tensor.shape.iter().product();
            match elements.iter_mut().find(|(dtype, _)| *dtype == tensor.dtype) {
                Some((_, sum)) => *sum += count,
                None => elements.push((tensor.dtype, count)),
            }
        }
        let dominant = elements.iter().max_by_key(|(_, sum)| *sum);
        dominant.map_or(String::new(), |(dtype, _)| dtype.title().to_owned())
    }
}

/// Gives every tensor its role, and checks that all roles are filled by the right shapes.
fn assign(
    file: &str,
    naming: Naming,
    config: &ModelConfig,
    tensors: Vec<TensorInfo>,
) -> Result<BTreeMap<TensorRole, TensorInfo>, LoadError> {
    let mut assigned = BTreeMap::new();
    for tensor in tensors {
        let role = match naming.meaning(&tensor.name) {
            Meaning::Role(role) => role,
            Meaning::Harmless => continue,
            Meaning::Unknown => {
                let reason = format!("the tensor {} has no place in the Llama family", tensor.name);
                return Err(unsupported(file, reason));
            }
        };
        // Tied checkpoints sometimes carry a copy of the embedding as their head.
        if role == TensorRole::Head && config.tie_embeddings {
            continue;
        }
        check_role(file, config, &tensor, role)?;
        assigned.insert(role, tensor);
    }
    let mut needed = TensorRole::required(config);
    // HuggingFace's flags promise every bias; in GGUF the flags follow from the tensors, each of which may be absent.
    if naming == Naming::HuggingFace {
        needed.extend(TensorRole::biases(config));
    }
    if let Some(missing) = needed.into_iter().find(|role| !assigned.contains_key(role)) {
        let (name, shape) = (naming.name(missing), missing.shape(config));
        return Err(malformed(file, format!("the tensor {name} of shape {shape:?} is missing")));
    }
    Ok(assigned)
}

fn check_role(
    file: &str,
    config: &ModelConfig,
    tensor: &TensorInfo,
    role: TensorRole,
) -> Result<(), LoadError> {
    let name = &tensor.name;
    if role.layer().is_some_and(|layer| layer >= config.num_layers) {
        let reason =
            format!("the tensor {name} lies beyond the {} layers of its configuration", config.num_layers);
        return Err(malformed(file, reason));
    }
    if role.is_attention_bias() && !config.attention_bias || role.is_mlp_bias() && !config.mlp_bias {
        let reason = format!("the tensor {name} is a bias, and the configuration says that there is none");
        return Err(unsupported(file, reason));
    }
    if role == TensorRole::RopeFreqs && config.rope_scaling != RopeScaling::None {
        let reason = format!("the tensor {name} beside a rope scaling rule; one of the two is supported");
        return Err(unsupported(file, reason));
    }
    let expected = role.shape(config);
    if tensor.shape != expected {
        let reason =
            format!("the tensor {name} has the shape {:?}, and {expected:?} is expected", tensor.shape);
        return Err(malformed(file, reason));
    }
    Ok(())
}

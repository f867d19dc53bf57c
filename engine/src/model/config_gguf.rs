//! Hyper-parameters from GGUF metadata.
//!
//! It never guesses: a `llama.*` key that it does not know is refused, because it might change the mathematics.
//! Invariant: every `llama.*` key was used, or is known to be without effect at the value it has.

use super::config::{Activation, ModelConfig, RopeLayout, RopeScaling};
use super::gguf::{GgufFile, GgufValue};
use super::roles::{Meaning, Naming};
use super::source::{TensorRole, malformed, unsupported};
use crate::error::LoadError;

/// Keys that are read below.
const USED: &[&str] = &[
    "attention.head_count",
    "attention.head_count_kv",
    "attention.key_length",
    "attention.layer_norm_rms_epsilon",
    "attention.value_length",
    "block_count",
    "context_length",
    "embedding_length",
    "feed_forward_length",
    "rope.dimension_count",
    "rope.freq_base",
    "rope.scale_linear",
    "rope.scaling.factor",
    "rope.scaling.type",
    "vocab_size",
];

/// Keys that describe how a rule came about and change nothing.
const WITHOUT_EFFECT: &[&str] = &["rope.scaling.finetuned", "rope.scaling.original_context_length"];

/// Keys that change nothing at this number (booleans count as 0 and 1).
const NEUTRAL: &[(&str, f32)] = &[
    ("attention.causal", 1.0),
    ("attention.clamp_kqv", 0.0),
    ("attention.max_alibi_bias", 0.0),
    ("attention.sliding_window", 0.0),
    ("attn_logit_softcapping", 0.0),
    ("embedding_scale", 1.0),
    ("expert_count", 0.0),
    ("expert_used_count", 0.0),
    ("final_logit_softcapping", 0.0),
    ("logit_scale", 1.0),
    ("residual_scale", 1.0),
    ("rope.scaling.attn_factor", 1.0),
    ("use_parallel_residual", 0.0),
];

/// Where the metadata names tokens that end an answer.
const END_TOKENS: &[&str] =
    &["tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id", "tokenizer.ggml.eom_token_id"];

impl ModelConfig {
    /// The hyper-parameters of a GGUF file of the architecture `llama`.
    ///
    /// # Errors
    /// [`LoadError::Unsupported`] for another architecture or a setting that would change the mathematics, by name;
    /// [`LoadError::Malformed`] for a key that is missing or has the wrong type or an impossible value.
    pub fn from_gguf(file: &GgufFile) -> Result<Self, LoadError> {
        check_kind(file)?;
        for (key, value) in &file.metadata {
            if let Some(short) = key.strip_prefix("llama.") {
                check_key(file, short, value)?;
            }
        }
        let hidden_size = required(file, "llama.embedding_length")?;
        let num_heads = required(file, "llama.attention.head_count")?;
        let present = |wanted: fn(TensorRole) -> bool| {
            let role_of = |name: &str| match Naming::Gguf.meaning(name) {
                Meaning::Role(role) => Some(role),
                _ => None,
            };
            file.tensors.iter().filter_map(|tensor| role_of(&tensor.name)).any(wanted)
        };
        let config = Self {
            name: file.str("general.name")?.unwrap_or(&file.name).to_owned(),
            hidden_size,
            intermediate_size: required(file, "llama.feed_forward_length")?,
            num_layers: required(file, "llama.block_count")?,
            num_heads,
            num_kv_heads: file.u32("llama.attention.head_count_kv")?.unwrap_or(num_heads),
            head_dim: head_dim(file, hidden_size, num_heads)?,
            vocab_size: vocab_size(file)?,
            max_context: required(file, "llama.context_length")?,
            rms_norm_eps: file
                .f32("llama.attention.layer_norm_rms_epsilon")?
                .ok_or_else(|| missing(file, "llama.attention.layer_norm_rms_epsilon"))?,
            rope_theta: file.f32("llama.rope.freq_base")?.unwrap_or(10_000.0),
            rope_scaling: rope_scaling(file)?,
            rope_layout: RopeLayout::Interleaved,
            tie_embeddings: !present(|role| role == TensorRole::Head),
            attention_bias: present(TensorRole::is_attention_bias),
            mlp_bias: present(TensorRole::is_mlp_bias),
            activation: Activation::Silu,
            bos_token: file.u32("tokenizer.ggml.bos_token_id")?,
            eos_tokens: end_tokens(file)?,
        };
        config.check(&file.name)?;
        Ok(config)
    }
}

fn check_kind(file: &GgufFile) -> Result<(), LoadError> {
    match file.str("general.architecture")? {
        Some("llama") => {}
        Some(other) => {
            return Err(unsupported(&file.name, format!("the architecture {other}; llama is supported")));
        }
        None => return Err(missing(file, "general.architecture")),
    }
    if let Some(kind) = file.str("general.type")?.filter(|kind| *kind != "model") {
        return Err(unsupported(&file.name, format!("general.type is {kind}; a whole model is needed")));
    }
    if let Some(count) = file.u32("split.count")?.filter(|count| *count > 1) {
        let reason = format!("it is one of {count} parts (split.count); merge them into one file");
        return Err(unsupported(&file.name, reason));
    }
    match file.u32("general.quantization_version")? {
        None | Some(2) => Ok(()),
        Some(version) => {
            let reason = format!("general.quantization_version is {version}; version 2 is supported");
            Err(unsupported(&file.name, reason))
        }
    }
}

/// Refuses a `llama.*` key that is unknown, or known to change the mathematics at its value.
fn check_key(file: &GgufFile, short: &str, value: &GgufValue) -> Result<(), LoadError> {
    if WITHOUT_EFFECT.contains(&short) {
        return Ok(());
    }
    if USED.contains(&short) {
        let single = value.as_f32().is_some() || value.as_str().is_some();
        // Some relatives give every layer its own number.
        return match single {
            true => Ok(()),
            false => {
                Err(unsupported(&file.name, format!("llama.{short} is {}, not one value", value.kind())))
            }
        };
    }
    // The layout of the original release, which is GGUF's own.
    if short == "tensor_data_layout" && value.as_str() == Some("Meta AI original pth") {
        return Ok(());
    }
    let number = value.as_f32().or(value.as_bool().map(f32::from));
    let neutral = NEUTRAL.iter().find(|(known, _)| *known == short);
    let shown = match (number, value.as_str()) {
        (Some(number), _) => number.to_string(),
        (None, Some(text)) => text.to_owned(),
        (None, None) => value.kind().to_owned(),
    };
    match neutral {
        Some((_, harmless)) if number == Some(*harmless) => Ok(()),
        Some((_, harmless)) => {
            Err(unsupported(&file.name, format!("llama.{short} is {shown}; only {harmless} is supported")))
        }
        None => {
            let reason = format!("llama.{short} ({shown}) is unknown and might change the mathematics");
            Err(unsupported(&file.name, reason))
        }
    }
}

fn missing(file: &GgufFile, key: &str) -> LoadError {
    malformed(&file.name, format!("the metadata key {key} is missing"))
}

fn required(file: &GgufFile, key: &str) -> Result<u32, LoadError> {
    file.u32(key)?.ok_or_else(|| missing(file, key))
}

fn head_dim(file: &GgufFile, hidden_size: u32, num_heads: u32) -> Result<u32, LoadError> {
    let derived =
        hidden_size.checked_div(num_heads).filter(|size| size.checked_mul(num_heads) == Some(hidden_size));
    let key_length = file.u32("llama.attention.key_length")?;
    let Some(head_dim) = key_length.or(derived) else {
        let reason =
            format!("{num_heads} heads do not divide the width {hidden_size}, and no key_length is given");
        return Err(malformed(&file.name, reason));
    };
    for key in ["llama.attention.value_length", "llama.rope.dimension_count"] {
        if let Some(other) = file.u32(key)?.filter(|other| *other != head_dim) {
            let reason =
                format!("{key} is {other} and the head size {head_dim}; only equal ones are supported");
            return Err(unsupported(&file.name, reason));
        }
    }
    Ok(head_dim)
}

/// The embedding's rows decide, because old files have no `vocab_size`; where both are there they must agree, which
/// the check of shapes sees to.
fn vocab_size(file: &GgufFile) -> Result<u32, LoadError> {
    if let Some(size) = file.u32("llama.vocab_size")? {
        return Ok(size);
    }
    let embedding = file.tensors.iter().find(|tensor| Naming::Gguf.meaning(&tensor.name) == EMBEDDING);
    let rows = embedding.and_then(|tensor| tensor.shape.first()).and_then(|rows| u32::try_from(*rows).ok());
    rows.ok_or_else(|| missing(file, "llama.vocab_size"))
}

const EMBEDDING: Meaning = Meaning::Role(TensorRole::Embedding);

fn rope_scaling(file: &GgufFile) -> Result<RopeScaling, LoadError> {
    // The second key is that of early files.
    let factor = file.f32("llama.rope.scaling.factor")?.or(file.f32("llama.rope.scale_linear")?);
    match file.str("llama.rope.scaling.type")? {
        Some("none") => Ok(RopeScaling::None),
        Some("linear") => {
            let factor = factor.ok_or_else(|| missing(file, "llama.rope.scaling.factor"))?;
            Ok(RopeScaling::Linear { factor })
        }
        Some(other) => {
            let reason = format!("llama.rope.scaling.type is {other}; none and linear are supported");
            Err(unsupported(&file.name, reason))
        }
        // llama.cpp takes a factor alone as linear, and 0 as none.
        None => match factor {
            Some(factor) if factor != 1.0 && factor != 0.0 => Ok(RopeScaling::Linear { factor }),
            _ => Ok(RopeScaling::None),
        },
    }
}

fn end_tokens(file: &GgufFile) -> Result<Vec<u32>, LoadError> {
    let mut tokens = Vec::new();
    for key in END_TOKENS {
        match file.u32(key)? {
            Some(token) if !tokens.contains(&token) => tokens.push(token),
            _ => {}
        }
    }
    Ok(tokens)
}

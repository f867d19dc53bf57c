//! Hyper-parameters from a HuggingFace `config.json`.
//!
//! It never lets a setting pass that it does not understand and whose name sounds like mathematics. Invariant: what is
//! accepted is the Llama block as transformers computes it.

use serde_json::{Map, Value};

use super::config::{Activation, ModelConfig, RopeLayout, RopeScaling};
use super::source::{malformed, unsupported};
use crate::error::LoadError;

/// Real ones have some kilobytes.
const MAX_CONFIG_BYTES: usize = 1 << 20;

/// Keys that change nothing at this number (booleans count as 0 and 1); null is always neutral.
const NEUTRAL: &[(&str, f64)] = &[
    ("attention_multiplier", 1.0),
    ("attn_logit_softcapping", 0.0),
    ("embedding_multiplier", 1.0),
    ("final_logit_softcapping", 0.0),
    ("logit_scale", 1.0),
    ("logits_scaling", 1.0),
    ("num_experts", 0.0),
    ("num_local_experts", 0.0),
    ("partial_rotary_factor", 1.0),
    ("pretraining_tp", 1.0),
    ("residual_multiplier", 1.0),
    ("rope_interleaved", 0.0),
    ("use_sliding_window", 0.0),
];

/// Parts of a name that sound like mathematics: a key with one of them that is not known is refused unless it is null,
/// false, 0 or empty.
const SUSPICIOUS: &[&str] = &[
    "alibi",
    "bidirectional",
    "clip",
    "expert",
    "moe",
    "multiplier",
    "norm",
    "parallel",
    "quantization",
    "rope",
    "rotary",
    "scal",
    "sliding",
    "softcap",
    "window",
];

/// Keys that are read below, or belong to training, and contain one of the above.
const KNOWN: &[&str] = &[
    "rms_norm_eps",
    "rope_parameters",
    "rope_scaling",
    "rope_theta",
    "max_window_layers",
    "tie_word_embeddings",
];

/// Settings of the rope dictionary that are read or without effect on the supported rules.
const ROPE_KEYS: &[&str] = &[
    "factor",
    "finetuned",
    "high_freq_factor",
    "low_freq_factor",
    "original_max_position_embeddings",
    "partial_rotary_factor",
    "rope_theta",
    "rope_type",
    "type",
];

impl ModelConfig {
    /// The hyper-parameters of a `config.json` of the model type `llama`; `file` is its name for errors.
    ///
    /// # Errors
    /// [`LoadError::Unsupported`] for another architecture or a setting that would change the mathematics, by name;
    /// [`LoadError::Malformed`] for a key that is missing or has the wrong type or an impossible value.
    pub fn from_config_json(file: &str, json: &[u8]) -> Result<Self, LoadError> {
        if json.len() > MAX_CONFIG_BYTES {
            let reason =
                format!("a configuration of {} bytes; at most {MAX_CONFIG_BYTES} are read", json.len());
            return Err(malformed(file, reason));
        }
        let object: Map<String, Value> = serde_json::from_slice(json)
            .map_err(|error| malformed(file, format!("not the JSON object of a model: {error}")))?;
        let settings = Settings { file, object: &object };
        settings.check_architecture()?;
        settings.check_mathematics()?;
        let hidden_size = settings.required_u32("hidden_size")?;
        let num_heads = settings.required_u32("num_attention_heads")?;
        let (rope_theta, rope_scaling) = settings.rope()?;
        let config = Self {
            name: settings.name(),
            hidden_size,
            intermediate_size: settings.required_u32("intermediate_size")?,
            num_layers: settings.required_u32("num_hidden_layers")?,
            num_heads,
            num_kv_heads: settings.u32("num_key_value_heads")?.unwrap_or(num_heads),
            head_dim: settings.head_dim(hidden_size, num_heads)?,
            vocab_size: settings.required_u32("vocab_size")?,
            max_context: settings.u32("max_position_embeddings")?.unwrap_or(2048),
            rms_norm_eps: settings.f32("rms_norm_eps")?.unwrap_or(1e-6),
            rope_theta,
            rope_scaling,
            rope_layout: RopeLayout::Halves,
            tie_embeddings: settings.bool("tie_word_embeddings")?.unwrap_or(false),
            attention_bias: settings.bool("attention_bias")?.unwrap_or(false),
            mlp_bias: settings.bool("mlp_bias")?.unwrap_or(false),
            activation: Activation::Silu,
            bos_token: settings.token_ids("bos_token_id")?.first().copied(),
            eos_tokens: settings.token_ids("eos_token_id")?,
        };
        config.check(file)?;
        Ok(config)
    }
}

/// A JSON object and what to call it.
struct Settings<'a> {
    file: &'a str,
    object: &'a Map<String, Value>,
}

impl<'a> Settings<'a> {
    /// A value that is there and not null.
    fn get(&self, key: &str) -> Option<&'a Value> {
        self.object.get(key).filter(|value| !value.is_null())
    }

    fn typed<T>(
        &self,
        key: &str,
        wanted: &str,
        read: impl Fn(&Value) -> Option<T>,
    ) -> Result<Option<T>, LoadError> {
        let Some(value) = self.get(key) else { return Ok(None) };
        let wrong = || malformed(self.file, format!("{key} should be {wanted} and is {value}"));
        read(value).map(Some).ok_or_else(wrong)
    }

    fn u32(&self, key: &str) -> Result<Option<u32>, LoadError> {
        self.typed(key, "an integer from 0 to 4294967295", |value| value.as_u64()?.try_into().ok())
    }

    fn required_u32(&self, key: &str) -> Result<u32, LoadError> {
        self.u32(key)?.ok_or_else(|| malformed(self.file, format!("{key} is missing")))
    }

    fn f32(&self, key: &str) -> Result<Option<f32>, LoadError> {
        self.typed(key, "a number", |value| value.as_f64().map(|number| number as f32))
    }

    fn required_f32(&self, key: &str) -> Result<f32, LoadError> {
        self.f32(key)?.ok_or_else(|| malformed(self.file, format!("{key} is missing")))
    }

    fn bool(&self, key: &str) -> Result<Option<bool>, LoadError> {
        self.typed(key, "true or false", Value::as_bool)
    }

    fn str(&self, key: &str) -> Result<Option<&'a str>, LoadError> {
        match self.get(key) {
            None => Ok(None),
            Some(Value::String(text)) => Ok(Some(text)),
            Some(value) => Err(malformed(self.file, format!("{key} should be a string and is {value}"))),
        }
    }

    /// One id or a list of them. Negative ones are a habit for "none".
    fn token_ids(&self, key: &str) -> Result<Vec<u32>, LoadError> {
        let ids = match self.get(key) {
            None => return Ok(Vec::new()),
            Some(Value::Array(values)) => values.as_slice(),
            Some(value) => std::slice::from_ref(value),
        };
        let mut tokens = Vec::new();
        for id in ids {
            let Some(number) = id.as_i64() else {
                return Err(malformed(self.file, format!("{key} should name token ids and has {id}")));
            };
            match u32::try_from(number) {
                Ok(token) if !tokens.contains(&token) => tokens.push(token),
                Ok(_) => {}
                Err(_) if number < 0 => {}
                Err(_) => {
                    return Err(malformed(self.file, format!("{key} has the impossible token id {number}")));
                }
            }
        }
        Ok(tokens)
    }

    fn name(&self) -> String {
        match self.object.get("_name_or_path").and_then(Value::as_str) {
            Some(name) if !name.is_empty() => name.to_owned(),
            _ => "llama".to_owned(),
        }
    }

    fn check_architecture(&self) -> Result<(), LoadError> {
        let model_type = self.str("model_type")?;
        let architectures = match self.get("architectures") {
            None => Vec::new(),
            Some(Value::Array(values)) => values.iter().filter_map(Value::as_str).collect(),
            Some(value) => {
                return Err(malformed(self.file, format!("architectures should be a list and is {value}")));
            }
        };
        let known = architectures.contains(&"LlamaForCausalLM");
        match model_type {
            Some("llama") if known || architectures.is_empty() => Ok(()),
            None if known => Ok(()),
            None if architectures.is_empty() => Err(malformed(self.file, "model_type is missing")),
            _ => {
                let found =
                    format!("the architecture {} {architectures:?}", model_type.unwrap_or("without a type"));
                Err(unsupported(self.file, format!("{found}; llama (LlamaForCausalLM) is supported")))
            }
        }
    }

    fn check_mathematics(&self) -> Result<(), LoadError> {
        if let Some(act) = self.str("hidden_act")?.filter(|act| !matches!(*act, "silu" | "swish")) {
            return Err(unsupported(self.file, format!("hidden_act is {act}; silu is supported")));
        }
        for (key, value) in self.object {
            let accepted = match key.as_str() {
                // Which layers look back how far, and which have rope: only the plain kinds.
                "layer_types" => entries(value, |entry| entry.as_str() == Some("full_attention")),
                // 1 stands for a layer that has rope.
                "no_rope_layers" => entries(value, |entry| number(entry) == Some(1.0)),
                key => match NEUTRAL.iter().find(|(known, _)| *known == key) {
                    Some((_, harmless)) => value.is_null() || number(value) == Some(*harmless),
                    None => KNOWN.contains(&key) || !suspicious(key) || is_off(value),
                },
            };
            if !accepted {
                let reason = format!("{key} is {value}, which would change the mathematics");
                return Err(unsupported(self.file, reason));
            }
        }
        Ok(())
    }

    fn head_dim(&self, hidden_size: u32, num_heads: u32) -> Result<u32, LoadError> {
        if let Some(head_dim) = self.u32("head_dim")? {
            return Ok(head_dim);
        }
        let derived = hidden_size.checked_div(num_heads);
        derived.filter(|size| size.checked_mul(num_heads) == Some(hidden_size)).ok_or_else(|| {
            let reason =
                format!("{num_heads} heads do not divide the width {hidden_size}, and no head_dim is given");
            malformed(self.file, reason)
        })
    }

    /// Base and scaling of the rotary frequencies, in the new form (`rope_parameters`) or the old one.
    fn rope(&self) -> Result<(f32, RopeScaling), LoadError> {
        let dictionary = match (self.get("rope_parameters"), self.get("rope_scaling")) {
            (Some(new), Some(old)) if new != old => {
                return Err(malformed(
                    self.file,
                    "rope_parameters and rope_scaling are both there and differ",
                ));
            }
            (new, old) => new.or(old),
        };
        let outer_theta = self.f32("rope_theta")?;
        let Some(dictionary) = dictionary else {
            return Ok((outer_theta.unwrap_or(10_000.0), RopeScaling::None));
        };
        let Value::Object(object) = dictionary else {
            return Err(malformed(
                self.file,
                format!("the rope settings should be an object and are {dictionary}"),
            ));
        };
        let rope = Settings { file: self.file, object };
        if let Some((key, value)) = object.iter().find(|(key, _)| !ROPE_KEYS.contains(&key.as_str())) {
            let reason =
                format!("the rope setting {key} ({value}) is unknown and might change the mathematics");
            return Err(unsupported(self.file, reason));
        }
        if let Some(factor) = rope.f32("partial_rotary_factor")?.filter(|factor| *factor != 1.0) {
            let reason = format!("partial_rotary_factor is {factor}; only 1 is supported");
            return Err(unsupported(self.file, reason));
        }
        let theta = rope.f32("rope_theta")?.or(outer_theta).unwrap_or(10_000.0);
        let scaling = match rope.str("rope_type")?.or(rope.str("type")?) {
            None | Some("default") => RopeScaling::None,
            Some("linear") => RopeScaling::Linear { factor: rope.required_f32("factor")? },
            Some("llama3") => RopeScaling::Llama3 {
                factor: rope.required_f32("factor")?,
                low_freq_factor: rope.required_f32("low_freq_factor")?,
                high_freq_factor: rope.required_f32("high_freq_factor")?,
                original_context: rope.required_u32("original_max_position_embeddings")?,
            },
            Some(other) => {
                let reason = format!("the rope scaling {other}; default, linear and llama3 are supported");
                return Err(unsupported(self.file, reason));
            }
        };
        Ok((theta, scaling))
    }
}

/// Null, or a list whose every entry is accepted.
fn entries(value: &Value, accepted: impl Fn(&Value) -> bool) -> bool {
    value.is_null() || value.as_array().is_some_and(|entries| entries.iter().all(accepted))
}

/// A number, or a boolean as 0 or 1.
fn number(value: &Value) -> Option<f64> {
    value.as_f64().or(value.as_bool().map(f64::from))
}

fn suspicious(key: &str) -> bool {
    let key = key.to_ascii_lowercase();
    SUSPICIOUS.iter().any(|part| key.contains(part))
}

/// A setting that is switched off.
fn is_off(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Array(entries) => entries.is_empty(),
        Value::Object(entries) => entries.is_empty(),
        Value::String(text) => text.is_empty(),
        other => number(other) == Some(0.0),
    }
}

//! Which tensor plays which role, in the names of GGUF and of HuggingFace, and the shape that each role must have.
//!
//! It never looks at a file. Invariant: a name stands for one role, and a role has one name in each scheme.

use super::config::ModelConfig;
use super::source::TensorRole::{self, *};

/// What a tensor's name means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Meaning {
    /// A part of the model.
    Role(TensorRole),
    /// Derived data that the engine computes itself.
    Harmless,
    /// Nothing that the Llama family has.
    Unknown,
}

/// A naming scheme.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Naming {
    /// llama.cpp's.
    Gguf,
    /// transformers'.
    HuggingFace,
}

type LayerRole = fn(u32) -> TensorRole;

const GGUF_MODEL: &[(&str, TensorRole)] = &[
    ("token_embd.weight", Embedding),
    ("output_norm.weight", OutputNorm),
    ("output.weight", Head),
    ("rope_freqs.weight", RopeFreqs),
];

const GGUF_LAYER: &[(&str, LayerRole)] = &[
    ("attn_norm.weight", AttentionNorm),
    ("attn_q.weight", Q),
    ("attn_k.weight", K),
    ("attn_v.weight", V),
    ("attn_output.weight", O),
    ("attn_q.bias", QBias),
    ("attn_k.bias", KBias),
    ("attn_v.bias", VBias),
    ("attn_output.bias", OBias),
    ("ffn_norm.weight", MlpNorm),
    ("ffn_gate.weight", Gate),
    ("ffn_up.weight", Up),
    ("ffn_down.weight", Down),
    ("ffn_gate.bias", GateBias),
    ("ffn_up.bias", UpBias),
    ("ffn_down.bias", DownBias),
];

const HF_MODEL: &[(&str, TensorRole)] =
    &[("model.embed_tokens.weight", Embedding), ("model.norm.weight", OutputNorm), ("lm_head.weight", Head)];

const HF_LAYER: &[(&str, LayerRole)] = &[
    ("input_layernorm.weight", AttentionNorm),
    ("self_attn.q_proj.weight", Q),
    ("self_attn.k_proj.weight", K),
    ("self_attn.v_proj.weight", V),
    ("self_attn.o_proj.weight", O),
    ("self_attn.q_proj.bias", QBias),
    ("self_attn.k_proj.bias", KBias),
    ("self_attn.v_proj.bias", VBias),
    ("self_attn.o_proj.bias", OBias),
    ("post_attention_layernorm.weight", MlpNorm),
    ("mlp.gate_proj.weight", Gate),
    ("mlp.up_proj.weight", Up),
    ("mlp.down_proj.weight", Down),
    ("mlp.gate_proj.bias", GateBias),
    ("mlp.up_proj.bias", UpBias),
    ("mlp.down_proj.bias", DownBias),
];

impl Naming {
    fn model(self) -> &'static [(&'static str, TensorRole)] {
        match self {
            Self::Gguf => GGUF_MODEL,
            Self::HuggingFace => HF_MODEL,
        }
    }

    fn layer(self) -> (&'static str, &'static [(&'static str, LayerRole)]) {
        match self {
            Self::Gguf => ("blk.", GGUF_LAYER),
            Self::HuggingFace => ("model.layers.", HF_LAYER),
        }
    }

    /// What the tensor `name` is.
    pub(super) fn meaning(self, name: &str) -> Meaning {
        if let Some((_, role)) = self.model().iter().find(|(known, _)| *known == name) {
            return Meaning::Role(*role);
        }
        if name == "model.rotary_emb.inv_freq" {
            return Meaning::Harmless;
        }
        let (prefix, roles) = self.layer();
        let Some((number, suffix)) = name.strip_prefix(prefix).and_then(|rest| rest.split_once('.')) else {
            return Meaning::Unknown;
        };
        // "007" and "+7" would be second names of layer 7.
        let Some(layer) = number.parse::<u32>().ok().filter(|layer| layer.to_string() == number) else {
            return Meaning::Unknown;
        };
        if matches!(suffix, "self_attn.rotary_emb.inv_freq" | "attn_rot_embd.weight") {
            return Meaning::Harmless;
        }
        match roles.iter().find(|(known, _)| *known == suffix) {
            Some((_, role)) => Meaning::Role(role(layer)),
            None => Meaning::Unknown,
        }
    }

    /// What a file of this scheme calls `role`.
    pub(super) fn name(self, role: TensorRole) -> String {
        if let Some((name, _)) = self.model().iter().find(|(_, known)| *known == role) {
            return (*name).to_owned();
        }
        let (prefix, roles) = self.layer();
        let layer = role.layer().unwrap_or(0);
        match roles.iter().find(|(_, known)| known(layer) == role) {
            Some((suffix, _)) => format!("{prefix}{layer}.{suffix}"),
            None => format!("{role:?}"),
        }
    }
}

impl TensorRole {
    /// The layer it belongs to; `None` for what the model has once.
    pub fn layer(self) -> Option<u32> {
        match self {
            Embedding | OutputNorm | Head | RopeFreqs => None,
            AttentionNorm(layer) | Q(layer) | K(layer) | V(layer) | O(layer) => Some(layer),
            QBias(layer) | KBias(layer) | VBias(layer) | OBias(layer) => Some(layer),
            MlpNorm(layer) | Gate(layer) | Up(layer) | Down(layer) => Some(layer),
            GateBias(layer) | UpBias(layer) | DownBias(layer) => Some(layer),
        }
    }

    /// Whether it is a bias of the attention.
    pub fn is_attention_bias(self) -> bool {
        matches!(self, QBias(_) | KBias(_) | VBias(_) | OBias(_))
    }

    /// Whether it is a bias of the feed-forward layer.
    pub fn is_mlp_bias(self) -> bool {
        matches!(self, GateBias(_) | UpBias(_) | DownBias(_))
    }

    /// The shape it must have in a model of this configuration, outermost dimension first.
    pub fn shape(self, config: &ModelConfig) -> Vec<u64> {
        let hidden = u64::from(config.hidden_size);
        let inner = u64::from(config.intermediate_size);
        let head = u64::from(config.head_dim);
        let q_width = u64::from(config.num_heads) * head;
        let kv_width = u64::from(config.num_kv_heads) * head;
        match self {
            Embedding | Head => vec![u64::from(config.vocab_size), hidden],
            OutputNorm | AttentionNorm(_) | MlpNorm(_) | OBias(_) | DownBias(_) => vec![hidden],
            Q(_) => vec![q_width, hidden],
            K(_) | V(_) => vec![kv_width, hidden],
            O(_) => vec![hidden, q_width],
            QBias(_) => vec![q_width],
            KBias(_) | VBias(_) => vec![kv_width],
            Gate(_) | Up(_) => vec![inner, hidden],
            Down(_) => vec![hidden, inner],
            GateBias(_) | UpBias(_) => vec![inner],
            RopeFreqs => vec![head / 2],
        }
    }

    /// The roles without which a model of this configuration cannot run; biases are not among them.
    pub fn required(config: &ModelConfig) -> Vec<Self> {
        let mut roles = vec![Embedding, OutputNorm];
        if !config.tie_embeddings {
            roles.push(Head);
        }
        for layer in 0..config.num_layers {
            let of_layer: [LayerRole; 9] = [AttentionNorm, Q, K, V, O, MlpNorm, Gate, Up, Down];
            roles.extend(of_layer.map(|role| role(layer)));
        }
        roles
    }

    /// The biases that a configuration with `attention_bias` and `mlp_bias` promises.
    pub fn biases(config: &ModelConfig) -> Vec<Self> {
        let attention: &[LayerRole] = if config.attention_bias { &[QBias, KBias, VBias, OBias] } else { &[] };
        let mlp: &[LayerRole] = if config.mlp_bias { &[GateBias, UpBias, DownBias] } else { &[] };
        let of_layer = |layer| attention.iter().chain(mlp).map(move |role| role(layer));
        (0..config.num_layers).flat_map(of_layer).collect()
    }
}

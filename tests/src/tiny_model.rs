//! Tiny random Llama models as GGUF files, of any tensor type.

use firstlight_engine::model::{Checkpoint, GgufValue, MemorySource, RopeLayout, TensorRole, WeightSource};
use firstlight_shaders::WeightFormat;

use crate::gguf_writer::GgufWriter;

/// Dimensions of a tiny model. For block types every width is a multiple of 32.
#[derive(Clone, Debug)]
pub struct TinyModel {
    /// Width of the residual stream.
    pub hidden_size: u64,
    /// Width of the feed-forward layer.
    pub intermediate_size: u64,
    /// Transformer blocks.
    pub num_layers: u64,
    /// Query heads.
    pub num_heads: u64,
    /// Key and value heads.
    pub num_kv_heads: u64,
    /// Dimensions of a head.
    pub head_dim: u64,
    /// Rows of the embedding.
    pub vocab_size: u64,
    /// Type of all matrices; norms and biases are F32.
    pub matrix_type: WeightFormat,
    /// Type of the v and up matrices, where it is another: they then cannot be fused with q, k and gate.
    pub odd_type: Option<WeightFormat>,
    /// Whether the head is the embedding.
    pub tied: bool,
    /// Whether q, k, v, o, gate, up and down have biases.
    pub biases: bool,
    /// Linear rope scaling by this factor.
    pub rope_factor: Option<f64>,
    /// Seed of the weights.
    pub seed: u64,
}

impl Default for TinyModel {
    fn default() -> Self {
        Self {
            hidden_size: 64,
            intermediate_size: 96,
            num_layers: 2,
            num_heads: 4,
            num_kv_heads: 2,
            head_dim: 16,
            vocab_size: 160,
            matrix_type: WeightFormat::F32,
            odd_type: None,
            tied: true,
            biases: false,
            rope_factor: None,
            seed: 1,
        }
    }
}

impl TinyModel {
    /// The file, still open to changes.
    pub fn gguf(&self) -> GgufWriter {
        let mut writer = GgufWriter::default();
        let number = GgufValue::Uint;
        let pairs = [
            ("general.architecture", GgufValue::Str("llama".into())),
            ("general.name", GgufValue::Str("tiny".into())),
            ("llama.embedding_length", number(self.hidden_size)),
            ("llama.feed_forward_length", number(self.intermediate_size)),
            ("llama.block_count", number(self.num_layers)),
            ("llama.attention.head_count", number(self.num_heads)),
            ("llama.attention.head_count_kv", number(self.num_kv_heads)),
            ("llama.attention.key_length", number(self.head_dim)),
            ("llama.attention.value_length", number(self.head_dim)),
            ("llama.rope.dimension_count", number(self.head_dim)),
            ("llama.rope.freq_base", GgufValue::Float(10_000.0)),
            ("llama.attention.layer_norm_rms_epsilon", GgufValue::Float(1e-5)),
            ("llama.context_length", number(2048)),
            ("llama.vocab_size", number(self.vocab_size)),
        ];
        for (key, value) in pairs {
            writer.pair(key, &value);
        }
        if let Some(factor) = self.rope_factor {
            writer.pair("llama.rope.scaling.type", &GgufValue::Str("linear".into()));
            writer.pair("llama.rope.scaling.factor", &GgufValue::Float(factor));
        }
        let mut random = Random(self.seed);
        self.matrix(&mut writer, &mut random, "token_embd", self.vocab_size, self.hidden_size);
        norm(&mut writer, &mut random, "output_norm", self.hidden_size);
        if !self.tied {
            self.matrix(&mut writer, &mut random, "output", self.vocab_size, self.hidden_size);
        }
        for layer in 0..self.num_layers {
            self.layer(&mut writer, &mut random, layer);
        }
        writer
    }

    fn layer(&self, writer: &mut GgufWriter, random: &mut Random, layer: u64) {
        let (hidden, inner) = (self.hidden_size, self.intermediate_size);
        let (q_width, kv_width) = (self.num_heads * self.head_dim, self.num_kv_heads * self.head_dim);
        norm(writer, random, &format!("blk.{layer}.attn_norm"), hidden);
        norm(writer, random, &format!("blk.{layer}.ffn_norm"), hidden);
        let matrices = [
            ("attn_q", q_width, hidden),
            ("attn_k", kv_width, hidden),
            ("attn_v", kv_width, hidden),
            ("attn_output", hidden, q_width),
            ("ffn_gate", inner, hidden),
            ("ffn_up", inner, hidden),
            ("ffn_down", hidden, inner),
        ];
        for (name, rows, columns) in matrices {
            let name = format!("blk.{layer}.{name}");
            self.matrix(writer, random, &name, rows, columns);
            if self.biases {
                let values: Vec<f32> = (0..rows).map(|_| 0.1 * random.signed()).collect();
                writer.tensor(&format!("{name}.bias"), WeightFormat::F32, &[rows], &values);
            }
        }
    }

    fn matrix(&self, writer: &mut GgufWriter, random: &mut Random, name: &str, rows: u64, columns: u64) {
        // Uniform values of variance 1/columns keep the width of what passes through; 3 is the inverse of the
        // variance of the uniform distribution on -1..1.
        let width = (3.0 / columns as f32).sqrt();
        let values: Vec<f32> = (0..rows * columns).map(|_| width * random.signed()).collect();
        let is_odd = name.ends_with("attn_v") || name.ends_with("ffn_up");
        let dtype = self.odd_type.filter(|_| is_odd).unwrap_or(self.matrix_type);
        writer.tensor(&format!("{name}.weight"), dtype, &[rows, columns], &values);
    }
}

fn norm(writer: &mut GgufWriter, random: &mut Random, name: &str, len: u64) {
    let values: Vec<f32> = (0..len).map(|_| 1.0 + 0.2 * random.signed()).collect();
    writer.tensor(&format!("{name}.weight"), WeightFormat::F32, &[len], &values);
}

/// SplitMix64: a sequence of 64-bit numbers from a seed, the same everywhere.
#[derive(Clone, Debug)]
pub struct Random(pub u64);

impl Random {
    /// The next 64 bits.
    pub fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A number in `0..end`.
    pub fn below(&mut self, end: u64) -> u64 {
        self.bits() % end
    }

    /// A number in `-1..1`, of 24 random bits.
    pub fn signed(&mut self) -> f32 {
        (self.bits() >> 40) as f32 / (1u64 << 23) as f32 - 1.0
    }
}

/// The same weights as llama.cpp stores them: q and k with their pairs side by side, and divisors that turn the base's
/// frequencies into `wanted`.
pub fn llama_gguf<S: WeightSource>(checkpoint: &Checkpoint<S>, wanted: &[f64]) -> Checkpoint<MemorySource> {
    let config = checkpoint.config();
    assert_eq!(config.rope_layout, RopeLayout::Halves, "a checkpoint of the other layout");
    let number = |n: u32| GgufValue::Uint(n.into());
    let mut writer = GgufWriter::default();
    for (key, value) in [
        ("general.architecture", GgufValue::Str("llama".into())),
        ("llama.embedding_length", number(config.hidden_size)),
        ("llama.feed_forward_length", number(config.intermediate_size)),
        ("llama.block_count", number(config.num_layers)),
        ("llama.attention.head_count", number(config.num_heads)),
        ("llama.attention.head_count_kv", number(config.num_kv_heads)),
        ("llama.attention.key_length", number(config.head_dim)),
        ("llama.attention.value_length", number(config.head_dim)),
        ("llama.rope.dimension_count", number(config.head_dim)),
        ("llama.rope.freq_base", GgufValue::Float(config.rope_theta.into())),
        ("llama.attention.layer_norm_rms_epsilon", GgufValue::Float(config.rms_norm_eps.into())),
        ("llama.context_length", number(config.max_context)),
        ("llama.vocab_size", number(config.vocab_size)),
    ] {
        writer.pair(key, &value);
    }
    // What the base alone gives, before any scaling rule.
    let dims = f64::from(config.head_dim);
    let base = |i: usize| f64::from(config.rope_theta).powf(-2.0 * i as f64 / dims);
    let divisors: Vec<f32> = wanted.iter().enumerate().map(|(i, w)| (base(i) / w) as f32).collect();
    writer.tensor("rope_freqs.weight", WeightFormat::F32, &[divisors.len() as u64], &divisors);
    for (role, info) in checkpoint.tensors() {
        let bytes = pollster::block_on(checkpoint.read(info, 0, info.num_bytes as usize)).expect("readable");
        let mut values = firstlight_engine::model::dequantise(info.dtype, &bytes);
        let row = if info.shape.len() == 2 { info.shape[1] as usize } else { 1 };
        if let TensorRole::Q(_) | TensorRole::K(_) | TensorRole::QBias(_) | TensorRole::KBias(_) = role {
            values =
                values.chunks(row * config.head_dim as usize).flat_map(|head| paired(head, row)).collect();
        }
        let dtype = if info.shape.len() == 2 { info.dtype } else { WeightFormat::F32 };
        writer.tensor(&gguf_name(role), dtype, &info.shape, &values);
    }
    let source = MemorySource { name: "converted.gguf".into(), bytes: writer.bytes() };
    pollster::block_on(Checkpoint::open_gguf(source)).expect("the converted model opens")
}

/// The rows of one head, halves interleaved.
fn paired(head: &[f32], row: usize) -> Vec<f32> {
    let half = head.len() / row / 2;
    (0..half).flat_map(|i| [i, i + half]).flat_map(|i| head[i * row..(i + 1) * row].iter().copied()).collect()
}

/// llama.cpp's name of a tensor.
fn gguf_name(role: TensorRole) -> String {
    let layer = |layer: u32, name: &str| format!("blk.{layer}.{name}");
    match role {
        TensorRole::Embedding => "token_embd.weight".into(),
        TensorRole::OutputNorm => "output_norm.weight".into(),
        TensorRole::Head => "output.weight".into(),
        TensorRole::RopeFreqs => "rope_freqs.weight".into(),
        TensorRole::AttentionNorm(l) => layer(l, "attn_norm.weight"),
        TensorRole::MlpNorm(l) => layer(l, "ffn_norm.weight"),
        TensorRole::Q(l) => layer(l, "attn_q.weight"),
        TensorRole::K(l) => layer(l, "attn_k.weight"),
        TensorRole::V(l) => layer(l, "attn_v.weight"),
        TensorRole::O(l) => layer(l, "attn_output.weight"),
        TensorRole::Gate(l) => layer(l, "ffn_gate.weight"),
        TensorRole::Up(l) => layer(l, "ffn_up.weight"),
        TensorRole::Down(l) => layer(l, "ffn_down.weight"),
        TensorRole::QBias(l) => layer(l, "attn_q.bias"),
        TensorRole::KBias(l) => layer(l, "attn_k.bias"),
        TensorRole::VBias(l) => layer(l, "attn_v.bias"),
        TensorRole::OBias(l) => layer(l, "attn_output.bias"),
        TensorRole::GateBias(l) => layer(l, "ffn_gate.bias"),
        TensorRole::UpBias(l) => layer(l, "ffn_up.bias"),
        TensorRole::DownBias(l) => layer(l, "ffn_down.bias"),
    }
}

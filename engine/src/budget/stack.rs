//! What computes a model, and the times of its steps: by two rates, or by what was measured.
//!
//! Invariant: a step by rates takes as long as the slower of its reading and its arithmetic.

use serde::{Deserialize, Serialize};

use firstlight_shaders::KvFormat;

use super::{Bound, Prefill, Step};
use crate::costs::{StepCosts, StepLoad};
use crate::model::{Checkpoint, WeightSource};
use crate::sched::SchedulerConfig;

/// A model, as far as its times and its memory go.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
pub struct ModelFigures {
    /// Its name.
    pub name: String,
    /// Weights that each token is multiplied with.
    pub params: f64,
    /// Bytes of them.
    pub weight_bytes: f64,
    /// Bytes of the output head, which are among them.
    pub head_bytes: f64,
    /// Layers.
    pub layers: u32,
    /// Elements of all query heads together.
    pub attention_width: u32,
    /// Bytes of keys and values of one token in all layers.
    pub kv_bytes_a_token: f64,
    /// The longest context.
    pub max_context: u32,
}

impl ModelFigures {
    /// Operations of a token in the products: a multiplication and an addition for each weight.
    fn operations(&self) -> f64 {
        2.0 * self.params
    }

    /// Operations of attention for one row and one position: a score and a weighted sum.
    fn attention_operations(&self) -> f64 {
        4.0 * f64::from(self.layers) * f64::from(self.attention_width)
    }
}

/// What an adapter sustains.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize, Serialize)]
pub struct Rates {
    /// Bytes a second.
    pub bytes_per_s: f64,
    /// Operations a second.
    pub flops: f64,
}

/// What computes a model.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Stack {
    /// By its rates.
    Rates {
        /// The model.
        model: ModelFigures,
        /// What computes it.
        name: String,
        /// What that sustains.
        rates: Rates,
        /// Bytes for keys and values.
        kv_pool_bytes: f64,
    },
    /// By the costs of steps that were measured.
    Measured {
        /// The model.
        model: ModelFigures,
        /// Its costs.
        costs: Box<StepCosts>,
        /// Tokens of a prompt that one step takes at most.
        chunk_tokens: u32,
        /// Bytes for keys and values.
        kv_pool_bytes: f64,
    },
}

const GIB: f64 = (1u64 << 30) as f64;

impl Stack {
    /// A model of 8 billion parameters in 16 bits, 32 layers of width 4,096 and 128 KiB of keys and values a token, on an H100:
    /// 80% of 3.35 TB/s, and 390 TFLOP/s.
    pub fn reference() -> Self {
        Self::Rates {
            model: ModelFigures {
                name: "8B, 16 bits".into(),
                params: 8e9,
                weight_bytes: 16e9,
                // A vocabulary of 128,256.
                head_bytes: 2.0 * 128_256.0 * 4096.0,
                layers: 32,
                attention_width: 4096,
                kv_bytes_a_token: 131_072.0,
                max_context: 131_072,
            },
            name: "H100".into(),
            rates: Rates { bytes_per_s: 0.8 * 3.35e12, flops: 390e12 },
            kv_pool_bytes: 53.0 * GIB,
        }
    }

    /// The model of `checkpoint` within `limits`, its keys and values stored as `kv`, by the costs of its steps.
    pub fn measured<S: WeightSource>(
        checkpoint: &Checkpoint<S>,
        kv: KvFormat,
        limits: &SchedulerConfig,
        costs: StepCosts,
    ) -> Self {
        let config = checkpoint.config();
        let ((layers_bytes, layers_weights), (head_bytes, head_weights)) =
            (checkpoint.layers_size(), checkpoint.head_size());
        let kv_bytes_a_token = config.kv_bytes_a_token(kv) as f64;
        Self::Measured {
            model: ModelFigures {
                name: config.name.clone(),
                params: (layers_weights + head_weights) as f64,
                weight_bytes: (layers_bytes + head_bytes) as f64,
                head_bytes: head_bytes as f64,
                layers: config.num_layers,
                attention_width: config.num_heads * config.head_dim,
                kv_bytes_a_token,
                max_context: limits.max_model_len,
            },
            costs: Box::new(costs),
            chunk_tokens: limits.max_batch_tokens,
            kv_pool_bytes: f64::from(limits.num_blocks) * f64::from(limits.block_size) * kv_bytes_a_token,
        }
    }

    /// The same with weights, keys and values of so many bits each in place of 16. Arithmetic keeps its rate.
    #[must_use]
    pub fn with_bits(mut self, weight_bits: f64, kv_bits: f64) -> Self {
        let (Self::Rates { model, .. } | Self::Measured { model, .. }) = &mut self;
        model.weight_bytes *= weight_bits / 16.0;
        model.head_bytes *= weight_bits / 16.0;
        model.kv_bytes_a_token *= kv_bits / 16.0;
        self
    }

    /// The model.
    pub fn model(&self) -> &ModelFigures {
        let (Self::Rates { model, .. } | Self::Measured { model, .. }) = self;
        model
    }

    pub(super) fn kv_pool_bytes(&self) -> f64 {
        let (Self::Rates { kv_pool_bytes, .. } | Self::Measured { kv_pool_bytes, .. }) = self;
        *kv_pool_bytes
    }

    pub(super) fn computed_by(&self) -> String {
        match self {
            Self::Rates { name, .. } => name.clone(),
            Self::Measured { costs, .. } => costs.adapter.clone(),
        }
    }

    pub(super) fn times(&self) -> Times<'_> {
        match self {
            Self::Rates { model, rates, .. } => Times::Rates { model, rates },
            Self::Measured { costs, chunk_tokens, .. } => {
                Times::Measured { costs, chunk_tokens: *chunk_tokens }
            }
        }
    }
}

/// The times of a stack.
pub(super) enum Times<'a> {
    Rates { model: &'a ModelFigures, rates: &'a Rates },
    Measured { costs: &'a StepCosts, chunk_tokens: u32 },
}

impl Times<'_> {
    /// A step of `batch` sequences of `context` positions each.
    pub(super) fn step(&self, batch: u32, context: f64) -> Step {
        match self {
            Self::Rates { model, rates } => {
                let rows = f64::from(batch);
                let (read, compute) = (model.weight_bytes, rows * model.operations());
                let kv = rows * context * model.kv_bytes_a_token;
                let attention = rows * context * model.attention_operations();
                let (weights_ns, attention_ns) = rates.slower((read, compute), (kv, attention));
                Step { ns: weights_ns + attention_ns, weights_ns, attention_ns, host_ns: 0.0 }
            }
            Self::Measured { costs, .. } => {
                let attended = (f64::from(batch) * context) as u64;
                let load = StepLoad { attended, decode_attended: attended, ..StepLoad::decode(batch, 0) };
                let parts = costs.parts(&load);
                Step {
                    ns: parts.total_ns(),
                    weights_ns: parts.layers_ns + parts.head_ns,
                    attention_ns: parts.attention_ns,
                    host_ns: parts.host_ns,
                }
            }
        }
    }

    /// A prompt of so many tokens, alone.
    pub(super) fn prefill(&self, tokens: u32) -> Prefill {
        let length = f64::from(tokens);
        let (linear_ns, quadratic_ns) = match self {
            Self::Rates { model, rates } => {
                let weights = (model.weight_bytes, length * model.operations());
                let keys = length * model.kv_bytes_a_token;
                // As published: every position with every other, although half of them are masked out.
                rates.slower(weights, (keys, length * length * model.attention_operations()))
            }
            Self::Measured { costs, chunk_tokens } => {
                let parts = StepLoad::chunks(tokens, *chunk_tokens).map(|load| costs.parts(&load));
                parts.fold((0.0, 0.0), |(linear, quadratic), parts| {
                    (linear + parts.total_ns() - parts.attention_ns, quadratic + parts.attention_ns)
                })
            }
        };
        Prefill { ns: linear_ns + quadratic_ns, linear_ns, quadratic_ns }
    }

    /// What holds a pass over so many rows up.
    pub(super) fn bound(&self, rows: u32) -> Bound {
        if f64::from(rows) < self.ridge(0.0).0 { Bound::Memory } else { Bound::Compute }
    }

    /// Sequences whose arithmetic takes as long as reading the weights; and the same where each also reads keys and values of
    /// `context` positions.
    pub(super) fn ridge(&self, context: f64) -> (f64, Option<f64>) {
        let (read_ns, row_ns, kv_ns) = match self {
            Self::Rates { model, rates } => {
                let attention = rates.compute_ns(context * model.attention_operations());
                (
                    rates.read_ns(model.weight_bytes),
                    rates.compute_ns(model.operations()),
                    rates.read_ns(context * model.kv_bytes_a_token) - attention,
                )
            }
            // The keys and values of a measured step cost the same a position, whatever holds it up.
            Self::Measured { costs, .. } => (costs.first_row_ns(), costs.further_row_ns(), 0.0),
        };
        let at = |row_ns: f64| (row_ns > 0.0).then(|| read_ns / row_ns);
        (at(row_ns).unwrap_or(f64::MAX), at(row_ns - kv_ns).filter(|_| kv_ns > 0.0))
    }

    /// Embedding, head and sampling of a prompt of so many tokens, as far as they are known.
    pub(super) fn around_the_layers(&self, tokens: u32) -> (Option<f64>, Option<f64>, Option<f64>) {
        match self {
            Self::Rates { model, rates } => {
                // A row gathered and a row written, 16 bits each.
                let embedded = f64::from(tokens) * f64::from(model.attention_width) * 4.0;
                (Some(rates.read_ns(embedded)), Some(rates.read_ns(model.head_bytes)), None)
            }
            Self::Measured { costs, .. } => (None, Some(costs.parts(&StepLoad::decode(1, 1)).head_ns), None),
        }
    }
}

impl Rates {
    /// Nanoseconds to read `bytes`.
    pub(super) fn read_ns(&self, bytes: f64) -> f64 {
        bytes / self.bytes_per_s * 1e9
    }

    /// Nanoseconds of `operations`.
    pub(super) fn compute_ns(&self, operations: f64) -> f64 {
        operations / self.flops * 1e9
    }

    /// Times of two pieces of work, each of (bytes, operations): both by their reading, or both by their arithmetic, whichever
    /// takes longer altogether.
    fn slower(&self, one: (f64, f64), other: (f64, f64)) -> (f64, f64) {
        let read = (self.read_ns(one.0), self.read_ns(other.0));
        let compute = (self.compute_ns(one.1), self.compute_ns(other.1));
        if read.0 + read.1 > compute.0 + compute.1 { read } else { compute }
    }
}

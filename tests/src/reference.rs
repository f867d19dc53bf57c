//! The Llama forward pass on the CPU in f64, stated as plainly as possible, for tiny models: whole prompts, no cache.

use std::f64::consts::TAU;

use firstlight_engine::model::{
    Checkpoint, ModelConfig, RopeLayout, RopeScaling, TensorRole, WeightSource, dequantise,
};

/// Weights as f32, by role.
struct Weights<'a, S> {
    checkpoint: &'a Checkpoint<S>,
}

impl<S: WeightSource> Weights<'_, S> {
    fn get(&self, role: TensorRole) -> Option<Vec<f32>> {
        let info = self.checkpoint.tensor(role)?;
        let bytes =
            pollster::block_on(self.checkpoint.read(info, 0, info.num_bytes as usize)).expect("readable");
        Some(dequantise(info.dtype, &bytes))
    }

    fn need(&self, role: TensorRole) -> Vec<f32> {
        self.get(role).expect("a required tensor")
    }

    /// `x * W^T + b` for one row.
    fn apply(&self, x: &[f64], weight: TensorRole, bias: TensorRole) -> Vec<f64> {
        let w = self.need(weight);
        let bias = self.get(bias);
        w.chunks(x.len())
            .enumerate()
            .map(|(i, row)| {
                let sum: f64 = row.iter().zip(x).map(|(&w, &x)| f64::from(w) * x).sum();
                sum + bias.as_ref().map_or(0.0, |b| f64::from(b[i]))
            })
            .collect()
    }
}

fn norm(x: &[f64], gamma: &[f32], eps: f32) -> Vec<f64> {
    let mean = x.iter().map(|v| v * v).sum::<f64>() / x.len() as f64;
    x.iter().zip(gamma).map(|(v, &g)| v / (mean + f64::from(eps)).sqrt() * f64::from(g)).collect()
}

/// Turns one head to `position`, pairs as the file stores them.
fn turn(head: &mut [f64], position: usize, frequencies: &[f64], layout: RopeLayout) {
    let half = head.len() / 2;
    for (i, frequency) in frequencies.iter().enumerate() {
        let angle = position as f64 * frequency;
        let (a, b) = match layout {
            RopeLayout::Halves => (i, i + half),
            RopeLayout::Interleaved => (2 * i, 2 * i + 1),
        };
        (head[a], head[b]) =
            (head[a] * angle.cos() - head[b] * angle.sin(), head[b] * angle.cos() + head[a] * angle.sin());
    }
}

/// Radians a position of each pair of dimensions, with the scaling that the model asks for.
pub fn frequencies(config: &ModelConfig) -> Vec<f64> {
    let dims = f64::from(config.head_dim);
    let plain =
        (0..config.head_dim / 2).map(|i| f64::from(config.rope_theta).powf(-2.0 * f64::from(i) / dims));
    plain
        .map(|frequency| match config.rope_scaling {
            RopeScaling::None => frequency,
            RopeScaling::Linear { factor } => frequency / f64::from(factor),
            RopeScaling::Llama3 { factor, low_freq_factor, high_freq_factor, original_context } => {
                // Turns within the trained context: few are slowed down, many are kept, a line between.
                let turns = f64::from(original_context) * frequency / TAU;
                let (low, high) = (f64::from(low_freq_factor), f64::from(high_freq_factor));
                let kept = ((turns - low) / (high - low)).clamp(0.0, 1.0);
                frequency * (kept + (1.0 - kept) / f64::from(factor))
            }
        })
        .collect()
}

/// The last position's logits for `prompt`, positions turning by `frequencies`.
pub fn last_logits<S: WeightSource>(
    checkpoint: &Checkpoint<S>,
    prompt: &[u32],
    frequencies: &[f64],
) -> Vec<f64> {
    let config = checkpoint.config();
    let weights = Weights { checkpoint };
    let width = config.hidden_size as usize;
    let head_dim = config.head_dim as usize;
    let group = (config.num_heads / config.num_kv_heads) as usize;
    let embedding = weights.need(TensorRole::Embedding);
    let row = |id: u32| embedding[id as usize * width..][..width].iter().map(|&v| f64::from(v)).collect();
    let mut hidden: Vec<Vec<f64>> = prompt.iter().map(|&id| row(id)).collect();
    for layer in 0..config.num_layers {
        let gamma = weights.need(TensorRole::AttentionNorm(layer));
        let (mut queries, mut keys, mut values) = (Vec::new(), Vec::new(), Vec::new());
        for (position, x) in hidden.iter().enumerate() {
            let x = norm(x, &gamma, config.rms_norm_eps);
            let mut q = weights.apply(&x, TensorRole::Q(layer), TensorRole::QBias(layer));
            let mut k = weights.apply(&x, TensorRole::K(layer), TensorRole::KBias(layer));
            for head in q.chunks_mut(head_dim).chain(k.chunks_mut(head_dim)) {
                turn(head, position, frequencies, config.rope_layout);
            }
            queries.push(q);
            keys.push(k);
            values.push(weights.apply(&x, TensorRole::V(layer), TensorRole::VBias(layer)));
        }
        let mlp_gamma = weights.need(TensorRole::MlpNorm(layer));
        for position in 0..hidden.len() {
            let mut mixed = Vec::new();
            for (head, q) in queries[position].chunks(head_dim).enumerate() {
                let at = head / group * head_dim..(head / group + 1) * head_dim;
                let scores: Vec<f64> = keys[..=position]
                    .iter()
                    .map(|k| q.iter().zip(&k[at.clone()]).map(|(a, b)| a * b).sum::<f64>())
                    .map(|score| (score / (head_dim as f64).sqrt()).exp())
                    .collect();
                let total: f64 = scores.iter().sum();
                mixed.extend((0..head_dim).map(|d| {
                    let weighed = scores.iter().zip(&values).map(|(s, v)| s * v[at.start + d]);
                    weighed.sum::<f64>() / total
                }));
            }
            let attended = weights.apply(&mixed, TensorRole::O(layer), TensorRole::OBias(layer));
            add(&mut hidden[position], &attended);
            let x = norm(&hidden[position], &mlp_gamma, config.rms_norm_eps);
            let gate = weights.apply(&x, TensorRole::Gate(layer), TensorRole::GateBias(layer));
            let up = weights.apply(&x, TensorRole::Up(layer), TensorRole::UpBias(layer));
            let gated: Vec<f64> = gate.iter().zip(&up).map(|(g, u)| g / (1.0 + (-g).exp()) * u).collect();
            let down = weights.apply(&gated, TensorRole::Down(layer), TensorRole::DownBias(layer));
            add(&mut hidden[position], &down);
        }
    }
    let gamma = weights.need(TensorRole::OutputNorm);
    let last = norm(hidden.last().expect("a prompt"), &gamma, config.rms_norm_eps);
    let head = if config.tie_embeddings { TensorRole::Embedding } else { TensorRole::Head };
    weights.apply(&last, head, TensorRole::RopeFreqs)
}

fn add(to: &mut [f64], what: &[f64]) {
    for (a, b) in to.iter_mut().zip(what) {
        *a += b;
    }
}

/// Normalised mean squared error of `got` against `wanted`, after asserting that all of `got` is finite.
pub fn nmse(got: &[f32], wanted: impl IntoIterator<Item = f64>) -> f64 {
    assert!(got.iter().all(|v| v.is_finite()), "every number is finite");
    let (mut error, mut power, mut count) = (0.0, 0.0, 0);
    for (&g, w) in got.iter().zip(wanted) {
        error += (f64::from(g) - w).powi(2);
        power += w * w;
        count += 1;
    }
    assert_eq!(count, got.len(), "as many numbers as wanted");
    error / power
}

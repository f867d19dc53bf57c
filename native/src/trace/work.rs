//! What steps did: their stage times summed, and the bytes and operations that belong to those times.
//!
//! Pure arithmetic over records. Invariant: times and work are of the same steps, whole ones, whoever shared them.

use firstlight_engine::timeline::{RequestTimeline, StageTimes, StepRecord};

use super::rates::Work;
use super::shape::ModelShape;

/// Several steps together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StageSums {
    /// How many.
    pub steps: u64,
    /// Their rows, those of all requests.
    pub rows: u64,
    /// Those of them that continue an answer, each of which goes through the head.
    pub decode_rows: u64,
    /// From the moment the runner got them to the one their tokens were there.
    pub runner_ns: u64,
    /// Whether each of them was timed by stage.
    pub timed: bool,
    /// Their times; all zero unless `timed`.
    pub times: StageTimes,
}

impl StageSums {
    /// The sums of `steps`; `None` where there is none.
    pub fn of<'a>(steps: impl Iterator<Item = &'a StepRecord>) -> Option<Self> {
        let mut sums = Self { timed: true, ..Self::default() };
        for step in steps {
            sums.steps += 1;
            let prefill: u64 = step.prefill.iter().map(|(_, tokens)| u64::from(*tokens)).sum();
            sums.rows += u64::from(step.decode_rows) + prefill;
            sums.decode_rows += u64::from(step.decode_rows);
            sums.runner_ns += step.done_at - step.submit_at;
            let Some(stages) = step.stages else {
                sums.timed = false;
                continue;
            };
            sums.times.embed_ns += stages.embed_ns;
            sums.times.layers_ns += stages.layers_ns;
            sums.times.head_ns += stages.head_ns;
            sums.times.sample_ns += stages.sample_ns;
        }
        if !sums.timed {
            sums.times = StageTimes::default();
        }
        (sums.steps > 0).then_some(sums)
    }

    /// The embedding: rows gathered and written as floats.
    pub fn embedding(&self, shape: &ModelShape) -> Work {
        let row_bytes = shape.embedding_row_bytes + shape.hidden_size * 4;
        Work { bytes: self.rows * row_bytes, operations: 0, ns: self.times.embed_ns }
    }

    /// The layers: all weights once a step, two operations a weight and row, and one request's attention. Without times by
    /// stage they are held against the runner's whole time.
    pub fn layers(&self, shape: &ModelShape, own: TokenWork) -> Work {
        Work {
            bytes: self.steps * shape.layers_bytes + own.kv_read + own.kv_written,
            operations: 2 * shape.layers_weights * self.rows + own.attention_operations,
            ns: if self.timed { self.times.layers_ns } else { self.runner_ns },
        }
    }

    /// The head of one sampled row: all its weights, once.
    pub fn head(&self, shape: &ModelShape) -> Work {
        Work {
            bytes: self.steps * shape.head_bytes,
            operations: 2 * self.steps * shape.head_weights,
            ns: self.times.head_ns,
        }
    }

    /// Layers and head together, of steps that continue answers.
    pub fn decode(&self, shape: &ModelShape, own: TokenWork) -> Work {
        let layers = self.layers(shape, own);
        let head = self.head(shape);
        Work {
            bytes: layers.bytes + head.bytes,
            operations: layers.operations + 2 * self.decode_rows * shape.head_weights,
            ns: if self.timed { layers.ns + head.ns } else { self.runner_ns },
        }
    }
}

/// What some tokens of one request add to the weights of their steps.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TokenWork {
    /// Bytes of keys and values that attention reads: each position once for each step of an answer, and once for each
    /// admission of a prompt.
    pub kv_read: u64,
    /// Bytes of keys and values written.
    pub kv_written: u64,
    /// Operations of attention.
    pub attention_operations: u64,
}

impl TokenWork {
    /// Of the prompt, up to the first token or the end: all attempts.
    pub fn of_prompt(timeline: &RequestTimeline, shape: &ModelShape) -> Self {
        let cut = timeline.stamps().cut().unwrap_or_default();
        let mut work = Self::default();
        for attempt in timeline.attempts().iter().filter(|attempt| attempt.from <= cut) {
            let (from, computed) = (u64::from(attempt.cached), u64::from(attempt.computed));
            // Row i of a prompt looks at i + 1 positions: an arithmetic series.
            let looked_at = computed * from + computed * (computed + 1) / 2;
            work.kv_read += (from + computed) * shape.kv_bytes_a_token;
            work.kv_written += computed * shape.kv_bytes_a_token;
            work.attention_operations += looked_at * shape.attention_operations;
        }
        work
    }

    /// Of the tokens after the first: each step looks at all positions before it.
    pub fn of_answer(timeline: &RequestTimeline, shape: &ModelShape) -> Self {
        let counts = timeline.tokens();
        let steps = u64::from(counts.generated).saturating_sub(1);
        let looked_at = steps * u64::from(counts.prompt) + steps * (steps + 1) / 2;
        Self {
            kv_read: looked_at * shape.kv_bytes_a_token,
            kv_written: steps * shape.kv_bytes_a_token,
            attention_operations: looked_at * shape.attention_operations,
        }
    }
}

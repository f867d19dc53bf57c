//! The budget: where the time of one request goes, and how many there is room for, from a few figures of a model and of what
//! computes it. Everything that a page or a terminal draws of it.
//!
//! It measures nothing and knows no GPU. Invariant: the time of a request is its prefill and its decode steps, one
//! after another, and both are of the same stack.

mod bends;
mod stack;

use serde::{Deserialize, Serialize};

pub use bends::{Bend, BendAt};
pub use stack::{ModelFigures, Rates, Stack};

use stack::Times;

/// What can be turned.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize, Serialize)]
pub struct Knobs {
    /// Tokens of the prompt, at least 1.
    pub prompt_tokens: u32,
    /// Tokens of the answer, at least 1. The prefill gives the first of them.
    pub output_tokens: u32,
    /// Sequences that decode side by side, at least 1, all of this length.
    pub batch: u32,
    /// Tokens that a user may reach at most; a pool without paging keeps room for them.
    pub worst_tokens: u32,
    /// Tokens that a user has on average; a pool with paging keeps room for them. Prompt and answer where it is absent.
    pub average_tokens: Option<u32>,
}

impl Knobs {
    /// Tokens in the middle of the answer: the context of a step on average.
    fn context(&self) -> f64 {
        f64::from(self.prompt_tokens) + f64::from(self.output_tokens) / 2.0
    }
}

/// What holds a time up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Bound {
    /// Reading weights, keys and values.
    Memory,
    /// Arithmetic.
    Compute,
}

/// The prompt's time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Deserialize, Serialize)]
pub struct Prefill {
    /// All of it.
    pub ns: f64,
    /// What grows as the prompt does: the products with the weights, and a measured stack's head and loop.
    pub linear_ns: f64,
    /// What grows as its square: attention.
    pub quadratic_ns: f64,
}

/// A decode step's time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Deserialize, Serialize)]
pub struct Step {
    /// All of it.
    pub ns: f64,
    /// The products with the weights: reading them, or their arithmetic where that takes longer.
    pub weights_ns: f64,
    /// Attention: reading keys and values, or its arithmetic.
    pub attention_ns: f64,
    /// The engine's loop, where the stack was measured.
    pub host_ns: f64,
}

/// A point of a line that is drawn.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize, Serialize)]
pub struct Point {
    /// Sequences of the step, or tokens of the prompt.
    pub at: u32,
    /// Nanoseconds.
    pub ns: f64,
    /// Nanoseconds of attention in it.
    pub attention_ns: f64,
}

/// One of the twelve stages of a request.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
pub struct Stage {
    /// 1 to 12.
    pub stage: u8,
    /// Its name.
    pub name: String,
    /// Its time; absent where the model says nothing of it, and only a request that runs can tell.
    pub ns: Option<f64>,
    /// Its share of the request.
    pub share: Option<f64>,
    /// The stage that holds it.
    pub inside: Option<u8>,
    /// What holds it up.
    pub bound: Option<Bound>,
}

/// Room for keys and values, and for how many users it is enough.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize, Serialize)]
pub struct Room {
    /// Bytes of one token in all layers.
    pub bytes_a_token: f64,
    /// Bytes of the prompt.
    pub prompt_bytes: f64,
    /// Bytes of the pool.
    pub pool_bytes: f64,
    /// Users, where each has room for the worst case.
    pub users_worst_case: u64,
    /// Users, where each has the blocks that it fills.
    pub users_paged: u64,
    /// Tokens that they were counted with.
    pub average_tokens: u32,
}

/// All of it.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
pub struct Budget {
    /// The name and the version of this form.
    pub schema: String,
    /// The model.
    pub model: String,
    /// What computes it.
    pub computed_by: String,
    /// Whether times are of steps that were measured, or of rates.
    pub measured: bool,
    /// What was asked.
    pub knobs: Knobs,
    /// The prompt's time.
    pub prefill: Prefill,
    /// A step in the middle of the answer.
    pub step: Step,
    /// All steps after the first token.
    pub decode_ns: f64,
    /// From the prompt's first step to the last token.
    pub total_ns: f64,
    /// Share of the prefill in it.
    pub prefill_share: f64,
    /// Tokens a second of the whole batch while it decodes.
    pub tokens_per_second: f64,
    /// Sequences whose arithmetic takes as long as reading the weights.
    pub ridge: f64,
    /// The same where the keys and values of each are read too; absent where no batch gets there.
    pub ridge_with_kv: Option<f64>,
    /// Keys and values.
    pub room: Room,
    /// The twelve stages.
    pub stages: Vec<Stage>,
    /// Where the lines bend.
    pub bends: Vec<Bend>,
    /// A step against the sequences in it.
    pub steps: Vec<Point>,
    /// The prefill against the prompt's length.
    pub prefills: Vec<Point>,
}

/// The name and the version of [`Budget`] as JSON.
pub const SCHEMA: &str = "firstlight.budget/1";

/// Sequences, and tokens, that lines are drawn at.
const BATCHES: [u32; 10] = [1, 2, 4, 8, 16, 32, 64, 128, 256, 512];
const LENGTHS: [u32; 10] = [64, 128, 256, 512, 1024, 2048, 4096, 8192, 16_384, 32_768];

/// The budget of `knobs` on `stack`.
pub fn budget(stack: &Stack, knobs: Knobs) -> Budget {
    let model = stack.model();
    let times = stack.times();
    let context = knobs.context();
    let prefill = times.prefill(knobs.prompt_tokens);
    let step = times.step(knobs.batch, context);
    let decode_ns = step.ns * f64::from(knobs.output_tokens.saturating_sub(1));
    let total_ns = prefill.ns + decode_ns;
    let average_tokens = knobs
        .average_tokens
        .unwrap_or_else(|| knobs.prompt_tokens.saturating_add(knobs.output_tokens))
        .max(1);
    let users = |tokens: u32| stack.kv_pool_bytes() / (model.kv_bytes_a_token * f64::from(tokens.max(1)));
    let (ridge, ridge_with_kv) = times.ridge(context);
    let longest = model.max_context;
    Budget {
        schema: SCHEMA.into(),
        model: model.name.clone(),
        computed_by: stack.computed_by(),
        measured: matches!(stack, Stack::Measured { .. }),
        knobs,
        prefill,
        step,
        decode_ns,
        total_ns,
        prefill_share: prefill.ns / total_ns,
        tokens_per_second: f64::from(knobs.batch) * 1e9 / step.ns,
        ridge,
        ridge_with_kv,
        room: Room {
            bytes_a_token: model.kv_bytes_a_token,
            prompt_bytes: model.kv_bytes_a_token * f64::from(knobs.prompt_tokens),
            pool_bytes: stack.kv_pool_bytes(),
            users_worst_case: users(knobs.worst_tokens) as u64,
            users_paged: users(average_tokens) as u64,
            average_tokens,
        },
        stages: stages(&times, &knobs, prefill, decode_ns),
        bends: bends::bends(stack, &times, knobs.batch, users(average_tokens)),
        steps: BATCHES
            .map(|at| {
                let step = times.step(at, context);
                Point { at, ns: step.ns, attention_ns: step.attention_ns }
            })
            .to_vec(),
        prefills: (LENGTHS.into_iter().filter(|at| *at <= longest))
            .map(|at| {
                let prefill = times.prefill(at);
                Point { at, ns: prefill.ns, attention_ns: prefill.quadratic_ns }
            })
            .collect(),
    }
}

/// The stages as `firstlight trace` names them. What a host does is in no cost model: those rows are empty.
fn stages(times: &Times<'_>, knobs: &Knobs, prefill: Prefill, decode_ns: f64) -> Vec<Stage> {
    let total = prefill.ns + decode_ns;
    let (embed, head, sample) = times.around_the_layers(knobs.prompt_tokens);
    let prefill_bound = times.bound(knobs.prompt_tokens);
    let row = |stage: u8, name: &str, ns: Option<f64>, inside: Option<u8>, bound: Option<Bound>| Stage {
        stage,
        name: name.into(),
        ns,
        share: ns.map(|ns| ns / total),
        inside,
        bound,
    };
    vec![
        row(1, "parse", None, None, None),
        row(2, "chat template", None, None, None),
        row(3, "tokenise", None, None, None),
        row(4, "admission", None, None, None),
        row(5, "KV blocks, prefix match", None, Some(4), None),
        row(6, "embedding", embed, Some(7), embed.map(|_| Bound::Memory)),
        row(7, "prefill", Some(prefill.ns), None, Some(prefill_bound)),
        row(8, "output head", head, Some(7), head.map(|_| Bound::Memory)),
        row(9, "sample", sample, Some(7), None),
        row(10, "detokenise, stream out", None, None, None),
        row(11, "decode loop", Some(decode_ns), None, Some(times.bound(knobs.batch))),
        row(12, "teardown", None, None, None),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::costs::tests::costs;

    fn knobs(prompt_tokens: u32, output_tokens: u32, batch: u32) -> Knobs {
        Knobs { prompt_tokens, output_tokens, batch, worst_tokens: 8192, average_tokens: None }
    }

    fn reference(prompt_tokens: u32, output_tokens: u32, batch: u32) -> Budget {
        budget(&Stack::reference(), knobs(prompt_tokens, output_tokens, batch))
    }

    fn check(what: &str, got: f64, expected: f64) {
        assert!((got / expected - 1.0).abs() < 0.1, "{what}: {got} for {expected}");
    }

    #[test]
    fn the_reference_stack_gives_the_published_figures() {
        let (short, long) = (reference(2000, 300, 1), reference(32_768, 1, 1));
        check("prefill of 2,000 tokens, ms", short.prefill.ns / 1e6, 86.0);
        check("a step, ms", short.step.ns / 1e6, 6.0);
        check("300 tokens, s", short.decode_ns / 1e9, 1.8);
        check("all of it, ms", short.total_ns / 1e6, 1883.0);
        check("decode's share", 1.0 - short.prefill_share, 0.95);
        check("prefill of 32,768 tokens, s", long.prefill.ns / 1e9, 2.8);
        check("its quadratic half", long.prefill.quadratic_ns / long.prefill.ns, 0.5);
        check("ridge", short.ridge, 150.0);
        check("keys and values, GiB", short.room.prompt_bytes / f64::from(1 << 30), 0.24);
        assert_eq!(short.room.users_worst_case, 53);
        check("users by paging", short.room.users_paged as f64, 191.0);
        let stack = Stack::reference();
        let paged = budget(&stack, Knobs { average_tokens: Some(2270), ..short.knobs }).room.users_paged;
        assert_eq!(paged, 191);
    }

    #[test]
    fn twenty_tokens_are_not_mostly_prefill() {
        // 74% is in print, and would take steps of 1.6 ms; those of 6 ms give 43%.
        let share = reference(2000, 20, 1).prefill_share;
        assert!((0.42..0.44).contains(&share), "{share}");
    }

    #[test]
    fn lines_bend_where_the_larger_of_two_times_changes() {
        let check = |at: BendAt, expected: f64| {
            let budget = reference(2000, 300, 1);
            let bend = budget.bends.iter().find(|bend| bend.at == at).unwrap_or_else(|| panic!("{at:?}"));
            assert!((bend.value / expected - 1.0).abs() < 0.02, "{bend:?} for {expected}");
        };
        // 2N/(4 * layers * width): 16e9 operations a token against 524,288 a token and position.
        check(BendAt::PromptLinearIsQuadratic, 30_518.0);
        // 16e9 bytes of weights, 131,072 bytes a token.
        check(BendAt::ContextKvIsWeights, 122_070.0);
        check(BendAt::ReadIsArithmetic, 145.5);
        let stack = Stack::reference();
        let step = |batch| budget(&stack, Knobs { average_tokens: None, ..knobs(1, 1, batch) }).step;
        let ridge = reference(1, 1, 1).ridge;
        assert!(step((ridge * 0.9) as u32).ns < step(1).ns * 1.01, "below the ridge a batch is free");
        check_slope(step(300).ns - step(299).ns);
    }

    /// Beyond the ridge each sequence costs its arithmetic.
    fn check_slope(ns: f64) {
        assert!((ns / (16e9 / 390e12 * 1e9) - 1.0).abs() < 0.01, "{ns}");
    }

    #[test]
    fn a_measured_stack_is_the_sum_of_its_steps() {
        let stack = Stack::Measured {
            model: ModelFigures {
                kv_bytes_a_token: 100.0,
                max_context: 2048,
                ..Stack::reference().model().clone()
            },
            costs: Box::new(costs()),
            chunk_tokens: 64,
            kv_pool_bytes: 1e6,
        };
        let budget = budget(&stack, knobs(100, 4, 2));
        // A chunk of 64 that samples nothing, and one of 36 that does.
        let costs = costs();
        let chunks =
            [crate::costs::StepLoad::prefill(0, 64, false), crate::costs::StepLoad::prefill(64, 36, true)];
        let expected: u64 = chunks.iter().map(|load| costs.step_ns(load)).sum();
        assert!((budget.prefill.ns - expected as f64).abs() < 2.0, "{} for {expected}", budget.prefill.ns);
        let step = costs.step_ns(&crate::costs::StepLoad::decode(2, 102)) as f64;
        assert!((budget.decode_ns - 3.0 * step).abs() < 3.0, "{} for {step}", budget.decode_ns);
        assert!((budget.prefill.linear_ns + budget.prefill.quadratic_ns - budget.prefill.ns).abs() < 1e-6);
        assert_eq!(budget.room.users_paged, 96);
        assert!(budget.prefills.iter().all(|point| point.at <= 2048));
        // 1,000 ns for the first row, 100 for each of the last ones.
        assert!((budget.ridge - 10.0).abs() < 0.01, "{}", budget.ridge);
    }

    #[test]
    fn what_is_drawn_is_a_number_whatever_is_turned() {
        for stack in [Stack::reference(), Stack::reference().with_bits(4.5, 8.0)] {
            for knobs in [knobs(1, 1, 1), knobs(1 << 20, 1 << 20, 1 << 16), knobs(2000, 1, 512)] {
                let budget = budget(&stack, knobs);
                let text = serde_json::to_string(&budget).unwrap();
                let back: Budget = serde_json::from_str(&text).unwrap();
                assert_eq!(back.stages.len(), 12);
                assert!(budget.steps.iter().chain(&budget.prefills).all(|point| point.ns > 0.0), "{text}");
                let top: f64 =
                    back.stages.iter().filter(|s| s.inside.is_none()).filter_map(|s| s.share).sum();
                assert!((top - 1.0).abs() < 1e-9, "the stages are the whole: {top}");
            }
        }
    }
}

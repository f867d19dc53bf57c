//! What steps of a model cost on its adapter, class by class: measured, and shown as a table.
//!
//! Where the costs are kept is not its matter. Invariant: in each round every class is timed once, so that what disturbs a
//! while disturbs all of them, and each figure is the middle of its rounds.

use firstlight_engine::costs::{ATTENTION_UNIT, ClassCost, RowTile, SCHEMA, StepCosts};
use firstlight_engine::runner::{GpuRunner, StepShape};
use firstlight_engine::sched::SchedulerConfig;

use crate::bench::amounts::grouped;
use crate::bench::pace::{self, Turn};
use crate::bench::steps::{Opened, Timed, decode, fits};
use crate::bench::style::Style;
use crate::failure::Failure;

/// Rows of answers, and of prompts, that make a class.
const DECODE_CLASSES: [u32; 4] = [1, 2, 4, 8];
const PROMPT_CLASSES: [u32; 3] = [16, 64, 256];
/// Context at which attention is next to nothing, and at which it shows.
const NEAR: u32 = 16;
const FAR: u32 = 1024;
/// Prompts that attention is measured with: from here on the adapter is full.
const PROMPT_ATTENTION: [u32; 2] = [16, 64];

/// A step that would take longer is not measured.
const LONGEST_NS: f64 = 4e9;

/// A measurement of costs on its way.
pub struct Measurement {
    limits: SchedulerConfig,
    steps: Vec<Timed>,
    turns: Vec<(u32, Turn)>,
    ahead: bool,
}

impl Measurement {
    /// Rounds that figures to rely on need.
    pub const ROUNDS: u32 = 5;

    /// Plans it for a runner of these limits, and takes every step once: the first time is no measure.
    ///
    /// # Errors
    /// A step that fails.
    pub fn begin(runner: &mut GpuRunner, limits: &SchedulerConfig) -> Result<Self, Failure> {
        let mut measurement = Self {
            limits: *limits,
            steps: Vec::new(),
            turns: pace::batches(limits).map(|num_seqs| (num_seqs, Turn::default())).collect(),
            ahead: pace::ways(runner).ends_with(&[true]),
        };
        for rows in DECODE_CLASSES.into_iter().chain(PROMPT_CLASSES) {
            let near = measurement.near(rows);
            measurement.plan(near, 0);
            if DECODE_CLASSES.contains(&rows) {
                measurement.plan(near, near.num_seqs);
            }
        }
        for rows in measurement.decode_attention_classes() {
            measurement.plan(measurement.far(rows), 0);
        }
        for rows in PROMPT_ATTENTION {
            measurement.plan(measurement.far_prompt(rows), 0);
        }
        measurement.warm_up(runner)?;
        Ok(measurement)
    }

    /// Takes every step once, but for those that nobody would wait for: the costs of their classes go on from those below.
    fn warm_up(&mut self, runner: &mut GpuRunner) -> Result<(), Failure> {
        // Nanoseconds of a row or of some positions, in the step before.
        let mut pace = 0.0;
        let mut kept = Vec::with_capacity(self.steps.len());
        for mut step in std::mem::take(&mut self.steps) {
            let work = f64::from(step.shape.num_rows()) + step.shape.num_attended() as f64 / 256.0;
            if pace * work > LONGEST_NS {
                continue;
            }
            step.take(runner)?;
            pace = step.ns() as f64 / work;
            step.times.clear();
            kept.push(step);
        }
        let has = |rows: u32| kept.iter().any(|step| step.shape.num_seqs >= rows);
        self.turns.retain(|(num_seqs, _)| has(*num_seqs));
        self.steps = kept;
        Ok(())
    }

    fn plan(&mut self, shape: StepShape, samples: u32) {
        let known = self.steps.iter().any(|step| step.shape == shape && step.samples == samples);
        if fits(&shape, &self.limits) && !known {
            self.steps.push(Timed::new(shape, samples));
        }
    }

    /// So many rows with next to nothing behind them: of answers, or of one prompt where there are fewer slots.
    fn near(&self, rows: u32) -> StepShape {
        let slots = self.limits.max_num_seqs;
        if rows <= slots && DECODE_CLASSES.contains(&rows) {
            decode(rows, NEAR.min(self.limits.max_model_len))
        } else {
            StepShape { num_seqs: 1, tokens_per_seq: rows, context: rows }
        }
    }

    /// The furthest context that so many sequences have room for.
    fn reach(&self, num_seqs: u32) -> u32 {
        let in_pool = self.limits.num_blocks / num_seqs * self.limits.block_size;
        FAR.min(self.limits.max_model_len).min(in_pool)
    }

    fn far(&self, rows: u32) -> StepShape {
        decode(rows, self.reach(rows))
    }

    fn far_prompt(&self, rows: u32) -> StepShape {
        StepShape { num_seqs: 1, tokens_per_seq: rows, context: self.reach(1).max(rows) }
    }

    /// One answer, and as many as were measured at all.
    fn decode_attention_classes(&self) -> Vec<u32> {
        let most = self.limits.max_num_seqs.min(self.limits.max_batch_tokens);
        let largest = DECODE_CLASSES.into_iter().rfind(|rows| *rows <= most).unwrap_or(1);
        if largest > 1 { vec![1, largest] } else { vec![1] }
    }

    /// One round.
    ///
    /// # Errors
    /// A step that fails.
    pub fn round(&mut self, runner: &mut GpuRunner) -> Result<(), Failure> {
        self.steps.iter_mut().try_for_each(|step| step.take(runner))?;
        let (limits, ahead) = (self.limits, self.ahead);
        self.turns.iter_mut().try_for_each(|(num_seqs, turn)| turn.take(runner, &limits, *num_seqs, ahead))
    }

    fn ns(&self, shape: StepShape, samples: u32) -> Option<f64> {
        let step = self.steps.iter().find(|step| step.shape == shape && step.samples == samples)?;
        Some(step.ns() as f64)
    }

    /// Nanoseconds of 1,024 positions, from two steps of as many rows.
    fn slope(&self, near: StepShape, far: StepShape) -> Option<f64> {
        let positions = far.num_attended().checked_sub(near.num_attended()).filter(|more| *more > 0)?;
        let more = self.ns(far, 0)? - self.ns(near, 0)?;
        Some((more / positions as f64).max(0.0) * ATTENTION_UNIT as f64)
    }

    /// What the rounds so far say of the model that was opened as `opened`, whose dispatches take `dispatch_ns` each.
    pub fn costs(&self, opened: &Opened, dispatch_ns: u64) -> StepCosts {
        let class = |rows: u32, ns: f64| ClassCost { rows, ns: ns.max(0.0).round() as u64 };
        let slope = |rows: u32, far: StepShape| Some(class(rows, self.slope(self.near(rows), far)?));
        let decode_attention: Vec<ClassCost> = self
            .decode_attention_classes()
            .into_iter()
            .filter_map(|rows| slope(rows, self.far(rows)))
            .collect();
        let prompt_attention: Vec<ClassCost> =
            PROMPT_ATTENTION.into_iter().filter_map(|rows| slope(rows, self.far_prompt(rows))).collect();
        let facts = runner_facts(&opened.runner);
        let mut costs = StepCosts {
            schema: SCHEMA.into(),
            model: opened.model.clone(),
            adapter: facts.0,
            activations: facts.1,
            kv_cache: opened.kv.name().into(),
            runs_ahead: self.ahead,
            tiles: tiles(&opened.runner),
            decode_attention,
            prompt_attention,
            dispatches: u32::try_from(opened.runner.num_dispatches()).unwrap_or(u32::MAX),
            dispatch_ns,
            ..StepCosts::default()
        };
        for rows in DECODE_CLASSES.into_iter().chain(PROMPT_CLASSES) {
            let near = self.near(rows);
            let Some(ns) = self.ns(near, 0) else { continue };
            let attention = costs.parts(&load_of(near)).attention_ns;
            costs.rows.push(class(rows, ns - attention));
            if let Some(with_head) = self.ns(near, near.num_seqs).filter(|_| near.num_seqs == rows) {
                costs.head.push(class(rows, with_head - ns));
            }
        }
        for (num_seqs, turn) in &self.turns {
            let pace = turn.clone().pace(*num_seqs, self.ahead);
            let near = self.ns(self.near(*num_seqs), *num_seqs).unwrap_or_default();
            let on_gpu = pace.gpu_ns.map_or(near, |ns| ns as f64);
            costs.host.push(class(*num_seqs, pace.step_ns as f64 - on_gpu));
        }
        costs
    }
}

/// The load of a made-up step that samples nothing.
fn load_of(shape: StepShape) -> firstlight_engine::costs::StepLoad {
    let mut load = firstlight_engine::costs::StepLoad::default();
    (0..shape.num_seqs).for_each(|_| load.add(shape.context - shape.tokens_per_seq, shape.tokens_per_seq));
    load
}

fn tiles(runner: &GpuRunner) -> Vec<RowTile> {
    let tiles = runner.choice().matmul_tiles().iter().map(|tile| tile.rows());
    tiles.map(|(min_rows, tile_rows)| RowTile { min_rows, tile_rows }).collect()
}

fn runner_facts(runner: &GpuRunner) -> (String, String) {
    (runner.device().facts().name.clone(), runner.choice().activations.name().into())
}

/// The costs as a table.
pub fn lines(costs: &StepCosts, style: Style) -> Vec<String> {
    let ms = |list: &[ClassCost], rows: u32, digits: usize| {
        let class = list.iter().find(|class| class.rows == rows);
        class.map_or_else(|| "-".to_owned(), |class| format!("{:.digits$}", class.ns as f64 / 1e6))
    };
    let ahead = if costs.runs_ahead { "the next step ahead" } else { "one step at a time" };
    let mut lines = vec![
        style.heading(&format!("costs of a step of {} on {}, in ms", costs.model, costs.adapter)),
        format!(
            "  activations {}, KV cache {}, {ahead}; {} dispatches of {:.1} us at least",
            costs.activations,
            costs.kv_cache,
            grouped(costs.dispatches.into()),
            costs.dispatch_ns as f64 / 1e3
        ),
        style.quiet(&format!(
            "  {:<8}{:>12}{:>12}{:>12}{:>26}{:>26}",
            "rows", "layers", "head", "host", "attention of 1,024: answers", "prompts"
        )),
    ];
    for class in &costs.rows {
        lines.push(format!(
            "  {:<8}{:>12}{:>12}{:>12}{:>26}{:>26}",
            class.rows,
            ms(&costs.rows, class.rows, 3),
            ms(&costs.head, class.rows, 3),
            ms(&costs.host, class.rows, 3),
            ms(&costs.decode_attention, class.rows, 4),
            ms(&costs.prompt_attention, class.rows, 4),
        ));
    }
    if let Some(by) = costs.correction {
        lines.push(format!(
            "  scaled to {} recorded steps: decode by {:.2}, prefill by {:.2}, attention by {:.2}",
            by.steps, by.decode, by.prefill, by.attention
        ));
    }
    lines
}

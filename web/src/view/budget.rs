//! The budget as the page shows it: what can be turned, the figures, the stages, and two charts with what was measured beside
//! what is predicted.
//!
//! The arithmetic is the engine's. Invariant: whatever is turned, every figure is one of [`Budget`].

use firstlight_engine::budget::{Bend, BendAt, Bound, Budget, Knobs, Point as Predicted, Stack};
use firstlight_engine::report::{GapFigures, LatencyReport};
use firstlight_engine::timeline::TimelineRecord;

use super::charts::{Chart, Point};
use super::duration::{count, short_f64, three_figures};

/// A thing that can be turned: it stands on one of some stops.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Dial {
    /// What it is called.
    pub name: &'static str,
    /// Its unit in the singular, behind the figure.
    pub unit: &'static str,
    /// Where it can stand.
    pub stops: &'static [f64],
    /// Where it stands at first, as an index.
    pub at_first: usize,
    /// Whether a stack that was measured has it as it is.
    pub is_stored: bool,
}

const TOKENS: &[f64] = &[
    1.0, 8.0, 16.0, 20.0, 32.0, 64.0, 128.0, 200.0, 300.0, 512.0, 1000.0, 2000.0, 4096.0, 8192.0, 16_384.0,
    32_768.0,
];
const BATCHES: &[f64] =
    &[1.0, 2.0, 3.0, 4.0, 6.0, 8.0, 12.0, 16.0, 24.0, 32.0, 64.0, 96.0, 128.0, 160.0, 192.0, 256.0, 512.0];

/// The dials, in the order in which they stand.
pub const DIALS: [Dial; 5] = [
    Dial { name: "Prompt", unit: "token", stops: TOKENS, at_first: 11, is_stored: false },
    Dial { name: "Answer", unit: "token", stops: TOKENS, at_first: 8, is_stored: false },
    Dial { name: "Batch", unit: "sequence", stops: BATCHES, at_first: 0, is_stored: false },
    Dial { name: "Weights", unit: "bit", stops: &[4.0, 5.0, 8.0, 16.0, 32.0], at_first: 3, is_stored: true },
    Dial { name: "Keys and values", unit: "bit", stops: &[8.0, 16.0, 32.0], at_first: 1, is_stored: true },
];

/// Where the dials stand, as indices of their stops.
pub type Turned = [usize; DIALS.len()];

/// Where they stand at first.
pub fn at_first() -> Turned {
    DIALS.map(|dial| dial.at_first)
}

/// The figure of a dial.
pub fn stop(turned: &Turned, idx: usize) -> f64 {
    let Dial { stops, .. } = DIALS[idx];
    stops[turned[idx].min(stops.len() - 1)]
}

/// The budget with the dials as they stand: of `measured` if there is one, of the reference stack if not.
pub fn turned(measured: Option<&Stack>, turned: &Turned) -> Budget {
    let at = |idx| stop(turned, idx);
    let knobs = Knobs {
        prompt_tokens: at(0) as u32,
        output_tokens: at(1) as u32,
        batch: at(2) as u32,
        worst_tokens: measured.map_or(8192, |stack| stack.model().max_context.max(1)),
        average_tokens: None,
    };
    match measured {
        Some(stack) => firstlight_engine::budget::budget(stack, knobs),
        None => firstlight_engine::budget::budget(&Stack::reference().with_bits(at(3), at(4)), knobs),
    }
}

/// What its times are made of.
pub fn basis(measured: Option<&Stack>) -> String {
    match measured {
        Some(Stack::Measured { costs, .. }) if costs.fitted_to > 0 => {
            format!(
                "by a line through {} of this session",
                super::format::count(costs.fitted_to.into(), "step")
            )
        }
        Some(Stack::Measured { .. }) => "by the costs of steps that were measured".to_owned(),
        Some(Stack::Rates { .. }) | None => "by its memory's bandwidth and its arithmetic".to_owned(),
    }
}

/// Figures with their names and what is to be said of them.
pub fn figures(budget: &Budget) -> Vec<[String; 3]> {
    let bytes = |bytes: f64| super::format::bytes(bytes as u64);
    let row = |name: &str, figure: String, note: String| [name.to_owned(), figure, note];
    let (knobs, room) = (&budget.knobs, &budget.room);
    let percent = |part: f64| format!("{} %", three_figures(100.0 * part));
    let mut rows = vec![
        row(
            "Prefill",
            short_f64(budget.prefill.ns),
            format!("{} of it attention", percent(budget.prefill.quadratic_ns / budget.prefill.ns)),
        ),
        row(
            "A decode step",
            short_f64(budget.step.ns),
            format!(
                "weights {}, keys and values {}",
                short_f64(budget.step.weights_ns),
                short_f64(budget.step.attention_ns)
            ),
        ),
        row(
            "The request",
            short_f64(budget.total_ns),
            format!("{} of it prefill", percent(budget.prefill_share)),
        ),
        row(
            "Decode of the whole batch",
            format!("{} tokens/s", three_figures(budget.tokens_per_second)),
            super::format::count(knobs.batch.into(), "sequence"),
        ),
        row(
            "Ridge",
            format!("{} sequences", three_figures(budget.ridge)),
            match budget.ridge_with_kv {
                Some(with_kv) => format!(
                    "arithmetic takes as long as reading the weights; {} where keys and values are read too",
                    three_figures(with_kv)
                ),
                None => "arithmetic takes as long as reading the weights".to_owned(),
            },
        ),
        row(
            "Keys and values",
            bytes(room.prompt_bytes),
            format!(
                "of the prompt, {} a token, {} in the pool",
                bytes(room.bytes_a_token),
                bytes(room.pool_bytes)
            ),
        ),
        row(
            "Users at once",
            format!("{} by paging", count(room.users_paged)),
            format!(
                "at {} tokens each; {} where each keeps room for {}",
                count(room.average_tokens.into()),
                count(room.users_worst_case),
                count(knobs.worst_tokens.into())
            ),
        ),
    ];
    rows.extend(
        budget.bends.iter().map(|bend| row("A line bends", bend_at(bend), bend_words(bend.at).to_owned())),
    );
    rows
}

fn bend_at(bend: &Bend) -> String {
    let unit = match bend.at {
        BendAt::PromptLinearIsQuadratic | BendAt::ContextKvIsWeights => "tokens",
        BendAt::ReadIsArithmetic => "rows",
        BendAt::BatchFillsPool => "sequences",
    };
    format!("{} {unit}", three_figures(bend.value))
}

fn bend_words(at: BendAt) -> &'static str {
    match at {
        BendAt::ReadIsArithmetic => "from here on more rows take longer",
        BendAt::PromptLinearIsQuadratic => "a prompt from here on is mostly attention",
        BendAt::ContextKvIsWeights => "from here on a step reads more keys and values than weights",
        BendAt::BatchFillsPool => "beyond, somebody waits for room",
    }
}

/// A stage of the bar: its name, its share from 0 to 1 and its time, and what holds it up.
#[derive(Clone, Debug, PartialEq)]
pub struct StageRow {
    /// `7 prefill`.
    pub name: String,
    /// Whether another one holds it.
    pub is_inner: bool,
    /// Of the request; `None` where only a request that runs can tell.
    pub share: Option<f64>,
    /// Its time, or why there is none.
    pub time: String,
    /// What holds it up.
    pub bound: &'static str,
}

/// The twelve stages.
pub fn stages(budget: &Budget) -> Vec<StageRow> {
    let row = |stage: &firstlight_engine::budget::Stage| StageRow {
        name: format!("{} {}", stage.stage, stage.name),
        is_inner: stage.inside.is_some(),
        share: stage.share,
        time: stage.ns.map_or("not modelled".to_owned(), short_f64),
        bound: match stage.bound {
            Some(Bound::Memory) => "memory",
            Some(Bound::Compute) => "arithmetic",
            None => "",
        },
    };
    budget.stages.iter().map(row).collect()
}

/// Which of the two charts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Against {
    /// A decode step against the sequences in it.
    Batch,
    /// The prefill against the prompt's tokens.
    Length,
}

/// Something that this session measured.
#[derive(Clone, Debug, PartialEq)]
pub struct Measured {
    /// Sequences, or tokens.
    pub at: u32,
    /// Nanoseconds.
    pub gaps: GapFigures,
}

/// Decode steps, by the sequences in them: the medians of the gaps that they made.
pub fn measured_batches(report: &LatencyReport) -> Vec<Measured> {
    let buckets = report.inter_token_by_batch.buckets.iter().filter(|bucket| bucket.batch > 0);
    buckets.map(|bucket| Measured { at: bucket.batch, gaps: bucket.gaps }).collect()
}

/// Prefills of requests that nothing interrupted and that found nothing in the prefix cache.
pub fn measured_lengths<'t>(sealed: impl IntoIterator<Item = &'t TimelineRecord>) -> Vec<Measured> {
    let one = |one: &TimelineRecord| {
        let ns = one.parts?.engine?.prefill.total();
        let whole = one.tokens.cached == 0 && one.preemptions == 0 && one.tokens.prompt > 1 && ns > 0;
        let gaps = GapFigures { n: 1, sum: ns, min: ns, max: ns, p50: ns };
        whole.then_some(Measured { at: one.tokens.prompt, gaps })
    };
    sealed.into_iter().filter_map(one).collect()
}

/// The knobs at the lengths that this session's requests had on average; as they are where none has ended.
pub fn at_lengths_of<'t>(sealed: impl IntoIterator<Item = &'t TimelineRecord>, knobs: Knobs) -> Knobs {
    let (mut n, mut prompt, mut output) = (0, 0, 0);
    for tokens in sealed.into_iter().map(|one| one.tokens).filter(|tokens| tokens.generated > 0) {
        (n, prompt, output) =
            (n + 1, prompt + u64::from(tokens.prompt), output + u64::from(tokens.generated));
    }
    let mean = |sum: u64| sum.checked_div(n).map(|mean| u32::try_from(mean).unwrap_or(u32::MAX));
    match (mean(prompt), mean(output)) {
        (Some(prompt), Some(output)) => {
            Knobs { prompt_tokens: prompt.max(1), output_tokens: output, ..knobs }
        }
        _ => knobs,
    }
}

/// What the budget predicts as a line, and what was measured as dots. Both axes go by powers of two: a factor is the same length
/// everywhere.
pub fn chart(budget: &Budget, against: Against, measured: &[Measured]) -> Chart {
    let (x_name, unit, predicted) = match against {
        Against::Batch => ("sequences in the step", "sequences", &budget.steps),
        Against::Length => ("tokens of the prompt", "tokens", &budget.prefills),
    };
    // Predictions far from anything that was measured would push it into a corner.
    let longest = measured.iter().map(|one| one.at.saturating_mul(4).max(512)).max().unwrap_or(u32::MAX);
    let line: Vec<&Predicted> = predicted.iter().filter(|point| point.at <= longest).collect();
    let log = |value: f64| value.max(1.0).log2();
    let (mut left, mut right) = (f64::INFINITY, 0.0_f64);
    let (mut low, mut high) = (f64::INFINITY, 0.0_f64);
    let predicted = line.iter().map(|point| (point.at, point.ns));
    for (at, ns) in predicted.chain(measured.iter().map(|one| (one.at, one.gaps.p50 as f64))) {
        (left, right) = (left.min(log(f64::from(at))), right.max(log(f64::from(at))));
        (low, high) = (low.min(log(ns).floor()), high.max(log(ns).ceil()));
    }
    if !left.is_finite() {
        return Chart { x_name, ..Chart::default() };
    }
    let x = |at: u32| (log(f64::from(at)) - left) / (right - left).max(1.0);
    let y = |ns: f64| (log(ns) - low) / (high - low).max(1.0);
    let dot = |one: &Measured| {
        let at = y(one.gaps.p50 as f64);
        let words = format!("{} {unit}", count(one.at.into()));
        Point { x: x(one.at), y: at, low: at, high: at, at: words, gaps: one.gaps }
    };
    let every = ((high - low) / 5.0).ceil().max(1.0);
    let y_ticks = (0..6).map(|i| low + f64::from(i) * every).take_while(|at| *at <= high);
    Chart {
        line: line.iter().map(|point| (x(point.at), y(point.ns))).collect(),
        points: measured.iter().map(dot).collect(),
        x_ticks: line.iter().map(|point| (x(point.at), count(point.at.into()))).collect(),
        y_ticks: y_ticks.map(|at| ((at - low) / (high - low).max(1.0), short_f64(at.exp2()))).collect(),
        x_name,
        forgotten: 0,
    }
}

/// The table beneath a chart: where, predicted, measured, and by how much the prediction is off.
pub fn side_by_side(
    stack: &Stack,
    knobs: Knobs,
    against: Against,
    measured: &[Measured],
) -> Vec<Vec<String>> {
    let row = |one: &Measured| {
        let knobs = match against {
            Against::Batch => Knobs { batch: one.at, ..knobs },
            Against::Length => Knobs { prompt_tokens: one.at, ..knobs },
        };
        let budget = firstlight_engine::budget::budget(stack, knobs);
        let predicted = match against {
            Against::Batch => budget.step.ns,
            Against::Length => budget.prefill.ns,
        };
        let ns = one.gaps.p50 as f64;
        let off = format!("{:+.0} %", 100.0 * (predicted / ns.max(1.0) - 1.0));
        vec![count(one.at.into()), short_f64(predicted), short_f64(ns), off, count(one.gaps.n as u64)]
    };
    measured.iter().map(row).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whatever_is_turned_has_figures_and_lies_within_the_chart() {
        for (idx, dial) in DIALS.iter().enumerate() {
            for at in 0..dial.stops.len() {
                let mut dials = at_first();
                dials[idx] = at;
                let budget = turned(None, &dials);
                assert!(
                    figures(&budget)
                        .iter()
                        .flatten()
                        .all(|words| !words.contains("NaN") && !words.contains("inf"))
                );
                assert_eq!(stages(&budget).len(), 12);
                for against in [Against::Batch, Against::Length] {
                    let chart = chart(&budget, against, &[]);
                    let within = |value: &f64| (0.0..=1.0).contains(value);
                    assert!(chart.line.len() > 4 && chart.line.iter().all(|(x, y)| within(x) && within(y)));
                    assert!((2..=6).contains(&chart.y_ticks.len()), "{:?}", chart.y_ticks);
                }
            }
        }
    }

    #[test]
    fn the_dials_stand_on_the_reference_figures_at_first() {
        let budget = turned(None, &at_first());
        assert_eq!(
            (budget.knobs.prompt_tokens, budget.knobs.output_tokens, budget.knobs.batch),
            (2000, 300, 1)
        );
        let words: Vec<String> = figures(&budget).concat();
        let all = words.join("; ");
        for figure in ["87.4 ms", "6.08 ms", "146 sequences"] {
            assert!(all.contains(figure), "{figure} is not in {all}");
        }
    }

    #[test]
    fn what_was_measured_stands_beside_what_is_predicted() {
        let gaps = GapFigures { n: 3, sum: 27_000_000, min: 9_000_000, max: 9_000_000, p50: 9_000_000 };
        let budget = turned(None, &at_first());
        let measured = [Measured { at: 3, gaps }];
        let chart = chart(&budget, Against::Batch, &measured);
        assert_eq!((chart.points.len(), chart.points[0].at.as_str()), (1, "3 sequences"));
        let rows = side_by_side(&Stack::reference(), budget.knobs, Against::Batch, &measured);
        assert_eq!((rows[0][0].as_str(), rows[0][2].as_str()), ("3", "9 ms"));
        assert!(rows[0][3].starts_with('-'), "{rows:?}");
    }
}

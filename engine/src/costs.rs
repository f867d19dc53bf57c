//! What a step costs, by what it holds: figures measured class by class on one adapter with one model, and the time of any step
//! put together from them.
//!
//! It measures nothing, reads no clock and knows no GPU. Invariant: a step is the sum of its parts (rows, head, attention,
//! host), each of them linear between the classes that were measured.

mod fit;

use serde::{Deserialize, Serialize};

pub use fit::Correction;

use crate::sched::Batch;

/// What a step holds, as far as its time depends on it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Deserialize, Serialize)]
pub struct StepLoad {
    /// Rows that are alone in their sequence: those of answers, and a prompt's last token where it comes alone.
    pub decode_rows: u32,
    /// Rows of prompts.
    pub prefill_rows: u32,
    /// Rows that a token is sampled from.
    pub sampled_rows: u32,
    /// Positions that the rows attend to, each its own and all before it; the sum over all rows.
    pub attended: u64,
    /// The same over `decode_rows` alone.
    pub decode_attended: u64,
}

impl StepLoad {
    /// A step of `num_seqs` answers whose newest token is each at the end of `context` positions.
    pub fn decode(num_seqs: u32, context: u32) -> Self {
        let attended = u64::from(num_seqs) * u64::from(context);
        Self {
            decode_rows: num_seqs,
            prefill_rows: 0,
            sampled_rows: num_seqs,
            attended,
            decode_attended: attended,
        }
    }

    /// A chunk of `tokens` of one prompt that has `before` behind it; `ends` where it is the last, and a token is sampled.
    pub fn prefill(before: u32, tokens: u32, ends: bool) -> Self {
        let mut load = Self { sampled_rows: u32::from(ends), ..Self::default() };
        load.add(before, tokens);
        load
    }

    /// The steps of a prompt of `tokens` that is alone: chunks of `most` at most, the last of which ends it.
    pub fn chunks(tokens: u32, most: u32) -> impl Iterator<Item = Self> {
        let most = most.max(1);
        (0..tokens).step_by(most as usize).map(move |before| {
            let chunk = most.min(tokens - before);
            Self::prefill(before, chunk, before + chunk == tokens)
        })
    }

    /// The load of `batch`.
    pub fn of(batch: &Batch) -> Self {
        let mut load = Self { sampled_rows: batch.sample_rows.len() as u32, ..Self::default() };
        for (rows, seq_len) in batch.query_start.windows(2).zip(&batch.seq_lens) {
            let tokens = rows[1] - rows[0];
            load.add(seq_len - tokens, tokens);
        }
        load
    }

    /// Takes in the next `tokens` of a sequence that has `before` behind it.
    pub fn add(&mut self, before: u32, tokens: u32) {
        let (first, new) = (u64::from(before) + 1, u64::from(tokens));
        // Row i looks at first + i positions: an arithmetic series.
        let attended = new * first + new * new.saturating_sub(1) / 2;
        self.attended += attended;
        if tokens == 1 {
            self.decode_rows += 1;
            self.decode_attended += attended;
        } else {
            self.prefill_rows += tokens;
        }
    }

    /// Rows of the batch.
    pub fn num_rows(&self) -> u32 {
        self.decode_rows + self.prefill_rows
    }
}

/// What was measured of one class of steps.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
pub struct ClassCost {
    /// Rows that make the class.
    pub rows: u32,
    /// Nanoseconds.
    pub ns: u64,
}

/// How a kernel takes rows: from `min_rows` rows on it computes a multiple of `tile_rows`, those of nobody included.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
pub struct RowTile {
    /// The fewest rows it is used for.
    pub min_rows: u32,
    /// What its rows come in.
    pub tile_rows: u32,
}

/// The name and the version of [`StepCosts`] as JSON.
pub const SCHEMA: &str = "firstlight.costs/1";

/// Positions that [`StepCosts::decode_attention`] and [`StepCosts::prompt_attention`] are given for.
pub const ATTENTION_UNIT: u64 = 1024;

/// The largest class whose rows are read as decode steps; those above are chunks of prompts.
pub(crate) const MAX_DECODE_CLASS: u32 = 8;

/// What steps of one model on one adapter cost, by class. Classes are in ascending order of their rows; between them costs are
/// linear, beyond the last they go on as between the last two.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
pub struct StepCosts {
    /// [`SCHEMA`].
    pub schema: String,
    /// The model's name.
    pub model: String,
    /// The adapter's name.
    pub adapter: String,
    /// What products take: f32 or i8.
    pub activations: String,
    /// How keys and values are kept: f32, f16 or q8.
    pub kv_cache: String,
    /// Whether the next step is submitted before the tokens of the present one are read.
    pub runs_ahead: bool,
    /// In what the products take rows, in rising order; without them row by row.
    #[serde(default)]
    pub tiles: Vec<RowTile>,
    /// All layers of a step of so many rows, whoever they belong to: without attention, without the head.
    pub rows: Vec<ClassCost>,
    /// The head, and choosing a token on the GPU, for so many sampled rows.
    pub head: Vec<ClassCost>,
    /// 1,024 attended positions in a step of so many decode rows.
    pub decode_attention: Vec<ClassCost>,
    /// 1,024 attended positions in a step of so many rows of prompts.
    pub prompt_attention: Vec<ClassCost>,
    /// What the engine's loop adds to the GPU's time in a step of so many sampled rows: deciding, encoding, waiting, reading
    /// back, and choosing the tokens where the CPU does it.
    pub host: Vec<ClassCost>,
    /// Dispatches of a step that samples. Their cost is in `rows` and `head` already.
    pub dispatches: u32,
    /// One more dispatch in a pass.
    pub dispatch_ns: u64,
    /// Steps that all of it is a line through, where nobody measured its classes.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub fitted_to: u32,
    /// How these costs were scaled to steps that an engine has run; absent where they are as measured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub correction: Option<Correction>,
}

/// The parts of a step, in nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Deserialize, Serialize)]
pub struct StepParts {
    /// All layers without attention.
    pub layers_ns: f64,
    /// Attention.
    pub attention_ns: f64,
    /// The head and sampling.
    pub head_ns: f64,
    /// The engine's loop.
    pub host_ns: f64,
}

impl StepParts {
    /// All of them.
    pub fn total_ns(&self) -> f64 {
        self.layers_ns + self.attention_ns + self.head_ns + self.host_ns
    }
}

impl StepCosts {
    /// Nanoseconds from the beginning of a step that holds `load` to its end, as the engine sees it.
    pub fn step_ns(&self, load: &StepLoad) -> u64 {
        self.parts(load).total_ns().round() as u64
    }

    /// The rows that are computed for so many: a tile that is not full costs what a full one does.
    fn computed_rows(&self, rows: u32) -> u32 {
        let tile = self.tiles.iter().rev().find(|tile| tile.min_rows <= rows);
        tile.and_then(|tile| rows.checked_next_multiple_of(tile.tile_rows)).unwrap_or(rows)
    }

    /// The same in its parts.
    pub fn parts(&self, load: &StepLoad) -> StepParts {
        let of_prompts = load.attended.saturating_sub(load.decode_attended);
        StepParts {
            layers_ns: at(&self.rows, self.computed_rows(load.num_rows())),
            attention_ns: attention(&self.decode_attention, load.decode_rows, load.decode_attended)
                + attention(&self.prompt_attention, load.prefill_rows, of_prompts),
            head_ns: at(&self.head, self.computed_rows(load.sampled_rows)),
            // Also a step that samples nothing is decided, submitted and waited for.
            host_ns: at(&self.host, load.sampled_rows.max(1)),
        }
    }

    /// What is wrong with costs that come from outside; `None` where a step can be put together from them.
    pub fn check(&self) -> Option<&'static str> {
        let lists = [&self.rows, &self.head, &self.decode_attention, &self.prompt_attention, &self.host];
        let ascends = |list: &&Vec<ClassCost>| list.windows(2).all(|pair| pair[0].rows < pair[1].rows);
        match self.rows.first() {
            None => Some("they have no class of rows"),
            Some(_) if !lists.iter().all(ascends) => {
                Some("the order of their classes is not that of their rows")
            }
            Some(_) => None,
        }
    }

    /// A row alone in its step, in all layers and without attention: mostly the reading of their weights.
    pub fn first_row_ns(&self) -> f64 {
        at(&self.rows, 1)
    }

    /// One more row in a step that has many already: mostly its arithmetic.
    pub fn further_row_ns(&self) -> f64 {
        let last = self.rows.last().map_or(1, |class| class.rows);
        at(&self.rows, last + 1) - at(&self.rows, last)
    }

    /// These costs, scaled to `measured` steps of an engine on this adapter: those of decode steps, of chunks and of attention
    /// each by one factor, as a regression finds it that a few steps which something disturbed do not move. The result says
    /// by how much; where `measured` says nothing of a class it keeps its costs.
    #[must_use]
    pub fn corrected(&self, measured: &[(StepLoad, u64)]) -> Self {
        let correction = fit::correction(self, measured);
        let before = self.correction.unwrap_or_default();
        let by = |costs: &[ClassCost], factor: f64| -> Vec<ClassCost> {
            costs.iter().map(|class| scaled(*class, factor)).collect()
        };
        Self {
            rows: self.rows.iter().map(|class| scaled(*class, correction.of_class(class.rows))).collect(),
            head: by(&self.head, correction.decode),
            host: by(&self.host, correction.decode),
            decode_attention: by(&self.decode_attention, correction.attention),
            prompt_attention: by(&self.prompt_attention, correction.attention),
            correction: Some(correction.after(before)),
            ..self.clone()
        }
    }
}

fn is_zero(count: &u32) -> bool {
    *count == 0
}

fn scaled(class: ClassCost, factor: f64) -> ClassCost {
    ClassCost { rows: class.rows, ns: (class.ns as f64 * factor).round() as u64 }
}

/// Nanoseconds of `attended` positions in a step of `rows`.
fn attention(costs: &[ClassCost], rows: u32, attended: u64) -> f64 {
    // What 1,024 positions cost does not follow a line beyond the classes: the adapter is full by then.
    let (first, last) = (costs.first().map_or(0, |c| c.rows), costs.last().map_or(0, |c| c.rows));
    at(costs, rows.clamp(first, last)) * attended as f64 / ATTENTION_UNIT as f64
}

/// The cost of `rows`: linear between classes, as the first below it, by the last slope above the last; 0 for none.
fn at(costs: &[ClassCost], rows: u32) -> f64 {
    weights(costs, rows).into_iter().map(|(class, weight)| class.ns as f64 * weight).sum::<f64>().max(0.0)
}

/// The classes that the cost of `rows` is made of, and how much of each.
fn weights(costs: &[ClassCost], rows: u32) -> [(ClassCost, f64); 2] {
    let none = (ClassCost::default(), 0.0);
    let (Some(first), true) = (costs.first(), rows > 0) else { return [none; 2] };
    // The pair that `rows` lies between, or the last one.
    let pair = costs.windows(2).find(|pair| rows <= pair[1].rows).or_else(|| costs.windows(2).last());
    match pair {
        Some([low, high]) if rows > first.rows && high.rows > low.rows => {
            let mut share = f64::from(rows - low.rows) / f64::from(high.rows - low.rows);
            if high.ns < low.ns {
                // A last class that came out below the one before it is noise, and nothing to go on by.
                share = share.min(1.0);
            }
            [(*low, 1.0 - share), (*high, share)]
        }
        _ => [(*first, 1.0), none],
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    fn classes(classes: &[(u32, u64)]) -> Vec<ClassCost> {
        classes.iter().map(|&(rows, ns)| ClassCost { rows, ns }).collect()
    }

    pub(crate) fn costs() -> StepCosts {
        StepCosts {
            schema: SCHEMA.into(),
            rows: classes(&[
                (1, 1000),
                (2, 1100),
                (4, 1500),
                (8, 2500),
                (16, 4500),
                (64, 9300),
                (256, 28_500),
            ]),
            head: classes(&[(1, 200), (8, 900)]),
            decode_attention: classes(&[(1, 512), (8, 256)]),
            prompt_attention: classes(&[(16, 64), (64, 32)]),
            host: classes(&[(1, 50), (8, 120)]),
            ..StepCosts::default()
        }
    }

    #[test]
    fn a_cost_is_linear_between_classes_and_goes_on_by_the_last_slope() {
        let check = |list: &[(u32, u64)], rows, expected: f64| assert_eq!(at(&classes(list), rows), expected);
        let list = [(1, 10), (4, 40), (8, 60)];
        check(&list, 0, 0.0);
        check(&list, 1, 10.0);
        check(&list, 2, 20.0);
        check(&list, 4, 40.0);
        check(&list, 6, 50.0);
        check(&list, 8, 60.0);
        check(&list, 16, 100.0);
        check(&[(16, 5), (64, 9)], 3, 5.0);
        check(&[(1, 10)], 7, 10.0);
        check(&[(4, 40), (8, 20)], 1000, 20.0);
        check(&[], 7, 0.0);
    }

    #[test]
    fn a_tile_that_is_not_full_costs_what_a_full_one_does() {
        let tile = |min_rows, tile_rows| RowTile { min_rows, tile_rows };
        let tiles = vec![tile(1, 1), tile(2, 2), tile(3, 4), tile(9, 0)];
        let tiled = StepCosts { tiles, ..costs() };
        let check = |rows: u32, as_many: u32| {
            let (load, full) = (StepLoad::decode(rows, 0), StepLoad::decode(as_many, 0));
            let (got, expected) = (tiled.parts(&load), costs().parts(&full));
            assert_eq!((got.layers_ns, got.head_ns), (expected.layers_ns, expected.head_ns), "{rows} rows");
        };
        for (rows, as_many) in [(0, 0), (1, 1), (2, 2), (3, 4), (4, 4), (5, 8), (8, 8)] {
            check(rows, as_many);
        }
        // Of no rows a tile is none.
        check(10, 10);
    }

    #[test]
    fn a_step_is_the_sum_of_its_parts() {
        let check = |load: StepLoad, expected: u64| assert_eq!(costs().step_ns(&load), expected, "{load:?}");
        check(StepLoad::decode(1, 1024), 1000 + 200 + 512 + 50);
        check(StepLoad::decode(8, 256), 2500 + 900 + 512 + 120);
        // Beyond the classes attention keeps its price a position, and the rest its slope.
        check(StepLoad::decode(15, 1024), 4250 + 1600 + 15 * 256 + 190);
        // 64 rows at the beginning attend to 64 * 65 / 2 positions, and a chunk that is not the last samples nothing.
        check(StepLoad::prefill(0, 64, true), 9300 + 200 + 65 + 50);
        check(StepLoad::prefill(960, 64, false), 9300 + 1985 + 50);
        let mut both = StepLoad::decode(1, 1024);
        both.add(960, 64);
        check(both, 9400 + 200 + 512 + 1985 + 50);
    }

    #[test]
    fn a_batch_is_read_as_its_sequences() {
        let row = |row| crate::sched::SampleRow {
            row,
            params: Default::default(),
            position: 0,
            history: Vec::new(),
            prompt_len: 0,
        };
        let batch = Batch {
            token_ids: vec![0; 7],
            positions: vec![9, 2, 3, 4, 5, 6, 0],
            query_start: vec![0, 1, 6, 7],
            seq_lens: vec![10, 7, 1],
            sample_rows: vec![row(0), row(5)],
            ..Batch::default()
        };
        let expected = StepLoad {
            decode_rows: 2,
            prefill_rows: 5,
            sampled_rows: 2,
            attended: 10 + 25 + 1,
            decode_attended: 11,
        };
        assert_eq!(StepLoad::of(&batch), expected);
        assert_eq!(StepLoad::of(&batch).num_rows() as usize, batch.num_rows());
        assert_eq!(StepLoad::of(&Batch { query_start: vec![0], ..Batch::default() }), StepLoad::default());
    }

    #[test]
    fn costs_are_read_as_they_were_written() {
        let (plain, corrected) = (costs(), costs().corrected(&[(StepLoad::decode(1, 8), 9000)]));
        for costs in [plain, corrected] {
            let text = serde_json::to_string(&costs).unwrap();
            assert_eq!(serde_json::from_str::<StepCosts>(&text).unwrap(), costs, "{text}");
        }
    }
}

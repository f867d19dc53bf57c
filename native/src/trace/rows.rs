//! The twelve stages of one request as rows: a timeline, the steps of the engine and the facts of model and adapter in,
//! rows out.
//!
//! Reads no clock and prints nothing. Invariant: the rows that stand inside no other sum to [`whole`] by `==`; a row that
//! nobody measured says so instead of showing a time.

use firstlight_engine::clock::Nanos;
use firstlight_engine::gpu::SampleOn;
use firstlight_engine::timeline::{DecodeParts, EngineParts, Parts, RequestTimeline, StepRecord, WaitCauses};
use serde::Serialize;

use super::cuts::Cuts;
use super::rates::Rates;
use super::shape::ModelShape;
use super::work::{StageSums, TokenWork};

/// Where a stage runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Place {
    /// The command's own thread.
    Host,
    /// The engine's thread.
    Engine,
    /// The adapter, which may be a driver that computes on the CPU.
    Gpu,
}

/// One stage of a request.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Row {
    /// 1 to 12.
    pub stage: u8,
    /// What it is called.
    pub name: &'static str,
    /// The stage whose time holds this one's; the others sum to the whole.
    pub inside: Option<u8>,
    /// Its time; `None` where nobody measured it, and `bound` then says why.
    pub ns: Option<Nanos>,
    /// Its share of the whole.
    pub share: Option<f64>,
    /// Where it ran.
    #[serde(rename = "where")]
    pub place: Place,
    /// What bounds it: figures where there are any, in at most 28 characters for prompts below 10,000 tokens.
    pub bound: String,
    /// Bytes that go in: text, ids, weights, keys and values.
    pub bytes_in: Option<u64>,
    /// Bytes that come out.
    pub bytes_out: Option<u64>,
}

/// Bytes of the texts of one request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TextBytes {
    /// What the user sent.
    pub prompt: u64,
    /// What the chat template made of it; `None` without a template.
    pub rendered: Option<u64>,
    /// The answer.
    pub answer: u64,
}

/// What a table needs beside timeline and steps.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Facts {
    /// The model.
    pub shape: ModelShape,
    /// The adapter's rates, where they were measured.
    pub rates: Option<Rates>,
    /// Whether the adapter has timestamps.
    pub timestamps: bool,
    /// Where tokens are chosen.
    pub sample_on: SampleOn,
    /// Tokens of a KV block.
    pub block_size: u32,
    /// The texts.
    pub text: TextBytes,
}

const ONE_THREAD: &str = "one CPU thread";
const NOT_REACHED: &str = "not reached";
const NO_STEP: &str = "no step of it is known";
const NOT_MEASURED: &str = "not measured on this adapter";

/// What the top rows sum to: `e2e` of a request whose last write came after its end, as in all that a command answers;
/// where a client left before the end, the time to the end. `None` while the request lives.
pub fn whole(timeline: &RequestTimeline) -> Option<Nanos> {
    let stamps = timeline.stamps();
    let finished = stamps.finished?;
    finished.max(stamps.last_write.unwrap_or(finished)).checked_sub(stamps.received()?)
}

/// The rows of one ended request, in the order of their stages; empty while it lives. `steps` are those of the engine,
/// oldest first; what the request did in steps that are no longer there is not in the rows inside.
pub fn rows(timeline: &RequestTimeline, steps: &[StepRecord], facts: &Facts) -> Vec<Row> {
    let (Some(parts), Some(whole)) = (timeline.parts(), whole(timeline)) else { return Vec::new() };
    let table = Table { timeline, steps, facts, parts, whole };
    let mut rows = table.preparation();
    rows.extend(table.admission());
    rows.extend(table.forward());
    rows.extend(table.rest());
    rows
}

/// The steps that computed some of the request's prompt before its first token.
pub fn prompt_steps<'a>(
    timeline: &RequestTimeline,
    steps: &'a [StepRecord],
) -> impl Iterator<Item = &'a StepRecord> + use<'a> {
    let (cut, id) = (timeline.stamps().cut().unwrap_or_default(), timeline.id());
    steps.iter().filter(move |step| step.done_at <= cut && step.prefill.iter().any(|(one, _)| *one == id))
}

/// The steps that made the request's tokens after the first.
pub fn answer_steps<'a>(
    timeline: &'a RequestTimeline,
    steps: &'a [StepRecord],
) -> impl Iterator<Item = &'a StepRecord> {
    let made = timeline.token_step().get(1..).unwrap_or_default();
    let known = |id: &u64| steps.binary_search_by_key(id, |step| step.id).ok();
    made.iter().filter_map(known).map(|idx| &steps[idx])
}

struct Table<'a> {
    timeline: &'a RequestTimeline,
    steps: &'a [StepRecord],
    facts: &'a Facts,
    parts: Parts,
    whole: Nanos,
}

impl Table<'_> {
    fn row(&self, stage: u8, name: &'static str, place: Place, ns: Option<Nanos>) -> Row {
        let share = ns.map(|ns| if self.whole == 0 { 0.0 } else { ns as f64 / self.whole as f64 });
        Row {
            stage,
            name,
            inside: None,
            ns,
            share,
            place,
            bound: String::new(),
            bytes_in: None,
            bytes_out: None,
        }
    }

    /// A row inside of stage 7.
    fn inner(&self, stage: u8, name: &'static str, place: Place, ns: Option<Nanos>) -> Row {
        Row { inside: Some(7), ..self.row(stage, name, place, ns) }
    }

    /// Stages 1 to 3.
    fn preparation(&self) -> Vec<Row> {
        let (parts, text) = (&self.parts, &self.facts.text);
        let host = &self.timeline.stamps().host;
        let begun = |idx: usize| host.get(idx).copied().flatten().is_some();
        let reached = |idx: usize, bound: &str| (if begun(idx) { bound } else { NOT_REACHED }).to_owned();
        let prompt_ids = u64::from(self.timeline.tokens().prompt) * 4;
        let parse = parts.gateway + parts.route + parts.preparation.wait;
        let templated = if text.rendered.is_some() { ONE_THREAD } else { "no template" };
        vec![
            Row {
                bound: reached(0, ONE_THREAD),
                bytes_in: Some(text.prompt),
                bytes_out: Some(text.prompt),
                ..self.row(1, "parse", Place::Host, Some(parse))
            },
            Row {
                bound: reached(3, templated),
                bytes_in: text.rendered.map(|_| text.prompt),
                bytes_out: text.rendered,
                ..self.row(2, "chat template", Place::Host, Some(parts.preparation.template))
            },
            Row {
                bound: reached(4, ONE_THREAD),
                bytes_in: begun(4).then(|| text.rendered.unwrap_or(text.prompt)),
                bytes_out: (prompt_ids > 0).then_some(prompt_ids),
                ..self.row(3, "tokenise", Place::Host, Some(parts.preparation.tokenise))
            },
        ]
    }

    /// Stages 4 and 5. The pass that admits a request is stamped at its start, so that its own time is the prefill's.
    fn admission(&self) -> Vec<Row> {
        let engine = self.parts.engine.unwrap_or_default();
        let mut waited = engine.queue_wait;
        waited.add(engine.requeue);
        let submit = self.parts.preparation.submit;
        let inbox = engine.inbox.total();
        let counts = self.timeline.tokens();
        let prompt_ids = u64::from(counts.prompt) * 4;
        let admission = Row {
            bound: match self.timeline.stamps().created() {
                Some(created) => self.wait_bound(submit, &engine, waited, created),
                None => NOT_REACHED.to_owned(),
            },
            bytes_in: Some(prompt_ids).filter(|bytes| *bytes > 0),
            ..self.row(4, "admission (wait)", Place::Engine, Some(submit + inbox + waited.total()))
        };
        let passes = self.admitting_passes();
        let spent = (!passes.is_empty()).then(|| passes.iter().map(|s| s.submit_at - s.schedule_at).sum());
        let blocks = u64::from(counts.prompt.div_ceil(self.facts.block_size.max(1)));
        let block_bytes = u64::from(self.facts.block_size) * self.facts.shape.kv_bytes_a_token;
        let matched = match passes.len() {
            0 => NOT_REACHED.to_owned(),
            _ => {
                let plural = if blocks == 1 { "" } else { "s" };
                format!("{}/{} cached, {blocks} block{plural}", self.cached(), counts.prompt)
            }
        };
        let pass = Row {
            bound: matched,
            bytes_in: spent.map(|_: Nanos| prompt_ids),
            bytes_out: spent.map(|_| blocks * block_bytes),
            ..self.inner(5, "KV blocks, prefix match", Place::Engine, spent)
        };
        vec![admission, pass]
    }

    /// The steps whose pass admitted the request before its first token.
    fn admitting_passes(&self) -> Vec<&StepRecord> {
        let cut = self.timeline.stamps().cut().unwrap_or_default();
        let admitted = self.timeline.attempts().iter().map(|attempt| attempt.from).filter(|at| *at <= cut);
        let pass = |at| self.own_prefill().find(|step| step.schedule_at == at);
        admitted.filter_map(pass).collect()
    }

    /// Tokens found in the pool at the last admission before the first token.
    fn cached(&self) -> u32 {
        let cut = self.timeline.stamps().cut().unwrap_or_default();
        let before = self.timeline.attempts().iter().rfind(|attempt| attempt.from <= cut);
        before.map_or(0, |attempt| attempt.cached)
    }

    fn wait_bound(&self, submit: Nanos, engine: &EngineParts, waited: WaitCauses, created: Nanos) -> String {
        let running = self.steps.iter().any(|step| step.schedule_at < created && created < step.done_at);
        let step = if running { "waiting: the running step" } else { "waking the engine's thread" };
        let causes = [
            (waited.slots, "waiting: slots"),
            (waited.budget, "waiting: the token budget"),
            (waited.blocks, "waiting: free KV blocks"),
            (waited.order, "waiting: one before it"),
            (waited.paused, "waiting: the device"),
            (engine.inbox.model_load, "waiting: the model's load"),
            (engine.inbox.step, step),
            (submit, ONE_THREAD),
        ];
        let largest = causes.into_iter().max_by_key(|(ns, _)| *ns);
        let words = largest.filter(|(ns, _)| *ns > 0).map(|(_, words)| words);
        words.unwrap_or("nothing to wait for").to_owned()
    }

    fn own_prefill(&self) -> impl Iterator<Item = &StepRecord> {
        prompt_steps(self.timeline, self.steps)
    }

    /// Stages 6 to 9.
    fn forward(&self) -> Vec<Row> {
        let shape = &self.facts.shape;
        let engine = self.parts.engine.unwrap_or_default();
        let ns = engine.lost_prefill + engine.prefill.total();
        let sums = StageSums::of(self.own_prefill());
        let work = TokenWork::of_prompt(self.timeline, shape);
        let admitted = !self.timeline.attempts().is_empty();
        // Rows, weights and operations are those of whole steps: what shared them had its part in their time.
        let measured = sums.filter(|sums| sums.timed);
        let missing_steps = if admitted { NO_STEP } else { NOT_REACHED };
        let missing = if admitted && !self.facts.timestamps { NOT_MEASURED } else { missing_steps };
        let words = |bound: Option<String>| bound.unwrap_or_else(|| missing.to_owned());
        let rates = self.facts.rates.as_ref();
        let bytes = |bytes: u64| sums.map(|_| bytes);
        let all = sums.unwrap_or_default();
        let embedding = Row {
            bound: words(measured.map(|m| Rates::bound(rates, m.embedding(shape)))),
            bytes_in: bytes(all.rows * shape.embedding_row_bytes),
            bytes_out: bytes(all.rows * shape.hidden_size * 4),
            ..self.inner(6, "embedding", Place::Gpu, measured.map(|m| m.times.embed_ns))
        };
        let prefill = Row {
            bound: sums
                .map_or(missing_steps.to_owned(), |sums| Rates::bound(rates, sums.layers(shape, work))),
            bytes_in: bytes(all.steps * shape.layers_bytes + work.kv_read),
            bytes_out: bytes(work.kv_written),
            ..self.row(7, "prefill", Place::Gpu, Some(ns))
        };
        // Only the step that ends the prompt has a head and a sample.
        let sampled = self.timeline.stamps().first_token.is_some();
        let last = StageSums::of(self.own_prefill().last().into_iter().filter(|_| sampled));
        let last_measured = last.filter(|last| last.timed);
        let missing = if sampled { missing } else { NOT_REACHED };
        let head = Row {
            bound: last_measured.map_or(missing.to_owned(), |m| Rates::bound(rates, m.head(shape))),
            bytes_in: last.map(|_| shape.head_bytes),
            bytes_out: last.map(|_| shape.vocab_size * 4),
            ..self.inner(8, "output head", Place::Gpu, last_measured.map(|m| m.times.head_ns))
        };
        vec![embedding, prefill, head, self.sample(sampled, last_measured)]
    }

    fn sample(&self, sampled: bool, measured: Option<StageSums>) -> Row {
        let on_gpu = self.facts.sample_on == SampleOn::Gpu;
        let place = if on_gpu { Place::Gpu } else { Place::Engine };
        let ns = measured.filter(|_| on_gpu).map(|m| m.times.sample_ns);
        let bound = match (sampled, on_gpu, ns) {
            (false, ..) => NOT_REACHED,
            (true, false, _) => "on the CPU, not timed apart",
            (true, true, None) => NOT_MEASURED,
            (true, true, Some(_)) => "one workgroup a row",
        };
        let logits = self.facts.shape.vocab_size * 4;
        Row {
            bound: bound.to_owned(),
            bytes_in: sampled.then_some(logits),
            bytes_out: sampled.then_some(4),
            ..self.inner(9, "sample", place, ns)
        }
    }

    /// Stages 10 to 12: from the first token to the end, cut where the first text was written.
    fn rest(&self) -> Vec<Row> {
        let counts = self.timeline.tokens();
        // The last token is nobody's predecessor: it has no keys and values.
        let blocks = (u64::from(counts.prompt) + u64::from(counts.generated).saturating_sub(1))
            .div_ceil(u64::from(self.facts.block_size.max(1)));
        let cuts = Cuts::of(self.timeline);
        let reached = self.timeline.stamps().first_token.is_some();
        let stamps = self.timeline.stamps();
        // What came before the second token is the way to the host's thread.
        let second = self.timeline.token_at().get(1);
        let held = second.is_some_and(|second| stamps.first_text >= Some(*second));
        let text_bound = match (reached, stamps.first_write.is_some(), held) {
            (false, ..) => NOT_REACHED,
            (true, false, _) => "not streamed: one write",
            (true, true, true) => "held back until it is text",
            (true, true, false) => ONE_THREAD,
        };
        let stream_out = Row {
            bound: text_bound.to_owned(),
            bytes_in: reached.then_some(u64::from(counts.generated) * 4),
            bytes_out: reached.then_some(self.facts.text.answer),
            ..self.row(10, "detokenise + stream out", Place::Host, Some(cuts.stream_out))
        };
        let teardown = Row {
            bound: ONE_THREAD.to_owned(),
            bytes_in: reached
                .then_some(blocks * u64::from(self.facts.block_size) * self.facts.shape.kv_bytes_a_token),
            ..self.row(12, "teardown", Place::Host, Some(cuts.teardown))
        };
        vec![stream_out, self.decode(cuts.decode), teardown]
    }

    fn decode(&self, ns: Nanos) -> Row {
        let shape = &self.facts.shape;
        let sums = StageSums::of(answer_steps(self.timeline, self.steps));
        let work = TokenWork::of_answer(self.timeline, shape);
        let bound = if self.timeline.stamps().first_token.is_none() {
            NOT_REACHED.to_owned()
        } else if self.timeline.tokens().generated < 2 {
            "one token is no loop".to_owned()
        } else if let Some(words) = self.timeline.decode().and_then(interrupted) {
            words.to_owned()
        } else {
            let work = sums.map(|sums| sums.decode(shape, work));
            work.map_or(NO_STEP.to_owned(), |work| Rates::bound(self.facts.rates.as_ref(), work))
        };
        let weights = shape.layers_bytes + shape.head_bytes;
        Row {
            bound,
            bytes_in: sums.map(|sums| sums.steps * weights + work.kv_read),
            bytes_out: sums.map(|_| work.kv_written),
            ..self.row(11, "decode loop", Place::Gpu, Some(ns))
        }
    }
}

/// What took most of a decode that did not compute most of the time.
fn interrupted(parts: DecodeParts) -> Option<&'static str> {
    let causes = [
        (parts.stall, "steps that left it out"),
        (parts.requeue, "waiting after an eviction"),
        (parts.recompute, "recomputing after an eviction"),
    ];
    let largest = causes.into_iter().max_by_key(|(ns, _)| *ns)?;
    (largest.0 > parts.compute).then_some(largest.1)
}

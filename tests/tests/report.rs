//! Reports, blame and traces of an engine over a scripted runner: what they say is what the timelines say.

use std::collections::{BTreeMap, HashMap};

use firstlight_engine::clock::{Clock, ManualClock, Nanos};
use firstlight_engine::engine::{Engine, EngineConfig, RequestEvent};
use firstlight_engine::report::{
    BlameCause, GaugeReadings, LatencyReport, ReportContext, ReportWindow, chrome_trace, slowest_gap,
};
use firstlight_engine::request::{FinishReason, HostStamps, Request, RequestId, SamplingParams};
use firstlight_engine::runner::{ModelRunner, RunnerError, RunnerOutput};
use firstlight_engine::sched::{Batch, PRIORITY_STEP_NS, SchedulerConfig};
use firstlight_engine::timeline::{ModelLabel, RequestLabels, RequestTimeline};
use firstlight_tests::TestRng;
use firstlight_tests::scripted::{ScriptedRunner, step_now};
use serde_json::Value;

const VOCAB_SIZE: u32 = 1000;

const ROOMY: SchedulerConfig = SchedulerConfig {
    max_num_seqs: 8,
    max_batch_tokens: 64,
    block_size: 4,
    num_blocks: 128,
    max_model_len: 256,
    max_waiting: 64,
    vocab_size: VOCAB_SIZE,
    prefix_cache: false,
    prefix_hash_bits: 64,
    priority_step_ns: PRIORITY_STEP_NS,
};

/// Few blocks: answers that grow evict each other, and prompts in the middle of their prefill.
const TIGHT: SchedulerConfig = SchedulerConfig {
    max_num_seqs: 4,
    max_batch_tokens: 6,
    num_blocks: 20,
    max_model_len: 72,
    prefix_cache: true,
    ..ROOMY
};

/// A millisecond for a step, and a tenth for each row.
struct ByRows<'c> {
    scripted: ScriptedRunner<'c>,
    clock: &'c ManualClock,
}

impl ModelRunner for ByRows<'_> {
    async fn execute(&mut self, batch: &Batch) -> Result<RunnerOutput, RunnerError> {
        self.clock.advance(1_000_000 + 100_000 * batch.num_rows() as Nanos);
        self.scripted.execute(batch).await
    }
}

/// An engine and a host that stamps: every third answer is whole, the others are streamed.
struct Load<'c> {
    clock: &'c ManualClock,
    engine: Engine<ByRows<'c>, &'c ManualClock>,
    first_tokens: HashMap<RequestId, Nanos>,
    window: ReportWindow,
}

impl<'c> Load<'c> {
    fn new(clock: &'c ManualClock, scheduler: SchedulerConfig) -> Self {
        let scripted = ScriptedRunner::new(scheduler.num_blocks, scheduler.block_size, VOCAB_SIZE);
        let model = ModelLabel { name: "scripted".into(), sha256: None, quantisation: "none".into() };
        let config =
            EngineConfig { scheduler, eos_tokens: Vec::new(), model, engine_config: "c0ffee".into() };
        let engine = Engine::new(ByRows { scripted, clock }, clock, config, None);
        Self { clock, engine, first_tokens: HashMap::new(), window: ReportWindow::default() }
    }

    fn submit(&mut self, id: u64, prompt: Vec<u32>, max_tokens: u32, deadline_in: Option<Nanos>) {
        let at = |by| self.clock.advance(by);
        let stamps = HostStamps {
            received: at(0),
            checked: at(3_000),
            routed: at(1_000),
            preparing: at(20_000),
            templated: at(9_000),
            tokenised: at(40_000),
            created: at(2_000),
        };
        let params = SamplingParams { max_tokens, ..SamplingParams::default() };
        let deadline = deadline_in.map(|by| stamps.received + by);
        let request = Request { deadline, ..Request::new(RequestId(id), prompt, params, stamps) };
        let labels = RequestLabels { id: format!("cmpl-{id}#0"), ..RequestLabels::default() };
        self.engine.submit_labelled(request, labels);
    }

    fn step(&mut self) {
        let output = step_now(&mut self.engine).expect("no failure was injected");
        self.take(output.events);
    }

    /// A step in which the device is lost, and so long until it works again.
    fn lose_device(&mut self, rebuilt_in: Nanos) {
        self.engine.runner_mut().scripted.fail_next();
        let failed = step_now(&mut self.engine).expect_err("the device is lost");
        self.take(failed.output.events);
        self.clock.advance(rebuilt_in);
    }

    fn take(&mut self, events: Vec<RequestEvent>) {
        let now = self.clock.advance(10_000);
        for event in events {
            match event {
                RequestEvent::Token { id, .. } => {
                    self.first_tokens.entry(id).or_insert(now);
                }
                RequestEvent::Finished { id, mut timeline, .. } => {
                    if let Some(first) = self.first_tokens.get(&id).filter(|_| !id.0.is_multiple_of(3)) {
                        timeline.first_text(first + 1_000);
                        timeline.first_write(first + 5_000);
                        timeline.last_write(now + 5_000);
                    }
                    timeline.seal().expect("sums are exact");
                    self.window.push(timeline).expect("it is sealed and whole");
                }
            }
        }
    }

    fn finish(&mut self) {
        while self.engine.has_work() {
            self.step();
        }
    }

    fn report(&self) -> LatencyReport {
        let counters = self.engine.counters();
        let readings = GaugeReadings {
            blocks_used: (counters.blocks_total - counters.blocks_free) as u32,
            blocks_total: counters.blocks_total as u32,
            waiting: counters.waiting as u32,
            running: counters.running as u32,
            preemptions_total: counters.preemptions_total,
        };
        let config = self.engine.scheduler().config();
        let context = ReportContext {
            request_rate: self.window.request_rate(),
            concurrency: self.window.mean_concurrency(),
            prefix_cache: config.prefix_cache,
            model: self.engine.labels().model.clone(),
            adapter: "scripted".into(),
            slots: config.max_num_seqs,
        };
        let report = LatencyReport::fold(&self.window, self.engine.steps(), Some(readings), context);
        report.check().expect("sums are exact");
        report
    }
}

/// Eighty requests on few blocks: half of them begin alike, some are given up, some run out of time, some never fit.
fn mixed_load(clock: &ManualClock) -> Load<'_> {
    let mut load = Load::new(clock, TIGHT);
    let mut rng = TestRng::new(17);
    for id in 0..80 {
        let len = if id == 40 { 100 } else { 2 + rng.below(30) as u32 };
        let first = if rng.below(2) == 0 { 1 } else { 100 + 7 * id as u32 };
        let deadline = (rng.below(12) == 0).then_some(9_000_000);
        load.submit(id, (first..first + len).collect(), 1 + rng.below(40) as u32, deadline);
        // The driver wakes up.
        clock.advance(15_000);
        (0..rng.below(9)).for_each(|_| load.step());
        if rng.below(10) == 0 {
            load.engine.abort(RequestId(id), FinishReason::Cancelled, clock.now());
        }
    }
    load.finish();
    load
}

/// All whole numbers in `value`, summed by their path.
fn add_leaves(value: &Value, path: &str, sums: &mut BTreeMap<String, u64>) {
    match value {
        Value::Object(fields) => {
            fields.iter().for_each(|(name, value)| add_leaves(value, &format!("{path}.{name}"), sums));
        }
        value => *sums.entry(path.to_owned()).or_default() += value.as_u64().expect("a whole number"),
    }
}

fn summed<'t>(
    timelines: impl Iterator<Item = &'t RequestTimeline>,
    keep: fn(&str) -> bool,
) -> BTreeMap<String, u64> {
    let mut sums = BTreeMap::new();
    for timeline in timelines {
        let json = serde_json::to_value(timeline).expect("a timeline is JSON");
        let parts = json["parts"].as_object().expect("it has parts");
        parts
            .iter()
            .filter(|(name, _)| keep(name))
            .for_each(|(name, part)| add_leaves(part, name, &mut sums));
    }
    sums
}

fn flat(parts: &Value) -> BTreeMap<String, u64> {
    let mut sums = BTreeMap::new();
    let parts = parts.as_object().expect("the parts are an object");
    parts.iter().for_each(|(name, part)| add_leaves(part, name, &mut sums));
    sums
}

#[test]
fn the_sums_of_a_report_are_the_sums_over_its_timelines() {
    let clock = ManualClock::new();
    let load = mixed_load(&clock);
    let report = load.report();
    let timelines = || load.window.iter();
    let answered = || timelines().filter(|timeline| timeline.stamps().first_token.is_some());
    let streamed = || timelines().filter(|timeline| timeline.ttft().is_some());
    let json = serde_json::to_value(&report).expect("a report is JSON");
    assert_eq!(json["schema"], "firstlight.report/1");

    let is_engine =
        |name: &str| ["inbox", "queue_wait", "requeue", "lost_prefill", "prefill"].contains(&name);
    let of_engine = summed(answered(), is_engine);
    assert_eq!(flat(&json["engine_ttft_parts"]["parts"]), of_engine);
    assert_eq!(flat(&json["ttft_parts"]["parts"]), summed(streamed(), |_| true));
    // Each part occurs, so that none is equal for being 0.
    for (part, sub_parts) in json["ttft_parts"]["parts"].as_object().expect("the parts are an object") {
        let mut sums = BTreeMap::new();
        add_leaves(sub_parts, part, &mut sums);
        assert!(sums.values().sum::<u64>() > 0, "{part} never took time");
    }

    let n = |count: usize| Value::from(count);
    let wholes = &json["wholes"];
    assert_eq!((report.n, report.n_answered), (80, answered().count()));
    assert!(report.n_answered < 80 && streamed().count() < report.n_answered);
    assert_eq!(wholes["engine_ttft"]["n"], n(report.n_answered));
    assert_eq!(
        (&wholes["ttft"]["n"], &json["ttft_parts"]["n"]),
        (&n(streamed().count()), &n(streamed().count()))
    );
    for whole in ["queue", "prefill", "e2e"] {
        assert_eq!(wholes[whole]["n"], n(report.n_answered), "{whole}");
    }
    let ttft: Nanos = streamed().filter_map(RequestTimeline::ttft).sum();
    let engine_ttft: Nanos = answered().filter_map(RequestTimeline::engine_ttft).sum();
    assert_eq!((report.ttft_parts.ttft, report.engine_ttft_parts.engine_ttft), (ttft, engine_ttft));
    assert_eq!((&wholes["ttft"]["sum"], &wholes["engine_ttft"]["sum"]), (&ttft.into(), &engine_ttft.into()));
}

#[test]
fn the_counts_of_a_report_are_the_engines() {
    let clock = ManualClock::new();
    let load = mixed_load(&clock);
    let (report, counters) = (load.report(), load.engine.counters());
    let preemptions: u64 = load.window.iter().map(|timeline| u64::from(timeline.preemptions())).sum();
    assert_eq!(preemptions, counters.preemptions_total);
    assert!(
        report.n_preempted > 2 && report.re_prefills > 2,
        "{} {}",
        report.n_preempted,
        report.re_prefills
    );
    assert_eq!(report.gauges.preemptions_in_steps, preemptions);
    assert_eq!(report.tokens.generated, counters.generation_tokens_total);
    let prefix_cache = report.prefix_cache.expect("it is on");
    assert_eq!(prefix_cache.queried, counters.prefix_queries_total);
    assert_eq!(prefix_cache.hit, counters.prefix_hits_total);
    assert!(prefix_cache.hit > 0 && report.tokens.cached == prefix_cache.hit);
    let ends = report.finish_reasons;
    assert!(ends.length > 0 && ends.cancelled > 0 && ends.deadline > 0, "{ends:?}");
    assert_eq!((ends.rejected, ends.length + ends.cancelled + ends.deadline + ends.rejected), (1, 80));
    let gaps: usize = load.window.iter().map(|timeline| timeline.token_at().len().saturating_sub(1)).sum();
    let by_batch: usize = report.inter_token_by_batch.buckets.iter().map(|bucket| bucket.gaps.n).sum();
    let by_position: usize = report.inter_token_by_position.iter().map(|bucket| bucket.gaps.n).sum();
    assert_eq!((by_batch + report.inter_token_by_batch.forgotten, by_position), (gaps, gaps));
    assert_eq!(report.wholes.inter_token.map(|whole| whole.n), Some(gaps));
    let largest = report.inter_token_by_batch.buckets.last().expect("somebody decoded");
    assert!(largest.batch <= TIGHT.max_num_seqs && report.inter_token_by_batch.forgotten == 0);
    let running = report.gauges.running.expect("steps ran");
    assert_eq!((running.now, running.max), (0.0, f64::from(TIGHT.max_num_seqs)));
    assert!(report.gauges.kv_cache_utilisation.is_some_and(|gauge| gauge.max > 0.8 && gauge.max <= 1.0));
}

#[test]
fn a_long_prompt_that_comes_late_is_to_blame_for_the_slowest_gap() {
    let clock = ManualClock::new();
    let mut load = Load::new(&clock, ROOMY);
    load.submit(1, (1..5).collect(), 40, None);
    load.submit(2, (10..16).collect(), 40, None);
    (0..12).for_each(|_| load.step());
    load.submit(7, (100..148).collect(), 4, None);
    load.finish();
    let report = load.report();
    let slowest = report.slowest_gap.expect("there are gaps");
    // A step of 48 + 2 rows takes 6 ms; the 10 us before it and what the host did while it took the prompt count too.
    assert_eq!((slowest.engine_id, slowest.gap), (RequestId(1), 6_000_000 + 10_000 + 75_000));
    let blame = slowest.blame.expect("the other gaps are of two rows");
    match &blame.cause {
        BlameCause::Prefill { chunks, lasted, .. } => {
            assert_eq!((chunks.len(), chunks[0].id, chunks[0].tokens), (1, RequestId(7), 48));
            assert_eq!((*lasted, blame.between_steps), (6_000_000, 85_000));
        }
        other => panic!("{other:?}"),
    }
    assert_eq!(blame.to_string(), "6.1 ms, because r7's 48-token chunk shared the step");
    let steps = load.engine.steps();
    let of_7 = load.window.iter().find(|timeline| timeline.id() == RequestId(7)).expect("it ended");
    assert_eq!(slowest_gap(of_7, steps).map(|gap| gap.blame), Some(None), "it decodes like the others");
}

#[test]
fn an_answer_that_was_evicted_is_to_blame_itself() {
    let clock = ManualClock::new();
    let load = mixed_load(&clock);
    let decoding =
        load.window.iter().filter(|timeline| timeline.decode().is_some_and(|parts| parts.requeue > 0));
    let mut evicted = 0;
    for timeline in decoding {
        let blame = slowest_gap(timeline, load.engine.steps()).and_then(|slowest| slowest.blame);
        if let Some(BlameCause::Evicted { waited, recomputed, .. }) = blame.map(|blame| blame.cause) {
            let parts = timeline.decode().expect("it has them");
            assert!(waited <= parts.requeue && recomputed > 0, "{waited} of {parts:?}");
            evicted += 1;
        }
    }
    assert!(evicted > 0);
}

#[test]
fn a_lost_device_is_to_blame_for_the_gap_of_an_answer_that_it_found_waiting() {
    let clock = ManualClock::new();
    let mut load = Load::new(&clock, SchedulerConfig { block_size: 2, num_blocks: 8, ..ROOMY });
    load.submit(1, vec![1, 2], 14, None);
    load.submit(2, vec![100, 101, 102, 103], 11, None);
    while load.engine.counters().preemptions_total == 0 {
        load.step();
    }
    load.lose_device(1_000_000_000);
    load.finish();
    let failed = load.engine.steps().iter().filter(|step| step.failed).count();
    let reasons = load.report().finish_reasons;
    assert_eq!((failed, reasons.failed, reasons.length), (1, 1, 1));
    let answer = load.window.iter().find(|timeline| timeline.id() == RequestId(2)).expect("it ended");
    let blame = slowest_gap(answer, load.engine.steps()).and_then(|gap| gap.blame).expect("it is long");
    let BlameCause::Paused { lasted } = blame.cause else { panic!("{blame}") };
    assert!(lasted >= 1_000_000_000 && lasted <= blame.gap, "{blame}");
}

fn text<'v>(event: &'v Value, field: &str) -> &'v str {
    event[field].as_str().unwrap_or_else(|| panic!("no {field} in {event}"))
}

/// Walks a trace as a viewer does. Gives back how many spans there are of each name.
fn view(events: &[Value]) -> BTreeMap<String, usize> {
    let (mut spans, mut open) = (BTreeMap::new(), BTreeMap::<_, Vec<&str>>::new());
    let (mut before, mut step_ended) = (0.0, 0.0);
    for event in events {
        let ts = event["ts"].as_f64().expect("a number of microseconds");
        assert!(ts >= before, "{event} goes back from {before}");
        before = ts;
        let stack = || (text(event, "cat").to_owned(), text(event, "id").to_owned());
        match text(event, "ph") {
            "b" => {
                open.entry(stack()).or_default().push(text(event, "name"));
                *spans.entry(text(event, "name").to_owned()).or_default() += 1;
            }
            "e" => {
                assert_eq!(open.get_mut(&stack()).and_then(Vec::pop), Some(text(event, "name")), "{event}")
            }
            "n" => assert!(open.get(&stack()).is_some_and(|spans| !spans.is_empty()), "{event}"),
            "X" => {
                let dur = event["dur"].as_f64().expect("a number of microseconds");
                // In nanoseconds: sums of microseconds are rounded.
                assert!(dur >= 0.0 && (ts * 1e3).round() >= step_ended, "{event} overlaps another step");
                step_ended = ((ts + dur) * 1e3).round();
                *spans.entry("X".to_owned()).or_default() += 1;
            }
            "C" => assert!(event["args"]["value"].is_u64(), "{event}"),
            "M" => assert!(["process_name", "thread_name"].contains(&text(event, "name"))),
            other => panic!("{other} in {event}"),
        }
    }
    assert!(open.values().all(Vec::is_empty), "left open: {open:?}");
    spans
}

#[test]
fn a_trace_of_a_mixed_load_can_be_viewed_and_shows_every_stay() {
    let clock = ManualClock::new();
    let load = mixed_load(&clock);
    let trace =
        serde_json::to_string(&chrome_trace(load.window.iter(), load.engine.steps())).expect("it is JSON");
    let trace: Value = serde_json::from_str(&trace).expect("it is JSON");
    assert_eq!(trace["displayTimeUnit"], "ms");
    let events = trace["traceEvents"].as_array().expect("a list");
    let spans = view(events);
    let of = |name: &str| spans.get(name).copied().unwrap_or_default();
    assert_eq!(spans.keys().filter(|name| name.starts_with("cmpl-")).count(), 80);
    assert_eq!(of("X"), load.engine.steps().iter().len());
    let stays = |name: &str| {
        let all = load.window.iter().flat_map(|timeline| timeline.residency());
        all.filter(|stay| {
            stay.to > stay.from && serde_json::to_value(stay.place).is_ok_and(|place| place == name)
        })
        .count()
    };
    for place in ["inbox", "waiting", "running"] {
        assert_eq!(of(place), stays(place), "{place}");
    }
    assert!(of("requeue") > 0 && of("lost_prefill") > 0 && of("recompute") > 0 && of("transport") > 0);
    let tracks = |ph: &str| {
        let tracks = events
            .iter()
            .filter(|event| event["ph"] == ph)
            .map(|event| (event["pid"].as_u64(), event["tid"].as_u64()));
        tracks.collect::<std::collections::BTreeSet<_>>()
    };
    assert_eq!(tracks("X").len(), 1, "steps have a track of their own");
    assert!(tracks("X").is_disjoint(&tracks("b")));
    let counted: Vec<&Value> = events.iter().filter(|event| event["ph"] == "C").collect();
    assert_eq!(counted.len(), 3 * of("X"));
}

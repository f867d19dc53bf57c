//! Servers that are simulated: each cause is named, and a healthy one is accused as seldom as is said.

use std::sync::Arc;

use super::*;
use crate::clock::Nanos;
use crate::report::fixtures::{computed, finished, ring, seal, step};
use crate::request::{FinishReason, HostStamps, RequestId};
use crate::timeline::{
    Edge, EngineLabels, Place, RequestLabels, RequestTimeline, StepRecord, StepRing, WaitCauses,
};

const MS: Nanos = 1_000_000;

/// Uniform in (0, 1): splitmix64, seeded.
pub(super) struct Rng(pub u64);

impl Rng {
    pub fn next(&mut self) -> f64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) >> 11) as f64 / (1u64 << 53) as f64 + f64::EPSILON
    }
    pub fn exponential(&mut self) -> f64 {
        -self.next().ln()
    }
    /// Skewed, with a long tail: a median of 1, and nine of ten within a factor of two or so.
    pub fn factor(&mut self) -> f64 {
        let normal = (0..12).map(|_| self.next()).sum::<f64>() - 6.0;
        (0.4 * normal).exp()
    }
}

/// What a simulated server is asked and how fast it is.
#[derive(Clone, Copy)]
struct Load {
    n: u64,
    slots: usize,
    /// Between two arrivals, on average.
    between_ms: f64,
    prompt: fn(u64) -> u32,
    cached: fn(u64) -> u32,
    /// For each token that is computed, and for each that follows the first.
    prefill_ms: f64,
    decode_ms: f64,
    host_ms: f64,
    write_ms: f64,
    tokens: u64,
    batch: u32,
    /// A prompt of others is computed in every step that decodes.
    beside_prompts: bool,
}

const CALM: Load = Load {
    n: 40,
    slots: 2,
    between_ms: 500.0,
    prompt: |_| 20,
    cached: |_| 0,
    prefill_ms: 10.0,
    decode_ms: 20.0,
    host_ms: 0.5,
    write_ms: 0.1,
    tokens: 6,
    batch: 1,
    beside_prompts: false,
};

struct Served {
    window: ReportWindow,
    steps: StepRing,
}

/// First come, first served; latencies vary at random.
fn serve(load: Load, rng: &mut Rng) -> Served {
    let ns = |ms: f64| (ms * MS as f64) as Nanos;
    let (mut window, mut free_at, mut at) = (ReportWindow::default(), vec![0; load.slots], 0);
    let mut steps: Vec<StepRecord> = Vec::new();
    for id in 0..load.n {
        at += ns(load.between_ms * rng.exponential());
        let created = at + ns(load.host_ms * rng.factor());
        let stamps = HostStamps {
            preparing: created,
            templated: created,
            tokenised: created,
            created,
            ..HostStamps::at(at)
        };
        let (prompt, cached) = ((load.prompt)(id), (load.cached)(id));
        let labels = RequestLabels { id: format!("cmpl-{id}"), ..RequestLabels::default() };
        let engine = Arc::new(EngineLabels { ready_at: Some(0), ..EngineLabels::default() });
        let mut timeline = RequestTimeline::created(RequestId(id), labels, engine, &stamps, prompt);
        let slot = (0..load.slots).min_by_key(|slot| free_at[*slot]).unwrap();
        let admitted = free_at[slot].max(created);
        timeline.advance(Edge::Queued, created);
        timeline.bill_wait(WaitCauses { slots: admitted - created, ..WaitCauses::default() });
        timeline.advance(Edge::Admitted { cached }, admitted);
        timeline.advance(Edge::Chunk { tokens: prompt - cached }, admitted);
        let mut from = admitted;
        for token in 0..load.tokens {
            let lasts =
                if token == 0 { load.prefill_ms * f64::from(prompt - cached) } else { load.decode_ms };
            let to = from + ns(lasts * rng.factor());
            let step_id = id * load.tokens + token;
            timeline.advance(computed(if token == 0 { prompt - cached } else { 1 }), to);
            timeline.advance(Edge::Token { step: step_id }, to);
            let mut record = step(step_id, from, to, if token == 0 { 0 } else { load.batch });
            if token == 0 || load.beside_prompts {
                record.prefill.push((RequestId(if token == 0 { id } else { id + 1 }), prompt));
            }
            steps.push(record);
            from = to;
        }
        free_at[slot] = from;
        timeline.advance(finished(FinishReason::Length), from);
        assert_eq!(timeline.place(), Place::Done);
        let first = timeline.stamps().first_token.unwrap();
        timeline.first_text(first);
        timeline.first_write(first + ns(load.write_ms * rng.factor()));
        timeline.last_write((first + ns(load.write_ms * 20.0)).max(from) + 1);
        window.push(seal(timeline)).unwrap();
    }
    Served { window, steps: ring(steps) }
}

fn observed<'s>(served: &'s Served, conditions: &'s Conditions) -> Observed<'s> {
    Observed { window: &served.window, steps: &served.steps, conditions }
}

fn look(now: &Served, earlier: Option<&Served>, asked: Asked) -> Diagnosis {
    let conditions = Conditions::default();
    let earlier = earlier.map(|served| observed(served, &conditions));
    Diagnosis::of(observed(now, &conditions), earlier, asked)
}

fn check(what: &str, now: Load, earlier: Option<Load>, expected: &[Stage], words: &[&str]) {
    let mut rng = Rng(3);
    let earlier = earlier.map(|load| serve(load, &mut rng));
    let diagnosis = look(&serve(now, &mut rng), earlier.as_ref(), Asked::default());
    let stages: Vec<Stage> = diagnosis.findings.iter().map(|finding| finding.stage).collect();
    assert_eq!(stages, expected, "{what}: {diagnosis:#?}");
    let text = format!("{diagnosis:?}");
    for part in words {
        assert!(text.contains(part), "{what}: {part:?} is not in {diagnosis:#?}");
    }
    assert_eq!(diagnosis.findings.len() + diagnosis.checked.len(), RULES.len(), "every rule says something");
    let json = serde_json::to_string(&diagnosis).unwrap();
    assert_eq!(serde_json::from_str::<Diagnosis>(&json).unwrap(), diagnosis, "read as it was written");
}

#[test]
fn each_stage_is_named_where_it_is_the_cause() {
    let calm = Some(CALM);
    check("calm", CALM, None, &[], &["0 of 40 requests evicted"]);
    check("calm, twice", CALM, calm, &[], &["(earlier"]);
    let over = Load { between_ms: 60.0, ..CALM };
    check(
        "over capacity",
        over,
        None,
        &[Stage::Queue],
        &["grow with every arrival", "because the batch was full"],
    );
    check("over capacity, compared", over, calm, &[Stage::Queue], &["of that is queue", "over capacity"]);
    let long = Load { prompt: |_| 60, between_ms: 2_000.0, ..CALM };
    check("longer prompts", long, calm, &[Stage::Prefill], &["of that is prefill", "longer prompts"]);
    check("and back again", CALM, Some(long), &[], &[]);
    let hits = Load { cached: |_| 16, ..CALM };
    check("lost hits", CALM, Some(hits), &[Stage::Prefill], &["lost prefix hits"]);
    check(
        "slower",
        Load { prefill_ms: 25.0, ..CALM },
        calm,
        &[Stage::Prefill],
        &["computing them is slower"],
    );
    let half =
        Load { prompt: |_| 100, cached: |id| if id % 2 == 0 { 92 } else { 0 }, between_ms: 4_000.0, ..CALM };
    check("half are hits", half, None, &[Stage::PrefixCache], &["Hartigan's dip", "tell them apart"]);
    let lengths = Load { prompt: |id| if id % 2 == 0 { 8 } else { 100 }, between_ms: 4_000.0, ..CALM };
    check("lengths of two kinds", lengths, None, &[], &["lengths tell them apart"]);
    let pasted = Load { prompt: |id| if id % 13 == 5 { 300 } else { 20 }, between_ms: 4_000.0, ..CALM };
    check("one client", pasted, None, &[Stage::ClientPrefill], &["theirs: 300 tokens", "cmpl-5"]);
    check(
        "a busy host",
        Load { host_ms: 600.0, between_ms: 1_500.0, ..CALM },
        None,
        &[Stage::Host],
        &["preparation workers"],
    );
    let written_late = Load { write_ms: 300.0, ..CALM };
    check("written late", written_late, None, &[Stage::Transport], &["long before they were written"]);
}

#[test]
fn slow_tokens_are_the_batch_the_position_or_prompts_of_others() {
    let slow = Load { decode_ms: 60.0, ..CALM };
    let calm = Some(CALM);
    check("device", slow, calm, &[Stage::Decode], &["the device itself"]);
    check(
        "batch",
        Load { batch: 8, ..slow },
        calm,
        &[Stage::Decode],
        &["larger batches", "8.0 answers (earlier 1.0)"],
    );
    let far = Load { prompt: |_| 2_000, cached: |_| 1_980, ..slow };
    check("position", far, calm, &[Stage::Decode], &["longer sequences"]);
    check(
        "prompts of others",
        Load { beside_prompts: true, ..slow },
        calm,
        &[Stage::Prefill],
        &["prompts of others in the same steps"],
    );
    // One window alone: steps against steps.
    let mut rng = Rng(9);
    let mut served = serve(Load { n: 60, ..CALM }, &mut rng);
    let grown = served.steps.iter().cloned().map(|mut step| {
        if step.prefill.is_empty() {
            step.decode_rows = 1 + (step.id / 6 % 8) as u32;
            step.done_at = step.schedule_at + u64::from(step.decode_rows) * 10 * MS;
        }
        step
    });
    served.steps = grown.collect();
    let diagnosis = look(&served, None, Asked::default());
    let stages: Vec<Stage> = diagnosis.findings.iter().map(|finding| finding.stage).collect();
    assert_eq!(stages, [Stage::Decode], "{diagnosis:#?}");
    assert!(diagnosis.findings[0].look_at.contains("ridge"), "{diagnosis:#?}");
}

#[test]
fn what_is_asked_beside_the_windows_is_weighed() {
    let served = serve(CALM, &mut Rng(4));
    let found = |asked: Asked, earlier: bool| {
        let diagnosis = look(&served, earlier.then_some(&served), asked);
        diagnosis.findings.iter().map(|finding| (finding.stage, finding.certainty)).collect::<Vec<_>>()
    };
    let worse = Asked { worse_answers: true, client: None };
    assert_eq!(found(worse, false), [(Stage::ChatTemplate, Certainty::Possible)]);
    assert_eq!(found(worse, true), [(Stage::ChatTemplate, Certainty::Likely)]);
    let client = ClientSide {
        answers: 4,
        ttft: 900 * MS,
        server_ttft: 100 * MS,
        connect: MS,
        ..ClientSide::default()
    };
    let seen = |client| Asked { worse_answers: false, client: Some(client) };
    assert_eq!(
        found(seen(ClientSide { buffered: 4, ..client }), false),
        [(Stage::Transport, Certainty::Certain)]
    );
    assert_eq!(found(seen(client), false), [(Stage::Transport, Certainty::Likely)], "late, but it streams");
    assert_eq!(found(seen(ClientSide { ttft: 103 * MS, ..client }), false), []);
    // A figure that moved is the better explanation.
    let slow = serve(Load { prefill_ms: 30.0, between_ms: 2_000.0, ..CALM }, &mut Rng(5));
    let diagnosis = look(&slow, Some(&served), worse);
    assert_eq!(
        diagnosis.findings.first().map(|finding| finding.stage),
        Some(Stage::Prefill),
        "{diagnosis:#?}"
    );
    assert_eq!(diagnosis.findings.len(), 1);
}

#[test]
fn little_says_little_and_nothing_is_no_panic() {
    let few = serve(Load { n: 5, ..CALM }, &mut Rng(6));
    let diagnosis = look(&few, Some(&few), Asked::default());
    assert_eq!(diagnosis.findings, []);
    assert!(diagnosis.summary().starts_with("too little to tell: 5 answered"), "{}", diagnosis.summary());
    assert!(diagnosis.checked.iter().filter(|checked| checked.outcome == Silence::TooLittle).count() >= 4);
    let none = Served { window: ReportWindow::default(), steps: StepRing::default() };
    assert_eq!(look(&none, Some(&few), Asked { worse_answers: true, client: None }).findings.len(), 1);
    assert_eq!(look(&few, Some(&none), Asked::default()).findings, []);
}

#[test]
fn a_healthy_server_is_accused_as_seldom_as_is_said() {
    let mut rng = Rng(2026);
    let (mut alone, mut compared, runs) = (0, 0, 400);
    for run in 0..runs {
        // Used to 50, 30 or 15 %, and more requests in one window than in the other. A server that is used to 70 % has windows in
        // which waits are most of the first token's time: one in 30 of these is told so.
        let load = Load { n: [24, 40, 80][run % 3], between_ms: [300.0, 500.0, 1000.0][run / 3 % 3], ..CALM };
        let (one, other) = (serve(load, &mut rng), serve(Load { n: 40, ..load }, &mut rng));
        alone += usize::from(!look(&one, None, Asked::default()).findings.is_empty());
        compared += usize::from(!look(&one, Some(&other), Asked::default()).findings.is_empty());
    }
    println!("healthy servers accused: {alone} alone and {compared} compared, of {runs}");
    // One in a hundred at most, and room for its own chance: more than nine of 400 come once in a hundred tries.
    assert!(alone <= 9 && compared <= 9, "{alone} and {compared} of {runs}");
}

#[test]
fn the_table_is_whole() {
    let mut names: Vec<&str> = RULES.iter().map(|rule| rule.name).collect();
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), 8);
    for rule in &RULES {
        assert!([rule.symptom, rule.needs, rule.look_at].iter().all(|text| text.len() > 10), "{}", rule.name);
    }
    assert!(ALPHA_EACH * f64::from(MAX_TESTS) <= FALSE_ALARMS);
}

//! The scheduler under seeded random load: whatever arrives, ends, fails or is aborted, every stream is the scripted truth,
//! every block comes back, and every timeline sums exactly.

mod coverage;
mod rng;

use std::collections::{HashMap, HashSet};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use firstlight_engine::clock::{Clock, ManualClock, Nanos};
use firstlight_engine::engine::{Engine, EngineConfig, RequestEvent, StepOutput};
use firstlight_engine::request::{FinishReason, HostStamps, Request, RequestId, SamplingParams};
use firstlight_engine::sched::{SampleRow, SchedulerConfig, Sequence, SequenceState};
use firstlight_engine::timeline::{
    GpuTimes, ModelLabel, Obstacle, Place, RequestTimeline, Residency, StepRecord, TimelineRecord, WaitCauses,
};
use firstlight_tests::scripted::{ScriptedRunner, scripted_answer, step_now};

use coverage::Coverage;
use rng::Rng;

const VOCAB_SIZE: u32 = 97;
const EOS_TOKENS: [u32; 3] = [0, 1, 2];
/// The first token of a prompt is its own request's alone, so that no two histories are equal...
const FIRST_TOKENS: u32 = 64;
/// ...unless the prefix cache is on: then prompts may begin like one of these, which begin alike themselves.
const FAMILIES: u64 = 3;

/// What a request must come to.
struct Expected {
    prompt: Vec<u32>,
    fork_of: Option<RequestId>,
    answer: Vec<u32>,
    reason: FinishReason,
    priority: i32,
    deadline: Option<Nanos>,
    tokens: Vec<u32>,
    /// The instant of each token.
    token_at: Vec<Nanos>,
    /// Why it was aborted, and since when the client had been gone.
    aborted: Option<(FinishReason, Nanos)>,
    finished: Option<FinishReason>,
    /// Its waits before the first token, added up the slow way.
    waited: WaitCauses,
}

struct Simulation<'c> {
    rng: Rng,
    clock: &'c ManualClock,
    engine: Engine<ScriptedRunner<'c>, &'c ManualClock>,
    config: SchedulerConfig,
    requests: Vec<Expected>,
    steps: Vec<StepRecord>,
    to_come: u32,
    crowded: bool,
    failures: bool,
    /// Prompt tokens of all who were admitted, and those of them that were found.
    looked_up: u64,
    found: u64,
    /// What holds up the queue, and up to when everybody has been billed for it.
    obstacle: Option<Obstacle>,
    billed_to: Nanos,
    /// Rows computed for requests that had ended.
    surplus: u64,
}

impl<'c> Simulation<'c> {
    fn new(seed: u64, clock: &'c ManualClock) -> Self {
        let mut rng = Rng(seed);
        let config = SchedulerConfig {
            max_num_seqs: rng.within(1, 6),
            max_batch_tokens: rng.within(1, 12),
            block_size: rng.within(1, 5),
            num_blocks: rng.within(1, 16),
            max_model_len: rng.within(2, 48),
            max_waiting: rng.within(1, 24),
            vocab_size: VOCAB_SIZE,
            prefix_cache: !rng.one_in(3),
            // Now and then a hash that is worth next to nothing.
            prefix_hash_bits: [64, 64, 2, 1][rng.below(4) as usize],
            priority_step_ns: rng.below(4) * 500,
        };
        // Now and then a crowd at all priorities, with a token or two in a step for each and a block or two of the pool.
        let crowded = rng.one_in(5);
        let config = if crowded {
            let max_num_seqs = rng.within(4, 10);
            SchedulerConfig {
                max_num_seqs,
                max_batch_tokens: max_num_seqs + rng.within(0, 4),
                block_size: rng.within(2, 4),
                num_blocks: rng.within(max_num_seqs, 2 * max_num_seqs),
                max_model_len: 48,
                max_waiting: 60,
                priority_step_ns: 1 + rng.below(4_000),
                ..config
            }
        } else {
            config
        };
        clock.advance(rng.below(100));
        let runner =
            ScriptedRunner::new(config.num_blocks, config.block_size, VOCAB_SIZE).taking(clock, 1_000);
        let runner = runner.running_ahead(!seed.is_multiple_of(4));
        let engine_config = EngineConfig {
            scheduler: config,
            eos_tokens: EOS_TOKENS.to_vec(),
            model: ModelLabel::default(),
            engine_config: String::new(),
        };
        let engine = Engine::new(runner, clock, engine_config, None);
        let to_come = if crowded { rng.within(10, 60) } else { rng.within(1, 20) };
        let failures = rng.one_in(4);
        Self {
            rng,
            clock,
            engine,
            config,
            requests: Vec::new(),
            steps: Vec::new(),
            to_come,
            crowded,
            failures,
            looked_up: 0,
            found: 0,
            obstacle: None,
            billed_to: 0,
            surplus: 0,
        }
    }

    fn run(mut self, coverage: &mut Coverage) {
        let mut turns = 0;
        while self.to_come > 0 || self.engine.has_work() {
            turns += 1;
            assert!(turns < 20_000, "no end in sight: {:?}", self.engine.counters());
            if self.rng.one_in(2) {
                self.clock.advance(self.rng.below(500));
            }
            while self.to_come > 0 && self.rng.one_in(3) {
                self.submit();
            }
            if !self.requests.is_empty() && self.rng.one_in(12) {
                self.abort();
            }
            if self.engine.has_work() {
                self.step(coverage);
            }
            self.check_queues();
        }
        let pool = self.engine.scheduler().pool();
        assert_eq!((pool.num_free(), pool.num_used()), (self.config.num_blocks as usize, 0));
        let counters = self.engine.counters();
        assert_eq!(counters.timelines_broken_total, 0);
        assert_eq!(counters.prompt_tokens_total, self.looked_up);
        assert!(counters.surplus_tokens_total >= self.surplus, "a step for nobody at all has no record");
        let looked_up = if self.config.prefix_cache { self.looked_up } else { 0 };
        assert_eq!((counters.prefix_queries_total, counters.prefix_hits_total), (looked_up, self.found));
        coverage.count("prefix cache hit", self.found > 0);
        coverage.count("block copied", self.engine.runner().block_copies > 0);
        coverage.count("hit in spite of a weak hash", self.found > 0 && self.config.prefix_hash_bits < 64);
        assert!(self.requests.iter().all(|r| r.finished.is_some()), "someone never ended");
        assert!(self.steps.iter().zip(0..).all(|(step, id)| step.id == id), "step ids follow each other");
    }

    fn submit(&mut self) {
        let idx = self.requests.len() as u32;
        let pool = self.config.num_blocks * self.config.block_size;
        let limit = self.config.max_model_len.min(pool);
        // Mostly short or anything that fits, now and then anything at all.
        let prompt_len = match self.rng.below(8) {
            0 => self.rng.within(0, 50),
            1..4 => self.rng.within(1, limit.clamp(2, 6) - 1),
            _ => self.rng.within(1, limit.max(2) - 1),
        };
        let mut prompt = self.prompt(prompt_len, idx);
        // Another choice of a request, mostly of the last, whatever has become of that one.
        let mut fork_of = None;
        if idx > 0 && self.rng.one_in(4) {
            let first = if self.rng.one_in(4) { self.rng.within(0, idx - 1) } else { idx - 1 };
            fork_of = Some(RequestId(u64::from(first)));
            if !self.rng.one_in(8) {
                prompt.clone_from(&self.requests[first as usize].prompt);
            }
        }
        if self.rng.one_in(40) {
            prompt.push(VOCAB_SIZE);
        }
        let params = SamplingParams {
            max_tokens: if self.rng.one_in(40) { 0 } else { self.rng.within(1, 30) },
            ignore_eos: self.rng.one_in(2),
            repetition_penalty: if self.rng.one_in(2) { 1.1 } else { 1.0 },
            ..SamplingParams::default()
        };
        let priority = match self.rng.below(if self.crowded { 2 } else { 6 }) {
            0 => self.rng.within(0, 6) as i32 - 3,
            _ => 0,
        };
        let priority = if self.rng.one_in(60) { 101 } else { priority };
        let priority = match fork_of {
            Some(first) if !self.rng.one_in(8) => self.requests[first.0 as usize].priority,
            _ => priority,
        };
        let longest = self.config.max_model_len.min(pool + 1);
        let never = params.max_tokens == 0
            || priority > 100
            || prompt.is_empty()
            || prompt.contains(&VOCAB_SIZE)
            || prompt.len() >= limit as usize;
        let busy = self.engine.scheduler().num_waiting() >= self.config.max_waiting as usize;
        let (answer, reason) = if never || busy {
            (Vec::new(), FinishReason::Rejected)
        } else {
            scripted_answer(&prompt, &params, &EOS_TOKENS, longest as usize, VOCAB_SIZE)
        };
        let stamps = self.stamps();
        let deadline = self.rng.one_in(6).then(|| stamps.received + self.rng.below(12_000));
        let request = Request::new(RequestId(u64::from(idx)), prompt.clone(), params, stamps);
        self.engine.submit(Request { priority, deadline, fork_of, ..request });
        self.requests.push(Expected {
            prompt,
            fork_of,
            answer,
            reason,
            priority,
            deadline,
            tokens: Vec::new(),
            token_at: Vec::new(),
            aborted: None,
            finished: None,
            waited: WaitCauses::default(),
        });
        self.to_come -= 1;
    }

    /// Its own from the first token on, or with a beginning that others have too.
    fn prompt(&mut self, len: u32, idx: u32) -> Vec<u32> {
        if self.config.prefix_cache && !self.rng.one_in(4) {
            let family = self.rng.below(FAMILIES);
            let alike = self.rng.within(0, len) as usize;
            // The families part after six tokens.
            let mut common = Rng(self.config.num_blocks.into());
            let mut own = Rng(family);
            let tokens =
                (0..len).map(|at| if at < 6 { &mut common } else { &mut own }.within(0, VOCAB_SIZE - 1));
            let mut prompt: Vec<u32> = tokens.collect();
            prompt[alike..].fill_with(|| self.rng.within(0, VOCAB_SIZE - 1));
            return prompt;
        }
        let mut prompt: Vec<u32> = (0..len).map(|_| self.rng.within(0, VOCAB_SIZE - 1)).collect();
        if let Some(first) = prompt.first_mut() {
            *first = idx % FIRST_TOKENS;
        }
        prompt
    }

    fn stamps(&mut self) -> HostStamps {
        let mut later = || {
            self.clock.advance(self.rng.below(3) * self.rng.below(40));
            self.clock.now()
        };
        // Some requests were received before the engine was ready.
        let received = later().saturating_sub(30);
        let mut stamps = HostStamps::at(received);
        if received % 3 > 0 {
            stamps.checked = later();
            stamps.routed = later();
            stamps.preparing = later();
            stamps.templated = later();
            stamps.tokenised = later();
            stamps.created = later();
        }
        stamps
    }

    fn abort(&mut self) {
        let idx = self.rng.below(self.requests.len() as u64) as usize;
        let reasons = [FinishReason::Cancelled, FinishReason::Disconnected, FinishReason::ContentFilter];
        let reason = reasons[self.rng.below(3) as usize];
        let id = RequestId(idx as u64);
        let lives = self.engine.scheduler().sequences().any(|s| s.id() == id);
        // The host learns of it later than it happened.
        let gone_at = self.clock.now().saturating_sub(self.rng.below(3) * self.rng.below(1_500));
        self.bill(self.clock.now());
        assert_eq!(self.engine.abort(id, reason, gone_at), lives);
        if lives {
            self.requests[idx].aborted = Some((reason, gone_at));
        }
        assert!(!self.engine.abort(id, reason, gone_at), "an aborted request is gone");
        self.clock.advance(self.rng.below(50));
    }

    /// Bills everyone in the queue, one by one, for the time since the last call.
    fn bill(&mut self, now: Nanos) {
        let elapsed = now - self.billed_to;
        self.billed_to = now;
        let waiting = |state: SequenceState| state == SequenceState::Waiting;
        let queue = self.engine.scheduler().sequences().filter(|s| waiting(s.state()));
        for (idx, sequence) in queue.enumerate() {
            let request = &mut self.requests[sequence.id().0 as usize];
            if request.tokens.is_empty() {
                let cause = match self.obstacle.expect("who waits is held up by something") {
                    Obstacle::Slots => &mut request.waited.slots,
                    Obstacle::Budget => &mut request.waited.budget,
                    Obstacle::Blocks if idx == 0 => &mut request.waited.blocks,
                    Obstacle::Blocks | Obstacle::Order => &mut request.waited.order,
                    Obstacle::Paused => &mut request.waited.paused,
                };
                *cause += elapsed;
            }
        }
    }

    fn step(&mut self, coverage: &mut Coverage) {
        if self.failures && self.rng.one_in(15) {
            self.engine.runner_mut().fail_next();
        }
        let computed = |s: &Sequence| (s.id(), s.num_computed_tokens());
        let before: HashMap<_, _> = self.engine.scheduler().sequences().map(computed).collect();
        let executions = self.engine.runner().executions;
        self.bill(self.clock.now());
        let (output, failed) = match step_now(&mut self.engine) {
            Ok(output) => (output, false),
            Err(failed) => (failed.output, true),
        };
        let executed = self.engine.runner().executions - executions;
        coverage.count("device error", failed);
        assert_eq!(output.step.is_some(), executed == 1);
        self.check_progress(&before, output.step.as_ref().filter(|_| !failed), coverage);
        if let Some(step) = &output.step {
            self.obstacle = step.obstacle;
            self.bill(step.done_at);
            self.obstacle = if failed { Some(Obstacle::Paused) } else { step.obstacle };
        }
        self.take(output, failed, coverage);
        // Nobody may live on what is left in a free block, unless it is kept to be found.
        let pool = self.engine.scheduler().pool();
        let free: Vec<_> = pool.free_blocks().filter(|&block| !pool.is_cached(block)).collect();
        free.into_iter().for_each(|block| self.engine.runner_mut().forget(block));
    }

    /// Whoever has the smallest rank in the batch computes in every step, and so comes to an end.
    fn check_progress(
        &self,
        before: &HashMap<RequestId, usize>,
        step: Option<&StepRecord>,
        coverage: &mut Coverage,
    ) {
        let Some(step) = step else { return };
        let scheduler = self.engine.scheduler();
        if let Some(first) = scheduler.sequences().next().filter(|s| s.state() == SequenceState::Running)
            && !step.preempted.contains(&first.id())
        {
            let had = before.get(&first.id()).copied().unwrap_or(0);
            let has = first.num_computed_tokens();
            assert!(has > had, "{} stands still at {had}", first.id());
        }
        assert!(scheduler.sequences().all(|s| s.deadline().is_none_or(|at| at > step.schedule_at)));
        coverage.count("two prompts share a step", step.prefill.len() > 1);
    }

    fn take(&mut self, output: StepOutput, failed: bool, coverage: &mut Coverage) {
        self.steps.extend(output.step.clone());
        let done_at = output.step.as_ref().map(|step| step.done_at);
        for event in output.events {
            match event {
                RequestEvent::Token { id, token, text, .. } => {
                    let request = &mut self.requests[id.0 as usize];
                    assert!(request.finished.is_none() && text.is_empty());
                    request.tokens.push(token.token);
                    request.token_at.extend(done_at);
                }
                RequestEvent::Finished { id, reason, detail, timeline, .. } => {
                    assert_eq!(detail.is_some(), reason == FinishReason::Rejected);
                    coverage.add(&timeline);
                    self.finished(id, reason, *timeline, failed, coverage);
                }
            }
        }
        if let Some(step) = output.step {
            assert!(step.schedule_at <= step.submit_at && step.submit_at <= step.done_at);
            let rows = step.decode_rows + step.prefill.iter().map(|(_, tokens)| tokens).sum::<u32>();
            let batch = &self.engine.runner().last_batch;
            // Of those who ran ahead some had ended by then.
            let surplus = batch.num_rows() - rows as usize;
            assert!(surplus == 0 || step.ahead_ns.is_some(), "{surplus} rows are nobody's");
            assert_eq!(step.failed, failed);
            self.surplus += surplus as u64;
            coverage.count("ran ahead", step.ahead_ns.is_some());
            coverage.count(
                "ran ahead of a full batch while others waited",
                step.ahead_ns.is_some() && step.waiting > 0,
            );
            coverage.count("computed for nobody", surplus > 0);
            let held: HashSet<_> = batch.block_tables.iter().flatten().collect();
            // More are in use where a prompt is held for further choices.
            assert!(surplus > 0 || step.blocks_used as usize >= held.len());
            assert!(step.running as usize == batch.num_seqs() - surplus);
            let goes_on =
                |row: &&SampleRow| batch.query_start.contains(&row.row) && row.position > row.prompt_len;
            assert_eq!(step.decode_rows as usize + surplus, batch.sample_rows.iter().filter(goes_on).count());
            assert!(rows >= 1 && rows <= self.config.max_batch_tokens, "{rows} rows");
            assert_eq!(step.obstacle.is_some(), step.waiting > 0);
            coverage.count("waited for another's prompt", step.obstacle == Some(Obstacle::Order));
            coverage.count("evictions", !step.preempted.is_empty());
        }
    }

    fn finished(
        &mut self,
        id: RequestId,
        reason: FinishReason,
        mut timeline: RequestTimeline,
        failed: bool,
        coverage: &mut Coverage,
    ) {
        self.check_counts(id, &timeline, coverage);
        let request = &mut self.requests[id.0 as usize];
        assert!(request.finished.replace(reason).is_none(), "{id} ends twice");
        assert_eq!(timeline.finish_reason(), Some(reason));
        assert_eq!(timeline.token_at().len(), request.tokens.len());
        let answered = request.answer.starts_with(&request.tokens);
        assert!(answered, "{id} says {:?}, not {:?}", request.tokens, request.answer);
        let finished_at = timeline.stamps().finished.expect("it ended");
        match reason {
            FinishReason::Failed => assert!(failed, "{id} failed without a device error"),
            FinishReason::Deadline => assert!(request.deadline.is_some_and(|at| at <= finished_at), "{id}"),
            reason => {
                let expected = request.aborted.map_or(request.reason, |(reason, _)| reason);
                assert_eq!(reason, expected, "{id}");
            }
        }
        if matches!(reason, FinishReason::Stop | FinishReason::Length) {
            assert_eq!(request.tokens, request.answer, "{id}");
        }
        timeline.check().expect("sums are exact");
        // Each execution takes time.
        let computes = |pair: &[Residency]| pair[0].place != Place::Running || pair[0].to > pair[0].from;
        assert!(timeline.residency().windows(2).all(computes), "{id} is let in and evicted by one pass");
        if let Some(engine) = timeline.parts().and_then(|parts| parts.engine) {
            let (first, again) = (engine.queue_wait, engine.requeue);
            let waited = WaitCauses {
                slots: first.slots + again.slots,
                budget: first.budget + again.budget,
                blocks: first.blocks + again.blocks,
                order: first.order + again.order,
                paused: first.paused + again.paused,
            };
            assert_eq!(waited, request.waited, "{id}");
        }
        if let Some(first_token) = timeline.stamps().first_token
            && self.rng.one_in(2)
        {
            timeline.first_text(first_token + self.rng.below(9));
            timeline.first_write(first_token + 8 + self.rng.below(9));
            timeline.last_write(self.clock.now() + 20);
            assert_eq!(timeline.parts().map(|parts| parts.total()), timeline.ttft());
        }
        timeline.seal().expect("sums are exact after sealing");
        check_recalled(&timeline);
    }

    /// Cached, computed and wasted tokens and GPU time, counted again from the steps.
    fn check_counts(&mut self, id: RequestId, timeline: &RequestTimeline, coverage: &mut Coverage) {
        let request = &self.requests[id.0 as usize];
        let counts = timeline.tokens();
        let gone_at = request.aborted.map_or(Nanos::MAX, |(_, gone_at)| gone_at);
        let unseen = request.token_at.iter().filter(|&&at| at > gone_at).count();
        assert_eq!(counts.after_disconnect as usize, unseen, "{id}");
        let attempts = timeline.attempts();
        if !attempts.is_empty() {
            self.looked_up += request.prompt.len() as u64;
            self.found += if self.config.prefix_cache { u64::from(counts.cached) } else { 0 };
            assert_eq!(counts.cached, attempts[0].cached);
            assert!((counts.cached as usize) < request.prompt.len(), "the last token is always computed");
            let again = &attempts[usize::from(request.fork_of.is_some())..];
            assert!(self.config.prefix_cache || again.iter().all(|attempt| attempt.cached == 0));
            let (cached, whole) = (counts.cached as usize, request.prompt.len() - 1);
            coverage.count(
                "a choice starts from the first one's blocks",
                !self.config.prefix_cache && cached > 0,
            );
            let copied =
                !self.config.prefix_cache && cached == whole && whole % self.config.block_size as usize > 0;
            coverage.count("a choice starts from a copy of a block that is not full", copied);
        }
        let Some(first_token) = timeline.stamps().first_token else { return };
        let last = attempts.iter().rfind(|attempt| attempt.from < first_token).expect("it was admitted");
        let own = |step: &&StepRecord| {
            let within = step.schedule_at >= last.from && step.done_at <= first_token;
            within && step.prefill.iter().any(|(whose, _)| *whose == id)
        };
        let forward_ns = self.steps.iter().filter(own).filter_map(|step| step.gpu_ns).sum();
        let second = timeline.token_step().get(1);
        let first_decode_ns = second.and_then(|&id| self.steps.iter().find(|s| s.id == id)?.gpu_ns);
        assert_eq!(timeline.gpu(), Some(GpuTimes { forward_ns, first_decode_ns }), "{id}");
    }

    fn check_queues(&self) {
        let scheduler = self.engine.scheduler();
        scheduler.check_integrity();
        let live: Vec<_> = scheduler.sequences().collect();
        // Among equals nobody is overtaken in queue or batch.
        for places in [SequenceState::Running, SequenceState::Waiting] {
            let usual =
                |s: &&&Sequence| s.state() == places && self.requests[s.id().0 as usize].priority == 0;
            assert!(live.iter().filter(usual).is_sorted_by_key(|s| s.id()));
        }
        for (idx, sequence) in live.iter().enumerate() {
            let runs = idx < scheduler.num_running();
            assert_eq!(sequence.state() == SequenceState::Running, runs);
            assert_eq!(sequence.timeline().place() == Place::Running, runs);
            assert!(runs || sequence.block_table().is_empty());
            assert!(self.requests[sequence.id().0 as usize].finished.is_none());
        }
    }
}

fn num_seeds() -> u64 {
    match std::env::var("FIRSTLIGHT_SIM_SEEDS") {
        Ok(text) => text.parse().expect("FIRSTLIGHT_SIM_SEEDS is a number of seeds"),
        Err(_) if firstlight_tests::full() => 100_000,
        Err(_) => 10_000,
    }
}

/// What was written, read and recalled passes the same check and is written again word for word.
fn check_recalled(timeline: &RequestTimeline) {
    let written = serde_json::to_string(timeline).expect("it is written");
    let record: TimelineRecord = serde_json::from_str(&written).expect("it is read");
    let recalled = RequestTimeline::recall(&record).expect("it makes sense");
    recalled.check().expect("its sums are exact");
    assert_eq!(serde_json::to_string(&recalled).expect("it is written"), written);
}

#[test]
fn every_stream_is_the_scripted_truth_and_every_timeline_sums_exactly() {
    let mut coverage = Coverage::default();
    for seed in 0..num_seeds() {
        let clock = ManualClock::new();
        let run = || Simulation::new(seed, &clock).run(&mut coverage);
        if let Err(panic) = catch_unwind(AssertUnwindSafe(run)) {
            eprintln!("the simulation fails at seed {seed}");
            resume_unwind(panic);
        }
    }
    println!("{coverage:#?}");
    if num_seeds() >= 2_000 {
        coverage.check();
    }
}

//! One thread's engine with its text front end: prompts in, events out. The driver of the command line.
//!
//! It owns the engine; nothing is shared. Invariant: every prompt it is given ends in exactly one `Finished` event,
//! those that are refused in preparation included.

use firstlight_engine::clock::{Clock, Nanos};
use firstlight_engine::engine::{Engine, RequestEvent, StepFailed};
use firstlight_engine::request::{
    FinishReason, HostStamps, RejectReason, Request, RequestId, SamplingParams,
};
use firstlight_engine::runner::{ModelRunner, RunnerError};
use firstlight_engine::text::{PrepareOptions, Preparer, PromptInput};
use firstlight_engine::timeline::{Edge, RequestLabels, RequestTimeline};

use crate::clock::InstantClock;
use crate::executor::block_on;

/// One prompt and how to answer it.
#[derive(Clone, Debug)]
pub struct Ask {
    /// What the user sent.
    pub input: PromptInput,
    /// How to answer.
    pub params: SamplingParams,
    /// Special tokens in the user's text are read as such.
    pub parse_special: bool,
    /// The command it came by.
    pub route: &'static str,
    /// When the call was made: prompts of one command line share it.
    pub received: Nanos,
}

/// What one step gave.
#[derive(Debug, Default)]
pub struct Stepped {
    /// In order.
    pub events: Vec<RequestEvent>,
    /// The device failed; every request has ended, and the events are among these.
    pub failure: Option<RunnerError>,
}

/// The engine of one thread.
pub struct Session<R: ModelRunner> {
    engine: Engine<R, InstantClock>,
    preparer: Preparer,
    clock: InstantClock,
    /// Drives the device while a step waits for it.
    drive: Box<dyn FnMut()>,
    refused: Vec<RequestEvent>,
    next_id: u64,
}

impl<R: ModelRunner> Session<R> {
    /// A session over an engine that runs on `clock`.
    pub fn new(
        engine: Engine<R, InstantClock>,
        preparer: Preparer,
        clock: InstantClock,
        drive: impl FnMut() + 'static,
    ) -> Self {
        Self { engine, preparer, clock, drive: Box::new(drive), refused: Vec::new(), next_id: 0 }
    }

    /// The session's clock.
    pub fn clock(&self) -> InstantClock {
        self.clock
    }

    /// Whether answers come as text.
    pub fn has_tokenizer(&self) -> bool {
        self.preparer.tokenizer().is_some()
    }

    /// Prepares a prompt and hands it to the engine. A refusal comes out of the next [`Self::step`].
    pub fn ask(&mut self, ask: Ask) -> RequestId {
        let id = RequestId(self.next_id);
        self.next_id += 1;
        let labels = self.labels(id, ask.route);
        let received = ask.received;
        // One process, one model, nobody to authorise: these boundaries do not apply.
        let mut stamps = HostStamps { received, checked: received, routed: received, ..Default::default() };
        let options = PrepareOptions {
            parse_special: ask.parse_special,
            now_unix_seconds: self.unix_seconds(received),
        };
        match self.preparer.prepare(ask.input, &options, &self.clock, &mut stamps) {
            Ok(prepared) => {
                stamps.created = self.clock.now();
                let request = Request::new(id, prepared.prompt, ask.params, stamps);
                self.engine.submit_labelled(request, labels);
            }
            Err(reason) => {
                let event = self.refusal(id, labels, &stamps, reason);
                self.refused.push(event);
            }
        }
        id
    }

    fn labels(&self, id: RequestId, route: &str) -> RequestLabels {
        let request_id = format!("{route}-{:x}-{}", self.clock.origin_unix_ms(), id.0);
        RequestLabels { id: format!("{request_id}#0"), request_id, trace_id: None, route: route.to_owned() }
    }

    fn unix_seconds(&self, now: u64) -> u64 {
        (self.clock.origin_unix_ms() + now / 1_000_000) / 1000
    }

    /// The end of a request that never reached the engine, with the stamps that it did reach.
    fn refusal(
        &self,
        id: RequestId,
        labels: RequestLabels,
        stamps: &HostStamps,
        reason: RejectReason,
    ) -> RequestEvent {
        let mut timeline = Box::new(RequestTimeline::new(id, labels, self.engine.labels().clone()));
        timeline.advance(Edge::Received, stamps.received);
        timeline.advance(Edge::Checked, stamps.checked);
        timeline.advance(Edge::Routed, stamps.routed);
        let reached = [
            (Edge::Preparing, stamps.preparing),
            (Edge::Templated, stamps.templated),
            (Edge::Tokenised, stamps.tokenised),
        ];
        // The clock's origin lies before any request, so a zero is a stamp that was never made.
        for (edge, at) in reached.into_iter().take_while(|(_, at)| *at > 0) {
            timeline.advance(edge, at);
        }
        let finished = Edge::Finished { reason: FinishReason::Rejected, detail: Some(reason.clone()) };
        timeline.advance(finished, self.clock.now());
        RequestEvent::Finished {
            id,
            reason: FinishReason::Rejected,
            detail: Some(reason),
            text: String::new(),
            timeline,
        }
    }

    /// Stops an answer; its `Finished` comes out of the next [`Self::step`].
    pub fn abort(&mut self, id: RequestId, reason: FinishReason) {
        let now = self.clock.now();
        self.engine.abort(id, reason, now);
    }

    /// Whether a step has anything to compute or to tell.
    pub fn has_work(&self) -> bool {
        !self.refused.is_empty() || self.engine.has_work()
    }

    /// One step of the engine, to its end.
    pub fn step(&mut self) -> Stepped {
        let mut events = std::mem::take(&mut self.refused);
        if !self.engine.has_work() {
            return Stepped { events, failure: None };
        }
        match block_on(self.engine.step(), &mut self.drive) {
            Ok(output) => {
                events.extend(output.events);
                Stepped { events, failure: None }
            }
            Err(failed) => {
                let StepFailed { error, output } = *failed;
                events.extend(output.events);
                // Nobody builds the device again here: those who wait end too, each with its own word.
                for id in (0..self.next_id).map(RequestId) {
                    self.engine.abort(id, FinishReason::Failed, self.clock.now());
                }
                if let Ok(output) = block_on(self.engine.step(), &mut self.drive) {
                    events.extend(output.events);
                }
                Stepped { events, failure: Some(error) }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use firstlight_engine::engine::EngineConfig;
    use firstlight_engine::request::SampledToken;
    use firstlight_engine::runner::RunnerOutput;
    use firstlight_engine::sched::{Batch, PRIORITY_STEP_NS, SchedulerConfig};

    use super::*;
    use crate::answer::Answer;

    /// Answers every row with its position, and fails at the step that it is told.
    struct CountingRunner {
        steps_left: Option<u32>,
    }

    impl ModelRunner for CountingRunner {
        async fn execute(&mut self, batch: &Batch) -> Result<RunnerOutput, RunnerError> {
            if self.steps_left == Some(0) {
                return Err(RunnerError::DeviceLost("pulled out".into()));
            }
            self.steps_left = self.steps_left.map(|left| left - 1);
            let token = |row: &firstlight_engine::sched::SampleRow| SampledToken {
                token: row.position % 100,
                logprobs: None,
            };
            Ok(RunnerOutput {
                tokens: batch.sample_rows.iter().map(token).collect(),
                gpu_ns: None,
                stages: None,
            })
        }
    }

    fn session(steps_left: Option<u32>) -> Session<CountingRunner> {
        let clock = InstantClock::start();
        let scheduler = SchedulerConfig {
            max_num_seqs: 2,
            max_batch_tokens: 4,
            block_size: 8,
            num_blocks: 8,
            max_model_len: 32,
            max_waiting: 8,
            vocab_size: 100,
            prefix_cache: true,
            prefix_hash_bits: 64,
            priority_step_ns: PRIORITY_STEP_NS,
        };
        let config = EngineConfig {
            scheduler,
            eos_tokens: Vec::new(),
            model: Default::default(),
            engine_config: String::new(),
        };
        let engine = Engine::new(CountingRunner { steps_left }, clock, config, None);
        let preparer = Preparer::new(None, 100, 32).unwrap();
        Session::new(engine, preparer, clock, || {})
    }

    fn ask(session: &mut Session<CountingRunner>, input: PromptInput) -> RequestId {
        let params = SamplingParams { max_tokens: 3, ..Default::default() };
        let received = session.clock().now();
        session.ask(Ask { input, params, parse_special: false, route: "run", received })
    }

    fn check(inputs: Vec<PromptInput>, steps_left: Option<u32>, expected: &[(FinishReason, &[u32])]) {
        let mut session = session(steps_left);
        let ids: Vec<RequestId> = inputs.into_iter().map(|input| ask(&mut session, input)).collect();
        let mut answers: Vec<Answer> = ids.iter().map(|_| Answer::default()).collect();
        let mut failed = false;
        while session.has_work() && !failed {
            let stepped = session.step();
            failed = stepped.failure.is_some();
            for event in stepped.events {
                let (RequestEvent::Token { id, .. } | RequestEvent::Finished { id, .. }) = &event;
                let answer = &mut answers[ids.iter().position(|known| known == id).unwrap()];
                assert!(answer.ended.is_none(), "nothing follows the end of {id}");
                answer.take(event, session.clock().now());
            }
        }
        assert_eq!(failed, steps_left.is_some());
        for (answer, (reason, tokens)) in answers.iter_mut().zip(expected) {
            assert_eq!(answer.seal(Some(session.clock().now())), None, "the timeline holds");
            assert_eq!(answer.ended.as_ref().unwrap().reason, *reason);
            let json = serde_json::to_value(answer.json(false).unwrap()).unwrap();
            assert_eq!(json["token_ids"], serde_json::json!(tokens));
            assert_eq!(json["text"], serde_json::Value::Null);
            let (parts, stamps) = (&json["timeline"]["parts_total"], &json["timeline"]["stamps"]);
            let end = stamps.get("first_token").unwrap_or(&stamps["finished"]).as_u64().unwrap();
            assert_eq!(parts.as_u64().unwrap(), end - stamps["received"].as_u64().unwrap());
        }
    }

    #[test]
    fn every_prompt_ends_once_and_its_parts_sum() {
        let ids = |ids: &[u32]| PromptInput::Ids(ids.to_vec());
        check(vec![ids(&[1, 2])], None, &[(FinishReason::Length, &[2, 3, 4])]);
        check(
            vec![ids(&[5; 9]), ids(&[]), ids(&[100]), ids(&[0; 40]), ids(&[7]), PromptInput::Raw("x".into())],
            None,
            &[
                (FinishReason::Length, &[9, 10, 11]),
                (FinishReason::Rejected, &[]),
                (FinishReason::Rejected, &[]),
                (FinishReason::Rejected, &[]),
                (FinishReason::Length, &[1, 2, 3]),
                (FinishReason::Rejected, &[]),
            ],
        );
        check(vec![ids(&[1, 2])], Some(2), &[(FinishReason::Failed, &[2, 3])]);
        // Three prompts on two slots: the one that waits ends too.
        check(
            vec![ids(&[1, 2]), ids(&[3, 4]), ids(&[5, 6])],
            Some(1),
            &[(FinishReason::Failed, &[2]), (FinishReason::Failed, &[2]), (FinishReason::Failed, &[])],
        );
    }
}

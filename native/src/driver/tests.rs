//! The engine's thread under tests that say when each step begins and how it ends: clients, failures, ends.

use std::cell::Cell;
use std::rc::Rc;
use std::sync::mpsc::{Receiver, Sender, channel};

use firstlight_engine::engine::EngineConfig;
use firstlight_engine::request::{SampledToken, SamplingParams};
use firstlight_engine::runner::{RunnerError, RunnerOutput};
use firstlight_engine::sched::{Batch, PRIORITY_STEP_NS, SampleRow};
use firstlight_engine::text::PromptInput;
use firstlight_engine::timeline::{Place, RequestTimeline};

use super::*;
use crate::ask::Ask;

/// How a step ends.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Order {
    Run,
    Fail,
    Panic,
}

/// What the attempt to open the device again gives.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Rebuild {
    Works,
    Fails,
}

/// A step that has begun.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Began {
    rows: usize,
    /// Counts the runners, from 0.
    runner: u32,
    profiled: bool,
}

/// Answers every row with its position, once it has its order; without anybody who gives orders it just runs.
struct OrderedRunner {
    orders: Rc<Receiver<Order>>,
    began: Sender<Began>,
    runner: u32,
    profiled: bool,
}

impl ModelRunner for OrderedRunner {
    async fn execute(&mut self, batch: &Batch) -> Result<RunnerOutput, RunnerError> {
        let began = Began { rows: batch.num_rows(), runner: self.runner, profiled: self.profiled };
        let _ = self.began.send(began);
        match self.orders.recv().unwrap_or(Order::Run) {
            Order::Run => {}
            Order::Fail => return Err(RunnerError::DeviceLost("pulled out".into())),
            Order::Panic => panic!("a table was indexed beyond its end"),
        }
        let token = |row: &SampleRow| SampledToken { token: row.position % 100, logprobs: None };
        let tokens = batch.sample_rows.iter().map(token).collect();
        Ok(RunnerOutput { tokens, gpu_ns: None, stages: None })
    }

    fn profile(&mut self, on: bool) {
        self.profiled = on;
    }
}

/// An engine to be started.
pub(crate) struct Rig {
    pub(crate) slots: u32,
    pub(crate) max_waiting: u32,
    pub(crate) rebuild: Rebuild,
}

impl Default for Rig {
    fn default() -> Self {
        Self { slots: 2, max_waiting: 64, rebuild: Rebuild::Works }
    }
}

impl Rig {
    fn parts(&self, orders: Receiver<Order>, began: Sender<Began>) -> Parts<OrderedRunner> {
        let scheduler = SchedulerConfig {
            max_num_seqs: self.slots,
            max_batch_tokens: 4,
            block_size: 8,
            num_blocks: 64,
            max_model_len: 32,
            max_waiting: self.max_waiting,
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
        let orders = Rc::new(orders);
        let mut next = 0;
        let mut runner = move || {
            next += 1;
            OrderedRunner { orders: orders.clone(), began: began.clone(), runner: next - 1, profiled: false }
        };
        let rebuild = self.rebuild;
        Parts {
            engine: Engine::new(runner(), InstantClock::start(), config, None),
            drive: Box::new(|| ()),
            rebuild: Box::new(move || match rebuild {
                Rebuild::Works => Ok((runner(), Box::new(|| ()))),
                Rebuild::Fails => Err(Failure::no_adapter("no GPU adapter answered")),
            }),
            preparer: Arc::new(Preparer::new(None, 100, 32).unwrap()),
            adapter: "a pair of hands".into(),
        }
    }

    pub(crate) fn start(self) -> Running {
        let (give, orders) = channel();
        let (begin, began) = channel();
        let thread = EngineThread::start(move || Ok(self.parts(orders, begin))).unwrap();
        let handle = thread.handle();
        let params = SamplingParams { max_tokens: 3, ..Default::default() };
        Running { orders: Cell::new(Some(give)), thread, handle, params, began }
    }
}

/// One that was started.
pub(crate) struct Running {
    // Goes before the thread, so that a test that fails does not wait for a step that waits for an order.
    orders: Cell<Option<Sender<Order>>>,
    pub(crate) thread: EngineThread,
    pub(crate) handle: EngineHandle,
    /// Three tokens.
    pub(crate) params: SamplingParams,
    began: Receiver<Began>,
}

impl Running {
    /// The order for a step to come.
    pub(crate) fn give(&self, order: Order) {
        let orders = self.orders.take().unwrap();
        orders.send(order).unwrap();
        self.orders.set(Some(orders));
    }

    /// From here on steps need no orders.
    pub(crate) fn free(&self) {
        drop(self.orders.take());
    }

    /// Waits until the next step has begun.
    fn begins(&self) -> Began {
        self.began.recv().unwrap()
    }

    fn ask(&self, prompt_len: u32) -> Client {
        Client::ask(&self.handle, prompt_len, self.params.clone())
    }
}

/// A prompt of a length: the answer's tokens are its positions.
pub(crate) fn prompt(len: u32) -> Vec<u32> {
    (0..len).map(|i| (i * 7 + len) % 100).collect()
}

/// Somebody who waits for an answer.
struct Client {
    id: RequestId,
    events: Receiver<RequestEvent>,
}

/// What came of it.
struct Ended {
    tokens: Vec<u32>,
    reason: FinishReason,
    timeline: Box<RequestTimeline>,
}

impl Client {
    fn ask(handle: &EngineHandle, prompt_len: u32, params: SamplingParams) -> Self {
        let (sender, events) = channel();
        let ask = Ask::new(PromptInput::Ids(prompt(prompt_len)), params, "test", handle.clock().now());
        let id = ask.send(handle, Box::new(move |event| sender.send(event).is_ok()));
        Self { id, events }
    }

    /// Listens to the end, and makes sure that it is one: the sink is gone, nothing follows.
    fn end(self) -> Ended {
        let mut tokens = Vec::new();
        loop {
            match self.events.recv().expect("an answer ends with its `Finished`") {
                RequestEvent::Token { id, token, .. } => {
                    assert_eq!(id, self.id);
                    tokens.push(token.token);
                }
                RequestEvent::Finished { id, reason, mut timeline, .. } => {
                    assert_eq!((id, timeline.id()), (self.id, self.id));
                    timeline.seal().unwrap();
                    assert!(self.events.recv().is_err(), "nothing follows the end of {id}");
                    return Ended { tokens, reason, timeline };
                }
            }
        }
    }

    fn ends(self, reason: FinishReason, tokens: &[u32]) {
        let ended = self.end();
        assert_eq!((ended.reason, ended.tokens.as_slice()), (reason, tokens));
    }
}

/// A later submission is refused, and its sink learns it with a timeline.
fn check_refused(handle: &EngineHandle, part: &str) {
    let ended = Client::ask(handle, 3, SamplingParams::default()).end();
    assert_eq!((ended.reason, ended.tokens.len()), (FinishReason::Rejected, 0));
    let detail = ended.timeline.finish_detail().unwrap().to_string();
    assert!(detail.contains(part), "{detail:?} has {part:?}");
}

#[test]
fn many_clients_on_many_threads_each_hear_their_own_answer() {
    let rig = Rig { slots: 3, max_waiting: 1000, ..Rig::default() }.start();
    rig.free();
    let client = |first: u32| {
        let (handle, params) = (rig.handle.clone(), rig.params.clone());
        std::thread::spawn(move || {
            let lens = (0..20).map(|i| 1 + (first + i * 5) % 20);
            let asked: Vec<_> = lens.map(|len| (len, Client::ask(&handle, len, params.clone()))).collect();
            asked
                .into_iter()
                .map(|(len, client)| {
                    let id = client.id;
                    client.ends(FinishReason::Length, &[len, len + 1, len + 2]);
                    id
                })
                .collect::<Vec<_>>()
        })
    };
    let threads: Vec<_> = (0..5).map(client).collect();
    let mut ids: Vec<_> = threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect();
    ids.sort();
    assert_eq!(ids, (0..100).map(RequestId).collect::<Vec<_>>());
    let counters = rig.handle.counters();
    assert_eq!((counters.running, counters.waiting), (0, 0));
    assert_eq!(counters.blocks_free, counters.blocks_total);
    assert_eq!(counters.generation_tokens_total, 300);
}

#[test]
fn a_full_inbox_is_an_answer_and_an_abort_gets_through_it() {
    let rig = Rig { slots: 1, max_waiting: 2, ..Rig::default() }.start();
    let first = rig.ask(2);
    rig.begins();
    let (second, third) = (rig.ask(3), rig.ask(4));
    // The first one waited when the step that runs began.
    assert_eq!(rig.handle.counters().waiting, 3);
    check_refused(&rig.handle, "2 requests are waiting");
    let (sender, _) = channel();
    let stamps = firstlight_engine::request::HostStamps::at(rig.handle.clock().now());
    let request = Request::new(rig.handle.next_id(), prompt(5), rig.params.clone(), stamps);
    let id = request.id;
    let events: EventSink = Box::new(move |event| sender.send(event).is_ok());
    let submission = Submission { request, labels: RequestLabels::default(), events };
    let refused = rig.handle.submit_together(vec![submission]).pop().unwrap();
    assert_eq!(refused.reason, RejectReason::Busy { waiting: 2 });
    assert_eq!((refused.submission.request.id, &refused.submission.request.prompt), (id, &prompt(5)));
    rig.handle.abort(second.id, FinishReason::Cancelled, rig.handle.clock().now());
    rig.free();
    second.ends(FinishReason::Cancelled, &[]);
    first.ends(FinishReason::Length, &[2, 3, 4]);
    third.ends(FinishReason::Length, &[4, 5, 6]);
    rig.ask(6).ends(FinishReason::Length, &[6, 7, 8]);
}

#[test]
fn a_client_that_is_gone_frees_its_slot_and_only_its_end_is_told() {
    let rig = Rig { slots: 1, ..Rig::default() }.start();
    let (sender, heard) = channel();
    let params = SamplingParams { max_tokens: 1000, ..Default::default() };
    let ask = Ask::new(PromptInput::Ids(prompt(2)), params, "test", rig.handle.clock().now());
    ask.send(&rig.handle, Box::new(move |event| sender.send(event).is_err()));
    rig.begins();
    let next = rig.ask(5);
    rig.free();
    next.ends(FinishReason::Length, &[5, 6, 7]);
    let events: Vec<_> = heard.iter().collect();
    let [RequestEvent::Token { .. }, RequestEvent::Finished { reason, timeline, .. }] = events.as_slice()
    else {
        panic!("a token and an end: {events:?}")
    };
    assert_eq!((*reason, timeline.tokens().generated), (FinishReason::Disconnected, 1));
}

#[test]
fn a_sink_that_panics_takes_nobody_with_it() {
    let rig = Rig::default().start();
    let ask = Ask::new(PromptInput::Ids(prompt(2)), rig.params.clone(), "test", rig.handle.clock().now());
    ask.send(&rig.handle, Box::new(|_| panic!("a sink of a test")));
    rig.begins();
    let next = rig.ask(5);
    rig.free();
    next.ends(FinishReason::Length, &[5, 6, 7]);
    rig.ask(3).ends(FinishReason::Length, &[3, 4, 5]);
}

#[test]
fn a_token_that_was_made_after_the_client_asked_for_the_end_is_counted_and_not_shown() {
    let rig = Rig::default().start();
    let client = rig.ask(2);
    rig.begins();
    rig.give(Order::Run);
    rig.begins();
    let asked_at = rig.handle.clock().now();
    rig.handle.abort(client.id, FinishReason::Cancelled, asked_at);
    // Also where the clock is so coarse that the step would end in the same instant.
    while rig.handle.clock().now() == asked_at {}
    rig.free();
    let ended = client.end();
    assert_eq!((ended.reason, ended.tokens), (FinishReason::Cancelled, vec![2]));
    let counts = ended.timeline.tokens();
    assert_eq!((counts.generated, counts.after_disconnect), (2, 1));
}

#[test]
fn a_device_that_fails_ends_those_who_run_and_a_new_one_serves_the_queue() {
    let rig = Rig { slots: 1, ..Rig::default() }.start();
    rig.handle.profile(true);
    let running = rig.ask(2);
    assert_eq!(rig.begins().runner, 0);
    let waiting = rig.ask(3);
    rig.give(Order::Run);
    rig.begins();
    rig.give(Order::Fail);
    let served = rig.begins();
    assert_eq!((served.runner, served.rows, served.profiled), (1, 3, true));
    running.ends(FinishReason::Failed, &[2]);
    rig.free();
    let waited = waiting.end();
    assert_eq!((waited.reason, waited.tokens), (FinishReason::Length, vec![3, 4, 5]));
    let causes = waited.timeline.parts().unwrap().engine.unwrap().queue_wait;
    assert!(causes.paused > 0 && causes.slots > 0, "{causes:?}");
    rig.ask(7).ends(FinishReason::Length, &[7, 8, 9]);
    assert_eq!(rig.handle.closed(), None);
}

#[test]
fn a_device_may_fail_again_and_again_as_long_as_steps_succeed_in_between() {
    let rig = Rig { slots: 1, ..Rig::default() }.start();
    for _ in 0..2 * engine_loop::MAX_REBUILDS {
        let client = rig.ask(1);
        rig.give(Order::Run);
        rig.give(Order::Fail);
        client.ends(FinishReason::Failed, &[1]);
    }
    rig.free();
    rig.ask(1).ends(FinishReason::Length, &[1, 2, 3]);
}

#[test]
fn a_device_that_only_fails_is_given_up_and_everybody_ends() {
    let rig = Rig { slots: 1, ..Rig::default() }.start();
    let first = rig.ask(1);
    rig.begins();
    let others: Vec<_> = (2..8).map(|len| rig.ask(len)).collect();
    (0..=engine_loop::MAX_REBUILDS).for_each(|_| rig.give(Order::Fail));
    first.ends(FinishReason::Failed, &[]);
    others.into_iter().for_each(|client| client.ends(FinishReason::Failed, &[]));
    let runners: Vec<_> = rig.began.iter().map(|began| began.runner).collect();
    assert_eq!(runners, [1, 2, 3], "and no fifth attempt");
    check_refused(&rig.handle, "opened 3 times in a row");
    assert!(matches!(rig.handle.wait_until_closed(), RejectReason::Stopped(_)));
    rig.thread.shut_down(Duration::MAX);
}

#[test]
fn a_device_that_cannot_be_opened_again_ends_everybody() {
    let rig = Rig { slots: 1, rebuild: Rebuild::Fails, ..Rig::default() }.start();
    let running = rig.ask(1);
    rig.begins();
    rig.give(Order::Run);
    let seen = rig.begins();
    assert_eq!(seen.rows, 1);
    // One was drained, one is still on the inbox when the device fails.
    let on_the_inbox = rig.ask(3);
    rig.give(Order::Fail);
    running.ends(FinishReason::Failed, &[1]);
    on_the_inbox.ends(FinishReason::Failed, &[]);
    assert!(matches!(rig.handle.wait_until_closed(), RejectReason::Stopped(_)));
    check_refused(&rig.handle, "could not be opened again (no GPU adapter answered)");
    assert_eq!(rig.handle.counters().waiting, 0);
}

#[test]
fn a_panic_in_the_runner_leaves_nobody_waiting() {
    let rig = Rig { slots: 1, ..Rig::default() }.start();
    let running = rig.ask(1);
    rig.begins();
    let queued = rig.ask(2);
    rig.give(Order::Run);
    rig.begins();
    let on_the_inbox = rig.ask(3);
    rig.give(Order::Panic);
    let ended = running.end();
    assert_eq!((ended.reason, ended.tokens), (FinishReason::Failed, vec![1]));
    assert!(ended.timeline.stamps().first_token.is_some(), "the engine's own timeline, not a made-up one");
    queued.ends(FinishReason::Failed, &[]);
    on_the_inbox.ends(FinishReason::Failed, &[]);
    check_refused(&rig.handle, "a table was indexed beyond its end");
    rig.thread.shut_down(Duration::ZERO);
}

#[test]
fn an_engine_that_cannot_be_built_is_a_failure() {
    let failed = || -> Result<Parts<OrderedRunner>, Failure> { Err(Failure::model("no such file")) };
    assert_eq!(EngineThread::start(failed).err(), Some(Failure::model("no such file")));
    let panics = || -> Result<Parts<OrderedRunner>, Failure> { panic!("no such table") };
    let failure = EngineThread::start(panics).err().unwrap();
    assert!(failure.sentence.contains("no such table"), "{failure}");
}

fn check_shut_down(grace: Duration, reason: FinishReason, running: &[u32], waiting: &[u32]) {
    let rig = Rig { slots: 1, ..Rig::default() }.start();
    let (first, second) = (rig.ask(2), rig.ask(3));
    rig.begins();
    let (handle, thread) = (rig.handle.clone(), rig.thread);
    let ending = std::thread::spawn(move || thread.shut_down(grace));
    assert_eq!(handle.wait_until_closed(), RejectReason::ShuttingDown);
    check_refused(&handle, "shutting down");
    drop(rig.orders);
    first.ends(reason, running);
    second.ends(reason, waiting);
    ending.join().unwrap();
    assert_eq!(handle.counters().running, 0);
    check_refused(&handle, "shutting down");
}

#[test]
fn a_shutdown_lets_those_who_are_here_end_within_its_grace() {
    check_shut_down(Duration::MAX, FinishReason::Length, &[2, 3, 4], &[3, 4, 5]);
    // The step that runs is run to its end.
    check_shut_down(Duration::ZERO, FinishReason::Cancelled, &[2], &[]);
}

#[test]
fn a_thread_that_is_dropped_ends_what_it_has() {
    let rig = Rig { slots: 1, ..Rig::default() }.start();
    let (first, second) = (rig.ask(2), rig.ask(3));
    rig.begins();
    rig.free();
    drop(rig.thread);
    // How far the first one came before the drop is nobody's promise.
    assert!(matches!(first.end().reason, FinishReason::Cancelled | FinishReason::Length));
    assert!(matches!(second.end().reason, FinishReason::Cancelled | FinishReason::Length));
}

#[test]
fn whoever_hears_of_an_end_finds_its_steps() {
    let rig = Rig::default().start();
    rig.free();
    let ended = rig.ask(9).end();
    let steps = rig.handle.steps(usize::MAX);
    assert_eq!(steps.len(), 5, "three chunks of 4, 4 and 1, then two tokens");
    for (at, id) in ended.timeline.token_at().iter().zip(ended.timeline.token_step()) {
        let step = steps.iter().find(|step| step.id == *id).unwrap();
        assert_eq!(step.done_at, *at);
    }
    assert_eq!(rig.handle.steps(2), steps[3..]);
    assert_eq!(rig.handle.counters().steps_total, 5);
    assert_eq!(rig.handle.adapter(), "a pair of hands");
}

/// Asks who is there; the answer comes between two steps.
fn ask_live(handle: &EngineHandle) -> Receiver<Arc<LiveRequests>> {
    let (sender, live) = channel();
    handle.live_requests(Box::new(move |requests| drop(sender.send(requests))));
    live
}

#[test]
fn who_is_with_the_engine_is_told_between_two_steps_and_with_the_gauges_of_that_instant() {
    let rig = Rig { slots: 1, ..Rig::default() }.start();
    let check = |live: &LiveRequests, expected: &[(RequestId, Place, usize)]| {
        let of = |timeline: &RequestTimeline| (timeline.id(), timeline.place(), timeline.token_at().len());
        let got: Vec<_> = live.timelines.iter().map(of).collect();
        assert_eq!(got, expected);
        let counters = live.counters;
        assert_eq!(counters.running + counters.waiting, expected.len(), "{counters:?}");
        assert!(live.timelines.iter().all(|timeline| timeline.stamps().created() <= Some(live.now)));
    };
    let idle = ask_live(&rig.handle).recv().unwrap();
    check(&idle, &[]);
    let first = rig.ask(2);
    rig.begins();
    let second = rig.ask(3);
    let (asked, asked_too) = (ask_live(&rig.handle), ask_live(&rig.handle));
    assert!(asked.try_recv().is_err(), "a step runs");
    rig.give(Order::Run);
    rig.begins();
    let live = asked.recv().unwrap();
    check(&live, &[(first.id, Place::Running, 1), (second.id, Place::Inbox, 0)]);
    assert!(live.timelines.iter().all(|timeline| timeline.finish_reason().is_none()));
    assert!(Arc::ptr_eq(&live, &asked_too.recv().unwrap()), "one list for both");
    // Whoever has gone by then, or panics, is nobody's trouble.
    drop(ask_live(&rig.handle));
    rig.handle.live_requests(Box::new(|_| panic!("a reply of a test")));
    rig.free();
    first.ends(FinishReason::Length, &[2, 3, 4]);
    second.ends(FinishReason::Length, &[3, 4, 5]);
    let handle = rig.handle.clone();
    drop(rig.thread);
    assert!(ask_live(&handle).recv().is_err(), "nobody is there to answer");
}

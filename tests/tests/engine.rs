//! The engine over a scripted runner: evictions, endings, refusals and failures, each with the timeline it must leave.

mod ahead;
mod answer_text;
mod bench;
mod ends;
mod failures;
mod forks;
mod prefix;

use firstlight_engine::clock::{Clock, ManualClock, Nanos};
use firstlight_engine::request::{FinishReason, RejectReason, RequestId, SamplingParams};
use firstlight_engine::sched::SchedulerConfig;
use firstlight_engine::timeline::{Place, RequestLabels, StepRecord};
use serde_json::Value;

use bench::{Bench, ROOMY, VOCAB_SIZE, answer, prompt, request};

#[test]
fn prompts_together_are_answered_as_each_alone_whatever_the_chunks_blocks_and_slots() {
    let prompts = [prompt(1, 3), prompt(100, 17), prompt(200, 1), prompt(300, 40), prompt(1, 2)];
    let check = |scheduler: SchedulerConfig| {
        let clock = ManualClock::new();
        let mut bench = Bench::new(&clock, scheduler);
        for (id, prompt) in prompts.iter().enumerate() {
            bench.submit(id as u64, prompt, 20);
        }
        bench.finish();
        for (id, prompt) in prompts.iter().enumerate() {
            let ended = bench.ended(id as u64);
            assert_eq!((&ended.tokens, ended.reason), (&answer(prompt, 20), FinishReason::Length));
        }
    };
    for max_batch_tokens in [1, 2, 7, 32, 512] {
        for (block_size, num_blocks) in [(1, 60), (4, 16), (16, 4), (16, 100)] {
            for max_num_seqs in [1, 2, 8] {
                check(SchedulerConfig { max_batch_tokens, block_size, num_blocks, max_num_seqs, ..ROOMY });
            }
        }
    }
}

/// The older answers and grows by a block every other step; the younger's prompt goes in one token a step beside it.
const TIGHT: SchedulerConfig = SchedulerConfig { max_batch_tokens: 2, block_size: 2, num_blocks: 8, ..ROOMY };

#[test]
fn an_eviction_in_the_middle_of_a_prefill_costs_requeue_and_lost_prefill_to_the_nanosecond() {
    let clock = ManualClock::new();
    let mut bench = Bench::new(&clock, TIGHT);
    let (older, younger) = (prompt(1, 2), prompt(100, 9));
    bench.submit(0, &older, 14);
    bench.submit(1, &younger, 3);
    bench.finish();
    assert_eq!(bench.ended(0).tokens, answer(&older, 14));
    assert_eq!(bench.ended(1).tokens, answer(&younger, 3));
    assert_eq!(bench.ended(0).timeline.preemptions(), 0);
    // Step 0 holds the older prompt. Steps 1 to 6 hold a row of each; then five blocks of the older and three of the
    // younger are all there are, and the older needs another. It ends in step 13; steps 14 to 18 hold nine tokens, two
    // by two, of the younger.
    let evictions: Vec<_> = bench.steps.iter().filter(|s| !s.preempted.is_empty()).map(|s| s.id).collect();
    assert_eq!(evictions, [7]);
    let timeline = &bench.ended(1).timeline;
    let parts = bench.ended(1).engine_parts();
    assert_eq!((parts.queue_wait.budget, parts.queue_wait.total()), (1, 1));
    assert_eq!(parts.lost_prefill, 6);
    assert_eq!((parts.requeue.blocks, parts.requeue.total()), (7, 7));
    assert_eq!((parts.prefill.compute, parts.prefill.stall), (5, 0));
    assert_eq!((parts.total(), timeline.engine_ttft()), (19, Some(19)));
    let attempts: Vec<_> = timeline.attempts().iter().map(|a| (a.from, a.to, a.cached, a.computed)).collect();
    assert_eq!(attempts, [(1, 7, 0, 6), (14, 19, 0, 9)]);
    assert_eq!(timeline.decode().map(|decode| (decode.compute, decode.total())), Some((2, 2)));
}

/// One nanosecond for each step that held prompt tokens of request 1.
fn given_to_1(step: &StepRecord) -> Nanos {
    Nanos::from(step.prefill.iter().any(|(id, _)| *id == RequestId(1)))
}

#[test]
fn a_prompt_waits_for_blocks_rather_than_being_let_in_and_evicted() {
    let clock = ManualClock::new();
    let mut bench = Bench::new(&clock, SchedulerConfig { max_batch_tokens: 4, ..TIGHT });
    bench.submit(0, &prompt(1, 10), 1);
    bench.submit(1, &prompt(100, 10), 1);
    bench.submit(2, &prompt(200, 2), 1);
    bench.finish();
    assert_eq!(bench.engine.counters().preemptions_total, 0);
    // Steps 0 to 2 hold the first prompt, whose last chunk leaves two tokens, but three free blocks instead of five.
    let chunks: Vec<_> = bench.steps.iter().map(|step| step.prefill.as_slice()).collect();
    let r = RequestId;
    assert_eq!(chunks[..3], [&[(r(0), 4)][..], &[(r(0), 4)], &[(r(0), 2)]]);
    assert_eq!(chunks[3..], [&[(r(1), 4)][..], &[(r(1), 4)], &[(r(1), 2), (r(2), 2)]]);
    let waited = |id: u64| bench.ended(id).engine_parts().queue_wait;
    assert_eq!((waited(1).budget, waited(1).blocks, waited(1).total()), (2, 1, 3));
    assert_eq!((waited(2).budget, waited(2).order, waited(2).total()), (4, 1, 5));
}

#[test]
fn an_eviction_in_the_middle_of_an_answer_is_recomputed_and_changes_no_token() {
    let clock = ManualClock::new();
    let mut bench = Bench::new(&clock, SchedulerConfig { max_batch_tokens: 16, ..TIGHT });
    let (older, younger) = (prompt(1, 2), prompt(100, 4));
    bench.submit(0, &older, 14);
    bench.submit(1, &younger, 11);
    bench.finish();
    assert_eq!(bench.ended(0).tokens, answer(&older, 14));
    assert_eq!(bench.ended(1).tokens, answer(&younger, 11));
    let timeline = &bench.ended(1).timeline;
    let parts = bench.ended(1).engine_parts();
    assert!(timeline.preemptions() > 0);
    assert_eq!((parts.requeue.total(), parts.lost_prefill), (0, 0));
    let decode = timeline.decode().expect("it was answered");
    assert!(decode.requeue > 0 && decode.recompute > 0 && decode.compute > 0, "{decode:?}");
    // Rows: the prompt, the answer but its last token, and whatever the evictions threw away.
    assert!(timeline.tokens().computed > 4 + 10, "{:?}", timeline.tokens());
}

#[test]
fn a_request_can_be_aborted_wherever_it_is() {
    // Steps before the abort of request 1, which shares the engine with request 0.
    let check = |slots: u32, steps: usize, place: Place, generated: usize, computed: u64| {
        let clock = ManualClock::new();
        let mut bench = Bench::new(
            &clock,
            SchedulerConfig { max_num_seqs: slots, max_batch_tokens: 8, num_blocks: 16, ..ROOMY },
        );
        let (first, second) = (prompt(1, 4), prompt(100, 20));
        bench.submit(0, &first, 12);
        bench.submit(1, &second, 12);
        for _ in 0..steps {
            bench.step().expect("no failure was injected");
        }
        clock.advance(1_000);
        assert!(bench.engine.abort(RequestId(1), FinishReason::Disconnected, clock.now()));
        assert!(!bench.engine.abort(RequestId(1), FinishReason::Cancelled, clock.now()));
        bench.engine.scheduler().check_integrity();
        bench.finish();
        assert_eq!(bench.ended(0).tokens, answer(&first, 12));
        let ended = bench.ended(1);
        assert_eq!((ended.reason, ended.last_place()), (FinishReason::Disconnected, Some(place)));
        assert_eq!((ended.tokens.len(), ended.timeline.tokens().computed), (generated, computed));
        assert!(answer(&second, 12).starts_with(&ended.tokens));
        let parts = ended.engine_parts();
        let decoded = ended.timeline.decode().map_or(0, |decode| decode.compute);
        // Each step took one nanosecond and the silence before the abort a thousand; somebody owns each of them.
        let lived = steps as Nanos + 1_000;
        let owned = match place {
            Place::Inbox => parts.inbox.step,
            Place::Waiting => parts.queue_wait.slots,
            _ => parts.prefill.compute + decoded,
        };
        assert_eq!((owned, decoded > 0), (lived, generated > 0), "{parts:?}");
    };
    check(2, 0, Place::Inbox, 0, 0);
    check(1, 1, Place::Waiting, 0, 0);
    check(1, 5, Place::Waiting, 0, 0);
    check(2, 1, Place::Running, 0, 4);
    check(2, 2, Place::Running, 0, 11);
    check(2, 4, Place::Running, 1, 20);
    check(2, 6, Place::Running, 3, 22);
}

#[test]
fn what_cannot_run_is_refused_at_once_with_its_numbers_and_a_timeline() {
    let scheduler = SchedulerConfig { num_blocks: 5, max_model_len: 100, max_waiting: 2, ..ROOMY };
    let check = |prompt: Vec<u32>, params: SamplingParams, expected: RejectReason| {
        let clock = ManualClock::new();
        let mut bench = Bench::new(&clock, scheduler);
        clock.advance(5);
        bench.submit_with(0, &prompt, params);
        assert!(bench.engine.has_work(), "the refusal is still to be told");
        bench.finish();
        let ended = bench.ended(0);
        assert_eq!((ended.reason, &ended.detail), (FinishReason::Rejected, &Some(expected)));
        assert_eq!(ended.timeline.finish_detail(), ended.detail.as_ref());
        assert!(bench.steps.is_empty() && ended.tokens.is_empty());
    };
    let greedy = SamplingParams::default;
    check(vec![], greedy(), RejectReason::EmptyPrompt);
    check(vec![3, VOCAB_SIZE], greedy(), RejectReason::UnknownToken { id: 1000, vocab_size: 1000 });
    check(prompt(1, 20), greedy(), RejectReason::NeverFits { needed_blocks: 6, total_blocks: 5 });
    check(prompt(1, 100), greedy(), RejectReason::PromptTooLong { prompt_len: 100, max_model_len: 100 });
    let zero = SamplingParams { max_tokens: 0, ..greedy() };
    let range = "at least 1";
    check(vec![3], zero, RejectReason::InvalidParameter { name: "max_tokens", value: "0".into(), range });
}

#[test]
fn a_full_inbox_is_an_answer() {
    let clock = ManualClock::new();
    let mut bench = Bench::new(&clock, SchedulerConfig { max_num_seqs: 1, max_waiting: 2, ..ROOMY });
    for id in 0..3 {
        bench.submit(id, &[id as u32 + 1], 4);
    }
    bench.step().expect("no failure was injected");
    assert_eq!(bench.ended(2).detail, Some(RejectReason::Busy { waiting: 2 }));
    // One of the two was admitted: there is room for one more.
    bench.submit(3, &[7], 4);
    bench.submit(4, &[8], 4);
    bench.finish();
    assert_eq!(bench.ended(3).reason, FinishReason::Length);
    assert_eq!(bench.ended(4).detail, Some(RejectReason::Busy { waiting: 2 }));
    let waited = bench.ended(3).engine_parts().queue_wait;
    assert_eq!(waited.slots, waited.total());
    assert!(waited.slots > 0);
}

#[test]
fn a_sequence_alone_in_a_pool_too_small_for_its_answer_ends_with_length() {
    let check = |prompt_len: u32, block_size: u32, num_blocks: u32| {
        let clock = ManualClock::new();
        let mut bench = Bench::new(&clock, SchedulerConfig { block_size, num_blocks, ..ROOMY });
        let prompt = prompt(1, prompt_len);
        bench.submit(0, &prompt, 200);
        bench.submit(1, &[500], 1);
        bench.finish();
        // The last token needs no slot of its own.
        let room = block_size * num_blocks + 1 - prompt_len;
        let ended = bench.ended(0);
        assert_eq!((&ended.tokens, ended.reason), (&answer(&prompt, room), FinishReason::Length));
        assert_eq!(bench.ended(1).tokens, answer(&[500], 1));
    };
    check(1, 1, 2);
    check(3, 4, 1);
    check(7, 4, 2);
    check(2, 3, 9);
}

#[test]
fn the_context_ends_an_answer_with_length() {
    let clock = ManualClock::new();
    let mut bench = Bench::new(&clock, SchedulerConfig { max_model_len: 10, ..ROOMY });
    bench.submit(0, &prompt(1, 6), 100);
    bench.finish();
    assert_eq!(bench.ended(0).tokens, answer(&prompt(1, 6), 4));
    assert_eq!(bench.ended(0).reason, FinishReason::Length);
}

#[test]
fn an_end_token_ends_the_answer_is_counted_and_can_be_ignored() {
    let prompt = prompt(1, 5);
    let whole = answer(&prompt, 10);
    let check = |ignore_eos: bool, expected: &[u32], reason: FinishReason| {
        let clock = ManualClock::new();
        let mut bench = Bench::with_eos(&clock, ROOMY, &[whole[3]]);
        let params = SamplingParams { max_tokens: 10, ignore_eos, ..SamplingParams::default() };
        bench.submit_with(0, &prompt, params);
        bench.finish();
        let ended = bench.ended(0);
        assert_eq!((ended.tokens.as_slice(), ended.reason), (expected, reason));
        assert_eq!(ended.timeline.tokens().generated as usize, expected.len());
    };
    check(false, &whole[..4], FinishReason::Stop);
    check(true, &whole, FinishReason::Length);
}

#[test]
fn answers_flow_on_while_a_long_prompt_goes_in_by_chunks() {
    let clock = ManualClock::new();
    let mut bench = Bench::new(&clock, SchedulerConfig { max_batch_tokens: 8, ..ROOMY });
    bench.submit(0, &[1, 2], 40);
    bench.step().expect("no failure was injected");
    bench.submit(1, &prompt(100, 60), 2);
    bench.finish();
    let chunked: Vec<_> = bench.steps.iter().filter(|step| given_to_1(step) > 0).collect();
    let chunks: Vec<u32> = chunked.iter().map(|step| step.prefill[0].1).collect();
    assert_eq!(chunks, [7, 7, 7, 7, 7, 7, 7, 7, 4]);
    assert!(chunked.iter().all(|step| step.decode_rows == 1));
    let steps: Vec<u64> = (0..40).collect();
    assert_eq!(bench.ended(0).timeline.token_step(), steps, "a token in every step");
    assert_eq!(bench.ended(0).timeline.decode().map(|d| (d.compute, d.stall)), Some((39, 0)));
    assert_eq!(bench.ended(1).engine_parts().prefill.compute, 9);
}

fn sum_of_leaves(value: &Value) -> u64 {
    match value {
        Value::Object(map) => map.values().map(sum_of_leaves).sum(),
        leaf => leaf.as_u64().expect("parts are integers"),
    }
}

#[test]
fn the_json_of_a_timeline_sums_up_for_whoever_reads_it() {
    let clock = ManualClock::new();
    let mut bench = Bench::new(&clock, TIGHT);
    bench.submit(0, &prompt(1, 2), 14);
    let labels = RequestLabels {
        id: "cmpl-1#0".into(),
        request_id: "abc".into(),
        route: "/v1/completions".into(),
        ..RequestLabels::default()
    };
    let params = SamplingParams { max_tokens: 3, ..SamplingParams::default() };
    bench.engine.submit_labelled(request(1, &prompt(100, 9), params, clock.now()), labels);
    bench.finish();
    let timeline = &mut bench.ended.get_mut(&RequestId(1)).expect("it ended").timeline;
    let first_token = timeline.stamps().first_token.expect("it was answered");
    timeline.first_text(first_token + 1);
    timeline.first_write(first_token + 3);
    timeline.last_write(first_token + 50);
    timeline.seal().expect("sums are exact");
    let json = serde_json::to_value(&*timeline).expect("a timeline is JSON");
    assert_eq!(json["schema"], "firstlight.timeline/1");
    assert_eq!((&json["id"], &json["request_id"]), (&Value::from("cmpl-1#0"), &Value::from("abc")));
    assert_eq!((&json["engine_id"], &json["finish_reason"]), (&Value::from(1), &Value::from("length")));
    assert_eq!(json["model"]["name"], "scripted");
    let stamp = |name: &str| json["stamps"][name].as_u64().expect("an instant");
    assert_eq!(sum_of_leaves(&json["parts"]), json["parts_total"].as_u64().expect("a sum"));
    assert_eq!(json["parts_total"], json["ttft"]);
    assert_eq!(json["ttft"], stamp("first_write") - stamp("received"));
    assert_eq!(json["engine_ttft"], stamp("first_token") - stamp("created"));
    assert_eq!(json["e2e"], stamp("last_write") - stamp("received"));
    assert_eq!(sum_of_leaves(&json["decode"]), stamp("finished") - stamp("first_token"));
    assert_eq!(json["parts"]["transport"], serde_json::json!({"hold": 1, "write": 2}));
    let names: Vec<_> = json["parts"].as_object().into_iter().flatten().map(|(name, _)| name).collect();
    let expected = ["gateway", "route", "preparation", "inbox", "queue_wait", "requeue", "lost_prefill"];
    assert_eq!(names[..7], expected);
    assert_eq!(names[7..], ["prefill", "transport"]);
    assert_eq!(json["residency"][0], serde_json::json!(["inbox", stamp("created"), stamp("queued")]));
    assert_eq!(json["tokens"]["generated"], 3);
    assert!(json["attempts"][0].as_object().is_some_and(|attempt| attempt.len() == 4));
    // What was never reached is absent, not null and not 0.
    bench.submit(2, &[], 1);
    bench.finish();
    let json = serde_json::to_value(&bench.ended(2).timeline).expect("a timeline is JSON");
    assert_eq!(json["stamps"].as_object().map(|stamps| stamps.len()), Some(8));
    assert_eq!(json["finish_detail"], "the prompt is empty; give at least one token");
    assert!(json.get("broken").is_none() && json.get("ttft").is_none() && json.get("decode").is_none());
    assert_eq!(sum_of_leaves(&json["parts"]), json["parts_total"].as_u64().expect("a sum"));
}

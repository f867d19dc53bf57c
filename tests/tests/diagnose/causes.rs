//! Symptoms caused behind the door: queue and prefill, one client, the prefix cache, the host, evictions.

use std::sync::Arc;

use firstlight_engine::report::ReportWindow;
use firstlight_engine::report::diagnose::{Asked, Conditions, Diagnosis, Observed, RULES, Silence};
use firstlight_engine::timeline::{RequestTimeline, StepRecord, StepRing, TimelineRecord};
use serde_json::{Value, json};

use super::command::diagnose_json;
use super::{answered, completion, diagnose, finding, ids, kept, says, stages, wait_for};
use crate::serve::server::{Server, wait_until};

/// Requests of a healthy run: enough for two windows of it.
const HEALTHY: u32 = 26;
/// Those of others.
const FEW: u32 = 13;
/// Those that come at once: enough that most of them wait beyond chance.
const BURST: u32 = 24;

/// Every second request of the last `HEALTHY` against the others: the same machine at the same time.
fn check_halves_of(server: &Server) {
    let list = |path: String, name: &str| server.get(&path).1[name].clone();
    let records: Vec<TimelineRecord> =
        serde_json::from_value(list(format!("/v1/timelines?last={HEALTHY}"), "timelines"))
            .expect("timelines");
    let steps: Vec<StepRecord> =
        serde_json::from_value(list("/v1/steps?last=4096".into(), "steps")).expect("steps");
    let steps: StepRing = steps.into_iter().collect();
    let half = |parity: usize| {
        let mut window = ReportWindow::default();
        for record in records.iter().skip(parity).step_by(2) {
            let timeline = RequestTimeline::recall(record).expect("it keeps every rule");
            window.push(Arc::new(timeline)).expect("it is sealed");
        }
        window
    };
    let (even, odd, conditions) = (half(0), half(1), Conditions::default());
    let observed = |window| Observed { window, steps: &steps, conditions: &conditions };
    let asked = Asked { worse_answers: true, client: None };
    let diagnosis = Diagnosis::of(observed(&even), Some(observed(&odd)), asked);
    // Somebody says that the answers are worse, and no figure moved.
    let found: Vec<&str> = diagnosis.findings.iter().map(|finding| finding.stage.name()).collect();
    assert_eq!(found, ["chat template"], "{diagnosis:#?}");
    assert!(diagnosis.findings[0].look_at.contains("POST /tokenize"));
    let moved = diagnosis.checked.iter().filter(|checked| checked.outcome != Silence::Nothing);
    // Alone at a time nobody's step is another's: there is nothing else that it could not look at.
    assert_eq!(moved.count(), 0, "{:#?}", diagnosis.checked);
}

#[test]
fn queue_and_prefill_are_told_apart_and_a_healthy_run_sets_nothing_off() {
    let server = Server::start(&["--slots", "2", "--max-model-len", "1024"]);
    for number in 0..HEALTHY {
        answered(&server, &ids(number, 10), 4);
    }
    let mut count = HEALTHY as usize;
    wait_for(&server, count);
    let healthy = diagnose(&server, "");
    assert_eq!(stages(&healthy), Vec::<&str>::new(), "{healthy:#}");
    assert_eq!(healthy["checked"].as_array().map(Vec::len), Some(RULES.len()));
    check_halves_of(&server);
    let (_folder, before) = kept(&server, count);

    // The same, with longer prompts.
    for number in 0..FEW {
        answered(&server, &ids(100 + number, 50), 4);
    }
    count += FEW as usize;
    wait_for(&server, count);
    let diagnosis = diagnose(&server, &format!("last={FEW}&baseline_last={HEALTHY}"));
    assert_eq!(stages(&diagnosis).first(), Some(&"prefill"), "{diagnosis:#}");
    assert!(!stages(&diagnosis).contains(&"queue"), "{diagnosis:#}");
    let found = finding(&diagnosis, "prefill");
    says(found, "longer prompts");
    says(found, "prompt, mean: 50 tokens (earlier 10 tokens)");

    // As short as ever, and more at once than there are slots.
    std::thread::scope(|scope| {
        for number in 0..BURST {
            let server = &server;
            scope.spawn(move || answered(server, &ids(200 + number, 10), 4));
        }
    });
    count += BURST as usize;
    wait_for(&server, count);
    let earlier = before.to_string_lossy().into_owned();
    let diagnosis = diagnose_json(&[&server.address, "--last", &BURST.to_string(), "--baseline", &earlier]);
    assert_eq!(stages(&diagnosis).first(), Some(&"queue"), "{diagnosis:#}");
    assert!(!stages(&diagnosis).contains(&"prefill"), "{diagnosis:#}");
    says(finding(&diagnosis, "queue"), "because the batch was full");
    // The other way round nothing is worse.
    let diagnosis = diagnose_json(&[&earlier, "--baseline", &server.address]);
    assert_eq!(stages(&diagnosis), Vec::<&str>::new(), "{diagnosis:#}");
    // One window alone says so too, and no figure but the queue's did move.
    let alone = diagnose(&server, &format!("last={BURST}&worse_answers=true"));
    assert_eq!(stages(&alone), ["queue"], "{alone:#}");

    one_client_pastes(&server, count);
}

/// A prompt of 240 tokens among short ones.
fn one_client_pastes(server: &Server, count: usize) {
    std::thread::scope(|scope| {
        for number in 0..FEW {
            if number == 4 {
                scope.spawn(|| answered(server, &ids(300, 240), 2));
            }
            answered(server, &ids(301 + number, 10), 4);
        }
    });
    wait_for(server, count + FEW as usize + 1);
    let diagnosis = diagnose(server, &format!("last={}", FEW + 1));
    let found = finding(&diagnosis, "client_prefill");
    says(found, "1 of 14 prompts have 4 times the median of 10 tokens");
    says(found, "theirs: 240 tokens");
    assert!(!stages(&diagnosis).contains(&"prefix_cache"), "lengths are no hits: {diagnosis:#}");
}

#[test]
fn a_lost_prefix_and_a_busy_host_are_named() {
    let server = Server::start(&["--slots", "2"]);
    let system = ids(1, 64);
    let ask = |head: &[u32], number: u32| {
        answered(&server, &[head, &system, &ids(number, 4)].concat(), 3);
    };
    ask(&[], 10);
    (0..FEW).for_each(|number| ask(&[], 20 + number));
    // A clock at the head of the same prompt.
    (0..FEW).for_each(|number| ask(&ids(40 + number, 3), 20 + number));
    wait_for(&server, 1 + 2 * FEW as usize);
    let diagnosis = diagnose(&server, &format!("last={FEW}&baseline_last={FEW}"));
    assert_eq!(stages(&diagnosis).first(), Some(&"prefill"), "{diagnosis:#}");
    says(finding(&diagnosis, "prefill"), "lost prefix hits");
    // Both kinds in one window.
    let diagnosis = diagnose(&server, &format!("last={}", 2 * FEW));
    assert_eq!(stages(&diagnosis), ["prefix_cache"], "{diagnosis:#}");
    let found = finding(&diagnosis, "prefix_cache");
    assert_eq!(found["certainty"], "certain", "{found:#}");

    // Texts that take seconds to be tokenised, for nothing, and everybody else behind them.
    let text: String = (0..70_000).map(|n| format!("w{} ", n % 9973)).collect();
    let long = json!({ "model": "smollm2-135m-instruct", "prompt": text, "max_tokens": 1 });
    std::thread::scope(|scope| {
        let pasted: Vec<_> =
            (0..4).map(|_| server.begin("/v1/completions", &["connection: close"], &long)).collect();
        wait_until("they are being prepared", || server.get("/health").1["open"] == 4);
        for number in 0..FEW {
            let server = &server;
            scope.spawn(move || answered(server, &ids(60 + number, 6), 2));
        }
        drop(pasted.into_iter().map(read_whole).collect::<Vec<_>>());
    });
    wait_for(&server, 1 + 3 * FEW as usize + 4);
    let diagnosis = diagnose(&server, &format!("last={}", FEW + 4));
    assert_eq!(stages(&diagnosis).first(), Some(&"host"), "{diagnosis:#}");
    says(finding(&diagnosis, "host"), "preparation workers");
}

fn read_whole(mut socket: std::net::TcpStream) -> Vec<u8> {
    let mut bytes = Vec::new();
    std::io::Read::read_to_end(&mut socket, &mut bytes).expect("the answer is whole");
    bytes
}

#[test]
fn a_pool_that_is_too_small_is_named_with_what_it_costs() {
    let line = ["--slots", "4", "--block-size", "8", "--kv-blocks", "14", "--max-model-len", "96"];
    let server = Server::start(&[&line[..], &["--prefix-cache", "off"]].concat());
    let ask_all = |first: u32, max_tokens: u32| {
        std::thread::scope(|scope| {
            for number in 0..4 {
                let server = &server;
                scope.spawn(move || answered(server, &ids(first + number, 12), max_tokens));
            }
        });
    };
    // Four that fit, then four that outgrow the pool.
    ask_all(0, 4);
    ask_all(10, 44);
    wait_for(&server, 8);
    let diagnosis = diagnose(&server, "last=4&baseline_last=4");
    assert_eq!(stages(&diagnosis).first(), Some(&"preemption"), "{diagnosis:#}");
    let found = finding(&diagnosis, "preemption");
    says(found, "of 4 requests evicted");
    says(found, "(earlier 0 of 4 requests evicted");
    let fitted = server.get("/v1/diagnose?last=4&baseline_last=4").1;
    assert_eq!(fitted, diagnosis, "the same window gives the same diagnosis");
    let body = completion(&ids(90, 4), 2);
    assert_eq!(server.post("/v1/completions", &body).0, 200);
    for (query, part) in
        [("last=x", "last"), ("baseline_last=-1", "baseline_last"), ("worse_answers=2", "worse_answers")]
    {
        let (status, answer): (u16, Value) = server.get(&format!("/v1/diagnose?{query}"));
        assert_eq!((status, &answer["error"]["param"]), (400, &json!(part)), "{answer}");
    }
}

//! Many clients at once: all are answered as if they were alone, a full queue is an answer, and the books agree.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::time::Instant;

use firstlight_tests::TestRng;
use serde_json::{Value, json};

use super::server::{Answer, Server, chat_body, post_text, wait_until};
use crate::cli::answers::check_sums;

const CLIENTS: usize = 64;
/// Clients that go away at a moment of their own.
const VANISHING: usize = 200;

fn question(n: usize) -> String {
    format!(
        "{} {}",
        ["Name a colour.", "What is a lake?", "Say hello.", "Count to five."][n % 4],
        "Be brief. ".repeat(n % 5)
    )
}

/// How many tokens client `n` asks for.
fn limit(n: usize) -> usize {
    2 + n % 7
}

fn body(n: usize, max_tokens: usize) -> Value {
    let more = json!({
        "stream": true, "max_tokens": max_tokens, "firstlight": { "trace": true },
        "stream_options": { "include_usage": true },
    });
    chat_body(&question(n), &more)
}

/// An answer as its client saw it.
struct Seen {
    answer: Answer,
    /// From before the connection was made to the first content, in nanoseconds; the server's must lie within.
    ttft: u64,
    /// To the last byte.
    took: u64,
}

/// Asks as client `n`, over a connection of its own, and looks at the clock as its bytes come.
fn ask(server: &Server, n: usize) -> Seen {
    let began = Instant::now();
    let elapsed = || u64::try_from(began.elapsed().as_nanos()).expect("no test lasts that long");
    let agent = ureq::Agent::new_with_config(ureq::Agent::config_builder().max_idle_connections(0).build());
    let response = agent.post(server.url("/v1/chat/completions")).content_type("application/json");
    let mut response = response.send(body(n, limit(n)).to_string()).expect("there is an answer");
    let mut reader = response.body_mut().as_reader();
    let (mut bytes, mut piece, mut ttft) = (Vec::new(), [0; 4096], None);
    loop {
        let len = reader.read(&mut piece).expect("the stream goes on");
        if len == 0 {
            break;
        }
        bytes.extend_from_slice(&piece[..len]);
        // The opening chunk of a chat has a content too, an empty one, which is nothing to read.
        let text = String::from_utf8_lossy(&bytes);
        if ttft.is_none() && text.replace("\"content\":\"\"", "").contains("\"content\":\"") {
            ttft = Some(elapsed());
        }
    }
    drop(reader);
    let answer = Answer { status: response.status().as_u16(), headers: Vec::new(), body: bytes };
    Seen { answer, ttft: ttft.expect("an answer has content"), took: elapsed() }
}

fn ids(answer: &Value) -> Vec<Value> {
    answer["firstlight"]["token_ids"].as_array().expect("a traced answer has its ids").clone()
}

#[test]
fn sixty_four_streams_on_four_slots_are_answered_as_if_alone_and_the_books_agree() {
    let server = Server::start(&["--slots", "4"]);
    let live = server.live();
    let live = std::thread::spawn(move || {
        live.take(CLIENTS).map(|timeline| timeline["id"].to_string()).collect::<Vec<_>>()
    });
    let answers: Vec<Seen> = std::thread::scope(|scope| {
        let client = |n: usize| {
            let server = &server;
            scope.spawn(move || ask(server, n))
        };
        let clients: Vec<_> = (0..CLIENTS).map(client).collect();
        clients.into_iter().map(|client| client.join().expect("a client does not panic")).collect()
    });
    wait_until("all are in the book", || server.get("/v1/report").1["n"] == CLIENTS);
    let mut seen = live.join().expect("the listener does not panic");
    assert_eq!(seen.len(), CLIENTS, "the live stream tells every timeline");
    seen.sort();
    seen.dedup();
    assert_eq!(seen.len(), CLIENTS, "and each once");
    let (mut prompt, mut generated, mut transport) = (0, 0, Vec::new());
    for (n, Seen { answer, ttft, took }) in answers.iter().enumerate() {
        assert_eq!(answer.status, 200, "{n}");
        let last = answer.events().pop().expect("a stream has a last event");
        let id = last["id"].as_str().expect("an answer has an id");
        let timeline = &server.timelines(&format!("{id}%230"))[0];
        check_sums(timeline);
        let of_server = timeline["ttft"].as_u64().expect("an answer has a first write");
        assert!(of_server <= *ttft, "{n}: no client sees its first content before the server wrote it");
        transport.push(ttft - of_server);
        assert!(timeline["e2e"].as_u64() <= Some(*took));
        prompt += last["usage"]["prompt_tokens"].as_u64().expect("a count");
        generated += last["usage"]["completion_tokens"].as_u64().expect("a count");
    }
    transport.sort_unstable();
    let micros = |ns: u64| ns as f64 / 1e3;
    println!(
        "client's TTFT less the server's, {CLIENTS} streams: {:.0} us in the middle, {:.0} at most",
        micros(transport[CLIENTS / 2]),
        micros(transport[CLIENTS - 1])
    );
    let (_, report) = server.get("/v1/report");
    let count = |name: &str| report["tokens"][name].as_u64();
    assert_eq!((count("prompt"), count("generated")), (Some(prompt), Some(generated)));
    assert_eq!((&report["refused_broken"], &report["n_answered"]), (&json!(0), &json!(CLIENTS)));
    check_metrics(&server, prompt, generated);
    check_against_alone(&server, &answers);
}

/// Each question asked once more with nobody beside it, for as many tokens as any client wanted: greedy ids of a shorter
/// answer are the beginning of a longer one's.
fn check_against_alone(server: &Server, answers: &[Seen]) {
    let mut alone: BTreeMap<String, Vec<Value>> = BTreeMap::new();
    for (n, Seen { answer, .. }) in answers.iter().enumerate() {
        let longest = alone.entry(question(n)).or_insert_with(|| {
            let mut body = body(n, 8);
            body["stream"] = false.into();
            body.as_object_mut().map(|fields| fields.remove("stream_options"));
            ids(&server.post("/v1/chat/completions", &body).1)
        });
        let ids = ids(&answer.events().pop().expect("a stream has a last event"));
        let expected = &longest[..limit(n).min(longest.len())];
        assert_eq!(ids, expected, "{n}: the same as alone");
    }
    assert_eq!(alone.len(), 20, "the questions differ");
}

/// The counters say what the clients and the timelines say, to the nanosecond.
fn check_metrics(server: &Server, prompt: u64, generated: u64) {
    let answer = server.send(ureq::http::Request::get(server.url("/metrics")).body(Vec::new()));
    assert_eq!(answer.status, 200);
    let page = String::from_utf8(answer.body).expect("text");
    let sum = |series: &str, labels: &str| -> u64 {
        let of = |line: &str| line.starts_with(&format!("{series}{{")) && line.contains(labels);
        page.lines().filter(|line| of(line)).filter_map(|line| nanos(line.rsplit_once(' ')?.1)).sum()
    };
    let whole = |series: &str, labels: &str| sum(series, labels) / 1_000_000_000;
    assert_eq!(whole("firstlight_request_success_total", ""), CLIENTS as u64);
    assert_eq!(whole("firstlight_time_to_first_token_seconds_count", ""), CLIENTS as u64);
    assert_eq!(whole("firstlight_prompt_tokens_total", ""), prompt);
    assert_eq!(whole("firstlight_generation_tokens_total", ""), generated);
    assert_eq!(whole("firstlight_timelines_broken_total", ""), 0);
    let streams = whole("firstlight_http_requests_total", "route=\"/v1/chat/completions\",status=\"200\"");
    assert_eq!(streams, CLIENTS as u64);
    let (_, all) = server.get("/v1/timelines?last=1000");
    let timelines = all["timelines"].as_array().expect("a list");
    let total = |field: &str| timelines.iter().filter_map(|timeline| timeline[field].as_u64()).sum::<u64>();
    assert_eq!(sum("firstlight_ttft_part_seconds_sum", ""), total("parts_total"));
    assert_eq!(sum("firstlight_time_to_first_token_seconds_sum", ""), total("ttft"));
    assert_eq!(sum("firstlight_e2e_request_latency_seconds_sum", ""), total("e2e"));
}

/// A decimal number times 10^9, exactly.
fn nanos(text: &str) -> Option<u64> {
    let (whole, fraction) = text.split_once('.').unwrap_or((text, ""));
    Some(whole.parse::<u64>().ok()? * 1_000_000_000 + format!("{fraction:0<9}").parse::<u64>().ok()?)
}

#[test]
fn a_full_queue_is_an_answer_and_clients_that_vanish_anywhere_leave_nothing_behind() {
    let server = Server::start(&["--slots", "1", "--max-waiting", "4"]);
    check_full_queue(&server);
    check_random_vanishing(&server);
    let answer = server.chat("hi", &json!({ "max_tokens": 2 }));
    assert_eq!(answer.status, 200);
}

fn check_full_queue(server: &Server) {
    let long = json!({ "max_tokens": 4000, "stream": true, "ignore_eos": true });
    let body = chat_body("Tell me a story.", &long);
    let begin = || server.begin("/v1/chat/completions", &[], &body);
    let running = begin();
    wait_until("it runs", || server.get("/v1/steps?last=1").1["steps"][0]["decode_rows"] == 1);
    let waiting: Vec<_> = (0..4).map(|_| begin()).collect();
    wait_until("four wait", || server.get("/v1/steps?last=1").1["steps"][0]["waiting"] == 4);
    let refused = server.chat("hi", &json!({}));
    assert_eq!((refused.status, &refused.json()["error"]["type"]), (429, &json!("rate_limit_error")));
    assert!(refused.header("retry-after").is_some());
    let id = refused.header("x-request-id").expect("it has an id");
    assert_eq!(server.timelines(id)[0]["finish_reason"], "rejected");
    let many = server.chat("hi", &json!({ "n": 5 }));
    assert_eq!((many.status, &many.json()["error"]["code"]), (400, &json!("too_many_choices")), "never fits");
    drop((running, waiting));
    wait_until("nobody is left", || server.is_idle());
}

/// Clients that go away before the head ends, in the body, in the queue, in the answer.
fn check_random_vanishing(server: &Server) {
    let mut rng = TestRng::new(7);
    for round in 0..VANISHING / 8 {
        let sockets: Vec<_> = (0..8)
            .map(|_| {
                let more = json!({ "max_tokens": 8, "stream": rng.below(2) == 0, "ignore_eos": true });
                let body = chat_body(&"word ".repeat(rng.below(60)), &more);
                let all = post_text("/v1/chat/completions", &[], &body);
                let sent = match rng.below(4) {
                    0 => rng.below(all.len()),
                    _ => all.len(),
                };
                let mut socket = server.connect();
                socket.write_all(&all.as_bytes()[..sent]).expect("it is sent");
                if sent == all.len() && rng.below(3) == 0 {
                    // A few bytes of an answer, or of a refusal.
                    let _ = socket.read(&mut [0; 16]);
                }
                socket
            })
            .collect();
        drop(sockets);
        wait_until("nobody is left", || server.is_idle());
        let (_, report) = server.get("/v1/report");
        assert_eq!(report["refused_broken"], 0, "round {round}");
    }
    let (_, all) = server.get("/v1/timelines?last=1024");
    let timelines = all["timelines"].as_array().expect("a list");
    timelines.iter().for_each(check_sums);
    let after = |timeline: &Value| timeline["tokens"]["after_disconnect"].as_u64().unwrap_or(0);
    assert!(timelines.iter().all(|timeline| after(timeline) <= 1), "the step that ran, and no more");
    let ended = server.metric("firstlight_request_success_total", "") as usize;
    assert_eq!(ended, timelines.len(), "each is counted once");
    assert!(timelines.len() > VANISHING / 2, "most had sent all: {}", timelines.len());
}

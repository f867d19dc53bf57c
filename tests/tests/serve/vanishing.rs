//! Clients that go away, and clients that stop reading: their slots come free, and nobody else notices.

use std::io::Read;
use std::net::TcpStream;

use serde_json::{Value, json};

use super::server::{Server, chat_body, wait_until};
use crate::cli::answers::check_sums;

/// Sends a chat on a connection of its own, under this request id.
fn begin(server: &Server, id: &str, more: &Value) -> TcpStream {
    let body = chat_body("Tell me a long story about the sea.", more);
    server.begin("/v1/chat/completions", &[&format!("x-request-id: {id}")], &body)
}

fn open(server: &Server) -> u64 {
    server.get("/health").1["open"].as_u64().expect("health counts what is under way")
}

/// Reads until this much of the stream has come.
fn read_until(socket: &mut TcpStream, part: &str) {
    let (mut text, mut piece) = (String::new(), [0; 1024]);
    while !text.contains(part) {
        let len = socket.read(&mut piece).expect("the stream goes on");
        assert!(len > 0, "the stream ended before {part:?}: {text}");
        text.push_str(&String::from_utf8_lossy(&piece[..len]));
    }
}

#[test]
fn whoever_goes_away_frees_the_slot_and_is_counted_once() {
    let server = Server::start(&["--slots", "2"]);
    let long = json!({ "max_tokens": 4000, "stream": true, "ignore_eos": true });
    let whole = json!({ "max_tokens": 4000, "ignore_eos": true });
    // Two hold the slots, in the middle of their answers; the rest wait, streamed and whole.
    let mut talking: Vec<TcpStream> =
        (0..2).map(|n| begin(&server, &format!("talking-{n}"), &long)).collect();
    talking.iter_mut().for_each(|socket| read_until(socket, "\"content\":\""));
    let waiting: Vec<TcpStream> = (0..6)
        .map(|n| begin(&server, &format!("waiting-{n}"), if n % 2 == 0 { &long } else { &whole }))
        .collect();
    wait_until("all are under way", || open(&server) == 8);
    // Those who wait go first; the others notice nothing.
    drop(waiting);
    wait_until("who waited is gone", || open(&server) == 2);
    talking.iter_mut().for_each(|socket| read_until(socket, "\"content\":\""));
    // One that is answered whole goes away in the middle of its answer.
    drop(talking.pop());
    wait_until("a slot is free", || open(&server) == 1);
    let unseen = begin(&server, "whole", &whole);
    wait_until("it runs", || {
        let steps = server.get("/v1/steps?last=1").1;
        steps["steps"][0]["decode_rows"] == 2
    });
    drop(unseen);
    drop(talking);
    wait_until("nobody is left", || server.is_idle());
    let ids = (0..2).map(|n| format!("talking-{n}")).chain((0..6).map(|n| format!("waiting-{n}")));
    for id in ids.chain(["whole".to_owned()]) {
        let timelines = server.timelines(&id);
        assert_eq!(timelines.len(), 1, "{id} is in the book once");
        let timeline = &timelines[0];
        assert_eq!(timeline["finish_reason"], "disconnected", "{id}");
        check_sums(timeline);
        // The step that ran while it went, and none after it.
        assert!(timeline["tokens"]["after_disconnect"].as_u64() <= Some(1), "{timeline:#}");
        if id.starts_with("waiting") {
            assert_eq!(timeline["tokens"]["generated"], 0, "{id} never had a slot");
        }
    }
    let (_, steps) = server.get("/v1/steps?last=1");
    assert_eq!(steps["steps"][0]["blocks_total"].as_u64().map(|n| n > 0), Some(true));
    let (_, report) = server.get("/v1/report");
    assert_eq!((&report["n"], &report["finish_reasons"]["disconnected"]), (&json!(9), &json!(9)));
    assert_eq!(report["refused_broken"], 0);
    // Seven went before their answers began, the two that talked had a 200.
    let answers = |status: &str| {
        let labels = format!("route=\"/v1/chat/completions\",status=\"{status}\"");
        server.metric("firstlight_http_requests_total", &labels)
    };
    assert_eq!((answers("499"), answers("200")), (7.0, 2.0));
    check_slow_reader(&server);
}

/// One that does not read its stream holds up nobody, and its answer is whole once it reads.
fn check_slow_reader(server: &Server) {
    let more = json!({ "max_tokens": 60, "stream": true, "ignore_eos": true });
    let mut slow = begin(server, "slow", &more);
    let quick = server.chat("Say hi.", &json!({ "stream": true }));
    assert!(!quick.streamed_text().is_empty());
    let timeline = &server.timelines("slow")[0];
    assert_eq!(timeline["finish_reason"], "length", "sixty chunks fit into the system's own buffers");
    read_until(&mut slow, "data: [DONE]");
}

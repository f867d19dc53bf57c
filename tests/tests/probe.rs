//! `firstlight probe`: what it says of our own server, of others, and of what is no server at all.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};

use serde_json::{Value, json};

use crate::cli::{Ended, Scratch, end, firstlight, sentences};
use crate::serve::server::Server;

/// Runs it with these words.
pub fn probe(line: &[&str]) -> Ended {
    let words: Vec<&str> = ["probe"].into_iter().chain(line.iter().copied()).collect();
    end(&mut firstlight(&Scratch::new(), &words))
}

/// Its result as JSON, which must be all of stdout.
pub fn probe_json(address: &str, line: &[&str]) -> Value {
    let words: Vec<&str> = [address, "--json"].into_iter().chain(line.iter().copied()).collect();
    let ended = probe(&words);
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    serde_json::from_str(&ended.stdout).expect("the result is one JSON value")
}

#[test]
fn our_own_server_is_measured_to_the_nanosecond_and_streams() {
    let server = Server::start(&["--slots", "2", "--replica", "alone"]);
    let report =
        probe_json(&server.address, &["--requests", "3", "--concurrency", "2", "--max-tokens", "40"]);
    assert_eq!(
        (&report["answered"], &report["verdict"]["kind"]),
        (&json!(3), &json!("streamed")),
        "{report:#}"
    );
    assert_eq!((&report["impossible"], &report["unsummed"]), (&json!(0), &json!(0)));
    assert_eq!(report["replicas"], json!({ "alone": 3 }));
    for answer in report["answers"].as_array().expect("a list") {
        let ns =
            |value: &Value| value.as_u64().unwrap_or_else(|| panic!("{value} is no duration: {answer:#}"));
        assert_eq!(ns(&answer["ttft"]), ns(&answer["server"]["ttft"]) + ns(&answer["between"]));
        let id = answer["request_id"].as_str().expect("our server names its requests");
        let timeline = &server.timelines(id)[0];
        assert_eq!(timeline["ttft"], answer["server"]["ttft"], "as the book has it");
        assert_eq!(timeline["tokens"]["generated"], answer["tokens"]);
    }
    let ended = probe(&[&server.url("/v1"), "--requests", "1", "--max-tokens", "3"]);
    assert_eq!((ended.code, ended.stderr.as_str()), (Some(0), ""));
    for part in [
        "TTFT at the server",
        "the median one, from alone: TTFT",
        "+ network and proxies",
        "too short to tell",
    ] {
        assert!(ended.stdout.contains(part), "{part:?} is not in\n{}", ended.stdout);
    }
    let ended = probe(&[&server.address, "--model", "gpt-0"]);
    check_failed(&ended, &["answered 404", "gpt-0"]);
}

fn check_failed(ended: &Ended, parts: &[&str]) {
    assert_eq!((ended.code, ended.stdout.as_str()), (Some(1), ""), "{}", ended.stderr);
    assert_eq!(sentences(ended).len(), 1, "one sentence: {}", ended.stderr);
    for part in parts {
        assert!(ended.stderr.contains(part), "{part:?} is not in {}", ended.stderr);
    }
}

/// Answers every connection by what `answer` writes, given the request's head and body, until the test ends.
fn serve(answer: impl Fn(&str, &mut TcpStream) -> std::io::Result<()> + Send + 'static) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").expect("there is a free port");
    let address = listener.local_addr().expect("it has an address").to_string();
    std::thread::spawn(move || {
        for mut socket in listener.incoming().map_while(Result::ok) {
            let request = read_request(&mut socket);
            // A client that has heard enough goes away.
            let _ = answer(&request, &mut socket);
        }
    });
    address
}

fn read_request(socket: &mut TcpStream) -> String {
    let (mut bytes, mut piece) = (Vec::new(), [0; 4096]);
    loop {
        let text = String::from_utf8_lossy(&bytes).into_owned();
        if let Some((head, body)) = text.split_once("\r\n\r\n") {
            let head = head.to_lowercase();
            let length = head.split("content-length: ").nth(1).and_then(|rest| rest.lines().next());
            if body.len() >= length.and_then(|length| length.parse().ok()).unwrap_or(0) {
                return text;
            }
        }
        match socket.read(&mut piece) {
            Ok(0) | Err(_) => return text,
            Ok(count) => bytes.extend_from_slice(&piece[..count]),
        }
    }
}

fn whole(status: &str, kind: &str, body: &str) -> String {
    format!(
        "HTTP/1.1 {status}\r\ncontent-type: {kind}\r\ncontent-length: {}\r\nconnection: close\r\n\r\n{body}",
        body.len()
    )
}

const MODELS: &str = r#"{"object":"list","data":[{"id":"m"}]}"#;
const STREAM: &str = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n";

fn piece(text: &str) -> String {
    format!("data: {}\n\n", json!({ "choices": [{ "index": 0, "delta": { "content": text } }] }))
}

/// A server that lists a model and answers chats like this.
fn chats(answer: impl Fn(&str, &mut TcpStream) -> std::io::Result<()> + Send + 'static) -> String {
    serve(move |request, socket| match request.starts_with("GET /v1/models ") {
        true => socket.write_all(whole("200 OK", "application/json", MODELS).as_bytes()),
        false => answer(request, socket),
    })
}

#[test]
fn what_is_no_server_is_told_in_one_sentence() {
    let free = TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr());
    let closed = free.expect("there is a free port").to_string();
    check_failed(&probe(&[&closed]), &["cannot be reached", &closed, "check that a server listens there"]);
    let check_all = |answer: String, parts: &[&str]| {
        let address = serve(move |_, socket| socket.write_all(answer.as_bytes()));
        check_failed(&probe(&[&address]), parts);
        check_failed(&probe(&[&address, "--model", "m"]), &[&address]);
    };
    check_all(whole("200 OK", "text/html", "<html>hello</html>"), &["lists no model", "<html>"]);
    check_all(whole("500 Oh", "text/plain", "broken"), &["answered 500: broken"]);
    check_all(whole("503 No", "application/json", r#"{"error":{"message":"loading"}}"#), &["503: loading"]);
    check_all(
        whole("401 No", "application/json", r#"{"error":"a key is needed"}"#),
        &["401: a key is needed; give the key with --api-key"],
    );
    check_all(
        "HTTP/1.1 302 Go\r\nlocation: /x\r\ncontent-length: 0\r\n\r\n".into(),
        &["\"/x\"", "give that URL"],
    );
    check_all("\u{0}\u{1}garbage\r\n\r\n".into(), &["gave no answer"]);
    check_all(String::new(), &[]);
    check_all("HTTP/1.1 200 OK\r\ncontent-length: 999\r\n\r\n{".into(), &[]);
    check_all(format!("HTTP/1.1 200 OK\r\n{}", "x: y\r\n".repeat(100_000)), &[]);
    let plain = serve(|_, socket| socket.write_all(b"no TLS here"));
    check_failed(&probe(&[&format!("https://{plain}")]), &[&plain]);
    for url in ["", "ftp://x", "http://", "http://a b", "http://x:99999", "\u{1}"] {
        assert_eq!(probe(&[url]).code, Some(2), "{url:?}");
    }
}

#[test]
fn an_answer_that_is_none_is_told_and_an_endless_one_ends() {
    let check = |answer: fn(&mut TcpStream) -> std::io::Result<()>, parts: &[&str]| {
        let address = chats(move |_, socket| answer(socket));
        check_failed(&probe(&[&address, "--requests", "1", "--max-tokens", "4"]), parts);
    };
    check(
        |s| s.write_all(whole("200 OK", "text/html", "<p>hi").as_bytes()),
        &["no stream of events", "<p>hi"],
    );
    check(|s| s.write_all(whole("200 OK", "application/json", "{}").as_bytes()), &["no stream of events"]);
    check(|s| s.write_all(format!("{STREAM}{}", piece("a")).as_bytes()), &["cut the answer", "1 pieces"]);
    const CHUNKED: &str = "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nff\r\ndata: {\"cho";
    check(|s| s.write_all(CHUNKED.as_bytes()), &["cut the answer"]);
    check(|s| s.write_all(format!("{STREAM}data: {{oops\n\n").as_bytes()), &["no JSON"]);
    check(|s| s.write_all(format!("{STREAM}data: [DONE]\n\n").as_bytes()), &["without any text"]);
    check(
        |s| s.write_all(format!("{STREAM}data: {{\"error\":{{\"message\":\"full\"}}}}\n\n").as_bytes()),
        &["full"],
    );
    let endless = |socket: &mut TcpStream, words: &[u8]| {
        socket.write_all(STREAM.as_bytes())?;
        loop {
            socket.write_all(words)?;
        }
    };
    let address = chats(move |_, socket| endless(socket, piece("a").as_bytes()));
    check_failed(&probe(&[&address, "--requests", "1", "--max-tokens", "4"]), &["more than 64 pieces"]);
    let address = chats(move |_, socket| endless(socket, &[b'x'; 1 << 16]));
    check_failed(&probe(&[&address, "--requests", "1"]), &["a line of more than"]);
    let address = chats(move |_, socket| endless(socket, ": still here\n".repeat(1000).as_bytes()));
    check_failed(&probe(&[&address, "--requests", "1"]), &["more than", "bytes for one answer"]);
}

#[test]
fn a_strict_server_is_asked_again_and_without_its_own_word_there_is_a_suspicion_at_most() {
    let lump = format!("{}data: [DONE]\n\n", piece("word ").repeat(30));
    let address = chats(move |request, socket| {
        let refusal = whole("400 No", "application/json", r#"{"error":{"message":"unknown field"}}"#);
        match request.contains("\"firstlight\"") || request.contains("stream_options") {
            true => socket.write_all(refusal.as_bytes()),
            false => socket.write_all(format!("{STREAM}{lump}").as_bytes()),
        }
    });
    let report = probe_json(&address, &["--requests", "3"]);
    assert_eq!((&report["answered"], &report["server_ttft"]), (&json!(3), &Value::Null));
    let kind = report["verdict"]["kind"].as_str().expect("a word");
    assert!(["suspected", "unsuspicious"].contains(&kind), "{report:#}");
    // A timeline that is nonsense is no reason to fall over.
    let timeline = json!({
        "schema": "firstlight.timeline/1", "stamps": { "received": u64::MAX, "first_write": 1 }, "parts": { "a": u64::MAX },
        "parts_total": -1, "token_at": [0, "x", u64::MAX], "upstream_estimate_ns": i64::MIN,
    });
    let last = json!({ "choices": [], "firstlight": { "timeline": timeline } });
    let all = format!("{STREAM}{}data: {last}\n\ndata: [DONE]\n\n", piece("word ").repeat(30));
    let address = chats(move |_, socket| socket.write_all(all.as_bytes()));
    let ended = probe(&[&address, "--requests", "2"]);
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
}

#[test]
fn a_chat_that_fails_among_others_is_told_after_the_figures() {
    let count = std::sync::atomic::AtomicUsize::new(0);
    let all = format!("{STREAM}{}data: [DONE]\n\n", piece("word ").repeat(30));
    let address = chats(move |_, socket| {
        match count.fetch_add(1, std::sync::atomic::Ordering::AcqRel).is_multiple_of(2) {
            true => socket.write_all(all.as_bytes()),
            false => {
                socket.write_all(whole("429 No", "application/json", r#"{"error":"slowly"}"#).as_bytes())
            }
        }
    });
    let ended = probe(&[&address, "--requests", "4"]);
    assert_eq!(ended.code, Some(1));
    assert!(ended.stdout.contains("2 of 4 chats answered"), "{}", ended.stdout);
    assert!(
        ended.stderr.contains("2 of 4 chats failed") && ended.stderr.contains("429: slowly"),
        "{}",
        ended.stderr
    );
}

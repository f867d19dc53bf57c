//! What a server is sent that is no request, and requests that cannot be answered: the right status, and it lives on.

use std::io::{Read, Write};
use std::net::TcpStream;

use serde_json::{Value, json};

use super::server::{Answer, Server, chat_body, wait_until};

#[test]
fn nonsense_gets_its_status_and_the_server_lives() {
    let server = Server::start(&["--stall-limit", "2", "--max-connections", "24", "--max-model-len", "2048"]);
    check_refusals(&server);
    check_completion_refusals(&server);
    check_bodies(&server);
    check_paths(&server);
    check_bytes(&server);
    check_host(&server);
    check_half_open(&server);
    check_no_place();
    let answer = server.chat("hi", &json!({ "max_tokens": 2 }));
    assert_eq!(answer.status, 200, "after all that it answers");
    let (_, report) = server.get("/v1/report");
    assert_eq!(report["refused_broken"], 0);
}

/// An error in OpenAI's form, with this status, about this parameter, that says this.
fn check(answer: &Answer, status: u16, param: Option<&str>, part: &str) {
    let body = answer.json();
    assert_eq!(answer.status, status, "{body}");
    let error = &body["error"];
    assert_eq!(error["param"].as_str(), param, "{body}");
    assert!(error["message"].as_str().is_some_and(|message| message.contains(part)), "{part:?}: {body}");
    assert!(error["type"].is_string() && error.get("code").is_some(), "{body}");
    assert!(answer.header("x-request-id").is_some());
    assert_eq!(answer.header("retry-after").is_some(), [429, 503].contains(&status), "{body}");
}

fn check_refusals(server: &Server) {
    let refused = |more: Value, status: u16, param: &str, part: &str| {
        check(&server.chat("hi", &more), status, Some(param), part);
        let mut streamed = more;
        streamed["stream"] = true.into();
        check(&server.chat("hi", &streamed), status, Some(param), part);
    };
    refused(json!({ "model": "gpt-9" }), 404, "model", "smollm2-135m-instruct");
    refused(json!({ "temperature": -1 }), 400, "temperature", "0 to 100");
    refused(json!({ "temperature": 1e308 }), 400, "temperature", "0 to 100");
    refused(json!({ "temperature": "warm" }), 422, "temperature", "a number");
    refused(json!({ "top_p": 0 }), 400, "top_p", "above 0");
    refused(json!({ "min_p": 1.5 }), 400, "min_p", "0 to 1");
    refused(json!({ "top_k": -2 }), 400, "top_k", "-2");
    refused(json!({ "max_tokens": 0 }), 400, "max_tokens", "at least 1");
    refused(json!({ "max_tokens": -1 }), 400, "max_tokens", "-1");
    refused(json!({ "max_tokens": 1.5 }), 400, "max_tokens", "1.5");
    refused(json!({ "max_completion_tokens": 1e300 }), 400, "max_completion_tokens", "whole number");
    refused(json!({ "presence_penalty": [] }), 422, "presence_penalty", "a number");
    refused(json!({ "seed": "x" }), 422, "seed", "whole number");
    refused(json!({ "stop": [""] }), 400, "stop", "0 bytes");
    refused(json!({ "stop": 5 }), 422, "stop", "a string");
    refused(json!({ "top_logprobs": 3 }), 400, "top_logprobs", "logprobs");
    refused(json!({ "logprobs": true, "top_logprobs": 21 }), 400, "top_logprobs", "from 0 to 20");
    refused(json!({ "logit_bias": { "1": 500 } }), 400, "logit_bias", "-100 to 100");
    refused(json!({ "best_of": 2 }), 400, "best_of", "not supported");
    refused(json!({ "tools": [{}] }), 400, "tools", "not supported");
    refused(json!({ "response_format": { "type": "json_schema" } }), 400, "response_format", "text");
    refused(json!({ "guided_json": {} }), 400, "guided_json", "not supported");
    refused(json!({ "messages": [] }), 400, "messages", "empty");
    refused(json!({ "messages": null }), 400, "messages", "missing");
    refused(json!({ "messages": [{ "role": "user" }] }), 400, "messages", "no content");
    refused(
        json!({ "messages": [{ "role": "user", "content": [{ "type": "image_url" }] }] }),
        400,
        "messages",
        "image_url",
    );
    refused(json!({ "firstlight": { "deadline_ms": 0 } }), 400, "deadline_ms", "from 1");
    refused(json!({ "firstlight": { "priority": 101 } }), 400, "priority", "-100 to 100");
    refused(json!({ "firstlight": 1 }), 422, "firstlight", "an object");
    check(&server.chat("hi", &json!({ "stream_options": {} })), 400, Some("stream_options"), "stream");
    check(&server.chat("hi", &json!({ "stream": "yes" })), 422, Some("stream"), "true or false");
    let role = json!({ "messages": [{ "role": "us er", "content": "x" }] });
    check(&server.chat("hi", &role), 400, None, "the role of message 0");
    let late = server.chat("hi", &json!({ "firstlight": { "deadline_ms": 1 }, "max_tokens": 400 }));
    check(&late, 408, None, "deadline_ms");
    let long = server.chat(&"word ".repeat(3000), &json!({}));
    check(&long, 400, None, "the context holds 2048");
    assert_eq!(long.json()["error"]["code"], "context_length_exceeded");
    let longer = server.chat(&"word ".repeat(300_000), &json!({ "stream": true }));
    check(&longer, 400, None, "2048 tokens");
    assert_eq!(longer.json()["error"]["code"], "context_length_exceeded");
}

fn check_completion_refusals(server: &Server) {
    let refused = |body: Value, status: u16, param: Option<&str>, part: &str| {
        check(&server.post_bytes("/v1/completions", body.to_string().into_bytes()), status, param, part);
    };
    refused(json!({}), 400, Some("prompt"), "missing");
    refused(json!({ "prompt": [] }), 400, Some("prompt"), "empty");
    refused(json!({ "prompt": {} }), 422, Some("prompt"), "a string");
    refused(json!({ "prompt": [1, "x"] }), 422, Some("prompt"), "token ids");
    refused(json!({ "prompt": [-1] }), 400, Some("prompt"), "-1 is no token id");
    refused(json!({ "prompt": [1e30] }), 400, Some("prompt"), "no token id");
    refused(json!({ "prompt": [[1], []] }), 400, None, "empty");
    refused(json!({ "prompt": [4_000_000_000_u32] }), 400, None, "outside the vocabulary");
    refused(json!({ "prompt": "" }), 400, None, "empty");
    refused(json!({ "prompt": vec!["x"; 65] }), 400, Some("prompt"), "65 prompts");
    refused(json!({ "prompt": "x", "echo": true }), 400, Some("echo"), "not supported");
    refused(json!({ "prompt": "x", "best_of": 2 }), 400, Some("best_of"), "not supported");
    refused(json!({ "prompt": "x", "logprobs": true }), 422, Some("logprobs"), "a whole number");
    let texts = |path: &str, body: &str, status: u16, param: Option<&str>, part: &str| {
        check(&server.post_bytes(path, body.as_bytes().to_vec()), status, param, part);
    };
    texts("/tokenize", "{}", 400, Some("messages"), "missing");
    texts("/tokenize", "{\"prompt\": 1}", 422, Some("prompt"), "a string");
    texts("/detokenize", "{}", 400, Some("tokens"), "missing");
    texts("/detokenize", "{\"tokens\": [99999999]}", 400, Some("tokens"), "no token id");
    texts("/detokenize", "{\"tokens\": [\"x\"]}", 422, Some("tokens"), "list of token ids");
}

fn check_bodies(server: &Server) {
    let chat = |body: Vec<u8>, status: u16, part: &str| {
        let answer = server.post_bytes("/v1/chat/completions", body);
        assert_eq!(answer.status, status, "{}", String::from_utf8_lossy(&answer.body));
        assert!(String::from_utf8_lossy(&answer.body).contains(part), "{part}");
    };
    let with = |messages: &str| format!("{{\"max_tokens\": 1, \"messages\": {messages}}}").into_bytes();
    chat(Vec::new(), 400, "no valid JSON");
    chat(b"[]".to_vec(), 400, "no object");
    chat(b"{\"messages\": NaN}".to_vec(), 400, "no valid JSON");
    chat(b"{\"temperature\": 1e999, \"messages\": []}".to_vec(), 400, "no valid JSON");
    chat(with("[{\"role\": \"user\", \"content\": \"\\ud800\"}]"), 400, "no valid JSON");
    chat([with("[{\"role\": \"user\", \"content\": \""), vec![0xff, 0xfe]].concat(), 400, "no valid JSON");
    chat(with(&format!("{}{}", "[".repeat(200_000), "]".repeat(200_000))), 400, "recursion");
    // Of a key that stands twice the last counts, as in most readers of JSON.
    chat(
        b"{\"max_tokens\": -1, \"max_tokens\": 1, \"messages\": [{\"role\": \"user\", \"content\": \"hi\"}]}"
            .to_vec(),
        200,
        "usage",
    );
    let many = vec!["{\"role\": \"user\", \"content\": \"x\"}"; 10_000].join(",");
    chat(with(&format!("[{many}]")), 400, "10000 messages");
    let megabyte = format!("[{{\"role\": \"user\", \"content\": \"{}\"}}]", "x".repeat(1 << 20));
    chat(with(&megabyte), 400, "context_length_exceeded");
    let padded = format!(
        "{{\"max_tokens\": 1, \"pad\": \"{}\", \"messages\": [{{\"role\": \"user\", \"content\": \"hi\"}}]}}",
        "x".repeat(1 << 20)
    );
    chat(padded.into_bytes(), 200, "usage");
    chat(vec![b' '; 9 << 20], 413, "8388608 bytes");
    let empty = with("[{\"role\": \"user\", \"content\": \"\"}]");
    chat(empty, 200, "usage");
    let request =
        ureq::http::Request::post(server.url("/v1/chat/completions")).header("content-type", "text/plain");
    check(&server.send(request.body(b"{}".to_vec())), 415, None, "application/json");
    let request = ureq::http::Request::post(server.url("/v1/chat/completions"))
        .header("content-type", "application/json")
        .header("content-encoding", "gzip");
    check(&server.send(request.body(b"{}".to_vec())), 415, None, "\"gzip\"");
    let request = ureq::http::Request::get(server.url("/v1/models")).header("origin", "https://example.org");
    check(&server.send(request.body(Vec::new())), 403, None, "--cors https://example.org");
}

fn check_paths(server: &Server) {
    let get = |path: &str| server.send(ureq::http::Request::get(server.url(path)).body(Vec::new()));
    check(&get("/v2/nothing"), 404, None, "no such path");
    check(&get("/v1/chat/completions"), 405, None, "method");
    check(&get("/v1/timelines/nobody"), 404, None, "nobody");
    check(&get("/v1/timelines/%ff"), 400, None, "UTF-8");
    check(&get("/v1/timelines?last=-1"), 400, Some("last"), "-1");
    check(&get("/v1/steps?last=x&last=many"), 400, Some("last"), "many");
    check(&get("/v1/models/gpt-9"), 404, Some("model"), "gpt-9");
}

/// The first line of what comes back for bytes that no client of HTTP would send; empty where the door is shut.
fn exchange(server: &Server, bytes: &[u8]) -> String {
    let mut socket = server.connect();
    // A server that has heard enough may close while the rest is being written.
    let _ = socket.write_all(bytes);
    let _ = socket.shutdown(std::net::Shutdown::Write);
    let mut answer = Vec::new();
    let _ = socket.read_to_end(&mut answer);
    let text = String::from_utf8_lossy(&answer).into_owned();
    text.lines().next().unwrap_or_default().to_owned()
}

fn check_bytes(server: &Server) {
    let post = "POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n";
    let check = |bytes: &[u8], expected: &[&str]| {
        let line = exchange(server, bytes);
        let shown = String::from_utf8_lossy(&bytes[..bytes.len().min(120)]).into_owned();
        assert!(expected.iter().any(|part| line.contains(part) || line == *part), "{shown:?}: {line:?}");
    };
    check(b"GARBAGE\r\n\r\n", &["400"]);
    check(&[0x16, 0x03, 0x01, 0x02, 0x00, 0x01, 0x00], &["400", ""]);
    check(b"GET / HTTP/9.9\r\n\r\n", &["400", ""]);
    check(format!("{post}transfer-encoding: chunked\r\n\r\nzz\r\n").as_bytes(), &["400", ""]);
    check(format!("{post}transfer-encoding: chunked\r\n\r\nffffffffffffffffff\r\n").as_bytes(), &["400", ""]);
    check(format!("{post}content-length: 5\r\ncontent-length: 6\r\n\r\n").as_bytes(), &["400"]);
    check(format!("{post}content-length: -1\r\n\r\n").as_bytes(), &["400"]);
    check(
        format!("GET / HTTP/1.1\r\nhost: x\r\nx: {}\r\n\r\n", "y".repeat(200_000)).as_bytes(),
        &["431", ""],
    );
    check(
        format!("GET /{} HTTP/1.1\r\nhost: x\r\n\r\n", "y".repeat(200_000)).as_bytes(),
        &["414", "431", ""],
    );
    check(format!("{post}content-length: 100\r\n\r\n{{\"messages\"").as_bytes(), &["400", ""]);
}

/// HTTP/1.1 asks for the host's name, and HTTP/1.0 does not.
fn check_host(server: &Server) {
    for (version, status) in [("1.1", "HTTP/1.1 400"), ("1.0", "HTTP/1.0 200")] {
        let mut socket = server.connect();
        let request = format!("GET /health HTTP/{version}\r\nconnection: close\r\n\r\n");
        socket.write_all(request.as_bytes()).expect("it is sent");
        let mut answer = String::new();
        socket.read_to_string(&mut answer).expect("the answer is text");
        assert!(answer.starts_with(status), "{version}: {answer}");
    }
}

/// Those who find no place are told. The silent ones keep theirs for longer than any test takes.
fn check_no_place() {
    // Nobody was here before: the place of one who has just left may be free a moment later, and then the fifth would have it.
    let server = Server::open(&["--stall-limit", "3600", "--max-connections", "4"]);
    server.hear("ready: ");
    let silent: Vec<_> = (0..4).map(|_| server.connect()).collect();
    let line = exchange(&server, b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n");
    assert!(line.contains("503"), "no place is left: {line:?}");
    drop(silent);
}

/// More connections than the system gives descriptors: those who find none are told, and the others are served.
#[cfg(unix)]
#[test]
fn connections_beyond_the_systems_limit_on_descriptors_get_an_answer() {
    let server = Server::open_under("ulimit -Sn 100 && ulimit -Hn 140", &["--max-connections", "400"]);
    server.hear("this process may open 140 files, so 12 connections are taken at once and not 400");
    server.hear("ready: ");
    let talk = |socket: &mut TcpStream| {
        socket.write_all(b"GET /v1/models HTTP/1.1\r\nhost: x\r\n\r\n").expect("a socket takes a few bytes");
        let mut head = [0; 12];
        socket.read_exact(&mut head).expect("there is an answer");
        String::from_utf8_lossy(&head).into_owned()
    };
    let mut open: Vec<_> = (0..40).map(|_| server.connect()).collect();
    let lines: Vec<String> = open.iter_mut().map(talk).collect();
    let served = lines.iter().filter(|line| *line == "HTTP/1.1 200").count();
    let told = lines.iter().filter(|line| *line == "HTTP/1.1 503").count();
    assert_eq!((served, told), (12, 28), "{lines:?}");
    drop(open);
    wait_until("there is room again", || talk(&mut server.connect()) == "HTTP/1.1 200");
}

/// Clients that begin and do not go on are let go.
fn check_half_open(server: &Server) {
    let post = b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: 9\r\n\r\n{";
    let mut silent: Vec<_> = (0..24).map(|_| server.connect()).collect();
    for (idx, socket) in silent.iter_mut().enumerate() {
        let bytes: &[u8] = if idx % 2 == 0 { post } else { b"GET /health HT" };
        socket.write_all(bytes).expect("a socket takes a few bytes");
    }
    for (idx, mut socket) in silent.into_iter().enumerate() {
        let mut answer = Vec::new();
        let _ = socket.read_to_end(&mut answer);
        let text = String::from_utf8_lossy(&answer);
        // A body that does not come has a status; a head that does not come is only let go.
        let expected = if idx % 2 == 0 { text.starts_with("HTTP/1.1 408") } else { !text.contains(" 200 ") };
        assert!(expected, "{idx}: {text}");
    }
    let body = chat_body("hi", &json!({ "max_tokens": 1 }));
    assert_eq!(server.post("/v1/chat/completions", &body).0, 200);
}

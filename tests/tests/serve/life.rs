//! From the door that opens before the model is there to the last answer under SIGTERM; and who may come in.

use std::io::Read;

use serde_json::json;

use super::server::{Server, chat_body, wait_until};
use crate::cli::{OwnFile, binary};

#[test]
fn it_says_503_while_loading_and_while_stopping_and_loses_no_answer() {
    let mut server = Server::open(&["--slots", "2", "--grace", "100"]);
    let asked = server.chat("hi", &json!({}));
    // On a machine that is fast enough the model may be there already.
    if asked.status != 200 {
        assert_eq!((asked.status, &asked.json()["error"]["code"]), (503, &json!("loading")));
        assert!(asked.header("retry-after").is_some());
    }
    server.hear("ready: ");
    let answers: Vec<_> = std::thread::scope(|scope| {
        let ask = |n: u32| {
            let server = &server;
            scope.spawn(move || {
                let more = json!({ "stream": n.is_multiple_of(2), "max_tokens": 30, "ignore_eos": true });
                server.chat("Count as far as you can.", &more)
            })
        };
        let asking: Vec<_> = (0..4).map(ask).collect();
        wait_until("all are under way", || server.get("/health").1["open"] == 4);
        server.signal("TERM");
        wait_until("it is stopping", || server.get("/health").0 == 503);
        let late = server.chat("hi", &json!({}));
        assert_eq!((late.status, &late.json()["error"]["code"]), (503, &json!("shutting_down")));
        asking.into_iter().map(|thread| thread.join().expect("a client does not panic")).collect()
    });
    for (n, answer) in answers.iter().enumerate() {
        assert_eq!(answer.status, 200, "{n}: {}", String::from_utf8_lossy(&answer.body));
        let finish = match n % 2 {
            0 => answer.events().pop().map(|event| event["choices"][0]["finish_reason"].clone()),
            _ => Some(answer.json()["choices"][0]["finish_reason"].clone()),
        };
        assert_eq!(finish, Some(json!("length")), "{n} was answered to its end");
    }
    assert_eq!(server.ended(), Some(0));
}

#[test]
fn when_the_grace_ends_answers_are_cancelled_in_words_and_a_second_signal_ends_at_once() {
    let mut server = Server::start(&["--slots", "1", "--grace", "0"]);
    let more = json!({ "stream": true, "max_tokens": 4000, "ignore_eos": true });
    let (begun, queued) = std::thread::scope(|scope| {
        let ask = || scope.spawn(|| server.chat("Tell me a long story.", &more));
        let first = ask();
        wait_until("it is being answered", || {
            server.get("/v1/steps?last=1").1["steps"][0]["decode_rows"] == 1
        });
        let second = ask();
        wait_until("another waits", || server.get("/health").1["open"] == 2);
        server.signal("TERM");
        (first.join().expect("a client does not panic"), second.join().expect("a client does not panic"))
    });
    let last = begun.events().pop().expect("there are events");
    assert_eq!((begun.status, &last["error"]["code"]), (200, &json!("cancelled")), "after content: an event");
    assert_eq!(
        (queued.status, &queued.json()["error"]["code"]),
        (503, &json!("cancelled")),
        "before: a status"
    );
    assert_eq!(server.ended(), Some(0));

    let mut server = Server::start(&["--slots", "1", "--grace", "1000"]);
    let body = chat_body("Tell me a long story.", &more);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut socket = server.begin("/v1/chat/completions", &[], &body);
            let mut rest = Vec::new();
            let _ = socket.read_to_end(&mut rest);
        });
        wait_until("it is under way", || server.get("/health").1["open"] == 1);
        server.signal("TERM");
        server.hear("stopping: 1 ");
        server.signal("TERM");
    });
    assert_eq!(server.ended(), Some(130));
}

#[test]
fn keys_are_asked_for_and_read_again_and_an_open_address_needs_them() {
    let keys = OwnFile::new("# mine\nsk-one\n");
    let line = ["--host", "0.0.0.0", "--api-keys", keys.name(), "--cors", "https://example.org"];
    let mut server = Server::open(&line);
    server.address = server.address.replace("0.0.0.0", "127.0.0.1");
    let ask = |key: Option<&str>| {
        let request = ureq::http::Request::get(server.url("/v1/timelines"));
        let request = match key {
            Some(key) => request.header("authorization", key),
            None => request,
        };
        server.send(request.body(Vec::new())).status
    };
    for (key, status) in [
        (Some("Bearer sk-one"), 200),
        (Some("bearer sk-one"), 200),
        (Some("Bearer sk-on"), 401),
        (Some("Bearer # mine"), 401),
        (Some("Basic sk-one"), 401),
        (Some("sk-one"), 401),
        (None, 401),
    ] {
        assert_eq!(ask(key), status, "{key:?}");
    }
    assert_eq!(server.get("/health").0, 503, "health is for everybody, and the model is not there yet");
    keys.write("sk-two\n");
    server.signal("HUP");
    server.hear("the API keys were read again");
    assert_eq!((ask(Some("Bearer sk-two")), ask(Some("Bearer sk-one"))), (200, 401));
    keys.write("\n# none\n");
    server.signal("HUP");
    server.hear("the API keys stay as they were");
    assert_eq!(ask(Some("Bearer sk-two")), 200);
    check_cors(&server);
    drop(server);
    let refused =
        std::process::Command::new(binary()).args(["serve", "--host", "0.0.0.0", "--port", "0"]).output();
    let refused = refused.expect("the binary starts");
    let words = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(refused.status.code() == Some(2) && words.contains("--insecure"), "{words}");
}

fn check_cors(server: &Server) {
    let preflight = |origin: &str| {
        let request = ureq::http::Request::options(server.url("/v1/chat/completions"))
            .header("origin", origin)
            .header("access-control-request-method", "POST")
            .header("access-control-request-headers", "authorization,content-type");
        let answer = server.send(request.body(Vec::new()));
        answer.header("access-control-allow-origin").map(str::to_owned)
    };
    assert_eq!(preflight("https://example.org").as_deref(), Some("https://example.org"));
    assert_eq!(preflight("https://example.com"), None);
}

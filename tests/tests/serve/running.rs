//! `/v1/timelines/running`: together with the finished ones it accounts for all, and it says what the gauges say.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Read;

use serde_json::{Value, json};

use super::server::{Server, chat_body, wait_until};

const BURST: usize = 8;

/// The request ids of a list of timelines.
fn names(list: &Value) -> BTreeSet<String> {
    let timelines = list["timelines"].as_array().expect("a list has timelines");
    timelines.iter().map(|timeline| timeline["request_id"].as_str().expect("a name").to_owned()).collect()
}

/// One look at those who run: they hang together with the gauges, and live.
fn look(server: &Server, finished: &BTreeSet<String>, places: &mut BTreeMap<String, usize>) -> Value {
    let (status, running) = server.get("/v1/timelines/running");
    assert_eq!(status, 200, "{running}");
    let (timelines, gauges) = (running["timelines"].as_array().expect("a list"), &running["gauges"]);
    let count = |gauge: &str| gauges[gauge].as_u64().expect("a gauge is a number");
    assert_eq!(count("running") + count("waiting"), timelines.len() as u64, "{gauges}");
    assert!(count("running") <= 2 && count("blocks_used") <= count("blocks_total"), "{gauges}");
    for timeline in timelines {
        assert_eq!((&timeline["finish_reason"], timeline.get("broken")), (&Value::Null, None), "{timeline}");
        assert!(timeline["stamps"]["created"].as_u64() <= running["now"].as_u64());
        let stays = timeline["residency"].as_array().expect("stays");
        let place = stays.last().and_then(|stay| stay[0].as_str()).expect("a stay has a place");
        *places.entry(place.to_owned()).or_default() += 1;
    }
    let both: Vec<_> = names(&running).intersection(finished).cloned().collect();
    assert_eq!(both, Vec::<String>::new(), "whoever was in the book runs no more");
    running
}

#[test]
fn under_a_burst_those_who_run_and_those_who_ended_are_all() {
    let server = Server::start(&["--slots", "2", "--cors", "https://example.org"]);
    let (mut known, mut places) = (BTreeSet::new(), BTreeMap::new());
    let idle = look(&server, &known, &mut places);
    assert_eq!((&idle["timelines"], &idle["gauges"]["running"]), (&json!([]), &json!(0)));
    let more = json!({ "stream": true, "max_tokens": 24, "ignore_eos": true });
    let begin = |n: usize| {
        let id = format!("x-request-id: burst-{n}");
        server.begin("/v1/chat/completions", &[&id], &chat_body(&format!("Count to {n}."), &more))
    };
    let sockets: Vec<_> = (0..BURST).map(begin).collect();
    let expected: BTreeSet<_> = (0..BURST).map(|n| format!("burst-{n}")).collect();
    let mut finished = BTreeSet::new();
    wait_until("the burst has ended", || {
        // In this order: whoever is in neither list has ended in between.
        known.extend(names(&look(&server, &finished, &mut places)));
        finished = names(&server.get("/v1/timelines?last=64").1);
        finished.len() == BURST
    });
    known.extend(finished.iter().cloned());
    assert_eq!((&known, &finished), (&expected, &expected));
    let seen = |place: &str| places.get(place).copied().unwrap_or(0);
    assert!(seen("running") > 0 && seen("waiting") > 0, "both were seen: {places:?}");
    assert_eq!(look(&server, &finished, &mut places)["timelines"], json!([]));
    sockets.into_iter().for_each(|mut socket| {
        let mut head = [0; 12];
        socket.read_exact(&mut head).expect("everybody was answered");
        assert_eq!(&head, b"HTTP/1.1 200");
    });
    check_other_origins(&server);
}

/// A page of an allowed origin may ask for all that a page shows, and reads the request's name.
fn check_other_origins(server: &Server) {
    let paths =
        ["/health", "/v1/models", "/v1/report", "/v1/timelines", "/v1/timelines/running", "/v1/steps"];
    for path in paths {
        let request = ureq::http::Request::get(server.url(path)).header("origin", "https://example.org");
        let answer = server.send(request.body(Vec::new()));
        assert_eq!(answer.status, 200, "{path}");
        assert_eq!(answer.header("access-control-allow-origin"), Some("https://example.org"), "{path}");
        let exposed = answer.header("access-control-expose-headers").expect("some are exposed");
        for name in ["x-request-id", "retry-after"] {
            assert!(exposed.contains(name), "{path}: {name} in {exposed}");
        }
        // With a key, the browser asks first.
        let request = ureq::http::Request::options(server.url(path))
            .header("origin", "https://example.org")
            .header("access-control-request-method", "GET")
            .header("access-control-request-headers", "authorization");
        let answer = server.send(request.body(Vec::new()));
        let allowed = answer.header("access-control-allow-headers").unwrap_or_default();
        assert!(answer.status == 200 && allowed.contains("authorization"), "{path}: {allowed}");
    }
}

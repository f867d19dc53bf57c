//! Two replicas with the real model behind the nginx that is shipped: streams pass as they are made, work is shared or
//! sticks, and a replica that stops or dies costs nobody more than the stream it was in the middle of.

use std::collections::BTreeMap;
use std::io::Read;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use serde_json::{Value, json};

use super::nginx::Nginx;
use super::server::{Server, chat_body, wait_until};
use crate::probe::probe_json;

/// Small, so that two of them fit beside each other on any machine.
fn line(name: &str) -> Vec<&str> {
    vec!["--slots", "2", "--kv-blocks", "160", "--max-model-len", "1024", "--grace", "100", "--replica", name]
}

/// An answer whose head is there.
struct Talk {
    status: u16,
    replica: Option<String>,
    body: Box<dyn Read + Send>,
}

/// What became of it.
#[derive(Debug, PartialEq)]
struct Fate {
    status: u16,
    replica: Option<String>,
    /// It came to its own end.
    whole: bool,
}

impl Talk {
    fn finish(mut self) -> Fate {
        let mut bytes = Vec::new();
        let read = self.body.read_to_end(&mut bytes);
        let text = String::from_utf8_lossy(&bytes);
        let ended = text.ends_with("data: [DONE]\n\n") || serde_json::from_str::<Value>(&text).is_ok();
        Fate { status: self.status, replica: self.replica, whole: read.is_ok() && ended }
    }
}

/// The clients' side of nginx, and what they counted.
struct Front<'a> {
    nginx: &'a Nginx,
    answered_by: Mutex<BTreeMap<String, usize>>,
}

impl Front<'_> {
    fn ask(&self, method: &str, path: &str, headers: &[(&str, &str)], body: &str) -> Talk {
        let url = format!("http://{}{path}", self.nginx.address);
        let mut request = ureq::http::Request::builder().method(method).uri(url);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let request = request.header("content-type", "application/json").body(body.as_bytes().to_vec());
        let config = ureq::Agent::config_builder().http_status_as_error(false).max_idle_connections(0);
        let agent = ureq::Agent::new_with_config(config.build());
        let response = agent.run(request.expect("the request is well formed")).expect("nginx answers");
        let (head, body) = response.into_parts();
        let replica = head.headers.get("x-firstlight-replica").and_then(|name| name.to_str().ok());
        Talk {
            status: head.status.as_u16(),
            replica: replica.map(str::to_owned),
            body: Box::new(body.into_reader()),
        }
    }

    /// Begins a chat; returns when its head is there.
    fn begin(&self, more: &Value) -> Talk {
        let body = chat_body("Tell me a long story about the sea.", more).to_string();
        self.ask("POST", "/v1/chat/completions", &[], &body)
    }

    /// The end of a chat, counted.
    fn finish(&self, talk: Talk) -> Fate {
        let fate = talk.finish();
        if fate.whole && fate.status == 200 {
            let name = fate.replica.clone().expect("a replica tells its name");
            *self.answered_by.lock().expect("no client panicked").entry(name).or_default() += 1;
        }
        fate
    }

    fn chat(&self, more: &Value) -> Fate {
        self.finish(self.begin(more))
    }

    /// Counts the chats of a probe.
    fn count(&self, report: &Value) {
        let mut counts = self.answered_by.lock().expect("no client panicked");
        for (name, count) in report["replicas"].as_object().expect("replicas have names") {
            *counts.entry(name.clone()).or_default() += count.as_u64().expect("a count") as usize;
        }
    }

    /// Who answers something that costs nothing.
    fn who(&self, headers: &[(&str, &str)]) -> String {
        let talk = self.ask("GET", "/v1/models", headers, "");
        assert_eq!(talk.status, 200);
        talk.replica.expect("a replica tells its name")
    }

    fn wait_for(&self, name: &str) {
        wait_until("it is in the rotation again", || self.who(&[]) == name);
    }
}

fn short(stream: bool) -> Value {
    json!({ "max_tokens": 6, "ignore_eos": true, "stream": stream })
}

fn by(name: &str, whole: bool) -> Fate {
    Fate { status: 200, replica: Some(name.into()), whole }
}

#[test]
fn two_replicas_behind_nginx_share_the_work_and_one_may_stop_or_die() {
    let opened = ["a", "b"].map(|name| Server::open(&line(name)));
    let [a, b] = opened.map(Server::once_ready);
    let port = b.port();
    let nginx = Nginx::start([&a.address, &b.address], |shipped| shipped);
    let front = Front { nginx: &nginx, answered_by: Mutex::default() };
    check_streams(&front, [&a, &b]);
    check_names(&front);
    check_least_busy(&front);
    check_sticky(&front);
    check_stopping(&front, b);
    let b = Server::open_at(port, &line("b")).once_ready();
    front.wait_for("b");
    check_death(&front, &a, b);
    // The port is free at once, and the replica comes back without anybody's doing.
    let _b = Server::open_at(port, &line("b")).once_ready();
    front.wait_for("b");
    check_counts(&front, &a);
}

/// What the probe says of nginx as it is shipped, and as it is without the lines that matter.
fn check_streams(front: &Front<'_>, replicas: [&Server; 2]) {
    let report = probe_json(&front.nginx.address, &["--requests", "2"]);
    assert_eq!(report["verdict"]["kind"], "streamed", "{report:#}");
    let estimate = report["upstream_estimate"]["n"].as_u64().unwrap_or(0);
    let nobody = report["clocks_differ"].as_u64().unwrap_or(0);
    assert_eq!(estimate + nobody, 2, "nginx stamps what it takes: {report:#}");
    front.count(&report);
    let careless = |shipped: String| {
        let shipped = shipped.replace("proxy_http_version 1.1;", "");
        let careless = "proxy_buffering on; proxy_ignore_headers X-Accel-Buffering;";
        shipped.replace("proxy_buffering off;", careless)
    };
    let careless = Nginx::start([&replicas[0].address, &replicas[1].address], careless);
    let report = probe_json(&careless.address, &["--requests", "2"]);
    assert_eq!(report["verdict"]["kind"], "buffered", "{report:#}");
    front.count(&report);
}

/// Ids pass, what tells of one replica does not, and what is too long is an answer in the API's form.
fn check_names(front: &Front<'_>) {
    let more = json!({ "max_tokens": 2, "firstlight": { "trace": true } });
    let body = chat_body("hi", &more).to_string();
    let mut talk = front.ask("POST", "/v1/chat/completions", &[("x-request-id", "mine-1")], &body);
    let mut text = String::new();
    talk.body.read_to_string(&mut text).expect("the answer is whole");
    let answer: Value = serde_json::from_str(&text).expect("an answer is JSON");
    let timeline = &answer["firstlight"]["timeline"];
    let name = talk.replica.expect("a replica tells its name");
    *front.answered_by.lock().expect("no client panicked").entry(name.clone()).or_default() += 1;
    assert_eq!(timeline["request_id"], "mine-1");
    assert_eq!(timeline["route"], format!("{name}/v1/chat/completions"));
    assert!(timeline["upstream_estimate_ns"].is_i64() || timeline["upstream_estimate_ns"].is_u64());
    for path in ["/metrics", "/v1/timelines", "/v1/steps?last=1", "/v1/report"] {
        assert_eq!(front.ask("GET", path, &[], "").status, 404, "{path} is for whoever asks the replica");
    }
    assert_eq!(front.ask("GET", "/health", &[], "").status, 200);
    let long = "x".repeat(9 << 20);
    let talk = front.ask("POST", "/v1/chat/completions", &[], &long);
    assert_eq!((talk.status, talk.replica.as_deref()), (413, None));
}

/// Whoever has less to do gets the next one.
fn check_least_busy(front: &Front<'_>) {
    let more = json!({ "max_tokens": 48, "ignore_eos": true, "stream": true });
    let talks: Vec<Talk> = (0..4).map(|_| front.begin(&more)).collect();
    let named = |name: &str| talks.iter().filter(|talk| talk.replica.as_deref() == Some(name)).count();
    assert_eq!((named("a"), named("b")), (2, 2));
    for talk in talks {
        assert!(front.finish(talk).whole);
    }
}

/// A key stays with its replica, and many keys are shared out. The name of a prefix counts before that of a user.
fn check_sticky(front: &Front<'_>) {
    let mut homes = BTreeMap::new();
    for user in 0..24 {
        let user = format!("user-{user}");
        let home = front.who(&[("x-user", &user)]);
        for _ in 0..3 {
            assert_eq!(front.who(&[("x-user", &user)]), home, "{user} stays");
            assert_eq!(
                front.who(&[("x-prefix-key", &user), ("x-user", "other")]),
                home,
                "{user} as a prefix"
            );
        }
        *homes.entry(home).or_insert(0) += 1;
    }
    assert_eq!(homes.len(), 2, "{homes:?}");
}

/// SIGTERM under load: what runs there ends there, what comes is refused there and answered by the other.
fn check_stopping(front: &Front<'_>, mut b: Server) {
    let answered = AtomicUsize::new(0);
    let fates: Vec<Fate> = std::thread::scope(|scope| {
        let client = |n: usize| {
            let answered = &answered;
            scope.spawn(move || {
                let ask = |round: usize| {
                    let fate = front.chat(&short((n + round).is_multiple_of(2)));
                    answered.fetch_add(1, Ordering::AcqRel);
                    fate
                };
                (0..6).map(ask).collect::<Vec<_>>()
            })
        };
        let clients: Vec<_> = (0..4).map(client).collect();
        wait_until("answers have come", || answered.load(Ordering::Acquire) >= 4);
        b.signal("TERM");
        clients.into_iter().flat_map(|client| client.join().expect("a client does not panic")).collect()
    });
    assert_eq!(b.ended(), Some(0));
    for fate in &fates {
        assert!(fate.status == 200 && fate.whole, "no client saw anything of it: {fate:?}");
    }
    assert!(fates.contains(&by("b", true)), "it had work");
    assert_eq!(front.chat(&short(true)), by("a", true), "now there is one");
}

/// Killed under load: the streams that were running on it end, and nothing else does.
fn check_death(front: &Front<'_>, a: &Server, b: Server) {
    let long = json!({ "max_tokens": 120, "ignore_eos": true, "stream": true });
    let talks: Vec<Talk> = (0..4).map(|_| front.begin(&long)).collect();
    let begun_on_b = talks.iter().filter(|talk| talk.replica.as_deref() == Some("b")).count();
    assert!(begun_on_b > 0);
    let (streams, whole): (Vec<Fate>, Vec<Fate>) = std::thread::scope(|scope| {
        let streams: Vec<_> = talks.into_iter().map(|talk| scope.spawn(|| front.finish(talk))).collect();
        let whole: Vec<_> = (0..4).map(|_| scope.spawn(|| front.chat(&short(false)))).collect();
        let open = |server: &Server| server.get("/health").1["open"].as_u64().unwrap_or(0);
        wait_until("all are under way, on both", || open(a) + open(&b) == 8 && open(&b) > begun_on_b as u64);
        b.signal("KILL");
        let ends = |clients: Vec<std::thread::ScopedJoinHandle<'_, Fate>>| {
            clients.into_iter().map(|client| client.join().expect("a client does not panic")).collect()
        };
        (ends(streams), ends(whole))
    });
    drop(b);
    let count = |fate: Fate| streams.iter().filter(|known| **known == fate).count();
    assert_eq!((count(by("b", false)), count(by("b", true))), (begun_on_b, 0), "{streams:?}");
    assert_eq!(count(by("a", true)), streams.len() - begun_on_b, "{streams:?}");
    for fate in &whole {
        assert_eq!(*fate, by("a", true), "who had nothing yet is answered by the other");
    }
}

/// The replica that lived through it all counts what its clients count.
fn check_counts(front: &Front<'_>, a: &Server) {
    wait_until("nobody is left", || a.is_idle());
    let counted = front.answered_by.lock().expect("no client panicked")["a"];
    assert_eq!(a.metric("firstlight_request_success_total", "") as usize, counted);
    assert_eq!(a.metric("firstlight_timelines_broken_total", ""), 0.0);
}

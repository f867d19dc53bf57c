//! What the server tells about its requests: spans and metrics to a collector, lines to its log, and the page of metrics;
//! and that nobody waits where they are not taken.

use std::io::{BufRead, BufReader, Read};
use std::process::Child;

use opentelemetry_proto::tonic::metrics::v1::metric::Data;
use opentelemetry_proto::tonic::metrics::v1::{HistogramDataPoint, Metric};
use opentelemetry_proto::tonic::trace::v1::Span;
use opentelemetry_proto::tonic::trace::v1::span::SpanKind;
use serde_json::{Value, json};

use super::collector::{Collector, Mood, attribute, hex};
use super::metrics_page::{Page, check_dashboard};
use super::server::{Answer, Server, chat_body, command, wait_until};

const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
const UNSAMPLED: &str = "0af7651916cd43dd8448eb211c80319c";
const PARENT: &str = "00f067aa0ba902b7";
/// A word that only the question has.
const SECRET: &str = "zanzibarian";

/// A chat under this trace; the answer, and the id of the server's span.
fn traced(server: &Server, traceparent: &str, question: &str, more: &Value) -> (Answer, String) {
    let request = ureq::http::Request::post(server.url("/v1/chat/completions"))
        .header("content-type", "application/json")
        .header("tracestate", "vendor=x");
    let request = match traceparent {
        "" => request,
        parent => request.header("traceparent", parent),
    };
    let answer = server.send(request.body(chat_body(question, more).to_string().into_bytes()));
    let outgoing = answer.header("traceparent").expect("the trace goes on").to_owned();
    let fields: Vec<&str> = outgoing.split('-').collect();
    assert!(
        traceparent.is_empty() || traceparent.contains(fields[1]),
        "{outgoing} goes on from {traceparent}"
    );
    (answer, fields[2].to_owned())
}

/// The server's span by its id.
fn span<'a>(spans: &'a [Span], id: &str) -> &'a Span {
    let mut found = spans.iter().filter(|span| hex(&span.span_id) == id);
    let span = found.next().unwrap_or_else(|| panic!("{id} was delivered"));
    assert!(found.next().is_none(), "and once");
    span
}

fn children<'a>(spans: &'a [Span], of: &Span) -> Vec<&'a Span> {
    let mut found: Vec<&Span> = spans.iter().filter(|span| span.parent_span_id == of.span_id).collect();
    assert!(found.iter().all(|span| span.trace_id == of.trace_id && span.kind == SpanKind::Internal as i32));
    found.sort_by_key(|span| (span.start_time_unix_nano, span.end_time_unix_nano));
    found
}

fn leaves(value: &Value) -> u64 {
    value.as_u64().unwrap_or_else(|| value.as_object().map_or(0, |parts| parts.values().map(leaves).sum()))
}

fn length(spans: &[&Span], names: &[&str]) -> u64 {
    let named = spans.iter().filter(|span| names.contains(&span.name.as_str()));
    named.map(|span| span.end_time_unix_nano - span.start_time_unix_nano).sum()
}

/// The spans of a call say what its timelines say, to the nanosecond.
fn check_tree(spans: &[Span], server_span: &Span, timelines: &[Value]) {
    let (under_server, first) = (children(spans, server_span), &timelines[0]);
    let origin = first["clock"]["origin_unix_ms"].as_u64().expect("a clock has an origin") * 1_000_000;
    let at = |timeline: &Value, stamp: &str| timeline["stamps"][stamp].as_u64().map(|ns| origin + ns);
    let end = |timeline: &Value| at(timeline, "last_write").or(at(timeline, "finished"));
    assert_eq!(Some(server_span.start_time_unix_nano), at(first, "received"), "{first:#}");
    assert_eq!(Some(server_span.end_time_unix_nano), timelines.iter().filter_map(end).max(), "{first:#}");
    assert_eq!(server_span.kind, SpanKind::Server as i32);
    for part in ["gateway", "route"] {
        assert_eq!(length(&under_server, &[part]), leaves(&first["parts"][part]), "{part} of {first:#}");
    }
    let choices: Vec<&&Span> = under_server.iter().filter(|span| span.name.starts_with("choice ")).collect();
    assert_eq!(choices.len(), timelines.len());
    for timeline in timelines {
        let id = timeline["id"].as_str().expect("an id");
        let mine = choices.iter().find(|span| attribute(&span.attributes, "firstlight.id") == id);
        let choice = mine.unwrap_or_else(|| panic!("{id} has a span"));
        assert_eq!(Some(choice.end_time_unix_nano), end(timeline));
        let stages = children(spans, choice);
        for part in ["preparation", "inbox", "queue_wait", "requeue", "lost_prefill", "prefill", "transport"]
        {
            assert_eq!(length(&stages, &[part]), leaves(&timeline["parts"][part]), "{part} of {timeline:#}");
        }
        assert_eq!(
            length(&stages, &["decode", "decode_requeue"]),
            leaves(&timeline["decode"]),
            "{timeline:#}"
        );
        // From one stay to the next without a gap, and each cut where the timeline says.
        let inside = |name: &'static str| stages.iter().filter(move |span| span.name == name);
        let first_token = at(timeline, "first_token");
        assert!(inside("prefill").all(|span| first_token.is_none_or(|at| span.end_time_unix_nano == at)));
        assert!(inside("inbox").all(|span| Some(span.start_time_unix_nano) == at(timeline, "created")));
        assert!(inside("transport").all(|span| Some(span.end_time_unix_nano) == at(timeline, "first_write")));
        let events = |name: &str| choice.events.iter().filter(|event| event.name == name).count() as u64;
        assert_eq!(Some(events("preempted")), timeline["preemptions"].as_u64());
        assert_eq!(events("first_token"), u64::from(first_token.is_some()));
    }
}

fn named<'a>(metrics: &'a [Metric], name: &str) -> &'a Data {
    let found = metrics.iter().find(|metric| metric.name == name);
    found.and_then(|metric| metric.data.as_ref()).unwrap_or_else(|| panic!("{name} was delivered"))
}

fn points<'a>(metrics: &'a [Metric], name: &str) -> &'a [HistogramDataPoint] {
    match named(metrics, name) {
        Data::Histogram(histogram) => {
            assert_eq!(histogram.aggregation_temporality, 2, "{name} is a sum from the start");
            &histogram.data_points
        }
        other => panic!("{name} is {other:?}"),
    }
}

#[test]
fn spans_metrics_and_log_say_what_the_timelines_say() {
    let collector = Collector::start(Mood::Takes);
    // Two long answers do not fit side by side: one of them is evicted.
    let line =
        ["--slots", "2", "--kv-blocks", "10", "--log-format", "json", "--otlp-endpoint", &collector.url];
    let environment = [
        ("OTEL_SERVICE_NAME", "mine"),
        ("OTEL_RESOURCE_ATTRIBUTES", "deployment.environment.name=the%20lab"),
        ("OTEL_EXPORTER_OTLP_HEADERS", "x-tenant=one"),
    ];
    let mut server = Server::open_in(&line, &environment);
    server.hear("ready: ");
    let question = format!("What is {SECRET}?");
    let sampled = format!("00-{TRACE}-{PARENT}-01");
    let more = json!({ "stream": true, "seed": 7, "top_p": 0.5, "stop": "never said" });
    let (streamed, streamed_span) = traced(&server, &sampled, &question, &more);
    let (several, several_span) = traced(&server, "", "Say hi.", &json!({ "n": 2, "max_tokens": 3 }));
    let (_, unseen_span) = traced(&server, &format!("00-{UNSAMPLED}-{PARENT}-00"), "Say hi.", &json!({}));
    let (late, late_span) =
        traced(&server, &sampled, "Say hi.", &json!({ "firstlight": { "deadline_ms": 1 } }));
    let (refused, refused_span) = traced(&server, &sampled, &"word ".repeat(200), &json!({}));
    assert_eq!((streamed.status, several.status, late.status, refused.status), (200, 200, 408, 400));
    let evicting = json!({ "stream": true, "max_tokens": 100, "ignore_eos": true });
    let long: Vec<(Answer, String)> = std::thread::scope(|scope| {
        let ask = || scope.spawn(|| traced(&server, "", "Tell me a story.", &evicting));
        let asking = [ask(), ask()];
        asking.map(|thread| thread.join().expect("a client does not panic")).into()
    });
    let mut calls = vec![(streamed_span, &streamed), (several_span, &several), (late_span, &late)];
    calls.push((refused_span, &refused));
    calls.extend(long.iter().map(|(answer, span)| (span.clone(), answer)));
    let calls: Vec<(String, Vec<Value>)> = calls
        .into_iter()
        .map(|(span, answer)| (span, server.timelines(answer.header("x-request-id").expect("it has an id"))))
        .collect();
    let evicted: u64 = calls.iter().flat_map(|(_, all)| all).filter_map(|t| t["preemptions"].as_u64()).sum();
    assert!(evicted > 0, "two long answers do not fit side by side");
    wait_until("nobody is left", || server.is_idle());
    let (_, all) = server.get("/v1/timelines?last=100");
    let page = Page::of(&server);
    check_page(&page, all["timelines"].as_array().expect("a list"));
    check_dashboard(&page);
    // What has not been delivered by now is delivered before the end.
    server.signal("TERM");
    assert_eq!(server.ended(), Some(0));
    let taken = collector.taken();
    calls.iter().for_each(|(id, timelines)| check_tree(&taken.spans, span(&taken.spans, id), timelines));
    assert!(taken.spans.iter().all(|span| hex(&span.span_id) != unseen_span), "nobody wanted that one");
    assert!(taken.spans.iter().all(|span| hex(&span.trace_id) != UNSAMPLED));
    check_attributes(&taken.spans, &calls, server.address.rsplit(':').next().expect("a port"));
    for head in &taken.heads {
        assert!(head.contains("x-tenant: one"), "{head}");
    }
    for resource in &taken.resources {
        let of = |name: &str| attribute(&resource.attributes, name);
        assert_eq!(
            (of("service.name"), of("deployment.environment.name")),
            (json!("mine"), json!("the lab"))
        );
        assert!(of("service.version").is_string() && of("service.instance.id").is_string());
    }
    check_metrics(&taken.metrics, all["timelines"].as_array().expect("a list"));
    check_log(&server.log(), all["timelines"].as_array().expect("a list"), &streamed.streamed_text());
}

/// The conventions' attributes on the call's own span.
fn check_attributes(spans: &[Span], calls: &[(String, Vec<Value>)], port: &str) {
    let of = |call: usize, name: &str| attribute(&span(spans, &calls[call].0).attributes, name);
    let (streamed, several, late, refused) = (0, 1, 2, 3);
    let own = span(spans, &calls[streamed].0);
    assert_eq!(own.name, "chat smollm2-135m-instruct");
    assert_eq!((hex(&own.trace_id).as_str(), hex(&own.parent_span_id).as_str()), (TRACE, PARENT));
    assert_eq!(own.trace_state, "vendor=x");
    assert!(span(spans, &calls[several].0).parent_span_id.is_empty(), "a trace of its own");
    let timeline = &calls[streamed].1[0];
    for (name, expected) in [
        ("gen_ai.operation.name", json!("chat")),
        ("gen_ai.provider.name", json!("firstlight")),
        ("gen_ai.request.model", json!("smollm2-135m-instruct")),
        ("gen_ai.response.model", json!("smollm2-135m-instruct")),
        ("gen_ai.response.id", json!(timeline["id"].as_str().map(|id| id.trim_end_matches("#0")))),
        ("gen_ai.request.max_tokens", json!(12)),
        ("gen_ai.request.temperature", json!(0.0)),
        ("gen_ai.request.top_p", json!(0.5)),
        ("gen_ai.request.seed", json!(7)),
        ("gen_ai.request.stop_sequences", json!(["never said"])),
        ("gen_ai.request.choice.count", Value::Null),
        ("gen_ai.response.finish_reasons", json!(["length"])),
        ("gen_ai.usage.input_tokens", timeline["tokens"]["prompt"].clone()),
        ("gen_ai.usage.output_tokens", json!(12)),
        ("server.address", json!("127.0.0.1")),
        ("server.port", json!(port.parse::<u64>().expect("a port"))),
        ("http.response.status_code", json!(200)),
        ("error.type", Value::Null),
    ] {
        assert_eq!(of(streamed, name), expected, "{name}");
    }
    let seconds = |ns: &Value| json!(ns.as_u64().expect("nanoseconds") as f64 / 1e9);
    assert_eq!(of(streamed, "gen_ai.latency.time_to_first_token"), seconds(&timeline["ttft"]));
    assert_eq!(of(streamed, "gen_ai.latency.e2e"), seconds(&timeline["e2e"]));
    assert_eq!(of(several, "gen_ai.request.choice.count"), 2);
    assert_eq!(of(several, "gen_ai.response.finish_reasons"), json!(["length", "length"]));
    assert_eq!(of(several, "gen_ai.usage.output_tokens"), 6);
    let code = |call: usize| span(spans, &calls[call].0).status.as_ref().map_or(0, |status| status.code);
    assert_eq!((of(late, "error.type"), code(late)), (json!("deadline"), 2));
    assert_eq!((of(refused, "error.type"), code(refused)), (json!("rejected"), 0), "the client is to blame");
    assert_eq!((of(refused, "http.response.status_code"), code(streamed)), (json!(400), 0));
}

/// The page agrees with the timelines, and its new figures with each other.
fn check_page(page: &Page, timelines: &[Value]) {
    let total =
        |field: &str| timelines.iter().filter_map(|t| t["tokens"][field].as_u64()).sum::<u64>() as f64;
    let any = ("", "");
    assert_eq!(page.sum("firstlight_iteration_tokens_total_sum", any), total("computed"));
    let steps = page.sum("firstlight_engine_steps_total", any);
    assert_eq!(page.sum("firstlight_iteration_tokens_total_count", any), steps);
    let all = timelines.len() as f64;
    assert_eq!(page.sum("firstlight_request_params_max_tokens_count", any), all);
    // Twelve tokens each by default; three for each of two choices; a hundred for each of two long ones.
    assert_eq!(
        page.sum("firstlight_request_params_max_tokens_sum", any),
        12.0 * 4.0 + 3.0 * 2.0 + 100.0 * 2.0
    );
    assert_eq!(page.sum("firstlight_request_params_n_count", any), all - 1.0, "one call had two choices");
    assert_eq!(page.sum("firstlight_request_params_n_sum", any), all);
    assert_eq!(page.sum("firstlight_build_info", ("model", "smollm2-135m-instruct")), 1.0);
    assert_eq!(page.sum("firstlight_otlp_dropped_total", ("signal", "traces")), 0.0);
    assert!(page.sum("process_start_time_seconds", any) > 1.6e9);
    assert!(page.sum("process_resident_memory_bytes", any) > 1e7);
}

fn check_metrics(metrics: &[Metric], timelines: &[Value]) {
    const DURATION: &str = "gen_ai.server.request.duration";
    let durations = points(metrics, DURATION);
    // Two of the timelines are choices of one call.
    assert_eq!(durations.iter().map(|point| point.count).sum::<u64>(), timelines.len() as u64 - 1);
    let of = |error: &Value| {
        let mut same = durations.iter().filter(|point| attribute(&point.attributes, "error.type") == *error);
        (same.next().unwrap_or_else(|| panic!("{error} has a series")), same.count())
    };
    for (error, count) in [(Value::Null, 5), (json!("deadline"), 1), (json!("rejected"), 1)] {
        let (point, others) = of(&error);
        assert_eq!((point.count, others), (count, 0), "{error}");
        assert_eq!(point.bucket_counts.iter().sum::<u64>(), count);
        assert_eq!(point.bucket_counts.len(), point.explicit_bounds.len() + 1);
        assert!(point.start_time_unix_nano < point.time_unix_nano);
        for (name, expected) in
            [("gen_ai.operation.name", "chat"), ("gen_ai.request.model", "smollm2-135m-instruct")]
        {
            assert_eq!(attribute(&point.attributes, name), expected);
        }
    }
    let late =
        timelines.iter().find(|timeline| timeline["finish_reason"] == "deadline").expect("one was late");
    assert_eq!(of(&json!("deadline")).0.sum, late["e2e"].as_u64().map(|ns| ns as f64 / 1e9), "exactly");
    let first = points(metrics, "gen_ai.server.time_to_first_token");
    assert_eq!((first.len(), first[0].count), (1, 5), "answers only");
    let expected =
        [0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0];
    assert_eq!(first[0].explicit_bounds, expected);
    let per_token = points(metrics, "gen_ai.server.time_per_output_token");
    assert_eq!((per_token.len(), per_token[0].count), (1, 6), "each choice");
    for gauge in ["firstlight.requests.running", "firstlight.requests.waiting", "firstlight.kv_cache.usage"] {
        assert!(matches!(named(metrics, gauge), Data::Gauge(_)), "{gauge}");
    }
    for sum in ["firstlight.preemptions", "firstlight.tokens.generated", "firstlight.otlp.dropped"] {
        assert!(matches!(named(metrics, sum), Data::Sum(sum) if sum.is_monotonic), "{sum}");
    }
}

/// Every line is an object; every request has one, with its figures; nobody's words are in any.
fn check_log(log: &[String], timelines: &[Value], answer: &str) {
    let parse = |line: &String| serde_json::from_str::<Value>(line).unwrap_or_else(|e| panic!("{e}: {line}"));
    let lines: Vec<Value> = log.iter().map(parse).collect();
    assert!(log.iter().all(|line| !line.contains(SECRET) && !line.contains(answer)), "{log:#?}");
    let finished: Vec<&Value> = lines.iter().filter(|line| line["message"] == "request finished").collect();
    assert_eq!(finished.len(), timelines.len());
    let ms = |ns: &Value| ns.as_u64().map_or(Value::Null, |ns| json!(ns as f64 / 1e6));
    for timeline in timelines {
        let mine = finished.iter().find(|line| line["id"] == timeline["id"]).expect("it has a line");
        for name in ["request_id", "route", "finish_reason"] {
            assert_eq!(mine[name], timeline[name], "{name}");
        }
        assert_eq!((&mine["trace_id"], mine["level"].as_str()), (&timeline["trace_id"], Some("INFO")));
        assert_eq!(mine["generated_tokens"], timeline["tokens"]["generated"]);
        assert_eq!((&mine["ttft_ms"], &mine["e2e_ms"]), (&ms(&timeline["ttft"]), &ms(&timeline["e2e"])));
        let prefill = timeline["parts"].get("prefill").map_or(Value::Null, |part| ms(&json!(leaves(part))));
        assert_eq!(mine["prefill_ms"], prefill);
    }
    let refused = finished.iter().find(|line| line["finish_reason"] == "rejected").expect("one was refused");
    assert_eq!((&refused["status"], &refused["error"]), (&json!(400), &json!("context_length_exceeded")));
    for start in ["listening on http://", "ready: ", "stopping: 0 "] {
        let said = |line: &&Value| line["message"].as_str().is_some_and(|text| text.starts_with(start));
        assert_eq!(lines.iter().filter(said).count(), 1, "{start}");
    }
}

#[test]
fn a_collector_that_is_unwell_holds_up_nobody() {
    let collector = Collector::start(Mood::Answers(400));
    let environment = [
        ("OTEL_EXPORTER_OTLP_ENDPOINT", collector.url.as_str()),
        ("OTEL_BSP_SCHEDULE_DELAY", "20"),
        // Longer than any test: what hangs is left, not waited for.
        ("OTEL_EXPORTER_OTLP_TIMEOUT", "86400000"),
    ];
    let mut server = Server::open_in(&["--log-format", "json"], &environment);
    server.hear("ready: ");
    let ask = |what: &str| {
        let answer = server.chat("Say hi.", &json!({ "max_tokens": 2 }));
        assert_eq!(answer.status, 200, "while the collector {what}");
    };
    ask("refuses");
    server.hear("the collector does not take what it is sent: ");
    let page = Page::of(&server);
    assert!(
        page.sum("firstlight_otlp_dropped_total", ("signal", "traces")) > 0.0,
        "what it refuses is counted"
    );
    collector.is(Mood::Answers(503));
    let before = collector.num_requests();
    ask("is busy");
    wait_until("it was asked", || collector.num_requests() > before);
    collector.is(Mood::Hangs);
    let before = collector.num_requests();
    wait_until("it is asked again", || collector.num_requests() > before);
    ask("hangs");
    server.signal("TERM");
    server.hear("the collector did not take what was left within ");
    assert_eq!(server.ended(), Some(0), "it ends without its collector");
}

#[test]
fn a_log_that_is_off_says_all_the_same_why_the_command_ended() {
    for (level, format) in [("off", "text"), ("off,firstlight::note=off", "text"), ("off", "json")] {
        let line = ["--host", "0.0.0.0", "--log-level", level, "--log-format", format];
        let ended = command(&line, &[]).output().expect("the binary starts");
        assert_eq!(ended.status.code(), Some(2), "{level} {format}");
        let said = String::from_utf8(ended.stderr).expect("UTF-8");
        assert_eq!(said.lines().count(), 1, "{level} {format}: {said}");
        let sentence = match format {
            "json" => serde_json::from_str::<Value>(&said).expect("an object")["message"].clone(),
            _ => json!(said),
        };
        let expected = "firstlight: --host 0.0.0.0 is an address that other machines reach";
        assert!(sentence.as_str().is_some_and(|text| text.starts_with(expected)), "{said}");
    }
}

/// A server whose stderr is read by nobody but this test: the process, its stderr, its address.
fn unread(line: &[&str]) -> (Child, BufReader<impl Read + use<>>, String) {
    let mut child = command(line, &[]).spawn().expect("the binary starts");
    let mut stderr = BufReader::new(child.stderr.take().expect("stderr is piped"));
    let (mut line, mut address) = (String::new(), String::new());
    while !line.starts_with("ready: ") {
        line.clear();
        assert!(stderr.read_line(&mut line).expect("a line") > 0, "it is ready before it ends");
        let named = line.strip_prefix("listening on http://").and_then(|rest| rest.split(';').next());
        address = named.map_or(address, str::to_owned);
    }
    (child, stderr, address)
}

#[test]
fn a_log_that_nobody_reads_holds_up_nobody_and_says_what_was_lost() {
    let (child, mut stderr, address) = unread(&["--log-level", "info,firstlight::http=debug"]);
    let mut server = Server::of(child, address);
    // More lines than the pipe and the queue have room for.
    let lost = || Page::of(&server).sum("firstlight_log_lines_lost_total", ("", ""));
    wait_until("the log is full", || {
        (0..200).for_each(|_| assert_eq!(server.get("/health").0, 200));
        lost() > 0.0
    });
    assert_eq!(server.chat("Say hi.", &json!({ "max_tokens": 2 })).status, 200, "answers come all the same");
    // Somebody reads again: the loss is told.
    let mut line = String::new();
    while !line.contains("lines of this log were lost") {
        line.clear();
        assert!(stderr.read_line(&mut line).expect("a line") > 0, "the log goes on");
    }
    assert!(line.contains("WARN") && !line.starts_with("lines"), "{line}");
    // Whoever read it has gone.
    drop(stderr);
    assert_eq!(server.chat("Say hi.", &json!({ "max_tokens": 2 })).status, 200);
    server.signal("TERM");
    assert_eq!(server.ended(), Some(0));
}

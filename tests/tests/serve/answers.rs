//! What an answer says, streamed and whole: the same as `firstlight run`, with parts that sum.

use std::process::Command;

use firstlight_tests::default_model_path;
use serde_json::{Value, json};

use super::server::Server;
use crate::cli::answers::check_sums;
use crate::cli::binary;

const QUESTIONS: [&str; 3] = ["What is gravity?", "Name three colours.", "Say hello in French."];

/// The token ids that `firstlight run` gives.
fn ids_of_run() -> Vec<Value> {
    let mut command = Command::new(binary());
    command.env("FIRSTLIGHT_AUTOTUNE", "off").env("FIRSTLIGHT_MODEL_FILE", default_model_path());
    command.args(["run", "--json", "--max-tokens", "12"]);
    QUESTIONS.iter().for_each(|question| {
        command.args(["-p", question]);
    });
    let output = command.output().expect("the binary starts");
    let text = String::from_utf8(output.stdout).expect("stdout is UTF-8");
    let answers = text.lines().map(|line| serde_json::from_str::<Value>(line).expect("a line is JSON"));
    answers.map(|answer| answer["token_ids"].clone()).collect()
}

#[test]
fn answers_are_those_of_run_in_openais_form_and_their_parts_sum() {
    let server = Server::start(&[]);
    check_chats(&server);
    check_logprobs(&server);
    check_completions(&server);
    check_stops(&server);
    check_several_choices(&server);
    check_bias(&server);
    check_texts(&server);
    check_names(&server);
    check_views(&server);
}

fn check_chats(server: &Server) {
    let expected = ids_of_run();
    assert_eq!(expected.len(), QUESTIONS.len());
    for (question, expected) in QUESTIONS.iter().zip(&expected) {
        let whole = server.chat(question, &json!({ "firstlight": { "trace": true } })).json();
        let more = json!({
            "stream": true, "stream_options": { "include_usage": true }, "firstlight": { "trace": true },
        });
        let streamed = server.chat(question, &more);
        let last = streamed.events().pop().expect("a stream has a last event");
        assert_eq!(whole["firstlight"]["token_ids"], *expected, "{question}");
        assert_eq!(last["firstlight"]["token_ids"], *expected, "{question}");
        assert_eq!(whole["choices"][0]["message"]["content"], streamed.streamed_text(), "{question}");
        assert_eq!(whole["object"], "chat.completion");
        assert_eq!(whole["usage"]["completion_tokens"], last["usage"]["completion_tokens"]);
        assert_eq!(last["choices"], json!([]));
        assert_eq!(streamed.header("x-accel-buffering"), Some("no"));
        assert_eq!(streamed.header("content-type"), Some("text/event-stream"));
        check_chunks(&streamed.events());
        check_sums(&whole["firstlight"]["timeline"]);
        check_sums(&last["firstlight"]["timeline"]);
        check_sealed(server, &streamed.json_id(), true);
        check_sealed(server, whole["id"].as_str().expect("an answer has an id"), false);
    }
}

trait StreamId {
    fn json_id(&self) -> String;
}

impl StreamId for super::server::Answer {
    /// All events of a stream have one id.
    fn json_id(&self) -> String {
        let events = self.events();
        let id = events[0]["id"].as_str().expect("a chunk has an id").to_owned();
        assert!(events.iter().all(|event| event["id"] == id.as_str()));
        id
    }
}

/// Role first, then text, then the end, then the usage.
fn check_chunks(events: &[Value]) {
    let choice = |event: &Value| event["choices"][0].clone();
    assert_eq!(events[0]["object"], "chat.completion.chunk");
    assert_eq!(choice(&events[0])["delta"], json!({ "role": "assistant", "content": "" }));
    let (end, texts) = events[1..events.len() - 1].split_last().expect("there is an end");
    for event in texts {
        let choice = choice(event);
        assert!(choice["delta"]["content"].as_str().is_some_and(|text| !text.is_empty()), "{event}");
        assert_eq!(choice["finish_reason"], Value::Null);
        assert_eq!(event["usage"], Value::Null);
    }
    assert_eq!(choice(end)["finish_reason"], "length");
    assert_eq!(choice(end)["delta"], json!({}));
}

/// The timeline in the book: sealed, with the transport of a streamed answer.
fn check_sealed(server: &Server, response_id: &str, streamed: bool) {
    let timelines = server.timelines(&format!("{response_id}%230"));
    assert_eq!(timelines.len(), 1);
    let timeline = &timelines[0];
    check_sums(timeline);
    assert_eq!(timeline["route"], "/v1/chat/completions");
    assert_eq!(timeline.get("ttft").is_some(), streamed, "{timeline:#}");
    assert_eq!(timeline["parts"].get("transport").is_some(), streamed, "{timeline:#}");
    let at = |stamp: &str| timeline["stamps"][stamp].as_u64();
    assert!(at("last_write") >= at("first_write") && at("last_write") >= at("finished"), "{timeline:#}");
    if streamed {
        assert!(at("first_write") >= at("first_text") && at("first_text") >= at("first_token"));
        assert!(at("first_write") < at("finished"), "text goes out before the answer's end: {timeline:#}");
    }
}

fn check_logprobs(server: &Server) {
    let answer =
        server.chat("Say hi.", &json!({ "logprobs": true, "top_logprobs": 2, "max_tokens": 4 })).json();
    let content = answer["choices"][0]["logprobs"]["content"].as_array().expect("a list").clone();
    assert_eq!(content.len(), 4, "one entry a token");
    let mut text = Vec::new();
    for entry in &content {
        let top = entry["top_logprobs"].as_array().expect("a list");
        assert_eq!(top.len(), 2);
        assert_eq!(top[0]["token"], entry["token"], "greedy takes the likeliest");
        assert!(top[0]["logprob"].as_f64() >= top[1]["logprob"].as_f64());
        let bytes = entry["bytes"].as_array().expect("a list").iter();
        text.extend(bytes.map(|byte| u8::try_from(byte.as_u64().unwrap_or(256)).expect("a byte")));
    }
    let said = answer["choices"][0]["message"]["content"].as_str().expect("a text");
    assert_eq!(String::from_utf8_lossy(&text), said, "the bytes of the tokens are the text");
    let more = json!({ "logprobs": true, "top_logprobs": 2, "max_tokens": 4, "stream": true });
    let events = server.chat("Say hi.", &more).events();
    let lists = events.iter().filter_map(|event| event["choices"][0]["logprobs"]["content"].as_array());
    assert_eq!(lists.flatten().map(|entry| entry["token"].clone()).collect::<Vec<_>>(), tokens(&content));
}

fn tokens(content: &[Value]) -> Vec<Value> {
    content.iter().map(|entry| entry["token"].clone()).collect()
}

fn check_completions(server: &Server) {
    let ask = |prompt: Value| {
        let body =
            json!({ "prompt": prompt, "max_tokens": 4, "temperature": 0, "firstlight": { "trace": true } });
        let (status, answer) = server.post("/v1/completions", &body);
        assert_eq!(status, 200, "{answer}");
        answer
    };
    let (status, ids) = server.post("/tokenize", &json!({ "prompt": "The capital of France is" }));
    assert_eq!((status, &ids["count"]), (200, &json!(ids["tokens"].as_array().map_or(0, Vec::len))));
    let text = ask(json!("The capital of France is"));
    assert!(text["choices"][0]["text"].as_str().is_some_and(|text| text.starts_with(" Paris")), "{text}");
    let by_ids = ask(ids["tokens"].clone());
    assert_eq!(text["firstlight"]["token_ids"], by_ids["firstlight"]["token_ids"]);
    let several = ask(json!(["One two three", "The capital of France is"]));
    assert_eq!(several["choices"][1]["index"], 1);
    assert_eq!(several["choices"][1]["text"], text["choices"][0]["text"]);
    assert_eq!(several["firstlight"]["timelines"].as_array().map(Vec::len), Some(2));
    let lists = ask(json!([ids["tokens"], ids["tokens"]]));
    assert_eq!(lists["choices"][0]["text"], lists["choices"][1]["text"]);
    let body = json!({
        "prompt": ["One two three", "The capital of France is"], "max_tokens": 4, "temperature": 0, "stream": true,
    });
    let streamed = server.post_bytes("/v1/completions", body.to_string().into_bytes()).events();
    for idx in 0..2 {
        let mine = streamed.iter().map(|event| &event["choices"][0]).filter(|choice| choice["index"] == idx);
        let text: String = mine.clone().filter_map(|choice| choice["text"].as_str()).collect();
        assert_eq!(several["choices"][idx]["text"], text);
        let ends: Vec<_> = mine.map(|choice| &choice["finish_reason"]).filter(|end| !end.is_null()).collect();
        assert_eq!(ends, ["length"]);
    }
}

fn check_stops(server: &Server) {
    let until = |stop: Value| {
        let answer =
            server.chat("Count from one to nine.", &json!({ "stop": stop, "max_tokens": 40 })).json();
        answer["choices"][0].clone()
    };
    let free = until(Value::Null);
    let text = free["message"]["content"].as_str().expect("a text").to_owned();
    let word = text.split_whitespace().nth(2).expect("it says a few words").to_owned();
    let stopped = until(json!(["never said", word]));
    assert_eq!(stopped["finish_reason"], "stop");
    assert_eq!(stopped["message"]["content"], text[..text.find(&word).expect("it was said")]);
    let drawn = |seed: i64| {
        let more = json!({ "temperature": 1.2, "seed": seed, "top_p": 0.95, "top_k": 50, "min_p": 0.01 });
        server.chat("Tell me something.", &more).json()["choices"][0]["message"].clone()
    };
    assert_eq!(drawn(-7), drawn(-7), "the same seed draws the same");
    let unknown =
        server.chat("Say hi.", &json!({ "a_field_of_tomorrow": [1], "user": "u", "tools": [], "n": 1 }));
    assert_eq!(unknown.status, 200, "unknown and empty fields are ignored");
}

/// Choices of one prompt: computed once, each with a timeline and a seed of its own.
fn check_several_choices(server: &Server) {
    let more = json!({ "n": 3, "max_tokens": 6, "temperature": 0, "firstlight": { "trace": true } });
    let question = "Name three rivers of Europe, please.";
    let greedy = server.chat(question, &more).json();
    let choices = greedy["choices"].as_array().expect("a list");
    let said: Vec<_> = choices.iter().map(|c| (c["index"].clone(), &c["message"]["content"])).collect();
    assert_eq!(
        said.iter().map(|(index, _)| index.clone()).collect::<Vec<_>>(),
        [json!(0), json!(1), json!(2)]
    );
    assert!(said.iter().all(|(_, text)| *text == said[0].1), "greedy choices are alike: {said:?}");
    let timelines = greedy["firstlight"]["timelines"].as_array().expect("one each");
    assert_eq!(timelines.len(), 3);
    timelines.iter().for_each(check_sums);
    let prompt = timelines[0]["tokens"]["prompt"].as_u64().expect("a count");
    for timeline in &timelines[1..] {
        assert!(
            timeline["attempts"][0]["computed"].as_u64() < Some(16),
            "no more than the last block: {timeline}"
        );
        assert!(
            timeline["parts"]["queue_wait"]["order"].as_u64() > Some(0),
            "it waited for the first: {timeline}"
        );
    }
    let usage = &greedy["usage"];
    assert_eq!((&usage["prompt_tokens"], &usage["completion_tokens"]), (&json!(prompt), &json!(18)));
    let drawn = json!({ "n": 2, "max_tokens": 12, "temperature": 1.5, "seed": 5, "stream": true });
    let streamed = server.chat("Tell me something.", &drawn);
    let text = |index: u64| -> String {
        let events = streamed.events();
        let chunks = events.iter().flat_map(|event| event["choices"].as_array().cloned().unwrap_or_default());
        let own = chunks.filter(|choice| choice["index"] == index);
        own.filter_map(|choice| choice["delta"]["content"].as_str().map(str::to_owned)).collect()
    };
    assert!(!text(0).is_empty() && text(0) != text(1), "{} and {}", text(0), text(1));
}

fn check_bias(server: &Server) {
    let (_, ids) = server.post("/tokenize", &json!({ "prompt": " banana" }));
    let token = ids["tokens"][0].to_string();
    let more = json!({ "max_tokens": 3, "temperature": 0, "logit_bias": { token.clone(): 100 },
        "firstlight": { "trace": true } });
    let biased = server.chat("Say hi.", &more).json();
    let expected: u64 = token.parse().expect("a token id");
    assert_eq!(biased["firstlight"]["token_ids"], json!([expected, expected, expected]));
    let refused = |bias: Value| server.chat("Say hi.", &json!({ "logit_bias": bias })).status;
    assert_eq!(
        [refused(json!({ "x": 1 })), refused(json!({ "5": 101 })), refused(json!({ "999999": 1 }))],
        [400; 3]
    );
    assert_eq!(refused(json!([1])), 422);
}

fn check_texts(server: &Server) {
    for text in ["", "Grüße, 世界 👋", "a\u{0}b"] {
        let (status, ids) = server.post("/tokenize", &json!({ "prompt": text }));
        assert_eq!(status, 200, "{ids}");
        let (status, back) = server.post("/detokenize", &json!({ "tokens": ids["tokens"] }));
        assert_eq!((status, &back["prompt"]), (200, &json!(text)));
    }
    let chat = json!({ "messages": [{ "role": "user", "content": "hi" }] });
    let (status, ids) = server.post("/tokenize", &chat);
    let answer = server.chat("hi", &json!({ "max_tokens": 1 })).json();
    assert_eq!((status, &ids["count"]), (200, &answer["usage"]["prompt_tokens"]));
}

/// Request ids and trace context in and out.
fn check_names(server: &Server) {
    const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
    let body = super::server::chat_body("hi", &json!({ "max_tokens": 1 })).to_string().into_bytes();
    let request = ureq::http::Request::post(server.url("/v1/chat/completions"))
        .header("content-type", "application/json; charset=utf-8")
        .header("x-request-id", "mine-1")
        .header("traceparent", format!("00-{TRACE}-00f067aa0ba902b7-01"));
    let answer = server.send(request.body(body));
    assert_eq!(answer.header("x-request-id"), Some("mine-1"));
    let parent = answer.header("traceparent").expect("the trace goes on");
    assert!(parent.starts_with(&format!("00-{TRACE}-")) && parent.ends_with("-01"), "{parent}");
    assert!(!parent.contains("00f067aa0ba902b7"), "the server's span is its own");
    let timelines = server.timelines("mine-1");
    assert_eq!((timelines.len(), &timelines[0]["trace_id"]), (1, &json!(TRACE)));
}

fn check_views(server: &Server) {
    let (_, models) = server.get("/v1/models");
    assert_eq!(models["data"][0]["id"], "smollm2-135m-instruct");
    assert_eq!(server.get("/v1/models/smollm2-135m-instruct").0, 200);
    let (_, report) = server.get("/v1/report");
    assert_eq!((&report["schema"], &report["refused_broken"]), (&json!("firstlight.report/1"), &json!(0)));
    assert!(report["n"].as_u64().is_some_and(|n| n > 10), "{report:#}");
    let (_, two) = server.get("/v1/timelines?last=2");
    assert_eq!(two["timelines"].as_array().map(Vec::len), Some(2));
    let (_, all) = server.get("/v1/timelines?last=18446744073709551615");
    all["timelines"].as_array().expect("a list").iter().for_each(check_sums);
    let (_, steps) = server.get("/v1/steps?last=3");
    assert_eq!(steps["steps"].as_array().map(Vec::len), Some(3));
    let (_, trace) = server.get("/v1/trace?last=5");
    assert!(trace["traceEvents"].as_array().is_some_and(|events| events.len() > 20));
    let (_, health) = server.get("/health");
    assert!(health["answered"].as_u64() > Some(10) && health["ttft_p50"].as_u64() > Some(0), "{health}");
}

//! What stands before the engine: quotas, the content policy, and the names of what came by which way.

use std::process::Command;
use std::time::{SystemTime, UNIX_EPOCH};

use serde_json::{Value, json};

use super::server::{Answer, Server, chat_body, wait_until};
use crate::cli::{OwnFile, binary};

/// A POST with a key and one more header.
fn post(server: &Server, path: &str, body: &Value, key: &str, more: (&str, &str)) -> Answer {
    let request = ureq::http::Request::post(server.url(path))
        .header("content-type", "application/json")
        .header("authorization", format!("Bearer {key}"))
        .header(more.0, more.1);
    server.send(request.body(body.to_string().into_bytes()))
}

fn get(server: &Server, path: &str, key: &str) -> Answer {
    let request = ureq::http::Request::get(server.url(path)).header("authorization", format!("Bearer {key}"));
    server.send(request.body(Vec::new()))
}

#[test]
fn each_key_has_its_quotas_and_the_answer_says_when_to_come_again() {
    // Half a minute and more for one of each, so that none comes back while the test runs.
    let first = "sk-one requests=1 name=alice\nsk-words tokens=2\nsk-free requests=unlimited\n";
    let keys = OwnFile::new(first);
    let line = ["--api-keys", keys.name(), "--requests-per-minute", "9", "--replica", "east-1"];
    let server = Server::start(&line);
    let tokenize = |key: &str| post(&server, "/tokenize", &json!({ "prompt": "hi" }), key, ("x-a", "b"));
    let refused = |answer: &Answer, words: &str, seconds: std::ops::RangeInclusive<u32>| {
        let error = &answer.json()["error"];
        assert_eq!((answer.status, &error["code"]), (429, &json!("rate_limit_exceeded")), "{error}");
        assert!(error["message"].as_str().is_some_and(|message| message.contains(words)), "{error}");
        let again = answer.header("retry-after").and_then(|seconds| seconds.parse().ok());
        assert!(again.is_some_and(|again| seconds.contains(&again)), "{again:?}: {error}");
        assert_eq!(answer.header("x-firstlight-replica"), Some("east-1"));
    };
    let answer = tokenize("sk-one");
    let told = ["limit", "remaining"].map(|what| answer.header(&format!("x-ratelimit-{what}-requests")));
    assert_eq!((answer.status, told), (200, [Some("1"), Some("0")]));
    refused(&tokenize("sk-one"), "1 requests a minute of the key alice", 1..=60);
    assert_eq!(get(&server, "/v1/models", "sk-one").status, 200, "reading costs nothing");
    assert_eq!(tokenize("sk-free").status, 200, "another key is another account");
    assert_eq!((tokenize("sk-none").status, tokenize("").status), (401, 401));

    keys.write(&first.replace("requests=1", "requests=2"));
    server.signal("HUP");
    server.hear("the API keys were read again");
    assert_eq!(tokenize("sk-one").status, 200, "one of two was used");
    refused(&tokenize("sk-one"), "2 requests a minute", 1..=30);
    keys.write("sk-free\n\nsk-one requests=none\n");
    server.signal("HUP");
    let why = server.hear("the API keys stay as they were");
    assert!(why.contains("line 3: requests must be") && !why.contains("sk-one"), "{why}");
    refused(&tokenize("sk-one"), "2 requests a minute", 1..=30);

    check_tokens(&server, &refused);
}

fn check_tokens(server: &Server, refused: &dyn Fn(&Answer, &str, std::ops::RangeInclusive<u32>)) {
    let ask = |prompt_len: usize, max_tokens: u64, n: usize, id: &str| {
        let body = json!({
            "prompt": vec![5; prompt_len], "max_tokens": max_tokens, "n": n, "temperature": 0, "ignore_eos": true,
        });
        post(server, "/v1/completions", &body, "sk-words", ("x-request-id", id))
    };
    let complete = |max_tokens| ask(1, max_tokens, 1, &format!("words-{max_tokens}"));
    let in_the_book = |id: &str, expected: usize| {
        wait_until(&format!("{expected} timelines of {id} are in the book"), || {
            let found = get(server, &format!("/v1/timelines/{id}"), "sk-free").json();
            found["timelines"].as_array().map_or(0, Vec::len) == expected
        });
    };
    let too_large = [(1, 3, 1, 0), (1, 2, 1, 0), (2, 1, 1, 1), (1, 1, 2, 0), (1, 99_999_999_999, 4, 0)];
    for (idx, (prompt_len, max_tokens, n, timelines)) in too_large.into_iter().enumerate() {
        let id = format!("large-{idx}");
        let answer = ask(prompt_len, max_tokens, n, &id);
        let error = &answer.json()["error"];
        assert_eq!((answer.status, &error["code"]), (400, &json!("request_too_large")), "{error}");
        assert!(answer.header("retry-after").is_none(), "waiting does not help");
        // What the edge refuses has no timeline; what is tokenised first has one.
        in_the_book(&id, timelines);
    }
    assert_eq!(complete(1).status, 200, "one token of prompt and one of answer are all there is");
    refused(&complete(1), "2 tokens a minute", 1..=30);
    let tokenize = post(server, "/tokenize", &json!({ "prompt": "hi" }), "sk-words", ("x-a", "b"));
    assert_eq!(tokenize.status, 200, "what makes no tokens needs none");
    assert_eq!(tokenize.header("x-ratelimit-remaining-tokens"), Some("0"));
    in_the_book("words-1", 1);
    let metrics = String::from_utf8(get(server, "/metrics", "sk-free").body).expect("metrics are text");
    let line = "firstlight_http_requests_total{route=\"/v1/completions\",status=\"429\"} 1";
    assert!(metrics.contains(line), "{metrics}");

    let unix_ms = SystemTime::now().duration_since(UNIX_EPOCH).expect("it is after 1970").as_millis() - 250;
    let start = format!("t={}.{:03}", unix_ms / 1000, unix_ms % 1000);
    for (header, is_meant) in [(start.as_str(), true), ("t=1000000000.000", false)] {
        let body = json!({ "prompt": [5], "max_tokens": 1, "firstlight": { "trace": true } });
        let answer = post(server, "/v1/completions", &body, "sk-free", ("x-request-start", header));
        let timeline = &answer.json()["firstlight"]["timeline"];
        assert_eq!(timeline["route"], "east-1/v1/completions");
        let estimate = timeline["upstream_estimate_ns"].as_i64();
        assert_eq!(estimate.is_some_and(|ns| ns >= 250_000_000), is_meant, "{header}: {estimate:?}");
        let stamps = &timeline["stamps"];
        let whole = stamps["first_token"].as_u64().zip(stamps["received"].as_u64()).map(|(a, b)| a - b);
        assert!(timeline["parts_total"].as_u64() >= whole && timeline.get("broken").is_none(), "{timeline}");
    }
}

/// The text, the reason and the whole choice `idx` of an answer, streamed or not.
fn choice(answer: &Answer, streamed: bool, idx: usize) -> (String, Value, Vec<Value>) {
    assert_eq!(answer.status, 200, "{}", String::from_utf8_lossy(&answer.body));
    if !streamed {
        let choice = answer.json()["choices"][idx].clone();
        let logprobs = choice["logprobs"]["content"].as_array().cloned().unwrap_or_default();
        let text = choice["message"]["content"].as_str().unwrap_or_default().to_owned();
        return (text, choice["finish_reason"].clone(), logprobs);
    }
    let (mut text, mut reason, mut logprobs) = (String::new(), Value::Null, Vec::new());
    let events = answer.events();
    let own = events.iter().filter(|event| event["choices"][0]["index"] == idx);
    for choice in own.map(|event| &event["choices"][0]) {
        text += choice["delta"]["content"].as_str().unwrap_or_default();
        logprobs.extend(choice["logprobs"]["content"].as_array().cloned().unwrap_or_default());
        if !choice["finish_reason"].is_null() {
            reason = choice["finish_reason"].clone();
        }
    }
    (text, reason, logprobs)
}

const QUESTION: &str = "Write a short story about a dog.";

#[test]
fn what_the_policy_blocks_is_neither_taken_nor_said() {
    let rules = OwnFile::new("# nothing that anybody says\nqqq zzz\n");
    let server = Server::start(&["--policy", rules.name(), "--slots", "4"]);
    let follow = |text: &str| {
        rules.write(text);
        server.signal("HUP");
        server.hear("the policy was read again");
    };
    let more = json!({ "max_tokens": 24, "ignore_eos": true });
    let (free, reason, _) = choice(&server.chat(QUESTION, &more), false, 0);
    assert_eq!(reason, "length");
    // Four words in the middle: more than one token, and more than one chunk.
    let words: Vec<&str> = free.split_whitespace().collect();
    let phrase = words[6..10].join(" ");
    let until = free.find(&phrase).expect("words are apart by one space each");
    assert!(phrase.is_ascii() && until > 0, "{free:?}");
    let pattern = format!("/{}\\W+{}/i", &words[6], &words[7].to_uppercase());
    for rule in [phrase.to_uppercase(), pattern] {
        follow(&rule);
        for streamed in [false, true] {
            check_blocked(&server, streamed, &free[..until], &rule);
        }
    }
    // What turns out to be something else at the very end is said.
    follow(&format!("{} and never this", words[words.len() - 1]));
    for streamed in [false, true] {
        let more = json!({ "max_tokens": 24, "ignore_eos": true, "stream": streamed });
        let (text, reason, _) = choice(&server.chat(QUESTION, &more), streamed, 0);
        assert_eq!((text, reason), (free.clone(), json!("length")));
    }
    check_choices(&server, &follow);
    check_prompts(&server, &follow);
    rules.write("fine\n/a(/\n");
    server.signal("HUP");
    let why = server.hear("the policy stays as it was");
    assert!(why.contains("line 2: it is no pattern"), "{why}");
    assert_eq!(server.chat("A secret word?", &json!({})).status, 400, "the rules from before are in force");
    wait_until("slots and blocks are free", || server.is_idle());
}

fn check_blocked(server: &Server, streamed: bool, expected: &str, rule: &str) {
    let more = json!({
        "max_tokens": 24, "ignore_eos": true, "logprobs": true, "stream": streamed, "firstlight": { "trace": true },
    });
    let answer = server.chat(QUESTION, &more);
    let (text, reason, logprobs) = choice(&answer, streamed, 0);
    assert_eq!(
        (text.as_str(), &reason),
        (expected, &json!("content_filter")),
        "{rule}, streamed: {streamed}"
    );
    let told: String = logprobs.iter().filter_map(|entry| entry["token"].as_str()).collect();
    assert!(expected.starts_with(&told), "log-probabilities tell {told:?} of {expected:?}");
    let last = if streamed { answer.events().pop().expect("there are events") } else { answer.json() };
    let extension = &last["firstlight"];
    assert_eq!(extension["token_ids"].as_array().map(Vec::len), Some(logprobs.len()), "{extension}");
    assert_eq!(extension["timeline"]["finish_reason"], "content_filter");
    let generated = extension["timeline"]["tokens"]["generated"].as_u64().expect("tokens are counted");
    assert!(generated > logprobs.len() as u64 && generated < 24, "{generated} tokens were made");
    let id = answer.header("x-request-id").expect("every answer has an id");
    assert_eq!(server.timelines(id)[0]["finish_reason"], "content_filter");
}

/// Of several choices only the one that said it ends.
fn check_choices(server: &Server, follow: &dyn Fn(&str)) {
    let more = json!({ "max_tokens": 16, "ignore_eos": true, "n": 3, "temperature": 1, "seed": 5 });
    let ask = || {
        let answer = server.chat(QUESTION, &more);
        [0, 1, 2].map(|idx| choice(&answer, false, idx))
    };
    let free = ask();
    let only = |word: &&str| {
        let said = |text: &str| text.to_lowercase().contains(&word.to_lowercase());
        word.len() > 3 && !said(QUESTION) && free.iter().filter(|(text, ..)| said(text)).count() == 1
    };
    let words = free[1].0.split(|c: char| !c.is_ascii_alphabetic());
    let word = words.into_iter().find(only).expect("the choices differ in a word");
    follow(word);
    let blocked = ask();
    let until = free[1].0.find(word).expect("it is one of its words");
    for (idx, (free, blocked)) in free.iter().zip(&blocked).enumerate() {
        let expected = match idx {
            1 => (&free.0[..until], &json!("content_filter")),
            _ => (free.0.as_str(), &free.1),
        };
        assert_eq!((blocked.0.as_str(), &blocked.1), expected, "choice {idx} without {word:?}");
    }
}

fn check_prompts(server: &Server, follow: &dyn Fn(&str)) {
    follow("secret word\n/tok[a-z]n\\d/");
    let ids = server.post("/tokenize", &json!({ "prompt": "the Secret  word" })).1["tokens"].clone();
    let refused = |path: &str, body: &Value, num_choices: usize| {
        let answer = server.post_bytes(path, body.to_string().into_bytes());
        let error = answer.json()["error"].clone();
        assert_eq!((answer.status, &error["code"]), (400, &json!("content_filter")), "{body}: {error}");
        let id = answer.header("x-request-id").expect("every answer has an id");
        wait_until("every choice is in the book", || server.timelines(id).len() == num_choices);
        for timeline in server.timelines(id) {
            assert_eq!(timeline["finish_reason"], "content_filter");
            // The search is billed to the part after the tokenising.
            assert!(timeline["stamps"]["tokenised"].is_u64(), "{timeline}");
            assert_eq!(
                (&timeline["stamps"]["created"], &timeline["tokens"]["generated"]),
                (&Value::Null, &json!(0))
            );
        }
    };
    let chat = |more: Value| chat_body("Is SECRET\nword a token?", &more);
    refused("/v1/chat/completions", &chat(json!({})), 1);
    refused("/v1/chat/completions", &chat(json!({ "stream": true, "n": 2 })), 2);
    refused("/v1/completions", &json!({ "prompt": "my token7" }), 1);
    let role = json!({ "messages": [{ "role": "token7", "content": "x" }] });
    refused("/v1/chat/completions", &role, 1);
    refused("/v1/completions", &json!({ "prompt": ids }), 1);
    // What does not fit the context is not searched, and says so.
    let long = chat_body(&"secret word ".repeat(20_000), &json!({}));
    let answer = server.post_bytes("/v1/chat/completions", long.to_string().into_bytes());
    assert_eq!(answer.json()["error"]["code"], "context_length_exceeded");
    assert_eq!(server.chat("Is secret a word?", &json!({ "max_tokens": 1 })).status, 200);
}

#[test]
fn files_of_rules_that_cannot_be_used_are_told_with_their_line_before_anything_is_loaded() {
    let check = |flag: &str, text: &str, expected: &str| {
        let file = OwnFile::new(text);
        let command = ["serve", "--port", "0", flag, file.name()];
        let refused = Command::new(binary()).args(command).output().expect("the binary starts");
        let words = String::from_utf8_lossy(&refused.stderr).into_owned();
        assert!(refused.status.code() == Some(2) && words.contains(expected), "{flag} {text:?}: {words}");
    };
    check("--api-keys", "# mine\nsk-a tokens=0\n", "line 2: tokens must be a whole number from 1");
    check("--api-keys", "sk-a\nsk-a name=b\n", "line 2: the key stands in an earlier line too");
    let many: String = (0..4097).map(|n| format!("sk-{n}\n")).collect();
    check("--api-keys", &many, "line 4097: at most 4096 API keys are taken");
    check("--policy", "\n\n/[/\n", "line 3: it is no pattern");
    check("--policy", "# nothing\n", "a policy has 1 to 1024 rules and this one 0");
}

//! `/v1/diagnose` and `firstlight diagnose`: each symptom is caused for real, on the real model, and its stage is named; a
//! healthy run sets nothing off.

mod causes;
mod command;
mod transport;

use std::path::PathBuf;

use serde_json::{Value, json};

use crate::cli::Scratch;
use crate::serve::server::{Server, wait_until};

/// A completion of a prompt of ids; `prompt` and `max_tokens` in tokens.
fn completion(ids: &[u32], max_tokens: u32) -> Value {
    json!({
        "model": "smollm2-135m-instruct", "prompt": ids, "max_tokens": max_tokens, "temperature": 0, "ignore_eos": true,
    })
}

/// `len` ids that begin like those of no other `number`.
fn ids(number: u32, len: u32) -> Vec<u32> {
    (0..len).map(|idx| 1000 + (number * 977 + idx * 31) % 20_000).collect()
}

fn answered(server: &Server, ids: &[u32], max_tokens: u32) {
    let (status, body) = server.post("/v1/completions", &completion(ids, max_tokens));
    assert_eq!(status, 200, "{body}");
}

/// How many requests are in the book.
fn booked(server: &Server) -> usize {
    server.get("/v1/timelines?last=1024").1["timelines"].as_array().map_or(0, Vec::len)
}

/// Waits until so many are: the last byte of an answer is there before its timeline is.
fn wait_for(server: &Server, count: usize) {
    wait_until("all requests are in the book", || booked(server) == count);
}

/// The diagnosis by the server itself.
fn diagnose(server: &Server, query: &str) -> Value {
    let (status, diagnosis) = server.get(&format!("/v1/diagnose?{query}"));
    assert_eq!((status, &diagnosis["schema"]), (200, &json!("firstlight.diagnosis/1")), "{diagnosis}");
    diagnosis
}

/// The stages that are named, the surest first.
fn stages(diagnosis: &Value) -> Vec<&str> {
    let findings = diagnosis["findings"].as_array().expect("findings are a list");
    findings.iter().map(|finding| finding["stage"].as_str().expect("a stage is a word")).collect()
}

/// The finding of `stage`, whose sentences all have figures and conditions.
fn finding<'d>(diagnosis: &'d Value, stage: &str) -> &'d Value {
    let findings = diagnosis["findings"].as_array().expect("findings are a list");
    let found = findings.iter().find(|finding| finding["stage"] == stage);
    let found = found.unwrap_or_else(|| panic!("{stage} is not named in {diagnosis:#}"));
    let evidence = found["evidence"].as_array().expect("evidence is a list");
    assert!(!evidence.is_empty(), "{found:#}");
    for sentence in evidence {
        let sentence = sentence.as_str().expect("a sentence");
        assert!(
            sentence.contains(char::is_numeric) || sentence.starts_with("among them"),
            "{sentence:?} has no figure"
        );
    }
    for condition in ["n", "percentile", "prefix_cache", "model", "adapter", "slots"] {
        assert!(
            !diagnosis["conditions"][condition].is_null(),
            "{condition} stands beside: {}",
            diagnosis["conditions"]
        );
    }
    found
}

fn says(found: &Value, words: &str) {
    assert!(found.to_string().contains(words), "{words:?} is not in {found:#}");
}

/// What a person would keep of a server for later: its lists and its report in one file.
fn kept(server: &Server, last: usize) -> (Scratch, PathBuf) {
    let folder = Scratch::new();
    let file = folder.join("earlier.json");
    let list = |path: &str, name: &str| server.get(path).1[name].clone();
    let all = json!({
        "timelines": list(&format!("/v1/timelines?last={last}"), "timelines"),
        "steps": list("/v1/steps?last=4096", "steps"),
        "report": server.get("/v1/report").1,
    });
    std::fs::write(&file, all.to_string()).expect("the temporary folder is writable");
    (folder, file)
}

//! `firstlight diagnose` as a script and a person see it: what it reads, what it prints, and one sentence for what is none.

use firstlight_tests::default_model_path;
use serde_json::{Value, json};

use super::stages;
use crate::cli::{Ended, Scratch, end, firstlight, sentences};

/// Runs it with these words.
fn run(line: &[&str]) -> Ended {
    let words: Vec<&str> = ["diagnose"].into_iter().chain(line.iter().copied()).collect();
    end(&mut firstlight(&Scratch::new(), &words))
}

/// Its outcome as JSON, which must be all of stdout.
pub fn diagnose_json(line: &[&str]) -> Value {
    let ended = run(&[line, &["--json"]].concat());
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    serde_json::from_str(&ended.stdout).expect("the outcome is one JSON value")
}

fn check_refused(line: &[&str], code: i32, parts: &[&str]) {
    let ended = run(line);
    assert_eq!((ended.code, ended.stdout.as_str()), (Some(code), ""), "{line:?}: {}", ended.stderr);
    assert_eq!(sentences(&ended).len(), 1, "one sentence: {}", ended.stderr);
    for part in parts {
        assert!(ended.stderr.contains(part), "{part:?} is not in {}", ended.stderr);
    }
}

#[test]
fn a_bench_is_read_and_printed_for_a_person() {
    let folder = Scratch::new();
    let file = folder.join("bench.json").to_string_lossy().into_owned();
    let load = [
        "--rate",
        "40",
        "--requests",
        "28",
        "--prompt-tokens",
        "10",
        "--output-tokens",
        "4",
        "--repeats",
        "1",
    ];
    let line = [&["bench", "--json", &file, "--slots", "2", "--max-model-len", "256"], &load[..]].concat();
    let ended = end(firstlight(&folder, &line).env("FIRSTLIGHT_MODEL_FILE", default_model_path()));
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    let diagnosis = diagnose_json(&[&file]);
    assert_eq!(stages(&diagnosis).first(), Some(&"queue"), "{diagnosis:#}");
    let text = run(&[&file]);
    assert_eq!((text.code, text.stderr.as_str()), (Some(0), ""));
    for part in [
        "now: 28 requests, 28 of them answered; ",
        "2 slots; p50 and p95; prefix cache on; ",
        "look at: queue (",
        "because the batch was full",
        "look at: over capacity",
        "Checked, and nothing stands out:",
        "Not asked:",
    ] {
        assert!(text.stdout.contains(part), "{part:?} is not in\n{}", text.stdout);
    }
    // A few of them are too few, and it says so.
    let few = run(&[&file, "--last", "5"]).stdout;
    assert!(few.contains("too little to tell: 5 answered requests"), "{few}");
    check_refused(&[&file, "--case", "no such"], 2, &["no case \"no such\"", "\"rate\""]);
    check_refused(&[&file, "--last", "28", "--baseline-last", "4"], 2, &["lower --last"]);
    check_refused(&[&file, "--probe", "2"], 2, &["--probe 2 asks a server"]);
}

#[test]
fn what_is_no_report_is_told_in_one_sentence() {
    let folder = Scratch::new();
    let file = folder.join("x.json");
    let name = file.to_string_lossy().into_owned();
    let check_text = |text: &str, parts: &[&str]| {
        std::fs::write(&file, text).expect("the temporary folder is writable");
        check_refused(&[&name], 1, parts);
    };
    check_text("no JSON", &["is not what it should be"]);
    check_text("{}", &["has no timelines", "bench --json"]);
    check_text(&json!({ "schema": "firstlight.report/1" }).to_string(), &["\"firstlight.report/1\""]);
    check_text(&json!({ "timelines": [] }).to_string(), &["no finished request"]);
    check_text(&json!({ "timelines": [{ "schema": "other/1" }] }).to_string(), &["other/1"]);
    check_text(&json!({ "repeats": [{ "case": "a" }] }).to_string(), &["is not what it should be"]);
    check_refused(&["no-such-file.json"], 2, &["no file \"no-such-file.json\"", "no URL"]);
    check_refused(&[&name, "--baseline-last", "3"], 2, &["--last"]);
    check_refused(&["http://127.0.0.1:1"], 1, &["cannot be asked", "127.0.0.1:1"]);
    check_refused(&["http://a b"], 2, &["a b"]);
}

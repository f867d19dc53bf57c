//! `firstlight budget` and the costs that `firstlight doctor` measures, as a script sees them. Runs the real binary.

use firstlight_tests::{default_model_path, full};
use serde_json::Value;

use crate::cli::{Ended, Scratch, check, end, firstlight};

fn run(folder: &Scratch, line: &[&str]) -> Ended {
    end(firstlight(folder, line).env("FIRSTLIGHT_MODEL_FILE", default_model_path()))
}

fn json(ended: &Ended) -> Value {
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    serde_json::from_str(&ended.stdout).expect("stdout is one object")
}

fn number(value: &Value) -> f64 {
    value.as_f64().unwrap_or_else(|| panic!("{value} is no number"))
}

fn list(value: &Value) -> &[Value] {
    value.as_array().unwrap_or_else(|| panic!("{value} is no list"))
}

fn reference(flags: &[&str]) -> Value {
    let line = [&["budget", "--reference", "--json"], flags].concat();
    json(&run(&Scratch::new(), &line))
}

#[test]
fn the_reference_stack_gives_the_published_figures() {
    let check = |what: &str, got: f64, expected: f64| {
        assert!((got / expected - 1.0).abs() < 0.1, "{what}: {got} for {expected}");
    };
    let short = reference(&[]);
    assert_eq!(short["schema"], "firstlight.budget/1");
    check("prefill of 2,000 tokens", number(&short["prefill"]["ns"]), 86e6);
    check("a step", number(&short["step"]["ns"]), 6e6);
    check("300 tokens", number(&short["decode_ns"]), 1.8e9);
    check("the request", number(&short["total_ns"]), 1.883e9);
    check("decode's share", 1.0 - number(&short["prefill_share"]), 0.95);
    check("ridge", number(&short["ridge"]), 150.0);
    check("keys and values", number(&short["room"]["prompt_bytes"]) / f64::from(1 << 30), 0.24);
    let long = reference(&["--prompt-tokens", "32768", "--output-tokens", "1"]);
    check("prefill of 32,768 tokens", number(&long["prefill"]["ns"]), 2.8e9);
    check("half of it", number(&long["prefill"]["quadratic_ns"]) / number(&long["prefill"]["ns"]), 0.5);
    let users = reference(&["--average-tokens", "2270"]);
    assert_eq!(
        (&users["room"]["users_worst_case"], &users["room"]["users_paged"]),
        (&53.into(), &191.into())
    );
    // 74% stands in print; steps of 6 ms give 43%.
    let few = number(&reference(&["--output-tokens", "20"])["prefill_share"]);
    assert!((0.42..0.44).contains(&few), "{few}");
    let halved = reference(&["--weight-bits", "8", "--kv-bits", "8"]);
    check("a step of 8 bits", number(&halved["step"]["ns"]), 3e6);
    let text = run(&Scratch::new(), &["budget", "--reference"]).stdout;
    assert!(text.contains("twelve stages") && text.contains("where the lines bend"), "{text}");
    assert!(text.lines().all(|line| line.chars().count() <= 100), "{text}");
}

#[test]
fn costs_are_measured_kept_and_read_and_a_budget_is_made_of_them() {
    let folder = Scratch::new();
    // Few classes, so that it is short.
    let room = ["--slots", "2", "--batch-tokens", "16", "--max-model-len", "128"];
    let report = json(&run(&folder, &[&["doctor", "--json"], &room[..]].concat()));
    let costs = &report["costs"];
    assert_eq!(costs["schema"], "firstlight.costs/1");
    let rows: Vec<u64> = list(&costs["rows"]).iter().filter_map(|class| class["rows"].as_u64()).collect();
    assert_eq!(rows, [1, 2, 4, 8, 16], "{costs}");
    assert!(list(&costs["rows"]).iter().all(|class| class["ns"].as_u64() > Some(0)), "{costs}");
    assert!(costs["dispatches"].as_u64() > Some(30), "{costs}");

    let small = [&["--prompt-tokens", "100", "--output-tokens", "28"], &room[..]].concat();
    let kept = run(&folder, &[&["budget", "--json"], &small[..]].concat());
    assert!(!kept.stderr.contains("measuring"), "what the doctor kept is used: {}", kept.stderr);
    let kept = json(&kept);
    let file = folder.join("report.json");
    std::fs::write(&file, report.to_string()).expect("the folder is writable");
    let named = ["--costs", &file.to_string_lossy()];
    let named = json(&run(&folder, &[&["budget", "--json"], &named[..], &small[..]].concat()));
    assert_eq!(kept, named, "kept and named costs are the same");
    assert_eq!((kept["measured"].as_bool(), list(&kept["stages"]).len()), (Some(true), 12));
    assert!(
        (number(&kept["prefill"]["ns"]) + number(&kept["decode_ns"]) - number(&kept["total_ns"])).abs() < 1.0
    );
    // 27 steps of one row, each no shorter than the row's own cost.
    let row = number(&costs["rows"][0]["ns"]);
    assert!(number(&kept["decode_ns"]) >= 27.0 * row, "{kept}");

    // A trace has no steps: what the doctor kept tells what they cost, of the engine that the variables describe.
    let trace = folder.join("trace.csv");
    std::fs::write(&trace, "arrival_s,prompt_tokens,output_tokens\n0,16,4\n")
        .expect("the folder is writable");
    let trace = trace.to_string_lossy();
    let mut replay = firstlight(&folder, &["what-if", "--json", "--trace", &trace]);
    replay.env("FIRSTLIGHT_MODEL_FILE", default_model_path());
    let room =
        [("FIRSTLIGHT_SLOTS", "2"), ("FIRSTLIGHT_BATCH_TOKENS", "16"), ("FIRSTLIGHT_MAX_MODEL_LEN", "128")];
    let replayed = json(&end(replay.envs(room)));
    let ttft = number(&list(&replayed["predictions"])[0]["mean_engine_ttft_ns"]);
    assert!(ttft >= row, "a prompt takes no less than a row does: {ttft} for {row}");
}

#[test]
fn predictions_stand_beside_what_is_measured() {
    let folder = Scratch::new();
    let (repeats, slots) = if full() { ("5", "12") } else { ("1", "3") };
    let line =
        ["budget", "--check", "--json", "--repeats", repeats, "--slots", slots, "--batch-tokens", "64"];
    let result = json(&run(&folder, &[&line[..], &["--max-model-len", "320"]].concat()));
    assert_eq!(result["schema"], "firstlight.budget-check/1");
    let points = list(&result["points"]);
    assert!(points.len() >= 6, "3 sequences, 2 contexts, 3 prompts: {points:#?}");
    for point in points {
        let off = number(&point["predicted_ns"]) / number(&point["measured_ns"]) - 1.0;
        assert!((off - number(&point["error"])).abs() < 1e-9, "{point:#?}");
        // One turn beside other tests measures nothing that a prediction could be held to.
        assert!(!full() || off.abs() < 0.25, "{point:#?}");
    }
}

#[test]
fn wrong_flags_are_told_in_a_sentence() {
    let folder = Scratch::new();
    let bad = folder.join("bad.json");
    std::fs::write(&bad, "{}").expect("the folder is writable");
    let model = default_model_path().to_string_lossy().into_owned();
    let check = |line: &[&str], part: &str| {
        check(&[&["budget"], line].concat(), &[("FIRSTLIGHT_MODEL_FILE", &model)], 2, part);
    };
    check(&["--weight-bits", "4"], "--reference");
    check(&["--reference", "--kv-bits", "0"], "from 1 to 64");
    check(&["--reference", "--batch", "0"], "whole number");
    check(&["--prompt-tokens", "9000"], "takes 8192");
    check(&["--check", "--reference"], "--check");
    check(&["--costs", "/nonexistent.json"], "cannot be read");
    check(&["--costs", &bad.to_string_lossy()], "firstlight.costs/1");
}

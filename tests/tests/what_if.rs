//! `firstlight what-if` as a script sees it: what was recorded is replayed as it was, another setting's burst comes out as it is
//! measured, and an hour of a service is replayed under several settings.

use std::path::{Path, PathBuf};

use firstlight_tests::{default_model_path, full};
use serde_json::{Value, json};

use crate::cli::{Scratch, check, end, firstlight};

/// One hour of a conversation service; see the README beside it.
fn azure_hour() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("traces").join("azure-llm-2023-conv.csv")
}

/// Costs like those of a large GPU with a model of some 8 billion weights: 6 ms a step, 40 us a row of a prompt.
fn costs() -> Value {
    let class = |rows: u32, ns: u64| json!({ "rows": rows, "ns": ns });
    json!({
        "schema": "firstlight.costs/1", "model": "made up", "adapter": "a made-up GPU", "activations": "f32",
        "kv_cache": "f16", "runs_ahead": false, "dispatches": 300, "dispatch_ns": 1000,
        "rows": [class(1, 6_000_000), class(8, 6_100_000), class(64, 6_900_000), class(512, 22_000_000)],
        "head": [class(1, 100_000), class(64, 400_000)],
        "decode_attention": [class(1, 40_000), class(64, 20_000)],
        "prompt_attention": [class(16, 4_000), class(512, 1_000)],
        "host": [class(1, 50_000), class(64, 200_000)],
    })
}

fn what_if(line: &[&str]) -> Value {
    let cache = Scratch::new();
    let line: Vec<&str> = ["what-if", "--json"].iter().chain(line).copied().collect();
    let ended = end(&mut firstlight(&cache, &line));
    assert_eq!(ended.code, Some(0), "{line:?}: {}", ended.stderr);
    let result: Value = serde_json::from_str(&ended.stdout).expect("stdout is one JSON object");
    assert_eq!(result["schema"], "firstlight.what-if/1");
    result
}

/// One run of a burst.
fn burst(slots: u32, repeats: &str, prompt_tokens: &str, output_tokens: &str) -> Value {
    let cache = Scratch::new();
    let scenario = format!("burst-8x{slots}");
    let line = ["bench", "--json", "--scenario", &scenario, "--repeats", repeats, "--max-model-len", "256"];
    let mut command = firstlight(&cache, &line);
    command.args(["--prompt-tokens", prompt_tokens, "--output-tokens", output_tokens]);
    command.env("FIRSTLIGHT_MODEL_FILE", default_model_path());
    let ended = end(&mut command);
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    serde_json::from_str(&ended.stdout).expect("stdout is one JSON object")
}

fn write(folder: &Scratch, name: &str, value: &Value) -> String {
    let path = folder.join(name);
    std::fs::write(&path, value.to_string()).expect("the temporary folder is writable");
    path.to_string_lossy().into_owned()
}

fn figure(value: &Value, pointer: &str) -> f64 {
    let found = value.pointer(pointer).and_then(Value::as_f64);
    found.unwrap_or_else(|| panic!("{pointer} is a number in {value:#}"))
}

fn predictions(result: &Value) -> &Vec<Value> {
    result["predictions"].as_array().expect("a list")
}

/// The sum of all whole numbers in a tree.
fn leaves(value: &Value) -> u64 {
    match value {
        Value::Object(fields) => fields.values().map(leaves).sum(),
        other => other.as_u64().unwrap_or(0),
    }
}

/// The parts of a prediction sum like those of a measurement.
fn check_sums(prediction: &Value) {
    let sums = &prediction["report"]["engine_ttft_parts"];
    assert_eq!(leaves(&sums["parts"]), sums["engine_ttft"].as_u64().expect("a sum"), "to the nanosecond");
    assert_eq!(prediction["report"]["refused_broken"], 0);
}

#[test]
fn a_burst_on_other_slots_comes_out_as_it_is_measured() {
    // Real runs and their predictions from the same minutes: whatever else the machine does, both have it.
    let turns = if full() { 5 } else { 2 };
    let (prompt, output) = if full() { ("64", "32") } else { ("24", "12") };
    let mut recorded = [2, 4].map(|slots| (slots, Vec::new()));
    let mut last = [Value::Null, Value::Null];
    for _ in 0..turns {
        for (idx, (slots, runs)) in recorded.iter_mut().enumerate() {
            let result = burst(*slots, if full() { "1" } else { "2" }, prompt, output);
            runs.extend(result["repeats"].as_array().expect("runs").clone());
            last[idx] = result;
        }
    }
    let folder = Scratch::new();
    let files: Vec<String> = (recorded.iter().zip(last))
        .map(|((slots, runs), mut result)| {
            result["repeats"] = runs.clone().into();
            write(&folder, &format!("{slots}.json"), &result)
        })
        .collect();
    for (from, to, slots) in [(0, 1, "4"), (1, 0, "2")] {
        let result = what_if(&["--trace", &files[from], "--compare", &files[to], "--slots", slots]);
        predictions(&result).iter().for_each(check_sums);
        let error = |pointer: &str| figure(&result["compared"]["predicted"]["error"], pointer);
        let (mean, queue) = (error("/mean_ttft"), error("/queue_share"));
        let share = figure(&result["compared"]["measured"], "/shares/1");
        let (spread, own) = (error("/spread"), figure(&result, "/self_error/mean_ttft"));
        println!(
            "to {slots} slots: mean TTFT {:+.1} %, queue share {share:.3} {:+.1} points; real runs differ by {:.1} %; itself {:+.1} %",
            mean * 100.0,
            queue * 100.0,
            spread * 100.0,
            own * 100.0
        );
        // Both within 15 %, or within the spread of the real runs where that is larger: of either side, because what was
        // recorded is as uncertain as what it is compared with.
        let other = spread_of(&recorded[from].1);
        let bound: f64 = if full() { 0.15 } else { 0.30 };
        let bound = bound.max(spread).max(other);
        assert!(mean.abs() <= bound, "{mean} of at most {bound}");
        assert!((queue / share).abs() <= bound, "{queue} of {share}, at most {bound}");
    }
}

/// Greatest mean over least, less 1.
fn spread_of(runs: &[Value]) -> f64 {
    let means = || runs.iter().map(|run| figure(run, "/report/engine_ttft_parts/mean"));
    means().fold(0.0, f64::max) / means().fold(f64::INFINITY, f64::min) - 1.0
}

#[test]
fn a_recording_is_replayed_as_it_was_and_the_same_each_time() {
    let recorded = burst(2, "2", "16", "6");
    let folder = Scratch::new();
    let file = write(&folder, "2.json", &recorded);
    let result = what_if(&["--trace", &file]);
    let again = what_if(&["--trace", &file]);
    assert_eq!(predictions(&result), predictions(&again), "the same replay each time");
    // One step of a burst more or less would be a fifth of it.
    let own = figure(&result, "/self_error/mean_ttft");
    assert!(own.abs() < 0.2, "{own}");
    let (measured, replayed) = (&result["measured"], &predictions(&result)[0]);
    for pointer in
        ["/report/n", "/report/tokens/prompt", "/report/tokens/generated", "/report/tokens/computed"]
    {
        assert_eq!(measured.pointer(pointer), replayed.pointer(pointer), "{pointer}");
    }
    check_sums(replayed);
    // What a server answers says no settings; its steps tell them.
    let run = &recorded["repeats"][0];
    let timelines = write(&folder, "timelines.json", &json!({ "timelines": run["timelines"] }));
    let steps = write(&folder, "steps.json", &json!({ "steps": run["steps"] }));
    let lists = ["--trace", &timelines, "--steps", &steps, "--slots", "2,8", "--prefix-cache", "on,off"];
    let result = what_if(&lists);
    assert_eq!(result["recorded"]["slots"], 2);
    assert_eq!(predictions(&result).len(), 4);
    let queued = |row: usize| figure(&predictions(&result)[row], "/shares/1");
    assert!(queued(0) > 0.3 && queued(2) < 0.01, "eight slots leave nobody waiting");
    // A person sees the error beside every prediction.
    let cache = Scratch::new();
    let line = ["what-if", "--trace", &file, "--slots", "2,4", "--compare", &file];
    let ended = end(&mut firstlight(&cache, &line));
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    let lines: Vec<&str> = ended.stdout.lines().collect();
    assert!(lines[1].starts_with("error: replayed under its own settings"), "{}", ended.stdout);
    for label in ["2 slots", "4 slots"] {
        let row = lines.iter().find(|line| line.starts_with(label)).expect("a row");
        assert!(row.contains('±'), "{row}");
    }
    assert!(lines[2..].iter().all(|line| line.chars().count() <= 100), "{}", ended.stdout);
}

#[test]
fn an_hour_of_a_service_is_replayed_under_several_settings() {
    let folder = Scratch::new();
    let costs = write(&folder, "costs.json", &costs());
    let trace = azure_hour();
    let path = trace.to_string_lossy();
    let slots = if full() { "32,64,128,256" } else { "64,256" };
    let result = what_if(&[
        "--trace",
        &path,
        "--costs",
        &costs,
        "--slots",
        slots,
        "--batch-tokens",
        "512",
        "--kv-blocks",
        "60000",
    ]);
    assert_eq!(result["requests"], 19_366);
    let rows = predictions(&result);
    println!("{} replays of 19,366 requests in {:.1} s", rows.len(), figure(&result, "/seconds"));
    for row in rows {
        check_sums(row);
        let report = &row["report"];
        assert_eq!((figure(report, "/n"), figure(row, "/cut_short")), (19_366.0, 0.0));
        let answered = figure(report, "/n_answered") + figure(report, "/finish_reasons/rejected");
        assert_eq!(answered, 19_366.0);
        assert!(figure(row, "/wall_ns") > 3.4e12, "an hour is an hour");
        println!(
            "{}: mean {:.2} s, queue share {:.3}, {:.0} tokens/s",
            row["label"],
            figure(row, "/mean_engine_ttft_ns") / 1e9,
            figure(row, "/shares/1"),
            figure(row, "/output_tokens_per_s")
        );
    }
    let (few, many) = (&rows[0], &rows[rows.len() - 1]);
    assert!(figure(few, "/shares/1") >= figure(many, "/shares/1"), "more slots, less of a queue");
    assert_eq!(result["self_error"], Value::Null, "nothing was measured, and nothing is claimed");
}

#[test]
fn bad_input_is_one_sentence() {
    let folder = Scratch::new();
    let file = |name: &str, text: &str| {
        let path = folder.join(name);
        std::fs::write(&path, text).expect("the temporary folder is writable");
        path.to_string_lossy().into_owned()
    };
    let csv = file("t.csv", "arrival_s,prompt_tokens,output_tokens\n0,4,2\n1,4,2\n");
    check(&["what-if"], &[], 2, "--trace");
    check(&["what-if", "--trace", "/nowhere/t.json"], &[], 2, "/nowhere/t.json");
    check(&["what-if", "--trace", &csv], &[], 2, "nothing says what a step costs");
    check(&["what-if", "--trace", &csv, "--costs", &csv], &[], 2, "has none");
    check(&["what-if", "--trace", &csv, "--slots", "2,x"], &[], 2, "--slots is \"x\"");
    check(&["what-if", "--trace", &csv, "--requests", "3"], &[], 2, "has 2 requests");
    check(&["what-if", "--trace", &file("a.json", "{")], &[], 2, "no recording");
    check(&["what-if", "--trace", &file("b.json", "{}")], &[], 2, "neither repeats nor timelines");
    let empty = file("c.json", "{\"timelines\": []}");
    check(&["what-if", "--trace", &empty], &[], 2, "no request that was answered");
    let other = file("d.json", "{\"schema\": \"x\", \"repeats\": []}");
    check(&["what-if", "--trace", &other], &[], 2, "firstlight.bench/1");
    let costs = file("costs.json", &costs().to_string());
    let small = ["what-if", "--trace", &csv, "--costs", &costs, "--kv-memory", "10"];
    check(&small, &[], 2, "one block of 16 tokens takes");
    let compared = ["what-if", "--trace", &csv, "--costs", &costs, "--compare", &csv];
    check(&compared, &[], 2, "nothing was measured");
}

//! `firstlight trace` on the default model: twelve stages that sum, one object as JSON, and a trace that a viewer can open.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

use firstlight_tests::default_model_path;
use serde_json::Value;

use crate::cli::binary;

struct Ended {
    code: Option<i32>,
    stdout: String,
    stderr: String,
}

/// `firstlight trace` with `line`, in a folder of its own that is gone afterwards; also what `--perfetto` wrote there.
fn trace(name: &str, line: &[&str]) -> (Ended, Value) {
    let folder = std::env::temp_dir().join(format!("firstlight-trace-{name}-{}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("the temporary folder is writable");
    let file = folder.join("trace.json");
    let ended = run(&folder, &[&["--perfetto", &file.to_string_lossy()], line].concat());
    let written = std::fs::read(&file).expect("the trace is there");
    let _ = std::fs::remove_dir_all(&folder);
    let all = format!("{line:?}\n{}\n{}", ended.stdout, ended.stderr);
    (ended, serde_json::from_slice(&written).unwrap_or_else(|error| panic!("{error}: {all}")))
}

fn run(folder: &Path, line: &[&str]) -> Ended {
    let mut command = Command::new(binary());
    let settings = std::env::vars_os().map(|(name, _)| name);
    settings.filter(|name| name.to_string_lossy().starts_with("FIRSTLIGHT_")).for_each(|name| {
        command.env_remove(name);
    });
    command.env("FIRSTLIGHT_AUTOTUNE", "off");
    command.env("FIRSTLIGHT_CACHE", folder).env("FIRSTLIGHT_MODEL_FILE", default_model_path());
    let output = command.arg("trace").args(line).output().expect("the binary starts");
    let text = |bytes| String::from_utf8(bytes).expect("UTF-8");
    Ended { code: output.status.code(), stdout: text(output.stdout), stderr: text(output.stderr) }
}

fn integer(value: &Value) -> u64 {
    value.as_u64().unwrap_or_else(|| panic!("{value} is no whole number"))
}

fn list(value: &Value) -> &[Value] {
    value.as_array().unwrap_or_else(|| panic!("{value} is no list"))
}

/// The sums of a table, and what each row must say.
fn check_rows(object: &Value) {
    let rows = list(&object["rows"]);
    let stages: Vec<u64> = rows.iter().map(|row| integer(&row["stage"])).collect();
    assert_eq!(stages, (1..=12).collect::<Vec<u64>>());
    let top = rows.iter().filter(|row| row["inside"].is_null());
    assert_eq!(top.map(|row| integer(&row["ns"])).sum::<u64>(), integer(&object["e2e"]), "{object:#}");
    assert_eq!(object["e2e"], object["timeline"]["e2e"]);
    assert!(rows.iter().all(|row| row["bound"].as_str().is_some_and(|bound| !bound.is_empty())));
    let within: Vec<u64> =
        rows.iter().filter(|row| row["inside"] == 7).map(|row| integer(&row["stage"])).collect();
    assert_eq!(within, [5, 6, 8, 9]);
    let inner: u64 = rows.iter().filter(|row| row["inside"] == 7).filter_map(|row| row["ns"].as_u64()).sum();
    assert!(inner <= integer(&rows[6]["ns"]), "what lies within the prefill is no longer than it: {rows:#?}");
}

/// A viewer's rules: every span that begins ends, nothing is negative, and there are counters. The number of requests.
fn check_viewable(trace: &Value) -> usize {
    let events = list(&trace["traceEvents"]);
    let mut open: BTreeMap<String, Vec<String>> = BTreeMap::new();
    let (mut requests, mut counters, mut steps) = (std::collections::BTreeSet::new(), 0, 0);
    for event in events {
        let at = event["ts"].as_f64().expect("an instant");
        assert!(at >= 0.0, "{event}");
        let name = event["name"].as_str().expect("a name").to_owned();
        let span = format!("{}/{}", event["cat"], event["id"]);
        match event["ph"].as_str().expect("a phase") {
            "b" => {
                requests.insert(event["id"].to_string());
                open.entry(span).or_default().push(name);
            }
            "e" => assert_eq!(open.get_mut(&span).and_then(Vec::pop), Some(name), "{event}"),
            "X" => {
                assert!(event["dur"].as_f64().expect("a duration") >= 0.0, "{event}");
                steps += 1;
            }
            "C" => counters += 1,
            _ => {}
        }
    }
    assert!(open.values().all(Vec::is_empty), "these stay open: {open:?}");
    assert!(steps > 0 && counters >= steps, "{steps} steps, {counters} values of counters");
    requests.len()
}

#[test]
fn json_has_rows_that_sum_and_perfetto_gets_all_requests() {
    let line = ["--json", "--beside", "2", "--slots", "2", "--max-tokens", "5"];
    let (ended, perfetto) = trace("json", &line);
    let all = format!("{}\n{}", ended.stdout, ended.stderr);
    assert_eq!(
        (ended.code, ended.stdout.lines().count()),
        (Some(0), 1),
        "one object and nothing else: {all}"
    );
    let object: Value = serde_json::from_str(&ended.stdout).expect("JSON");
    assert_eq!(object["schema"], "firstlight.trace/1");
    check_rows(&object);
    assert_eq!(check_viewable(&perfetto), 3);
    let timeline = &object["timeline"];
    assert_eq!((&timeline["profiled"], &object["adapter"]["timestamps"]), (&true.into(), &true.into()));
    assert_eq!(integer(&timeline["tokens"]["generated"]), 5);
    // The adapter's clock timed every step, and the rows inside are those of this request's own steps.
    let (steps, rows) = (list(&object["steps"]), list(&object["rows"]));
    assert!(steps.iter().all(|step| step["stages"]["layers_ns"].as_u64() > Some(0)), "{steps:?}");
    let first = integer(&timeline["stamps"]["first_token"]);
    let id = &timeline["engine_id"];
    let own = |step: &&Value| {
        integer(&step["done_at"]) <= first && list(&step["prefill"]).iter().any(|entry| entry[0] == *id)
    };
    let embedding: u64 = steps.iter().filter(own).map(|step| integer(&step["stages"]["embed_ns"])).sum();
    assert_eq!(integer(&rows[5]["ns"]), embedding);
    assert!(embedding > 0 && rows[7]["ns"].as_u64() > Some(0), "{rows:#?}");
    let text = object["text"].as_str().expect("an answer");
    assert_eq!(rows[9]["bytes_out"], text.len() as u64);
    assert_eq!(integer(&object["slowest_gap"]["gap"]), {
        let at: Vec<u64> = list(&timeline["token_at"]).iter().map(integer).collect();
        at.windows(2).map(|pair| pair[1] - pair[0]).max().expect("five tokens have gaps")
    });
}

#[test]
fn without_timestamps_the_rows_of_the_adapter_s_clock_say_so() {
    let line = ["--json", "--default-limits", "--max-tokens", "2", "--raw", "--prompt", "The sky"];
    let (ended, perfetto) = trace("bare", &line);
    let object: Value =
        serde_json::from_str(&ended.stdout).unwrap_or_else(|e| panic!("{e}: {}", ended.stderr));
    check_rows(&object);
    assert_eq!(check_viewable(&perfetto), 1);
    let rows = list(&object["rows"]);
    for row in [&rows[5], &rows[7]] {
        assert_eq!((&row["ns"], &row["bound"]), (&Value::Null, &"not measured on this adapter".into()));
    }
    assert_eq!(rows[1]["bound"], "no template");
    assert!(object["timeline"].get("profiled").is_none_or(|profiled| *profiled == false));
}

#[test]
fn a_person_gets_the_answer_and_a_table_of_a_hundred_columns() {
    let (ended, _) = trace("table", &["--max-tokens", "4"]);
    let all = format!("{}\n{}", ended.stdout, ended.stderr);
    assert_eq!(ended.code, Some(0), "{all}");
    assert!(ended.stdout.lines().all(|line| line.chars().count() <= 100), "{all}");
    let stage = |name: &str| {
        ended.stdout.lines().find(|line| line.contains(name)).is_some_and(|line| line.contains(" "))
    };
    for name in [
        " 1  parse",
        " 2  chat template",
        " 3  tokenise",
        " 4  admission (wait)",
        " 5  ┌ KV blocks, prefix match",
        " 6  ├ embedding",
        " 7  prefill",
        " 8  ├ output head",
        " 9  └ sample",
        "10  detokenise + stream out",
        "11  decode loop",
        "12  teardown",
        "end to end",
        "TTFT ",
        "slowest gap",
        "profiled: ",
    ] {
        assert!(stage(name), "{name:?} is missing: {all}");
    }
    // The times of the outer rows sum to the last one as they are printed.
    let shown = |line: &str| -> Option<u64> {
        let cell: String = line.chars().skip(29).take(11).collect();
        let digits: String = cell.trim().chars().filter(|c| *c != '.').collect();
        digits.parse().ok()
    };
    let table: Vec<&str> =
        ended.stdout.lines().skip_while(|line| !line.contains("bounded by")).skip(1).take(13).collect();
    let (last, rows) = table.split_last().expect("a table");
    assert_eq!(rows.iter().filter_map(|line| shown(line)).sum::<u64>(), shown(last).unwrap_or(0), "{all}");
}

#[test]
fn a_request_that_is_refused_has_a_table_and_an_exit_code() {
    let (ended, perfetto) = trace("refused", &["--json", "--max-model-len", "8"]);
    assert_eq!(ended.code, Some(1), "{}", ended.stderr);
    let object: Value = serde_json::from_str(&ended.stdout).expect("JSON");
    check_rows(&object);
    assert_eq!(object["timeline"]["finish_reason"], "rejected");
    assert_eq!(list(&object["steps"]).len(), 0);
    assert!(perfetto["traceEvents"].is_array());
    let folder = std::env::temp_dir();
    let ended = run(&folder, &["--perfetto", "/nowhere/trace.json"]);
    assert_eq!((ended.code, ended.stdout.as_str()), (Some(1), ""), "told before the model is loaded");
    assert!(ended.stderr.contains("/nowhere/trace.json"), "{}", ended.stderr);
    let ended = run(&folder, &["--prompt", " "]);
    assert_eq!((ended.code, ended.stdout.as_str()), (Some(2), ""), "{}", ended.stderr);
}

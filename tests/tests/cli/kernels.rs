//! Which kernels a command gets: those that a file pins, those that won a trial, those of the adapter's facts.

use std::path::Path;
use std::process::Command;

use firstlight_tests::golden_path;
use serde_json::{Value, json};

use super::{Ended, Scratch, check, end, firstlight};

/// An answer of three tokens from a model of 160,000 weights, with further words.
fn tiny_run(cache: &Scratch, line: &[&str]) -> Command {
    let mut command =
        firstlight(cache, &["run", "--ids", "5,7,11", "--max-tokens", "3", "--json", "--model"]);
    command.arg(golden_path("arch/llama3")).args(line);
    command
}

fn tokens(ended: &Ended) -> Value {
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    let answer: Value = serde_json::from_str(&ended.stdout).expect("stdout is one JSON object");
    answer["tokens"].clone()
}

#[test]
fn a_file_that_pins_no_kernels_is_one_sentence() {
    let folder = Scratch::new();
    let file = folder.join("kernels.json");
    let name = file.to_str().expect("the temporary folder's name is text");
    let model = golden_path("arch/llama3");
    let model = model.to_str().expect("the checkout's name is text");
    let line = ["run", "--ids", "5", "--model", model, "--kernels", name];
    check(&line, &[], 2, "cannot be read");
    for (text, part) in [
        ("weights", "it is no JSON"),
        ("[]", "it has no kernels in it"),
        (r#"{"weights": "heap"}"#, "weights is \"heap\"; it must be buffer or texture"),
        (r#"{"home": "buffer"}"#, "\"home\" is no part of a choice"),
        (r#"{"matmul": "split", "weights": "texture"}"#, "weights and work must be buffer"),
    ] {
        std::fs::write(&file, text).expect("the temporary folder is writable");
        check(&line, &[], 2, part);
        check(&line[..5], &[("FIRSTLIGHT_KERNELS", name)], 2, part);
    }
    check(&["run", "--ids", "5", "--autotune", "maybe"], &[], 2, "it must be auto, on, again or off");
}

#[test]
fn pinned_kernels_are_those_in_use_and_give_the_same_tokens() {
    let cache = Scratch::new();
    let by_facts = end(&mut tiny_run(&cache, &[]));
    let file = cache.join("kernels.json");
    let name = file.to_str().expect("the temporary folder's name is text");
    for (pin, shown) in [
        (json!({ "weights": "buffer", "work": "buffer" }), "weights in buffers, "),
        (json!({ "chosen": { "choice": { "subgroups": "off", "work": "buffer" } } }), "without subgroups"),
    ] {
        std::fs::write(&file, pin.to_string()).expect("the temporary folder is writable");
        let pinned = end(&mut tiny_run(&cache, &["--kernels", name]));
        assert!(pinned.stderr.contains(shown), "{pin}: {}", pinned.stderr);
        assert_eq!(tokens(&pinned), tokens(&by_facts), "{pin}");
    }
}

/// The only file in the folder of kept trials.
fn kept(cache: &Scratch) -> std::path::PathBuf {
    let folder = cache.join("firstlight/kernels");
    let files: Vec<_> = std::fs::read_dir(&folder)
        .unwrap_or_else(|error| panic!("{}: {error}", folder.display()))
        .flatten()
        .map(|entry| entry.path())
        .collect();
    assert_eq!(files.len(), 1, "{files:?}");
    files[0].clone()
}

fn read(path: &Path) -> Value {
    let text = std::fs::read(path).expect("it was kept");
    serde_json::from_slice(&text).expect("what was kept is JSON")
}

#[test]
fn a_trial_runs_once_and_its_winner_is_remembered() {
    let cache = Scratch::new();
    let tried = |line: &[&str]| {
        let ended = end(&mut tiny_run(&cache, line));
        (tokens(&ended), ended.stderr.contains("trying"), ended.stderr)
    };
    let (first, was_tried, stderr) = tried(&["--autotune", "on"]);
    assert!(was_tried, "{stderr}");
    let mut trial = read(&kept(&cache));
    let trials = trial["trials"].as_array().expect("trials");
    assert!(trials.len() > 1, "{trial:#}");
    assert!(trials.iter().all(|one| one["decode_ns"].as_u64() > Some(0)), "{trial:#}");

    // What is kept decides: one that wins by hand is the one in use.
    trial["choice"] = json!({ "weights": "buffer", "work": "buffer" });
    std::fs::write(kept(&cache), trial.to_string()).expect("it is writable");
    for (line, expected) in
        [(["--autotune", "on"], true), (["--autotune", "auto"], true), (["--autotune", "off"], false)]
    {
        let (again, was_tried, stderr) = tried(&line);
        assert!(!was_tried, "{line:?}: {stderr}");
        // Off is by the adapter's facts, which a CPU driver answers with textures.
        let in_buffers = stderr.contains("weights in buffers, ");
        assert!(in_buffers || !expected, "{line:?}: {stderr}");
        assert_eq!(again, first, "{line:?}");
    }
}

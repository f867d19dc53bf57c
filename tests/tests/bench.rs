//! `firstlight bench` as a script sees it: every timeline of the result holds, its sums are exact, and wrong usage is one
//! sentence. Runs the real command on the real model, with small prompts.

use firstlight_tests::default_model_path;
use serde_json::Value;

use crate::cli::{Scratch, check, end, firstlight, sentences};

/// One `bench --json` on the default model.
fn bench(flags: &[&str]) -> Value {
    let cache = Scratch::new();
    let small = ["--prompt-tokens", "12", "--output-tokens", "4", "--repeats", "1", "--max-model-len", "256"];
    let line: Vec<&str> = ["bench", "--json"].iter().chain(flags).chain(&small).copied().collect();
    let mut command = firstlight(&cache, &line);
    command.env("FIRSTLIGHT_MODEL_FILE", default_model_path());
    let ended = end(&mut command);
    assert_eq!(ended.code, Some(0), "{line:?}: {}", ended.stderr);
    let result: Value =
        serde_json::from_str(&ended.stdout).expect("stdout is one JSON object and nothing else");
    assert_eq!(result["schema"], "firstlight.bench/1");
    result
}

fn list<'v>(value: &'v Value, pointer: &str) -> &'v Vec<Value> {
    value
        .pointer(pointer)
        .and_then(Value::as_array)
        .unwrap_or_else(|| panic!("{pointer} is a list in {value:#}"))
}

fn number(value: &Value, pointer: &str) -> u64 {
    value
        .pointer(pointer)
        .and_then(Value::as_u64)
        .unwrap_or_else(|| panic!("{pointer} is a number in {value:#}"))
}

/// The sum of all whole numbers in a tree.
fn leaves(value: &Value) -> u64 {
    match value {
        Value::Object(fields) => fields.values().map(leaves).sum(),
        other => other.as_u64().unwrap_or(0),
    }
}

/// Holds a run's report against its own timelines.
fn check_run(run: &Value, requests: usize, output_tokens: u64) {
    let timelines = list(run, "/timelines");
    assert_eq!((timelines.len(), list(run, "/broken").len()), (requests, 0));
    assert_eq!(number(run, "/report/n") as usize, requests);
    assert_eq!(number(run, "/report/n_answered") as usize, requests);
    assert_eq!(number(run, "/report/finish_reasons/length") as usize, requests);
    let mut engine_ttfts = 0;
    for timeline in timelines {
        assert!(timeline.get("broken").is_none(), "{timeline:#}");
        assert_eq!(number(timeline, "/tokens/generated"), output_tokens);
        assert_eq!(leaves(&timeline["parts"]), number(timeline, "/parts_total"));
        assert_eq!(number(timeline, "/ttft"), number(timeline, "/parts_total"), "a client heard it");
        let decode = number(timeline, "/stamps/finished") - number(timeline, "/stamps/first_token");
        assert_eq!(leaves(&timeline["decode"]), decode);
        engine_ttfts += number(timeline, "/engine_ttft");
    }
    let sums = &run["report"]["engine_ttft_parts"];
    assert_eq!(number(sums, "/engine_ttft"), engine_ttfts);
    assert_eq!(leaves(&sums["parts"]), engine_ttfts, "to the nanosecond");
    let shares: f64 = sums["shares"].as_object().expect("shares").values().filter_map(Value::as_f64).sum();
    assert!((shares - 1.0).abs() < 1e-9, "{shares}");
    // Every token's step is there.
    let steps: Vec<u64> = list(run, "/steps").iter().map(|step| number(step, "/id")).collect();
    assert!(steps.is_sorted());
    let mut made_in = timelines.iter().flat_map(|timeline| list(timeline, "/token_step"));
    assert!(made_in.all(|step| step.as_u64().is_some_and(|id| steps.binary_search(&id).is_ok())));
}

fn part(run: &Value, name: &str) -> u64 {
    leaves(&run["report"]["engine_ttft_parts"]["parts"][name])
}

#[test]
fn a_burst_is_measured_to_the_nanosecond() {
    let result = bench(&["--scenario", "burst-8x2"]);
    assert_eq!(number(&result, "/settings/slots"), 2);
    assert_eq!(result["blocks_free_at_end"], result["settings"]["blocks_total"]);
    assert!(list(&result, "/command").contains(&"burst-8x2".into()));
    let runs = list(&result, "/repeats");
    assert_eq!(runs.len(), 1);
    check_run(&runs[0], 8, 4);
    // Six of eight wait for the two slots.
    assert!(part(&runs[0], "queue_wait") > part(&runs[0], "prefill"), "{}", runs[0]["report"]);
    let gauges = &runs[0]["report"]["gauges"];
    assert_eq!(
        (gauges["running"]["max"].as_f64(), gauges["queue_depth"]["max"].as_f64()),
        (Some(2.0), Some(6.0))
    );
}

#[test]
fn alone_a_first_token_is_prefill() {
    let result = bench(&["--requests", "2"]);
    assert_eq!(result["load"]["name"], "alone");
    let run = &list(&result, "/repeats")[0];
    check_run(run, 2, 4);
    let (prefill, whole) = (part(run, "prefill"), number(run, "/report/engine_ttft_parts/engine_ttft"));
    // How late a busy machine wakes the engine's thread is nobody's claim.
    assert_eq!(prefill + part(run, "inbox"), whole, "nobody is before it, and nothing is lost");
    assert!(prefill > whole / 2, "{prefill} of {whole} ns are prefill");
}

#[test]
fn a_cached_prefix_is_measured_beside_one_that_is_not() {
    let result = bench(&["--scenario", "contexts", "--requests", "1", "--block-size", "8"]);
    let runs = list(&result, "/repeats");
    let names: Vec<&str> = runs.iter().filter_map(|run| run["case"].as_str()).collect();
    assert_eq!(names, ["idle engine", "under load", "under load, cached"]);
    let cached: Vec<u64> = runs.iter().map(|run| number(run, "/timelines/0/tokens/cached")).collect();
    assert_eq!(cached, [0, 0, 8], "one full block of 8 of the 12 tokens");
    for run in runs {
        check_run(run, 1, 4);
    }
    assert!(list(&runs[1], "/background_timelines").len() >= 4);
}

#[test]
fn a_trace_is_replayed_with_its_lengths() {
    let folder = Scratch::new();
    let trace = folder.join("t.csv");
    let rows = "arrival_s,prompt_tokens,output_tokens\n100,80,16\n100.5,8,16\n101,40,16\n";
    std::fs::write(&trace, rows).expect("the temporary folder is writable");
    let path = trace.to_string_lossy().into_owned();
    let cache = Scratch::new();
    let flags = ["--trace-shrink", "8", "--trace-speed", "10", "--repeats", "1", "--max-model-len", "256"];
    let line: Vec<&str> = ["bench", "--json", "--trace", &path].into_iter().chain(flags).collect();
    let mut command = firstlight(&cache, &line);
    command.env("FIRSTLIGHT_MODEL_FILE", default_model_path());
    let ended = end(&mut command);
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    let result: Value = serde_json::from_str(&ended.stdout).expect("stdout is JSON");
    let run = &list(&result, "/repeats")[0];
    check_run(run, 3, 2);
    let mut sent: Vec<(u64, u64)> = (list(run, "/timelines").iter())
        .map(|timeline| (number(timeline, "/stamps/received"), number(timeline, "/tokens/prompt")))
        .collect();
    sent.sort_unstable();
    assert_eq!(sent.iter().map(|(_, prompt)| *prompt).collect::<Vec<_>>(), [10, 1, 5]);
    assert!(sent[2].0 - sent[0].0 + number(run, "/latest_arrival_ns") >= 100_000_000, "{sent:?}");
}

#[test]
fn wrong_usage_is_told_before_anything_is_loaded() {
    check(&["bench", "--scenario", "burst"], &[], 2, "--scenario");
    check(&["bench", "--rate", "1", "--concurrency", "1"], &[], 2, "exclude each other");
    check(&["bench", "--scenario", "burst-8x2", "--slots", "5"], &[], 2, "--slots is 5");
    check(&["bench", "--rate", "0"], &[], 2, "--rate is \"0\"");
    check(&["bench", "--trace", "/nowhere/t.csv"], &[], 2, "/nowhere/t.csv cannot be read");
    check(&["bench", "--trace-speed", "2"], &[], 2, "add --trace");
    check(&["bench", "--json", "/nowhere/result.json"], &[], 2, "/nowhere/result.json");
    check(&["bench", "--html", "/nowhere/result.html"], &[], 2, "name a writable file with --html");
    check(&["bench", "--html", "result.html", "--micro"], &[], 2, "--html");
    check(&["bench"], &[("FIRSTLIGHT_CONCURRENCY", "none")], 2, "FIRSTLIGHT_CONCURRENCY is \"none\"");
    let folder = Scratch::new();
    let trace = folder.join("t.csv");
    std::fs::write(&trace, "arrival_s,prompt_tokens,output_tokens\n0,1,1\n1,many,1\n").expect("writable");
    check(&["bench", "--trace", &trace.to_string_lossy()], &[], 2, "line 3 of");
    check(&["bench", "--trace", &trace.to_string_lossy()], &[], 2, "the prompt tokens are \"many\"");
    check(&["bench", "--model", "/nowhere/m.gguf"], &[], 4, "/nowhere/m.gguf");
}

#[test]
fn a_request_that_can_never_fit_is_told_before_it_is_sent() {
    let cache = Scratch::new();
    let line = ["bench", "--prompt-tokens", "40", "--max-model-len", "64", "--kv-blocks", "4"];
    let mut command = firstlight(&cache, &line);
    command.env("FIRSTLIGHT_MODEL_FILE", default_model_path());
    let ended = end(&mut command);
    assert_eq!((ended.code, ended.stdout.as_str()), (Some(2), ""), "{}", ended.stderr);
    assert!(sentences(&ended)[0].contains("longer than the context of 64 tokens"), "{}", ended.stderr);
}

#[test]
fn micro_says_before_it_measures_that_its_result_cannot_be_written() {
    let cache = Scratch::new();
    let ended = end(&mut firstlight(&cache, &["bench", "--micro", "--json", "/no/such/folder/x.json"]));
    assert_eq!(ended.code, Some(2), "{}", ended.stderr);
    assert!(ended.stderr.starts_with("firstlight: the result cannot be written"), "{}", ended.stderr);
}

#[test]
fn startup_starts_the_program_cold_and_warm_and_tells_every_part() {
    let cache = Scratch::new();
    let line = ["bench", "--startup", "--json", "--repeats", "1", "--prompt-tokens", "3", "--kv-blocks", "8"];
    let mut command = firstlight(&cache, &line);
    command.env("FIRSTLIGHT_MODEL_FILE", default_model_path());
    let ended = end(&mut command);
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    let result: Value = serde_json::from_str(&ended.stdout).expect("stdout is one JSON object");
    assert_eq!((&result["schema"], &result["prompt_tokens"]), (&"firstlight.startup/1".into(), &3.into()));
    for starts in ["/cold", "/warm"].map(|key| list(&result, key)) {
        assert_eq!(starts.len(), 1);
        for part in ["/process_ns", "/open_ns", "/device_ns", "/weights_ns", "/warm_up_ns", "/first_token_ns"]
        {
            assert!(number(&starts[0], part) > 0, "{part}: {result:#}");
        }
    }
    // What goes wrong in a start is told in its own words.
    let line = ["bench", "--startup", "--model", "/no/such/file.gguf"];
    let ended = end(&mut firstlight(&cache, &line));
    assert!(ended.code.is_some_and(|code| code > 0), "{}", ended.stderr);
    assert!(ended.stderr.contains("/no/such/file.gguf"), "{}", ended.stderr);
}

#[test]
fn micro_shows_every_kernel_of_a_step_and_its_rows_sum() {
    let cache = Scratch::new();
    let line = ["bench", "--micro", "--json", "--repeats", "1", "--max-model-len", "256", "--slots", "2"];
    let mut command = firstlight(&cache, &line);
    command.env("FIRSTLIGHT_MODEL_FILE", default_model_path());
    let ended = end(&mut command);
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    let result: Value = serde_json::from_str(&ended.stdout).expect("stdout is one JSON object");
    assert_eq!(result["schema"], "firstlight.micro/1");
    // Of the shapes those that fit two slots of 256 tokens.
    let steps = list(&result, "/steps");
    let shapes: Vec<_> =
        steps.iter().map(|step| (number(step, "/tokens_per_seq"), number(step, "/context"))).collect();
    assert_eq!(shapes, [(1, 128), (64, 64)]);
    for step in steps {
        let kernels = list(step, "/kernels");
        let sum: u64 = kernels.iter().map(|kernel| number(kernel, "/ns")).sum();
        assert_eq!(sum, number(step, "/sum_ns"));
        assert!(
            kernels.iter().all(|kernel| number(kernel, "/ns") > 0) && number(step, "/whole_ns") > 0,
            "{step:#}"
        );
        let of = |name: &str| -> u64 {
            let named =
                |kernel: &&Value| kernel["kernel"].as_str().is_some_and(|kernel| kernel.starts_with(name));
            kernels.iter().filter(named).map(|kernel| number(kernel, "/dispatches")).sum()
        };
        // Thirty layers of four products, which do the norms between them; the halves of the first one, the last one, the head.
        let found = ["norm_parts", "rms_norm", "matmul", "paged_attention", "embed"].map(of);
        assert_eq!(found, [1, 1, 121, 30, 1]);
    }
}

#[test]
fn a_sweep_goes_as_far_as_the_limits_and_counts_the_memory() {
    let cache = Scratch::new();
    let limits = ["--repeats", "1", "--max-model-len", "512", "--slots", "2", "--batch-tokens", "16"];
    let mut command = firstlight(&cache, &["bench", "--sweep", "--json", "--kv-cache", "q8"]);
    command.args(limits).env("FIRSTLIGHT_MODEL_FILE", default_model_path());
    let ended = end(&mut command);
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    let result: Value = serde_json::from_str(&ended.stdout).expect("stdout is one JSON object");
    assert_eq!((&result["schema"], &result["kv_cache"]), (&"firstlight.sweep/1".into(), &"q8".into()));
    for (points, expected) in [("/batches", [(1, 128), (2, 128)]), ("/contexts", [(1, 128), (1, 512)])] {
        let points = list(&result, points);
        let shapes: Vec<_> =
            points.iter().map(|point| (number(point, "/num_seqs"), number(point, "/context"))).collect();
        assert_eq!(shapes, expected);
        for (point, (num_seqs, context)) in points.iter().zip(expected) {
            assert!(number(point, "/whole_ns") > 0, "{point:#}");
            // 30 layers, 3 heads of 64 bytes for K and for V and two scales.
            assert_eq!(number(point, "/kv_bytes"), num_seqs * context * 30 * 3 * (2 * 64 + 8));
        }
    }
}

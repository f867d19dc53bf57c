//! Answers of the real binary: their JSON and its sums, what a reader who leaves and what Ctrl-C do to them.
//!
//! Most run on a model of 160,000 weights that has no tokenizer, and so feed token ids.

use std::io::{Read, Write};
use std::process::{ChildStdin, Command, Stdio};

use firstlight_tests::{default_model_path, golden_path};
use serde_json::Value;

use super::{Ended, Scratch, end, firstlight, sentences};

/// `firstlight run --model TINY` with further words.
fn tiny_run(cache: &Scratch, line: &[&str]) -> Command {
    let mut command = firstlight(cache, &["run", "--model"]);
    command.arg(golden_path("arch/llama3")).args(line);
    command
}

/// The default model, which has a tokenizer.
fn real(cache: &Scratch, line: &[&str]) -> Command {
    let mut command = firstlight(cache, line);
    command.env("FIRSTLIGHT_MODEL_FILE", default_model_path());
    command
}

/// One object a line, and nothing else.
fn objects(ended: &Ended) -> Vec<Value> {
    let parse = |line: &str| serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line:?}"));
    assert!(ended.stdout.is_empty() || ended.stdout.ends_with('\n'), "the last line ends too");
    ended.stdout.lines().map(parse).collect()
}

fn integer(value: &Value) -> u64 {
    value.as_u64().unwrap_or_else(|| panic!("{value} is no duration in whole nanoseconds"))
}

/// The sum of all leaves.
fn leaves(value: &Value) -> u64 {
    match value {
        Value::Object(members) => members.values().map(leaves).sum(),
        Value::Null => 0,
        leaf => integer(leaf),
    }
}

/// The sums that a timeline promises, each by `==`.
pub fn check_sums(timeline: &Value) {
    let all = format!("{timeline:#}");
    let (parts, stamps) = (&timeline["parts"], &timeline["stamps"]);
    let total = integer(&timeline["parts_total"]);
    assert_eq!(leaves(parts), total, "the leaves sum to parts_total: {all}");
    let finished = integer(&stamps["finished"]);
    let first_token = stamps.get("first_token").filter(|stamp| !stamp.is_null()).map(integer);
    if let Some(ttft) = timeline.get("ttft").filter(|ttft| !ttft.is_null()) {
        assert_eq!(integer(ttft), total, "parts_total is the TTFT: {all}");
    } else {
        let cut = first_token.unwrap_or(finished);
        assert_eq!(total, cut - integer(&stamps["received"]), "without one the parts end at the cut: {all}");
    }
    let engine = ["inbox", "queue_wait", "requeue", "lost_prefill", "prefill"];
    let five: u64 = engine.iter().filter_map(|part| parts.get(*part)).map(leaves).sum();
    match timeline.get("engine_ttft").filter(|ttft| !ttft.is_null()) {
        Some(engine_ttft) => {
            assert!(engine.iter().all(|part| parts.get(*part).is_some()), "all five are there: {all}");
            assert_eq!(integer(engine_ttft), five, "the engine's five sum to its TTFT: {all}");
            assert_eq!(Some(five + integer(&stamps["created"])), first_token, "{all}");
            assert_eq!(leaves(&timeline["decode"]), finished - first_token.unwrap_or(finished), "{all}");
        }
        None => assert_eq!(first_token, None, "a first token has a TTFT: {all}"),
    }
    if let Some(created) = stamps.get("created").filter(|stamp| !stamp.is_null()) {
        let mut at = integer(created);
        for stay in timeline["residency"].as_array().expect("residency is a list") {
            assert_eq!(integer(&stay[1]), at, "no gap: {all}");
            at = integer(&stay[2]);
        }
        assert_eq!(at, finished, "accounted for up to the end: {all}");
    }
}

fn check_json(line: &[&str], code: i32, reasons: &[&str]) -> Vec<Value> {
    let cache = Scratch::new();
    let ended = end(tiny_run(&cache, &["--json"]).args(line));
    let all = format!("{line:?}\nstdout: {}\nstderr: {}", ended.stdout, ended.stderr);
    assert_eq!(ended.code, Some(code), "{all}");
    let answers = objects(&ended);
    let got: Vec<&str> = answers.iter().filter_map(|answer| answer["finish_reason"].as_str()).collect();
    assert_eq!(got, reasons, "one object a prompt, in their order: {all}");
    for answer in &answers {
        assert_eq!(answer["text"], Value::Null, "no tokenizer, no text: {all}");
        let tokens = answer["token_ids"].as_array().map(Vec::len);
        assert_eq!(tokens, answer["usage"]["completion_tokens"].as_u64().map(|n| n as usize), "{all}");
        check_sums(&answer["timeline"]);
    }
    assert_eq!(sentences(&ended).len(), usize::from(code != 0), "{all}");
    answers
}

#[test]
fn every_timeline_of_run_sums_to_the_nanosecond() {
    check_json(&["--ids", "1,2,3", "--max-tokens", "5"], 0, &["length"]);
    check_json(&["--ids", "1", "--max-tokens", "1"], 0, &["length"]);
    let crowd: Vec<String> = (1..=20).map(|i| format!("--ids={i},{},7,{}", i * 3, i + 90)).collect();
    let mut line: Vec<&str> = crowd.iter().map(String::as_str).collect();
    line.extend(["--max-tokens", "6", "--slots", "2", "--ignore-eos"]);
    check_json(&line, 0, &["length"; 20]);
    // More than an engine would let wait for a client.
    let many: Vec<String> = (0..1100).map(|i| format!("--ids={}", i % 500)).collect();
    let mut line: Vec<&str> = many.iter().map(String::as_str).collect();
    line.extend(["--max-tokens", "1", "--slots", "64", "--ignore-eos"]);
    check_json(&line, 0, &["length"; 1100]);
    let tight = ["--slots", "4", "--block-size", "8", "--kv-blocks", "4", "--batch-tokens", "5"];
    let prompts = ["--ids", "5,6,7,8,9,10,11,12,13", "--ids", "3,4,5,6,7", "--ids", "8,1,8", "--ids", "4"];
    let answers = check_json(
        &[&prompts[..], &tight, &["--max-tokens", "16", "--ignore-eos"]].concat(),
        0,
        &["length"; 4],
    );
    let evicted: u64 = answers.iter().map(|answer| integer(&answer["timeline"]["preemptions"])).sum();
    assert!(evicted > 0, "the pool is too small for all, so somebody was evicted");
}

#[test]
fn a_refused_prompt_has_an_object_too_and_the_others_are_answered() {
    let line = ["--ids", "1,2", "--ids", "512", "--ids", "3", "--max-tokens", "2"];
    check_json(&line, 2, &["length", "rejected", "length"]);
    check_json(&["--ids", "1,2,3,4", "--max-model-len", "4"], 1, &["rejected"]);
    check_json(&["--ids", "1,2,3,4,5,6,7,8,9", "--block-size", "8", "--kv-blocks", "1"], 1, &["rejected"]);
}

#[test]
fn the_same_seed_gives_the_same_tokens_alone_and_side_by_side() {
    let sampling = ["--temperature", "1", "--max-tokens", "12", "--ignore-eos"];
    let ids = |line: &[&str]| -> Vec<Value> {
        let cache = Scratch::new();
        let ended = end(tiny_run(&cache, &["--json"]).args(line).args(sampling));
        objects(&ended).iter().map(|answer| answer["token_ids"].clone()).collect()
    };
    let alone = ids(&["--ids", "7,8,9", "--seed", "11"]);
    assert_eq!(alone.len(), 1);
    assert_eq!(ids(&["--ids", "7,8,9", "--seed", "11"]), alone);
    let crowd = ids(&["--ids", "1,2", "--ids", "7,8,9", "--ids", "4,4,4,4,4", "--seed", "11"]);
    assert_eq!(crowd.get(1), alone.first());
    assert_ne!(ids(&["--ids", "7,8,9", "--seed", "12"]), alone);
}

#[test]
fn logprobs_are_in_the_json_with_their_alternatives() {
    let answers = check_json(&["--ids", "1,2", "--max-tokens", "3", "--logprobs", "5"], 0, &["length"]);
    let logprobs = answers[0]["logprobs"].as_array().expect("they were asked for");
    assert_eq!(logprobs.len(), 3);
    for one in logprobs {
        let top = one["top"].as_array().expect("alternatives were asked for");
        assert_eq!((top.len(), &top[0]["token_id"]), (5, &one["token_id"]), "greedy takes the likeliest");
    }
}

#[test]
fn a_variable_counts_where_no_flag_is_typed_and_is_silent_where_one_is() {
    let check = |variables: &[(&str, &str)], line: &[&str], expected: Result<usize, &str>| {
        let cache = Scratch::new();
        let ended = end(tiny_run(&cache, line).envs(variables.iter().copied()));
        let all = format!("{variables:?} {line:?}: {}{}", ended.stdout, ended.stderr);
        match expected {
            Ok(tokens) => {
                assert_eq!(ended.code, Some(0), "{all}");
                assert_eq!(ended.stdout.trim().split(',').count(), tokens, "{all}");
            }
            Err(part) => {
                assert_eq!(ended.code, Some(2), "{all}");
                assert!(sentences(&ended).concat().contains(part), "{all}");
            }
        }
    };
    let max = "FIRSTLIGHT_MAX_TOKENS";
    check(&[("FIRSTLIGHT_IDS", "1,2"), (max, "3")], &[], Ok(3));
    check(&[("FIRSTLIGHT_IDS", "1,2"), (max, "3")], &["--max-tokens", "2"], Ok(2));
    check(&[(max, "3"), ("FIRSTLIGHT_SLOTS", ""), ("FIRSTLIGHT_ADAPTER", "")], &["--ids", "1"], Ok(3));
    // Rivals: a typed prompt silences another kind of prompt, and a typed size another way to say it.
    check(&[(max, "3"), ("FIRSTLIGHT_PROMPT", "x"), ("FIRSTLIGHT_FILE", "y")], &["--ids", "1"], Ok(3));
    check(&[(max, "3"), ("FIRSTLIGHT_KV_MEMORY", "1")], &["--ids", "1", "--kv-blocks", "9"], Ok(3));
    check(&[("FIRSTLIGHT_SLOTS", "many")], &["--ids", "1"], Err("FIRSTLIGHT_SLOTS is \"many\""));
    let both = [("FIRSTLIGHT_PROMPT", "x"), ("FIRSTLIGHT_FILE", "y")];
    check(&both, &[], Err("FIRSTLIGHT_PROMPT and FIRSTLIGHT_FILE exclude each other"));
}

#[test]
fn a_reader_that_leaves_is_no_panic() {
    let cache = Scratch::new();
    let line = ["--ids", "1,2", "--max-tokens", "4"];
    // Nobody reads stderr: the answer comes all the same.
    let mut child = tiny_run(&cache, &line).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    drop(child.stderr.take());
    let mut answer = String::new();
    child.stdout.take().unwrap().read_to_string(&mut answer).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(0));
    assert_eq!(answer.trim().split(',').count(), 4, "{answer:?}");
    // Nobody reads stdout: the answer is lost, and that is told.
    let mut child = tiny_run(&cache, &line).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    drop(child.stdout.take());
    let mut told = String::new();
    child.stderr.take().unwrap().read_to_string(&mut told).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(1), "{told}");
    assert!(
        told.contains("firstlight: the result cannot be written") && !told.contains("panicked"),
        "{told}"
    );
}

/// The figures of a `TTFT` line: the total and its parts, in hundredths of a millisecond.
fn figures(line: &str) -> (u64, Vec<u64>) {
    let hundredths = |word: &str| -> Option<u64> {
        let (whole, digits) = word.split_once('.')?;
        (digits.len() == 2).then(|| format!("{whole}{digits}").parse().ok())?
    };
    let sum = line.split(';').next().unwrap_or_default();
    let (total, parts) = sum.split_once(" ms = ").unwrap_or_else(|| panic!("{line:?} is no split"));
    let last = |text: &str| text.split_whitespace().last().and_then(hundredths);
    let total = last(total).unwrap_or_else(|| panic!("{line:?} has no total"));
    (total, parts.split(" + ").map(|part| last(part).unwrap_or_else(|| panic!("{part:?}"))).collect())
}

#[test]
fn the_split_that_is_printed_adds_up_in_the_digits_that_are_printed() {
    let cache = Scratch::new();
    let crowd: Vec<String> = (1..=12).map(|i| format!("--ids={i},2,3")).collect();
    let crowded = end(tiny_run(&cache, &["--slots", "2", "--max-tokens", "5"]).args(&crowd));
    let streamed = end(&mut real(&cache, &["run", "-p", "Say hi.", "--max-tokens", "4"]));
    for (ended, expected) in [(crowded, 12), (streamed, 1)] {
        let splits: Vec<&str> = ended.stderr.lines().filter(|line| line.contains("TTFT ")).collect();
        assert_eq!(splits.len(), expected, "{}", ended.stderr);
        for line in splits {
            let (total, parts) = figures(line);
            assert_eq!(parts.iter().sum::<u64>(), total, "{line}");
        }
    }
}

#[test]
fn a_prompt_that_the_model_cannot_read_is_refused_before_any_adapter() {
    let cache = Scratch::new();
    let mut without_tokenizer = tiny_run(&cache, &["-p", "hi", "--adapter", "none such"]);
    let mut chat = firstlight(&cache, &["chat", "--adapter", "none such", "--model"]);
    chat.arg(golden_path("arch/llama3"));
    for command in [&mut without_tokenizer, &mut chat] {
        let ended = end(command.stdin(Stdio::null()));
        assert_eq!(ended.code, Some(2), "{}", ended.stderr);
        assert!(sentences(&ended)[0].contains("llama3 has no tokenizer"), "{}", ended.stderr);
    }
    let mut unknown = firstlight(&cache, &["run", "--ids", "1", "--adapter", "none such", "--model"]);
    let ended = end(unknown.arg(golden_path("arch/gemma2")));
    assert_eq!(ended.code, Some(4), "{}", ended.stderr);
    let file = golden_path("arch/gemma2").join("config.json").display().to_string();
    for part in [file.as_str(), "is not supported: the architecture gemma2 "] {
        assert!(sentences(&ended)[0].contains(part), "{}", ended.stderr);
    }
    let ended = end(&mut tiny_run(&cache, &["--ids", "1", "--adapter", "none such"]));
    assert_eq!(ended.code, Some(3), "{}", ended.stderr);
    assert!(sentences(&ended)[0].contains("there are: 0: "), "{}", ended.stderr);
}

/// Ctrl-C, as a terminal sends it.
#[cfg(unix)]
fn interrupt(process: u32) {
    let sent = Command::new("kill").args(["-INT", &process.to_string()]).status();
    assert!(sent.expect("`kill` is there").success());
}

const STORY: &str = "Write a very long story about a lighthouse.";

#[cfg(unix)]
#[test]
fn ctrl_c_keeps_what_there_is_of_an_answer() {
    let cache = Scratch::new();
    let long = ["--max-tokens", "4000", "--ignore-eos"];
    let mut command = real(&cache, &["run", "-p", STORY]);
    let mut child = command.args(long).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut stdout = child.stdout.take().unwrap();
    let mut answer = vec![0; 1];
    stdout.read_exact(&mut answer).expect("the answer begins");
    interrupt(child.id());
    stdout.read_to_end(&mut answer).unwrap();
    let output = child.wait_with_output().unwrap();
    let told = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(130), "{told}");
    assert!(answer.ends_with(b"\n"), "the line is ended for the shell's prompt");
    assert!(told.contains("(ended by Ctrl-C)") && told.contains("firstlight: Ctrl-C stopped"), "{told}");
}

#[cfg(unix)]
#[test]
fn ctrl_c_in_a_chat_stops_the_answer_and_not_the_program() {
    let cache = Scratch::new();
    let mut command = real(&cache, &["chat", "--max-tokens", "4000", "--ignore-eos"]);
    let piped = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = piped.spawn().unwrap();
    let (mut input, mut stdout) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
    let say = |input: &mut ChildStdin, line: &str| writeln!(input, "{line}").unwrap();
    // The prompt, then the first bytes of an answer.
    let mut begins = |bytes: usize| stdout.read_exact(&mut vec![0; bytes]).expect("the answer begins");
    say(&mut input, STORY);
    begins("> ".len() + 1);
    interrupt(child.id());
    // None of these ends the conversation: a slip of the finger, and a line that is too long.
    say(&mut input, "/qiut");
    say(&mut input, &"x".repeat(2 << 20));
    say(&mut input, "/quit");
    drop(input);
    let mut rest = String::new();
    stdout.read_to_string(&mut rest).unwrap();
    let output = child.wait_with_output().unwrap();
    let told = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(0), "{told}");
    assert!(told.contains("(ended by Ctrl-C)") && told.contains("there is no /qiut"), "{told}");
    assert!(told.contains("was not sent"), "{told}");
    assert_eq!(rest.matches("> ").count(), 3, "it asked on after each: {rest}");
}

#[test]
fn a_conversation_that_outgrows_the_context_is_told_and_goes_on_after_a_reset() {
    let cache = Scratch::new();
    let script = cache.join("script");
    std::fs::write(&script, "Name a colour.\nAnother.\nAnother.\nAnother.\n/reset\nName a colour.\n")
        .unwrap();
    let line = ["chat", "--max-model-len", "90", "--max-tokens", "24", "--ignore-eos"];
    let ended = end(real(&cache, &line).stdin(std::fs::File::open(&script).unwrap()));
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    let told: Vec<&str> = ended.stderr.lines().skip_while(|line| !line.starts_with("/reset")).collect();
    assert!(told.iter().any(|line| line.contains("/reset starts a new conversation")), "{told:?}");
    assert!(told.last().is_some_and(|line| line.starts_with("TTFT ")), "{told:?}");
    assert!(ended.stdout.ends_with("> \n"), "{}", ended.stdout);
}

#[test]
fn keys_and_values_are_kept_as_asked() {
    let cache = Scratch::new();
    let line = ["--ids", "1,2", "--max-tokens", "2", "--kv-memory", "1MiB", "--kv-cache"];
    for word in ["f32", "f16", "q8", "auto"] {
        let answered = end(&mut tiny_run(&cache, &[&line[..], &[word]].concat()));
        assert_eq!(answered.code, Some(0), "{}", answered.stderr);
        // The adapter's own choice is said too.
        let told = format!("{} KV cache", if word == "auto" { "f16" } else { word });
        assert!(answered.stderr.contains(&told), "{}", answered.stderr);
    }
    let refused = end(&mut tiny_run(&cache, &[&line[..], &["f8"]].concat()));
    assert_eq!(refused.code, Some(2), "{}", refused.stderr);
    assert!(sentences(&refused)[0].contains("f32, f16, q8 or auto"), "{}", refused.stderr);
}

#[test]
fn activations_in_8_bits_are_had_or_refused() {
    let cache = Scratch::new();
    let line = ["run", "-p", "Hello", "--max-tokens", "2", "--ignore-eos", "--json", "--activations", "i8"];
    let answered = end(&mut real(&cache, &line));
    assert_eq!(answered.code, Some(0), "{}", answered.stderr);
    assert!(answered.stderr.contains("i8 activations"), "{}", answered.stderr);
    assert_eq!(objects(&answered).len(), 1);
    let refused = end(&mut tiny_run(&cache, &["--ids", "1,2", "--activations", "i8"]));
    assert_eq!(refused.code, Some(4), "{}", refused.stderr);
    assert!(sentences(&refused)[0].contains("use --activations f32"), "{}", refused.stderr);
}

//! Other people's clients, unmodified: the official `openai` package, LangChain, and the load generator guidellm.
//!
//! What they get is claimed in Python, in `tests/python`; here are the server and, for the load generator, the books.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Command, Stdio};

use firstlight_tests::{clients_python, full, golden_path, load_python, script_path};
use serde_json::{Value, json};

use super::server::Server;
use crate::cli::Scratch;
use crate::cli::answers::check_sums;

/// A key that the server knows.
const KEY: &str = "sk-clients";

/// A program that knows nothing of this machine's settings, for proxies and other services among them, and writes nothing
/// into the checkout.
fn bare(program: &Path, home: &Path) -> Command {
    let mut command = Command::new(program);
    command.env_clear().env("HOME", home).env("PYTHONDONTWRITEBYTECODE", "1");
    command.envs(std::env::var_os("PATH").map(|path| ("PATH", path)));
    command
}

#[test]
fn the_openai_package_and_langchain_get_what_they_ask_for() {
    let folder = Scratch::new();
    std::fs::write(folder.join("keys"), KEY).expect("the folder is writable");
    let mut python = bare(&clients_python(), &folder.path);
    python.arg(script_path("clients.py")).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut script = python.spawn().expect("Python starts");
    let mut lines = BufReader::new(script.stdout.take().expect("it is piped")).lines().map_while(Result::ok);
    assert_eq!(lines.next().as_deref(), Some("ready"), "everything is imported");
    let keys = folder.join("keys").to_string_lossy().into_owned();
    let limits = ["--slots", "2", "--max-waiting", "4", "--max-body", "1MiB", "--grace", "1000"];
    // The script comes while the model is being loaded.
    let mut server = Server::open(&[&limits[..], &["--api-keys", &keys]].concat());
    let mut stdin = script.stdin.take().expect("it is piped");
    writeln!(stdin, "{} {KEY}", server.address).expect("the script listens");
    let mut told = Vec::new();
    for line in lines {
        match line.strip_prefix("signal ") {
            Some(name) => server.signal(name),
            None => told.push(line),
        }
    }
    let status = script.wait().expect("a child can be waited for");
    let told = told.join("\n");
    assert!(status.success() && told.contains(" holds "), "{status}:\n{told}");
    assert_eq!(server.ended(), Some(0), "it answered to the end:\n{told}");
    if full() {
        check_guidellm(&folder);
    }
}

const REQUESTS: usize = 8;
const OUTPUT_TOKENS: u64 = 24;

/// The load generator's figures of each request against the server's own of the same request.
fn check_guidellm(folder: &Scratch) {
    let server = Server::start(&["--slots", "4"]);
    let benchmark = guidellm(&server, folder);
    let requests = |state: &str| benchmark["requests"][state].as_array().cloned().unwrap_or_default();
    assert_eq!((requests("errored").len(), requests("incomplete").len()), (0, 0), "{benchmark}");
    let answered = requests("successful");
    let (_, report) = server.get("/v1/report");
    assert_eq!(
        (answered.len(), &report["n"]),
        (REQUESTS, &json!(REQUESTS)),
        "both counted the same requests"
    );
    let (mut prompt, mut generated) = (0, 0);
    for request in &answered {
        let id = request["response_id"].as_str().expect("it keeps the answer's id");
        let timeline = &server.timelines(&format!("{id}%230"))[0];
        check_sums(timeline);
        check_agreement(request, timeline);
        prompt += request["prompt_tokens"].as_u64().expect("a count");
        generated += request["output_tokens"].as_u64().expect("a count");
    }
    let count = |name: &str| report["tokens"][name].as_u64();
    assert_eq!((count("prompt"), count("generated")), (Some(prompt), Some(generated)));
    assert_eq!(generated, OUTPUT_TOKENS * REQUESTS as u64);
}

/// Its clock starts when it sends the head and ours when the body is whole; its first token is one that has come.
fn check_agreement(request: &Value, timeline: &Value) {
    let both = format!("{request:#}\n{timeline:#}");
    let theirs = |field: &str| request[field].as_f64().unwrap_or_else(|| panic!("no {field}: {both}"));
    let ours = |field: &Value| field.as_u64().unwrap_or_else(|| panic!("a stamp is missing: {both}"));
    let ms = |nanos: u64| nanos as f64 / 1e6;
    assert_eq!(request["prompt_tokens"], timeline["tokens"]["prompt"], "{both}");
    assert_eq!(request["output_tokens"], timeline["tokens"]["generated"], "{both}");
    let ttft = theirs("time_to_first_token_ms");
    assert!(ttft >= ms(ours(&timeline["ttft"])), "a first token comes after it was written: {both}");
    let gaps = ours(&timeline["tokens"]["generated"]) - 1;
    let last = ttft + theirs("inter_token_latency_ms") * gaps as f64;
    let at = timeline["token_at"].as_array().and_then(|at| at.last()).map_or(0, ours);
    assert!(last >= ms(at - ours(&timeline["stamps"]["received"])), "and so does the last: {both}");
    assert!(theirs("request_latency") * 1e3 >= last, "{both}");
}

/// Runs it without a network, its prompts made with the reference tokenizer: its benchmark.
fn guidellm(server: &Server, folder: &Scratch) -> Value {
    let tokenizer = folder.join("tokenizer");
    std::fs::create_dir_all(&tokenizer).expect("the folder is writable");
    std::fs::copy(golden_path("tokenizer.json"), tokenizer.join("tokenizer.json")).expect("it is copied");
    let config = json!({ "tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<|im_end|>" });
    std::fs::write(tokenizer.join("tokenizer_config.json"), config.to_string()).expect("it is written");
    let report = folder.join("guidellm.json");
    let mut command = bare(&load_python().with_file_name("guidellm"), &folder.path);
    command.envs([("HF_HUB_OFFLINE", "1"), ("TRANSFORMERS_OFFLINE", "1")]).args(["run", "--disable-console"]);
    let url = server.url("");
    for (flag, value) in [
        ("--backend", format!("kind=openai_http,target={url},model=smollm2-135m-instruct")),
        ("--profile", "kind=concurrent,streams=2".to_owned()),
        ("--constraint", format!("kind=max_requests,count={REQUESTS}")),
        ("--tokenizer", format!("kind=hf_auto,model={}", tokenizer.display())),
        ("--data", format!("kind=synthetic_text,prompt_tokens=64,output_tokens={OUTPUT_TOKENS}")),
        ("--output", format!("kind=json,path={}", report.display())),
    ] {
        command.args([flag, &value]);
    }
    let ended = command.stdin(Stdio::null()).output().expect("guidellm starts");
    let said = String::from_utf8_lossy(&ended.stderr).into_owned();
    assert!(ended.status.success(), "{}: {said}", ended.status);
    let text = std::fs::read_to_string(&report).unwrap_or_else(|error| panic!("{error}: {said}"));
    serde_json::from_str::<Value>(&text).expect("its report is JSON")["benchmarks"][0].clone()
}

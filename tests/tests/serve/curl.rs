//! The README's curl commands, as pasted, against a server that was started as the README says.

use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::{Value, json};

use super::server::{Answer, Server};
use crate::cli::Scratch;
use crate::cli::answers::check_sums;

/// Where the README's server listens.
const ADDRESS: &str = "127.0.0.1:8080";

/// The commands in the fenced blocks of a text: from a line that begins with `curl` to the next one, or the block's end.
fn commands(markdown: &str) -> Vec<String> {
    let (mut found, mut fenced, mut inside): (Vec<String>, bool, bool) = (Vec::new(), false, false);
    for line in markdown.lines() {
        if line.starts_with("```") {
            (fenced, inside) = (!fenced, false);
        } else if fenced && line.starts_with("curl ") {
            found.push(line.to_owned());
            inside = true;
        } else if inside && let Some(command) = found.last_mut() {
            command.push('\n');
            command.push_str(line);
        }
    }
    found
}

#[test]
fn a_command_ends_where_the_next_one_or_its_block_does() {
    let check = |markdown: &str, expected: &[&str]| assert_eq!(commands(markdown), expected, "{markdown}");
    check("curl no\n", &[]);
    check(
        "```\ncurl a -d '{\n  x}'\ncurl b # c\n```\nthen\n```\nls\ncurl d\n```",
        &["curl a -d '{\n  x}'", "curl b # c", "curl d"],
    );
}

/// What a command prints, and the status: told on stderr because a file in its home asks for it.
fn run(command: &str, server: &Server, home: &Path) -> Answer {
    let settings = "silent\nwrite-out = \"%{stderr}%{http_code}\"\nnoproxy = \"*\"\n";
    std::fs::write(home.join(".curlrc"), settings).expect("the temporary folder is writable");
    let mut shell = Command::new("sh");
    shell.arg("-c").arg(command.replace(ADDRESS, &server.address));
    let ended =
        shell.env("CURL_HOME", home).env("HOME", home).stdin(Stdio::null()).output().expect("sh starts");
    let told = String::from_utf8_lossy(&ended.stderr).into_owned();
    assert!(ended.status.success(), "{command}: {}: {told}", ended.status);
    let status = told.parse().unwrap_or_else(|_| panic!("{command}: {told:?} is no status"));
    Answer { status, headers: Vec::new(), body: ended.stdout }
}

#[test]
fn the_readmes_curl_commands_do_what_it_says() {
    let readme = Path::new(env!("CARGO_MANIFEST_DIR")).join("../README.md");
    let commands = commands(&std::fs::read_to_string(readme).expect("the README is readable"));
    let home = Scratch::new();
    let server = Server::start(&[]);
    let mut seen = Vec::new();
    for command in &commands {
        let rest = command.split_once(ADDRESS).unwrap_or_else(|| panic!("{command} asks another server")).1;
        let path = rest.split([' ', '\'', '"', '\n']).next().unwrap_or_default();
        let answer = run(command, &server, &home.path);
        assert_eq!(answer.status, 200, "{command}: {}", String::from_utf8_lossy(&answer.body));
        check_answer(path, command, &answer);
        seen.push(path);
    }
    for path in ["/v1/chat/completions", "/v1/completions", "/tokenize", "/metrics"] {
        assert!(seen.contains(&path), "the README shows {path}: {seen:?}");
    }
    assert!(seen.iter().any(|path| path.starts_with("/v1/timelines/")), "{seen:?}");
}

fn check_answer(path: &str, command: &str, answer: &Answer) {
    let text = String::from_utf8_lossy(&answer.body).into_owned();
    let told = format!("{command}: {text}");
    match path {
        "/v1/chat/completions" if command.contains("\"stream\": true") => {
            assert!(answer.events().len() > 3 && !answer.streamed_text().is_empty(), "{told}");
            let last = answer.events().pop().unwrap_or_default();
            check_sums(&last["firstlight"]["timeline"]);
        }
        "/v1/completions" => {
            let said = answer.json()["choices"][0]["text"].as_str().map(|text| text.contains("Paris"));
            assert_eq!(said, Some(true), "{told}");
        }
        "/tokenize" => {
            let ids = answer.json();
            assert_eq!(ids["count"], json!(ids["tokens"].as_array().map_or(0, Vec::len)), "{told}");
            assert_ne!(ids["count"], 0, "{told}");
        }
        "/metrics" => assert!(text.contains("firstlight_time_to_first_token_seconds_count"), "{told}"),
        path if path.starts_with("/v1/timelines/") => {
            let timelines = answer.json()["timelines"].as_array().cloned().unwrap_or_default();
            assert!(!timelines.is_empty(), "{told}");
            timelines.iter().for_each(check_sums);
        }
        // Whatever else the README shows is at least an answer that can be read.
        _ => assert!(answer.json() != Value::Null, "{told}"),
    }
}

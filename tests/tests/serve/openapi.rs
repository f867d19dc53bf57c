//! The API's description: complete, and true. schemathesis makes requests from it, right ones and wrong ones, and holds
//! every answer against it.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

use firstlight_tests::{clients_python, script_path};
use serde_json::Value;

use super::server::Server;
use crate::cli::OwnFile;

/// Method and path of every operation.
fn described(document: &Value) -> BTreeSet<(String, String)> {
    let paths = document["paths"].as_object().expect("there are paths");
    let operations = |(path, item): (&String, &Value)| {
        let item = item.as_object().expect("a path has methods").clone();
        item.into_iter().map(|(method, _)| (method, path.clone())).collect::<Vec<_>>()
    };
    paths.iter().flat_map(operations).collect()
}

/// Method and path of every `.route("PATH", METHOD(...))` in the server's source, and what hides a path from such a look.
fn routed(source: &str) -> (BTreeSet<(String, String)>, Vec<&'static str>) {
    let after = source.split(".route(").skip(1).map(str::trim_start);
    let route = |rest: &str| {
        let (path, rest) = rest.strip_prefix('"')?.split_once('"')?;
        let method = rest.trim_start_matches([',', ' ', '\n']).split('(').next()?;
        Some((method.to_owned(), path.replace("{*", "{")))
    };
    let found = after.map(|rest| route(rest).expect("a route is written as .route(\"PATH\", METHOD(...))"));
    let hiding = [".nest(", ".nest_service(", ".route_service(", "routing::any"];
    (found.collect(), hiding.into_iter().filter(|word| source.contains(word)).collect())
}

fn sources(folder: &Path, into: &mut String) {
    for entry in std::fs::read_dir(folder).expect("the folder can be read").map_while(Result::ok) {
        let path = entry.path();
        match path.is_dir() {
            true => sources(&path, into),
            false => {
                let text = std::fs::read_to_string(&path).expect("a source is text");
                // Tests stand at the end of their file, and their routes are nobody's.
                into.push_str(text.split("#[cfg(test)]\nmod tests").next().unwrap_or_default());
            }
        }
    }
}

#[test]
fn every_route_is_described_before_the_model_is_there_and_after() {
    let mut source = String::new();
    sources(&Path::new(env!("CARGO_MANIFEST_DIR")).join("../native/src/serve"), &mut source);
    let (routes, hidden) = routed(&source);
    assert_eq!(hidden, Vec::<&str>::new(), "no path of the router is hidden");
    let server = Server::open(&[]);
    let (status, loading) = server.get("/openapi.json");
    assert_eq!((status, described(&loading)), (200, routes.clone()), "while the model is being loaded");
    server.hear("ready: ");
    let (status, ready) = server.get("/openapi.json");
    assert_eq!((status, described(&ready)), (200, routes), "when it is there");
    let model = &ready["components"]["schemas"]["ChatRequest"]["properties"]["model"];
    assert_eq!(model["enum"][0], "smollm2-135m-instruct");
    check_the_endless_stream(&server);
    check_examples(&server, &ready);
}

#[test]
fn a_route_that_is_not_described_is_seen() {
    let (routes, hidden) = routed("Router::new().route(\"/a/{*b}\", get(a))\n.route(\n    \"/c\", post(c))");
    let expected = [("get", "/a/{b}"), ("post", "/c")].map(|(m, p)| (m.to_owned(), p.to_owned()));
    assert_eq!((routes, hidden.len()), (BTreeSet::from(expected), 0));
    assert_eq!(routed(".nest(\"/x\", more)").1, [".nest("]);
}

/// schemathesis waits for the end of every answer, and this one has none: its other methods are tried here.
fn check_the_endless_stream(server: &Server) {
    let request = ureq::http::Request::delete(server.url("/v1/timelines/stream"));
    let answer = server.send(request.body(Vec::new()));
    assert_eq!((answer.status, answer.header("allow")), (405, Some("GET,HEAD")));
}

/// Every example of a body is one that is answered.
fn check_examples(server: &Server, document: &Value) {
    let mut tried = 0;
    for (path, item) in document["paths"].as_object().expect("there are paths") {
        let schema = &item["post"]["requestBody"]["content"]["application/json"]["schema"]["$ref"];
        let Some(name) = schema.as_str().and_then(|name| name.rsplit('/').next()) else { continue };
        for example in document["components"]["schemas"][name]["examples"].as_array().expect(name) {
            let (status, body) = server.post(path, example);
            assert_eq!(status, 200, "{path}: {example}: {body}");
            tried += 1;
        }
    }
    assert!(tried >= 4, "{tried} examples were tried");
}

/// Runs schemathesis against `server`, seeded; panics with its report where it finds something.
fn schemathesis(server: &Server, more: &[&str]) {
    let output = Command::new(clients_python())
        .args(["-m", "schemathesis.cli", "--config-file"])
        .arg(script_path("schemathesis.toml"))
        .args(["run", &server.url("/openapi.json"), "--seed", "4", "--generation-database", "none"])
        .args(more)
        .env("SCHEMATHESIS_HOOKS", script_path("schemathesis_hooks.py"))
        .env("PYTHONUTF8", "1")
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .output()
        .expect("schemathesis can be run");
    let text = String::from_utf8_lossy(&output.stdout);
    let words = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "schemathesis found something:\n{text}\n{words}");
    assert!(text.contains("passed"), "schemathesis tried something:\n{text}");
}

/// Little room to wait in: who asks for many choices at once is turned away.
const SMALL: [&str; 4] = ["--slots", "2", "--max-waiting", "2"];

#[test]
fn schemathesis_finds_nothing() {
    // A context that is soon full keeps answers short that do not say how long they may be.
    let server = Server::start(&[&SMALL[..], &["--max-model-len", "96"]].concat());
    schemathesis(&server, &["--phases", "examples,fuzzing,stateful", "--max-examples", "5"]);
    assert_eq!(server.get("/v1/report").1["refused_broken"], 0);
}

#[test]
fn schemathesis_finds_nothing_at_the_edges_and_no_way_past_the_keys() {
    let keys = OwnFile::new("right\n");
    let server = Server::start(&[&SMALL[..], &["--max-model-len", "8", "--api-keys", keys.name()]].concat());
    schemathesis(&server, &["--phases", "coverage", "-H", "Authorization: Bearer right"]);
    schemathesis(&server, &["--phases", "coverage"]);
}

//! The page in a real browser: each script in `tests/browser` proves the claims that are listed here.
//!
//! The claims are made in JavaScript, where the browser is driven; `tests/browser/harness.mjs` says how. Here it is seen that
//! none is missing and all hold. One browser runs at a time: several would wait for each other's processors.

use std::process::{Command, Stdio};
use std::sync::Mutex;

use firstlight_tests::{browser_script, browser_tools};
use serde_json::Value;

use crate::cli::binary;

static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

/// Runs the script, which must prove exactly `claims`, in their order.
fn check(script: &str, claims: &[&str]) {
    let _alone = ONE_AT_A_TIME.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    let (node, settings) = browser_tools();
    let mut command = Command::new(node);
    command.arg(browser_script(script)).envs(settings).stdin(Stdio::null());
    command.env("FIRSTLIGHT_TEST_BINARY", binary());
    let output = command.output().expect("Node starts");
    let told = String::from_utf8_lossy(&output.stdout);
    let said = String::from_utf8_lossy(&output.stderr);
    let lines: Vec<Value> = told.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
    let proven: Vec<&str> = lines.iter().filter_map(|line| line["claim"].as_str()).collect();
    assert_eq!(proven, claims, "{script} proves what is listed:\n{told}\n{said}");
    let failed: Vec<String> = lines
        .iter()
        .filter(|line| line["ok"] != true)
        .map(|line| format!("{}: {}", line["claim"], line["error"].as_str().unwrap_or_default()))
        .collect();
    assert!(failed.is_empty() && output.status.success(), "{script}:\n{}\n{said}", failed.join("\n"));
}

#[test]
fn the_page_comes_up_from_a_static_host() {
    check(
        "page.mjs",
        &[
            "it loads under a sub-path, from its own host alone, and its worker answers",
            "while it is loading it says so, and without its program it says what to do",
            "a device that its worker got can be taken away from it",
            "without JavaScript it says what to allow",
        ],
    );
}

#[test]
fn the_page_shows_what_a_native_server_says() {
    check(
        "server.mjs",
        &[
            "a burst of eight: lanes, gauges and report are the server's, and every sum is exact",
            "the page that a server serves comes up with it, and chats",
            "a server that refuses or goes away is told in a sentence, and the page lives on",
            "a recording of eight answers at 100 tokens a second: no task over 50 ms, and all is shown",
        ],
    );
}

#[test]
fn the_page_is_accessible_fits_every_window_and_can_be_used_without_a_mouse() {
    check(
        "looks.mjs",
        &[
            "empty, without WebGPU, loading and failing: nothing is wrong in any size and theme",
            "ready, chatting, a burst and one request opened: nothing is wrong in any size and theme",
            "everything is reached with the keyboard",
            "a table stands beside every picture, and figures and picture can be kept as files",
        ],
    );
}

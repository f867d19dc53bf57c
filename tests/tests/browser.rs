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
fn the_engine_answers_in_the_tab_and_its_faults_are_told() {
    check(
        "tab.mjs",
        &[
            "two prompts sent at once stream in turns, with the reference's ids and exact timelines",
            "one of three is stopped by its button: the others go on, and the next prompt is answered in full",
            "a device destroyed in mid-answer ends it with a readable reason, and comes back by itself",
            "after a reload too much room is refused with its size, and then the model comes from storage without the network",
            "a restarted browser still has it, and of a file that was cut to half only the rest is fetched",
            "a flipped byte is noticed, and the file is fetched again",
            "a connection that breaks is taken up again where it broke",
            "a host without ranges sends it from the beginning",
            "a host whose file is not the one that it names is refused in a sentence",
            "without room it says that it is not kept, with the figures",
            "a dropped file that is no GGUF is refused in a sentence",
            "a kernel that computes wrong is named, and nothing is ever answered with it",
            "without WebGPU the page says so and offers a server",
        ],
    );
    if !firstlight_tests::full() {
        return;
    }
    check(
        "tab_full.mjs",
        &[
            "a model that has no room in storage runs, and is not kept",
            "a dropped model answers, and is here after a reload",
            "a reload in mid-download goes on where it was",
            "two tabs that load the same model at once fetch it once, and both answer",
            "a GPU process that dies in mid-answer ends it with a readable reason, and a new prompt is answered",
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

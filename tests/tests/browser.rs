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
            "asked by its address for activations, keys and values in 8 bits, it says that it has them, and answers",
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
fn a_report_opens_from_the_disk_and_needs_nothing_else() {
    check(
        "report.mjs",
        &[
            "what a bench wrote opens from the disk without a network, and every figure is the one that was measured",
            "a recording that the page shows is kept as such a document",
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

/// Made in Rust, under `web/src/claims`, which `cargo xtask test` compiles for this.
#[test]
fn what_page_and_worker_do_with_the_browser_holds_on_either_thread() {
    check(
        "claims.mjs",
        &[
            "page: both::a_message_is_the_same_after_its_way",
            "page: both::instants_beyond_what_a_number_of_javascript_holds_are_exact",
            "page: both::what_a_browser_throws_is_told_in_its_words",
            "page: both::time_is_counted_in_nanoseconds_and_never_below_zero",
            "page: page::events_are_handed_on_in_the_order_in_which_they_were_sent",
            "page: page::files_travel_beside_their_command",
            "page: page::a_worker_that_cannot_be_started_or_dies_is_told",
            "page: page::what_a_model_wrote_never_becomes_an_element",
            "page: page::a_block_that_does_not_change_keeps_its_nodes",
            "page: page::a_number_out_of_range_is_told_beside_its_field_and_nothing_is_sent",
            "page: page::keys_are_left_to_who_is_typing",
            "page: page::a_wish_for_a_lane_is_granted_once_it_is_known",
            "page: page::what_is_to_be_kept_is_kept_and_parameters_are_read",
            "page: page::a_file_is_given_with_its_name_and_all_of_its_text",
            "page: events::text_of_many_events_is_shown_once_a_frame_and_in_their_order",
            "page: events::a_token_of_one_answer_touches_no_other",
            "page: events::the_stop_button_of_an_answer_cancels_that_one",
            "page: events::events_of_an_ended_answer_change_nothing",
            "page: events::events_of_an_answer_that_nobody_asked_for_change_nothing",
            "page: events::what_came_before_the_end_is_shown_with_it",
            "page: events::a_worker_that_ends_ends_every_answer_with_its_reason",
            "worker: both::a_message_is_the_same_after_its_way",
            "worker: both::instants_beyond_what_a_number_of_javascript_holds_are_exact",
            "worker: both::what_a_browser_throws_is_told_in_its_words",
            "worker: both::time_is_counted_in_nanoseconds_and_never_below_zero",
            "worker: store::what_is_written_in_pieces_is_read_with_its_size_and_sha256",
            "worker: store::half_a_file_is_found_as_half_with_how_much_is_there",
            "worker: store::a_file_that_is_all_here_counts_as_whole_only_when_its_list_says_so",
            "worker: store::files_of_one_name_under_two_keys_do_not_collide",
            "worker: store::who_comes_second_to_write_a_file_is_told_that_it_is_busy",
            "worker: store::the_list_of_models_is_sorted_and_without_what_is_no_list",
            "worker: store::what_is_deleted_is_gone_and_frees_its_room",
            "worker: store::adapters_that_were_tested_are_remembered",
            "worker: store::only_the_missing_half_is_fetched",
            "worker: store::a_flipped_byte_is_noticed_and_the_file_fetched_again",
            "worker: store::a_damaged_file_without_a_source_is_refused_with_what_to_do",
            "worker: store::a_source_that_is_not_what_it_should_be_is_refused_after_a_second_try",
            "worker: store::what_was_stopped_says_so_and_keeps_what_came",
            "worker: store::ranges_of_a_blob_come_whole_or_are_an_error",
            "worker: incoming::a_status_that_is_no_success_becomes_a_sentence_with_what_to_do",
            "worker: incoming::a_host_that_cannot_be_reached_is_told_with_its_address",
            "worker: incoming::a_file_comes_from_the_byte_that_was_asked_for",
            "worker: incoming::of_a_file_that_is_all_here_nothing_comes",
            "worker: incoming::a_file_that_became_shorter_is_refused",
            "worker: incoming::a_host_without_ranges_sends_from_the_beginning",
            "worker: incoming::a_dropped_file_comes_from_any_byte",
            "worker: incoming::who_pressed_stop_hears_that_and_no_fault",
            "worker: requests::an_answer_comes_with_its_status_its_headers_and_all_its_bytes",
            "worker: requests::a_body_with_more_than_its_limit_is_given_up",
            "worker: requests::nobody_there_is_told_in_a_browsers_words",
            "worker: requests::who_ends_a_request_finds_the_first_reason_again",
            "worker: requests::models_beside_the_page_are_listed_and_none_where_there_is_no_list",
            "worker: requests::a_name_that_leaves_its_folder_is_refused",
            "worker: requests::what_is_no_address_and_no_name_of_a_model_is_refused_in_a_sentence",
            "worker: requests::a_repository_of_the_hub_gives_its_file_with_size_and_sha256",
            "worker: requests::dropped_files_make_a_model_or_are_named",
            "worker: requests::the_same_bytes_have_one_key_and_others_another",
            "worker: time::the_clock_counts_from_the_pages_origin",
            "worker: time::the_clock_never_goes_back_and_never_behind_what_the_page_stamped",
            "worker: time::a_timer_calls_once_unless_it_is_dropped_before",
            "worker: time::the_first_and_the_last_word_of_a_stage_are_told_and_few_between",
        ],
    );
}

//! The engine's thread with the real model on a real device: the device is lost in the middle of an answer, and a new one
//! takes over.

use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use firstlight::ask::Ask;
use firstlight::cli::{self, Command, EngineArgs, Parsed};
use firstlight::driver::EngineHandle;
use firstlight::load::{self, Needs};
use firstlight_engine::clock::Clock;
use firstlight_engine::engine::RequestEvent;
use firstlight_engine::request::{FinishReason, SamplingParams};
use firstlight_engine::text::PromptInput;
use firstlight_tests::default_model_path;

fn engine_args() -> EngineArgs {
    let model = default_model_path().into_os_string();
    let words = ["firstlight", "run", "--slots", "1", "--prefix-cache", "on", "--model"];
    match cli::parse(words.map(Into::into).into_iter().chain([model])) {
        Ok(Parsed::Command(cli)) => match cli.command {
            Command::Run(args) => args.engine,
            other => panic!("{other:?} is not run"),
        },
        _ => panic!("the line is right"),
    }
}

/// Asks, and calls `on_token` on the engine's thread, between two steps, for each token.
fn ask(
    engine: &EngineHandle,
    prompt: &str,
    max_tokens: u32,
    mut on_token: impl FnMut() + Send + 'static,
) -> Receiver<RequestEvent> {
    let (sender, events) = channel();
    let params = SamplingParams { max_tokens, ignore_eos: true, ..Default::default() };
    let ask = Ask::new(PromptInput::Raw(prompt.into()), params, "test", engine.clock().now());
    let sink = move |event| {
        if matches!(event, RequestEvent::Token { .. }) {
            on_token();
        }
        sender.send(event).is_ok()
    };
    ask.send(engine, Box::new(sink));
    events
}

fn answer(events: Receiver<RequestEvent>) -> (FinishReason, Vec<u32>) {
    let mut tokens = Vec::new();
    for event in events {
        match event {
            RequestEvent::Token { token, .. } => tokens.push(token.token),
            RequestEvent::Finished { reason, mut timeline, .. } => {
                timeline.seal().expect("the timeline keeps every rule");
                return (reason, tokens);
            }
        }
    }
    panic!("an answer ends with its `Finished`")
}

#[test]
fn a_device_lost_in_mid_answer_is_opened_again_and_the_queue_is_answered_right() {
    let devices = Arc::new(Mutex::new(Vec::new()));
    let seen = Arc::clone(&devices);
    let opened = move |device: &wgpu::Device| seen.lock().unwrap().push(device.clone());
    let thread =
        load::engine_thread_watched(&engine_args(), Needs::Text, 8, opened).expect("the model loads");
    let engine = thread.handle();
    // Both begin alike for more than a block: what the lost device had of it must not be taken for the new one's.
    let beginning =
        "The keeper of the old lighthouse counted the ships that passed in the night, and in the morning";
    let (first, second) = (format!("{beginning} he wrote"), format!("{beginning} she"));
    let expected = answer(ask(&engine, &second, 6, || ()));
    assert_eq!((expected.0, expected.1.len()), (FinishReason::Length, 6));

    let at_hand = Arc::clone(&devices);
    let mut left = 3;
    let lost = ask(&engine, &first, 4000, move || {
        left -= 1;
        if left == 0 {
            at_hand.lock().unwrap().iter().for_each(wgpu::Device::destroy);
        }
    });
    let queued = ask(&engine, &second, 6, || ());
    let (reason, tokens) = answer(lost);
    assert_eq!((reason, tokens.len()), (FinishReason::Failed, 3));
    assert_eq!(answer(queued), expected, "by the new device");
    assert_eq!(answer(ask(&engine, &second, 6, || ())), expected, "with what the new device has of it");
    assert_eq!(devices.lock().unwrap().len(), 2, "it was opened once more");
    let counters = engine.counters();
    assert_eq!((counters.running, counters.waiting), (0, 0));
    assert_eq!(counters.blocks_free, counters.blocks_total);
    thread.shut_down(Duration::ZERO);
}

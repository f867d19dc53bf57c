//! What holds on either thread: messages that come as they were sent, and the browser's own words.

use firstlight_engine::request::FinishReason;
use wasm_bindgen::prelude::*;
use wasm_bindgen_futures::JsFuture;
use web_sys::js_sys;

use super::js;
use crate::browser::{nanos, performance, words};
use crate::protocol::{Ask, AskId, Command, Event, Prompt, Sampling};

super::claims![
    a_message_is_the_same_after_its_way,
    instants_beyond_what_a_number_of_javascript_holds_are_exact,
    what_a_browser_throws_is_told_in_its_words,
    time_is_counted_in_nanoseconds_and_never_below_zero,
];

/// The text as another thread would get it.
async fn posted(text: String) -> String {
    let post: js_sys::Function = js("(text) => new Promise((done) => {
        const { port1, port2 } = new MessageChannel();
        port2.onmessage = ({ data }) => (done(data), port2.close());
        port1.postMessage(text);
    })")
    .unchecked_into();
    let there = post.call1(&JsValue::UNDEFINED, &text.into()).expect("a channel takes text");
    let there = JsFuture::from(there.unchecked_into::<js_sys::Promise>()).await;
    there.ok().and_then(|text| text.as_string()).expect("text comes as text")
}

async fn check<T>(message: T)
where
    T: PartialEq + std::fmt::Debug + serde::Serialize + serde::de::DeserializeOwned,
{
    let text = posted(serde_json::to_string(&message).expect("a message is JSON")).await;
    let there: T = serde_json::from_slice(text.as_bytes()).expect("JSON is a message");
    assert_eq!(there, message, "{text}");
}

fn ask(id: u64, said: &str) -> Command {
    let sampling =
        Sampling { seed: Some(u64::MAX), temperature: 0.1, stop: vec![said.into()], ..Sampling::default() };
    Command::Submit {
        asks: vec![Ask { id: AskId(id), received: id, prompt: Prompt::Raw(said.into()), sampling }],
    }
}

async fn a_message_is_the_same_after_its_way() {
    for said in ["", "a\0b", "\u{1f600} \u{301}\u{202e}", "\"\\\n\u{2028}", "\u{ffff}\u{10ffff}"] {
        check(ask(1, said)).await;
        check(Event::Text { ask: AskId(1), text: said.into(), tokens: 1, token_ids: vec![0, u32::MAX] })
            .await;
        let detail = Some(said.to_owned());
        check(Event::Finished { ask: AskId(1), reason: FinishReason::Cancelled, detail }).await;
    }
}

async fn instants_beyond_what_a_number_of_javascript_holds_are_exact() {
    for instant in [(1 << 53) + 1, (1 << 63) + 1, u64::MAX] {
        check(ask(instant, "x")).await;
        check(Event::Hello { sent_at: instant, heard_at: instant - 1, no_webgpu: None }).await;
    }
    check(Command::AdjustClock { nanos: i64::MIN + 1 }).await;
}

async fn what_a_browser_throws_is_told_in_its_words() {
    let check = |thrown: &str, expected: &str| assert_eq!(words(&js(thrown)), expected);
    check("new RangeError('too much')", "RangeError: too much");
    check("new DOMException('no room', 'QuotaExceededError')", "QuotaExceededError: no room");
    check("'a text'", "a text");
}

async fn time_is_counted_in_nanoseconds_and_never_below_zero() {
    assert_eq!([nanos(1.5), nanos(-1.0), nanos(f64::NAN)], [1_500_000, 0, 0]);
    let (origin, now) = performance();
    let unix_ms = js_sys::Date::now();
    // Two clocks of one browser: apart by what either rounds, not by a zone or a factor.
    assert!((origin + now - unix_ms).abs() < 60_000.0, "{origin} + {now} and {unix_ms}");
}

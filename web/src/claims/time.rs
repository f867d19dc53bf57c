//! The worker's clock, its timers, and how often it tells how far it is.

use std::cell::{Cell, RefCell};
use std::future::Future;
use std::rc::Rc;

use firstlight_engine::clock::Clock;
use wasm_bindgen::prelude::*;
use web_sys::js_sys;

use super::turn;
use crate::browser::{performance, scope};
use crate::protocol::{Event, Progress, Stage};
use crate::worker::clock::PageClock;
use crate::worker::fetch::{Timer, sleep};
use crate::worker::meter::Meter;

super::claims![
    the_clock_counts_from_the_pages_origin,
    the_clock_never_goes_back_and_never_behind_what_the_page_stamped,
    a_timer_calls_once_unless_it_is_dropped_before,
    the_first_and_the_last_word_of_a_stage_are_told_and_few_between,
];

/// What the page is told while `work` goes on.
pub async fn events(work: impl Future<Output = ()>) -> Vec<Event> {
    let told = Rc::new(RefCell::new(Vec::new()));
    let hear = {
        let told = Rc::clone(&told);
        Closure::<dyn FnMut(JsValue)>::new(move |message: JsValue| {
            let text = message.as_string().expect("an event is text");
            told.borrow_mut().push(serde_json::from_slice(text.as_bytes()).expect("an event is JSON"));
        })
    };
    let name = JsValue::from("postMessage");
    let set = |to: &JsValue| js_sys::Reflect::set(&scope(), &name, to).expect("a scope takes it");
    let usual = js_sys::Reflect::get(&scope(), &name).expect("a worker has it");
    set(hear.as_ref());
    work.await;
    set(&usual);
    told.take()
}

async fn the_clock_counts_from_the_pages_origin() {
    let (own_origin, _) = performance();
    // The page began 1500 ms before its worker, and the worker before the page of another machine's fancy.
    for (earlier_ms, earlier_ns) in [(1500.0, 1_500_000_000), (0.0, 0)] {
        let clock = PageClock::new(own_origin - earlier_ms);
        let before = (performance().1 * 1e6) as u64 + earlier_ns;
        let read = clock.now();
        let after = (performance().1 * 1e6) as u64 + earlier_ns;
        // What the subtraction of two doubles of 10^12 leaves.
        assert!(before <= read + 1000 && read <= after + 1000, "{before} {read} {after}");
        assert_eq!(clock.origin_unix_ms(), (own_origin - earlier_ms) as u64);
    }
    let late = PageClock::new(own_origin + 1e9);
    assert_eq!(late.now(), 0, "before its origin there is nothing");
}

async fn the_clock_never_goes_back_and_never_behind_what_the_page_stamped() {
    let clock = PageClock::new(performance().0);
    let copy = clock.clone();
    let first = clock.now();
    copy.adjust(-5_000_000_000);
    assert_eq!(clock.now().max(first), clock.now(), "a correction backwards stands still");
    assert!(clock.now() >= first);
    clock.adjust(65_000_000_000);
    let later = copy.now();
    assert!(later >= first + 59_000_000_000, "a correction forwards is taken: {first} {later}");
    clock.witness(later + 1_000_000_000_000);
    assert_eq!(copy.now(), later + 1_000_000_000_000, "what the page stamped is past");
    clock.witness(1);
    let mut before = clock.now();
    for _ in 0..10_000 {
        let now = clock.now();
        assert!(now >= before);
        before = now;
    }
}

async fn a_timer_calls_once_unless_it_is_dropped_before() {
    let calls = Rc::new(Cell::new([0, 0]));
    let count = |which: usize| {
        let calls = Rc::clone(&calls);
        move || {
            let mut now = calls.get();
            now[which] += 1;
            calls.set(now);
        }
    };
    let _kept = Timer::after(0, count(0));
    drop(Timer::after(0, count(1)));
    // Timers of one length come in their order.
    sleep(0).await;
    turn().await;
    assert_eq!(calls.get(), [1, 0]);
}

async fn the_first_and_the_last_word_of_a_stage_are_told_and_few_between() {
    let start = performance().1;
    let told = events(async {
        let mut meter = Meter::begin(Stage::Check, Some("a.gguf".into()), 0, Some(5000));
        for done in 1..=5000 {
            meter.set(done);
        }
    });
    let told = told.await;
    let most = 3.0 + (performance().1 - start) / 100.0;
    assert!((told.len() as f64) < most, "{} words", told.len());
    let progress: Vec<&Progress> = told
        .iter()
        .map(|event| match event {
            Event::Progress(progress) => progress,
            other => panic!("{other:?}"),
        })
        .collect();
    let (first, last) = (progress[0], progress[progress.len() - 1]);
    assert_eq!((first.done, first.per_second), (0, 0.0), "no rate before one can be said");
    assert_eq!((last.done, last.total, last.stage), (5000, Some(5000), Stage::Check));
    assert!(last.per_second >= 0.0 && last.per_second.is_finite());
    assert!(progress.is_sorted_by(|a, b| a.done <= b.done));
}

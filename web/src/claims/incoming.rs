//! Files on their way in, from hosts that answer as hosts do. The script serves `bytes.bin`, 1000 bytes that count, and
//! answers `status/N` with that status.

use wasm_bindgen::prelude::*;
use web_sys::{AbortController, AbortSignal, File};

use super::js;
use crate::worker::incoming::{Incoming, Origin, STOPPED, fetch};

super::claims![
    a_status_that_is_no_success_becomes_a_sentence_with_what_to_do,
    a_host_that_cannot_be_reached_is_told_with_its_address,
    a_file_comes_from_the_byte_that_was_asked_for,
    of_a_file_that_is_all_here_nothing_comes,
    a_file_that_became_shorter_is_refused,
    a_host_without_ranges_sends_from_the_beginning,
    a_dropped_file_comes_from_any_byte,
    who_pressed_stop_hears_that_and_no_fault,
];

/// An address on the host that serves the claims.
pub fn address(name: &str) -> String {
    js("location.origin").as_string().unwrap_or_default() + "/" + name
}

/// One that nobody aborts.
pub fn never() -> AbortSignal {
    AbortController::new().expect("a browser has it").signal()
}

/// What counts from 0 and begins anew after 255.
pub fn counting(len: usize) -> Vec<u8> {
    (0..len).map(|at| at as u8).collect()
}

async fn all(incoming: &mut Incoming) -> Vec<u8> {
    let mut bytes = Vec::new();
    while let Some(piece) = incoming.next().await.expect("it does not break off") {
        bytes.extend(piece.to_vec());
    }
    bytes
}

async fn open(url: &str, from: u64) -> Result<Incoming, String> {
    Incoming::open(&Origin::Http(url.to_owned()), from, &never()).await
}

async fn a_status_that_is_no_success_becomes_a_sentence_with_what_to_do() {
    for (status, said) in [
        (404, "is not there (404); check the name"),
        (401, "without signing in (401); choose a public model"),
        (403, "without signing in (403); choose a public model"),
        (500, "answers with status 500; try again later"),
        (503, "answers with status 503; try again later"),
        (204, "answers with status 204"),
    ] {
        let url = address(&format!("status/{status}"));
        let sentence = fetch(&url, 0, &never()).await.map(|_| ()).expect_err("it is no success");
        assert!(sentence.starts_with(&url) && sentence.contains(said), "{sentence}");
        assert_eq!(open(&url, 5).await.map(|_| ()), Err(sentence), "the same with a range");
    }
}

async fn a_host_that_cannot_be_reached_is_told_with_its_address() {
    // A port that browsers never speak to.
    let url = "http://127.0.0.1:1/a.gguf";
    let sentence = open(url, 0).await.map(|_| ()).expect_err("nobody is there");
    assert!(sentence.starts_with(url) && sentence.contains("check the address"), "{sentence}");
}

async fn a_file_comes_from_the_byte_that_was_asked_for() {
    let expected = counting(1000);
    for from in [0, 1, 256, 999] {
        let mut incoming = open(&address("bytes.bin"), from).await.expect("it is there");
        assert_eq!((incoming.from, incoming.total), (from, Some(1000)));
        assert!(all(&mut incoming).await == expected[from as usize..], "from {from}");
    }
}

async fn of_a_file_that_is_all_here_nothing_comes() {
    let mut incoming = open(&address("bytes.bin"), 1000).await.expect("it is as it was");
    assert_eq!((incoming.from, incoming.total), (1000, Some(1000)));
    assert!(all(&mut incoming).await.is_empty());
}

async fn a_file_that_became_shorter_is_refused() {
    let sentence = open(&address("bytes.bin"), 1001).await.map(|_| ()).expect_err("it has changed");
    assert!(sentence.contains("has no byte 1001: it has changed; delete the model"), "{sentence}");
}

async fn a_host_without_ranges_sends_from_the_beginning() {
    let mut incoming = open("data:application/octet-stream;base64,AAECAwQF", 3).await.expect("it is there");
    assert_eq!(incoming.from, 0, "what is here is not to be gone on from");
    assert_eq!(all(&mut incoming).await, counting(6));
}

async fn a_dropped_file_comes_from_any_byte() {
    let file: File = js("new File([new Uint8Array([0, 1, 2, 3, 4])], 'a.gguf')").unchecked_into();
    for from in [0, 2, 5] {
        let mut incoming =
            Incoming::open(&Origin::File(file.clone()), from, &never()).await.expect("it is there");
        assert_eq!((incoming.from, incoming.total), (from, Some(5)));
        assert_eq!(all(&mut incoming).await, &counting(5)[from as usize..]);
    }
}

async fn who_pressed_stop_hears_that_and_no_fault() {
    let stop = AbortController::new().expect("a browser has it");
    stop.abort();
    let stopped = fetch(&address("bytes.bin"), 0, &stop.signal()).await.map(|_| ());
    assert_eq!(stopped, Err(STOPPED.to_owned()));
}

//! The browser's storage, and models on their way into it and out of it.

use firstlight_engine::model::WeightSource;
use sha2::{Digest, Sha256};
use wasm_bindgen::prelude::*;
use web_sys::{AbortController, Blob, File, js_sys};

use super::js;
use crate::worker::blob::BlobSource;
use crate::worker::catalog::Wanted;
use crate::worker::incoming::{Origin, STOPPED};
use crate::worker::obtain::{Obtained, obtain};
use crate::worker::store::{ListedFile, ModelList, Store, WriteError, figures};

super::claims![
    what_is_written_in_pieces_is_read_with_its_size_and_sha256,
    half_a_file_is_found_as_half_with_how_much_is_there,
    a_file_that_is_all_here_counts_as_whole_only_when_its_list_says_so,
    files_of_one_name_under_two_keys_do_not_collide,
    who_comes_second_to_write_a_file_is_told_that_it_is_busy,
    the_list_of_models_is_sorted_and_without_what_is_no_list,
    what_is_deleted_is_gone_and_frees_its_room,
    adapters_that_were_tested_are_remembered,
    only_the_missing_half_is_fetched,
    a_flipped_byte_is_noticed_and_the_file_fetched_again,
    a_damaged_file_without_a_source_is_refused_with_what_to_do,
    a_source_that_is_not_what_it_should_be_is_refused_after_a_second_try,
    what_was_stopped_says_so_and_keeps_what_came,
    ranges_of_a_blob_come_whole_or_are_an_error,
];

const BYTES: usize = 100_000;

/// Bytes that are no pattern of a power of two.
fn bytes() -> Vec<u8> {
    (0..BYTES as u32).map(|idx| (idx.wrapping_mul(2_654_435_761) >> 24) as u8).collect()
}

fn sha256(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}

fn list(name: &str, bytes: &[u8], whole: bool) -> ModelList {
    let file = ListedFile {
        file: "a.gguf".into(),
        bytes: bytes.len() as u64,
        sha256: Some(sha256(bytes)),
        url: String::new(),
    };
    ModelList { name: name.into(), files: vec![file], whole }
}

/// The store with nothing in it.
async fn empty() -> Store {
    let store = Store::open().await.expect("a browser has storage");
    for model in store.models().await {
        store.delete(&model.key).await.expect("nobody is at it");
    }
    store
}

async fn write(store: &Store, key: &str, offset: u64, bytes: &[u8]) {
    let writing = store.write(key, "a.gguf").await.expect("nobody writes it");
    writing.write(offset, &js_sys::Uint8Array::from(bytes)).expect("there is room");
    writing.close().expect("it can be flushed");
}

async fn read(blob: &Blob) -> Vec<u8> {
    let source = BlobSource { name: "x".into(), blob: blob.clone() };
    source.bytes(0, source.len() as usize).await.expect("a blob can be read")
}

async fn stored(store: &Store, key: &str) -> Vec<u8> {
    read(&store.file(key, "a.gguf").await.expect("it is there")).await
}

async fn what_is_written_in_pieces_is_read_with_its_size_and_sha256() {
    let (store, bytes) = (empty().await, bytes());
    let writing = store.write("k", "a.gguf").await.expect("nobody writes it");
    assert_eq!(writing.len(), 0);
    // Not in their order, and one over another.
    for (from, to) in [(60_000, BYTES), (0, 33_333), (33_333, 70_000)] {
        writing.write(from as u64, &js_sys::Uint8Array::from(&bytes[from..to])).expect("there is room");
    }
    assert_eq!(writing.len(), BYTES as u64);
    let mut piece = vec![0; 1000];
    assert_eq!(writing.read(BYTES as u64 - 10, &mut piece), Ok(10), "as many as there are");
    assert_eq!(piece[..10], bytes[BYTES - 10..]);
    writing.close().expect("it can be flushed");
    assert_eq!(sha256(&stored(&store, "k").await), sha256(&bytes));
    let list = list("A", &bytes, true);
    store.set_list("k", &list).await.expect("there is room");
    assert_eq!(store.list_of("k").await, Some(list.clone()));
    let shorter = ModelList { name: "B".into(), files: Vec::new(), whole: false };
    store.set_list("k", &shorter).await.expect("there is room");
    assert_eq!(store.list_of("k").await, Some(shorter), "nothing of a longer one stays");
}

async fn half_a_file_is_found_as_half_with_how_much_is_there() {
    let (store, bytes) = (empty().await, bytes());
    store.set_list("k", &list("A", &bytes, false)).await.expect("there is room");
    write(&store, "k", 0, &bytes[..BYTES / 2]).await;
    let found = store.models().await;
    let [model] = found.as_slice() else { panic!("{found:?}") };
    assert_eq!((model.bytes, model.bytes_here), (BYTES as u64, BYTES as u64 / 2));
    assert_eq!(model.sha256, Some(sha256(&bytes)));
}

async fn a_file_that_is_all_here_counts_as_whole_only_when_its_list_says_so() {
    let (store, bytes) = (empty().await, bytes());
    write(&store, "k", 0, &bytes).await;
    for (whole, expected) in [(false, BYTES - 1), (true, BYTES)] {
        store.set_list("k", &list("A", &bytes, whole)).await.expect("there is room");
        assert_eq!(store.models().await[0].bytes_here, expected as u64, "whole: {whole}");
    }
}

async fn files_of_one_name_under_two_keys_do_not_collide() {
    let store = empty().await;
    write(&store, "one", 0, b"one").await;
    write(&store, "two", 0, b"two and more").await;
    assert_eq!(stored(&store, "one").await, b"one");
    store.delete("one").await.expect("nobody is at it");
    assert_eq!(stored(&store, "two").await, b"two and more");
}

async fn who_comes_second_to_write_a_file_is_told_that_it_is_busy() {
    let store = empty().await;
    let first = store.write("k", "a.gguf").await.expect("nobody writes it");
    let second = store.write("k", "a.gguf").await.map(|_| "it is open");
    assert_eq!(second, Err(WriteError::Busy));
    let why = store.delete("k").await.expect_err("it is being written");
    assert!(why.contains("Error: ") && why.len() > 20, "{why}");
    drop(first);
    assert!(store.write("k", "a.gguf").await.is_ok(), "who is done lets others at it");
}

async fn the_list_of_models_is_sorted_and_without_what_is_no_list() {
    let store = empty().await;
    for (key, name) in [("z", "A"), ("m", "C"), ("b", "B"), ("a", "B")] {
        store.set_list(key, &list(name, b"x", true)).await.expect("there is room");
    }
    let writing = store.write("broken", "model.json").await.expect("nobody writes it");
    writing.write(0, &js_sys::Uint8Array::from(&b"{\"name\": 1"[..])).expect("there is room");
    writing.close().expect("it can be flushed");
    write(&store, "without", 0, b"x").await;
    let keys: Vec<String> = store.models().await.into_iter().map(|model| model.key).collect();
    assert_eq!(keys, ["z", "a", "b", "m"], "by name, then by key");
    for key in ["broken", "without"] {
        store.delete(key).await.expect("nobody is at it");
    }
}

async fn what_is_deleted_is_gone_and_frees_its_room() {
    const LARGE: usize = 8 << 20;
    let store = empty().await;
    write(&store, "k", 0, &vec![7; LARGE]).await;
    store.set_list("k", &list("A", b"x", true)).await.expect("there is room");
    let before = figures().await.expect("a browser says how much there is");
    assert!(before.used >= LARGE as u64 && before.quota > before.used, "{before:?}");
    store.delete("k").await.expect("nobody is at it");
    assert!(store.models().await.is_empty() && store.list_of("k").await.is_none());
    assert!(store.file("k", "a.gguf").await.is_none());
    let after = figures().await.expect("a browser says how much there is");
    assert!(after.used + LARGE as u64 <= before.used, "{before:?}, then {after:?}");
    assert!(store.delete("k").await.is_err(), "what is not there cannot be deleted");
}

async fn adapters_that_were_tested_are_remembered() {
    let store = empty().await;
    assert!(!store.is_tested("an adapter").await);
    store.set_tested("an adapter").await;
    store.set_tested("another").await;
    let again = Store::open().await.expect("a browser has storage");
    assert!(again.is_tested("an adapter").await && again.is_tested("another").await);
    assert!(!again.is_tested("an").await);
}

/// Bytes as something with an address; a browser answers it with ranges.
fn address(bytes: &[u8]) -> String {
    let blob = blob(bytes);
    web_sys::Url::create_object_url_with_blob(&blob).expect("a blob has an address")
}

fn blob(bytes: &[u8]) -> Blob {
    let parts = js_sys::Array::of1(&js_sys::Uint8Array::from(bytes));
    Blob::new_with_buffer_source_sequence(&parts).expect("bytes make a blob")
}

async fn bring(store: &Store, list: ModelList, origin: Option<Origin>) -> Result<Obtained, String> {
    let stop = AbortController::new().expect("a browser has it");
    let wanted = Wanted { key: "k".into(), list, origins: vec![origin] };
    obtain(wanted, Some(store), &stop.signal()).await
}

/// The sentences that the page was told while `work` went on.
async fn told(work: impl Future<Output = ()>) -> Vec<String> {
    super::time::events(work)
        .await
        .into_iter()
        .filter_map(|event| match event {
            crate::protocol::Event::Notice { sentence } => Some(sentence),
            _ => None,
        })
        .collect()
}

async fn only_the_missing_half_is_fetched() {
    let (store, bytes) = (empty().await, bytes());
    let half = BYTES / 2;
    store.set_list("k", &list("A", &bytes, false)).await.expect("there is room");
    write(&store, "k", 0, &bytes[..half]).await;
    // What is here already is zero there: fetched once more it would be seen.
    let mut there = bytes.clone();
    there[..half].fill(0);
    let notices = told(async {
        let origin = Origin::Http(address(&there));
        let obtained = bring(&store, list("A", &bytes, false), Some(origin)).await.expect("it is brought");
        assert!(obtained.kept && obtained.list.whole);
        assert!(read(&obtained.file("a.gguf").expect("it is named").blob).await == bytes);
        assert_eq!(store.models().await[0].bytes_here, BYTES as u64);
    });
    assert_eq!(notices.await, Vec::<String>::new());
}

async fn a_flipped_byte_is_noticed_and_the_file_fetched_again() {
    let (store, bytes) = (empty().await, bytes());
    write(&store, "k", 0, &bytes).await;
    write(&store, "k", 4321, &[bytes[4321] ^ 1]).await;
    let notices = told(async {
        let origin = Origin::Http(address(&bytes));
        let obtained = bring(&store, list("A", &bytes, true), Some(origin)).await.expect("it is brought");
        assert!(obtained.kept && read(&obtained.files[0].blob).await == bytes);
    })
    .await;
    let [notice] = notices.as_slice() else { panic!("{notices:?}") };
    let said = notice.contains("a.gguf is damaged") && notice.contains(&sha256(&bytes));
    assert!(said && notice.ends_with("It is fetched again."), "{notice}");
}

async fn a_damaged_file_without_a_source_is_refused_with_what_to_do() {
    let (store, bytes) = (empty().await, bytes());
    write(&store, "k", 0, &bytes).await;
    write(&store, "k", 0, &[bytes[0] ^ 0x80]).await;
    let refused = bring(&store, list("A", &bytes, true), None).await.map(|_| ()).expect_err("it is damaged");
    assert!(
        refused.contains("is damaged") && refused.ends_with("drop the file on the page again"),
        "{refused}"
    );
    write(&store, "k", 0, &bytes[..10]).await;
    let refused = bring(&store, list("A", &bytes, true), None).await.map(|_| ()).expect_err("it is cut");
    assert!(refused.contains("is not whole here; drop the file"), "{refused}");
}

async fn a_source_that_is_not_what_it_should_be_is_refused_after_a_second_try() {
    let (store, bytes) = (empty().await, bytes());
    let mut other = bytes.clone();
    other[BYTES - 1] ^= 1;
    let notices = told(async {
        let origin = Origin::Http(address(&other));
        let refused = bring(&store, list("A", &bytes, false), Some(origin)).await.map(|_| ());
        let refused = refused.expect_err("it is another file");
        assert!(refused.ends_with("for the second time; choose another source"), "{refused}");
    });
    assert_eq!(notices.await.len(), 1);
    assert_eq!(store.list_of("k").await.map(|list| list.whole), Some(false));
    assert_eq!(store.file("k", "a.gguf").await.map(|blob| blob.size()), Some(0.0), "nothing wrong is kept");
}

async fn what_was_stopped_says_so_and_keeps_what_came() {
    let (store, bytes) = (empty().await, bytes());
    store.set_list("k", &list("A", &bytes, false)).await.expect("there is room");
    write(&store, "k", 0, &bytes[..500]).await;
    let stop = AbortController::new().expect("a browser has it");
    stop.abort();
    let origins = vec![Some(Origin::Http(address(&bytes)))];
    let wanted = Wanted { key: "k".into(), list: list("A", &bytes, false), origins };
    let stopped = obtain(wanted, Some(&store), &stop.signal()).await.map(|_| ());
    assert_eq!(stopped, Err(STOPPED.to_owned()));
    assert!(stored(&store, "k").await == bytes[..500]);
}

async fn ranges_of_a_blob_come_whole_or_are_an_error() {
    let bytes = bytes();
    let file: File = js("new File([new Uint8Array(3)], 'dropped.gguf')").unchecked_into();
    for (blob, all) in [(blob(&bytes), bytes.as_slice()), (file.into(), &[0, 0, 0])] {
        let source = BlobSource { name: "dropped.gguf".into(), blob };
        assert_eq!((source.len(), source.name().as_str()), (all.len() as u64, "dropped.gguf"));
        for (from, len) in [(0, 0), (0, 3), (2, 1), (all.len() - 1, 1), (all.len(), 0), (0, all.len())] {
            let read = source.read(from as u64, len).await.expect("it is there");
            assert!(read == all[from..from + len], "{len} bytes from {from}");
        }
        for (from, len) in [(all.len() - 1, 2), (all.len() + 5, 1), (0, all.len() + 1)] {
            let read = source.read(from as u64, len).await.map(|bytes| bytes.len());
            let sentence = read.expect_err("it is not there").to_string();
            assert!(sentence.contains("dropped.gguf"), "{sentence}");
        }
        assert!(source.whole(all.len() as u64).await.expect("it has no more") == all);
        let refused = source.whole(all.len() as u64 - 1).await.expect_err("it has more").to_string();
        assert!(refused.contains(&format!("{} bytes", all.len())), "{refused}");
    }
}

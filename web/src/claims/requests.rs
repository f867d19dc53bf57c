//! Requests to servers, and which files make a model. For the host see `incoming`.

use wasm_bindgen::prelude::*;
use web_sys::File;

use super::incoming::{address, counting, never};
use super::js;
use crate::protocol::ModelChoice;
use crate::worker::catalog::{Wanted, beside, wanted};
use crate::worker::fetch::{Abort, Call, FetchError, Why, send};

super::claims![
    an_answer_comes_with_its_status_its_headers_and_all_its_bytes,
    a_body_with_more_than_its_limit_is_given_up,
    nobody_there_is_told_in_a_browsers_words,
    who_ends_a_request_finds_the_first_reason_again,
    models_beside_the_page_are_listed_and_none_where_there_is_no_list,
    a_name_that_leaves_its_folder_is_refused,
    what_is_no_address_and_no_name_of_a_model_is_refused_in_a_sentence,
    a_repository_of_the_hub_gives_its_file_with_size_and_sha256,
    dropped_files_make_a_model_or_are_named,
    the_same_bytes_have_one_key_and_others_another,
];

fn get(url: &str) -> Call<'_> {
    Call { url, api_key: None, body: None }
}

fn abort() -> Abort {
    Abort::new().expect("a browser has it")
}

async fn an_answer_comes_with_its_status_its_headers_and_all_its_bytes() {
    let url = address("bytes.bin");
    for call in [get(&url), Call { url: &url, api_key: Some("k"), body: Some("{}") }] {
        let answer = send(&call, &abort()).await.expect("it is there");
        assert_eq!((answer.status(), answer.header("content-length").as_deref()), (200, Some("1000")));
        assert_eq!(answer.header("x-none"), None);
        assert!(answer.whole(1000).await == Ok(counting(1000)));
    }
    let url = address("status/503");
    assert_eq!(send(&get(&url), &abort()).await.map(|answer| answer.status()), Ok(503));
}

async fn a_body_with_more_than_its_limit_is_given_up() {
    let url = address("bytes.bin");
    let answer = send(&get(&url), &abort()).await.expect("it is there");
    let error = answer.whole(999).await.expect_err("it has one more");
    assert_eq!(error, FetchError::TooLong(999));
    assert_eq!(error.predicate(), "sent more than 999 bytes");
}

async fn nobody_there_is_told_in_a_browsers_words() {
    let error = send(&get("http://127.0.0.1:1/"), &abort()).await.map(|_| ()).expect_err("nobody is there");
    let said = error.predicate();
    assert!(said.starts_with("does not answer (TypeError: ") && said.ends_with(')'), "{said}");
}

async fn who_ends_a_request_finds_the_first_reason_again() {
    let (abort, url) = (abort(), address("bytes.bin"));
    let mut answer = send(&get(&url), &abort).await.expect("it is there");
    assert!(!abort.is_ended());
    abort.end(Why::Silent);
    abort.end(Why::Unwanted);
    assert!(abort.is_ended());
    let ended = FetchError::Ended(Why::Silent);
    assert_eq!(answer.next().await, Err(ended.clone()), "of a body on its way");
    assert_eq!(send(&get(&url), &abort).await.map(|_| ()), Err(ended.clone()), "and of what comes after");
    assert_eq!(ended.predicate(), "was silent for 60 s");
}

async fn models_beside_the_page_are_listed_and_none_where_there_is_no_list() {
    let list = beside(&address("some/index.html"), &never()).await.expect("it is a list");
    let [model] = list.as_slice() else { panic!("{list:?}") };
    assert_eq!((model.name.as_str(), model.file.as_str(), model.bytes), ("A", "a.gguf", 5));
    for page in ["none/index.html", "html/"] {
        assert_eq!(beside(&address(page), &never()).await, Ok(Vec::new()), "{page}");
    }
    let sentence = beside(&address("broken/"), &never()).await.expect_err("it is no list");
    assert!(sentence.contains("broken/models.json is no list of models"), "{sentence}");
}

async fn a_name_that_leaves_its_folder_is_refused() {
    let sentence = beside(&address("outside/"), &never()).await.expect_err("it leaves");
    assert!(sentence.contains("\"../a.gguf\", which is no plain file name"), "{sentence}");
}

async fn chosen(choice: ModelChoice, files: Vec<File>) -> Result<Wanted, String> {
    wanted(&choice, &address("some/"), &address("hub/"), files, &never()).await
}

async fn what_is_no_address_and_no_name_of_a_model_is_refused_in_a_sentence() {
    let url = |url: &str| ModelChoice::Url { url: url.into() };
    let hub = |name: &str| ModelChoice::Hub { name: name.into() };
    for (choice, said) in [
        (url("no address"), "\"no address\" is no address; give one such as"),
        (url("https://example.org/a.bin"), "names neither a .gguf file nor a config.json"),
        (url("https://example.org/.gguf/"), "names neither a .gguf file nor a config.json"),
        (hub("alone"), "\"alone\" is no model of the hub; give OWNER/REPO"),
        (hub("../x"), "is no model of the hub"),
        (hub("o/r:../x.gguf"), "is no model of the hub"),
        (hub("o/none"), "is not there (404)"),
        (hub("o/r:b.gguf"), "o/r has no file b.gguf; it has README.md, a.gguf"),
        (ModelChoice::Beside { file: "b.gguf".into() }, "there is no b.gguf beside this page any more"),
        (ModelChoice::Stored { key: "k".into() }, "the model k is not stored here any more"),
    ] {
        let name = format!("{choice:?}");
        let sentence = chosen(choice, Vec::new()).await.map(|_| ()).expect_err(&name);
        assert!(sentence.contains(said), "{name}: {sentence}");
    }
}

async fn a_repository_of_the_hub_gives_its_file_with_size_and_sha256() {
    for name in ["o/r", "o/r:a.gguf", " o/r "] {
        let wanted = chosen(ModelChoice::Hub { name: name.into() }, Vec::new()).await.expect(name);
        let [file] = wanted.list.files.as_slice() else { panic!("{wanted:?}") };
        assert_eq!((file.file.as_str(), file.bytes, file.sha256.as_deref()), ("a.gguf", 5, Some("ab")));
        assert_eq!(file.url, address("hub/o/r/resolve/main/a.gguf"));
        assert!(!wanted.list.whole && wanted.origins.len() == 1);
    }
}

fn file(name: &str) -> File {
    js(&format!("new File(['12345'], '{name}', {{ lastModified: 1 }})")).unchecked_into()
}

async fn dropped_files_make_a_model_or_are_named() {
    let names = async |files: &[&str]| {
        let files = files.iter().map(|name| file(name)).collect();
        let wanted = chosen(ModelChoice::Files, files).await?;
        let listed: Vec<String> = wanted.list.files.into_iter().map(|file| file.file).collect();
        Ok::<_, String>((wanted.list.name, listed.join(" ")))
    };
    assert_eq!(names(&["a.gguf"]).await, Ok(("a.gguf".into(), "a.gguf".into())));
    let folder = names(&["model.safetensors", "README.md", "tokenizer.json", "config.json"]).await;
    let (name, listed) = folder.expect("it is a model");
    assert_eq!(name, "model.safetensors");
    assert!(listed.contains("config.json") && !listed.contains("README"), "{listed}");
    for (files, said) in [(&["a.txt", "b.png"][..], "a.txt, b.png make no model"), (&[], "nothing make")] {
        let sentence = names(files).await.expect_err("it is no model");
        assert!(sentence.contains(said) && sentence.contains("drop one .gguf file"), "{sentence}");
    }
}

async fn the_same_bytes_have_one_key_and_others_another() {
    let key = async |choice, files| chosen(choice, files).await.expect("it is a model").key;
    let url = |url: &str| ModelChoice::Url { url: url.into() };
    let a = key(url("https://example.org/a.gguf"), Vec::new()).await;
    assert_eq!(a, key(url("https://example.org/a.gguf"), Vec::new()).await);
    assert_ne!(a, key(url("https://example.com/a.gguf"), Vec::new()).await);
    let dropped = key(ModelChoice::Files, vec![file("a.gguf")]).await;
    assert_eq!(dropped, key(ModelChoice::Files, vec![file("a.gguf")]).await);
    assert_ne!(dropped, key(ModelChoice::Files, vec![file("b.gguf")]).await);
    // Beside the page and on the hub lies the same file: its SHA-256 says so.
    let beside = key(ModelChoice::Beside { file: "a.gguf".into() }, Vec::new()).await;
    assert_eq!(beside, key(ModelChoice::Hub { name: "o/r".into() }, Vec::new()).await);
}

//! The page as the server serves it: the one that was built into the binary.

use super::server::Server;
use crate::cli::OwnFile;

#[test]
fn the_page_and_all_that_it_names_is_there_for_everybody_before_the_model_is() {
    let keys = OwnFile::new("right\n");
    let server = Server::open(&["--api-keys", keys.name()]);
    let fetch = |path: &str| server.send(ureq::http::Request::get(server.url(path)).body(Vec::new()));
    let index = fetch("/");
    let html = String::from_utf8(index.body.clone()).expect("the page is text");
    assert_eq!(
        index.header("content-type"),
        Some("text/html; charset=utf-8"),
        "run `cargo xtask page`: {html}"
    );
    assert!(html.contains("<meta name=\"firstlight-server\" content=\".\">"), "it knows its server: {html}");
    let policy = index.header("content-security-policy").unwrap_or_default();
    assert!(policy.contains("default-src 'self'") && policy.contains("frame-ancestors 'none'"), "{policy}");
    let named = html.split(['"', '\'']).filter(|word| word.contains("page/"));
    let paths: Vec<String> = named.map(|name| format!("/{}", name.trim_start_matches("./"))).collect();
    assert!(paths.len() >= 5, "script, module, boot, icon and styles: {paths:?}");
    for path in &paths {
        let file = fetch(path);
        assert_eq!((file.status, file.header("x-content-type-options")), (200, Some("nosniff")), "{path}");
        assert!(file.header("cache-control").is_some_and(|keep| keep.contains("immutable")), "{path}");
    }
    assert_eq!(fetch("/page/none.js").status, 404);
    assert_eq!(fetch("/v1/report").status, 401, "the rest needs a key");
    let etag = index.header("etag").expect("the page has a tag").to_owned();
    let again = ureq::http::Request::get(server.url("/")).header("if-none-match", etag);
    assert_eq!(server.send(again.body(Vec::new())).status, 304);
}

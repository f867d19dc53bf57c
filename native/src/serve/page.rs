//! The page: the files that were built into this program, or a sentence that names the command which makes them.
//!
//! It never reads a file. Invariant: a file whose name carries its hash may be kept for ever, and the document that names
//! it is asked for again every time.

use axum::body::{Body, Bytes};
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use sha2::{Digest, Sha256};

use super::errors::ApiError;
use crate::built_page::{FILES, INDEX, PageFile};

const FOLDER: &str = "page/";
/// Tells the page that it belongs to the server at this address, relative to its own.
const SERVED: &str = "<meta name=\"firstlight-server\" content=\".\">\n</head>";
/// What the page may do; as in the document itself, and nobody may put it into a frame.
const POLICY: &str = "default-src 'self'; script-src 'self' 'wasm-unsafe-eval'; worker-src 'self'; style-src 'self'; \
    style-src-attr 'unsafe-inline'; connect-src *; img-src 'self' blob: data:; object-src 'none'; base-uri 'none'; \
    form-action 'none'; frame-ancestors 'none'";
const NO_PAGE: &str = "Firstlight answers here as OpenAI's API does: POST /v1/chat/completions.\n\
    This build has no page in it: run `cargo xtask page` and build again. /openapi.json lists every path.\n";

/// The page as this server serves it.
pub struct Page {
    files: &'static [PageFile],
    /// The document, with the server's mark in it; `None` where there is no page.
    index: Option<Document>,
}

struct Document {
    html: Bytes,
    etag: HeaderValue,
}

impl Page {
    /// The one that was built in.
    pub fn built_in() -> Self {
        Self::of(FILES)
    }

    fn of(files: &'static [PageFile]) -> Self {
        let index = files.iter().find(|file| file.path == INDEX).map(|file| {
            let html = String::from_utf8_lossy(file.bytes).replacen("</head>", SERVED, 1);
            let hash: String = Sha256::digest(&html)[..8].iter().map(|byte| format!("{byte:02x}")).collect();
            // Hexadecimal digits are of every header's letters.
            let etag =
                HeaderValue::try_from(format!("\"{hash}\"")).unwrap_or(HeaderValue::from_static("\"\""));
            Document { html: html.into(), etag }
        });
        Self { files, index }
    }

    /// The names of the files below `/page/`.
    pub fn names(&self) -> impl Iterator<Item = &'static str> {
        self.files.iter().filter_map(|file| file.path.strip_prefix(FOLDER))
    }

    /// `/`.
    pub fn index(&self, asked: &HeaderMap) -> Response {
        let Some(Document { html, etag }) = &self.index else {
            let mut response = Response::new(Body::from(NO_PAGE));
            dress(response.headers_mut(), "text/plain; charset=utf-8", "no-cache");
            return response;
        };
        let same = asked.get(header::IF_NONE_MATCH).is_some_and(|known| known == etag);
        let body = if same { Body::empty() } else { Body::from(html.clone()) };
        let mut response = Response::new(body);
        if same {
            *response.status_mut() = StatusCode::NOT_MODIFIED;
        }
        dress(response.headers_mut(), "text/html; charset=utf-8", "no-cache");
        response.headers_mut().insert(header::ETAG, etag.clone());
        response
    }

    /// `/page/NAME`.
    ///
    /// # Errors
    /// There is no such file: the page was loaded from another build of this server, or there is none.
    pub fn file(&self, name: &str, asked: &HeaderMap) -> Result<Response, ApiError> {
        let found = self.files.iter().find(|file| file.path.strip_prefix(FOLDER) == Some(name));
        let Some(file) = found else {
            let advice = match self.index {
                Some(_) => "the server was built anew since the page was loaded: reload it",
                None => "this build has no page in it: run `cargo xtask page` and build again",
            };
            let name: String = name.chars().take(80).collect();
            return Err(ApiError::not_found(format!("the page has no file {name:?}; {advice}")));
        };
        let gzipped = file.gzipped.filter(|_| takes_gzip(asked));
        let mut response = Response::new(Body::from(Bytes::from_static(gzipped.unwrap_or(file.bytes))));
        let headers = response.headers_mut();
        dress(headers, content_type(name), "public, max-age=31536000, immutable");
        headers.insert(header::VARY, HeaderValue::from_static("accept-encoding"));
        if gzipped.is_some() {
            headers.insert(header::CONTENT_ENCODING, HeaderValue::from_static("gzip"));
        }
        Ok(response.into_response())
    }
}

fn dress(headers: &mut HeaderMap, kind: &'static str, keep: &'static str) {
    for (name, value) in [
        (header::CONTENT_TYPE, kind),
        (header::CACHE_CONTROL, keep),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::CONTENT_SECURITY_POLICY, POLICY),
        (header::REFERRER_POLICY, "no-referrer"),
    ] {
        headers.insert(name, HeaderValue::from_static(value));
    }
}

/// By the ending; the page has no others.
fn content_type(name: &str) -> &'static str {
    match name.rsplit('.').next() {
        Some("js") => "text/javascript; charset=utf-8",
        Some("wasm") => "application/wasm",
        Some("css") => "text/css; charset=utf-8",
        Some("svg") => "image/svg+xml",
        Some("html") => "text/html; charset=utf-8",
        _ => "application/octet-stream",
    }
}

/// Named, and not with a weight of 0.
fn takes_gzip(asked: &HeaderMap) -> bool {
    let lists = asked.get_all(header::ACCEPT_ENCODING).iter().filter_map(|value| value.to_str().ok());
    let mut named = lists.flat_map(|list| list.split(',')).map(|coding| {
        let mut parts = coding.split(';').map(str::trim);
        let name = parts.next().unwrap_or_default().to_ascii_lowercase();
        let none = parts.any(|part| matches!(part.strip_prefix("q="), Some("0" | "0.0" | "0.00" | "0.000")));
        name == "gzip" && !none
    });
    named.any(|takes| takes)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SMALL: &[PageFile] = &[
        PageFile { path: "index.html", bytes: b"<html><head></head></html>", gzipped: None },
        PageFile { path: "page/a-1.js", bytes: b"plain", gzipped: Some(b"zipped") },
        PageFile { path: "page/b-2.wasm", bytes: b"\0asm", gzipped: None },
    ];

    fn asked(headers: &[(header::HeaderName, &str)]) -> HeaderMap {
        headers.iter().map(|(name, value)| (name.clone(), HeaderValue::from_str(value).unwrap())).collect()
    }

    fn body(response: Response) -> String {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let bytes = runtime.block_on(axum::body::to_bytes(response.into_body(), 1 << 20)).unwrap();
        String::from_utf8(bytes.to_vec()).unwrap()
    }

    #[test]
    fn the_document_knows_its_server_and_is_sent_once() {
        let page = Page::of(SMALL);
        let first = page.index(&asked(&[]));
        let etag = first.headers()[header::ETAG].to_str().unwrap().to_owned();
        assert_eq!(first.headers()[header::CACHE_CONTROL], "no-cache");
        assert_eq!(
            body(first),
            "<html><head><meta name=\"firstlight-server\" content=\".\">\n</head></html>"
        );
        let again = page.index(&asked(&[(header::IF_NONE_MATCH, &etag)]));
        assert_eq!((again.status(), body(again)), (StatusCode::NOT_MODIFIED, String::new()));
        let other = page.index(&asked(&[(header::IF_NONE_MATCH, "\"other\"")]));
        assert_eq!(other.status(), StatusCode::OK);
    }

    #[test]
    fn a_file_is_kept_for_ever_and_zipped_for_those_who_take_it() {
        let page = Page::of(SMALL);
        let check = |name: &str, encodings: &str, kind: &str, expected: &str, zipped: bool| {
            let answer = page.file(name, &asked(&[(header::ACCEPT_ENCODING, encodings)])).unwrap();
            let headers = answer.headers().clone();
            assert_eq!(headers[header::CONTENT_TYPE], kind, "{name}");
            assert!(headers[header::CACHE_CONTROL].to_str().unwrap().contains("immutable"), "{name}");
            assert_eq!(headers[header::X_CONTENT_TYPE_OPTIONS], "nosniff", "{name}");
            assert_eq!(headers.contains_key(header::CONTENT_ENCODING), zipped, "{name}: {encodings}");
            assert_eq!(body(answer), expected, "{name}: {encodings}");
        };
        let script = "text/javascript; charset=utf-8";
        check("a-1.js", "gzip, deflate, br", script, "zipped", true);
        check("a-1.js", "br;q=1.0, GZIP;q=0.5", script, "zipped", true);
        check("a-1.js", "gzip;q=0", script, "plain", false);
        check("a-1.js", "identity", script, "plain", false);
        check("b-2.wasm", "gzip", "application/wasm", "\0asm", false);
        assert_eq!(page.names().collect::<Vec<_>>(), ["a-1.js", "b-2.wasm"]);
    }

    #[test]
    fn what_is_not_there_is_told_with_the_command_that_makes_it() {
        let check = |files, name: &str, expected: &str| {
            let error = Page::of(files).file(name, &asked(&[])).unwrap_err();
            assert_eq!(error.status, StatusCode::NOT_FOUND);
            assert!(error.message.contains(expected), "{name}: {error}");
        };
        check(&[], "a-1.js", "cargo xtask page");
        check(SMALL, "a-0.js", "reload");
        check(SMALL, "index.html", "reload");
        check(SMALL, "../index.html", "reload");
        let without = Page::of(&[]).index(&asked(&[]));
        assert_eq!(without.headers()[header::CONTENT_TYPE], "text/plain; charset=utf-8");
        let text = body(without);
        assert!(text.contains("cargo xtask page") && text.contains("/openapi.json"), "{text}");
    }
}

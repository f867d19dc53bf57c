//! Where a server's API lies, and what it is asked.
//!
//! Pure: text in, addresses and bodies out. Invariant: a URL that is accepted gives addresses that can be asked.

use std::sync::atomic::{AtomicUsize, Ordering};

use serde_json::{Value, json};
use ureq::http::Uri;

use crate::cli::{names_a_host, without_password};
use crate::failure::Failure;

/// The addresses of one server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    /// Up to and with `/v1`, or what stands in its place.
    pub api: String,
}

impl Target {
    /// From what was typed: with or without a scheme, `/v1` and `/chat/completions`.
    ///
    /// # Errors
    /// Wrong usage.
    pub fn parse(text: &str) -> Result<Self, Failure> {
        let wrong = |why: &str| {
            let shown = without_password(text);
            Failure::usage(format!("the URL is {shown:?}; {why}, such as in http://127.0.0.1:8080"))
        };
        let with_scheme = match text.contains("://") {
            true => text.to_owned(),
            false => format!("http://{text}"),
        };
        if with_scheme.contains(['#', '?']) {
            return Err(wrong("it must end with the path"));
        }
        let uri: Uri = with_scheme.parse().map_err(|error| wrong(&format!("it is none ({error})")))?;
        if !matches!(uri.scheme_str(), Some("http" | "https")) {
            return Err(wrong("it must begin with http:// or https://"));
        }
        let authority = uri.authority().ok_or_else(|| wrong("it must name a host"))?.as_str();
        if authority.contains('@') {
            return Err(wrong("a name and a password in it are not supported; give --api-key"));
        }
        if !names_a_host(&uri) {
            return Err(wrong("it must name a host and, after a colon, a port up to 65535"));
        }
        let path = uri.path().trim_end_matches('/');
        let path = path.strip_suffix("/chat/completions").unwrap_or(path);
        let path = if path.is_empty() { "/v1" } else { path };
        Ok(Self { api: format!("{}://{authority}{path}", uri.scheme_str().unwrap_or("http")) })
    }

    /// Takes chats.
    pub fn chat(&self) -> String {
        format!("{}/chat/completions", self.api)
    }

    /// Lists models.
    pub fn models(&self) -> String {
        format!("{}/models", self.api)
    }
}

/// What a chat is asked beyond what every server knows. Strict servers refuse fields that they do not know: then less is
/// asked, for all further chats too.
#[derive(Debug, Default)]
pub struct Extras(AtomicUsize);

/// The most that may be left out.
const BAREST: usize = 2;

impl Extras {
    /// How much is left out by now: a level for [`Self::body`].
    pub fn level(&self) -> usize {
        self.0.load(Ordering::Relaxed)
    }

    /// A chat of `level` was refused as malformed: the next level to try, or none.
    pub fn refused(&self, level: usize) -> Option<usize> {
        let next = level + 1;
        (next <= BAREST).then(|| {
            self.0.fetch_max(next, Ordering::Relaxed);
            next
        })
    }

    /// A streamed chat.
    pub fn body(level: usize, model: Option<&str>, prompt: &str, max_tokens: u32) -> Value {
        let mut body = json!({
            "messages": [{ "role": "user", "content": prompt }],
            "max_tokens": max_tokens,
            "temperature": 0,
            "stream": true,
        });
        if let Some(model) = model {
            body["model"] = json!(model);
        }
        if level < 2 {
            body["stream_options"] = json!({ "include_usage": true });
        }
        if level < 1 {
            body["firstlight"] = json!({ "trace": true });
        }
        body
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::failure::Exit;

    fn check(text: &str, expected: Option<&str>) {
        match (Target::parse(text), expected) {
            (Ok(target), Some(api)) => assert_eq!(target.api, api, "{text}"),
            (Err(failure), None) => assert_eq!(failure.exit, Exit::Usage, "{text}"),
            (got, _) => panic!("{text}: {got:?}"),
        }
    }

    #[test]
    fn a_url_is_read_as_people_type_it() {
        check("http://127.0.0.1:8080", Some("http://127.0.0.1:8080/v1"));
        check("http://127.0.0.1:8080/", Some("http://127.0.0.1:8080/v1"));
        check("127.0.0.1:8080", Some("http://127.0.0.1:8080/v1"));
        check("localhost", Some("http://localhost/v1"));
        check("https://example.org/v1/", Some("https://example.org/v1"));
        check("https://example.org/openai/v1", Some("https://example.org/openai/v1"));
        check("http://example.org/v1/chat/completions", Some("http://example.org/v1"));
        check("http://[::1]:8080", Some("http://[::1]:8080/v1"));
        for wrong in [
            "",
            "http://",
            "ftp://example.org",
            "http://a b",
            "http://example.org?x=1",
            "http://example.org/#x",
            "://x",
            "http://:80",
            "http://example.org:",
            "http://example.org:99999",
            "http://name:word@example.org",
            "\u{0}",
            "http://é",
        ] {
            check(wrong, None);
        }
    }

    #[test]
    fn a_strict_server_is_asked_for_less_each_time() {
        let extras = Extras::default();
        let fields = |level| {
            let body = Extras::body(level, Some("m"), "p", 3);
            ["firstlight", "stream_options", "model"].map(|name| body.get(name).is_some())
        };
        assert_eq!(fields(extras.level()), [true, true, true]);
        assert_eq!(extras.refused(0), Some(1));
        assert_eq!(fields(extras.level()), [false, true, true]);
        assert_eq!(extras.refused(1), Some(2));
        assert_eq!((fields(extras.level()), extras.refused(2)), ([false, false, true], None));
        // One that began before the others knew.
        assert_eq!((extras.refused(0), extras.level()), (Some(1), 2));
    }
}

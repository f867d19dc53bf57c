//! One file over HTTP into the cache: it goes on where an earlier try stopped, and is checked before it gets its name.
//!
//! Invariant: bytes of different versions of a file never meet: the unfinished file's name carries the version.

use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use ureq::http::{HeaderMap, StatusCode};

use crate::cache::{human_bytes, sha256_of};
use crate::failure::Failure;
use crate::progress::Progress;

/// The most bytes that one file may have: 1 TiB.
const MAX_FILE_BYTES: u64 = 1 << 40;

/// HTTP with limits on every wait but that for a whole file.
#[derive(Clone, Debug)]
pub struct Http {
    follow: ureq::Agent,
    stay: ureq::Agent,
    token: Option<String>,
}

/// What a server says of a file before it is fetched.
#[derive(Clone, Debug, PartialEq)]
pub struct RemoteFile {
    /// Bytes.
    pub num_bytes: u64,
    /// The SHA-256, where the server knows it.
    pub sha256: Option<String>,
    /// What changes when the file does.
    pub version: String,
}

impl Http {
    /// A client that shows `token`, if there is one, to the first host and to nobody it redirects to.
    pub fn new(token: Option<String>) -> Self {
        let config = || {
            ureq::Agent::config_builder()
                .http_status_as_error(false)
                .user_agent(concat!("firstlight/", env!("CARGO_PKG_VERSION")))
                .timeout_connect(Some(Duration::from_secs(30)))
                .timeout_recv_response(Some(Duration::from_secs(60)))
                .timeout_per_read(Some(Duration::from_secs(60)))
        };
        Self {
            follow: config().build().into(),
            stay: config().max_redirects(0).max_redirects_will_error(false).build().into(),
            token,
        }
    }

    /// The body of a small text answer.
    ///
    /// # Errors
    /// No answer, or one other than 200, told with the URL.
    pub fn text(&self, url: &str) -> Result<String, Failure> {
        let request = self.authorised(self.follow.get(url));
        let mut response = request.call().map_err(|error| unreachable_host(url, &error))?;
        expect_status(url, response.status(), &[StatusCode::OK])?;
        let body = response.body_mut().with_config().limit(16 << 20);
        body.read_to_string().map_err(|error| unreachable_host(url, &error))
    }

    /// Asks for a file's size and version without fetching it. Redirects are not followed, because the hub names the
    /// hash on the first answer only.
    ///
    /// # Errors
    /// No answer, a refusal, or a file without a length.
    pub fn look(&self, url: &str) -> Result<RemoteFile, Failure> {
        let request = self.authorised(self.stay.head(url)).header("accept-encoding", "identity");
        let response = request.call().map_err(|error| unreachable_host(url, &error))?;
        let status = response.status();
        if !status.is_redirection() {
            expect_status(url, status, &[StatusCode::OK])?;
        }
        remote_file(response.headers())
            .ok_or_else(|| Failure::failed(format!("{url} names no length; name another file")))
    }

    /// Brings `url` to `path`, whose folder must exist.
    ///
    /// # Errors
    /// What is already there stays for the next try, unless the hash says that it is not the file.
    pub fn fetch(&self, url: &str, path: &Path) -> Result<(), Failure> {
        let remote = self.look(url)?;
        if remote.num_bytes > MAX_FILE_BYTES {
            return Err(Failure::failed(format!(
                "{url} claims {} bytes, more than any model; name another file",
                remote.num_bytes
            )));
        }
        let part = part_path(path, &remote.version);
        let mut have = std::fs::metadata(&part).map_or(0, |metadata| metadata.len());
        if have > remote.num_bytes {
            have = 0;
        }
        let title = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let progress = Progress::bytes(&title, have, remote.num_bytes);
        if have < remote.num_bytes || remote.num_bytes == 0 {
            self.append(url, &part, have, &remote, &progress)?;
        }
        progress.finish();
        check_hash(url, &part, &remote)?;
        std::fs::rename(&part, path).map_err(|error| cannot_write(path, &error))
    }

    fn append(
        &self,
        url: &str,
        part: &Path,
        have: u64,
        remote: &RemoteFile,
        progress: &Progress,
    ) -> Result<(), Failure> {
        let mut request = self.authorised(self.follow.get(url)).header("accept-encoding", "identity");
        if have > 0 {
            request = request.header("range", format!("bytes={have}-"));
        }
        let response = request.call().map_err(|error| unreachable_host(url, &error))?;
        expect_status(url, response.status(), &[StatusCode::OK, StatusCode::PARTIAL_CONTENT])?;
        // A server without ranges answers 200 with the whole: then from the start.
        let resumed = response.status() == StatusCode::PARTIAL_CONTENT;
        if resumed && range_start(response.headers()) != Some(have) {
            return Err(Failure::failed(format!(
                "{url} answered with another range than the one from {have}; run the same command again"
            )));
        }
        let mut options = OpenOptions::new();
        options.create(true).write(true).truncate(!resumed).append(resumed);
        let mut file = options.open(part).map_err(|error| cannot_write(part, &error))?;
        let start = if resumed { have } else { 0 };
        let body = response.into_body().into_reader();
        let done = copy(body, &mut file, start, remote.num_bytes, progress)
            .map_err(|error| cannot_write(part, &error))?;
        match done.length {
            length if length == remote.num_bytes => Ok(()),
            length => Err(Failure::failed(format!(
                "the download of {url} stopped at {} of {} ({}); run the same command again to go on from there",
                human_bytes(length),
                human_bytes(remote.num_bytes),
                done.reason
            ))),
        }
    }

    fn authorised<B>(&self, request: ureq::RequestBuilder<B>) -> ureq::RequestBuilder<B> {
        match &self.token {
            Some(token) => request.header("authorization", format!("Bearer {token}")),
            None => request,
        }
    }
}

struct Copied {
    length: u64,
    reason: String,
}

/// Copies until the body ends, breaks, or has given all that was promised. Only a failing disk is an error.
fn copy(
    mut body: impl Read,
    file: &mut File,
    start: u64,
    total: u64,
    progress: &Progress,
) -> std::io::Result<Copied> {
    let mut buffer = vec![0; 1 << 16];
    let mut length = start;
    while length < total {
        let want = buffer.len().min(usize::try_from(total - length).unwrap_or(usize::MAX));
        match body.read(&mut buffer[..want]) {
            Ok(0) => return Ok(Copied { length, reason: "the server closed the connection".into() }),
            Ok(n) => {
                file.write_all(&buffer[..n])?;
                length += n as u64;
                progress.set(length);
            }
            Err(error) => return Ok(Copied { length, reason: error.to_string() }),
        }
    }
    file.sync_all()?;
    Ok(Copied { length, reason: String::new() })
}

fn check_hash(url: &str, part: &Path, remote: &RemoteFile) -> Result<(), Failure> {
    let Some(expected) = &remote.sha256 else { return Ok(()) };
    let found = sha256_of(part).map_err(|error| {
        Failure::failed(format!("{} cannot be read: {error}; run the same command again", part.display()))
    })?;
    if found == *expected {
        return Ok(());
    }
    let _ = std::fs::remove_file(part);
    Err(Failure::failed(format!(
        "{url} gave a file whose sha-256 is {found} where {expected} was announced; it was deleted: run the same command again"
    )))
}

/// The hub's `x-linked-*` headers tell of the file behind a redirect; otherwise the answer's own tell of itself.
fn remote_file(headers: &HeaderMap) -> Option<RemoteFile> {
    let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
    let etag = text("x-linked-etag").or_else(|| text("etag")).unwrap_or("");
    let etag = etag.trim_start_matches("W/").trim_matches('"');
    let num_bytes = text("x-linked-size").or_else(|| text("content-length"))?.parse().ok()?;
    let is_hex = |len: usize| etag.len() == len && etag.bytes().all(|byte| byte.is_ascii_hexdigit());
    let word: String = etag.chars().filter(char::is_ascii_alphanumeric).take(16).collect();
    Some(RemoteFile {
        num_bytes,
        sha256: is_hex(64).then(|| etag.to_ascii_lowercase()),
        version: format!("{}{word}", if word.is_empty() { num_bytes.to_string() } else { String::new() }),
    })
}

fn part_path(path: &Path, version: &str) -> PathBuf {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    path.with_file_name(format!("{name}.{version}.part"))
}

/// The first byte of a `content-range: bytes 5-9/10`.
fn range_start(headers: &HeaderMap) -> Option<u64> {
    let text = headers.get("content-range")?.to_str().ok()?;
    text.strip_prefix("bytes ")?.split_once('-')?.0.trim().parse().ok()
}

fn expect_status(url: &str, status: StatusCode, expected: &[StatusCode]) -> Result<(), Failure> {
    if expected.contains(&status) {
        return Ok(());
    }
    let advice = match status.as_u16() {
        401 | 403 => "accept the model's terms on its page and set HF_TOKEN",
        404 => "check the name",
        429 => "try again later",
        _ => "try again",
    };
    Err(Failure::failed(format!("{url} answered {status}; {advice}")))
}

fn unreachable_host(url: &str, error: &ureq::Error) -> Failure {
    Failure::failed(format!(
        "{url} cannot be reached: {error}; check the network and run the same command again"
    ))
}

/// A file of the cache that the system does not let us write.
pub(crate) fn cannot_write(path: &Path, error: &std::io::Error) -> Failure {
    Failure::failed(format!(
        "{} cannot be written: {error}; free some space or set FIRSTLIGHT_CACHE",
        path.display()
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(headers: &[(&'static str, &str)], expected: Option<(u64, Option<&str>, &str)>) {
        let mut map = HeaderMap::new();
        for (name, value) in headers {
            map.insert(*name, value.parse().unwrap());
        }
        let expected = expected.map(|(num_bytes, sha256, version)| RemoteFile {
            num_bytes,
            sha256: sha256.map(str::to_owned),
            version: version.to_owned(),
        });
        assert_eq!(remote_file(&map), expected, "{headers:?}");
    }

    #[test]
    fn what_is_linked_counts_before_what_answers() {
        let hash = "ab".repeat(32);
        let quoted = format!("\"{hash}\"");
        check(
            &[("x-linked-etag", &quoted), ("x-linked-size", "7"), ("etag", "\"q\""), ("content-length", "1")],
            Some((7, Some(&hash), "abababababababab")),
        );
        check(&[("etag", "W/\"0123-x\""), ("content-length", "9")], Some((9, None, "0123x")));
        check(&[("content-length", "9")], Some((9, None, "9")));
        check(&[("etag", "\"q\"")], None);
        check(&[("content-length", "-1")], None);
    }
}

//! The command line as a script sees it: exit codes, one sentence on stderr, nothing but the result on stdout; and
//! downloads that go on where they stopped. Runs the real binary, which must have been built.

use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;

pub mod answers;
pub mod kernels;

/// The built `firstlight`, beside this test's own folder.
pub fn binary() -> PathBuf {
    let test = std::env::current_exe().expect("a running test has a path");
    let folder = test.parent().and_then(Path::parent).expect("a test lies in <profile>/deps");
    let path = folder.join(format!("firstlight{}", std::env::consts::EXE_SUFFIX));
    assert!(
        path.is_file(),
        "{} is missing: run `cargo build --release --workspace --bin firstlight` first (`cargo xtask test` does)",
        path.display()
    );
    path
}

/// A folder of its own for each caller, empty at the start and gone at the end.
pub struct Scratch {
    pub path: PathBuf,
}

impl Scratch {
    pub fn new() -> Self {
        static COUNT: AtomicUsize = AtomicUsize::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("firstlight-cli-{}-{number}", std::process::id()));
        std::fs::create_dir_all(&path).expect("the temporary folder is writable");
        Self { path }
    }

    pub fn join(&self, below: &str) -> PathBuf {
        self.path.join(below)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.path);
    }
}

/// A file of rules that a test writes and writes again, in a folder of its own.
pub struct OwnFile {
    path: PathBuf,
    _folder: Scratch,
}

impl OwnFile {
    pub fn new(text: &str) -> Self {
        let folder = Scratch::new();
        let file = Self { path: folder.join("rules"), _folder: folder };
        file.write(text);
        file
    }

    pub fn write(&self, text: &str) {
        std::fs::write(&self.path, text).expect("the temporary folder is writable");
    }

    pub fn name(&self) -> &str {
        self.path.to_str().expect("the temporary folder's name is text")
    }
}

/// The command with an empty cache and none of the caller's settings.
pub fn firstlight(cache: &Scratch, line: &[&str]) -> Command {
    let mut command = Command::new(binary());
    let settings = std::env::vars_os().map(|(name, _)| name);
    for name in settings.filter(|name| {
        let name = name.to_string_lossy().to_lowercase();
        name.starts_with("firstlight_") || name.starts_with("hf_") || name.ends_with("_proxy")
    }) {
        command.env_remove(name);
    }
    // Tests are the same on every machine of a kind: which kernels are quicker is not theirs to find out.
    command.env("FIRSTLIGHT_AUTOTUNE", "off");
    command.env("FIRSTLIGHT_CACHE", &cache.path).args(line);
    command
}

pub struct Ended {
    pub code: Option<i32>,
    pub stdout: String,
    pub stderr: String,
}

pub fn end(command: &mut Command) -> Ended {
    let output = command.output().expect("the binary starts");
    Ended {
        code: output.status.code(),
        stdout: String::from_utf8(output.stdout).expect("stdout is UTF-8"),
        stderr: String::from_utf8(output.stderr).expect("stderr is UTF-8"),
    }
}

/// The program's own lines of stderr: a driver may have written others.
pub fn sentences(ended: &Ended) -> Vec<&str> {
    ended.stderr.lines().filter(|line| line.starts_with("firstlight: ")).collect()
}

pub fn check(line: &[&str], variables: &[(&str, &str)], code: i32, part: &str) {
    let cache = Scratch::new();
    let ended = end(firstlight(&cache, line).envs(variables.iter().copied()));
    let all = format!("{line:?} {variables:?}\nstdout: {}\nstderr: {}", ended.stdout, ended.stderr);
    assert_eq!(ended.code, Some(code), "{all}");
    assert_eq!(ended.stdout, "", "a failure prints no result: {all}");
    assert_eq!(sentences(&ended).len(), 1, "a failure is one sentence: {all}");
    assert!(sentences(&ended)[0].contains(part), "it says {part:?}: {all}");
    assert!(!ended.stderr.contains("panicked"), "{all}");
}

#[test]
fn wrong_usage_ends_with_2_and_names_the_value() {
    check(&["run", "--flux"], &[], 2, "--flux");
    check(&["dance"], &[], 2, "dance");
    check(&[], &[], 2, "no command");
    check(&["run", "-p", "x", "--slots", "none"], &[], 2, "none");
    check(&["run", "-p", "x"], &[("FIRSTLIGHT_SLOTS", "0")], 2, "0");
    check(&["run", "-p", "x", "--temperature", "-1"], &[], 2, "-1");
    check(&["run", "-p", "x", "--top-p", "1.5"], &[], 2, "--top-p is 1.5");
    check(&["run", "-p", "x", "--max-tokens", "0"], &[], 2, "--max-tokens is 0");
    check(&["run", "-p", "x", "--temperature", "NaN"], &[], 2, "--temperature is NaN");
    check(&["run", "-p", "x", "--stop", ""], &[], 2, "--stop is a string of 0 bytes");
    check(&["run", "-p", "x", "--seed", "-1"], &[], 2, "--seed is \"-1\"");
    check(&["run", "-p", "x", "--logprobs", "3"], &[], 2, "add --json");
    check(&["run", "hello"], &[], 2, "-p TEXT");
    check(
        &["run", "-p", "x"],
        &[("FIRSTLIGHT_TEMPERATURE", "warm")],
        2,
        "FIRSTLIGHT_TEMPERATURE is \"warm\"",
    );
    check(&["run", "--ids", "1,two"], &[], 2, "two");
    check(&["run", "-p", "x", "--json", "--top-k", "many"], &[], 2, "many");
}

#[test]
fn a_prompt_that_is_nothing_or_not_text_is_wrong_usage() {
    let folder = Scratch::new();
    let write = |name: &str, bytes: &[u8]| {
        std::fs::write(folder.join(name), bytes).expect("the temporary folder is writable");
        folder.join(name).to_string_lossy().into_owned()
    };
    let (binary, empty) = (write("binary", &[0x41, 0xff, 0x00]), write("empty", b" \n"));
    let large = write("large", &vec![b'x'; 5_000_000]);
    for (file, part) in [(binary, "UTF-8"), (empty, "is empty"), (large, "more than 4194304 bytes")] {
        check(&["run", "-f", &file], &[], 2, part);
        let cache = Scratch::new();
        let ended = end(firstlight(&cache, &["run", "-"]).stdin(std::fs::File::open(&file).unwrap()));
        assert_eq!((ended.code, ended.stdout.as_str()), (Some(2), ""), "{}", ended.stderr);
        assert!(sentences(&ended)[0].contains(part), "{}", ended.stderr);
    }
    check(&["run"], &[], 2, "no prompt");
    check(&["run", "-p", ""], &[], 2, "is empty");
    check(&["run", "-p", "x", "-p", " "], &[], 2, "prompt 2 of 2 is empty");
    check(&["run", "-f", &folder.path.to_string_lossy()], &[], 2, "cannot be read");
    check(&["run", "-f", "/nowhere/prompt"], &[], 2, "/nowhere/prompt");
}

#[test]
fn a_file_that_is_no_model_ends_with_4() {
    let folder = Scratch::new();
    let write = |name: &str, bytes: &[u8]| {
        std::fs::write(folder.join(name), bytes).expect("the temporary folder is writable");
        folder.join(name).to_string_lossy().into_owned()
    };
    for (name, bytes) in
        [("text.gguf", &b"just some text"[..]), ("empty.gguf", b""), ("cut.gguf", b"GGUF\x03")]
    {
        check(&["run", "-p", "x", "--model", &write(name, bytes)], &[], 4, name);
    }
    check(&["run", "-p", "x", "--model", &folder.path.to_string_lossy()], &[], 4, "holds 3 GGUF files");
    check(&["run", "-p", "x", "--model", ""], &[], 4, "\"\"");
    check(&["run", "-p", "x", "--model", "two\nlines"], &[], 4, "no model");
}

#[test]
fn a_pull_of_nonsense_says_what_can_be_pulled() {
    for name in ["gpt-17", "a/b c", "", "é/ö", "owner/repo:../x", "a--b/c"] {
        check(&["pull", name], &[], 4, "OWNER/REPO[:file.gguf]");
    }
    check(&["pull", "./nowhere"], &[], 2, "there is nothing");
    check(&["pull", "a/b"], &[("HF_ENDPOINT", "nonsense")], 2, "HF_ENDPOINT");
    let folder = Scratch::new();
    std::fs::write(folder.join("file"), b"").expect("the temporary folder is writable");
    let below_a_file = folder.join("file").join("cache").to_string_lossy().into_owned();
    check(&["pull"], &[("FIRSTLIGHT_CACHE", &below_a_file)], 1, "set FIRSTLIGHT_CACHE");
}

#[test]
fn a_model_that_is_not_there_ends_with_4_and_names_the_command() {
    let pull = "firstlight pull smollm2-135m-instruct";
    check(&["run", "-p", "x"], &[], 4, pull);
    check(&["run", "-p", "x", "--json"], &[], 4, pull);
    check(&["pull", "--cached"], &[], 4, pull);
    check(&["run", "-p", "x", "--model", "owner/repo"], &[], 4, "firstlight pull owner/repo");
    check(&["run", "-p", "x", "--model", "/nowhere/x.gguf"], &[], 4, "/nowhere/x.gguf");
    check(&["run", "-p", "x", "--model", "gpt-17"], &[], 4, "gpt-17");
    // The model is looked at before any adapter: one that does not exist changes nothing.
    check(&["run", "-p", "x", "--adapter", "no such adapter"], &[], 4, pull);
}

#[test]
fn another_file_than_the_default_model_is_refused_with_both_hashes() {
    let folder = Scratch::new();
    let file = folder.join("model.gguf");
    std::fs::write(&file, b"abc").expect("the temporary folder is writable");
    let name = file.to_string_lossy().into_owned();
    let variables = [("FIRSTLIGHT_MODEL_FILE", name.as_str())];
    let theirs = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
    let ours = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53";
    for line in [&["run", "-p", "x"][..], &["pull"], &["models"]] {
        check(line, &variables, 4, theirs);
        check(line, &variables, 4, ours);
    }
    check(&["models"], &[("FIRSTLIGHT_MODEL_FILE", "/nowhere/model.gguf")], 4, "/nowhere/model.gguf");
}

#[test]
fn help_and_lists_are_results() {
    let cache = Scratch::new();
    for line in [&["--help"][..], &["run", "--help"], &["--version"]] {
        let ended = end(&mut firstlight(&cache, line));
        assert_eq!((ended.code, ended.stderr.as_str()), (Some(0), ""), "{line:?}");
        assert!(ended.stdout.contains("firstlight"), "{line:?}: {}", ended.stdout);
    }
    let ended = end(&mut firstlight(&cache, &["models", "--json"]));
    let list: serde_json::Value = serde_json::from_str(&ended.stdout).expect("--json prints JSON alone");
    assert_eq!(list[0]["name"], "smollm2-135m-instruct");
    assert_eq!(list[0]["present"], false);
}

#[test]
fn what_was_pulled_is_listed_as_model_takes_it_and_half_of_it_is_not() {
    let cache = Scratch::new();
    let models = cache.join("firstlight/models");
    let write = |below: &str| {
        let path = models.join(below);
        std::fs::create_dir_all(path.parent().expect("it lies in a folder")).expect("the cache is writable");
        std::fs::write(path, b"x").expect("the cache is writable");
    };
    let one = ["owner--one/model.gguf"];
    let two = ["owner--two/a.gguf", "owner--two/deep/b.gguf", "owner--two/c.gguf"];
    let half = ["owner--half/config.json", "owner--half/model-1.safetensors", "owner--half/.incomplete"];
    one.iter().chain(&two).chain(&half).for_each(|file| write(file));
    let ended = end(&mut firstlight(&cache, &["models", "--json"]));
    let list: serde_json::Value = serde_json::from_str(&ended.stdout).expect("--json prints JSON alone");
    let entries = list.as_array().expect("a list").iter().skip(1);
    let got: Vec<(&str, bool)> =
        entries.map(|entry| (entry["name"].as_str().unwrap_or_default(), entry["present"] == true)).collect();
    let names = ["owner/two:a.gguf", "owner/two:c.gguf", "owner/two:deep/b.gguf"].map(|name| (name, true));
    assert_eq!(got, [&[("owner/half", false), ("owner/one", true)], &names[..]].concat());
    for (name, part) in
        [("owner/half", "run `firstlight pull owner/half` again"), ("owner/two:deep/b.gguf", "damaged")]
    {
        let ended = end(&mut firstlight(&cache, &["run", "-p", "x", "--model", name]));
        assert_eq!(ended.code, Some(4), "{}", ended.stderr);
        assert!(sentences(&ended).concat().contains(part), "{}", ended.stderr);
    }
}

/// The bytes that [`HubServer`] serves.
fn content() -> Vec<u8> {
    (0..200_000_u64).map(|i| ((i * i * 31 + i) % 256) as u8).collect()
}

/// SHA-256 of [`content`].
const CONTENT_SHA256: &str = "0395c14013fae00bf74b669cc8211d2ec6e4a9655f928a4618c3ddfdea77b451";

/// A stand-in for the hub on this machine: it serves one file, and each GET of the file breaks off as it is told.
struct HubServer {
    endpoint: String,
    /// First byte of each GET of the file; 0 where there was no range.
    starts: mpsc::Receiver<usize>,
}

impl HubServer {
    /// `bytes_given[n]`: how many bytes the n-th GET of the file gets before the connection is closed.
    fn start(announced_sha256: &str, bytes_given: Vec<usize>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a local port is free");
        let address = listener.local_addr().expect("a bound socket has an address");
        let (sender, starts) = mpsc::channel();
        let sha256 = announced_sha256.to_owned();
        std::thread::spawn(move || {
            let mut given = bytes_given.into_iter();
            for stream in listener.incoming().flatten() {
                // A client that went away is part of the test.
                let _ = answer(stream, &sha256, &mut given, &sender);
            }
        });
        Self { endpoint: format!("http://{address}"), starts }
    }
}

fn answer(
    mut stream: TcpStream,
    sha256: &str,
    given: &mut impl Iterator<Item = usize>,
    starts: &mpsc::Sender<usize>,
) -> std::io::Result<()> {
    let mut reader = BufReader::new(stream.try_clone()?);
    let mut request = String::new();
    while reader.read_line(&mut request)? > 2 {}
    let body = content();
    let lower = request.to_lowercase();
    let range = lower.split("range: bytes=").nth(1).and_then(|rest| rest.split('-').next());
    let start: usize = range.and_then(|text| text.parse().ok()).unwrap_or(0);
    let linked = format!("x-linked-etag: \"{sha256}\"\r\nx-linked-size: {}\r\n", body.len());
    if request.starts_with("GET /api/models/owner/repo ") {
        let text = r#"{"siblings": [{"rfilename": "README.md"}, {"rfilename": "tiny.gguf"}]}"#;
        return write!(
            stream,
            "HTTP/1.1 200 OK\r\ncontent-length: {}\r\nconnection: close\r\n\r\n{text}",
            text.len()
        );
    }
    if request.starts_with("HEAD /owner/repo/resolve/main/tiny.gguf ") {
        // As the hub does: a redirect that names the hash.
        let location = "location: /elsewhere\r\n";
        return write!(
            stream,
            "HTTP/1.1 302 Found\r\n{linked}{location}content-length: 0\r\nconnection: close\r\n\r\n"
        );
    }
    if !request.starts_with("GET /owner/repo/resolve/main/tiny.gguf ") {
        return write!(stream, "HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\nconnection: close\r\n\r\n");
    }
    starts.send(start).map_err(std::io::Error::other)?;
    let rest = &body[start.min(body.len())..];
    let status = if start > 0 { "206 Partial Content" } else { "200 OK" };
    let of = format!("content-range: bytes {start}-{}/{}\r\n", body.len() - 1, body.len());
    let of = if start > 0 { of } else { String::new() };
    write!(stream, "HTTP/1.1 {status}\r\ncontent-length: {}\r\n{of}connection: close\r\n\r\n", rest.len())?;
    stream.write_all(&rest[..given.next().unwrap_or(rest.len()).min(rest.len())])
}

fn pull_tiny(cache: &Scratch, server: &HubServer) -> Ended {
    end(firstlight(cache, &["pull", "owner/repo"]).env("HF_ENDPOINT", &server.endpoint))
}

#[test]
fn an_interrupted_download_asks_only_for_the_rest() {
    let cache = Scratch::new();
    let half = content().len() / 2;
    let server = HubServer::start(CONTENT_SHA256, vec![half]);
    let first = pull_tiny(&cache, &server);
    assert_eq!(first.code, Some(1), "{}", first.stderr);
    assert!(sentences(&first)[0].contains("run the same command again"), "{}", first.stderr);
    let file = cache.join("firstlight/models/owner--repo/tiny.gguf");
    assert!(!file.exists(), "half a file has no name of its own");
    let second = pull_tiny(&cache, &server);
    assert_eq!(second.code, Some(0), "{}", second.stderr);
    assert_eq!(second.stdout.trim(), file.parent().expect("it has a folder").to_string_lossy());
    assert_eq!(std::fs::read(&file).expect("the file is there"), content());
    let third = pull_tiny(&cache, &server);
    assert_eq!(third.code, Some(0), "{}", third.stderr);
    let starts: Vec<usize> = server.starts.try_iter().collect();
    assert_eq!(starts, [0, half], "the second try asks for the rest, the third for nothing");
}

#[test]
fn a_download_with_another_hash_is_thrown_away() {
    let cache = Scratch::new();
    let server = HubServer::start(&"0".repeat(64), Vec::new());
    let ended = pull_tiny(&cache, &server);
    assert_eq!(ended.code, Some(1), "{}", ended.stderr);
    assert!(sentences(&ended)[0].contains(CONTENT_SHA256), "{}", ended.stderr);
    let left = std::fs::read_dir(cache.join("firstlight/models/owner--repo")).expect("the folder is there");
    assert_eq!(left.count(), 0, "nothing of it stays");
}

#[test]
fn a_hub_that_cannot_be_reached_is_one_sentence() {
    let closed = TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr());
    let endpoint = format!("http://{}", closed.expect("a local port is free"));
    check(&["pull", "owner/repo"], &[("HF_ENDPOINT", &endpoint)], 1, "cannot be reached");
    let server = HubServer::start(CONTENT_SHA256, Vec::new());
    check(&["pull", "owner/absent"], &[("HF_ENDPOINT", &server.endpoint)], 1, "check the name");
}

//! A server to talk to, and the words to talk to it.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use firstlight_tests::default_model_path;
use serde_json::{Value, json};

use crate::cli::binary;

/// Until then everything that is waited for has come, however busy the machine is.
pub const PATIENCE: Duration = Duration::from_secs(240);
/// How often something is looked at again.
const LOOK: Duration = Duration::from_millis(10);

/// A running server, ended when it is dropped.
pub struct Server {
    child: Child,
    /// `127.0.0.1:PORT`.
    pub address: String,
    notes: Mutex<Receiver<String>>,
    log: Arc<Mutex<Vec<String>>>,
}

/// What a line on stderr says: the message where it is JSON.
fn sentence(line: &str) -> String {
    let json = serde_json::from_str::<Value>(line).ok();
    json.and_then(|json| Some(json["message"].as_str()?.to_owned())).unwrap_or_else(|| line.to_owned())
}

/// The binary as a server of the default model on a free port, with nothing of this process' settings.
pub fn command(line: &[&str], environment: &[(&str, &str)]) -> Command {
    dressed(Command::new(binary()), 0, line, environment)
}

/// The same for `command`, which is the binary or starts it, on this port.
fn dressed(mut command: Command, port: u16, line: &[&str], environment: &[(&str, &str)]) -> Command {
    for (name, _) in std::env::vars_os() {
        let name = name.to_string_lossy().to_lowercase();
        if name.starts_with("firstlight_") || name.starts_with("otel_") {
            command.env_remove(name.to_uppercase());
        }
    }
    command.env("FIRSTLIGHT_AUTOTUNE", "off");
    command.env("FIRSTLIGHT_MODEL_FILE", default_model_path()).envs(environment.iter().copied());
    command.args(["serve", "--port", &port.to_string()]).args(line);
    command.stdin(Stdio::null()).stderr(Stdio::piped());
    command
}

impl Server {
    /// Starts the binary on a free port; returns when the door is open, which is before the model is there.
    pub fn open(line: &[&str]) -> Self {
        Self::open_in(line, &[])
    }

    /// The same with these variables.
    pub fn open_in(line: &[&str], environment: &[(&str, &str)]) -> Self {
        Self::spawn(command(line, environment))
    }

    /// The same through a shell that sets a limit first, such as `ulimit -n 200`.
    #[cfg(unix)]
    pub fn open_under(limit: &str, line: &[&str]) -> Self {
        let mut shell = Command::new("sh");
        shell.args(["-c", &format!("{limit}; exec \"$0\" \"$@\"")]).arg(binary());
        Self::spawn(dressed(shell, 0, line, &[]))
    }

    /// The same on this port.
    pub fn open_at(port: u16, line: &[&str]) -> Self {
        Self::spawn(dressed(Command::new(binary()), port, line, &[]))
    }

    fn spawn(mut command: Command) -> Self {
        let mut child = command.spawn().expect("the binary starts");
        let lines = BufReader::new(child.stderr.take().expect("stderr is piped")).lines();
        let (sender, notes) = channel();
        let log = Arc::new(Mutex::new(Vec::new()));
        let kept = Arc::clone(&log);
        std::thread::spawn(move || {
            for line in lines.map_while(Result::ok) {
                let said = sentence(&line);
                kept.lock().expect("nobody panics with a log").push(line);
                // Who listens may be gone; the log is kept to its end.
                let _ = sender.send(said);
            }
        });
        let mut server = Self { child, address: String::new(), notes: Mutex::new(notes), log };
        let line = server.hear("listening on http://");
        let rest = line.split("http://").nth(1).and_then(|rest| rest.split(';').next());
        server.address = rest.expect("the line names an address").to_owned();
        server
    }

    /// One that somebody else started, whose stderr is theirs.
    pub fn of(child: Child, address: String) -> Self {
        Self { child, address, notes: Mutex::new(channel().1), log: Arc::default() }
    }

    /// The same, and waits until it is healthy.
    pub fn start(line: &[&str]) -> Self {
        Self::open(line).once_ready()
    }

    /// Waits until it is healthy.
    pub fn once_ready(self) -> Self {
        self.hear("ready: ");
        assert_eq!(self.get("/health").0, 200, "ready is healthy");
        self
    }

    /// Its process.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// The port it listens on.
    pub fn port(&self) -> u16 {
        let port = self.address.rsplit(':').next().and_then(|port| port.parse().ok());
        port.expect("an address ends in a port")
    }

    /// `/metrics`: the sum of all series of this name whose labels contain `labels`.
    pub fn metric(&self, series: &str, labels: &str) -> f64 {
        let page = self.send(ureq::http::Request::get(self.url("/metrics")).body(Vec::new())).body;
        let page = String::from_utf8(page).expect("metrics are text");
        let of = |line: &&str| line.starts_with(&format!("{series}{{")) && line.contains(labels);
        let value = |line: &str| line.rsplit_once(' ').and_then(|(_, value)| value.parse::<f64>().ok());
        page.lines().filter(of).filter_map(value).sum()
    }

    /// Waits for a line on stderr that begins with `start`.
    pub fn hear(&self, start: &str) -> String {
        let notes = self.notes.lock().expect("nobody panicked while listening");
        loop {
            match notes.recv_timeout(PATIENCE) {
                Ok(line) if line.starts_with(start) => return line,
                Ok(_) => {}
                Err(error) => panic!("{start:?} was not heard: {error}"),
            }
        }
    }

    /// All that it wrote to stderr so far, line by line.
    pub fn log(&self) -> Vec<String> {
        self.log.lock().expect("nobody panics with a log").clone()
    }

    /// Sends it a signal.
    pub fn signal(&self, name: &str) {
        let sent = Command::new("kill").args([&format!("-{name}"), &self.child.id().to_string()]).status();
        assert!(sent.expect("kill is there").success());
    }

    /// Waits for its end: the exit code.
    pub fn ended(&mut self) -> Option<i32> {
        let mut code = None;
        wait_until("the server has ended", || {
            code = self.child.try_wait().expect("a child can be waited for");
            code.is_some()
        });
        code.and_then(|status| status.code())
    }

    /// A GET: status and JSON.
    pub fn get(&self, path: &str) -> (u16, Value) {
        let answer = self.send(ureq::http::Request::get(self.url(path)).body(Vec::new()));
        (answer.status, answer.json())
    }

    /// A POST of JSON: status and JSON.
    pub fn post(&self, path: &str, body: &Value) -> (u16, Value) {
        let answer = self.post_bytes(path, body.to_string().into_bytes());
        (answer.status, answer.json())
    }

    /// A POST of whatever: the whole answer.
    pub fn post_bytes(&self, path: &str, body: Vec<u8>) -> Answer {
        let request = ureq::http::Request::post(self.url(path)).header("content-type", "application/json");
        self.send(request.body(body))
    }

    /// Any request.
    pub fn send(&self, request: Result<ureq::http::Request<Vec<u8>>, ureq::http::Error>) -> Answer {
        let config = ureq::Agent::config_builder().http_status_as_error(false).max_idle_connections(0);
        let agent = ureq::Agent::new_with_config(config.build());
        let response = agent.run(request.expect("the request is well formed")).expect("there is an answer");
        let (head, mut body) = response.into_parts();
        let mut bytes = Vec::new();
        body.as_reader().read_to_end(&mut bytes).expect("the answer is whole");
        let headers = head.headers.iter();
        let text = |value: &[u8]| String::from_utf8_lossy(value).into_owned();
        Answer {
            status: head.status.as_u16(),
            headers: headers.map(|(name, value)| (name.to_string(), text(value.as_bytes()))).collect(),
            body: bytes,
        }
    }

    /// The address of a path.
    pub fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.address)
    }

    /// A chat, streamed or not, greedy unless `more` says otherwise.
    pub fn chat(&self, question: &str, more: &Value) -> Answer {
        self.post_bytes("/v1/chat/completions", chat_body(question, more).to_string().into_bytes())
    }

    /// A connection of its own, for bytes as they are.
    pub fn connect(&self) -> TcpStream {
        let socket = TcpStream::connect(&self.address).expect("the door is open");
        socket.set_read_timeout(Some(PATIENCE)).expect("a socket takes a limit");
        socket
    }

    /// Listens to `/v1/timelines/stream` from now on: every timeline until the server ends.
    pub fn live(&self) -> impl Iterator<Item = Value> + Send + use<> {
        let mut socket = self.connect();
        socket.write_all(b"GET /v1/timelines/stream HTTP/1.1\r\nhost: x\r\n\r\n").expect("it is sent");
        let mut lines = BufReader::new(socket).lines().map_while(Result::ok);
        assert!(lines.next().is_some_and(|line| line.contains("200")), "the stream begins");
        let data = lines.filter_map(|line| line.strip_prefix("data: ").map(str::to_owned));
        data.map(|data| serde_json::from_str(&data).expect("an event is JSON"))
    }

    /// A POST of JSON on a connection of its own, whose answer is still to be read.
    pub fn begin(&self, path: &str, headers: &[&str], body: &Value) -> TcpStream {
        let mut socket = self.connect();
        socket.write_all(post_text(path, headers, body).as_bytes()).expect("it is sent");
        socket
    }

    /// The timelines of one request, once they are in the book.
    pub fn timelines(&self, id: &str) -> Vec<Value> {
        let mut found = Vec::new();
        wait_until("the request is in the book", || {
            let (status, body) = self.get(&format!("/v1/timelines/{id}"));
            found = body["timelines"].as_array().cloned().unwrap_or_default();
            status == 200
        });
        found
    }

    /// Nothing is under way, and all slots and blocks are free.
    pub fn is_idle(&self) -> bool {
        let (_, health) = self.get("/health");
        let (_, report) = self.get("/v1/report");
        let now = |gauge: &str| report["gauges"][gauge]["now"].as_f64().unwrap_or(0.0);
        let nothing = |gauge: &str| now(gauge) == 0.0;
        health["open"] == 0 && ["running", "queue_depth", "kv_cache_utilisation"].into_iter().all(nothing)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The body of a greedy chat with one question, and what `more` adds.
pub fn chat_body(question: &str, more: &Value) -> Value {
    let mut body = json!({
        "model": "smollm2-135m-instruct",
        "messages": [{ "role": "user", "content": question }],
        "temperature": 0,
        "max_tokens": 12,
    });
    for (name, value) in more.as_object().expect("more fields are an object") {
        body[name] = value.clone();
    }
    body
}

/// A POST of JSON as the bytes of its request; `headers` are lines beside those that it needs.
pub fn post_text(path: &str, headers: &[&str], body: &Value) -> String {
    let body = body.to_string();
    let more: String = headers.iter().map(|line| format!("{line}\r\n")).collect();
    format!(
        "POST {path} HTTP/1.1\r\nhost: x\r\n{more}content-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    )
}

/// Looks until it is so.
pub fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) {
    let (_keep, never) = channel::<()>();
    for _ in 0..PATIENCE.as_millis() / LOOK.as_millis() {
        if is_so() {
            return;
        }
        assert_eq!(never.recv_timeout(LOOK), Err(RecvTimeoutError::Timeout));
    }
    panic!("it never came to this: {what}");
}

/// A whole answer.
pub struct Answer {
    pub status: u16,
    pub headers: Vec<(String, String)>,
    pub body: Vec<u8>,
}

impl Answer {
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
    }

    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body)
            .unwrap_or_else(|error| panic!("{error}: {}", String::from_utf8_lossy(&self.body)))
    }

    /// The events of a stream; its last is `[DONE]`.
    pub fn events(&self) -> Vec<Value> {
        let text = String::from_utf8(self.body.clone()).expect("a stream is UTF-8");
        assert!(text.ends_with("data: [DONE]\n\n"), "a stream ends in [DONE]: {text}");
        let data = text.split("\n\n").filter_map(|event| event.strip_prefix("data: "));
        let events = data.filter(|data| *data != "[DONE]");
        events.map(|data| serde_json::from_str(data).expect("an event is JSON")).collect()
    }

    /// The text of all events.
    pub fn streamed_text(&self) -> String {
        let events = self.events();
        let piece = |event: &Value| {
            let choice = &event["choices"][0];
            let text = choice["delta"]["content"].as_str().or(choice["text"].as_str());
            text.unwrap_or_default().to_owned()
        };
        events.iter().map(piece).collect()
    }
}

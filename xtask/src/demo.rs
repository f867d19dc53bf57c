//! The demo: set up, build, serve, ask a first question, and stay for more.
//!
//! It speaks HTTP by hand, because this program depends on nothing. Invariant: a server that it started has ended when it ends.

use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use crate::command::{capture, complain, say};
use crate::workspace::Workspace;
use crate::{model, page, vulkan, wasm};

const FIRST_QUESTION: &str = "What is the first light of a telescope? Answer in two sentences.";
/// The port that people expect; another one where it is taken.
const PORT: u16 = 8080;

/// Runs the demo; with `once` it ends after the first answer.
pub fn run(once: bool) -> Result<(), String> {
    let workspace = Workspace::find()?;
    vulkan::ensure()?;
    wasm::ensure()?;
    workspace.fetch_crates()?;
    say("building the page and firstlight (some minutes the first time)");
    page::build(&workspace, None)?;
    workspace.build_binary()?;
    let file = model::ensure(&workspace)?;
    let mut server = Server::start(&workspace, &file)?;
    let asked = first_question(&workspace, &server.address);
    if asked.is_ok() {
        say(&format!("\nthe page: http://{}/", server.address));
        say(&format!("the API:  http://{}/v1 (OpenAI's; /openapi.json describes it)", server.address));
    }
    if once || asked.is_err() {
        server.stop();
        return asked;
    }
    say("Ctrl-C stops the server");
    // Ctrl-C reaches the server too, which ends its answers and then itself.
    match server.child.wait() {
        Ok(_) => Ok(()),
        Err(error) => Err(format!("the server cannot be waited for: {error}")),
    }
}

struct Server {
    child: Child,
    /// `127.0.0.1:PORT`.
    address: String,
}

impl Server {
    /// Starts it and waits until the model is there.
    fn start(workspace: &Workspace, model: &Path) -> Result<Self, String> {
        let free = TcpListener::bind(("127.0.0.1", PORT)).is_ok();
        let port = if free { PORT.to_string() } else { "0".to_owned() };
        let program = workspace.binary();
        let mut command = Command::new(&program);
        command.args(["serve", "--host", "127.0.0.1", "--port", &port]);
        command.env("FIRSTLIGHT_MODEL_FILE", model).envs(workspace.driver_settings());
        // How it tells where it is must be what is read here.
        command
            .env("FIRSTLIGHT_LOG_FORMAT", "text")
            .env("FIRSTLIGHT_LOG_LEVEL", "info,firstlight::request=warn");
        let mut child = command
            .stdin(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .map_err(|error| format!("{} does not start: {error}", program.display()))?;
        let stderr = child.stderr.take().ok_or("the server has no stderr")?;
        let mut lines = BufReader::new(stderr).lines().map_while(Result::ok);
        let mut server = Self { child, address: String::new() };
        for line in lines.by_ref() {
            if let Some(rest) = line.strip_prefix("listening on http://") {
                server.address = rest.split(';').next().unwrap_or_default().to_owned();
            }
            complain(&line);
            if line.starts_with("ready: ") {
                // What it says later is for whoever stays.
                std::thread::spawn(move || lines.for_each(|line| complain(&line)));
                return Ok(server);
            }
        }
        server.stop();
        Err("the server ended before its model was there; the lines above say why".to_owned())
    }

    /// As a service manager stops it, and for good where that cannot be done.
    fn stop(&mut self) {
        let id = self.child.id().to_string();
        let asked = cfg!(unix) && capture(Command::new("kill").args(["-TERM", &id])).is_ok();
        if !asked {
            // It may have ended by itself.
            let _ = self.child.kill();
        }
        let _ = self.child.wait();
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Asks, prints the answer as it comes, and then where the time to its first token went.
fn first_question(workspace: &Workspace, address: &str) -> Result<(), String> {
    say(&format!("\n> {FIRST_QUESTION}\n"));
    let failed = |error: std::io::Error| format!("the server at {address} does not answer: {error}");
    let body = format!(
        "{{\"messages\":[{{\"role\":\"user\",\"content\":\"{FIRST_QUESTION}\"}}],\"stream\":true,\"temperature\":0,\"max_tokens\":96,\"firstlight\":{{\"trace\":true}}}}"
    );
    let mut socket = TcpStream::connect(address).map_err(failed)?;
    write!(
        socket,
        "POST /v1/chat/completions HTTP/1.1\r\nhost: {address}\r\ncontent-type: application/json\r\nconnection: close\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    )
    .map_err(failed)?;
    let mut lines = BufReader::new(socket).lines().map_while(Result::ok);
    let status = lines.next().unwrap_or_default();
    if !status.contains(" 200 ") {
        return Err(format!("the server answered {status:?}; run `{} doctor`", workspace.binary().display()));
    }
    let mut last = String::new();
    for line in lines {
        let Some(data) = line.strip_prefix("data: ").filter(|data| data.starts_with('{')) else { continue };
        let piece = text_after(data, "\"content\":\"").unwrap_or_default();
        let mut out = std::io::stdout().lock();
        // Whoever stopped reading has stopped reading.
        let _ = write!(out, "{piece}").and_then(|()| out.flush());
        last = data.to_owned();
    }
    say("");
    match split(&last) {
        Some(sentence) => say(&format!("\n{sentence}")),
        None => return Err("the answer broke off; ask again".to_owned()),
    }
    Ok(())
}

/// The JSON string whose opening quote ends `key`, unescaped.
fn text_after(json: &str, key: &str) -> Option<String> {
    let mut rest = json.split_once(key)?.1.chars();
    let mut units: Vec<u16> = Vec::new();
    loop {
        let mut put = |c: char| units.extend(c.encode_utf16(&mut [0; 2]).iter());
        match rest.next()? {
            '"' => return Some(String::from_utf16_lossy(&units)),
            '\\' => match rest.next()? {
                'n' => put('\n'),
                't' => put('\t'),
                'r' => put('\r'),
                'b' => put('\u{8}'),
                'f' => put('\u{c}'),
                'u' => {
                    let digits: String = rest.by_ref().take(4).collect();
                    units.push(u16::from_str_radix(&digits, 16).ok()?);
                }
                other => put(other),
            },
            other => put(other),
        }
    }
}

/// Where the time to the first token went, in one line, from the timeline in the last chunk of an answer.
fn split(chunk: &str) -> Option<String> {
    let parts = chunk.split_once("\"parts\":{")?.1.split_once("\"parts_total\":")?.0;
    let total: f64 = number_after(chunk, "\"parts_total\":")?;
    let ms = |nanos: f64| format!("{:.2}", nanos / 1e6);
    let sum = |name: &str| {
        let value = parts.split_once(&format!("\"{name}\":"))?.1;
        // A part is a number, or an object of numbers.
        let of = value
            .strip_prefix('{')
            .map_or(value.split([',', '}']).next(), |inner| inner.split('}').next())?;
        Some(of.split(',').filter_map(|field| field.rsplit(':').next()?.parse::<f64>().ok()).sum::<f64>())
    };
    let names = [
        "gateway",
        "route",
        "preparation",
        "inbox",
        "queue_wait",
        "requeue",
        "lost_prefill",
        "prefill",
        "transport",
    ];
    let told = names.iter().filter_map(|name| Some((name, sum(name)?))).filter(|(_, nanos)| *nanos > 0.0);
    let told: Vec<String> =
        told.map(|(name, nanos)| format!("{} {}", name.replace('_', " "), ms(nanos))).collect();
    Some(format!("TTFT {} ms = {}", ms(total), told.join(" + ")))
}

fn number_after(json: &str, key: &str) -> Option<f64> {
    let rest = json.split_once(key)?.1;
    rest.split(|c: char| !c.is_ascii_digit()).next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_string_is_unescaped() {
        let check = |json: &str, expected: Option<&str>| {
            assert_eq!(text_after(json, "\"content\":\"").as_deref(), expected, "{json}");
        };
        check(r#"{"content":"a\n\"b\" \\ \u00e9\ud83d\ude00"}"#, Some("a\n\"b\" \\ é😀"));
        check(r#"{"content":""}"#, Some(""));
        check(r#"{"content":"cut"#, None);
        check("{}", None);
    }

    #[test]
    fn the_split_names_every_part_that_took_time() {
        let chunk = r#"{"parts":{"gateway":10000,"route":0,"preparation":{"wait":20000,"template":30000},"prefill":{"compute":1000000,"stall":0}},"parts_total":1060000,"ttft":1060000}"#;
        let expected = "TTFT 1.06 ms = gateway 0.01 + preparation 0.05 + prefill 1.00";
        assert_eq!(split(chunk).as_deref(), Some(expected));
        assert_eq!(split("{}"), None);
    }
}

//! A mixed load for a while: everything ends, the counts agree, and memory stays flat. A reader that stops is let go.
//!
//! `FIRSTLIGHT_SOAK_SECONDS` says for how long; without it a few seconds, with the full suite five minutes.

use std::collections::BTreeMap;
use std::io::Read;
use std::net::TcpStream;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use firstlight_tests::{TestRng, full, golden_path};
use serde_json::{Value, json};

use super::server::{Server, chat_body, wait_until};
use crate::cli::Scratch;
use crate::cli::answers::check_sums;

/// Clients that are at it all the time.
const CLIENTS: u64 = 8;
/// What resident memory may gain between the end of the warm-up, a third of the time, and the end: the book of 1,024
/// timelines fills up, some 4 MiB, and the allocator keeps what a peak took. Half an hour of ten requests a second passes
/// this where each leaves behind more than a kilobyte.
const MAX_GROWTH_KIB: u64 = 16 << 10;

/// What the clients know.
#[derive(Debug, Default)]
struct Tally {
    /// Choices that were answered to their end.
    answered: usize,
    /// Choices whose client went away.
    left: usize,
    /// Those who went before anything came back: the server may never have had all of their request.
    unheard: usize,
    /// Answers by status, of whoever waited for one.
    statuses: BTreeMap<u16, usize>,
    /// Tokens of whole answers.
    prompt_tokens: u64,
    completion_tokens: u64,
}

/// What the server's live stream told.
#[derive(Debug, Default)]
struct Book {
    timelines: usize,
    reasons: BTreeMap<String, usize>,
    /// Of those that were let in.
    prompt_tokens: u64,
    generated: u64,
    parts_total: u64,
    after_disconnect: u64,
}

fn seconds() -> Duration {
    let given = std::env::var("FIRSTLIGHT_SOAK_SECONDS").ok();
    let given = given.map(|text| text.parse().expect("FIRSTLIGHT_SOAK_SECONDS is a whole number"));
    Duration::from_secs(given.unwrap_or(if full() { 300 } else { 12 }))
}

#[test]
fn under_a_mixed_load_everything_ends_is_counted_and_memory_stays_flat() {
    let server = Server::start(&["--slots", "4", "--max-waiting", "64"]);
    let (book, closing) = (Mutex::new(Book::default()), AtomicBool::new(false));
    let tally = std::thread::scope(|scope| {
        scope.spawn(|| listen(&server, &book, &closing));
        let tally = load(&server, seconds());
        wait_until("nobody is left", || server.is_idle());
        wait_until("the live stream has told everything", || {
            let told = book.lock().expect("the listener did not panic").timelines;
            told as f64 == server.metric("firstlight_request_success_total", "")
        });
        closing.store(true, Ordering::Release);
        // One more timeline, so that the listener looks up.
        assert_eq!(server.chat("hi", &json!({ "max_tokens": 1 })).status, 200);
        tally
    });
    let book = book.into_inner().expect("the listener did not panic");
    println!("soak: {} choices: {:?}", book.timelines, book.reasons);
    check_books(&server, &tally, &book);
}

/// Everybody's counts, each by `==`.
fn check_books(server: &Server, tally: &Tally, book: &Book) {
    // The last one was asked after the load.
    let sure = tally.answered + tally.left + 1;
    assert!((sure..=sure + tally.unheard).contains(&book.timelines), "{tally:?} {book:?}");
    let reason = |name: &str| book.reasons.get(name).copied().unwrap_or(0);
    let ended = reason("stop") + reason("length");
    assert_eq!(ended + reason("disconnected"), book.timelines, "nothing failed: {book:?}");
    // Who left may have done so after the end.
    assert!(
        ended > tally.answered && reason("disconnected") <= tally.left + tally.unheard,
        "{tally:?} {book:?}"
    );
    assert!(tally.prompt_tokens <= book.prompt_tokens && tally.completion_tokens <= book.generated);
    let metric = |series: &str, labels: &str| server.metric(series, labels);
    for (name, count) in &book.reasons {
        let labels = format!("finished_reason=\"{name}\"");
        assert_eq!(metric("firstlight_request_success_total", &labels) as usize, *count, "{name}");
    }
    assert_eq!(metric("firstlight_request_success_total", "") as usize, book.timelines);
    assert_eq!(metric("firstlight_prompt_tokens_total", "") as u64, book.prompt_tokens);
    assert_eq!(metric("firstlight_generation_tokens_total", "") as u64, book.generated);
    let parts = metric("firstlight_ttft_part_seconds_sum", "") * 1e9;
    let off = (parts - book.parts_total as f64).abs() / book.parts_total as f64;
    assert!(
        off < 1e-12,
        "the parts' sums are the timelines', but for the float that this test adds them in: {off}"
    );
    assert_eq!(metric("firstlight_timelines_broken_total", ""), 0.0);
    for gauge in [
        "firstlight_num_requests_running",
        "firstlight_num_requests_waiting",
        "firstlight_kv_cache_usage_perc",
    ] {
        assert_eq!(metric(gauge, ""), 0.0, "{gauge}");
    }
    for status in [400, 404] {
        let labels = format!("status=\"{status}\"");
        let counted = metric("firstlight_http_requests_total", &labels) as usize;
        assert_eq!(counted, tally.statuses.get(&status).copied().unwrap_or(0), "{status}");
    }
}

/// Runs the clients until the time is up, and looks at the server's memory meanwhile.
fn load(server: &Server, time: Duration) -> Tally {
    let (began, tally) = (Instant::now(), Mutex::new(Tally::default()));
    std::thread::scope(|scope| {
        for seed in 0..CLIENTS {
            let tally = &tally;
            scope.spawn(move || {
                let mut rng = TestRng::new(0x50a4 + seed);
                while began.elapsed() < time {
                    one(server, &mut rng, tally);
                }
            });
        }
        watch_memory(server, began, time);
    });
    tally.into_inner().expect("no client panicked")
}

/// Resident memory in KiB, where the system tells it.
fn resident(server: &Server) -> Option<u64> {
    let status = std::fs::read_to_string(format!("/proc/{}/status", server.id())).ok()?;
    status
        .lines()
        .find_map(|line| line.strip_prefix("VmRSS:")?.trim().strip_suffix(" kB")?.trim().parse().ok())
}

fn watch_memory(server: &Server, began: Instant, time: Duration) {
    if !cfg!(target_os = "linux") {
        return;
    }
    let look = || resident(server).expect("Linux tells a process's memory");
    let (mut warm, mut peak) = (None, 0);
    let (_keep, never) = channel::<()>();
    while began.elapsed() < time {
        let _ = never.recv_timeout(Duration::from_millis(200));
        let now = look();
        peak = peak.max(now);
        if began.elapsed() >= time / 3 {
            warm.get_or_insert(now);
        }
    }
    let (warm, end) = (warm.unwrap_or_default(), look());
    println!(
        "soak: {} s; resident {warm} KiB after the warm-up, {peak} KiB at most, {end} KiB at the end",
        time.as_secs()
    );
    assert!(end <= warm + MAX_GROWTH_KIB, "memory grew from {warm} KiB to {end} KiB in {} s", time.as_secs());
}

/// One thing that a client does, whatever it is.
fn one(server: &Server, rng: &mut TestRng, tally: &Mutex<Tally>) {
    let stream = rng.below(2) == 0;
    let max_tokens = 1 + rng.below(12);
    let more =
        json!({ "stream": stream, "max_tokens": max_tokens, "stream_options": { "include_usage": true } });
    match rng.below(12) {
        0..=3 => answered(server, &question(rng), &with(&more, "ignore_eos", json!(true)), 1, tally),
        4 => answered(server, "Say hello.", &with(&more, "n", json!(2)), 2, tally),
        5 => answered(
            server,
            &"A long story. ".repeat(60 + rng.below(40)),
            &with(&more, "max_tokens", json!(1)),
            1,
            tally,
        ),
        6 => slow(server, &more, tally),
        7 => leave(server, &with(&more, "max_tokens", json!(60)), rng.below(3) * 200, tally),
        8 => refused(server, &with(&more, "temperature", json!(-1)), 400, tally),
        9 => refused(server, &with(&more, "model", json!("gpt-0")), 404, tally),
        10 => {
            let text = question(rng);
            let (status, told) = server.post("/tokenize", &json!({ "prompt": text }));
            assert_eq!(status, 200);
            let (status, back) = server.post("/detokenize", &json!({ "tokens": told["tokens"] }));
            assert_eq!((status, back["prompt"].as_str()), (200, Some(text.as_str())));
        }
        _ => {
            assert_eq!(server.metric("firstlight_timelines_broken_total", ""), 0.0);
            assert_eq!(server.get("/v1/timelines?last=20").0, 200);
        }
    }
}

fn with(more: &Value, name: &str, value: Value) -> Value {
    let mut more = more.clone();
    more[name] = value;
    if !more["stream"].as_bool().unwrap_or(false) {
        more.as_object_mut().expect("it is an object").remove("stream_options");
    }
    more
}

fn question(rng: &mut TestRng) -> String {
    format!("{} {}", rng.pick(&["Name a colour.", "What is a lake?", "Count to five."]), rng.below(1000))
}

/// A chat that is answered to its end.
fn answered(server: &Server, question: &str, more: &Value, choices: usize, tally: &Mutex<Tally>) {
    let answer = server.chat(question, more);
    assert_eq!(answer.status, 200, "{}", String::from_utf8_lossy(&answer.body));
    let last = match more["stream"] == true {
        true => answer.events().pop().expect("a stream has a last event"),
        false => answer.json(),
    };
    let tokens = |name: &str| last["usage"][name].as_u64().expect("usage was asked for");
    let mut tally = tally.lock().expect("no client panicked");
    tally.answered += choices;
    tally.prompt_tokens += tokens("prompt_tokens");
    tally.completion_tokens += tokens("completion_tokens");
}

fn refused(server: &Server, more: &Value, status: u16, tally: &Mutex<Tally>) {
    let answer = server.chat("hi", more);
    assert_eq!(answer.status, status, "{}", String::from_utf8_lossy(&answer.body));
    *tally.lock().expect("no client panicked").statuses.entry(status).or_default() += 1;
}

fn begin(server: &Server, more: &Value) -> TcpStream {
    server.begin("/v1/chat/completions", &["connection: close"], &chat_body("Tell me a story.", more))
}

/// Goes away after so many bytes of the answer.
fn leave(server: &Server, more: &Value, bytes: usize, tally: &Mutex<Tally>) {
    let mut socket = begin(server, &with(more, "ignore_eos", json!(true)));
    let mut seen = vec![0; bytes];
    socket.read_exact(&mut seen).expect("an answer has as many bytes");
    let mut tally = tally.lock().expect("no client panicked");
    *(if bytes == 0 { &mut tally.unheard } else { &mut tally.left }) += 1;
}

/// Reads a stream a few bytes at a time.
fn slow(server: &Server, more: &Value, tally: &Mutex<Tally>) {
    let mut socket = begin(server, &with(more, "stream", json!(true)));
    let (_keep, never) = channel::<()>();
    let (mut all, mut piece) = (Vec::new(), [0; 100]);
    loop {
        match socket.read(&mut piece).expect("the stream goes on") {
            0 => break,
            count => all.extend_from_slice(&piece[..count]),
        }
        let _ = never.recv_timeout(Duration::from_millis(5));
    }
    let text = String::from_utf8_lossy(&all);
    assert!(text.contains("data: [DONE]\n\n"), "{text}");
    tally.lock().expect("no client panicked").answered += 1;
}

/// Hears every timeline, and checks each.
fn listen(server: &Server, book: &Mutex<Book>, closing: &AtomicBool) {
    for timeline in server.live() {
        check_sums(&timeline);
        let count = |name: &str| timeline["tokens"][name].as_u64().unwrap_or(0);
        let mut book = book.lock().expect("this is the only writer");
        book.timelines += 1;
        // The engine counts a prompt when it lets it in: one whose client left the queue before that is none of these.
        let is_admitted = timeline["attempts"].as_array().is_some_and(|attempts| !attempts.is_empty());
        book.prompt_tokens += if is_admitted { count("prompt") } else { 0 };
        book.generated += count("generated");
        book.after_disconnect += count("after_disconnect");
        book.parts_total += timeline["parts_total"].as_u64().expect("an ended request has parts");
        let reason = timeline["finish_reason"].as_str().expect("an ended request has a reason").to_owned();
        *book.reasons.entry(reason).or_default() += 1;
        if closing.load(Ordering::Acquire) {
            return;
        }
    }
}

const WORDY_CONTEXT: u32 = 16_384;

/// A model of 160,000 weights whose every word has four thousand letters: it fills a socket's buffers in no time.
pub fn wordy_model() -> Scratch {
    let folder = Scratch::new();
    let source = golden_path("arch/llama3");
    std::fs::copy(source.join("model.safetensors"), folder.join("model.safetensors"))
        .expect("it can be copied");
    let config = std::fs::read(source.join("config.json")).expect("the model has a configuration");
    let mut config: Value = serde_json::from_slice(&config).expect("it is JSON");
    // Room for an answer that takes many times the limit for those who do not read, on a fast machine too.
    config["max_position_embeddings"] = WORDY_CONTEXT.into();
    std::fs::write(folder.join("config.json"), config.to_string()).expect("it can be written");
    let mut vocab = serde_json::Map::new();
    // The alphabet of byte-level tokenizers: printable characters stand for themselves, the others come after all bytes.
    let mut next = 0x100_u32;
    for byte in 0..=255_u8 {
        let stands_for_itself = byte.is_ascii_graphic() || (0xA1..=0xAC).contains(&byte) || byte >= 0xAE;
        let code = if stands_for_itself { u32::from(byte) } else { next };
        next += u32::from(!stands_for_itself);
        let letter = char::from_u32(code).expect("these are characters");
        vocab.insert(letter.to_string(), json!(byte));
    }
    for id in 256..512 {
        vocab.insert(format!("{id}{}", "x".repeat(4000)), json!(id));
    }
    let level =
        json!({ "type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true });
    let tokenizer = json!({
        "version": "1.0", "truncation": null, "padding": null, "added_tokens": [], "normalizer": null,
        "pre_tokenizer": level, "post_processor": null, "decoder": level,
        "model": { "type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null,
            "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false, "ignore_merges": false,
            "vocab": vocab, "merges": [] },
    });
    std::fs::write(folder.join("tokenizer.json"), tokenizer.to_string()).expect("it can be written");
    folder
}

#[test]
fn a_reader_that_stops_is_let_go_after_the_limit_and_holds_up_nobody() {
    let model = wordy_model();
    let path = model.path.to_string_lossy().into_owned();
    let server = Server::start(&["--model", &path, "--slots", "2", "--stall-limit", "1"]);
    let ask = |id: &str, max_tokens: u32| {
        let body = json!({
            "prompt": "x", "max_tokens": max_tokens, "stream": true, "ignore_eos": true, "temperature": 1.5, "seed": 1,
        });
        let id = format!("x-request-id: {id}");
        server.begin("/v1/completions", &[&id, "connection: close"], &body)
    };
    let mut stopped = ask("stopped", WORDY_CONTEXT - 8);
    stopped.read_exact(&mut [0; 1000]).expect("it begins to read");
    let mut other = Vec::new();
    ask("other", 100).read_to_end(&mut other).expect("somebody else is answered meanwhile");
    assert!(String::from_utf8_lossy(&other).contains("data: [DONE]"));
    let timeline = &server.timelines("stopped")[0];
    assert_eq!(timeline["finish_reason"], "disconnected", "{timeline:#}");
    check_sums(timeline);
    wait_until("its slot is free", || server.is_idle());
    let mut rest = Vec::new();
    let _ = stopped.read_to_end(&mut rest);
    assert!(
        !String::from_utf8_lossy(&rest).contains("[DONE]"),
        "what it gets in the end does not look whole"
    );
}

//! The end of a server and its next beginning: whoever got past the door is answered or told, by SIGTERM; after kill -9 it
//! serves again at the same address.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use serde_json::{Value, json};

use super::server::{Server, chat_body, post_text, wait_until};
use crate::cli::answers::check_sums;

/// What a client heard, in a word.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Heard {
    /// An answer to its end.
    Answer,
    /// That its answer was cut short by the end, as a status or as an event.
    Cancelled,
    /// That no more are taken.
    Refused,
    /// The door was closed before it was through.
    Closed,
    /// Something that it cannot make sense of.
    Nonsense,
}

/// Sends a chat on a connection of its own and reads what comes until the connection ends.
fn ask(address: &str, more: &Value) -> (Heard, String) {
    let body = chat_body("Tell me a story.", more);
    let request = post_text("/v1/chat/completions", &["connection: close"], &body);
    let mut answer = Vec::new();
    let exchanged = TcpStream::connect(address).and_then(|mut socket| {
        socket.write_all(request.as_bytes())?;
        socket.read_to_end(&mut answer)
    });
    let text = String::from_utf8_lossy(&answer).into_owned();
    let status = text.split(' ').nth(1).unwrap_or_default();
    let is_whole = text.ends_with("data: [DONE]\n\n\r\n0\r\n\r\n") || text.ends_with('}');
    let heard = match status {
        // A connection that the door never took ends without a byte.
        "" => Heard::Closed,
        _ if exchanged.is_err() => Heard::Nonsense,
        "200" if is_whole && text.contains("\"code\":\"cancelled\"") => Heard::Cancelled,
        "200" if is_whole => Heard::Answer,
        "503" if text.contains("shutting_down") => Heard::Refused,
        "503" if text.contains("\"cancelled\"") => Heard::Cancelled,
        _ => Heard::Nonsense,
    };
    (heard, text)
}

#[test]
fn whoever_got_past_the_door_is_answered_or_told_and_kill_9_leaves_nothing_behind() {
    let line = ["--slots", "4", "--grace", "1"];
    let mut server = Server::start(&line);
    let port = server.port();
    check_terminated(&mut server);
    // The same address at once, though the system still remembers its connections.
    let server = Server::open_at(port, &line).once_ready();
    check_killed(&server);
    let mut ended = server;
    assert_eq!(ended.ended(), None, "a signal ended it");
    let server = Server::open_at(port, &line).once_ready();
    let answer = server.chat("hi", &json!({ "max_tokens": 2 }));
    assert_eq!((answer.status, server.get("/v1/report").1["n"].as_u64()), (200, Some(1)));
}

/// Clients that ask and ask while the server is told to stop: each knows what became of its request, and the server's
/// book agrees.
fn check_terminated(server: &mut Server) {
    let live = server.live();
    let book = std::thread::spawn(move || live.collect::<Vec<_>>());
    let (heard, answered) = (Mutex::new(Vec::new()), AtomicUsize::new(0));
    std::thread::scope(|scope| {
        let address = server.address.as_str();
        for n in 0..6 {
            let (heard, answered) = (&heard, &answered);
            scope.spawn(move || {
                // Two of them ask for more than the grace allows.
                let max_tokens = if n < 2 { 4000 } else { 3 };
                let mut round = n;
                loop {
                    let more =
                        json!({ "stream": round % 2 == 0, "max_tokens": max_tokens, "ignore_eos": true });
                    let (what, text) = ask(address, &more);
                    assert_ne!(what, Heard::Nonsense, "{text}");
                    heard.lock().expect("no client panicked").push(what);
                    round += 1;
                    match what {
                        Heard::Answer => answered.fetch_add(1, Ordering::AcqRel),
                        // One more of these says nothing new.
                        Heard::Cancelled | Heard::Refused | Heard::Closed | Heard::Nonsense => return,
                    };
                }
            });
        }
        wait_until("some were answered", || answered.load(Ordering::Acquire) >= 6);
        server.signal("TERM");
        wait_until("it is stopping", || server.get("/health").0 == 503);
        assert_eq!(ask(address, &json!({})).0, Heard::Refused);
    });
    assert_eq!(server.ended(), Some(0));
    let heard = heard.into_inner().expect("no client panicked");
    let count = |what: Heard| heard.iter().filter(|known| **known == what).count();
    let book = book.join().expect("the listener does not panic");
    book.iter().for_each(check_sums);
    let reason = |name: &str| book.iter().filter(|timeline| timeline["finish_reason"] == name).count();
    assert_eq!((count(Heard::Answer), count(Heard::Cancelled)), (reason("length"), reason("cancelled")));
    assert_eq!(
        book.len(),
        count(Heard::Answer) + count(Heard::Cancelled),
        "whoever was refused is not in it"
    );
    assert!(count(Heard::Cancelled) >= 2, "the two long ones, and who waited behind them: {heard:?}");
}

/// Killed in the middle of an answer: its client sees that the answer is cut.
fn check_killed(server: &Server) {
    let more = json!({ "stream": true, "max_tokens": 4000, "ignore_eos": true });
    let socket = server.begin("/v1/chat/completions", &[], &chat_body("Tell me a story.", &more));
    let mut lines = BufReader::new(socket).lines().map_while(Result::ok);
    assert!(lines.any(|line| line.contains("\"content\":\"") && !line.contains("\"content\":\"\"")));
    server.signal("KILL");
    assert!(!lines.any(|line| line.contains("[DONE]")), "a cut stream does not look whole");
}

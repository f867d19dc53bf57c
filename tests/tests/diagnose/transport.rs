//! Symptoms caused between the server and its clients: a proxy that buffers, and clients that do not read.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::time::Instant;

use serde_json::json;

use super::command::diagnose_json;
use super::{answered, diagnose, finding, ids, says, stages, wait_for};
use crate::serve::server::{Server, wait_until};
use crate::serve::soak::wordy_model;

/// A proxy that passes an answer on when it has all of it.
fn buffering_proxy(upstream: String) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").expect("there is a free port");
    let address = listener.local_addr().expect("it has an address").to_string();
    std::thread::spawn(move || {
        for client in listener.incoming().map_while(Result::ok) {
            let upstream = upstream.clone();
            std::thread::spawn(move || {
                // A client that goes away is no concern of a test's.
                let _ = pass(client, &upstream);
            });
        }
    });
    address
}

fn pass(mut client: TcpStream, upstream: &str) -> std::io::Result<()> {
    let mut server = TcpStream::connect(upstream)?;
    let (mut from_client, mut to_server) = (client.try_clone()?, server.try_clone()?);
    std::thread::spawn(move || {
        let (mut piece, mut is_first) = ([0; 1 << 14], true);
        while let Ok(len) = from_client.read(&mut piece) {
            let text = String::from_utf8_lossy(&piece[..len]).into_owned();
            // The server's end of the connection is the answer's end.
            let text = if is_first { text.replacen("\r\n", "\r\nconnection: close\r\n", 1) } else { text };
            if len == 0 || to_server.write_all(text.as_bytes()).is_err() {
                return;
            }
            is_first = false;
        }
    });
    let mut answer = Vec::new();
    server.read_to_end(&mut answer)?;
    client.write_all(&answer)?;
    client.shutdown(Shutdown::Both)
}

#[test]
fn a_proxy_that_buffers_is_seen_from_the_client_only() {
    let server = Server::start(&["--slots", "2", "--max-model-len", "512"]);
    for number in 0..12 {
        answered(&server, &ids(number, 8), 2);
    }
    wait_for(&server, 12);
    let proxy = buffering_proxy(server.address.clone());
    let through = diagnose_json(&[&proxy, "--probe", "3"]);
    assert_eq!(stages(&through), ["transport"], "{through:#}");
    let found = finding(&through, "transport");
    assert_eq!(found["certainty"], "certain", "{found:#}");
    says(found, "proxy_buffering off");
    says(found, "3 of 3 answers arrived in lumps");
    // Past the proxy, and without a client's word, nothing stands out.
    let past = diagnose_json(&[&server.address, "--probe", "3"]);
    assert_eq!(stages(&past), Vec::<&str>::new(), "{past:#}");
    let unasked = diagnose_json(&[&proxy]);
    assert_eq!(stages(&unasked), Vec::<&str>::new(), "{unasked:#}");
    says(&unasked, "(--probe)");
}

#[test]
fn clients_that_do_not_read_are_told_from_a_slow_server() {
    let model = wordy_model();
    let path = model.path.to_string_lossy().into_owned();
    let server = Server::start(&["--model", &path, "--slots", "4", "--stall-limit", "600"]);
    let body = json!({
        "prompt": "x", "max_tokens": 3000, "stream": true, "ignore_eos": true, "temperature": 1.5, "seed": 1,
    });
    let began = Instant::now();
    let ask = || server.begin("/v1/completions", &["connection: close"], &body);
    let mut readers = [ask(), ask(), ask()];
    for reader in &mut readers {
        reader.read_exact(&mut [0; 1000]).expect("it begins to read");
    }
    wait_until("their answers are made", || {
        server.get("/v1/timelines/running").1["timelines"].as_array().is_some_and(Vec::is_empty)
    });
    // For as long again they do something else.
    let made = began.elapsed();
    wait_until("they read on", || began.elapsed() > made * 2 + std::time::Duration::from_millis(100));
    for mut reader in readers {
        let mut rest = Vec::new();
        reader.read_to_end(&mut rest).expect("the rest is there");
        assert!(String::from_utf8_lossy(&rest).contains("[DONE]"), "{} bytes", rest.len());
    }
    wait_for(&server, 3);
    let diagnosis = diagnose(&server, "");
    // A context of three thousand tokens makes steps longer too, and that may be seen.
    assert_eq!(stages(&diagnosis).first(), Some(&"transport"), "{diagnosis:#}");
    says(finding(&diagnosis, "transport"), "clients that read slowly");
}

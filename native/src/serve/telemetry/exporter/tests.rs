//! A courier that is told when to take its turn, and collectors that take everything or nothing.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::mpsc::{Receiver, Sender, channel};

use super::*;

/// A collector that always answers `status`; its address, and the paths that it was asked for.
fn collector(status: u16) -> (String, Receiver<String>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let (asked, paths) = channel();
    std::thread::spawn(move || {
        for socket in listener.incoming().map_while(Result::ok) {
            let asked = asked.clone();
            std::thread::spawn(move || converse(socket, status, &asked));
        }
    });
    (url, paths)
}

fn converse(mut socket: TcpStream, status: u16, asked: &Sender<String>) -> Option<()> {
    let mut reader = BufReader::new(socket.try_clone().ok()?);
    loop {
        let (mut path, mut length, mut line) = (String::new(), 0, String::new());
        while reader.read_line(&mut line).ok()? > 2 {
            if let Some(rest) = line.strip_prefix("POST ") {
                path = rest.split(' ').next()?.to_owned();
            }
            if let Some(bytes) = line.to_ascii_lowercase().strip_prefix("content-length:") {
                length = bytes.trim().parse().ok()?;
            }
            line.clear();
        }
        reader.read_exact(&mut vec![0; length]).ok()?;
        asked.send(path).ok()?;
        socket.write_all(format!("HTTP/1.1 {status} so\r\ncontent-length: 0\r\n\r\n").as_bytes()).ok()?;
    }
}

/// With so many spans to deliver; everything is due.
fn courier(url: &str, num_spans: usize) -> Courier {
    let settings = Settings::read(Some(url), &|_| None).unwrap().unwrap();
    let here = Whereabouts { address: "127.0.0.1".to_owned(), port: 0 };
    let shared = Shared::new(settings, here, Arc::default());
    shared.queue().spans = vec![Span::default(); num_spans];
    let mut courier = Courier::new(Arc::new(shared));
    (courier.spans_at, courier.metrics_at) = (Instant::now(), Instant::now());
    courier.pause = Duration::ZERO;
    courier
}

fn state(courier: &Courier) -> (usize, u64) {
    (courier.shared.queue().spans.len(), courier.shared.dropped.load(Ordering::Relaxed))
}

const TRACES: &str = "/v1/traces";
const METRICS: &str = "/v1/metrics";

#[test]
fn metrics_get_their_turn_after_each_batch_of_spans() {
    let (url, paths) = collector(200);
    let mut courier = courier(&url, 3 * BATCH_SPANS + 1);
    assert!(!courier.turn());
    assert_eq!(paths.try_iter().collect::<Vec<_>>(), [TRACES, METRICS]);
    assert_eq!(state(&courier), (2 * BATCH_SPANS + 1, 0), "what waits stays in the bounded queue");
    // A full batch does not wait for its time.
    assert!(!courier.turn());
    courier.metrics_at = Instant::now();
    assert!(!courier.turn());
    assert_eq!(paths.try_iter().collect::<Vec<_>>(), [TRACES, TRACES, METRICS]);
    assert_eq!(state(&courier), (1, 0));
    assert!(!courier.spans_are_due(Instant::now()), "one span waits for others");
}

#[test]
fn a_collector_that_is_away_costs_one_batch_and_then_a_while_of_peace() {
    let (url, paths) = collector(503);
    let mut courier = courier(&url, 2 * BATCH_SPANS);
    assert!(!courier.turn());
    assert_eq!(paths.try_iter().collect::<Vec<_>>(), [[TRACES; 4], [METRICS; 4]].concat());
    assert_eq!(state(&courier), (BATCH_SPANS, BATCH_SPANS as u64));
    assert!(!courier.spans_are_due(Instant::now()));
    assert!(courier.spans_are_due(Instant::now() + BACK_OFF));
}

#[test]
fn the_last_turn_delivers_all_or_counts_it() {
    let check = |status: u16, expected: &[&str], dropped: usize| {
        let (url, paths) = collector(status);
        let mut courier = courier(&url, 2 * BATCH_SPANS + 1);
        courier.shared.queue().ends_at = Some(Instant::now() + Duration::from_secs(3600));
        assert!(courier.turn());
        assert_eq!(paths.try_iter().collect::<Vec<_>>(), expected, "{status}");
        assert_eq!(state(&courier), (0, dropped as u64), "{status}");
    };
    check(200, &[TRACES, TRACES, TRACES, METRICS], 0);
    check(400, &[TRACES, TRACES, TRACES, METRICS], 2 * BATCH_SPANS + 1);
    check(503, &[TRACES, METRICS], 2 * BATCH_SPANS + 1);
}

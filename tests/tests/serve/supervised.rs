//! Under a service manager: what the server tells it, and when.

use std::os::unix::net::UnixDatagram;

use serde_json::json;

use super::server::{PATIENCE, Server, wait_until};
use crate::cli::Scratch;

#[test]
fn a_service_manager_hears_of_readiness_after_the_warm_up_and_of_the_stop() {
    let folder = Scratch::new();
    let path = folder.join("notify");
    let manager = UnixDatagram::bind(&path).expect("a socket can be bound");
    manager.set_read_timeout(Some(PATIENCE)).expect("a socket takes a limit");
    let hear = || {
        let mut message = [0; 1024];
        let count = manager.recv(&mut message).expect("the manager is told");
        String::from_utf8_lossy(&message[..count]).into_owned()
    };
    let mut server =
        Server::open_in(&["--slots", "1", "--grace", "600"], &[("NOTIFY_SOCKET", &path.to_string_lossy())]);
    let ready = hear();
    assert!(ready.starts_with("READY=1\nSTATUS=ready: "), "{ready:?}");
    assert_eq!(server.get("/health").0, 200, "what was told is so");
    std::thread::scope(|scope| {
        let server = &server;
        // An answer that lasts for longer than it takes to send a signal, on any machine, and shorter than the grace.
        let more = json!({ "max_tokens": 400, "ignore_eos": true });
        let asked = scope.spawn(move || server.chat("hi", &more));
        wait_until("it is being answered", || server.get("/health").1["open"] == 1);
        server.signal("TERM");
        let stopping = hear();
        assert!(stopping.starts_with("STOPPING=1\nSTATUS=stopping: 1 requests"), "{stopping:?}");
        assert_eq!(asked.join().expect("a client does not panic").status, 200);
    });
    assert_eq!(server.ended(), Some(0));
}

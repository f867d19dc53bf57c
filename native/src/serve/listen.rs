//! The door: takes connections up to a limit, and sees each of them to its end.
//!
//! Invariant: a connection over the limit gets an answer, and nothing that a connection does ends another.

use std::io;
use std::net::{SocketAddr, TcpListener as StdListener, ToSocketAddrs};
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::GracefulShutdown;
use hyper_util::service::TowerToHyperService;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, watch};
use tokio::time::{sleep, timeout};

use super::socket::StallGuard;
use crate::cli::ServeArgs;
use crate::failure::Failure;

/// What a request's head may take, and what waits to be written on one connection.
const BUFFER_BYTES: usize = 64 << 10;
/// How long connections get to say their last words when the door is closed.
const LAST_WORDS: Duration = Duration::from_secs(2);
/// After the system refused a connection (no more file descriptors, say).
const BREATH: Duration = Duration::from_millis(50);
/// Connections over the limit that are answered at once; beyond these they are only closed.
const TURNED_AWAY: usize = 64;

/// Descriptors that are no connections: the model, the driver's, threads, signals, those being turned away.
const OTHER_DESCRIPTORS: u64 = 64 + TURNED_AWAY as u64;

const FULL: &[u8] = b"HTTP/1.1 503 Service Unavailable\r\ncontent-type: application/json\r\nretry-after: 1\r\n\
connection: close\r\ncontent-length: 152\r\n\r\n\
{\"error\":{\"message\":\"every connection of this server is taken; try again in a moment\",\"type\":\"server_error\",\"param\":null,\"code\":\"too_many_connections\"}}";

/// Opens the address that `args` name.
///
/// # Errors
/// An address that others reach, where nobody needs a key; or one that cannot be had.
pub fn bind(args: &ServeArgs) -> Result<StdListener, Failure> {
    let (host, port) = (args.host.as_str(), args.port);
    let unusable = |error: io::Error| {
        Failure::failed(format!(
            "{host}:{port} cannot be listened on: {error}; choose another --host or --port"
        ))
    };
    let addresses: Vec<SocketAddr> = (host, port).to_socket_addrs().map_err(unusable)?.collect();
    let others_reach = |address: &SocketAddr| !address.ip().is_loopback();
    if addresses.iter().any(others_reach) && args.api_keys.is_none() && !args.insecure {
        return Err(Failure::usage(format!(
            "--host {host} is an address that other machines reach, and nobody would need a key to use this one's \
             model and time; give --api-keys FILE, or --insecure if that is meant"
        )));
    }
    let listener = StdListener::bind(addresses.as_slice()).map_err(unusable)?;
    listener.set_nonblocking(true).map_err(unusable)?;
    Ok(listener)
}

/// How many connections can be open at once: `asked`, or fewer where the system gives this process fewer descriptors even
/// after its limit was raised as far as it goes. A connection that finds no descriptor would get no answer at all, one
/// that finds no place gets a 503. Fewer come with a sentence for whoever runs the server.
///
/// # Errors
/// There are too few for any.
pub fn connection_limit(asked: u32) -> Result<(u32, Option<String>), Failure> {
    let wanted = u64::from(asked) + OTHER_DESCRIPTORS;
    // Where the limit cannot be read, the number that was asked for is as good as any.
    let given = rlimit::increase_nofile_limit(wanted).unwrap_or(wanted);
    match u32::try_from(given.saturating_sub(OTHER_DESCRIPTORS)) {
        Ok(0) => Err(Failure::failed(format!(
            "this process may open {given} files, and {OTHER_DESCRIPTORS} are needed beside the connections; raise the limit (ulimit -n)"
        ))),
        Ok(places) if places < asked => Ok((
            places,
            Some(format!(
                "this process may open {given} files, so {places} connections are taken at once and not {asked}; raise the limit (ulimit -n)"
            )),
        )),
        _ => Ok((asked, None)),
    }
}

/// Takes connections until `closing` says so, then lets each end its answer, for a while.
pub async fn listen(
    listener: TcpListener,
    router: Router,
    limits: (u32, Duration),
    mut closing: watch::Receiver<bool>,
) {
    let (max_connections, stall) = limits;
    let places = Arc::new(Semaphore::new(max_connections as usize));
    let turned_away = Arc::new(Semaphore::new(TURNED_AWAY));
    let open = GracefulShutdown::new();
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            _ = closing.wait_for(|closing| *closing) => break,
        };
        let Ok((socket, _)) = accepted else {
            sleep(BREATH).await;
            continue;
        };
        // Chunks are small and each is meant to be seen at once.
        let _ = socket.set_nodelay(true);
        let Ok(place) = Arc::clone(&places).try_acquire_owned() else {
            if let Ok(place) = Arc::clone(&turned_away).try_acquire_owned() {
                tokio::spawn(async move {
                    let _place = place;
                    turn_away(socket).await;
                });
            }
            continue;
        };
        let socket = TokioIo::new(StallGuard::new(socket, stall));
        let connection = http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(stall)
            .max_buf_size(BUFFER_BYTES)
            .serve_connection(socket, TowerToHyperService::new(router.clone()));
        let connection = open.watch(connection);
        tokio::spawn(async move {
            let _place = place;
            // A client that broke the protocol or went away is no news.
            let _ = connection.await;
        });
    }
    drop(listener);
    let _ = timeout(LAST_WORDS, open.shutdown()).await;
}

/// Answers one that finds no place. What it has sent is read, for a moment: closed over unread bytes, it would never see
/// the answer.
async fn turn_away(socket: TcpStream) {
    let conversation = async {
        let _ = socket.writable().await;
        let _ = socket.try_write(FULL);
        let mut rest = [0; 4096];
        while socket.readable().await.is_ok() {
            match socket.try_read(&mut rest) {
                Ok(0) => return,
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(_) => return,
            }
        }
    };
    let _ = timeout(LAST_WORDS, conversation).await;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_answer_to_one_too_many_is_well_formed() {
        let text = std::str::from_utf8(FULL).unwrap();
        let (head, body) = text.split_once("\r\n\r\n").unwrap();
        assert!(head.contains(&format!("content-length: {}", body.len())), "{} bytes: {head}", body.len());
        serde_json::from_str::<serde_json::Value>(body).unwrap();
    }
}

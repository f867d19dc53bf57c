//! SIGTERM, Ctrl-C and SIGHUP.
//!
//! Invariant: the first signal that asks for the end is told to whoever waits for it; the second one ends the process.

use std::sync::Arc;

use tokio::sync::watch;

use super::server::Server;
use crate::failure::{Exit, Failure};
use crate::terminal::{note, settle, warn};

/// What was heard.
pub(super) struct Signals {
    heard: watch::Receiver<bool>,
}

impl Signals {
    /// Listens from now on.
    ///
    /// # Errors
    /// The system refuses.
    pub(super) fn install(server: Arc<Server>) -> Result<Self, Failure> {
        let (told, heard) = watch::channel(false);
        let mut ends = EndSignals::install()?;
        tokio::spawn(async move {
            ends.next().await;
            told.send_replace(true);
            ends.next().await;
            note("ended by a second signal");
            settle();
            std::process::exit(Exit::Interrupted as i32);
        });
        reload_files(server)?;
        Ok(Self { heard })
    }

    /// Waits until the end was asked for.
    pub(super) async fn end(&mut self) {
        // The sender lives in a task that never ends by itself.
        let _ = self.heard.wait_for(|heard| *heard).await;
    }
}

fn refused(error: std::io::Error) -> Failure {
    Failure::failed(format!("signals cannot be heard: {error}; try again"))
}

#[cfg(unix)]
struct EndSignals {
    terminate: tokio::signal::unix::Signal,
    interrupt: tokio::signal::unix::Signal,
}

#[cfg(unix)]
impl EndSignals {
    fn install() -> Result<Self, Failure> {
        use tokio::signal::unix::{SignalKind, signal};
        let terminate = signal(SignalKind::terminate()).map_err(refused)?;
        Ok(Self { terminate, interrupt: signal(SignalKind::interrupt()).map_err(refused)? })
    }

    async fn next(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
        }
    }
}

#[cfg(unix)]
fn reload_files(server: Arc<Server>) -> Result<(), Failure> {
    use tokio::signal::unix::{SignalKind, signal};
    let mut hangup = signal(SignalKind::hangup()).map_err(refused)?;
    tokio::spawn(async move {
        while hangup.recv().await.is_some() {
            let server = Arc::clone(&server);
            // Compiling many rules takes a while, in which requests are answered.
            if tokio::task::spawn_blocking(move || read_again(&server)).await.is_err() {
                warn("the files were not read again, for a defect of firstlight; report it");
            }
        }
    });
    Ok(())
}

#[cfg(unix)]
fn read_again(server: &Server) {
    match server.gateway().reload() {
        Ok(true) => note("the API keys were read again"),
        Ok(false) => {}
        Err(failure) => warn(&format!("the API keys stay as they were: {failure}")),
    }
    match server.policy().reload() {
        Ok(true) => note("the policy was read again"),
        Ok(false) => {}
        Err(failure) => warn(&format!("the policy stays as it was: {failure}")),
    }
}

#[cfg(windows)]
struct EndSignals {
    ctrl_c: tokio::signal::windows::CtrlC,
}

#[cfg(windows)]
impl EndSignals {
    fn install() -> Result<Self, Failure> {
        Ok(Self { ctrl_c: tokio::signal::windows::ctrl_c().map_err(refused)? })
    }

    async fn next(&mut self) {
        self.ctrl_c.recv().await;
    }
}

#[cfg(windows)]
fn reload_files(_: Arc<Server>) -> Result<(), Failure> {
    Ok(())
}

//! The server's life: loading, ready, stopping; and how many requests are under way.
//!
//! Invariant: a request that was admitted is counted until its timeline is in the book, and none is admitted once the
//! server is stopping.

use std::sync::Arc;

use tokio::sync::watch;

use super::errors::ApiError;

/// Where the server stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// The model is not there yet.
    Loading,
    /// Requests are taken.
    Ready,
    /// No more are taken.
    Stopping,
}

/// See the module.
pub struct Life {
    phase: watch::Sender<Phase>,
    open: Arc<watch::Sender<usize>>,
}

/// A request under way, until it is dropped.
pub struct OpenRequest {
    open: Arc<watch::Sender<usize>>,
}

impl Drop for OpenRequest {
    fn drop(&mut self) {
        self.open.send_modify(|open| *open -= 1);
    }
}

impl Default for Life {
    fn default() -> Self {
        Self { phase: watch::Sender::new(Phase::Loading), open: Arc::new(watch::Sender::new(0)) }
    }
}

impl Life {
    /// Takes a request in.
    ///
    /// # Errors
    /// 503 while loading and while stopping.
    pub fn admit(&self) -> Result<OpenRequest, ApiError> {
        // Counted before the phase is looked at: whoever stops the server sees the one or the other.
        self.open.send_modify(|open| *open += 1);
        let request = OpenRequest { open: Arc::clone(&self.open) };
        match self.phase() {
            Phase::Ready => Ok(request),
            Phase::Loading => Err(ApiError::loading()),
            Phase::Stopping => {
                Err(ApiError::unavailable("shutting_down", "the server is shutting down; ask elsewhere"))
            }
        }
    }

    /// Where it stands.
    pub fn phase(&self) -> Phase {
        *self.phase.borrow()
    }

    /// The model is there. A server that is stopping stays so.
    pub fn ready(&self) {
        self.phase.send_modify(|phase| {
            if *phase == Phase::Loading {
                *phase = Phase::Ready;
            }
        });
    }

    /// No request is admitted from now on.
    pub fn stop(&self) {
        self.phase.send_replace(Phase::Stopping);
    }

    /// Requests under way.
    pub fn num_open(&self) -> usize {
        *self.open.borrow()
    }

    /// Waits until no request is under way.
    pub async fn idle(&self) {
        // The sender is this server's own and lives as long as it.
        let _ = self.open.subscribe().wait_for(|open| *open == 0).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_admitted_while_ready_and_counted_until_they_are_dropped() {
        let life = Life::default();
        assert_eq!(life.admit().err().and_then(|error| error.code), Some("loading"));
        life.ready();
        let (one, two) = (life.admit().ok(), life.admit().ok());
        assert_eq!((one.is_some(), two.is_some(), life.num_open()), (true, true, 2));
        life.stop();
        life.ready();
        assert_eq!(life.admit().err().and_then(|error| error.code), Some("shutting_down"));
        drop((one, two));
        assert_eq!(life.num_open(), 0, "those who were turned away are not counted");
    }
}

//! Where the engine puts the events of one choice.
//!
//! It runs on the engine's thread and never waits. Invariant: exactly one end leaves it, to the relay or, where that is
//! gone, to the book: also where whoever held it lost it to a panic.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use tokio::sync::mpsc;

use firstlight_engine::clock::{Clock, Nanos};
use firstlight_engine::engine::RequestEvent;
use firstlight_engine::refusal::Outside;
use firstlight_engine::request::FinishReason;

use crate::driver::EngineHandle;
use crate::serve::ledger::Ledger;
use crate::serve::telemetry::CallFacts;

/// Events of one call that wait for its relay at most: a reader that stopped reading holds no more memory than these.
const MAX_WAITING_EVENTS: usize = 4096;

/// An event of one of the choices.
pub(super) struct Heard {
    pub(super) choice: usize,
    pub(super) at: Nanos,
    pub(super) event: RequestEvent,
}

/// Why nobody waits for a call any more, and since when. Set once.
pub(super) type Left = OnceLock<(FinishReason, Nanos)>;

/// See the module.
pub(super) struct Sink {
    pub(super) choice: usize,
    pub(super) heard: mpsc::UnboundedSender<Heard>,
    /// Events that the relay has not taken yet.
    pub(super) waiting: Arc<AtomicUsize>,
    pub(super) engine: EngineHandle,
    pub(super) ledger: Arc<Ledger>,
    pub(super) facts: Arc<CallFacts>,
    /// What is known of the request where the engine never had it.
    pub(super) outside: Outside,
    pub(super) ended: bool,
}

impl Sink {
    /// Takes an event; says whether anybody listens.
    pub(super) fn take(&mut self, event: RequestEvent) -> bool {
        let is_end = matches!(event, RequestEvent::Finished { .. });
        // An end always gets through: it is one, and nothing comes after it.
        if !is_end && self.waiting.load(Ordering::Acquire) >= MAX_WAITING_EVENTS {
            return false;
        }
        self.ended |= is_end;
        self.waiting.fetch_add(1, Ordering::AcqRel);
        let heard = Heard { choice: self.choice, at: self.engine.clock().now(), event };
        match self.heard.send(heard) {
            Ok(()) => true,
            Err(unheard) => {
                if let RequestEvent::Finished { timeline, .. } = unheard.0.event {
                    self.ledger.enter(&self.facts, None, vec![timeline]);
                }
                false
            }
        }
    }
}

impl Drop for Sink {
    fn drop(&mut self) {
        if !self.ended {
            let end = self.outside.clone().failed(self.engine.labels(), self.engine.clock().now());
            self.take(end);
        }
    }
}

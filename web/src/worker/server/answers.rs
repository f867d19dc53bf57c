//! Prompts on their way to the server: each its own request, so that each can be stopped.
//!
//! Browsers open six connections to one server at most. One is the stream of timelines and one is for looking at what
//! runs, so four prompts are on their way at once and the others wait here for their turn.
//! Invariant: whoever is neither waiting nor under way has been told its end, once.

use std::collections::{HashMap, VecDeque};
use std::rc::Rc;

use firstlight_engine::request::FinishReason;
use wasm_bindgen_futures::spawn_local;

use super::Shared;
use super::peer::SHORT;
use crate::protocol::{Ask, AskId, Event};
use crate::view::answer::{Answer, End, call, refusal};
use crate::view::sse::{SseItem, SseReader};
use crate::worker::fetch::{Abort, FetchError, Why};
use crate::worker::tell;

/// Prompts that are on their way at once.
const AT_ONCE: usize = 4;
/// Bytes that a chunk of an answer may have: the last one has a timeline in it.
const CHUNK: usize = 8 << 20;

/// Those that have not ended.
#[derive(Default)]
pub(super) struct Asks {
    running: HashMap<AskId, Abort>,
    waiting: VecDeque<Ask>,
}

impl Asks {
    pub(super) fn is_empty(&self) -> bool {
        self.running.is_empty() && self.waiting.is_empty()
    }

    fn knows(&self, id: AskId) -> bool {
        self.running.contains_key(&id) || self.waiting.iter().any(|ask| ask.id == id)
    }

    /// Takes one out; whoever gets `true` tells its end.
    fn remove(&mut self, id: AskId) -> bool {
        let before = self.waiting.len();
        self.waiting.retain(|ask| ask.id != id);
        let ran = self.running.remove(&id).inspect(|abort| abort.end(Why::Unwanted)).is_some();
        ran || self.waiting.len() < before
    }

    fn ids(&self) -> Vec<AskId> {
        self.running.keys().copied().chain(self.waiting.iter().map(|ask| ask.id)).collect()
    }
}

impl Shared {
    pub(super) fn submit(self: &Rc<Self>, asks: Vec<Ask>) {
        for ask in asks {
            // The page counts its prompts; of one that is here already the one end is still to come.
            if !self.asks.borrow().knows(ask.id) {
                self.asks.borrow_mut().waiting.push_back(ask);
            }
        }
        self.start_waiting();
        let waiting = self.asks.borrow().waiting.len();
        if waiting > 0 {
            tell(&Event::Notice {
                sentence: format!(
                    "A browser opens six connections to one server: {AT_ONCE} prompts are on their way; in this page \
                     {waiting} more await their turn."
                ),
            });
        }
    }

    fn start_waiting(self: &Rc<Self>) {
        loop {
            let mut asks = self.asks.borrow_mut();
            if asks.running.len() >= AT_ONCE {
                return;
            }
            let Some(ask) = asks.waiting.pop_front() else { return };
            match Abort::new() {
                Ok(abort) => {
                    asks.running.insert(ask.id, abort.clone());
                    self.nudged.set(true);
                    spawn_local(answer(Rc::clone(self), ask, abort));
                }
                Err(error) => {
                    let detail = Some(format!("The browser begins no request: it {}.", error.predicate()));
                    tell(&Event::Finished { ask: ask.id, reason: FinishReason::Failed, detail });
                }
            }
        }
    }

    /// Ends one, if it has not ended.
    pub(super) fn finish(self: &Rc<Self>, ask: AskId, (reason, detail): End) {
        let was_here = self.asks.borrow_mut().remove(ask);
        if was_here {
            tell(&Event::Finished { ask, reason, detail });
            self.nudged.set(true);
            self.start_waiting();
        }
    }

    /// Ends all; nobody waits any more.
    pub(super) fn finish_all(&self, detail: &str) {
        let ids = self.asks.borrow().ids();
        for ask in ids {
            self.asks.borrow_mut().remove(ask);
            let (reason, detail) = (FinishReason::Cancelled, Some(detail.to_owned()));
            tell(&Event::Finished { ask, reason, detail });
        }
    }

    fn is_running(&self, ask: AskId) -> bool {
        self.asks.borrow().running.contains_key(&ask)
    }
}

async fn answer(shared: Rc<Shared>, ask: Ask, abort: Abort) {
    let id = ask.id;
    let end = match stream(&shared, &ask, &abort).await {
        Ok(end) => end,
        // Whoever ended it has told its end.
        Err(FetchError::Ended(Why::Unwanted)) => (FinishReason::Cancelled, None),
        Err(error) => {
            let (address, predicate) = (&shared.peer.address, error.predicate());
            let sentence = format!("{address} {predicate}; is the server still running?");
            (FinishReason::Failed, Some(sentence))
        }
    };
    shared.finish(id, end);
}

async fn stream(shared: &Rc<Shared>, ask: &Ask, abort: &Abort) -> Result<End, FetchError> {
    let (path, body) = call(ask, &shared.model.borrow());
    let mut response = shared.peer.send(path, Some(&body.to_string()), abort).await?;
    let status = response.status();
    if status != 200 {
        let retry_after = response.header("retry-after");
        let body = response.whole(SHORT).await?;
        return Ok(refusal(status, &body, retry_after.as_deref()));
    }
    let address = &shared.peer.address;
    let failed = |what: String| (FinishReason::Failed, Some(format!("{address} {what}.")));
    let (mut events, mut answer) = (SseReader::new(CHUNK), Answer::new(ask.id));
    while let Some(piece) = response.next().await? {
        let items = match events.push(&piece) {
            Ok(items) => items,
            Err(too_long) => return Ok(failed(format!("sent what is no answer: {too_long}"))),
        };
        for item in items {
            let SseItem::Data(data) = item else { continue };
            match answer.take(&data) {
                Ok(events) if shared.is_running(ask.id) => events.iter().for_each(tell),
                // It was ended from here while this piece was on its way.
                Ok(_) => {}
                Err(what) => return Ok(failed(format!("sent what is no part of an answer ({what})"))),
            }
        }
        if answer.has_ended() {
            let end = answer.end().unwrap_or_else(|| failed("ended the answer without a reason".to_owned()));
            shared.finish(ask.id, end.clone());
            // The end of the body, so that the connection is good for the next prompt.
            drop(response.next().await);
            return Ok(end);
        }
    }
    Ok(answer.end().unwrap_or_else(|| failed("ended the answer before it was whole".to_owned())))
}

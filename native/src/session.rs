//! One host with one engine and nobody else: prompts in, events out. What `run` and `chat` talk to.
//!
//! It owns the engine's thread and ends it when it is dropped. Invariant: every prompt it is given ends in exactly one
//! `Finished` event, those that are refused on the way included.

use std::collections::HashSet;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use firstlight_engine::clock::{Clock, Nanos};
use firstlight_engine::engine::RequestEvent;
use firstlight_engine::request::{FinishReason, RequestId};

use crate::ask::Ask;
use crate::clock::InstantClock;
use crate::driver::{EngineHandle, EngineThread};

/// An event, and when it came out of the engine: the way to the reader begins there.
#[derive(Debug)]
pub struct Heard {
    /// When.
    pub at: Nanos,
    /// What.
    pub event: RequestEvent,
}

/// An engine's thread and the prompts that this host has given it.
pub struct Session {
    // Before the channel, so that the thread has ended when the channel goes.
    thread: EngineThread,
    handle: EngineHandle,
    sender: Sender<Heard>,
    heard: Receiver<Heard>,
    open: HashSet<RequestId>,
}

impl Session {
    /// A session that owns `thread`.
    pub fn new(thread: EngineThread) -> Self {
        let (sender, heard) = channel();
        Self { handle: thread.handle(), thread, sender, heard, open: HashSet::new() }
    }

    /// The engine.
    pub fn engine(&self) -> &EngineHandle {
        &self.handle
    }

    /// The engine's clock.
    pub fn clock(&self) -> InstantClock {
        self.handle.clock()
    }

    /// Whether answers come as text.
    pub fn has_tokenizer(&self) -> bool {
        self.handle.preparer().tokenizer().is_some()
    }

    /// Prepares a prompt and hands it to the engine. A refusal is heard like any other end.
    pub fn ask(&mut self, ask: Ask) -> RequestId {
        let (sender, clock) = (self.sender.clone(), self.clock());
        // No more events than tokens wait in this channel, and those are limited by the context.
        let events = Box::new(move |event| sender.send(Heard { at: clock.now(), event }).is_ok());
        let id = ask.send(&self.handle, events);
        self.open.insert(id);
        id
    }

    /// Stops an answer; its `Finished` is heard.
    pub fn abort(&self, id: RequestId, reason: FinishReason) {
        self.handle.abort(id, reason, self.clock().now());
    }

    /// Whether an answer has not ended.
    pub fn is_answering(&self) -> bool {
        !self.open.is_empty()
    }

    /// The next event, or nothing if none comes within `patience`.
    pub fn hear(&mut self, patience: Duration) -> Option<Heard> {
        let heard = self.heard.recv_timeout(patience).ok()?;
        if let RequestEvent::Finished { id, .. } = &heard.event {
            self.open.remove(id);
        }
        Some(heard)
    }

    /// Gives the open answers `grace` to end, cancels the rest, and ends the engine's thread.
    pub fn shut_down(self, grace: Duration) {
        self.thread.shut_down(grace);
    }
}

#[cfg(test)]
mod tests {
    use firstlight_engine::text::PromptInput;

    use super::*;
    use crate::answer::Answer;
    use crate::driver::tests::Rig;
    use crate::interrupt::Interrupt;
    use crate::run;

    fn check(inputs: Vec<PromptInput>, expected: &[(FinishReason, &[u32])]) {
        let rig = Rig::default().start();
        rig.free();
        let mut session = Session::new(rig.thread);
        let received = session.clock().now();
        let ask = |input| Ask::new(input, rig.params.clone(), "run", received);
        let asks: Vec<Ask> = inputs.into_iter().map(ask).collect();
        let mut answers = run::listen(&mut session, asks, false, &Interrupt::default()).unwrap();
        assert_eq!(answers.len(), expected.len());
        for (answer, (reason, tokens)) in answers.iter_mut().zip(expected) {
            assert_eq!(answer.seal(Some(session.clock().now())), None, "the timeline holds");
            check_answer(answer, *reason, tokens);
        }
    }

    fn check_answer(answer: &Answer, reason: FinishReason, tokens: &[u32]) {
        assert_eq!(answer.ended.as_ref().unwrap().reason, reason);
        let json = serde_json::to_value(answer.json(false).unwrap()).unwrap();
        assert_eq!(json["token_ids"], serde_json::json!(tokens));
        assert_eq!(json["text"], serde_json::Value::Null);
        let (parts, stamps) = (&json["timeline"]["parts_total"], &json["timeline"]["stamps"]);
        let end = stamps.get("first_token").unwrap_or(&stamps["finished"]).as_u64().unwrap();
        assert_eq!(parts.as_u64().unwrap(), end - stamps["received"].as_u64().unwrap());
    }

    #[test]
    fn every_prompt_ends_once_and_its_parts_sum() {
        let ids = |ids: &[u32]| PromptInput::Ids(ids.to_vec());
        check(vec![ids(&[1, 2])], &[(FinishReason::Length, &[2, 3, 4])]);
        check(
            vec![ids(&[5; 9]), ids(&[]), ids(&[100]), ids(&[0; 40]), ids(&[7]), PromptInput::Raw("x".into())],
            &[
                (FinishReason::Length, &[9, 10, 11]),
                (FinishReason::Rejected, &[]),
                (FinishReason::Rejected, &[]),
                (FinishReason::Rejected, &[]),
                (FinishReason::Length, &[1, 2, 3]),
                (FinishReason::Rejected, &[]),
            ],
        );
    }
}

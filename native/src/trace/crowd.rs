//! One request and those beside it: asked, answered, and each sealed.
//!
//! It waits on the events of all at once. Invariant: it ends when every request has ended, also where Ctrl-C asked for
//! that.

use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::Duration;

use firstlight_engine::clock::Clock;
use firstlight_engine::engine::RequestEvent;
use firstlight_engine::request::{FinishReason, RequestId, SamplingParams};
use firstlight_engine::text::{ChatMessage, PromptInput};

use crate::answer::Answer;
use crate::ask::Ask;
use crate::driver::EngineHandle;
use crate::failure::Failure;
use crate::interrupt::Interrupt;
use crate::run::report_defect;
use crate::terminal::{write, write_line};

/// What those beside it are asked about.
const TOPICS: [&str; 8] =
    ["the tides", "bread", "a violin", "the moon", "chess", "coral reefs", "paper", "earthquakes"];

/// How often Ctrl-C is looked for while no event comes.
const LOOK_FOR_INTERRUPT: Duration = Duration::from_millis(20);

/// What is asked.
pub struct Crowd {
    /// The request that is traced.
    pub traced: PromptInput,
    /// How many others are answered at the same time: half of them asked before it.
    pub beside: u32,
    /// How all are answered.
    pub params: SamplingParams,
    /// The traced answer is written to stdout as it comes.
    pub streamed: bool,
}

/// The answers, ended and sealed.
pub struct Answered {
    /// The traced one.
    pub traced: Answer,
    /// The others, in the order in which they were asked.
    pub beside: Vec<Answer>,
}

impl Crowd {
    /// Asks all and waits for their ends.
    ///
    /// # Errors
    /// stdout is gone, or the engine.
    pub fn answer(self, engine: &EngineHandle, interrupt: &Interrupt) -> Result<Answered, Failure> {
        let (sender, events) = mpsc::channel();
        let clock = engine.clock();
        let before = self.beside.div_ceil(2);
        let is_chat = matches!(self.traced, PromptInput::Chat(_));
        let mut inputs: Vec<PromptInput> = (0..self.beside).map(|idx| other(idx, is_chat)).collect();
        let traced_idx = before as usize;
        inputs.insert(traced_idx, self.traced);
        let ask = |input: PromptInput| {
            let sender = sender.clone();
            let sink = Box::new(move |event: RequestEvent| sender.send(event).is_ok());
            Ask::new(input, self.params.clone(), "trace", clock.now()).send(engine, sink)
        };
        let ids: Vec<RequestId> = inputs.into_iter().map(ask).collect();
        drop(sender);
        let mut answers: Vec<Answer> = ids.iter().map(|_| Answer::default()).collect();
        while answers.iter().any(|answer| answer.ended.is_none()) {
            if interrupt.take() {
                ids.iter().for_each(|id| engine.abort(*id, FinishReason::Cancelled, clock.now()));
            }
            let event = match events.recv_timeout(LOOK_FOR_INTERRUPT) {
                Ok(event) => event,
                Err(RecvTimeoutError::Timeout) => continue,
                Err(RecvTimeoutError::Disconnected) => break,
            };
            let (RequestEvent::Token { id, .. } | RequestEvent::Finished { id, .. }) = &event;
            let Some(idx) = ids.iter().position(|known| known == id) else { continue };
            let added = answers[idx].take(event, clock.now());
            if self.streamed && idx == traced_idx {
                show(&mut answers[idx], &added, engine)?;
            }
        }
        let mut traced = answers.remove(traced_idx);
        answers.iter_mut().for_each(|answer| report_defect(answer.seal(None)));
        if !self.streamed {
            report_defect(traced.seal(None));
        }
        Ok(Answered { traced, beside: answers })
    }
}

/// Writes what came of a streamed answer, and closes it with its end.
fn show(answer: &mut Answer, added: &str, engine: &EngineHandle) -> Result<(), Failure> {
    if !added.is_empty() {
        write(added)?;
        answer.wrote(engine.clock().now());
    }
    if answer.ended.is_some() {
        write_line("")?;
        report_defect(answer.seal(Some(engine.clock().now())));
    }
    Ok(())
}

/// The question of request `idx` beside the traced one.
fn other(idx: u32, is_chat: bool) -> PromptInput {
    let topic = TOPICS[idx as usize % TOPICS.len()];
    let text = match idx as usize / TOPICS.len() {
        0 => format!("Tell me about {topic}."),
        round => format!("Tell me {} things about {topic}.", round + 1),
    };
    if is_chat {
        PromptInput::Chat(vec![ChatMessage { role: "user".into(), content: text }])
    } else {
        PromptInput::Raw(text)
    }
}

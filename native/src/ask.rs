//! One prompt on its way to the engine: prepared on the caller's thread, stamped, submitted.
//!
//! Never waits for the engine. Invariant: whoever asks hears exactly one `Finished`, also where the prompt was refused on
//! the way.

use firstlight_engine::clock::{Clock, Nanos};
use firstlight_engine::request::{HostStamps, Request, RequestId, SamplingParams};
use firstlight_engine::text::{PrepareOptions, PromptInput};
use firstlight_engine::timeline::RequestLabels;

use crate::clock::InstantClock;
use crate::driver::{EngineHandle, EventSink, Submission};
use crate::refusal::Outside;

/// One prompt and how to answer it.
#[derive(Clone, Debug)]
pub struct Ask {
    /// What the user sent.
    pub input: PromptInput,
    /// How to answer.
    pub params: SamplingParams,
    /// Special tokens in the user's text are read as such.
    pub parse_special: bool,
    /// The command it came by.
    pub route: &'static str,
    /// When the call was made: prompts of one command line share it.
    pub received: Nanos,
    /// Smaller is sooner; 0 is usual.
    pub priority: i32,
    /// When it ends wherever it is then.
    pub deadline: Option<Nanos>,
}

impl Ask {
    /// A prompt of the usual priority, without a deadline, whose special tokens are plain text.
    pub fn new(input: PromptInput, params: SamplingParams, route: &'static str, received: Nanos) -> Self {
        Self { input, params, parse_special: false, route, received, priority: 0, deadline: None }
    }

    /// Prepares it and submits it. A refusal goes to `events` too, and has gone there when this returns.
    pub fn send(self, engine: &EngineHandle, mut events: EventSink) -> RequestId {
        let (id, clock) = (engine.next_id(), engine.clock());
        let labels = labels(id, self.route, clock);
        let received = self.received;
        // One process, one model, nobody to authorise: these boundaries do not apply.
        let mut stamps = HostStamps { received, checked: received, routed: received, ..Default::default() };
        let options = PrepareOptions {
            parse_special: self.parse_special,
            now_unix_seconds: (clock.origin_unix_ms() + received / 1_000_000) / 1000,
        };
        match engine.preparer().prepare(self.input, &options, &clock, &mut stamps) {
            Ok(prepared) => {
                stamps.created = clock.now();
                let request = Request {
                    priority: self.priority,
                    deadline: self.deadline,
                    ..Request::new(id, prepared.prompt, self.params, stamps)
                };
                if let Err(refused) = engine.submit(Submission { request, labels, events }) {
                    refused.answer(engine);
                }
            }
            Err(reason) => {
                let outside = Outside { id, labels, stamps, prompt_len: 0 };
                events(outside.refused(engine.labels(), reason, clock.now()));
            }
        }
        id
    }
}

fn labels(id: RequestId, route: &str, clock: InstantClock) -> RequestLabels {
    let request_id = format!("{route}-{:x}-{}", clock.origin_unix_ms(), id.0);
    RequestLabels { id: format!("{request_id}#0"), request_id, trace_id: None, route: route.to_owned() }
}

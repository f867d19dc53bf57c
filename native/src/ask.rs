//! One prompt on its way to the engine: prepared on the caller's thread, stamped, submitted.
//!
//! Never waits for the engine. Invariant: whoever asks hears exactly one `Finished`, also where the prompt was refused on
//! the way.

use std::sync::Arc;

use firstlight_engine::clock::{Clock, Nanos};
use firstlight_engine::request::{
    FinishReason, HostStamps, RejectReason, Request, RequestId, SamplingParams,
};
use firstlight_engine::text::{ContentPolicy, PrepareOptions, PromptInput, Tokenizer};
use firstlight_engine::timeline::RequestLabels;

use crate::clock::InstantClock;
use crate::driver::{EngineHandle, EventSink, Submission};
use crate::quota::Meter;
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
    /// What a host calls it; made up from the route where it has no name for it.
    pub labels: Option<RequestLabels>,
    /// When the call was made: prompts of one command line share it.
    pub received: Nanos,
    /// When it was found to be allowed and well-formed.
    pub checked: Nanos,
    /// When the model was chosen.
    pub routed: Nanos,
    /// Smaller is sooner; 0 is usual.
    pub priority: i32,
    /// When it ends wherever it is then.
    pub deadline: Option<Nanos>,
    /// What neither it nor its answer may contain.
    pub policy: Option<Arc<ContentPolicy>>,
    /// Whose tokens it uses.
    pub meter: Option<Meter>,
}

impl Ask {
    /// A prompt of the usual priority, without a deadline, whose special tokens are plain text. One process, one model,
    /// nobody to authorise: the boundaries between `received` and the preparation do not apply.
    pub fn new(input: PromptInput, params: SamplingParams, route: &'static str, received: Nanos) -> Self {
        Self {
            input,
            params,
            parse_special: false,
            route,
            labels: None,
            received,
            checked: received,
            routed: received,
            priority: 0,
            deadline: None,
            policy: None,
            meter: None,
        }
    }

    /// What is known of it before it is prepared, should it end before that.
    pub fn outside(&self, id: RequestId) -> Outside {
        let &Self { received, checked, routed, .. } = self;
        let stamps = HostStamps { received, checked, routed, ..Default::default() };
        Outside { id, labels: self.labels.clone().unwrap_or_default(), stamps, prompt_len: 0 }
    }

    /// Prepares it and submits it. A refusal goes to `events` too, and has gone there when this returns.
    pub fn send(self, engine: &EngineHandle, events: EventSink) -> RequestId {
        let id = engine.next_id();
        self.send_unless(id, engine, events, &|| None);
        id
    }

    /// The same under a number that was drawn before, unless `left` says on the way that nobody waits for it any more.
    /// Whoever lets `left` say so and aborts `id` afterwards can be sure that it ends, wherever it was.
    pub fn send_unless(
        self,
        id: RequestId,
        engine: &EngineHandle,
        events: EventSink,
        left: &dyn Fn() -> Option<(FinishReason, Nanos)>,
    ) {
        let labels = self.labels.clone().unwrap_or_else(|| labels(id, self.route, engine.clock()));
        self.send_choices(vec![Seat { id, labels, events }], engine, left);
    }

    /// The prompt, paid for, where its caller's quota covers it together with the answers that were asked for.
    fn affordable(&self, prompt: Vec<u32>, num_choices: usize) -> Result<Vec<u32>, RejectReason> {
        if let Some(meter) = &self.meter {
            meter.covers(answer_tokens(&self.params, num_choices).saturating_add(prompt.len() as u64))?;
            // Once, however many answers it gets.
            meter.take_tokens(prompt.len() as u64);
        }
        Ok(prompt)
    }

    /// The same for several choices from one prompt, which is prepared once: each but the first waits for the first one's
    /// prompt, starts from it, and draws with a seed of its own.
    pub fn send_choices(
        mut self,
        seats: Vec<Seat>,
        engine: &EngineHandle,
        left: &dyn Fn() -> Option<(FinishReason, Nanos)>,
    ) {
        let clock = engine.clock();
        let (received, checked, routed) = (self.received, self.checked, self.routed);
        let mut stamps = HostStamps { received, checked, routed, ..Default::default() };
        let outside =
            |seat: &Seat, stamps| Outside { id: seat.id, labels: seat.labels.clone(), stamps, prompt_len: 0 };
        if let Some((reason, _)) = left() {
            for mut seat in seats {
                let end = outside(&seat, stamps).left(engine.labels(), reason, clock.now());
                (seat.events)(end);
            }
            return;
        }
        if let Some(policy) = &self.policy {
            // The worker has it: looking through a long prompt is part of its preparation.
            stamps.preparing = clock.now();
            if holds_blocked(policy, &self.input, engine.preparer().tokenizer()) {
                for mut seat in seats {
                    let end = outside(&seat, stamps).left(
                        engine.labels(),
                        FinishReason::ContentFilter,
                        clock.now(),
                    );
                    (seat.events)(end);
                }
                return;
            }
        }
        let options = PrepareOptions {
            parse_special: self.parse_special,
            now_unix_seconds: (clock.origin_unix_ms() + received / 1_000_000) / 1000,
        };
        let input = std::mem::replace(&mut self.input, PromptInput::Ids(Vec::new()));
        let prepared = engine.preparer().prepare(input, &options, &clock, &mut stamps);
        match prepared.and_then(|prepared| self.affordable(prepared.prompt, seats.len())) {
            Ok(prompt) => {
                stamps.created = clock.now();
                let first = seats.first().map(|seat| seat.id);
                let ids: Vec<RequestId> = seats.iter().map(|seat| seat.id).collect();
                let submission = |(idx, seat): (u64, Seat)| {
                    let seed = self.params.seed.wrapping_add(idx);
                    let params = SamplingParams { seed, ..self.params.clone() };
                    let request = Request {
                        priority: self.priority,
                        deadline: self.deadline,
                        fork_of: first.filter(|_| idx > 0),
                        policy: self.policy.clone(),
                        ..Request::new(seat.id, prompt.clone(), params, stamps)
                    };
                    Submission { request, labels: seat.labels, events: seat.events }
                };
                let refused = engine.submit_together((0..).zip(seats).map(submission).collect());
                if let Some(meter) = self.meter.as_ref().filter(|_| refused.len() == ids.len()) {
                    meter.give_back_tokens(prompt.len() as u64);
                }
                refused.into_iter().for_each(|refused| refused.answer(engine));
                // An abort that was told before the engine had the request said nothing to it. To one that was refused, it
                // says nothing either.
                if let Some((reason, at)) = left() {
                    ids.into_iter().for_each(|id| engine.abort(id, reason, at));
                }
            }
            Err(reason) => {
                for mut seat in seats {
                    let end = outside(&seat, stamps).refused(engine.labels(), reason.clone(), clock.now());
                    (seat.events)(end);
                }
            }
        }
    }
}

/// The tokens that were asked for: none where no number was named, because what the context leaves is not asked for.
pub fn answer_tokens(params: &SamplingParams, num_choices: usize) -> u64 {
    match params.max_tokens {
        u32::MAX => 0,
        max_tokens => u64::from(max_tokens).saturating_mul(num_choices as u64),
    }
}

/// Whether a prompt holds what is blocked: each message by itself, the template's own words left out.
fn holds_blocked(policy: &ContentPolicy, input: &PromptInput, tokenizer: Option<&Arc<Tokenizer>>) -> bool {
    match input {
        PromptInput::Raw(text) => policy.blocks(text),
        PromptInput::Chat(messages) => messages.iter().any(|message| policy.blocks(&message.content)),
        PromptInput::Ids(ids) => tokenizer.is_some_and(|tokenizer| {
            let bytes: Vec<u8> = ids.iter().flat_map(|id| tokenizer.bytes_of(*id)).collect();
            policy.blocks(&String::from_utf8_lossy(&bytes))
        }),
    }
}

/// Where the events of one choice go, and what it is called.
pub struct Seat {
    /// Its number.
    pub id: RequestId,
    /// Its names.
    pub labels: RequestLabels,
    /// Takes its events.
    pub events: EventSink,
}

fn labels(id: RequestId, route: &str, clock: InstantClock) -> RequestLabels {
    let request_id = format!("{route}-{:x}-{}", clock.origin_unix_ms(), id.0);
    let id = format!("{request_id}#0");
    RequestLabels { id, request_id, route: route.to_owned(), ..RequestLabels::default() }
}

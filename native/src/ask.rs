//! One prompt on its way to the engine: prepared on the caller's thread, stamped, submitted.
//!
//! What the policy blocks is searched for once the prompt is token ids and fits the context: a search takes time linear in
//! the text, but a slow one, so nothing longer is searched. On the timeline this lies between `tokenised` and `created`,
//! in the part `preparation.submit`. Never waits for the engine. Invariant: whoever asks hears exactly one `Finished`, also
//! where the prompt was refused on the way.

use std::sync::Arc;

use firstlight_engine::clock::{Clock, Nanos};
use firstlight_engine::policy::ContentPolicy;
use firstlight_engine::refusal::Outside;
use firstlight_engine::request::{
    FinishReason, HostStamps, RejectReason, Request, RequestId, SamplingParams,
};
use firstlight_engine::text::{PrepareOptions, Prepared, PromptInput, Tokenizer};
use firstlight_engine::timeline::RequestLabels;

use crate::clock::InstantClock;
use crate::driver::{EngineHandle, EventSink, Submission};
use crate::quota::{Demand, Meter};

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
            received,
            checked: received,
            routed: received,
            priority: 0,
            deadline: None,
            policy: None,
            meter: None,
        }
    }

    /// The stamps that it has before it is prepared.
    fn stamps(&self) -> HostStamps {
        let &Self { received, checked, routed, .. } = self;
        HostStamps { received, checked, routed, ..Default::default() }
    }

    /// What is known of choice `id` before it is prepared, should it end before that.
    pub fn outside(&self, id: RequestId, labels: RequestLabels) -> Outside {
        Outside { id, labels, stamps: self.stamps(), prompt_len: 0 }
    }

    /// Prepares it and submits it. A refusal goes to `events` too, and has gone there when this returns.
    pub fn send(self, engine: &EngineHandle, events: EventSink) -> RequestId {
        let id = engine.next_id();
        let labels = labels(id, self.route, engine.clock());
        self.send_choices(vec![Seat { id, labels, events }], engine, &|| None);
        id
    }

    /// The same for several choices from one prompt, which is prepared once: each but the first waits for the first one's
    /// prompt, starts from it, and draws with a seed of its own. Their numbers were drawn before. `left` may say on the way
    /// that nobody waits for them any more: whoever lets it say so and aborts them afterwards can be sure that they end,
    /// wherever they were.
    pub fn send_choices(
        mut self,
        seats: Vec<Seat>,
        engine: &EngineHandle,
        left: &dyn Fn() -> Option<(FinishReason, Nanos)>,
    ) {
        let clock = engine.clock();
        let mut stamps = self.stamps();
        let outside =
            |seat: &Seat, stamps| Outside { id: seat.id, labels: seat.labels.clone(), stamps, prompt_len: 0 };
        if let Some((reason, _)) = left() {
            for mut seat in seats {
                let end = outside(&seat, stamps).left(engine.labels(), reason, clock.now());
                (seat.events)(end);
            }
            return;
        }
        match self.prepared(seats.len(), engine, &mut stamps) {
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
            Err(why) => {
                for mut seat in seats {
                    let (outside, now) = (outside(&seat, stamps), clock.now());
                    (seat.events)(match &why {
                        Unasked::Blocked => outside.left(engine.labels(), FinishReason::ContentFilter, now),
                        Unasked::Refused(reason) => outside.refused(engine.labels(), reason.clone(), now),
                    });
                }
            }
        }
    }

    /// Token ids that fit the context, hold nothing that is blocked, and are paid for: the caller's quota covers them
    /// together with the answers that were asked for.
    fn prepared(
        &mut self,
        num_choices: usize,
        engine: &EngineHandle,
        stamps: &mut HostStamps,
    ) -> Result<Vec<u32>, Unasked> {
        let (clock, preparer) = (engine.clock(), engine.preparer());
        let options = PrepareOptions {
            parse_special: self.parse_special,
            now_unix_seconds: clock.unix_seconds(self.received),
        };
        let input = std::mem::replace(&mut self.input, PromptInput::Ids(Vec::new()));
        let text = self.policy.as_ref().map(|_| SentText::of(&input));
        let Prepared { prompt, .. } =
            preparer.prepare(input, &options, &clock, stamps).map_err(Unasked::Refused)?;
        if let Some((policy, text)) = self.policy.as_ref().zip(text)
            && text.is_blocked(policy, &prompt, preparer.tokenizer().map(Arc::as_ref))
        {
            return Err(Unasked::Blocked);
        }
        if let Some(meter) = &self.meter {
            let demand = Demand::new(&self.params, num_choices, engine.limits().max_model_len);
            let prompt_len = prompt.len() as u64;
            meter.covers(demand.tokens(prompt_len)).map_err(Unasked::Refused)?;
            // Once, however many answers it gets.
            meter.take_tokens(prompt_len);
        }
        Ok(prompt)
    }
}

/// Why a prompt does not get to the engine.
enum Unasked {
    /// It holds what the policy blocks.
    Blocked,
    /// It is none, or too long, or its caller cannot pay for it.
    Refused(RejectReason),
}

/// What was sent, to be searched: each message by itself, the template's own words left out.
enum SentText {
    Texts(Vec<String>),
    /// The prompt's own ids; their text is made when they are known to fit.
    Ids,
}

impl SentText {
    fn of(input: &PromptInput) -> Self {
        match input {
            PromptInput::Raw(text) => Self::Texts(vec![text.clone()]),
            PromptInput::Chat(messages) => {
                // A role is a word of the caller's too, and the template writes it out.
                let said =
                    messages.iter().flat_map(|message| [message.role.clone(), message.content.clone()]);
                Self::Texts(said.collect())
            }
            PromptInput::Ids(_) => Self::Ids,
        }
    }

    fn is_blocked(&self, policy: &ContentPolicy, prompt: &[u32], tokenizer: Option<&Tokenizer>) -> bool {
        match self {
            Self::Texts(texts) => texts.iter().any(|text| policy.blocks(text)),
            Self::Ids => tokenizer.is_some_and(|tokenizer| {
                let bytes: Vec<u8> = prompt.iter().flat_map(|id| tokenizer.bytes_of(*id)).collect();
                policy.blocks(&String::from_utf8_lossy(&bytes))
            }),
        }
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

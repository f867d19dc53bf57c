//! The names of the parts that a latency comes apart into, as the page shows them.
//!
//! It measures nothing. Invariant: each part has one name, one colour class and one sentence wherever it is shown.

use firstlight_engine::clock::Nanos;
use firstlight_engine::timeline::{Obstacle, WaitCauses};

/// Why a request waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Cause {
    /// The batch is full.
    Slots,
    /// The step's tokens are spent.
    Budget,
    /// Too few free KV blocks.
    Blocks,
    /// One before it does not fit.
    Order,
    /// The device is being rebuilt.
    Paused,
}

/// All causes, in the order of the engine's.
pub const CAUSES: [Cause; 5] = [Cause::Slots, Cause::Budget, Cause::Blocks, Cause::Order, Cause::Paused];

impl Cause {
    /// In a word.
    pub fn name(self) -> &'static str {
        match self {
            Self::Slots => "slots",
            Self::Budget => "budget",
            Self::Blocks => "blocks",
            Self::Order => "order",
            Self::Paused => "paused",
        }
    }

    /// In a sentence's end: "waiting: ...".
    pub fn sentence(self) -> &'static str {
        match self {
            Self::Slots => "the batch is full",
            Self::Budget => "the step's token budget is spent",
            Self::Blocks => "too few free KV blocks",
            Self::Order => "one before it does not fit",
            Self::Paused => "the device is being rebuilt",
        }
    }

    /// What was billed to it.
    pub fn of(self, causes: &WaitCauses) -> Nanos {
        match self {
            Self::Slots => causes.slots,
            Self::Budget => causes.budget,
            Self::Blocks => causes.blocks,
            Self::Order => causes.order,
            Self::Paused => causes.paused,
        }
    }

    /// The one that was billed most; the first of equal ones, none where nothing was billed.
    pub fn dominant(causes: &WaitCauses) -> Option<Self> {
        let billed = CAUSES.into_iter().rev().map(|cause| (cause.of(causes), cause));
        billed.max_by_key(|(nanos, _)| *nanos).filter(|(nanos, _)| *nanos > 0).map(|(_, cause)| cause)
    }
}

impl From<Obstacle> for Cause {
    fn from(obstacle: Obstacle) -> Self {
        match obstacle {
            Obstacle::Slots => Self::Slots,
            Obstacle::Budget => Self::Budget,
            Obstacle::Blocks => Self::Blocks,
            Obstacle::Order => Self::Order,
            Obstacle::Paused => Self::Paused,
        }
    }
}

/// A part of a request's time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Part {
    /// received -> checked.
    Gateway,
    /// checked -> routed.
    Route,
    /// routed -> preparing.
    PrepareWait,
    /// preparing -> templated.
    Template,
    /// templated -> tokenised.
    Tokenise,
    /// tokenised -> created.
    Submit,
    /// In the inbox, before the engine was ready.
    ModelLoad,
    /// In the inbox, while a step ran or the driver woke up.
    InboxStep,
    /// Before the first admission; the cause where it is known.
    Queue(Option<Cause>),
    /// Waiting again after an eviction, before the first token.
    Requeue(Option<Cause>),
    /// A stay that an eviction threw away.
    LostPrefill,
    /// A pass gave it prompt tokens.
    Prefill,
    /// A pass gave it none, before the first token.
    PrefillStall,
    /// first token -> first text.
    Hold,
    /// first text -> first write.
    Write,
    /// After the first token.
    Decode,
    /// A pass gave it none, after the first token.
    DecodeStall,
    /// Waiting again after an eviction, after the first token.
    DecodeRequeue(Option<Cause>),
    /// Computing again what an eviction after the first token threw away.
    Recompute,
}

impl Part {
    /// What it is called.
    pub fn name(self) -> &'static str {
        match self {
            Self::Gateway => "gateway",
            Self::Route => "route",
            Self::PrepareWait => "preparation: wait",
            Self::Template => "preparation: template",
            Self::Tokenise => "preparation: tokenise",
            Self::Submit => "preparation: submit",
            Self::ModelLoad => "inbox: model load",
            Self::InboxStep => "inbox: running step",
            Self::Queue(_) => "queue",
            Self::Requeue(_) => "requeue",
            Self::LostPrefill => "lost prefill",
            Self::Prefill => "prefill",
            Self::PrefillStall => "prefill: stall",
            Self::Hold => "transport: hold",
            Self::Write => "transport: write",
            Self::Decode => "decode",
            Self::DecodeStall => "decode: stall",
            Self::DecodeRequeue(_) => "decode: requeue",
            Self::Recompute => "decode: recompute",
        }
    }

    /// What happens in it.
    pub fn sentence(self) -> &'static str {
        match self {
            Self::Gateway => "checking authorisation, quota and parameters",
            Self::Route => "choosing model and replica",
            Self::PrepareWait => "until a preparation worker took it up",
            Self::Template => "rendering the chat template",
            Self::Tokenise => "text to token ids",
            Self::Submit => "length check, putting it on the inbox",
            Self::ModelLoad => "until the engine was ready",
            Self::InboxStep => "until the running step ended and the next pass saw it",
            Self::Queue(Some(cause)) | Self::Requeue(Some(cause)) | Self::DecodeRequeue(Some(cause)) => {
                cause.sentence()
            }
            Self::Queue(None) => "waiting; the cause is billed when the wait ends",
            Self::Requeue(None) | Self::DecodeRequeue(None) => "waiting again after an eviction",
            Self::LostPrefill => "computed, then thrown away by an eviction",
            Self::Prefill => "computing the prompt",
            Self::PrefillStall | Self::DecodeStall => "in the batch, but the step gave it no tokens",
            Self::Hold => "a token without printable text yet",
            Self::Write => "from text to the socket or the page",
            Self::Decode => "one token a step",
            Self::Recompute => "computing again what an eviction threw away",
        }
    }

    /// The end of `--part-...`, the variable of its colour.
    pub fn class(self) -> &'static str {
        match self {
            Self::Gateway => "gateway",
            Self::Route => "route",
            Self::PrepareWait | Self::Template | Self::Tokenise | Self::Submit => "preparation",
            Self::ModelLoad | Self::InboxStep => "inbox",
            Self::Queue(None) => "queue",
            Self::Queue(Some(Cause::Slots)) => "queue-slots",
            Self::Queue(Some(Cause::Budget)) => "queue-budget",
            Self::Queue(Some(Cause::Blocks)) => "queue-blocks",
            Self::Queue(Some(Cause::Order)) => "queue-order",
            Self::Queue(Some(Cause::Paused)) => "queue-paused",
            Self::Requeue(_) | Self::DecodeRequeue(_) => "requeue",
            Self::LostPrefill => "lost-prefill",
            Self::Prefill => "prefill",
            Self::PrefillStall | Self::DecodeStall => "stall",
            Self::Hold | Self::Write => "transport",
            Self::Decode => "decode",
            Self::Recompute => "recompute",
        }
    }

    /// Whether it is what an eviction cost: hatched wherever it is drawn.
    pub fn is_waste(self) -> bool {
        matches!(self, Self::Requeue(_) | Self::LostPrefill | Self::DecodeRequeue(_) | Self::Recompute)
    }
}

/// What a legend explains: class, words, whether it is hatched. In the order of time.
pub const LEGEND: [(&str, &str, bool); 17] = [
    ("gateway", "gateway", false),
    ("route", "route", false),
    ("preparation", "preparation", false),
    ("inbox", "inbox", false),
    ("queue-slots", "queue: batch full", false),
    ("queue-budget", "queue: token budget", false),
    ("queue-blocks", "queue: KV blocks", false),
    ("queue-order", "queue: one before it", false),
    ("queue-paused", "queue: device rebuilt", false),
    ("queue", "queue: cause not billed yet", false),
    ("requeue", "requeue", true),
    ("lost-prefill", "lost prefill", true),
    ("prefill", "prefill", false),
    ("stall", "stall", false),
    ("transport", "transport", false),
    ("decode", "decode", false),
    ("recompute", "recompute", true),
];

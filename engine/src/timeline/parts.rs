//! The parts of a latency, cut at the first token (or at the end, where there is none).
//!
//! Sub-parts are running sums that the state machine bills as it goes; [`RequestTimeline::check`] holds them against the
//! residencies, which are recorded independently. Invariant: no part is computed as "what is left over", except
//! `inbox.step`, which is defined so.

use serde::{Deserialize, Serialize};

use super::{Place, RequestTimeline};
use crate::clock::Nanos;

/// Why a request waited, in nanoseconds by cause.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
pub struct WaitCauses {
    /// The batch was full.
    pub slots: Nanos,
    /// The step's tokens were spent.
    pub budget: Nanos,
    /// It was first in the queue and did not fit into the free KV blocks.
    pub blocks: Nanos,
    /// One before it did not fit, or the request of which it is another choice has not computed their prompt yet.
    pub order: Nanos,
    /// The device was being rebuilt.
    pub paused: Nanos,
}

impl WaitCauses {
    /// All causes together.
    pub fn total(&self) -> Nanos {
        self.slots + self.budget + self.blocks + self.order + self.paused
    }

    /// Adds cause by cause.
    pub fn add(&mut self, more: Self) {
        self.slots += more.slots;
        self.budget += more.budget;
        self.blocks += more.blocks;
        self.order += more.order;
        self.paused += more.paused;
    }
}

/// Time in the batch: in passes that gave the request tokens, and in passes that gave it none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
pub struct RunParts {
    /// With tokens.
    pub compute: Nanos,
    /// Without.
    pub stall: Nanos,
}

impl RunParts {
    /// Both together.
    pub fn total(&self) -> Nanos {
        self.compute + self.stall
    }

    pub(super) fn bill(&mut self, given: bool, elapsed: Nanos) {
        if given { self.compute += elapsed } else { self.stall += elapsed }
    }
}

/// `finished - first_token`, apart.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
pub struct DecodeParts {
    /// Passes that gave it tokens.
    pub compute: Nanos,
    /// Passes that gave it none.
    pub stall: Nanos,
    /// Waiting again after an eviction.
    pub requeue: Nanos,
    /// From readmission until the position before the eviction is reached again.
    pub recompute: Nanos,
}

impl DecodeParts {
    /// All four together.
    pub fn total(&self) -> Nanos {
        self.compute + self.stall + self.requeue + self.recompute
    }
}

/// `created - routed`, apart.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
pub struct Preparation {
    /// Until a worker took it up.
    pub wait: Nanos,
    /// Rendering the chat template.
    pub template: Nanos,
    /// Text to token ids.
    pub tokenise: Nanos,
    /// Length check, putting it on the inbox.
    pub submit: Nanos,
}

impl Preparation {
    /// All four together.
    pub fn total(&self) -> Nanos {
        self.wait + self.template + self.tokenise + self.submit
    }
}

/// `queued - created`, apart.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
pub struct InboxParts {
    /// Until the engine was ready.
    pub model_load: Nanos,
    /// The rest: the running step, or the driver's wake-up.
    pub step: Nanos,
}

impl InboxParts {
    /// Both together.
    pub fn total(&self) -> Nanos {
        self.model_load + self.step
    }
}

/// The five parts between `created` and the first token.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
pub struct EngineParts {
    /// Not yet seen by a pass.
    pub inbox: InboxParts,
    /// Before the first admission.
    pub queue_wait: WaitCauses,
    /// Waiting again after an eviction.
    pub requeue: WaitCauses,
    /// Residencies that an eviction threw away.
    pub lost_prefill: Nanos,
    /// From the last admission on.
    pub prefill: RunParts,
}

impl EngineParts {
    /// Waiting before the first token, again included.
    pub fn waited(&self) -> Nanos {
        self.queue_wait.total() + self.requeue.total()
    }

    /// Waiting again and computing for nothing: what evictions cost before the first token.
    pub fn waste(&self) -> Nanos {
        self.requeue.total() + self.lost_prefill
    }

    /// All five together.
    pub fn total(&self) -> Nanos {
        self.inbox.total()
            + self.queue_wait.total()
            + self.requeue.total()
            + self.lost_prefill
            + self.prefill.total()
    }
}

/// `first_write - first_token`, apart.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
pub struct Transport {
    /// A token without printable text, or text that may begin a stop string.
    pub hold: Nanos,
    /// From text to the socket, terminal or page.
    pub write: Nanos,
}

impl Transport {
    /// Both together.
    pub fn total(&self) -> Nanos {
        self.hold + self.write
    }
}

/// All parts of one request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(from = "FlatParts")]
pub struct Parts {
    /// received -> checked.
    pub gateway: Nanos,
    /// checked -> routed.
    pub route: Nanos,
    /// routed -> created.
    pub preparation: Preparation,
    /// created -> first token; absent where the request never reached the inbox.
    #[serde(flatten)]
    pub engine: Option<EngineParts>,
    /// first token -> first write; absent without one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub transport: Option<Transport>,
}

/// [`Parts`] as they are written: the engine's five beside the others.
#[derive(Deserialize)]
struct FlatParts {
    gateway: Nanos,
    route: Nanos,
    preparation: Preparation,
    inbox: Option<InboxParts>,
    #[serde(default)]
    queue_wait: WaitCauses,
    #[serde(default)]
    requeue: WaitCauses,
    #[serde(default)]
    lost_prefill: Nanos,
    #[serde(default)]
    prefill: RunParts,
    transport: Option<Transport>,
}

impl From<FlatParts> for Parts {
    fn from(flat: FlatParts) -> Self {
        let FlatParts { gateway, route, preparation, inbox, transport, .. } = flat;
        let FlatParts { queue_wait, requeue, lost_prefill, prefill, .. } = flat;
        let engine = inbox.map(|inbox| EngineParts { inbox, queue_wait, requeue, lost_prefill, prefill });
        Self { gateway, route, preparation, engine, transport }
    }
}

impl Parts {
    /// The sum of all leaves.
    pub fn total(&self) -> Nanos {
        self.gateway
            + self.route
            + self.preparation.total()
            + self.engine.map_or(0, |engine| engine.total())
            + self.transport.map_or(0, |transport| transport.total())
    }
}

/// The five engine parts as the residencies alone tell them: what the billed sums are held against.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct ResidencyParts {
    pub(super) inbox: Nanos,
    pub(super) queue_wait: Nanos,
    pub(super) requeue: Nanos,
    pub(super) lost_prefill: Nanos,
    pub(super) prefill: Nanos,
}

impl RequestTimeline {
    /// The parts; `None` while there is neither a first token nor an end.
    pub fn parts(&self) -> Option<Parts> {
        let cut = self.stamps.cut()?;
        let host = &self.stamps.host;
        // A stamp that is missing was cut away by the end: the place before it owns the open interval.
        let between = |from: usize| match (host[from], host.get(from + 1).copied().flatten()) {
            (Some(a), Some(b)) => b - a,
            (Some(a), None) => cut - a,
            (None, _) => 0,
        };
        let transport = match (self.stamps.first_token, self.stamps.first_text, self.stamps.first_write) {
            (Some(token), Some(text), Some(write)) => {
                Some(Transport { hold: text.checked_sub(token)?, write: write.checked_sub(text)? })
            }
            _ => None,
        };
        Some(Parts {
            gateway: between(0),
            route: between(1),
            preparation: Preparation {
                wait: between(2),
                template: between(3),
                tokenise: between(4),
                submit: between(5),
            },
            engine: self.stamps.created().map(|created| self.engine_parts(created, cut)),
            transport,
        })
    }

    fn engine_parts(&self, created: Nanos, cut: Nanos) -> EngineParts {
        let left_inbox = self.stamps.queued.unwrap_or(cut);
        // An engine that was ready before `created` loaded nothing for this request; one that never got ready, all of it.
        let ready = self.engine.ready_at.unwrap_or(left_inbox).clamp(created, left_inbox);
        EngineParts {
            inbox: InboxParts { model_load: ready - created, step: left_inbox - ready },
            queue_wait: self.queue_wait,
            requeue: self.requeue,
            lost_prefill: self.lost_prefill,
            prefill: self.prefill,
        }
    }

    /// After the first token; `None` without one, and while the request lives.
    pub fn decode(&self) -> Option<DecodeParts> {
        self.stamps.first_token.and(self.stamps.finished).map(|_| self.decode)
    }

    /// What followed the first token, by the tokens that followed it; `None` where none did.
    pub fn time_per_output_token(&self) -> Option<Nanos> {
        let followers = u64::from(self.tokens().generated).checked_sub(1)?;
        self.decode()?.total().checked_div(followers)
    }

    /// `first_write - received`, where there is one.
    pub fn ttft(&self) -> Option<Nanos> {
        self.stamps.first_write?.checked_sub(self.stamps.received()?)
    }

    /// `first_token - created`, where there is one.
    pub fn engine_ttft(&self) -> Option<Nanos> {
        self.stamps.first_token?.checked_sub(self.stamps.created()?)
    }

    /// `last_write`, else `finished`, minus `received`.
    pub fn e2e(&self) -> Option<Nanos> {
        self.stamps.last_write.or(self.stamps.finished)?.checked_sub(self.stamps.received()?)
    }

    pub(super) fn residency_parts(&self) -> ResidencyParts {
        let mut parts = ResidencyParts::default();
        let (Some(cut), Some(last)) = (self.stamps.cut(), self.residency.len().checked_sub(1)) else {
            return parts;
        };
        let cut_idx = self.first_token_residency_idx.unwrap_or(last);
        let mut waited_before = false;
        for (idx, stay) in self.residency.iter().enumerate().take(cut_idx + 1) {
            let to = if idx == cut_idx { cut } else { stay.to };
            let elapsed = to.saturating_sub(stay.from);
            match stay.place {
                Place::Inbox => parts.inbox += elapsed,
                Place::Waiting if !waited_before => {
                    parts.queue_wait += elapsed;
                    waited_before = true;
                }
                Place::Waiting => parts.requeue += elapsed,
                Place::Running if idx < cut_idx => parts.lost_prefill += elapsed,
                Place::Running => parts.prefill += elapsed,
                Place::Host | Place::Done => {}
            }
        }
        parts
    }
}

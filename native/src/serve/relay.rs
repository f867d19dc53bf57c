//! One task for each call: it asks the engine for every choice, and carries what comes to the client.
//!
//! It never makes the engine wait, and notices at once when nobody listens. Invariant: the timeline of every choice goes
//! into the book exactly once, sealed after the last write, whatever became of the client.

mod choice;
mod deliver;
mod sink;

pub(crate) use deliver::{event_stream, json_response};

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize};

use axum::response::Response;
use tokio::sync::{mpsc, oneshot};

use firstlight_engine::clock::{Clock, Nanos};
use firstlight_engine::request::{RejectReason, RequestId};
use firstlight_engine::timeline::RequestLabels;

use self::choice::Choice;
use self::sink::{Heard, Left, Sink};
use super::body::Room;
use super::errors::ApiError;
use super::gateway::Caller;
use super::life::OpenRequest;
use super::server::Server;
use super::telemetry::CallFacts;
use super::wire::answers::Head;
use super::wire::call::{Call, Form};
use crate::ask::{Ask, Seat};
use crate::driver::EngineHandle;
use crate::quota::Meter;

/// The stamps that a call has when it is handed over.
#[derive(Clone, Copy, Debug)]
pub struct Edge {
    /// Its last byte was read.
    pub received: Nanos,
    /// It was found to be allowed and well-formed.
    pub checked: Nanos,
    /// Its model was chosen.
    pub routed: Nanos,
}

/// A call that may be answered, and all that answers it.
pub struct Admitted {
    /// What all requests share.
    pub server: Arc<Server>,
    /// The engine.
    pub engine: EngineHandle,
    /// Counted as under way.
    pub open: OpenRequest,
    /// What its body takes, until it is prepared.
    pub room: Room,
}

/// What the task works on.
struct Relay {
    server: Arc<Server>,
    engine: EngineHandle,
    call: Arc<Call>,
    facts: Arc<CallFacts>,
    head: Head,
    choices: Vec<Choice>,
    heard: mpsc::UnboundedReceiver<Heard>,
    waiting: Arc<AtomicUsize>,
    left: Arc<Left>,
    /// Whose tokens it uses.
    meter: Option<Meter>,
    /// Why there is no answer: of the first choice that ended in none.
    error: Option<ApiError>,
    /// Held until the timelines are in the book.
    _open: OpenRequest,
}

/// Answers a call: asks the engine, and returns once it is clear that there is an answer, or why there is none. Dropping
/// the future, or later the response's body, ends the call.
///
/// # Errors
/// What the client is told in place of an answer.
pub async fn answer(
    admitted: Admitted,
    caller: Caller,
    call: Call,
    edge: Edge,
) -> Result<Response, ApiError> {
    let relay = Relay::start(admitted, &caller, call, edge);
    let (reply, replied) = oneshot::channel();
    tokio::spawn(relay.run(reply));
    replied.await.unwrap_or_else(|_| Err(ApiError::lost()))
}

impl Relay {
    fn start(admitted: Admitted, caller: &Caller, mut call: Call, edge: Edge) -> Self {
        let Admitted { server, engine, open, room } = admitted;
        let room = Arc::new(room);
        let clock = engine.clock();
        let prefix = if call.form == Form::Chat { "chatcmpl" } else { "cmpl" };
        let head = Head {
            form: call.form,
            id: format!("{prefix}-{}", caller.serial),
            created: clock.unix_seconds(edge.received),
            model: server.model_name().to_owned(),
            fingerprint: format!("fp_{}", engine.labels().engine_config),
            include_usage: call.include_usage,
        };
        let prompts = std::mem::take(&mut call.prompts);
        let (sender, heard) = mpsc::unbounded_channel();
        let facts = CallFacts {
            form: call.form,
            response_id: head.id.clone(),
            model: head.model.clone(),
            asked_model: call.model.clone(),
            params: call.params.clone(),
            num_choices: call.num_choices,
            max_model_len: engine.limits().max_model_len,
            stream: call.stream,
            trace: caller.trace.clone(),
            key_name: caller.key_name.clone(),
            origin_unix_ms: clock.origin_unix_ms(),
            is_counted: AtomicBool::new(false),
        };
        let mut relay = Self {
            facts: Arc::new(facts),
            choices: Vec::with_capacity(prompts.len() * call.num_choices),
            call: Arc::new(call),
            head,
            heard,
            waiting: Arc::default(),
            left: Arc::default(),
            meter: caller.meter().cloned(),
            error: None,
            server,
            engine,
            _open: open,
        };
        let deadline_ns = relay.call.extension.deadline_ms.map(|ms| ms.saturating_mul(1_000_000));
        for input in prompts {
            let call = &relay.call;
            let Edge { received, checked, routed } = edge;
            let ask = Ask {
                checked,
                routed,
                priority: call.extension.priority,
                policy: relay.server.policy().current(),
                meter: relay.meter.clone(),
                deadline: deadline_ns.map(|ns| received.saturating_add(ns)),
                ..Ask::new(input, call.params.clone(), "serve", received)
            };
            let seats = (0..call.num_choices).map(|_| relay.engine.next_id()).collect::<Vec<_>>();
            let seats = seats.into_iter().map(|id| relay.seat(id, &ask, caller, &sender)).collect();
            relay.prepare(ask, seats, Arc::clone(&room));
        }
        relay
    }

    /// The next choice, and where its events go.
    fn seat(
        &mut self,
        id: RequestId,
        ask: &Ask,
        caller: &Caller,
        heard: &mpsc::UnboundedSender<Heard>,
    ) -> (Sink, RequestLabels) {
        let choice = self.choices.len();
        self.choices.push(Choice::new(id, ask.policy.clone()));
        let labels = self.server.gateway().labels(caller, format!("{}#{choice}", self.head.id));
        let sink = Sink {
            choice,
            heard: heard.clone(),
            waiting: Arc::clone(&self.waiting),
            engine: self.engine.clone(),
            ledger: Arc::clone(self.server.ledger()),
            facts: Arc::clone(&self.facts),
            outside: ask.outside(id, labels.clone()),
            ended: false,
        };
        (sink, labels)
    }

    /// Hands a prompt to the preparation workers; where they have too much to do, that is its end.
    fn prepare(&self, ask: Ask, seats: Vec<(Sink, RequestLabels)>, room: Arc<Room>) {
        let engine = self.engine.clone();
        match self.server.preparation().reserve() {
            Some(place) => {
                let left = Arc::clone(&self.left);
                let seat = |(mut sink, labels): (Sink, RequestLabels)| Seat {
                    id: sink.outside.id,
                    labels,
                    events: Box::new(move |event| sink.take(event)),
                };
                let seats = seats.into_iter().map(seat).collect();
                place.run(move || {
                    ask.send_choices(seats, &engine, &|| left.get().copied());
                    drop(room);
                });
            }
            None => {
                let waiting = u32::try_from(engine.counters().waiting).unwrap_or(u32::MAX);
                for (mut sink, _) in seats {
                    let (outside, now) = (sink.outside.clone(), engine.clock().now());
                    sink.take(outside.refused(engine.labels(), RejectReason::Busy { waiting }, now));
                }
            }
        }
    }
}

//! The engine in this tab: a model opened, and prompts on their way to it.
//!
//! Prompts are prepared while a step runs; the engine sees them at its next pass. Invariant: as
//! [`crate::protocol`] says, every ask ends in one `Finished`, whatever becomes of the device.

mod engine_loop;
mod model;
mod room;

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;

use firstlight_engine::clock::{Clock, Nanos};
use firstlight_engine::engine::RequestEvent;
use firstlight_engine::refusal::Outside;
use firstlight_engine::request::{HostStamps, RejectReason, Request, RequestId};
use firstlight_engine::sched::SchedulerConfig;
use firstlight_engine::text::{ChatMessage, PrepareOptions, Preparer, PromptInput};
use firstlight_engine::timeline::{EngineLabels, RequestLabels};
use futures_channel::mpsc;
use web_sys::js_sys;

use self::engine_loop::{Task, finish};
use super::clock::PageClock;
use super::tell;
use crate::protocol::{Ask, AskId, Event, ExportKind, Prompt};
use crate::view::history::History;

pub use self::model::{Opened, open};

/// An engine that runs, as the worker sees it.
pub struct Tab {
    tasks: mpsc::UnboundedSender<Task>,
    shared: Rc<Shared>,
}

/// What the engine's loop and the worker's own task share.
struct Shared {
    clock: PageClock,
    preparer: Arc<Preparer>,
    labels: Arc<EngineLabels>,
    limits: SchedulerConfig,
    history: RefCell<History>,
    next_id: Cell<u64>,
    /// Submitted and not yet ended.
    open: Cell<usize>,
}

impl Tab {
    /// Starts the loop of an engine that was opened.
    pub fn start(opened: Opened) -> Self {
        let (tasks, heard) = mpsc::unbounded();
        let shared = engine_loop::start(opened, heard);
        Self { tasks, shared }
    }

    /// Prepares prompts that arrived at one instant and hands them to the engine.
    pub fn submit(&self, asks: Vec<Ask>) {
        let checked = self.shared.clock.now();
        let mut together = Vec::new();
        for ask in asks {
            together.extend(self.prepare(ask, checked));
        }
        if !together.is_empty() {
            self.send(Task::Submit(together));
        }
    }

    /// A prompt on its way; `None` where it was refused, which it has been told by then.
    fn prepare(&self, ask: Ask, checked: Nanos) -> Option<engine_loop::Arrival> {
        let shared = &self.shared;
        let id = RequestId(shared.next_id.get());
        shared.next_id.set(id.0 + 1);
        // The page's own stamp comes before ours, also where this thread's clock lags a tick behind.
        let received = ask.received.min(checked);
        let mut stamps = HostStamps { received, checked, routed: checked, ..HostStamps::default() };
        let labels = RequestLabels {
            id: id.to_string(),
            request_id: format!("tab-{}", ask.id.0),
            route: "tab".to_owned(),
            ..RequestLabels::default()
        };
        let input = match ask.prompt {
            Prompt::Raw(text) => PromptInput::Raw(text),
            Prompt::Chat(messages) => PromptInput::Chat(
                messages.into_iter().map(|m| ChatMessage { role: m.role, content: m.content }).collect(),
            ),
        };
        let now_unix_seconds = (shared.clock.origin_unix_ms() + received / 1_000_000) / 1000;
        let options = PrepareOptions { parse_special: false, now_unix_seconds };
        let prepared = shared.preparer.prepare(input, &options, &shared.clock, &mut stamps);
        let params = ask.sampling.params(random_seed);
        let busy = RejectReason::Busy { waiting: shared.limits.max_waiting };
        let is_full = shared.open.get() >= (shared.limits.max_waiting + shared.limits.max_num_seqs) as usize;
        let checked = prepared.and_then(|prepared| match is_full {
            true => Err(busy),
            false => params.validate().map(|()| prepared),
        });
        match checked {
            Ok(prepared) => {
                stamps.created = shared.clock.now();
                let prompt_tokens = u32::try_from(prepared.prompt.len()).ok();
                let request = Request::new(id, prepared.prompt, params, stamps);
                tell(&Event::Accepted {
                    ask: ask.id,
                    id: id.to_string(),
                    rendered: prepared.rendered,
                    prompt_tokens,
                });
                shared.open.set(shared.open.get() + 1);
                Some(engine_loop::Arrival { ask: ask.id, request, labels })
            }
            Err(reason) => {
                tell(&Event::Accepted {
                    ask: ask.id,
                    id: id.to_string(),
                    rendered: None,
                    prompt_tokens: None,
                });
                let outside = Outside { id, labels, stamps, prompt_len: 0 };
                let end = outside.refused(&shared.labels, reason, shared.clock.now());
                if let RequestEvent::Finished { reason, detail, timeline, .. } = end {
                    finish(shared, ask.id, reason, detail.map(|why| why.to_string()), timeline, None);
                }
                None
            }
        }
    }

    /// Ends a prompt wherever it is.
    pub fn cancel(&self, ask: AskId) {
        self.send(Task::Cancel { ask, asked_at: self.shared.clock.now() });
    }

    /// Opens the device again.
    pub fn reopen(&self) {
        self.send(Task::Reopen);
    }

    /// Ends everything `Cancelled` and gives the device back. Resolves when it is.
    pub async fn close(self) {
        let (done, closed) = futures_channel::oneshot::channel();
        self.send(Task::Close(done));
        // A loop that has ended has closed already.
        let _ = closed.await;
    }

    /// Why a token was late.
    pub fn blame(&self, id: &str, token_idx: usize) -> Event {
        self.shared.history.borrow().blame(id, token_idx)
    }

    /// Answers [`crate::protocol::Command::Diagnose`].
    pub fn diagnose(&self, halves: bool, worse_answers: bool) -> Event {
        self.shared.history.borrow().diagnose(halves, worse_answers)
    }

    /// A file for a person to keep.
    pub fn export(&self, kind: ExportKind) -> Event {
        let history = self.shared.history.borrow();
        history.export(kind, &history.report(None))
    }

    fn send(&self, task: Task) {
        // The loop lives until it is closed, and who closes it lets this go.
        drop(self.tasks.unbounded_send(task));
    }
}

/// 52 random bits are as good as 64 here.
fn random_seed() -> u64 {
    (js_sys::Math::random() * (1u64 << 52) as f64) as u64
}

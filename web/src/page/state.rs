//! What the page knows and can do: one handful of signals that every component reads.
//!
//! It shows nothing. Invariant: commands go to the worker through here alone, and every event comes in through
//! [`Page::hear`].

use std::collections::HashMap;

use leptos::prelude::*;
use web_sys::File;

use super::answers::{Answer, Turn};
use super::files;
use super::link::{Link, now};
use super::opening::Opening;
use crate::browser::performance;
use crate::protocol::{
    AskId, Backend, BackendKind, BesideModel, Command, Diagnosis, Event, ExportKind, StorageFigures,
    StoredModel,
};
use crate::view::gaps::gap_name;
use crate::view::handshake;
use crate::view::kept::Kept;
use crate::view::query::Query;
use crate::view::session::Session;
use crate::view::settings::{EngineForm, SamplingForm};

/// Notices that are shown at once; older ones go.
const NOTICES: usize = 4;

/// The models that can be had.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Catalogue {
    /// Beside the page.
    pub beside: Vec<BesideModel>,
    /// In this browser.
    pub stored: Vec<StoredModel>,
    /// Of this site.
    pub storage: Option<StorageFigures>,
    /// Whether the worker has said so already.
    pub known: bool,
}

/// The device's failure.
#[derive(Clone, Debug, PartialEq)]
pub struct DeviceTrouble {
    /// What the driver said.
    pub sentence: String,
    /// Whether it comes back by itself.
    pub reopening: bool,
}

/// Which half a narrow window shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tab {
    /// The conversation.
    Chat,
    /// The lanes.
    Timelines,
}

/// See the module. It is a handful of handles: copied freely.
#[derive(Clone, Copy)]
pub struct Page {
    pub(super) link: StoredValue<Option<Link>, LocalStorage>,
    pub(super) files: StoredValue<Vec<File>, LocalStorage>,
    pub(super) query: StoredValue<Query>,
    /// Whether this document is a report: it shows what is in it, and opens nothing else.
    pub is_report: bool,
    /// All that the timelines show.
    pub session: RwSignal<Session>,
    /// Why tokens were late, as far as that was asked.
    pub blames: RwSignal<Kept>,
    /// The last diagnosis.
    pub diagnosis: RwSignal<Option<Diagnosis>>,
    /// What chat templates made of prompts.
    pub rendered: RwSignal<Kept>,
    /// The models.
    pub catalogue: RwSignal<Catalogue>,
    /// Whether the worker has answered.
    pub hello: RwSignal<bool>,
    /// Why this tab runs no model.
    pub no_webgpu: RwSignal<Option<String>>,
    /// What is being opened, or could not be.
    pub opening: RwSignal<Option<Opening>>,
    /// What was opened last, to be opened again after the worker died.
    pub last_opened: RwSignal<Option<(String, Command)>>,
    /// What answers.
    pub backend: RwSignal<Option<Backend>>,
    /// Things to know.
    pub notices: RwSignal<Vec<String>>,
    /// The device failed.
    pub trouble: RwSignal<Option<DeviceTrouble>>,
    /// The worker died of this.
    pub died: RwSignal<Option<String>>,
    /// Whether models and servers are shown although something answers.
    pub panel: RwSignal<bool>,
    /// Whether the keys are shown.
    pub keys: RwSignal<bool>,
    /// Which half a narrow window shows.
    pub tab: RwSignal<Tab>,
    /// What a screen reader says next, and what the status line shows.
    pub status: RwSignal<String>,
    /// The lane that an answer's button points at.
    pub lane: RwSignal<Option<String>>,
    /// The conversation.
    pub turns: RwSignal<Vec<Turn>>,
    /// Answers that have not ended.
    pub running: RwSignal<usize>,
    /// How to answer.
    pub sampling: RwSignal<SamplingForm>,
    /// The system message.
    pub system: RwSignal<String>,
    /// Send text as it is, without the chat template.
    pub raw: RwSignal<bool>,
    /// Room for the engine.
    pub engine: RwSignal<EngineForm>,
    pub(super) by_ask: StoredValue<HashMap<AskId, Answer>>,
    pub(super) by_id: StoredValue<HashMap<String, AskId>>,
    pub(super) pending: StoredValue<Vec<(AskId, String, u32)>>,
    pub(super) frame_asked: StoredValue<bool>,
    pub(super) counter: StoredValue<u64>,
}

impl Page {
    /// A page that has heard nothing yet. To be called where its signals may live as long as the page.
    pub fn new(query: Query, is_report: bool) -> Self {
        Self {
            is_report,
            link: StoredValue::new_local(None),
            files: StoredValue::new_local(Vec::new()),
            session: RwSignal::default(),
            blames: RwSignal::default(),
            diagnosis: RwSignal::default(),
            rendered: RwSignal::default(),
            catalogue: RwSignal::default(),
            hello: RwSignal::new(false),
            no_webgpu: RwSignal::new(None),
            opening: RwSignal::new(None),
            last_opened: RwSignal::new(None),
            backend: RwSignal::new(None),
            notices: RwSignal::new(query.refused.clone()),
            trouble: RwSignal::new(None),
            died: RwSignal::new(None),
            panel: RwSignal::new(false),
            keys: RwSignal::new(false),
            tab: RwSignal::new(Tab::Chat),
            status: RwSignal::default(),
            lane: RwSignal::new(None),
            turns: RwSignal::default(),
            running: RwSignal::new(0),
            sampling: RwSignal::default(),
            system: RwSignal::default(),
            raw: RwSignal::new(false),
            engine: RwSignal::new(query.engine.clone()),
            query: StoredValue::new(query),
            by_ask: StoredValue::new(HashMap::new()),
            by_id: StoredValue::new(HashMap::new()),
            pending: StoredValue::new(Vec::new()),
            frame_asked: StoredValue::new(false),
            counter: StoredValue::new(0),
        }
    }

    /// Starts a worker and greets it.
    pub fn start_worker(self) {
        self.hello.set(false);
        self.died.set(None);
        match Link::start(move |event| self.hear(event), move |why| self.worker_died(&why)) {
            Ok(link) => {
                self.link.set_value(Some(link));
                self.send(&Command::Hello {
                    origin_unix_ms: performance().0,
                    sent_at: now(),
                    page_url: files::page_url(),
                    hub: self.query.with_value(|query| query.hub.clone()),
                });
                if !self.is_report {
                    self.send(&Command::ListModels);
                }
            }
            Err(why) => self.worker_died(&why),
        }
    }

    /// Sends a command.
    pub fn send(self, command: &Command) {
        self.link.with_value(|link| match link {
            Some(link) => link.send(command),
            None => web_sys::console::error_1(&"firstlight: there is no worker".into()),
        });
    }

    pub(super) fn send_with_files(self, command: &Command) {
        self.files.with_value(|files| {
            self.link.with_value(|link| {
                if let Some(link) = link {
                    link.send_with(command, files);
                }
            });
        });
    }

    /// Whether there is something to ask, or to read again; tracked.
    pub fn has_chat(self) -> bool {
        self.backend.with(Option::is_some) || self.turns.with(|turns| !turns.is_empty())
    }

    /// Whether a recording is played, which answers nothing; tracked.
    pub fn replays(self) -> bool {
        self.backend.with(|backend| backend.as_ref().is_some_and(|b| b.kind == BackendKind::Replay))
    }

    /// The same, untracked.
    pub fn replays_untracked(self) -> bool {
        untrack(|| self.replays())
    }

    /// Says something in the status line, and to screen readers.
    pub fn say(self, sentence: impl Into<String>) {
        self.status.set(sentence.into());
    }

    /// Shows something that needs no answer.
    pub fn notice(self, sentence: String) {
        self.notices.update(|notices| {
            notices.retain(|other| *other != sentence);
            notices.push(sentence);
            let over = notices.len().saturating_sub(NOTICES);
            notices.drain(..over);
        });
    }

    fn worker_died(self, why: &str) {
        self.link.with_value(|link| link.iter().for_each(Link::stop));
        self.link.set_value(None);
        self.flush();
        let detail = format!("the engine's worker ended: {why}");
        self.end_all(firstlight_engine::request::FinishReason::Failed, &detail);
        self.opening.set(None);
        self.trouble.set(None);
        self.backend.set(None);
        self.died.set(Some(why.to_owned()));
        self.say("The engine's worker has ended.");
    }

    /// Takes what the worker says.
    pub fn hear(self, event: Event) {
        match &event {
            Event::Hello { sent_at, heard_at, no_webgpu } => {
                if let Some(nanos) = handshake::correction(*sent_at, *heard_at, now()) {
                    self.send(&Command::AdjustClock { nanos });
                }
                self.no_webgpu.set(no_webgpu.clone().filter(|_| !self.is_report));
                self.hello.set(true);
            }
            Event::Models { beside, stored, storage } => {
                self.catalogue.set(Catalogue {
                    beside: beside.clone(),
                    stored: stored.clone(),
                    storage: *storage,
                    known: true,
                });
            }
            Event::Progress(progress) => self.opening_progress(progress),
            Event::Notice { sentence } => self.notice(sentence.clone()),
            Event::Ready(backend) => self.ready(backend),
            Event::OpenFailed { sentence } => self.opening_failed(sentence),
            Event::DeviceFailed { sentence, reopening } => {
                let trouble = DeviceTrouble { sentence: sentence.clone(), reopening: *reopening };
                self.trouble.set(Some(trouble));
            }
            Event::Reopened { adapter } => {
                self.trouble.set(None);
                let named = |backend: &mut Option<Backend>| {
                    backend.iter_mut().for_each(|backend| backend.adapter.clone_from(adapter));
                };
                self.backend.update(named);
                self.say("The graphics device is open again.");
            }
            Event::Accepted { ask, id, rendered, .. } => self.accepted(*ask, id, rendered.as_deref()),
            Event::Text { ask, text, tokens, .. } => self.text(*ask, text, *tokens),
            Event::Finished { ask, reason, detail } => self.finished(*ask, *reason, detail.as_deref()),
            Event::Diagnosis(told) => self.diagnosis.set(Some(told.clone())),
            Event::Blame { id, token_idx, sentence } => {
                self.blames.update(|blames| blames.keep(&gap_name(id, *token_idx), sentence));
            }
            Event::Exported { kind: ExportKind::Html, file, json } => self.keep_report(file, json),
            Event::Exported { file, json, .. } => files::download(file, json, "application/json"),
            Event::Live(live) => self.places(&live.timelines),
            Event::Sealed { timeline } => self.sealed(timeline),
            Event::Report { .. } | Event::Stack { .. } => {}
        }
        if matches!(
            event,
            Event::Ready(_)
                | Event::Live(_)
                | Event::Sealed { .. }
                | Event::Report { .. }
                | Event::Stack { .. }
        ) {
            self.session.update(|session| session.apply(&event));
        }
    }

    fn keep_report(self, file: &str, figures: &str) {
        let (file, figures) = (file.to_owned(), figures.to_owned());
        leptos::task::spawn_local(async move {
            if let Err(sentence) = files::download_report(&file, &figures).await {
                self.notice(sentence);
            }
        });
    }

    fn ready(self, backend: &Backend) {
        self.trouble.set(None);
        self.diagnosis.set(None);
        let asked_for = self.opening_ready();
        if backend.kind == BackendKind::Tab {
            self.send(&Command::ListModels);
        }
        self.say(match &backend.bench {
            Some(bench) => bench.runs.get(bench.shown).cloned().unwrap_or_default(),
            None => format!("{} is ready.", backend.model.name),
        });
        self.backend.set(Some(backend.clone()));
        if asked_for {
            self.panel.set(false);
            // The composer is there after this turn of the event loop.
            request_animation_frame(move || files::focus("composer"));
        }
    }

    pub(super) fn remember_rendered(self, id: &str, rendered: &str) {
        self.rendered.update(|prompts| prompts.keep(id, rendered));
    }
}

/// The page that this component belongs to.
pub fn page() -> Page {
    expect_context::<Page>()
}

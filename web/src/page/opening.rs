//! Opening a model, a server or a recording: what was asked for, how far it is, and how it went.
//!
//! It shows nothing. Invariant: at most one thing is being opened; asking for another replaces it.

use std::time::Duration;

use leptos::prelude::*;
use web_sys::File;

use super::state::Page;
use crate::protocol::{BesideModel, Command, ModelChoice, Progress, Stage, StoredModel};

/// What is being opened.
#[derive(Clone, Debug, PartialEq)]
pub struct Opening {
    /// In words.
    pub what: String,
    /// What asked for it: sent again by "try again".
    pub command: Command,
    /// How far it is.
    pub progress: Option<Progress>,
    /// The stages that have begun, in their order.
    pub seen: Vec<Stage>,
    /// Why it failed.
    pub failed: Option<String>,
    /// Whether it was asked to stop.
    pub stopping: bool,
}

impl Opening {
    /// Whether it still goes on.
    pub fn runs(&self) -> bool {
        self.failed.is_none()
    }
}

impl Page {
    /// Opens what the page's address asks for, or the server that the page came from.
    pub fn open_at_start(self, own_server: Option<String>) {
        let query = self.query.get_value();
        match (query.replay, query.server, query.model, own_server) {
            (Some(url), ..) => self.open(format!("the recording {url}"), Command::Replay { url }),
            (_, Some(url), ..) => self.connect(url, None),
            (_, _, Some(file), _) => self.open_model(file.clone(), ModelChoice::Beside { file }),
            (.., Some(url)) => self.connect(url, None),
            _ => {}
        }
    }

    /// Opens the figures that this document has in it.
    pub fn open_figures(self, figures: File) {
        self.files.set_value(vec![figures]);
        let what = "this report".to_owned();
        self.open(what.clone(), Command::Replay { url: what });
    }

    /// Why this report shows nothing; tracked.
    pub fn unreadable(self) -> Option<String> {
        self.opening.with(|opening| opening.as_ref().filter(|_| self.is_report)?.failed.clone())
    }

    /// Opens a model beside the page.
    pub fn open_beside(self, model: &BesideModel) {
        self.open_model(model.name.clone(), ModelChoice::Beside { file: model.file.clone() });
    }

    /// Opens a stored model.
    pub fn open_stored(self, model: &StoredModel) {
        self.open_model(model.name.clone(), ModelChoice::Stored { key: model.key.clone() });
    }

    /// Opens files that were dropped or chosen.
    pub fn open_files(self, what: String, files: Vec<File>) {
        self.files.set_value(files);
        self.open_model(what, ModelChoice::Files);
    }

    /// Opens a model; engine settings that cannot be read are told instead.
    pub fn open_model(self, what: String, model: ModelChoice) {
        match self.engine.with_untracked(|form| form.read()) {
            Ok(settings) => self.open(what, Command::Open { model, settings }),
            Err(error) => self.notice(format!("Engine settings: {error}")),
        }
    }

    /// Connects to a server.
    pub fn connect(self, url: String, api_key: Option<String>) {
        self.open(format!("the server {url}"), Command::Connect { url, api_key });
    }

    /// Opens again what is there, or was.
    pub fn open_again(self, what: String, command: Command) {
        self.open(what, command);
    }

    fn open(self, what: String, command: Command) {
        self.say(format!("Opening {what}."));
        self.opening.set(Some(Opening {
            what,
            command: command.clone(),
            progress: None,
            seen: Vec::new(),
            failed: None,
            stopping: false,
        }));
        match &command {
            Command::Open { model: ModelChoice::Files, .. } => self.send_with_files(&command),
            Command::Replay { .. } if self.is_report => self.send_with_files(&command),
            _ => self.send(&command),
        }
    }

    /// Whether something is being opened; tracked.
    pub fn is_opening(self) -> bool {
        self.opening.with(|opening| opening.as_ref().is_some_and(Opening::runs))
    }

    /// Whether no model can be opened in this tab now; tracked.
    pub fn cannot_open(self) -> bool {
        self.no_webgpu.with(Option::is_some) || self.is_opening()
    }

    /// Stops it. The worker says when it has; one that says nothing for three seconds is taken to have.
    pub fn stop_opening(self) {
        self.opening.update(|opening| opening.iter_mut().for_each(|opening| opening.stopping = true));
        self.send(&Command::StopOpening);
        set_timeout(move || self.opening_stopped(), Duration::from_secs(3));
    }

    /// Takes the failure off the page.
    pub fn dismiss_opening(self) {
        self.opening.set(None);
    }

    fn opening_stopped(self) {
        if self.opening.with_untracked(|opening| opening.as_ref().is_some_and(|opening| opening.stopping)) {
            self.opening.set(None);
            self.say("Stopped. What was downloaded stays here, to be resumed.");
        }
    }

    pub(super) fn opening_progress(self, progress: &Progress) {
        self.opening.update(|opening| {
            let Some(opening) = opening.as_mut().filter(|opening| opening.runs()) else { return };
            if !opening.seen.contains(&progress.stage) {
                opening.seen.push(progress.stage);
            }
            opening.progress = Some(progress.clone());
        });
    }

    pub(super) fn opening_failed(self, sentence: &str) {
        let stopping = self.opening.with_untracked(|o| o.as_ref().is_some_and(|o| o.stopping));
        if stopping {
            return self.opening_stopped();
        }
        self.say(sentence);
        let shown = self.opening.try_update(|opening| match opening {
            Some(opening) => {
                opening.failed = Some(sentence.to_owned());
                true
            }
            None => false,
        });
        if shown != Some(true) {
            self.notice(sentence.to_owned());
        }
    }

    /// Whether it was this page's user who asked for what is ready now.
    pub(super) fn opening_ready(self) -> bool {
        let done = self.opening.try_update(Option::take).flatten();
        let asked_for = done.is_some();
        if let Some(done) = done {
            self.last_opened.set(Some((done.what, done.command)));
        }
        asked_for
    }
}

//! The third backend: a recording, played with its own timing, or what a bench came to, shown a run at a time. See
//! [`recording`] and [`bench`](crate::view::bench) for their formats.
//!
//! It answers no prompts: those in it are its own. Invariant: after [`ReplayBackend::close`] it says nothing more.

use std::cell::RefCell;
use std::rc::Rc;

use firstlight_engine::report::ReportContext;
use firstlight_engine::request::FinishReason;
use wasm_bindgen_futures::spawn_local;
use web_sys::File;

use super::blob::BlobSource;
use super::fetch::{Abort, Call, FetchError, Why, send, sleep};
use super::tell;
use crate::browser::{nanos, performance, words};
use crate::protocol::{Ask, Event, ExportKind};
use crate::view::bench::BenchResult;
use crate::view::history::History;
use crate::view::recording::{self, MAX_RECORDING, Recorded};

/// A recording. See the module.
pub struct ReplayBackend {
    history: Rc<RefCell<History>>,
    recorded: RefCell<Vec<Recorded>>,
    bench: Option<BenchResult>,
    abort: Abort,
}

impl ReplayBackend {
    /// Reads a recording: a file, or what is fetched from `url`, which may be relative to the page's.
    ///
    /// # Errors
    /// A sentence: it cannot be had, or is none.
    pub async fn open(url: &str, file: Option<File>, page_url: &str) -> Result<Self, String> {
        let abort = Abort::new().map_err(|error| format!("{url} {}.", error.predicate()))?;
        let (url, bytes) = match file {
            Some(file) => {
                let source = BlobSource { name: url.to_owned(), blob: file.into() };
                let bytes = source.whole(MAX_RECORDING as u64).await.map_err(|error| error.to_string())?;
                (url.to_owned(), bytes)
            }
            None => fetched(url, page_url, &abort).await?,
        };
        // A recording is a list, a bench's result an object.
        let bench = match bytes.trim_ascii_start().first() {
            Some(b'{') => Some(BenchResult::read(&url, &bytes)?),
            _ => None,
        };
        let recorded = match &bench {
            Some(bench) => at_once(bench.events(bench.first())),
            None => recording::read(&url, &bytes)?,
        };
        let history = Rc::new(RefCell::new(History::new(ReportContext::default())));
        Ok(Self { history, recorded: RefCell::new(recorded), bench, abort })
    }

    /// Answers [`crate::protocol::Command::ShowRun`].
    pub fn show_run(&self, run: usize) {
        let events = self.bench.iter().flat_map(|bench| bench.events(run)).collect();
        self.recorded.replace(at_once(events));
        self.start();
    }

    /// Plays it, once.
    pub fn start(&self) {
        let (history, abort) = (Rc::clone(&self.history), self.abort.clone());
        spawn_local(play(self.recorded.take(), history, abort));
    }

    /// Refuses them: nobody is here to answer.
    pub fn submit(&self, asks: Vec<Ask>) {
        for ask in asks {
            let sentence = "This is a recording; open a model or connect to a server to get answers.";
            let (reason, detail) = (FinishReason::Rejected, Some(sentence.to_owned()));
            tell(&Event::Finished { ask: ask.id, reason, detail });
        }
    }

    /// Answers [`crate::protocol::Command::Blame`].
    pub fn blame(&self, id: &str, token_idx: usize) {
        tell(&self.history.borrow().blame(id, token_idx));
    }

    /// Answers [`crate::protocol::Command::Diagnose`].
    pub fn diagnose(&self, halves: bool, worse_answers: bool) -> Event {
        self.history.borrow().diagnose(halves, worse_answers)
    }

    /// Answers [`crate::protocol::Command::Export`].
    pub fn export(&self, kind: ExportKind) {
        let history = self.history.borrow();
        tell(&history.export(kind, &history.report(None)));
    }

    /// Stops playing.
    pub fn close(self) {
        self.abort.end(Why::Unwanted);
    }
}

/// The whole address, and what lies there.
async fn fetched(url: &str, page_url: &str, abort: &Abort) -> Result<(String, Vec<u8>), String> {
    let whole = web_sys::Url::new_with_base(url, page_url)
        .map_err(|error| format!("{url:?} is no address of a recording: {}.", words(&error)))?;
    let url = whole.href();
    let lost = |error: FetchError| format!("{url} {}.", error.predicate());
    let answer = send(&Call { url: &url, api_key: None, body: None }, abort).await.map_err(lost)?;
    let status = answer.status();
    if status != 200 {
        return Err(format!("There is no recording at {url}: the answer is {status}."));
    }
    let bytes = answer.whole(MAX_RECORDING).await.map_err(lost)?;
    Ok((url, bytes))
}

fn at_once(events: Vec<Event>) -> Vec<Recorded> {
    events.into_iter().map(|event| Recorded { at: 0, event }).collect()
}

async fn play(recorded: Vec<Recorded>, history: Rc<RefCell<History>>, abort: Abort) {
    let begun = performance().1;
    for Recorded { at, event } in recorded {
        let ahead = at.saturating_sub(nanos(performance().1 - begun));
        // A timer sleeps whole milliseconds, and at most as long as 31 bits have them.
        let millis = i32::try_from(ahead / 1_000_000).unwrap_or(i32::MAX);
        if millis > 0 {
            sleep(millis).await;
        }
        if abort.is_ended() {
            return;
        }
        let instead = recording::keep(&mut history.borrow_mut(), &event);
        tell(instead.as_ref().unwrap_or(&event));
    }
}

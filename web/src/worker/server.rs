//! The second backend: a server, which answers the prompts and tells of everything that goes on there.
//!
//! The page sees of it what it sees of the engine in the tab, in the same types. Invariant: after [`ServerBackend::close`]
//! it says nothing more, and every prompt that was its has had its one end.

mod answers;
mod follow;
mod peer;

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use firstlight_engine::budget::Stack;
use firstlight_engine::request::FinishReason;
use wasm_bindgen_futures::spawn_local;

use self::answers::Asks;
use self::peer::{Greeting, Peer, Trouble};
use super::fetch::{Abort, FetchError, Why};
use super::tell;
use crate::protocol::{Ask, AskId, Backend, Event, ExportKind};
use crate::view::address::server_address;
use crate::view::feed::Feed;

/// A server that answered. See the module.
pub struct ServerBackend {
    shared: Rc<Shared>,
}

/// What the tasks of one connection work on.
struct Shared {
    peer: Peer,
    /// What prompts call its model.
    model: RefCell<String>,
    /// Unix seconds of its start.
    started: Cell<u64>,
    backend: RefCell<Backend>,
    feed: RefCell<Feed>,
    /// What steps cost there, where it has measured them.
    stack: Option<Stack>,
    asks: RefCell<Asks>,
    /// Of everything but the prompts.
    follow: Abort,
    is_connected: Cell<bool>,
    /// Counts the servers that were here under this address.
    epoch: Cell<u32>,
    /// Something happened: it is worth a look at what runs.
    nudged: Cell<bool>,
    /// Something ended since the last report.
    report_due: Cell<bool>,
    has_complained: Cell<bool>,
}

impl ServerBackend {
    /// Asks who is there; nothing is told and nothing goes on until [`Self::start`].
    ///
    /// # Errors
    /// A sentence: the address is none, a page of `page_url` cannot reach it, nobody answers or somebody else does, the
    /// server is not ready, or the key is not its.
    pub async fn connect(url: &str, api_key: Option<String>, page_url: &str) -> Result<Self, String> {
        let address = server_address(url, page_url)?;
        let api_key = api_key.map(|key| key.trim().to_owned()).filter(|key| !key.is_empty());
        if api_key.as_deref().is_some_and(|key| !key.bytes().all(|byte| byte.is_ascii_graphic())) {
            return Err("The API key has characters that no header carries; copy it again.".to_owned());
        }
        let peer = Peer { address, api_key, page_url: page_url.to_owned() };
        let follow = Abort::new().map_err(|error| peer.sentence(&error.into()))?;
        let greeting = peer.greet(&follow).await.map_err(|trouble| peer.sentence(&trouble))?;
        let Greeting { model, started, backend, report, stack } = greeting;
        Ok(Self {
            shared: Rc::new(Shared {
                peer,
                model: RefCell::new(model),
                started: Cell::new(started),
                backend: RefCell::new(backend),
                feed: RefCell::new(Feed::new(report.context)),
                stack,
                asks: RefCell::default(),
                follow,
                is_connected: Cell::new(false),
                epoch: Cell::new(0),
                nudged: Cell::new(true),
                report_due: Cell::new(true),
                has_complained: Cell::new(false),
            }),
        })
    }

    /// Tells [`Event::Ready`], and from now on what goes on there.
    pub fn start(&self) {
        tell_ready(self.shared.backend.borrow().clone(), self.shared.stack.clone());
        spawn_local(follow::listen(Rc::clone(&self.shared)));
        spawn_local(follow::watch(Rc::clone(&self.shared)));
    }

    /// Sends prompts that arrived at one instant.
    pub fn submit(&self, asks: Vec<Ask>) {
        self.shared.submit(asks);
    }

    /// Ends one, `Cancelled`; of one that has ended, or was never here, it is no more than a word.
    pub fn cancel(&self, ask: AskId) {
        self.shared.finish(ask, (FinishReason::Cancelled, None));
    }

    /// Answers [`crate::protocol::Command::Blame`].
    pub fn blame(&self, id: &str, token_idx: usize) {
        tell(&self.shared.feed.borrow().blame(id, token_idx));
    }

    /// Answers [`crate::protocol::Command::Diagnose`].
    pub fn diagnose(&self, halves: bool, worse_answers: bool) -> Event {
        self.shared.feed.borrow().diagnose(halves, worse_answers)
    }

    /// Answers [`crate::protocol::Command::Export`].
    pub fn export(&self, kind: ExportKind) {
        tell(&self.shared.feed.borrow().export(kind));
    }

    /// Ends every prompt `Cancelled` and says nothing more.
    pub fn close(self) {
        self.shared.follow.end(Why::Unwanted);
        self.shared.finish_all("This page turned to something else.");
    }
}

fn tell_ready(backend: Backend, stack: Option<Stack>) {
    tell(&Event::Ready(backend));
    if let Some(stack) = stack.map(Box::new) {
        tell(&Event::Stack { stack });
    }
}

impl Shared {
    fn is_closed(&self) -> bool {
        self.follow.is_ended()
    }

    /// Another server answers under this address.
    fn begin_anew(&self, greeting: Greeting) {
        let Greeting { model, started, backend, report, stack } = greeting;
        self.epoch.set(self.epoch.get() + 1);
        *self.model.borrow_mut() = model;
        self.started.set(started);
        *self.feed.borrow_mut() = Feed::new(report.context);
        *self.backend.borrow_mut() = backend.clone();
        tell_ready(backend, stack);
    }

    /// Tells what went wrong with a look at the server: once, for it would be told again with every look. That nobody
    /// answers is told by whoever listens to the stream.
    fn complain(&self, trouble: &Trouble) {
        let is_known = matches!(trouble, Trouble::Fetch(FetchError::Unreachable(_) | FetchError::Broken(_)));
        if !is_known && !self.is_closed() && !self.has_complained.replace(true) {
            tell(&Event::Notice { sentence: self.peer.sentence(trouble) });
        }
    }
}

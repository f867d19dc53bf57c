//! Where commands are obeyed: the one backend that answers now, and whatever is being opened.
//!
//! A model is opened in a task of its own, so that stop, list and the running backend are heard meanwhile. Invariant: at most
//! one backend answers, and one that is replaced has ended all its asks before.

use std::cell::RefCell;
use std::future::Future;
use std::rc::Rc;

use firstlight_engine::request::FinishReason;
use web_sys::{AbortController, File, js_sys};

use super::catalog::{self, HUB};
use super::clock::PageClock;
use super::incoming::STOPPED;
use super::obtain::{Obtained, obtain};
use super::replay::ReplayBackend;
use super::server::ServerBackend;
use super::store::{Store, figures};
use super::tab::{self, Tab};
use super::{notice, tell};
use crate::protocol::{Ask, AskId, Command, EngineSettings, Event, ExportKind, ModelChoice};

/// What answers.
#[derive(Default)]
enum Backend {
    #[default]
    None,
    Tab(Tab),
    Server(ServerBackend),
    Replay(ReplayBackend),
}

/// See the module.
pub struct Desk {
    shared: Rc<Shared>,
    /// What is being opened; stops it.
    opening: Option<AbortController>,
}

struct Shared {
    clock: PageClock,
    page_url: String,
    hub: String,
    backend: RefCell<Backend>,
}

/// Why this browser cannot run a model, and what to do; `None` where it can.
pub fn no_webgpu() -> Option<String> {
    let navigator = js_sys::Reflect::get(&js_sys::global(), &"navigator".into()).ok()?;
    let gpu = js_sys::Reflect::get(&navigator, &"gpu".into()).ok();
    match gpu.is_some_and(|gpu| !gpu.is_undefined() && !gpu.is_null()) {
        true => None,
        false => Some(
            "This browser has no WebGPU here. Use a current Chrome, Edge, Safari or Firefox, over https or on localhost; or connect to a server (firstlight serve)."
                .into(),
        ),
    }
}

impl Desk {
    /// Nothing answers yet.
    pub fn new(clock: PageClock, page_url: String, hub: Option<String>) -> Self {
        let hub = hub.unwrap_or_else(|| HUB.to_owned());
        Self { shared: Rc::new(Shared { clock, page_url, hub, backend: RefCell::default() }), opening: None }
    }

    /// Obeys.
    pub async fn take(&mut self, command: Command, files: Vec<File>) {
        match command {
            Command::Hello { .. } => {}
            Command::AdjustClock { nanos } => self.shared.clock.adjust(nanos),
            Command::ListModels => self.shared.list_models().await,
            Command::Open { model, settings } => self.open(model, settings, files),
            Command::StopOpening => self.stop_opening(),
            Command::Delete { key } => self.shared.delete(&key).await,
            Command::Connect { url, api_key } => self.begin(move |shared, controller| async move {
                shared.connect(&url, api_key, &controller).await
            }),
            Command::Replay { url } => self.begin(move |shared, controller| async move {
                shared.replay(&url, files.into_iter().next(), &controller).await
            }),
            Command::ShowRun { run } => self.shared.show_run(run),
            Command::Submit { asks } => self.shared.submit(asks),
            Command::Reopen => self.shared.reopen(),
            Command::Cancel { ask } => self.shared.cancel(ask),
            Command::Blame { id, token_idx } => self.shared.blame(&id, token_idx),
            Command::Diagnose { halves, worse_answers } => self.shared.diagnose(halves, worse_answers),
            Command::Export { kind } => self.shared.export(kind),
        }
    }

    fn stop_opening(&mut self) {
        self.opening.take().into_iter().for_each(|opening| opening.abort());
    }

    fn open(&mut self, model: ModelChoice, settings: EngineSettings, files: Vec<File>) {
        self.begin(move |shared, controller| async move {
            let opened = shared.open(model, settings, files, &controller).await;
            shared.list_models().await;
            opened
        });
    }

    /// Does something that takes long in a task of its own, instead of whatever was begun before.
    fn begin<F: Future<Output = Result<(), String>> + 'static>(
        &mut self,
        act: impl FnOnce(Rc<Shared>, AbortController) -> F + 'static,
    ) {
        self.stop_opening();
        let Ok(controller) = AbortController::new() else { return };
        self.opening = Some(controller.clone());
        let shared = Rc::clone(&self.shared);
        wasm_bindgen_futures::spawn_local(async move {
            if let Err(sentence) = act(shared, controller.clone()).await {
                let stopped = controller.signal().aborted() || sentence == STOPPED;
                let sentence = if stopped { "Stopped. What came so far is kept.".into() } else { sentence };
                tell(&Event::OpenFailed { sentence });
            }
        });
    }
}

impl Shared {
    fn submit(&self, asks: Vec<Ask>) {
        match &*self.backend.borrow() {
            Backend::Tab(tab) => {
                asks.iter().for_each(|ask| self.clock.witness(ask.received));
                tab.submit(asks);
            }
            Backend::Server(server) => server.submit(asks),
            Backend::Replay(replay) => replay.submit(asks),
            Backend::None => asks.iter().for_each(|ask| {
                let detail = Some("nothing answers here yet: load a model or connect to a server".into());
                tell(&Event::Finished { ask: ask.id, reason: FinishReason::Rejected, detail });
            }),
        }
    }

    fn cancel(&self, ask: AskId) {
        match &*self.backend.borrow() {
            Backend::Tab(tab) => tab.cancel(ask),
            Backend::Server(server) => server.cancel(ask),
            // A recording goes on as it went.
            Backend::Replay(_) | Backend::None => {}
        }
    }

    fn show_run(&self, run: usize) {
        if let Backend::Replay(replay) = &*self.backend.borrow() {
            replay.show_run(run);
        }
    }

    fn reopen(&self) {
        if let Backend::Tab(tab) = &*self.backend.borrow() {
            tab.reopen();
        }
    }

    fn blame(&self, id: &str, token_idx: usize) {
        match &*self.backend.borrow() {
            Backend::Tab(tab) => tell(&tab.blame(id, token_idx)),
            Backend::Server(server) => server.blame(id, token_idx),
            Backend::Replay(replay) => replay.blame(id, token_idx),
            Backend::None => {}
        }
    }

    fn diagnose(&self, halves: bool, worse_answers: bool) {
        match &*self.backend.borrow() {
            Backend::Tab(tab) => tell(&tab.diagnose(halves, worse_answers)),
            Backend::Server(server) => tell(&server.diagnose(halves, worse_answers)),
            Backend::Replay(replay) => tell(&replay.diagnose(halves, worse_answers)),
            Backend::None => notice("There is nothing to look at yet: no request has been answered here."),
        }
    }

    fn export(&self, kind: ExportKind) {
        match &*self.backend.borrow() {
            Backend::Tab(tab) => tell(&tab.export(kind)),
            Backend::Server(server) => server.export(kind),
            Backend::Replay(replay) => replay.export(kind),
            Backend::None => notice("There is nothing to keep yet: no request has been answered here."),
        }
    }

    async fn connect(
        &self,
        url: &str,
        api_key: Option<String>,
        controller: &AbortController,
    ) -> Result<(), String> {
        let server = ServerBackend::connect(url, api_key, &self.page_url).await?;
        if controller.signal().aborted() {
            server.close();
            return Err(STOPPED.into());
        }
        self.close_backend().await;
        server.start();
        self.backend.replace(Backend::Server(server));
        Ok(())
    }

    async fn replay(
        &self,
        url: &str,
        file: Option<File>,
        controller: &AbortController,
    ) -> Result<(), String> {
        let replay = ReplayBackend::open(url, file, &self.page_url).await?;
        if controller.signal().aborted() {
            replay.close();
            return Err(STOPPED.into());
        }
        self.close_backend().await;
        replay.start();
        self.backend.replace(Backend::Replay(replay));
        Ok(())
    }

    async fn open(
        &self,
        model: ModelChoice,
        settings: EngineSettings,
        files: Vec<File>,
        controller: &AbortController,
    ) -> Result<(), String> {
        if let Some(sentence) = no_webgpu() {
            return Err(sentence);
        }
        let stop = controller.signal();
        let store = match Store::open().await {
            Ok(store) => Some(store),
            Err(why) => {
                notice(&format!("The model will not be kept for the next visit: {why}."));
                None
            }
        };
        let stored = match (&model, &store) {
            (ModelChoice::Stored { key }, Some(store)) => store.list_of(key).await.map(|list| (key, list)),
            _ => None,
        };
        let wanted = match stored {
            Some((key, list)) => catalog::of_stored(key, list),
            None => catalog::wanted(&model, &self.page_url, &self.hub, files, &stop).await?,
        };
        let obtained: Obtained = obtain(wanted, store.as_ref(), &stop).await?;
        if stop.aborted() {
            return Err(STOPPED.into());
        }
        // Whoever answered until now gives its memory back first: a device has not always room for two.
        self.close_backend().await;
        let opened = tab::open(obtained, &settings, self.clock.clone(), store).await?;
        if stop.aborted() {
            return Err(STOPPED.into());
        }
        let ready = Event::Ready(opened.backend.clone());
        self.backend.replace(Backend::Tab(Tab::start(opened)));
        tell(&ready);
        Ok(())
    }

    async fn close_backend(&self) {
        let backend = self.backend.replace(Backend::None);
        match backend {
            Backend::Tab(tab) => tab.close().await,
            Backend::Server(server) => server.close(),
            Backend::Replay(replay) => replay.close(),
            Backend::None => {}
        }
    }

    async fn delete(&self, key: &str) {
        if let Ok(store) = Store::open().await
            && let Err(why) = store.delete(key).await
        {
            notice(&format!(
                "The model cannot be deleted while a tab uses it ({why}); close the other tabs first."
            ));
        }
        self.list_models().await;
    }

    async fn list_models(&self) {
        let Ok(controller) = AbortController::new() else { return };
        let beside = match catalog::beside(&self.page_url, &controller.signal()).await {
            Ok(beside) => beside,
            Err(sentence) => {
                notice(&sentence);
                Vec::new()
            }
        };
        let stored = match Store::open().await {
            Ok(store) => store.models().await,
            Err(_) => Vec::new(),
        };
        tell(&Event::Models { beside, stored, storage: figures().await });
    }
}

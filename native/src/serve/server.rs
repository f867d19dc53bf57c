//! What all requests share: the engine once it is there, the book, the pool, the keys.
//!
//! Invariant: nothing in here waits.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use super::body::Bodies;
use super::errors::ApiError;
use super::gateway::Gateway;
use super::ledger::Ledger;
use super::life::Life;
use super::page::Page;
use super::policy::PolicyFile;
use super::preparation::PreparationPool;
use super::telemetry::Telemetry;
use crate::cli::{EngineArgs, ServeArgs};
use crate::driver::EngineHandle;
use crate::failure::Failure;
use crate::models::{self, ModelName};

/// Threads that render templates and tokenise.
const PREPARATION_WORKERS: usize = 2;

/// See the module.
pub struct Server {
    life: Life,
    ledger: Arc<Ledger>,
    telemetry: Arc<Telemetry>,
    preparation: PreparationPool,
    gateway: Gateway,
    policy: PolicyFile,
    bodies: Bodies,
    page: Page,
    engine: OnceLock<EngineHandle>,
    /// As it was asked to call the model, or as the command line does.
    named: Option<String>,
    engine_args: EngineArgs,
    model_name: OnceLock<String>,
    /// When it started, in Unix seconds; what `/v1/models` calls the model's birth.
    started: u64,
}

impl Server {
    /// A server whose model is not there yet, and that tells `telemetry` what it does.
    ///
    /// # Errors
    /// The keys or the policy cannot be read, or the system gives no thread.
    pub fn new(args: &ServeArgs, telemetry: Telemetry) -> Result<Arc<Self>, Failure> {
        let telemetry = Arc::new(telemetry);
        let is_name = !matches!(models::parse_name(&args.engine.model), Ok(ModelName::Local(_)) | Err(_));
        let name = is_name.then(|| args.engine.model.clone());
        let unix = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        Ok(Arc::new(Self {
            life: Life::default(),
            ledger: Arc::new(Ledger::new(Arc::clone(&telemetry))),
            telemetry,
            preparation: PreparationPool::start(PREPARATION_WORKERS)?,
            gateway: Gateway::new(args)?,
            policy: PolicyFile::open(args.policy.clone())?,
            bodies: Bodies::new(args.max_body, Duration::from_secs(u64::from(args.stall_limit))),
            page: Page::built_in(),
            engine: OnceLock::new(),
            named: args.served_model_name.clone().or(name),
            engine_args: args.engine.clone(),
            model_name: OnceLock::new(),
            started: unix.map_or(0, |since| since.as_secs()),
        }))
    }

    /// The model is there and warm.
    pub fn ready(&self, engine: EngineHandle) {
        let name = self.named.clone().unwrap_or_else(|| engine.labels().model.name.clone());
        // Called once.
        let _ = self.model_name.set(name);
        self.telemetry.watch(engine.clone());
        let _ = self.engine.set(engine);
        self.life.ready();
    }

    /// The engine.
    ///
    /// # Errors
    /// 503 while the model is being loaded.
    pub fn engine(&self) -> Result<&EngineHandle, ApiError> {
        self.engine.get().ok_or_else(ApiError::loading)
    }

    /// What the model is called; empty while it is being loaded.
    pub fn model_name(&self) -> &str {
        self.model_name.get().map_or("", String::as_str)
    }

    /// Whether this name means the model: its served name, or its file's.
    pub fn serves(&self, name: &str) -> bool {
        let file = self.engine.get().is_some_and(|engine| engine.labels().model.name == name);
        name == self.model_name() || file
    }

    /// With which flags its engine was started.
    pub fn engine_args(&self) -> &EngineArgs {
        &self.engine_args
    }

    /// Unix seconds of the start.
    pub fn started(&self) -> u64 {
        self.started
    }

    /// Whether it takes requests.
    pub fn life(&self) -> &Life {
        &self.life
    }

    /// The book.
    pub fn ledger(&self) -> &Arc<Ledger> {
        &self.ledger
    }

    /// Who is told what it does.
    pub fn telemetry(&self) -> &Telemetry {
        &self.telemetry
    }

    /// The workers.
    pub fn preparation(&self) -> &PreparationPool {
        &self.preparation
    }

    /// Who may ask.
    pub fn gateway(&self) -> &Gateway {
        &self.gateway
    }

    /// What neither prompts nor answers may contain.
    pub(super) fn policy(&self) -> &PolicyFile {
        &self.policy
    }

    /// How bodies are read.
    pub fn bodies(&self) -> &Bodies {
        &self.bodies
    }

    /// What browsers are shown.
    pub(super) fn page(&self) -> &Page {
        &self.page
    }
}

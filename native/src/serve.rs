//! `firstlight serve`: answers over HTTP as OpenAI's API does, with a timeline for every request.
//!
//! The door is open before the model is loaded, and says 503 until then. Invariant: a request that was admitted is
//! answered, or told why not, before the server ends.

mod api;
mod body;
mod errors;
mod gateway;
pub mod ledger;
mod life;
mod listen;
pub mod metrics;
mod openapi;
mod page;
mod policy;
mod preparation;
mod relay;
mod rule_file;
mod server;
mod signals;
mod socket;
mod stream;
mod supervisor;
mod telemetry;
mod wire;

use std::net::TcpListener as StdListener;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::spawn_blocking;
use tokio::time::timeout;

use self::server::Server;
use self::signals::Signals;
use self::telemetry::{Telemetry, Whereabouts};
use crate::cache::process_environment;
use crate::cli::ServeArgs;
use crate::driver::{EngineHandle, EngineThread};
use crate::failure::Failure;
use crate::load::{self, Needs};
use crate::terminal::{note, warn};

/// HTTP needs few threads: what takes time runs elsewhere.
const MAX_THREADS: usize = 4;
/// How long the ends of cancelled answers may take to reach their clients.
const LAST_WORDS: Duration = Duration::from_secs(5);

/// Runs the command until a signal ends it.
///
/// # Errors
/// Wrong usage and an address that cannot be had before anything is loaded, then the model, then the adapter.
pub fn run(args: &ServeArgs) -> Result<(), Failure> {
    telemetry::logs::start(args.log_format, &args.log_level)?;
    let listener = listen::bind(args)?;
    let places = listen::connection_limit(args.max_connections)?;
    let port = listener.local_addr().map_or(args.port, |address| address.port());
    let here = Whereabouts { address: args.host.clone(), port };
    let server = Server::new(args, Telemetry::start(args, &process_environment, here)?)?;
    let router = api::router(Arc::clone(&server), &args.cors)?;
    let threads = std::thread::available_parallelism().map_or(MAX_THREADS, |n| n.get().min(MAX_THREADS));
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(threads)
        .thread_name("firstlight-http")
        .enable_all()
        .build()
        .map_err(|error| {
            Failure::failed(format!("the server's threads cannot be started: {error}; close other programs"))
        })?;
    let outcome = runtime.block_on(serve(args, listener, places, Arc::clone(&server), router));
    server.telemetry().shut_down();
    // What still runs is nobody's: a model that was being loaded, a list that was being written.
    runtime.shutdown_background();
    outcome
}

async fn serve(
    args: &ServeArgs,
    listener: StdListener,
    (max_connections, fewer): (u32, Option<String>),
    server: Arc<Server>,
    router: Router,
) -> Result<(), Failure> {
    let mut signals = Signals::install(Arc::clone(&server))?;
    let unusable =
        |error: std::io::Error| Failure::failed(format!("the address is lost: {error}; start again"));
    let listener = TcpListener::from_std(listener).map_err(unusable)?;
    let address = listener.local_addr().map_err(unusable)?;
    let (close, closing) = watch::channel(false);
    let limits = (max_connections, Duration::from_secs(u64::from(args.stall_limit)));
    let door = tokio::spawn(listen::listen(listener, router, limits, closing));
    note(&format!("listening on http://{address}; the model is being loaded"));
    fewer.iter().for_each(|sentence| warn(sentence));
    let (engine_args, max_waiting) = (args.engine.clone(), args.max_waiting);
    let loading = spawn_blocking(move || load::engine_thread_queued(&engine_args, Needs::Ids, max_waiting));
    let engine = tokio::select! {
        loaded = loading => loaded.map_err(|error| {
            Failure::failed(format!("the model could not be loaded: {error}; report this defect"))
        })??,
        () = signals.end() => return Ok(()),
    };
    if args.policy.is_some() && engine.handle().preparer().tokenizer().is_none() {
        return Err(Failure::usage(
            "--policy is about text and the model has no tokenizer; leave it out, or name another model",
        ));
    }
    server.ready(engine.handle());
    let status = format!("ready: {} on {}", server.model_name(), engine.handle().adapter());
    note(&status);
    supervisor::ready(&status);
    let outcome = end_of(&engine.handle(), signals.end()).await;
    // Without an engine there is nothing to wait for but last words.
    let grace = if outcome.is_ok() { args.grace } else { 0 };
    stop(grace, &server, engine).await;
    close.send_replace(true);
    let _ = door.await;
    outcome
}

/// Waits until the end is asked for.
///
/// # Errors
/// The engine has stopped for good before that: whoever watches over this process is to start it again.
async fn end_of(engine: &EngineHandle, asked: impl Future<Output = ()>) -> Result<(), Failure> {
    let engine = engine.clone();
    let closed = spawn_blocking(move || engine.wait_until_closed());
    tokio::select! {
        () = asked => Ok(()),
        reason = closed => Err(Failure::failed(match reason {
            Ok(reason) => reason.to_string(),
            Err(error) => format!("the engine is watched no more: {error}; report this defect"),
        })),
    }
}

/// Takes no more requests, gives those under way their grace, cancels the rest and waits until they have been told.
async fn stop(grace: u32, server: &Server, engine: EngineThread) {
    server.life().stop();
    let open = server.life().num_open();
    let status = format!("stopping: {open} requests are under way and have {grace} s to end");
    note(&status);
    supervisor::stopping(&status);
    let grace = Duration::from_secs(u64::from(grace));
    let _ = timeout(grace, server.life().idle()).await;
    let _ = spawn_blocking(move || engine.shut_down(Duration::ZERO)).await;
    let _ = timeout(LAST_WORDS, server.life().idle()).await;
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::driver::tests::{Order, Rebuild, Rig};
    use crate::failure::Exit;

    #[test]
    fn an_engine_that_has_stopped_for_good_ends_the_server_with_its_reason() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let rig = Rig { rebuild: Rebuild::Fails, ..Rig::default() }.start();
        assert_eq!(runtime.block_on(end_of(&rig.handle, async {})), Ok(()), "it was asked to end");
        rig.give(Order::Fail);
        let prompt = firstlight_engine::text::PromptInput::Ids(vec![1, 2, 3]);
        let ask = crate::ask::Ask::new(prompt, rig.params.clone(), "test", 0);
        ask.send(&rig.handle, Box::new(|_| true));
        let failure = runtime.block_on(end_of(&rig.handle, std::future::pending())).unwrap_err();
        assert_eq!(failure.exit, Exit::Failed);
        assert!(failure.sentence.contains("could not be opened again"), "{failure}");
    }
}

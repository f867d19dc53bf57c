//! What the server shows of itself: the page, health, report, timelines, steps, the trace.
//!
//! It only reads. Invariant: every list is bounded, and no fold over it runs where requests are answered.

use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::extract::rejection::PathRejection;
use axum::extract::{Path, State};
use axum::http::{HeaderMap, HeaderValue, Uri, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use serde::Serialize;
use serde_json::{Value, json};
use tokio::sync::broadcast::error::RecvError;
use tokio::sync::oneshot;

use firstlight_engine::budget::Stack;
use firstlight_engine::engine::STEPS_KEPT;
use firstlight_engine::report::diagnose::{Asked, Conditions, Diagnosis, Observed};
use firstlight_engine::report::{
    DEFAULT_WINDOW, Distribution, GaugeReadings, LatencyReport, ReportContext, ReportWindow, chrome_trace,
};
use firstlight_engine::timeline::{RequestTimeline, StepRing};

use super::super::errors::ApiError;
use super::super::life::Phase;
use super::super::metrics::Readings;
use super::super::relay::{event_stream, json_response};
use super::super::server::Server;
use super::super::stream::{KEEP_ALIVE, Piece, stream};
use crate::driver::{EngineHandle, no_steps};
use crate::terminal::lines_lost;

/// What a list has where it was not asked for a number.
const DEFAULT_LAST: usize = 32;

pub(super) fn routes() -> Router<Arc<Server>> {
    Router::new()
        .route("/", get(page))
        .route("/page/{file}", get(page_file))
        .route("/health", get(health))
        .route("/metrics", get(metrics))
        .route("/v1/costs", get(costs))
        .route("/v1/diagnose", get(diagnose))
        .route("/v1/report", get(report))
        .route("/v1/timelines", get(timelines))
        .route("/v1/timelines/stream", get(live))
        .route("/v1/timelines/running", get(running))
        .route("/v1/timelines/{id}", get(timeline))
        .route("/v1/steps", get(steps))
        .route("/v1/trace", get(trace))
}

/// `?last=N`: whole, at least 0; more than there can be is all.
fn last(uri: &Uri, most: usize) -> Result<usize, ApiError> {
    Ok(count(uri, "last", most)?.unwrap_or(DEFAULT_LAST.min(most)))
}

/// The last field of the query that is called so.
fn field<'u>(uri: &'u Uri, name: &str) -> Option<&'u str> {
    let fields = uri.query().unwrap_or_default().split('&');
    fields.filter_map(|field| field.strip_prefix(name)?.strip_prefix('=')).next_back()
}

/// `?name=N`: whole, at least 0, at most `most`; more is that.
fn count(uri: &Uri, name: &'static str, most: usize) -> Result<Option<usize>, ApiError> {
    let Some(text) = field(uri, name) else { return Ok(None) };
    let count = text.parse::<u64>().map_err(|_| {
        let shown: String = text.chars().take(40).collect();
        ApiError::parameter(name, format!("{name} is {shown:?}; it must be a whole number from 0 on"))
    })?;
    Ok(Some(usize::try_from(count).map_or(most, |count| count.min(most))))
}

async fn page(State(server): State<Arc<Server>>, headers: HeaderMap) -> Response {
    server.page().index(&headers)
}

async fn page_file(
    State(server): State<Arc<Server>>,
    name: Result<Path<String>, PathRejection>,
    headers: HeaderMap,
) -> Result<Response, ApiError> {
    let Path(name) = name.map_err(super::no_text)?;
    server.page().file(&name, &headers)
}

/// Prometheus' text format. While the model is being loaded everything is 0.
async fn metrics(State(server): State<Arc<Server>>) -> Result<Response, ApiError> {
    let page = off_the_loop(move || {
        let (engine, ledger) = (server.engine().ok(), server.ledger());
        let readings = Readings {
            model: server.model_name(),
            engine: engine.map(EngineHandle::counters).unwrap_or_default(),
            step_tokens: engine.map_or_else(no_steps, EngineHandle::step_tokens),
            statuses: ledger.statuses(),
            started: server.started(),
            log_lines_lost: lines_lost(),
            spans_dropped: server.telemetry().num_dropped(),
        };
        Ok(ledger.metrics().page(&readings))
    });
    let mut response = Response::new(Body::from(page.await?));
    let format = HeaderValue::from_static("text/plain; version=0.0.4; charset=utf-8");
    response.headers_mut().insert(header::CONTENT_TYPE, format);
    Ok(response)
}

async fn health(State(server): State<Arc<Server>>) -> Response {
    let unwell = |status: &str, error: ApiError| {
        let mut value = error.json();
        value["status"] = status.into();
        let mut response = error.into_response();
        *response.body_mut() = Body::from(value.to_string());
        response
    };
    let closed = server.engine().ok().and_then(EngineHandle::closed);
    match (server.life().phase(), closed) {
        (Phase::Loading, _) => {
            unwell("loading", ApiError::unavailable("loading", "the model is still being loaded"))
        }
        (Phase::Stopping, _) => {
            unwell("stopping", ApiError::unavailable("shutting_down", "the server is shutting down"))
        }
        (Phase::Ready, Some(reason)) => unwell("stopped", ApiError::from(&reason)),
        (Phase::Ready, None) => match off_the_loop(move || Ok(vitals(&server))).await {
            Ok(value) => json_response(&value),
            Err(error) => error.into_response(),
        },
    }
}

/// The figures of a healthy server; null where nothing was answered yet.
fn vitals(server: &Server) -> Value {
    let window = server.ledger().window();
    let answered = || window.iter().filter(|timeline| timeline.stamps().first_token.is_some());
    let engine_ttft: u64 = answered().filter_map(RequestTimeline::engine_ttft).sum();
    let waits = answered().filter_map(RequestTimeline::parts).filter_map(|parts| parts.engine);
    let waited: u64 = waits.map(|engine| engine.queue_wait.total()).sum();
    let ttft = Distribution::of(&mut answered().filter_map(RequestTimeline::ttft).collect::<Vec<_>>());
    json!({
        "status": "ok",
        "model": server.model_name(),
        "open": server.life().num_open(),
        "answered": answered().count(),
        "ttft_p50": ttft.map(|ttft| ttft.p50),
        "ttft_p99": ttft.map(|ttft| ttft.p99),
        "queue_share": (engine_ttft > 0).then(|| waited as f64 / engine_ttft as f64),
    })
}

async fn report(State(server): State<Arc<Server>>) -> Result<Response, ApiError> {
    let engine = server.engine()?.clone();
    off_the_loop(move || Ok(json_response(&folded(&engine, &server.ledger().window())))).await
}

/// What `/v1/costs` answers.
#[derive(Serialize)]
struct Costs {
    /// Absent where nobody has measured it.
    #[serde(skip_serializing_if = "Option::is_none")]
    stack: Option<Stack>,
}

/// What steps of this model cost on this adapter, as the doctor measured and kept it.
async fn costs(State(server): State<Arc<Server>>) -> Result<Response, ApiError> {
    server.engine()?;
    off_the_loop(move || match crate::budget::kept(server.engine_args()) {
        // That there are none is no failure: a page that asks shall not fill a browser's console.
        Ok(stack) => Ok(json_response(&Costs { stack })),
        Err(failure) => Err(ApiError::failed(failure.to_string())),
    })
    .await
}

/// `?last=N&baseline_last=M&worse_answers=true`: the youngest N requests, compared with the M before them.
async fn diagnose(State(server): State<Arc<Server>>, uri: Uri) -> Result<Response, ApiError> {
    let engine = server.engine()?.clone();
    let last = count(&uri, "last", DEFAULT_WINDOW)?.unwrap_or(DEFAULT_WINDOW);
    let before = count(&uri, "baseline_last", DEFAULT_WINDOW)?.unwrap_or(0);
    let worse_answers = match field(&uri, "worse_answers") {
        None | Some("false") => false,
        Some("true") => true,
        Some(other) => {
            let shown: String = other.chars().take(40).collect();
            let message = format!("worse_answers is {shown:?}; it must be true or false");
            return Err(ApiError::parameter("worse_answers", message));
        }
    };
    off_the_loop(move || {
        let window = server.ledger().window();
        let steps: StepRing = engine.steps(STEPS_KEPT).into_iter().collect();
        let conditions = Conditions::from(&context(&engine, &window));
        let (now, before) = (window.before_last(0, last), window.before_last(last, before));
        let now = Observed { window: &now, steps: &steps, conditions: &conditions };
        let earlier = (!before.is_empty()).then_some(Observed { window: &before, ..now });
        Ok(json_response(&Diagnosis::of(now, earlier, Asked { worse_answers, client: None })))
    })
    .await
}

fn context(engine: &EngineHandle, window: &ReportWindow) -> ReportContext {
    let limits = engine.limits();
    ReportContext {
        request_rate: window.request_rate(),
        concurrency: window.mean_concurrency(),
        prefix_cache: limits.prefix_cache,
        model: engine.labels().model.clone(),
        adapter: engine.adapter().to_owned(),
        slots: limits.max_num_seqs,
    }
}

fn folded(engine: &EngineHandle, window: &ReportWindow) -> LatencyReport {
    let steps: StepRing = engine.steps(STEPS_KEPT).into_iter().collect();
    let counters = engine.counters();
    let small = |number: usize| u32::try_from(number).unwrap_or(u32::MAX);
    let readings = GaugeReadings {
        blocks_used: small(counters.blocks_used()),
        blocks_total: small(counters.blocks_total),
        waiting: small(counters.waiting),
        running: small(counters.running),
        preemptions_total: counters.preemptions_total,
    };
    LatencyReport::fold(window, &steps, Some(readings), context(engine, window))
}

async fn timelines(State(server): State<Arc<Server>>, uri: Uri) -> Result<Response, ApiError> {
    let count = last(&uri, DEFAULT_WINDOW)?;
    off_the_loop(move || {
        let timelines = server.ledger().last(count);
        Ok(list(&timelines))
    })
    .await
}

fn list(timelines: &[Arc<RequestTimeline>]) -> Response {
    json_response(&json!({ "timelines": timelines.iter().map(AsRef::as_ref).collect::<Vec<_>>() }))
}

async fn timeline(
    State(server): State<Arc<Server>>,
    id: Result<Path<String>, PathRejection>,
) -> Result<Response, ApiError> {
    let Path(id) = id.map_err(super::no_text)?;
    let found = server.ledger().named(&id);
    if found.is_empty() {
        let id: String = id.chars().take(80).collect();
        return Err(ApiError::not_found(format!(
            "no finished request here is called {id:?}; /v1/timelines lists the last {DEFAULT_WINDOW} at most"
        )));
    }
    Ok(list(&found))
}

/// Who is with the engine, as it was between its last two steps: it is asked, and answers when the step that runs has ended.
async fn running(State(server): State<Arc<Server>>) -> Result<Response, ApiError> {
    let engine = server.engine()?.clone();
    let (reply, replied) = oneshot::channel();
    // Whoever asked may have gone by then.
    engine.live_requests(Box::new(move |live| drop(reply.send(live))));
    let gone = |_| engine.closed().as_ref().map_or_else(ApiError::lost, ApiError::from);
    let live = replied.await.map_err(gone)?;
    off_the_loop(move || {
        let counters = live.counters;
        Ok(json_response(&json!({
            "now": live.now,
            "gauges": {
                "running": counters.running,
                "waiting": counters.waiting,
                "blocks_used": counters.blocks_used(),
                "blocks_total": counters.blocks_total,
                "preemptions_total": counters.preemptions_total,
            },
            "timelines": live.timelines,
        })))
    })
    .await
}

/// Every timeline from now on, as server-sent events.
async fn live(State(server): State<Arc<Server>>) -> Result<Response, ApiError> {
    let clock = crate::clock::InstantClock::start();
    let (end, body) = stream(0, clock);
    let mut news = server.ledger().listen();
    tokio::spawn(async move {
        loop {
            let piece = tokio::select! {
                news = news.recv() => match news {
                    Ok(timeline) => Piece::aside(format!("data: {}\n\n", json!(*timeline))),
                    Err(RecvError::Lagged(missed)) => {
                        Piece::aside(format!(": {missed} timelines were missed\n\n"))
                    }
                    Err(RecvError::Closed) => return,
                },
                () = end.pieces.closed() => return,
                () = tokio::time::sleep(KEEP_ALIVE) => Piece::keep_alive(),
            };
            if end.pieces.send(piece).await.is_err() {
                return;
            }
        }
    });
    Ok(event_stream(Body::new(body)))
}

async fn steps(State(server): State<Arc<Server>>, uri: Uri) -> Result<Response, ApiError> {
    let (engine, count) = (server.engine()?.clone(), last(&uri, STEPS_KEPT)?);
    off_the_loop(move || Ok(json_response(&json!({ "steps": engine.steps(count) })))).await
}

async fn trace(State(server): State<Arc<Server>>, uri: Uri) -> Result<Response, ApiError> {
    let (engine, count) = (server.engine()?.clone(), last(&uri, DEFAULT_WINDOW)?);
    off_the_loop(move || {
        let steps: StepRing = engine.steps(STEPS_KEPT).into_iter().collect();
        let timelines = server.ledger().last(count);
        Ok(json_response(&chrome_trace(timelines.iter().map(AsRef::as_ref), &steps)))
    })
    .await
}

/// Folds take milliseconds: they run on a thread for such work.
async fn off_the_loop<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, ApiError> + Send + 'static,
) -> Result<T, ApiError> {
    let lost = |_| ApiError::failed("the figures were lost to a defect of firstlight; report it");
    tokio::task::spawn_blocking(work).await.map_err(lost)?
}

//! The paths of OpenAI's API, and who answers them.
//!
//! Invariant: a path or method that is unknown is answered in the same form as any other error.

mod observe;
mod text;

use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::extract::rejection::PathRejection;
use axum::extract::{Extension, Path, State};
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, header};
use axum::middleware::from_fn_with_state;
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use serde_json::json;
use tower_http::catch_panic::CatchPanicLayer;
use tower_http::cors::{AllowOrigin, CorsLayer};

use firstlight_engine::clock::Clock;

use super::errors::ApiError;
use super::gateway::{self, Caller};
use super::openapi::{self, Facts};
use super::relay::{self, Admitted, Edge, json_response};
use super::server::Server;
use super::wire::call::{Call, Form};
use crate::failure::Failure;
use crate::quota::Demand;
use crate::run::draw_seed;

/// All paths.
///
/// # Errors
/// An origin of `cors` that is none.
pub fn router(server: Arc<Server>, cors: &[String]) -> Result<Router, Failure> {
    let router = Router::new()
        .route("/v1/chat/completions", post(chat))
        .route("/v1/completions", post(complete))
        .route("/v1/models", get(models))
        .route("/v1/models/{*name}", get(model))
        .route("/openapi.json", get(description))
        .merge(text::routes())
        .merge(observe::routes())
        .fallback(async || ApiError::not_found("there is no such path; /openapi.json lists them"))
        .method_not_allowed_fallback(async || ApiError::method())
        .layer(from_fn_with_state(Arc::clone(&server), gateway::authorise));
    // A page asks whether it may before it sends its key: CORS lies outside of the keys.
    let router = match cors_layer(cors)? {
        Some(layer) => router.layer(layer),
        None => router,
    };
    Ok(router
        .layer(CatchPanicLayer::custom(panicked))
        .layer(from_fn_with_state(Arc::clone(&server), gateway::name))
        .with_state(server))
}

fn cors_layer(origins: &[String]) -> Result<Option<CorsLayer>, Failure> {
    if origins.is_empty() {
        return Ok(None);
    }
    let origin = |origin: &String| {
        HeaderValue::from_str(origin.trim_end_matches('/')).map_err(|_| {
            Failure::usage(format!(
                "--cors is {origin:?}; it must be an origin such as https://example.org, or *"
            ))
        })
    };
    let allowed = match origins.iter().any(|origin| origin == "*") {
        true => AllowOrigin::any(),
        false => AllowOrigin::list(origins.iter().map(origin).collect::<Result<Vec<_>, _>>()?),
    };
    let names = ["traceparent", "tracestate", "x-request-id"].map(HeaderName::from_static);
    let told = gateway::QUOTA_HEADERS.as_flattened().iter().chain(&["x-firstlight-replica", "retry-after"]);
    let told = told.map(|name| HeaderName::from_static(name)).chain(names.clone());
    Ok(Some(
        CorsLayer::new()
            .allow_origin(allowed)
            .allow_methods([Method::GET, Method::POST])
            .allow_headers(
                names.into_iter().chain([header::AUTHORIZATION, header::CONTENT_TYPE]).collect::<Vec<_>>(),
            )
            .expose_headers(told.collect::<Vec<_>>()),
    ))
}

/// A handler that panicked takes its own request with it and no other.
fn panicked(_: Box<dyn std::any::Any + Send>) -> Response {
    ApiError::failed("the server made a mistake on this request; report it, with the server's log")
        .into_response()
}

async fn chat(
    state: State<Arc<Server>>,
    caller: Extension<Caller>,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, ApiError> {
    call(Form::Chat, state, caller, headers, body).await
}

async fn complete(
    state: State<Arc<Server>>,
    caller: Extension<Caller>,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, ApiError> {
    call(Form::Completion, state, caller, headers, body).await
}

async fn call(
    form: Form,
    State(server): State<Arc<Server>>,
    Extension(mut caller): Extension<Caller>,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, ApiError> {
    let open = server.life().admit()?;
    let engine = server.engine()?.clone();
    let quota = server.gateway().admit(&caller, true);
    // A client in the middle of its body hears nothing, and may take a closed connection for a broken one.
    let body = server.bodies().read(&headers, body).await?;
    quota?;
    let received = engine.clock().now();
    caller.is_received();
    let (call, room) =
        server.bodies().understand(body, move |bytes| Call::read(form, bytes, draw_seed())).await?;
    let checked = engine.clock().now();
    if let Some(asked) = call.model.as_deref().filter(|name| !server.serves(name)) {
        return Err(ApiError::unknown_model(asked, server.model_name()));
    }
    let num_choices = call.num_choices.saturating_mul(call.prompts.len());
    let most = engine.limits().max_waiting as usize;
    if num_choices > most {
        return Err(ApiError::too_many_choices(num_choices, most));
    }
    if let Some(meter) = caller.meter() {
        // What no prompt could make fit is refused before one is prepared. Several prompts are looked at together here
        // only; once it is known, each is looked at by itself.
        let demand = Demand::new(&call.params, call.num_choices, engine.limits().max_model_len);
        let least = demand.least().saturating_mul(call.prompts.len() as u64);
        meter.covers(least).map_err(|reason| ApiError::from(&reason))?;
    }
    let edge = Edge { received, checked, routed: engine.clock().now() };
    relay::answer(Admitted { server, engine, open, room }, caller, call, edge).await
}

fn model_json(server: &Server) -> Result<serde_json::Value, ApiError> {
    let engine = server.engine()?;
    Ok(json!({
        "id": server.model_name(),
        "object": "model",
        "created": server.started(),
        "owned_by": "firstlight",
        "root": engine.labels().model.name,
        "max_model_len": engine.limits().max_model_len,
    }))
}

async fn models(State(server): State<Arc<Server>>) -> Result<Response, ApiError> {
    Ok(json_response(&json!({ "object": "list", "data": [model_json(&server)?] })))
}

async fn model(
    State(server): State<Arc<Server>>,
    name: Result<Path<String>, PathRejection>,
) -> Result<Response, ApiError> {
    let Path(name) = name.map_err(no_text)?;
    let model = model_json(&server)?;
    if !server.serves(&name) {
        return Err(ApiError::unknown_model(&name, server.model_name()));
    }
    Ok(json_response(&model))
}

/// For everybody, and before the model is there: it says nothing about requests.
async fn description(State(server): State<Arc<Server>>) -> Response {
    json_response(&openapi::document(&facts(&server)))
}

fn facts(server: &Server) -> Facts {
    let needs_key = server.gateway().needs_key();
    let page_files: Vec<&str> = server.page().names().collect();
    let Ok(engine) = server.engine() else {
        return Facts {
            models: Vec::new(),
            largest_token: u32::MAX,
            max_model_len: None,
            page_files,
            needs_key,
        };
    };
    let (limits, file) = (engine.limits(), &engine.labels().model.name);
    let mut models = vec![server.model_name().to_owned()];
    if !models.contains(file) {
        models.push(file.clone());
    }
    let largest_token = limits.vocab_size.saturating_sub(1);
    Facts { models, largest_token, max_model_len: Some(limits.max_model_len), page_files, needs_key }
}

/// A name in a path that is no text.
fn no_text(rejection: PathRejection) -> ApiError {
    ApiError::invalid(format!("the path cannot be read: {rejection}; write the name in UTF-8"))
}

#[cfg(test)]
mod tests {
    use axum::http::{Request, StatusCode};
    use hyper::service::Service;
    use hyper_util::service::TowerToHyperService;

    use super::*;

    #[test]
    fn a_handler_that_panics_answers_500_and_the_next_request_is_served() {
        let router: Router = Router::new()
            .route(
                "/broken",
                get(async || {
                    if true {
                        panic!("a defect")
                    }
                }),
            )
            .route("/whole", get(async || "yes"))
            .layer(CatchPanicLayer::custom(panicked));
        let service = TowerToHyperService::new(router);
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let check = |path: &str, expected: StatusCode| {
            let request = Request::get(path).body(Body::empty()).unwrap();
            let response = runtime.block_on(service.call(request)).unwrap();
            assert_eq!(response.status(), expected, "{path}");
        };
        check("/broken", StatusCode::INTERNAL_SERVER_ERROR);
        check("/whole", StatusCode::OK);
    }
}

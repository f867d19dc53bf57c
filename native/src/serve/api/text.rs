//! `/tokenize` and `/detokenize`, as vLLM defines them.
//!
//! Invariant: the tokenizer runs on the preparation workers, so that a long text delays nobody.

use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::extract::{Extension, State};
use axum::http::HeaderMap;
use axum::response::Response;
use axum::routing::post;
use serde_json::{Value, json};
use tokio::sync::oneshot;

use firstlight_engine::clock::Clock;
use firstlight_engine::request::HostStamps;
use firstlight_engine::text::{PrepareOptions, PromptInput, SpecialTokens};

use super::super::errors::ApiError;
use super::super::gateway::Caller;
use super::super::relay::json_response;
use super::super::server::Server;
use super::super::wire::fields::{Fields, whole};
use super::super::wire::messages;
use crate::driver::EngineHandle;

pub(super) fn routes() -> Router<Arc<Server>> {
    Router::new().route("/tokenize", post(tokenize)).route("/detokenize", post(detokenize))
}

async fn tokenize(
    state: State<Arc<Server>>,
    caller: Extension<Caller>,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, ApiError> {
    on_a_worker(state, caller, headers, body, tokens).await
}

async fn detokenize(
    state: State<Arc<Server>>,
    caller: Extension<Caller>,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, ApiError> {
    on_a_worker(state, caller, headers, body, prompt).await
}

async fn on_a_worker(
    State(server): State<Arc<Server>>,
    Extension(caller): Extension<Caller>,
    headers: HeaderMap,
    body: Body,
    work: fn(&EngineHandle, Fields) -> Result<Value, ApiError>,
) -> Result<Response, ApiError> {
    let open = server.life().admit()?;
    let engine = server.engine()?.clone();
    let quota = server.gateway().admit(&caller, false);
    let body = server.bodies().read(&headers, body).await?;
    quota?;
    let (reply, replied) = oneshot::channel();
    let full = || ApiError::busy("too many texts wait to be tokenised; try again later");
    let host = Arc::clone(&server);
    let job = move || {
        let _open = open;
        let outcome = read(&host, &body.bytes).and_then(|fields| work(&engine, fields));
        // Whoever asked may have gone.
        let _ = reply.send(outcome);
    };
    server.preparation().reserve().ok_or_else(full)?.run(job);
    Ok(json_response(&replied.await.map_err(|_| ApiError::lost())??))
}

/// The fields of a body, which may name the model.
fn read(server: &Server, body: &[u8]) -> Result<Fields, ApiError> {
    let mut fields = Fields::read(body)?;
    match fields.text("model")?.filter(|name| !server.serves(name)) {
        Some(asked) => Err(ApiError::unknown_model(&asked, server.model_name())),
        None => Ok(fields),
    }
}

fn no_tokenizer() -> ApiError {
    ApiError::invalid("the model has no tokenizer; send token ids to /v1/completions")
}

fn tokens(engine: &EngineHandle, mut fields: Fields) -> Result<Value, ApiError> {
    let tokenizer = engine.preparer().tokenizer().ok_or_else(no_tokenizer)?;
    let mut ids = match fields.text("prompt")? {
        Some(text) if text.len() > firstlight_engine::text::Preparer::MAX_TEXT_BYTES => {
            return Err(ApiError::parameter(
                "prompt",
                format!("prompt has {} bytes; shorten it", text.len()),
            ));
        }
        Some(text) => {
            let ids =
                tokenizer.encode(&text, SpecialTokens::Parse).map_err(|reason| ApiError::from(&reason))?;
            let asked = fields.flag("add_special_tokens")?.unwrap_or(true) && tokenizer.adds_bos();
            match tokenizer.bos().filter(|bos| asked && ids.first() != Some(bos)) {
                Some(bos) => std::iter::once(bos).chain(ids).collect(),
                None => ids,
            }
        }
        None => {
            let input = PromptInput::Chat(messages::read(&mut fields)?);
            let clock = engine.clock();
            let options =
                PrepareOptions { parse_special: false, now_unix_seconds: clock.unix_seconds(clock.now()) };
            let prepared = engine.preparer().prepare(input, &options, &clock, &mut HostStamps::default());
            prepared.map_err(|reason| ApiError::from(&reason))?.prompt
        }
    };
    ids.shrink_to_fit();
    let mut answer = json!({
        "count": ids.len(), "max_model_len": engine.limits().max_model_len, "tokens": ids,
    });
    if fields.flag("return_token_strs")?.unwrap_or(false) {
        let text = |id: &u32| String::from_utf8_lossy(&tokenizer.bytes_of(*id)).into_owned();
        answer["token_strs"] = ids.iter().map(text).collect();
    }
    Ok(answer)
}

fn prompt(engine: &EngineHandle, mut fields: Fields) -> Result<Value, ApiError> {
    let tokenizer = engine.preparer().tokenizer().ok_or_else(no_tokenizer)?;
    let vocab_size = tokenizer.vocab_size();
    let list = match fields.take("tokens") {
        Some(Value::Array(list)) => list,
        None => return Err(ApiError::parameter("tokens", "tokens is missing; send a list of token ids")),
        Some(_) => return Err(ApiError::mistyped("tokens", "a list of token ids")),
    };
    let mut bytes = Vec::new();
    for value in list {
        if !value.is_number() {
            return Err(ApiError::mistyped("tokens", "a list of token ids"));
        }
        let id = whole(&value).and_then(|id| u32::try_from(id).ok()).filter(|id| *id < vocab_size);
        let id = id.ok_or_else(|| {
            ApiError::parameter(
                "tokens",
                format!("{value} is no token id; ids are whole, from 0 to {}", vocab_size - 1),
            )
        })?;
        bytes.extend(tokenizer.bytes_of(id));
    }
    Ok(json!({ "prompt": String::from_utf8_lossy(&bytes) }))
}

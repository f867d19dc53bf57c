//! From events to what the client reads: one JSON object, or chunks as they come.
//!
//! Invariant: while no byte has gone out a failure is a status; afterwards it is an event of its own, then `[DONE]`.

use std::sync::atomic::Ordering;

use axum::body::Body;
use axum::http::{HeaderName, HeaderValue, header};
use axum::response::Response;
use hyper::body::Bytes;
use serde_json::{Value, json};
use tokio::sync::mpsc::Sender;
use tokio::sync::oneshot;
use tokio::time::{Instant, sleep_until};

use firstlight_engine::clock::{Clock, Nanos};
use firstlight_engine::request::FinishReason;

use super::{Heard, Relay};
use crate::serve::errors::ApiError;
use crate::serve::stream::{KEEP_ALIVE, Piece, StreamEnd, stream};
use crate::serve::wire::answers::{Usage, WholeChoice};

type Reply = oneshot::Sender<Result<Response, ApiError>>;

impl Relay {
    /// Runs until every choice has ended and the client has what there is for it.
    pub(super) async fn run(self, reply: Reply) {
        match self.call.stream {
            true => self.run_streamed(reply).await,
            false => self.run_whole(reply).await,
        }
    }

    async fn run_whole(mut self, mut reply: Reply) {
        while !self.all_ended() {
            tokio::select! {
                heard = self.heard.recv() => {
                    let Some(heard) = heard else { break };
                    self.take(heard);
                }
                () = reply.closed(), if self.left.get().is_none() => self.leave(FinishReason::Disconnected),
            }
        }
        let answer = match self.error.take() {
            Some(error) => Err(error),
            None => Ok(json_response(&self.whole())),
        };
        let status = status_of(&answer);
        // Whether or not somebody still takes it, this is the last write.
        let status = reply.send(answer).is_ok().then_some(status);
        let now = self.engine.clock().now();
        self.seal(status, |_| None, Some(now));
    }

    async fn run_streamed(mut self, mut reply: Reply) {
        let (end, body) = stream(self.choices.len(), self.engine.clock());
        // No proxy is to give up on a queue: so long the status may wait for the first token.
        let patience = Instant::now() + KEEP_ALIVE;
        // Until the first word, or until it is known that there is none.
        let first = loop {
            tokio::select! {
                heard = self.heard.recv() => {
                    let Some(heard) = heard else { break None };
                    let pieces = self.take(heard);
                    if self.error.is_some() || !pieces.is_empty() || self.all_ended() {
                        break Some(pieces);
                    }
                }
                () = reply.closed(), if self.left.get().is_none() => self.leave(FinishReason::Disconnected),
                () = sleep_until(patience), if self.left.get().is_none() => break Some(Vec::new()),
            }
        };
        let answer = match self.error.take() {
            // Told or not, that was all.
            Some(error) => Err(error),
            None => Ok(event_stream(Body::new(body))),
        };
        let (is_stream, status) = (answer.is_ok(), status_of(&answer));
        let status = reply.send(answer).is_ok().then_some(status);
        let begun = is_stream && status.is_some();
        if begun {
            self.stream(&end, first.unwrap_or_default()).await;
        } else if self.left.get().is_none() {
            self.leave(FinishReason::Disconnected);
        }
        self.wait_for_ends().await;
        self.finish_stream(end, begun, status).await;
    }

    /// Carries chunks until all choices have ended or the client has gone.
    async fn stream(&mut self, end: &StreamEnd, mut pieces: Vec<Piece>) {
        loop {
            for piece in pieces {
                if end.pieces.send(piece).await.is_err() {
                    return self.leave(FinishReason::Disconnected);
                }
            }
            if self.error.is_some() || self.all_ended() {
                return;
            }
            pieces = tokio::select! {
                heard = self.heard.recv() => match heard {
                    Some(heard) => self.take(heard),
                    None => return,
                },
                () = end.pieces.closed() => return self.leave(FinishReason::Disconnected),
                () = tokio::time::sleep(KEEP_ALIVE) => vec![Piece::keep_alive()],
            };
        }
    }

    /// The last words of a stream, and then the book.
    async fn finish_stream(mut self, end: StreamEnd, begun: bool, status: Option<u16>) {
        if begun && self.left.get().is_none_or(|(reason, _)| *reason != FinishReason::Disconnected) {
            let mut pieces = Vec::new();
            match self.error.take() {
                Some(error) => pieces.push(event(&error.json(), None)),
                None => pieces.extend(self.last_chunks(&end)),
            }
            pieces.push(Piece {
                bytes: Bytes::from_static(b"data: [DONE]\n\n"),
                content_of: None,
                is_last: true,
            });
            send_all(&end.pieces, pieces).await;
            // The connection lets the body go when it has taken the last piece, or when the client has gone.
            end.pieces.closed().await;
        }
        let stamps = end.stamps;
        self.seal(status, |idx| stamps.first(idx), stamps.last());
    }

    /// What the ended choices still owe: their ends, the usage, the timeline.
    fn last_chunks(&mut self, end: &StreamEnd) -> Vec<Piece> {
        let mut chunks = Vec::new();
        for idx in 0..self.choices.len() {
            chunks.extend(self.opening(idx));
            if let Some(ended) = &self.choices[idx].answer.ended {
                chunks.push(self.head.end(idx, ended.reason));
            }
        }
        if self.call.include_usage {
            chunks.push(self.head.usage(self.usage()));
        }
        let extension = self.extension(|idx| end.stamps.first(idx));
        if let (Some(last), Some(extension)) = (chunks.last_mut(), extension) {
            last["firstlight"] = extension;
        }
        chunks.iter().map(|chunk| event(chunk, None)).collect()
    }

    async fn wait_for_ends(&mut self) {
        while !self.all_ended() {
            let Some(heard) = self.heard.recv().await else { return };
            self.take(heard);
        }
    }

    fn all_ended(&self) -> bool {
        self.choices.iter().all(super::Choice::has_ended)
    }

    /// Nobody waits any more: every choice is to end where it is.
    fn leave(&mut self, reason: FinishReason) {
        let now = self.engine.clock().now();
        // Known to the preparation before the engine is told: see `Ask::send_choices`.
        if self.left.set((reason, now)).is_ok() {
            for choice in self.choices.iter().filter(|choice| !choice.has_ended()) {
                self.engine.abort(choice.id, reason, now);
            }
        }
    }

    /// Takes an event, and returns the chunks that it gives.
    fn take(&mut self, heard: Heard) -> Vec<Piece> {
        self.waiting.fetch_sub(1, Ordering::AcqRel);
        let Heard { choice: idx, at, event: what } = heard;
        if let Some(meter) = &self.meter {
            meter.take_tokens(u64::from(self.choices[idx].newly_made(&what)));
        }
        let (text, tokens) = self.choices[idx].take(what, at);
        let ended = self.choices[idx].answer.ended.as_ref();
        if let Some(error) = ended.and_then(|ended| ApiError::of_timeline(&ended.timeline))
            && self.error.is_none()
        {
            self.error = Some(error);
            self.leave(FinishReason::Cancelled);
        }
        if !self.call.stream || self.error.is_some() {
            return Vec::new();
        }
        let logprobs = self.logprobs(idx, &tokens);
        if text.is_empty() && logprobs.is_null() {
            return Vec::new();
        }
        let content_of = (!text.is_empty()).then_some(idx);
        let opening = self.opening(idx).map(|chunk| event(&chunk, None));
        let chunk = event(&self.head.content(idx, &text, logprobs), content_of);
        opening.into_iter().chain([chunk]).collect()
    }

    /// A choice's opening chunk, where the form has one and it is not out yet.
    fn opening(&mut self, idx: usize) -> Option<Value> {
        let opened = std::mem::replace(&mut self.choices[idx].opened, true);
        if opened { None } else { self.head.opening(idx) }
    }

    fn logprobs(&mut self, idx: usize, tokens: &[firstlight_engine::request::SampledToken]) -> Value {
        let tokenizer = self.engine.preparer().tokenizer().cloned();
        let (form, ignore_eos) = (self.call.form, self.call.params.ignore_eos);
        self.choices[idx].logprobs(form, tokens, tokenizer.as_deref(), ignore_eos)
    }

    fn usage(&self) -> Usage {
        let mut usage = Usage::default();
        for (idx, choice) in self.choices.iter().enumerate() {
            let Some(ended) = &choice.answer.ended else { continue };
            // Several choices have their prompt in common, and it counts once.
            let is_first = idx % self.call.num_choices == 0;
            usage.add(ended.timeline.tokens(), is_first);
        }
        usage
    }

    fn whole(&mut self) -> Value {
        let mut choices = Vec::new();
        for idx in 0..self.choices.len() {
            let tokens = self.choices[idx].answer.tokens[..self.choices[idx].answer.settled].to_vec();
            let logprobs = self.logprobs(idx, &tokens);
            let answer = &self.choices[idx].answer;
            let reason = answer.ended.as_ref().map_or(FinishReason::Stop, |ended| ended.reason);
            choices.push(WholeChoice { text: answer.text.clone(), logprobs, reason });
        }
        let mut answer = self.head.whole(choices, self.usage());
        if let Some(extension) = self.extension(|_| None) {
            answer["firstlight"] = extension;
        }
        answer
    }

    /// `firstlight` of the last object, where it was asked for: timelines as far as they are known by now.
    fn extension(&self, first_write: impl Fn(usize) -> Option<Nanos>) -> Option<Value> {
        if !self.call.extension.trace {
            return None;
        }
        let known = |(idx, choice): (usize, &super::Choice)| choice.answer.known(first_write(idx));
        let timelines: Vec<Value> =
            self.choices.iter().enumerate().filter_map(known).map(|timeline| json!(timeline)).collect();
        let ids = |choice: &super::Choice| -> Vec<u32> {
            let told = &choice.answer.tokens[..choice.answer.settled];
            told.iter().map(|sampled| sampled.token).collect()
        };
        let token_ids: Vec<Vec<u32>> = self.choices.iter().map(ids).collect();
        match (timelines.first(), token_ids.first()) {
            (Some(timeline), Some(ids)) if timelines.len() == 1 => {
                Some(json!({ "timeline": timeline, "token_ids": ids }))
            }
            (Some(timeline), _) => Some(json!({
                "timeline": timeline, "timelines": timelines, "token_ids": token_ids,
            })),
            _ => None,
        }
    }

    /// Puts the host's last stamps into every timeline, and the timelines into the book.
    fn seal(
        mut self,
        status: Option<u16>,
        first_write: impl Fn(usize) -> Option<Nanos>,
        last_write: Option<Nanos>,
    ) {
        let mut timelines = Vec::with_capacity(self.choices.len());
        for (idx, choice) in self.choices.iter_mut().enumerate() {
            if let Some(at) = first_write(idx) {
                choice.answer.wrote(at);
            }
            // What broke is told by the book.
            let _ = choice.answer.seal(last_write);
            timelines.extend(choice.answer.ended.take().map(|ended| ended.timeline));
        }
        self.server.ledger().enter(&self.facts, status, timelines);
    }
}

fn status_of(answer: &Result<Response, ApiError>) -> u16 {
    answer.as_ref().map_or_else(|error| error.status, Response::status).as_u16()
}

async fn send_all(to: &Sender<Piece>, pieces: Vec<Piece>) {
    for piece in pieces {
        if to.send(piece).await.is_err() {
            return;
        }
    }
}

/// A server-sent event. JSON has no line ends outside its strings, and escapes those inside.
fn event(data: &Value, content_of: Option<usize>) -> Piece {
    Piece { bytes: Bytes::from(format!("data: {data}\n\n")), content_of, is_last: false }
}

/// A response that is an event stream, and says so to proxies.
pub(crate) fn event_stream(body: Body) -> Response {
    let mut response = Response::new(body);
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    headers.insert(HeaderName::from_static("x-accel-buffering"), HeaderValue::from_static("no"));
    response
}

/// A response that is one JSON value.
pub(crate) fn json_response(value: &impl serde::Serialize) -> Response {
    match serde_json::to_vec(value) {
        Ok(bytes) => {
            let mut response = Response::new(Body::from(bytes));
            response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
            response
        }
        Err(error) => {
            use axum::response::IntoResponse;
            ApiError::failed(format!("the answer is no JSON: {error}; report this defect")).into_response()
        }
    }
}

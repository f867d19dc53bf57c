//! One answer as it grows: its text, its tokens, and the host's own stamps on the way to the reader.
//!
//! Invariant: each of the host's stamps is made once, and put into the timeline when the request has ended.

use serde::Serialize;

use firstlight_engine::clock::Nanos;
use firstlight_engine::engine::RequestEvent;
use firstlight_engine::request::{FinishReason, RejectReason, SampledToken, TokenLogprob};
use firstlight_engine::timeline::RequestTimeline;

/// An answer, growing or ended.
#[derive(Debug, Default)]
pub struct Answer {
    /// All text so far.
    pub text: String,
    /// All tokens so far, the end token included.
    pub tokens: Vec<SampledToken>,
    /// Of the tokens, those from the first on that may be told; the text of the others is withheld, for now or for good.
    pub settled: usize,
    /// How it ended.
    pub ended: Option<Ended>,
    first_text: Option<Nanos>,
    first_write: Option<Nanos>,
}

/// How an answer ended.
#[derive(Debug)]
pub struct Ended {
    /// Why.
    pub reason: FinishReason,
    /// Why it was refused, where it was.
    pub detail: Option<RejectReason>,
    /// Where its time went.
    pub timeline: Box<RequestTimeline>,
}

impl Answer {
    /// Takes an event of this answer, which came at `now`, and returns the text that it adds.
    pub fn take(&mut self, event: RequestEvent, now: Nanos) -> String {
        let added = match event {
            RequestEvent::Token { token, text, settled, .. } => {
                self.tokens.push(token);
                self.settled = self.tokens.len().min(settled as usize);
                text
            }
            RequestEvent::Finished { reason, detail, text, timeline, .. } => {
                if reason != FinishReason::ContentFilter {
                    self.settled = self.tokens.len();
                }
                self.ended = Some(Ended { reason, detail, timeline });
                text
            }
        };
        if !added.is_empty() {
            self.first_text.get_or_insert(now);
            self.text.push_str(&added);
        }
        added
    }

    /// The reader has had a piece of a streamed answer since `now`.
    pub fn wrote(&mut self, now: Nanos) {
        self.first_write.get_or_insert(now);
    }

    /// A copy of the timeline with what is known by now, for the answer itself to carry; `None` while it grows.
    pub fn known(&self, first_write: Option<Nanos>) -> Option<RequestTimeline> {
        let mut timeline = RequestTimeline::clone(&self.ended.as_ref()?.timeline);
        self.stamp(&mut timeline, first_write);
        Some(timeline)
    }

    fn stamp(&self, timeline: &mut RequestTimeline, first_write: Option<Nanos>) {
        if timeline.stamps().first_token.is_some() {
            if let Some(at) = self.first_text {
                timeline.first_text(at);
            }
            if let Some(at) = first_write.filter(|_| self.first_text.is_some()) {
                timeline.first_write(at);
            }
        }
    }

    /// Puts the host's stamps into the timeline and closes it. `last_write` is absent where the copy is part of the
    /// answer itself. Returns what broke, which is a defect of the program.
    pub fn seal(&mut self, last_write: Option<Nanos>) -> Option<String> {
        let mut ended = self.ended.take()?;
        self.stamp(&mut ended.timeline, self.first_write);
        let timeline = &mut self.ended.insert(ended).timeline;
        if let Some(at) = last_write {
            timeline.last_write(at);
        }
        timeline.seal().err().map(|broken| broken.to_string())
    }
}

/// `run --json`: one object a prompt.
#[derive(Debug, Serialize)]
pub struct AnswerJson<'a> {
    id: &'a str,
    text: Option<&'a str>,
    token_ids: Vec<u32>,
    finish_reason: FinishReason,
    #[serde(skip_serializing_if = "Option::is_none")]
    finish_detail: Option<String>,
    usage: Usage,
    #[serde(skip_serializing_if = "Option::is_none")]
    logprobs: Option<Vec<LogprobJson>>,
    timeline: &'a RequestTimeline,
}

#[derive(Debug, Serialize)]
struct Usage {
    prompt_tokens: u32,
    cached_tokens: u32,
    completion_tokens: u32,
}

#[derive(Debug, Serialize)]
struct LogprobJson {
    token_id: u32,
    logprob: f32,
    top: Vec<TopJson>,
}

#[derive(Debug, Serialize)]
struct TopJson {
    token_id: u32,
    logprob: f32,
}

impl Answer {
    /// The ended answer as JSON; `None` while it grows. `has_text` is false for a model without a tokenizer.
    pub fn json(&self, has_text: bool) -> Option<AnswerJson<'_>> {
        let ended = self.ended.as_ref()?;
        let counts = ended.timeline.tokens();
        let top = |one: &TokenLogprob| TopJson { token_id: one.token, logprob: one.logprob };
        let logprobs: Vec<LogprobJson> = (self.tokens.iter())
            .filter_map(|sampled| sampled.logprobs.as_ref())
            .map(|(chosen, likely)| LogprobJson {
                token_id: chosen.token,
                logprob: chosen.logprob,
                top: likely.iter().map(top).collect(),
            })
            .collect();
        Some(AnswerJson {
            id: &ended.timeline.labels().id,
            text: has_text.then_some(self.text.as_str()),
            token_ids: self.tokens.iter().map(|sampled| sampled.token).collect(),
            finish_reason: ended.reason,
            finish_detail: ended.detail.as_ref().map(ToString::to_string),
            usage: Usage {
                prompt_tokens: counts.prompt,
                cached_tokens: counts.cached,
                // Those made after the end was asked for are shown to nobody.
                completion_tokens: counts.generated.saturating_sub(counts.after_disconnect),
            },
            logprobs: (!logprobs.is_empty()).then_some(logprobs),
            timeline: &ended.timeline,
        })
    }
}

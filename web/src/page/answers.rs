//! The conversation: turns, each with one or several answers, and what the worker says of them.
//!
//! Text is shown once per frame, however many tokens come in between. Invariant: an answer's text has a signal of its own, so
//! that a token redraws its own answer and nothing else.

use firstlight_engine::clock::Nanos;
use firstlight_engine::request::FinishReason;
use firstlight_engine::timeline::{Place, TimelineRecord};
use leptos::prelude::*;

use super::files;
use super::link::now;
use super::state::Page;
use crate::protocol::{Ask, AskId, Command, Prompt, Sampling};
use crate::view::chat::{self, PastTurn};
use crate::view::words;

/// Turns that are kept.
const TURNS: usize = 200;
/// Answers of one turn.
pub const ANSWERS: usize = 32;

/// How far an answer is.
#[derive(Clone, Debug, PartialEq)]
pub enum AnswerState {
    /// On its way to the engine.
    Sent,
    /// In inbox or queue.
    Queued,
    /// In the batch, before its first text.
    Reading,
    /// Text comes.
    Streaming,
    /// It ended.
    Ended {
        /// Why.
        reason: FinishReason,
        /// In a sentence, where it is no ordinary end.
        detail: Option<String>,
    },
}

/// What the sealed timeline says of an answer.
#[derive(Clone, Debug, PartialEq)]
pub struct AnswerFigures {
    /// Tokens and speed.
    pub speed: String,
    /// Where the time to the first token went.
    pub first_token: Option<String>,
}

/// One answer. A handful of handles: copied freely.
#[derive(Clone, Copy)]
pub struct Answer {
    /// What names it.
    pub ask: AskId,
    /// Its text so far.
    pub text: RwSignal<String>,
    /// Its tokens so far, and when the first came and the last, by the page's clock.
    pub tokens: RwSignal<(u32, Nanos, Nanos)>,
    /// How far it is.
    pub state: RwSignal<AnswerState>,
    /// Its timeline's id.
    pub id: RwSignal<Option<String>>,
    /// What its timeline says.
    pub figures: RwSignal<Option<AnswerFigures>>,
}

impl Answer {
    fn new(ask: AskId) -> Self {
        Self {
            ask,
            text: RwSignal::default(),
            tokens: RwSignal::default(),
            state: RwSignal::new(AnswerState::Sent),
            id: RwSignal::new(None),
            figures: RwSignal::new(None),
        }
    }

    /// Whether it has ended; tracked.
    pub fn ended(self) -> bool {
        self.state.with(|state| matches!(state, AnswerState::Ended { .. }))
    }
}

/// What was asked.
#[derive(Clone, Debug)]
pub struct Asked {
    /// As the person wrote it.
    pub shown: String,
    /// As it was sent.
    pub prompt: Prompt,
    /// How it was to be answered.
    pub sampling: Sampling,
}

/// A prompt and its answers.
#[derive(Clone, Copy)]
pub struct Turn {
    /// Names it among the others.
    pub id: u64,
    /// What was asked.
    pub asked: StoredValue<Asked>,
    /// The answers, side by side.
    pub answers: RwSignal<Vec<Answer>>,
    /// The answer that the conversation goes on from, by its place.
    pub chosen: RwSignal<usize>,
}

impl Turn {
    /// As the next prompt sees it; tracked.
    fn past(self) -> PastTurn {
        let (prompt, raw) =
            self.asked.with_value(|asked| (asked.shown.clone(), matches!(asked.prompt, Prompt::Raw(_))));
        let answer = self.answers.with(|answers| answers.get(self.chosen.get()).or(answers.first()).copied());
        let Some(answer) = answer.filter(|_| !raw) else {
            return PastTurn { prompt, answer: None, running: false };
        };
        let ended = answer.ended();
        // The text is read when it is whole: a growing one would make this run for each of its frames.
        let text = ended.then(|| answer.text.get_untracked());
        PastTurn { prompt, answer: text, running: !ended }
    }
}

impl Page {
    /// The turns as the next prompt sees them; tracked.
    pub fn past(self) -> Vec<PastTurn> {
        self.turns.with(|turns| turns.iter().map(|turn| turn.past()).collect())
    }

    /// Whether prompts go without a chat template; tracked.
    pub fn is_raw(self) -> bool {
        self.raw.get() || self.backend.with(|backend| backend.as_ref().is_some_and(|backend| !backend.chat))
    }

    /// Sends a prompt `copies` times at one instant.
    pub fn submit(self, text: String, sampling: Sampling, copies: usize) {
        let prompt = untrack(|| match self.is_raw() {
            true => Prompt::Raw(text.clone()),
            false => Prompt::Chat(chat::messages(&self.system.get(), &self.past(), &text)),
        });
        let asked = Asked { shown: text, prompt, sampling };
        let answers = self.ask(&asked, copies.min(ANSWERS));
        let turn = Turn {
            id: self.next(),
            asked: StoredValue::new(asked),
            answers: RwSignal::new(answers),
            chosen: RwSignal::new(0),
        };
        self.append(turn);
        request_animation_frame(move || files::into_view(&format!("turn-{}", turn.id)));
    }

    fn append(self, turn: Turn) {
        self.turns.update(|turns| {
            turns.push(turn);
            let over = turns.len().saturating_sub(TURNS);
            for old in turns.drain(..over) {
                self.forget(old);
            }
        });
    }

    /// Asks the same once more; the answer stands beside the others.
    pub fn again(self, turn: Turn) {
        let asked = turn.asked.get_value();
        let more = self.ask(&asked, 1);
        turn.answers.update(|answers| answers.extend(more));
    }

    fn ask(self, asked: &Asked, copies: usize) -> Vec<Answer> {
        let received = now();
        let answers: Vec<Answer> = (0..copies).map(|_| Answer::new(AskId(self.next()))).collect();
        self.by_ask.update_value(|known| known.extend(answers.iter().map(|answer| (answer.ask, *answer))));
        self.running.update(|running| *running += answers.len());
        let asks = answers.iter().map(|answer| Ask {
            id: answer.ask,
            received,
            prompt: asked.prompt.clone(),
            sampling: asked.sampling.clone(),
        });
        self.send(&Command::Submit { asks: asks.collect() });
        answers
    }

    fn next(self) -> u64 {
        self.counter
            .try_update_value(|counter| {
                *counter += 1;
                *counter
            })
            .unwrap_or_default()
    }

    /// Stops one answer.
    pub fn cancel(self, ask: AskId) {
        self.send(&Command::Cancel { ask });
    }

    /// Stops every answer that has not ended.
    pub fn cancel_all(self) {
        let open: Vec<AskId> = self.by_ask.with_value(|known| {
            known.values().filter(|answer| untrack(|| !answer.ended())).map(|answer| answer.ask).collect()
        });
        open.into_iter().for_each(|ask| self.cancel(ask));
    }

    /// Begins a new conversation; answers that run are stopped.
    pub fn new_conversation(self) {
        self.cancel_all();
        let old = self.turns.try_update(std::mem::take).unwrap_or_default();
        old.into_iter().for_each(|turn| self.forget(turn));
        files::focus("composer");
    }

    /// What is not shown any more keeps no text. Its view is gone after this turn of the event loop.
    fn forget(self, turn: Turn) {
        request_animation_frame(move || {
            for answer in turn.answers.get_untracked() {
                let ended = untrack(|| answer.ended());
                answer.text.update_untracked(String::clear);
                if ended {
                    self.drop_names(answer);
                }
            }
        });
    }

    fn drop_names(self, answer: Answer) {
        self.by_ask.update_value(|known| {
            known.remove(&answer.ask);
        });
        if let Some(id) = answer.id.get_untracked() {
            self.by_id.update_value(|known| {
                known.remove(&id);
            });
        }
    }

    fn answer(self, ask: AskId) -> Option<Answer> {
        self.by_ask.with_value(|known| known.get(&ask).copied())
    }

    pub(super) fn accepted(self, ask: AskId, id: &str, rendered: Option<&str>) {
        if let Some(rendered) = rendered {
            self.remember_rendered(id, rendered);
        }
        let Some(answer) = self.answer(ask).or_else(|| self.replayed(ask)) else { return };
        answer.id.set(Some(id.to_owned()));
        self.by_id.update_value(|known| {
            known.insert(id.to_owned(), ask);
        });
        if untrack(|| !answer.ended()) {
            answer.state.set(AnswerState::Queued);
        }
    }

    /// An answer of a recording, whose prompt nobody wrote here: beside those that run already, as it was when they came.
    fn replayed(self, ask: AskId) -> Option<Answer> {
        if !self.replays_untracked() {
            return None;
        }
        let answer = Answer::new(ask);
        self.counter.update_value(|counter| *counter = (*counter).max(ask.0));
        self.by_ask.update_value(|known| {
            known.insert(ask, answer);
        });
        self.running.update(|running| *running += 1);
        let last = self.turns.with_untracked(|turns| turns.last().copied());
        let open = last.filter(|turn| {
            let answers = turn.answers.get_untracked();
            answers.len() < ANSWERS && untrack(|| answers.iter().all(|other| !other.ended()))
        });
        match open {
            Some(turn) => turn.answers.update(|answers| answers.push(answer)),
            None => self.append(Turn {
                id: self.next(),
                asked: StoredValue::new(Asked {
                    shown: "As it was recorded".to_owned(),
                    prompt: Prompt::Raw(String::new()),
                    sampling: Sampling::default(),
                }),
                answers: RwSignal::new(vec![answer]),
                chosen: RwSignal::new(0),
            }),
        }
        Some(answer)
    }

    pub(super) fn text(self, ask: AskId, text: &str, tokens: u32) {
        self.pending.update_value(|pending| match pending.iter_mut().find(|(known, ..)| *known == ask) {
            Some((_, more, count)) => {
                more.push_str(text);
                *count = tokens;
            }
            None => pending.push((ask, text.to_owned(), tokens)),
        });
        // A page that is not shown gets no frames.
        if document().hidden() {
            return self.flush();
        }
        if !self.frame_asked.get_value() {
            self.frame_asked.set_value(true);
            request_animation_frame(move || {
                self.frame_asked.set_value(false);
                self.flush();
            });
        }
    }

    /// Shows the text that has come since the last frame.
    pub(super) fn flush(self) {
        let Some(pending) = self.pending.try_update_value(std::mem::take) else { return };
        let at = now();
        for (ask, more, tokens) in pending {
            // What comes behind an end belongs to nothing any more.
            let Some(answer) = self.answer(ask).filter(|answer| untrack(|| !answer.ended())) else {
                continue;
            };
            if answer.state.with_untracked(|state| *state != AnswerState::Streaming) {
                answer.state.set(AnswerState::Streaming);
            }
            answer.text.update(|text| text.push_str(&more));
            answer.tokens.update(|(count, first, last)| {
                *first = if *count == 0 { at } else { *first };
                (*count, *last) = (tokens, at);
            });
            files::follow(&format!("answer-{}", ask.0));
        }
        files::follow("log");
    }

    pub(super) fn finished(self, ask: AskId, reason: FinishReason, detail: Option<&str>) {
        self.flush();
        let Some(answer) = self.answer(ask) else { return };
        if untrack(|| answer.ended()) {
            return;
        }
        answer.state.set(AnswerState::Ended { reason, detail: detail.map(str::to_owned) });
        self.running.update(|running| *running = running.saturating_sub(1));
        let left = self.running.get_untracked();
        let tokens = crate::view::format::count(u64::from(answer.tokens.get_untracked().0), "token");
        let end = words::finish(reason);
        self.say(match left {
            0 => format!("Answer {end}: {tokens}."),
            n => format!("Answer {end}: {tokens}; {n} still running."),
        });
        // Its timeline may have come before.
        if let Some(id) = answer.id.get_untracked() {
            let sealed = self.session.with_untracked(|session| {
                session.sealed.iter().rev().find(|timeline| timeline.id == id).cloned()
            });
            if let Some(timeline) = sealed {
                self.sealed(&timeline);
            }
        }
    }

    pub(super) fn end_all(self, reason: FinishReason, detail: &str) {
        let open: Vec<AskId> = self.by_ask.with_value(|known| {
            known.values().filter(|answer| untrack(|| !answer.ended())).map(|answer| answer.ask).collect()
        });
        open.into_iter().for_each(|ask| self.finished(ask, reason, Some(detail)));
    }

    pub(super) fn sealed(self, timeline: &TimelineRecord) {
        let ask = self.by_id.with_value(|known| known.get(&timeline.id).copied());
        if let Some(answer) = ask.and_then(|ask| self.answer(ask)) {
            let figures =
                AnswerFigures { speed: words::speed(timeline), first_token: words::first_token(timeline) };
            answer.figures.set(Some(figures));
        }
    }

    /// Where each request is, as the live timelines have it.
    pub(super) fn places(self, timelines: &[TimelineRecord]) {
        for timeline in timelines {
            let ask = self.by_id.with_value(|known| known.get(&timeline.id).copied());
            let Some(answer) = ask.and_then(|ask| self.answer(ask)) else { continue };
            let state = match timeline.residency.last().map(|stay| stay.0) {
                Some(Place::Running) => AnswerState::Reading,
                _ => AnswerState::Queued,
            };
            let waits = answer.state.with_untracked(|s| {
                matches!(s, AnswerState::Sent | AnswerState::Queued | AnswerState::Reading) && *s != state
            });
            if waits {
                answer.state.set(state);
            }
        }
    }
}

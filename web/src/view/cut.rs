//! A request's life cut at its edges: what it was in from when to when, and the instants worth a mark.
//!
//! It draws nothing. Invariant: the spans follow each other from `received` to the end without gap or overlap, and those of
//! a sealed timeline sum to its parts by `==`.

#[cfg(test)]
mod tests;

use std::collections::VecDeque;

use firstlight_engine::clock::Nanos;
use firstlight_engine::request::FinishReason;
use firstlight_engine::timeline::{Place, StepRecord, TimelineRecord, WaitCauses};

use super::part::{CAUSES, Cause, Part};

/// A stretch of a request's life, half-open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    /// What it was in.
    pub part: Part,
    /// From this instant.
    pub from: Nanos,
    /// To this one.
    pub to: Nanos,
    /// Prompt tokens that a step computed in it.
    pub tokens: Option<u32>,
    /// The step that began it, where one is known.
    pub step: Option<u64>,
}

impl Span {
    fn new(part: Part, from: Nanos, to: Nanos) -> Self {
        Self { part, from, to, tokens: None, step: None }
    }

    /// How long it lasted.
    pub fn lasted(&self) -> Nanos {
        self.to.saturating_sub(self.from)
    }
}

/// What happened at an instant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MarkKind {
    /// A pass took its KV blocks away.
    Evicted,
    /// The first sampled token is on the CPU.
    FirstToken,
    /// The first printable text exists.
    FirstText,
    /// The first chunk with content was handed on.
    FirstWrite,
    /// The last chunk was handed on.
    LastWrite,
    /// The end.
    Finished(FinishReason),
}

impl MarkKind {
    /// In words.
    pub fn name(self) -> &'static str {
        match self {
            Self::Evicted => "evicted",
            Self::FirstToken => "first token",
            Self::FirstText => "first text",
            Self::FirstWrite => "first write",
            Self::LastWrite => "last write",
            Self::Finished(_) => "finished",
        }
    }
}

/// An instant worth a mark.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mark {
    /// What happened.
    pub kind: MarkKind,
    /// When.
    pub at: Nanos,
}

/// A life, cut.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Cut {
    /// In order, each beginning where the one before ends.
    pub spans: Vec<Span>,
    /// hold and write: they pass while the engine decodes on, so they stand beside the spans.
    pub transport: Vec<Span>,
    /// In the order of their kinds.
    pub marks: Vec<Mark>,
}

impl Cut {
    /// The first instant.
    pub fn from(&self) -> Option<Nanos> {
        self.spans.first().map(|span| span.from)
    }

    /// The last instant, the last write included.
    pub fn to(&self) -> Option<Nanos> {
        let ends = self.spans.iter().chain(&self.transport).map(|span| span.to);
        ends.chain(self.marks.iter().map(|mark| mark.at)).max()
    }

    /// What all spans of the parts that `holds` accepts sum to.
    pub fn sum(&self, holds: impl Fn(Part) -> bool) -> Nanos {
        self.spans.iter().chain(&self.transport).filter(|span| holds(span.part)).map(Span::lasted).sum()
    }
}

/// Cuts a life. One that goes on ends at `now`. `steps` are the engine's, oldest first; where they are gone, a stay in the
/// batch is one span.
pub fn cut(record: &TimelineRecord, steps: &VecDeque<StepRecord>, now: Nanos) -> Cut {
    let end = record.stamps.finished.unwrap_or(now);
    let mut cutter =
        Cutter { record, steps, end, lives: record.stamps.finished.is_none(), spans: Vec::new() };
    cutter.host();
    cutter.stays();
    // Nothing in a record that was written elsewhere can make a span run backwards.
    let mut at = cutter.spans.first().map_or(0, |span| span.from);
    for span in &mut cutter.spans {
        span.from = at;
        span.to = span.to.max(at);
        at = span.to;
    }
    cutter.spans.retain(|span| span.lasted() > 0);
    Cut { spans: cutter.spans, transport: transport(record), marks: marks(record) }
}

fn transport(record: &TimelineRecord) -> Vec<Span> {
    let stamps = &record.stamps;
    let (Some(token), Some(text)) = (stamps.first_token, stamps.first_text) else { return Vec::new() };
    let hold = Span::new(Part::Hold, token, text.max(token));
    let write = stamps.first_write.map(|write| Span::new(Part::Write, hold.to, write.max(hold.to)));
    [Some(hold), write].into_iter().flatten().filter(|span| span.lasted() > 0).collect()
}

fn marks(record: &TimelineRecord) -> Vec<Mark> {
    let stamps = &record.stamps;
    let evicted =
        record.residency.windows(2).filter(|pair| pair[0].0 == Place::Running && pair[1].0 == Place::Waiting);
    let evicted = evicted.map(|pair| Mark { kind: MarkKind::Evicted, at: pair[1].1 });
    let once = [
        (MarkKind::FirstToken, stamps.first_token),
        (MarkKind::FirstText, stamps.first_text),
        (MarkKind::FirstWrite, stamps.first_write),
        (MarkKind::LastWrite, stamps.last_write),
    ];
    let once = once.into_iter().filter_map(|(kind, at)| Some(Mark { kind, at: at? }));
    let end = record.finish_reason.zip(stamps.finished);
    let end = end.map(|(reason, at)| Mark { kind: MarkKind::Finished(reason), at });
    evicted.chain(once).chain(end).collect()
}

struct Cutter<'r> {
    record: &'r TimelineRecord,
    steps: &'r VecDeque<StepRecord>,
    end: Nanos,
    lives: bool,
    spans: Vec<Span>,
}

impl Cutter<'_> {
    fn push(&mut self, part: Part, from: Nanos, to: Nanos) {
        self.spans.push(Span::new(part, from, to));
    }

    /// received -> created. A stamp that is missing was cut away by the end: the part before it owns the open interval.
    fn host(&mut self) {
        let s = &self.record.stamps;
        let stamps = [s.received, s.checked, s.routed, s.preparing, s.templated, s.tokenised, s.created];
        let parts =
            [Part::Gateway, Part::Route, Part::PrepareWait, Part::Template, Part::Tokenise, Part::Submit];
        for (idx, part) in parts.into_iter().enumerate() {
            let Some(from) = stamps[idx] else { return };
            self.push(part, from, stamps[idx + 1].unwrap_or(self.end));
        }
    }

    fn stays(&mut self) {
        let stays = &self.record.residency;
        let holder = self.stay_of_first_token();
        let mut waited = false;
        for (idx, &(place, from, to)) in stays.iter().enumerate() {
            let open = self.lives && idx + 1 == stays.len();
            let to = if open { self.end.max(from) } else { to.max(from) };
            let answered = holder.is_some_and(|holder| idx > holder);
            match place {
                Place::Inbox => self.inbox(from, to),
                Place::Waiting => {
                    self.waiting((from, to), open, answered, waited);
                    waited = true;
                }
                Place::Running if Some(idx) == holder => {
                    let token = self.record.stamps.first_token.unwrap_or(to).clamp(from, to);
                    self.chunks(Part::Prefill, (from, token), false);
                    self.push(Part::Decode, token, to);
                }
                Place::Running if answered => self.again((from, to), open),
                Place::Running if idx + 1 < stays.len() => {
                    self.chunks(Part::LostPrefill, (from, to), false);
                }
                Place::Running => self.chunks(Part::Prefill, (from, to), open),
                Place::Host | Place::Done => {}
            }
        }
    }

    /// The stay in the batch that the first token came in. Several may touch its instant on a coarse clock: then the one
    /// before which as much was lost as the parts say.
    fn stay_of_first_token(&self) -> Option<usize> {
        let token = self.record.stamps.first_token?;
        let stays = &self.record.residency;
        let lost = self.record.parts.and_then(|parts| parts.engine).map(|engine| engine.lost_prefill);
        let (mut before, mut first) = (0, None);
        for (idx, &(place, from, to)) in stays.iter().enumerate() {
            if place != Place::Running {
                continue;
            }
            if from <= token && (token <= to || idx + 1 == stays.len()) {
                if lost.is_none_or(|lost| lost == before) {
                    return Some(idx);
                }
                first = first.or(Some(idx));
            }
            before += to.saturating_sub(from);
        }
        first
    }

    fn inbox(&mut self, from: Nanos, to: Nanos) {
        let load = self.record.parts.and_then(|parts| parts.engine).map_or(0, |e| e.inbox.model_load);
        let ready = from.saturating_add(load).min(to);
        self.push(Part::ModelLoad, from, ready);
        self.push(Part::InboxStep, ready, to);
    }

    /// A wait is split along the obstacles of the passes in it, where they tell what was billed, or nothing is billed yet;
    /// else it is one span of what was billed most.
    fn waiting(&mut self, (from, to): (Nanos, Nanos), open: bool, answered: bool, again: bool) {
        let engine = self.record.parts.and_then(|parts| parts.engine);
        let part = match (answered, again) {
            (true, _) => Part::DecodeRequeue,
            (false, true) => Part::Requeue,
            (false, false) => Part::Queue,
        };
        let billed = engine.filter(|_| !answered).map(|e| if again { e.requeue } else { e.queue_wait });
        let slices = self.obstacles(from, to);
        // The bill of several stays is one sum: only a first stay can be held against it.
        let told = match billed.filter(|_| !open && !again) {
            Some(billed) => slices.as_ref().is_some_and(|slices| agrees(slices, &billed)),
            None => true,
        };
        match slices.filter(|_| told) {
            Some(slices) => {
                self.spans
                    .extend(slices.into_iter().map(|(cause, from, to)| Span::new(part(cause), from, to)));
            }
            None => self.push(part(billed.as_ref().and_then(Cause::dominant)), from, to),
        }
    }

    /// What stood in the way from when to when, neighbours of one cause together; `None` where no pass is known of.
    fn obstacles(&self, from: Nanos, to: Nanos) -> Option<Vec<(Option<Cause>, Nanos, Nanos)>> {
        let mut slices: Vec<(Option<Cause>, Nanos, Nanos)> = Vec::new();
        let mut add = |cause: Option<Cause>, from: Nanos, to: Nanos| match slices.last_mut() {
            Some(last) if last.0 == cause => last.2 = to,
            _ if from < to => slices.push((cause, from, to)),
            _ => {}
        };
        let mut at = from;
        for pass in self.passes(from, to) {
            add(None, at, pass.from);
            add(pass.step.obstacle.map(Cause::from), pass.from, pass.to);
            at = pass.to;
        }
        add(None, at, to);
        slices.iter().any(|(cause, ..)| cause.is_some()).then_some(slices)
    }

    /// A stay in the batch, by what each pass gave the request.
    fn chunks(&mut self, part: Part, (from, to): (Nanos, Nanos), open: bool) {
        let id = self.record.engine_id;
        let mut at = from;
        let mut last_done = None;
        let mut spans = Vec::new();
        for pass in self.passes(from, to) {
            if at < pass.from {
                spans.push(Span::new(part, at, pass.from));
            }
            let tokens = pass.step.prefill.iter().find(|(one, _)| *one == id).map(|(_, tokens)| *tokens);
            let stalled = tokens.is_none() && part == Part::Prefill;
            let part = if stalled { Part::PrefillStall } else { part };
            spans.push(Span { part, from: pass.from, to: pass.to, tokens, step: Some(pass.step.id) });
            at = pass.to;
            last_done = Some(pass.step.done_at);
        }
        // The step that runs just now is known when it is done: until then nobody can say what it gives.
        if let (true, Some(done), Some(last)) = (open, last_done, spans.last_mut()) {
            last.to = done.clamp(last.from, last.to);
            at = last.to;
        }
        if at < to {
            spans.push(Span::new(part, at, to));
        }
        self.spans.append(&mut spans);
    }

    /// A stay in the batch after an eviction that came after the first token: first what was lost is computed again.
    fn again(&mut self, (from, to): (Nanos, Nanos), open: bool) {
        let attempt = self.record.attempts.iter().find(|attempt| attempt.from == from);
        let reached = match attempt {
            // What is open in a record ends where it began; a token after it says that nothing had to be computed again.
            Some(attempt) if open && attempt.to == from => {
                let token = self.record.token_at.last().is_some_and(|token| *token > from);
                if token { from } else { to }
            }
            Some(attempt) => attempt.to.clamp(from, to),
            None => from,
        };
        self.chunks(Part::Recompute, (from, reached), open);
        self.push(Part::Decode, reached, to);
    }

    /// The passes between two instants, each up to the next one.
    fn passes(&self, from: Nanos, to: Nanos) -> impl Iterator<Item = Pass<'_>> {
        let first = self.steps.partition_point(|step| step.schedule_at < from);
        let within = (first..self.steps.len()).map_while(move |idx| {
            let step = self.steps.get(idx).filter(|step| step.schedule_at < to)?;
            let next = self.steps.get(idx + 1).map_or(to, |next| next.schedule_at.min(to));
            Some(Pass { step, from: step.schedule_at, to: next.max(step.schedule_at) })
        });
        within.filter(|pass| pass.from < pass.to)
    }
}

/// A pass and how long what it gave is billed for.
struct Pass<'s> {
    step: &'s StepRecord,
    from: Nanos,
    to: Nanos,
}

/// Whether the obstacles of the passes tell the same as the bill. Where a pass found no blocks, the first in the queue is
/// billed `blocks` and everyone behind it `order`: the two are told from each other by the bill alone.
fn agrees(slices: &[(Option<Cause>, Nanos, Nanos)], billed: &WaitCauses) -> bool {
    let told = |cause: Option<Cause>| -> Nanos {
        slices.iter().filter(|slice| slice.0 == cause).map(|(_, from, to)| to - from).sum()
    };
    let behind = |cause: Cause| matches!(cause, Cause::Blocks | Cause::Order);
    told(None) == 0
        && told(Some(Cause::Blocks)) + told(Some(Cause::Order)) == billed.blocks + billed.order
        && CAUSES.into_iter().all(|cause| behind(cause) || told(Some(cause)) == cause.of(billed))
}

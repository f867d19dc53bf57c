//! Cut lives as rectangles in pixels: one lane a request.
//!
//! It names no colour and no element. Invariants: rectangles of a lane touch and never overlap; each is at least a pixel wide
//! and at most as many are made as the picture has pixels, whatever the zoom; no slow gap between two tokens is lost.

#[cfg(test)]
mod tests;

use std::collections::VecDeque;

use firstlight_engine::clock::Nanos;
use firstlight_engine::timeline::{StepRecord, TimelineRecord};

use super::axis::Viewport;
use super::cut::{Cut, MarkKind, Span, cut};
use super::part::Part;

/// What is narrower is drawn together with its neighbours.
const WIDE: f64 = 2.0;
/// Token ticks stand at least so far apart.
const TICKS_APART: f64 = 3.0;

/// A rectangle of a lane.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rect {
    /// The left edge, in pixels.
    pub x: f64,
    /// The width, in pixels.
    pub w: f64,
    /// What it shows; of several spans, the one that lasted longest.
    pub part: Part,
    /// The first span of [`Cut::spans`] in it.
    pub span_idx: usize,
    /// How many spans it stands for.
    pub spans: usize,
}

/// One or several tokens.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TokenTick {
    /// Where.
    pub x: f64,
    /// The last of its tokens, from 0.
    pub token_idx: usize,
    /// How many it stands for.
    pub tokens: usize,
    /// Whether one of them came late: after more than twice the request's median gap.
    pub slow: bool,
}

/// One request's lane.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Lane {
    /// Its life, from left to right.
    pub rects: Vec<Rect>,
    /// hold and write, beside it.
    pub transport: Vec<Rect>,
    /// Its tokens.
    pub ticks: Vec<TokenTick>,
    /// Its marks in view.
    pub marks: Vec<(MarkKind, f64)>,
}

/// All lanes, in the order of `timelines`.
pub fn lanes<'t>(
    timelines: impl IntoIterator<Item = &'t TimelineRecord>,
    steps: &VecDeque<StepRecord>,
    now: Nanos,
    viewport: &Viewport,
) -> Vec<Lane> {
    let one = |record: &TimelineRecord| lane(&cut(record, steps, now), &record.token_at, viewport);
    timelines.into_iter().map(one).collect()
}

/// The lane of one life.
pub fn lane(cut: &Cut, token_at: &[Nanos], viewport: &Viewport) -> Lane {
    let marks = cut.marks.iter().map(|mark| (mark.kind, viewport.x(mark.at)));
    Lane {
        rects: rects(&cut.spans, viewport),
        transport: rects(&cut.transport, viewport),
        ticks: ticks(token_at, viewport),
        marks: marks.filter(|(_, x)| (-8.0..=viewport.width + 8.0).contains(x)).collect(),
    }
}

/// Spans that follow each other, as rectangles that touch.
pub fn rects(spans: &[Span], viewport: &Viewport) -> Vec<Rect> {
    let (left, right) = (-1.0, viewport.width + 1.0);
    let clip = |at: Nanos| viewport.x(at).clamp(left, right);
    let in_view = |span: &&(usize, &Span)| viewport.x(span.1.to) > left && viewport.x(span.1.from) < right;
    let mut drawn = Drawn { rects: Vec::new(), edge: left };
    let mut crumbs: Option<Crumbs> = None;
    let spans: Vec<(usize, &Span)> = spans.iter().enumerate().collect();
    for &(idx, span) in spans.iter().filter(in_view) {
        let (from, to) = (clip(span.from), clip(span.to));
        if to - from >= WIDE {
            crumbs.take().into_iter().for_each(|crumbs| drawn.crumbs(&crumbs));
            drawn.wide(from, to, span.part, idx);
            continue;
        }
        let gathered = crumbs.get_or_insert_with(|| Crumbs::at(from, idx));
        gathered.add(span, to);
        if gathered.to - gathered.from.max(drawn.edge) >= 1.0 {
            drawn.crumbs(gathered);
            crumbs = None;
        }
    }
    crumbs.into_iter().for_each(|crumbs| drawn.crumbs(&crumbs));
    drawn.rects
}

struct Drawn {
    rects: Vec<Rect>,
    /// Where the last rectangle ends.
    edge: f64,
}

impl Drawn {
    fn wide(&mut self, from: f64, to: f64, part: Part, span_idx: usize) {
        // Crumbs before it took at most one of its at least two pixels.
        let x = from.max(self.edge);
        self.push(x, to, part, span_idx, 1);
    }

    fn crumbs(&mut self, crumbs: &Crumbs) {
        let x = crumbs.from.max(self.edge);
        self.push(x, crumbs.to.max(x + 1.0), crumbs.most.1, crumbs.span_idx, crumbs.spans);
    }

    fn push(&mut self, x: f64, to: f64, part: Part, span_idx: usize, spans: usize) {
        self.edge = to;
        self.rects.push(Rect { x, w: to - x, part, span_idx, spans });
    }
}

/// Spans too narrow to be drawn apart.
struct Crumbs {
    from: f64,
    to: f64,
    span_idx: usize,
    spans: usize,
    most: (Nanos, Part),
    sums: Vec<(Part, Nanos)>,
}

impl Crumbs {
    fn at(from: f64, span_idx: usize) -> Self {
        Self { from, to: from, span_idx, spans: 0, most: (0, Part::Gateway), sums: Vec::new() }
    }

    fn add(&mut self, span: &Span, to: f64) {
        self.to = to;
        self.spans += 1;
        let sum = match self.sums.iter_mut().find(|(part, _)| *part == span.part) {
            Some((_, sum)) => {
                *sum += span.lasted();
                *sum
            }
            None => {
                self.sums.push((span.part, span.lasted()));
                span.lasted()
            }
        };
        if sum > self.most.0 {
            self.most = (sum, span.part);
        }
    }
}

/// Ticks of the tokens in view. Tokens that stand too close share one.
fn ticks(token_at: &[Nanos], viewport: &Viewport) -> Vec<TokenTick> {
    let limit = slow_limit(token_at);
    let late = |idx: usize| {
        let gap = idx.checked_sub(1).map(|before| token_at[idx].saturating_sub(token_at[before]));
        limit.zip(gap).is_some_and(|(limit, gap)| gap > limit)
    };
    let first = token_at.partition_point(|at| viewport.x(*at) < 0.0);
    let mut ticks: Vec<TokenTick> = Vec::new();
    for (idx, at) in token_at.iter().enumerate().skip(first) {
        let x = viewport.x(*at);
        if x > viewport.width {
            break;
        }
        match ticks.last_mut().filter(|last| x - last.x < TICKS_APART) {
            Some(last) => {
                last.token_idx = idx;
                last.tokens += 1;
                last.slow |= late(idx);
            }
            None => ticks.push(TokenTick { x, token_idx: idx, tokens: 1, slow: late(idx) }),
        }
    }
    ticks
}

/// A gap above it is slow: twice the median of the request's gaps. `None` below two gaps, where nothing is usual.
pub fn slow_limit(token_at: &[Nanos]) -> Option<Nanos> {
    let mut gaps: Vec<Nanos> = token_at.windows(2).map(|pair| pair[1].saturating_sub(pair[0])).collect();
    if gaps.len() < 2 {
        return None;
    }
    let middle = (gaps.len() - 1) / 2;
    Some(gaps.select_nth_unstable(middle).1.saturating_mul(2))
}

/// The span that holds an instant.
pub fn span_at(cut: &Cut, at: Nanos) -> Option<usize> {
    let idx = cut.spans.partition_point(|span| span.to <= at);
    cut.spans.get(idx).filter(|span| span.from <= at).map(|_| idx)
}

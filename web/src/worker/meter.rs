//! Progress as the page sees it: not more than some times a second, with the rate over the last seconds.
//!
//! Invariant: the first and the last word of a stage are always told.

use std::collections::VecDeque;

use crate::browser::performance;
use crate::protocol::{Event, Progress, Stage};
use crate::worker::tell;

/// Between two words.
const PAUSE_MS: f64 = 100.0;
/// What a rate is averaged over.
const WINDOW_MS: f64 = 3000.0;

/// Tells one stage of one file.
pub struct Meter {
    stage: Stage,
    file: Option<String>,
    total: Option<u64>,
    told_at: f64,
    /// When so much was done.
    seen: VecDeque<(f64, u64)>,
}

impl Meter {
    /// Begins a stage; `done` of it is done already.
    pub fn begin(stage: Stage, file: Option<String>, done: u64, total: Option<u64>) -> Self {
        let mut meter = Self { stage, file, total, told_at: f64::NEG_INFINITY, seen: VecDeque::new() };
        meter.set(done);
        meter
    }

    /// So much is done now.
    pub fn set(&mut self, done: u64) {
        let now = performance().1;
        let is_last = self.total == Some(done);
        if now - self.told_at < PAUSE_MS && !is_last {
            return;
        }
        self.told_at = now;
        self.seen.push_back((now, done));
        while self.seen.front().is_some_and(|(at, _)| now - at > WINDOW_MS) && self.seen.len() > 2 {
            self.seen.pop_front();
        }
        let (from, before) = self.seen.front().copied().unwrap_or((now, done));
        let per_second =
            if now > from { done.saturating_sub(before) as f64 * 1e3 / (now - from) } else { 0.0 };
        let (stage, file, total) = (self.stage, self.file.clone(), self.total);
        tell(&Event::Progress(Progress { stage, file, done, total, per_second }));
    }
}

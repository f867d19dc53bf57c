//! The last finished timelines: what a report is folded over.
//!
//! It never lets one in that is not sealed or that breaks a rule; those are counted. Invariant: it holds at most its
//! capacity, the youngest, and every timeline in it passes its check.

use std::collections::VecDeque;
use std::sync::Arc;

use crate::clock::Nanos;
use crate::request::RequestId;
use crate::timeline::{RequestTimeline, TimelineBroken};

/// Timelines that a window holds where nothing else was asked for.
pub const DEFAULT_WINDOW: usize = 1024;

/// Timelines that a window holds at most. Their sums stay in 64 bits as long as they last three days on average.
pub const MAX_WINDOW: usize = 65_536;

/// Why a timeline does not enter a report.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TimelineRefused {
    /// Stamps may still come.
    #[error("the timeline of {id} is not sealed; seal it after the last write")]
    Unsealed {
        /// Whose.
        id: RequestId,
    },
    /// A defect of ours.
    #[error("a broken timeline enters no report: {0}")]
    Broken(#[from] TimelineBroken),
}

/// A bounded window of finished timelines. See the module.
#[derive(Clone, Debug)]
pub struct ReportWindow {
    timelines: VecDeque<Arc<RequestTimeline>>,
    capacity: usize,
    dropped: u64,
    refused_unsealed: u64,
    refused_broken: u64,
}

impl Default for ReportWindow {
    fn default() -> Self {
        Self::new(DEFAULT_WINDOW)
    }
}

impl ReportWindow {
    /// Room for the last `capacity` timelines; at least 1, at most [`MAX_WINDOW`].
    pub fn new(capacity: usize) -> Self {
        let capacity = capacity.clamp(1, MAX_WINDOW);
        Self { timelines: VecDeque::new(), capacity, dropped: 0, refused_unsealed: 0, refused_broken: 0 }
    }

    /// Takes a sealed timeline that passes its check; the oldest goes where the window is full. Any other is refused and
    /// counted.
    pub fn push(&mut self, timeline: impl Into<Arc<RequestTimeline>>) -> Result<(), TimelineRefused> {
        let timeline = timeline.into();
        if !timeline.is_sealed() {
            self.refused_unsealed += 1;
            return Err(TimelineRefused::Unsealed { id: timeline.id() });
        }
        if let Err(broken) = timeline.check() {
            self.refused_broken += 1;
            return Err(broken.into());
        }
        if self.timelines.len() == self.capacity {
            self.timelines.pop_front();
            self.dropped += 1;
        }
        self.timelines.push_back(timeline);
        Ok(())
    }

    /// The youngest `count` of those that are older than the youngest `skip`, as a window of their own.
    pub fn before_last(&self, skip: usize, count: usize) -> Self {
        let end = self.timelines.len().saturating_sub(skip);
        let timelines = self.timelines.range(end.saturating_sub(count)..end).cloned().collect();
        Self { timelines, dropped: 0, ..*self }
    }

    /// Forgets the timelines, and keeps the counts of those that were refused.
    pub fn clear(&mut self) {
        self.timelines.clear();
    }

    /// How many it holds.
    pub fn len(&self) -> usize {
        self.timelines.len()
    }

    /// Whether it holds none.
    pub fn is_empty(&self) -> bool {
        self.timelines.is_empty()
    }

    /// How many it holds at most.
    pub fn capacity(&self) -> usize {
        self.capacity
    }

    /// How many made room for younger ones.
    pub fn dropped(&self) -> u64 {
        self.dropped
    }

    /// How many came unsealed.
    pub fn refused_unsealed(&self) -> u64 {
        self.refused_unsealed
    }

    /// How many broke a rule.
    pub fn refused_broken(&self) -> u64 {
        self.refused_broken
    }

    /// All of them, in the order in which they came.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = &RequestTimeline> + ExactSizeIterator {
        self.timelines.iter().map(AsRef::as_ref)
    }

    /// The same, to be shared.
    pub fn shared(&self) -> impl DoubleEndedIterator<Item = &Arc<RequestTimeline>> + ExactSizeIterator {
        self.timelines.iter()
    }

    /// Requests received a second, from the first arrival to the last; `None` below two, and where all came at once.
    pub fn request_rate(&self) -> Option<f64> {
        let arrivals = || self.iter().filter_map(|timeline| timeline.stamps().received());
        let span = arrivals().max()? - arrivals().min()?;
        let gaps = arrivals().count() - 1;
        (span > 0 && gaps > 0).then(|| gaps as f64 * 1e9 / span as f64)
    }

    /// Requests under way at once, averaged over the time from the first arrival to the last end; `None` where the window
    /// is empty or no time passed.
    pub fn mean_concurrency(&self) -> Option<f64> {
        let first = self.iter().filter_map(|timeline| timeline.stamps().received()).min()?;
        let last = self.iter().filter_map(ended).max()?;
        let under_way: Nanos = self.iter().filter_map(RequestTimeline::e2e).sum();
        (last > first).then(|| under_way as f64 / (last - first) as f64)
    }
}

/// The last instant that a finished request knows of.
pub(super) fn ended(timeline: &RequestTimeline) -> Option<Nanos> {
    let stamps = timeline.stamps();
    stamps.finished.max(stamps.last_write)
}

//! What finished timelines say together: the latency report, the blame for a slow gap, and the trace to look at.
//!
//! It reads no clock, names no GPU and awaits nothing: everything it says is a fold over what it is handed, and it
//! imports `timeline`, `request` and `clock` alone. Invariant: percentiles are of wholes and means are of parts, so the
//! parts of a report sum to its TTFT by `==`; a figure without a sample is absent, never 0 and never not-a-number.

mod blame;
mod buckets;
mod chrome;
mod context;
pub mod diagnose;
mod distribution;
mod document;
#[cfg(test)]
mod fixtures;
mod gauges;
mod latency;
mod sums;
mod window;

pub use blame::{Blame, BlameCause, SharedChunk, SlowestGap, blame, slowest_gap, slowest_gap_of};
pub use buckets::{BatchBucket, GapFigures, GapsByBatch, PositionBucket};
pub use chrome::{ChromeTrace, chrome_trace};
pub use context::ReportContext;
pub use distribution::{Distribution, PERCENTILES, nearest_rank};
pub use document::document;
pub use gauges::{Gauge, GaugeReadings, Gauges};
pub use latency::{FinishCounts, LatencyReport, PrefixCacheTokens, RankedRequest, Span, TokenTotals, Wholes};
pub use sums::{DecodeSums, EngineTtftSums, SumMismatch, TtftSums};
pub use window::{DEFAULT_WINDOW, MAX_WINDOW, ReportWindow, TimelineRefused};

//! What a latency figure means nothing without.
//!
//! The host fills it in; no sum uses it. Invariant: every report carries one.

use serde::{Deserialize, Serialize};

use crate::timeline::ModelLabel;

/// Under which conditions the figures of a report were measured.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
pub struct ReportContext {
    /// Requests a second: those that were offered, or those that were counted (`ReportWindow::request_rate`).
    /// Absent where there is no rate: one request, a burst, or a loop that waits for its answers.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub request_rate: Option<f64>,
    /// Requests under way at once: as set, or as counted (`ReportWindow::mean_concurrency`).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub concurrency: Option<f64>,
    /// Whether the prefix cache was on.
    pub prefix_cache: bool,
    /// The model that answered.
    pub model: ModelLabel,
    /// The adapter it ran on, as its driver calls it.
    pub adapter: String,
    /// Sequences in a batch at most.
    pub slots: u32,
}

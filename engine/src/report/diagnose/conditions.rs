//! What a figure of a diagnosis means nothing without.
//!
//! Invariant: what nobody told is absent, never a guess.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::{ReportContext, ReportWindow};

/// Under which conditions a window was measured.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
pub struct Conditions {
    /// Requests in the window.
    pub n: usize,
    /// Those with a first token.
    pub n_answered: usize,
    /// The percentile that is shown beside medians.
    pub percentile: u32,
    /// Requests a second, from the first arrival to the last; absent where all came at once.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub request_rate: Option<f64>,
    /// Requests under way at once, on average.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub concurrency: Option<f64>,
    /// Whether the prefix cache was on.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prefix_cache: Option<bool>,
    /// The model that answered and how its weights are stored.
    pub model: String,
    /// The adapter it ran on.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub adapter: Option<String>,
    /// Sequences in a batch at most.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub slots: Option<u32>,
}

impl From<&ReportContext> for Conditions {
    fn from(context: &ReportContext) -> Self {
        Self {
            prefix_cache: Some(context.prefix_cache),
            adapter: Some(context.adapter.clone()),
            slots: Some(context.slots),
            ..Self::default()
        }
    }
}

impl Conditions {
    /// With what `window` itself tells.
    pub(super) fn of_window(&self, window: &ReportWindow) -> Self {
        let mut conditions = self.clone();
        conditions.n = window.len();
        conditions.n_answered = window.iter().filter(|t| t.stamps().first_token.is_some()).count();
        conditions.percentile = super::rules::PERCENTILE;
        conditions.request_rate = window.request_rate();
        conditions.concurrency = window.mean_concurrency();
        if let Some(timeline) = window.iter().next() {
            let model = timeline.model();
            conditions.model = format!("{} {}", model.name, model.quantisation).trim().to_owned();
        }
        conditions
    }
}

impl fmt::Display for Conditions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} requests, {} of them answered", self.n, self.n_answered)?;
        match self.request_rate {
            Some(rate) => write!(f, "; {rate:.2} a second")?,
            None => f.write_str("; no rate")?,
        }
        if let Some(concurrency) = self.concurrency {
            write!(f, ", {concurrency:.1} at once")?;
        }
        if let Some(slots) = self.slots {
            write!(f, ", {slots} slots")?;
        }
        let cache = match self.prefix_cache {
            Some(true) => "on",
            Some(false) => "off",
            None => "not told",
        };
        let adapter = self.adapter.as_deref().unwrap_or("an adapter that is not told");
        let model = if self.model.is_empty() { "a model that is not told" } else { &self.model };
        write!(f, "; p50 and p{}; prefix cache {cache}; {model} on {adapter}", self.percentile)
    }
}

//! Four gauges over the steps of a window: KV cache utilisation, queue depth, running batch size, preemptions.
//!
//! Each step counts once, however long it took. Invariant: a gauge without a step is absent.

use serde::{Deserialize, Serialize};

use super::Span;
use crate::timeline::{StepRecord, StepRing};

/// The gauges as an engine shows them at this instant, handed in by its host.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GaugeReadings {
    /// KV blocks in use.
    pub blocks_used: u32,
    /// KV blocks in the pool.
    pub blocks_total: u32,
    /// Requests in inbox and queue.
    pub waiting: u32,
    /// Sequences in the batch.
    pub running: u32,
    /// Evictions since the engine started.
    pub preemptions_total: u64,
}

/// One gauge.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize, Serialize)]
pub struct Gauge {
    /// As handed in, else that of the youngest step.
    pub now: f64,
    /// Over the steps.
    pub mean: f64,
    /// Over the steps.
    pub max: f64,
}

/// The four gauges over the steps that began between a window's first arrival and its last end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Deserialize, Serialize)]
pub struct Gauges {
    /// Steps that were looked at: those the ring still had.
    pub steps: usize,
    /// Blocks in use over blocks in the pool, 0 to 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kv_cache_utilisation: Option<Gauge>,
    /// Requests waiting.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub queue_depth: Option<Gauge>,
    /// Sequences in the batch.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub running: Option<Gauge>,
    /// Evictions: `mean` and `max` of a step; `now` since the engine started, else those of the youngest step.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub preemptions: Option<Gauge>,
    /// Evictions in all these steps.
    pub preemptions_in_steps: u64,
}

impl Gauges {
    /// Folds the steps that began within `span`; without one, none.
    pub fn of(steps: &StepRing, span: Option<Span>, readings: Option<GaugeReadings>) -> Self {
        let within: Vec<&StepRecord> = span
            .into_iter()
            .flat_map(|span| steps.iter().filter(move |s| span.holds(s.schedule_at)))
            .collect();
        let gauge = |now: Option<f64>, value: &dyn Fn(&StepRecord) -> Option<f64>| {
            let values: Vec<f64> = within.iter().filter_map(|step| value(step)).collect();
            let last = *values.last()?;
            let mean = values.iter().sum::<f64>() / values.len() as f64;
            Some(Gauge { now: now.unwrap_or(last), mean, max: values.iter().copied().fold(last, f64::max) })
        };
        let used = |used: u32, total: u32| (total > 0).then(|| f64::from(used) / f64::from(total));
        Self {
            steps: within.len(),
            kv_cache_utilisation: gauge(
                readings.and_then(|r| used(r.blocks_used, r.blocks_total)),
                &|step| used(step.blocks_used, step.blocks_total),
            ),
            queue_depth: gauge(readings.map(|r| f64::from(r.waiting)), &|s| Some(f64::from(s.waiting))),
            running: gauge(readings.map(|r| f64::from(r.running)), &|s| Some(f64::from(s.running))),
            preemptions: gauge(readings.map(|r| r.preemptions_total as f64), &|step| {
                Some(step.preempted.len() as f64)
            }),
            preemptions_in_steps: within.iter().map(|step| step.preempted.len() as u64).sum(),
        }
    }
}

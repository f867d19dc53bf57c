//! What one step held, so that a slow gap between two tokens can be blamed on what shared the step.
//!
//! Plain data, written once by the engine. Invariant: `schedule_at <= submit_at <= done_at`.

use serde::{Deserialize, Serialize};

use crate::clock::Nanos;
use crate::request::RequestId;

/// Where admission stopped in a pass that left someone waiting.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Obstacle {
    /// The batch is full.
    Slots,
    /// The step's tokens are spent.
    Budget,
    /// Too few free KV blocks for the first in the queue.
    Blocks,
    /// The first in the queue is another choice of a request whose prompt is still being computed.
    Order,
    /// The device is being rebuilt.
    Paused,
}

/// GPU time of one step by stage, from a pass that was cut for it. In a sum with nothing: the cuts cost time themselves.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
pub struct StageTimes {
    /// Token embedding.
    pub embed_ns: u64,
    /// All layers: norms, attention, feed-forward.
    pub layers_ns: u64,
    /// The output norm and the head, for the sampled rows.
    pub head_ns: u64,
    /// Sampling, where the GPU does it.
    pub sample_ns: u64,
}

/// One step of the engine.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
pub struct StepRecord {
    /// Counts from 0 in one engine.
    pub id: u64,
    /// The pass's `now`.
    pub schedule_at: Nanos,
    /// The batch was handed to the runner; a step ahead had been by then, see `ahead_ns`.
    pub submit_at: Nanos,
    /// Its tokens were on the CPU, or the runner failed.
    pub done_at: Nanos,
    /// Where it was submitted while the step before was still running, its tokens unknown: how long before `schedule_at`.
    /// From there on its time is billed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ahead_ns: Option<Nanos>,
    /// The pass on the GPU's own clock, where the adapter has one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gpu_ns: Option<u64>,
    /// The same by stage, in profiling mode.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stages: Option<StageTimes>,
    /// Rows that continue an answer.
    pub decode_rows: u32,
    /// Prompt (or recomputed) tokens by request.
    pub prefill: Vec<(RequestId, u32)>,
    /// Requests in the batch after the pass.
    pub running: u32,
    /// Requests that the pass left waiting.
    pub waiting: u32,
    /// The device failed in it: who ran has ended, and who waits is paused until the next step.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub failed: bool,
    /// Where admission stopped; absent where nobody waits.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub obstacle: Option<Obstacle>,
    /// KV blocks in use during the step.
    pub blocks_used: u32,
    /// KV blocks in the pool.
    pub blocks_total: u32,
    /// Requests that the pass evicted.
    pub preempted: Vec<RequestId>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_step_is_read_as_it_was_written() {
        let step = StepRecord {
            id: 7,
            schedule_at: 1,
            submit_at: 2,
            done_at: 3,
            ahead_ns: None,
            gpu_ns: None,
            stages: None,
            decode_rows: 4,
            prefill: vec![(RequestId(5), 6)],
            running: 5,
            waiting: 0,
            failed: false,
            obstacle: None,
            blocks_used: 8,
            blocks_total: 9,
            preempted: Vec::new(),
        };
        let full = StepRecord {
            ahead_ns: Some(2),
            gpu_ns: Some(1),
            stages: Some(StageTimes::default()),
            failed: true,
            obstacle: Some(Obstacle::Blocks),
            preempted: vec![RequestId(1)],
            ..step.clone()
        };
        for step in [step, full] {
            let text = serde_json::to_string(&step).unwrap();
            assert_eq!(serde_json::from_str::<StepRecord>(&text).unwrap(), step, "{text}");
        }
    }
}

//! Calls and timelines for tests. Invariant: instants are small, and the first is 1.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use firstlight_engine::clock::Nanos;
use firstlight_engine::request::{FinishReason, RejectReason, RequestId, SamplingParams};
use firstlight_engine::timeline::{Edge, RequestLabels, RequestTimeline};

use super::CallFacts;
use crate::serve::wire::call::Form;

/// A call for so many choices of each prompt.
pub fn asked(num_choices: usize) -> CallFacts {
    CallFacts {
        form: Form::Completion,
        response_id: "cmpl-1".to_owned(),
        model: "small".to_owned(),
        asked_model: None,
        params: SamplingParams::default(),
        num_choices,
        max_model_len: 128,
        stream: false,
        trace: None,
        key_name: None,
        origin_unix_ms: 0,
        is_counted: AtomicBool::new(false),
    }
}

/// A timeline that ended in preparation, at `at` nanoseconds; without an end it is broken.
pub fn ended(end: Option<FinishReason>, at: Nanos) -> RequestTimeline {
    let mut timeline = RequestTimeline::new(RequestId(1), RequestLabels::default(), Arc::default());
    timeline.advance(Edge::Received, 1);
    if let Some(reason) = end {
        let detail = (reason == FinishReason::Rejected).then_some(RejectReason::EmptyPrompt);
        timeline.advance(Edge::Finished { reason, detail }, at);
    }
    timeline
}

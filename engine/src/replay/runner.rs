//! A runner that computes nothing: it lets the time of a step pass and gives tokens that mean nothing.
//!
//! Invariant: the clock moves by what the batch costs, once for each batch that is read.

use super::prompts::ANSWER;
use crate::clock::{ManualClock, Nanos};
use crate::request::SampledToken;
use crate::runner::{ModelRunner, RunnerError, RunnerOutput};
use crate::sched::Batch;

/// The runner. See the module.
pub(super) struct CostRunner<'c, F> {
    clock: &'c ManualClock,
    step_ns: F,
    runs_ahead: bool,
    /// Steps take no time.
    pub(super) is_free: bool,
}

impl<'c, F: FnMut(&Batch) -> Nanos> CostRunner<'c, F> {
    pub(super) fn new(clock: &'c ManualClock, step_ns: F, runs_ahead: bool) -> Self {
        Self { clock, step_ns, runs_ahead, is_free: false }
    }
}

impl<F: FnMut(&Batch) -> Nanos> ModelRunner for CostRunner<'_, F> {
    async fn execute(&mut self, batch: &Batch) -> Result<RunnerOutput, RunnerError> {
        if !self.is_free {
            self.clock.advance((self.step_ns)(batch));
        }
        let token = |_| SampledToken { token: ANSWER, logprobs: None };
        let tokens = batch.sample_rows.iter().map(token).collect();
        Ok(RunnerOutput { tokens, gpu_ns: None, stages: None })
    }

    fn runs_ahead(&self, _batch: &Batch) -> bool {
        self.runs_ahead
    }
}

//! The place of a runner that an engine uses and its host can empty.
//!
//! It runs nothing of its own. Invariant: a step that comes upon an empty place fails as one whose device is lost.

use std::cell::Cell;
use std::rc::Rc;

use super::{ModelRunner, RunnerError, RunnerOutput};
use crate::sched::Batch;

/// See the module. A failed runner gives its memory back before its successor is loaded, because a device has not always
/// room for two. Copies are the same place.
pub struct Place<R>(Rc<Cell<Option<Box<R>>>>);

impl<R> Place<R> {
    /// Takes out whoever is in it.
    pub fn take(&self) -> Option<Box<R>> {
        self.0.take()
    }

    /// Puts a runner in, in the place of the one before.
    pub fn put(&self, runner: R) {
        self.0.set(Some(Box::new(runner)));
    }
}

impl<R> Default for Place<R> {
    fn default() -> Self {
        Self(Rc::new(Cell::new(None)))
    }
}

impl<R> Clone for Place<R> {
    fn clone(&self) -> Self {
        Self(Rc::clone(&self.0))
    }
}

impl<R: ModelRunner> ModelRunner for Place<R> {
    async fn execute(&mut self, batch: &Batch) -> Result<RunnerOutput, RunnerError> {
        let Some(mut runner) = self.0.take() else { return Err(given_up()) };
        let result = runner.execute(batch).await;
        self.0.set(Some(runner));
        result
    }

    fn runs_ahead(&self, batch: &Batch) -> bool {
        let runner = self.0.take();
        let runs_ahead = runner.as_ref().is_some_and(|runner| runner.runs_ahead(batch));
        self.0.set(runner);
        runs_ahead
    }

    async fn execute_ahead(&mut self, batch: &Batch, next: &Batch) -> Result<RunnerOutput, RunnerError> {
        let Some(mut runner) = self.0.take() else { return Err(given_up()) };
        let result = runner.execute_ahead(batch, next).await;
        self.0.set(Some(runner));
        result
    }

    fn profile(&mut self, on: bool) {
        if let Some(mut runner) = self.0.take() {
            runner.profile(on);
            self.0.set(Some(runner));
        }
    }
}

fn given_up() -> RunnerError {
    RunnerError::DeviceLost("it was given up after a failure".into())
}

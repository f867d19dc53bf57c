//! The bounded way into the engine's thread: submissions up to a limit, and what is said about requests beside them.
//!
//! Nobody who puts something in ever waits. Invariant: commands come out in the order in which they went in, and nothing
//! goes in once it is closed, so that whoever closes it can end everything that is left.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use firstlight_engine::clock::Nanos;
use firstlight_engine::request::{FinishReason, RejectReason, RequestId};

use super::{LiveReply, Refused, Submission};

/// What the engine's thread is told.
pub(super) enum Command {
    /// A request.
    Submit(Box<Submission>),
    /// The end of one.
    Abort { id: RequestId, reason: FinishReason, asked_at: Nanos },
    /// Times by stage, or none.
    Profile(bool),
    /// Who is here, told between two steps.
    Live(LiveReply),
    /// No more requests will come; those that have not ended by then are cancelled.
    ShutDown { at: Nanos },
}

/// The inbox. One lock is all: a separate count of submissions could be read between its change and the queue's.
pub(super) struct Inbox {
    state: Mutex<State>,
    arrived: Condvar,
    /// It was closed.
    ended: Condvar,
    capacity: usize,
}

#[derive(Default)]
struct State {
    commands: Vec<Command>,
    submissions: usize,
    /// What later submissions are told.
    closed: Option<RejectReason>,
    /// Nobody will ever take what is here.
    left: bool,
}

impl Inbox {
    /// Room for `capacity` submissions. Aborts are not counted: one must get through when the inbox is full, and a host
    /// sends at most a few for each request that it has open.
    pub(super) fn new(capacity: usize) -> Self {
        Self { state: Mutex::default(), arrived: Condvar::new(), ended: Condvar::new(), capacity }
    }

    /// All at once: whoever takes the first of them out takes all. Those that find no room come back.
    pub(super) fn submit_together(&self, submissions: Vec<Submission>) -> Vec<Refused> {
        let mut state = self.lock();
        submissions.into_iter().filter_map(|submission| self.put(&mut state, submission).err()).collect()
    }

    fn put(&self, state: &mut State, submission: Submission) -> Result<(), Refused> {
        let full = state.submissions >= self.capacity;
        let busy = || RejectReason::Busy { waiting: u32::try_from(state.submissions).unwrap_or(u32::MAX) };
        let submission = Box::new(submission);
        if let Some(reason) = state.closed.clone().or_else(|| full.then(busy)) {
            return Err(Refused { reason, submission });
        }
        state.submissions += 1;
        state.commands.push(Command::Submit(submission));
        self.arrived.notify_one();
        Ok(())
    }

    /// Puts in anything else.
    pub(super) fn tell(&self, command: Command) {
        let mut state = self.lock();
        if !state.left {
            state.commands.push(command);
            self.arrived.notify_one();
        }
    }

    /// Refuses submissions from now on, with `reason` unless it was closed before, and leaves `last` behind those that
    /// are here.
    pub(super) fn close(&self, reason: RejectReason, last: Option<Command>) {
        let mut state = self.lock();
        state.closed.get_or_insert(reason);
        if !state.left {
            state.commands.extend(last);
        }
        self.arrived.notify_one();
        self.ended.notify_all();
    }

    /// All that is here now.
    pub(super) fn take(&self) -> Vec<Command> {
        take(&mut self.lock())
    }

    /// The same, but waits until there is something.
    pub(super) fn wait(&self) -> Vec<Command> {
        let state = self.lock();
        let waited = self.arrived.wait_while(state, |state| state.commands.is_empty());
        take(&mut waited.unwrap_or_else(PoisonError::into_inner))
    }

    /// The reader goes: what is here comes out, and nothing is kept any more. To be called after [`Self::close`].
    pub(super) fn leave(&self) -> Vec<Command> {
        let mut state = self.lock();
        state.left = true;
        take(&mut state)
    }

    /// Submissions that are here.
    pub(super) fn num_submissions(&self) -> usize {
        self.lock().submissions
    }

    /// Why no submission is taken any more.
    pub(super) fn closed(&self) -> Option<RejectReason> {
        self.lock().closed.clone()
    }

    /// Waits until no submission is taken any more, and says why.
    pub(super) fn wait_until_closed(&self) -> RejectReason {
        let mut state = self.lock();
        loop {
            match &state.closed {
                Some(reason) => return reason.clone(),
                None => state = self.ended.wait(state).unwrap_or_else(PoisonError::into_inner),
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // Nothing in here can panic half-way, so a poisoned state is a whole one.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn take(state: &mut State) -> Vec<Command> {
    state.submissions = 0;
    std::mem::take(&mut state.commands)
}

//! Lines on their way to standard error, written by a thread of their own.
//!
//! Whoever logs never waits for whoever reads the log. Invariant: at most [`MAX_LINES`] lines wait; one that finds no room
//! is counted, and the count is told once lines get through again.

use std::collections::VecDeque;
use std::io::{self, Write};
use std::sync::{Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use crate::failure::Failure;

/// Lines that wait at most: a few hundred kilobytes.
const MAX_LINES: usize = 1024;

/// The one log of this process, once it has one.
static LOG: OnceLock<Lines> = OnceLock::new();

/// Sets the process's log up.
///
/// # Errors
/// The system gives no thread.
pub(super) fn start() -> Result<&'static Lines, Failure> {
    let log = LOG.get_or_init(Lines::default);
    let named = std::thread::Builder::new().name("firstlight-log".into());
    named.spawn(|| log.carry(&mut io::stderr())).map_err(|error| {
        Failure::failed(format!("the log's thread cannot be started: {error}; close other programs"))
    })?;
    Ok(log)
}

/// The process's log, if it has one.
pub(super) fn log() -> Option<&'static Lines> {
    LOG.get()
}

/// See the module.
#[derive(Debug, Default)]
pub struct Lines {
    state: Mutex<State>,
    filled: Condvar,
    emptied: Condvar,
}

#[derive(Debug, Default)]
struct State {
    waiting: VecDeque<Box<[u8]>>,
    /// One is on its way.
    writing: bool,
    lost: u64,
    /// Those of them that no line has told of.
    untold: u64,
}

impl Lines {
    fn state(&self) -> MutexGuard<'_, State> {
        // Each change is whole.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn push(&self, line: &[u8]) {
        let mut state = self.state();
        if state.waiting.len() < MAX_LINES {
            state.waiting.push_back(line.into());
            self.filled.notify_one();
        } else {
            state.lose();
        }
    }

    /// Lines that nobody will read.
    pub fn num_lost(&self) -> u64 {
        self.state().lost
    }

    /// Waits until all that was logged so far is written, but no longer than `limit`.
    pub fn settle(&self, limit: Duration) {
        let under_way = |state: &mut State| state.writing || !state.waiting.is_empty();
        // Written or not, whoever asks goes on.
        drop(self.emptied.wait_timeout_while(self.state(), limit, under_way));
    }

    fn carry(&self, out: &mut impl Write) {
        loop {
            let line = self.next();
            let written = out.write_all(&line).and_then(|()| out.flush()).is_ok();
            let mut state = self.state();
            if !written {
                state.lose();
                continue;
            }
            let untold = std::mem::take(&mut state.untold);
            drop(state);
            if untold > 0 {
                tracing::warn!(
                    lines = untold,
                    "lines of this log were lost: its reader was too slow, or away"
                );
            }
        }
    }

    fn next(&self) -> Box<[u8]> {
        let mut state = self.state();
        loop {
            if let Some(line) = state.waiting.pop_front() {
                state.writing = true;
                return line;
            }
            state.writing = false;
            self.emptied.notify_all();
            state = self.filled.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

impl State {
    fn lose(&mut self) {
        self.lost += 1;
        self.untold += 1;
    }
}

/// One line is one write.
impl Write for &Lines {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        self.push(line);
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{Receiver, Sender, channel};

    use super::*;

    /// A reader that takes a line when it is told to, and says what it took. Ends the thread when nobody tells it any more.
    struct Reader(Receiver<()>, Sender<Vec<u8>>);

    impl Write for Reader {
        fn write(&mut self, line: &[u8]) -> io::Result<usize> {
            self.0.recv().map_err(io::Error::other)?;
            self.1.send(line.to_vec()).map_err(io::Error::other)?;
            Ok(line.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn nobody_waits_for_a_reader_that_does_not_read_and_what_is_lost_is_counted() {
        let lines: &'static Lines = Box::leak(Box::default());
        let (go, gate) = channel();
        let (took, taken) = channel();
        std::thread::spawn(move || lines.carry(&mut Reader(gate, took)));
        lines.push(b"first");
        go.send(()).unwrap();
        assert_eq!(taken.recv().unwrap(), b"first");
        lines.settle(Duration::MAX);
        // One may be on its way already; the others find MAX_LINES places.
        (0..MAX_LINES + 5).for_each(|n| lines.push(n.to_string().as_bytes()));
        let lost = lines.num_lost();
        assert!(lost == 4 || lost == 5, "{lost} were lost");
        lines.settle(Duration::ZERO);
        (0..MAX_LINES + 5 - usize::try_from(lost).unwrap()).for_each(|_| go.send(()).unwrap());
        lines.settle(Duration::MAX);
        assert_eq!(taken.try_iter().count(), MAX_LINES + 5 - usize::try_from(lost).unwrap());
        // The reader goes away: what is written then is lost, and nobody minds.
        drop(go);
        lines.push(b"for nobody");
        lines.settle(Duration::MAX);
        assert_eq!(lines.num_lost(), lost + 1);
    }
}

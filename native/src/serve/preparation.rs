//! Templates and tokenizers run here: a few threads of their own, with a bounded queue in front.
//!
//! Neither the async threads nor the engine's wait for a long prompt. Invariant: a full queue is an answer, and a job that
//! panics takes nobody else with it.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};

use crate::failure::Failure;
use crate::terminal::warn;

/// Prompts that wait for a worker, or are with one, at most.
const PLACES: usize = 256;

type Job = Box<dyn FnOnce() + Send>;

/// The workers. They end when the pool and its clones are gone.
#[derive(Clone)]
pub struct PreparationPool {
    jobs: Sender<(Job, Place)>,
    taken: Arc<AtomicUsize>,
}

/// A place in the queue, free again when it is dropped.
struct Place {
    taken: Arc<AtomicUsize>,
}

impl Drop for Place {
    fn drop(&mut self) {
        self.taken.fetch_sub(1, Ordering::AcqRel);
    }
}

/// A place that was kept for one job.
pub struct Reserved<'p> {
    pool: &'p PreparationPool,
    place: Place,
}

impl PreparationPool {
    /// Starts `workers` threads, at least one.
    ///
    /// # Errors
    /// The system gives no thread.
    pub fn start(workers: usize) -> Result<Self, Failure> {
        let (jobs, queue) = channel();
        let queue = Arc::new(Mutex::new(queue));
        for _ in 0..workers.max(1) {
            let queue = Arc::clone(&queue);
            let named = std::thread::Builder::new().name("firstlight-prepare".into());
            named.spawn(move || work(&queue)).map_err(|error| {
                Failure::failed(format!(
                    "a preparation worker cannot be started: {error}; close other programs"
                ))
            })?;
        }
        Ok(Self { jobs, taken: Arc::default() })
    }

    /// Keeps a place for one job; `None` where all are taken.
    pub fn reserve(&self) -> Option<Reserved<'_>> {
        let place = Place { taken: Arc::clone(&self.taken) };
        // Counted before it is looked at; a place that is not kept is given back.
        let before = self.taken.fetch_add(1, Ordering::AcqRel);
        (before < PLACES).then_some(Reserved { pool: self, place })
    }
}

impl Reserved<'_> {
    /// Hands the job to the next worker that is free. Never waits.
    pub fn run(self, job: impl FnOnce() + Send + 'static) {
        // The workers live as long as the pool.
        let _ = self.pool.jobs.send((Box::new(job), self.place));
    }
}

fn work(queue: &Mutex<Receiver<(Job, Place)>>) {
    loop {
        // The lock is held while this worker waits for the next job, and let go before it does it.
        let next = queue.lock().unwrap_or_else(PoisonError::into_inner).recv();
        let Ok((job, _place)) = next else { return };
        if catch_unwind(AssertUnwindSafe(job)).is_err() {
            warn("a request was lost to a defect of firstlight in its preparation; report it");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_bounded_and_come_back_also_after_a_panic() {
        let pool = PreparationPool::start(1).unwrap();
        let (go, wait) = channel::<()>();
        let (tell, told) = channel();
        pool.reserve().unwrap().run(move || wait.recv().unwrap());
        pool.reserve().unwrap().run(|| panic!("a job that panics"));
        for n in 2..PLACES {
            let tell = tell.clone();
            pool.reserve().unwrap().run(move || tell.send(n).unwrap());
        }
        assert!(pool.reserve().is_none(), "every place is taken");
        go.send(()).unwrap();
        drop(tell);
        assert_eq!(told.iter().collect::<Vec<_>>(), (2..PLACES).collect::<Vec<_>>());
        // The last job's place comes back just after it has told its number.
        while pool.reserve().is_none() {
            std::thread::yield_now();
        }
    }
}

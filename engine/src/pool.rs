//! Threads for jobs that block: a neighbour may take seconds to answer, and must not delay other
//! jobs.
//!
//! Not the `threadpool` crate: it starts all threads at once and panics if the system refuses one.
//! The engine runs in other programs' processes, where both are unacceptable. This pool starts a
//! thread only when no idle one is left, and returns an error if the first thread cannot be
//! started.

use std::collections::VecDeque;
use std::fmt;
use std::io;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

/// A job for one of the threads.
pub(crate) type Job = Box<dyn FnOnce() + Send>;

/// A queue of jobs and the threads that run them. Threads are started as needed and live as long as
/// the pool.
pub(crate) struct Pool {
    shared: Arc<Shared>,
}

struct Shared {
    name: &'static str,
    /// Maximum number of threads.
    max_threads: usize,
    state: Mutex<State>,
    job_queued: Condvar,
}

#[derive(Default)]
struct State {
    jobs: VecDeque<Job>,
    idle: usize,
    threads: usize,
    is_closed: bool,
}

impl fmt::Debug for Pool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pool").field("name", &self.shared.name).finish_non_exhaustive()
    }
}

impl Pool {
    /// Makes a pool of up to `max_threads` threads with this name.
    pub(crate) fn new(name: &'static str, max_threads: usize) -> Self {
        let (state, job_queued) = (Mutex::default(), Condvar::new());
        Self { shared: Arc::new(Shared { name, max_threads, state, job_queued }) }
    }

    /// Queues `job` for the threads.
    ///
    /// # Errors
    /// When the pool has no thread and none can be started.
    pub(crate) fn run(&self, job: Job) -> io::Result<()> {
        let mut state = self.shared.lock();
        if state.idle <= state.jobs.len() && state.threads < self.shared.max_threads {
            let shared = Arc::clone(&self.shared);
            match feroce_threads::spawn(self.shared.name, move || shared.serve()) {
                Ok(_) => state.threads += 1,
                Err(error) if state.threads == 0 => return Err(error),
                Err(error) => {
                    tracing::debug!("cannot start another thread of {}: {error}", self.shared.name)
                }
            }
        }
        state.jobs.push_back(job);
        self.shared.job_queued.notify_one();
        Ok(())
    }
}

impl Drop for Pool {
    /// The threads end after the job that they are running; queued jobs are dropped.
    fn drop(&mut self) {
        let jobs = {
            let mut state = self.shared.lock();
            state.is_closed = true;
            std::mem::take(&mut state.jobs)
        };
        drop(jobs);
        self.shared.job_queued.notify_all();
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn serve(&self) {
        let mut state = self.lock();
        while !state.is_closed {
            let Some(job) = state.jobs.pop_front() else {
                state.idle += 1;
                state = self.job_queued.wait(state).unwrap_or_else(PoisonError::into_inner);
                state.idle -= 1;
                continue;
            };
            drop(state);
            job();
            state = self.lock();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Barrier;

    use super::*;

    /// Two jobs that wait for each other both finish, and so do all others.
    #[test]
    fn jobs_do_not_wait_for_each_other() {
        const MOST: usize = 4;
        let pool = Pool::new("feroce-test", MOST);
        let (meet, done) = (Arc::new(Barrier::new(2)), Arc::new(Barrier::new(MOST + 5)));
        for number in 0..MOST + 4 {
            let (meet, done) = (Arc::clone(&meet), Arc::clone(&done));
            let job = move || {
                if number < 2 {
                    meet.wait();
                }
                // A thread per job, which waits for the test.
                std::thread::spawn(move || done.wait());
            };
            pool.run(Box::new(job)).unwrap();
        }
        done.wait();
        assert!(pool.shared.lock().threads <= MOST);
    }
}

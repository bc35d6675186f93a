//! Threads for what waits for others: a neighbour may take seconds to answer, and nobody shall wait for another's.

use std::collections::VecDeque;
use std::fmt;
use std::io;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

/// What a thread does.
pub(super) type Job = Box<dyn FnOnce() + Send>;

/// Jobs that wait, and the threads that do them. Threads are made as they are needed, and stay as long as the pool.
pub(super) struct Pool {
    shared: Arc<Shared>,
}

struct Shared {
    name: &'static str,
    /// Threads at most.
    most: usize,
    state: Mutex<State>,
    asked: Condvar,
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
    /// Up to `most` threads of that name.
    pub(super) fn new(name: &'static str, most: usize) -> Self {
        let (state, asked) = (Mutex::default(), Condvar::new());
        Self { shared: Arc::new(Shared { name, most, state, asked }) }
    }

    /// Has one of the threads do `job`.
    ///
    /// # Errors
    /// When there is no thread and none can be had.
    pub(super) fn run(&self, job: Job) -> io::Result<()> {
        let mut state = self.shared.lock();
        if state.idle <= state.jobs.len() && state.threads < self.shared.most {
            let shared = Arc::clone(&self.shared);
            let thread = std::thread::Builder::new().name(self.shared.name.to_owned());
            match thread.spawn(move || shared.serve()) {
                Ok(_) => state.threads += 1,
                Err(error) if state.threads == 0 => return Err(error),
                Err(error) => tracing::debug!("one thread less of {}: {error}", self.shared.name),
            }
        }
        state.jobs.push_back(job);
        self.shared.asked.notify_one();
        Ok(())
    }
}

impl Drop for Pool {
    /// Its threads end, once they have done what they do now.
    fn drop(&mut self) {
        let jobs = {
            let mut state = self.shared.lock();
            state.is_closed = true;
            std::mem::take(&mut state.jobs)
        };
        drop(jobs);
        self.shared.asked.notify_all();
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
                state = self.asked.wait(state).unwrap_or_else(PoisonError::into_inner);
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

    /// Two that wait for each other are both done, and all others too.
    #[test]
    fn jobs_do_not_wait_for_each_other() {
        const MOST: usize = 4;
        let pool = Pool::new("test", MOST);
        let (meet, done) = (Arc::new(Barrier::new(2)), Arc::new(Barrier::new(MOST + 5)));
        for number in 0..MOST + 4 {
            let (meet, done) = (Arc::clone(&meet), Arc::clone(&done));
            let job = move || {
                if number < 2 {
                    meet.wait();
                }
                // Each in a thread of its own, which meets the test at the end.
                std::thread::spawn(move || done.wait());
            };
            pool.run(Box::new(job)).unwrap();
        }
        done.wait();
        assert!(pool.shared.lock().threads <= MOST);
    }
}

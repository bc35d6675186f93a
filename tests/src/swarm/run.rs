//! Runs many seeds on all processors.

use std::fmt::Display;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// A run stops after this many failures.
const MAX_FAILURES: usize = 3;

/// The number in the environment variable `name`, if it is set.
///
/// # Panics
/// If it is not a number.
pub fn number(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{name}={text} is not a number")))
}

/// Runs the seeds `seeds(0)`, `seeds(1)` and so on up to the first `None`, on as many threads as
/// there are processors, but at most `threads`. Each thread keeps a rig `R` of its own. Returns the
/// sum of what the scenarios covered, and the failures, which are printed when they happen.
pub fn run_all<R: Default, T: Default + Send, F: Display + Send>(
    threads: usize,
    seeds: &(dyn Fn(u64) -> Option<u64> + Sync),
    run: impl Fn(&mut R, u64) -> Result<T, F> + Sync,
    add: impl Fn(&mut T, &T) + Sync,
) -> (T, Vec<F>) {
    let (next, stop) = (AtomicU64::new(0), AtomicBool::new(false));
    let (failures, total) = (Mutex::new(Vec::new()), Mutex::new(T::default()));
    let work = || {
        let (mut rig, mut sum) = (R::default(), T::default());
        while !stop.load(Ordering::Relaxed) {
            let Some(seed) = seeds(next.fetch_add(1, Ordering::Relaxed)) else { break };
            match run(&mut rig, seed) {
                Ok(one) => add(&mut sum, &one),
                Err(failure) => {
                    eprintln!("{failure}\n");
                    let mut failures = failures.lock().unwrap();
                    failures.push(failure);
                    stop.store(failures.len() >= MAX_FAILURES, Ordering::Relaxed);
                }
            }
        }
        add(&mut total.lock().unwrap(), &sum);
    };
    let processors = std::thread::available_parallelism().map_or(2, usize::from);
    std::thread::scope(|scope| {
        for _ in 0..threads.min(processors) {
            scope.spawn(work);
        }
    });
    (total.into_inner().unwrap(), failures.into_inner().unwrap())
}

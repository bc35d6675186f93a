//! Independent work on several threads, with results in order.

use std::collections::BTreeMap;
use std::panic::{self, AssertUnwindSafe};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::thread;

/// Number of threads: as asked for, or one for each CPU.
pub(crate) fn jobs(asked: Option<u16>) -> usize {
    asked.map_or_else(|| thread::available_parallelism().map_or(1, Into::into), usize::from)
}

/// How many results may wait for an earlier one, for each thread: they are in memory.
const AHEAD: usize = 16;

/// Calls `work` with 0 to `count` - 1 on `jobs` threads, and `each` on this thread with the results
/// in this order, as soon as they are there. Results therefore do not depend on `jobs`.
///
/// # Errors
/// The first error of `each`. Work that has not begun by then is left out.
///
/// # Panics
/// If threads cannot be started, and with a panic of `work`.
pub(crate) fn in_order<T: Send, E: Send>(
    jobs: usize,
    count: usize,
    work: impl Fn(usize) -> T + Sync,
    mut each: impl FnMut(usize, T) -> Result<(), E>,
) -> Result<(), E> {
    let pool = rayon::ThreadPoolBuilder::new().num_threads(jobs).build();
    let pool = pool.expect("threads can be started");
    let (done, results) = mpsc::channel();
    let (is_over, work) = (AtomicBool::new(false), &work);
    pool.in_place_scope_fifo(|scope| {
        let begin = |number: usize| {
            let (done, is_over) = (done.clone(), &is_over);
            scope.spawn_fifo(move |_| {
                if !is_over.load(Ordering::Relaxed) {
                    let result = panic::catch_unwind(AssertUnwindSafe(|| work(number)));
                    // Nobody receives after an error.
                    let _ = done.send((number, result));
                }
            });
        };
        let ahead = count.min(jobs.saturating_mul(AHEAD));
        (0..ahead).for_each(begin);
        let end = || is_over.store(true, Ordering::Relaxed);
        let mut early = BTreeMap::new();
        for next in 0..count {
            let result = loop {
                if let Some(result) = early.remove(&next) {
                    break result;
                }
                let (number, result) = results.recv().expect("`done` still exists");
                let result = result.unwrap_or_else(|cause| {
                    end();
                    panic::resume_unwind(cause)
                });
                early.insert(number, result);
            };
            if next + ahead < count {
                begin(next + ahead);
            }
            each(next, result).inspect_err(|_| end())?;
        }
        Ok(())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_come_in_order_for_any_number_of_threads() {
        for jobs in [1, 2, 7] {
            let mut seen = Vec::new();
            let slow = |number: usize| {
                // Later work ends earlier.
                (0..(40 - number) * 1000).fold(number, |a, b| std::hint::black_box(a ^ b ^ b))
            };
            let each = |number, result| {
                seen.push((number, result));
                Ok::<(), ()>(())
            };
            in_order(jobs, 40, slow, each).unwrap();
            assert_eq!(seen, (0..40).map(|number| (number, number)).collect::<Vec<_>>());
        }
    }

    #[test]
    fn a_panic_ends_the_work() {
        let work = |number: usize| assert_ne!(number, 5, "five");
        let ran = panic::catch_unwind(|| in_order(2, 1000, work, |_, ()| Ok::<(), ()>(())));
        assert!(ran.is_err());
    }

    #[test]
    fn an_error_ends_the_work() {
        let mut seen = 0;
        let each = |number, ()| {
            seen += 1;
            if number == 3 { Err("no") } else { Ok(()) }
        };
        assert_eq!(in_order(2, 1000, |_| (), each), Err("no"));
        assert_eq!(seen, 4);
    }
}

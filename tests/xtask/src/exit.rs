//! Clean-up that runs when a value is dropped, and also when SIGINT, SIGTERM or SIGHUP ends the
//! program.

use std::collections::BTreeMap;
use std::sync::Mutex;

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

type Action = Box<dyn FnOnce() + Send>;

/// Actions by the order in which they were registered.
static PENDING: Mutex<BTreeMap<u64, Action>> = Mutex::new(BTreeMap::new());

/// A registered action. Dropping it runs the action.
#[derive(Debug)]
#[must_use]
pub struct Guard(u64);

/// Registers `action`. Actions must not register others.
pub fn at_end(action: impl FnOnce() + Send + 'static) -> Guard {
    let mut pending = PENDING.lock().expect("no action panics");
    let number = pending.last_key_value().map_or(0, |(last, _)| last + 1);
    pending.insert(number, Box::new(action));
    Guard(number)
}

impl Guard {
    /// Removes the action without running it.
    pub fn disarm(&self) {
        let _ = PENDING.lock().expect("no action panics").remove(&self.0);
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        let action = PENDING.lock().expect("no action panics").remove(&self.0);
        if let Some(action) = action {
            action();
        }
    }
}

/// Starts the thread that waits for a signal. At a signal, it runs the actions, the last one
/// first, and ends the program with 128 + the signal's number. It keeps the lock meanwhile, so
/// that the main thread cannot start anything new.
pub fn watch_signals() -> std::io::Result<()> {
    let mut signals = Signals::new([SIGINT, SIGTERM, SIGHUP])?;
    std::thread::spawn(move || {
        if let Some(signal) = signals.forever().next() {
            let mut pending = PENDING.lock().expect("no action panics");
            while let Some((_, action)) = pending.pop_last() {
                action();
            }
            std::process::exit(128 + signal);
        }
    });
    Ok(())
}

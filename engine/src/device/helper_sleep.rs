//! When the sleeping helper of a core wakes by itself, as other threads must know: one that leaves
//! something to do before that time wakes the helper.
//!
//! The helper announces its sleep while it holds the core's token, and others look while they hold
//! it. So whoever takes the token after the helper knows of the sleep.

use crate::sync::{AtomicU64, Ordering};
use crate::time::Instant;

/// See the [module](self).
#[derive(Debug)]
pub struct HelperSleep {
    /// In nanoseconds of the device's clock; 0 while the helper is awake.
    until: AtomicU64,
}

impl HelperSleep {
    /// The helper is awake.
    pub fn new() -> Self {
        Self { until: AtomicU64::new(0) }
    }

    /// The helper, which holds the token, is about to sleep until `until`.
    pub fn begin(&self, until: Instant) {
        self.until.store(until.as_nanos(), Ordering::Relaxed);
    }

    /// The helper is awake or being woken, and looks at the core before it sleeps again.
    pub fn end(&self) {
        self.until.store(0, Ordering::Relaxed);
    }

    /// Returns true while the helper sleeps.
    pub fn is_asleep(&self) -> bool {
        self.until.load(Ordering::Relaxed) != 0
    }

    /// Returns true if the helper would sleep beyond the next turn of the core, whose time `next`
    /// returns. The caller holds the token.
    pub fn is_too_long(&self, next: impl FnOnce() -> Option<Instant>) -> bool {
        let until = self.until.load(Ordering::Relaxed);
        until != 0 && next().is_some_and(|next| next.as_nanos() < until)
    }
}

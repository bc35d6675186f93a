//! A lock that is taken by one call of the program and released by another.

use std::cell::UnsafeCell;

/// Held from [`HeldLock::lock`] to [`HeldLock::unlock`]. A mutex of the C library: std's is released by a guard,
/// which nobody could hold between two calls.
#[derive(Debug)]
pub struct HeldLock(Box<UnsafeCell<libc::pthread_mutex_t>>);

// SAFETY: locking is what it is for.
unsafe impl Sync for HeldLock {}
// SAFETY: in a box, it stays where it is.
unsafe impl Send for HeldLock {}

impl HeldLock {
    /// One that nobody holds.
    pub fn new() -> Self {
        Self(Box::new(UnsafeCell::new(libc::PTHREAD_MUTEX_INITIALIZER)))
    }

    /// Waits until it is free and takes it.
    #[inline]
    pub fn lock(&self) {
        // SAFETY: an initialised mutex that does not move.
        unsafe { libc::pthread_mutex_lock(self.0.get()) };
    }

    /// Releases it.
    #[inline]
    pub fn unlock(&self) {
        // SAFETY: as above.
        unsafe { libc::pthread_mutex_unlock(self.0.get()) };
    }
}

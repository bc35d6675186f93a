//! A lock that one call of the program takes and another call releases.

use std::cell::UnsafeCell;

/// Locked from [`HeldLock::lock`] to [`HeldLock::unlock`]. Uses a pthread mutex because the guard
/// of std's mutex cannot be kept between two calls from C.
#[derive(Debug)]
pub struct HeldLock(Box<UnsafeCell<libc::pthread_mutex_t>>);

// SAFETY: a mutex may be used from any thread at once.
unsafe impl Sync for HeldLock {}
// SAFETY: the box keeps the mutex at its address, so the value may be moved to another thread.
unsafe impl Send for HeldLock {}

impl HeldLock {
    /// Creates an unlocked lock.
    pub fn new() -> Self {
        Self(Box::new(UnsafeCell::new(libc::PTHREAD_MUTEX_INITIALIZER)))
    }

    /// Waits for the lock and takes it.
    #[inline]
    pub fn lock(&self) {
        // SAFETY: the mutex is initialised and does not move.
        unsafe { libc::pthread_mutex_lock(self.0.get()) };
    }

    /// Releases the lock.
    #[inline]
    pub fn unlock(&self) {
        // SAFETY: the mutex is initialised and does not move.
        unsafe { libc::pthread_mutex_unlock(self.0.get()) };
    }
}

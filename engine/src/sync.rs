//! Atomics, locks and cells of the rings and of the wake-up protocols.
//!
//! The files that use this module are also compiled with loom's types in its place (`engine/loom`),
//! which try the orders of these operations.

pub use std::sync::atomic::{
    AtomicBool, AtomicU8, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence,
};
pub use std::sync::{Mutex, MutexGuard};
pub use std::thread::yield_now;

use zerocopy::FromZeros;

/// Returns `count` zeros, whose memory is not resident before it is used.
///
/// # Panics
/// If there is no address space for them.
pub fn zeros(count: usize) -> Box<[AtomicU32]> {
    AtomicU32::new_vec_zeroed(count).expect("memory").into_boxed_slice()
}

/// A cell whose accesses loom checks: no other thread may access it meanwhile, and what was written
/// before must be visible.
#[derive(Debug)]
pub struct UnsafeCell<T>(std::cell::UnsafeCell<T>);

impl<T> UnsafeCell<T> {
    /// Makes a cell.
    pub fn new(value: T) -> Self {
        Self(std::cell::UnsafeCell::new(value))
    }

    /// Runs `read` with the address of the value, which it reads only.
    #[inline(always)]
    pub fn with<R>(&self, read: impl FnOnce(*const T) -> R) -> R {
        read(self.0.get())
    }

    /// Runs `write` with the address of the value.
    #[inline(always)]
    pub fn with_mut<R>(&self, write: impl FnOnce(*mut T) -> R) -> R {
        write(self.0.get())
    }
}

/// Marks accesses to the slots of a ring, which are raw memory, as those to an [`UnsafeCell`] each.
/// Without loom it is nothing.
#[derive(Debug)]
pub struct Handover;

impl Handover {
    /// For a ring of `slots` slots, a power of two.
    pub fn new(_slots: u32) -> Self {
        Self
    }

    /// The slot of frame or request `index` is written.
    #[inline(always)]
    pub fn write(&self, _index: u32) {}

    /// The slot of frame or request `index` is read.
    #[inline(always)]
    pub fn read(&self, _index: u32) {}
}

//! `engine/src/sync.rs` with loom's types.

pub use loom::cell::UnsafeCell;
pub use loom::sync::atomic::{
    AtomicBool, AtomicU8, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence,
};
pub use loom::sync::{Mutex, MutexGuard};
pub use loom::thread::yield_now;

/// Returns `count` zeros.
pub fn zeros(count: usize) -> Box<[AtomicU32]> {
    (0..count).map(|_| AtomicU32::new(0)).collect()
}

/// See the engine's.
#[derive(Debug)]
pub struct Handover(Vec<UnsafeCell<()>>);

// SAFETY: the cells contain nothing. They report accesses to loom, which checks them.
unsafe impl Sync for Handover {}

impl Handover {
    pub fn new(slots: u32) -> Self {
        Self((0..slots).map(|_| UnsafeCell::new(())).collect())
    }

    pub fn write(&self, slot: u32) {
        self.0[slot as usize % self.0.len()].with_mut(|_| ());
    }

    pub fn read(&self, slot: u32) {
        self.0[slot as usize % self.0.len()].with(|_| ());
    }
}

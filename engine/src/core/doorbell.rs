//! Doorbells: a posting thread notifies a core that a QP has new work.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, Ordering, fence};

use crossbeam_queue::ArrayQueue;

use crate::wake::EventFd;

/// The doorbell of one core: the slots with new work, and an eventfd that wakes a sleeping helper
/// thread.
#[derive(Debug)]
pub struct Doorbell {
    rung: ArrayQueue<u32>,
    sleeping: AtomicBool,
    wake: EventFd,
}

impl Doorbell {
    /// A doorbell for `slots` QPs.
    ///
    /// # Errors
    /// No free descriptor for the eventfd.
    pub fn new(slots: usize) -> std::io::Result<Self> {
        // A slot is queued at most once until its doorbell is handled. An entry of the slot's
        // previous QP may still be queued.
        let rung = ArrayQueue::new(slots.max(1) * 2);
        Ok(Self { rung, sleeping: AtomicBool::new(false), wake: EventFd::new()? })
    }

    /// Notifies the core that the QP in `slot`, whose flag is `posted`, has new work.
    #[inline]
    pub fn ring(&self, slot: u32, posted: &AtomicBool) {
        if posted.swap(true, Ordering::AcqRel) {
            return; // The slot is queued already.
        }
        let mut slot = slot;
        while let Err(again) = self.rung.push(slot) {
            slot = again; // The queue is full; the holder of the core's token is emptying it.
            std::thread::yield_now();
        }
        // Pairs with the fence in `arm`: at least one side reads the store of the other.
        fence(Ordering::SeqCst);
        if self.sleeping.load(Ordering::Relaxed) {
            self.wake.signal();
        }
    }

    /// Wakes a sleeping helper thread although no QP has new work.
    pub fn wake(&self) {
        self.wake.signal();
    }

    /// The next slot with new work.
    #[inline]
    pub(super) fn next(&self) -> Option<u32> {
        // An idle turn asks too, and `pop` on an empty queue executes a full fence.
        if self.rung.is_empty() { None } else { self.rung.pop() }
    }

    /// Requests a wake-up at the next ring. Returns false if a slot is queued already.
    pub(super) fn arm(&self) -> bool {
        self.sleeping.store(true, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        self.rung.is_empty()
    }

    /// Cancels the request of `arm` and clears the eventfd. Returns true if a wake-up had arrived.
    pub(crate) fn disarm(&self) -> bool {
        self.sleeping.store(false, Ordering::Relaxed);
        self.wake.clear()
    }

    /// A descriptor that is readable after a ring while armed.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.wake.as_fd()
    }
}

//! Doorbells: how a posting thread tells a core that a QP has new work.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, Ordering, fence};

use crossbeam_queue::ArrayQueue;

use crate::wake::EventFd;

/// The doorbell of one core: the slots that rang, and a wake-up for a sleeping helper.
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
    /// When the system has no descriptor left.
    pub fn new(slots: usize) -> std::io::Result<Self> {
        // A slot rings at most once until it is answered; a ring of its former QP may still be there.
        let rung = ArrayQueue::new(slots.max(1) * 2);
        Ok(Self { rung, sleeping: AtomicBool::new(false), wake: EventFd::new()? })
    }

    /// Tells the core that the QP in `slot`, whose flag is `posted`, has new work.
    #[inline]
    pub fn ring(&self, slot: u32, posted: &AtomicBool) {
        if posted.swap(true, Ordering::AcqRel) {
            return; // It rang already, and was not answered yet.
        }
        let mut slot = slot;
        while let Err(again) = self.rung.push(slot) {
            slot = again; // Many QPs rang; whoever holds the token is emptying the queue.
            std::thread::yield_now();
        }
        fence(Ordering::SeqCst); // Pairs with `arm`: one side sees the other.
        if self.sleeping.load(Ordering::Relaxed) {
            self.wake.signal();
        }
    }

    /// Wakes a sleeping helper without a QP to look at.
    pub fn wake(&self) {
        self.wake.signal();
    }

    #[inline]
    pub(super) fn next(&self) -> Option<u32> {
        self.rung.pop()
    }

    /// Asks to be woken. False if a ring waits already.
    pub(super) fn arm(&self) -> bool {
        self.sleeping.store(true, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        self.rung.is_empty()
    }

    /// Forgets that it was asked to wake, and wake-ups that came; whether one came.
    pub(crate) fn disarm(&self) -> bool {
        self.sleeping.store(false, Ordering::Relaxed);
        self.wake.clear()
    }

    /// Readable when armed and rung.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.wake.as_fd()
    }
}

//! A port that sends only as many frames as it is allowed to: replays release captured frames one
//! by one, and tests simulate a slow link.

use std::io;
use std::os::fd::RawFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use feroce_engine::port::shm::ShmPort;
use feroce_engine::port::{Port, PortAttributes, PortStats, Priority, RxFrame};

/// A port with a limited number of frames to send.
#[derive(Debug)]
pub struct GatedPort {
    inner: ShmPort,
    open: Arc<AtomicUsize>,
}

impl GatedPort {
    /// Wraps `inner`. `open` is the number of frames that may be sent; sending decrements it.
    pub fn new(inner: ShmPort, open: Arc<AtomicUsize>) -> Self {
        Self { inner, open }
    }
}

impl Port for GatedPort {
    fn attributes(&self) -> &PortAttributes {
        self.inner.attributes()
    }

    fn stats(&self) -> PortStats {
        self.inner.stats()
    }

    fn rx_burst(&mut self) -> usize {
        self.inner.rx_burst()
    }

    fn rx_frame(&self, index: usize) -> RxFrame<'_> {
        self.inner.rx_frame(index)
    }

    fn tx_room(&mut self) -> usize {
        self.inner.tx_room().min(self.open.load(Ordering::Relaxed))
    }

    /// Always true: a closed gate delays frames and is not a failure.
    fn tx_moved(&mut self) -> bool {
        true
    }

    fn tx_slot(&mut self) -> Option<&mut [u8]> {
        if self.open.load(Ordering::Relaxed) == 0 { None } else { self.inner.tx_slot() }
    }

    fn tx_identification(&self, len: usize, joins: bool) -> Option<u16> {
        self.inner.tx_identification(len, joins)
    }

    fn tx_commit(&mut self, len: usize, priority: Priority) {
        self.open.fetch_sub(1, Ordering::Relaxed);
        self.inner.tx_commit(len, priority);
    }

    fn flush(&mut self) -> io::Result<()> {
        self.inner.flush()
    }

    fn is_unfinished(&self) -> bool {
        self.inner.is_unfinished()
    }

    fn arm_wakeup(&mut self, fds: &mut Vec<RawFd>) -> bool {
        self.inner.arm_wakeup(fds)
    }

    fn disarm_wakeup(&mut self) {
        self.inner.disarm_wakeup();
    }
}

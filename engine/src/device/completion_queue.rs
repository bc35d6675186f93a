//! The program's handle to a completion queue.

use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::task::Waker;

use super::{Device, DeviceError, Driver, MAX_CQE, Opened};
use crate::time::Duration;
use crate::verbs::{Completion, CqId, CqRing, Notify};

/// A completion queue. Threads may share it; clones are handles to the same one.
#[derive(Debug, Clone)]
pub struct CompletionQueue {
    pub(super) ring: Arc<CqRing>,
    pub(super) device: Arc<Opened>,
}

impl Device {
    /// Makes a completion queue for `depth` completions. A QP that completes to a full queue goes to ERR,
    /// so make it as deep as all the requests that can be outstanding.
    ///
    /// # Errors
    /// [`DeviceError::Limit`]; [`DeviceError::System`] when no descriptor is left.
    pub fn create_cq(&self, depth: u32) -> Result<CompletionQueue, DeviceError> {
        self.create_cq_with(depth, None)
    }

    /// The same; a completion that was asked for wakes `waker` instead of making
    /// [`CompletionQueue::fd`] readable. The waker is called by whoever turns the core, in the middle of a
    /// turn: it must not block, and not call the device.
    ///
    /// # Errors
    /// As for [`Device::create_cq`].
    pub fn create_cq_waking(
        &self,
        depth: u32,
        waker: Waker,
    ) -> Result<CompletionQueue, DeviceError> {
        self.create_cq_with(depth, Some(waker))
    }

    fn create_cq_with(
        &self,
        depth: u32,
        waker: Option<Waker>,
    ) -> Result<CompletionQueue, DeviceError> {
        check_depth(depth)?;
        let id = self.inner.next_cq.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let ring = Arc::new(CqRing::with_waker(CqId(id), depth, waker)?);
        Ok(CompletionQueue { ring, device: Arc::clone(&self.inner) })
    }
}

fn check_depth(depth: u32) -> Result<(), DeviceError> {
    if depth == 0 || depth > MAX_CQE {
        let (value, limit) = (u64::from(depth), u64::from(MAX_CQE));
        return Err(DeviceError::Limit { what: "CQ depth", value, limit });
    }
    Ok(())
}

impl CompletionQueue {
    /// Appends up to `most` completions to `out`; returns how many. If there are none, turns the cores
    /// that complete here once and looks again: polling is what drives a device best.
    #[inline]
    pub fn poll(&self, out: &mut Vec<Completion>, most: usize) -> usize {
        match self.ring.take(out, most) {
            0 => {
                self.device.drive(self.ring.cores());
                self.ring.take(out, most)
            }
            count => count,
        }
    }

    /// One completion, if there is one; drives the device as [`CompletionQueue::poll`] does.
    #[inline]
    pub fn poll_one(&self) -> Option<Completion> {
        self.ring.pop().or_else(|| {
            self.device.drive(self.ring.cores());
            self.ring.pop()
        })
    }

    /// One completion, if there is one. Does not drive the device: for more after the first.
    #[inline]
    pub fn pop(&self) -> Option<Completion> {
        self.ring.pop()
    }

    /// Asks for [`CompletionQueue::fd`] to become readable at the next completion of the kind; at once, if one is
    /// there that came since it became readable last. Poll once more after this and before sleeping, unless the
    /// descriptor was seen readable since the last call: this clears it.
    pub fn request_notify(&self, notify: Notify) {
        self.ring.arm(notify);
        for cell in &self.device.cores {
            cell.doorbell.wake(); // The caller is going to sleep: the helpers take over.
        }
    }

    /// Completions that it holds, when what was posted has gone as far as it can without the peers.
    pub fn held(&self) -> usize {
        if self.device.config.driver != Driver::Manual {
            for cell in &self.device.cores {
                cell.lock().turn(self.device.now());
            }
        }
        self.ring.held()
    }

    /// Makes it hold `depth` completions. What it holds stays.
    ///
    /// # Errors
    /// [`DeviceError::Limit`]; [`DeviceError::Busy`] if it holds more now.
    pub fn resize(&self, depth: u32) -> Result<(), DeviceError> {
        check_depth(depth)?;
        // With all tokens, in their order: no core is completing anything.
        let _tokens: Vec<_> = self.device.cores.iter().map(super::CoreCell::lock).collect();
        let resized = self.ring.resize(depth);
        resized.map_err(|_| DeviceError::Busy("the completion queue holds more"))
    }

    /// Holds notifications back until `count` completions have come or `period` is over since the first; zeros
    /// notify of each at once. As `ibv_modify_cq` with `IBV_CQ_ATTR_MODERATE`. What is there when notifications are
    /// requested is not held back.
    pub fn moderate(&self, count: u16, period: Duration) {
        self.ring.moderate(u32::from(count), period);
        for cell in &self.device.cores {
            cell.lock().watch_moderated(&self.ring);
        }
    }

    /// Readable after a completion that was asked for.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.ring.fd()
    }

    /// Its number, as [`AsyncEvent::CqError`](crate::verbs::AsyncEvent::CqError) names it.
    pub fn id(&self) -> CqId {
        self.ring.id()
    }

    /// Completions it can hold.
    pub fn depth(&self) -> usize {
        self.ring.depth()
    }

    /// True once it was full when a request completed.
    pub fn overflowed(&self) -> bool {
        self.ring.overflowed()
    }
}

//! The handle to a shared receive queue.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::config::MAX_WR;
use super::quota::Place;
use super::{DeviceError, Opened, PostError, ProtectionDomain};
use crate::memory::shared_ring::SharedRing;
use crate::qp::sg;
use crate::verbs::{MAX_SGE, RecvRequest, RecvWqe, SrqId, SrqRing};

/// Creation attributes of a shared receive queue, as `ibv_srq_init_attr`.
#[derive(Debug, Clone, Copy)]
pub struct SrqInit {
    /// Outstanding receives: posted ones, and those of incomplete messages.
    pub max_wr: u32,
    /// Scatter/gather entries per receive.
    pub max_sge: u32,
}

impl Default for SrqInit {
    /// 128 receives of one entry.
    fn default() -> Self {
        Self { max_wr: 128, max_sge: 1 }
    }
}

/// Receives that several QPs share, on any cores. Threads may share the handle; clones are handles
/// to the same queue.
#[derive(Debug, Clone)]
pub struct SharedReceiveQueue {
    inner: Arc<Inner>,
}

/// State shared by the handles. A QP holds only the ring, so that the ring's reference count is
/// the number of QPs.
#[derive(Debug)]
struct Inner {
    ring: Arc<SrqRing>,
    max_sge: usize,
    pd: ProtectionDomain,
    _place: Place,
}

impl Drop for Inner {
    fn drop(&mut self) {
        if self.ring.xrc().is_some() {
            for cell in &self.pd.device.cores {
                cell.lock().srqs().remove(&self.ring.id().0);
            }
        }
    }
}

impl ProtectionDomain {
    /// Makes a shared receive queue. Its receives use memory of this domain, whatever the domain of
    /// the QP is.
    ///
    /// # Errors
    /// [`DeviceError::Limit`], [`DeviceError::Exhausted`], [`DeviceError::Arena`].
    pub fn create_srq(&self, init: &SrqInit) -> Result<SharedReceiveQueue, DeviceError> {
        self.make_srq(init, |ring| ring)
    }

    pub(super) fn make_srq(
        &self,
        init: &SrqInit,
        of: impl FnOnce(SrqRing) -> SrqRing,
    ) -> Result<SharedReceiveQueue, DeviceError> {
        let max_sges = u32::try_from(MAX_SGE).expect("small");
        let limits = [("max_wr", init.max_wr, 1..=MAX_WR), ("max_sge", init.max_sge, 0..=max_sges)];
        for (what, value, range) in limits {
            if !range.contains(&value) {
                let (value, limit) = (u64::from(value), u64::from(*range.end()));
                return Err(DeviceError::Limit { what, value, limit });
            }
        }
        let device = &self.device;
        let _place = device.srq_quota.take()?;
        let max_sge = init.max_sge as usize;
        let ring = SharedRing::new(&device.arena, init.max_wr, max_sge)?;
        let id = SrqId(device.next_srq.fetch_add(1, Ordering::Relaxed));
        let ring = Arc::new(of(SrqRing::new(id, self.id, ring)));
        let inner = Inner { ring, max_sge, pd: self.clone(), _place };
        Ok(SharedReceiveQueue { inner: Arc::new(inner) })
    }
}

impl SharedReceiveQueue {
    /// Returns the queue's number, which events carry.
    pub fn id(&self) -> SrqId {
        self.ring().id()
    }

    /// Returns true for a queue of an XRC domain, which requests address by its number.
    pub fn is_xrc(&self) -> bool {
        self.ring().xrc().is_some()
    }

    /// Posts a receive for the next message to any of the QPs. Any number of threads may post.
    ///
    /// # Errors
    /// [`PostError::Full`], [`PostError::TooManySges`]; nothing is posted then.
    #[inline]
    pub fn post_recv(&self, request: &RecvRequest<'_>) -> Result<(), PostError> {
        if request.sges.len() > self.inner.max_sge {
            return Err(PostError::TooManySges);
        }
        let wqe = RecvWqe {
            wr_id: request.wr_id,
            length: sg::total(request.sges),
            num_sge: u8::try_from(request.sges.len()).expect("at most 16"),
        };
        // No doorbell: after an RNR NAK the peer retransmits by itself.
        if self.ring().push(&wqe, request.sges) { Ok(()) } else { Err(PostError::Full) }
    }

    /// Arms the limit: one
    /// [`AsyncEvent::SrqLimitReached`](crate::verbs::AsyncEvent::SrqLimitReached) when fewer than
    /// `limit` receives are posted, possibly at once; 0 disarms it. As `ibv_modify_srq` with
    /// `IBV_SRQ_LIMIT`. The size cannot be changed.
    ///
    /// # Errors
    /// [`DeviceError::Limit`] if the queue cannot hold `limit` receives.
    pub fn arm_limit(&self, limit: u32) -> Result<(), DeviceError> {
        let capacity = self.capacity();
        if limit > capacity {
            let (value, limit) = (u64::from(limit), u64::from(capacity));
            return Err(DeviceError::Limit { what: "limit", value, limit });
        }
        self.ring().arm(limit, &self.device().events);
        Ok(())
    }

    /// Returns the armed limit; 0 if none is armed, or its event has been raised.
    pub fn limit(&self) -> u32 {
        self.ring().limit()
    }

    /// Returns the maximum number of receives.
    pub fn capacity(&self) -> u32 {
        self.ring().capacity()
    }

    /// Returns the scatter/gather entries per receive.
    pub fn max_sge(&self) -> usize {
        self.inner.max_sge
    }

    /// Returns the receives posted and not yet used by a message.
    pub fn posted(&self) -> u32 {
        self.ring().len()
    }

    /// Returns the number of QPs that use the queue; `ibv_destroy_srq` fails while there are any.
    /// Dropping the last handle is allowed; the queue then lives until its last QP is destroyed.
    pub fn users(&self) -> usize {
        let tables = if self.ring().xrc().is_some() { self.device().cores.len() } else { 0 };
        Arc::strong_count(self.ring()) - 1 - tables
    }

    pub(super) fn ring(&self) -> &Arc<SrqRing> {
        &self.inner.ring
    }

    pub(super) fn device(&self) -> &Arc<Opened> {
        &self.inner.pd.device
    }
}

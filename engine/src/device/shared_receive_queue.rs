//! The program's handle to a shared receive queue.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::config::MAX_WR;
use super::{DeviceError, Opened, PostError, ProtectionDomain, QpInit};
use crate::memory::shared_ring::SharedRing;
use crate::memory::work_ring::{WorkProducer, work_ring};
use crate::qp::{ReceiveQueue, Service, sg};
use crate::verbs::{MAX_SGE, RecvRequest, RecvWqe, Sge, SrqId, SrqRing};

/// What a shared receive queue is made for, as `ibv_srq_init_attr`.
#[derive(Debug, Clone, Copy)]
pub struct SrqInit {
    /// Outstanding receives: those posted, and those of messages under way.
    pub max_wr: u32,
    /// Entries of one receive.
    pub max_sge: u32,
}

impl Default for SrqInit {
    /// 128 receives of one entry.
    fn default() -> Self {
        Self { max_wr: 128, max_sge: 1 }
    }
}

/// Receives that QPs share, on whatever cores they live. Threads may share the handle; clones are handles to
/// the same queue.
#[derive(Debug, Clone)]
pub struct SharedReceiveQueue {
    inner: Arc<Inner>,
}

/// What the handles share. QPs hold the ring alone, so that the count of its holders tells how many do.
#[derive(Debug)]
struct Inner {
    ring: Arc<SrqRing>,
    max_sge: usize,
    pd: ProtectionDomain,
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
    /// Makes a shared receive queue. Its receives name memory of this domain, whatever that of the QP.
    ///
    /// # Errors
    /// [`DeviceError::Limit`], [`DeviceError::Arena`].
    pub fn create_srq(&self, init: &SrqInit) -> Result<SharedReceiveQueue, DeviceError> {
        self.make_srq(init, |ring| ring)
    }

    pub(super) fn make_srq(
        &self,
        init: &SrqInit,
        of: impl FnOnce(SrqRing) -> SrqRing,
    ) -> Result<SharedReceiveQueue, DeviceError> {
        let most_sges = u32::try_from(MAX_SGE).expect("small");
        let limits =
            [("max_wr", init.max_wr, 1..=MAX_WR), ("max_sge", init.max_sge, 0..=most_sges)];
        for (what, value, range) in limits {
            if !range.contains(&value) {
                let (value, limit) = (u64::from(value), u64::from(*range.end()));
                return Err(DeviceError::Limit { what, value, limit });
            }
        }
        let device = &self.device;
        let max_sge = init.max_sge as usize;
        let ring = SharedRing::new(&device.arena, init.max_wr, max_sge)?;
        let id = SrqId(device.next_srq.fetch_add(1, Ordering::Relaxed));
        let ring = Arc::new(of(SrqRing::new(id, self.id, ring)));
        Ok(SharedReceiveQueue { inner: Arc::new(Inner { ring, max_sge, pd: self.clone() }) })
    }
}

impl ProtectionDomain {
    /// The two ends of a QP's receives; the program has none of a shared queue here.
    #[allow(clippy::type_complexity)] // Two ends, once.
    pub(super) fn receive_queue(
        &self,
        init: &QpInit<'_>,
    ) -> Result<(Option<WorkProducer<RecvWqe>>, ReceiveQueue), DeviceError> {
        match (init.service, init.xrc_domain) {
            (Service::XrcIni, _) => return Ok((None, ReceiveQueue::none())),
            (Service::XrcTgt, Some(domain)) if Arc::ptr_eq(&domain.device, &self.device) => {
                return Ok((None, ReceiveQueue::of_domain(domain.id)));
            }
            (Service::XrcTgt, _) => return Err(DeviceError::Foreign("the XRC domain")),
            _ => {}
        }
        if let Some(srq) = init.srq {
            return Ok((None, ReceiveQueue::shared(Arc::clone(srq.ring()))));
        }
        let extra = init.max_recv_sge as usize * size_of::<Sge>();
        let (rq, core_rq) = work_ring(&self.device.arena, init.max_recv_wr, extra)?;
        Ok((Some(rq), ReceiveQueue::Own(core_rq)))
    }
}

impl SharedReceiveQueue {
    /// Its number, as events name it.
    pub fn id(&self) -> SrqId {
        self.ring().id()
    }

    /// True for one of an XRC domain, which requests name by its number.
    pub fn is_xrc(&self) -> bool {
        self.ring().xrc().is_some()
    }

    /// Posts a receive for whichever QP gets a message next. Any number of threads may post.
    ///
    /// # Errors
    /// [`PostError::Full`], [`PostError::TooManySges`]; nothing was posted then.
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
        // No doorbell: whoever waits for a receive is a peer, which asks again.
        if self.ring().push(&wqe, request.sges) { Ok(()) } else { Err(PostError::Full) }
    }

    /// Asks for one [`AsyncEvent::SrqLimitReached`](crate::verbs::AsyncEvent::SrqLimitReached) when fewer than `limit` receives are posted, which may be at once; 0 asks for none.
    /// As `ibv_modify_srq` with `IBV_SRQ_LIMIT`; the size cannot be changed.
    ///
    /// # Errors
    /// [`DeviceError::Limit`] if the queue cannot hold so many.
    pub fn arm_limit(&self, limit: u32) -> Result<(), DeviceError> {
        let most = self.capacity();
        if limit > most {
            let (value, limit) = (u64::from(limit), u64::from(most));
            return Err(DeviceError::Limit { what: "limit", value, limit });
        }
        self.ring().arm(limit, &self.device().events);
        Ok(())
    }

    /// The limit that is armed; 0 if none is, or its event has come.
    pub fn limit(&self) -> u32 {
        self.ring().limit()
    }

    /// Receives it can hold.
    pub fn capacity(&self) -> u32 {
        self.ring().capacity()
    }

    /// Entries of one receive.
    pub fn max_sge(&self) -> usize {
        self.inner.max_sge
    }

    /// Receives posted that no message has met yet.
    pub fn posted(&self) -> u32 {
        self.ring().len()
    }

    /// QPs that take receives from it: while there are any, `ibv_destroy_srq` refuses. Dropping the last
    /// handle is allowed; the queue then ends with its last QP.
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

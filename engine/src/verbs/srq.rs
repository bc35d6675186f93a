//! Shared receive queues: the part that applications and cores share.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use super::cq::CqRing;
use super::event::{AsyncEvent, EventQueue};
use super::ids::{SrqId, XrcDomainId};
use super::work_request::RecvWqe;
use crate::memory::PdId;
use crate::memory::shared_ring::{SharedRing, Taken};
use crate::memory::work_ring::Sge;

/// A shared receive queue, as an application and the cores see it.
#[derive(Debug)]
pub struct SrqRing {
    id: SrqId,
    /// The protection domain of the memory that its receives name. The domain of the QP is not
    /// used.
    pd: PdId,
    ring: Arc<SharedRing<RecvWqe>>,
    /// XRC only: the XRC domain of the queue, and the CQ that its receives complete to.
    xrc: Option<(XrcDomainId, Arc<CqRing>)>,
    /// [`AsyncEvent::SrqLimitReached`] is due when fewer receives are posted. 0: not armed.
    limit: AtomicU32,
}

impl SrqRing {
    /// Makes a queue of receives into memory of `pd`.
    pub fn new(id: SrqId, pd: PdId, ring: SharedRing<RecvWqe>) -> Self {
        Self { id, pd, ring: Arc::new(ring), xrc: None, limit: AtomicU32::new(0) }
    }

    /// Makes this queue one of an XRC domain, whose receives complete to `cq`.
    #[must_use]
    pub fn in_domain(self, domain: XrcDomainId, cq: Arc<CqRing>) -> Self {
        Self { xrc: Some((domain, cq)), ..self }
    }

    /// XRC only: the XRC domain of the queue, and the CQ that its receives complete to.
    pub fn xrc(&self) -> Option<(XrcDomainId, &Arc<CqRing>)> {
        self.xrc.as_ref().map(|(domain, cq)| (*domain, cq))
    }

    /// Number of the queue.
    pub fn id(&self) -> SrqId {
        self.id
    }

    /// Protection domain of its receives.
    pub fn pd(&self) -> PdId {
        self.pd
    }

    /// Receives that the queue can hold, including receives in use by incomplete messages.
    pub fn capacity(&self) -> u32 {
        self.ring.capacity()
    }

    /// Posted receives that no message has taken yet.
    pub fn len(&self) -> u32 {
        self.ring.len()
    }

    /// The armed limit; 0 if none is armed.
    pub fn limit(&self) -> u32 {
        self.limit.load(Ordering::Relaxed)
    }

    /// Posts a receive. Returns false if the queue is full.
    #[inline]
    pub fn push(&self, receive: &RecvWqe, sges: &[Sge]) -> bool {
        self.ring.push(receive, sges)
    }

    /// Arms the limit: one [`AsyncEvent::SrqLimitReached`] is raised as soon as fewer than `limit`
    /// receives are posted, possibly at once. 0 disarms.
    pub fn arm(&self, limit: u32, events: &EventQueue) {
        self.limit.store(limit, Ordering::SeqCst);
        self.raise_limit_event_if_due(events);
    }

    /// Takes the oldest receive for a message. Raises the limit event if fewer receives than the
    /// limit are left.
    #[inline]
    pub fn take(&self, events: &EventQueue) -> Option<Taken<RecvWqe>> {
        let taken = self.ring.take();
        if taken.is_some() {
            self.raise_limit_event_if_due(events);
        }
        taken
    }

    /// Raises the limit event if it is due. If several cores see it due, only the one that disarms
    /// the limit raises the event.
    fn raise_limit_event_if_due(&self, events: &EventQueue) {
        let limit = self.limit.load(Ordering::SeqCst);
        if limit > self.ring.len() {
            let disarmed =
                self.limit.compare_exchange(limit, 0, Ordering::SeqCst, Ordering::Relaxed);
            if disarmed.is_ok() {
                events.push(AsyncEvent::SrqLimitReached(self.id));
            }
        }
    }
}

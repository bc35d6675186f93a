//! Shared receive queues: the part that program and cores share.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use super::cq::CqRing;
use super::event::{AsyncEvent, EventQueue};
use super::work_request::RecvWqe;
use crate::memory::PdId;
use crate::memory::shared_ring::{SharedRing, Taken};
use crate::memory::work_ring::Sge;

/// Number of a shared receive queue, unique in its device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SrqId(pub u32);

/// Number of an XRC domain, unique in its device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct XrcDomainId(pub u32);

/// What a program and the cores share of a shared receive queue.
#[derive(Debug)]
pub struct SrqRing {
    id: SrqId,
    /// The domain of the memory that its receives name, whatever the domain of the QP.
    pd: PdId,
    ring: Arc<SharedRing<RecvWqe>>,
    /// The domain that it is of, and where its receives complete: of the XRC service only.
    xrc: Option<(XrcDomainId, Arc<CqRing>)>,
    /// The event is due when fewer receives are posted. 0: not armed.
    limit: AtomicU32,
}

impl SrqRing {
    /// A queue of receives into memory of `pd`.
    pub fn new(id: SrqId, pd: PdId, ring: SharedRing<RecvWqe>) -> Self {
        Self { id, pd, ring: Arc::new(ring), xrc: None, limit: AtomicU32::new(0) }
    }

    /// The queue as one of an XRC domain, whose receives complete to `cq`.
    #[must_use]
    pub fn in_domain(self, domain: XrcDomainId, cq: Arc<CqRing>) -> Self {
        Self { xrc: Some((domain, cq)), ..self }
    }

    /// Its XRC domain and where its receives complete, if it has one.
    pub fn xrc(&self) -> Option<(XrcDomainId, &Arc<CqRing>)> {
        self.xrc.as_ref().map(|(domain, cq)| (*domain, cq))
    }

    /// Its number.
    pub fn id(&self) -> SrqId {
        self.id
    }

    /// The protection domain of its receives.
    pub fn pd(&self) -> PdId {
        self.pd
    }

    /// Receives that it can hold, those of messages under way included.
    pub fn capacity(&self) -> u32 {
        self.ring.capacity()
    }

    /// Receives posted that no message has met.
    pub fn len(&self) -> u32 {
        self.ring.len()
    }

    /// True if no receive waits for a message.
    pub fn is_empty(&self) -> bool {
        self.ring.is_empty()
    }

    /// The limit that is armed; 0 if none is.
    pub fn limit(&self) -> u32 {
        self.limit.load(Ordering::Relaxed)
    }

    /// Posts a receive. False if the queue is full.
    #[inline]
    pub fn push(&self, receive: &RecvWqe, sges: &[Sge]) -> bool {
        self.ring.push(receive, sges)
    }

    /// Asks for one event when fewer than `limit` receives are posted, which may be at once; 0 asks for none.
    pub fn arm(&self, limit: u32, events: &EventQueue) {
        self.limit.store(limit, Ordering::SeqCst);
        self.tell_limit(events);
    }

    /// Takes the oldest receive for a message, and tells if that leaves less than the limit.
    #[inline]
    pub fn take(&self, events: &EventQueue) -> Option<Taken<RecvWqe>> {
        let taken = self.ring.take();
        if taken.is_some() {
            self.tell_limit(events);
        }
        taken
    }

    /// Raises the event if it is due. Of several cores that find so, the one that disarms does.
    fn tell_limit(&self, events: &EventQueue) {
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

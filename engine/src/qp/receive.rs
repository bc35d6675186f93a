//! The source of a QP's receives: its own receive queue, or a shared receive queue.

use std::sync::Arc;

use crate::memory::PdId;
use crate::memory::shared_ring::Taken;
use crate::memory::work_ring::{Sge, WorkConsumer};
use crate::verbs::{EventQueue, RecvWqe, SrqId, SrqRing, XrcDomainId};

/// The source of a QP's receives.
#[derive(Debug)]
pub enum ReceiveQueue {
    /// Its own receive queue. A receive stays at the head of the queue until its message is
    /// complete.
    Own(WorkConsumer<RecvWqe>),
    /// A shared receive queue.
    Shared(SharedReceives),
}

/// A QP's end of a shared receive queue.
#[derive(Debug)]
pub struct SharedReceives {
    /// The queue; `None` if the QP has no receives, or on XRC before the first request names a
    /// queue.
    srq: Option<Arc<SrqRing>>,
    /// XRC: each request names its queue, which must be one of this XRC domain.
    domain: Option<XrcDomainId>,
    /// The receive of the current message. Other QPs use the next receives meanwhile.
    held: Option<Taken<RecvWqe>>,
}

/// The receive of the current message.
#[derive(Debug, Clone, Copy)]
pub struct Receive<'a> {
    /// Length in bytes.
    pub length: u64,
    /// Buffers.
    pub sges: &'a [Sge],
    /// Protection domain of the buffers.
    pub pd: PdId,
}

impl ReceiveQueue {
    /// Takes receives from `srq`.
    pub fn shared(srq: Arc<SrqRing>) -> Self {
        Self::Shared(SharedReceives { srq: Some(srq), domain: None, held: None })
    }

    /// Takes receives from the queue of `domain` that each request names.
    pub fn of_domain(domain: XrcDomainId) -> Self {
        Self::Shared(SharedReceives { srq: None, domain: Some(domain), held: None })
    }

    /// No receives: the QP only sends.
    pub fn none() -> Self {
        Self::Shared(SharedReceives { srq: None, domain: None, held: None })
    }

    /// The XRC domain whose queues requests may name.
    pub(super) fn xrc_domain(&self) -> Option<XrcDomainId> {
        match self {
            Self::Own(_) => None,
            Self::Shared(shared) => shared.domain,
        }
    }

    /// Takes receives from `srq` from now on.
    pub(super) fn select(&mut self, srq: &Arc<SrqRing>) {
        if let Self::Shared(shared) = self {
            shared.srq = Some(Arc::clone(srq));
        }
    }

    /// The shared receive queue in use.
    pub(super) fn selected(&self) -> Option<SrqId> {
        match self {
            Self::Own(_) => None,
            Self::Shared(shared) => shared.srq.as_ref().map(|srq| srq.id()),
        }
    }

    /// Returns true if a receive was taken from a shared receive queue for a message that is
    /// incomplete.
    pub(super) fn holds_receive(&self) -> bool {
        matches!(self, Self::Shared(shared) if shared.held.is_some())
    }

    /// Returns true if the QP raises [`AsyncEvent::LastWqeReached`](crate::verbs::AsyncEvent) in
    /// ERR: it takes no more receives from its shared receive queue. Queues of an XRC domain do not
    /// belong to the QP.
    pub(super) fn raises_last_wqe_event(&self) -> bool {
        matches!(self, Self::Shared(SharedReceives { srq: Some(_), domain: None, .. }))
    }

    /// Returns true if the receives come from a shared receive queue. The peer gets no credits
    /// then: other QPs may take the posted receives.
    #[inline]
    pub fn is_shared(&self) -> bool {
        matches!(self, Self::Shared(_))
    }

    /// Posted receives that no message has taken yet.
    pub fn posted(&self) -> u32 {
        match self {
            Self::Own(queue) => queue.len(),
            Self::Shared(shared) => shared.srq.as_ref().map_or(0, |srq| srq.len()),
        }
    }

    /// Makes sure that the current message has a receive, and takes one from a shared receive
    /// queue. Returns false if none is posted.
    #[inline(always)] // Once per packet.
    pub fn ensure_receive(&mut self, events: &EventQueue) -> bool {
        match self {
            Self::Own(queue) => !queue.is_empty(),
            Self::Shared(shared) => {
                if shared.held.is_none() {
                    shared.held = shared.srq.as_ref().and_then(|srq| srq.take(events));
                }
                shared.held.is_some()
            }
        }
    }

    /// The receive of the current message. `pd`: the QP's protection domain, which a receive of the
    /// QP's own queue belongs to.
    #[inline(always)] // Once per packet.
    pub fn current(&self, pd: PdId) -> Option<Receive<'_>> {
        match self {
            Self::Own(queue) => {
                let wqe = queue.posted(queue.head())?;
                let sges = wqe.sges(usize::from(wqe.num_sge));
                Some(Receive { length: wqe.length, sges, pd })
            }
            Self::Shared(shared) => {
                let held = shared.held.as_ref()?;
                let wqe = held.request();
                let sges = held.sges(usize::from(wqe.num_sge));
                let pd = shared.srq.as_ref()?.pd();
                Some(Receive { length: wqe.length, sges, pd })
            }
        }
    }

    /// Frees the receive of the current message and returns its `wr_id`.
    #[inline(always)] // Once per message.
    pub fn retire(&mut self) -> Option<u64> {
        match self {
            Self::Own(queue) => {
                let wr_id = queue.get(queue.head())?.wr_id;
                queue.retire();
                Some(wr_id)
            }
            Self::Shared(shared) => Some(shared.held.take()?.request().wr_id),
        }
    }
}

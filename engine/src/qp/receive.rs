//! Where a QP's receives come from: a queue of its own, or one that it shares with others.

use std::sync::Arc;

use crate::memory::PdId;
use crate::memory::shared_ring::Taken;
use crate::memory::work_ring::{Sge, WorkConsumer};
use crate::verbs::{EventQueue, RecvWqe, SrqId, SrqRing, XrcDomainId};

/// The receives of a QP.
#[derive(Debug)]
pub enum ReceiveQueue {
    /// Its own. A receive stays at the head of the queue until its message is complete.
    Own(WorkConsumer<RecvWqe>),
    /// Those of a shared queue.
    Shared(SharedReceives),
}

/// A QP's end of a shared queue.
#[derive(Debug)]
pub struct SharedReceives {
    /// None if the QP takes none, or before its first request names one.
    srq: Option<Arc<SrqRing>>,
    /// Requests name the queue, which is one of this domain.
    domain: Option<XrcDomainId>,
    /// The receive of the message under way: others take the ones behind it meanwhile.
    held: Option<Taken<RecvWqe>>,
}

/// A receive that a message is being stored to.
#[derive(Debug, Clone, Copy)]
pub struct Receive<'a> {
    /// Bytes that fit.
    pub length: u64,
    /// Where they go.
    pub sges: &'a [Sge],
    /// The domain of that memory.
    pub pd: PdId,
}

impl ReceiveQueue {
    /// The receives of `srq`.
    pub fn shared(srq: Arc<SrqRing>) -> Self {
        Self::Shared(SharedReceives { srq: Some(srq), domain: None, held: None })
    }

    /// Those of whatever queue of `domain` a request names.
    pub fn of_domain(domain: XrcDomainId) -> Self {
        Self::Shared(SharedReceives { srq: None, domain: Some(domain), held: None })
    }

    /// None: the QP only sends.
    pub fn none() -> Self {
        Self::Shared(SharedReceives { srq: None, domain: None, held: None })
    }

    /// The XRC domain whose queues requests name.
    pub(super) fn xrc_domain(&self) -> Option<XrcDomainId> {
        match self {
            Self::Own(_) => None,
            Self::Shared(shared) => shared.domain,
        }
    }

    /// Takes the receives of `srq` from here on.
    pub(super) fn select(&mut self, srq: &Arc<SrqRing>) {
        if let Self::Shared(shared) = self {
            shared.srq = Some(Arc::clone(srq));
        }
    }

    /// The shared queue whose receives are taken.
    pub(super) fn selected(&self) -> Option<SrqId> {
        match self {
            Self::Own(_) => None,
            Self::Shared(shared) => shared.srq.as_ref().map(|srq| srq.id()),
        }
    }

    /// A receive was taken for a message that has not ended.
    pub(super) fn holds_one(&self) -> bool {
        matches!(self, Self::Shared(shared) if shared.held.is_some())
    }

    /// In ERR, the QP has taken its last receive from a queue that goes on: an event tells. Queues of an XRC
    /// domain are not the QP's.
    pub(super) fn has_a_last(&self) -> bool {
        matches!(self, Self::Shared(SharedReceives { srq: Some(_), domain: None, .. }))
    }

    /// True if other QPs take receives from the same queue. Their number says nothing to a peer then: it is
    /// given no credits.
    #[inline]
    pub fn is_shared(&self) -> bool {
        matches!(self, Self::Shared(_))
    }

    /// Receives that wait for a message.
    pub fn posted(&self) -> u32 {
        match self {
            Self::Own(queue) => queue.len(),
            Self::Shared(shared) => shared.srq.as_ref().map_or(0, |srq| srq.len()),
        }
    }

    /// Makes sure that there is a receive for a message that begins; of a shared queue, it is taken. False
    /// if there is none.
    #[inline]
    pub fn provide(&mut self, events: &EventQueue) -> bool {
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

    /// The receive of the message under way; of a QP's own queue, of memory of `pd`.
    #[inline]
    pub fn current(&self, pd: PdId) -> Option<Receive<'_>> {
        match self {
            Self::Own(queue) => {
                let wqe = queue.get(queue.head())?;
                let sges = queue.sges(queue.head(), usize::from(wqe.num_sge));
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

    /// Gives the slot of that receive back, and returns the program's number of it.
    #[inline]
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

//! The extended reliable connection service from a program's side: domains, and what is made in them.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::{
    CompletionQueue, Device, DeviceError, Opened, PostError, ProtectionDomain, QueuePair,
    SharedReceiveQueue, SrqInit,
};
use crate::verbs::{SendRequest, XrcDomainId};

/// An XRC domain: the receiving QPs in it serve all its shared receive queues. Clones are handles to the same one.
#[derive(Debug, Clone)]
pub struct XrcDomain {
    pub(super) id: XrcDomainId,
    pub(super) device: Arc<Opened>,
}

impl Device {
    /// Makes an XRC domain.
    pub fn open_xrcd(&self) -> XrcDomain {
        let id = XrcDomainId(self.inner.next_xrcd.fetch_add(1, Ordering::Relaxed));
        XrcDomain { id, device: Arc::clone(&self.inner) }
    }
}

impl ProtectionDomain {
    /// Makes a shared receive queue of an XRC domain: requests name it by its [number](SharedReceiveQueue::id), reach
    /// the memory of this protection domain, and its receives complete to `cq`.
    ///
    /// # Errors
    /// As for [`ProtectionDomain::create_srq`]; [`DeviceError::Foreign`].
    pub fn create_xrc_srq(
        &self,
        init: &SrqInit,
        domain: &XrcDomain,
        cq: &CompletionQueue,
    ) -> Result<SharedReceiveQueue, DeviceError> {
        let device = &self.device;
        if !Arc::ptr_eq(&domain.device, device) || !Arc::ptr_eq(&cq.device, device) {
            return Err(DeviceError::Foreign("the XRC domain or completion queue"));
        }
        let srq = self.make_srq(init, |ring| ring.in_domain(domain.id, Arc::clone(&cq.ring)))?;
        for (core, cell) in device.cores.iter().enumerate() {
            cq.ring.add_core(core); // Whichever has a receiving QP.
            cell.lock().srqs().insert(srq.id().0, Arc::clone(srq.ring()));
        }
        Ok(srq)
    }
}

impl QueuePair {
    /// Posts a send request of an XRC QP for the peer's shared receive queue `srqn`.
    ///
    /// # Errors
    /// As for [`QueuePair::post_send`]; [`PostError::Destination`] if the QP is of another service.
    pub fn post_send_xrc(&mut self, request: &SendRequest<'_>, srqn: u32) -> Result<(), PostError> {
        self.post_connected(request, Some(srqn))
    }
}

//! The handle to an XRC domain, and the objects of a domain.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::{
    CompletionQueue, Device, DeviceError, Opened, ProtectionDomain, SharedReceiveQueue, SrqInit,
};
use crate::verbs::XrcDomainId;

/// An XRC domain: its target QPs deliver to all its shared receive queues. Clones are handles to
/// the same domain.
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
    /// Makes a shared receive queue of an XRC domain. Requests address it by its
    /// [number](SharedReceiveQueue::id), its receives use memory of this protection domain, and
    /// they complete to `cq`.
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
            cq.ring.add_core(core); // Any core may have a target QP of the domain.
            cell.lock().srqs().insert(srq.id().0, Arc::clone(srq.ring()));
        }
        Ok(srq)
    }
}

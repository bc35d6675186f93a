//! The handle to a protection domain.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::{Device, Opened};
use crate::memory::PdId;

/// A protection domain: QPs access only memory regions of their own domain.
#[derive(Debug, Clone)]
pub struct ProtectionDomain {
    pub(super) id: PdId,
    pub(super) device: Arc<Opened>,
}

impl Device {
    /// Makes a protection domain.
    pub fn alloc_pd(&self) -> ProtectionDomain {
        let id = PdId(self.inner.next_pd.fetch_add(1, Ordering::Relaxed));
        ProtectionDomain { id, device: Arc::clone(&self.inner) }
    }
}

impl ProtectionDomain {
    /// Returns the domain's number, unique in its device.
    pub fn number(&self) -> u32 {
        self.id.0
    }

    /// Returns true if both are handles to the same domain.
    #[inline]
    pub(super) fn is_same(&self, other: &Self) -> bool {
        self.id == other.id && Arc::ptr_eq(&self.device, &other.device)
    }
}

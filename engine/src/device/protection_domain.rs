//! The handle to a protection domain.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::{Device, Opened};
use crate::memory::PdId;

/// A protection domain: QPs access only memory regions of their own domain. Objects made from it
/// keep it alive.
///
/// ```
/// use feroce_engine::device::QpInit;
/// use feroce_engine::memory::Access;
/// # use feroce_engine::device::{Device, DeviceConfig};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let [device, _] = Device::open_pair(&DeviceConfig::default())?;
/// let pd = device.alloc_pd();
/// let buffer = pd.alloc_buffer(4096, Access::LOCAL_WRITE | Access::REMOTE_READ)?;
/// buffer.write(0, b"for the peer");
/// let sge = buffer.region().sge(0, 12); // 12 bytes from offset 0, for own requests
/// let exposed = buffer.region().remote_addr(0); // the same bytes, for requests of the peer
/// # let _ = (sge, exposed);
///
/// let cq = device.create_cq(64)?;
/// let qp = pd.create_qp(&QpInit { max_send_sge: 4, ..QpInit::new(&cq) })?;
/// # drop(qp);
/// # Ok(())
/// # }
/// ```
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

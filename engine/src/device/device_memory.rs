//! The handle to device memory: bytes of the arena that only copies and peers access.

use std::sync::Arc;

use super::config::MAX_DEVICE_MEMORY;
use super::{Device, DeviceError, MemoryRegion, ProtectionDomain};
use crate::memory::Access;
use crate::memory::buffer::SharedBytes;

/// Device memory, as `ibv_dm`: zeroed, and accessed through the copying methods of [`SharedBytes`].
/// Clones are handles to the same memory. It is freed with the last handle and the last
/// registration.
#[derive(Debug, Clone)]
pub struct DeviceMemory {
    bytes: Arc<SharedBytes>,
}

impl Device {
    /// Allocates device memory at an address that is a multiple of `align`.
    ///
    /// # Errors
    /// [`DeviceError::Limit`], [`DeviceError::Arena`].
    pub fn alloc_dm(&self, len: usize, align: usize) -> Result<DeviceMemory, DeviceError> {
        if len == 0 || len > MAX_DEVICE_MEMORY {
            let (value, limit) = (len as u64, MAX_DEVICE_MEMORY as u64);
            return Err(DeviceError::Limit { what: "device memory", value, limit });
        }
        let block = self.inner.arena.alloc(len, align)?;
        Ok(DeviceMemory { bytes: Arc::new(SharedBytes::new(block, len)) })
    }
}

impl DeviceMemory {
    /// Returns the number of registrations, plus other handles.
    pub fn users(&self) -> usize {
        Arc::strong_count(&self.bytes) - 1
    }
}

impl std::ops::Deref for DeviceMemory {
    type Target = SharedBytes;
    fn deref(&self) -> &SharedBytes {
        &self.bytes
    }
}

impl ProtectionDomain {
    /// Registers `len` bytes of `memory` from `offset` on. Peers and requests address it from zero
    /// on; host addresses have no meaning for it. As `ibv_reg_dm_mr`.
    ///
    /// # Errors
    /// [`DeviceError::Region`], [`DeviceError::Exhausted`].
    pub fn reg_dm_mr(
        &self,
        memory: &DeviceMemory,
        offset: usize,
        len: usize,
        access: Access,
    ) -> Result<MemoryRegion, DeviceError> {
        if offset.checked_add(len).is_none_or(|end| end > memory.len()) {
            return Err(DeviceError::Region("the range leaves the device memory"));
        }
        let registered = self.register(memory.address() + offset as u64, 0, len, access, None)?;
        Ok(MemoryRegion::keeping(registered, Arc::clone(&memory.bytes)))
    }
}

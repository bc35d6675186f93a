//! Device memory: bytes of the arena that only copies and peers reach.

use std::sync::Arc;

use super::{Device, DeviceError, MemoryRegion, ProtectionDomain};
use crate::memory::Access;
use crate::memory::buffer::SharedBytes;

/// Most bytes of one piece of device memory. What all pieces can have is what the arena has left.
pub const MAX_DEVICE_MEMORY: usize = 1 << 20;

/// A piece of device memory, as `ibv_dm`: zeroed, copied to and from by the methods of [`SharedBytes`]. Clones are
/// handles to the same piece; it goes with the last of them and of its registrations.
#[derive(Debug, Clone)]
pub struct DeviceMemory {
    bytes: Arc<SharedBytes>,
}

impl Device {
    /// Allocates device memory whose address is a multiple of `align`.
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
    /// Registrations of it, and handles besides this one.
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
    /// Registers `len` bytes of `memory` from `offset` on, which peers and requests name from zero on: the host's
    /// addresses mean nothing to it. As `ibv_reg_dm_mr`.
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

//! Registration of memory: the calls of a protection domain that make memory regions, and the
//! handle to a registered buffer.

use std::os::fd::BorrowedFd;

use feroce_wire::Key;

use super::memory_region::{MemoryRegion, Registered, check_region, first_address};
use super::{DeviceError, ProtectionDomain};
use crate::memory::buffer::SharedBytes;
use crate::memory::dma_buf::DmaBuf;
use crate::memory::{Access, Region};

/// Alignment of buffers: a page, so that programs may share them with other consumers.
const BUFFER_ALIGN: usize = 4096;

impl ProtectionDomain {
    /// Allocates `len` zeroed bytes in the arena and registers them.
    ///
    /// # Errors
    /// [`DeviceError::Region`], [`DeviceError::Exhausted`], [`DeviceError::Arena`].
    pub fn alloc_buffer(&self, len: usize, access: Access) -> Result<Buffer, DeviceError> {
        let block = self.device.arena.alloc(len.max(1), BUFFER_ALIGN)?;
        let bytes = SharedBytes::new(block, len);
        let host = bytes.address();
        let registered = self.register(host, host, len, access, None)?;
        Ok(Buffer { region: MemoryRegion::new(registered), bytes })
    }

    /// As [`Self::alloc_buffer`], with a given address and key for peers, for replaying captures.
    /// The device must be opened with `plain_keys`.
    ///
    /// # Errors
    /// As for [`ProtectionDomain::alloc_buffer`]; also if the key is in use.
    pub fn alloc_buffer_as(
        &self,
        iova: u64,
        len: usize,
        access: Access,
        key: Key,
    ) -> Result<Buffer, DeviceError> {
        let block = self.device.arena.alloc(len.max(1), BUFFER_ALIGN)?;
        let bytes = SharedBytes::new(block, len);
        let registered = self.register(bytes.address(), iova, len, access, Some(key))?;
        Ok(Buffer { region: MemoryRegion::new(registered), bytes })
    }

    /// Registers `len` bytes of the process's memory at `addr`, as `ibv_reg_mr`.
    ///
    /// # Safety
    /// The bytes must stay mapped until the region is dropped. While registered, they are shared
    /// with the engine and, depending on the rights, with peers: no Rust reference may exist to
    /// bytes that may be written meanwhile.
    ///
    /// # Errors
    /// [`DeviceError::Region`], [`DeviceError::Exhausted`].
    #[allow(unsafe_code)] // A contract for the caller; the accesses are in `memory`.
    pub unsafe fn reg_mr(
        &self,
        addr: *mut u8,
        len: usize,
        access: Access,
    ) -> Result<MemoryRegion, DeviceError> {
        let host = addr.expose_provenance() as u64;
        // SAFETY: this function has the same contract.
        unsafe { self.reg_mr_iova(addr, len, host, access) }
    }

    /// As [`Self::reg_mr`], with `iova` as the address of the first byte in requests, as
    /// `ibv_reg_mr_iova`. With [`Access::ZERO_BASED`] that address is 0, whatever `iova` is.
    ///
    /// # Safety
    /// As for [`ProtectionDomain::reg_mr`].
    ///
    /// # Errors
    /// [`DeviceError::Region`], [`DeviceError::Exhausted`].
    #[allow(unsafe_code)] // A contract for the caller; the accesses are in `memory`.
    pub unsafe fn reg_mr_iova(
        &self,
        addr: *mut u8,
        len: usize,
        iova: u64,
        access: Access,
    ) -> Result<MemoryRegion, DeviceError> {
        let host = addr.expose_provenance() as u64;
        Ok(MemoryRegion::new(self.register(host, iova, len, access, None)?))
    }

    /// Registers `len` bytes of a DMA buffer (Linux `dma-buf`) from `offset` on, with `iova` as the
    /// address in requests, as `ibv_reg_dmabuf_mr`. The buffer's exporter must allow mapping. The
    /// descriptor is not needed afterwards.
    ///
    /// # Errors
    /// [`DeviceError::DmaBuf`]; as for [`ProtectionDomain::reg_mr`].
    pub fn reg_dmabuf_mr(
        &self,
        buffer: BorrowedFd<'_>,
        offset: u64,
        len: usize,
        iova: u64,
        access: Access,
    ) -> Result<MemoryRegion, DeviceError> {
        let writable = access.contains(Access::LOCAL_WRITE);
        let mapped = DmaBuf::map(buffer, offset, len, writable).map_err(DeviceError::DmaBuf)?;
        let registered = self.register(mapped.address(), iova, len, access, None)?;
        Ok(MemoryRegion::keeping(registered, mapped))
    }

    /// Registers a null region: writes to any of its addresses are discarded, reads return zeros.
    /// Its key serves local requests and peers, as mlx5's does. As `ibv_alloc_null_mr`.
    ///
    /// # Errors
    /// [`DeviceError::Exhausted`]; [`DeviceError::System`] without randomness.
    pub fn alloc_null_mr(&self) -> Result<MemoryRegion, DeviceError> {
        let [variant, ..] = self.device.random()?.to_le_bytes();
        let key = self.device.memory.insert_null(self.id, variant);
        let key = key.map_err(|_| DeviceError::Exhausted("memory regions"))?;
        let region = Region::null(self.id);
        Ok(MemoryRegion::new(Registered { key, region, pd: self.clone() }))
    }

    /// Adds a region to the table of memory regions.
    ///
    /// The callers guarantee the memory: `reg_mr` and `reg_mr_iova` by their own contract, the
    /// others because the handle that they return owns the bytes and drops `Registered` first.
    #[allow(unsafe_code)]
    pub(super) fn register(
        &self,
        host: u64,
        iova: u64,
        len: usize,
        access: Access,
        key: Option<Key>,
    ) -> Result<Registered, DeviceError> {
        let iova = first_address(iova, access);
        let region = Region { iova, host, len: len as u64, pd: self.id, access };
        check_region(&region)?;
        let device = &self.device;
        let full = |_| DeviceError::Exhausted("memory regions");
        let key = match key {
            Some(key) => {
                // SAFETY: the caller keeps the memory mapped until `Registered` is dropped, see
                // above.
                unsafe { device.memory.insert_with_key(&region, key) }.map_err(full)?;
                key
            }
            None => {
                let [variant, ..] = device.random()?.to_le_bytes();
                // SAFETY: the caller keeps the memory mapped until `Registered` is dropped, see
                // above.
                unsafe { device.memory.insert(&region, variant) }.map_err(full)?
            }
        };
        Ok(Registered { key, region, pd: self.clone() })
    }
}

/// A registered buffer in the arena. The program accesses it through safe copies, at offsets of
/// type `usize`; those of [`MemoryRegion::sge`] and [`MemoryRegion::remote_addr`] are `u64`.
#[derive(Debug)]
pub struct Buffer {
    // Declared first, so dropped first: the engine stops accessing the bytes before they are freed.
    region: MemoryRegion,
    bytes: SharedBytes,
}

impl Buffer {
    /// Returns the buffer's registration.
    pub fn region(&self) -> &MemoryRegion {
        &self.region
    }
}

impl std::ops::Deref for Buffer {
    type Target = SharedBytes;
    fn deref(&self) -> &SharedBytes {
        &self.bytes
    }
}

//! Protection domains and what is registered in them.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use feroce_wire::Key;

use super::{Device, DeviceError, DeviceInner, Opened};
use crate::memory::buffer::SharedBytes;
use crate::memory::{Access, PdId, Region};
use crate::verbs::Sge;

/// A protection domain: QPs reach only the memory regions of their own.
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

/// Alignment of buffers: a page, so that programs may share them further.
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
        Ok(Buffer { region: MemoryRegion { registered }, bytes })
    }

    /// The same, known to peers as `iova ..` under the given key, as a captured exchange needs. The
    /// device must have been opened with `plain_keys`.
    ///
    /// # Errors
    /// As for [`ProtectionDomain::alloc_buffer`]; the key may be taken.
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
        Ok(Buffer { region: MemoryRegion { registered }, bytes })
    }

    /// Registers `len` bytes at `addr`: any memory of the process, as `ibv_reg_mr`.
    ///
    /// # Safety
    /// The bytes must stay mapped until the region is dropped. While registered, they are shared with
    /// the engine and, by the rights given, with peers: no Rust reference may exist to bytes that may be
    /// written meanwhile.
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
        // SAFETY: the caller's promise is the same.
        unsafe { self.reg_mr_iova(addr, len, addr.expose_provenance() as u64, access) }
    }

    /// The same, with the first byte known to work requests and peers as `iova`, as `ibv_reg_mr_iova`.
    ///
    /// # Safety
    /// As for [`ProtectionDomain::reg_mr`].
    ///
    /// # Errors
    /// [`DeviceError::Region`], [`DeviceError::Exhausted`].
    #[allow(unsafe_code)] // As above.
    pub unsafe fn reg_mr_iova(
        &self,
        addr: *mut u8,
        len: usize,
        iova: u64,
        access: Access,
    ) -> Result<MemoryRegion, DeviceError> {
        let host = addr.expose_provenance() as u64;
        let registered = self.register(host, iova, len, access, None)?;
        Ok(MemoryRegion { registered })
    }

    /// Publishes a region. The callers answer for the memory.
    #[allow(unsafe_code)]
    fn register(
        &self,
        host: u64,
        iova: u64,
        len: usize,
        access: Access,
        key: Option<Key>,
    ) -> Result<Registered, DeviceError> {
        let writes =
            access.contains(Access::REMOTE_WRITE) || access.contains(Access::REMOTE_ATOMIC);
        if writes && !access.contains(Access::LOCAL_WRITE) {
            return Err(DeviceError::Region("remote write and atomic need local write"));
        }
        let len = len as u64;
        if iova.checked_add(len).is_none() || host.checked_add(len).is_none() {
            return Err(DeviceError::Region("the range leaves the address space"));
        }
        let region = Region { iova, host, len, pd: self.id, access };
        let device = &self.device;
        let full = |_| DeviceError::Exhausted("memory regions");
        let key = match key {
            Some(key) => {
                // SAFETY: the caller answers for the memory until `Registered` is dropped.
                unsafe { device.memory.insert_with_key(&region, key) }.map_err(full)?;
                key
            }
            None => {
                let [variant, ..] = device.random()?.to_le_bytes();
                // SAFETY: the caller answers for the memory until `Registered` is dropped.
                unsafe { device.memory.insert(&region, variant) }.map_err(full)?
            }
        };
        Ok(Registered { key, iova, len, pd: self.clone() })
    }
}

/// Withdraws the region when dropped.
#[derive(Debug)]
struct Registered {
    key: Key,
    iova: u64,
    len: u64,
    pd: ProtectionDomain,
}

impl Drop for Registered {
    fn drop(&mut self) {
        let device: &DeviceInner = &self.pd.device;
        device.memory.withdraw(self.key);
        device.quiesce();
        device.memory.release(self.key);
    }
}

/// Registered memory. Dropping it deregisters: it returns when the engine has stopped touching the
/// bytes, and requests that name them fail from then on.
#[derive(Debug)]
pub struct MemoryRegion {
    registered: Registered,
}

impl MemoryRegion {
    /// Key for work requests.
    pub fn lkey(&self) -> Key {
        self.registered.key
    }

    /// Key for peers. The same number as [`MemoryRegion::lkey`].
    pub fn rkey(&self) -> Key {
        self.registered.key
    }

    /// Address of the first byte, as work requests and peers name it.
    pub fn addr(&self) -> u64 {
        self.registered.iova
    }

    /// Length in bytes.
    pub fn len(&self) -> u64 {
        self.registered.len
    }

    /// True if it has no bytes.
    pub fn is_empty(&self) -> bool {
        self.registered.len == 0
    }

    /// A scatter/gather entry for `length` bytes from `offset` on. Not checked here: the engine does.
    pub fn sge(&self, offset: u64, length: u32) -> Sge {
        Sge { addr: self.addr().wrapping_add(offset), length, lkey: self.lkey() }
    }
}

/// A registered buffer in the arena, which the program copies in and out of safely.
#[derive(Debug)]
pub struct Buffer {
    // Declared first, so dropped first: the engine is done with the bytes before they are freed.
    region: MemoryRegion,
    bytes: SharedBytes,
}

impl Buffer {
    /// Its registration.
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

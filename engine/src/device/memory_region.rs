//! The handle to registered memory: re-registration, advice, deregistration.

use std::any::Any;
use std::fmt;

use feroce_wire::Key;

use super::{DeviceError, DeviceInner, ProtectionDomain};
use crate::memory::{Access, Region, TableFull, on_demand_is_supported};
use crate::verbs::{RemoteAddr, Sge};

/// Checks the attributes of a new region.
pub(super) fn check_region(region: &Region) -> Result<(), DeviceError> {
    let Region { iova, host, len, access, .. } = *region;
    let writes = access.intersects(Access::REMOTE_WRITE | Access::REMOTE_ATOMIC);
    let leaves = iova.checked_add(len).is_none() || host.checked_add(len).is_none();
    let on_demand = access.contains(Access::ON_DEMAND);
    let rules = [
        (
            writes && !access.contains(Access::LOCAL_WRITE),
            "remote write and atomic need local write",
        ),
        (leaves, "the range leaves the address space"),
        (access.contains(Access::FLUSH_PERSISTENT), "no memory of this device is persistent"),
        (
            on_demand && !on_demand_is_supported(),
            "on-demand paging needs process_vm_readv, which this sandbox forbids",
        ),
    ];
    match rules.into_iter().find(|(broken, _)| *broken) {
        Some((_, rule)) => Err(DeviceError::Region(rule)),
        None => Ok(()),
    }
}

/// Returns the address of a region's first byte in requests: 0 with [`Access::ZERO_BASED`],
/// whatever `iova` is. `verbs.h` turns `ibv_reg_mr` into `ibv_reg_mr_iova2` with the memory's own
/// address as `iova`.
pub(super) fn first_address(iova: u64, access: Access) -> u64 {
    if access.contains(Access::ZERO_BASED) { 0 } else { iova }
}

/// A registration; dropping it deregisters.
#[derive(Debug)]
pub(super) struct Registered {
    pub(super) key: Key,
    pub(super) region: Region,
    pub(super) pd: ProtectionDomain,
}

impl Drop for Registered {
    fn drop(&mut self) {
        let device: &DeviceInner = &self.pd.device;
        let has_windows = device.memory.force_close(self.key);
        device.memory.withdraw(self.key);
        device.quiesce();
        if has_windows {
            // The windows' keys lead to the same bytes. No core binds to the region any more, but
            // cores may still use windows that are bound to it.
            device.memory.unbind_all_from(self.key);
            device.quiesce();
        }
        device.memory.release(self.key);
    }
}

/// Registered memory. Dropping it deregisters: the drop returns when the engine no longer accesses
/// the bytes. Later requests that name them fail, and windows bound to the region are unbound.
///
/// A [`Buffer`](super::Buffer) allocates and registers memory safely. Memory of the program's own
/// is registered by contract:
///
/// ```
/// use feroce_engine::memory::Access;
/// # use feroce_engine::device::{Device, DeviceConfig};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let [device, _] = Device::open_pair(&DeviceConfig::default())?;
/// # let pd = device.alloc_pd();
/// let mut bytes = vec![0; 4096];
/// let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
/// // SAFETY: `region` is dropped before `bytes`, and no reference to `bytes` is used meanwhile.
/// let region = unsafe { pd.reg_mr(bytes.as_mut_ptr(), bytes.len(), access) }?;
/// println!("the peer may write to {:?}", region.remote_addr(0));
/// drop(region); // Returns when the peer can no longer write.
/// assert_eq!(bytes[0], 0);
/// # Ok(())
/// # }
/// ```
pub struct MemoryRegion {
    // Declared first, so dropped first: the engine stops accessing the bytes before they are freed.
    registered: Registered,
    /// Keeps the bytes alive, if they are not the program's.
    _kept: Option<Box<dyn Any + Send + Sync>>,
}

impl fmt::Debug for MemoryRegion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.registered.fmt(f)
    }
}

/// Changes to a registration, as the arguments of `ibv_rereg_mr`. `None` leaves an attribute as it
/// is.
#[derive(Debug, Clone, Copy, Default)]
pub struct Reregistration<'a> {
    /// New memory: first byte, length in bytes, and its address in requests, which is 0 with
    /// [`Access::ZERO_BASED`].
    pub translation: Option<(*mut u8, usize, u64)>,
    /// New protection domain, of the same device.
    pub pd: Option<&'a ProtectionDomain>,
    /// New access rights.
    pub access: Option<Access>,
}

/// The announced use of memory, as `ibv_advise_mr_advice`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Advice {
    /// The memory will be read: missing pages are fetched.
    Prefetch,
    /// The memory will be written: missing pages are fetched. The region must allow writing.
    PrefetchWrite,
    /// The memory will be read: pages are checked, none is fetched.
    PrefetchNoFault,
}

impl MemoryRegion {
    pub(super) fn new(registered: Registered) -> Self {
        Self { registered, _kept: None }
    }

    /// Makes a handle that keeps `kept`, the owner of the bytes, alive.
    pub(super) fn keeping(registered: Registered, kept: impl Any + Send + Sync) -> Self {
        Self { registered, _kept: Some(Box::new(kept)) }
    }

    /// Returns the key for work requests.
    pub fn lkey(&self) -> Key {
        self.registered.key
    }

    /// Returns the key for peers; the same number as [`MemoryRegion::lkey`].
    pub fn rkey(&self) -> Key {
        self.registered.key
    }

    /// Returns the address of the first byte in work requests and in peers' requests.
    pub fn addr(&self) -> u64 {
        self.registered.region.iova
    }

    /// Returns the length in bytes.
    pub fn len(&self) -> u64 {
        self.registered.region.len
    }

    /// Returns true if the region has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the access rights.
    pub fn access(&self) -> Access {
        self.registered.region.access
    }

    /// Returns a scatter/gather entry for `length` bytes from `offset` on. The range is not checked
    /// here but when the engine accesses it.
    pub fn sge(&self, offset: u64, length: u32) -> Sge {
        Sge { addr: self.addr().wrapping_add(offset), length, lkey: self.lkey() }
    }

    /// Returns the address of the byte at `offset` for a peer's requests. The range is not checked
    /// here but when the peer accesses it.
    pub fn remote_addr(&self, offset: u64) -> RemoteAddr {
        RemoteAddr { addr: self.addr().wrapping_add(offset), rkey: self.rkey() }
    }

    /// Deregisters, unless memory windows are bound to the region.
    ///
    /// # Errors
    /// The unchanged region if windows are bound to it (`EBUSY`).
    pub fn deregister(self) -> Result<(), Self> {
        let Registered { key, pd, .. } = &self.registered;
        if pd.device.memory.close(*key) { Ok(()) } else { Err(self) }
    }

    /// Changes the registration. If the memory changes, the keys change too, so that old keys are
    /// invalid, and so does their index if the device has a free one. Otherwise the keys stay the
    /// same, as on other devices: programs do not read them again. When the call returns, the
    /// engine no longer accesses the memory as registered before.
    ///
    /// # Safety
    /// As for [`ProtectionDomain::reg_mr`], for the memory and the rights after the change.
    ///
    /// # Errors
    /// [`DeviceError::Busy`] with windows bound; [`DeviceError::Foreign`]; [`DeviceError::Region`];
    /// [`DeviceError::System`] without randomness. Nothing is changed then.
    #[allow(unsafe_code)] // A contract for the caller; the accesses are in `memory`.
    pub unsafe fn reregister(&mut self, change: &Reregistration<'_>) -> Result<(), DeviceError> {
        let registered = &mut self.registered;
        let mut region = registered.region;
        region.access = change.access.unwrap_or(region.access);
        let zero_based = |access: Access| access.contains(Access::ZERO_BASED);
        if zero_based(region.access) != zero_based(registered.region.access) {
            region.iova = first_address(region.host, region.access);
        }
        if let Some((addr, len, iova)) = change.translation {
            region.host = addr.expose_provenance() as u64;
            region.iova = first_address(iova, region.access);
            region.len = len as u64;
        }
        let pd = change.pd.unwrap_or(&registered.pd).clone();
        if !std::sync::Arc::ptr_eq(&pd.device, &registered.pd.device) {
            return Err(DeviceError::Foreign("the protection domain"));
        }
        region.pd = pd.id;
        check_region(&region)?;
        let device = &pd.device;
        let old = registered.key;
        let [random, ..] = device.random()?.to_le_bytes();
        if !device.memory.close(old) {
            return Err(DeviceError::Busy("memory windows are bound to the region"));
        }
        device.memory.withdraw(old);
        device.quiesce();
        // SAFETY: by the contract of this function, the memory stays mapped, and unaliased by Rust
        // references, until `Registered` is dropped or changed again.
        let kept = |variant| unsafe { device.memory.insert_again(&region, old, variant) };
        registered.key = match change.translation {
            None => kept(old.variant()),
            // SAFETY: as above.
            Some(_) => match unsafe { device.memory.insert(&region, random) } {
                Ok(new) => {
                    device.memory.release(old);
                    new
                }
                Err(TableFull) if random == old.variant() => kept(random.wrapping_add(1)),
                Err(TableFull) => kept(random),
            },
        };
        (registered.region, registered.pd) = (region, pd);
        Ok(())
    }
}

impl ProtectionDomain {
    /// Gives advice about the memory in `sges`, as `ibv_advise_mr`; returns when the advice is
    /// carried out.
    ///
    /// # Errors
    /// [`DeviceError::Access`] for the first entry that is outside the memory of this domain.
    pub fn advise(&self, advice: Advice, sges: &[Sge]) -> Result<(), DeviceError> {
        let device = &self.device;
        let need = match advice {
            Advice::PrefetchWrite => Access::LOCAL_WRITE,
            Advice::Prefetch | Advice::PrefetchNoFault => Access::NONE,
        };
        // No thread can complete a deregistration while this thread holds a token.
        let _token = device.cores[0].lock();
        for sge in sges {
            let range = (sge.addr, u64::from(sge.length));
            match advice {
                Advice::PrefetchNoFault => {
                    device.memory.check(sge.lkey, self.id, need, Some(range))?;
                }
                _ => device.memory.prefetch(sge.lkey, self.id, need, range)?,
            }
        }
        Ok(())
    }
}

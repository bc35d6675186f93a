//! The program's handle to registered memory, and what it can do with it: change it, give advice, take it back.

use std::any::Any;
use std::fmt;

use feroce_wire::Key;

use super::{DeviceError, DeviceInner, ProtectionDomain};
use crate::memory::{Access, Region, on_demand_is_supported};
use crate::verbs::Sge;

/// What can be wrong with a region that a program asks for.
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
        (access.contains(Access::FLUSH_PERSISTENT), "no memory here outlives a loss of power"),
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

/// Withdraws the region when dropped.
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
            // Their keys lead to the same bytes. No core binds to the region any more, but may use them.
            device.memory.unbind_all_from(self.key);
            device.quiesce();
        }
        device.memory.release(self.key);
    }
}

/// Registered memory. Dropping it deregisters: it returns when the engine has stopped touching the
/// bytes, and requests that name them fail from then on; windows bound to it are taken away.
pub struct MemoryRegion {
    // Declared first, so dropped first: the engine is done with the bytes before they are freed.
    registered: Registered,
    /// The bytes, where they are not the program's.
    _kept: Option<Box<dyn Any + Send + Sync>>,
}

impl fmt::Debug for MemoryRegion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.registered.fmt(f)
    }
}

/// What a registration is to become; what is `None` stays. As the arguments of `ibv_rereg_mr`.
#[derive(Debug, Clone, Copy, Default)]
pub struct Reregistration<'a> {
    /// Other memory: first byte, length in bytes, and the address by which it is named.
    pub translation: Option<(*mut u8, usize, u64)>,
    /// Another protection domain, of the same device.
    pub pd: Option<&'a ProtectionDomain>,
    /// Other rights.
    pub access: Option<Access>,
}

/// What a program is going to do with memory, as `ibv_advise_mr_advice`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Advice {
    /// It will be read: pages that are not there are fetched.
    Prefetch,
    /// It will be written: the same, and the region must allow it.
    PrefetchWrite,
    /// What is there will be read: checked, nothing is fetched.
    PrefetchNoFault,
}

impl MemoryRegion {
    pub(super) fn new(registered: Registered) -> Self {
        Self { registered, _kept: None }
    }

    /// A region of bytes that live as long as `kept`.
    pub(super) fn keeping(registered: Registered, kept: impl Any + Send + Sync) -> Self {
        Self { registered, _kept: Some(Box::new(kept)) }
    }

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
        self.registered.region.iova
    }

    /// Length in bytes.
    pub fn len(&self) -> u64 {
        self.registered.region.len
    }

    /// True if it has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Rights.
    pub fn access(&self) -> Access {
        self.registered.region.access
    }

    /// A scatter/gather entry for `length` bytes from `offset` on. Not checked here: the engine does.
    pub fn sge(&self, offset: u64, length: u32) -> Sge {
        Sge { addr: self.addr().wrapping_add(offset), length, lkey: self.lkey() }
    }

    /// Deregisters, unless memory windows are bound to the region.
    ///
    /// # Errors
    /// The region, as it was: windows are bound to it (`EBUSY`).
    pub fn deregister(self) -> Result<(), Self> {
        let Registered { key, pd, .. } = &self.registered;
        if pd.device.memory.close(*key) { Ok(()) } else { Err(self) }
    }

    /// Changes the registration. If the memory is other memory, so are the keys, so that who had the old ones has
    /// lost them; else they stay, as with other devices, whose programs do not ask for them again. When it returns, the
    /// engine has stopped touching the memory as it was registered before.
    ///
    /// # Safety
    /// As for [`ProtectionDomain::reg_mr`], for the memory that is registered afterwards, with the rights it has
    /// then.
    ///
    /// # Errors
    /// [`DeviceError::Busy`] with windows bound; [`DeviceError::Foreign`]; [`DeviceError::Region`];
    /// [`DeviceError::System`] without randomness. Nothing was changed then.
    #[allow(unsafe_code)] // A contract for the caller; the accesses are in `memory`.
    pub unsafe fn reregister(&mut self, change: &Reregistration<'_>) -> Result<(), DeviceError> {
        let registered = &mut self.registered;
        let mut region = registered.region;
        if let Some((addr, len, iova)) = change.translation {
            (region.host, region.iova) = (addr.expose_provenance() as u64, iova);
            region.len = len as u64;
        }
        region.access = change.access.unwrap_or(region.access);
        let pd = change.pd.unwrap_or(&registered.pd).clone();
        if !std::sync::Arc::ptr_eq(&pd.device, &registered.pd.device) {
            return Err(DeviceError::Foreign("the protection domain"));
        }
        region.pd = pd.id;
        check_region(&region)?;
        let device = &pd.device;
        let old = registered.key;
        let [random, ..] = device.random()?.to_le_bytes();
        let variant = match (change.translation, random == old.variant()) {
            (None, _) => old.variant(),
            (Some(_), false) => random,
            (Some(_), true) => random.wrapping_add(1),
        };
        if !device.memory.close(old) {
            return Err(DeviceError::Busy("memory windows are bound to the region"));
        }
        device.memory.withdraw(old);
        device.quiesce();
        // SAFETY: the caller answers for the memory until `Registered` is dropped or changed again.
        registered.key = unsafe { device.memory.insert_again(&region, old, variant) };
        (registered.region, registered.pd) = (region, pd);
        Ok(())
    }
}

impl ProtectionDomain {
    /// Gives advice about memory that `sges` name, as `ibv_advise_mr`; returns when it was followed.
    ///
    /// # Errors
    /// [`DeviceError::Access`] for the first entry that names no such memory of this domain.
    pub fn advise(&self, advice: Advice, sges: &[Sge]) -> Result<(), DeviceError> {
        let device = &self.device;
        let need = match advice {
            Advice::PrefetchWrite => Access::LOCAL_WRITE,
            Advice::Prefetch | Advice::PrefetchNoFault => Access::NONE,
        };
        // With the token, nobody deregisters meanwhile.
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

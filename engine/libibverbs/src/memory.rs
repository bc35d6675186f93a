//! Memory regions.

use std::cell::UnsafeCell;
use std::ffi::{c_int, c_uint, c_void};
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use feroce_engine::device::{Advice, DeviceError, MemoryRegion, Reregistration};
use feroce_engine::memory::{Access, AccessError, on_demand_is_supported};
use feroce_wire::Key;
use libc::size_t;

use crate::abi::{
    IBV_ACCESS_FLUSH_GLOBAL, IBV_ACCESS_HUGETLB, IBV_ACCESS_LOCAL_WRITE, IBV_ACCESS_MW_BIND,
    IBV_ACCESS_ON_DEMAND, IBV_ACCESS_OPTIONAL_RANGE, IBV_ACCESS_REMOTE_ATOMIC,
    IBV_ACCESS_REMOTE_READ, IBV_ACCESS_REMOTE_WRITE, IBV_ACCESS_ZERO_BASED,
    IBV_ADVISE_MR_ADVICE_PREFETCH, IBV_ADVISE_MR_ADVICE_PREFETCH_NO_FAULT,
    IBV_ADVISE_MR_ADVICE_PREFETCH_WRITE, IBV_ADVISE_MR_FLAG_FLUSH, ibv_mr, ibv_pd, ibv_sge,
};
use crate::convert::sge_of;
use crate::domain::Pd;
use crate::errno;
use crate::object::{self, Object};

/// A memory region.
#[repr(C)]
pub struct Mr {
    abi: UnsafeCell<ibv_mr>,
    /// `None` while the region is being deregistered.
    region: UnsafeCell<Option<MemoryRegion>>,
    access: UnsafeCell<c_uint>,
    /// Counter of regions of the device memory that this region belongs to, if any.
    dm_users: Option<Arc<AtomicUsize>>,
    /// Registered from a DMA buffer: its address is an offset in the buffer.
    is_dma_buf: bool,
}

// SAFETY: `#[repr(C)]`, and the first field is the C structure.
unsafe impl Object for Mr {
    type Abi = ibv_mr;
}

impl Mr {
    /// Creates the object for a region and makes it a user of `pd`.
    ///
    /// # Safety
    /// `pd` is a live PD.
    unsafe fn new(
        pd: *mut ibv_pd,
        region: MemoryRegion,
        (addr, length): (*mut c_void, size_t),
        access: c_uint,
        dm_users: Option<Arc<AtomicUsize>>,
    ) -> Box<Self> {
        // SAFETY: `pd` is a live PD.
        let domain = unsafe { object::borrow::<Pd>(pd) };
        domain.users.fetch_add(1, Ordering::AcqRel);
        let abi = ibv_mr {
            context: domain.context(),
            pd,
            addr,
            length,
            handle: region.lkey().index(),
            lkey: region.lkey().value(),
            rkey: region.rkey().value(),
        };
        Box::new(Self {
            abi: UnsafeCell::new(abi),
            region: UnsafeCell::new(Some(region)),
            access: UnsafeCell::new(access),
            dm_users,
            is_dma_buf: false,
        })
    }

    /// Creates the object for registered device memory.
    ///
    /// # Safety
    /// `pd` is a live PD.
    pub unsafe fn of_device_memory(
        pd: *mut ibv_pd,
        region: MemoryRegion,
        access: c_uint,
        users: Arc<AtomicUsize>,
    ) -> Box<Self> {
        let length = usize::try_from(region.len()).unwrap_or(usize::MAX);
        // SAFETY: `pd` is a live PD.
        unsafe { Self::new(pd, region, (std::ptr::null_mut(), length), access, Some(users)) }
    }

    /// Returns true if the region covers memory that the program named: no DMA buffer, device
    /// memory or null region.
    fn is_program_memory(&self) -> bool {
        // SAFETY: the program does not use a region while it re-registers it.
        let (abi, access) = unsafe { (*self.abi.get(), *self.access.get()) };
        let is_implicit = abi.length == usize::MAX && access & IBV_ACCESS_ON_DEMAND != 0;
        !self.is_dma_buf && (!abi.addr.is_null() || is_implicit)
    }

    /// Returns the local key.
    pub fn lkey(&self) -> Key {
        // SAFETY: the program does not use a region while it re-registers it.
        Key(unsafe { (*self.abi.get()).lkey })
    }
}

/// Parameters of a region to create or re-register.
#[derive(Clone, Copy)]
struct MrConfig {
    pd: *mut ibv_pd,
    addr: *mut c_void,
    length: size_t,
    iova: u64,
    access: c_uint,
}

const REMOTE: c_uint = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC;
const WRITES: c_uint = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_ATOMIC;
const SUPPORTED_FLAGS: c_uint = IBV_ACCESS_LOCAL_WRITE
    | REMOTE
    | IBV_ACCESS_MW_BIND
    | IBV_ACCESS_ZERO_BASED
    | IBV_ACCESS_ON_DEMAND
    | IBV_ACCESS_FLUSH_GLOBAL;

/// Returns the engine's access rights for `ibv_access_flags`.
///
/// # Errors
/// EOPNOTSUPP for flags that the engine does not support.
pub fn rights(flags: c_uint) -> Result<Access, c_int> {
    // Optional flags are hints, and huge pages need no special handling.
    let flags = flags & !(IBV_ACCESS_OPTIONAL_RANGE | IBV_ACCESS_HUGETLB);
    let unknown = flags & !SUPPORTED_FLAGS != 0;
    if unknown || flags & IBV_ACCESS_ON_DEMAND != 0 && !on_demand_is_supported() {
        return Err(libc::EOPNOTSUPP);
    }
    Access::from_bits(flags).ok_or(libc::EINVAL)
}

impl MrConfig {
    /// Checks the flags and that the memory is mapped. Returns the engine's access rights.
    fn check(&self) -> Result<Access, c_int> {
        let access = rights(self.access)?;
        if self.addr.addr().checked_add(self.length).is_none() {
            return Err(libc::EINVAL);
        }
        // A region without bytes pins no page.
        if self.length > 0 && !access.contains(Access::ON_DEMAND) {
            fault_in(self.addr, self.length, self.access & WRITES != 0)?;
        }
        Ok(access)
    }

    /// Registers the memory and creates the object.
    ///
    /// # Safety
    /// `pd` is a live PD, and the program may register the memory: see `ProtectionDomain::reg_mr`.
    unsafe fn make(&self) -> Result<Box<Mr>, c_int> {
        // SAFETY: `self.pd` is a live PD.
        let pd = unsafe { object::borrow::<Pd>(self.pd) };
        pd.shared.check()?;
        let access = self.check()?;
        // SAFETY: the memory fulfils the contract of `ProtectionDomain::reg_mr`.
        let made = unsafe { pd.pd.reg_mr_iova(self.addr.cast(), self.length, self.iova, access) };
        let region = made.map_err(|error| errno::of_device(&error))?;
        let range = (self.addr, self.length);
        // SAFETY: `self.pd` is a live PD.
        Ok(unsafe { Mr::new(self.pd, region, range, self.access, None) })
    }
}

/// Faults the pages in. Fails as the kernel does when it cannot pin pages: without this check,
/// unmapped memory or writes to read-only memory would raise a signal while a packet is processed.
fn fault_in(addr: *mut c_void, length: size_t, write: bool) -> Result<(), c_int> {
    const PAGE: usize = 4096;
    let advice = if write { libc::MADV_POPULATE_WRITE } else { libc::MADV_POPULATE_READ };
    let offset = addr.addr() % PAGE;
    let (from, length) = (addr.wrapping_byte_sub(offset), (length + offset).next_multiple_of(PAGE));
    loop {
        // SAFETY: this advice changes no byte and unmaps nothing.
        if unsafe { libc::madvise(from, length, advice) } == 0 {
            return Ok(());
        }
        match errno::last() {
            libc::EINTR | libc::EAGAIN => {}
            libc::ENOMEM | libc::EFAULT => return Err(libc::EFAULT),
            libc::EINVAL if has_populate_advice() => return Err(libc::EFAULT),
            libc::EINVAL => return Ok(()), // Linux before 5.14 lacks the advice
            code => return Err(code),
        }
    }
}

/// Returns true if the kernel has `MADV_POPULATE_READ`: it then accepts an empty range.
fn has_populate_advice() -> bool {
    // SAFETY: the range is empty.
    unsafe { libc::madvise(std::ptr::null_mut(), 0, libc::MADV_POPULATE_READ) == 0 }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_reg_mr(
    pd: *mut ibv_pd,
    addr: *mut c_void,
    length: size_t,
    access: c_int,
) -> *mut ibv_mr {
    // SAFETY: the program passes the arguments that `ibv_reg_mr_iova2` requires.
    unsafe { ibv_reg_mr_iova2(pd, addr, length, addr.addr() as u64, access.cast_unsigned()) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_reg_mr_iova(
    pd: *mut ibv_pd,
    addr: *mut c_void,
    length: size_t,
    iova: u64,
    access: c_int,
) -> *mut ibv_mr {
    // SAFETY: the program passes the arguments that `ibv_reg_mr_iova2` requires.
    unsafe { ibv_reg_mr_iova2(pd, addr, length, iova, access.cast_unsigned()) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_reg_mr_iova2(
    pd: *mut ibv_pd,
    addr: *mut c_void,
    length: size_t,
    iova: u64,
    access: c_uint,
) -> *mut ibv_mr {
    // SAFETY: the program passes a live PD and keeps the memory valid until `ibv_dereg_mr`.
    object::give_or_fail(unsafe { MrConfig { pd, addr, length, iova, access }.make() })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_reg_dmabuf_mr(
    pd: *mut ibv_pd,
    offset: u64,
    length: size_t,
    iova: u64,
    fd: c_int,
    access: c_int,
) -> *mut ibv_mr {
    let access = access.cast_unsigned();
    // SAFETY: the program passes a live PD.
    let live = unsafe { object::borrow::<Pd>(pd) };
    let made = live.shared.check().and_then(|()| {
        if fd < 0 {
            return Err(libc::EBADF);
        }
        if length == 0 || access & IBV_ACCESS_ON_DEMAND != 0 {
            return Err(libc::EINVAL);
        }
        // SAFETY: the program passes an open descriptor and does not close it during the call.
        let buffer = unsafe { BorrowedFd::borrow_raw(fd) };
        let region = live.pd.reg_dmabuf_mr(buffer, offset, length, iova, rights(access)?);
        let region = region.map_err(|error| errno::of_device(&error))?;
        let offset = usize::try_from(offset).map_err(|_| libc::EINVAL)?;
        let range = (std::ptr::without_provenance_mut(offset), length);
        // SAFETY: the program passes a live PD.
        let mut made = unsafe { Mr::new(pd, region, range, access, None) };
        made.is_dma_buf = true;
        Ok(made)
    });
    object::give_or_fail(made)
}

/// `ibv_alloc_null_mr`
pub unsafe extern "C" fn alloc_null_mr(pd: *mut ibv_pd) -> *mut ibv_mr {
    // SAFETY: the program passes a live PD.
    let live = unsafe { object::borrow::<Pd>(pd) };
    let made = live.shared.check().and_then(|()| {
        let region = live.pd.alloc_null_mr().map_err(|error| errno::of_device(&error))?;
        let everywhere = (std::ptr::null_mut(), usize::MAX);
        // SAFETY: the program passes a live PD.
        let mut made = unsafe { Mr::new(pd, region, everywhere, IBV_ACCESS_LOCAL_WRITE, None) };
        // As with mlx5: not exposed as an rkey. Programs such as perftest give the lkey to peers.
        made.abi.get_mut().rkey = 0;
        Ok(made)
    });
    object::give_or_fail(made)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_dereg_mr(mr: *mut ibv_mr) -> c_int {
    // SAFETY: the program passes a live MR of a live PD.
    let (live, pd) = unsafe { (object::borrow::<Mr>(mr), object::borrow::<Pd>((*mr).pd)) };
    if let Err(code) = pd.shared.check() {
        return code;
    }
    // SAFETY: the program passes a live MR and no other thread uses it during the call.
    let region = unsafe { &mut *live.region.get() };
    if let Some(Err(bound)) = region.take().map(MemoryRegion::deregister) {
        *region = Some(bound); // memory windows are bound to it
        return libc::EBUSY;
    }
    // SAFETY: the program passes a live MR and does not use it again.
    let gone = unsafe { object::take::<Mr>(mr) };
    let dm_users = gone.dm_users.clone();
    drop(gone);
    pd.users.fetch_sub(1, Ordering::AcqRel);
    if let Some(users) = dm_users {
        users.fetch_sub(1, Ordering::AcqRel);
    }
    0
}

const CHANGE_TRANSLATION: c_int = 1;
const CHANGE_PD: c_int = 1 << 1;
const CHANGE_ACCESS: c_int = 1 << 2;
/// `IBV_REREG_MR_ERR_INPUT`: the arguments are invalid.
const INPUT: c_int = -1;
/// `IBV_REREG_MR_ERR_CMD`: the change failed. After either error the region is unchanged.
const COMMAND: c_int = -4;

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_rereg_mr(
    mr: *mut ibv_mr,
    flags: c_int,
    pd: *mut ibv_pd,
    addr: *mut c_void,
    length: size_t,
    access: c_int,
) -> c_int {
    let given = |bit: c_int| flags & bit != 0;
    let unknown = flags & !(CHANGE_TRANSLATION | CHANGE_PD | CHANGE_ACCESS) != 0;
    let nowhere = given(CHANGE_TRANSLATION) && (addr.is_null() || length == 0);
    let domainless = given(CHANGE_PD) && pd.is_null();
    let mistaken = access != 0 && !given(CHANGE_ACCESS);
    // SAFETY: the program passes a live MR.
    let is_program_memory = unsafe { object::borrow::<Mr>(mr).is_program_memory() };
    if flags == 0 || unknown || nowhere || domainless || mistaken || !is_program_memory {
        errno::set(libc::EINVAL);
        return INPUT;
    }
    // SAFETY: the program passes a live MR that no other thread uses during the call, a live PD if
    // it changes the PD, and valid memory.
    let done = unsafe {
        let live = object::borrow::<Mr>(mr);
        let old = *live.abi.get();
        let wanted = MrConfig {
            pd: if given(CHANGE_PD) { pd } else { old.pd },
            addr: if given(CHANGE_TRANSLATION) { addr } else { old.addr },
            length: if given(CHANGE_TRANSLATION) { length } else { old.length },
            iova: addr.addr() as u64,
            access: if given(CHANGE_ACCESS) { access.cast_unsigned() } else { *live.access.get() },
        };
        reregister(live, &wanted, given(CHANGE_TRANSLATION))
    };
    match done {
        Ok(()) => 0,
        Err(code) => {
            errno::set(code);
            COMMAND
        }
    }
}

/// # Safety
/// `live` and the PD of `wanted` are live, no other thread uses the MR during the call, and the
/// memory of `wanted` is valid.
unsafe fn reregister(live: &Mr, wanted: &MrConfig, moves: bool) -> Result<(), c_int> {
    // SAFETY: both PDs are live and this thread alone uses the MR.
    unsafe {
        let old = *live.abi.get();
        let (before, after) = (object::borrow::<Pd>(old.pd), object::borrow::<Pd>(wanted.pd));
        after.shared.check()?;
        let access = wanted.check()?;
        let region = (*live.region.get()).as_mut().ok_or(libc::EINVAL)?;
        let change = Reregistration {
            translation: moves.then_some((wanted.addr.cast(), wanted.length, wanted.iova)),
            pd: Some(&after.pd),
            access: Some(access),
        };
        region.reregister(&change).map_err(|error| errno::of_device(&error))?;
        after.users.fetch_add(1, Ordering::AcqRel);
        before.users.fetch_sub(1, Ordering::AcqRel);
        *live.abi.get() = ibv_mr {
            context: after.context(),
            pd: wanted.pd,
            addr: wanted.addr,
            length: wanted.length,
            lkey: region.lkey().value(),
            rkey: region.rkey().value(),
            ..old
        };
        *live.access.get() = wanted.access;
    }
    Ok(())
}

/// `ibv_advise_mr`
pub unsafe extern "C" fn advise_mr(
    pd: *mut ibv_pd,
    advice: c_uint,
    flags: u32,
    list: *mut ibv_sge,
    count: u32,
) -> c_int {
    let advice = match advice {
        IBV_ADVISE_MR_ADVICE_PREFETCH => Advice::Prefetch,
        IBV_ADVISE_MR_ADVICE_PREFETCH_WRITE => Advice::PrefetchWrite,
        IBV_ADVISE_MR_ADVICE_PREFETCH_NO_FAULT => Advice::PrefetchNoFault,
        _ => return libc::EOPNOTSUPP,
    };
    // Prefetch completes before the call returns, with or without IBV_ADVISE_MR_FLAG_FLUSH.
    if flags & !IBV_ADVISE_MR_FLAG_FLUSH != 0 || count == 0 {
        return libc::EINVAL;
    }
    // SAFETY: the program passes a live PD and a list of `count` entries.
    let (live, list) =
        unsafe { (object::borrow::<Pd>(pd), std::slice::from_raw_parts(list, count as usize)) };
    let list: Vec<_> = list.iter().map(sge_of).collect();
    object::code(live.shared.check().and_then(|()| {
        live.pd.advise(advice, &list).map_err(|error| match error {
            DeviceError::Access(AccessError::Key) => libc::ENOENT,
            DeviceError::Access(AccessError::ProtectionDomain | AccessError::Rights) => libc::EPERM,
            DeviceError::Access(_) => libc::EFAULT,
            other => errno::of_device(&other),
        })
    }))
}

#[unsafe(no_mangle)]
extern "C" fn ibv_import_mr(_pd: *mut ibv_pd, _handle: u32) -> *mut ibv_mr {
    errno::fail(libc::EOPNOTSUPP)
}

#[unsafe(no_mangle)]
extern "C" fn ibv_unimport_mr(_mr: *mut ibv_mr) {}

//! Memory regions.

use std::cell::UnsafeCell;
use std::ffi::{c_int, c_uint, c_void};
use std::os::fd::BorrowedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use feroce_engine::device::{Advice, DeviceError, MemoryRegion, Reregistration};
use feroce_engine::memory::{Access, AccessError, on_demand_is_supported, pages};
use feroce_wire::Key;
use libc::size_t;

use crate::abi::{
    IBV_ACCESS_FLUSH_GLOBAL, IBV_ACCESS_HUGETLB, IBV_ACCESS_LOCAL_WRITE, IBV_ACCESS_MW_BIND,
    IBV_ACCESS_ON_DEMAND, IBV_ACCESS_OPTIONAL_RANGE, IBV_ACCESS_REMOTE_ATOMIC,
    IBV_ACCESS_REMOTE_READ, IBV_ACCESS_REMOTE_WRITE, IBV_ACCESS_ZERO_BASED,
    IBV_ADVISE_MR_ADVICE_PREFETCH, IBV_ADVISE_MR_ADVICE_PREFETCH_NO_FAULT,
    IBV_ADVISE_MR_ADVICE_PREFETCH_WRITE, IBV_ADVISE_MR_FLAG_FLUSH, IBV_REG_MR_MASK_ADDR,
    IBV_REG_MR_MASK_BUF, IBV_REG_MR_MASK_DMAH, IBV_REG_MR_MASK_FD, IBV_REG_MR_MASK_FD_OFFSET,
    IBV_REG_MR_MASK_IOVA, ibv_buf, ibv_mr, ibv_mr_init_attr, ibv_pd, ibv_sge,
};
use crate::buffer::Buf;
use crate::context::{self, implement_object};
use crate::convert::sge_of;
use crate::dma_handle::Dmah;
use crate::domain::{self, Pd};
use crate::errno;
use crate::object::{self, Base, Release, Use};

/// A memory region.
#[repr(C)]
pub struct Mr {
    abi: UnsafeCell<ibv_mr>,
    base: Base,
    registration: Mutex<Registration>,
    /// What the region refers to besides its PD: device memory, a buffer, a DMA handle.
    kept: Vec<Box<dyn Release + Send + Sync>>,
    /// Registered from a DMA buffer: its address is an offset in the buffer.
    is_dma_buf: bool,
}

implement_object!(Mr: ibv_mr, handle; uses registration, kept);

/// The part of a region that `ibv_rereg_mr` changes.
struct Registration {
    /// `None` once the region is deregistered.
    region: Option<MemoryRegion>,
    access: c_uint,
    pd: Use<Pd>,
}

impl Release for Registration {
    fn release(&self) {
        self.pd.release();
    }
}

impl Mr {
    /// Creates the object for a region of the PD at `pd`.
    ///
    /// # Errors
    /// EINVAL if the PD is being deallocated.
    pub fn new(
        live: Arc<Pd>,
        pd: *mut ibv_pd,
        region: MemoryRegion,
        (addr, length): (*mut c_void, size_t),
        access: c_uint,
    ) -> Result<Self, c_int> {
        let abi = ibv_mr {
            context: live.context(),
            pd,
            addr,
            length,
            handle: region.lkey().index(),
            lkey: region.lkey().value(),
            rkey: region.rkey().value(),
        };
        let registration = Registration { region: Some(region), access, pd: Use::new(live)? };
        Ok(Self {
            base: Base::new(abi.context.addr(), abi.handle),
            abi: UnsafeCell::new(abi),
            registration: Mutex::new(registration),
            kept: Vec::new(),
            is_dma_buf: false,
        })
    }

    /// Keeps `reference` as long as the region lives.
    pub fn keeping(mut self, reference: impl Release + Send + Sync + 'static) -> Self {
        self.kept.push(Box::new(reference));
        self
    }

    /// Deregisters the region. No object uses a region, so that nothing else can refuse to destroy
    /// it.
    ///
    /// # Errors
    /// EIO in a forked child, EBUSY while memory windows are bound to the region, ENOENT if another
    /// thread has deregistered it.
    fn deregister(&self) -> Result<(), c_int> {
        let mut registration = self.registration();
        registration.pd.shared.check()?;
        let region = registration.region.take().ok_or(libc::ENOENT)?;
        if let Err(bound) = region.deregister() {
            registration.region = Some(bound);
            return Err(libc::EBUSY);
        }
        Ok(())
    }

    fn registration(&self) -> MutexGuard<'_, Registration> {
        self.registration.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns true if the region covers memory that the program named: no DMA buffer, device
    /// memory or null region.
    fn is_program_memory(&self) -> bool {
        // SAFETY: the program does not use a region while it re-registers it.
        let (abi, access) = unsafe { (*self.abi.get(), self.registration().access) };
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
    /// The program may register the memory: see `ProtectionDomain::reg_mr`.
    unsafe fn make(&self) -> Result<Mr, c_int> {
        let live = domain::live(self.pd)?;
        let access = self.check()?;
        // SAFETY: the memory fulfils the contract of `ProtectionDomain::reg_mr`.
        let made = unsafe { live.pd.reg_mr_iova(self.addr.cast(), self.length, self.iova, access) };
        let region = made.map_err(|error| errno::of_device(&error))?;
        Mr::new(live, self.pd, region, (self.addr, self.length), self.access)
    }
}

/// Hands a region to the program; for an error sets `errno` and returns null.
pub fn give_or_fail(made: Result<Mr, c_int>) -> *mut ibv_mr {
    object::give_or_fail(made.map(Arc::new))
}

/// Faults the pages in. Fails as the kernel does when it cannot pin pages: without this check,
/// unmapped memory or writes to read-only memory would raise a signal while a packet is processed.
fn fault_in(addr: *mut c_void, length: size_t, write: bool) -> Result<(), c_int> {
    let advice = if write { libc::MADV_POPULATE_WRITE } else { libc::MADV_POPULATE_READ };
    let page = usize::try_from(pages::size()).map_err(|_| libc::EINVAL)?;
    let offset = addr.addr() % page;
    let (from, length) = (addr.wrapping_byte_sub(offset), (length + offset).next_multiple_of(page));
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
    // SAFETY: the program keeps the memory valid until `ibv_dereg_mr`.
    give_or_fail(unsafe { MrConfig { pd, addr, length, iova, access }.make() })
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
    give_or_fail(dma_buf(pd, (offset, length), iova, fd, access.cast_unsigned()))
}

/// The access flags that a region of a DMA buffer may have: those of ibv_reg_mr(3), which has only
/// IBV_ACCESS_RELAXED_ORDERING of the optional ones.
const DMA_BUF_FLAGS: c_uint = IBV_ACCESS_LOCAL_WRITE | REMOTE | IBV_ACCESS_OPTIONAL_RANGE;

/// Registers `length` bytes of a DMA buffer from `offset` on. As in Linux, the descriptor is
/// checked last.
fn dma_buf(
    pd: *mut ibv_pd,
    (offset, length): (u64, size_t),
    iova: u64,
    fd: c_int,
    access: c_uint,
) -> Result<Mr, c_int> {
    let live = domain::live(pd)?;
    let is_aligned = offset % pages::size() == iova % pages::size();
    let lacks_local_write = access & WRITES != 0 && access & IBV_ACCESS_LOCAL_WRITE == 0;
    if length == 0 || !is_aligned || access & !DMA_BUF_FLAGS != 0 || lacks_local_write {
        return Err(libc::EINVAL);
    }
    if fd < 0 {
        return Err(libc::EBADF);
    }
    // SAFETY: the program passes an open descriptor and does not close it during the call.
    let buffer = unsafe { BorrowedFd::borrow_raw(fd) };
    let region = live.pd.reg_dmabuf_mr(buffer, offset, length, iova, rights(access)?);
    let region = region.map_err(|error| errno::of_device(&error))?;
    let offset = usize::try_from(offset).map_err(|_| libc::EINVAL)?;
    let range = (std::ptr::without_provenance_mut(offset), length);
    Ok(Mr { is_dma_buf: true, ..Mr::new(live, pd, region, range, access)? })
}

/// What `ibv_reg_mr_ex` registers.
enum Wanted {
    Memory(*mut c_void),
    DmaBuf { fd: c_int, offset: u64 },
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_reg_mr_ex(pd: *mut ibv_pd, attr: *mut ibv_mr_init_attr) -> *mut ibv_mr {
    const KNOWN: u64 = (IBV_REG_MR_MASK_BUF << 1) - 1;
    // SAFETY: the program passes valid attributes. Fields are read one by one, and `buf` only if it
    // is there: the structure of release 59 ends before it.
    let (mask, length, access) = unsafe { ((*attr).comp_mask, (*attr).length, (*attr).access) };
    let given = |bit: u64| mask & bit != 0;
    let wanted = || match (given(IBV_REG_MR_MASK_FD), given(IBV_REG_MR_MASK_ADDR)) {
        _ if mask & !KNOWN != 0 => Err(libc::EOPNOTSUPP),
        (true, true) => Err(libc::EINVAL),
        // SAFETY: the program passes valid attributes.
        (true, false) if given(IBV_REG_MR_MASK_FD_OFFSET) && given(IBV_REG_MR_MASK_IOVA) => unsafe {
            Ok(Wanted::DmaBuf { fd: (*attr).fd, offset: (*attr).fd_offset })
        },
        // SAFETY: the program passes valid attributes.
        (false, true) if !given(IBV_REG_MR_MASK_FD_OFFSET) => unsafe {
            Ok(Wanted::Memory((*attr).addr))
        },
        _ => Err(libc::EINVAL),
    };
    give_or_fail(wanted().and_then(|wanted| {
        let live = domain::live(pd)?;
        // SAFETY: the program passes valid attributes.
        let (iova, dmah) = unsafe { ((*attr).iova, (*attr).dmah) };
        let dmah = match given(IBV_REG_MR_MASK_DMAH) {
            true => Some(Use::new(context::live_in::<Dmah>(live.context().addr(), dmah)?)?),
            false => None,
        };
        let access = access.cast_unsigned();
        // As mlx5: a handle's hints are for pinned memory.
        if dmah.is_some() && access & IBV_ACCESS_ON_DEMAND != 0 {
            return Err(libc::EOPNOTSUPP);
        }
        let mut buffer = None;
        let made = match wanted {
            Wanted::Memory(addr) => {
                if given(IBV_REG_MR_MASK_BUF) {
                    // SAFETY: the program passes valid attributes of release 64 or later.
                    let live = object::live::<Buf>(unsafe { (*attr).buf })?;
                    live.check(pd, addr, length)?;
                    buffer = Some(live);
                }
                let iova = if given(IBV_REG_MR_MASK_IOVA) { iova } else { addr.addr() as u64 };
                // SAFETY: the program keeps the memory valid until `ibv_dereg_mr`.
                unsafe { MrConfig { pd, addr, length, iova, access }.make()? }
            }
            Wanted::DmaBuf { .. } if given(IBV_REG_MR_MASK_BUF) => return Err(libc::EINVAL),
            Wanted::DmaBuf { fd, offset } => dma_buf(pd, (offset, length), iova, fd, access)?,
        };
        Ok(made.keeping(buffer).keeping(dmah))
    }))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_reg_buf_mr(
    pd: *mut ibv_pd,
    buf: *mut ibv_buf,
    addr: *mut c_void,
    length: size_t,
    access: c_int,
) -> *mut ibv_mr {
    // SAFETY: all-zero bytes are a valid value of this C structure.
    let mut attr: ibv_mr_init_attr = unsafe { std::mem::zeroed() };
    attr.comp_mask = IBV_REG_MR_MASK_BUF | IBV_REG_MR_MASK_ADDR;
    (attr.length, attr.access, attr.addr, attr.buf) = (length, access, addr, buf);
    // SAFETY: the attributes are complete.
    unsafe { ibv_reg_mr_ex(pd, &raw mut attr) }
}

/// `ibv_alloc_null_mr`
pub extern "C" fn alloc_null_mr(pd: *mut ibv_pd) -> *mut ibv_mr {
    give_or_fail(domain::live(pd).and_then(|live| {
        let region = live.pd.alloc_null_mr().map_err(|error| errno::of_device(&error))?;
        let everywhere = (std::ptr::null_mut(), usize::MAX);
        let mut made = Mr::new(live, pd, region, everywhere, IBV_ACCESS_LOCAL_WRITE)?;
        // As with mlx5: not exposed as an rkey. Programs such as perftest give the lkey to peers.
        made.abi.get_mut().rkey = 0;
        Ok(made)
    }))
}

#[unsafe(no_mangle)]
extern "C" fn ibv_dereg_mr(mr: *mut ibv_mr) -> c_int {
    object::code(object::destroy(mr, Mr::deregister).map(|destroyed| drop(destroyed.finish())))
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
    let live = match object::live::<Mr>(mr) {
        Ok(live) => live,
        Err(code) => {
            errno::set(code);
            return INPUT;
        }
    };
    let refused = flags == 0 || unknown || nowhere || domainless || mistaken;
    if refused || !live.is_program_memory() {
        errno::set(libc::EINVAL);
        return INPUT;
    }
    // SAFETY: the program does not use the region during the call.
    let old = unsafe { *live.abi.get() };
    let wanted = MrConfig {
        pd: if given(CHANGE_PD) { pd } else { old.pd },
        addr: if given(CHANGE_TRANSLATION) { addr } else { old.addr },
        length: if given(CHANGE_TRANSLATION) { length } else { old.length },
        iova: addr.addr() as u64,
        access: match given(CHANGE_ACCESS) {
            true => access.cast_unsigned(),
            false => live.registration().access,
        },
    };
    // SAFETY: no other thread uses the MR during the call, and the memory is valid.
    match unsafe { reregister(&live, &wanted, given(CHANGE_TRANSLATION)) } {
        Ok(()) => 0,
        Err(code) => {
            errno::set(code);
            COMMAND
        }
    }
}

/// # Safety
/// No other thread uses the MR during the call, and the memory of `wanted` is valid.
unsafe fn reregister(live: &Mr, wanted: &MrConfig, moves: bool) -> Result<(), c_int> {
    let after = context::live_in::<Pd>(live.base.context(), wanted.pd)?;
    after.shared.check()?;
    let access = wanted.check()?;
    let used = Use::new(Arc::clone(&after))?;
    let mut registration = live.registration();
    let region = registration.region.as_mut().ok_or(libc::EINVAL)?;
    let change = Reregistration {
        translation: moves.then_some((wanted.addr.cast(), wanted.length, wanted.iova)),
        pd: Some(&after.pd),
        access: Some(access),
    };
    // SAFETY: the memory of `wanted` is valid.
    unsafe { region.reregister(&change) }.map_err(|error| errno::of_device(&error))?;
    let (lkey, rkey) = (region.lkey().value(), region.rkey().value());
    registration.pd = used;
    registration.access = wanted.access;
    // SAFETY: no other thread uses the MR.
    unsafe {
        let old = *live.abi.get();
        let (pd, addr, length) = (wanted.pd, wanted.addr, wanted.length);
        *live.abi.get() = ibv_mr { pd, addr, length, lkey, rkey, ..old };
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
        _ => return object::code(Err(libc::EOPNOTSUPP)),
    };
    // Prefetch completes before the call returns, with or without IBV_ADVISE_MR_FLAG_FLUSH.
    if flags & !IBV_ADVISE_MR_FLAG_FLUSH != 0 || count == 0 {
        return object::code(Err(libc::EINVAL));
    }
    // SAFETY: the program passes a list of `count` entries.
    let list = unsafe { std::slice::from_raw_parts(list, count as usize) };
    let list: Vec<_> = list.iter().map(sge_of).collect();
    object::code(domain::live(pd).and_then(|live| {
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

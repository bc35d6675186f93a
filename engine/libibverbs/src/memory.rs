//! Protection domains and memory regions.

use std::cell::UnsafeCell;
use std::ffi::{c_int, c_uint, c_void};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use feroce_engine::device::{MemoryRegion, ProtectionDomain};
use feroce_engine::memory::Access;
use libc::size_t;

use crate::abi::{
    IBV_ACCESS_HUGETLB, IBV_ACCESS_LOCAL_WRITE, IBV_ACCESS_OPTIONAL_RANGE,
    IBV_ACCESS_REMOTE_ATOMIC, IBV_ACCESS_REMOTE_READ, IBV_ACCESS_REMOTE_WRITE, ibv_context, ibv_mr,
    ibv_pd,
};
use crate::context::{self, Shared};
use crate::errno;
use crate::object::{self, Object};

/// A protection domain.
#[repr(C)]
pub struct Pd {
    abi: UnsafeCell<ibv_pd>,
    /// Of the context it was made from.
    pub shared: Arc<Shared>,
    /// The engine's.
    pub pd: ProtectionDomain,
    /// Objects made from it that live.
    pub users: AtomicUsize,
}

// SAFETY: the first field is the C structure.
unsafe impl Object for Pd {
    type Abi = ibv_pd;
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_alloc_pd(context: *mut ibv_context) -> *mut ibv_pd {
    // SAFETY: the program passes an open context.
    let made = unsafe { context::shared(context) }.map(|shared| {
        Box::new(Pd {
            abi: UnsafeCell::new(ibv_pd { context, handle: 0 }),
            shared: Arc::clone(shared),
            pd: shared.engine.device.alloc_pd(),
            users: AtomicUsize::new(0),
        })
    });
    object::give_or_fail(made)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_dealloc_pd(pd: *mut ibv_pd) -> c_int {
    // SAFETY: the program passes a live PD.
    let live = unsafe { object::borrow::<Pd>(pd) };
    if let Err(code) = live.shared.check() {
        return code;
    }
    if live.users.load(Ordering::Acquire) > 0 {
        return libc::EBUSY;
    }
    // SAFETY: as above; nothing was made from it.
    drop(unsafe { object::take::<Pd>(pd) });
    0
}

/// A memory region.
#[repr(C)]
pub struct Mr {
    abi: UnsafeCell<ibv_mr>,
    region: UnsafeCell<MemoryRegion>,
    access: UnsafeCell<c_uint>,
}

// SAFETY: the first field is the C structure.
unsafe impl Object for Mr {
    type Abi = ibv_mr;
}

/// What a region is to be.
#[derive(Clone, Copy)]
struct Wanted {
    pd: *mut ibv_pd,
    addr: *mut c_void,
    length: size_t,
    iova: u64,
    access: c_uint,
}

const REMOTE: c_uint = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC;
const WRITES: c_uint = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_ATOMIC;

/// The engine's rights for `ibv_access_flags`.
///
/// # Errors
/// EOPNOTSUPP for flags that the engine has no meaning for.
pub fn rights(flags: c_uint) -> Result<Access, c_int> {
    // Optional ones are hints, and huge pages are no different to the engine.
    let flags = flags & !(IBV_ACCESS_OPTIONAL_RANGE | IBV_ACCESS_HUGETLB);
    if flags & !(IBV_ACCESS_LOCAL_WRITE | REMOTE) != 0 {
        return Err(libc::EOPNOTSUPP);
    }
    Access::from_bits(flags).ok_or(libc::EINVAL)
}

impl Wanted {
    /// Registers.
    ///
    /// # Safety
    /// `pd` is a live PD, and the memory is the program's to register: see [`ProtectionDomain::reg_mr`].
    unsafe fn register(&self) -> Result<MemoryRegion, c_int> {
        // SAFETY: the caller says so.
        let pd = unsafe { object::borrow::<Pd>(self.pd) };
        pd.shared.check()?;
        let access = rights(self.access)?;
        if self.length == 0 || self.addr.addr().checked_add(self.length).is_none() {
            return Err(libc::EINVAL);
        }
        reach(self.addr, self.length, self.access & WRITES != 0)?;
        // SAFETY: the caller says so.
        let made = unsafe { pd.pd.reg_mr_iova(self.addr.cast(), self.length, self.iova, access) };
        made.map_err(|error| errno::of_device(&error))
    }

    /// Registers and makes the object.
    ///
    /// # Safety
    /// As for [`Wanted::register`].
    unsafe fn make(&self) -> Result<Box<Mr>, c_int> {
        // SAFETY: the caller says so.
        let (region, pd) = unsafe { (self.register()?, object::borrow::<Pd>(self.pd)) };
        pd.users.fetch_add(1, Ordering::AcqRel);
        // SAFETY: the PD is live, and its context is not written.
        let context = unsafe { (*pd.abi.get()).context };
        let abi = ibv_mr {
            context,
            pd: self.pd,
            addr: self.addr,
            length: self.length,
            handle: 0,
            lkey: region.lkey().value(),
            rkey: region.rkey().value(),
        };
        Ok(Box::new(Mr {
            abi: UnsafeCell::new(abi),
            region: UnsafeCell::new(region),
            access: UnsafeCell::new(self.access),
        }))
    }
}

/// Fails as the kernel does when it cannot pin the pages: memory that is not mapped, or is read-only and to be
/// written, would otherwise be found out by a signal in the middle of a packet.
fn reach(addr: *mut c_void, length: size_t, write: bool) -> Result<(), c_int> {
    const PAGE: usize = 4096;
    let advice = if write { libc::MADV_POPULATE_WRITE } else { libc::MADV_POPULATE_READ };
    let offset = addr.addr() % PAGE;
    let (from, length) = (addr.wrapping_byte_sub(offset), (length + offset).next_multiple_of(PAGE));
    loop {
        // SAFETY: this kind of advice changes no byte and unmaps nothing.
        if unsafe { libc::madvise(from, length, advice) } == 0 {
            return Ok(());
        }
        match errno::last() {
            libc::EINTR | libc::EAGAIN => {}
            libc::ENOMEM | libc::EFAULT => return Err(libc::EFAULT),
            libc::EINVAL if knows_populate() => return Err(libc::EFAULT),
            libc::EINVAL => return Ok(()), // Linux before 5.14 cannot say.
            code => return Err(code),
        }
    }
}

/// Whether the kernel knows the advice: it takes any range of no length then.
fn knows_populate() -> bool {
    // SAFETY: an empty range.
    unsafe { libc::madvise(std::ptr::null_mut(), 0, libc::MADV_POPULATE_READ) == 0 }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_reg_mr(
    pd: *mut ibv_pd,
    addr: *mut c_void,
    length: size_t,
    access: c_int,
) -> *mut ibv_mr {
    // SAFETY: the program passes what the other function takes.
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
    // SAFETY: the program passes what the other function takes.
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
    // SAFETY: the program passes a live PD, and answers for the memory.
    object::give_or_fail(unsafe { Wanted { pd, addr, length, iova, access }.make() })
}

#[unsafe(no_mangle)]
extern "C" fn ibv_reg_dmabuf_mr(
    _pd: *mut ibv_pd,
    _offset: u64,
    _length: size_t,
    _iova: u64,
    _fd: c_int,
    _access: c_int,
) -> *mut ibv_mr {
    errno::fail(libc::EOPNOTSUPP)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_dereg_mr(mr: *mut ibv_mr) -> c_int {
    // SAFETY: the program passes a live MR of a live PD.
    let pd = unsafe { object::borrow::<Pd>((*mr).pd) };
    if let Err(code) = pd.shared.check() {
        return code;
    }
    // SAFETY: as above; the program does not use it from now on.
    drop(unsafe { object::take::<Mr>(mr) });
    pd.users.fetch_sub(1, Ordering::AcqRel);
    0
}

const CHANGE_TRANSLATION: c_int = 1;
const CHANGE_PD: c_int = 1 << 1;
const CHANGE_ACCESS: c_int = 1 << 2;
/// `IBV_REREG_MR_ERR_INPUT`: the region is as it was.
const AS_IT_WAS: c_int = -1;

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_rereg_mr(
    mr: *mut ibv_mr,
    flags: c_int,
    pd: *mut ibv_pd,
    addr: *mut c_void,
    length: size_t,
    access: c_int,
) -> c_int {
    if flags == 0 || flags & !(CHANGE_TRANSLATION | CHANGE_PD | CHANGE_ACCESS) != 0 {
        errno::set(libc::EINVAL);
        return AS_IT_WAS;
    }
    // SAFETY: the program passes a live MR, which no other thread uses meanwhile, a live PD where it changes, and
    // answers for the memory.
    unsafe {
        let live = object::borrow::<Mr>(mr);
        let old = *live.abi.get();
        let mut wanted = Wanted {
            pd: old.pd,
            addr: old.addr,
            length: old.length,
            iova: (*live.region.get()).addr(),
            access: *live.access.get(),
        };
        if flags & CHANGE_PD != 0 {
            wanted.pd = pd;
        }
        if flags & CHANGE_TRANSLATION != 0 {
            (wanted.addr, wanted.length, wanted.iova) = (addr, length, addr.addr() as u64);
        }
        if flags & CHANGE_ACCESS != 0 {
            wanted.access = access.cast_unsigned();
        }
        if wanted.pd.is_null() {
            errno::set(libc::EINVAL);
            return AS_IT_WAS;
        }
        let region = match wanted.register() {
            Ok(region) => region,
            Err(code) => {
                errno::set(code);
                return AS_IT_WAS;
            }
        };
        object::borrow::<Pd>(wanted.pd).users.fetch_add(1, Ordering::AcqRel);
        object::borrow::<Pd>(old.pd).users.fetch_sub(1, Ordering::AcqRel);
        *live.abi.get() = ibv_mr {
            pd: wanted.pd,
            addr: wanted.addr,
            length: wanted.length,
            lkey: region.lkey().value(),
            rkey: region.rkey().value(),
            ..old
        };
        *live.region.get() = region;
        *live.access.get() = wanted.access;
    }
    0
}

#[unsafe(no_mangle)]
extern "C" fn ibv_import_pd(_context: *mut ibv_context, _handle: u32) -> *mut ibv_pd {
    errno::fail(libc::EOPNOTSUPP)
}

#[unsafe(no_mangle)]
extern "C" fn ibv_unimport_pd(_pd: *mut ibv_pd) {}

#[unsafe(no_mangle)]
extern "C" fn ibv_import_mr(_pd: *mut ibv_pd, _handle: u32) -> *mut ibv_mr {
    errno::fail(libc::EOPNOTSUPP)
}

#[unsafe(no_mangle)]
extern "C" fn ibv_unimport_mr(_mr: *mut ibv_mr) {}

#[unsafe(no_mangle)]
extern "C" fn ibv_import_dm(_context: *mut ibv_context, _handle: u32) -> *mut c_void {
    errno::fail(libc::EOPNOTSUPP)
}

#[unsafe(no_mangle)]
extern "C" fn ibv_unimport_dm(_dm: *mut c_void) {}

//! Device memory (`ibv_dm`): the program accesses it by copy functions, peers access it through a
//! memory region.

use std::cell::UnsafeCell;
use std::ffi::{c_int, c_uint, c_void};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use feroce_engine::device::{DeviceMemory, MAX_DEVICE_MEMORY};
use libc::size_t;

use crate::abi::{IBV_ACCESS_ZERO_BASED, ibv_alloc_dm_attr, ibv_context, ibv_dm, ibv_mr, ibv_pd};
use crate::context::{self, Shared, implement_object};
use crate::convert::bytes_at;
use crate::domain;
use crate::errno;
use crate::memory::{self, Mr, rights};
use crate::object::{self, Base, Use};

/// An allocation of device memory.
#[repr(C)]
pub struct Dm {
    abi: UnsafeCell<ibv_dm>,
    base: Base,
    shared: Arc<Shared>,
    memory: Memory,
}

implement_object!(Dm: ibv_dm, handle);

/// Where the bytes are stored.
enum Memory {
    /// In the engine's arena.
    Engine(DeviceMemory),
    /// Private memory of a forked child, which has no engine. Only registering it needs the engine,
    /// and fails.
    Own(Mutex<Vec<u8>>),
}

impl Memory {
    fn len(&self) -> usize {
        match self {
            Self::Engine(memory) => memory.len(),
            Self::Own(bytes) => lock(bytes).len(),
        }
    }

    fn write(&self, offset: usize, bytes: &[u8]) {
        match self {
            Self::Engine(memory) => memory.write(offset, bytes),
            Self::Own(own) => lock(own)[offset..offset + bytes.len()].copy_from_slice(bytes),
        }
    }

    fn read(&self, offset: usize, to: &mut [u8]) {
        match self {
            Self::Engine(memory) => memory.read(offset, to),
            Self::Own(own) => to.copy_from_slice(&lock(own)[offset..offset + to.len()]),
        }
    }
}

fn lock(bytes: &Mutex<Vec<u8>>) -> MutexGuard<'_, Vec<u8>> {
    bytes.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Offsets and lengths of copies must be multiples of this many bytes, as on mlx5.
const UNIT: usize = 4;

/// Largest accepted `log_align_req`: 4096 bytes, a page.
const MOST_ALIGNED: u32 = 12;

/// `ibv_alloc_dm`
pub unsafe extern "C" fn alloc_dm(
    context: *mut ibv_context,
    attr: *mut ibv_alloc_dm_attr,
) -> *mut ibv_dm {
    // SAFETY: the program passes valid attributes.
    let attr = unsafe { *attr };
    object::give_or_fail(context::shared_in_any_process(context).and_then(|shared| {
        if attr.comp_mask != 0 || attr.length == 0 || attr.log_align_req > MOST_ALIGNED {
            return Err(libc::EINVAL);
        }
        if attr.length > MAX_DEVICE_MEMORY {
            return Err(libc::ENOMEM);
        }
        let align = (1 << attr.log_align_req).max(size_of::<u64>());
        let memory = if shared.is_own() {
            let memory = shared.engine.device.alloc_dm(attr.length, align);
            Memory::Engine(memory.map_err(|error| errno::of_device(&error))?)
        } else {
            Memory::Own(Mutex::new(vec![0; attr.length]))
        };
        let handle = NEXT.fetch_add(1, Ordering::Relaxed);
        let abi = ibv_dm {
            context,
            memcpy_to_dm: Some(copy_to),
            memcpy_from_dm: Some(copy_from),
            comp_mask: 0,
            handle,
        };
        let base = Base::new(context.addr(), handle);
        Ok(Arc::new(Dm { abi: UnsafeCell::new(abi), base, shared, memory }))
    }))
}

/// Number of the next allocation. The engine has no numbers for them.
static NEXT: AtomicU32 = AtomicU32::new(0);

/// `ibv_free_dm`
pub extern "C" fn free_dm(dm: *mut ibv_dm) -> c_int {
    object::code(object::destroy::<Dm>(dm, Dm::check).map(|destroyed| drop(destroyed.finish())))
}

impl Dm {
    /// Fails if a parent of this process made the allocation.
    fn check(&self) -> Result<(), c_int> {
        match self.memory {
            Memory::Engine(_) => self.shared.check(),
            Memory::Own(_) => Ok(()),
        }
    }

    /// Returns the start of a copy of `length` bytes, after checking range and alignment.
    fn place(&self, offset: u64, length: usize) -> Result<usize, c_int> {
        self.check()?;
        let offset = usize::try_from(offset).map_err(|_| libc::EINVAL)?;
        let fits = offset.checked_add(length).is_some_and(|end| end <= self.memory.len());
        let is_aligned = offset.is_multiple_of(UNIT) && length.is_multiple_of(UNIT);
        if fits && is_aligned { Ok(offset) } else { Err(libc::EINVAL) }
    }
}

unsafe extern "C" fn copy_to(
    dm: *mut ibv_dm,
    offset: u64,
    from: *const c_void,
    length: size_t,
) -> c_int {
    object::code(object::live::<Dm>(dm).and_then(|live| {
        let offset = live.place(offset, length)?;
        // SAFETY: the program passes `length` readable bytes.
        live.memory.write(offset, unsafe { bytes_at(from.cast(), length) });
        Ok(())
    }))
}

unsafe extern "C" fn copy_from(
    to: *mut c_void,
    dm: *mut ibv_dm,
    offset: u64,
    length: size_t,
) -> c_int {
    object::code(object::live::<Dm>(dm).and_then(|live| {
        let offset = live.place(offset, length)?;
        if length > 0 {
            // SAFETY: the program passes `length` writable bytes.
            let to = unsafe { std::slice::from_raw_parts_mut(to.cast::<u8>(), length) };
            live.memory.read(offset, to);
        }
        Ok(())
    }))
}

/// `ibv_reg_dm_mr`
pub extern "C" fn reg_dm_mr(
    pd: *mut ibv_pd,
    dm: *mut ibv_dm,
    offset: u64,
    length: size_t,
    access: c_uint,
) -> *mut ibv_mr {
    memory::give_or_fail(domain::live(pd).and_then(|domain| {
        let live = context::live_in::<Dm>(domain.context().addr(), dm)?;
        // Device memory has no address that the program could name, so only zero-based access is
        // possible.
        if access & IBV_ACCESS_ZERO_BASED == 0 {
            return Err(libc::EINVAL);
        }
        let offset = usize::try_from(offset).map_err(|_| libc::EINVAL)?;
        let Memory::Engine(memory) = &live.memory else { return Err(libc::EIO) };
        let region = domain.pd.reg_dm_mr(memory, offset, length, rights(access)?);
        let region = region.map_err(|error| errno::of_device(&error))?;
        let length = usize::try_from(region.len()).unwrap_or(usize::MAX);
        let made = Mr::new(domain, pd, region, (std::ptr::null_mut(), length), access)?;
        Ok(made.keeping(Use::new(live)?))
    }))
}

/// Fails: device memory is part of the engine's arena, which has no DMA buffer.
#[unsafe(no_mangle)]
extern "C" fn ibv_dm_export_dmabuf_fd(dm: *mut ibv_dm) -> c_int {
    errno::set(object::live::<Dm>(dm).err().unwrap_or(libc::EOPNOTSUPP));
    -1
}

#[unsafe(no_mangle)]
extern "C" fn ibv_import_dm(_context: *mut ibv_context, _handle: u32) -> *mut ibv_dm {
    errno::fail(libc::EOPNOTSUPP)
}

#[unsafe(no_mangle)]
extern "C" fn ibv_unimport_dm(_dm: *mut ibv_dm) {}

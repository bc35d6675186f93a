//! Device memory (`ibv_dm`): the program accesses it by copy functions, peers access it through a
//! memory region.

use std::cell::UnsafeCell;
use std::ffi::{c_int, c_uint, c_void};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use feroce_engine::device::{DeviceMemory, MAX_DEVICE_MEMORY};
use libc::size_t;

use crate::abi::{IBV_ACCESS_ZERO_BASED, ibv_alloc_dm_attr, ibv_context, ibv_dm, ibv_mr, ibv_pd};
use crate::context::{self, Shared};
use crate::convert::bytes_at;
use crate::domain::Pd;
use crate::errno;
use crate::memory::{Mr, rights};
use crate::object::{self, Object};

/// An allocation of device memory.
#[repr(C)]
pub struct Dm {
    abi: UnsafeCell<ibv_dm>,
    shared: Arc<Shared>,
    memory: Memory,
    /// Number of memory regions of this allocation.
    users: Arc<AtomicUsize>,
}

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

// SAFETY: `#[repr(C)]`, and the first field is the C structure.
unsafe impl Object for Dm {
    type Abi = ibv_dm;
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
    // SAFETY: the program passes an open context and valid attributes.
    let (shared, attr) = unsafe { (context::shared_in_any_process(context), *attr) };
    let make = || {
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
        let abi = ibv_dm {
            context,
            memcpy_to_dm: Some(copy_to),
            memcpy_from_dm: Some(copy_from),
            comp_mask: 0,
            handle: 0,
        };
        Ok(Box::new(Dm {
            abi: UnsafeCell::new(abi),
            shared: Arc::clone(shared),
            memory,
            users: Arc::default(),
        }))
    };
    object::give_or_fail(make())
}

/// `ibv_free_dm`
pub unsafe extern "C" fn free_dm(dm: *mut ibv_dm) -> c_int {
    // SAFETY: the program passes live device memory.
    let live = unsafe { object::borrow::<Dm>(dm) };
    if let Err(code) = live.check() {
        return code;
    }
    if live.users.load(Ordering::Acquire) > 0 {
        return libc::EBUSY;
    }
    // SAFETY: the program passes live device memory and does not use it again; no region of it
    // exists.
    drop(unsafe { object::take::<Dm>(dm) });
    0
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
    // SAFETY: the program passes live device memory.
    let live = unsafe { object::borrow::<Dm>(dm) };
    object::code(live.place(offset, length).map(|offset| {
        // SAFETY: the program passes `length` readable bytes.
        live.memory.write(offset, unsafe { bytes_at(from.cast(), length) });
    }))
}

unsafe extern "C" fn copy_from(
    to: *mut c_void,
    dm: *mut ibv_dm,
    offset: u64,
    length: size_t,
) -> c_int {
    // SAFETY: the program passes live device memory.
    let live = unsafe { object::borrow::<Dm>(dm) };
    object::code(live.place(offset, length).map(|offset| {
        if length > 0 {
            // SAFETY: the program passes `length` writable bytes.
            let to = unsafe { std::slice::from_raw_parts_mut(to.cast::<u8>(), length) };
            live.memory.read(offset, to);
        }
    }))
}

/// `ibv_reg_dm_mr`
pub unsafe extern "C" fn reg_dm_mr(
    pd: *mut ibv_pd,
    dm: *mut ibv_dm,
    offset: u64,
    length: size_t,
    access: c_uint,
) -> *mut ibv_mr {
    // SAFETY: the program passes a live PD and live device memory.
    let (domain, live) = unsafe { (object::borrow::<Pd>(pd), object::borrow::<Dm>(dm)) };
    let made = domain.shared.check().and_then(|()| {
        // Device memory has no address that the program could name, so only zero-based access is
        // possible.
        if access & IBV_ACCESS_ZERO_BASED == 0 {
            return Err(libc::EINVAL);
        }
        let offset = usize::try_from(offset).map_err(|_| libc::EINVAL)?;
        let Memory::Engine(memory) = &live.memory else { return Err(libc::EIO) };
        let region = domain.pd.reg_dm_mr(memory, offset, length, rights(access)?);
        let region = region.map_err(|error| errno::of_device(&error))?;
        live.users.fetch_add(1, Ordering::AcqRel);
        // SAFETY: the program passes a live PD.
        Ok(unsafe { Mr::of_device_memory(pd, region, access, Arc::clone(&live.users)) })
    });
    object::give_or_fail(made)
}

#[unsafe(no_mangle)]
extern "C" fn ibv_import_dm(_context: *mut ibv_context, _handle: u32) -> *mut ibv_dm {
    errno::fail(libc::EOPNOTSUPP)
}

#[unsafe(no_mangle)]
extern "C" fn ibv_unimport_dm(_dm: *mut ibv_dm) {}

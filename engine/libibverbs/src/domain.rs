//! Protection domains, thread domains and parent domains (a PD combined with a thread domain).

use std::cell::UnsafeCell;
use std::ffi::c_int;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use feroce_engine::device::ProtectionDomain;

use crate::abi::{
    IBV_PARENT_DOMAIN_INIT_ATTR_PD_CONTEXT, ibv_context, ibv_parent_domain_init_attr, ibv_pd,
    ibv_td, ibv_td_init_attr,
};
use crate::context::{self, Shared};
use crate::errno;
use crate::object::{self, Object};

/// Maximum number of protection domains of a device.
pub const MAX_PD: u32 = 65_536;

/// A protection domain, or a parent domain: another handle to a PD, with a thread domain.
#[repr(C)]
pub struct Pd {
    abi: UnsafeCell<ibv_pd>,
    /// Shared state of the context that the PD was created from.
    pub shared: Arc<Shared>,
    /// The engine's PD.
    pub pd: ProtectionDomain,
    /// Number of live objects created from this PD.
    pub users: AtomicUsize,
    /// The PD and the thread domain (or null) of a parent domain.
    parts: Option<(*mut ibv_pd, *mut ibv_td)>,
}

// SAFETY: `#[repr(C)]`, and the first field is the C structure.
unsafe impl Object for Pd {
    type Abi = ibv_pd;
}

impl Pd {
    fn new(
        context: *mut ibv_context,
        shared: &Arc<Shared>,
        pd: ProtectionDomain,
        parts: Option<(*mut ibv_pd, *mut ibv_td)>,
    ) -> Box<Self> {
        Box::new(Self {
            abi: UnsafeCell::new(ibv_pd { context, handle: pd.number() }),
            shared: Arc::clone(shared),
            pd,
            users: AtomicUsize::new(0),
            parts,
        })
    }

    /// Returns true if this is a parent domain.
    pub fn is_parent(&self) -> bool {
        self.parts.is_some()
    }

    /// Returns the program's context.
    pub fn context(&self) -> *mut ibv_context {
        // SAFETY: the field does not change after construction.
        unsafe { (*self.abi.get()).context }
    }
}

impl Drop for Pd {
    fn drop(&mut self) {
        if !self.is_parent() {
            self.shared.engine.pds.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_alloc_pd(context: *mut ibv_context) -> *mut ibv_pd {
    // SAFETY: the program passes an open context.
    let made = unsafe { context::shared(context) }.and_then(|shared| {
        let more = |count| (count < MAX_PD).then_some(count + 1);
        let counted = shared.engine.pds.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more);
        counted.map_err(|_| libc::ENOMEM)?;
        Ok(Pd::new(context, shared, shared.engine.device.alloc_pd(), None))
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
    // SAFETY: the program passes a live PD and does not use it again; no object was created from
    // it.
    let gone = unsafe { object::take::<Pd>(pd) };
    if let Some((pd, td)) = gone.parts {
        // SAFETY: both are live: deallocating them fails while a parent domain uses them.
        unsafe {
            object::borrow::<Pd>(pd).users.fetch_sub(1, Ordering::AcqRel);
            if !td.is_null() {
                object::borrow::<Td>(td).users.fetch_sub(1, Ordering::AcqRel);
            }
        }
    }
    0
}

/// A thread domain: the program promises that one thread at a time uses the objects in it. The
/// promise is not used: an uncontended lock costs almost nothing.
#[repr(C)]
pub struct Td {
    abi: UnsafeCell<ibv_td>,
    /// Number of parent domains that use it.
    users: AtomicUsize,
}

// SAFETY: `#[repr(C)]`, and the first field is the C structure.
unsafe impl Object for Td {
    type Abi = ibv_td;
}

/// `ibv_alloc_td`
pub unsafe extern "C" fn alloc_td(
    context: *mut ibv_context,
    attr: *mut ibv_td_init_attr,
) -> *mut ibv_td {
    // SAFETY: the program passes an open context and attributes.
    let made = unsafe { context::shared(context).map(|_| (*attr).comp_mask) };
    let made = made.and_then(|mask| match mask {
        0 => Ok(Box::new(Td {
            abi: UnsafeCell::new(ibv_td { context }),
            users: AtomicUsize::new(0),
        })),
        _ => Err(libc::EINVAL),
    });
    object::give_or_fail(made)
}

/// `ibv_dealloc_td`
pub unsafe extern "C" fn dealloc_td(td: *mut ibv_td) -> c_int {
    // SAFETY: the program passes a live thread domain.
    if unsafe { object::borrow::<Td>(td) }.users.load(Ordering::Acquire) > 0 {
        return libc::EBUSY;
    }
    // SAFETY: the program passes a live thread domain and does not use it again; no parent domain
    // uses it.
    drop(unsafe { object::take::<Td>(td) });
    0
}

/// `ibv_alloc_parent_domain`
pub unsafe extern "C" fn alloc_parent_domain(
    context: *mut ibv_context,
    attr: *mut ibv_parent_domain_init_attr,
) -> *mut ibv_pd {
    // SAFETY: the program passes valid attributes.
    let attr = unsafe { *attr };
    if attr.pd.is_null() {
        return errno::fail(libc::EINVAL);
    }
    // Custom allocators are not supported: work queues lie in the engine's arena. rdma-core's tests
    // skip what fails with EOPNOTSUPP.
    if attr.comp_mask & !IBV_PARENT_DOMAIN_INIT_ATTR_PD_CONTEXT != 0 {
        return errno::fail(libc::EOPNOTSUPP);
    }
    // SAFETY: the program passes an open context and a live PD; the thread domain is null or live.
    let made = unsafe { context::shared(context) }.map(|shared| unsafe {
        let pd = object::borrow::<Pd>(attr.pd);
        pd.users.fetch_add(1, Ordering::AcqRel);
        if !attr.td.is_null() {
            object::borrow::<Td>(attr.td).users.fetch_add(1, Ordering::AcqRel);
        }
        Pd::new(context, shared, pd.pd.clone(), Some((attr.pd, attr.td)))
    });
    object::give_or_fail(made)
}

#[unsafe(no_mangle)]
extern "C" fn ibv_import_pd(_context: *mut ibv_context, _handle: u32) -> *mut ibv_pd {
    errno::fail(libc::EOPNOTSUPP)
}

#[unsafe(no_mangle)]
extern "C" fn ibv_unimport_pd(_pd: *mut ibv_pd) {}

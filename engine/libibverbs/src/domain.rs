//! Protection domains, thread domains, and parent domains, which are one of each.

use std::cell::UnsafeCell;
use std::ffi::c_int;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use feroce_engine::device::ProtectionDomain;

use crate::abi::{
    IBV_PARENT_DOMAIN_INIT_ATTR_ALLOCATORS, IBV_PARENT_DOMAIN_INIT_ATTR_PD_CONTEXT, ibv_context,
    ibv_parent_domain_init_attr, ibv_pd, ibv_td, ibv_td_init_attr,
};
use crate::context::{self, Shared};
use crate::errno;
use crate::object::{self, Object};

/// A protection domain, or a parent domain: the same with another name and a thread domain.
#[repr(C)]
pub struct Pd {
    abi: UnsafeCell<ibv_pd>,
    /// Of the context it was made from.
    pub shared: Arc<Shared>,
    /// The engine's.
    pub pd: ProtectionDomain,
    /// Objects made from it that live.
    pub users: AtomicUsize,
    /// What a parent domain was made of.
    parts: Option<(*mut ibv_pd, *mut ibv_td)>,
}

// SAFETY: the first field is the C structure.
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

    /// Whether it is a parent domain.
    pub fn is_parent(&self) -> bool {
        self.parts.is_some()
    }

    /// The program's context.
    pub fn context(&self) -> *mut ibv_context {
        // SAFETY: the field does not change once it is made.
        unsafe { (*self.abi.get()).context }
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_alloc_pd(context: *mut ibv_context) -> *mut ibv_pd {
    // SAFETY: the program passes an open context.
    let made = unsafe { context::shared(context) }
        .map(|shared| Pd::new(context, shared, shared.engine.device.alloc_pd(), None));
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
    let gone = unsafe { object::take::<Pd>(pd) };
    if let Some((pd, td)) = gone.parts {
        // SAFETY: they live: destroying them is refused while there is a parent domain of theirs.
        unsafe {
            object::borrow::<Pd>(pd).users.fetch_sub(1, Ordering::AcqRel);
            if !td.is_null() {
                object::borrow::<Td>(td).users.fetch_sub(1, Ordering::AcqRel);
            }
        }
    }
    0
}

/// A thread domain: the program's word that one thread at a time uses what is made in it. A lock that nobody else
/// wants costs next to nothing, so that nothing is left out for it.
#[repr(C)]
pub struct Td {
    abi: UnsafeCell<ibv_td>,
    /// Parent domains of it.
    users: AtomicUsize,
}

// SAFETY: the first field is the C structure.
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
    // SAFETY: as above; no parent domain is of it.
    drop(unsafe { object::take::<Td>(td) });
    0
}

/// `ibv_alloc_parent_domain`
pub unsafe extern "C" fn alloc_parent_domain(
    context: *mut ibv_context,
    attr: *mut ibv_parent_domain_init_attr,
) -> *mut ibv_pd {
    const KNOWN: u32 =
        IBV_PARENT_DOMAIN_INIT_ATTR_ALLOCATORS | IBV_PARENT_DOMAIN_INIT_ATTR_PD_CONTEXT;
    // SAFETY: the program passes attributes.
    let attr = unsafe { *attr };
    if attr.pd.is_null() || attr.comp_mask & !KNOWN != 0 {
        return errno::fail(libc::EINVAL);
    }
    // Work queues lie in the engine's arena, nowhere else.
    if attr.comp_mask & IBV_PARENT_DOMAIN_INIT_ATTR_ALLOCATORS != 0 {
        return errno::fail(libc::EOPNOTSUPP);
    }
    // SAFETY: the program passes an open context, a live PD, and no or a live thread domain.
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

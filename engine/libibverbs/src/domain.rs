//! Protection domains, thread domains and parent domains (a PD combined with a thread domain).

use std::cell::UnsafeCell;
use std::ffi::c_int;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use feroce_engine::device::ProtectionDomain;

use crate::abi::{
    IBV_PARENT_DOMAIN_INIT_ATTR_PD_CONTEXT, ibv_context, ibv_parent_domain_init_attr, ibv_pd,
    ibv_td, ibv_td_init_attr,
};
use crate::context::{self, Shared, implement_object};
use crate::errno;
use crate::object::{self, Base, Use};

/// A protection domain, or a parent domain: another handle to a PD, with a thread domain.
#[repr(C)]
pub struct Pd {
    abi: UnsafeCell<ibv_pd>,
    base: Base,
    /// Shared state of the context that the PD was created from.
    pub shared: Arc<Shared>,
    /// The engine's PD.
    pub pd: ProtectionDomain,
    /// The PD and the thread domain, if any, of a parent domain.
    parts: Option<(Use<Pd>, Option<Use<Td>>)>,
}

implement_object!(Pd: ibv_pd, handle; uses parts);

impl Pd {
    fn new(
        context: *mut ibv_context,
        shared: Arc<Shared>,
        pd: ProtectionDomain,
        parts: Option<(Use<Pd>, Option<Use<Td>>)>,
    ) -> Arc<Self> {
        let handle = pd.number();
        Arc::new(Self {
            abi: UnsafeCell::new(ibv_pd { context, handle }),
            base: Base::new(context.addr(), handle),
            shared,
            pd,
            parts,
        })
    }

    /// Returns true if this is a parent domain.
    pub fn is_parent(&self) -> bool {
        self.parts.is_some()
    }

    /// Returns the program's context.
    pub fn context(&self) -> *mut ibv_context {
        // SAFETY: the structure is part of this object.
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

/// Returns the program's live PD, if this process made it.
///
/// # Errors
/// EINVAL if it is not a live PD, EIO in a forked child.
pub fn live(pd: *mut ibv_pd) -> Result<Arc<Pd>, c_int> {
    let live = object::live::<Pd>(pd)?;
    live.shared.check()?;
    Ok(live)
}

#[unsafe(no_mangle)]
extern "C" fn ibv_alloc_pd(context: *mut ibv_context) -> *mut ibv_pd {
    object::give_or_fail(context::shared(context).and_then(|shared| {
        let limit = shared.engine.limits.max_pd;
        let more = |count| (count < limit).then_some(count + 1);
        let counted = shared.engine.pds.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more);
        counted.map_err(|_| libc::ENOMEM)?;
        let pd = shared.engine.device.alloc_pd();
        Ok(Pd::new(context, shared, pd, None))
    }))
}

#[unsafe(no_mangle)]
extern "C" fn ibv_dealloc_pd(pd: *mut ibv_pd) -> c_int {
    object::code(
        object::destroy::<Pd>(pd, |pd| pd.shared.check()).map(|destroyed| drop(destroyed.finish())),
    )
}

/// A thread domain: the program promises that one thread at a time uses the objects in it. The
/// promise is not used: an uncontended lock costs almost nothing.
#[repr(C)]
pub struct Td {
    abi: UnsafeCell<ibv_td>,
    base: Base,
}

implement_object!(Td: ibv_td);

/// `ibv_alloc_td`
pub unsafe extern "C" fn alloc_td(
    context: *mut ibv_context,
    attr: *mut ibv_td_init_attr,
) -> *mut ibv_td {
    // SAFETY: the program passes valid attributes.
    let mask = unsafe { (*attr).comp_mask };
    object::give_or_fail(context::shared(context).and_then(|_| match mask {
        0 => Ok(Arc::new(Td {
            abi: UnsafeCell::new(ibv_td { context }),
            base: Base::new(context.addr(), 0),
        })),
        _ => Err(libc::EINVAL),
    }))
}

/// `ibv_dealloc_td`
pub extern "C" fn dealloc_td(td: *mut ibv_td) -> c_int {
    object::code(object::destroy::<Td>(td, |_| Ok(())).map(|destroyed| drop(destroyed.finish())))
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
    object::give_or_fail(context::shared(context).and_then(|shared| {
        let pd = context::live_in::<Pd>(context.addr(), attr.pd)?;
        let td = context::live_in_or_null::<Td>(context.addr(), attr.td)?;
        let inner = pd.pd.clone();
        let parts = (Use::new(pd)?, td.map(Use::new).transpose()?);
        Ok(Pd::new(context, shared, inner, Some(parts)))
    }))
}

#[unsafe(no_mangle)]
extern "C" fn ibv_import_pd(_context: *mut ibv_context, _handle: u32) -> *mut ibv_pd {
    errno::fail(libc::EOPNOTSUPP)
}

#[unsafe(no_mangle)]
extern "C" fn ibv_unimport_pd(_pd: *mut ibv_pd) {}

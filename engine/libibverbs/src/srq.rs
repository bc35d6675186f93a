//! Shared receive queues.

use std::cell::UnsafeCell;
use std::ffi::{c_int, c_uint};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use feroce_engine::device::{SharedReceiveQueue, SrqInit};
use feroce_engine::verbs::RecvRequest;

use crate::abi::{
    IBV_SRQ_INIT_ATTR_CQ, IBV_SRQ_INIT_ATTR_PD, IBV_SRQ_INIT_ATTR_TYPE, IBV_SRQ_INIT_ATTR_XRCD,
    IBV_SRQ_LIMIT, IBV_SRQT_BASIC, IBV_SRQT_XRC, ibv_context, ibv_cq, ibv_pd, ibv_recv_wr, ibv_srq,
    ibv_srq_attr, ibv_srq_init_attr, ibv_srq_init_attr_ex, ibv_xrcd,
};
use crate::channel::Unacknowledged;
use crate::context::Shared;
use crate::cq::Cq;
use crate::domain::Pd;
use crate::engine::Listener;
use crate::object::{self, Object};
use crate::xrc::Xrcd;
use crate::{errno, post};

/// A shared receive queue.
#[repr(C)]
pub struct Srq {
    abi: UnsafeCell<ibv_srq>,
    shared: Arc<Shared>,
    /// The engine's SRQ.
    pub queue: SharedReceiveQueue,
    /// Asynchronous events that the program has read and not acknowledged.
    pub async_events: Arc<Unacknowledged>,
    /// Number of QPs that take receives from it.
    pub users: AtomicUsize,
    /// XRC only, else null: the XRC domain, and the CQ to which receives complete.
    xrcd: *mut ibv_xrcd,
    cq: *mut ibv_cq,
}

// SAFETY: `#[repr(C)]`, and the first field is the C structure.
unsafe impl Object for Srq {
    type Abi = ibv_srq;
}

/// XRC domain and CQ of an XRC SRQ.
struct XrcPart {
    xrcd: *mut ibv_xrcd,
    cq: *mut ibv_cq,
}

/// Creates the SRQ.
///
/// # Safety
/// The PD, and the XRC domain and CQ in `xrc`, are live or null.
unsafe fn create(
    pd: *mut ibv_pd,
    init: &mut ibv_srq_init_attr,
    xrc: Option<XrcPart>,
) -> Result<Box<Srq>, c_int> {
    let none = XrcPart { xrcd: std::ptr::null_mut(), cq: std::ptr::null_mut() };
    let lacks = xrc.as_ref().is_some_and(|xrc| xrc.xrcd.is_null() || xrc.cq.is_null());
    if pd.is_null() || lacks || init.attr.max_wr == 0 {
        return Err(libc::EINVAL);
    }
    // SAFETY: the PD is not null, so it is live.
    let live = unsafe { object::borrow::<Pd>(pd) };
    live.shared.check()?;
    let wanted = SrqInit { max_wr: init.attr.max_wr, max_sge: init.attr.max_sge };
    let queue = match &xrc {
        None => live.pd.create_srq(&wanted),
        Some(xrc) => {
            // SAFETY: XRC domain and CQ are not null, so they are live.
            let (xrcd, cq) =
                unsafe { (object::borrow::<Xrcd>(xrc.xrcd), object::borrow::<Cq>(xrc.cq)) };
            let made = live.pd.create_xrc_srq(&wanted, &xrcd.domain.xrc, &cq.queue);
            if made.is_ok() {
                xrcd.users.fetch_add(1, Ordering::AcqRel);
                cq.users.fetch_add(1, Ordering::AcqRel);
            }
            made
        }
    };
    let queue = queue.map_err(|error| errno::of_device(&error))?;
    let XrcPart { xrcd, cq } = xrc.unwrap_or(none);
    init.attr.max_wr = queue.capacity();
    init.attr.max_sge = u32::try_from(queue.max_sge()).unwrap_or(u32::MAX);
    live.users.fetch_add(1, Ordering::AcqRel);
    // SAFETY: all-zero bytes are a valid value of this C structure.
    let mut abi: ibv_srq = unsafe { std::mem::zeroed() };
    abi.context = live.context();
    abi.srq_context = init.srq_context;
    abi.pd = pd;
    abi.handle = queue.id().0;
    abi.mutex = libc::PTHREAD_MUTEX_INITIALIZER;
    abi.cond = libc::PTHREAD_COND_INITIALIZER;
    let made = Box::new(Srq {
        abi: UnsafeCell::new(abi),
        shared: Arc::clone(&live.shared),
        queue,
        async_events: Arc::default(),
        users: AtomicUsize::new(0),
        xrcd,
        cq,
    });
    let listener = Listener {
        object: made.abi.get().expose_provenance(),
        unacknowledged: Arc::clone(&made.async_events),
        channel: Arc::clone(&made.shared.events),
    };
    made.shared.engine.add_srq(made.queue.id().0, listener);
    Ok(made)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_create_srq(pd: *mut ibv_pd, init: *mut ibv_srq_init_attr) -> *mut ibv_srq {
    // SAFETY: the program passes valid attributes; the PD is live or null.
    object::give_or_fail(unsafe { create(pd, &mut *init, None) })
}

/// `ibv_create_srq_ex`
pub unsafe extern "C" fn create_srq_ex(
    _context: *mut ibv_context,
    init: *mut ibv_srq_init_attr_ex,
) -> *mut ibv_srq {
    const KNOWN: u32 = IBV_SRQ_INIT_ATTR_TYPE | IBV_SRQ_INIT_ATTR_PD | XRC_ATTRIBUTES;
    const XRC_ATTRIBUTES: u32 = IBV_SRQ_INIT_ATTR_XRCD | IBV_SRQ_INIT_ATTR_CQ;
    // SAFETY: the program passes valid attributes; `ibv_srq_init_attr_ex` begins with the fields of
    // `ibv_srq_init_attr`.
    let (extended, init) = unsafe { (*init, &mut *init.cast::<ibv_srq_init_attr>()) };
    let given = |bits: u32| extended.comp_mask & bits == bits;
    let kind = if given(IBV_SRQ_INIT_ATTR_TYPE) { extended.srq_type } else { IBV_SRQT_BASIC };
    if extended.comp_mask & !KNOWN != 0 || kind > IBV_SRQT_XRC {
        return errno::fail(libc::EOPNOTSUPP); // tag matching is not supported
    }
    let is_xrc = kind == IBV_SRQT_XRC;
    if !given(IBV_SRQ_INIT_ATTR_PD) || is_xrc && !given(XRC_ATTRIBUTES) {
        return errno::fail(libc::EINVAL);
    }
    let xrc = is_xrc.then_some(XrcPart { xrcd: extended.xrcd, cq: extended.cq });
    // SAFETY: the program passes live objects.
    object::give_or_fail(unsafe { create(extended.pd, init, xrc) })
}

/// `ibv_get_srq_num`
pub unsafe extern "C" fn get_srq_num(srq: *mut ibv_srq, number: *mut u32) -> c_int {
    // SAFETY: the program passes a live SRQ and a writable number.
    unsafe {
        let live = object::borrow::<Srq>(srq);
        if !live.queue.is_xrc() {
            return libc::EINVAL; // only XRC SRQs have a number that peers use
        }
        number.write(live.queue.id().0);
    }
    0
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_modify_srq(
    srq: *mut ibv_srq,
    attr: *mut ibv_srq_attr,
    mask: c_int,
) -> c_int {
    // SAFETY: the program passes a live SRQ and valid attributes.
    let (live, attr) = unsafe { (object::borrow::<Srq>(srq), *attr) };
    let mask: c_uint = mask.cast_unsigned();
    object::code(live.shared.check().and_then(|()| {
        if mask & !IBV_SRQ_LIMIT != 0 {
            return Err(libc::EINVAL); // as mlx5: the size is fixed
        }
        if mask & IBV_SRQ_LIMIT == 0 {
            return Ok(());
        }
        live.queue.arm_limit(attr.srq_limit).map_err(|error| errno::of_device(&error))
    }))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_query_srq(srq: *mut ibv_srq, attr: *mut ibv_srq_attr) -> c_int {
    // SAFETY: the program passes a live SRQ and a writable structure.
    unsafe {
        let live = object::borrow::<Srq>(srq);
        object::code(live.shared.check().map(|()| {
            attr.write(ibv_srq_attr {
                max_wr: live.queue.capacity(),
                max_sge: u32::try_from(live.queue.max_sge()).unwrap_or(u32::MAX),
                srq_limit: live.queue.limit(),
            });
        }))
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_destroy_srq(srq: *mut ibv_srq) -> c_int {
    // SAFETY: the program passes a live SRQ.
    let live = unsafe { object::borrow::<Srq>(srq) };
    if let Err(code) = live.shared.check() {
        return code;
    }
    if live.users.load(Ordering::Acquire) > 0 {
        return libc::EBUSY;
    }
    live.shared.engine.remove_srq(live.queue.id().0);
    // SAFETY: the program passes a live SRQ and does not use it again. PD, XRC domain and CQ are
    // live: destroying them fails while the SRQ uses them.
    unsafe {
        let (pd, xrcd, cq) = ((*live.abi.get()).pd, live.xrcd, live.cq);
        drop(object::take::<Srq>(srq));
        object::borrow::<Pd>(pd).users.fetch_sub(1, Ordering::AcqRel);
        if !xrcd.is_null() {
            object::borrow::<Xrcd>(xrcd).users.fetch_sub(1, Ordering::AcqRel);
            object::borrow::<Cq>(cq).users.fetch_sub(1, Ordering::AcqRel);
        }
    }
    0
}

/// `ibv_post_srq_recv`
pub unsafe extern "C" fn post_srq_recv(
    srq: *mut ibv_srq,
    first: *mut ibv_recv_wr,
    bad: *mut *mut ibv_recv_wr,
) -> c_int {
    // SAFETY: the program passes a live SRQ.
    let live = unsafe { object::borrow::<Srq>(srq) };
    let post = |request: &RecvRequest<'_>| live.queue.post_recv(request).map_err(errno::of_post);
    // SAFETY: the program passes a list of requests that ends with null, and a writable pointer for
    // the first request that was not posted.
    unsafe { post::post_receives(live.shared.check(), first, bad, post) }
}

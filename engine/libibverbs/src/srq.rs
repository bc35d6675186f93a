//! Shared receive queues.

use std::cell::UnsafeCell;
use std::ffi::{c_int, c_uint};
use std::sync::Arc;

use feroce_engine::device::{SharedReceiveQueue, SrqInit};
use feroce_engine::verbs::RecvRequest;

use crate::abi::{
    IBV_SRQ_INIT_ATTR_CQ, IBV_SRQ_INIT_ATTR_PD, IBV_SRQ_INIT_ATTR_TYPE, IBV_SRQ_INIT_ATTR_XRCD,
    IBV_SRQ_LIMIT, IBV_SRQT_BASIC, IBV_SRQT_XRC, ibv_context, ibv_cq, ibv_pd, ibv_recv_wr, ibv_srq,
    ibv_srq_attr, ibv_srq_init_attr, ibv_srq_init_attr_ex, ibv_xrcd,
};
use crate::channel::Unacknowledged;
use crate::context::{self, Shared, implement_object};
use crate::cq::Cq;
use crate::domain::{self, Pd};
use crate::engine::Listener;
use crate::object::{self, Base, Object, Release, Use};
use crate::xrc::Xrcd;
use crate::{errno, post};

/// A shared receive queue.
#[repr(C)]
pub struct Srq {
    abi: UnsafeCell<ibv_srq>,
    base: Base,
    shared: Arc<Shared>,
    /// The engine's SRQ.
    pub queue: SharedReceiveQueue,
    /// Asynchronous events that the program has read and not acknowledged.
    pub async_events: Arc<Unacknowledged>,
    _pd: Use<Pd>,
    _xrc: Option<XrcPart>,
}

implement_object!(Srq: ibv_srq, handle; uses _pd, _xrc);

/// XRC domain of an XRC SRQ, and the CQ to which its receives complete.
struct XrcPart {
    xrcd: Use<Xrcd>,
    cq: Use<Cq>,
}

impl Release for XrcPart {
    fn release(&self) {
        self.xrcd.release();
        self.cq.release();
    }
}

/// Creates the SRQ; for XRC, with an XRC domain and a CQ of the program.
fn create(
    pd: *mut ibv_pd,
    init: &mut ibv_srq_init_attr,
    xrc: Option<(*mut ibv_xrcd, *mut ibv_cq)>,
) -> Result<Arc<Srq>, c_int> {
    let live = domain::live(pd)?;
    let context = live.context().addr();
    let xrc = xrc.map(|(xrcd, cq)| -> Result<XrcPart, c_int> {
        let xrcd = Use::new(context::live_in::<Xrcd>(context, xrcd)?)?;
        Ok(XrcPart { xrcd, cq: Use::new(context::live_in::<Cq>(context, cq)?)? })
    });
    let xrc = xrc.transpose()?;
    if init.attr.max_wr == 0 {
        return Err(libc::EINVAL);
    }
    let wanted = SrqInit { max_wr: init.attr.max_wr, max_sge: init.attr.max_sge };
    let queue = match &xrc {
        None => live.pd.create_srq(&wanted),
        Some(xrc) => live.pd.create_xrc_srq(&wanted, &xrc.xrcd.domain.xrc, &xrc.cq.queue),
    };
    let queue = queue.map_err(|error| errno::of_device(&error))?;
    init.attr.max_wr = queue.capacity();
    init.attr.max_sge = u32::try_from(queue.max_sge()).unwrap_or(u32::MAX);
    // SAFETY: all-zero bytes are a valid value of this C structure.
    let mut abi: ibv_srq = unsafe { std::mem::zeroed() };
    abi.context = live.context();
    abi.srq_context = init.srq_context;
    abi.pd = pd;
    abi.handle = queue.id().0;
    abi.mutex = libc::PTHREAD_MUTEX_INITIALIZER;
    abi.cond = libc::PTHREAD_COND_INITIALIZER;
    let made = Arc::new(Srq {
        base: Base::new(context, abi.handle),
        abi: UnsafeCell::new(abi),
        shared: Arc::clone(&live.shared),
        queue,
        async_events: Arc::default(),
        _pd: Use::new(live)?,
        _xrc: xrc,
    });
    let listener = Listener {
        object: made.exposed(),
        unacknowledged: Arc::clone(&made.async_events),
        channel: Arc::clone(&made.shared.events),
    };
    made.shared.engine.add_srq(made.queue.id().0, listener);
    Ok(made)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_create_srq(pd: *mut ibv_pd, init: *mut ibv_srq_init_attr) -> *mut ibv_srq {
    // SAFETY: the program passes valid attributes.
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
    let xrc = is_xrc.then_some((extended.xrcd, extended.cq));
    object::give_or_fail(create(extended.pd, init, xrc))
}

/// Returns the program's live SRQ, if this process made it.
fn live(srq: *mut ibv_srq) -> Result<Arc<Srq>, c_int> {
    let live = object::live::<Srq>(srq)?;
    live.shared.check()?;
    Ok(live)
}

/// `ibv_get_srq_num`
pub unsafe extern "C" fn get_srq_num(srq: *mut ibv_srq, number: *mut u32) -> c_int {
    object::code(object::live::<Srq>(srq).and_then(|live| {
        if !live.queue.is_xrc() {
            return Err(libc::EINVAL); // only XRC SRQs have a number that peers use
        }
        // SAFETY: the program passes a writable number.
        unsafe { number.write(live.queue.id().0) };
        Ok(())
    }))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_modify_srq(
    srq: *mut ibv_srq,
    attr: *mut ibv_srq_attr,
    mask: c_int,
) -> c_int {
    // SAFETY: the program passes valid attributes.
    let attr = unsafe { *attr };
    let mask: c_uint = mask.cast_unsigned();
    object::code(live(srq).and_then(|live| {
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
    object::code(live(srq).map(|live| {
        let now = ibv_srq_attr {
            max_wr: live.queue.capacity(),
            max_sge: u32::try_from(live.queue.max_sge()).unwrap_or(u32::MAX),
            srq_limit: live.queue.limit(),
        };
        // SAFETY: the program passes a writable structure.
        unsafe { attr.write(now) };
    }))
}

#[unsafe(no_mangle)]
extern "C" fn ibv_destroy_srq(srq: *mut ibv_srq) -> c_int {
    object::code(object::destroy::<Srq>(srq, |srq| srq.shared.check()).map(|destroyed| {
        destroyed.shared.engine.remove_srq(destroyed.queue.id().0);
        drop(destroyed.finish());
    }))
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

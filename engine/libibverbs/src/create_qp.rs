//! Creating and destroying QPs.

use std::cell::UnsafeCell;
use std::ffi::{c_int, c_uint};
use std::sync::atomic::AtomicUsize;
use std::sync::{Arc, Mutex};

use feroce_engine::device::{MAX_WR, QpInit, QueuePair};
use feroce_engine::qp::Service;

use crate::abi::{
    IBV_QP_CREATE_BLOCK_SELF_MCAST_LB, IBV_QP_INIT_ATTR_CREATE_FLAGS, IBV_QP_INIT_ATTR_PD,
    IBV_QP_INIT_ATTR_SEND_OPS_FLAGS, IBV_QP_INIT_ATTR_XRCD, IBV_QP_OPEN_ATTR_CONTEXT,
    IBV_QP_OPEN_ATTR_NUM, IBV_QP_OPEN_ATTR_TYPE, IBV_QP_OPEN_ATTR_XRCD, IBV_QPT_RC, IBV_QPT_UC,
    IBV_QPT_UD, IBV_QPT_XRC_RECV, IBV_QPT_XRC_SEND, ibv_ah_attr, ibv_context, ibv_cq, ibv_pd,
    ibv_qp, ibv_qp_cap, ibv_qp_ex, ibv_qp_init_attr, ibv_qp_init_attr_ex, ibv_qp_open_attr,
    ibv_xrcd,
};
use crate::batch::Batch;
use crate::context::{self, Shared};
use crate::cq::Cq;
use crate::domain::Pd;
use crate::lock::HeldLock;
use crate::object::{self, Base, Release, Use};
use crate::qp::Qp;
use crate::qp_state::{Share, SharedQp, State};
use crate::srq::Srq;
use crate::xrc::Xrcd;
use crate::{errno, wr};

/// Parameters of a QP to create.
struct QpConfig {
    context: *mut ibv_context,
    pd: *mut ibv_pd,
    /// XRC domain of an XRC target QP, else null.
    xrcd: *mut ibv_xrcd,
    /// A copy: only the capabilities are written back to the program's structure.
    init: ibv_qp_init_attr,
    /// Operations of the `ibv_wr_*` interface, if the program uses it.
    operations: Option<u64>,
    flags: u32,
}

/// Bytes of a scatter/gather entry in a send WQE.
const LIST_ENTRY: u32 = 16;

/// The depth of a work queue for which a program requests `requests` entries: at least one more, as
/// a power of two. A queue of 0 entries stays without room. A queue of `MAX_WR`, the limit of the
/// device, has no headroom; the engine refuses more (`ibv_create_qp` fails). Other providers have
/// headroom as well, and report it: mlx5 rounds the bytes of a send queue up, and rxe returns 511
/// for 256. Programs rely on it; SPDK 23.05 posts 257 requests to a queue of 256.
fn with_headroom(requests: u32) -> u32 {
    match requests {
        1..MAX_WR => (requests + 1).next_power_of_two(),
        _ => requests,
    }
}

/// Returns the engine's service for an `ibv_qp_type`.
fn service(kind: c_uint) -> Result<Service, c_int> {
    Ok(match kind {
        IBV_QPT_RC => Service::Rc,
        IBV_QPT_UC => Service::Uc,
        IBV_QPT_UD => Service::Ud,
        IBV_QPT_XRC_SEND => Service::XrcIni,
        IBV_QPT_XRC_RECV => Service::XrcTgt,
        _ => return Err(libc::EOPNOTSUPP),
    })
}

/// The objects that a QP uses and that must not be destroyed before it.
#[derive(Default)]
struct Parts {
    /// Protection domain; `None` for an XRC target QP.
    pd: Option<Use<Pd>>,
    /// CQ of send requests.
    send_cq: Option<Use<Cq>>,
    /// CQ of receives.
    recv_cq: Option<Use<Cq>>,
    /// Shared receive queue, if any.
    srq: Option<Use<Srq>>,
    /// XRC domain of an XRC target QP.
    xrcd: Option<Use<Xrcd>>,
}

impl Release for Parts {
    fn release(&self) {
        let Self { pd, send_cq, recv_cq, srq, xrcd } = self;
        pd.release();
        send_cq.release();
        recv_cq.release();
        srq.release();
        xrcd.release();
    }
}

impl QpConfig {
    /// Looks up the objects that the QP uses.
    ///
    /// # Errors
    /// EINVAL for an object that is not live or belongs to another context.
    fn parts(&self) -> Result<Parts, c_int> {
        let context = self.context.addr();
        let cq = |cq: *mut ibv_cq| {
            context::live_in_or_null::<Cq>(context, cq)?.map(Use::new).transpose()
        };
        Ok(Parts {
            pd: context::live_in_or_null(context, self.pd)?.map(Use::new).transpose()?,
            send_cq: cq(self.init.send_cq)?,
            recv_cq: cq(self.init.recv_cq)?,
            srq: context::live_in_or_null(context, self.init.srq)?.map(Use::new).transpose()?,
            xrcd: context::live_in_or_null(context, self.xrcd)?.map(Use::new).transpose()?,
        })
    }

    /// Creates the QP and writes its capabilities to `init`.
    fn create(&mut self) -> Result<Arc<Qp>, c_int> {
        let service = service(self.init.qp_type)?;
        if self.operations.is_some_and(|wanted| wanted & !wr::operations(service) != 0) {
            return Err(libc::EOPNOTSUPP);
        }
        let shared = context::shared(self.context)?;
        match service {
            // An XRC initiator has no receive side.
            Service::XrcIni => {
                (self.init.recv_cq, self.init.srq) = (std::ptr::null_mut(), std::ptr::null_mut());
            }
            // An XRC target has no queues; the SRQs of its XRC domain have them.
            Service::XrcTgt => {
                // SAFETY: all-zero bytes are a valid value of this C structure.
                let nothing: ibv_qp_init_attr = unsafe { std::mem::zeroed() };
                let (qp_context, qp_type) = (self.init.qp_context, self.init.qp_type);
                self.init = ibv_qp_init_attr { qp_context, qp_type, ..nothing };
                self.pd = std::ptr::null_mut();
            }
            Service::Rc | Service::Uc | Service::Ud => {}
        }
        let parts = self.parts()?;
        let qp = match service {
            Service::XrcTgt => Self::create_xrc_target(&parts)?,
            _ => self.create_other(service, &parts)?,
        };
        let domain = parts.xrcd.as_ref().map(|xrcd| Arc::clone(&xrcd.domain));
        let made = self.wrap(qp, shared, parts);
        if let Some(domain) = domain {
            domain.add(made.number(), &made.inner);
        }
        made.register_listener();
        Ok(made)
    }

    /// Creates a QP other than an XRC target.
    fn create_other(&mut self, service: Service, parts: &Parts) -> Result<QueuePair, c_int> {
        let init = &self.init;
        let pd = parts.pd.as_ref().ok_or(libc::EINVAL)?;
        let send_cq = parts.send_cq.as_ref().ok_or(libc::EINVAL)?;
        let recv_cq = match service {
            Service::XrcIni => send_cq,
            _ => parts.recv_cq.as_ref().ok_or(libc::EINVAL)?,
        };
        let srq = parts.srq.as_ref();
        if srq.is_some_and(|srq| srq.queue.is_xrc()) {
            return Err(libc::EINVAL);
        }
        // A WQE has room for its list, or for as many bytes of inline data: hardware drivers report
        // it so, and programs rely on it. An ATOMIC WRITE also stores its eight bytes inline.
        let list = init.cap.max_send_sge.max(1).saturating_mul(LIST_ENTRY);
        let max_inline = init.cap.max_inline_data.max(list);
        let (max_send_wr, max_recv_wr) =
            (with_headroom(init.cap.max_send_wr), with_headroom(init.cap.max_recv_wr));
        let qp = pd.pd.create_qp(&QpInit {
            service,
            srq: srq.map(|srq| &srq.queue),
            block_own_multicast: self.flags & IBV_QP_CREATE_BLOCK_SELF_MCAST_LB != 0,
            xrc_domain: None,
            send_cq: &send_cq.queue,
            recv_cq: &recv_cq.queue,
            max_send_wr,
            max_recv_wr,
            max_send_sge: init.cap.max_send_sge,
            max_recv_sge: init.cap.max_recv_sge,
            max_inline,
            all_signaled: init.sq_sig_all != 0,
            qpn: None,
        });
        let qp = qp.map_err(|error| errno::of_device(&error))?;
        let cap = &mut self.init.cap;
        cap.max_inline_data = max_inline;
        cap.max_send_wr = max_send_wr;
        let has_receives = srq.is_none() && service != Service::XrcIni;
        cap.max_recv_wr = if has_receives { max_recv_wr } else { 0 };
        Ok(qp)
    }

    /// Creates an XRC target QP.
    fn create_xrc_target(parts: &Parts) -> Result<QueuePair, c_int> {
        let domain = &parts.xrcd.as_ref().ok_or(libc::EINVAL)?.domain;
        let qp = domain.pd.create_qp(&QpInit {
            service: Service::XrcTgt,
            xrc_domain: Some(&domain.xrc),
            max_send_wr: 0,
            max_recv_wr: 0,
            ..QpInit::new(&domain.cq)
        });
        qp.map_err(|error| errno::of_device(&error))
    }

    fn wrap(&self, qp: QueuePair, shared: Arc<Shared>, parts: Parts) -> Arc<Qp> {
        // SAFETY: all-zero bytes are a valid value of this C structure.
        let ah_attr: ibv_ah_attr = unsafe { std::mem::zeroed() };
        let state = State {
            qp,
            cap: self.init.cap,
            sq_sig_all: self.init.sq_sig_all,
            ah_attr,
            ece: None,
            batch: Batch::default(),
        };
        let inner = SharedQp {
            lock: HeldLock::new(),
            state: UnsafeCell::new(state),
            counters: Mutex::default(),
            handles: AtomicUsize::new(0),
        };
        self.handle(Arc::new(inner), shared, parts)
    }

    /// Creates a handle to the QP.
    fn handle(&self, inner: Arc<SharedQp>, shared: Arc<Shared>, parts: Parts) -> Arc<Qp> {
        let (number, state) = {
            inner.lock.lock();
            // SAFETY: the lock is held, and nothing else refers to the state.
            let held = unsafe { &*inner.state.get() };
            let now = (held.qp.qpn().value(), held.qp.query().state);
            inner.lock.unlock();
            now
        };
        // SAFETY: all-zero bytes are a valid value of this C structure.
        let mut abi: ibv_qp_ex = unsafe { std::mem::zeroed() };
        let base = &mut abi.qp_base;
        base.context = self.context;
        base.qp_context = self.init.qp_context;
        base.pd = self.pd;
        base.send_cq = self.init.send_cq;
        base.recv_cq = self.init.recv_cq;
        base.srq = self.init.srq;
        base.qp_type = self.init.qp_type;
        base.qp_num = number;
        base.handle = number;
        base.state = state.map_or(0, |state| state as c_uint);
        base.mutex = libc::PTHREAD_MUTEX_INITIALIZER;
        base.cond = libc::PTHREAD_COND_INITIALIZER;
        if self.operations.is_some() {
            wr::install(&mut abi);
        }
        Arc::new(Qp {
            abi: UnsafeCell::new(abi),
            base: Base::new(self.context.addr(), number),
            shared,
            async_events: Arc::default(),
            is_extended: self.operations.is_some(),
            parts: Box::new((parts, Share::new(&inner))),
            inner,
        })
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_create_qp(pd: *mut ibv_pd, init: *mut ibv_qp_init_attr) -> *mut ibv_qp {
    let (xrcd, operations, flags) = (std::ptr::null_mut(), None, 0);
    object::give_or_fail(object::live::<Pd>(pd).and_then(|live| {
        let context = live.context();
        // SAFETY: the program passes valid attributes.
        let (init, cap) = unsafe { (*init, &raw mut (*init).cap) };
        let config = QpConfig { context, pd, xrcd, init, operations, flags };
        // SAFETY: the program passes writable attributes.
        unsafe { create_and_report(config, cap) }
    }))
}

/// # Safety
/// `cap` is writable.
unsafe fn create_and_report(mut config: QpConfig, cap: *mut ibv_qp_cap) -> Result<Arc<Qp>, c_int> {
    let made = config.create()?;
    // SAFETY: `cap` is writable.
    unsafe { cap.write(config.init.cap) };
    Ok(made)
}

/// `ibv_create_qp_ex`
pub unsafe extern "C" fn create_qp_ex(
    context: *mut ibv_context,
    init: *mut ibv_qp_init_attr_ex,
) -> *mut ibv_qp {
    const KNOWN: c_uint = IBV_QP_INIT_ATTR_PD
        | IBV_QP_INIT_ATTR_XRCD
        | IBV_QP_INIT_ATTR_CREATE_FLAGS
        | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
    // SAFETY: the program passes valid attributes; `ibv_qp_init_attr_ex` begins with the fields of
    // `ibv_qp_init_attr`.
    let (extended, init) = unsafe { (*init, init.cast::<ibv_qp_init_attr>()) };
    let given = |bit: c_uint| extended.comp_mask & bit != 0;
    let receives = extended.qp_type == IBV_QPT_XRC_RECV;
    if !given(if receives { IBV_QP_INIT_ATTR_XRCD } else { IBV_QP_INIT_ATTR_PD }) {
        return errno::fail(libc::EINVAL);
    }
    let flags = if given(IBV_QP_INIT_ATTR_CREATE_FLAGS) { extended.create_flags } else { 0 };
    if extended.comp_mask & !KNOWN != 0 || flags & !IBV_QP_CREATE_BLOCK_SELF_MCAST_LB != 0 {
        return errno::fail(libc::EOPNOTSUPP);
    }
    let operations = given(IBV_QP_INIT_ATTR_SEND_OPS_FLAGS).then_some(extended.send_ops_flags);
    let xrcd = if receives { extended.xrcd } else { std::ptr::null_mut() };
    let pd = extended.pd;
    // SAFETY: the program passes valid, writable attributes.
    object::give_or_fail(unsafe {
        create_and_report(
            QpConfig { context, pd, xrcd, init: *init, operations, flags },
            &raw mut (*init).cap,
        )
    })
}

/// `ibv_open_qp`: creates another handle to an XRC target QP.
pub unsafe extern "C" fn open_qp(
    context: *mut ibv_context,
    attr: *mut ibv_qp_open_attr,
) -> *mut ibv_qp {
    const NEEDED: u32 = IBV_QP_OPEN_ATTR_NUM | IBV_QP_OPEN_ATTR_XRCD | IBV_QP_OPEN_ATTR_TYPE;
    // SAFETY: the program passes valid attributes.
    let attr = unsafe { *attr };
    object::give_or_fail(context::shared(context).and_then(|shared| {
        if attr.comp_mask & !(NEEDED | IBV_QP_OPEN_ATTR_CONTEXT) != 0 {
            return Err(libc::EOPNOTSUPP);
        }
        if attr.comp_mask & NEEDED != NEEDED || attr.qp_type != IBV_QPT_XRC_RECV {
            return Err(libc::EINVAL);
        }
        let xrcd = context::live_in::<Xrcd>(context.addr(), attr.xrcd)?;
        let inner = xrcd.domain.find(attr.qp_num).ok_or(libc::EINVAL)?;
        // SAFETY: all-zero bytes are a valid value of this C structure.
        let mut init: ibv_qp_init_attr = unsafe { std::mem::zeroed() };
        init.qp_type = attr.qp_type;
        if attr.comp_mask & IBV_QP_OPEN_ATTR_CONTEXT != 0 {
            init.qp_context = attr.qp_context;
        }
        let (pd, operations, flags) = (std::ptr::null_mut(), None, 0);
        let config = QpConfig { context, pd, xrcd: attr.xrcd, init, operations, flags };
        let parts = Parts { xrcd: Some(Use::new(xrcd)?), ..Parts::default() };
        let made = config.handle(inner, shared, parts);
        made.register_listener();
        Ok(made)
    }))
}

#[unsafe(no_mangle)]
extern "C" fn ibv_destroy_qp(qp: *mut ibv_qp) -> c_int {
    object::code(object::destroy::<Qp>(qp, |qp| qp.shared.check()).map(|destroyed| {
        destroyed.shared.engine.remove_qp(destroyed.number(), &destroyed.async_events);
        drop(destroyed.finish());
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_queues_have_headroom_up_to_the_limit_of_the_device() {
        let depths = [(0, 0), (1, 2), (3, 4), (4, 8), (128, 256), (256, 512), (257, 512)];
        for (requested, depth) in depths {
            assert_eq!(with_headroom(requested), depth);
        }
        for requested in [MAX_WR / 2, MAX_WR - 1, MAX_WR] {
            assert_eq!(with_headroom(requested), MAX_WR);
        }
        assert_eq!(with_headroom(MAX_WR + 1), MAX_WR + 1, "refused by the engine");
    }
}

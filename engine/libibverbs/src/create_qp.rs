//! Creating and destroying QPs.

use std::cell::UnsafeCell;
use std::ffi::{c_int, c_uint};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use feroce_engine::device::{MAX_WR, QpInit, QueuePair};
use feroce_engine::qp::Service;

use crate::abi::{
    IBV_QP_CREATE_BLOCK_SELF_MCAST_LB, IBV_QP_INIT_ATTR_CREATE_FLAGS, IBV_QP_INIT_ATTR_PD,
    IBV_QP_INIT_ATTR_SEND_OPS_FLAGS, IBV_QP_INIT_ATTR_XRCD, IBV_QP_OPEN_ATTR_CONTEXT,
    IBV_QP_OPEN_ATTR_NUM, IBV_QP_OPEN_ATTR_TYPE, IBV_QP_OPEN_ATTR_XRCD, IBV_QPT_RC, IBV_QPT_UC,
    IBV_QPT_UD, IBV_QPT_XRC_RECV, IBV_QPT_XRC_SEND, ibv_ah_attr, ibv_context, ibv_cq, ibv_pd,
    ibv_qp, ibv_qp_cap, ibv_qp_ex, ibv_qp_init_attr, ibv_qp_init_attr_ex, ibv_qp_open_attr,
    ibv_srq, ibv_xrcd,
};
use crate::batch::Batch;
use crate::context::Shared;
use crate::cq::Cq;
use crate::domain::Pd;
use crate::lock::HeldLock;
use crate::object::{self, Object};
use crate::qp::Qp;
use crate::qp_state::{SharedQp, State};
use crate::srq::Srq;
use crate::xrc::Xrcd;
use crate::{context, errno, wr};

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

/// The depth of a work queue for which a program asks `requests`: at least one more, as a power of
/// two, and no more than the device has. Other providers have headroom as well, and report it: mlx5
/// rounds the bytes of a send queue up, and rxe makes 511 of 256. Programs rely on it; SPDK 23.05
/// posts 257 requests to a queue of 256.
fn with_headroom(requests: u32) -> u32 {
    if requests < MAX_WR { (requests + 1).next_power_of_two() } else { requests }
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

impl QpConfig {
    /// Creates the QP and writes its capabilities to `init`.
    ///
    /// # Safety
    /// The context is open; PD, XRC domain, CQs and SRQ are live or null.
    unsafe fn create(&mut self) -> Result<Box<Qp>, c_int> {
        let service = service(self.init.qp_type)?;
        if self.operations.is_some_and(|wanted| wanted & !wr::operations(service) != 0) {
            return Err(libc::EOPNOTSUPP);
        }
        // SAFETY: the context is open.
        let shared = unsafe { context::shared(self.context) }?;
        // An XRC initiator has no receive side.
        if service == Service::XrcIni {
            (self.init.recv_cq, self.init.srq) = (std::ptr::null_mut(), std::ptr::null_mut());
        }
        let qp = if service == Service::XrcTgt {
            // SAFETY: PD, XRC domain, CQs and SRQ are live or null.
            unsafe { self.create_xrc_target()? }
        } else {
            // SAFETY: PD, XRC domain, CQs and SRQ are live or null.
            unsafe { self.create_other(service)? }
        };
        // SAFETY: PD, XRC domain, CQs and SRQ are live or null.
        unsafe { Users::from_config(self).add() };
        let made = self.wrap(qp, shared);
        // SAFETY: PD, XRC domain, CQs and SRQ are live or null.
        if let Some(xrcd) = unsafe { live_or_none::<Xrcd>(self.xrcd) } {
            xrcd.domain.add(made.number(), &made.inner);
        }
        made.register_listener();
        Ok(made)
    }

    /// Creates a QP other than an XRC target.
    ///
    /// # Safety
    /// PD, CQs and SRQ are live or null.
    unsafe fn create_other(&mut self, service: Service) -> Result<QueuePair, c_int> {
        let init = &self.init;
        // SAFETY: PD, CQs and SRQ are live or null.
        let (pd, send_cq, recv_cq, srq) = unsafe {
            let cq = |cq: *mut ibv_cq| live_or_none::<Cq>(cq).ok_or(libc::EINVAL);
            let pd = live_or_none::<Pd>(self.pd).ok_or(libc::EINVAL)?;
            let send_cq = cq(init.send_cq)?;
            let recv_cq = if service == Service::XrcIni { send_cq } else { cq(init.recv_cq)? };
            (pd, send_cq, recv_cq, live_or_none::<Srq>(init.srq))
        };
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

    /// Creates an XRC target QP. It has no PD, CQs or queues; the SRQs of its XRC domain have them.
    ///
    /// # Safety
    /// The XRC domain is live or null.
    unsafe fn create_xrc_target(&mut self) -> Result<QueuePair, c_int> {
        // SAFETY: the XRC domain is live or null.
        let domain = &unsafe { live_or_none::<Xrcd>(self.xrcd) }.ok_or(libc::EINVAL)?.domain;
        let qp = domain.pd.create_qp(&QpInit {
            service: Service::XrcTgt,
            xrc_domain: Some(&domain.xrc),
            max_send_wr: 0,
            max_recv_wr: 0,
            ..QpInit::new(&domain.cq)
        });
        // SAFETY: all-zero bytes are a valid value of this C structure.
        let nothing: ibv_qp_init_attr = unsafe { std::mem::zeroed() };
        let (qp_context, qp_type) = (self.init.qp_context, self.init.qp_type);
        self.init = ibv_qp_init_attr { qp_context, qp_type, ..nothing };
        self.pd = std::ptr::null_mut();
        qp.map_err(|error| errno::of_device(&error))
    }

    fn wrap(&self, qp: QueuePair, shared: &Arc<Shared>) -> Box<Qp> {
        // SAFETY: all-zero bytes are a valid value of this C structure.
        let ah_attr: ibv_ah_attr = unsafe { std::mem::zeroed() };
        let state = State {
            qp,
            cap: self.init.cap,
            sq_sig_all: self.init.sq_sig_all,
            ah_attr,
            batch: Batch::default(),
        };
        let inner = SharedQp { lock: HeldLock::new(), state: UnsafeCell::new(state) };
        self.handle(Arc::new(inner), shared)
    }

    /// Creates a handle to the QP.
    fn handle(&self, inner: Arc<SharedQp>, shared: &Arc<Shared>) -> Box<Qp> {
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
        base.mutex = libc::PTHREAD_MUTEX_INITIALIZER;
        base.cond = libc::PTHREAD_COND_INITIALIZER;
        if self.operations.is_some() {
            wr::install(&mut abi);
        }
        let made = Box::new(Qp {
            abi: UnsafeCell::new(abi),
            shared: Arc::clone(shared),
            inner,
            async_events: Arc::default(),
            is_extended: self.operations.is_some(),
            xrcd: self.xrcd,
        });
        let (number, state) = made.with(|held| (held.qp.qpn().value(), held.qp.query().state));
        // SAFETY: the handle was created above, and nothing else refers to it yet.
        let base = unsafe { &mut (*made.abi.get()).qp_base };
        base.qp_num = number;
        base.handle = number;
        base.state = state.map_or(0, |state| state as c_uint);
        made
    }
}

/// Returns the object at `abi`, unless it is null.
///
/// # Safety
/// `abi` is live or null.
unsafe fn live_or_none<'a, T: Object>(abi: *mut T::Abi) -> Option<&'a T> {
    // SAFETY: `abi` is not null, so it is live.
    (!abi.is_null()).then(|| unsafe { object::borrow::<T>(abi) })
}

/// The objects that a QP uses and that must not be destroyed before it; null where it uses none.
struct Users {
    pd: *mut ibv_pd,
    cqs: [*mut ibv_cq; 2],
    srq: *mut ibv_srq,
    xrcd: *mut ibv_xrcd,
}

impl Users {
    fn from_config(config: &QpConfig) -> Self {
        let QpConfig { pd, xrcd, ref init, .. } = *config;
        Self { pd, cqs: [init.send_cq, init.recv_cq], srq: init.srq, xrcd }
    }

    /// Returns the user counters of the objects.
    ///
    /// # Safety
    /// The objects are live or null.
    unsafe fn counts<'a>(&self) -> impl Iterator<Item = &'a AtomicUsize> + use<'a> {
        // SAFETY: the objects are live or null.
        let counts = unsafe {
            [
                live_or_none::<Pd>(self.pd).map(|pd| &pd.users),
                live_or_none::<Cq>(self.cqs[0]).map(|cq| &cq.users),
                live_or_none::<Cq>(self.cqs[1]).map(|cq| &cq.users),
                live_or_none::<Srq>(self.srq).map(|srq| &srq.users),
                live_or_none::<Xrcd>(self.xrcd).map(|xrcd| &xrcd.users),
            ]
        };
        counts.into_iter().flatten()
    }

    /// Counts one more user of each object.
    ///
    /// # Safety
    /// The objects are live or null.
    unsafe fn add(&self) {
        // SAFETY: the objects are live or null.
        unsafe { self.counts() }.for_each(|users| _ = users.fetch_add(1, Ordering::AcqRel));
    }

    /// Counts one user less of each object.
    ///
    /// # Safety
    /// The objects are live or null.
    unsafe fn remove(&self) {
        // SAFETY: the objects are live or null.
        unsafe { self.counts() }.for_each(|users| _ = users.fetch_sub(1, Ordering::AcqRel));
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_create_qp(pd: *mut ibv_pd, init: *mut ibv_qp_init_attr) -> *mut ibv_qp {
    if pd.is_null() {
        return errno::fail(libc::EINVAL);
    }
    let (xrcd, operations, flags) = (std::ptr::null_mut(), None, 0);
    // SAFETY: the program passes a live PD and attributes with live objects; nothing writes the
    // PD's `context` field.
    object::give_or_fail(unsafe {
        let context = (*pd).context;
        create_and_report(
            QpConfig { context, pd, xrcd, init: *init, operations, flags },
            &raw mut (*init).cap,
        )
    })
}

/// # Safety
/// As for [`QpConfig::create`]; `cap` is writable.
unsafe fn create_and_report(mut config: QpConfig, cap: *mut ibv_qp_cap) -> Result<Box<Qp>, c_int> {
    // SAFETY: the contract of `QpConfig::create` holds, and `cap` is writable.
    unsafe {
        let made = config.create()?;
        cap.write(config.init.cap);
        Ok(made)
    }
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
    // SAFETY: the program passes an open context and live objects.
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
    // SAFETY: the program passes an open context and attributes with a live XRC domain.
    let (shared, attr) = unsafe { (context::shared(context), *attr) };
    let made = shared.and_then(|shared| {
        if attr.comp_mask & !(NEEDED | IBV_QP_OPEN_ATTR_CONTEXT) != 0 {
            return Err(libc::EOPNOTSUPP);
        }
        let lacks = attr.comp_mask & NEEDED != NEEDED || attr.xrcd.is_null();
        if lacks || attr.qp_type != IBV_QPT_XRC_RECV {
            return Err(libc::EINVAL);
        }
        // SAFETY: the XRC domain is live: it is not null.
        let xrcd = unsafe { object::borrow::<Xrcd>(attr.xrcd) };
        let inner = xrcd.domain.find(attr.qp_num).ok_or(libc::EINVAL)?;
        // SAFETY: all-zero bytes are a valid value of this C structure.
        let mut init: ibv_qp_init_attr = unsafe { std::mem::zeroed() };
        init.qp_type = attr.qp_type;
        if attr.comp_mask & IBV_QP_OPEN_ATTR_CONTEXT != 0 {
            init.qp_context = attr.qp_context;
        }
        let (pd, operations, flags) = (std::ptr::null_mut(), None, 0);
        let config = QpConfig { context, pd, xrcd: attr.xrcd, init, operations, flags };
        // SAFETY: the XRC domain is live, the other objects are null.
        unsafe { Users::from_config(&config).add() };
        let made = config.handle(inner, shared);
        made.register_listener();
        Ok(made)
    });
    object::give_or_fail(made)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_destroy_qp(qp: *mut ibv_qp) -> c_int {
    // SAFETY: the program passes a live QP.
    let live = unsafe { object::borrow::<Qp>(qp) };
    if let Err(code) = live.shared.check() {
        return code;
    }
    live.shared.engine.remove_qp(live.number(), &live.async_events);
    // SAFETY: the program passes a live QP and does not use it again. The objects that it uses are
    // live: destroying them fails while a QP uses them.
    unsafe {
        let gone = object::take::<Qp>(qp);
        let ibv_qp { pd, send_cq, recv_cq, srq, .. } = (*gone.abi.get()).qp_base;
        let users = Users { pd, cqs: [send_cq, recv_cq], srq, xrcd: gone.xrcd };
        drop(gone);
        users.remove();
    }
    0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_queues_have_headroom_up_to_the_limit_of_the_device() {
        let depths = [(0, 1), (1, 2), (3, 4), (4, 8), (128, 256), (256, 512), (257, 512)];
        for (asked, depth) in depths {
            assert_eq!(with_headroom(asked), depth);
        }
        for asked in [MAX_WR / 2, MAX_WR - 1, MAX_WR] {
            assert_eq!(with_headroom(asked), MAX_WR);
        }
        assert_eq!(with_headroom(MAX_WR + 1), MAX_WR + 1, "refused by the engine");
    }
}

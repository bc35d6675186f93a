//! Queue pairs: making and destroying them.

use std::cell::UnsafeCell;
use std::ffi::{c_int, c_uint};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use feroce_engine::device::{DeviceError, QpInit, QueuePair};
use feroce_engine::net::Gid;
use feroce_engine::qp::Service;

use crate::abi::{
    IBV_QP_CREATE_BLOCK_SELF_MCAST_LB, IBV_QP_INIT_ATTR_CREATE_FLAGS, IBV_QP_INIT_ATTR_PD,
    IBV_QP_INIT_ATTR_SEND_OPS_FLAGS, IBV_QPT_RC, IBV_QPT_UC, IBV_QPT_UD, ibv_ah_attr, ibv_context,
    ibv_cq, ibv_ece, ibv_pd, ibv_qp, ibv_qp_cap, ibv_qp_ex, ibv_qp_init_attr, ibv_qp_init_attr_ex,
};
use crate::channel::Unacknowledged;
use crate::context::Shared;
use crate::cq::Cq;
use crate::engine::Listener;
use crate::lock::HeldLock;
use crate::memory::Pd;
use crate::object::{self, Object};
use crate::srq::Srq;
use crate::wr::Batch;
use crate::{errno, wr};

/// A queue pair.
#[repr(C)]
pub struct Qp {
    /// As programs know it.
    pub abi: UnsafeCell<ibv_qp_ex>,
    /// Of the context it was made from.
    pub shared: Arc<Shared>,
    /// Held while the state below is used: for a post, or from `ibv_wr_start` to `ibv_wr_complete`.
    pub lock: HeldLock,
    state: UnsafeCell<State>,
    /// Asynchronous events that the program has not acknowledged.
    pub async_events: Arc<Unacknowledged>,
    /// Made for the functions `ibv_wr_*`.
    is_extended: bool,
}

/// What the lock guards.
pub struct State {
    /// The engine's.
    pub qp: QueuePair,
    /// What it was made with, rounded as the engine rounds.
    pub cap: ibv_qp_cap,
    /// Every send request completes with an entry.
    pub sq_sig_all: c_int,
    /// The way to the peer, as the program gave it.
    pub ah_attr: ibv_ah_attr,
    /// Requests between `ibv_wr_start` and `ibv_wr_complete`.
    pub batch: Batch,
}

// SAFETY: the first field is the longer form of the C structure, which begins with it.
unsafe impl Object for Qp {
    type Abi = ibv_qp;
}

impl Qp {
    /// Does something with the state while nobody else does.
    #[inline]
    pub fn with<R>(&self, act: impl FnOnce(&mut State) -> R) -> R {
        self.lock.lock();
        // SAFETY: the lock is held, and `act` has no way to the state but this.
        let done = act(unsafe { &mut *self.state.get() });
        self.lock.unlock();
        done
    }

    /// The state, for whoever holds the lock.
    ///
    /// # Safety
    /// The caller holds the lock, and no other reference to the state.
    #[allow(clippy::mut_from_ref)] // The lock is the exclusive reference.
    #[inline]
    pub unsafe fn locked(&self) -> &mut State {
        // SAFETY: the caller says so.
        unsafe { &mut *self.state.get() }
    }
}

/// What a QP is to be.
struct Wanted<'a> {
    pd: *mut ibv_pd,
    init: &'a mut ibv_qp_init_attr,
    /// For `ibv_wr_*`, with these operations.
    operations: Option<u64>,
    flags: u32,
}

/// Bytes of an entry of a list in a send request.
const LIST_ENTRY: u32 = 16;

impl Wanted<'_> {
    /// Makes the QP and writes back its capabilities.
    ///
    /// # Safety
    /// The PD and the CQs are live.
    unsafe fn make(&mut self) -> Result<Box<Qp>, c_int> {
        let init = &*self.init;
        if self.pd.is_null() || init.send_cq.is_null() || init.recv_cq.is_null() {
            return Err(libc::EINVAL);
        }
        let service = match init.qp_type {
            IBV_QPT_RC => Service::Rc,
            IBV_QPT_UC => Service::Uc,
            IBV_QPT_UD => Service::Ud,
            _ => return Err(libc::EOPNOTSUPP),
        };
        if self.operations.is_some_and(|wanted| wanted & !wr::operations(service) != 0) {
            return Err(libc::EOPNOTSUPP);
        }
        // SAFETY: the caller says that they are live.
        let (pd, send_cq, recv_cq) = unsafe {
            let cq = |cq: *mut ibv_cq| object::borrow::<Cq>(cq);
            (object::borrow::<Pd>(self.pd), cq(init.send_cq), cq(init.recv_cq))
        };
        // SAFETY: as above.
        let srq = (!init.srq.is_null()).then(|| unsafe { object::borrow::<Srq>(init.srq) });
        pd.shared.check()?;
        // A request has room for its list, or for as many bytes: devices say so, and programs have come to need it.
        let list = init.cap.max_send_sge.max(1).saturating_mul(LIST_ENTRY);
        let max_inline = init.cap.max_inline_data.max(list);
        let qp = pd.pd.create_qp(&QpInit {
            service,
            srq: srq.map(|srq| &srq.queue),
            block_own_multicast: self.flags & IBV_QP_CREATE_BLOCK_SELF_MCAST_LB != 0,
            xrc_domain: None,
            send_cq: &send_cq.queue,
            recv_cq: &recv_cq.queue,
            max_send_wr: init.cap.max_send_wr,
            max_recv_wr: init.cap.max_recv_wr,
            max_send_sge: init.cap.max_send_sge,
            max_recv_sge: init.cap.max_recv_sge,
            max_inline,
            all_signaled: init.sq_sig_all != 0,
            qpn: None,
        });
        let qp = qp.map_err(|error| errno::of_device(&error))?;
        for users in [&pd.users, &send_cq.users, &recv_cq.users] {
            users.fetch_add(1, Ordering::AcqRel);
        }
        if let Some(srq) = srq {
            srq.users.fetch_add(1, Ordering::AcqRel);
        }
        self.init.cap.max_inline_data = max_inline;
        self.init.cap.max_send_wr = self.init.cap.max_send_wr.max(1).next_power_of_two();
        self.init.cap.max_recv_wr = match srq {
            Some(_) => 0,
            None => self.init.cap.max_recv_wr.max(1).next_power_of_two(),
        };
        let made = self.wrap(qp, &pd.shared);
        made.announce();
        Ok(made)
    }

    fn wrap(&self, qp: QueuePair, shared: &Arc<Shared>) -> Box<Qp> {
        // SAFETY: null pointers, empty entries and zeros are values of the plain structures.
        let (mut abi, ah_attr): (ibv_qp_ex, ibv_ah_attr) = unsafe { std::mem::zeroed() };
        let base = &mut abi.qp_base;
        // SAFETY: the PD is live, and its context is not written.
        base.context = unsafe { (*self.pd).context };
        base.qp_context = self.init.qp_context;
        base.pd = self.pd;
        base.send_cq = self.init.send_cq;
        base.recv_cq = self.init.recv_cq;
        base.srq = self.init.srq;
        base.qp_num = qp.qpn().value();
        base.qp_type = self.init.qp_type;
        base.mutex = libc::PTHREAD_MUTEX_INITIALIZER;
        base.cond = libc::PTHREAD_COND_INITIALIZER;
        if self.operations.is_some() {
            wr::fill(&mut abi);
        }
        let state = State {
            qp,
            cap: self.init.cap,
            sq_sig_all: self.init.sq_sig_all,
            ah_attr,
            batch: Batch::default(),
        };
        Box::new(Qp {
            abi: UnsafeCell::new(abi),
            shared: Arc::clone(shared),
            lock: HeldLock::new(),
            state: UnsafeCell::new(state),
            async_events: Arc::default(),
            is_extended: self.operations.is_some(),
        })
    }
}

impl Qp {
    /// Events find it from now on.
    fn announce(&self) {
        let listener = Listener {
            object: self.abi.get().expose_provenance(),
            unacknowledged: Arc::clone(&self.async_events),
            channel: Arc::clone(&self.shared.events),
        };
        self.shared.engine.add_qp(self.number(), listener);
    }

    /// Its number.
    pub fn number(&self) -> u32 {
        // SAFETY: the field does not change once it is made.
        unsafe { (*self.abi.get()).qp_base.qp_num }
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_create_qp(pd: *mut ibv_pd, init: *mut ibv_qp_init_attr) -> *mut ibv_qp {
    // SAFETY: the program passes attributes with live objects.
    object::give_or_fail(unsafe {
        Wanted { pd, init: &mut *init, operations: None, flags: 0 }.make()
    })
}

/// `ibv_create_qp_ex`
pub unsafe extern "C" fn create_qp_ex(
    _context: *mut ibv_context,
    init: *mut ibv_qp_init_attr_ex,
) -> *mut ibv_qp {
    const KNOWN: c_uint =
        IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_CREATE_FLAGS | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
    // SAFETY: the program passes attributes, which begin with the shorter form.
    let (extended, init) = unsafe { (*init, &mut *init.cast::<ibv_qp_init_attr>()) };
    let given = |bit: c_uint| extended.comp_mask & bit != 0;
    if !given(IBV_QP_INIT_ATTR_PD) {
        return errno::fail(libc::EINVAL);
    }
    let flags = if given(IBV_QP_INIT_ATTR_CREATE_FLAGS) { extended.create_flags } else { 0 };
    if extended.comp_mask & !KNOWN != 0 || flags & !IBV_QP_CREATE_BLOCK_SELF_MCAST_LB != 0 {
        return errno::fail(libc::EOPNOTSUPP);
    }
    let operations = given(IBV_QP_INIT_ATTR_SEND_OPS_FLAGS).then_some(extended.send_ops_flags);
    // SAFETY: the program passes live objects.
    object::give_or_fail(unsafe { Wanted { pd: extended.pd, init, operations, flags }.make() })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_qp_to_qp_ex(qp: *mut ibv_qp) -> *mut ibv_qp_ex {
    // SAFETY: the program passes a live QP.
    let live = unsafe { object::borrow::<Qp>(qp) };
    if live.is_extended { live.abi.get() } else { std::ptr::null_mut() }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_destroy_qp(qp: *mut ibv_qp) -> c_int {
    // SAFETY: the program passes a live QP.
    let live = unsafe { object::borrow::<Qp>(qp) };
    if let Err(code) = live.shared.check() {
        return code;
    }
    live.shared.engine.remove_qp(live.number());
    // SAFETY: as above, and the program does not use it from now on. Its PD and CQs live: destroying them is refused
    // while a QP has them.
    unsafe {
        let base = (*live.abi.get()).qp_base;
        drop(object::take::<Qp>(qp));
        object::borrow::<Pd>(base.pd).users.fetch_sub(1, Ordering::AcqRel);
        for cq in [base.send_cq, base.recv_cq] {
            object::borrow::<Cq>(cq).users.fetch_sub(1, Ordering::AcqRel);
        }
        if !base.srq.is_null() {
            object::borrow::<Srq>(base.srq).users.fetch_sub(1, Ordering::AcqRel);
        }
    }
    0
}

/// There are no enhancements to agree on: a vendor of 0 says so.
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_query_ece(_qp: *mut ibv_qp, ece: *mut ibv_ece) -> c_int {
    // SAFETY: the program passes a structure to fill in.
    unsafe { ece.write(ibv_ece { vendor_id: 0, options: 0, comp_mask: 0 }) };
    0
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_set_ece(_qp: *mut ibv_qp, ece: *mut ibv_ece) -> c_int {
    // SAFETY: the program passes a structure.
    let ece = unsafe { *ece };
    if ece.comp_mask != 0 {
        return libc::EINVAL;
    }
    if ece.vendor_id == 0 { 0 } else { libc::EOPNOTSUPP }
}

/// The last bytes of a packet become visible last; more is not promised, so the answer is no.
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_query_qp_data_in_order(
    _qp: *mut ibv_qp,
    _operation: c_uint,
    _flags: u32,
) -> c_int {
    0
}

/// # Safety
/// The program passes a live QP and a group, which need not be aligned.
unsafe fn membership(
    qp: *mut ibv_qp,
    group: *const [u8; 16],
    change: impl Fn(&QueuePair, Gid) -> Result<(), DeviceError>,
) -> c_int {
    // SAFETY: the caller says so.
    let (live, group) = unsafe { (object::borrow::<Qp>(qp), Gid(*group)) };
    object::code(live.shared.check().and_then(|()| {
        live.with(|held| change(&held.qp, group)).map_err(|error| errno::of_device(&error))
    }))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_attach_mcast(qp: *mut ibv_qp, group: *const [u8; 16], _lid: u16) -> c_int {
    // SAFETY: the program passes a live QP and a group.
    unsafe { membership(qp, group, QueuePair::attach_multicast) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_detach_mcast(qp: *mut ibv_qp, group: *const [u8; 16], _lid: u16) -> c_int {
    // SAFETY: the program passes a live QP and a group.
    unsafe { membership(qp, group, QueuePair::detach_multicast) }
}

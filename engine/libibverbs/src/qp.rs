//! Queue pairs: making and destroying them.

use std::cell::UnsafeCell;
use std::ffi::{c_int, c_uint};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use feroce_engine::device::{DeviceError, QpInit, QueuePair};
use feroce_engine::net::Gid;
use feroce_engine::qp::Service;

use crate::abi::{
    IBV_QP_CREATE_BLOCK_SELF_MCAST_LB, IBV_QP_INIT_ATTR_CREATE_FLAGS, IBV_QP_INIT_ATTR_PD,
    IBV_QP_INIT_ATTR_SEND_OPS_FLAGS, IBV_QP_INIT_ATTR_XRCD, IBV_QP_OPEN_ATTR_CONTEXT,
    IBV_QP_OPEN_ATTR_NUM, IBV_QP_OPEN_ATTR_TYPE, IBV_QP_OPEN_ATTR_XRCD, IBV_QPT_RC, IBV_QPT_UC,
    IBV_QPT_UD, IBV_QPT_XRC_RECV, IBV_QPT_XRC_SEND, ibv_ah_attr, ibv_context, ibv_cq, ibv_ece,
    ibv_pd, ibv_qp, ibv_qp_cap, ibv_qp_ex, ibv_qp_init_attr, ibv_qp_init_attr_ex, ibv_qp_open_attr,
    ibv_srq, ibv_xrcd,
};
use crate::channel::Unacknowledged;
use crate::context::Shared;
use crate::cq::Cq;
use crate::domain::Pd;
use crate::engine::Listener;
use crate::lock::HeldLock;
use crate::object::{self, Object};
use crate::srq::Srq;
use crate::wr::Batch;
use crate::xrc::Xrcd;
use crate::{context, errno, wr};

/// A queue pair.
#[repr(C)]
pub struct Qp {
    /// As programs know it.
    pub abi: UnsafeCell<ibv_qp_ex>,
    /// Of the context it was made from.
    pub shared: Arc<Shared>,
    /// The QP itself: of several handles, if it is a receiving one of XRC.
    held: Arc<Shareable>,
    /// Asynchronous events that the program has not acknowledged.
    pub async_events: Arc<Unacknowledged>,
    /// Made for the functions `ibv_wr_*`.
    is_extended: bool,
    /// Of a receiving QP of XRC; else null.
    xrcd: *mut ibv_xrcd,
}

/// What the handles of a QP share.
pub struct Shareable {
    /// Held while the state below is used: for a post, or from `ibv_wr_start` to `ibv_wr_complete`.
    lock: HeldLock,
    state: UnsafeCell<State>,
}

// SAFETY: whoever uses the state holds the lock.
unsafe impl Sync for Shareable {}
// SAFETY: the state is of no thread; its pointers are the program's, which it uses from any.
unsafe impl Send for Shareable {}

impl std::fmt::Debug for Shareable {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("a QP")
    }
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
        self.lock();
        // SAFETY: the lock is held, and `act` has no way to the state but this.
        let done = act(unsafe { &mut *self.held.state.get() });
        self.unlock();
        done
    }

    /// Waits until nobody uses the state.
    #[inline]
    pub fn lock(&self) {
        self.held.lock.lock();
    }

    /// The caller is done with it.
    #[inline]
    pub fn unlock(&self) {
        self.held.lock.unlock();
    }

    /// The state, for whoever holds the lock.
    ///
    /// # Safety
    /// The caller holds the lock, and no other reference to the state.
    #[allow(clippy::mut_from_ref)] // The lock is the exclusive reference.
    #[inline]
    pub unsafe fn locked(&self) -> &mut State {
        // SAFETY: the caller says so.
        unsafe { &mut *self.held.state.get() }
    }
}

/// What a QP is to be.
struct Wanted {
    context: *mut ibv_context,
    pd: *mut ibv_pd,
    /// Null but for a receiving QP of XRC.
    xrcd: *mut ibv_xrcd,
    /// A copy: of the program's own, only the capabilities are written.
    init: ibv_qp_init_attr,
    /// For `ibv_wr_*`, with these operations.
    operations: Option<u64>,
    flags: u32,
}

/// Bytes of an entry of a list in a send request.
const LIST_ENTRY: u32 = 16;

/// The engine's service for a type of QPs.
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

impl Wanted {
    /// Makes the QP; its capabilities are in `init` then.
    ///
    /// # Safety
    /// The context is open; PD, domain, CQs and SRQ are live or null.
    unsafe fn make(&mut self) -> Result<Box<Qp>, c_int> {
        let service = service(self.init.qp_type)?;
        if self.operations.is_some_and(|wanted| wanted & !wr::operations(service) != 0) {
            return Err(libc::EOPNOTSUPP);
        }
        // SAFETY: the caller says so.
        let shared = unsafe { context::shared(self.context) }?;
        // What the other end of its kind has is none of its own.
        if service == Service::XrcIni {
            (self.init.recv_cq, self.init.srq) = (std::ptr::null_mut(), std::ptr::null_mut());
        }
        let qp = if service == Service::XrcTgt {
            // SAFETY: the caller says so.
            unsafe { self.receiving()? }
        } else {
            // SAFETY: as above.
            unsafe { self.ordinary(service)? }
        };
        // SAFETY: as above: they are those that it was made with.
        unsafe { Users::of(self).add() };
        let made = self.wrap(qp, shared);
        // SAFETY: as above.
        if let Some(xrcd) = unsafe { live::<Xrcd>(self.xrcd) } {
            xrcd.domain.add(made.number(), &made.held);
        }
        made.announce();
        Ok(made)
    }

    /// # Safety
    /// PD, CQs and SRQ are live or null.
    unsafe fn ordinary(&mut self, service: Service) -> Result<QueuePair, c_int> {
        let init = &self.init;
        // SAFETY: the caller says so.
        let (pd, send_cq, recv_cq, srq) = unsafe {
            let cq = |cq: *mut ibv_cq| live::<Cq>(cq).ok_or(libc::EINVAL);
            let pd = live::<Pd>(self.pd).ok_or(libc::EINVAL)?;
            let send_cq = cq(init.send_cq)?;
            let recv_cq = if service == Service::XrcIni { send_cq } else { cq(init.recv_cq)? };
            (pd, send_cq, recv_cq, live::<Srq>(init.srq))
        };
        if srq.is_some_and(|srq| srq.queue.is_xrc()) {
            return Err(libc::EINVAL);
        }
        // A request has room for its list, or for as many bytes: devices say so, and programs have come to need it. An ATOMIC
        // WRITE holds its eight bytes itself, too.
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
        let cap = &mut self.init.cap;
        cap.max_inline_data = max_inline;
        cap.max_send_wr = cap.max_send_wr.max(1).next_power_of_two();
        let has_receives = srq.is_none() && service != Service::XrcIni;
        cap.max_recv_wr = if has_receives { cap.max_recv_wr.max(1).next_power_of_two() } else { 0 };
        Ok(qp)
    }

    /// The receiving end of XRC: it has neither PD nor CQs nor queues; the shared receive queues of its domain have.
    ///
    /// # Safety
    /// The domain is live or null.
    unsafe fn receiving(&mut self) -> Result<QueuePair, c_int> {
        // SAFETY: the caller says so.
        let domain = &unsafe { live::<Xrcd>(self.xrcd) }.ok_or(libc::EINVAL)?.domain;
        let qp = domain.pd.create_qp(&QpInit {
            service: Service::XrcTgt,
            xrc_domain: Some(&domain.xrc),
            max_send_wr: 0,
            max_recv_wr: 0,
            ..QpInit::new(&domain.cq)
        });
        // SAFETY: zeros and null pointers are values of the plain structure.
        let nothing: ibv_qp_init_attr = unsafe { std::mem::zeroed() };
        let (qp_context, qp_type) = (self.init.qp_context, self.init.qp_type);
        self.init = ibv_qp_init_attr { qp_context, qp_type, ..nothing };
        self.pd = std::ptr::null_mut();
        qp.map_err(|error| errno::of_device(&error))
    }

    fn wrap(&self, qp: QueuePair, shared: &Arc<Shared>) -> Box<Qp> {
        // SAFETY: zeros are values of the plain structure.
        let ah_attr: ibv_ah_attr = unsafe { std::mem::zeroed() };
        let state = State {
            qp,
            cap: self.init.cap,
            sq_sig_all: self.init.sq_sig_all,
            ah_attr,
            batch: Batch::default(),
        };
        let held = Shareable { lock: HeldLock::new(), state: UnsafeCell::new(state) };
        self.handle(Arc::new(held), shared)
    }

    /// A handle to the QP.
    fn handle(&self, held: Arc<Shareable>, shared: &Arc<Shared>) -> Box<Qp> {
        // SAFETY: null pointers, empty entries and zeros are values of the plain structure.
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
            wr::fill(&mut abi);
        }
        let made = Box::new(Qp {
            abi: UnsafeCell::new(abi),
            shared: Arc::clone(shared),
            held,
            async_events: Arc::default(),
            is_extended: self.operations.is_some(),
            xrcd: self.xrcd,
        });
        let (number, state) = made.with(|held| (held.qp.qpn().value(), held.qp.query().state));
        // SAFETY: nobody else has it yet.
        let base = unsafe { &mut (*made.abi.get()).qp_base };
        base.qp_num = number;
        base.handle = number;
        base.state = state.map_or(0, |state| state as c_uint);
        made
    }
}

/// The object that the program means, if it names one.
///
/// # Safety
/// It is live or null.
unsafe fn live<'a, T: Object>(abi: *mut T::Abi) -> Option<&'a T> {
    // SAFETY: the caller says so.
    (!abi.is_null()).then(|| unsafe { object::borrow::<T>(abi) })
}

/// What a QP is made with, and what may not go before it. What it has not is null.
struct Users {
    pd: *mut ibv_pd,
    cqs: [*mut ibv_cq; 2],
    srq: *mut ibv_srq,
    xrcd: *mut ibv_xrcd,
}

impl Users {
    fn of(wanted: &Wanted) -> Self {
        let Wanted { pd, xrcd, ref init, .. } = *wanted;
        Self { pd, cqs: [init.send_cq, init.recv_cq], srq: init.srq, xrcd }
    }

    /// # Safety
    /// They are live or null.
    unsafe fn counts<'a>(&self) -> impl Iterator<Item = &'a AtomicUsize> + use<'a> {
        // SAFETY: the caller says so.
        let counts = unsafe {
            [
                live::<Pd>(self.pd).map(|pd| &pd.users),
                live::<Cq>(self.cqs[0]).map(|cq| &cq.users),
                live::<Cq>(self.cqs[1]).map(|cq| &cq.users),
                live::<Srq>(self.srq).map(|srq| &srq.users),
                live::<Xrcd>(self.xrcd).map(|xrcd| &xrcd.users),
            ]
        };
        counts.into_iter().flatten()
    }

    /// # Safety
    /// They are live or null.
    unsafe fn add(&self) {
        // SAFETY: the caller says so.
        unsafe { self.counts() }.for_each(|users| _ = users.fetch_add(1, Ordering::AcqRel));
    }

    /// # Safety
    /// They are live or null.
    unsafe fn remove(&self) {
        // SAFETY: the caller says so.
        unsafe { self.counts() }.for_each(|users| _ = users.fetch_sub(1, Ordering::AcqRel));
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
    if pd.is_null() {
        return errno::fail(libc::EINVAL);
    }
    let (xrcd, operations, flags) = (std::ptr::null_mut(), None, 0);
    // SAFETY: the program passes a live PD, whose context is not written, and attributes with live objects.
    object::give_or_fail(unsafe {
        let context = (*pd).context;
        create(Wanted { context, pd, xrcd, init: *init, operations, flags }, &raw mut (*init).cap)
    })
}

/// # Safety
/// As for [`Wanted::make`]; `cap` is a place for the capabilities.
unsafe fn create(mut wanted: Wanted, cap: *mut ibv_qp_cap) -> Result<Box<Qp>, c_int> {
    // SAFETY: the caller says so.
    unsafe {
        let made = wanted.make()?;
        cap.write(wanted.init.cap);
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
    // SAFETY: the program passes attributes, which begin with the shorter form.
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
    // SAFETY: the program passes live objects.
    object::give_or_fail(unsafe {
        create(Wanted { context, pd, xrcd, init: *init, operations, flags }, &raw mut (*init).cap)
    })
}

/// `ibv_open_qp`: another handle to a receiving QP of XRC.
pub unsafe extern "C" fn open_qp(
    context: *mut ibv_context,
    attr: *mut ibv_qp_open_attr,
) -> *mut ibv_qp {
    const NEEDED: u32 = IBV_QP_OPEN_ATTR_NUM | IBV_QP_OPEN_ATTR_XRCD | IBV_QP_OPEN_ATTR_TYPE;
    // SAFETY: the program passes an open context, and attributes with a live domain.
    let (shared, attr) = unsafe { (context::shared(context), *attr) };
    let made = shared.and_then(|shared| {
        if attr.comp_mask & !(NEEDED | IBV_QP_OPEN_ATTR_CONTEXT) != 0 {
            return Err(libc::EOPNOTSUPP);
        }
        let lacks = attr.comp_mask & NEEDED != NEEDED || attr.xrcd.is_null();
        if lacks || attr.qp_type != IBV_QPT_XRC_RECV {
            return Err(libc::EINVAL);
        }
        // SAFETY: as above.
        let xrcd = unsafe { object::borrow::<Xrcd>(attr.xrcd) };
        let held = xrcd.domain.find(attr.qp_num).ok_or(libc::EINVAL)?;
        // SAFETY: zeros and null pointers are values of the plain structure.
        let mut init: ibv_qp_init_attr = unsafe { std::mem::zeroed() };
        init.qp_type = attr.qp_type;
        if attr.comp_mask & IBV_QP_OPEN_ATTR_CONTEXT != 0 {
            init.qp_context = attr.qp_context;
        }
        let (pd, operations, flags) = (std::ptr::null_mut(), None, 0);
        let wanted = Wanted { context, pd, xrcd: attr.xrcd, init, operations, flags };
        // SAFETY: the domain is live, the others are null.
        unsafe { Users::of(&wanted).add() };
        let made = wanted.handle(held, shared);
        made.announce();
        Ok(made)
    });
    object::give_or_fail(made)
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
    live.shared.engine.remove_qp(live.number(), &live.async_events);
    // SAFETY: as above, and the program does not use it from now on. What it was made with lives: destroying that is
    // refused while a QP has it.
    unsafe {
        let gone = object::take::<Qp>(qp);
        let ibv_qp { pd, send_cq, recv_cq, srq, .. } = (*gone.abi.get()).qp_base;
        let users = Users { pd, cqs: [send_cq, recv_cq], srq, xrcd: gone.xrcd };
        drop(gone);
        users.remove();
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

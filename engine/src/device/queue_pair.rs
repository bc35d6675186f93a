//! The handle to a queue pair.

use std::sync::atomic::AtomicBool;
use std::sync::{Arc, PoisonError};

use feroce_wire::{FlowHeader, PathMtu, Qpn};

use super::addressing::{PATH_TIMEOUT, Path, flow_header};
use super::config::{MAX_INLINE, MAX_WR};
use super::follow::{self, PathUser};
use super::port_owner::{self, give_qpn, take_qpn};
use super::{
    CompletionQueue, DeviceError, Opened, ProtectionDomain, SharedReceiveQueue, XrcDomain,
    multicast,
};
use crate::core::Member;
use crate::memory::work_ring::{WorkProducer, work_ring};
use crate::net::Gid;
use crate::qp::attributes::QpAttributes;
use crate::qp::ud::{UdQp, UdQpParts};
use crate::qp::{AnyQp, Qp, QpParts, QpSnapshot, QpState, ReceiveQueue, Service};
use crate::time::Instant;
use crate::verbs::{CompletionCounter, CountedOp, DatagramWqe, MAX_SGE, RecvWqe, SendWqe, Sge};

/// Creation attributes of a QP, as `ibv_qp_init_attr`.
#[derive(Debug, Clone, Copy)]
pub struct QpInit<'a> {
    /// Transport service.
    pub service: Service,
    /// Completion queue of send requests.
    pub send_cq: &'a CompletionQueue,
    /// Completion queue of receives.
    pub recv_cq: &'a CompletionQueue,
    /// Outstanding send requests; rounded up to a power of two.
    pub max_send_wr: u32,
    /// Outstanding receives; rounded up to a power of two.
    pub max_recv_wr: u32,
    /// Scatter/gather entries per send request.
    pub max_send_sge: u32,
    /// Scatter/gather entries per receive.
    pub max_recv_sge: u32,
    /// Inline bytes per send request.
    pub max_inline: u32,
    /// Every send request generates a completion, with or without the SIGNALED flag.
    pub all_signaled: bool,
    /// Shared receive queue, instead of a receive queue of the QP's own. `max_recv_wr` and
    /// `max_recv_sge` are ignored then.
    pub srq: Option<&'a SharedReceiveQueue>,
    /// Domain of an XRC target QP.
    pub xrc_domain: Option<&'a XrcDomain>,
    /// Datagrams that a UD QP sends to a multicast group are not delivered to the QP itself.
    pub block_own_multicast: bool,
    /// QP number; `None` takes the one that was free for longest. Replays need a given number.
    pub qpn: Option<Qpn>,
}

impl<'a> QpInit<'a> {
    /// Returns attributes of an RC QP of ordinary size that completes to `cq`: 128 requests each
    /// way, one entry each.
    pub fn new(cq: &'a CompletionQueue) -> Self {
        Self {
            service: Service::Rc,
            send_cq: cq,
            recv_cq: cq,
            max_send_wr: 128,
            max_recv_wr: 128,
            max_send_sge: 1,
            max_recv_sge: 1,
            max_inline: 64,
            all_signaled: false,
            srq: None,
            xrc_domain: None,
            block_own_multicast: false,
            qpn: None,
        }
    }
}

/// A queue pair. Dropping it destroys it; the drop returns when the engine no longer accesses its
/// memory. Completions that were not polled by then are removed, as rdma-core does for RNICs.
///
/// Two ends connect by exchanging their [`Endpoint`](super::Endpoint)s:
///
/// ```
/// use feroce_engine::device::{ConnectOptions, QpInit};
/// use feroce_engine::verbs::{Data, RecvRequest, SendFlags, SendOp, SendRequest};
/// # use feroce_engine::device::{CompletionQueue, Device, DeviceConfig};
/// # use feroce_engine::memory::Access;
/// # fn wait(cq: &CompletionQueue) {
/// #     while !cq.poll_one().inspect(|done| assert!(done.is_success(), "{done:?}")).is_some() {}
/// # }
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let [near, far] = Device::open_pair(&DeviceConfig::default())?; // two ends in one process
/// let cqs = [near.create_cq(16)?, far.create_cq(16)?];
/// let pds = [near.alloc_pd(), far.alloc_pd()];
/// let [mut sender, mut receiver] =
///     [pds[0].create_qp(&QpInit::new(&cqs[0]))?, pds[1].create_qp(&QpInit::new(&cqs[1]))?];
/// let buffer = pds[1].alloc_buffer(64, Access::LOCAL_WRITE)?;
///
/// let (psn_a, psn_b) = (near.random_psn()?, far.random_psn()?);
/// let (a, b) = (sender.endpoint(psn_a, 0)?, receiver.endpoint(psn_b, 0)?);
/// sender.connect(psn_a, &b, &ConnectOptions::default())?;
/// receiver.connect(psn_b, &a, &ConnectOptions::default())?;
///
/// receiver.post_recv(&RecvRequest { wr_id: 1, sges: &[buffer.region().sge(0, 64)] })?;
/// let (op, data) = (SendOp::Send, Data::Inline(&[b"hello"]));
/// sender.post_send(&SendRequest { wr_id: 2, op, data, flags: SendFlags::SIGNALED })?;
/// wait(&cqs[0]);
/// wait(&cqs[1]);
/// let mut received = [0; 5];
/// buffer.read(0, &mut received);
/// assert_eq!(&received, b"hello");
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct QueuePair {
    qpn: Qpn,
    pub(super) core: usize,
    pub(super) slot: u32,
    service: Service,
    block_own_multicast: bool,
    /// State that the program set last; the engine may have moved the QP to ERR since.
    pub(super) state: QpState,
    pub(super) sq: SendQueue,
    /// `None` with a shared receive queue.
    pub(super) rq: Option<WorkProducer<RecvWqe>>,
    pub(super) posted: Arc<AtomicBool>,
    pub(super) max_send_sge: u32,
    pub(super) max_recv_sge: u32,
    pub(super) max_inline: u32,
    pub(super) pd: ProtectionDomain,
}

/// The program's end of a send queue.
#[derive(Debug)]
pub(super) enum SendQueue {
    /// Send queue of a connected QP.
    Connected(WorkProducer<SendWqe>),
    /// Send queue of a UD QP.
    Datagram(WorkProducer<DatagramWqe>),
}

impl ProtectionDomain {
    /// Makes a QP in state RESET.
    ///
    /// # Errors
    /// [`DeviceError::Limit`], [`DeviceError::Foreign`], [`DeviceError::Exhausted`],
    /// [`DeviceError::Qpn`], [`DeviceError::Arena`].
    pub fn create_qp(&self, init: &QpInit<'_>) -> Result<QueuePair, DeviceError> {
        let qpn = take_qpn(&self.device, init.qpn)?;
        self.make_qp(init, qpn).inspect_err(|_| give_qpn(&self.device, qpn))
    }

    /// Makes a QP with the number `qpn`, which the caller has reserved.
    pub(super) fn make_qp(&self, init: &QpInit<'_>, qpn: Qpn) -> Result<QueuePair, DeviceError> {
        check_init(init)?;
        let device = &self.device;
        if init.srq.is_some_and(|srq| !Arc::ptr_eq(srq.device(), device)) {
            return Err(DeviceError::Foreign("the shared receive queue"));
        }
        for cq in [init.send_cq, init.recv_cq] {
            if !Arc::ptr_eq(&cq.device, device) {
                return Err(DeviceError::Foreign("the completion queue"));
            }
        }
        let sges = |count: u32| count as usize * size_of::<Sge>();
        let send_extra = sges(init.max_send_sge).max(init.max_inline as usize);
        let (rq, core_rq) = self.receive_queue(init)?;
        let (core, slot) = device.qpns.locate(qpn).expect("a number of the slice");
        let (pd, all_signaled) = (self.id, init.all_signaled);
        let [send_cq, recv_cq] = [init.send_cq, init.recv_cq].map(|cq| Arc::clone(&cq.ring));
        let (sq, qp) = match init.service {
            Service::Rc | Service::Uc | Service::XrcIni | Service::XrcTgt => {
                let service = init.service;
                let (sq, core_sq) = work_ring(&device.arena, init.max_send_wr, send_extra)?;
                let (sq, rq) = (SendQueue::Connected(sq), core_rq);
                let min_ack_timeout = device.config.min_ack_timeout;
                let parts = QpParts {
                    service,
                    qpn,
                    pd,
                    send_cq,
                    recv_cq,
                    sq: core_sq,
                    rq,
                    all_signaled,
                    min_ack_timeout,
                    ahead: device.ahead.clone(),
                };
                (sq, AnyQp::Connected(Qp::new(parts)))
            }
            Service::Ud => {
                let (sq, core_sq) = work_ring(&device.arena, init.max_send_wr, send_extra)?;
                let (sq, rq) = (SendQueue::Datagram(sq), core_rq);
                let parts = UdQpParts { qpn, pd, send_cq, recv_cq, sq: core_sq, rq, all_signaled };
                (sq, AnyQp::Datagram(UdQp::new(parts)))
            }
        };
        let posted = Arc::new(AtomicBool::new(false));
        for cq in [init.send_cq, init.recv_cq] {
            cq.ring.add_core(core);
        }
        device.cores[core].lock().insert(slot, qp, Arc::clone(&posted));
        Ok(QueuePair {
            qpn,
            core,
            slot,
            service: init.service,
            block_own_multicast: init.block_own_multicast,
            state: QpState::Reset,
            sq,
            rq,
            posted,
            max_send_sge: init.max_send_sge,
            max_recv_sge: init.max_recv_sge,
            max_inline: init.max_inline,
            pd: self.clone(),
        })
    }
}

impl ProtectionDomain {
    /// Makes both ends of a QP's receive queue. The program's end is `None` with a shared queue.
    #[allow(clippy::type_complexity)] // Two ends, used once.
    fn receive_queue(
        &self,
        init: &QpInit<'_>,
    ) -> Result<(Option<WorkProducer<RecvWqe>>, ReceiveQueue), DeviceError> {
        match (init.service, init.xrc_domain) {
            (Service::XrcIni, _) => return Ok((None, ReceiveQueue::none())),
            (Service::XrcTgt, Some(domain)) if Arc::ptr_eq(&domain.device, &self.device) => {
                return Ok((None, ReceiveQueue::of_domain(domain.id)));
            }
            (Service::XrcTgt, _) => return Err(DeviceError::Foreign("the XRC domain")),
            _ => {}
        }
        if let Some(srq) = init.srq {
            return Ok((None, ReceiveQueue::shared(Arc::clone(srq.ring()))));
        }
        let extra = init.max_recv_sge as usize * size_of::<Sge>();
        let (rq, core_rq) = work_ring(&self.device.arena, init.max_recv_wr, extra)?;
        Ok((Some(rq), ReceiveQueue::Own(core_rq)))
    }
}

fn check_init(init: &QpInit<'_>) -> Result<(), DeviceError> {
    let most_sges = u32::try_from(MAX_SGE).expect("small");
    let limits = [
        ("max_send_wr", init.max_send_wr, MAX_WR),
        ("max_recv_wr", init.max_recv_wr, MAX_WR),
        ("max_send_sge", init.max_send_sge, most_sges),
        ("max_recv_sge", init.max_recv_sge, most_sges),
        ("max_inline", init.max_inline, MAX_INLINE),
    ];
    match limits.into_iter().find(|(_, value, limit)| value > limit) {
        Some((what, value, limit)) => {
            let (value, limit) = (u64::from(value), u64::from(limit));
            Err(DeviceError::Limit { what, value, limit })
        }
        None => Ok(()),
    }
}

impl QueuePair {
    /// Returns the QP number.
    pub fn qpn(&self) -> Qpn {
        self.qpn
    }

    /// Returns the transport service.
    pub fn service(&self) -> Service {
        self.service
    }

    /// Returns the QP's progress at `now`, which must not be before the time of the last
    /// [`Device::turn`](super::Device::turn).
    pub fn snapshot(&self, now: Instant) -> QpSnapshot {
        let token = self.device().cores[self.core].lock();
        token.snapshot(self.slot, now).expect("in its slot for as long as it has a handle")
    }

    /// Resolves `path` into the headers of packets to the QP `remote`, for [`QpAttributes::flow`].
    /// Waits for the next hop's Ethernet address if the kernel does not know it. Later changes of
    /// the path are followed.
    ///
    /// # Errors
    /// [`DeviceError::GidIndex`], [`DeviceError::Path`], [`DeviceError::SourcePort`].
    pub fn resolve(&self, path: &Path, remote: Qpn) -> Result<FlowHeader, DeviceError> {
        let device = self.device();
        let headers = follow::begin(device, self.qpn, path, PATH_TIMEOUT)?;
        let ecn = device.config.marks_data();
        let super_frames = path.super_frames || self.has_super_frames_to_all();
        let path = Path { super_frames, ..*path };
        flow_header(&path, &headers, self.qpn, remote, ecn, &device.source_ports)
    }

    /// Changes state and attributes, as `ibv_modify_qp`. A transition to RESET removes the QP's
    /// completions from its completion queues.
    ///
    /// # Errors
    /// [`DeviceError::PathMtu`], [`DeviceError::Modify`]; nothing is changed then.
    pub fn modify(&mut self, attributes: &QpAttributes) -> Result<(), DeviceError> {
        let device = self.device();
        let mtu = device.attributes.read().unwrap_or_else(PoisonError::into_inner).mtu;
        if let Some(path_mtu) = attributes.path_mtu
            && path_mtu.bytes() + PathMtu::OVERHEAD > mtu
        {
            return Err(DeviceError::PathMtu { path_mtu, mtu });
        }
        let mut attributes = *attributes;
        port_owner::update_destination(device, (self.qpn, self.service), &attributes)?;
        // The lock is kept until the QP has the headers, so that changes of the host that arrive
        // meanwhile are applied to the QP afterwards.
        let paths = device.paths.lock().unwrap_or_else(PoisonError::into_inner);
        let path = paths.get(&PathUser::Qp(self.qpn));
        attributes.flow = attributes.flow.map(|flow| match path {
            Some(path) if path.leads_to(&flow) => path.refresh(&flow),
            _ => flow,
        });
        let now = device.now();
        let cell = &device.cores[self.core];
        let mut token = cell.lock();
        let change = |qp: &mut AnyQp, env: &mut crate::qp::Env<'_>| {
            qp.modify(&attributes, env).map(|()| qp.state())
        };
        if matches!(attributes.state, Some(QpState::Err | QpState::Reset)) {
            token.drain(self.slot, now);
        }
        let state = token.with_qp(self.slot, now, change).expect("the QP lives")?;
        if state == QpState::Reset {
            token.reset_congestion(self.slot);
        }
        cell.wake_helper(&token, now);
        drop((token, paths));
        self.state = state;
        Ok(())
    }

    /// Counts the completions of `ops` in `counter` from now on, as `ibv_qp_attach_comp_cntr`.
    ///
    /// # Errors
    /// [`DeviceError::State`] in another state than RESET and INIT; [`DeviceError::Busy`] if one of
    /// the operations has a counter.
    pub fn attach_counter(
        &self,
        counter: &Arc<CompletionCounter>,
        ops: &[CountedOp],
    ) -> Result<(), DeviceError> {
        let device = self.device();
        let attach = |qp: &mut AnyQp, _: &mut crate::qp::Env<'_>| {
            if !matches!(qp.state(), QpState::Reset | QpState::Init) {
                return Err(DeviceError::State("the QP is beyond INIT"));
            }
            let attached = qp.counters_mut().attach(counter, ops);
            if attached { Ok(()) } else { Err(DeviceError::Busy("an operation has a counter")) }
        };
        let mut token = device.cores[self.core].lock();
        token.with_qp(self.slot, device.now(), attach).expect("the QP lives")
    }

    /// Returns the current state and attributes, as `ibv_query_qp`.
    pub fn query(&self) -> QpAttributes {
        let device = self.device();
        let mut token = device.cores[self.core].lock();
        token.with_qp(self.slot, device.now(), |qp, _| qp.attributes()).expect("the QP lives")
    }

    /// Attaches this QP to `group`, as `ibv_attach_mcast`; does nothing if it is attached already.
    /// Attaching the first QP of a device makes the host a member of the group. An IPv4 group is
    /// given in its mapped form `::ffff:224.1.2.3`, or as `ff0e::ffff:224.1.2.3`.
    ///
    /// Call this from a thread in the interface's network namespace.
    ///
    /// # Errors
    /// [`DeviceError::NotMulticast`], [`DeviceError::NotDatagram`], [`DeviceError::Membership`].
    pub fn attach_multicast(&self, group: Gid) -> Result<(), DeviceError> {
        if self.service != Service::Ud {
            return Err(DeviceError::NotDatagram);
        }
        let (qpn, core, slot) = (self.qpn, self.core, self.slot);
        let member = Member { qpn, core, slot, blocks_own: self.block_own_multicast };
        multicast::attach(self.device(), group, member)
    }

    /// Undoes [`QueuePair::attach_multicast`], as dropping the QP also does.
    ///
    /// # Errors
    /// [`DeviceError::NotMulticast`], [`DeviceError::NotAttached`].
    pub fn detach_multicast(&self, group: Gid) -> Result<(), DeviceError> {
        multicast::detach(self.device(), group, self.qpn)
    }

    pub(super) fn device(&self) -> &Opened {
        &self.pd.device
    }
}

impl Drop for QueuePair {
    fn drop(&mut self) {
        let device = self.device();
        let user = PathUser::Qp(self.qpn);
        device.paths.lock().unwrap_or_else(PoisonError::into_inner).remove(&user);
        if self.service == Service::Ud {
            multicast::detach_all(device, self.qpn);
        }
        let cell = &device.cores[self.core];
        let mut token = cell.lock();
        let now = device.now();
        let qp = token.remove(self.slot, now);
        cell.wake_helper(&token, now);
        drop(token);
        port_owner::forget(device, self.qpn, self.service);
        if qp.is_some_and(|qp| qp.has_bound_windows()) {
            device.memory.unbind_all_of(self.qpn); // Before the number is reused.
        }
        give_qpn(device, self.qpn);
    }
}

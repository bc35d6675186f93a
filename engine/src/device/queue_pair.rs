//! The program's handle to a queue pair.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, PoisonError};

use feroce_wire::{FlowHeader, PathMtu, Pkey, Psn, Qpn, RnrTimer};

use super::addressing::{PATH_TIMEOUT, Path, flow_header};
use super::config::{MAX_INLINE, MAX_WR};
use super::follow::{self, PathUser};
use super::host::HostId;
use super::send_limits::SendLimits;
use super::{
    CompletionQueue, ConnectOptions, DeviceError, Opened, PostError, ProtectionDomain,
    SharedReceiveQueue, XrcDomain, multicast,
};
use crate::memory::work_ring::{WorkProducer, work_ring};
use crate::net::Gid;
use crate::qp::attributes::QpAttributes;
use crate::qp::ud::{UdQp, UdQpParts};
use crate::qp::{AnyQp, MAX_RD_ATOMIC, Qp, QpParts, QpSnapshot, QpState, RD_ATOMIC, Service, sg};
use crate::time::Instant;
use crate::verbs::{DatagramWqe, MAX_SGE, RecvRequest, RecvWqe, SendOp, SendRequest, SendWqe, Sge};

/// What a QP is made for, as `ibv_qp_init_attr`.
#[derive(Debug, Clone, Copy)]
pub struct QpInit<'a> {
    /// Transport service.
    pub service: Service,
    /// Where send requests complete.
    pub send_cq: &'a CompletionQueue,
    /// Where receives complete.
    pub recv_cq: &'a CompletionQueue,
    /// Outstanding send requests; rounded up to a power of two.
    pub max_send_wr: u32,
    /// Outstanding receives; rounded up to a power of two.
    pub max_recv_wr: u32,
    /// Entries of one send request.
    pub max_send_sge: u32,
    /// Entries of one receive.
    pub max_recv_sge: u32,
    /// Inline bytes of one send request.
    pub max_inline: u32,
    /// Every send request completes with an entry, flagged or not.
    pub all_signaled: bool,
    /// Takes its receives from this queue instead of one of its own. `max_recv_wr` and `max_recv_sge` count for
    /// nothing then.
    pub srq: Option<&'a SharedReceiveQueue>,
    /// The domain of the receiving end of XRC.
    pub xrc_domain: Option<&'a XrcDomain>,
    /// What a UD QP sends to a multicast group that it is attached to does not come back to it.
    pub block_own_multicast: bool,
    /// The QP number; `None` takes the one that was free for longest. For replays.
    pub qpn: Option<Qpn>,
}

impl<'a> QpInit<'a> {
    /// An RC QP of ordinary size that completes to `cq`: 128 requests each way, one entry each.
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

/// What one side tells the other so that they can connect.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Endpoint {
    /// QP number.
    pub qpn: Qpn,
    /// First PSN it sends.
    pub psn: Psn,
    /// Address.
    pub gid: Gid,
    /// Where its port carries super-frames: the host within which it does. Both ends use them if it is the same
    /// for both. `None` for peers that say nothing: other RNICs.
    pub super_frames: Option<HostId>,
}

/// A queue pair. Dropping it destroys it: it returns when the engine has stopped touching its memory.
#[derive(Debug)]
pub struct QueuePair {
    qpn: Qpn,
    core: usize,
    slot: u32,
    service: Service,
    block_own_multicast: bool,
    /// As the program last set it; the engine may have moved it to ERR since.
    state: QpState,
    pub(super) sq: SendQueue,
    /// `None` if its receives come from a shared queue.
    rq: Option<WorkProducer<RecvWqe>>,
    posted: Arc<AtomicBool>,
    max_send_sge: usize,
    max_recv_sge: usize,
    max_inline: usize,
    pub(super) pd: ProtectionDomain,
}

/// The program's end of a send queue.
#[derive(Debug)]
pub(super) enum SendQueue {
    /// Of a connected QP.
    Connected(WorkProducer<SendWqe>),
    /// Of a UD QP.
    Datagram(WorkProducer<DatagramWqe>),
}

impl ProtectionDomain {
    /// Makes a QP, in RESET.
    ///
    /// # Errors
    /// [`DeviceError::Limit`], [`DeviceError::Foreign`], [`DeviceError::Exhausted`],
    /// [`DeviceError::Qpn`], [`DeviceError::Arena`].
    pub fn create_qp(&self, init: &QpInit<'_>) -> Result<QueuePair, DeviceError> {
        let qpn = take_qpn(&self.device, init.qpn)?;
        self.make_qp(init, qpn).inspect_err(|_| give_qpn(&self.device, qpn))
    }

    /// Makes a QP with the number `qpn`, which is not free.
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
                let parts =
                    QpParts { service, qpn, pd, send_cq, recv_cq, sq: core_sq, rq, all_signaled };
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
            max_send_sge: init.max_send_sge as usize,
            max_recv_sge: init.max_recv_sge as usize,
            max_inline: init.max_inline as usize,
            pd: self.clone(),
        })
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

fn take_qpn(device: &Opened, asked: Option<Qpn>) -> Result<Qpn, DeviceError> {
    let mut free = device.free_qpns.lock().unwrap_or_else(PoisonError::into_inner);
    let index = match asked {
        None => free.pop_front().ok_or(DeviceError::Exhausted("QPs"))?,
        Some(qpn) => {
            let index = qpn.value().checked_sub(device.qpns.base);
            let at = free.iter().position(|&free| Some(free) == index);
            at.and_then(|at| free.remove(at)).ok_or(DeviceError::Qpn(qpn.value()))?
        }
    };
    Ok(Qpn::masked(device.qpns.base + index))
}

/// Gives a number back: it is the last to be used again.
fn give_qpn(device: &Opened, qpn: Qpn) {
    match qpn.value().checked_sub(device.qpns.base) {
        Some(index) => {
            let mut free = device.free_qpns.lock().unwrap_or_else(PoisonError::into_inner);
            free.push_back(index);
        }
        None => device.gsi_taken.store(false, Ordering::Release),
    }
}

impl QueuePair {
    /// Its number.
    pub fn qpn(&self) -> Qpn {
        self.qpn
    }

    /// Its transport service.
    pub fn service(&self) -> Service {
        self.service
    }

    /// Where it stands at `now`, which is the time that [`Device::turn`](super::Device::turn) was told last, or later.
    pub fn snapshot(&self, now: Instant) -> QpSnapshot {
        let token = self.device().cores[self.core].lock();
        token.snapshot(self.slot, now).expect("in its slot for as long as it has a handle")
    }

    /// Its core, and its slot there.
    pub(super) fn place(&self) -> (usize, u32) {
        (self.core, self.slot)
    }

    pub(super) fn blocks_own_multicast(&self) -> bool {
        self.block_own_multicast
    }

    /// What a peer must know to connect to this QP, if it is to start at `psn`.
    ///
    /// # Errors
    /// [`DeviceError::GidIndex`].
    pub fn endpoint(&self, psn: Psn, sgid_index: u32) -> Result<Endpoint, DeviceError> {
        let entry = self.device().addressing.gid(sgid_index);
        let gid = entry.ok_or(DeviceError::GidIndex(sgid_index))?.gid;
        Ok(Endpoint { qpn: self.qpn, psn, gid, super_frames: self.super_frames() })
    }

    /// Takes the QP, of a connected service, from RESET to RTS, starting at `psn`, with `peer` at the other end.
    /// Of the options, a UC QP takes those that are not about acknowledgements.
    ///
    /// # Errors
    /// [`DeviceError`]; the QP stays in the state that it had reached.
    pub fn connect(
        &mut self,
        psn: Psn,
        peer: &Endpoint,
        options: &ConnectOptions,
    ) -> Result<(), DeviceError> {
        let mut path = Path::new(peer.gid, options.sgid_index);
        path.traffic_class = options.traffic_class;
        path.hop_limit = options.hop_limit;
        path.source_port = options.source_port;
        path.service_level = options.service_level;
        let super_frames = peer.super_frames.is_some() && peer.super_frames == self.super_frames();
        path.super_frames = super_frames;
        let split = options.split.applies(super_frames);
        let flow = self.resolve(&path, peer.qpn)?;
        let path_mtu = options.path_mtu.or_else(|| self.largest_mtu());
        // Any end of a connection with super-frames answers the most; another peer may not.
        let parts = split && super_frames && path_mtu == Some(PathMtu::Mtu4096);
        let usual = if parts { MAX_RD_ATOMIC } else { RD_ATOMIC };
        let depth = options.max_rd_atomic.unwrap_or(usual);
        let answered = if super_frames { MAX_RD_ATOMIC } else { depth };
        let acknowledged = self.service.is_reliable();
        let answers = acknowledged && self.service.takes_requests();
        let asks = acknowledged && self.service.makes_requests();
        self.modify(&QpAttributes {
            state: Some(QpState::Init),
            pkey: Some(Pkey::DEFAULT),
            port: Some(1),
            access: Some(options.access),
            ..QpAttributes::default()
        })?;
        self.modify(&QpAttributes {
            state: Some(QpState::Rtr),
            flow: Some(flow),
            path_mtu,
            dest_qp: Some(peer.qpn),
            rq_psn: Some(peer.psn),
            max_dest_rd_atomic: answers.then_some(answered),
            min_rnr_timer: RnrTimer::new(options.min_rnr_timer).filter(|_| answers),
            flow_control: acknowledged.then_some(options.flow_control),
            split: Some(split),
            ..QpAttributes::default()
        })?;
        self.modify(&QpAttributes {
            state: Some(QpState::Rts),
            timeout: acknowledged.then_some(options.timeout),
            retry_cnt: asks.then_some(options.retry_cnt),
            rnr_retry: asks.then_some(options.rnr_retry),
            sq_psn: Some(psn),
            max_rd_atomic: asks.then_some(depth),
            ..QpAttributes::default()
        })
    }

    /// The host within which the port carries super-frames, if it does.
    fn super_frames(&self) -> Option<HostId> {
        let attributes = &self.device().attributes;
        attributes.read().unwrap_or_else(PoisonError::into_inner).super_frames
    }

    /// The largest path MTU that the interface and the route to the peer carry.
    fn largest_mtu(&self) -> Option<PathMtu> {
        let device = self.device();
        let mtu = device.attributes.read().unwrap_or_else(PoisonError::into_inner).mtu;
        let paths = device.paths.lock().unwrap_or_else(PoisonError::into_inner);
        let route = paths.get(&PathUser::Qp(self.qpn)).map_or(mtu, |path| path.headers.mtu);
        PathMtu::largest_for(mtu.min(route)).or(Some(PathMtu::Mtu256))
    }

    /// The headers that lead along `path` to the QP `remote`, for [`QpAttributes::flow`]. Waits for the
    /// next hop to answer if the kernel does not know it; from then on, changes are followed.
    ///
    /// # Errors
    /// [`DeviceError::GidIndex`], [`DeviceError::Path`].
    pub fn resolve(&self, path: &Path, remote: Qpn) -> Result<FlowHeader, DeviceError> {
        let device = self.device();
        let headers = follow::begin(device, PathUser::Qp(self.qpn), path, PATH_TIMEOUT, |_| None)?;
        let ecn = device.config.marks_data();
        Ok(flow_header(path, &headers, self.qpn, remote, ecn))
    }

    /// Changes state and attributes, as `ibv_modify_qp`. Going to RESET takes what the QP completed out of its queues.
    ///
    /// # Errors
    /// [`DeviceError::PathMtu`], [`DeviceError::Modify`]; nothing was changed then.
    pub fn modify(&mut self, attributes: &QpAttributes) -> Result<(), DeviceError> {
        let device = self.device();
        let mtu = device.attributes.read().unwrap_or_else(PoisonError::into_inner).mtu;
        if let Some(path_mtu) = attributes.path_mtu
            && path_mtu.bytes() + PathMtu::OVERHEAD > mtu
        {
            return Err(DeviceError::PathMtu { path_mtu, mtu });
        }
        let mut attributes = *attributes;
        // Held until the QP has the headers: what the host changes meanwhile comes to it afterwards.
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
            token.settle(self.slot, now);
        }
        let state = token.with_qp(self.slot, now, change).expect("the QP lives")?;
        if state == QpState::Reset {
            token.forget_rate(self.slot);
        }
        cell.wake_helper(&token, now);
        drop((token, paths));
        self.state = state;
        Ok(())
    }

    /// State and attributes as they are now, as `ibv_query_qp`.
    pub fn query(&self) -> QpAttributes {
        let device = self.device();
        let mut token = device.cores[self.core].lock();
        token.with_qp(self.slot, device.now(), |qp, _| qp.attributes()).expect("the QP lives")
    }

    /// Posts a send request. It goes out with the next turn of the QP's core: at the latest, the helper's.
    ///
    /// # Errors
    /// [`PostError`]; nothing was posted then.
    #[inline]
    pub fn post_send(&mut self, request: &SendRequest<'_>) -> Result<(), PostError> {
        self.post_connected(request, None)
    }

    #[inline]
    pub(super) fn post_connected(
        &mut self,
        request: &SendRequest<'_>,
        srqn: Option<u32>,
    ) -> Result<(), PostError> {
        self.check_connected(request, srqn)?;
        let limits = self.send_limits();
        let SendQueue::Connected(sq) = &mut self.sq else { return Err(PostError::Destination) };
        let srqn = srqn.unwrap_or(0);
        let pushed = limits.push(sq, request, |wqe| Ok(SendWqe { srqn, ..wqe }))?;
        self.after_post(pushed)
    }

    /// What is wrong with a request to the peer, whatever its data are.
    #[inline]
    fn check_connected(
        &self,
        request: &SendRequest<'_>,
        srqn: Option<u32>,
    ) -> Result<(), PostError> {
        self.check_post(request)?;
        // What is done here goes to no queue of the peer.
        let is_local = matches!(request.op, SendOp::Local(_));
        let is_xrc = self.service == Service::XrcIni;
        if self.service == Service::Ud || !is_local && srqn.is_some() != is_xrc {
            return Err(PostError::Destination);
        }
        Ok(())
    }

    /// Says what posting `request` would say, to the shared receive queue `srqn` if it is one of XRC, but for a full queue.
    ///
    /// # Errors
    /// [`PostError`]
    pub fn check_send(
        &self,
        request: &SendRequest<'_>,
        srqn: Option<u32>,
    ) -> Result<(), PostError> {
        self.check_connected(request, srqn)?;
        self.send_limits().check(request).map(drop)
    }

    /// What is wrong with a request whatever its data are.
    #[inline]
    pub(super) fn check_post(&self, request: &SendRequest<'_>) -> Result<(), PostError> {
        if matches!(self.state, QpState::Reset | QpState::Init | QpState::Rtr) {
            return Err(PostError::State);
        }
        if self.service.sends(&request.op) { Ok(()) } else { Err(PostError::Operation) }
    }

    #[inline]
    pub(super) fn send_limits(&self) -> SendLimits {
        SendLimits { max_sge: self.max_send_sge, max_inline: self.max_inline }
    }

    /// Posts a receive.
    ///
    /// # Errors
    /// [`PostError`]; nothing was posted then.
    #[inline]
    pub fn post_recv(&mut self, request: &RecvRequest<'_>) -> Result<(), PostError> {
        if self.state == QpState::Reset {
            return Err(PostError::State);
        }
        let Some(rq) = &mut self.rq else { return Err(PostError::SharedReceives) };
        if request.sges.len() > self.max_recv_sge {
            return Err(PostError::TooManySges);
        }
        let wqe = RecvWqe {
            wr_id: request.wr_id,
            length: sg::total(request.sges),
            num_sge: u8::try_from(request.sges.len()).expect("at most 16"),
        };
        let pushed = rq.push(&wqe, request.sges);
        self.after_post(pushed)
    }

    /// Receives posted and not yet consumed; 0 if they come from a shared queue.
    pub fn receives_posted(&self) -> u32 {
        self.rq.as_ref().map_or(0, WorkProducer::len)
    }

    /// Send requests posted and not yet finished.
    pub fn sends_posted(&self) -> u32 {
        match &self.sq {
            SendQueue::Connected(sq) => sq.len(),
            SendQueue::Datagram(sq) => sq.len(),
        }
    }

    pub(super) fn after_post(&self, pushed: bool) -> Result<(), PostError> {
        if !pushed {
            return Err(PostError::Full);
        }
        self.device().cores[self.core].doorbell.ring(self.slot, &self.posted);
        Ok(())
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
        let mut token = device.cores[self.core].lock();
        let qp = token.remove(self.slot, device.now());
        drop(token);
        if qp.is_some_and(|qp| qp.binds_windows()) {
            device.memory.unbind_all_of(self.qpn); // Before the number is another QP's.
        }
        give_qpn(device, self.qpn);
    }
}

//! The passive side: who is asked for a connection.

use std::net::{IpAddr, SocketAddr};

use feroce_wire::cm::{
    CmMad, CmMessage, IpCmHeader, Rej, RejectReason, Rep, Req, Rtu, ServiceId, Transport,
};
use feroce_wire::{PathMtu, Psn, Qpn};

use super::conn::{Conn, Patience, Peer};
use super::state::{Phase, State};
use super::types::{
    CmError, CmId, Ece, EventKind, Outgoing, Parameters, Path, QpKind, Source, Status, lasts,
};
use super::{BACKLOG_MAX, Endpoint, Over, private_data};
use crate::time::Instant;

/// `message` in answer to `mad`, to where that came from.
pub(super) fn reply(mad: &CmMad, message: CmMessage, from: &Source) -> Outgoing {
    let answer = CmMad { transaction: mad.transaction, modifier: 0, message };
    let Source { device, local, remote } = *from;
    Outgoing { device, local, remote, traffic_class: 0, mad: answer.to_bytes() }
}

/// Who is asked, from whom a request comes, and what for.
pub(super) struct Asked {
    pub service: ServiceId,
    pub kind: QpKind,
    pub addresses: IpCmHeader,
}

/// Why nobody is asked.
pub(super) enum Nobody {
    /// Nobody listens to the service.
    Unknown,
    /// Somebody does, but not at this address, or not to this.
    Unsuited,
    /// Too many wait: the peer shall ask again later.
    Busy,
}

impl Endpoint {
    /// Listens at its address, or at any if it has none. Of the requests, up to `backlog` (0: [`BACKLOG_MAX`]) wait to be taken;
    /// more are not heard, and their peers ask again.
    ///
    /// # Errors
    /// As of [`Endpoint::bind`].
    pub fn listen(&mut self, id: CmId, backlog: u32, now: Instant) -> Result<(), CmError> {
        let conn = self.conn(id)?;
        if conn.phase == Phase::Idle {
            let any: IpAddr = std::net::Ipv4Addr::UNSPECIFIED.into();
            self.bind(id, SocketAddr::new(any, 0))?;
        }
        let conn = self.conn(id)?;
        let port = conn.source.filter(|_| conn.phase == Phase::Bound).ok_or(CmError::State)?.port();
        self.ports.may_listen(conn.space, port, id)?;
        let conn = self.conn_mut(id)?;
        conn.phase = Phase::Listen;
        conn.backlog = if backlog == 0 { BACKLOG_MAX } else { backlog.min(BACKLOG_MAX) };
        self.retry_early(now);
        Ok(())
    }

    /// The program has taken the request `id` from those that wait.
    ///
    /// # Errors
    /// [`CmError::Unknown`].
    pub fn take_request(&mut self, id: CmId) -> Result<(), CmError> {
        let conn = self.conn_mut(id)?;
        if !std::mem::replace(&mut conn.taken, true)
            && let Some(listener) = conn.listener
            && let Some(listener) = self.ids.get_mut(&listener)
        {
            listener.waiting = listener.waiting.saturating_sub(1);
        }
        Ok(())
    }

    /// The listener that `asked` is for.
    pub(super) fn listener(&self, asked: &Asked) -> Result<CmId, Nobody> {
        let (space, port) = asked.service.port().ok_or(Nobody::Unknown)?;
        let listens = |id: &CmId| self.ids[id].phase == Phase::Listen;
        if !self.ports.owners(space, port).iter().any(|owner| listens(&owner.id)) {
            return Err(Nobody::Unknown);
        }
        let suiting = self.ports.suiting(space, port, asked.addresses.destination);
        let id = suiting.into_iter().find(listens).ok_or(Nobody::Unsuited)?;
        let listener = &self.ids[&id];
        if listener.kind != asked.kind {
            return Err(Nobody::Unsuited);
        }
        if listener.waiting >= listener.backlog { Err(Nobody::Busy) } else { Ok(id) }
    }

    /// A new identifier for a request that came through `listener`.
    pub(super) fn admit(&mut self, listener: CmId, asked: &Asked, path: Path, peer: Peer) -> CmId {
        let psn = Psn::new((self.random)());
        let space = self.ids[&listener].space;
        let mut conn = Conn::new(space, asked.kind, psn);
        let port = asked.service.port().map_or(0, |(_, port)| port);
        conn.phase = Phase::Connect;
        conn.source = Some(SocketAddr::new(asked.addresses.destination, port));
        conn.destination = Some(asked.addresses.source);
        conn.path = Some(path);
        conn.listener = Some(listener);
        conn.taken = false;
        conn.peer = peer;
        if let Some(listener) = self.ids.get_mut(&listener) {
            listener.waiting += 1;
        }
        self.insert(conn)
    }

    pub(super) fn on_req(&mut self, mad: &CmMad, req: &Req, from: &Source, now: Instant) {
        let request = (req.local_ca_guid, req.local_comm_id);
        if let Some(&id) = self.remote_ids.get(&request) {
            if self.ids[&id].state == State::ReqReceived {
                self.send_mra(id, 0);
            }
            return;
        }
        if self.answer_again(Over::Request(request.0, request.1), now) {
            return;
        }
        if let Some(&stale) = self.remote_qps.get(&(req.local_ca_guid, req.local_qpn)) {
            self.reject_stale(mad, (req.local_comm_id, 0), 0, from);
            self.end_stale(stale, now);
            return;
        }
        match self.judge(req, from) {
            Ok(Some((listener, asked, mtu))) => {
                self.on_good_req(mad, req, from, (listener, asked, mtu))
            }
            Ok(None) => {}
            Err(reason) => {
                let rej = Rej { remote_comm_id: req.local_comm_id, reason, ..Rej::default() };
                let outgoing = reply(mad, rej.into(), from);
                self.outbox.push_back(outgoing);
            }
        }
    }

    /// Whom a REQ is for; `None` if it shall come again later.
    #[allow(clippy::type_complexity)] // three things about one request
    fn judge(
        &self,
        req: &Req,
        from: &Source,
    ) -> Result<Option<(CmId, Asked, PathMtu)>, RejectReason> {
        if !self.is_listened(req.service_id) {
            return Err(RejectReason::INVALID_SERVICE_ID);
        }
        let kind = match req.connection() {
            Some(Transport::Rc) => QpKind::Rc,
            Some(Transport::Uc) => QpKind::Uc,
            Some(Transport::Xrc) => QpKind::XrcTgt,
            None => return Err(RejectReason::INVALID_TRANSPORT),
        };
        let mtu = PathMtu::from_code(req.path_mtu).ok_or(RejectReason::INVALID_MTU)?;
        let addresses = IpCmHeader::parse(&req.private_data).ok();
        let addresses = addresses.filter(|addresses| is_ours(addresses, from));
        let addresses = addresses.ok_or(RejectReason::CONSUMER)?;
        let asked = Asked { service: req.service_id, kind, addresses };
        match self.listener(&asked) {
            Ok(listener) => Ok(Some((listener, asked, mtu))),
            Err(Nobody::Busy) => Ok(None),
            Err(Nobody::Unknown) => Err(RejectReason::INVALID_SERVICE_ID),
            Err(Nobody::Unsuited) => Err(RejectReason::CONSUMER),
        }
    }

    fn on_good_req(
        &mut self,
        mad: &CmMad,
        req: &Req,
        from: &Source,
        (listener, asked, mtu): (CmId, Asked, PathMtu),
    ) {
        let path = Path {
            device: from.device,
            local: from.local,
            remote: from.remote,
            mtu,
            hop_limit: req.primary_hop_limit,
            traffic_class: req.primary_traffic_class,
        };
        let peer = Peer {
            comm_id: Some(req.local_comm_id),
            guid: req.local_ca_guid,
            qpn: req.local_qpn,
            psn: req.starting_psn,
            service: req.service_id,
            ece: Ece { vendor_id: req.vendor_id, options: mad.modifier },
        };
        let id = self.admit(listener, &asked, path, peer);
        self.remote_ids.insert((req.local_ca_guid, req.local_comm_id), id);
        self.remote_qps.insert((req.local_ca_guid, req.local_qpn), id);
        let Some(conn) = self.ids.get_mut(&id) else { return };
        conn.state = State::ReqReceived;
        conn.transaction = mad.transaction;
        conn.ack_timeout = req.primary_ack_timeout.max(1);
        let interval = lasts(req.local_response_timeout);
        conn.patience = Patience { interval, retries: req.max_cm_retries };
        conn.agreed = Parameters {
            qpn: req.local_qpn,
            responder_resources: req.initiator_depth,
            initiator_depth: req.responder_resources,
            flow_control: req.flow_control,
            retry_count: req.retry_count,
            rnr_retry_count: req.rnr_retry_count,
            srq: req.srq,
            ..Parameters::default()
        };
        let data = req.private_data[IpCmHeader::LEN..].to_vec();
        self.tell(id, EventKind::ConnectRequest, Status::Success, data);
    }

    /// Accepts a request; of datagrams, answers which QP it is. Followed by [`EventKind::Established`] (not of datagrams),
    /// [`EventKind::Rejected`] or [`EventKind::Unreachable`].
    ///
    /// # Errors
    /// [`CmError::State`] unless it was asked, [`CmError::PrivateData`].
    pub fn accept(
        &mut self,
        id: CmId,
        own: &Parameters,
        data: &[u8],
        now: Instant,
    ) -> Result<(), CmError> {
        let conn = self.conn(id)?;
        if conn.state == State::SidrReqReceived {
            return self.answer(id, own, data, now);
        }
        let path = conn.path.filter(|_| conn.state == State::ReqReceived).ok_or(CmError::State)?;
        let mut rep = Rep {
            local_comm_id: self.comm_id(id),
            remote_comm_id: conn.peer.comm_id.unwrap_or(0),
            local_qpn: own.qpn,
            starting_psn: conn.local_psn,
            responder_resources: own.responder_resources,
            initiator_depth: own.initiator_depth,
            target_ack_delay: self.config.ack_delay,
            flow_control: own.flow_control,
            rnr_retry_count: own.rnr_retry_count.min(7),
            srq: own.srq,
            local_ca_guid: *self.devices.get(&path.device).ok_or(CmError::NoDevice)?,
            private_data: private_data(0, data)?,
            ..Rep::default()
        };
        if conn.kind == QpKind::XrcTgt {
            // Its number has a place of its own, and it sends nothing.
            (rep.local_eecn, rep.local_qpn) = (own.qpn, Qpn::default());
            (rep.initiator_depth, rep.flow_control, rep.srq) = (0, false, true);
        }
        rep.set_vendor_id(conn.local_ece.vendor_id);
        let modifier = conn.local_ece.options;
        let mad = CmMad { transaction: conn.transaction, modifier, message: rep.into() };
        self.take_request(id)?;
        let conn = self.conn_mut(id)?;
        conn.state = State::RepSent;
        conn.local_qpn = own.qpn;
        conn.agreed.responder_resources = own.responder_resources;
        conn.agreed.initiator_depth = own.initiator_depth;
        self.send_until_answered(id, &mad, now);
        Ok(())
    }

    pub(super) fn on_rtu(&mut self, rtu: &Rtu) {
        let id = self.by_comm_ids(rtu.remote_comm_id, rtu.local_comm_id);
        if let Some(id) = id.filter(|id| self.ids[id].state.awaits_rtu()) {
            self.connected(id);
        }
    }

    /// The peer's data has come before its RTU: the connection stands.
    ///
    /// # Errors
    /// [`CmError::IsConnected`] if it did already, [`CmError::State`] if it was not accepted.
    pub fn notify_established(&mut self, id: CmId) -> Result<(), CmError> {
        match self.conn(id)?.state {
            state if state.awaits_rtu() => {
                self.connected(id);
                Ok(())
            }
            State::Established => Err(CmError::IsConnected),
            _ => Err(CmError::State),
        }
    }

    fn connected(&mut self, id: CmId) {
        if let Some(conn) = self.ids.get_mut(&id) {
            conn.state = State::Established;
            conn.has_stood = true;
        }
        self.stop_sending(id);
        self.tell(id, EventKind::Established, Status::Success, Vec::new());
    }
}

/// Whether the addresses in a request can be: the destination is the one that it was sent to, the source one of a host.
pub(super) fn is_ours(addresses: &IpCmHeader, from: &Source) -> bool {
    let source = addresses.source.ip();
    let is_broadcast = source == IpAddr::V4(std::net::Ipv4Addr::BROADCAST);
    let is_host = !(source.is_multicast() || source.is_unspecified() || source.is_loopback());
    addresses.destination == from.local && is_host && !is_broadcast
}

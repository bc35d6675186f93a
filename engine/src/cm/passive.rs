//! The passive side: listeners, and connections that a peer requests.

use std::net::{IpAddr, SocketAddr};

use feroce_wire::cm::{
    CmMad, CmMessage, IpCmHeader, Rej, RejectReason, Rep, Req, Rtu, ServiceId, Transport,
};
use feroce_wire::{PathMtu, Psn, Qpn};

use super::conn::{Conn, Peer, RetryPolicy};
use super::responses::CompletedRequest;
use super::state::{Phase, State};
use super::types::{
    CmError, CmId, Ece, EventKind, Outgoing, Parameters, Path, QpKind, Source, Status,
    code_duration,
};
use super::{BACKLOG_MAX, Endpoint, private_data};
use crate::time::Instant;

/// Addresses `message` as the response to `mad`, received from `from`.
pub(super) fn reply(mad: &CmMad, message: CmMessage, from: &Source) -> Outgoing {
    let response = CmMad { transaction: mad.transaction, modifier: 0, message };
    let Source { device, local, remote } = *from;
    Outgoing { device, local, remote, traffic_class: 0, mad: response.to_bytes() }
}

/// Service, QP kind and addresses of a REQ or SIDR REQ.
pub(super) struct Requested {
    pub service: ServiceId,
    pub kind: QpKind,
    pub addresses: IpCmHeader,
}

/// Why no listener takes a request.
pub(super) enum NoListener {
    /// No identifier listens to the service.
    UnknownService,
    /// Listeners exist, but for another address or another QP kind.
    NoMatch,
    /// The backlog is full: the request is dropped, and the peer retransmits it.
    BacklogFull,
}

impl Endpoint {
    /// Listens at the identifier's address, or at any address and port if it is not bound. Up to
    /// `backlog` requests (0: [`BACKLOG_MAX`]) of each source, and a quarter more of all sources,
    /// wait for the program; further ones are ignored, and their peers retransmit.
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
        let space = conn.space;
        self.ports.check_listen(space, port, id)?;
        self.ports.claim_alone(space, port, id)?;
        let conn = self.conn_mut(id)?;
        conn.phase = Phase::Listen;
        conn.backlog = if backlog == 0 { BACKLOG_MAX } else { backlog.min(BACKLOG_MAX) };
        self.redeliver_pending(now);
        Ok(())
    }

    /// The program has taken the request `id` from the listener's backlog.
    ///
    /// # Errors
    /// [`CmError::Unknown`].
    pub fn take_request(&mut self, id: CmId) -> Result<(), CmError> {
        let conn = self.conn_mut(id)?;
        let (listener, path) = (conn.listener, conn.path);
        if !std::mem::replace(&mut conn.taken, true)
            && let (Some(listener), Some(path)) = (listener, path)
            && let Some(listener) = self.ids.get_mut(&listener)
        {
            listener.remove_waiting(path.remote);
        }
        Ok(())
    }

    /// Returns the listener for `requested` from `source`.
    pub(super) fn find_listener(
        &self,
        requested: &Requested,
        source: IpAddr,
    ) -> Result<CmId, NoListener> {
        let (space, port) = requested.service.port().ok_or(NoListener::UnknownService)?;
        let listens = |id: &CmId| self.ids[id].phase == Phase::Listen;
        if !self.ports.owners(space, port).iter().any(|owner| listens(&owner.id)) {
            return Err(NoListener::UnknownService);
        }
        let matching = self.ports.matching(space, port, requested.addresses.destination);
        let id = matching.into_iter().find(listens).ok_or(NoListener::NoMatch)?;
        let listener = &self.ids[&id];
        if listener.kind != requested.kind {
            return Err(NoListener::NoMatch);
        }
        if listener.is_backlog_full(source) { Err(NoListener::BacklogFull) } else { Ok(id) }
    }

    /// Makes an identifier for a request to `listener`.
    pub(super) fn create_for_request(
        &mut self,
        listener: CmId,
        requested: &Requested,
        path: Path,
        peer: Peer,
    ) -> CmId {
        let psn = Psn::new((self.random)());
        let space = self.ids[&listener].space;
        let mut conn = Conn::new(space, requested.kind, psn);
        let port = requested.service.port().map_or(0, |(_, port)| port);
        conn.phase = Phase::Connect;
        conn.source = Some(SocketAddr::new(requested.addresses.destination, port));
        conn.destination = Some(requested.addresses.source);
        conn.path = Some(path);
        conn.listener = Some(listener);
        conn.taken = false;
        conn.peer = peer;
        if let Some(listener) = self.ids.get_mut(&listener) {
            listener.add_waiting(path.remote);
        }
        self.insert(conn)
    }

    pub(super) fn on_req(&mut self, mad: &CmMad, req: &Req, from: &Source, now: Instant) {
        let request = (req.local_ca_guid, req.local_comm_id);
        if let Some(&id) = self.remote_ids.get(&request) {
            let conn = &self.ids[&id];
            if conn.state == State::ReqReceived && now >= conn.mra_from {
                self.send_mra(id, 0);
            }
            return;
        }
        if self.repeat_response(CompletedRequest::Req(request.0, request.1), now) {
            return;
        }
        if let Some(&stale) = self.remote_qps.get(&(req.local_ca_guid, req.local_qpn)) {
            let rej = self.reject_stale(mad, (req.local_comm_id, 0), 0, from);
            // A copy of this REQ must not make a connection that the peer has given up.
            let until = now + self.config.response_cache_time;
            self.cache_response(CompletedRequest::Req(request.0, request.1), Some(rej), until);
            self.end_stale(stale, from, now);
            return;
        }
        match self.check_req(req, from) {
            Ok(Some((listener, requested, mtu))) => {
                self.queue_req(mad, req, from, (listener, requested, mtu), now);
            }
            Ok(None) => {}
            Err(reason) => {
                let rej = Rej { remote_comm_id: req.local_comm_id, reason, ..Rej::default() };
                let outgoing = reply(mad, rej.into(), from);
                self.outbox.push_back(outgoing);
            }
        }
    }

    /// Returns the listener of a REQ. `Ok(None)` if the backlog is full: the REQ is ignored and the
    /// peer retransmits.
    #[allow(clippy::type_complexity)] // three things about one request
    fn check_req(
        &self,
        req: &Req,
        from: &Source,
    ) -> Result<Option<(CmId, Requested, PathMtu)>, RejectReason> {
        if !self.has_listener(req.service_id) {
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
        let addresses = addresses.filter(|addresses| has_plausible_addresses(addresses, from));
        let addresses = addresses.ok_or(RejectReason::CONSUMER)?;
        let requested = Requested { service: req.service_id, kind, addresses };
        match self.find_listener(&requested, from.remote) {
            Ok(listener) => Ok(Some((listener, requested, mtu))),
            Err(NoListener::BacklogFull) => Ok(None),
            Err(NoListener::UnknownService) => Err(RejectReason::INVALID_SERVICE_ID),
            Err(NoListener::NoMatch) => Err(RejectReason::CONSUMER),
        }
    }

    fn queue_req(
        &mut self,
        mad: &CmMad,
        req: &Req,
        from: &Source,
        (listener, requested, mtu): (CmId, Requested, PathMtu),
        now: Instant,
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
        let id = self.create_for_request(listener, &requested, path, peer);
        self.remote_ids.insert((req.local_ca_guid, req.local_comm_id), id);
        self.remote_qps.insert((req.local_ca_guid, req.local_qpn), id);
        let Some(conn) = self.ids.get_mut(&id) else { return };
        conn.state = State::ReqReceived;
        // A retransmission shows that the peer has waited for its whole response timeout; an early
        // copy does not. The first copy that arrives is not always the first one sent.
        conn.mra_from = now + code_duration(req.remote_response_timeout) * 3 / 4;
        conn.transaction = mad.transaction;
        conn.ack_timeout = req.primary_ack_timeout.max(1);
        let interval = code_duration(req.local_response_timeout);
        conn.retry = RetryPolicy { interval, retries: req.max_cm_retries };
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
        self.push_event(id, EventKind::ConnectRequest, Status::Success, data);
    }

    /// Accepts a request with a REP, or a SIDR REQ with a SIDR REP. A REP is followed by
    /// [`EventKind::Established`], [`EventKind::Rejected`] or [`EventKind::Unreachable`].
    ///
    /// # Errors
    /// [`CmError::State`] unless a request is waiting, [`CmError::PrivateData`].
    pub fn accept(
        &mut self,
        id: CmId,
        own: &Parameters,
        data: &[u8],
        now: Instant,
    ) -> Result<(), CmError> {
        let conn = self.conn(id)?;
        if conn.state == State::SidrReqReceived {
            return self.accept_sidr_req(id, own, data, now);
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
            // The target's QP number is in the EECN field, and the target sends no requests.
            (rep.local_eecn, rep.local_qpn) = (own.qpn, Qpn::default());
            (rep.initiator_depth, rep.flow_control, rep.srq) = (0, false, true);
        }
        rep.set_vendor_id(conn.local_ece.vendor_id);
        let modifier = conn.local_ece.options;
        let mad = CmMad { transaction: conn.transaction, modifier, message: rep.into() };
        self.take_request(id)?;
        self.await_rtu(id, path.remote, now);
        let conn = self.conn_mut(id)?;
        conn.state = State::RepSent;
        conn.local_qpn = own.qpn;
        conn.agreed.responder_resources = own.responder_resources;
        conn.agreed.initiator_depth = own.initiator_depth;
        self.send_with_retries(id, &mad, now);
        Ok(())
    }

    pub(super) fn on_rtu(&mut self, rtu: &Rtu) {
        let id = self.by_comm_ids(rtu.remote_comm_id, rtu.local_comm_id);
        if let Some(id) = id.filter(|id| self.ids[id].state.awaits_rtu()) {
            self.connected(id);
        }
    }

    /// Data from the peer has arrived before its RTU: the connection is established.
    ///
    /// # Errors
    /// [`CmError::IsConnected`] if it already was, [`CmError::State`] if it was not accepted.
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
            conn.was_established = true;
        }
        self.stop_sending(id);
        self.push_event(id, EventKind::Established, Status::Success, Vec::new());
    }
}

/// Returns true if the addresses in a request are plausible: the destination is the address that
/// the MAD was sent to, and the source can be a host's address.
pub(super) fn has_plausible_addresses(addresses: &IpCmHeader, from: &Source) -> bool {
    let source = addresses.source.ip();
    let is_broadcast = source == IpAddr::V4(std::net::Ipv4Addr::BROADCAST);
    let is_host = !(source.is_multicast() || source.is_unspecified() || source.is_loopback());
    addresses.destination == from.local && is_host && !is_broadcast
}

//! The active side: requests a connection.

use std::net::SocketAddr;

use feroce_wire::cm::{
    CmMad, IpCmHeader, Mra, Rej, RejectReason, Rep, Req, Rtu, ServiceId, Transport,
};
use feroce_wire::{Pkey, Qpn};

use super::conn::{Conn, Peer, RetryPolicy};
use super::state::{Phase, State};
use super::types::{
    CmError, CmId, Ece, EventKind, Parameters, QpKind, Source, Status, ack_timeout, code_duration,
};
use super::{Endpoint, Outgoing, gid, private_data};
use crate::time::Instant;

impl Endpoint {
    /// Sends a REQ to the peer, or a SIDR REQ for datagrams. Followed by
    /// [`EventKind::ConnectResponse`] (for datagrams [`EventKind::Established`]),
    /// [`EventKind::Rejected`] or [`EventKind::Unreachable`].
    ///
    /// # Errors
    /// [`CmError::State`] unless the route is resolved and no request was sent before,
    /// [`CmError::PrivateData`].
    pub fn connect(
        &mut self,
        id: CmId,
        own: &Parameters,
        data: &[u8],
        now: Instant,
    ) -> Result<(), CmError> {
        // The fields have 3 bits in messages and QPs; programs pass larger values.
        let own = &Parameters {
            retry_count: own.retry_count.min(7),
            rnr_retry_count: own.rnr_retry_count.min(7),
            ..*own
        };
        let conn = self.conn(id)?;
        let is_target = conn.kind == QpKind::XrcTgt;
        if is_target || conn.phase != Phase::RouteResolved || conn.state != State::Idle {
            return Err(CmError::State);
        }
        if conn.kind == QpKind::Ud {
            return self.send_sidr_req(id, data, now);
        }
        let path = conn.path.ok_or(CmError::State)?;
        let lifetime = conn.ack_timeout_set.map_or(self.config.packet_lifetime, |code| code - 1);
        let mad = CmMad {
            transaction: self.new_transaction(id),
            modifier: conn.local_ece.options,
            message: self.req(id, conn, own, data, lifetime)?.into(),
        };
        let interval = code_duration(lifetime) * 2 + code_duration(self.config.response_timeout);
        let retries = self.config.max_retries;
        let conn = self.conn_mut(id)?;
        conn.phase = Phase::Connect;
        conn.state = State::ReqSent;
        conn.transaction = mad.transaction;
        conn.path = Some(path);
        conn.local_qpn = own.qpn;
        conn.agreed = Parameters { qpn: Qpn::default(), ..*own };
        conn.ack_timeout = lifetime + 1;
        conn.retry = RetryPolicy { interval, retries };
        conn.peer = Peer::default();
        self.send_with_retries(id, &mad, now);
        self.add_early_copies(id, now);
        Ok(())
    }

    /// Schedules early copies of the REQ that was just sent.
    fn add_early_copies(&mut self, id: CmId, now: Instant) {
        let after = self.config.early_copies;
        let Some(resend) = self.ids.get_mut(&id).and_then(|conn| conn.resend.as_mut()) else {
            return;
        };
        let interval = resend.interval;
        resend.early = after.map(|after| match after.is_zero() || after >= interval {
            true => Instant::FAR,
            false => now + after,
        });
        self.set_timer(id);
    }

    fn req(
        &self,
        id: CmId,
        conn: &Conn,
        own: &Parameters,
        data: &[u8],
        lifetime: u8,
    ) -> Result<Req, CmError> {
        let path = conn.path.ok_or(CmError::State)?;
        let guid = *self.devices.get(&path.device).ok_or(CmError::NoDevice)?;
        let (service, addresses) = service_and_addresses(conn)?;
        let mut field = private_data(IpCmHeader::LEN, data)?;
        field[..IpCmHeader::LEN].copy_from_slice(&addresses.to_bytes());
        let is_routed = path.hop_limit > 1;
        let lid = if is_routed { 0xffff } else { 0 };
        let ports = service.port().map_or(0, |(_, port)| u32::from(port))
            + u32::from(addresses.source.port()) * 31;
        let mut req = Req {
            local_comm_id: self.comm_id(id),
            vendor_id: conn.local_ece.vendor_id,
            service_id: service,
            local_ca_guid: guid,
            local_qpn: own.qpn,
            responder_resources: own.responder_resources,
            initiator_depth: own.initiator_depth,
            remote_response_timeout: self.config.response_timeout,
            flow_control: own.flow_control,
            starting_psn: conn.local_psn,
            local_response_timeout: self.config.response_timeout,
            retry_count: own.retry_count,
            pkey: Pkey::DEFAULT,
            path_mtu: path.mtu.code(),
            rnr_retry_count: own.rnr_retry_count,
            max_cm_retries: self.config.max_retries,
            srq: own.srq,
            primary_local_lid: lid,
            primary_remote_lid: lid,
            primary_local_gid: gid(path.local),
            primary_remote_gid: gid(path.remote),
            primary_flow_label: ports & 0xf_ffff,
            primary_traffic_class: path.traffic_class,
            primary_hop_limit: path.hop_limit,
            primary_subnet_local: !is_routed,
            primary_ack_timeout: ack_timeout(self.config.ack_delay, lifetime),
            private_data: field,
            ..Req::default()
        };
        req.set_connection(match conn.kind {
            QpKind::Uc => Transport::Uc,
            QpKind::XrcIni | QpKind::XrcTgt => Transport::Xrc,
            QpKind::Rc | QpKind::Ud => Transport::Rc,
        });
        if conn.kind == QpKind::XrcIni {
            // An XRC initiator neither responds nor receives, and the target sends no requests.
            (req.responder_resources, req.retry_count, req.rnr_retry_count) = (0, 0, 0);
            req.srq = false;
        }
        Ok(req)
    }

    pub(super) fn on_rep(&mut self, mad: &CmMad, rep: &Rep, from: &Source, now: Instant) {
        let Some(id) = self.by_comm_id(rep.remote_comm_id) else { return };
        let conn = &self.ids[&id];
        if !conn.state.awaits_rep() {
            self.on_repeated_rep(id, rep);
            return;
        }
        let request = (rep.local_ca_guid, rep.local_comm_id);
        if self.remote_ids.contains_key(&request) {
            return; // This communication ID belongs to another connection.
        }
        // An XRC target's QP number is in the EECN field.
        let is_target = conn.kind == QpKind::XrcIni;
        let qpn = if is_target { rep.local_eecn } else { rep.local_qpn };
        if let Some(&stale) = self.remote_qps.get(&(rep.local_ca_guid, qpn)) {
            let reason = RejectReason::STALE_CONNECTION;
            self.reject_stale(mad, (rep.local_comm_id, rep.remote_comm_id), 1, from);
            self.end_stale(stale, from, now);
            // The program learns of the failure now, and not when its REQ is repeated.
            self.enter_timewait(id, now);
            self.push_event(id, EventKind::Rejected, Status::Rejected(reason), Vec::new());
            self.remove_if_over(id);
            return;
        }
        self.remote_ids.insert(request, id);
        self.remote_qps.insert((rep.local_ca_guid, qpn), id);
        let Some(conn) = self.ids.get_mut(&id) else { return };
        conn.state = State::RepReceived;
        conn.peer = Peer {
            comm_id: Some(rep.local_comm_id),
            guid: rep.local_ca_guid,
            qpn,
            psn: rep.starting_psn,
            service: conn.peer.service,
            ece: Ece { vendor_id: rep.vendor_id(), options: mad.modifier },
        };
        conn.agreed = Parameters {
            qpn,
            responder_resources: rep.initiator_depth,
            initiator_depth: rep.responder_resources,
            flow_control: rep.flow_control,
            rnr_retry_count: rep.rnr_retry_count,
            srq: rep.srq,
            ..conn.agreed
        };
        conn.ack_timeout = ack_timeout(rep.target_ack_delay, conn.ack_timeout.saturating_sub(1));
        self.stop_sending(id);
        self.push_event(id, EventKind::ConnectResponse, Status::Success, rep.private_data.to_vec());
    }

    /// A repeated REP: the RTU was lost, or the program has not confirmed yet.
    fn on_repeated_rep(&mut self, id: CmId, rep: &Rep) {
        let conn = &self.ids[&id];
        if conn.peer.comm_id != Some(rep.local_comm_id) {
            return;
        }
        match (conn.state, conn.rtu) {
            (State::Established, Some(rtu)) => {
                let outgoing = conn.outgoing(rtu);
                self.outbox.extend(outgoing);
            }
            (State::RepReceived, _) => self.send_mra(id, 1),
            _ => {}
        }
    }

    /// Sends an MRA: the response to `message` (0 REQ, 1 REP) takes longer.
    pub(super) fn send_mra(&mut self, id: CmId, message: u8) {
        let conn = &self.ids[&id];
        let mra = Mra {
            local_comm_id: self.comm_id(id),
            remote_comm_id: conn.peer.comm_id.unwrap_or(0),
            message,
            service_timeout: self.config.service_timeout,
            ..Mra::default()
        };
        let mad = CmMad { transaction: conn.transaction, modifier: 0, message: mra.into() };
        self.send(id, &mad);
        if let Some(conn) = self.ids.get_mut(&id) {
            conn.mra_sent = true;
        }
    }

    pub(super) fn on_mra(&mut self, mra: &Mra, now: Instant) {
        let id = match mra.message {
            0 => self.by_comm_id(mra.remote_comm_id),
            1 => self.by_comm_ids(mra.remote_comm_id, mra.local_comm_id),
            _ => None,
        };
        let Some((id, conn)) = id.and_then(|id| Some((id, self.ids.get_mut(&id)?))) else { return };
        conn.state = match (conn.state, mra.message) {
            (State::ReqSent, 0) => State::MraReqReceived,
            (State::RepSent, 1) => State::MraRepReceived,
            _ => return,
        };
        let interval = code_duration(mra.service_timeout) + code_duration(conn.ack_timeout);
        if let Some(resend) = &mut conn.resend {
            (resend.interval, resend.due) = (interval, now + interval);
            resend.early = [Instant::FAR; 2];
        }
        self.set_timer(id);
    }

    /// Confirms a connection that the peer has accepted. No event follows, because the program
    /// itself has connected its QP.
    ///
    /// # Errors
    /// [`CmError::State`] unless the peer has accepted.
    pub fn establish(&mut self, id: CmId, data: &[u8]) -> Result<(), CmError> {
        let conn = self.conn(id)?;
        if conn.state != State::RepReceived {
            return Err(CmError::State);
        }
        let rtu = Rtu {
            local_comm_id: self.comm_id(id),
            remote_comm_id: conn.peer.comm_id.unwrap_or(0),
            private_data: private_data(0, data)?,
        };
        let mad = CmMad { transaction: conn.transaction, modifier: 0, message: rtu.into() };
        let rtu = self.send(id, &mad);
        let conn = self.conn_mut(id)?;
        conn.state = State::Established;
        conn.rtu = Some(rtu);
        Ok(())
    }

    /// Rejects a message from `from`, whose QP is already in a connection. Returns the REJ.
    /// `names`: the sender's communication ID and the local one.
    pub(super) fn reject_stale(
        &mut self,
        mad: &CmMad,
        names: (u32, u32),
        message: u8,
        from: &Source,
    ) -> Outgoing {
        let rej = Rej {
            local_comm_id: names.1,
            remote_comm_id: names.0,
            message,
            reason: RejectReason::STALE_CONNECTION,
            ..Rej::default()
        };
        let outgoing = super::passive::reply(mad, rej.into(), from);
        self.outbox.push_back(outgoing);
        outgoing
    }
}

/// Returns the service ID of the destination, and the addresses that precede the private data.
pub(super) fn service_and_addresses(conn: &Conn) -> Result<(ServiceId, IpCmHeader), CmError> {
    let destination = conn.destination.ok_or(CmError::State)?;
    let source = conn.source.ok_or(CmError::State)?;
    let service = ServiceId::new(conn.space, destination.port());
    // The passive side refuses loopback addresses in messages from the link, so the REQ carries the
    // device's own addresses.
    let (source, destination) = match &conn.path {
        Some(path) if destination.ip().is_loopback() => {
            (SocketAddr::new(path.local, source.port()), path.remote)
        }
        _ => (source, destination.ip()),
    };
    Ok((service, IpCmHeader { source, destination }))
}

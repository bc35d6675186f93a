//! Incoming MADs: finds the client that each is for, and updates the MAD's exchange.
//!
//! A request goes to the client that claims its service; a copy goes to the client that got the
//! first one. Any other message goes to the client that owns its local communication ID, if it
//! comes from the peer of that exchange and names the peer's communication ID, as far as that is
//! known.

use std::net::IpAddr;

use feroce_wire::cm::{
    CmMad, CmMessage, IpCmHeader, Rej, RejectReason, ServiceId, SidrRep, SidrStatus,
};
use feroce_wire::{FlowSpec, Qpn};

use super::claims::NoClaim;
use super::outgoing::guid_in;
use super::table::{Class, Ends, Exchange, Key, Kind, State, code_duration};
use super::{CmRouter, Route};
use crate::cm::{DeviceKey, Source};
use crate::daemon::ClientId;
use crate::time::{Duration, Instant};

/// A received MAD.
pub(super) struct Received<'a> {
    /// Headers of a frame back to the sender.
    pub flow: FlowSpec,
    pub ends: Ends,
    pub bytes: &'a [u8],
    /// A request without a claim is not rejected.
    pub is_early: bool,
    pub now: Instant,
}

/// A REQ or SIDR REQ.
struct Request<'a> {
    kind: Kind,
    /// The requester's communication ID or request ID.
    id: u32,
    service: ServiceId,
    private_data: &'a [u8],
    qpn: Qpn,
    guid: u64,
    timeout: Duration,
}

impl CmRouter {
    /// Routes a MAD: [`CmRouter::incoming`].
    pub(super) fn route(&mut self, received: &Received<'_>, mad: &CmMad) -> Route {
        if let Some(request) = Request::of(&mad.message) {
            return self.route_request(received, mad, &request);
        }
        let Some((key, known)) = self.find(received, &mad.message) else {
            return self.answer_as_endpoint(received);
        };
        let Some(client) = known.owner else { return self.answer_for_gone(key, received, mad) };
        self.table.update(key, |known| learn(known, mad, received.now));
        self.trim_received(client);
        Route::Client(client)
    }

    fn trim_received(&mut self, client: ClientId) {
        if let Some(limits) = self.clients.get(&client).copied() {
            self.trim(client, Class::Ended, limits.ended);
            self.trim(client, Class::Waiting, limits.requests);
        }
    }

    fn route_request(
        &mut self,
        received: &Received<'_>,
        mad: &CmMad,
        request: &Request<'_>,
    ) -> Route {
        let ends = received.ends;
        let old = self.table.by_remote(ends.remote, request.kind, request.id);
        let old = old.map(|(key, old)| (key, *old));
        if let Some((key, old)) = old {
            let is_copy = !old.is_active && (old.ends, old.service) == (ends, request.service);
            match old.owner {
                Some(client) if is_copy => {
                    self.table.update(key, |known| known.touch(received.now));
                    return Route::Client(client);
                }
                None if is_copy => return self.answer_copy(key, received, mad),
                _ => {}
            }
        }
        let client = match self.claims.find(request.service, request.destination(ends)) {
            Ok(client) => client,
            Err(NoClaim::UnknownService) if received.is_early => return Route::Unclaimed,
            Err(NoClaim::UnknownService) => return self.answer_as_endpoint(received),
            Err(NoClaim::NoMatch) => return self.reject(received, mad, request),
        };
        // The requester has used its ID again, for a new request. The old exchange stays if it has
        // a local ID, by which it can still be found.
        if let Some((key, _)) = old.filter(|(_, old)| old.local_id.is_none()) {
            self.table.remove(key);
        }
        let mut exchange = Exchange {
            remote_id: Some(request.id),
            remote_qpn: request.qpn,
            guid: request.guid,
            service: request.service,
            transaction: mad.transaction,
            timeout: request.timeout,
            ..Exchange::new(client, request.kind, false, ends, received.flow)
        };
        exchange.enter(State::ReqReceived, received.now);
        self.table.insert(exchange);
        self.trim_received(client);
        Route::Client(client)
    }

    /// Rejects a request to an address at which no client claims its port.
    fn reject(&mut self, received: &Received<'_>, mad: &CmMad, request: &Request<'_>) -> Route {
        let (id, reason) = (request.id, RejectReason::CONSUMER);
        let message: CmMessage = match request.kind {
            Kind::Connection => Rej { remote_comm_id: id, reason, ..Rej::default() }.into(),
            Kind::Sidr => negative(id, request.service, SidrStatus::REJECT).into(),
        };
        self.answer(received, mad, message)
    }

    /// Sends `message` as the response to `mad`.
    pub(super) fn answer(
        &mut self,
        received: &Received<'_>,
        mad: &CmMad,
        message: CmMessage,
    ) -> Route {
        let response = CmMad { transaction: mad.transaction, modifier: 0, message };
        match self.send(received.flow, response.to_bytes()) {
            true => Route::Answered,
            false => Route::Dropped,
        }
    }

    /// Answers a MAD that no client receives, as an endpoint without listeners and connections: a
    /// request with a REJ (invalid service ID) or a negative SIDR REP, a DREQ with a DREP
    /// (`cm_issue_rej`, `cm_issue_drep` of the kernel), nothing else.
    fn answer_as_endpoint(&mut self, received: &Received<'_>) -> Route {
        let Ends { local, remote } = received.ends;
        let from = Source { device: DeviceKey(0), local, remote };
        // The MAD has been parsed without error before.
        let _ = self.endpoint.receive(received.bytes, &from, received.now);
        let mut route = Route::Dropped;
        while let Some(response) = self.endpoint.transmit() {
            if self.send(received.flow, response.mad) {
                route = Route::Answered;
            }
        }
        route
    }

    /// Returns the exchange of a message that is not a request.
    fn find(&self, received: &Received<'_>, message: &CmMessage) -> Option<(Key, Exchange)> {
        let by_ids = |kind: Kind, local: u32, accepts: &dyn Fn(&Exchange) -> bool| {
            let found = self.table.by_local(local);
            let found =
                found.filter(|(_, known)| known.kind == kind && known.ends == received.ends);
            found.filter(|(_, known)| accepts(known)).map(|(key, known)| (key, *known))
        };
        let by_pair = |local: u32, remote: u32| {
            by_ids(Kind::Connection, local, &|known| match known.remote_id {
                Some(id) => id == remote,
                None => known.is_active,
            })
        };
        let by_req = |local: u32, remote: u32| {
            by_ids(Kind::Connection, local, &|known| {
                known.is_active && (known.awaits_rtu() || known.remote_id == Some(remote))
            })
        };
        match message {
            CmMessage::Rep(rep) => by_req(rep.remote_comm_id, rep.local_comm_id),
            CmMessage::Mra(mra) if mra.message == 0 => {
                by_req(mra.remote_comm_id, mra.local_comm_id)
            }
            CmMessage::Mra(mra) => by_pair(mra.remote_comm_id, mra.local_comm_id),
            CmMessage::Rej(rej) => {
                let by_guid = self.by_timeout(received, rej);
                by_guid.or_else(|| by_pair(rej.remote_comm_id, rej.local_comm_id))
            }
            CmMessage::Rtu(rtu) => by_pair(rtu.remote_comm_id, rtu.local_comm_id),
            CmMessage::Dreq(dreq) => by_pair(dreq.remote_comm_id, dreq.local_comm_id),
            CmMessage::Drep(drep) => by_pair(drep.remote_comm_id, drep.local_comm_id),
            CmMessage::SidrRep(rep) => by_ids(Kind::Sidr, rep.request_id, &|known| known.is_active),
            CmMessage::Req(_) | CmMessage::SidrReq(_) => None,
        }
    }

    /// Returns the exchange of a REJ for a timeout. Its sender may not know the local ID, so the
    /// exchange is found by the ID and GUID of the sender.
    fn by_timeout(&self, received: &Received<'_>, rej: &Rej) -> Option<(Key, Exchange)> {
        if rej.reason != RejectReason::TIMEOUT {
            return None;
        }
        let id = rej.local_comm_id;
        let found = self.table.by_remote(received.ends.remote, Kind::Connection, id);
        let found = found.filter(|(_, known)| known.ends == received.ends);
        found.filter(|(_, known)| known.accepts_rej(rej)).map(|(key, known)| (key, *known))
    }
}

impl Exchange {
    /// Returns true for an active side before its RTU.
    fn awaits_rtu(&self) -> bool {
        matches!(self.state, State::ReqSent | State::RepReceived)
    }

    /// Returns true if an endpoint takes `rej` as the end of this connection.
    fn accepts_rej(&self, rej: &Rej) -> bool {
        let is_peer = self.remote_id == Some(rej.local_comm_id);
        match (rej.reason, rej.message) {
            (RejectReason::TIMEOUT, _) => is_peer && self.guid == guid_in(rej),
            (_, 0) => self.remote_id.is_none(),
            _ => is_peer,
        }
    }
}

/// Changes an exchange by a MAD that its client receives. The conditions are those under which an
/// endpoint accepts the message (`engine/src/cm/state.rs`).
fn learn(known: &mut Exchange, mad: &CmMad, now: Instant) {
    if let CmMessage::Dreq(dreq) = &mad.message {
        known.dreq_id = Some(dreq.local_comm_id);
    }
    let after = match (&mad.message, known.state) {
        (CmMessage::Rep(rep), State::ReqSent | State::RepReceived) => {
            // The QP of an XRC target is in the EECN field.
            let has_qpn = rep.local_qpn != Qpn::default();
            known.remote_qpn = if has_qpn { rep.local_qpn } else { rep.local_eecn };
            known.remote_id = Some(rep.local_comm_id);
            known.guid = rep.local_ca_guid;
            Some(State::RepReceived)
        }
        (CmMessage::Mra(mra), _) => {
            known.extend(code_duration(mra.service_timeout), now);
            None
        }
        (CmMessage::Rej(rej), state) if known.accepts_rej(rej) => {
            (!matches!(state, State::DreqReceived | State::Ended)).then_some(State::Ended)
        }
        (CmMessage::Rtu(_), State::RepSent) => Some(State::Established),
        (CmMessage::Dreq(dreq), State::RepSent | State::Established | State::DreqSent)
            if dreq.remote_qpn == known.local_qpn =>
        {
            known.dreq_transaction = mad.transaction;
            Some(State::DreqReceived)
        }
        (CmMessage::Drep(_), State::DreqSent | State::DreqReceived) => Some(State::Ended),
        (CmMessage::SidrRep(_), State::ReqSent) => Some(State::Ended),
        _ => None,
    };
    match after {
        Some(state) => known.enter(state, now),
        None => known.touch(now),
    }
}

impl<'a> Request<'a> {
    fn of(message: &'a CmMessage) -> Option<Self> {
        match message {
            CmMessage::Req(req) => Some(Self {
                kind: Kind::Connection,
                id: req.local_comm_id,
                service: req.service_id,
                private_data: &req.private_data,
                qpn: req.local_qpn,
                guid: req.local_ca_guid,
                timeout: code_duration(req.local_response_timeout.max(req.remote_response_timeout)),
            }),
            CmMessage::SidrReq(req) => Some(Self {
                kind: Kind::Sidr,
                id: req.request_id,
                service: req.service_id,
                private_data: &req.private_data,
                qpn: Qpn::default(),
                guid: 0,
                timeout: Duration::ZERO,
            }),
            _ => None,
        }
    }

    /// Returns the address that the request is for, if its service ID is a port of RDMA CM and the
    /// header in front of the private data names the address that the MAD was sent to.
    fn destination(&self, ends: Ends) -> Option<IpAddr> {
        self.service.port()?;
        let addresses = IpCmHeader::parse(self.private_data).ok()?;
        (addresses.destination == ends.local).then_some(ends.local)
    }
}

/// Returns a SIDR REP without a QP.
pub(super) fn negative(request_id: u32, service_id: ServiceId, status: SidrStatus) -> SidrRep {
    SidrRep { request_id, status, service_id, ..SidrRep::default() }
}

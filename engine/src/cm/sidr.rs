//! Datagrams: no connection; a SIDR REQ requests the QP of a service (service ID resolution).

use feroce_wire::Pkey;
use feroce_wire::cm::{CmMad, IpCmHeader, SidrRep, SidrReq, SidrStatus};

use super::active::service_and_addresses;
use super::conn::{Peer, RetryPolicy};
use super::passive::{NoListener, Requested, has_plausible_addresses, reply};
use super::responses::CompletedRequest;
use super::state::{Phase, State};
use super::types::{
    CmError, CmId, Ece, EventKind, Parameters, Path, QpKind, Source, Status, code_duration,
};
use super::{Endpoint, private_data};
use crate::time::Instant;

impl Endpoint {
    /// Sends a SIDR REQ, for [`Endpoint::connect`].
    pub(super) fn send_sidr_req(
        &mut self,
        id: CmId,
        data: &[u8],
        now: Instant,
    ) -> Result<(), CmError> {
        let conn = self.conn(id)?;
        let (service_id, addresses) = service_and_addresses(conn)?;
        let mut field = private_data(IpCmHeader::LEN, data)?;
        field[..IpCmHeader::LEN].copy_from_slice(&addresses.to_bytes());
        let sidr_req = SidrReq {
            request_id: self.comm_id(id),
            pkey: Pkey::DEFAULT,
            service_id,
            private_data: field,
        };
        let transaction = self.new_transaction(id);
        let mad = CmMad { transaction, modifier: 0, message: sidr_req.into() };
        let interval = code_duration(self.config.response_timeout);
        let retries = self.config.max_retries;
        let conn = self.conn_mut(id)?;
        conn.phase = Phase::Connect;
        conn.state = State::SidrReqSent;
        conn.transaction = transaction;
        conn.retry = RetryPolicy { interval, retries };
        self.send_with_retries(id, &mad, now);
        Ok(())
    }

    pub(super) fn on_sidr_req(&mut self, mad: &CmMad, req: &SidrReq, from: &Source, now: Instant) {
        let key = (from.remote, req.request_id);
        let is_duplicate = self.sidr_requests.contains_key(&key);
        if is_duplicate || self.repeat_response(CompletedRequest::SidrReq(key.0, key.1), now) {
            return;
        }
        let addresses = IpCmHeader::parse(&req.private_data).ok();
        let requested = addresses
            .filter(|addresses| has_plausible_addresses(addresses, from))
            .map(|addresses| Requested { service: req.service_id, kind: QpKind::Ud, addresses });
        let listener = match &requested {
            Some(requested) => self.find_listener(requested, from.remote),
            None => Err(NoListener::NoMatch),
        };
        let status = match (listener, &requested) {
            (Ok(listener), Some(requested)) => {
                self.queue_sidr_req(mad, req, from, (listener, requested));
                return;
            }
            (Err(NoListener::BacklogFull), _) => return,
            (Err(NoListener::UnknownService), _) => SidrStatus::UNSUPPORTED,
            _ => SidrStatus::REJECT,
        };
        let rep = SidrRep {
            request_id: req.request_id,
            status,
            service_id: req.service_id,
            ..SidrRep::default()
        };
        let outgoing = reply(mad, rep.into(), from);
        self.outbox.push_back(outgoing);
    }

    fn queue_sidr_req(
        &mut self,
        mad: &CmMad,
        req: &SidrReq,
        from: &Source,
        (listener, requested): (CmId, &Requested),
    ) {
        let Source { device, local, remote } = *from;
        // The path is only used for the SIDR REP.
        let mtu = feroce_wire::PathMtu::Mtu1024;
        let path = Path { device, local, remote, mtu, hop_limit: 64, traffic_class: 0 };
        let peer = Peer {
            comm_id: Some(req.request_id),
            service: req.service_id,
            ece: Ece::default(),
            ..Peer::default()
        };
        let id = self.create_for_request(listener, requested, path, peer);
        self.sidr_requests.insert((remote, req.request_id), id);
        if let Some(conn) = self.ids.get_mut(&id) {
            conn.state = State::SidrReqReceived;
            conn.transaction = mad.transaction;
        }
        let data = req.private_data[IpCmHeader::LEN..].to_vec();
        self.push_event(id, EventKind::ConnectRequest, Status::Success, data);
    }

    /// Sends a SIDR REP with the QP, for [`Endpoint::accept`].
    pub(super) fn accept_sidr_req(
        &mut self,
        id: CmId,
        own: &Parameters,
        data: &[u8],
        now: Instant,
    ) -> Result<(), CmError> {
        let rep = SidrRep {
            status: SidrStatus::SUCCESS,
            qpn: own.qpn,
            qkey: own.qkey,
            private_data: private_data(0, data)?,
            ..SidrRep::default()
        };
        self.take_request(id)?;
        self.send_sidr_rep(id, rep, now);
        Ok(())
    }

    /// Rejects a SIDR REQ, for [`Endpoint::reject`].
    pub(super) fn reject_sidr_req(
        &mut self,
        id: CmId,
        data: &[u8],
        now: Instant,
    ) -> Result<(), CmError> {
        self.take_request(id)?;
        self.send_sidr_rejection(id, data, now)
    }

    /// Sends a SIDR REP that rejects the request.
    pub(super) fn send_sidr_rejection(
        &mut self,
        id: CmId,
        data: &[u8],
        now: Instant,
    ) -> Result<(), CmError> {
        let rep = SidrRep {
            status: SidrStatus::REJECT,
            private_data: private_data(0, data)?,
            ..SidrRep::default()
        };
        self.send_sidr_rep(id, rep, now);
        Ok(())
    }

    fn send_sidr_rep(&mut self, id: CmId, rep: SidrRep, now: Instant) {
        let Some(conn) = self.ids.get(&id) else { return };
        let rep = SidrRep {
            request_id: conn.peer.comm_id.unwrap_or(0),
            service_id: conn.peer.service,
            ..rep
        };
        let mad = CmMad { transaction: conn.transaction, modifier: 0, message: rep.into() };
        let key = conn.sidr_key();
        let bytes = self.send(id, &mad);
        let kept = self.ids.get(&id).and_then(|conn| conn.outgoing(bytes));
        if let Some((ip, request)) = key {
            let until = now + self.config.response_cache_time;
            self.cache_response(CompletedRequest::SidrReq(ip, request), kept, until);
        }
        self.reset(id);
    }

    pub(super) fn on_sidr_rep(&mut self, rep: &SidrRep) {
        let id = self.by_comm_id(rep.request_id);
        let Some(id) = id.filter(|id| self.ids[id].state == State::SidrReqSent) else { return };
        if let Some(conn) = self.ids.get_mut(&id) {
            let (qpn, qkey) = (rep.qpn, rep.qkey);
            conn.agreed = Parameters { qpn, qkey, ..Parameters::default() };
        }
        self.reset(id);
        let data = rep.private_data.to_vec();
        let (kind, status) = match rep.status {
            SidrStatus::SUCCESS => (EventKind::Established, Status::Success),
            status => (EventKind::Unreachable, Status::Sidr(status)),
        };
        self.push_event(id, kind, status, data);
    }
}

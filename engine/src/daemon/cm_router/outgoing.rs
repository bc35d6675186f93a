//! MADs that clients send: checks whether the client may send each, and updates the MAD's exchange.
//!
//! A peer finds its connection by the communication IDs in a message. Some messages need only one
//! of them: an MRA or REJ of a REQ needs the requester's ID, a REJ for a timeout needs node GUID
//! and ID of its sender (`cm_acquire_rejected_id` of the kernel). Therefore a client must own the
//! local ID, must have received the request that it answers, and must use the device's GUID.
//! Otherwise it could end connections of other programs.

use std::net::IpAddr;

use feroce_wire::cm::{
    CmMad, CmMessage, Drep, Dreq, IpCmHeader, Mra, Rej, RejectReason, Rep, Req, Rtu, ServiceId,
    SidrRep, SidrReq,
};
use feroce_wire::{FlowSpec, Qpn};

use super::table::{Class, Ends, Exchange, Key, Kind, State, code_duration};
use super::{CmRouter, Limits, Refused};
use crate::daemon::ClientId;
use crate::time::Instant;

/// A MAD to be sent for a client, apart from its content.
pub(super) struct Sent<'a> {
    pub client: ClientId,
    pub limits: Limits,
    pub flow: FlowSpec,
    pub ends: Ends,
    /// Returns true if a QP belongs to the client.
    pub owns: &'a dyn Fn(Qpn) -> bool,
    pub now: Instant,
}

impl Sent<'_> {
    fn check_qpns(&self, qpns: &[Qpn]) -> Result<(), Refused> {
        let is_foreign = |qpn: &Qpn| *qpn == Qpn::GSI || !(self.owns)(*qpn);
        let mut named = qpns.iter().filter(|qpn| **qpn != Qpn::default());
        named.find(|qpn| is_foreign(qpn)).map_or(Ok(()), |qpn| Err(Refused::Qpn(*qpn)))
    }

    /// Checks the source address in front of the private data of a request to a port of RDMA CM.
    fn check_addresses(&self, service: ServiceId, private_data: &[u8]) -> Result<(), Refused> {
        let addresses = service.port().and_then(|_| IpCmHeader::parse(private_data).ok());
        let is_own = |addresses: IpCmHeader| addresses.source.ip() == self.ends.local;
        if addresses.is_none_or(is_own) { Ok(()) } else { Err(Refused::SourceAddress) }
    }

    fn exchange(&self, kind: Kind) -> Exchange {
        Exchange::new(self.client, kind, true, self.ends, self.flow)
    }
}

impl CmRouter {
    /// Checks a MAD and updates its exchange: [`CmRouter::outgoing`].
    pub(super) fn check(&mut self, sent: &Sent<'_>, mad: &CmMad) -> Result<(), Refused> {
        match &mad.message {
            CmMessage::Req(req) => self.check_req(sent, mad.transaction, req),
            CmMessage::SidrReq(req) => self.check_sidr_req(sent, mad.transaction, req),
            CmMessage::Mra(mra) => self.check_mra(sent, mra),
            CmMessage::Rej(rej) => self.check_rej(sent, rej),
            CmMessage::Rep(rep) => self.check_rep(sent, rep),
            CmMessage::Rtu(rtu) => self.check_rtu(sent, rtu),
            CmMessage::Dreq(dreq) => self.check_dreq(sent, dreq),
            CmMessage::Drep(drep) => self.check_drep(sent, drep),
            CmMessage::SidrRep(rep) => self.check_sidr_rep(sent, rep),
        }
    }

    fn check_guid(&self, guid: u64) -> Result<(), Refused> {
        if guid == self.guid { Ok(()) } else { Err(Refused::Guid(guid)) }
    }

    fn check_req(&mut self, sent: &Sent<'_>, transaction: u64, req: &Req) -> Result<(), Refused> {
        sent.check_qpns(&[req.local_qpn])?;
        self.check_guid(req.local_ca_guid)?;
        if req.primary_local_gid != gid(sent.ends.local) {
            return Err(Refused::SourceAddress);
        }
        sent.check_addresses(req.service_id, &req.private_data)?;
        let timeout = req.local_response_timeout.max(req.remote_response_timeout);
        self.check_request(
            sent,
            Exchange {
                local_id: Some(req.local_comm_id),
                local_qpn: req.local_qpn,
                service: req.service_id,
                transaction,
                timeout: code_duration(timeout),
                ..sent.exchange(Kind::Connection)
            },
        )
    }

    fn check_sidr_req(
        &mut self,
        sent: &Sent<'_>,
        transaction: u64,
        req: &SidrReq,
    ) -> Result<(), Refused> {
        sent.check_addresses(req.service_id, &req.private_data)?;
        self.check_request(
            sent,
            Exchange {
                local_id: Some(req.request_id),
                service: req.service_id,
                transaction,
                ..sent.exchange(Kind::Sidr)
            },
        )
    }

    /// Checks a REQ or SIDR REQ that begins `exchange`, or a copy of one.
    fn check_request(&mut self, sent: &Sent<'_>, mut exchange: Exchange) -> Result<(), Refused> {
        let id = exchange.local_id.unwrap_or(0);
        let in_use = Refused::CommIdInUse(id);
        if id == 0 {
            return Err(in_use);
        }
        let old = self.table.by_local(id).map(|(key, old)| (key, *old));
        if let Some((key, old)) = old {
            if old.owner != Some(sent.client) {
                return Err(in_use);
            }
            let request = |of: &Exchange| (of.is_active, of.kind, of.ends, of.transaction);
            if request(&old) == request(&exchange) {
                self.learn(sent, key, |_| ());
                return Ok(());
            }
            if old.state != State::Ended {
                return Err(in_use);
            }
        }
        self.check_room(sent)?;
        old.map(|(key, _)| self.table.remove(key));
        exchange.enter(State::ReqSent, sent.now);
        self.table.insert(exchange);
        Ok(())
    }

    fn check_room(&self, sent: &Sent<'_>) -> Result<(), Refused> {
        let limit = sent.limits.connections;
        let is_full = self.table.count(Some(sent.client), Class::Live) >= limit;
        if is_full { Err(Refused::TooMany(limit)) } else { Ok(()) }
    }

    /// Returns the client's connection to the peer with this local ID, if `accepts` accepts it.
    fn own_exchange(
        &self,
        sent: &Sent<'_>,
        (local, remote): (u32, u32),
        accepts: impl Fn(&Exchange) -> bool,
    ) -> Result<Key, Refused> {
        let unknown = Refused::NoConnection { local, remote };
        let (key, known) = self.table.by_local(local).ok_or(unknown)?;
        if known.owner != Some(sent.client) {
            return Err(Refused::CommIdInUse(local));
        }
        let is_same = known.kind == Kind::Connection && known.ends == sent.ends && accepts(known);
        if is_same { Ok(key) } else { Err(unknown) }
    }

    /// Returns the client's connection with these IDs to the peer. A remote ID of 0 stands for an
    /// ID that is not known yet.
    fn own_connection(&self, sent: &Sent<'_>, local: u32, remote: u32) -> Result<Key, Refused> {
        self.own_exchange(sent, (local, remote), |known| known.remote_id.unwrap_or(0) == remote)
    }

    /// Returns the connection that an MRA, REJ or REP is about: the connection with these IDs, or a
    /// request that reached the client and has no local ID so far. A REJ of a request may name no
    /// local ID (`cm_format_rej` of the kernel).
    fn answered(&self, sent: &Sent<'_>, local: u32, remote: u32) -> Result<Key, Refused> {
        if self.table.by_local(local).is_some() {
            return self.own_connection(sent, local, remote);
        }
        let found = self.table.by_remote(sent.ends.remote, Kind::Connection, remote);
        let (key, _) = found
            .filter(|(_, known)| known.owner == Some(sent.client) && known.ends == sent.ends)
            .filter(|(_, known)| !known.is_active && (local == 0 || known.local_id.is_none()))
            .ok_or(Refused::NoConnection { local, remote })?;
        Ok(key)
    }

    fn check_mra(&mut self, sent: &Sent<'_>, mra: &Mra) -> Result<(), Refused> {
        let key = self.answered(sent, mra.local_comm_id, mra.remote_comm_id)?;
        self.learn(sent, key, |known| {
            known.bind(mra.local_comm_id);
            known.extend(code_duration(mra.service_timeout), sent.now);
        });
        Ok(())
    }

    fn check_rej(&mut self, sent: &Sent<'_>, rej: &Rej) -> Result<(), Refused> {
        let guid = guid_in(rej);
        if rej.reason == RejectReason::TIMEOUT && guid != 0 {
            self.check_guid(guid)?;
        }
        let key = self.answered(sent, rej.local_comm_id, rej.remote_comm_id)?;
        self.learn(sent, key, |known| {
            known.bind(rej.local_comm_id);
            match known.state {
                State::ReqSent | State::ReqReceived | State::RepReceived => {
                    known.enter(State::Ended, sent.now);
                }
                // The client withdraws its REP. A DREQ may follow, because the REJ may be lost.
                State::RepSent => known.enter(State::DreqSent, sent.now),
                _ => {}
            }
        });
        Ok(())
    }

    fn check_rep(&mut self, sent: &Sent<'_>, rep: &Rep) -> Result<(), Refused> {
        let (local, remote) = (rep.local_comm_id, rep.remote_comm_id);
        if local == 0 {
            return Err(Refused::CommIdInUse(0));
        }
        self.check_guid(rep.local_ca_guid)?;
        sent.check_qpns(&[rep.local_qpn, rep.local_eecn])?;
        let key = self.answered(sent, local, remote)?;
        let known = self.table.get(key).filter(|known| !known.is_active);
        let known = known.ok_or(Refused::NoConnection { local, remote })?;
        if known.state == State::ReqReceived {
            self.check_room(sent)?;
        } else if known.local_id != Some(local) {
            return Err(Refused::NoConnection { local, remote });
        }
        // The QP of an XRC target is in the EECN field.
        let has_qpn = rep.local_qpn != Qpn::default();
        let qpn = if has_qpn { rep.local_qpn } else { rep.local_eecn };
        self.learn(sent, key, |known| {
            if known.state == State::ReqReceived {
                known.bind(local);
                known.local_qpn = qpn;
                known.enter(State::RepSent, sent.now);
            }
        });
        Ok(())
    }

    fn check_rtu(&mut self, sent: &Sent<'_>, rtu: &Rtu) -> Result<(), Refused> {
        let key = self.own_connection(sent, rtu.local_comm_id, rtu.remote_comm_id)?;
        self.learn(sent, key, |known| {
            if known.state == State::RepReceived {
                known.enter(State::Established, sent.now);
            }
        });
        Ok(())
    }

    fn check_dreq(&mut self, sent: &Sent<'_>, dreq: &Dreq) -> Result<(), Refused> {
        let key = self.own_connection(sent, dreq.local_comm_id, dreq.remote_comm_id)?;
        self.learn(sent, key, |known| match known.state {
            State::RepSent | State::RepReceived | State::Established => {
                known.enter(State::DreqSent, sent.now);
            }
            _ => {}
        });
        Ok(())
    }

    fn check_drep(&mut self, sent: &Sent<'_>, drep: &Drep) -> Result<(), Refused> {
        // After a lost REP and the client's REJ, the peer's DREQ is the first message with its ID.
        let ids = (drep.local_comm_id, drep.remote_comm_id);
        let key = self.own_exchange(sent, ids, |known| {
            known.remote_id.or(known.dreq_id) == Some(drep.remote_comm_id)
        })?;
        self.learn(sent, key, |known| match known.state {
            State::Established | State::DreqSent | State::DreqReceived => {
                known.enter(State::Ended, sent.now);
            }
            _ => {}
        });
        Ok(())
    }

    fn check_sidr_rep(&mut self, sent: &Sent<'_>, rep: &SidrRep) -> Result<(), Refused> {
        // In a negative response the number has no meaning, but a peer may use it.
        sent.check_qpns(&[rep.qpn])?;
        let found = self.table.by_remote(sent.ends.remote, Kind::Sidr, rep.request_id);
        let (key, _) = found
            .filter(|(_, known)| known.owner == Some(sent.client) && known.ends == sent.ends)
            .ok_or(Refused::NoConnection { local: 0, remote: rep.request_id })?;
        self.learn(sent, key, |known| known.enter(State::Ended, sent.now));
        Ok(())
    }

    /// Changes an exchange by a MAD that its client sends.
    fn learn(&mut self, sent: &Sent<'_>, key: Key, change: impl FnOnce(&mut Exchange)) {
        self.table.update(key, |known| {
            known.flow = sent.flow;
            change(known);
            known.touch(sent.now);
        });
        self.trim(sent.client, Class::Ended, sent.limits.ended);
    }
}

impl Exchange {
    /// Sets the local communication ID of the exchange, unless the exchange has one or `id` is 0.
    fn bind(&mut self, id: u32) {
        if self.local_id.is_none() && id != 0 {
            self.local_id = Some(id);
        }
    }
}

/// Returns the node GUID in the additional information of a REJ for a timeout.
pub(super) fn guid_in(rej: &Rej) -> u64 {
    rej.info.first_chunk().map_or(0, |guid| u64::from_be_bytes(*guid))
}

/// Returns the GID of an address; IPv4 addresses are mapped to IPv6.
fn gid(ip: IpAddr) -> [u8; 16] {
    match ip {
        IpAddr::V4(ip) => ip.to_ipv6_mapped().octets(),
        IpAddr::V6(ip) => ip.octets(),
    }
}

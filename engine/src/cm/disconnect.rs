//! The end of a connection: REJ, DREQ, DREP, destruction, and timewait.

use feroce_wire::cm::{CmMad, Drep, Dreq, Rej, RejectReason};

use super::passive::reply;
use super::responses::CompletedRequest;
use super::state::{AfterRej, Phase, State};
use super::types::{CmError, CmId, EventKind, Resend, Source, Status, code_duration};
use super::{Endpoint, private_data};
use crate::time::Instant;

impl Endpoint {
    /// Rejects the peer's REQ, REP or SIDR REQ.
    ///
    /// # Errors
    /// [`CmError::State`] if there is nothing to reject, [`CmError::PrivateData`].
    pub fn reject(
        &mut self,
        id: CmId,
        reason: RejectReason,
        data: &[u8],
        now: Instant,
    ) -> Result<(), CmError> {
        if self.conn(id)?.state == State::SidrReqReceived {
            return self.reject_sidr_req(id, data, now);
        }
        let rej = Rej { reason, private_data: private_data(0, data)?, ..Rej::default() };
        self.take_request(id)?;
        self.send_rej(id, rej, now)
    }

    /// Sends `rej` with the communication IDs and the rejected message filled in, and ends the
    /// connection.
    fn send_rej(&mut self, id: CmId, rej: Rej, now: Instant) -> Result<(), CmError> {
        let conn = self.ids.get(&id).ok_or(CmError::Unknown)?;
        let (message, is_late) = match conn.state {
            State::ReqReceived => (0, true),
            State::RepReceived => (1, true),
            State::ReqSent | State::MraReqReceived => (2, false),
            State::RepSent | State::MraRepReceived => (2, false),
            _ => return Err(CmError::State),
        };
        let local_comm_id = self.comm_id(id);
        let remote_comm_id = conn.peer.comm_id.unwrap_or(0);
        let rej = Rej { local_comm_id, remote_comm_id, message, ..rej };
        let mad = CmMad { transaction: conn.transaction, modifier: 0, message: rej.into() };
        let (was_accepted, request) = (conn.state.awaits_rtu(), conn.request_key());
        let is_passive = conn.listener.is_some();
        let bytes = self.send(id, &mad);
        if was_accepted {
            self.enter_timewait(id, now);
        } else {
            let response = self.ids.get(&id).and_then(|conn| conn.outgoing(bytes));
            let until = now + self.copy_window(id);
            if let Some((guid, comm_id)) = request.filter(|_| is_passive && is_late) {
                self.cache_response(CompletedRequest::Req(guid, comm_id), response, until);
            }
            self.reset(id);
        }
        Ok(())
    }

    /// Notifies the peer that its response arrived too late (REJ, timeout).
    pub(super) fn send_rej_timeout(&mut self, id: CmId) {
        let Some(conn) = self.ids.get(&id) else { return };
        let device = conn.path.map(|path| path.device);
        let guid = device.and_then(|device| self.devices.get(&device)).copied().unwrap_or(0);
        let mut info = [0; 72];
        info[..8].copy_from_slice(&guid.to_be_bytes());
        let rej = Rej {
            local_comm_id: self.comm_id(id),
            remote_comm_id: conn.peer.comm_id.unwrap_or(0),
            message: 2,
            reason: RejectReason::TIMEOUT,
            info_length: 8,
            info,
            ..Rej::default()
        };
        let mad = CmMad { transaction: conn.transaction, modifier: 0, message: rej.into() };
        self.send(id, &mad);
    }

    pub(super) fn on_rej(&mut self, rej: &Rej, now: Instant) {
        let id = if rej.reason == RejectReason::TIMEOUT {
            // The sender of a REJ for a timeout may not know the local communication ID. The device
            // GUID identifies it.
            let guid = rej.info.first_chunk().map_or(0, |guid| u64::from_be_bytes(*guid));
            self.remote_ids.get(&(guid, rej.local_comm_id)).copied()
        } else if rej.message == 0 {
            let id = self.by_comm_id(rej.remote_comm_id);
            id.filter(|id| self.ids[id].peer.comm_id.is_none())
        } else {
            self.by_comm_ids(rej.remote_comm_id, rej.local_comm_id)
        };
        let Some(id) = id else { return };
        match self.ids[&id].state.after_rej() {
            None => return,
            Some(AfterRej::IdleUnlessStale) if rej.reason != RejectReason::STALE_CONNECTION => {
                self.reset(id);
                self.cache_stale_rej(id, now + self.copy_window(id));
            }
            Some(_) => self.enter_timewait(id, now),
        }
        if self.ids.get(&id).is_some_and(|conn| conn.phase == Phase::Connect) {
            let data = rej.private_data.to_vec();
            self.push_event(id, EventKind::Rejected, Status::Rejected(rej.reason), data);
        }
        self.remove_if_over(id);
    }

    /// Disconnects: sends a DREQ, or the DREP to the peer's DREQ. Followed by
    /// [`EventKind::Disconnected`], unless that event was already delivered, and by
    /// [`EventKind::TimewaitExit`].
    ///
    /// # Errors
    /// [`CmError::State`] before `connect` or `accept`. It is not an error if the connection has
    /// already ended.
    pub fn disconnect(&mut self, id: CmId, now: Instant) -> Result<(), CmError> {
        let conn = self.conn(id)?;
        if !matches!(conn.phase, Phase::Connect | Phase::Disconnect) {
            return Err(CmError::State);
        }
        match conn.state {
            State::Established => self.send_dreq(id, now),
            State::DreqReceived => self.send_drep(id, now),
            _ => {}
        }
        Ok(())
    }

    /// The peer uses the QP of this connection for another one, so this one is stale: disconnects.
    /// The QP is free for the peer's next attempt at once. If no program receives the DREQ, for
    /// example between the end of a program and its restart, it is repeated for 25 s.
    ///
    /// Does nothing if `from` is not the connection's peer: otherwise any host that knows the
    /// peer's node GUID and QP number could end the connection.
    pub(super) fn end_stale(&mut self, id: CmId, from: &Source, now: Instant) {
        let peer = self.ids.get(&id).and_then(|conn| conn.path).map(|path| path.remote);
        if peer != Some(from.remote) {
            return;
        }
        self.forget_remote_qp(id);
        if self.ids.get(&id).is_some_and(|conn| conn.state == State::Established) {
            self.send_dreq(id, now);
        }
    }

    fn send_dreq(&mut self, id: CmId, now: Instant) {
        if let Some(mad) = self.dreq(id) {
            self.send_with_retries(id, &mad, now);
        }
    }

    /// Returns a DREQ; the connection waits for the DREP from now on.
    fn dreq(&mut self, id: CmId) -> Option<CmMad> {
        let transaction = self.new_transaction(id);
        let local_comm_id = self.comm_id(id);
        let conn = self.ids.get_mut(&id)?;
        let dreq = Dreq {
            local_comm_id,
            remote_comm_id: conn.peer.comm_id.unwrap_or(0),
            remote_qpn: conn.peer.qpn,
            ..Dreq::default()
        };
        conn.state = State::DreqSent;
        conn.transaction = transaction;
        Some(CmMad { transaction, modifier: 0, message: dreq.into() })
    }

    /// Withdraws an acceptance. The REJ gets no response and may be lost, and the peer may regard
    /// itself as connected. Therefore a DREQ follows, repeated until the DREP arrives.
    fn withdraw_acceptance(&mut self, id: CmId, now: Instant) {
        self.send_rej_consumer(id);
        let Some(mad) = self.dreq(id).map(|mad| mad.to_bytes()) else { return };
        if let Some(conn) = self.ids.get_mut(&id) {
            let (interval, left) = (conn.retry.interval, conn.retry.retries);
            conn.resend = Some(Resend::new(mad, interval, left, now));
        }
        self.set_timer(id);
    }

    fn send_rej_consumer(&mut self, id: CmId) {
        let conn = &self.ids[&id];
        let rej = Rej {
            local_comm_id: self.comm_id(id),
            remote_comm_id: conn.peer.comm_id.unwrap_or(0),
            message: 2,
            reason: RejectReason::CONSUMER,
            ..Rej::default()
        };
        let mad = CmMad { transaction: conn.transaction, modifier: 0, message: rej.into() };
        self.send(id, &mad);
    }

    fn send_drep(&mut self, id: CmId, now: Instant) {
        let conn = &self.ids[&id];
        let drep = Drep {
            local_comm_id: self.comm_id(id),
            remote_comm_id: conn.peer.comm_id.unwrap_or(0),
            ..Drep::default()
        };
        let mad = CmMad { transaction: conn.transaction, modifier: 0, message: drep.into() };
        self.send(id, &mad);
        self.enter_timewait(id, now);
    }

    pub(super) fn on_dreq(&mut self, mad: &CmMad, dreq: &Dreq, from: &Source, now: Instant) {
        let named = self.by_comm_id(dreq.remote_comm_id);
        if named.is_some_and(|id| self.ids[&id].state.awaits_rep()) {
            return; // The peer sent a REP and then a DREQ; the REP has not arrived yet.
        }
        let id = self.by_comm_ids(dreq.remote_comm_id, dreq.local_comm_id);
        let is_over = |id: &CmId| matches!(self.ids[id].state, State::Timewait | State::Idle);
        let Some(id) = id.filter(|id| !is_over(id)) else {
            // The connection has already ended here; the DREP ends it at the peer.
            let drep = Drep {
                local_comm_id: dreq.remote_comm_id,
                remote_comm_id: dreq.local_comm_id,
                ..Drep::default()
            };
            let outgoing = reply(mad, drep.into(), from);
            self.outbox.push_back(outgoing);
            return;
        };
        let Some(conn) = self.ids.get_mut(&id).filter(|conn| conn.local_qpn == dreq.remote_qpn)
        else {
            return;
        };
        let state = conn.state;
        if !state.takes_dreq() {
            return;
        }
        conn.state = State::DreqReceived;
        conn.transaction = mad.transaction;
        self.stop_sending(id);
        self.report_disconnected(id, Status::Success);
        if state == State::DreqSent {
            self.send_drep(id, now); // Both sides disconnect at the same time.
            self.remove_if_over(id);
        }
    }

    pub(super) fn on_drep(&mut self, drep: &Drep, now: Instant) {
        let id = self.by_comm_ids(drep.remote_comm_id, drep.local_comm_id);
        let Some(id) = id.filter(|id| self.ids[id].state.takes_drep()) else { return };
        self.enter_timewait(id, now);
        self.report_disconnected(id, Status::Success);
        self.remove_if_over(id);
    }

    /// Reports once that the connection has ended.
    pub(super) fn report_disconnected(&mut self, id: CmId, status: Status) {
        let Some(conn) = self.ids.get_mut(&id).filter(|conn| conn.phase == Phase::Connect) else {
            return;
        };
        conn.phase = Phase::Disconnect;
        self.push_event(id, EventKind::Disconnected, status, Vec::new());
    }

    /// Ends the connection; its packets may be in flight for a while. The peer's QP may be used for
    /// another connection at once, as in Linux. A late copy of the peer's REQ gets a REJ (stale
    /// connection).
    pub(super) fn enter_timewait(&mut self, id: CmId, now: Instant) {
        self.forget_peer(id);
        let Some(conn) = self.ids.get_mut(&id) else { return };
        let timewait = code_duration(conn.ack_timeout);
        let until = now + timewait;
        conn.state = State::Timewait;
        conn.timewait = Some(until);
        if conn.is_destroyed {
            // Cached responses serve a peer that retransmits; the identifier is not needed.
            conn.state = State::Idle;
            conn.timewait = None;
        }
        self.set_timer(id);
        self.cache_stale_rej(id, now + timewait.max(self.copy_window(id)));
    }

    /// Until `until`, copies of the peer's REQ get a REJ (stale connection). Does nothing on the
    /// active side.
    pub(super) fn cache_stale_rej(&mut self, id: CmId, until: Instant) {
        let Some(conn) = self.ids.get(&id).filter(|conn| conn.listener.is_some()) else { return };
        let Some((guid, comm_id)) = conn.request_key() else { return };
        let rej = Rej {
            local_comm_id: self.comm_id(id),
            remote_comm_id: comm_id,
            reason: RejectReason::STALE_CONNECTION,
            ..Rej::default()
        };
        let mad = CmMad { transaction: conn.transaction, modifier: 0, message: rej.into() };
        let response = conn.outgoing(mad.to_bytes());
        self.cache_response(CompletedRequest::Req(guid, comm_id), response, until);
    }

    /// Destroys every identifier, for the end of the program.
    pub fn destroy_all(&mut self, now: Instant) {
        let ids: Vec<CmId> = self.ids.keys().copied().collect();
        for id in ids {
            // Identifiers that the program already destroyed return an error.
            let _ = self.destroy(id, now);
        }
    }

    /// Destroys an identifier. Its connection is ended towards the peer, its port is free at
    /// once, and its queued and future events are dropped.
    ///
    /// # Errors
    /// [`CmError::Unknown`].
    pub fn destroy(&mut self, id: CmId, now: Instant) -> Result<(), CmError> {
        self.take_request(id)?;
        let conn = self.conn_mut(id)?;
        conn.is_destroyed = true;
        let (space, port) = (conn.space, conn.source.map(|source| source.port()));
        let (phase, state) = (conn.phase, conn.state);
        if let Some(port) = port {
            self.ports.release(space, port, id);
        }
        self.events.retain(|event| event.id != id);
        if phase == Phase::Listen {
            let untaken = |conn: &&CmId| {
                let conn = &self.ids[*conn];
                conn.listener == Some(id) && !conn.taken && !conn.is_destroyed
            };
            let untaken: Vec<CmId> = self.ids.keys().filter(untaken).copied().collect();
            for child in untaken {
                self.destroy(child, now)?;
            }
        }
        let consumer = Rej { reason: RejectReason::CONSUMER, ..Rej::default() };
        match state {
            State::Established => self.send_dreq(id, now),
            State::DreqReceived => self.send_drep(id, now),
            State::ReqSent | State::MraReqReceived => {
                self.send_rej_timeout(id);
                self.reset(id);
            }
            State::SidrReqReceived => self.send_sidr_rejection(id, &[], now)?,
            State::SidrReqSent | State::Timewait => self.reset(id),
            State::ReqReceived | State::RepReceived => self.send_rej(id, consumer, now)?,
            State::RepSent | State::MraRepReceived => self.withdraw_acceptance(id, now),
            State::Idle | State::DreqSent => {}
        }
        self.remove_if_over(id);
        Ok(())
    }
}

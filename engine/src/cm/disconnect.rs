//! How a conversation ends: rejected, disconnected, destroyed, and what may be under way after it.

use feroce_wire::cm::{CmMad, Drep, Dreq, Rej, RejectReason};

use super::passive::reply;
use super::state::{AfterRej, Phase, State};
use super::types::{CmError, CmId, EventKind, Resend, Source, Status, lasts};
use super::{Endpoint, Over, private_data};
use crate::time::Instant;

impl Endpoint {
    /// Says no to what the peer asked or answered.
    ///
    /// # Errors
    /// [`CmError::State`] if there is nothing to be rejected, [`CmError::PrivateData`].
    pub fn reject(
        &mut self,
        id: CmId,
        reason: RejectReason,
        data: &[u8],
        now: Instant,
    ) -> Result<(), CmError> {
        if self.conn(id)?.state == State::SidrReqReceived {
            return self.refuse(id, data, now);
        }
        let rej = Rej { reason, private_data: private_data(0, data)?, ..Rej::default() };
        self.take_request(id)?;
        self.send_rej(id, rej, now)
    }

    /// Sends `rej`, its names and the rejected message filled in, and ends the conversation.
    fn send_rej(&mut self, id: CmId, rej: Rej, now: Instant) -> Result<(), CmError> {
        let conn = self.ids.get(&id).ok_or(CmError::Unknown)?;
        let (message, is_late) = match conn.state {
            State::ReqReceived => (0, true),
            State::RepReceived => (1, true),
            State::ReqSent | State::ReqSentLate => (2, false),
            State::RepSent | State::RepSentLate => (2, false),
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
            let answer = self.ids.get(&id).and_then(|conn| conn.outgoing(bytes));
            let until = now + self.kept(id);
            if let Some((guid, comm_id)) = request.filter(|_| is_passive && is_late) {
                self.keep_answer(Over::Request(guid, comm_id), answer, until);
            }
            self.reset(id);
        }
        Ok(())
    }

    /// Tells the peer that it is waited for no longer.
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
            // Who timed out may not know our name: it is known by its device.
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
                self.keep_over(id, now + self.kept(id));
            }
            Some(_) => self.enter_timewait(id, now),
        }
        if self.ids.get(&id).is_some_and(|conn| conn.phase == Phase::Connect) {
            let data = rej.private_data.to_vec();
            self.tell(id, EventKind::Rejected, Status::Rejected(rej.reason), data);
        }
        self.bury(id);
    }

    /// Ends a connection, or agrees to its end. Followed by [`EventKind::Disconnected`], if that was not told yet, and by
    /// [`EventKind::TimewaitExit`].
    ///
    /// # Errors
    /// [`CmError::State`] if nothing was ever asked. That there is no connection is none.
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

    /// The peer's QP is in another connection: this one is over, which the peer has forgotten.
    pub(super) fn end_stale(&mut self, id: CmId, now: Instant) {
        if self.ids.get(&id).is_some_and(|conn| conn.state == State::Established) {
            self.send_dreq(id, now);
        }
    }

    fn send_dreq(&mut self, id: CmId, now: Instant) {
        if let Some(mad) = self.dreq(id) {
            self.send_until_answered(id, &mad, now);
        }
    }

    /// A DREQ, for a conversation that waits for its answer from now on.
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

    /// Takes back what was accepted. A REJ has no answer and may get lost, and the peer may believe to be connected: a DREQ follows,
    /// until the peer says that it is over.
    fn retract(&mut self, id: CmId, now: Instant) {
        self.send_rej_consumer(id);
        let Some(mad) = self.dreq(id).map(|mad| mad.to_bytes()) else { return };
        if let Some(conn) = self.ids.get_mut(&id) {
            let (interval, left) = (conn.patience.interval, conn.patience.retries);
            conn.resend = Some(Resend { mad, interval, left, due: now + interval });
        }
        self.arm(id);
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
            return; // The peer has accepted and changed its mind, and its REP is still under way.
        }
        let id = self.by_comm_ids(dreq.remote_comm_id, dreq.local_comm_id);
        let is_over = |id: &CmId| matches!(self.ids[id].state, State::Timewait | State::Idle);
        let Some(id) = id.filter(|id| !is_over(id)) else {
            // It is over here: so shall it be there.
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
        self.tell_disconnected(id, Status::Success);
        if state == State::DreqSent {
            self.send_drep(id, now); // Both want the end.
            self.bury(id);
        }
    }

    pub(super) fn on_drep(&mut self, drep: &Drep, now: Instant) {
        let id = self.by_comm_ids(drep.remote_comm_id, drep.local_comm_id);
        let Some(id) = id.filter(|id| self.ids[id].state.takes_drep()) else { return };
        self.enter_timewait(id, now);
        self.tell_disconnected(id, Status::Success);
        self.bury(id);
    }

    /// Tells that the connection has ended, once.
    pub(super) fn tell_disconnected(&mut self, id: CmId, status: Status) {
        let Some(conn) = self.ids.get_mut(&id).filter(|conn| conn.phase == Phase::Connect) else {
            return;
        };
        conn.phase = Phase::Disconnect;
        self.tell(id, EventKind::Disconnected, status, Vec::new());
    }

    /// The connection is over; packets of it may be under way for a while. The peer's QP may be connected anew at once, as with
    /// Linux; a late copy of the peer's request is told that this connection is over.
    pub(super) fn enter_timewait(&mut self, id: CmId, now: Instant) {
        self.forget_peer(id);
        let Some(conn) = self.ids.get_mut(&id) else { return };
        let timewait = lasts(conn.ack_timeout);
        let until = now + timewait;
        conn.state = State::Timewait;
        conn.timewait = Some(until);
        if conn.orphan {
            // Whoever asks again is answered without it.
            conn.state = State::Idle;
            conn.timewait = None;
        }
        self.arm(id);
        self.keep_over(id, now + timewait.max(self.kept(id)));
    }

    /// Until then, copies of the request that the conversation began with are told that it is over. Nothing if we asked.
    pub(super) fn keep_over(&mut self, id: CmId, until: Instant) {
        let Some(conn) = self.ids.get(&id).filter(|conn| conn.listener.is_some()) else { return };
        let Some((guid, comm_id)) = conn.request_key() else { return };
        let rej = Rej {
            local_comm_id: self.comm_id(id),
            remote_comm_id: comm_id,
            reason: RejectReason::STALE_CONNECTION,
            ..Rej::default()
        };
        let mad = CmMad { transaction: conn.transaction, modifier: 0, message: rej.into() };
        let answer = conn.outgoing(mad.to_bytes());
        self.keep_answer(Over::Request(guid, comm_id), answer, until);
    }

    /// The program ends: destroys every identifier.
    pub fn destroy_all(&mut self, now: Instant) {
        let ids: Vec<CmId> = self.ids.keys().copied().collect();
        for id in ids {
            let _ = self.destroy(id, now); // Those that are destroyed already are none of the program's.
        }
    }

    /// Destroys it. What it has begun is ended towards the peer; its port is free at once, and of its events none will come.
    ///
    /// # Errors
    /// [`CmError::Unknown`].
    pub fn destroy(&mut self, id: CmId, now: Instant) -> Result<(), CmError> {
        self.take_request(id)?;
        let conn = self.conn_mut(id)?;
        conn.orphan = true;
        let (space, port) = (conn.space, conn.source.map(|source| source.port()));
        let (phase, state) = (conn.phase, conn.state);
        if let Some(port) = port {
            self.ports.release(space, port, id);
        }
        self.events.retain(|event| event.id != id);
        if phase == Phase::Listen {
            let untaken = |conn: &&CmId| {
                let conn = &self.ids[*conn];
                conn.listener == Some(id) && !conn.taken && !conn.orphan
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
            State::ReqSent | State::ReqSentLate => {
                self.send_rej_timeout(id);
                self.reset(id);
            }
            State::SidrReqReceived => self.refuse_now(id, &[], now)?,
            State::SidrReqSent | State::Timewait => self.reset(id),
            State::ReqReceived | State::RepReceived => self.send_rej(id, consumer, now)?,
            State::RepSent | State::RepSentLate => self.retract(id, now),
            State::Idle | State::DreqSent => {}
        }
        self.bury(id);
        Ok(())
    }
}

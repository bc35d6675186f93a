//! Exchanges of clients that are gone: the router ends them towards their peers.
//!
//! | exchange of the client | the router sends (`cm_destroy_id` of the kernel) |
//! |---|---|
//! | REQ received, not answered | REJ, rejected by the program |
//! | REQ sent | REJ, timeout; a REP that comes later gets a REJ, rejected by the program |
//! | REP received | REJ, rejected by the program; again for each copy of the REP |
//! | REP sent, no RTU so far | REJ, rejected by the program; then as for a connection |
//! | established, or DREQ sent | DREQ, repeated until a DREP, DREQ or REJ comes |
//! | DREQ received | DREP |
//! | SIDR REQ received | SIDR REP, rejected |
//!
//! A REJ gets no response and may be lost. Where the peer may already regard itself as connected,
//! the DREQ follows. The kernel sends only the REJ; `cm::Endpoint` sends both, as the router does.
//!
//! # How often a DREQ is repeated
//!
//! [`DREQ_COPIES`] times, 0.2, 0.6, 1.4, 3.0 and 6.2 s after the first DREQ. The router gives up
//! after 12.6 s. Retransmission with the parameters of the REQ (up to 15 copies, seconds apart)
//! would suit a program that waits for the result. No program waits here: the loss of a DREQ only
//! delays the peer's event, and a peer that never responds has mostly ended as well. The first
//! intervals are short, so that a peer learns of the end of a server within a second even if two
//! DREQs are lost. The last interval exceeds the time in which peers respond: 1 s by default, 4 s
//! with older kernels.

use feroce_wire::cm::{CmMad, CmMessage, Drep, Dreq, Rej, RejectReason, SidrStatus};

use super::incoming::{Received, negative};
use super::table::{Class, Exchange, Key, Kind, LINGER, Resend, State};
use super::{CmRouter, MAX_ORPHANS, Route};
use crate::daemon::ClientId;
use crate::time::{Duration, Instant};

/// Copies of a DREQ that the router sends after the first one.
const DREQ_COPIES: u8 = 5;
/// Time from the first DREQ to its first copy.
const DREQ_INTERVAL: Duration = Duration::from_millis(200);

impl CmRouter {
    /// Ends the exchanges of `client`, connections first.
    pub(super) fn end_exchanges(&mut self, client: ClientId, now: Instant) {
        for class in Class::ALL.into_iter().rev() {
            while let Some(key) = self.table.oldest(Some(client), class) {
                self.make_room_for_orphan();
                self.end_exchange(key, now);
            }
        }
    }

    fn make_room_for_orphan(&mut self) {
        let count = |class| self.table.count(None, class);
        if Class::ALL.into_iter().map(count).sum::<usize>() >= MAX_ORPHANS {
            let oldest = |class| self.table.oldest(None, class);
            Class::ALL.into_iter().find_map(oldest).map(|key| self.table.remove(key));
        }
    }

    fn end_exchange(&mut self, key: Key, now: Instant) {
        let Some(known) = self.table.get(key).copied() else { return };
        let consumer = RejectReason::CONSUMER;
        let is_connected = match (known.kind, known.state) {
            (_, State::Ended) | (Kind::Sidr, State::ReqSent) => false,
            (Kind::Sidr, _) => {
                let id = known.remote_id.unwrap_or(0);
                let response = negative(id, known.service, SidrStatus::REJECT);
                self.send_to_peer(&known, known.transaction, response.into());
                false
            }
            (_, State::ReqReceived) => self.send_rej(&known, 0, consumer),
            (_, State::ReqSent) => self.send_rej(&known, 2, RejectReason::TIMEOUT),
            (_, State::RepReceived) => self.send_rej(&known, 1, consumer),
            (_, State::RepSent) => {
                self.send_rej(&known, 2, consumer);
                true
            }
            (_, State::Established | State::DreqSent) => true,
            (_, State::DreqReceived) => {
                self.send_to_peer(&known, known.dreq_transaction, drep(&known));
                false
            }
        };
        let transaction = u64::from((self.random)()) << 32 | u64::from(known.local_id.unwrap_or(0));
        self.table.update(key, |known| {
            known.owner = None;
            known.deadline = now + LINGER;
            match known.state {
                _ if is_connected => {
                    known.state = State::DreqSent;
                    known.dreq_transaction = transaction;
                    known.resend = Resend { left: DREQ_COPIES, interval: DREQ_INTERVAL };
                    known.deadline = now + DREQ_INTERVAL;
                }
                // The state remains: it decides the answer to a late REP or copy of the request.
                State::ReqSent | State::ReqReceived | State::RepReceived => {}
                _ => known.state = State::Ended,
            }
        });
        if is_connected {
            self.send_dreq(key);
        }
    }

    /// The deadline of an exchange: repeats a DREQ, gives it up, or forgets the exchange.
    pub(super) fn on_deadline(&mut self, key: Key, now: Instant) {
        let Some(known) = self.table.get(key).copied() else { return };
        if known.owner.is_some() || known.state != State::DreqSent {
            self.table.remove(key);
            return;
        }
        if known.resend.left > 0 {
            self.send_dreq(key);
        }
        self.table.update(key, |known| match known.resend.left {
            0 => known.enter(State::Ended, now),
            _ => {
                known.resend.left -= 1;
                known.resend.interval *= 2;
                known.deadline = now + known.resend.interval;
            }
        });
    }

    /// Answers a message about an exchange of a client that is gone.
    pub(super) fn answer_for_gone(
        &mut self,
        key: Key,
        received: &Received<'_>,
        mad: &CmMad,
    ) -> Route {
        let Some(known) = self.table.get(key).copied() else { return Route::Dropped };
        let response = match (&mad.message, known.state) {
            (CmMessage::Rep(rep), State::ReqSent | State::RepReceived) => {
                let rej = Rej {
                    local_comm_id: known.local_id.unwrap_or(0),
                    remote_comm_id: rep.local_comm_id,
                    message: 1,
                    reason: RejectReason::CONSUMER,
                    ..Rej::default()
                };
                Some(rej.into())
            }
            (CmMessage::Dreq(_), _) => Some(drep(&known)),
            _ => None,
        };
        let is_end =
            matches!(mad.message, CmMessage::Dreq(_) | CmMessage::Drep(_) | CmMessage::Rej(_));
        if is_end && known.state == State::DreqSent {
            self.table.update(key, |known| known.enter(State::Ended, received.now));
        }
        response.map_or(Route::Dropped, |response| self.answer(received, mad, response))
    }

    /// Answers a copy of a request whose first copy reached a client that is gone now.
    pub(super) fn answer_copy(&mut self, key: Key, received: &Received<'_>, mad: &CmMad) -> Route {
        let Some(known) = self.table.get(key).copied() else { return Route::Dropped };
        let response = match (known.kind, known.state) {
            (Kind::Sidr, _) => {
                let id = known.remote_id.unwrap_or(0);
                negative(id, known.service, SidrStatus::REJECT).into()
            }
            (_, State::ReqReceived) => self.rej(&known, 0, RejectReason::CONSUMER),
            (_, State::Ended) => self.rej(&known, 0, RejectReason::STALE_CONNECTION),
            _ => return Route::Dropped, // The DREQ is the answer.
        };
        self.table.update(key, |known| known.deadline = received.now + LINGER);
        self.answer(received, mad, response)
    }

    fn rej(&self, known: &Exchange, message: u8, reason: RejectReason) -> CmMessage {
        let mut rej = Rej {
            local_comm_id: known.local_id.unwrap_or(0),
            remote_comm_id: known.remote_id.unwrap_or(0),
            message,
            reason,
            ..Rej::default()
        };
        if reason == RejectReason::TIMEOUT {
            // The peer may have sent no ID so far; it finds its side by the GUID.
            rej.info[..8].copy_from_slice(&self.guid.to_be_bytes());
            rej.info_length = 8;
        }
        rej.into()
    }

    /// Sends a REJ. Returns false: the exchange needs no DREQ.
    fn send_rej(&mut self, known: &Exchange, message: u8, reason: RejectReason) -> bool {
        let rej = self.rej(known, message, reason);
        self.send_to_peer(known, known.transaction, rej);
        false
    }

    fn send_dreq(&mut self, key: Key) {
        let Some(known) = self.table.get(key).copied() else { return };
        let dreq = Dreq {
            local_comm_id: known.local_id.unwrap_or(0),
            remote_comm_id: known.remote_id.unwrap_or(0),
            remote_qpn: known.remote_qpn,
            ..Dreq::default()
        };
        self.send_to_peer(&known, known.dreq_transaction, dreq.into());
    }

    /// Sends a message to the peer of an exchange.
    fn send_to_peer(&mut self, known: &Exchange, transaction: u64, message: CmMessage) {
        let mad = CmMad { transaction, modifier: 0, message };
        self.send(known.flow, mad.to_bytes());
    }
}

/// Returns the DREP of an exchange.
fn drep(known: &Exchange) -> CmMessage {
    Drep {
        local_comm_id: known.local_id.unwrap_or(0),
        remote_comm_id: known.remote_id.unwrap_or(0),
        ..Drep::default()
    }
    .into()
}

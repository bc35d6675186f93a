//! What the responder produces: packets to the requester (responses, and the pending ACK or NAK),
//! and completions of receives.

use feroce_wire::write_transport;
use feroce_wire::{Aeth, AtomicAckEth, CreditCode, ExtHeaders, NakCode, Opcode, Psn, Syndrome};

use super::{Received, Responder};
use crate::counters::Counter;
use crate::memory::{Access, Scope};
use crate::qp::connection::Connection;
use crate::qp::env::Env;
use crate::qp::responder_resources::{PendingAck, ResponseData};
use crate::qp::transmit_order;
use crate::verbs::operation::READ_RESPONSE_PACKETS;
use crate::verbs::{AsyncEvent, Completion, CompletionOpcode, Extra, Status};

impl Responder {
    /// Writes the next responder packet to the front of `out`. Returns its length; `None` if there
    /// is no packet to send.
    pub(in crate::qp) fn next_packet(
        &mut self,
        conn: &Connection,
        env: &mut Env<'_>,
        out: &mut [u8],
    ) -> Option<usize> {
        if self.response_goes_first() {
            return Some(self.write_response(conn, env, out));
        }
        let pending = self.pending_ack.take()?;
        let (psn, syndrome) = match pending {
            PendingAck::Ack | PendingAck::LastAck => {
                (self.last_send_or_write, Syndrome::Ack(self.credits(conn)))
            }
            PendingAck::SequenceNak => (self.epsn, Syndrome::Nak(NakCode::PsnSequence)),
            PendingAck::RnrNak(timer) => (self.epsn, Syndrome::RnrNak(timer)),
            PendingAck::Nak(code, psn) => (psn, Syndrome::Nak(code)),
        };
        if matches!(pending, PendingAck::Ack | PendingAck::LastAck) {
            env.counters.count(Counter::AcksSent);
        }
        let bth = conn.bth(Opcode::RC_ACKNOWLEDGE, psn);
        let aeth = Some(Aeth { syndrome, msn: self.msn });
        let len = write_transport(out, &bth, &ExtHeaders { aeth, ..ExtHeaders::default() });
        let held = self.ahead.as_ref().filter(|_| pending == PendingAck::SequenceNak);
        let map = held.map_or(0, |ahead| ahead.sack(self.epsn).write(&mut out[len..]));
        Some(len + map)
    }

    /// Returns true if there is a packet to send.
    #[inline]
    pub(in crate::qp) fn has_packet(&self) -> bool {
        self.pending_ack.is_some() || !self.resources.is_empty()
    }

    /// Returns true if the next packet belongs to a response, and not to the pending ACK or NAK.
    pub(in crate::qp) fn response_goes_first(&mut self) -> bool {
        let ack = match self.pending_ack {
            None => None,
            Some(PendingAck::Ack | PendingAck::LastAck) => Some(self.last_send_or_write),
            Some(PendingAck::Nak(_, psn)) => Some(psn),
            Some(PendingAck::SequenceNak | PendingAck::RnrNak(_)) => Some(self.epsn),
        };
        let response = self.resources.front().map(|response| response.next);
        transmit_order::response_goes_first(response, ack)
    }

    /// Writes the next packet of the response at the front.
    fn write_response(&mut self, conn: &Connection, env: &mut Env<'_>, out: &mut [u8]) -> usize {
        let aeth = Some(Aeth { syndrome: Syndrome::Ack(self.credits(conn)), msn: self.msn });
        let response = self.resources.front().expect("the caller has checked");
        let psn = response.next;
        let last = psn == response.last;
        let len = match response.data {
            ResponseData::Value(original) => {
                let bth = conn.bth(Opcode::RC_ATOMIC_ACKNOWLEDGE, psn);
                let atomic_ack = Some(AtomicAckEth { original });
                write_transport(
                    out,
                    &bth,
                    &ExtHeaders { aeth, atomic_ack, ..ExtHeaders::default() },
                )
            }
            ResponseData::Empty => {
                let bth = conn.bth(READ_RESPONSE_PACKETS.only, psn);
                write_transport(out, &bth, &ExtHeaders { aeth, ..ExtHeaders::default() })
            }
            ResponseData::Memory { va, rkey, left, pd } => {
                let len = usize::try_from(left).expect("32 bits fit").min(conn.mtu);
                let opcode = READ_RESPONSE_PACKETS.at(response.starts, last);
                let pad = len.wrapping_neg() % 4;
                let mut bth = conn.bth(opcode, psn);
                bth.pad = u8::try_from(pad).expect("less than four");
                let aeth = aeth.filter(|_| response.starts || last);
                let headers =
                    write_transport(out, &bth, &ExtHeaders { aeth, ..ExtHeaders::default() });
                let (payload, padding) = out[headers..].split_at_mut(len);
                let scope = Scope { pd, ..conn.peer_scope() };
                padding[..pad].fill(0);
                let rest = left - u32::try_from(len).expect("at most a path MTU");
                if response.starts {
                    self.reads_are_sequential = va == self.read_end;
                }
                let ahead = match rest {
                    0 if self.reads_are_sequential => len,
                    rest => usize::try_from(rest).expect("32 bits fit"),
                };
                let need = Access::REMOTE_READ;
                if env.memory.load(rkey, scope, need, va, payload, ahead).is_err() {
                    return self.withdraw_responses(psn, conn, env, out);
                }
                let va = va.wrapping_add(len as u64);
                response.data = ResponseData::Memory { va, rkey, left: rest, pd };
                self.read_end = va;
                headers + len + pad
            }
        };
        response.next = psn.next();
        response.starts = false;
        if last {
            self.resources.pop();
        }
        len
    }

    /// The memory of a READ was deregistered or changed before all of its response was sent: writes
    /// a NAK in place of the packet `psn`, and drops all responses.
    fn withdraw_responses(
        &mut self,
        psn: Psn,
        conn: &Connection,
        env: &mut Env<'_>,
        out: &mut [u8],
    ) -> usize {
        env.counters.count(Counter::RespRemoteAccessErrors);
        self.resources.clear();
        self.pending_ack = None;
        env.fatal_event = Some(AsyncEvent::QpAccessError);
        let bth = conn.bth(Opcode::RC_ACKNOWLEDGE, psn);
        let syndrome = Syndrome::Nak(NakCode::RemoteAccess);
        let aeth = Some(Aeth { syndrome, msn: self.msn });
        write_transport(out, &bth, &ExtHeaders { aeth, ..ExtHeaders::default() })
    }

    /// The credits of an acknowledgement: the posted receives, if the connection uses end-to-end
    /// credits and does not share its receive queue.
    fn credits(&self, conn: &Connection) -> CreditCode {
        match conn.flow_control && !self.rq.is_shared() {
            true => CreditCode::for_credits(self.rq.posted()),
            false => CreditCode::UNLIMITED,
        }
    }

    /// Completes the oldest receive; of a shared receive queue, the one that was taken. Returns
    /// false if there is none.
    #[inline]
    pub(super) fn complete_receive(
        &mut self,
        done: Received,
        conn: &Connection,
        env: &mut Env<'_>,
    ) -> bool {
        // The slot is freed before the completion appears: a poller may post again at once.
        let Some(wr_id) = self.rq.retire() else { return false };
        match done.status {
            Status::Success => {}
            Status::WorkRequestFlushed => env.counters.count(Counter::RespCqeFlushError),
            _ => env.counters.count(Counter::RespCqeError),
        }
        let Received { status, opcode, byte_len, extra, solicited } = done;
        conn.counters.count(opcode, status == Status::Success, u64::from(byte_len));
        let (qp, at, datagram) = (conn.qpn, env.now, None);
        let completion =
            Completion { wr_id, status, opcode, byte_len, extra, solicited, qp, at, datagram };
        env.complete(&conn.recv_cq, completion);
        true
    }

    /// Completes every receive of this QP as flushed.
    pub(in crate::qp) fn flush(&mut self, conn: &Connection, env: &mut Env<'_>) {
        let (status, opcode) = (Status::WorkRequestFlushed, CompletionOpcode::Receive);
        let (byte_len, extra, solicited) = (0, Extra::None, false);
        let flushed = Received { status, opcode, byte_len, extra, solicited };
        while self.complete_receive(flushed, conn, env) {}
    }
}

//! What goes back to the requester: answers with data in PSN order, one acknowledgement behind them; and to
//! the program: completed receives.

use feroce_wire::write_transport;
use feroce_wire::{Aeth, AtomicAckEth, CreditCode, ExtHeaders, NakCode, Opcode, Psn, Syndrome};

use super::super::responder_resources::{Reply, Source};
use super::super::{Connection, Env, segment};
use super::{Received, Responder};
use crate::counters::Counter;
use crate::memory::{Access, Scope};
use crate::verbs::{AsyncEvent, Completion, CompletionOpcode, Extra, Status};

impl Responder {
    /// Writes the next response to the front of `out`; returns its length, or `None` if there is none.
    /// Answers go in PSN order, and an acknowledgement goes behind the answers it would acknowledge.
    pub(in crate::qp) fn next_response(
        &mut self,
        conn: &Connection,
        env: &mut Env<'_>,
        out: &mut [u8],
    ) -> Option<usize> {
        if self.answer_goes_first() {
            return Some(self.write_answer(conn, env, out));
        }
        let reply = self.reply.take()?;
        let (psn, syndrome) = match reply {
            Reply::Ack => (self.last_plain, Syndrome::Ack(self.credits(conn))),
            Reply::SequenceNak => (self.epsn, Syndrome::Nak(NakCode::PsnSequence)),
            Reply::RnrNak(timer) => (self.epsn, Syndrome::RnrNak(timer)),
            Reply::Refusal(code, psn) => (psn, Syndrome::Nak(code)),
        };
        if reply == Reply::Ack {
            env.counters.count(Counter::AcksSent);
        }
        let bth = conn.bth(Opcode::RC_ACKNOWLEDGE, psn);
        let aeth = Some(Aeth { syndrome, msn: self.msn });
        Some(write_transport(out, &bth, &ExtHeaders { aeth, ..ExtHeaders::default() }))
    }

    /// True if the next packet to send is one of an answer with data.
    pub(in crate::qp) fn answer_goes_first(&mut self) -> bool {
        let reply_psn = match self.reply {
            None => None,
            Some(Reply::Ack) => Some(self.last_plain),
            Some(Reply::Refusal(_, psn)) => Some(psn),
            Some(_) => Some(self.epsn),
        };
        match (self.answers.front(), reply_psn) {
            (Some(answer), Some(psn)) => answer.next.at_or_before(psn),
            (Some(_), None) => true,
            (None, _) => false,
        }
    }

    /// Writes the next packet of the answer at the front.
    fn write_answer(&mut self, conn: &Connection, env: &mut Env<'_>, out: &mut [u8]) -> usize {
        let aeth = Some(Aeth { syndrome: Syndrome::Ack(self.credits(conn)), msn: self.msn });
        let answer = self.answers.front().expect("the caller saw it");
        let psn = answer.next;
        let last = psn == answer.last;
        let len = match answer.source {
            Source::Value(original) => {
                let bth = conn.bth(Opcode::RC_ATOMIC_ACKNOWLEDGE, psn);
                let atomic_ack = Some(AtomicAckEth { original });
                write_transport(
                    out,
                    &bth,
                    &ExtHeaders { aeth, atomic_ack, ..ExtHeaders::default() },
                )
            }
            Source::Placed => {
                let bth = conn.bth(segment::read_response_opcode(true, true), psn);
                write_transport(out, &bth, &ExtHeaders { aeth, ..ExtHeaders::default() })
            }
            Source::Memory { va, rkey, left, pd } => {
                let len = usize::try_from(left).expect("32 bits fit").min(conn.mtu);
                let opcode = segment::read_response_opcode(answer.starts, last);
                let pad = len.wrapping_neg() % 4;
                let mut bth = conn.bth(opcode, psn);
                bth.pad = u8::try_from(pad).expect("less than four");
                let aeth = aeth.filter(|_| answer.starts || last);
                let headers =
                    write_transport(out, &bth, &ExtHeaders { aeth, ..ExtHeaders::default() });
                let (payload, padding) = out[headers..].split_at_mut(len);
                let scope = Scope { pd, ..conn.peer() };
                padding[..pad].fill(0);
                let rest = left - u32::try_from(len).expect("at most a path MTU");
                if answer.starts {
                    self.reads_on = va == self.read_end;
                }
                let ahead = match rest {
                    0 if self.reads_on => len,
                    rest => usize::try_from(rest).expect("32 bits fit"),
                };
                let need = Access::REMOTE_READ;
                if env.memory.load(rkey, scope, need, va, payload, ahead).is_err() {
                    return self.withdraw_answers(psn, conn, env, out);
                }
                let va = va.wrapping_add(len as u64);
                answer.source = Source::Memory { va, rkey, left: rest, pd };
                self.read_end = va;
                headers + len + pad
            }
        };
        answer.next = psn.next();
        answer.starts = false;
        if last {
            self.answers.pop();
        }
        len
    }

    /// The memory of a READ went away while it was answered: NAK in place of the packet `psn`.
    fn withdraw_answers(
        &mut self,
        psn: Psn,
        conn: &Connection,
        env: &mut Env<'_>,
        out: &mut [u8],
    ) -> usize {
        env.counters.count(Counter::RespRemoteAccessErrors);
        self.answers.clear();
        self.reply = None;
        env.broken = Some(AsyncEvent::QpAccessError);
        let bth = conn.bth(Opcode::RC_ACKNOWLEDGE, psn);
        let syndrome = Syndrome::Nak(NakCode::RemoteAccess);
        let aeth = Some(Aeth { syndrome, msn: self.msn });
        write_transport(out, &bth, &ExtHeaders { aeth, ..ExtHeaders::default() })
    }

    /// Receives posted, where the connection uses end-to-end credits and the receives are its own.
    fn credits(&self, conn: &Connection) -> CreditCode {
        match conn.flow_control && !self.rq.is_shared() {
            true => CreditCode::for_credits(self.rq.posted()),
            false => CreditCode::UNLIMITED,
        }
    }

    /// Completes the oldest receive, or of a shared queue the one that was taken; false if there is none.
    pub(super) fn complete_receive(
        &mut self,
        done: Received,
        conn: &Connection,
        env: &mut Env<'_>,
    ) -> bool {
        // First the slot, then the completion: who polls it may post again at once.
        let Some(wr_id) = self.rq.retire() else { return false };
        match done.status {
            Status::Success => {}
            Status::WorkRequestFlushed => env.counters.count(Counter::RespCqeFlushError),
            _ => env.counters.count(Counter::RespCqeError),
        }
        let Received { status, opcode, byte_len, extra, solicited } = done;
        let (qp, at, datagram) = (conn.qpn, env.now, None);
        let completion =
            Completion { wr_id, status, opcode, byte_len, extra, solicited, qp, at, datagram };
        env.complete(&conn.recv_cq, completion);
        true
    }

    /// Flushes every receive that is this QP's.
    pub(in crate::qp) fn flush(&mut self, conn: &Connection, env: &mut Env<'_>) {
        let (status, opcode) = (Status::WorkRequestFlushed, CompletionOpcode::Receive);
        let (byte_len, extra, solicited) = (0, Extra::None, false);
        let flushed = Received { status, opcode, byte_len, extra, solicited };
        while self.complete_receive(flushed, conn, env) {}
    }
}

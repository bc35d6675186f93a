//! The completer: what acknowledgements and answers of the peer mean for the send queue.

use feroce_wire::{NakCode, Operation, Packet, Payload, Position, Psn, RnrTimer, Syndrome};

use super::requester::Requester;
use super::timer::{Timer, TimerTable};
use super::{Connection, Env, segment, sg};
use crate::counters::Counter;
use crate::time::Duration;
use crate::verbs::{Completion, Extra, SendFlags, SendOp, SendWqe, Status};

/// `rnr_retry` that means: try for ever.
const RNR_RETRY_FOR_EVER: u8 = 7;

/// Retry bookkeeping of the send side.
#[derive(Debug, Default)]
pub struct Completer {
    /// Retries allowed without progress, after time-outs and sequence errors.
    pub(super) retry_cnt: u8,
    /// Retries allowed after RNR NAKs; 7 for ever.
    pub(super) rnr_retry: u8,
    retries_left: u8,
    rnr_left: u8,
    /// `una` when a NAK or an implied NAK last made us go back: the same hole is not answered twice.
    went_back_for: Option<Psn>,
}

/// The oldest request failed and must be completed with the status; the QP goes to ERR.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Failed(pub Status);

/// Why packets are sent again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Cause {
    Timeout,
    Nak,
    ImpliedNak,
}

/// The lines that every method works on: the send side of one QP at one moment.
pub(super) struct SendSide<'a, 'e> {
    pub requester: &'a mut Requester,
    pub completer: &'a mut Completer,
    pub timers: &'a mut TimerTable,
    pub conn: &'a Connection,
    pub env: &'a mut Env<'e>,
}

impl Completer {
    /// Takes new retry limits and starts over.
    pub(super) fn reset(&mut self) {
        (self.retries_left, self.rnr_left) = (self.retry_cnt, self.rnr_retry);
        self.went_back_for = None;
    }

    /// Retries since there was progress last: after time-outs and sequence errors, and after RNR NAKs.
    pub(super) fn retries(&self) -> (u8, u8) {
        (
            self.retry_cnt.saturating_sub(self.retries_left),
            self.rnr_retry.saturating_sub(self.rnr_left),
        )
    }
}

impl SendSide<'_, '_> {
    /// Takes a response packet.
    pub fn handle_response(&mut self, packet: &Packet<'_>) -> Result<(), Failed> {
        let psn = packet.bth.psn;
        self.env.acked = self.requester.losses.on_response(packet);
        if psn == self.requester.una.prev() {
            self.credit_of(packet); // Acknowledges nothing new: the peer has posted receives.
            return Ok(());
        }
        // Not outstanding: a ghost of the past, or an answer to nothing we sent.
        if psn.is_before(self.requester.una) || !psn.at_or_before(self.requester.sent_end) {
            return Ok(());
        }
        match packet.info.operation {
            Operation::Acknowledge => self.handle_aeth(packet, psn),
            Operation::ReadResponse => self.handle_read_response(packet, psn),
            Operation::AtomicAcknowledge => self.handle_atomic_ack(packet, psn),
            _ => Ok(()),
        }
    }

    /// A packet of an unreliable service has left: nobody will acknowledge it, and it is finished.
    pub fn finish_unreliable(&mut self) {
        self.progress(self.requester.cursor_psn);
    }

    /// The local ACK timeout ran out.
    pub fn handle_ack_timeout(&mut self) -> Result<(), Failed> {
        if !self.requester.is_waiting() && !self.requester.has_more(self.conn.state) {
            return Ok(());
        }
        self.env.counters.count(Counter::LocalAckTimeoutErr);
        self.completer.went_back_for = None;
        self.requester.note_silence(self.env.window);
        self.retry(Cause::Timeout)
    }

    fn handle_aeth(&mut self, packet: &Packet<'_>, psn: Psn) -> Result<(), Failed> {
        let Some(aeth) = packet.ext.aeth else { return Ok(()) };
        match aeth.syndrome {
            Syndrome::Ack(code) => {
                if psn == self.requester.sent_end {
                    return Ok(()); // Acknowledges a packet that was never sent.
                }
                self.requester.credit(aeth.msn.value(), code.credits());
                self.advance_or_go_back(psn.next()).map(|_| ())
            }
            Syndrome::RnrNak(timer) => self.handle_rnr_nak(psn, timer),
            Syndrome::Nak(NakCode::PsnSequence) => self.handle_sequence_nak(psn),
            Syndrome::Nak(code) => self.handle_refusal(psn, code),
            Syndrome::Reserved(_) => Ok(()),
        }
    }

    /// The peer misses packet `psn`; all before it have arrived.
    fn handle_sequence_nak(&mut self, psn: Psn) -> Result<(), Failed> {
        self.env.counters.count(Counter::PacketSeqErr);
        if !self.advance_or_go_back(psn)? || psn == self.requester.sent_end {
            return Ok(());
        }
        // While the RNR timer runs the hole is known: rxe NAKs the packets behind it all the same.
        if self.timers.is_running(Timer::Rnr) {
            return Ok(());
        }
        self.retry(Cause::Nak)
    }

    /// The peer has no receive for packet `psn`.
    fn handle_rnr_nak(&mut self, psn: Psn, timer: RnrTimer) -> Result<(), Failed> {
        self.env.counters.count(Counter::RnrNakRetryErr);
        if !self.advance_or_go_back(psn)? || psn == self.requester.sent_end {
            return Ok(());
        }
        if self.timers.is_running(Timer::Rnr) {
            return Ok(()); // The same NAK again.
        }
        if self.completer.rnr_left == 0 {
            return Err(Failed(Status::RnrRetryExceeded));
        }
        if self.completer.rnr_left != RNR_RETRY_FOR_EVER {
            self.completer.rnr_left -= 1;
        }
        self.requester.rewind(psn);
        self.timers.stop(Timer::Ack);
        self.timers.set(Timer::Rnr, self.env.now + Duration::from_nanos(timer.nanos()));
        Ok(())
    }

    /// The peer refuses the request that packet `psn` belongs to.
    fn handle_refusal(&mut self, psn: Psn, code: NakCode) -> Result<(), Failed> {
        if !self.advance_or_go_back(psn)? || psn == self.requester.sent_end {
            return Ok(());
        }
        let (counter, status) = match code {
            NakCode::RemoteAccess => (Counter::ReqRemoteAccessErrors, Status::RemoteAccess),
            NakCode::RemoteOperational => {
                (Counter::ReqRemoteOperationalErrors, Status::RemoteOperational)
            }
            _ => (Counter::ReqRemoteInvalidRequest, Status::RemoteInvalidRequest),
        };
        self.env.counters.count(counter);
        Err(Failed(status))
    }

    fn handle_read_response(&mut self, packet: &Packet<'_>, psn: Psn) -> Result<(), Failed> {
        if psn == self.requester.sent_end || !self.advance_or_go_back(psn)? {
            return Ok(());
        }
        let index = self.requester.sq.head();
        let Some(&wqe) = self.requester.sq.get(index) else { return Ok(()) };
        if !fits_read(packet, &wqe, psn, self.conn.mtu) {
            return self.bad_response();
        }
        self.credit_of(packet);
        let offset = u64::from(wqe.first_psn.distance_to(psn)) * self.conn.mtu as u64;
        self.store_answer(index, &wqe, offset, packet.payload)?;
        self.progress(psn.next());
        Ok(())
    }

    fn handle_atomic_ack(&mut self, packet: &Packet<'_>, psn: Psn) -> Result<(), Failed> {
        if psn == self.requester.sent_end || !self.advance_or_go_back(psn)? {
            return Ok(());
        }
        let index = self.requester.sq.head();
        let Some(&wqe) = self.requester.sq.get(index) else { return Ok(()) };
        let Some(answer) = packet.ext.atomic_ack.filter(|_| wqe.op.is_atomic()) else {
            return self.bad_response();
        };
        self.credit_of(packet);
        let value = answer.original.to_ne_bytes();
        self.store_answer(index, &wqe, 0, Payload { first: &value, second: &[] })?;
        self.progress(psn.next());
        Ok(())
    }

    fn credit_of(&mut self, packet: &Packet<'_>) {
        if let Some(aeth) = packet.ext.aeth
            && let Syndrome::Ack(code) = aeth.syndrome
        {
            self.requester.credit(aeth.msn.value(), code.credits());
        }
    }

    fn store_answer(
        &mut self,
        index: u32,
        wqe: &SendWqe,
        offset: u64,
        payload: Payload<'_>,
    ) -> Result<(), Failed> {
        let sges = self.requester.sq.sges(index, usize::from(wqe.num_sge));
        sg::scatter(self.env.memory, self.conn.pd, sges, offset, payload)
            .map_err(|_| Failed(Status::LocalProtection))
    }

    fn bad_response(&mut self) -> Result<(), Failed> {
        self.env.counters.count(Counter::ReqBadResponse);
        Err(Failed(Status::BadResponse))
    }

    /// Acknowledges everything before `to`. If an unanswered READ or atomic is in the way, its response
    /// was lost: goes back to it (an implied NAK) and returns false.
    fn advance_or_go_back(&mut self, to: Psn) -> Result<bool, Failed> {
        let limit = self.first_unanswered(to);
        self.progress(limit);
        if limit == to {
            return Ok(true);
        }
        if self.completer.went_back_for != Some(self.requester.una) {
            self.env.counters.count(Counter::ImpliedNakSeqErr);
            self.retry(Cause::ImpliedNak)?;
        }
        Ok(false)
    }

    /// The lower of `to` and the first PSN at or after `una` that only a READ or atomic answer can
    /// acknowledge.
    fn first_unanswered(&self, to: Psn) -> Psn {
        let mut index = self.requester.sq.head();
        let mut at = self.requester.una;
        while at.is_before(to) && index != self.requester.fresh_wqe {
            let wqe = self.requester.sq.get(index).expect("between head and fresh");
            if wqe.op.is_read_or_atomic() {
                return at;
            }
            at = wqe.end_psn();
            index = index.wrapping_add(1);
        }
        to
    }

    /// Moves `una` up to `to` and completes what is finished by that.
    fn progress(&mut self, to: Psn) {
        let requester = &mut *self.requester;
        if to == requester.una {
            return;
        }
        requester.acknowledge(to);
        self.completer.reset();
        while let Some(&wqe) = self.requester.sq.get(self.requester.sq.head()) {
            let index = self.requester.sq.head();
            if index == self.requester.fresh_wqe || to.is_before(wqe.end_psn()) {
                break;
            }
            self.finish(&wqe);
        }
        let requester = &mut *self.requester;
        if requester.cursor_psn.is_before(to) {
            // An answer overtook the packet that was to be sent again.
            (requester.cursor_wqe, requester.cursor_psn) = (requester.sq.head(), to);
        }
        self.restart_ack_timer();
    }

    fn finish(&mut self, wqe: &SendWqe) {
        if let Some(grounds) = &mut self.requester.grounds {
            match wqe.op {
                SendOp::Write(remote) => grounds.writes.learn(remote, wqe.length),
                SendOp::Read(remote) => grounds.reads.learn(remote, wqe.length),
                _ => {}
            }
        }
        complete(self.requester, self.conn, self.env, Status::Success);
    }

    fn restart_ack_timer(&mut self) {
        match self.requester.timeout {
            Some(timeout) if self.requester.is_waiting() => {
                self.timers.set(Timer::Ack, self.env.now + timeout);
            }
            _ => self.timers.stop(Timer::Ack),
        }
        self.timers.stop(Timer::Rnr);
    }

    /// Goes back to the oldest packet that is not acknowledged, if retries are left.
    fn retry(&mut self, cause: Cause) -> Result<(), Failed> {
        let una = self.requester.una;
        if cause != Cause::Timeout {
            if self.completer.went_back_for == Some(una) {
                return Ok(());
            }
            self.completer.went_back_for = Some(una);
        }
        if self.completer.retries_left == 0 {
            return Err(Failed(Status::RetryExceeded));
        }
        self.completer.retries_left -= 1;
        self.requester.rewind(una);
        self.timers.stop(Timer::Ack);
        Ok(())
    }
}

/// Completes the oldest send request and gives its slot back.
pub(super) fn complete(
    requester: &mut Requester,
    conn: &Connection,
    env: &mut Env<'_>,
    status: Status,
) {
    let index = requester.sq.head();
    let Some(&wqe) = requester.sq.get(index) else { return };
    // First the slot, then the completion: who polls it may post again at once.
    requester.sq.retire();
    if requester.cursor_wqe == index {
        requester.cursor_wqe = requester.sq.head();
    }
    if requester.fresh_wqe == index {
        requester.fresh_wqe = requester.sq.head();
    }
    if conn.all_signaled || wqe.flags.contains(SendFlags::SIGNALED) || status != Status::Success {
        let returns_data = wqe.op.returns_data() && status == Status::Success;
        let byte_len = if returns_data { u32::try_from(wqe.length).unwrap_or(u32::MAX) } else { 0 };
        match status {
            Status::Success => {}
            Status::WorkRequestFlushed => env.counters.count(Counter::ReqCqeFlushError),
            _ => env.counters.count(Counter::ReqCqeError),
        }
        env.complete(
            &conn.send_cq,
            Completion {
                wr_id: wqe.wr_id,
                status,
                opcode: wqe.op.completion_opcode(),
                byte_len,
                extra: Extra::None,
                solicited: false,
                qp: conn.qpn,
                at: env.now,
                datagram: None,
            },
        );
    }
}

/// True if the response packet is the one that answers PSN `psn` of the READ `wqe`, or a FLUSH or ATOMIC WRITE.
fn fits_read(packet: &Packet<'_>, wqe: &SendWqe, psn: Psn, mtu: usize) -> bool {
    match wqe.op {
        SendOp::Read(_) => {}
        SendOp::Flush { .. } | SendOp::AtomicWrite(_) => {
            return packet.info.position == Position::Only && packet.payload.is_empty();
        }
        _ => return false,
    }
    let index = wqe.first_psn.distance_to(psn);
    let offset = u64::from(index) * mtu as u64;
    let expected = wqe.length.saturating_sub(offset).min(mtu as u64);
    // A READ asked for again from the middle begins with First or Only wherever it begins.
    let ends = matches!(packet.info.position, Position::Last | Position::Only);
    ends == segment::ends_answer(wqe, index) && packet.payload.len() as u64 == expected
}

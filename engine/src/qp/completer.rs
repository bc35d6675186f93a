//! The completer: applies acknowledgements and responses of the peer to the send queue.

use feroce_wire::{
    NakCode, Operation, PacketView, Payload, Position, Psn, RnrTimer, Sack, Syndrome,
};

use super::connection::Connection;
use super::env::Env;
use super::habit::Habit;
use super::requester::{Requester, SSN_MASK};
use super::timer::{Timer, TimerTable};
use super::{segment, sg};
use crate::counters::Counter;
use crate::time::Duration;
use crate::verbs::operation::{OperationInfo, ResponseKind};
use crate::verbs::{SendFlags, SendWqe, Status};

/// The value of `rnr_retry` that allows any number of retries.
const RNR_RETRY_UNLIMITED: u8 = 7;

/// The least time from a turn to the next one.
const TURN: Duration = Duration::from_nanos(1);

/// Retry state of the send side.
#[derive(Debug, Default)]
pub struct Completer {
    /// Retries allowed without progress, after timeouts and sequence errors.
    pub(super) retry_cnt: u8,
    /// Retries allowed without progress, after RNR NAKs; 7: unlimited.
    pub(super) rnr_retry: u8,
    retries_left: u8,
    rnr_left: u8,
    /// The timer of an RNR NAK whose wait begins with the next turn.
    rnr_wait: Option<RnrTimer>,
    /// `una` when a NAK or an implied NAK last caused a retransmission. A second NAK for the same
    /// gap causes none.
    nak_handled_at: Option<Psn>,
    /// Whether the message numbers of the peer's acknowledgements fit the requests.
    plausible_msn: Habit<bool>,
}

/// The oldest request failed: it must complete with this status, and the QP goes to ERR.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Failed(pub Status);

/// Why packets are retransmitted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum RetryCause {
    Timeout,
    Nak,
    ImpliedNak,
}

/// The send side of one QP during one call; all methods of the completer work on it.
pub(super) struct SendSide<'a, 'e> {
    pub requester: &'a mut Requester,
    pub completer: &'a mut Completer,
    pub timers: &'a mut TimerTable,
    pub conn: &'a Connection,
    pub env: &'a mut Env<'e>,
}

impl Completer {
    /// Returns the wait that begins now, if an RNR NAK arrived in the turn before.
    pub(super) fn take_rnr_wait(&mut self) -> Option<Duration> {
        self.rnr_wait.take().map(|timer| Duration::from_nanos(timer.nanos()) - TURN)
    }

    /// Restores all retries: there was progress, or the limits have changed.
    pub(super) fn reset(&mut self) {
        (self.retries_left, self.rnr_left) = (self.retry_cnt, self.rnr_retry);
        self.nak_handled_at = None;
    }

    /// Forgets whether the peer counts messages.
    pub(super) fn forget_peer(&mut self) {
        self.plausible_msn = Habit::default();
    }

    /// Retries since the last progress: after timeouts and sequence errors, and after RNR NAKs.
    pub(super) fn retries(&self) -> (u8, u8) {
        (
            self.retry_cnt.saturating_sub(self.retries_left),
            self.rnr_retry.saturating_sub(self.rnr_left),
        )
    }
}

impl SendSide<'_, '_> {
    /// Handles a response packet.
    pub fn handle_response(&mut self, packet: &PacketView<'_>) -> Result<(), Failed> {
        let psn = packet.bth().psn;
        self.env.acked = self.requester.losses.on_response(packet);
        if psn == self.requester.una.prev() {
            // Acknowledges nothing new; the peer has posted receives.
            self.update_credits(packet);
            return Ok(());
        }
        // Not outstanding: a late duplicate, or a response to a packet that was never sent.
        if psn.is_before(self.requester.una) || !psn.at_or_before(self.requester.sent_end) {
            self.env.counters.count(Counter::RxUnaskedResponses);
            return Ok(());
        }
        if !self.has_plausible_msn(packet) {
            self.env.counters.count(Counter::RxImplausibleMsn);
            return Ok(());
        }
        match packet.info.operation {
            Operation::Acknowledge => self.handle_aeth(packet, psn),
            Operation::ReadResponse => self.handle_read_response(packet, psn),
            Operation::AtomicAcknowledge => self.handle_atomic_ack(packet, psn),
            _ => Ok(()),
        }
    }

    /// Returns true if the message number of `packet` fits the outstanding requests, or if the peer
    /// does not count messages as we do.
    #[inline]
    fn has_plausible_msn(&mut self, packet: &PacketView<'_>) -> bool {
        let Some(aeth) = packet.ext().aeth() else { return true };
        let is_plausible = self.may_have_completed(aeth.msn.value());
        let habit = &mut self.completer.plausible_msn;
        if is_plausible && habit.is_usual(true) {
            return true;
        }
        let is_allowed = habit.judge(is_plausible, self.env.now);
        is_allowed || is_plausible
    }

    /// Returns true if the peer may have completed `msn` messages: all before the oldest
    /// outstanding one, and at most those that were begun. Some peers count a few off.
    #[inline]
    fn may_have_completed(&self, msn: u32) -> bool {
        const SLACK: u32 = 8;
        let Requester { sq, fresh_wqe, ssn, .. } = &*self.requester;
        let oldest = match sq.get(sq.head()) {
            Some(wqe) if sq.head() != *fresh_wqe => wqe.ssn,
            _ => ssn.wrapping_add(1), // None is outstanding.
        };
        let begun = ssn.wrapping_sub(oldest) & SSN_MASK;
        let beyond = msn.wrapping_sub(oldest).wrapping_add(1 + SLACK) & SSN_MASK;
        beyond <= (begun + 1 + 2 * SLACK) & SSN_MASK
    }

    /// Handles the departure of a packet of an unreliable service: it counts as acknowledged.
    pub fn handle_unreliable_sent(&mut self) {
        self.acknowledge_up_to(self.requester.cursor_psn);
    }

    /// Handles the expiry of the local ACK timeout.
    pub fn handle_ack_timeout(&mut self) -> Result<(), Failed> {
        if !self.requester.has_unacknowledged() && !self.requester.has_more(self.conn.state) {
            return Ok(());
        }
        if self.requester.ack_timer.take_early() {
            // The repeated packet, or the NAK, was lost.
            self.env.lost_responses |= self.requester.reads_in_flight > 0;
            self.requester.rewind(self.requester.una);
            return Ok(());
        }
        self.env.counters.count(Counter::LocalAckTimeoutErr);
        self.completer.nak_handled_at = None;
        self.env.lost_responses |= self.requester.reads_in_flight > 0;
        self.requester.reduce_limits(self.env.window);
        self.retry(RetryCause::Timeout)
    }

    fn handle_aeth(&mut self, packet: &PacketView<'_>, psn: Psn) -> Result<(), Failed> {
        let Some(aeth) = packet.ext().aeth() else { return Ok(()) };
        match aeth.syndrome {
            Syndrome::Ack(code) => {
                if psn == self.requester.sent_end {
                    return Ok(()); // Acknowledges a packet that was never sent.
                }
                self.requester.set_credits(aeth.msn.value(), code.credits());
                self.acknowledge_arrived(psn.next()).map(|_| ())
            }
            Syndrome::RnrNak(timer) => self.handle_rnr_nak(psn, timer),
            Syndrome::Nak(NakCode::PsnSequence) => {
                let sack = Sack::parse(packet.payload).filter(|sack| sack.last() > 0);
                match sack.filter(|_| self.conn.selective_repeat) {
                    Some(sack) => self.handle_selective_nak(psn, sack),
                    None => self.handle_sequence_nak(psn),
                }
            }
            Syndrome::Nak(code) => self.handle_fatal_nak(psn, code),
            Syndrome::Reserved(_) => Ok(()),
        }
    }

    /// PSN sequence error: the peer expects packet `psn` and has received all packets before it.
    fn handle_sequence_nak(&mut self, psn: Psn) -> Result<(), Failed> {
        self.env.counters.count(Counter::PacketSeqErr);
        if !self.acknowledge_or_go_back(psn)? || psn == self.requester.sent_end {
            return Ok(());
        }
        // While the RNR timer runs, the gap is known already. Linux rxe nevertheless sends a NAK
        // for the packets after it.
        if self.timers.is_running(Timer::Rnr) {
            return Ok(());
        }
        self.retry(RetryCause::Nak)
    }

    /// Receiver not ready: the peer has no receive for packet `psn`.
    fn handle_rnr_nak(&mut self, psn: Psn, timer: RnrTimer) -> Result<(), Failed> {
        self.env.counters.count(Counter::RnrNakRetryErr);
        if !self.acknowledge_or_go_back(psn)? || psn == self.requester.sent_end {
            return Ok(());
        }
        if self.timers.is_running(Timer::Rnr) {
            return Ok(()); // A duplicate of the same NAK.
        }
        if self.completer.rnr_left == 0 {
            return Err(Failed(Status::RnrRetryExceeded));
        }
        if self.completer.rnr_left != RNR_RETRY_UNLIMITED {
            self.completer.rnr_left -= 1;
        }
        self.requester.rewind(psn);
        self.timers.stop(Timer::Ack);
        // The NAK arrived after this turn had begun, by as much as the turn takes. The time of the
        // next turn is not before its arrival: the wait begins then.
        self.completer.rnr_wait = Some(timer);
        self.timers.set(Timer::Rnr, self.env.now + TURN);
        Ok(())
    }

    /// The peer rejects the request that packet `psn` belongs to.
    fn handle_fatal_nak(&mut self, psn: Psn, code: NakCode) -> Result<(), Failed> {
        if !self.acknowledge_or_go_back(psn)? || psn == self.requester.sent_end {
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

    fn handle_read_response(&mut self, packet: &PacketView<'_>, psn: Psn) -> Result<(), Failed> {
        let Some((index, wqe)) = self.request_awaiting(packet, psn)? else { return Ok(()) };
        if !is_expected_read_response(packet, &wqe, psn, self.conn) {
            return self.fail_with_bad_response();
        }
        self.update_credits(packet);
        let offset = u64::from(wqe.first_psn.distance_to(psn)) * self.conn.mtu as u64;
        self.store_response(index, &wqe, offset, packet.payload)?;
        self.acknowledge_up_to(psn.next());
        self.acknowledge_stored(psn.next());
        Ok(())
    }

    /// Returns the oldest request, if it awaits the response `psn`. First acknowledges what the
    /// response shows to be executed. A response behind a missing one is stored or dropped here.
    fn request_awaiting(
        &mut self,
        packet: &PacketView<'_>,
        psn: Psn,
    ) -> Result<Option<(u32, SendWqe)>, Failed> {
        if psn == self.requester.sent_end {
            return Ok(None);
        }
        if !self.acknowledge_arrived(psn)? {
            if self.conn.selective_repeat {
                self.store_ahead(packet, psn)?;
            }
            return Ok(None);
        }
        if self.requester.una != psn {
            return Ok(None); // It has arrived before.
        }
        let index = self.requester.sq.head();
        Ok(self.requester.sq.get(index).map(|wqe| (index, *wqe)))
    }

    fn handle_atomic_ack(&mut self, packet: &PacketView<'_>, psn: Psn) -> Result<(), Failed> {
        let Some((index, wqe)) = self.request_awaiting(packet, psn)? else { return Ok(()) };
        let Some(result) = packet.ext().atomic_ack().filter(|_| wqe.op.is_atomic()) else {
            return self.fail_with_bad_response();
        };
        self.update_credits(packet);
        let value = result.original.to_ne_bytes();
        self.store_response(index, &wqe, 0, Payload { first: &value, second: &[] })?;
        self.acknowledge_up_to(psn.next());
        self.acknowledge_stored(psn.next());
        Ok(())
    }

    pub(super) fn update_credits(&mut self, packet: &PacketView<'_>) {
        if let Some(aeth) = packet.ext().aeth()
            && let Syndrome::Ack(code) = aeth.syndrome
        {
            self.requester.set_credits(aeth.msn.value(), code.credits());
        }
    }

    pub(super) fn store_response(
        &mut self,
        index: u32,
        wqe: &SendWqe,
        offset: u64,
        payload: Payload<'_>,
    ) -> Result<(), Failed> {
        let posted = self.requester.sq.posted(index).expect("the request awaits a response");
        let sges = posted.sges(usize::from(wqe.num_sge));
        sg::scatter(self.env.memory, self.conn.pd, sges, offset, payload)
            .map_err(|_| Failed(Status::LocalProtection))
    }

    pub(super) fn fail_with_bad_response(&mut self) -> Result<(), Failed> {
        self.env.counters.count(Counter::ReqBadResponse);
        Err(Failed(Status::BadResponse))
    }

    /// Acknowledges everything before `to` as far as responses have arrived. Returns true if all
    /// have.
    fn acknowledge_arrived(&mut self, to: Psn) -> Result<bool, Failed> {
        match self.conn.selective_repeat {
            true => Ok(self.acknowledge_selectively(to)),
            false => self.acknowledge_or_go_back(to),
        }
    }

    /// Acknowledges everything before `to`. If a READ or atomic before `to` has no response yet,
    /// its response was lost (implied NAK): acknowledges only the packets before it, goes back to
    /// it and returns false.
    fn acknowledge_or_go_back(&mut self, to: Psn) -> Result<bool, Failed> {
        let limit = self.first_awaiting_response(to);
        self.acknowledge_up_to(limit);
        if limit == to {
            return Ok(true);
        }
        if self.completer.nak_handled_at != Some(self.requester.una) {
            self.env.counters.count(Counter::ImpliedNakSeqErr);
            self.env.lost_responses = true;
            self.retry(RetryCause::ImpliedNak)?;
        }
        Ok(false)
    }

    /// The first PSN from `una` on that only a response to a READ or atomic can acknowledge, or
    /// `to` if none lies before it.
    pub(super) fn first_awaiting_response(&self, to: Psn) -> Psn {
        let requester = &*self.requester;
        if requester.reads_in_flight == 0 && requester.cursor_wqe == requester.fresh_wqe {
            return to; // The most frequent case: only SENDs and WRITEs are outstanding.
        }
        let board = requester.active_board();
        let (mut index, mut at) = (requester.sq.head(), requester.una);
        while at.is_before(to) && index != requester.fresh_wqe {
            let wqe = requester.sq.get(index).expect("between head and fresh");
            if wqe.op.needs_responder_resource() {
                let Some(board) = board else { return at };
                while at.is_before(wqe.end_psn()) && at.is_before(to) {
                    if !board.is_stored(at, requester.una.distance_to(at)) {
                        return at;
                    }
                    at = at.next();
                }
            }
            at = wqe.end_psn();
            index = index.wrapping_add(1);
        }
        to
    }

    /// Moves `una` to `to` and completes the requests that end there or before.
    pub(super) fn acknowledge_up_to(&mut self, to: Psn) {
        let requester = &mut *self.requester;
        if to == requester.una {
            return;
        }
        requester.acknowledge(to);
        self.completer.reset();
        loop {
            self.retire_unsignaled(to);
            let index = self.requester.sq.head();
            let Some(&wqe) = self.requester.sq.get(index) else { break };
            if index == self.requester.fresh_wqe || to.is_before(wqe.end_psn()) {
                break;
            }
            self.requester.splitter.completed(&wqe);
            complete(self.requester, self.conn, self.env, Status::Success);
        }
        let requester = &mut *self.requester;
        if requester.cursor_psn.is_before(to) {
            // A late response acknowledges packets that were about to be retransmitted.
            (requester.cursor_wqe, requester.cursor_psn) = (requester.sq.head(), to);
        }
        self.restart_ack_timer();
    }

    /// Frees the oldest requests that end at `to` or before and generate no completion, up to the
    /// cursor.
    #[inline]
    fn retire_unsignaled(&mut self, to: Psn) {
        let Requester { sq, splitter, cursor_wqe, .. } = &mut *self.requester;
        if self.conn.all_signaled || self.conn.counters.is_attached() || splitter.is_enabled() {
            return;
        }
        let mut index = sq.head();
        while index != *cursor_wqe
            && let Some(wqe) = sq.get(index)
            && !wqe.flags.contains(SendFlags::SIGNALED)
            && !to.is_before(wqe.end_psn())
        {
            index = index.wrapping_add(1);
        }
        if index != sq.head() {
            sq.retire_to(index); // The producer polls the line that this writes.
        }
    }

    fn restart_ack_timer(&mut self) {
        self.requester.ack_timer.on_progress(self.env.now);
        match self.requester.has_unacknowledged() {
            true => self.requester.ack_timer.start(self.timers, self.env.now),
            false => self.timers.stop(Timer::Ack),
        }
        self.timers.stop(Timer::Rnr);
    }

    /// Goes back to the oldest unacknowledged packet, if retries are left.
    fn retry(&mut self, cause: RetryCause) -> Result<(), Failed> {
        let una = self.requester.una;
        if cause != RetryCause::Timeout {
            if self.completer.nak_handled_at == Some(una) {
                return Ok(());
            }
            self.completer.nak_handled_at = Some(una);
            self.requester.ack_timer.fire_early(self.env.now);
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

/// Completes the oldest send request and frees its slot.
#[inline]
pub(super) fn complete(
    requester: &mut Requester,
    conn: &Connection,
    env: &mut Env<'_>,
    status: Status,
) {
    let index = requester.sq.head();
    let Some(wqe) = requester.sq.get(index) else { return };
    let (wr_id, length, flags, operation) = (wqe.wr_id, wqe.length, wqe.flags, wqe.info());
    // The slot is freed before the completion appears: a poller may post again at once.
    requester.sq.retire();
    if requester.cursor_wqe == index {
        requester.cursor_wqe = requester.sq.head();
    }
    if requester.fresh_wqe == index {
        requester.fresh_wqe = requester.sq.head();
    }
    conn.counters.count(operation.completion, status == Status::Success, length);
    if conn.all_signaled || flags.contains(SendFlags::SIGNALED) || status != Status::Success {
        report(wr_id, operation, length, status, conn, env);
    }
}

/// Adds the completion of a send request with `length` bytes of local data.
#[inline(never)] // Most requests of a fast program have none.
fn report(
    wr_id: u64,
    operation: &OperationInfo,
    length: u64,
    status: Status,
    conn: &Connection,
    env: &mut Env<'_>,
) {
    let returns_data = operation.returns_data() && status == Status::Success;
    let byte_len = if returns_data { u32::try_from(length).unwrap_or(u32::MAX) } else { 0 };
    env.complete_send(&conn.send_cq, conn.qpn, wr_id, (status, operation.completion), byte_len);
}

/// Returns true if the READ response packet is the one that the request `wqe` (a READ, FLUSH or
/// ATOMIC WRITE) expects with the PSN `psn`.
pub(super) fn is_expected_read_response(
    packet: &PacketView<'_>,
    wqe: &SendWqe,
    psn: Psn,
    conn: &Connection,
) -> bool {
    match wqe.op.info().response {
        ResponseKind::ReadResponse => {}
        ResponseKind::EmptyReadResponse => {
            return packet.info.position == Position::Only && packet.payload.is_empty();
        }
        _ => return false,
    }
    let (index, mtu) = (wqe.first_psn.distance_to(psn), conn.mtu as u64);
    let expected = wqe.length.saturating_sub(u64::from(index) * mtu).min(mtu);
    // The response to a READ that was repeated from the middle starts there with First or Only.
    // With selective repeat, it may also end in the middle.
    let ends = matches!(packet.info.position, Position::Last | Position::Only);
    let is_end = ends == segment::ends_response(wqe, index) || (conn.selective_repeat && ends);
    is_end && packet.payload.len() as u64 == expected
}

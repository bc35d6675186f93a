//! The responder: checks each request packet in the order of the specification, executes it, and
//! schedules the response.
//!
//! ```text
//!   half the PSN space            epsn         half the PSN space
//!   ...... duplicates ............|expected|.......... ahead (a packet is missing) ......
//! ```

mod ahead;
mod checks;
mod gap;
mod invariants;
mod nak_reason;
mod placement;
mod transmit;
mod unreliable;

pub use ahead::AheadPool;
use ahead::PacketsAhead;
use feroce_wire::{Key, Msn, NakCode, Operation, PacketView, Position, Psn, Reth, RnrTimer};
use nak_reason::{NakReason, not_invalidated};

use super::connection::Connection;
use super::env::Env;
use super::receive::ReceiveQueue;
use super::responder_resources::{AtomicReplay, PendingAck, ResponderResources, Response};
use super::{segment, sg};
use crate::counters::Counter;
use crate::memory::access::AtomicOp;
use crate::memory::{Access, AccessError};
use crate::verbs::operation::{OperationInfo, ResponseKind};
use crate::verbs::{CompletionOpcode, Extra, MAX_MESSAGE, Status};

/// The message that is being received.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Inbound {
    /// None: the next packet must begin a message.
    None,
    /// A SEND of which `offset` bytes have arrived.
    Send { offset: u64 },
    /// A WRITE: address of the next byte, bytes still to come, and length of the message.
    Write { va: u64, rkey: Key, left: u32, total: u32 },
}

/// What the QP has to do after a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// Continue.
    Continue,
    /// Go to ERR.
    EnterError {
        /// Code of the NAK that was scheduled. It selects the event to raise.
        code: NakCode,
        /// True if a receive completed with the error: no event is raised then.
        receive_failed: bool,
    },
}

/// Dropped requests with a wrong key, right or bound after which the QP goes to ERR. A peer that
/// still uses a region that was just deregistered sends fewer.
const ACCESS_ERRORS_MAX: u16 = 256;

/// Receive side of a QP.
#[derive(Debug)]
pub struct Responder {
    pub(super) rq: ReceiveQueue,
    /// Expected PSN.
    pub(super) epsn: Psn,
    /// PSN of the last SEND or WRITE packet. An ACK of duplicates carries this PSN and no higher
    /// one: a READ or atomic after it needs a response of its own, and some requesters (Linux rxe)
    /// take an ACK with the PSN of a READ or atomic for its completion without data.
    last_send_or_write: Psn,
    /// PSNs received since the QP was set up: `epsn` without the wrap.
    position: u64,
    pub(super) msn: Msn,
    inbound: Inbound,
    /// Addresses at which the last WRITE packet and the last READ response packet ended.
    write_end: u64,
    read_end: u64,
    /// True if the current READ starts where the one before ended, as the READs of a split request
    /// do. The next READ then probably starts where this one ends.
    reads_are_sequential: bool,
    /// True if a NAK for the gap at `epsn` was sent. No other NAK is sent before the expected
    /// packet arrives.
    gap_reported: bool,
    /// The packets ahead of the expected one; `None` without selective repeat.
    ahead: Option<Box<PacketsAhead>>,
    /// The last packet that was dropped although others ahead of the expected one are held.
    last_dropped: Option<Psn>,
    pending_ack: Option<PendingAck>,
    /// True if the QP is in ERR because a request of its own failed, and the peer does not know.
    must_report_failure: bool,
    resources: ResponderResources,
    replay: AtomicReplay,
    /// Responder depth: READs and atomics that the peer may have outstanding.
    max_dest_rd_atomic: u8,
    pub(super) min_rnr_timer: RnrTimer,
    /// Requests of this connection that were dropped for their key, rights or bounds: all of UC,
    /// repeated READs of RC.
    access_errors: u16,
}

impl Responder {
    pub(super) fn new(rq: ReceiveQueue) -> Self {
        Self {
            rq,
            epsn: Psn::new(0),
            last_send_or_write: Psn::new(0).prev(),
            position: 0,
            msn: Msn::new(0),
            inbound: Inbound::None,
            write_end: 0,
            read_end: 0,
            reads_are_sequential: false,
            gap_reported: false,
            ahead: None,
            last_dropped: None,
            pending_ack: None,
            must_report_failure: false,
            resources: ResponderResources::default(),
            replay: AtomicReplay::default(),
            max_dest_rd_atomic: 0,
            min_rnr_timer: RnrTimer::new(0).expect("a 5-bit code"),
            access_errors: 0,
        }
    }

    /// Sets the responder depth.
    pub(super) fn set_depth(&mut self, depth: u8) {
        self.max_dest_rd_atomic = depth;
        self.resources.reserve(depth);
        self.replay.reserve(depth);
    }

    /// Drops all posted receives and starts over, expecting `psn`.
    pub(super) fn reset(&mut self, psn: Psn) {
        while self.rq.retire().is_some() {}
        self.start_at(psn);
        self.msn = Msn::new(0);
        self.resources.clear();
        self.replay.clear();
        self.pending_ack = None;
        self.must_report_failure = false;
        self.ahead = None;
        self.access_errors = 0;
    }

    /// Sets the first expected PSN.
    pub(super) fn start_at(&mut self, psn: Psn) {
        self.epsn = psn;
        self.last_send_or_write = psn.prev();
        // Positions of duplicates from before the start must not go below zero.
        self.position = 1 << 32;
        self.inbound = Inbound::None;
        self.gap_reported = false;
        self.drop_ahead();
    }

    /// Drops all pending packets. A NAK and the responses before it are still sent, so
    /// that the peer learns of the error; so are the responses to the requests before one that gets
    /// no NAK, and all responses after a failure that is to be reported.
    pub(super) fn stop(&mut self) {
        self.drop_ahead();
        let is_last = matches!(self.pending_ack, Some(PendingAck::Nak(..) | PendingAck::LastAck));
        if !is_last && !self.must_report_failure {
            self.resources.clear();
            self.pending_ack = None;
        }
    }

    /// Makes the next new request of the peer end in an error, after a request of this QP has
    /// failed. That request was sent, as a rule, before the peer could know of the failure: it was
    /// outstanding when this QP failed, and is not completed because of a "responder QP related
    /// error", for which the specification has the NAK code remote operational error (IBTA volume
    /// 1, table of NAK codes). A QP in ERR drops all other packets. Without this NAK, a peer with
    /// no local ACK timeout would wait for ever.
    pub(super) fn report_failure(&mut self) {
        self.must_report_failure = true;
    }

    /// Handles a request packet of a reliable service to a QP in ERR.
    pub(super) fn handle_request_in_error(&mut self, packet: &PacketView<'_>, env: &Env<'_>) {
        if self.must_report_failure && packet.bth().psn.offset_from(self.epsn) >= 0 {
            self.must_report_failure = false;
            env.counters.count(Counter::RespRemoteOperationalErrors);
            self.pending_ack = Some(PendingAck::Nak(NakCode::RemoteOperational, self.epsn));
        }
    }

    /// Handles a request packet of a reliable service.
    #[inline(always)] // Once per packet.
    pub(super) fn handle_request(
        &mut self,
        packet: &PacketView<'_>,
        conn: &Connection,
        env: &mut Env<'_>,
    ) -> Verdict {
        match packet.bth().psn.offset_from(self.epsn) {
            0 => {}
            ahead if ahead > 0 => return self.handle_gap(packet, env),
            _ => return self.handle_duplicate(packet, conn, env),
        }
        let acknowledged = self.last_send_or_write;
        let verdict = self.handle_expected(packet, conn, env);
        match verdict {
            Verdict::Continue if self.has_held() => self.handle_held(acknowledged, conn, env),
            verdict => verdict,
        }
    }

    /// Executes or rejects the expected packet.
    #[inline]
    fn handle_expected(
        &mut self,
        packet: &PacketView<'_>,
        conn: &Connection,
        env: &mut Env<'_>,
    ) -> Verdict {
        match self.accept(packet, conn, env) {
            Ok(operation) => {
                self.gap_reported = false;
                self.schedule_ack(packet, operation);
                Verdict::Continue
            }
            Err(reason) => self.reject(reason, packet, conn, env),
        }
    }

    /// Schedules an ACK for an executed packet, if the packet requests one and has no response of
    /// its own. A response also acknowledges everything before it.
    #[inline(always)] // Once per packet.
    fn schedule_ack(&mut self, packet: &PacketView<'_>, operation: &OperationInfo) {
        let has_response = operation.needs_responder_resource();
        if !has_response {
            self.last_send_or_write = packet.bth().psn;
            if self.pending_ack.is_none() && !packet.bth().ack_req {
                return; // Most packets.
            }
        }
        // Written only if it changes. Reading the old value for a copy would wait until the stores
        // of the payload have left the CPU.
        match self.pending_ack {
            // Packets after this one were dropped. The NAK, now for the next PSN, acknowledges
            // this packet, too.
            Some(PendingAck::SequenceNak) => {}
            Some(PendingAck::Ack | PendingAck::RnrNak(_)) if has_response => {
                self.pending_ack = None;
            }
            // A receive was posted before the RNR NAK was sent.
            Some(PendingAck::RnrNak(_)) => self.pending_ack = Some(PendingAck::Ack),
            _ if packet.bth().ack_req && !has_response => self.pending_ack = Some(PendingAck::Ack),
            _ => {}
        }
    }

    /// Checks and executes the expected packet. Returns the row of its operation.
    #[inline(always)] // Called once; the reason of a NAK stays in registers.
    fn accept(
        &mut self,
        packet: &PacketView<'_>,
        conn: &Connection,
        env: &mut Env<'_>,
    ) -> Result<&'static OperationInfo, NakReason> {
        self.check_sequence(packet)?;
        let Some(operation) = OperationInfo::of_opcode(packet.info.opcode) else {
            return Err(NakReason::INVALID);
        };
        Self::check_operation(packet, operation, conn)?;
        self.check_resources(packet, operation, env)?;
        let reth = packet.ext().reth();
        self.check_length(packet, reth, conn.mtu)?;
        match packet.info.operation {
            Operation::Send => self.execute_send(packet, conn, env),
            Operation::Write => self.execute_write(packet, reth, conn, env),
            Operation::ReadRequest => self.execute_read(packet, conn, env),
            Operation::Flush => self.execute_flush(packet, conn, env),
            Operation::AtomicWrite => self.execute_atomic_write(packet, conn, env),
            _ => self.execute_atomic(packet, conn, env),
        }?;
        Ok(operation)
    }

    #[inline(always)] // As `accept`.
    fn execute_send(
        &mut self,
        packet: &PacketView<'_>,
        conn: &Connection,
        env: &mut Env<'_>,
    ) -> Result<(), NakReason> {
        let offset = match self.inbound {
            Inbound::Send { offset } => offset,
            _ => 0,
        };
        let Some(receive) = self.rq.current(conn.pd) else { return Err(NakReason::NoReceive) };
        let end = offset + packet.payload.len() as u64;
        if end > receive.length {
            env.counters.count(Counter::RespLocalLengthError);
            let (code, receive) = (NakCode::InvalidRequest, Some(Status::LocalLength));
            return Err(NakReason::Fatal { code, receive });
        }
        let ieth = packet.ext().ieth();
        if let Some(ieth) = ieth {
            // Checked before anything is changed, executed after the data are stored.
            env.memory.may_invalidate(ieth.rkey, conn.pd, conn.qpn).map_err(not_invalidated)?;
        }
        sg::scatter(env.memory, receive.pd, receive.sges, offset, packet.payload).map_err(
            |_| {
                let (code, receive) = (NakCode::RemoteOperational, Some(Status::LocalProtection));
                NakReason::Fatal { code, receive }
            },
        )?;
        if let Some(ieth) = ieth {
            // Another core may have changed the key since the check.
            env.memory.invalidate(ieth.rkey, conn.pd, conn.qpn).map_err(not_invalidated)?;
        }
        self.advance_epsn(1);
        if !packet.info.position.ends_message() {
            self.inbound = Inbound::Send { offset: end };
        } else {
            let extra = match (packet.ext().imm(), ieth) {
                (Some(imm), _) => Extra::Immediate(imm.0),
                (_, Some(ieth)) => Extra::Invalidated(ieth.rkey),
                _ => Extra::None,
            };
            self.end_message();
            let byte_len = u32::try_from(end).expect("at most 2^31");
            let opcode = CompletionOpcode::Receive;
            let solicited = packet.bth().solicited;
            let done = Received { status: Status::Success, opcode, byte_len, extra, solicited };
            self.complete_receive(done, conn, env);
        }
        Ok(())
    }

    #[inline(always)] // As `accept`.
    fn execute_write(
        &mut self,
        packet: &PacketView<'_>,
        reth: Option<Reth>,
        conn: &Connection,
        env: &mut Env<'_>,
    ) -> Result<(), NakReason> {
        let len = u32::try_from(packet.payload.len()).expect("at most a path MTU");
        let (va, rkey, left, total) = match (reth, self.inbound) {
            (Some(Reth { va, rkey, dma_len }), _) => (va, rkey, dma_len, dma_len),
            (None, Inbound::Write { va, rkey, left, total }) => (va, rkey, left, total),
            _ => return Err(NakReason::INVALID),
        };
        let ahead = self.expected_ahead(packet, va, left);
        // A WRITE of no bytes needs no valid key (C9-88). The whole rest of the message is checked,
        // so that nothing is stored of a message that exceeds the region. The last packet is the
        // rest itself, which `store` checks.
        let need = Access::REMOTE_WRITE;
        let denied = |_| NakReason::write_denied(packet);
        let (memory, scope) = (env.memory, conn.peer_scope());
        if left > len {
            memory.check(rkey, scope, need, Some((va, u64::from(left)))).map_err(denied)?;
        }
        memory.store(rkey, scope, need, va, packet.payload, ahead).map_err(denied)?;
        env.counters.count(Counter::RxWriteRequests);
        self.advance_epsn(1);
        let va = va.wrapping_add(u64::from(len)); // A region may end at the last address.
        self.write_end = va;
        if !packet.info.position.ends_message() {
            self.inbound = Inbound::Write { va, rkey, left: left - len, total };
        } else {
            self.end_message();
            if let Some(imm) = packet.ext().imm() {
                let done = Received {
                    status: Status::Success,
                    opcode: CompletionOpcode::ReceiveRdmaWithImmediate,
                    byte_len: total,
                    extra: Extra::Immediate(imm.0),
                    solicited: packet.bth().solicited,
                };
                self.complete_receive(done, conn, env);
            }
        }
        Ok(())
    }

    /// Bytes after this packet of a WRITE to `va` that are likely to be written soon: the rest of
    /// the message. If the peer writes sequentially with one packet per message, as a peer does
    /// that splits its WRITEs, the same number of bytes again.
    fn expected_ahead(&self, packet: &PacketView<'_>, va: u64, left: u32) -> usize {
        let len = packet.payload.len();
        match packet.info.position {
            Position::Only if va == self.write_end => len,
            _ => usize::try_from(left).expect("32 bits fit").saturating_sub(len),
        }
    }

    fn execute_read(
        &mut self,
        packet: &PacketView<'_>,
        conn: &Connection,
        env: &mut Env<'_>,
    ) -> Result<(), NakReason> {
        let Some(reth) = packet.ext().reth() else { return Err(NakReason::INVALID) };
        check_read(&reth, conn, env)?;
        let response = Response::read(packet.bth().psn, &reth, conn);
        let count = packet.bth().psn.distance_to(response.last) + 1;
        self.resources.insert(response).map_err(|_| NakReason::INVALID)?;
        env.counters.count(Counter::RxReadRequests);
        self.advance_epsn(count);
        self.end_message();
        Ok(())
    }

    fn execute_atomic(
        &mut self,
        packet: &PacketView<'_>,
        conn: &Connection,
        env: &mut Env<'_>,
    ) -> Result<(), NakReason> {
        let Some(eth) = packet.ext().atomic_eth() else { return Err(NakReason::INVALID) };
        let op = match packet.info.operation {
            Operation::CompareSwap => {
                AtomicOp::CompareSwap { compare: eth.compare, swap: eth.swap_or_add }
            }
            _ => AtomicOp::FetchAdd(eth.swap_or_add),
        };
        let value = env.memory.atomic(eth.rkey, conn.peer_scope(), eth.va, op)?;
        env.counters.count(Counter::RxAtomicRequests);
        self.replay.save(self.position, value);
        self.resources
            .insert(Response::atomic(packet.bth().psn, value))
            .expect("a free resource was checked");
        self.advance_epsn(1);
        self.end_message();
        Ok(())
    }

    /// Handles a duplicate of an executed request. SENDs and WRITEs are acknowledged again, READs
    /// are executed again, and the response to an atomic is the saved result. The response to a
    /// FLUSH or ATOMIC WRITE is sent again. If the responder resources are exhausted, the duplicate
    /// is dropped; the peer sends it again.
    fn handle_duplicate(
        &mut self,
        packet: &PacketView<'_>,
        conn: &Connection,
        env: &mut Env<'_>,
    ) -> Verdict {
        env.counters.count(Counter::DuplicateRequest);
        let psn = packet.bth().psn;
        match OperationInfo::of_opcode(packet.info.opcode).map(|operation| operation.response) {
            Some(ResponseKind::ReadResponse) => return self.replay_read(packet, conn, env),
            Some(ResponseKind::AtomicAck) => {
                let back = u64::from(psn.distance_to(self.epsn));
                if let Some(value) = self.replay.find(self.position - back)
                    && !self.resources.will_send(psn)
                {
                    let _ = self.resources.insert(Response::atomic(psn, value).as_replay());
                }
            }
            Some(ResponseKind::EmptyReadResponse) => {
                if !self.resources.will_send(psn) {
                    let _ = self.resources.insert(Response::empty(psn).as_replay());
                }
            }
            _ => self.pending_ack = self.pending_ack.or(Some(PendingAck::Ack)),
        }
        Verdict::Continue
    }

    fn replay_read(
        &mut self,
        packet: &PacketView<'_>,
        conn: &Connection,
        env: &mut Env<'_>,
    ) -> Verdict {
        let psn = packet.bth().psn;
        let Some(reth) = packet.ext().reth() else { return Verdict::Continue };
        let executed = psn.distance_to(self.epsn);
        let count = segment::psn_count(u64::from(reth.dma_len), conn.mtu);
        let is_plausible = u64::from(reth.dma_len) <= MAX_MESSAGE && count <= executed;
        let is_granted = conn.access.contains(Access::REMOTE_READ);
        if !is_plausible || self.resources.will_send(psn) || !is_granted {
            return Verdict::Continue; // Invalid, or the response is about to be sent anyway.
        }
        if check_read(&reth, conn, env).is_err() {
            // The region was deregistered since. The NAK ends the request, if the peer still waits
            // for the response. The connection is kept: the request may be a late copy of one whose
            // response was sent.
            let nak = PendingAck::Nak(NakCode::RemoteAccess, psn);
            self.pending_ack = self.pending_ack.or(Some(nak));
            return self.count_access_error(env);
        }
        let _ = self.resources.insert(Response::read(psn, &reth, conn).as_replay());
        Verdict::Continue
    }

    /// Counts a request whose key, rights or bounds were wrong, and which does not end the
    /// connection. Too many do. The specification has no such limit; without it, a peer could try
    /// 2^32 keys within hours.
    fn count_access_error(&mut self, env: &mut Env<'_>) -> Verdict {
        env.counters.count(Counter::RespRemoteAccessErrors);
        self.access_errors += 1;
        match self.access_errors < ACCESS_ERRORS_MAX {
            true => Verdict::Continue,
            false => Verdict::EnterError { code: NakCode::RemoteAccess, receive_failed: false },
        }
    }

    /// Rejects a request that names a shared receive queue which it may not name.
    pub(super) fn reject_srq(
        &mut self,
        packet: &PacketView<'_>,
        conn: &Connection,
        env: &mut Env<'_>,
    ) -> Verdict {
        self.reject(NakReason::INVALID, packet, conn, env)
    }

    /// Schedules the NAK for a packet that is not executed.
    fn reject(
        &mut self,
        reason: NakReason,
        packet: &PacketView<'_>,
        conn: &Connection,
        env: &mut Env<'_>,
    ) -> Verdict {
        let (code, receive) = match reason {
            NakReason::NoReceive => {
                env.counters.count(Counter::OutOfBuffer);
                self.gap_reported = true; // Packets after it are dropped without a further NAK.
                self.drop_ahead();
                self.pending_ack = Some(PendingAck::RnrNak(self.min_rnr_timer));
                return Verdict::Continue;
            }
            NakReason::Fatal { code, receive } => (code, receive),
            NakReason::Unreported(status) => {
                env.counters.count(Counter::RespRemoteAccessErrors);
                self.fail_receive(status, packet, conn, env);
                if self.msn != Msn::new(0) {
                    // The requester learns which request was not executed.
                    self.pending_ack = Some(PendingAck::LastAck);
                }
                let code = NakCode::RemoteAccess;
                return Verdict::EnterError { code, receive_failed: true };
            }
        };
        env.counters.count(match code {
            NakCode::RemoteAccess => Counter::RespRemoteAccessErrors,
            NakCode::RemoteOperational => Counter::RespRemoteOperationalErrors,
            _ => Counter::RespRemoteInvalidRequest,
        });
        self.pending_ack = Some(PendingAck::Nak(code, packet.bth().psn));
        if let Some(status) = receive {
            self.fail_receive(status, packet, conn, env);
        }
        Verdict::EnterError { code, receive_failed: receive.is_some() }
    }

    /// Completes the receive that `packet` uses, with an error.
    fn fail_receive(
        &mut self,
        status: Status,
        packet: &PacketView<'_>,
        conn: &Connection,
        env: &mut Env<'_>,
    ) {
        let receive = OperationInfo::of_opcode(packet.info.opcode).and_then(|row| row.receive);
        let opcode = receive.map_or(CompletionOpcode::Receive, |receive| receive.completion);
        let (byte_len, extra, solicited) = (0, Extra::None, false);
        let done = Received { status, opcode, byte_len, extra, solicited };
        self.complete_receive(done, conn, env);
    }

    /// Moves the expected PSN forward by `count`.
    fn advance_epsn(&mut self, count: u32) {
        self.epsn = self.epsn.add(count);
        self.position += u64::from(count);
    }

    fn end_message(&mut self) {
        self.inbound = Inbound::None;
        self.msn = self.msn.next();
    }
}

/// The completion of a receive.
#[derive(Debug, Clone, Copy)]
struct Received {
    status: Status,
    opcode: CompletionOpcode,
    byte_len: u32,
    extra: Extra,
    solicited: bool,
}

/// Checks rights and bounds of a READ. A READ of no bytes needs no valid key (C9-88).
fn check_read(reth: &Reth, conn: &Connection, env: &Env<'_>) -> Result<(), AccessError> {
    if reth.dma_len == 0 {
        return Ok(());
    }
    let range = Some((reth.va, u64::from(reth.dma_len)));
    env.memory.check(reth.rkey, conn.peer_scope(), Access::REMOTE_READ, range)
}

//! The responder: a ladder of checks in the order of the specification, then execution, then the answer.
//!
//! ```text
//!   half the PSN space            epsn         half the PSN space
//!   ...... duplicates ............|expected|.......... ahead (a packet is missing) ......
//! ```

mod placement;
mod transmit;
mod unreliable;

use feroce_wire::{Key, Msn, NakCode, Operation, Packet, Position, Psn, Reth, RnrTimer};

use super::responder_resources::{Answer, AnswerQueue, AtomicReplay, Reply, Source};
use super::{Connection, Env, ReceiveQueue, segment, sg};
use crate::counters::Counter;
use crate::memory::access::AtomicOp;
use crate::memory::{Access, AccessError};
use crate::verbs::{CompletionOpcode, Extra, MAX_MESSAGE, Status};

/// The message that is being received.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Inbound {
    /// None: the next packet must begin one.
    None,
    /// A SEND of which so many bytes have come.
    Send { offset: u64 },
    /// A WRITE: the next byte's address, the bytes to come, and all of them.
    Write { va: u64, rkey: Key, left: u32, total: u32 },
}

/// Why the expected packet is not executed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Refusal {
    /// No receive is posted; the peer tries again.
    NoReceive,
    /// A NAK that ends the connection, and how the receive that the message met completes, if it met one.
    Fatal { code: NakCode, receive: Option<Status> },
}

impl Refusal {
    const INVALID: Self = Self::Fatal { code: NakCode::InvalidRequest, receive: None };
    const ACCESS: Self = Self::Fatal { code: NakCode::RemoteAccess, receive: None };

    /// A remote access error, or an invalid request for what is not a matter of rights.
    fn of(error: AccessError) -> Self {
        match error {
            AccessError::Misaligned => Self::INVALID,
            _ => Self::ACCESS,
        }
    }
}

/// What the QP has to do after a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// Go on.
    Fine,
    /// Go to ERR; the code says for which event. `tied` if a receive completed with the error.
    Broken {
        /// The NAK that was scheduled.
        code: NakCode,
        /// A receive tells the program, so no event does.
        tied: bool,
    },
}

/// Receive side of a QP.
#[derive(Debug)]
pub struct Responder {
    pub(super) rq: ReceiveQueue,
    /// Expected PSN.
    pub(super) epsn: Psn,
    /// PSN of the last SEND or WRITE packet. Acknowledgements of duplicates speak for what is up to it: a READ or an atomic behind it
    /// needs its answer, and there are requesters (Linux rxe) that take an acknowledgement with its PSN for one without data.
    last_plain: Psn,
    /// PSNs passed since the QP was set up: `epsn` without the wrap.
    position: u64,
    pub(super) msn: Msn,
    inbound: Inbound,
    /// Where the last packet of a WRITE ended, and of an answer to a READ.
    write_end: u64,
    read_end: u64,
    /// The READ answered now goes on where the one before ended, as parts do: so the next one is likely to.
    reads_on: bool,
    /// A NAK for the gap at `epsn` was sent; no other is until the expected packet has come.
    gap_reported: bool,
    reply: Option<Reply>,
    answers: AnswerQueue,
    replay: AtomicReplay,
    /// READs and atomics that may be outstanding.
    max_dest_rd_atomic: u8,
    pub(super) min_rnr_timer: RnrTimer,
}

impl Responder {
    pub(super) fn new(rq: ReceiveQueue) -> Self {
        Self {
            rq,
            epsn: Psn::new(0),
            last_plain: Psn::new(0).prev(),
            position: 0,
            msn: Msn::new(0),
            inbound: Inbound::None,
            write_end: 0,
            read_end: 0,
            reads_on: false,
            gap_reported: false,
            reply: None,
            answers: AnswerQueue::default(),
            replay: AtomicReplay::default(),
            max_dest_rd_atomic: 0,
            min_rnr_timer: RnrTimer::new(0).expect("a 5-bit code"),
        }
    }

    /// Takes the number of READs and atomics that may be outstanding.
    pub(super) fn take_depth(&mut self, depth: u8) {
        self.max_dest_rd_atomic = depth;
        self.answers.make_room(depth);
        self.replay.make_room(depth);
    }

    /// Starts over, expecting `psn`, dropping what is posted.
    pub(super) fn reset(&mut self, psn: Psn) {
        while self.rq.retire().is_some() {}
        self.start_at(psn);
        self.msn = Msn::new(0);
        self.answers.clear();
        self.replay.clear();
        self.reply = None;
    }

    /// Sets the PSN expected first.
    pub(super) fn start_at(&mut self, psn: Psn) {
        self.epsn = psn;
        self.last_plain = psn.prev();
        self.position = 1 << 32; // So that positions of duplicates before the start do not go below zero.
        self.inbound = Inbound::None;
        self.gap_reported = false;
    }

    /// Drops what was to be answered. After a refusal, it and the answers ahead of it are still sent: the
    /// peer must learn.
    pub(super) fn stop(&mut self) {
        if !matches!(self.reply, Some(Reply::Refusal(..))) {
            self.answers.clear();
            self.reply = None;
        }
    }

    /// Takes a request packet.
    pub(super) fn handle_request(
        &mut self,
        packet: &Packet<'_>,
        conn: &Connection,
        env: &mut Env<'_>,
    ) -> Verdict {
        match packet.bth.psn.offset_from(self.epsn) {
            0 => {}
            ahead if ahead > 0 => return self.handle_gap(env),
            _ => return self.handle_duplicate(packet, conn, env),
        }
        match self.accept(packet, conn, env) {
            Ok(()) => {
                self.gap_reported = false;
                self.schedule_ack(packet);
                Verdict::Fine
            }
            Err(refusal) => self.refuse(refusal, packet, conn, env),
        }
    }

    /// After the expected packet: an ACK if it asks for one and is not answered otherwise. An answer
    /// acknowledges what is before it.
    fn schedule_ack(&mut self, packet: &Packet<'_>) {
        let answered = !matches!(packet.info.operation, Operation::Send | Operation::Write);
        if !answered {
            self.last_plain = packet.bth.psn;
        }
        // Written only if it changes: copying it would wait until the payload's stores have left the CPU.
        match self.reply {
            // Packets behind this one were dropped: the NAK, now for the next, acknowledges this one too.
            Some(Reply::SequenceNak) => {}
            Some(Reply::Ack | Reply::RnrNak(_)) if answered => self.reply = None,
            Some(Reply::RnrNak(_)) => self.reply = Some(Reply::Ack), // The receive has come meanwhile.
            _ if packet.bth.ack_req && !answered => self.reply = Some(Reply::Ack),
            _ => {}
        }
    }

    /// A packet ahead of the expected one: one NAK per gap.
    fn handle_gap(&mut self, env: &mut Env<'_>) -> Verdict {
        env.counters.count(Counter::OutOfSequence);
        if !self.gap_reported {
            self.gap_reported = true;
            self.reply = Some(Reply::SequenceNak);
        }
        Verdict::Fine
    }

    /// The ladder for the expected packet.
    fn accept(
        &mut self,
        packet: &Packet<'_>,
        conn: &Connection,
        env: &mut Env<'_>,
    ) -> Result<(), Refusal> {
        self.check_sequence(packet)?;
        self.check_operation(packet, conn)?;
        self.check_resources(packet, env)?;
        self.check_length(packet, conn.mtu)?;
        match packet.info.operation {
            Operation::Send => self.execute_send(packet, conn, env),
            Operation::Write => self.execute_write(packet, conn, env),
            Operation::ReadRequest => self.execute_read(packet, conn, env),
            Operation::Flush => self.execute_flush(packet, conn, env),
            Operation::AtomicWrite => self.execute_atomic_write(packet, conn, env),
            _ => self.execute_atomic(packet, conn, env),
        }
    }

    /// First begins a message, Middle and Last continue one of the same kind.
    fn check_sequence(&self, packet: &Packet<'_>) -> Result<(), Refusal> {
        let begins = packet.info.position.starts_message();
        let fits = match (self.inbound, packet.info.operation) {
            (Inbound::None, _) => begins,
            (Inbound::Send { .. }, Operation::Send) | (Inbound::Write { .. }, Operation::Write) => {
                !begins
            }
            _ => false,
        };
        if fits { Ok(()) } else { Err(Refusal::INVALID) }
    }

    /// The QP does such operations, and its rights allow them.
    fn check_operation(&self, packet: &Packet<'_>, conn: &Connection) -> Result<(), Refusal> {
        let need = match packet.info.operation {
            Operation::Send => Access::NONE,
            Operation::Write | Operation::AtomicWrite => Access::REMOTE_WRITE,
            Operation::ReadRequest => Access::REMOTE_READ,
            Operation::CompareSwap | Operation::FetchAdd => Access::REMOTE_ATOMIC,
            Operation::Flush => placement::flush_rights(packet.ext.feth)?,
            _ => return Err(Refusal::INVALID),
        };
        if conn.access.contains(need) { Ok(()) } else { Err(Refusal::INVALID) }
    }

    /// A receive for what consumes one, a free responder resource for what is answered with data.
    fn check_resources(&mut self, packet: &Packet<'_>, env: &Env<'_>) -> Result<(), Refusal> {
        let info = packet.info;
        match info.operation {
            Operation::Send if info.position.starts_message() => self.need_receive(env),
            Operation::Write if packet.ext.imm.is_some() => self.need_receive(env),
            Operation::ReadRequest
            | Operation::CompareSwap
            | Operation::FetchAdd
            | Operation::Flush
            | Operation::AtomicWrite
                if self.answers.first_time() >= usize::from(self.max_dest_rd_atomic) =>
            {
                Err(Refusal::INVALID)
            }
            _ => Ok(()),
        }
    }

    fn need_receive(&mut self, env: &Env<'_>) -> Result<(), Refusal> {
        if self.rq.provide(env.events) { Ok(()) } else { Err(Refusal::NoReceive) }
    }

    /// Payload against pad, position and path MTU; message against the lengths that were announced.
    fn check_length(&self, packet: &Packet<'_>, mtu: usize) -> Result<(), Refusal> {
        let len = packet.payload.len();
        let is_padded = (len + usize::from(packet.bth.pad)).is_multiple_of(4);
        if !is_padded || !packet.info.payload.allows(len, mtu) {
            return Err(Refusal::INVALID);
        }
        let announced = packet.ext.reth.map(|reth| u64::from(reth.dma_len));
        let fits = match (packet.info.operation, packet.info.position, self.inbound) {
            (Operation::Write, Position::Only, _) | (Operation::AtomicWrite, ..) => {
                announced == Some(len as u64)
            }
            (Operation::Write, Position::First, _) => {
                announced.is_some_and(|total| total > len as u64 && total <= MAX_MESSAGE)
            }
            (Operation::Write, Position::Middle, Inbound::Write { left, .. }) => {
                u64::from(left) > len as u64
            }
            (Operation::Write, Position::Last, Inbound::Write { left, .. }) => {
                u64::from(left) == len as u64
            }
            (Operation::ReadRequest, ..) => announced.is_some_and(|total| total <= MAX_MESSAGE),
            (Operation::Send, _, Inbound::Send { offset }) => offset + len as u64 <= MAX_MESSAGE,
            _ => true,
        };
        if fits { Ok(()) } else { Err(Refusal::INVALID) }
    }

    fn execute_send(
        &mut self,
        packet: &Packet<'_>,
        conn: &Connection,
        env: &mut Env<'_>,
    ) -> Result<(), Refusal> {
        let offset = match self.inbound {
            Inbound::Send { offset } => offset,
            _ => 0,
        };
        let Some(receive) = self.rq.current(conn.pd) else { return Err(Refusal::NoReceive) };
        let end = offset + packet.payload.len() as u64;
        if end > receive.length {
            env.counters.count(Counter::RespLocalLengthError);
            let (code, receive) = (NakCode::InvalidRequest, Some(Status::LocalLength));
            return Err(Refusal::Fatal { code, receive });
        }
        if let Some(ieth) = packet.ext.ieth {
            // Checked before anything is changed, done after the data are in place.
            env.memory.may_invalidate(ieth.rkey, conn.pd, conn.qpn).map_err(Refusal::of)?;
        }
        sg::scatter(env.memory, receive.pd, receive.sges, offset, packet.payload).map_err(
            |_| {
                let (code, receive) = (NakCode::RemoteOperational, Some(Status::LocalProtection));
                Refusal::Fatal { code, receive }
            },
        )?;
        self.inbound = Inbound::Send { offset: end };
        self.pass(1);
        if packet.info.position.ends_message() {
            let extra = match (packet.ext.imm, packet.ext.ieth) {
                (Some(imm), _) => Extra::Immediate(imm.0),
                (_, Some(ieth)) => {
                    env.memory.invalidate(ieth.rkey, conn.pd, conn.qpn).map_err(Refusal::of)?;
                    Extra::Invalidated(ieth.rkey)
                }
                _ => Extra::None,
            };
            self.end_message();
            let byte_len = u32::try_from(end).expect("at most 2^31");
            let opcode = CompletionOpcode::Receive;
            let solicited = packet.bth.solicited;
            let done = Received { status: Status::Success, opcode, byte_len, extra, solicited };
            self.complete_receive(done, conn, env);
        }
        Ok(())
    }

    fn execute_write(
        &mut self,
        packet: &Packet<'_>,
        conn: &Connection,
        env: &mut Env<'_>,
    ) -> Result<(), Refusal> {
        let len = u32::try_from(packet.payload.len()).expect("at most a path MTU");
        let (va, rkey, left, total) = match (packet.ext.reth, self.inbound) {
            (Some(Reth { va, rkey, dma_len }), _) => (va, rkey, dma_len, dma_len),
            (None, Inbound::Write { va, rkey, left, total }) => (va, rkey, left, total),
            _ => return Err(Refusal::INVALID),
        };
        let behind = self.expected_behind(packet, va, left);
        // A WRITE of no bytes needs no valid key (C9-88). The whole rest is checked, so that nothing is
        // written of a message that would leave the region.
        let need = Access::REMOTE_WRITE;
        let store = || {
            if left > 0 {
                env.memory.check(rkey, conn.peer(), need, Some((va, u64::from(left))))?;
            }
            env.memory.store(rkey, conn.peer(), need, va, packet.payload, behind)
        };
        store().map_err(|_| Refusal::Fatal {
            code: NakCode::RemoteAccess,
            receive: packet.ext.imm.map(|_| Status::LocalAccess),
        })?;
        env.counters.count(Counter::RxWriteRequests);
        self.pass(1);
        let va = va.wrapping_add(u64::from(len)); // A region may end with the address space.
        self.write_end = va;
        self.inbound = Inbound::Write { va, rkey, left: left - len, total };
        if packet.info.position.ends_message() {
            self.end_message();
            if let Some(imm) = packet.ext.imm {
                let done = Received {
                    status: Status::Success,
                    opcode: CompletionOpcode::ReceiveRdmaWithImmediate,
                    byte_len: total,
                    extra: Extra::Immediate(imm.0),
                    solicited: packet.bth.solicited,
                };
                self.complete_receive(done, conn, env);
            }
        }
        Ok(())
    }

    /// Bytes that are likely to be written soon behind this packet of a WRITE to `va`: the rest of the message, or as much again if
    /// the peer writes on from message to message, as one does that splits them.
    fn expected_behind(&self, packet: &Packet<'_>, va: u64, left: u32) -> usize {
        let len = packet.payload.len();
        match packet.info.position {
            Position::Only if va == self.write_end => len,
            _ => usize::try_from(left).expect("32 bits fit").saturating_sub(len),
        }
    }

    fn execute_read(
        &mut self,
        packet: &Packet<'_>,
        conn: &Connection,
        env: &mut Env<'_>,
    ) -> Result<(), Refusal> {
        let Some(reth) = packet.ext.reth else { return Err(Refusal::INVALID) };
        check_read(&reth, conn, env).map_err(Refusal::of)?;
        let answer = read_answer(packet.bth.psn, &reth, conn);
        let count = packet.bth.psn.distance_to(answer.last) + 1;
        self.answers.insert(answer).map_err(|_| Refusal::INVALID)?;
        env.counters.count(Counter::RxReadRequests);
        self.pass(count);
        self.end_message();
        Ok(())
    }

    fn execute_atomic(
        &mut self,
        packet: &Packet<'_>,
        conn: &Connection,
        env: &mut Env<'_>,
    ) -> Result<(), Refusal> {
        let Some(eth) = packet.ext.atomic_eth else { return Err(Refusal::INVALID) };
        let op = match packet.info.operation {
            Operation::CompareSwap => {
                AtomicOp::CompareSwap { compare: eth.compare, swap: eth.swap_or_add }
            }
            _ => AtomicOp::FetchAdd(eth.swap_or_add),
        };
        let value = env.memory.atomic(eth.rkey, conn.peer(), eth.va, op).map_err(Refusal::of)?;
        env.counters.count(Counter::RxAtomicRequests);
        self.replay.save(self.position, value);
        self.answers
            .insert(atomic_answer(packet.bth.psn, value))
            .expect("a free place was checked");
        self.pass(1);
        self.end_message();
        Ok(())
    }

    /// A request that was executed before. SEND and WRITE are acknowledged again, READ is executed again,
    /// atomics are answered from the saved result.
    fn handle_duplicate(
        &mut self,
        packet: &Packet<'_>,
        conn: &Connection,
        env: &mut Env<'_>,
    ) -> Verdict {
        env.counters.count(Counter::DuplicateRequest);
        let psn = packet.bth.psn;
        match packet.info.operation {
            Operation::ReadRequest => return self.replay_read(packet, conn, env),
            Operation::CompareSwap | Operation::FetchAdd => {
                let back = u64::from(psn.distance_to(self.epsn));
                if let Some(value) = self.replay.find(self.position - back)
                    && !self.answers.will_send(psn)
                {
                    // A full queue drops it; the peer asks again.
                    let _ =
                        self.answers.insert(Answer { replay: true, ..atomic_answer(psn, value) });
                }
            }
            Operation::Flush | Operation::AtomicWrite => {
                if !self.answers.will_send(psn) {
                    let answer = Answer { replay: true, ..placement::placed_answer(psn) };
                    let _ = self.answers.insert(answer); // A full queue drops it, as above.
                }
            }
            _ => self.reply = self.reply.or(Some(Reply::Ack)),
        }
        Verdict::Fine
    }

    fn replay_read(
        &mut self,
        packet: &Packet<'_>,
        conn: &Connection,
        env: &mut Env<'_>,
    ) -> Verdict {
        let psn = packet.bth.psn;
        let Some(reth) = packet.ext.reth else { return Verdict::Fine };
        let executed = psn.distance_to(self.epsn);
        let count = segment::psn_count(u64::from(reth.dma_len), conn.mtu);
        let plausible = u64::from(reth.dma_len) <= MAX_MESSAGE && count <= executed;
        if !plausible || self.answers.will_send(psn) || !conn.access.contains(Access::REMOTE_READ) {
            return Verdict::Fine; // Nonsense, or already on its way.
        }
        if check_read(&reth, conn, env).is_err() {
            // The region has gone since. The peer learns, if it still waits, and the connection lives on: the
            // request may be an old copy of one that was answered.
            self.reply = self.reply.or(Some(Reply::Refusal(NakCode::RemoteAccess, psn)));
            return Verdict::Fine;
        }
        // A full queue drops it; the peer asks again.
        let _ = self.answers.insert(Answer { replay: true, ..read_answer(psn, &reth, conn) });
        Verdict::Fine
    }

    /// Refuses a request that names no queue it may name.
    pub(super) fn refuse_queue(
        &mut self,
        packet: &Packet<'_>,
        conn: &Connection,
        env: &mut Env<'_>,
    ) -> Verdict {
        self.refuse(Refusal::INVALID, packet, conn, env)
    }

    /// Schedules the NAK for a packet that is not executed.
    fn refuse(
        &mut self,
        refusal: Refusal,
        packet: &Packet<'_>,
        conn: &Connection,
        env: &mut Env<'_>,
    ) -> Verdict {
        let (code, receive) = match refusal {
            Refusal::NoReceive => {
                env.counters.count(Counter::OutOfBuffer);
                self.gap_reported = true; // Packets behind it are dropped without a NAK of their own.
                self.reply = Some(Reply::RnrNak(self.min_rnr_timer));
                return Verdict::Fine;
            }
            Refusal::Fatal { code, receive } => (code, receive),
        };
        env.counters.count(match code {
            NakCode::RemoteAccess => Counter::RespRemoteAccessErrors,
            NakCode::RemoteOperational => Counter::RespRemoteOperationalErrors,
            _ => Counter::RespRemoteInvalidRequest,
        });
        self.reply = Some(Reply::Refusal(code, packet.bth.psn));
        let tied = receive.is_some();
        if let Some(status) = receive {
            self.fail_receive(status, packet, conn, env);
        }
        Verdict::Broken { code, tied }
    }

    /// Completes the receive that `packet` met, with an error.
    fn fail_receive(
        &mut self,
        status: Status,
        packet: &Packet<'_>,
        conn: &Connection,
        env: &mut Env<'_>,
    ) {
        let opcode = match packet.info.operation {
            Operation::Write => CompletionOpcode::ReceiveRdmaWithImmediate,
            _ => CompletionOpcode::Receive,
        };
        let (byte_len, extra, solicited) = (0, Extra::None, false);
        let done = Received { status, opcode, byte_len, extra, solicited };
        self.complete_receive(done, conn, env);
    }

    /// Moves on by `count` PSNs.
    fn pass(&mut self, count: u32) {
        self.epsn = self.epsn.add(count);
        self.position += u64::from(count);
    }

    fn end_message(&mut self) {
        self.inbound = Inbound::None;
        self.msn = self.msn.next();
    }
}

/// How a receive completes.
#[derive(Debug, Clone, Copy)]
struct Received {
    status: Status,
    opcode: CompletionOpcode,
    byte_len: u32,
    extra: Extra,
    solicited: bool,
}

/// Rights and bounds of a READ; one of no bytes needs no valid key (C9-88).
fn check_read(reth: &Reth, conn: &Connection, env: &Env<'_>) -> Result<(), AccessError> {
    if reth.dma_len == 0 {
        return Ok(());
    }
    let range = Some((reth.va, u64::from(reth.dma_len)));
    env.memory.check(reth.rkey, conn.peer(), Access::REMOTE_READ, range)
}

fn read_answer(psn: Psn, reth: &Reth, conn: &Connection) -> Answer {
    let count = segment::psn_count(u64::from(reth.dma_len), conn.mtu);
    let source = Source::Memory { va: reth.va, rkey: reth.rkey, left: reth.dma_len, pd: conn.pd };
    Answer { next: psn, last: psn.add(count - 1), starts: true, source, replay: false }
}

fn atomic_answer(psn: Psn, value: u64) -> Answer {
    Answer { next: psn, last: psn, starts: true, source: Source::Value(value), replay: false }
}

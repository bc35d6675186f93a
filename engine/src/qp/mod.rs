//! Queue pairs: values that eat packets, time and work requests and give packets, a next wake-up and
//! completions. No I/O, no clock, no allocation inside. [`Qp`] is one of a connected service, RC or UC;
//! [`ud::UdQp`] one of the datagram service; [`AnyQp`] either.
//!
//! The send side is a `requester` (what goes out) and a `completer` (what comes back); the receive
//! side is a `responder`. They meet only in [`Qp`].

mod any;
pub mod attributes;
mod completer;
mod ground;
mod local;
mod loss;
mod receive;
mod requester;
mod responder;
mod response;
pub mod segment;
mod service;
pub mod sg;
mod snapshot;
mod state;
mod timer;
mod transitions;
pub mod ud;
mod xrc;

use std::sync::Arc;

use feroce_wire::{
    Bth, FlowHeader, IpAddresses, IpHeader, NakCode, Opcode, Packet, Pkey, Psn, Qpn,
};

use crate::congestion::Sent;
use crate::counters::{Counter, Counters};
use crate::memory::work_ring::WorkConsumer;
use crate::memory::{Access, MrTable, PdId, Scope};
use crate::time::{Duration, Instant};
use crate::verbs::{AsyncEvent, Completion, CqRing, EventQueue, SendWqe, Status};
pub use any::AnyQp;
use attributes::QpAttributes;
use completer::{Completer, Failed, SendSide};
pub use receive::ReceiveQueue;
pub use requester::ACK_INTERVAL;
use requester::{Next, Requester};
use responder::{Responder, Verdict};
pub use response::{MAX_RD_ATOMIC, RD_ATOMIC};
pub use service::Service;
pub use snapshot::QpSnapshot;
pub use state::{
    QpAttrMask, QpState, TRANSITIONS, Transition, TransitionError, check as check_transition,
};
use timer::{Timer, TimerTable};
pub use transitions::{UC_TRANSITIONS, UD_TRANSITIONS};
pub use xrc::SrqTable;

/// What of a QP's data must wait for its rate.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Waits {
    /// Requests, the first time or again.
    pub requests: bool,
    /// Answers to READs and atomics.
    pub answers: bool,
}

/// What a QP needs of the core it lives on, for one call.
#[derive(Debug)]
pub struct Env<'a> {
    /// The time of this turn.
    pub now: Instant,
    /// Registered memory.
    pub memory: &'a MrTable,
    /// The core's counters.
    pub counters: &'a Counters,
    /// The device's asynchronous events.
    pub events: &'a EventQueue,
    /// Packets of SENDs and WRITEs that a QP may have outstanding.
    pub window: u32,
    /// At most this many packets of a QP are sent between two that ask for an acknowledgement, for its congestion control's sake.
    pub ack_interval: u32,
    /// What of the QP's data must wait. Acknowledgements without data do not, nor requests that send nothing.
    pub waits: Waits,
    /// Shared receive queues of XRC domains.
    pub srqs: &'a SrqTable,
    /// The PSN that a received response acknowledges, with all PSNs before it.
    pub acked: Option<Psn>,
    /// See [`Env::woke`].
    woke: bool,
    /// Something broke that no request can tell: the QP must go to ERR, with this event.
    broken: Option<fn(Qpn) -> AsyncEvent>,
}

impl<'a> Env<'a> {
    /// What the core offers at the time `now`.
    pub fn new(
        now: Instant,
        memory: &'a MrTable,
        counters: &'a Counters,
        events: &'a EventQueue,
        window: u32,
        srqs: &'a SrqTable,
    ) -> Self {
        Self {
            now,
            memory,
            counters,
            events,
            window,
            ack_interval: u32::MAX,
            waits: Waits { requests: false, answers: false },
            srqs,
            acked: None,
            woke: false,
            broken: None,
        }
    }

    /// Whether a completion woke somebody.
    pub fn woke(&self) -> bool {
        self.woke
    }

    /// Gives a completion to its queue; a full queue breaks the QP, and is reported once.
    fn complete(&mut self, cq: &CqRing, completion: Completion) {
        let was_full = cq.overflowed();
        if let Ok(woke) = cq.push(completion) {
            self.woke |= woke;
            return;
        }
        self.broken = Some(AsyncEvent::QpFatal);
        self.counters.count(Counter::CqOverflow);
        if !was_full {
            self.events.push(AsyncEvent::CqError(cq.id()));
        }
    }
}

/// What both sides of a QP know of the connection.
#[derive(Debug)]
pub struct Connection {
    /// Its service: RC or UC.
    pub service: Service,
    /// State of the QP.
    pub state: QpState,
    /// Own number.
    pub qpn: Qpn,
    /// The peer's number.
    pub dest_qp: Qpn,
    /// Protection domain.
    pub pd: PdId,
    /// Partition key.
    pub pkey: Pkey,
    /// What the peer may do to memory through this QP.
    pub access: Access,
    /// Path MTU in bytes.
    pub mtu: usize,
    /// End-to-end credits are used, because both sides agreed to.
    pub flow_control: bool,
    /// Every send request completes with an entry, flagged or not.
    pub all_signaled: bool,
    /// Where send requests complete.
    pub send_cq: Arc<CqRing>,
    /// Where receives complete.
    pub recv_cq: Arc<CqRing>,
}

impl Connection {
    /// Whose memory the peer reaches.
    #[inline]
    fn peer(&self) -> Scope {
        Scope { pd: self.pd, peer_of: Some(self.qpn) }
    }

    /// A BTH as this connection sends it: no pad, nothing asked for; `opcode` is that of the RC service.
    #[inline]
    fn bth(&self, opcode: Opcode, psn: Psn) -> Bth {
        Bth {
            opcode: self.service.opcode(opcode),
            solicited: false,
            mig_req: true, // A ConnectX treats packets without it on a slow path.
            pad: 0,
            version: 0,
            pkey: self.pkey,
            fecn: false,
            becn: false,
            reserved6: 0,
            dest_qp: self.dest_qp,
            ack_req: false,
            reserved7: 0,
            psn,
        }
    }
}

/// What makes a QP, once and for all.
#[derive(Debug)]
pub struct QpParts {
    /// Its service: RC or UC.
    pub service: Service,
    /// Its number.
    pub qpn: Qpn,
    /// Its protection domain.
    pub pd: PdId,
    /// Where send requests complete.
    pub send_cq: Arc<CqRing>,
    /// Where receives complete.
    pub recv_cq: Arc<CqRing>,
    /// The core's end of the send queue.
    pub sq: WorkConsumer<SendWqe>,
    /// Where receives come from.
    pub rq: ReceiveQueue,
    /// Every send request completes with an entry.
    pub all_signaled: bool,
}

/// Most bytes of a packet that are neither payload nor below the BTH: BTH, extended headers, pad and ICRC.
const LONGEST_HEADERS: usize = 64;

/// A packet that [`Qp::poll_transmit`] wrote.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Transmit {
    /// Bytes from the BTH to the pad.
    pub len: usize,
    /// What the packet is, for congestion control.
    pub sent: Sent,
}

/// A queue pair of a connected service, RC or UC. A UC QP is one whose packets count as acknowledged when
/// they leave.
///
/// * Commands: [`Qp::modify`]; requests come through the work queues ([`Qp::handle_doorbell`]).
/// * Inputs: [`Qp::handle_packet`], [`Qp::handle_timeout`].
/// * Outputs: completions, as they happen; [`Qp::poll_transmit`], whose answer may change after any
///   command or input; [`Qp::poll_timeout`], whose answer may change after any of the above.
///
/// Call `poll_transmit` until it answers `None`, then `poll_timeout`. Time must not go backwards.
#[derive(Debug)]
pub struct Qp {
    conn: Connection,
    requester: Requester,
    completer: Completer,
    responder: Responder,
    timers: TimerTable,
    /// As they were given; of the headers to the peer, this is the only copy.
    attributes: QpAttributes,
    /// Own requests and responses take turns. One request may pass an acknowledgement: it may be the
    /// answer that the peer's program waits for. But not where the message, as it came, woke a program, which is late anyway: a
    /// program that sleeps on one channel for sends and receives, as perftest does, takes the first event behind
    /// a SEND for its own, and RNICs acknowledge before any program can answer.
    responses_next: bool,
    established: bool,
    notify_drained: bool,
}

impl Qp {
    /// A QP in RESET.
    pub fn new(parts: QpParts) -> Self {
        let QpParts { service, qpn, pd, send_cq, recv_cq, sq, rq, all_signaled } = parts;
        Self {
            conn: Connection {
                service,
                state: QpState::Reset,
                qpn,
                dest_qp: Qpn::masked(0),
                pd,
                pkey: Pkey::DEFAULT,
                access: Access::NONE,
                mtu: 256,
                flow_control: false,
                all_signaled,
                send_cq,
                recv_cq,
            },
            requester: Requester::new(sq),
            completer: Completer::default(),
            responder: Responder::new(rq),
            timers: TimerTable::default(),
            attributes: QpAttributes::default(),
            responses_next: false,
            established: false,
            notify_drained: false,
        }
    }

    /// Its state.
    #[inline]
    pub fn state(&self) -> QpState {
        self.conn.state
    }

    /// Its number.
    pub fn qpn(&self) -> Qpn {
        self.conn.qpn
    }

    /// Headers of the packets to the peer; `None` before RTR.
    #[inline]
    pub fn flow(&self) -> Option<&FlowHeader> {
        self.attributes.flow.as_ref()
    }

    /// Changes the headers of the packets to the peer: its Ethernet address has changed.
    pub fn set_flow(&mut self, flow: FlowHeader) {
        self.attributes.flow = Some(flow);
    }

    /// The attributes it was given, with the PSNs as they stand now.
    pub fn attributes(&self) -> QpAttributes {
        let mut attributes = self.attributes;
        attributes.state = Some(self.conn.state);
        attributes.sq_psn = attributes.sq_psn.map(|_| self.requester.cursor_psn);
        attributes.rq_psn = attributes.rq_psn.map(|_| self.responder.epsn);
        attributes
    }

    /// Takes a packet for this QP. The caller has verified its ICRC.
    pub fn handle_packet(&mut self, packet: &Packet<'_>, env: &mut Env<'_>) {
        let fits = match packet.info.is_request() {
            true => self.conn.service.takes_requests(),
            false => self.conn.service.makes_requests(),
        };
        if !self.conn.state.receives() || !fits || !self.is_from_peer(packet) {
            env.counters.count(Counter::RxDiscards);
            return;
        }
        if self.conn.state == QpState::Rtr && !self.established {
            self.established = true;
            env.events.push(AsyncEvent::CommunicationEstablished(self.conn.qpn));
        }
        if packet.info.is_request() {
            let verdict = match self.conn.service {
                Service::XrcTgt => self.handle_xrc_request(packet, env),
                service if service.is_reliable() => {
                    self.responder.handle_request(packet, &self.conn, env)
                }
                _ => self.responder.handle_unreliable(packet, &self.conn, env),
            };
            self.responses_next |= env.woke;
            if let Verdict::Broken { code, tied } = verdict {
                self.break_off(code, tied, env);
            }
        } else if self.conn.state.sends() {
            let failed = self.send_side(env).handle_response(packet).err();
            self.after_send_side(failed, env);
        }
        self.finish_call(env);
    }

    /// Does what has become due at `env.now`.
    pub fn handle_timeout(&mut self, env: &mut Env<'_>) {
        // After the RNR timer, requests are simply sent again: the cursor is where it must be.
        self.timers.take_expired(Timer::Rnr, env.now);
        if self.timers.take_expired(Timer::Ack, env.now) {
            let failed = self.send_side(env).handle_ack_timeout().err();
            self.after_send_side(failed, env);
        }
        self.finish_call(env);
    }

    /// Takes notice of work requests that were posted.
    pub fn handle_doorbell(&mut self, env: &mut Env<'_>) {
        match self.conn.state {
            QpState::Err => self.flush(env),
            QpState::Sqe => self.flush_sends(env),
            _ => {}
        }
        self.finish_call(env);
    }

    /// The port is stuck: what is to be sent counts as sent now, and lost, so that retries end in an error also where none
    /// of them leaves.
    pub fn wait_for_port(&mut self, now: Instant) {
        let Some(timeout) = self.requester.timeout else { return };
        let runs = [Timer::Ack, Timer::Rnr].iter().any(|timer| self.timers.is_running(*timer));
        if !runs && self.requester.has_more(self.conn.state) {
            self.timers.set(Timer::Ack, now + timeout);
        }
    }

    /// The earliest time at which [`Qp::handle_timeout`] has something to do.
    #[inline]
    pub fn poll_timeout(&self) -> Option<Instant> {
        self.timers.next()
    }

    /// Writes the next packet, BTH first, to the front of `out`, which must hold a path MTU and 64 bytes
    /// of headers.
    pub fn poll_transmit(&mut self, env: &mut Env<'_>, out: &mut [u8]) -> Option<Transmit> {
        self.attributes.flow.as_ref()?;
        if !std::mem::take(&mut self.responses_next) {
            if let Some(request) = self.next_request(env, out) {
                self.responses_next = true;
                return Some(request);
            }
            return self.next_response(env, out);
        }
        self.next_response(env, out).or_else(|| self.next_request(env, out))
    }

    /// It has no requests to send: acknowledgements and other answers at most.
    pub fn owes_only_answers(&self) -> bool {
        self.conn.service.is_reliable() && self.requester.is_at_end()
    }

    /// The longest frame of this connection, in bytes.
    pub fn largest_frame(&self) -> u64 {
        let headers = self.flow().map_or(0, FlowHeader::len);
        (headers + LONGEST_HEADERS + self.conn.mtu) as u64
    }

    /// Headers and numbers of packets to the peer; `None` before RTR.
    pub fn peer(&self) -> Option<(&FlowHeader, Qpn, Pkey)> {
        self.flow().map(|flow| (flow, self.conn.dest_qp, self.conn.pkey))
    }

    /// `packet` has the addresses of packets from the peer.
    pub fn hears(&self, packet: &Packet<'_>) -> bool {
        let Some(flow) = self.flow() else { return false };
        match (flow.spec().addresses, &packet.ip) {
            (IpAddresses::V4 { src, dst }, IpHeader::V4(ip)) => ip.src == dst && ip.dst == src,
            (IpAddresses::V6 { src, dst }, IpHeader::V6(ip)) => ip.src == dst && ip.dst == src,
            _ => false,
        }
    }

    fn next_response(&mut self, env: &mut Env<'_>, out: &mut [u8]) -> Option<Transmit> {
        let carries_data = self.responder.answer_goes_first();
        if carries_data && env.waits.answers {
            return None;
        }
        let len = self.responder.next_response(&self.conn, env, out)?;
        self.finish_call(env);
        let sent = if carries_data { Sent::Response } else { Sent::Acknowledgement };
        Some(Transmit { len, sent })
    }

    #[inline]
    fn next_request(&mut self, env: &mut Env<'_>, out: &mut [u8]) -> Option<Transmit> {
        if !self.conn.state.sends() || self.timers.is_running(Timer::Rnr) || self.must_wait(env) {
            return None;
        }
        loop {
            let next = self.requester.next_packet(&self.conn, &mut self.timers, env, out);
            match next {
                Next::Packet(len, sent) => {
                    if !self.conn.service.is_reliable() {
                        self.send_side(env).finish_unreliable();
                        self.finish_call(env);
                    }
                    return Some(Transmit { len, sent: Sent::Request(sent) });
                }
                Next::Blocked => return None,
                Next::Local => {
                    self.complete_local(env);
                    self.finish_call(env);
                    // The CQ may have been full.
                    if !self.conn.state.sends() || self.must_wait(env) {
                        return None;
                    }
                }
                Next::Failed(status) => {
                    self.after_send_side(Some(Failed(status)), env);
                    self.finish_call(env);
                    return None;
                }
            }
        }
    }

    /// The next request must wait for its rate or the end of a pause: one that sends nothing need not.
    #[inline]
    fn must_wait(&self, env: &Env<'_>) -> bool {
        env.waits.requests && !self.requester.is_at_local()
    }

    /// Takes `packet`, as far as can be told by who sent it.
    pub fn takes(&self, packet: &Packet<'_>) -> bool {
        self.conn.state.receives() && self.is_from_peer(packet)
    }

    /// The local ACK timeout; `None` waits for ever.
    pub fn ack_timeout(&self) -> Option<Duration> {
        self.requester.timeout
    }

    /// The packet comes from the connection's peer: transport service, addresses, partition.
    fn is_from_peer(&self, packet: &Packet<'_>) -> bool {
        packet.info.transport == self.conn.service.transport()
            && self.hears(packet)
            && packet.bth.pkey.matches(self.conn.pkey)
    }

    fn send_side<'s, 'e>(&'s mut self, env: &'s mut Env<'e>) -> SendSide<'s, 'e> {
        SendSide {
            requester: &mut self.requester,
            completer: &mut self.completer,
            timers: &mut self.timers,
            conn: &self.conn,
            env,
        }
    }

    fn after_send_side(&mut self, failed: Option<Failed>, env: &mut Env<'_>) {
        if let Some(Failed(status)) = failed {
            completer::complete(&mut self.requester, &self.conn, env, status);
            match self.conn.service.is_reliable() {
                true => self.enter_error(env),
                false => self.enter_sqe(env),
            }
        }
    }

    /// A send request of an unreliable service failed: the send queue stops, the QP goes on receiving.
    fn enter_sqe(&mut self, env: &mut Env<'_>) {
        self.conn.state = QpState::Sqe;
        self.flush_sends(env);
        // What the failed message had not sent is never sent: the next one begins behind it.
        self.requester.start_at(self.requester.fresh_psn);
    }

    /// A request of the peer was refused for good (class C error, C9-222.1).
    fn break_off(&mut self, code: NakCode, tied: bool, env: &mut Env<'_>) {
        if !tied {
            env.events.push(match code {
                NakCode::RemoteAccess => AsyncEvent::QpAccessError(self.conn.qpn),
                NakCode::RemoteOperational => AsyncEvent::QpFatal(self.conn.qpn),
                _ => AsyncEvent::QpRequestError(self.conn.qpn),
            });
        }
        self.enter_error(env);
    }

    /// What every call ends with: a drained queue is reported, a broken QP goes to ERR.
    fn finish_call(&mut self, env: &mut Env<'_>) {
        if self.notify_drained && self.conn.state == QpState::Sqd && self.requester.is_drained() {
            self.notify_drained = false;
            env.events.push(AsyncEvent::SqDrained(self.conn.qpn));
        }
        if let Some(event) = env.broken.take().filter(|_| self.conn.state != QpState::Err) {
            env.events.push(event(self.conn.qpn));
            self.enter_error(env);
            env.broken = None; // A full CQ cannot take the flushed requests either; said once.
        }
    }

    fn enter_error(&mut self, env: &mut Env<'_>) {
        self.conn.state = QpState::Err;
        self.timers = TimerTable::default();
        self.responder.stop();
        self.flush(env);
        if self.responder.rq.has_a_last() {
            env.events.push(AsyncEvent::LastWqeReached(self.conn.qpn)); // o11-5.2.5
        }
    }

    /// Completes everything posted as flushed (C9-220, C10-42).
    fn flush(&mut self, env: &mut Env<'_>) {
        self.flush_sends(env);
        self.responder.flush(&self.conn, env);
    }

    fn flush_sends(&mut self, env: &mut Env<'_>) {
        while !self.requester.sq.is_empty() {
            let status = Status::WorkRequestFlushed;
            completer::complete(&mut self.requester, &self.conn, env, status);
        }
    }
}

//! A queue pair of a connected service: its state, inputs and outputs. The send side is a
//! `requester` (sent requests) and a `completer` (received responses), the receive side a
//! `responder`. They meet only here.

use std::net::IpAddr;
use std::sync::Arc;

use feroce_wire::{FlowHeader, IpAddresses, IpHeader, NakCode, PacketView, Pkey, Psn, Qpn};

use super::attributes::QpAttributes;
use super::completer::{self, Completer, Failed, SendSide};
use super::connection::{Connection, MAX_HEADERS};
use super::env::{Env, Transmit};
use super::habit::{Habit, Origin};
use super::receive::ReceiveQueue;
use super::requester::{Next, Requester};
use super::responder::{AheadPool, Responder, Verdict};
use super::state::QpState;
use super::timer::{Timer, TimerTable};
use super::transmit_order::{self, Source, TransmitOrder};
use crate::congestion::Sent;
use crate::counters::Counter;
use crate::memory::work_ring::WorkConsumer;
use crate::memory::{Access, PdId};
use crate::time::{Duration, Instant};
use crate::verbs::{AsyncEvent, AttachedCounters, CqRing, SendWqe, Service, Status};

/// The parts that a QP is made from.
#[derive(Debug)]
pub struct QpParts {
    /// Transport service, a connected one.
    pub service: Service,
    /// Number of the QP.
    pub qpn: Qpn,
    /// Protection domain.
    pub pd: PdId,
    /// Completion queue of send requests.
    pub send_cq: Arc<CqRing>,
    /// Completion queue of receives.
    pub recv_cq: Arc<CqRing>,
    /// The core's end of the send queue.
    pub sq: WorkConsumer<SendWqe>,
    /// Source of receives.
    pub rq: ReceiveQueue,
    /// True if every send request generates a completion.
    pub all_signaled: bool,
    /// Code of the shortest local ACK timeout; 0: timeouts are exact.
    pub min_ack_timeout: u8,
    /// Memory for packets ahead of the expected one; `None`: no selective repeat.
    pub ahead: Option<Arc<AheadPool>>,
}

/// How far behind the expected PSN a repeated request may begin: some hundred packets of requests,
/// or some thousand of the responses to a READ.
const REPEATED: i32 = 4096;

/// A queue pair of a connected service: RC, UC or XRC. On a UC QP, packets count as acknowledged
/// when they are sent.
///
/// * Commands: [`Qp::modify`]; work requests come through the queues ([`Qp::handle_doorbell`]).
/// * Inputs: [`Qp::handle_packet`], [`Qp::handle_timeout`].
/// * Outputs: completions, which are written during the calls; [`Qp::poll_transmit`], whose result
///   may change after any command or input; [`Qp::poll_timeout`], whose result may change after any
///   of the above.
///
/// Call `poll_transmit` until it returns `None`, then `poll_timeout`. Time must not go backwards.
#[derive(Debug)]
pub struct Qp {
    pub(super) conn: Connection,
    pub(super) requester: Requester,
    pub(super) completer: Completer,
    pub(super) responder: Responder,
    pub(super) timers: TimerTable,
    /// The attributes as given. The headers to the peer are kept only here.
    pub(super) attributes: QpAttributes,
    pub(super) order: TransmitOrder,
    /// Where the peer's requests come from, and its responses.
    pub(super) origin_of_requests: Habit<Origin>,
    pub(super) origin_of_responses: Habit<Origin>,
    /// True once a packet was received: the event for it is raised once.
    pub(super) established: bool,
    /// True if [`AsyncEvent::SqDrained`] must be raised when the send queue is drained.
    pub(super) notify_drained: bool,
    /// Memory for selective repeat; `None`: the QP always goes back.
    pub(super) ahead: Option<Arc<AheadPool>>,
    /// See [`Qp::set_stopping`].
    is_stopping: bool,
}

impl Qp {
    /// Makes a QP in RESET.
    pub fn new(parts: QpParts) -> Self {
        let QpParts { service, qpn, pd, send_cq, recv_cq, sq, rq, all_signaled, .. } = parts;
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
                selective_repeat: false,
                all_signaled,
                send_cq,
                recv_cq,
                counters: AttachedCounters::default(),
            },
            requester: Requester::new(sq, parts.min_ack_timeout),
            completer: Completer::default(),
            responder: Responder::new(rq),
            timers: TimerTable::default(),
            attributes: QpAttributes::default(),
            order: TransmitOrder::default(),
            origin_of_requests: Habit::default(),
            origin_of_responses: Habit::default(),
            established: false,
            notify_drained: false,
            ahead: parts.ahead,
            is_stopping: false,
        }
    }

    /// The completion counters.
    pub fn counters_mut(&mut self) -> &mut AttachedCounters {
        &mut self.conn.counters
    }

    /// State of the QP.
    #[inline]
    pub fn state(&self) -> QpState {
        self.conn.state
    }

    /// Number of the QP.
    pub fn qpn(&self) -> Qpn {
        self.conn.qpn
    }

    /// Headers of the packets to the peer; `None` before RTR.
    #[inline]
    pub fn flow(&self) -> Option<&FlowHeader> {
        self.attributes.flow.as_ref()
    }

    /// While `is_stopping`, the QP sends its last packets before the program moves it to ERR, which
    /// flushes all requests (C9-220, C10-42). A request that fails at this end stays in the queue.
    pub fn set_stopping(&mut self, is_stopping: bool) {
        self.is_stopping = is_stopping;
    }

    /// Replaces the headers of the packets to the peer, after its Ethernet address has changed.
    pub fn set_flow(&mut self, flow: FlowHeader) {
        self.attributes.flow = Some(flow);
        self.forget_peer();
    }

    /// Forgets the habits of the peer's packets. They are learned again.
    pub(super) fn forget_peer(&mut self) {
        self.origin_of_requests = Habit::default();
        self.origin_of_responses = Habit::default();
        self.completer.forget_peer();
    }

    /// The attributes as given, with the current PSNs.
    pub fn attributes(&self) -> QpAttributes {
        let mut attributes = self.attributes;
        attributes.state = Some(self.conn.state);
        attributes.sq_psn = attributes.sq_psn.map(|_| self.requester.cursor_psn);
        attributes.rq_psn = attributes.rq_psn.map(|_| self.responder.epsn);
        attributes
    }

    /// Handles a packet to this QP. The caller has verified its ICRC.
    #[inline(always)] // Called once.
    pub fn handle_packet(&mut self, packet: &PacketView<'_>, env: &mut Env<'_>) {
        let has_receiver = match packet.info.is_request() {
            true => self.conn.service.has_responder(),
            false => self.conn.service.has_requester(),
        };
        if !has_receiver || !self.accepts_sender_of(packet) {
            env.counters.count(Counter::RxDiscards);
            let is_request = has_receiver && packet.info.is_request();
            if is_request && self.conn.state == QpState::Err && self.is_from_peer(packet) {
                self.responder.handle_request_in_error(packet, env);
            }
            return;
        }
        if !self.has_usual_origin(packet, env.now) {
            env.counters.count(Counter::RxUnusualOrigin);
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
            self.order.request_received(env.to_sleeper);
            if let Verdict::EnterError { code, receive_failed } = verdict {
                self.enter_error_after_nak(code, receive_failed, env);
            }
        } else if self.conn.state.sends() {
            let failed = self.send_side(env).handle_response(packet).err();
            self.after_send_side(failed, env);
        }
        self.finish_call(env);
    }

    /// Handles the timers that have expired at `env.now`. `frames_wait`: received frames wait to be
    /// handled.
    pub fn handle_timeout(&mut self, frames_wait: bool, env: &mut Env<'_>) {
        // After the RNR timer, requests are sent again from the cursor, which was moved back
        // already.
        if self.timers.take_expired(Timer::Rnr, env.now).is_some()
            && let Some(wait) = self.completer.take_rnr_wait()
        {
            self.timers.set(Timer::Rnr, env.now + wait);
        }
        if self.requester.ack_timer.take_expired(&mut self.timers, frames_wait, env.now) {
            let failed = self.send_side(env).handle_ack_timeout().err();
            self.after_send_side(failed, env);
        }
        self.finish_call(env);
    }

    /// Handles newly posted work requests.
    pub fn handle_doorbell(&mut self, env: &mut Env<'_>) {
        match self.conn.state {
            QpState::Err => self.flush(env),
            QpState::Sqe => self.flush_sends(env),
            _ => {}
        }
        self.finish_call(env);
    }

    /// Starts the local ACK timeout although the port is stuck. Requests to be sent count as sent
    /// and lost, so that their retries end in an error even if no packet leaves.
    pub fn start_timeout_on_stuck_port(&mut self, now: Instant) {
        let runs = [Timer::Ack, Timer::Rnr].iter().any(|timer| self.timers.is_running(*timer));
        if !runs && self.requester.has_more(self.conn.state) {
            self.requester.ack_timer.start(&mut self.timers, now);
        }
    }

    /// The earliest time at which a timer expires.
    #[inline]
    pub fn poll_timeout(&self) -> Option<Instant> {
        self.timers.next()
    }

    /// Outstanding packets that count against the send window.
    #[inline]
    pub fn outstanding(&self) -> u32 {
        match self.conn.state {
            QpState::Rts | QpState::Sqd => self.requester.in_window(),
            _ => 0,
        }
    }

    /// Returns true if the next request is a READ or atomic that the initiator depth allows.
    pub fn can_request_responses(&self) -> bool {
        self.conn.state.sends() && self.requester.can_request_responses()
    }

    /// Response packets of READs and atomics that are outstanding. A long READ counts as
    /// `segment::LONG_READ` packets until fewer are left.
    #[inline]
    pub fn responses_outstanding(&self) -> u32 {
        match self.conn.state {
            QpState::Rts | QpState::Sqd => self.requester.awaited_responses(),
            _ => 0,
        }
    }

    /// Returns true if requests are left and only a window of `window` packets holds them back.
    #[inline]
    pub fn is_held_by(&self, window: u32) -> bool {
        self.outstanding() >= window && self.requester.has_more(self.conn.state)
    }

    /// Address of the peer whose packets count against a window; `None` if the service does not
    /// acknowledge, or the QP is not connected.
    pub fn window_peer(&self) -> Option<IpAddr> {
        let flow = self.attributes.flow.as_ref().filter(|_| self.conn.service.is_reliable())?;
        Some(flow.spec().addresses.dst())
    }

    /// Writes the next packet, from the BTH on, to the front of `out`, which must hold a path MTU
    /// and 64 bytes of headers. The order of packets: `transmit_order`.
    #[inline(always)] // Called once.
    pub fn poll_transmit(&mut self, env: &mut Env<'_>, out: &mut [u8]) -> Option<Transmit> {
        self.attributes.flow.as_ref()?;
        match self.order.next_source() {
            Source::Requester => {
                if let Some(request) = self.next_request(env, out) {
                    self.order.request_sent();
                    return Some(request);
                }
                self.next_response(env, out)
            }
            Source::Responder => {
                self.next_response(env, out).or_else(|| self.next_request(env, out))
            }
        }
    }

    /// Returns true if the QP must send ahead of the other QPs of its core, after it handled
    /// `packet`. See rule 4 of `transmit_order`.
    #[inline]
    pub fn moves_to_front_after(&self, packet: &PacketView<'_>, env: &Env<'_>) -> bool {
        let only_responses = self.conn.service.is_reliable() && self.requester.is_at_end();
        transmit_order::moves_to_front(packet.info.is_request(), env.to_sleeper, only_responses)
    }

    /// Length in bytes of the longest frame to the peer.
    pub fn largest_frame(&self) -> u64 {
        let headers = self.flow().map_or(0, FlowHeader::len);
        (headers + MAX_HEADERS + self.conn.mtu) as u64
    }

    /// Headers, QP number and partition key of packets to the peer; `None` before RTR.
    pub fn peer(&self) -> Option<(&FlowHeader, Qpn, Pkey)> {
        self.flow().map(|flow| (flow, self.conn.dest_qp, self.conn.pkey))
    }

    /// Returns true if the IP addresses of `packet` are those of packets from the peer.
    #[inline(always)] // As `accepts_sender_of`.
    pub fn has_peer_addresses(&self, packet: &PacketView<'_>) -> bool {
        let Some(flow) = self.flow() else { return false };
        match (flow.spec().addresses, &packet.ip()) {
            (IpAddresses::V4 { src, dst }, IpHeader::V4(ip)) => ip.src == dst && ip.dst == src,
            (IpAddresses::V6 { src, dst }, IpHeader::V6(ip)) => ip.src == dst && ip.dst == src,
            _ => false,
        }
    }

    #[inline(always)] // Most QPs have requests or responses, not both.
    fn next_response(&mut self, env: &mut Env<'_>, out: &mut [u8]) -> Option<Transmit> {
        if self.responder.has_packet() { self.write_response(env, out) } else { None }
    }

    #[inline(never)]
    fn write_response(&mut self, env: &mut Env<'_>, out: &mut [u8]) -> Option<Transmit> {
        let carries_data = self.responder.response_goes_first();
        if carries_data && env.waits.responses {
            return None;
        }
        let len = self.responder.next_packet(&self.conn, env, out)?;
        self.finish_call(env);
        let sent = if carries_data { Sent::Response } else { Sent::Acknowledgement };
        Some(Transmit { len, sent })
    }

    #[inline]
    pub(super) fn next_request(&mut self, env: &mut Env<'_>, out: &mut [u8]) -> Option<Transmit> {
        if !self.conn.state.sends() || self.timers.is_running(Timer::Rnr) || self.must_wait(env) {
            return None;
        }
        if let Some((len, sent)) = self.requester.next_in_run(&self.conn, env, out) {
            if cfg!(debug_assertions) {
                self.check_invariants();
            }
            return Some(Transmit { len, sent: Sent::Request(sent) });
        }
        loop {
            let next = self.requester.next_packet(&self.conn, &mut self.timers, env, out);
            match next {
                Next::Packet(len, sent) => {
                    if !self.conn.service.is_reliable() {
                        self.send_side(env).handle_unreliable_sent();
                        self.finish_call(env);
                    } else if cfg!(debug_assertions) {
                        self.check_invariants();
                    }
                    return Some(Transmit { len, sent: Sent::Request(sent) });
                }
                Next::Blocked | Next::Limited => return None,
                Next::Failed(_) if self.is_stopping => return None,
                Next::Local => {
                    self.complete_local_requests(env);
                    self.finish_call(env);
                    // The QP is in ERR if the CQ was full.
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

    /// Returns true if the next request must wait for its rate or the end of a pause. Local
    /// requests never wait.
    #[inline]
    fn must_wait(&self, env: &Env<'_>) -> bool {
        env.waits.requests && !self.requester.is_at_local()
    }

    /// Returns true if the QP receives packets in its state, and `packet` comes from its peer.
    #[inline(always)] // Once per packet.
    pub fn accepts_sender_of(&self, packet: &PacketView<'_>) -> bool {
        self.conn.state.receives() && self.is_from_peer(packet)
    }

    /// Returns true if `packet` comes from the peer: service, addresses and partition.
    #[inline]
    fn is_from_peer(&self, packet: &PacketView<'_>) -> bool {
        packet.info.transport == self.conn.service.transport()
            && self.has_peer_addresses(packet)
            && packet.bth().pkey.matches(self.conn.pkey)
    }

    /// Returns true if `packet` comes from where the peer's packets come from. Learns from packets
    /// whose PSN is right: the expected request, one that was executed lately and may be repeated
    /// because its response was lost, or a response to an outstanding packet. UC takes any PSN.
    #[inline]
    fn has_usual_origin(&mut self, packet: &PacketView<'_>, now: Instant) -> bool {
        let origin = Origin::of(packet);
        let is_request = packet.info.is_request();
        let habit = match is_request {
            true => &mut self.origin_of_requests,
            false => &mut self.origin_of_responses,
        };
        habit.is_usual(origin) || self.learns_origin(packet.bth().psn, is_request, origin, now)
    }

    #[inline(never)] // Not for most packets.
    fn learns_origin(&mut self, psn: Psn, is_request: bool, origin: Origin, now: Instant) -> bool {
        let (habit, is_right) = match is_request {
            true => {
                let is_recent = (-REPEATED..=0).contains(&psn.offset_from(self.responder.epsn));
                let is_right = is_recent || !self.conn.service.is_reliable();
                (&mut self.origin_of_requests, is_right)
            }
            false => {
                let Requester { una, sent_end, .. } = self.requester;
                let is_outstanding = una.at_or_before(psn) && psn.is_before(sent_end);
                (&mut self.origin_of_responses, is_outstanding)
            }
        };
        if is_right { habit.judge(origin, now) } else { habit.allows(origin) }
    }

    /// The local ACK timeout; `None`: wait without limit.
    pub fn ack_timeout(&self) -> Option<Duration> {
        self.requester.ack_timer.timeout()
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
                true => {
                    self.responder.report_failure();
                    self.enter_error(env);
                }
                false => self.enter_sqe(env),
            }
        }
    }

    /// Handles a failed send request of an unreliable service: the send queue stops, receiving
    /// continues.
    fn enter_sqe(&mut self, env: &mut Env<'_>) {
        self.conn.state = QpState::Sqe;
        self.flush_sends(env);
        // The rest of the failed message is never sent: the next message gets the PSN after it.
        self.requester.start_at(self.requester.fresh_psn);
    }

    /// Enters ERR after a request of the peer was rejected (class C error, C9-222.1).
    fn enter_error_after_nak(&mut self, code: NakCode, receive_failed: bool, env: &mut Env<'_>) {
        if !receive_failed {
            env.events.push(match code {
                NakCode::RemoteAccess => AsyncEvent::QpAccessError(self.conn.qpn),
                NakCode::RemoteOperational => AsyncEvent::QpFatal(self.conn.qpn),
                _ => AsyncEvent::QpRequestError(self.conn.qpn),
            });
        }
        self.enter_error(env);
    }

    /// Ends every call: raises the event of a drained send queue, and enters ERR after a fatal
    /// error.
    #[inline]
    pub(super) fn finish_call(&mut self, env: &mut Env<'_>) {
        if self.notify_drained && self.conn.state == QpState::Sqd && self.requester.is_drained() {
            self.notify_drained = false;
            env.events.push(AsyncEvent::SqDrained(self.conn.qpn));
        }
        if env.fatal_event.is_some() {
            self.handle_fatal_event(env);
        }
        if cfg!(debug_assertions) {
            self.check_invariants();
        }
    }

    #[cold]
    fn handle_fatal_event(&mut self, env: &mut Env<'_>) {
        if let Some(event) = env.fatal_event.take().filter(|_| self.conn.state != QpState::Err) {
            env.events.push(event(self.conn.qpn));
            self.enter_error(env);
            // A full CQ cannot take the flushed requests either; the error is reported once.
            env.fatal_event = None;
        }
    }

    pub(super) fn enter_error(&mut self, env: &mut Env<'_>) {
        self.conn.state = QpState::Err;
        self.timers = TimerTable::default();
        self.responder.stop();
        self.flush(env);
        if self.responder.rq.raises_last_wqe_event() {
            env.events.push(AsyncEvent::LastWqeReached(self.conn.qpn)); // o11-5.2.5
        }
    }

    /// Completes all posted requests as flushed (C9-220, C10-42).
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

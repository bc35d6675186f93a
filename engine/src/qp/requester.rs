//! The requester: which request packet is sent next.
//!
//! ```text
//!   send queue   head ............ cursor_wqe .......... fresh_wqe ....... tail
//!                oldest incomplete next packet to send   never started
//!   PSNs         una ............. cursor_psn .......... fresh_psn
//! ```
//! A request gets its PSNs when its first packet is sent. Go-back-N moves the cursor back; the
//! [completer](super::completer) moves `una` and the head of the queue forward.

use feroce_wire::Psn;

use super::ack_timer::AckTimer;
use super::connection::Connection;
use super::env::{ACK_INTERVAL, Env};
use super::loss::LossDetector;
use super::scoreboard::{SPAN, Scoreboard};
use super::segment::{self, Segment, counted_responses};
use super::sg;
use super::split::{self, Splitter};
use super::state::QpState;
use super::timer::{Timer, TimerTable};
use crate::congestion::SentRequest;
use crate::counters::Counter;
use crate::memory::work_ring::{Posted, WorkConsumer};
use crate::verbs::{MAX_MESSAGE, SendFlags, SendOp, SendWqe, Status};

/// PSNs that may be outstanding: half the PSN space, because a responder takes the other half for
/// duplicates.
pub(super) const PSN_SPAN: u32 = 1 << 23;

/// READs and atomics in flight, those included whose responses have arrived behind a missing one.
pub(super) const MAX_READS: u8 = 128;

/// Mask of the 24-bit send sequence number.
pub(super) const SSN_MASK: u32 = 0xff_ffff;

/// The part of the send side that chooses and writes packets.
#[derive(Debug)]
pub struct Requester {
    pub(super) sq: WorkConsumer<SendWqe>,
    /// Request and PSN of the next packet to send.
    pub(super) cursor_wqe: u32,
    pub(super) cursor_psn: Psn,
    /// The first request that has no PSNs yet, and the PSN that it will get.
    pub(super) fresh_wqe: u32,
    pub(super) fresh_psn: Psn,
    /// Oldest unacknowledged PSN.
    pub(super) una: Psn,
    /// The PSN after the highest one ever sent.
    pub(super) sent_end: Psn,
    /// PSN that the send window is counted from: `una`, or the end of the last READ or atomic sent,
    /// because PSNs of responses do not count.
    pub(super) window_base: Psn,
    /// READ and atomic requests in flight: those whose responses end between `una` and the cursor.
    pub(super) reads_in_flight: u8,
    /// Response packets to READs and atomics that are outstanding: those between `una` and the
    /// cursor, as [`segment::responses_left`] counts them.
    pub(super) responses_in_flight: u32,
    /// Packets sent since the last one that requested an acknowledgement. After a go-back: packets
    /// that are still outstanding, or [`REQUEST_ACK`](super::ack_request::REQUEST_ACK).
    pub(super) since_ack_request: u32,
    /// Decides which retransmissions follow a loss.
    pub(super) losses: LossDetector,
    /// The request after the cursor, if it is validated. The last packet before this request did
    /// not request an acknowledgement, because this request follows at once.
    pub(super) validated: Option<u32>,
    pub(super) ssn: u32,
    credits: Credits,
    pub(super) splitter: Splitter,
    /// True if memory windows were bound on this QP.
    pub(super) has_bound_windows: bool,
    /// Initiator depth: READs and atomics that may be outstanding.
    pub(super) max_rd_atomic: u8,
    pub(super) ack_timer: AckTimer,
    /// Send window after a timeout; `u32::MAX` while the peer acknowledges.
    pub(super) window_after_timeout: u32,
    /// READs and atomics that may be outstanding after a timeout; `None` while the peer
    /// acknowledges.
    reads_after_timeout: Option<u8>,
    /// What the peer has received behind a packet that is missing; made at the first loss with
    /// selective repeat.
    pub(super) board: Option<Box<Scoreboard>>,
}

/// A request packet to write.
#[derive(Debug, Clone, Copy)]
pub(super) struct Outgoing {
    pub psn: Psn,
    pub segment: Segment,
    pub ack_req: bool,
}

/// End-to-end credits: requests that consume a receive which the peer can take.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Credits {
    /// No acknowledgement has arrived yet.
    Unknown,
    /// The peer sets no limit.
    Unlimited,
    /// Requests up to this SSN.
    UpTo(u32),
}

/// The result of [`Requester::next_packet`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Next {
    /// A packet of this length was written, counted from the BTH to the pad.
    Packet(usize, SentRequest),
    /// A local request was executed or skipped: a packet may follow.
    Local,
    /// Nothing can be sent now.
    Blocked,
    /// The send window or the depth of READs and atomics is used up.
    Limited,
    /// The oldest request cannot be sent and must complete with this status.
    Failed(Status),
}

impl Requester {
    /// `min_ack_timeout`: code of the shortest local ACK timeout; 0: timeouts are exact.
    pub(super) fn new(sq: WorkConsumer<SendWqe>, min_ack_timeout: u8) -> Self {
        let head = sq.head();
        Self {
            sq,
            cursor_wqe: head,
            cursor_psn: Psn::new(0),
            fresh_wqe: head,
            fresh_psn: Psn::new(0),
            una: Psn::new(0),
            sent_end: Psn::new(0),
            window_base: Psn::new(0),
            reads_in_flight: 0,
            responses_in_flight: 0,
            since_ack_request: 0,
            losses: LossDetector::default(),
            validated: None,
            ssn: 0,
            credits: Credits::Unknown,
            splitter: Splitter::default(),
            has_bound_windows: false,
            max_rd_atomic: 0,
            ack_timer: AckTimer::new(min_ack_timeout),
            window_after_timeout: u32::MAX,
            reads_after_timeout: None,
            board: None,
        }
    }

    /// Drops all queued requests and starts over at `psn`.
    pub(super) fn reset(&mut self, psn: Psn) {
        while !self.sq.is_empty() {
            self.sq.retire();
        }
        (self.cursor_wqe, self.fresh_wqe) = (self.sq.head(), self.sq.head());
        self.start_at(psn);
        (self.reads_in_flight, self.responses_in_flight, self.since_ack_request) = (0, 0, 0);
        (self.ssn, self.credits, self.splitter) = (0, Credits::Unknown, Splitter::default());
        (self.losses, self.board) = (LossDetector::default(), None);
    }

    /// Sets the PSN of the next packet. No packet may be outstanding.
    pub(super) fn start_at(&mut self, psn: Psn) {
        (self.cursor_psn, self.fresh_psn, self.una) = (psn, psn, psn);
        (self.sent_end, self.window_base) = (psn, psn);
        self.restore_limits();
    }

    /// Ends the limits that [`Self::reduce_limits`] set.
    fn restore_limits(&mut self) {
        (self.window_after_timeout, self.reads_after_timeout) = (u32::MAX, None);
    }

    /// Moves `una` to `psn`: all packets before it are acknowledged, and READs and atomics before
    /// it have their responses. The window's base moves along; otherwise it would appear to lie
    /// ahead after half the PSN space.
    pub(super) fn acknowledge(&mut self, psn: Psn) {
        if self.responses_in_flight > 0 {
            // Requests that the cursor still has to retransmit are not in flight.
            let sent = if self.cursor_psn.is_before(psn) { self.cursor_psn } else { psn };
            let (ended, packets) = self.responses_between(self.una, sent);
            self.reads_in_flight -= ended;
            self.responses_in_flight -= packets;
        }
        if let Some(board) = &mut self.board {
            board.advance(self.una, psn);
        }
        let sent = self.una.distance_to(self.sent_end);
        assert!(self.una.distance_to(psn) <= sent, "{psn:?} was not sent, and is acknowledged");
        self.una = psn;
        self.restore_limits();
        if self.window_base.is_before(psn) {
            self.window_base = psn;
        }
    }

    /// Reduces the number of packets that may be outstanding after a local ACK timeout. Each
    /// further timeout halves it, down to [`ACK_INTERVAL`], so that an acknowledgement is still
    /// requested. If the peer is too slow, more packets would only queue up at the peer with every
    /// retry. If every nth packet is lost, retries of the same size lose the same packet again.
    pub(super) fn reduce_limits(&mut self, window: u32) {
        self.window_after_timeout = (self.window_after_timeout.min(window) / 2).max(ACK_INTERVAL);
        // The first retry repeats all READs in flight: their requests are small, and other
        // requesters do the same.
        let most = self.reads_after_timeout.map_or(self.reads_in_flight, |most| most / 2);
        self.reads_after_timeout = Some(most.max(1));
    }

    /// Returns true if packets are unacknowledged.
    pub(super) fn has_unacknowledged(&self) -> bool {
        self.una != self.cursor_psn
    }

    /// Returns true if requests are left to send or to retransmit. In SQD, no new request is
    /// started.
    pub(super) fn has_more(&self, state: QpState) -> bool {
        match state {
            QpState::Rts => !self.is_at_end(),
            QpState::Sqd => self.cursor_wqe != self.fresh_wqe,
            _ => false,
        }
    }

    /// Returns true if no request is left to send.
    pub(super) fn is_at_end(&self) -> bool {
        self.sq.get(self.cursor_wqe).is_none()
    }

    /// Returns true if the next request is a local one.
    pub(super) fn is_at_local(&self) -> bool {
        self.sq.get(self.cursor_wqe).is_some_and(|wqe| wqe.op.info().is_local())
    }

    /// Returns true if every request that was started is complete.
    pub(super) fn is_drained(&self) -> bool {
        self.fresh_wqe == self.sq.head()
    }

    /// Takes the credits of an acknowledgement: the peer has completed `msn` messages and has
    /// posted receives for `credits` more.
    pub(super) fn set_credits(&mut self, msn: u32, credits: Option<u32>) {
        self.credits = match credits {
            Some(credits) => Credits::UpTo(msn.wrapping_add(credits) & SSN_MASK),
            None => Credits::Unlimited,
        };
    }

    /// Goes back to `psn`, which must be outstanding or the next one: the next packet has this PSN.
    pub(super) fn rewind(&mut self, psn: Psn) {
        debug_assert!(self.una.at_or_before(psn) && psn.at_or_before(self.sent_end));
        self.losses.on_rewind(psn, self.cursor_psn, self.since_ack_request == 0);
        if let Some(board) = &mut self.board {
            board.clear();
        }
        (self.cursor_wqe, self.cursor_psn) = (self.request_of(psn), psn);
        (self.reads_in_flight, self.responses_in_flight) = self.responses_between(self.una, psn);
        self.window_base = psn;
        // Packets before `psn` that are outstanding may have requested no acknowledgement.
        self.since_ack_request = self.outstanding();
    }

    /// The index of the request that the outstanding PSN `psn` belongs to; of the first one without
    /// PSNs if `psn` is the next one.
    pub(super) fn request_of(&self, psn: Psn) -> u32 {
        let mut index = self.sq.head();
        while index != self.fresh_wqe {
            let wqe = self.sq.get(index).expect("between head and fresh");
            if psn.is_before(wqe.end_psn()) {
                break;
            }
            index = index.wrapping_add(1);
        }
        index
    }

    /// Responses to READs and atomics whose last PSN lies in the range `from .. to`, and the
    /// response packets in this range, as [`segment::responses_left`] counts them. `from` must not
    /// lie before the oldest incomplete request.
    fn responses_between(&self, from: Psn, to: Psn) -> (u8, u32) {
        let (mut index, mut at, mut ended, mut packets) = (self.sq.head(), from, 0, 0);
        while at.is_before(to) && index != self.fresh_wqe {
            let wqe = self.sq.get(index).expect("between head and fresh");
            let end = wqe.end_psn();
            if wqe.op.needs_responder_resource() {
                ended += segment::responses_ended(wqe, from, to);
                let to = if to.is_before(end) { to } else { end };
                packets += segment::responses_left(wqe, at) - segment::responses_left(wqe, to);
            }
            at = end;
            index = index.wrapping_add(1);
        }
        (u8::try_from(ended).expect("at most the initiator depth"), packets)
    }

    /// Writes the next packet, if one may be sent now, to the front of `out`.
    #[inline(always)] // Called once.
    pub(super) fn next_packet(
        &mut self,
        conn: &Connection,
        timers: &mut TimerTable,
        env: &mut Env<'_>,
        out: &mut [u8],
    ) -> Next {
        loop {
            let next = self.next_in_order(conn, timers, env, out);
            if !self.lacks_ack_request(next, conn, env) {
                return next;
            }
            self.go_back_for_ack();
        }
    }

    /// PSNs that are sent and unacknowledged.
    pub(super) fn outstanding(&self) -> u32 {
        self.una.distance_to(self.cursor_psn)
    }

    /// Outstanding packets that count against the send window.
    #[inline(always)] // A few instructions, unless packets are missing.
    pub(super) fn in_window(&self) -> u32 {
        let sent = self.window_base.distance_to(self.cursor_psn);
        match self.active_board() {
            None => sent,
            Some(board) => sent.saturating_sub(board.received_from(self.window_base)),
        }
    }

    /// The next packet or local request in the order of the send queue.
    #[inline(always)] // As `next_packet`.
    fn next_in_order(
        &mut self,
        conn: &Connection,
        timers: &mut TimerTable,
        env: &mut Env<'_>,
        out: &mut [u8],
    ) -> Next {
        if self.has_lost()
            && let Some(next) = self.next_lost(conn, timers, env, out)
        {
            return next;
        }
        let Some(wqe) = self.sq.posted(self.cursor_wqe) else { return Next::Blocked };
        if let SendOp::Local(op) = wqe.op {
            return self.next_local(&op, conn, env);
        }
        if self.cursor_wqe == self.fresh_wqe {
            if let Some(obstacle) = self.obstacle_to_start(wqe, conn, env) {
                return obstacle;
            }
            self.start(conn);
        }
        let wqe = self.sq.posted(self.cursor_wqe).expect("the cursor is in the queue");
        let segment = segment::segment(&wqe, self.cursor_psn, conn.mtu);
        if !self.is_within_limits(&wqe, segment, env) {
            return Next::Limited;
        }
        let ack_req = self.must_request_ack(&wqe, segment, conn, env);
        let packet = Outgoing { psn: self.cursor_psn, segment, ack_req };
        match Self::write_packet(wqe, packet, conn, env, out) {
            Ok(len) => {
                let is_read = wqe.op.needs_responder_resource();
                let responses = is_read.then(|| counted_responses(&wqe, segment.psn_count));
                let sent = self.advance(packet, responses, conn, timers, env);
                debug_assert!(is_read || self.in_window() <= env.window, "beyond the window");
                env.run = self.start_run(conn, env);
                Next::Packet(len, sent)
            }
            Err(status) => self.fail_in_order(status),
        }
    }

    /// The reason why a request that was never sent cannot be started now; `None` if it can.
    #[inline(always)] // Once per request; the result stays in registers.
    pub(super) fn obstacle_to_start(
        &self,
        wqe: Posted<'_, SendWqe>,
        conn: &Connection,
        env: &Env<'_>,
    ) -> Option<Next> {
        if conn.state == QpState::Sqd {
            return Some(Next::Blocked);
        }
        let fenced = wqe.flags.contains(SendFlags::FENCE) && self.reads_in_flight > 0;
        if fenced || conn.flow_control && self.lacks_credit(&wqe) {
            return Some(Next::Blocked);
        }
        if self.validated != Some(self.cursor_wqe)
            && let Err(status) = self.validate(wqe, conn, env)
        {
            return Some(self.fail_in_order(status));
        }
        (self.span_with(&wqe, conn.mtu) > PSN_SPAN).then_some(Next::Blocked)
    }

    /// PSNs outstanding once `wqe` is started.
    #[inline(always)] // Twice per request.
    pub(super) fn span_with(&self, wqe: &SendWqe, mtu: usize) -> u32 {
        let length = wqe.length.min(MAX_MESSAGE); // A longer request fails before it takes a PSN.
        self.una.distance_to(self.fresh_psn) + segment::psn_count(length, mtu)
    }

    /// Returns true if `wqe` must wait for end-to-end credits, which limit the requests that
    /// consume a receive. One such request may always be sent as a probe while no other packet is
    /// outstanding.
    fn lacks_credit(&self, wqe: &SendWqe) -> bool {
        if !wqe.info().consumes_receive() || !self.has_unacknowledged() {
            return false;
        }
        match self.credits {
            Credits::Unknown => true,
            Credits::Unlimited => false,
            Credits::UpTo(limit) => {
                let beyond = self.ssn.wrapping_add(1).wrapping_sub(limit) & SSN_MASK;
                beyond != 0 && beyond <= SSN_MASK / 2
            }
        }
    }

    /// Checks a request for errors of this side.
    #[inline(always)] // Once per request.
    pub(super) fn validate(
        &self,
        wqe: Posted<'_, SendWqe>,
        conn: &Connection,
        env: &Env<'_>,
    ) -> Result<(), Status> {
        let operation = wqe.info();
        if !operation.length.allows(wqe.length) {
            return Err(Status::LocalLength);
        }
        let lacks_depth = operation.needs_responder_resource() && self.max_rd_atomic == 0;
        if lacks_depth || !operation.services.contains(conn.service) {
            return Err(Status::LocalQpOperation);
        }
        let sges = wqe.sges(usize::from(wqe.num_sge));
        sg::check(env.memory, conn.pd, sges, operation.local_access)
            .map_err(|_| Status::LocalProtection)
    }

    /// Reports a local error in the order of the queue: only once all earlier requests are
    /// complete.
    pub(super) fn fail_in_order(&self, status: Status) -> Next {
        if self.cursor_wqe == self.sq.head() { Next::Failed(status) } else { Next::Blocked }
    }

    /// Starts the fresh request at the cursor: assigns its PSNs and the SSN of its first message.
    #[inline(always)] // Called once.
    fn start(&mut self, conn: &Connection) {
        let mut wqe = self.sq.posted_mut(self.cursor_wqe).expect("the cursor is in the queue");
        (wqe.first_psn, wqe.ssn) = (self.fresh_psn, self.ssn.wrapping_add(1) & SSN_MASK);
        wqe.psn_count = segment::psn_count(wqe.length, conn.mtu);
        wqe.split = self.splitter.splits(&wqe, conn, self.max_rd_atomic);
        self.ssn = self.ssn.wrapping_add(split::messages(&wqe)) & SSN_MASK;
        let span = self.una.distance_to(self.fresh_psn) + wqe.psn_count;
        assert!(span <= PSN_SPAN, "{span} PSNs outstanding: the peer takes some for duplicates");
        self.fresh_psn = wqe.end_psn();
        self.fresh_wqe = self.fresh_wqe.wrapping_add(1);
    }

    /// Returns true if the limits allow a packet of `wqe`: for READs and atomics, their depth and
    /// the read window, for others the send window. They also hold for retransmissions.
    #[inline(always)] // Called once.
    fn is_within_limits(&self, wqe: &SendWqe, segment: Segment, env: &mut Env<'_>) -> bool {
        // While something is missing, what arrives beyond the span would be dropped.
        let is_recovering = self.active_board().is_some();
        let outstanding = self.outstanding();
        if is_recovering && outstanding > 0 && outstanding + segment.psn_count > SPAN {
            return false;
        }
        if !wqe.op.needs_responder_resource() {
            return self.in_window() < env.window.min(self.window_after_timeout);
        }
        let most = self.splitter.max_outstanding(wqe);
        let most = most.min(self.reads_after_timeout.unwrap_or(most));
        let has_room = self.reads_in_flight < MAX_READS;
        if !has_room || self.awaited_reads() >= self.max_rd_atomic.min(most) {
            return false;
        }
        let packets = counted_responses(wqe, segment.psn_count);
        let fits = self.awaited_responses() + packets <= env.responses;
        if !fits {
            env.lacking_responses = packets;
        }
        fits
    }

    /// Returns true if the next request is a READ or atomic that the initiator depth allows.
    pub(super) fn can_request_responses(&self) -> bool {
        let next = self.sq.get(self.cursor_wqe);
        next.is_some_and(|wqe| wqe.op.needs_responder_resource())
            && self.awaited_reads() < self.max_rd_atomic
    }

    /// READs and atomics in flight that await a response. The peer has sent all responses to the
    /// others, so that they use nothing of its depth.
    fn awaited_reads(&self) -> u8 {
        let arrived = self.board.as_ref().map_or(0, |board| board.complete_reads());
        self.reads_in_flight.saturating_sub(arrived)
    }

    /// Responses in flight that have not arrived.
    #[inline]
    pub(super) fn awaited_responses(&self) -> u32 {
        let arrived = self.board.as_ref().map_or(0, |board| board.stored_responses());
        self.responses_in_flight.saturating_sub(arrived)
    }

    /// Moves the cursor past `packet`, which was written. `responses`: of a READ or atomic, its
    /// response packets, as [`counted_responses`] counts them. Returns the facts about the packet
    /// that congestion control needs.
    #[inline(always)] // Called once.
    fn advance(
        &mut self,
        packet: Outgoing,
        responses: Option<u32>,
        conn: &Connection,
        timers: &mut TimerTable,
        env: &mut Env<'_>,
    ) -> SentRequest {
        let Outgoing { psn, segment, ack_req: ack_requested } = packet;
        // If the timer runs although no packet was outstanding, it belongs to a stuck port.
        let starts_timer = !self.has_unacknowledged() || !timers.is_running(Timer::Ack);
        let carries_data = responses.is_none();
        let is_retransmit = psn.is_before(self.sent_end);
        self.since_ack_request =
            if ack_requested { 0 } else { self.since_ack_request.saturating_add(1) };
        let mut follows_loss = false;
        if is_retransmit {
            env.counters.count(Counter::RetransmittedPackets);
            follows_loss = self.losses.on_retransmit(psn, carries_data, ack_requested);
        }
        self.cursor_psn = psn.add(segment.psn_count);
        if let Some(responses) = responses {
            self.reads_in_flight += 1;
            self.responses_in_flight += responses;
            self.window_base = self.cursor_psn;
        }
        if segment.last {
            self.cursor_wqe = self.cursor_wqe.wrapping_add(1);
            if conn.service.is_reliable() && !ack_requested {
                self.validated = Some(self.cursor_wqe); // See `must_request_ack`.
            }
        }
        if self.sent_end.is_before(self.cursor_psn) {
            self.sent_end = self.cursor_psn;
        }
        if starts_timer {
            self.ack_timer.start(timers, env.now);
        }
        SentRequest { psn, carries_data, ack_requested, is_retransmit, follows_loss }
    }
}

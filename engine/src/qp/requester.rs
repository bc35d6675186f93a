//! The requester: which packet of the send queue goes out next.
//!
//! ```text
//!   send queue   head ....... cursor_wqe ....... fresh_wqe ....... tail
//!                acknowledged^ sent   ^ to send again    ^ never sent
//!   PSNs         una ........ cursor_psn ....... fresh_psn
//! ```
//! A request gets its PSNs when its first packet is sent. Going back (go-back-N) moves the cursor; the
//! [completer](super::completer) moves `una` and the head.

use feroce_wire::{
    AtomicEth, Bth, ExtHeaders, Feth, Ieth, ImmDt, Psn, Reth, XrcEth, write_transport,
};

use super::ground::Grounds;
use super::loss::LossDetector;
use super::response::RD_ATOMIC;
use super::segment::{self, Segment};
use super::timer::{Timer, TimerTable};
use super::{Connection, Env, QpState, Service, sg};
use crate::congestion::SentRequest;
use crate::counters::Counter;
use crate::memory::Access;
use crate::memory::work_ring::WorkConsumer;
use crate::time::Duration;
use crate::verbs::{MAX_MESSAGE, RemoteAddr, SendFlags, SendOp, SendWqe, Status};

/// At most this many packets are sent between two that ask for an acknowledgement; fewer if [`Env::ack_interval`] is.
pub const ACK_INTERVAL: u32 = 16;

/// The same where messages are split to fill super-frames: a handful of them. An acknowledgement is a frame of its own, and costs as much
/// as one of theirs.
const SPLIT_ACK_INTERVAL: u32 = 64;

/// PSNs that may be outstanding: half the PSN space, what a responder can tell apart from new ones.
const PSN_SPAN: u32 = 1 << 23;

/// Mask of the 24-bit send sequence number.
const SSN_MASK: u32 = 0xff_ffff;

/// Send side of a QP: what goes out.
#[derive(Debug)]
pub struct Requester {
    pub(super) sq: WorkConsumer<SendWqe>,
    /// Request and PSN of the next packet to send.
    pub(super) cursor_wqe: u32,
    pub(super) cursor_psn: Psn,
    /// First request that has no PSNs yet, and the PSN it will get.
    pub(super) fresh_wqe: u32,
    pub(super) fresh_psn: Psn,
    /// Oldest PSN not acknowledged.
    pub(super) una: Psn,
    /// One past the highest PSN ever sent.
    pub(super) sent_end: Psn,
    /// The send window counts from here: `una`, or the end of the last READ or atomic sent, whose PSNs
    /// are the responder's to send.
    window_base: Psn,
    /// Requests of READs and atomics sent and not answered: those whose answers end between `una` and the cursor.
    pub(super) reads_in_flight: u8,
    since_ack_request: u32,
    pub(super) losses: LossDetector,
    /// The request ahead of which no acknowledgement was asked for: it is known to be sound.
    sound: Option<u32>,
    pub(super) ssn: u32,
    credits: Credits,
    /// Where the peer has let it write and read, if messages may be split.
    pub(super) grounds: Option<Box<Grounds>>,
    /// It has bound windows.
    pub(super) binds: bool,
    /// Initiator depth: READs and atomics that may be outstanding.
    pub(super) max_rd_atomic: u8,
    /// Local ACK timeout; `None` waits for ever.
    pub(super) timeout: Option<Duration>,
    /// Packets that may wait for their acknowledgement while the peer is silent; without limit else.
    silent_window: u32,
    /// READs and atomics that may, meanwhile.
    silent_reads: Option<u8>,
}

/// End-to-end credits: how many requests that consume a receive the peer can take.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Credits {
    /// Nothing was heard yet.
    Unknown,
    /// The peer does not limit.
    Unlimited,
    /// Up to this SSN.
    UpTo(u32),
}

/// What [`Requester::next_packet`] did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Next {
    /// Wrote a packet of so many bytes, from the BTH to the pad.
    Packet(usize, SentRequest),
    /// Did a local request or passed over one: there may be more.
    Local,
    /// Nothing can be sent now.
    Blocked,
    /// The oldest request cannot be sent: it must be completed with this status.
    Failed(Status),
}

impl Requester {
    pub(super) fn new(sq: WorkConsumer<SendWqe>) -> Self {
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
            since_ack_request: 0,
            losses: LossDetector::default(),
            sound: None,
            ssn: 0,
            credits: Credits::Unknown,
            grounds: None,
            binds: false,
            max_rd_atomic: 0,
            timeout: None,
            silent_window: u32::MAX,
            silent_reads: None,
        }
    }

    /// Starts over at `psn`, dropping what is in the queue.
    pub(super) fn reset(&mut self, psn: Psn) {
        while !self.sq.is_empty() {
            self.sq.retire();
        }
        (self.cursor_wqe, self.fresh_wqe) = (self.sq.head(), self.sq.head());
        self.start_at(psn);
        (self.reads_in_flight, self.since_ack_request) = (0, 0);
        (self.ssn, self.credits, self.grounds) = (0, Credits::Unknown, None);
        self.losses = LossDetector::default();
    }

    /// Sets the PSN of the first packet; nothing has been sent yet.
    pub(super) fn start_at(&mut self, psn: Psn) {
        (self.cursor_psn, self.fresh_psn, self.una) = (psn, psn, psn);
        (self.sent_end, self.window_base) = (psn, psn);
        (self.silent_window, self.silent_reads) = (u32::MAX, None);
    }

    /// Notes that everything before `psn` is acknowledged, and answered. The window's base keeps up, or it would look as
    /// if it lay ahead once half the PSN space has gone by.
    pub(super) fn acknowledge(&mut self, psn: Psn) {
        if self.reads_in_flight > 0 {
            // What the cursor has yet to send again is not in flight.
            let sent = if self.cursor_psn.is_before(psn) { self.cursor_psn } else { psn };
            self.reads_in_flight -= self.answers_ended(self.una, sent);
        }
        self.una = psn;
        (self.silent_window, self.silent_reads) = (u32::MAX, None);
        if self.window_base.is_before(psn) {
            self.window_base = psn;
        }
    }

    /// Notes that the peer was silent for a timeout: each time, half as much goes to it, as long as it still asks for an
    /// acknowledgement. What it may be too slow for would wait in front of it, and once more with every retry; and where
    /// every nth packet is lost, retries that are all alike lose the same one.
    pub(super) fn note_silence(&mut self, window: u32) {
        self.silent_window = (self.silent_window.min(window) / 2).max(ACK_INTERVAL);
        // The first retry of READs is whole: they are small, and it is other requesters' way.
        let most = self.silent_reads.map_or(self.reads_in_flight, |most| most / 2);
        self.silent_reads = Some(most.max(1));
    }

    /// Packets are out that have not been acknowledged.
    pub(super) fn is_waiting(&self) -> bool {
        self.una != self.cursor_psn
    }

    /// Requests are to be sent, or sent again. A QP that is drained begins nothing new.
    pub(super) fn has_more(&self, state: QpState) -> bool {
        match state {
            QpState::Rts => !self.is_at_end(),
            QpState::Sqd => self.cursor_wqe != self.fresh_wqe,
            _ => false,
        }
    }

    /// Nothing is left to send.
    pub(super) fn is_at_end(&self) -> bool {
        self.sq.get(self.cursor_wqe).is_none()
    }

    /// The next request is done without the peer.
    pub(super) fn is_at_local(&self) -> bool {
        self.sq.get(self.cursor_wqe).is_some_and(|wqe| matches!(wqe.op, SendOp::Local(_)))
    }

    /// Every request that was begun is finished.
    pub(super) fn is_drained(&self) -> bool {
        self.fresh_wqe == self.sq.head()
    }

    /// Notes that the peer completed `msn` messages and has receives for `credits` more.
    pub(super) fn credit(&mut self, msn: u32, credits: Option<u32>) {
        self.credits = match credits {
            Some(credits) => Credits::UpTo(msn.wrapping_add(credits) & SSN_MASK),
            None => Credits::Unlimited,
        };
    }

    /// Goes back: the next packet sent is the one with `psn`, which must be outstanding or next.
    pub(super) fn rewind(&mut self, psn: Psn) {
        debug_assert!(self.una.at_or_before(psn) && psn.at_or_before(self.sent_end));
        self.losses.on_rewind(psn, self.cursor_psn, self.since_ack_request == 0);
        let mut index = self.sq.head();
        while index != self.fresh_wqe {
            let wqe = self.sq.get(index).expect("between head and fresh");
            if psn.is_before(wqe.end_psn()) {
                break;
            }
            index = index.wrapping_add(1);
        }
        (self.cursor_wqe, self.cursor_psn) = (index, psn);
        self.reads_in_flight = self.answers_ended(self.una, psn);
        self.window_base = psn;
        self.since_ack_request = 0;
    }

    /// How many answers of READs and atomics end behind `from`, which is not ahead of the head, and up to `to`.
    fn answers_ended(&self, from: Psn, to: Psn) -> u8 {
        let (mut index, mut at, mut ended) = (self.sq.head(), from, 0);
        while at.is_before(to) && index != self.fresh_wqe {
            let wqe = self.sq.get(index).expect("between head and fresh");
            if wqe.op.is_read_or_atomic() {
                ended += segment::answers_ended(wqe, from, to);
            }
            at = wqe.end_psn();
            index = index.wrapping_add(1);
        }
        u8::try_from(ended).expect("at most the initiator depth")
    }

    /// A drain waits for acknowledgements: sends the last packet again if it and those before it asked for
    /// none, because more was to follow.
    pub(super) fn ask_for_last_ack(&mut self) {
        if self.since_ack_request > 0 && self.cursor_wqe == self.fresh_wqe && self.is_waiting() {
            self.rewind(self.cursor_psn.prev());
        }
    }

    /// Writes the next packet, if one may be sent now, to the front of `out`.
    pub(super) fn next_packet(
        &mut self,
        conn: &Connection,
        timers: &mut TimerTable,
        env: &mut Env<'_>,
        out: &mut [u8],
    ) -> Next {
        let Some(&wqe) = self.sq.get(self.cursor_wqe) else { return Next::Blocked };
        if let SendOp::Local(op) = wqe.op {
            return self.next_local(&op, &wqe, conn, env);
        }
        let mut wqe = wqe;
        if self.cursor_wqe == self.fresh_wqe {
            if let Some(refusal) = self.admit(&wqe, conn, env) {
                return refusal;
            }
            self.begin(&mut wqe, conn);
        }
        if !self.may_send(&wqe, env.window) {
            return Next::Blocked;
        }
        let segment = segment::segment(&wqe, self.cursor_psn, conn.mtu);
        let ack_req = self.asks_for_ack(&wqe, segment, conn, env);
        match self.write_packet(&wqe, segment, ack_req, conn, env, out) {
            Ok(len) => {
                self.since_ack_request = if ack_req { 0 } else { self.since_ack_request + 1 };
                let sent = self.sent(&wqe, segment, ack_req, timers, env);
                Next::Packet(len, sent)
            }
            Err(status) => self.fail_in_turn(status),
        }
    }

    /// Reasons for which a request that was never sent cannot be begun now.
    pub(super) fn admit(&self, wqe: &SendWqe, conn: &Connection, env: &Env<'_>) -> Option<Next> {
        if conn.state == QpState::Sqd {
            return Some(Next::Blocked);
        }
        let fenced = wqe.flags.contains(SendFlags::FENCE) && self.reads_in_flight > 0;
        if fenced || self.lacks_credit(wqe, conn) {
            return Some(Next::Blocked);
        }
        if self.sound != Some(self.cursor_wqe)
            && let Err(status) = self.validate(self.cursor_wqe, wqe, conn, env)
        {
            return Some(self.fail_in_turn(status));
        }
        (self.span_with(wqe, conn.mtu) > PSN_SPAN).then_some(Next::Blocked)
    }

    /// PSNs outstanding once `wqe` is begun.
    fn span_with(&self, wqe: &SendWqe, mtu: usize) -> u32 {
        let length = wqe.length.min(MAX_MESSAGE); // Longer ones fail before they take a PSN.
        self.una.distance_to(self.fresh_psn) + segment::psn_count(length, mtu)
    }

    /// End-to-end credits, where they were negotiated, limit requests that consume a receive; one may
    /// always be sent to probe when nothing else is outstanding.
    fn lacks_credit(&self, wqe: &SendWqe, conn: &Connection) -> bool {
        if !conn.flow_control || !wqe.op.consumes_receive() || !self.is_waiting() {
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

    /// What can be wrong, on this side, with the request `wqe` at `index`.
    fn validate(
        &self,
        index: u32,
        wqe: &SendWqe,
        conn: &Connection,
        env: &Env<'_>,
    ) -> Result<(), Status> {
        let length_fits = match wqe.op {
            SendOp::CompareSwap { .. } | SendOp::FetchAdd { .. } | SendOp::AtomicWrite(_) => {
                wqe.length == 8
            }
            SendOp::Flush { .. } | SendOp::Local(_) => wqe.length == 0,
            _ => wqe.length <= MAX_MESSAGE,
        };
        if !length_fits {
            return Err(Status::LocalLength);
        }
        let unable = wqe.op.is_read_or_atomic() && self.max_rd_atomic == 0;
        if unable || !conn.service.sends(&wqe.op) {
            return Err(Status::LocalQpOperation);
        }
        let rights = match wqe.op.returns_data() {
            true => Access::LOCAL_WRITE,
            false => Access::NONE,
        };
        let sges = self.sq.sges(index, usize::from(wqe.num_sge));
        sg::check(env.memory, conn.pd, sges, rights).map_err(|_| Status::LocalProtection)
    }

    /// A local error is reported in turn: not before the requests ahead are done.
    pub(super) fn fail_in_turn(&self, status: Status) -> Next {
        if self.cursor_wqe == self.sq.head() { Next::Failed(status) } else { Next::Blocked }
    }

    /// Gives a fresh request its PSNs.
    fn begin(&mut self, wqe: &mut SendWqe, conn: &Connection) {
        self.ssn = self.ssn.wrapping_add(1) & SSN_MASK;
        wqe.first_psn = self.fresh_psn;
        wqe.psn_count = segment::wqe_psn_count(wqe, conn.mtu);
        wqe.split = segment::is_split(wqe, conn, self.grounds.as_deref(), self.max_rd_atomic);
        wqe.ssn = self.ssn;
        *self.sq.get_mut(self.cursor_wqe).expect("the cursor is in the queue") = *wqe;
        self.fresh_psn = wqe.end_psn();
        self.fresh_wqe = self.fresh_wqe.wrapping_add(1);
    }

    /// The limits that also hold for packets sent again.
    fn may_send(&self, wqe: &SendWqe, window: u32) -> bool {
        if wqe.op.is_read_or_atomic() {
            // Of longer requests, as many as there are parts would be much in flight.
            let long = self.grounds.is_some() && !segment::asks_for_parts(wqe);
            let most = if long { RD_ATOMIC } else { u8::MAX };
            let most = most.min(self.silent_reads.unwrap_or(most));
            return self.reads_in_flight < self.max_rd_atomic.min(most);
        }
        self.window_base.distance_to(self.cursor_psn) < window.min(self.silent_window)
    }

    /// Writes BTH, extended headers, payload and pad; returns their length.
    fn write_packet(
        &self,
        wqe: &SendWqe,
        segment: Segment,
        ack_req: bool,
        conn: &Connection,
        env: &Env<'_>,
        out: &mut [u8],
    ) -> Result<usize, Status> {
        let pad = segment.len.wrapping_neg() % 4;
        let solicited = segment.last && wqe.flags.contains(SendFlags::SOLICITED);
        let bth = Bth {
            solicited: solicited && wqe.op.consumes_receive(),
            pad: u8::try_from(pad).expect("less than four"),
            ack_req,
            ..conn.bth(segment.opcode, self.cursor_psn)
        };
        let mut ext = request_headers(wqe, segment);
        if conn.service == Service::XrcIni {
            ext.xrceth = Some(XrcEth { reserved: 0, srqn: wqe.srqn });
        }
        let headers = write_transport(out, &bth, &ext);
        let payload = &mut out[headers..headers + segment.len + pad];
        let (payload, pad_bytes) = payload.split_at_mut(segment.len);
        pad_bytes.fill(0);
        if wqe.inline {
            let data = self.sq.inline_data(self.cursor_wqe, inline_len(wqe));
            let start = usize::try_from(segment.offset).expect("inline data are short");
            payload.copy_from_slice(&data[start..start + segment.len]);
        } else {
            let sges = self.sq.sges(self.cursor_wqe, usize::from(wqe.num_sge));
            sg::gather(env.memory, conn.pd, sges, segment.offset, payload)
                .map_err(|_| Status::LocalProtection)?;
        }
        Ok(headers + segment.len + pad)
    }

    /// An acknowledgement is asked for after [`Self::ack_interval`] packets at the latest, and at the end of a
    /// request unless the next one follows at once: what waits for an acknowledgement must get one.
    fn asks_for_ack(
        &mut self,
        wqe: &SendWqe,
        segment: Segment,
        conn: &Connection,
        env: &Env<'_>,
    ) -> bool {
        if !conn.service.is_reliable() {
            return false;
        }
        if self.since_ack_request + 1 >= self.ack_interval(env) {
            return true;
        }
        let again = self.cursor_psn.is_before(self.sent_end);
        segment.last && (again || wqe.op.is_read_or_atomic() || !self.next_follows(conn, env))
    }

    /// Packets between two that ask for an acknowledgement, at most: twice that fits the window and the send queue, so that neither runs
    /// dry meanwhile.
    fn ack_interval(&self, env: &Env<'_>) -> u32 {
        if self.grounds.is_none() {
            return ACK_INTERVAL.min(env.ack_interval);
        }
        let half = env.window.min(self.silent_window).min(self.sq.capacity()) / 2;
        half.clamp(ACK_INTERVAL, SPLIT_ACK_INTERVAL).min(env.ack_interval)
    }

    /// The request behind the cursor's will be sent without waiting for anything. One that fails here
    /// is not: it waits for its turn.
    fn next_follows(&mut self, conn: &Connection, env: &Env<'_>) -> bool {
        let index = self.cursor_wqe.wrapping_add(1);
        let Some(next) = self.sq.get(index) else { return false };
        let follows = conn.state == QpState::Rts
            && !conn.flow_control
            && !next.op.is_read_or_atomic()
            && !matches!(next.op, SendOp::Local(_))
            && !next.flags.contains(SendFlags::FENCE)
            && self.span_with(next, conn.mtu) <= PSN_SPAN
            && self.validate(index, next, conn, env).is_ok();
        self.sound = follows.then_some(index);
        follows
    }

    /// Moves the cursor past a packet that was written.
    fn sent(
        &mut self,
        wqe: &SendWqe,
        segment: Segment,
        ack_requested: bool,
        timers: &mut TimerTable,
        env: &mut Env<'_>,
    ) -> SentRequest {
        // A timer that runs although nothing was outstanding is that of a port that was stuck.
        let starts = !self.is_waiting() || !timers.is_running(Timer::Ack);
        let (psn, carries_data) = (self.cursor_psn, !wqe.op.is_read_or_atomic());
        let is_retransmit = psn.is_before(self.sent_end);
        let mut follows_loss = false;
        if is_retransmit {
            env.counters.count(Counter::RetransmittedPackets);
            follows_loss = self.losses.on_retransmit(psn, carries_data, ack_requested);
        }
        if wqe.op.is_read_or_atomic() {
            self.reads_in_flight += 1;
            self.cursor_psn = self.cursor_psn.add(segment.psn_count);
            self.window_base = self.cursor_psn;
        } else {
            self.cursor_psn = self.cursor_psn.next();
        }
        if segment.last {
            self.cursor_wqe = self.cursor_wqe.wrapping_add(1);
        }
        if self.sent_end.is_before(self.cursor_psn) {
            self.sent_end = self.cursor_psn;
        }
        if let Some(timeout) = self.timeout.filter(|_| starts) {
            timers.set(Timer::Ack, env.now + timeout);
        }
        SentRequest { psn, carries_data, ack_requested, is_retransmit, follows_loss }
    }
}

fn inline_len(wqe: &SendWqe) -> usize {
    usize::try_from(wqe.length).expect("inline data are short")
}

/// The RETH of `segment` of a message about `remote`.
fn reth(remote: RemoteAddr, segment: Segment) -> Reth {
    Reth {
        va: remote.addr.wrapping_add(segment.offset),
        rkey: remote.rkey,
        dma_len: u32::try_from(segment.span).expect("at most 2^31"),
    }
}

/// The extended headers of one packet of `wqe`.
#[inline]
fn request_headers(wqe: &SendWqe, segment: Segment) -> ExtHeaders {
    let mut ext = ExtHeaders::default();
    let first = segment.offset == 0 || wqe.split;
    match wqe.op {
        SendOp::Send => {}
        SendOp::SendImm(imm) => ext.imm = segment.last.then_some(ImmDt(imm)),
        SendOp::SendInvalidate(rkey) => ext.ieth = segment.last.then_some(Ieth { rkey }),
        SendOp::Write(remote) | SendOp::WriteImm(remote, _) => {
            ext.reth = first.then(|| reth(remote, segment));
            if let SendOp::WriteImm(_, imm) = wqe.op {
                ext.imm = segment.last.then_some(ImmDt(imm));
            }
        }
        SendOp::Read(remote) => {
            ext.reth = Some(reth(remote, segment));
        }
        SendOp::CompareSwap { remote, compare, swap } => {
            let (va, rkey) = (remote.addr, remote.rkey);
            ext.atomic_eth = Some(AtomicEth { va, rkey, swap_or_add: swap, compare });
        }
        SendOp::FetchAdd { remote, add } => {
            let (va, rkey) = (remote.addr, remote.rkey);
            ext.atomic_eth = Some(AtomicEth { va, rkey, swap_or_add: add, compare: 0 });
        }
        SendOp::AtomicWrite(RemoteAddr { addr: va, rkey }) => {
            ext.reth = Some(Reth { va, rkey, dma_len: 8 });
        }
        SendOp::Flush { remote: RemoteAddr { addr: va, rkey }, length, placement, selectivity } => {
            ext.feth = Some(Feth { reserved: 0, selectivity, placement });
            ext.reth = Some(Reth { va, rkey, dma_len: length });
        }
        SendOp::Local(_) => {}
    }
    ext
}

//! When packets that the requester sends again were lost, and when they are sent again for another
//! reason: the peer had no receive, a response was lost, or the requester requests an
//! acknowledgement.

use feroce_wire::{NakCode, Operation, PacketView, Psn, Syndrome};

/// Decides for the first packet after each go-back whether packets were lost.
#[derive(Debug, Clone, Copy, Default)]
pub struct LossDetector {
    /// After a go-back and before the next packet: one past the last packet sent before, and
    /// whether that packet requested an acknowledgement.
    gone_back: Option<(Psn, bool)>,
    /// The peer had no receive for this packet (RNR NAK): it is sent again but was not lost.
    not_ready: Option<Psn>,
    /// The peer reported this packet as missing: the next go-back is because of a loss, whichever
    /// packet it begins with.
    missing: Option<Psn>,
}

impl LossDetector {
    /// The requester goes back from `cursor` to `psn`. `ack_requested`: the packet before
    /// `cursor` requested an acknowledgement.
    #[cold]
    pub fn on_rewind(&mut self, psn: Psn, cursor: Psn, ack_requested: bool) {
        let is_known = self.gone_back.is_some_and(|(end, _)| !end.is_before(cursor));
        if psn.is_before(cursor) && !is_known {
            self.gone_back = Some((cursor, ack_requested));
        }
    }

    /// The requester sends packet `psn` again. Returns true if it is the first one after packets
    /// were lost. A READ or atomic does not show a loss of requests unless the peer reported one:
    /// its response may have been lost. A last packet that is repeated only to request an
    /// acknowledgement was not lost.
    #[cold]
    pub fn on_retransmit(&mut self, psn: Psn, carries_data: bool, ack_requested: bool) -> bool {
        let Some((end, was_requested)) = self.gone_back.take() else { return false };
        if !psn.is_before(end) {
            return false;
        }
        let was_not_ready = self.not_ready.take() == Some(psn);
        let requests_last_ack = end == psn.next() && ack_requested && !was_requested;
        let was_reported = self.missing.take().is_some();
        was_reported || (carries_data && !was_not_ready && !requests_last_ack)
    }

    /// A response arrived. Returns the PSN that it acknowledges, if any.
    #[inline]
    pub fn on_response(&mut self, packet: &PacketView<'_>) -> Option<Psn> {
        let psn = packet.bth().psn;
        let syndrome = packet.ext().aeth().map(|aeth| aeth.syndrome);
        match syndrome {
            Some(Syndrome::RnrNak(_)) => self.not_ready = Some(psn),
            Some(Syndrome::Nak(NakCode::PsnSequence)) => self.missing = Some(psn),
            // The packet was late and has arrived.
            _ if self.missing.is_some_and(|missing| !psn.is_before(missing)) => self.missing = None,
            _ => {}
        }
        let acknowledges = match packet.info.operation {
            Operation::Acknowledge => matches!(syndrome, Some(Syndrome::Ack(_))),
            Operation::ReadResponse | Operation::AtomicAcknowledge => true,
            _ => false,
        };
        acknowledges.then_some(psn)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use feroce_wire::{
        Aeth, Bth, CreditCode, ExtHeaders, FlowHeader, FlowSpec, IpAddresses, Key, MacAddr, Msn,
        Opcode, PathMtu, Pkey, Qpn, RnrTimer, write_transport,
    };

    use super::*;
    use crate::congestion::{RoundTrip, RoundTrips, Sent, SentRequest};
    use crate::counters::Counters;
    use crate::memory::arena::Arena;
    use crate::memory::work_ring::{WorkProducer, work_ring};
    use crate::memory::{Access, KeySpace, Memory, MrTable, PdId, Recent};
    use crate::qp::attributes::QpAttributes;
    use crate::qp::{Env, Qp, QpParts, QpState, ReceiveQueue, SrqTable};
    use crate::time::{Duration, Instant};
    use crate::verbs::{CqId, CqRing, EventQueue, RemoteAddr, SendFlags, SendOp, SendWqe, Service};

    /// The parts of a requester that report facts to congestion control, with the round trips that
    /// follow from these facts.
    #[derive(Default)]
    struct Facts {
        losses: LossDetector,
        trips: RoundTrips,
        /// One past the packet sent last, and whether that packet requested an acknowledgement.
        cursor: Option<Psn>,
        ack_requested: bool,
        /// One past the highest PSN sent.
        sent_end: Option<Psn>,
    }

    impl Facts {
        /// Sends a packet. Returns true if it is the first one after a loss.
        fn on_sent(&mut self, bth: &Bth, bytes: u64, now: Instant) -> bool {
            let (psn, ack_requested) = (bth.psn, bth.ack_req);
            let operation = bth.opcode.info().expect("a known opcode").operation;
            let carries_data = matches!(operation, Operation::Send | Operation::Write);
            let is_before = |end: Option<Psn>| end.is_some_and(|end| psn.is_before(end));
            if let Some(cursor) = self.cursor.filter(|_| is_before(self.cursor)) {
                self.losses.on_rewind(psn, cursor, self.ack_requested);
            }
            let is_retransmit = is_before(self.sent_end);
            let follows_loss =
                is_retransmit && self.losses.on_retransmit(psn, carries_data, ack_requested);
            (self.cursor, self.ack_requested) = (Some(psn.next()), ack_requested);
            if !is_retransmit {
                self.sent_end = self.cursor;
            }
            let sent =
                SentRequest { psn, carries_data, ack_requested, is_retransmit, follows_loss };
            self.trips.on_sent(&sent, bytes, now);
            follows_loss
        }

        fn on_packet(&mut self, packet: &PacketView<'_>, now: Instant) -> Option<RoundTrip> {
            let acked = self.losses.on_response(packet)?;
            self.trips.on_acked(acked, now)
        }
    }

    fn at(micros: u64) -> Instant {
        Instant::from_nanos(micros * 1000)
    }

    fn bth(opcode: Opcode, psn: u32, ack_req: bool) -> Bth {
        Bth { opcode, psn: Psn::new(psn), ack_req, ..Bth::default() }
    }

    fn trip(micros: u64, bytes: u64) -> Option<RoundTrip> {
        Some(RoundTrip { time: Duration::from_micros(micros), bytes })
    }

    /// Receives an acknowledgement of `psn`.
    fn respond(facts: &mut Facts, psn: u32, syndrome: Syndrome, now: Instant) -> Option<RoundTrip> {
        respond_with(facts, Opcode::RC_ACKNOWLEDGE, psn, syndrome, now)
    }

    fn respond_with(
        facts: &mut Facts,
        opcode: Opcode,
        psn: u32,
        syndrome: Syndrome,
        now: Instant,
    ) -> Option<RoundTrip> {
        let addresses = IpAddresses::V4 { src: [10, 0, 0, 1].into(), dst: [10, 0, 0, 2].into() };
        let flow = FlowHeader::new(&FlowSpec::new(MacAddr([2; 6]), MacAddr([4; 6]), addresses));
        let mut frame = [0; 128];
        let aeth = Some(Aeth { syndrome, msn: Msn::new(1) });
        let ext = ExtHeaders { aeth, ..ExtHeaders::default() };
        let bth = bth(opcode, psn, false);
        let len = write_transport(&mut frame[flow.len()..], &bth, &ext);
        let len = flow.seal(&mut frame, len, 1);
        facts.on_packet(&PacketView::parse(&frame[..len], &[]).unwrap(), now)
    }

    const ACK: Syndrome = Syndrome::Ack(CreditCode::UNLIMITED);

    #[test]
    fn a_round_trip_ends_with_the_acknowledgement_of_the_probe() {
        let mut facts = Facts::default();
        for (psn, ack_req, micros) in [(8, false, 1), (9, true, 2), (10, true, 3)] {
            let sent = bth(Opcode::RC_SEND_ONLY, psn, ack_req);
            assert!(!facts.on_sent(&sent, 100, at(micros)));
        }
        assert_eq!(respond(&mut facts, 8, ACK, at(4)), None);
        let nak = Syndrome::Nak(NakCode::PsnSequence);
        assert_eq!(respond(&mut facts, 9, nak, at(5)), None);
        assert_eq!(respond(&mut facts, 10, ACK, at(12)), trip(10, 200));
        assert_eq!(respond(&mut facts, 10, ACK, at(13)), None, "one at a time");
        assert!(!facts.on_sent(&bth(Opcode::RC_WRITE_ONLY, 11, true), 50, at(20)));
        assert_eq!(respond(&mut facts, 11, ACK, at(23)), trip(3, 150));
    }

    #[test]
    fn a_packet_sent_twice_is_not_measured() {
        let mut facts = Facts::default();
        let sent = bth(Opcode::RC_SEND_ONLY, 0xff_ffff, true);
        assert!(!facts.on_sent(&sent, 100, at(1)));
        assert!(facts.on_sent(&sent, 100, at(50)), "it was lost");
        assert_eq!(respond(&mut facts, 0xff_ffff, ACK, at(60)), None);
        assert!(
            !facts.on_sent(&bth(Opcode::RC_SEND_ONLY, 0, true), 100, at(70)),
            "across the wrap"
        );
        let read = bth(Opcode::RC_READ_REQUEST, 0, true);
        assert!(!facts.on_sent(&read, 100, at(71)), "the responder decides when it responds");
    }

    fn send(facts: &mut Facts, opcode: Opcode, psn: u32) -> bool {
        facts.on_sent(&bth(opcode, psn, true), 100, at(1))
    }

    const SEND: Opcode = Opcode::RC_SEND_ONLY;
    const READ: Opcode = Opcode::RC_READ_REQUEST;

    #[test]
    fn a_go_back_is_one_loss() {
        let mut facts = Facts::default();
        for psn in 0..6 {
            assert!(!send(&mut facts, SEND, psn));
        }
        assert_eq!([2, 3, 4].map(|psn| send(&mut facts, SEND, psn)), [true, false, false]);
        assert_eq!(
            [3, 4, 5, 6].map(|psn| send(&mut facts, SEND, psn)),
            [true, false, false, false]
        );
    }

    #[test]
    fn an_rnr_nak_is_not_a_loss() {
        let mut facts = Facts::default();
        let rnr = Syndrome::RnrNak(feroce_wire::RnrTimer::new(1).unwrap());
        assert_eq!([0, 1, 2].map(|psn| send(&mut facts, SEND, psn)), [false; 3]);
        for _ in 0..2 {
            assert_eq!(respond(&mut facts, 1, rnr, at(2)), None);
            assert_eq!([1, 2].map(|psn| send(&mut facts, SEND, psn)), [false; 2]);
        }
        assert!(send(&mut facts, SEND, 1), "the timeout after that is a loss");
    }

    #[test]
    fn a_lost_read_response_is_not_a_lost_request() {
        let mut facts = Facts::default();
        assert_eq!(
            [READ, SEND].map(|op| send(&mut facts, op, if op == READ { 0 } else { 4 })),
            [false; 2]
        );
        assert_eq!(
            [READ, SEND].map(|op| send(&mut facts, op, if op == READ { 1 } else { 4 })),
            [false; 2]
        );
    }

    #[test]
    fn a_missing_packet_behind_an_unanswered_read_is_a_loss() {
        let mut facts = Facts::default();
        assert_eq!([send(&mut facts, READ, 0), send(&mut facts, SEND, 4)], [false; 2]);
        assert!(!send(&mut facts, SEND, 5));
        let nak = Syndrome::Nak(NakCode::PsnSequence);
        assert_eq!(respond(&mut facts, 4, nak, at(2)), None);
        // The go-back begins with the READ.
        let again = [(READ, 0), (SEND, 4), (SEND, 5)];
        assert_eq!(again.map(|(op, psn)| send(&mut facts, op, psn)), [true, false, false]);
        // The missing packet was late and arrives.
        assert_eq!(respond(&mut facts, 4, nak, at(3)), None);
        assert_eq!(respond(&mut facts, 5, ACK, at(4)), None);
        assert_eq!([send(&mut facts, READ, 6), send(&mut facts, READ, 6)], [false; 2]);
    }

    #[test]
    fn repeating_the_last_packet_for_an_acknowledgement_is_not_a_loss() {
        let mut facts = Facts::default();
        for psn in 0..3 {
            assert!(!facts.on_sent(&bth(SEND, psn, false), 100, at(1)));
        }
        assert!(!facts.on_sent(&bth(SEND, 2, true), 100, at(2)), "requests an acknowledgement now");
        assert!(facts.on_sent(&bth(SEND, 2, true), 100, at(9)), "no acknowledgement arrived");
    }

    #[test]
    fn read_responses_take_psns() {
        let mut facts = Facts::default();
        assert!(!send(&mut facts, SEND, 0));
        assert_eq!(respond(&mut facts, 0, ACK, at(2)), trip(1, 100));
        // Each has 2^22 response packets.
        for psn in [1, 1 + (1 << 22), 1 + (2 << 22)] {
            assert!(!send(&mut facts, READ, psn));
        }
        let psn = 1 + (3 << 22);
        assert!(!send(&mut facts, SEND, psn), "sent for the first time");
        assert_eq!(respond(&mut facts, psn, ACK, at(5)), trip(4, 100));
    }

    #[test]
    fn a_read_response_acknowledges_earlier_requests() {
        let mut facts = Facts::default();
        assert_eq!([send(&mut facts, SEND, 0), send(&mut facts, READ, 1)], [false; 2]);
        let response = Opcode::RC_READ_RESPONSE_ONLY;
        assert_eq!(respond_with(&mut facts, response, 1, ACK, at(4)), trip(3, 100));
        // An idle time is not part of a round trip.
        assert!(!facts.on_sent(&bth(SEND, 2, true), 100, at(1_000_000)));
        assert_eq!(respond(&mut facts, 2, ACK, at(1_000_002)), trip(2, 100));
    }

    /// A real QP in RTS. The facts under test are those that its requester fills.
    struct Sender {
        qp: Qp,
        posts: WorkProducer<SendWqe>,
        memory: MrTable,
        counters: Counters,
        events: EventQueue,
        srqs: SrqTable,
        now: Instant,
    }

    const ADDRESSES: [[u8; 4]; 2] = [[10, 0, 0, 1], [10, 0, 0, 2]];

    /// Headers of packets from end `from`: 0 is the QP under test.
    fn headers(from: usize) -> FlowHeader {
        let ends = [ADDRESSES[from], ADDRESSES[1 - from]];
        let addresses = IpAddresses::V4 { src: ends[0].into(), dst: ends[1].into() };
        FlowHeader::new(&FlowSpec::new(MacAddr([2; 6]), MacAddr([4; 6]), addresses))
    }

    impl Sender {
        fn new() -> Self {
            let arena = Arena::new(1 << 20).unwrap();
            let (posts, sq) = work_ring(&arena, 16, 256).unwrap();
            let cq = Arc::new(CqRing::new(CqId(1), 16));
            let parts = QpParts {
                service: Service::Rc,
                qpn: Qpn::masked(0x11),
                pd: PdId(1),
                send_cq: Arc::clone(&cq),
                recv_cq: cq,
                sq,
                rq: ReceiveQueue::none(),
                all_signaled: false,
                min_ack_timeout: 0,
                ahead: None,
            };
            let mut sender = Self {
                qp: Qp::new(parts),
                posts,
                memory: MrTable::new(1, KeySpace::identity()),
                counters: Counters::default(),
                events: EventQueue::new(4).unwrap(),
                srqs: SrqTable::new(),
                now: at(1),
            };
            let none = QpAttributes::default();
            let psn = Some(Psn::new(0));
            let init = QpAttributes {
                state: Some(QpState::Init),
                pkey: Some(Pkey::DEFAULT),
                port: Some(1),
                access: Some(Access::NONE),
                ..none
            };
            let rtr = QpAttributes {
                state: Some(QpState::Rtr),
                flow: Some(headers(0)),
                path_mtu: PathMtu::from_bytes(256),
                dest_qp: Some(Qpn::masked(0x22)),
                rq_psn: psn,
                max_dest_rd_atomic: Some(1),
                min_rnr_timer: RnrTimer::new(1),
                ..none
            };
            let rts = QpAttributes {
                state: Some(QpState::Rts),
                timeout: Some(14),
                retry_cnt: Some(7),
                rnr_retry: Some(7),
                sq_psn: psn,
                max_rd_atomic: Some(1),
                ..none
            };
            for attributes in [init, rtr, rts] {
                sender.call(|qp, env| qp.modify(&attributes, env).unwrap());
            }
            sender
        }

        fn call<T>(&mut self, call: impl FnOnce(&mut Qp, &mut Env<'_>) -> T) -> T {
            let Self { qp, memory, counters, events, srqs, now, .. } = self;
            let recent = Recent::default();
            let memory = Memory::new(memory, &recent);
            call(qp, &mut Env::new(*now, memory, counters, events, 64, srqs))
        }

        fn post(&mut self, op: SendOp) {
            let wqe = SendWqe::new(0, op, 0, SendFlags::NONE);
            assert!(self.posts.push(&wqe, &[]));
        }

        /// Sends what may be sent: PSN, whether the packet is a retransmission, and whether it is
        /// the first one after a loss.
        fn send(&mut self) -> Vec<(u32, bool, bool)> {
            let mut out = [0; 512];
            std::iter::from_fn(|| {
                let sent = self.call(|qp, env| qp.poll_transmit(env, &mut out))?.sent;
                let Sent::Request(sent) = sent else { panic!("{sent:?}") };
                Some((sent.psn.value(), sent.is_retransmit, sent.follows_loss))
            })
            .collect()
        }

        /// Receives an acknowledgement of `psn`.
        fn respond(&mut self, psn: u32, syndrome: Syndrome) {
            let flow = headers(1);
            let mut frame = [0; 128];
            let ext = ExtHeaders {
                aeth: Some(Aeth { syndrome, msn: Msn::new(0) }),
                ..ExtHeaders::default()
            };
            let dest_qp = Qpn::masked(0x11);
            let bth = Bth { dest_qp, ..bth(Opcode::RC_ACKNOWLEDGE, psn, false) };
            let len = write_transport(&mut frame[flow.len()..], &bth, &ext);
            let len = flow.seal(&mut frame, len, 1);
            let packet = PacketView::parse(&frame[..len], &[]).unwrap();
            self.call(|qp, env| qp.handle_packet(&packet, env));
        }

        /// Waits for the next timer of the QP.
        fn time_out(&mut self) {
            self.now = self.qp.poll_timeout().expect("a timer runs");
            self.call(|qp, env| qp.handle_timeout(false, env));
        }
    }

    const WRITE: SendOp = SendOp::Write(RemoteAddr { addr: 0, rkey: Key(0) });
    const FIRST: bool = false;
    const AGAIN: bool = true;

    #[test]
    fn a_requester_reports_a_packet_that_the_peer_misses_as_lost() {
        let mut sender = Sender::new();
        (0..3).for_each(|_| sender.post(WRITE));
        assert_eq!(sender.send(), [(0, FIRST, false), (1, FIRST, false), (2, FIRST, false)]);
        sender.respond(1, Syndrome::Nak(NakCode::PsnSequence));
        assert_eq!(sender.send(), [(1, AGAIN, true), (2, AGAIN, false)]);
    }

    #[test]
    fn a_requester_reports_one_loss_per_timeout_and_none_per_rnr_nak() {
        let mut sender = Sender::new();
        (0..2).for_each(|_| sender.post(SendOp::Send));
        assert_eq!(sender.send(), [(0, FIRST, false), (1, FIRST, false)]);
        sender.respond(0, Syndrome::RnrNak(RnrTimer::new(1).unwrap()));
        assert_eq!(sender.send(), []);
        sender.time_out();
        assert_eq!(sender.send(), [], "the wait begins with the next turn");
        sender.time_out();
        assert_eq!(sender.send(), [(0, AGAIN, false), (1, AGAIN, false)]);
        sender.time_out();
        assert_eq!(sender.send(), [(0, AGAIN, true), (1, AGAIN, false)]);
    }

    #[test]
    fn a_requester_reports_no_loss_for_a_read_without_a_response() {
        let mut sender = Sender::new();
        sender.post(SendOp::Read(RemoteAddr { addr: 0, rkey: Key(0) }));
        assert_eq!(sender.send(), [(0, FIRST, false)]);
        sender.time_out();
        assert_eq!(sender.send(), [(0, AGAIN, false)]);
    }

    /// The last packet before SQD requested no acknowledgement, because a third packet was to
    /// follow.
    #[test]
    fn a_requester_reports_no_loss_for_a_packet_repeated_for_its_acknowledgement() {
        let mut sender = Sender::new();
        (0..2).for_each(|_| sender.post(WRITE));
        let mut out = [0; 512];
        let sent = sender.call(|qp, env| qp.poll_transmit(env, &mut out)).unwrap().sent;
        assert!(matches!(sent, Sent::Request(SentRequest { ack_requested: false, .. })));
        let sqd = QpAttributes { state: Some(QpState::Sqd), ..QpAttributes::default() };
        sender.call(|qp, env| qp.modify(&sqd, env).unwrap());
        assert_eq!(sender.send(), [(0, AGAIN, false)]);
        sender.time_out();
        assert_eq!(sender.send(), [(0, AGAIN, true)]);
    }
}

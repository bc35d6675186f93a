//! Round trips of a QP, from what it sends and what comes back: one measured at a time, never of a packet that was
//! sent twice.

use feroce_wire::{Bth, NakCode, Operation, Packet, Psn, Syndrome};

use crate::time::{Duration, Instant};

/// See the [module](self).
#[derive(Debug, Clone, Copy, Default)]
pub struct Delays {
    probe: Option<Probe>,
    /// One past the request packet that went out last, and whether that asked for an acknowledgement.
    next: Option<Psn>,
    asked: bool,
    /// One past the highest PSN sent. Of a READ, which takes more, the first counts: what follows is beyond it.
    end: Option<Psn>,
    /// The peer had no receive for this packet: it comes again, and was not lost.
    not_ready: Option<Psn>,
    /// The peer misses this packet: what goes again next goes because of a loss, whatever it is.
    missing: Option<Psn>,
    /// Bytes of requests sent, and those of them that a measured acknowledgement was for.
    sent: u64,
    acknowledged: u64,
}

#[derive(Debug, Clone, Copy)]
struct Probe {
    psn: Psn,
    at: Instant,
    /// Bytes sent up to this packet.
    sent: u64,
}

/// A round trip.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RoundTrip {
    /// How long it took.
    pub time: Duration,
    /// Bytes acknowledged since the one before.
    pub bytes: u64,
}

impl Delays {
    /// A packet with the header `bth` went out, `bytes` long. True if packets were lost before, at the first of those that go
    /// again. That of a READ tells nothing of requests unless the peer has said what it misses: it may have been the answer that
    /// was lost. One that goes again at once, and asks for an acknowledgement where it asked for none, drains the queue.
    pub fn on_sent(&mut self, bth: &Bth, bytes: u64, now: Instant) -> bool {
        let info = bth.opcode.info();
        let Some(info) = info.filter(|info| info.is_request()) else { return false };
        let (psn, next) = (bth.psn, bth.psn.next());
        let carries_data = matches!(info.operation, Operation::Send | Operation::Write);
        let is_behind = |end: Option<Psn>| end.is_some_and(|end| psn.is_before(end));
        let asked = std::mem::replace(&mut self.asked, bth.ack_req);
        let before = self.next.replace(next);
        if is_behind(before) {
            self.probe = None;
            let waited = self.not_ready.take() == Some(psn);
            let drains = before == Some(next) && bth.ack_req && !asked;
            let is_missed = self.missing.take().is_some();
            return is_missed || (carries_data && !waited && !drains);
        }
        if is_behind(self.end) {
            return false;
        }
        self.end = Some(next);
        if carries_data {
            self.sent += bytes;
            if bth.ack_req && self.probe.is_none() {
                self.probe = Some(Probe { psn, at: now, sent: self.sent });
            }
        }
        false
    }

    /// A packet came: the round trip that it ends. The answer to a READ or an atomic behind the probe ends it, too: no
    /// acknowledgement of its own may come.
    pub fn on_packet(&mut self, packet: &Packet<'_>, now: Instant) -> Option<RoundTrip> {
        let syndrome = packet.ext.aeth.map(|aeth| aeth.syndrome);
        match syndrome {
            Some(Syndrome::RnrNak(_)) => self.not_ready = Some(packet.bth.psn),
            Some(Syndrome::Nak(NakCode::PsnSequence)) => self.missing = Some(packet.bth.psn),
            // It was late: the packet has arrived. PSNs of the peer's own requests are others.
            _ if packet.info.is_response()
                && self.missing.is_some_and(|psn| !packet.bth.psn.is_before(psn)) =>
            {
                self.missing = None;
            }
            _ => {}
        }
        let probe = self.probe?;
        let acknowledges = match packet.info.operation {
            Operation::Acknowledge => matches!(syndrome, Some(Syndrome::Ack(_))),
            Operation::ReadResponse | Operation::AtomicAcknowledge => true,
            _ => false,
        };
        if !acknowledges || packet.bth.psn.is_before(probe.psn) {
            return None;
        }
        self.probe = None;
        let bytes = probe.sent - self.acknowledged;
        self.acknowledged = probe.sent;
        Some(RoundTrip { time: now.saturating_since(probe.at), bytes })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use feroce_wire::{
        Aeth, CreditCode, ExtHeaders, FlowHeader, FlowSpec, IpAddresses, MacAddr, Msn, Opcode,
        write_transport,
    };

    fn at(micros: u64) -> Instant {
        Instant::from_nanos(micros * 1000)
    }

    fn bth(opcode: Opcode, psn: u32, ack_req: bool) -> Bth {
        Bth { opcode, psn: Psn::new(psn), ack_req, ..Bth::default() }
    }

    fn trip(micros: u64, bytes: u64) -> Option<RoundTrip> {
        Some(RoundTrip { time: Duration::from_micros(micros), bytes })
    }

    /// An acknowledgement of `psn`, as it comes.
    fn answer(
        delays: &mut Delays,
        psn: u32,
        syndrome: Syndrome,
        now: Instant,
    ) -> Option<RoundTrip> {
        answer_with(delays, Opcode::RC_ACKNOWLEDGE, psn, syndrome, now)
    }

    fn answer_with(
        delays: &mut Delays,
        opcode: Opcode,
        psn: u32,
        syndrome: Syndrome,
        now: Instant,
    ) -> Option<RoundTrip> {
        let flow = FlowHeader::new(&FlowSpec {
            dst_mac: MacAddr([2; 6]),
            src_mac: MacAddr([4; 6]),
            vlan: None,
            addresses: IpAddresses::V4 { src: [10, 0, 0, 1].into(), dst: [10, 0, 0, 2].into() },
            traffic_class: 0,
            hop_limit: 64,
            flow_label: 0,
            udp_source_port: 49_152,
            super_frames: false,
        });
        let mut frame = [0; 128];
        let aeth = Some(Aeth { syndrome, msn: Msn::new(1) });
        let ext = ExtHeaders { aeth, ..ExtHeaders::default() };
        let bth = bth(opcode, psn, false);
        let len = write_transport(&mut frame[flow.len()..], &bth, &ext);
        let len = flow.seal(&mut frame, len, 1);
        delays.on_packet(&Packet::parse(&frame[..len], &[]).unwrap(), now)
    }

    const ACK: Syndrome = Syndrome::Ack(CreditCode::UNLIMITED);

    #[test]
    fn from_the_packet_that_asks_to_the_answer() {
        let mut delays = Delays::default();
        for (psn, ack_req, micros) in [(8, false, 1), (9, true, 2), (10, true, 3)] {
            let sent = bth(Opcode::RC_SEND_ONLY, psn, ack_req);
            assert!(!delays.on_sent(&sent, 100, at(micros)));
        }
        assert_eq!(answer(&mut delays, 8, ACK, at(4)), None);
        let nak = Syndrome::Nak(NakCode::PsnSequence);
        assert_eq!(answer(&mut delays, 9, nak, at(5)), None);
        assert_eq!(answer(&mut delays, 10, ACK, at(12)), trip(10, 200));
        assert_eq!(answer(&mut delays, 10, ACK, at(13)), None, "one at a time");
        assert!(!delays.on_sent(&bth(Opcode::RC_WRITE_ONLY, 11, true), 50, at(20)));
        assert_eq!(answer(&mut delays, 11, ACK, at(23)), trip(3, 150));
    }

    #[test]
    fn what_goes_twice_is_not_measured() {
        let mut delays = Delays::default();
        let sent = bth(Opcode::RC_SEND_ONLY, 0xff_ffff, true);
        assert!(!delays.on_sent(&sent, 100, at(1)));
        assert!(delays.on_sent(&sent, 100, at(50)), "it was lost");
        assert_eq!(answer(&mut delays, 0xff_ffff, ACK, at(60)), None);
        assert!(
            !delays.on_sent(&bth(Opcode::RC_SEND_ONLY, 0, true), 100, at(70)),
            "across the wrap"
        );
        let read = bth(Opcode::RC_READ_REQUEST, 0, true);
        assert!(!delays.on_sent(&read, 100, at(71)), "the responder decides when it is answered");
    }

    fn send(delays: &mut Delays, opcode: Opcode, psn: u32) -> bool {
        delays.on_sent(&bth(opcode, psn, true), 100, at(1))
    }

    const SEND: Opcode = Opcode::RC_SEND_ONLY;
    const READ: Opcode = Opcode::RC_READ_REQUEST;

    #[test]
    fn a_go_back_is_one_loss() {
        let mut delays = Delays::default();
        for psn in 0..6 {
            assert!(!send(&mut delays, SEND, psn));
        }
        assert_eq!([2, 3, 4].map(|psn| send(&mut delays, SEND, psn)), [true, false, false]);
        assert_eq!(
            [3, 4, 5, 6].map(|psn| send(&mut delays, SEND, psn)),
            [true, false, false, false]
        );
    }

    #[test]
    fn a_peer_without_receives_has_lost_nothing() {
        let mut delays = Delays::default();
        let rnr = Syndrome::RnrNak(feroce_wire::RnrTimer::new(1).unwrap());
        assert_eq!([0, 1, 2].map(|psn| send(&mut delays, SEND, psn)), [false; 3]);
        for _ in 0..2 {
            assert_eq!(answer(&mut delays, 1, rnr, at(2)), None);
            assert_eq!([1, 2].map(|psn| send(&mut delays, SEND, psn)), [false; 2]);
        }
        assert!(send(&mut delays, SEND, 1), "the time-out after that is a loss");
    }

    #[test]
    fn an_answer_that_is_lost_is_none_of_the_requests() {
        let mut delays = Delays::default();
        assert_eq!(
            [READ, SEND].map(|op| send(&mut delays, op, if op == READ { 0 } else { 4 })),
            [false; 2]
        );
        assert_eq!(
            [READ, SEND].map(|op| send(&mut delays, op, if op == READ { 1 } else { 4 })),
            [false; 2]
        );
    }

    #[test]
    fn what_the_peer_misses_is_a_loss_behind_a_read_that_is_not_answered() {
        let mut delays = Delays::default();
        assert_eq!([send(&mut delays, READ, 0), send(&mut delays, SEND, 4)], [false; 2]);
        assert!(!send(&mut delays, SEND, 5));
        let nak = Syndrome::Nak(NakCode::PsnSequence);
        assert_eq!(answer(&mut delays, 4, nak, at(2)), None);
        // The READ goes first, again.
        let again = [(READ, 0), (SEND, 4), (SEND, 5)];
        assert_eq!(again.map(|(op, psn)| send(&mut delays, op, psn)), [true, false, false]);
        // What it missed has come after all.
        assert_eq!(answer(&mut delays, 4, nak, at(3)), None);
        assert_eq!(answer(&mut delays, 5, ACK, at(4)), None);
        assert_eq!([send(&mut delays, READ, 6), send(&mut delays, READ, 6)], [false; 2]);
    }

    #[test]
    fn a_drain_has_lost_nothing() {
        let mut delays = Delays::default();
        for psn in 0..3 {
            assert!(!delays.on_sent(&bth(SEND, psn, false), 100, at(1)));
        }
        assert!(!delays.on_sent(&bth(SEND, 2, true), 100, at(2)), "it asks now");
        assert!(delays.on_sent(&bth(SEND, 2, true), 100, at(9)), "nobody has answered");
    }

    #[test]
    fn packets_that_reads_are_answered_with_have_numbers_too() {
        let mut delays = Delays::default();
        assert!(!send(&mut delays, SEND, 0));
        assert_eq!(answer(&mut delays, 0, ACK, at(2)), trip(1, 100));
        // Each is answered by 2^22 packets.
        for psn in [1, 1 + (1 << 22), 1 + (2 << 22)] {
            assert!(!send(&mut delays, READ, psn));
        }
        let psn = 1 + (3 << 22);
        assert!(!send(&mut delays, SEND, psn), "sent for the first time");
        assert_eq!(answer(&mut delays, psn, ACK, at(5)), trip(4, 100));
    }

    #[test]
    fn an_answer_to_a_read_acknowledges_what_is_ahead_of_it() {
        let mut delays = Delays::default();
        assert_eq!([send(&mut delays, SEND, 0), send(&mut delays, READ, 1)], [false; 2]);
        let response = Opcode::RC_READ_RESPONSE_ONLY;
        assert_eq!(answer_with(&mut delays, response, 1, ACK, at(4)), trip(3, 100));
        // Idle for long: that is no round trip.
        assert!(!delays.on_sent(&bth(SEND, 2, true), 100, at(1_000_000)));
        assert_eq!(answer(&mut delays, 2, ACK, at(1_000_002)), trip(2, 100));
    }
}

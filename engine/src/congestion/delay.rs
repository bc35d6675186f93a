//! Round trips of a QP, from what it sends and what comes back: one measured at a time, never of a packet that was
//! sent twice.

use feroce_wire::{Bth, Operation, Packet, Psn, Syndrome};

use crate::time::{Duration, Instant};

/// See the [module](self).
#[derive(Debug, Clone, Copy, Default)]
pub struct Delays {
    probe: Option<Probe>,
    /// One past the highest PSN sent.
    end: Option<Psn>,
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
    /// A packet with the header `bth` went out, `bytes` long. True if it went before: it, or one ahead of it, was lost.
    pub fn on_sent(&mut self, bth: &Bth, bytes: u64, now: Instant) -> bool {
        let info = bth.opcode.info();
        let Some(info) = info.filter(|info| info.is_request()) else { return false };
        if !matches!(info.operation, Operation::Send | Operation::Write) {
            return false;
        }
        if self.end.is_some_and(|end| bth.psn.is_before(end)) {
            self.probe = None;
            return true;
        }
        self.end = Some(bth.psn.next());
        self.sent += bytes;
        if bth.ack_req && self.probe.is_none() {
            self.probe = Some(Probe { psn: bth.psn, at: now, sent: self.sent });
        }
        false
    }

    /// A packet came: the round trip that it ends.
    pub fn on_packet(&mut self, packet: &Packet<'_>, now: Instant) -> Option<RoundTrip> {
        let probe = self.probe?;
        let aeth = packet.ext.aeth?;
        let ends = packet.info.operation == Operation::Acknowledge
            && matches!(aeth.syndrome, Syndrome::Ack(_))
            && probe.psn.at_or_before(packet.bth.psn);
        if !ends {
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
        Aeth, CreditCode, ExtHeaders, FlowHeader, FlowSpec, IpAddresses, MacAddr, Msn, NakCode,
        Opcode, write_transport,
    };

    fn at(micros: u64) -> Instant {
        Instant::from_nanos(micros * 1000)
    }

    fn bth(opcode: Opcode, psn: u32, ack_req: bool) -> Bth {
        Bth { opcode, psn: Psn::new(psn), ack_req, ..Bth::default() }
    }

    /// An acknowledgement of `psn`, as it comes.
    fn answer(
        delays: &mut Delays,
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
        let bth = bth(Opcode::RC_ACKNOWLEDGE, psn, false);
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
        let trip = |micros, bytes| Some(RoundTrip { time: Duration::from_micros(micros), bytes });
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
}

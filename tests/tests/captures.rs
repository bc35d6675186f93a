//! The responder compared with Linux rxe: it receives the requests of a capture at their captured
//! times, and its responses equal those of rxe byte for byte, except for the deviations that a row
//! lists.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr};

use feroce_conform::party::Party;
use feroce_engine::memory::Access;
use feroce_engine::time::Duration;
use feroce_tests::capture::{self, CapturedFrame, Contents, MemoryAt, Responder, ResponderSetup};
use feroce_wire::{IpHeader, Ipv4Header, MacAddr, NakCode, Packet, PathMtu, Syndrome};

/// A difference between rxe and Feroce, and why Feroce does not follow rxe.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Deviation {
    /// rxe sends MigReq 0. Feroce sends 1, because a ConnectX handles packets with 0 on a slow
    /// path.
    MigReq,
    /// The IPv4 IDs of rxe start at a random number of the kernel, those of Feroce at 1. Any value
    /// is legal.
    Ipv4Id,
    /// After an RNR NAK, rxe sends a NAK (PSN sequence error) for the same packet when the next
    /// packet of the message arrives. The requester already knows of the gap, and Feroce sends one
    /// NAK per gap.
    NakBehindRnrNak,
    /// rxe NAKs a message that is longer than its receive with "remote operational error". The code
    /// in the specification is "invalid request".
    LengthErrorCode,
    /// rxe acknowledges a duplicate that arrives before any request with PSN 0xffffff. Feroce uses
    /// the PSN before the expected one.
    AckBeforeFirst,
}

/// Deviations in every IPv4 packet of rxe.
const HEADERS: [Deviation; 2] = [Deviation::MigReq, Deviation::Ipv4Id];

/// A capture and what its replay needs.
struct Row {
    file: &'static str,
    setup: ResponderSetup,
    /// Deviations besides [`HEADERS`]. Each must occur in the capture.
    deviations: &'static [Deviation],
    /// Number of frames that the captured responder sent.
    responses: usize,
}

const fn responder(qpn: u32) -> Party {
    let ip = IpAddr::V4(Ipv4Addr::new(10, 77, 0, 2));
    Party { mac: MacAddr([0x02, 0x77, 0x00, 0x00, 0x01, 0x41]), ip, qpn }
}

const fn requester(qpn: u32) -> Party {
    let ip = IpAddr::V4(Ipv4Addr::new(10, 77, 0, 3));
    Party { mac: MacAddr([0x02, 0x77, 0x00, 0x00, 0x01, 0x42]), ip, qpn }
}

/// The values that most rows share.
const COMMON: ResponderSetup = ResponderSetup {
    local: responder(0),
    peer: requester(0),
    rq_psn: 0x100,
    path_mtu: PathMtu::Mtu1024,
    max_dest_rd_atomic: 16,
    min_rnr_timer: 12,
    regions: &[],
    receives: &[],
};

const AT_START: Duration = Duration::ZERO;

const fn zeros(iova: u64, len: usize, rkey: u32) -> MemoryAt {
    MemoryAt { iova, len, rkey, access: Access::ALL, contents: Contents::Zeros }
}

const WRITE: Row = Row {
    file: "rxe/write_bw_v4_1024.pcap.zst",
    setup: ResponderSetup {
        local: responder(0x4d),
        peer: requester(0x3f),
        rq_psn: 0xa7_44f4,
        regions: &[zeros(0x7efc_14b6_3000, 65_536, 0x394c)],
        ..COMMON
    },
    deviations: &[],
    responses: 20,
};

const READ: Row = Row {
    file: "rxe/read_bw_v4_1024.pcap.zst",
    setup: ResponderSetup {
        local: responder(0x4e),
        peer: requester(0x40),
        rq_psn: 0xbb_579e,
        regions: &[MemoryAt {
            contents: Contents::OfReadResponses,
            ..zeros(0x7fb2_4dbc_5000, 65_536, 0x3ad7)
        }],
        ..COMMON
    },
    deviations: &[],
    responses: 1280,
};

const ATOMICS: Row = Row {
    file: "rxe/atomic_fa_v4.pcap.zst",
    setup: ResponderSetup {
        local: responder(0x50),
        peer: requester(0x42),
        rq_psn: 0x4e_e46e,
        regions: &[MemoryAt {
            contents: Contents::OfAtomicResponses,
            ..zeros(0x5584_ef50_5000, 4096, 0x3cf6)
        }],
        ..COMMON
    },
    deviations: &[],
    responses: 200,
};

const PSN_WRAP: Row = Row {
    file: "rxe/ops_psn_wrap.pcap.zst",
    setup: ResponderSetup {
        local: responder(0x17),
        peer: requester(0x17),
        rq_psn: 0xff_fffd,
        regions: &[zeros(0x7f47_adf6_1000, 5000, 0xe38)],
        receives: &[(AT_START, 10), (AT_START, 3000)],
        ..COMMON
    },
    deviations: &[],
    responses: 9,
};

const RNR: Row = Row {
    file: "rxe/ops_rnr_late.pcap.zst",
    setup: ResponderSetup {
        local: responder(0x29),
        peer: requester(0x29),
        regions: &[zeros(0x7fa6_eae5_b000, 3000, 0x32a6)],
        receives: &[(Duration::from_millis(400), 3000), (Duration::from_millis(800), 0)],
        ..COMMON
    },
    deviations: &[Deviation::NakBehindRnrNak],
    responses: 62,
};

const WRONG_KEY: Row = Row {
    file: "rxe/ops_bad_rkey_write.pcap.zst",
    setup: ResponderSetup {
        local: responder(0x1f),
        peer: requester(0x1f),
        regions: &[zeros(0x7f74_070e_a000, 3000, 0x1e98)],
        ..COMMON
    },
    deviations: &[],
    responses: 2,
};

/// More captures. Each covers a case that the six above do not.
const FURTHER: [Row; 15] = [
    Row {
        file: "rxe/write_bw_v4_4096.pcap.zst",
        setup: ResponderSetup {
            local: responder(0x6d),
            peer: requester(0x75),
            rq_psn: 0x07_2276,
            path_mtu: PathMtu::Mtu4096,
            regions: &[zeros(0x7f37_95a7_2000, 65_536, 0x5ef4)],
            ..COMMON
        },
        deviations: &[],
        responses: 20,
    },
    Row {
        file: "rxe/read_bw_v4_4096.pcap.zst",
        setup: ResponderSetup {
            local: responder(0x6e),
            peer: requester(0x76),
            rq_psn: 0x29_a3a0,
            path_mtu: PathMtu::Mtu4096,
            regions: &[MemoryAt {
                contents: Contents::OfReadResponses,
                ..zeros(0x7f8c_9c22_d000, 65_536, 0x5f1c)
            }],
            ..COMMON
        },
        deviations: &[],
        responses: 320,
    },
    Row {
        file: "rxe/ops_read_big.pcap.zst",
        setup: ResponderSetup {
            local: responder(0x1e),
            peer: requester(0x1e),
            regions: &[MemoryAt {
                contents: Contents::OfReadResponses,
                ..zeros(0x7f24_9c30_d000, 262_144, 0x1cb5)
            }],
            ..COMMON
        },
        deviations: &[],
        responses: 392,
    },
    Row {
        file: "rxe/ops_zero_len.pcap.zst",
        setup: ResponderSetup {
            local: responder(0x15),
            peer: requester(0x15),
            regions: &[zeros(0x7f95_8310_5000, 4096, 0xa51)],
            receives: &[(AT_START, 100)],
            ..COMMON
        },
        deviations: &[],
        responses: 5,
    },
    Row {
        file: "rxe/ops_send_imm.pcap.zst",
        setup: ResponderSetup {
            local: responder(0x12),
            peer: requester(0x12),
            receives: &[(AT_START, 0), (AT_START, 13), (AT_START, 5001), (AT_START, 4096)],
            ..COMMON
        },
        deviations: &[],
        responses: 4,
    },
    Row {
        file: "rxe/ops_write_imm.pcap.zst",
        setup: ResponderSetup {
            local: responder(0x11),
            peer: requester(0x11),
            regions: &[zeros(0x7f7a_b317_6000, 5000, 0x2be)],
            receives: &[(AT_START, 0); 4],
            ..COMMON
        },
        deviations: &[],
        responses: 4,
    },
    Row {
        file: "rxe/ops_rd1.pcap.zst",
        setup: ResponderSetup {
            local: responder(0x1a),
            peer: requester(0x1a),
            max_dest_rd_atomic: 1,
            regions: &[zeros(0x7fa3_b13e_5000, 0x1_1000, 0x1417)],
            receives: &[(AT_START, 1500); 12],
            ..COMMON
        },
        deviations: &[],
        responses: 48,
    },
    Row {
        file: "rxe/ops_ro_write.pcap.zst",
        setup: ResponderSetup {
            local: responder(0x24),
            peer: requester(0x24),
            regions: &[MemoryAt {
                access: Access::REMOTE_READ,
                ..zeros(0x7f23_18cc_d000, 3000, 0x29d2)
            }],
            ..COMMON
        },
        deviations: &[],
        responses: 1,
    },
    Row {
        file: "rxe/ops_oob_read.pcap.zst",
        setup: ResponderSetup {
            local: responder(0x23),
            peer: requester(0x23),
            // The READ starts 1000 bytes before the end of the region.
            regions: &[zeros(0x7f4d_7d52_6448 - 4000, 5000, 0x2635)],
            ..COMMON
        },
        deviations: &[],
        responses: 1,
    },
    Row {
        file: "rxe/ops_bad_rkey_read.pcap.zst",
        setup: ResponderSetup {
            local: responder(0x20),
            peer: requester(0x20),
            // The request has key 0x7574: the same index, another variant.
            regions: &[zeros(0x7f5b_d1ca_5000, 3000, 0x7500)],
            ..COMMON
        },
        deviations: &[],
        responses: 1,
    },
    Row {
        file: "rxe/ops_bad_rkey_atomic.pcap.zst",
        setup: ResponderSetup {
            local: responder(0x21),
            peer: requester(0x21),
            regions: &[zeros(0x7fc4_e282_e000, 3000, 0x7700)],
            ..COMMON
        },
        deviations: &[],
        responses: 1,
    },
    Row {
        file: "rxe/ops_rnr_exhaust.pcap.zst",
        setup: ResponderSetup { local: responder(0x2b), peer: requester(0x2b), ..COMMON },
        deviations: &[],
        responses: 3,
    },
    Row {
        file: "rxe/ops_rx_short.pcap.zst",
        setup: ResponderSetup {
            local: responder(0x28),
            peer: requester(0x28),
            receives: &[(AT_START, 100); 2],
            ..COMMON
        },
        deviations: &[Deviation::LengthErrorCode],
        responses: 2,
    },
    Row {
        file: "rxe/ops_psn_mismatch.pcap.zst",
        setup: ResponderSetup {
            local: responder(0x2c),
            peer: requester(0x2c),
            rq_psn: 0x105,
            receives: &[(AT_START, 100); 8],
            ..COMMON
        },
        deviations: &[Deviation::AckBeforeFirst],
        responses: 268,
    },
    Row {
        // Requests that the bridge dropped are missing in this capture of the responder's side.
        file: "rxe/loss_nft_atomic.tapA.pcap.zst",
        setup: ResponderSetup {
            local: responder(0x73),
            peer: requester(0x7b),
            rq_psn: 0xf7_0e2e,
            regions: &[MemoryAt {
                contents: Contents::OfAtomicResponses,
                ..zeros(0x564a_a849_c000, 4096, 0x64e5)
            }],
            ..COMMON
        },
        deviations: &[],
        responses: 217,
    },
];

#[test]
fn write() {
    replay(&WRITE);
}

#[test]
fn read() {
    replay(&READ);
}

#[test]
fn atomics() {
    replay(&ATOMICS);
}

#[test]
fn psn_wrap() {
    replay(&PSN_WRAP);
}

#[test]
fn receiver_not_ready() {
    replay(&RNR);
}

#[test]
fn wrong_key() {
    replay(&WRONG_KEY);
}

#[test]
fn further_captures() {
    for row in &FURTHER {
        replay(row);
    }
}

/// The deviations that a row allows, and those that occurred.
struct Allowed {
    listed: BTreeSet<Deviation>,
    seen: BTreeSet<Deviation>,
}

impl Allowed {
    fn of(row: &Row) -> Self {
        let listed = HEADERS.iter().chain(row.deviations).copied().collect();
        Self { listed, seen: BTreeSet::new() }
    }

    /// Returns true if the deviation `occurs` and is allowed, and then records it.
    fn allows(&mut self, deviation: Deviation, occurs: bool) -> bool {
        let allowed = occurs && self.listed.contains(&deviation);
        if allowed {
            self.seen.insert(deviation);
        }
        allowed
    }
}

/// Feeds the requests of the row's capture to a responder and compares its responses with the
/// captured ones.
fn replay(row: &Row) {
    let frames = capture::read(row.file);
    let mut responder = Responder::new(&row.setup);
    responder.load(&frames);
    let (mut ours, mut theirs) = (Vec::new(), Vec::new());
    for frame in &frames {
        if frame.packet().ip.src() == row.setup.peer.ip {
            ours.extend(responder.respond(&frame.bytes, frame.at));
        } else {
            theirs.push(frame);
        }
    }
    assert_eq!(theirs.len(), row.responses, "{}: the capture has changed", row.file);
    let mut allowed = Allowed::of(row);
    let theirs = without_allowed_naks(&theirs, &mut allowed);
    for (number, (ours, theirs)) in ours.iter().zip(&theirs).enumerate() {
        compare(ours, theirs, &mut allowed, &format!("{} response {number}", row.file));
    }
    assert_eq!(ours.len(), theirs.len(), "{}: number of responses", row.file);
    assert_eq!(allowed.seen, allowed.listed, "{}: every listed deviation occurs", row.file);
}

/// The captured responses without those that [`Deviation::NakBehindRnrNak`] allows.
fn without_allowed_naks<'a>(
    responses: &[&'a CapturedFrame],
    allowed: &mut Allowed,
) -> Vec<&'a CapturedFrame> {
    let mut not_ready = None;
    let mut kept = Vec::new();
    for &frame in responses {
        let packet = frame.packet();
        let psn = packet.bth.psn;
        match packet.ext.aeth.map(|aeth| aeth.syndrome) {
            Some(Syndrome::RnrNak(_)) => not_ready = Some(psn),
            Some(Syndrome::Nak(NakCode::PsnSequence))
                if allowed.allows(Deviation::NakBehindRnrNak, not_ready == Some(psn)) =>
            {
                continue;
            }
            _ => not_ready = None,
        }
        kept.push(frame);
    }
    kept
}

/// Compares one response. Where a deviation is allowed, Feroce's value is replaced by that of rxe
/// and the ICRC is recomputed. Then every byte must be equal.
fn compare(ours: &[u8], theirs: &CapturedFrame, allowed: &mut Allowed, what: &str) {
    let mut packet = Packet::parse(ours, &[]).expect("our own frame");
    assert!(packet.icrc_valid(), "{what}: our ICRC");
    let captured = theirs.packet();
    let text = format!("{what}\n  ours   {packet}\n  theirs {captured}");
    allow_headers(&mut packet, &captured, allowed);
    if let (Some(aeth), Some(their)) = (&mut packet.ext.aeth, captured.ext.aeth) {
        let codes = (aeth.syndrome, their.syndrome);
        let expected =
            (Syndrome::Nak(NakCode::InvalidRequest), Syndrome::Nak(NakCode::RemoteOperational));
        if allowed.allows(Deviation::LengthErrorCode, codes == expected) {
            aeth.syndrome = their.syndrome;
        }
        let before_first = their.msn.value() == 0 && captured.bth.psn.value() == 0xff_ffff;
        if allowed.allows(Deviation::AckBeforeFirst, before_first) {
            packet.bth.psn = captured.bth.psn;
        }
    }
    assert_eq!(sealed_again(&packet), theirs.bytes, "{text}");
}

fn allow_headers(packet: &mut Packet<'_>, captured: &Packet<'_>, allowed: &mut Allowed) {
    if allowed.allows(Deviation::MigReq, packet.bth.mig_req && !captured.bth.mig_req) {
        packet.bth.mig_req = false;
    }
    if let (IpHeader::V4(ip), IpHeader::V4(their)) = (&mut packet.ip, &captured.ip)
        && allowed.allows(Deviation::Ipv4Id, ip.identification != their.identification)
    {
        ip.identification = their.identification;
        ip.checksum = Ipv4Header { checksum: 0, ..*ip }.computed_checksum();
    }
}

/// The bytes of `packet` with a recomputed ICRC.
fn sealed_again(packet: &Packet<'_>) -> Vec<u8> {
    let mut bytes = vec![0; packet.frame_len()];
    packet.emit(&mut bytes).expect("as long as the packet");
    let mut changed = Packet::parse(&bytes, &[]).expect("our own frame");
    changed.icrc = changed.computed_icrc();
    let mut sealed = vec![0; changed.frame_len()];
    changed.emit(&mut sealed).expect("as long as the packet");
    sealed
}

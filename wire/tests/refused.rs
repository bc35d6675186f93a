//! Frames that are not RoCEv2 packets, each with its field at fault. Each starts from a valid
//! frame, so that exactly one field is wrong.

mod common;

use feroce_wire::{
    EmitError, FlowHeader, Ipv4Header, Opcode, Packet, ParseError, Reth, VlanTag, icrc,
};

const IP: usize = 14;
const UDP: usize = IP + 20;
const BTH: usize = UDP + 8;

/// An IPv4 frame: a 64-byte RDMA WRITE.
fn valid() -> Vec<u8> {
    let flow = FlowHeader::new(&common::flow_spec(false, None));
    common::sealed(Opcode::RC_WRITE_ONLY.info().unwrap(), &flow, 64, 7)
}

/// Repairs the IPv4 header checksum.
fn repair_checksum(frame: &mut [u8]) {
    let mut ip = Ipv4Header::parse(&frame[IP..]).unwrap();
    ip.checksum = ip.computed_checksum();
    ip.write(&mut frame[IP..]);
}

/// Sets a 16-bit field.
fn put(frame: &mut [u8], at: usize, value: u16) {
    frame[at..at + 2].copy_from_slice(&value.to_be_bytes());
}

#[track_caller]
fn refused(change: impl FnOnce(&mut Vec<u8>), expected: ParseError) {
    let mut frame = valid();
    change(&mut frame);
    assert_eq!(Packet::parse(&frame, &[]).unwrap_err(), expected);
}

#[test]
fn the_unchanged_frame_is_valid() {
    let frame = valid();
    assert!(Packet::parse(&frame, &[]).unwrap().icrc_valid());
}

#[test]
fn other_ethertypes_are_refused() {
    refused(|frame| put(frame, 12, 0x8915), ParseError::EtherType(0x8915));
    // Two tags: the inner tag is where IP should be.
    let tag = VlanTag::from_tci(5);
    let flow = FlowHeader::new(&common::flow_spec(false, Some(tag)));
    let mut frame = common::sealed(Opcode::RC_SEND_ONLY.info().unwrap(), &flow, 64, 7);
    put(&mut frame, 16, 0x8100);
    assert_eq!(Packet::parse(&frame, &[]).unwrap_err(), ParseError::EtherType(0x8100));
}

#[test]
fn invalid_ip_headers_are_refused() {
    refused(|frame| frame[IP] = 0x65, ParseError::IpVersion(6));
    refused(|frame| frame[IP] = 0x46, ParseError::IpHeaderLength(6));
    refused(|frame| frame[IP] = 0x44, ParseError::IpHeaderLength(4));
    refused(|frame| put(frame, 12, 0x86dd), ParseError::IpVersion(4));
    let mut frame = valid();
    frame[IP + 8] -= 1;
    let error = Packet::parse(&frame, &[]).unwrap_err();
    assert!(matches!(error, ParseError::IpChecksum { expected, found } if expected != found));
}

#[test]
fn fragments_are_refused() {
    for (at, bits) in [(IP + 6, 0x20), (IP + 6, 0x01), (IP + 7, 0x01)] {
        let change = |frame: &mut Vec<u8>| {
            frame[at] |= bits;
            repair_checksum(frame);
        };
        refused(change, ParseError::Fragment);
    }
}

#[test]
fn other_protocols_and_ports_are_refused() {
    let tcp = |frame: &mut Vec<u8>| {
        frame[IP + 9] = 6;
        repair_checksum(frame);
    };
    refused(tcp, ParseError::NotUdp(6));
    refused(|frame| put(frame, UDP + 2, 53), ParseError::NotRoce(53));
}

#[test]
fn contradicting_lengths_are_refused() {
    let have = valid().len() - IP;
    for (total, stated) in [(have + 1, have + 1), (27, 27), (0, 0), (0xffff, 0xffff)] {
        let change = |frame: &mut Vec<u8>| {
            put(frame, IP + 2, u16::try_from(total).unwrap());
            repair_checksum(frame);
        };
        refused(change, ParseError::IpLength { stated, have });
    }
    let udp = have - 20;
    for stated in [udp + 1, udp - 1, 8, 0] {
        let change = |frame: &mut Vec<u8>| put(frame, UDP + 4, u16::try_from(stated).unwrap());
        refused(change, ParseError::UdpLength { stated, have: udp });
    }
}

#[test]
fn unknown_versions_and_opcodes_are_refused() {
    refused(|frame| frame[BTH + 1] |= 0x01, ParseError::BthVersion(1));
    refused(|frame| frame[BTH + 1] |= 0x0f, ParseError::BthVersion(15));
    for code in 0..=u8::MAX {
        if Opcode(code).info().is_none() {
            refused(|frame| frame[BTH] = code, ParseError::Opcode(code));
        }
    }
}

/// A frame of `opcode` with `transport_len` bytes from the BTH to the end of the ICRC. Only the
/// lengths are computed.
fn bare(opcode: u8, pad: u8, transport_len: usize) -> Vec<u8> {
    let mut frame = valid();
    frame[BTH] = opcode;
    frame[BTH + 1] |= pad << 4;
    frame.truncate(BTH + transport_len);
    put(&mut frame, IP + 2, u16::try_from(28 + transport_len).unwrap());
    put(&mut frame, UDP + 4, u16::try_from(8 + transport_len).unwrap());
    repair_checksum(&mut frame);
    frame
}

/// Opcode 0xff in the smallest packet made a kernel jump through an empty table entry.
#[test]
fn the_smallest_packet_with_an_unknown_opcode_is_refused() {
    let frame = bare(0xff, 0, 16);
    assert_eq!(Packet::parse(&frame, &[]).unwrap_err(), ParseError::Opcode(0xff));
}

/// A pad count above the remaining bytes made another receiver compute a negative length.
#[test]
fn a_pad_longer_than_the_payload_is_refused() {
    for have in 0..3usize {
        for pad in 0..=3u8 {
            let frame = bare(0x04, pad, 12 + have + 4);
            let result = Packet::parse(&frame, &[]);
            if usize::from(pad) > have {
                assert_eq!(result.unwrap_err(), ParseError::Pad { pad, have });
            } else {
                assert_eq!(result.unwrap().payload.len(), have - usize::from(pad));
            }
        }
    }
}

#[test]
fn a_packet_too_short_for_its_headers_is_refused() {
    for info in Opcode::all() {
        let need = 12 + info.headers_len + icrc::LEN;
        for have in 0..need {
            let error = Packet::parse(&bare(info.opcode.0, 0, have), &[]).unwrap_err();
            let (what, need) = match have {
                0..12 => ("BTH", 12),
                _ => (info.name, need),
            };
            assert_eq!(error, ParseError::Truncated { what, need, have });
        }
        assert!(Packet::parse(&bare(info.opcode.0, 0, need), &[]).is_ok());
    }
}

/// Bytes after the IP packet are padding, not part of the BTH.
#[test]
fn headers_do_not_run_into_the_trailer() {
    let mut frame = bare(0x04, 0, 11);
    frame.extend([0; 20]);
    let (need, have) = (12, 11);
    let what = "BTH";
    assert_eq!(Packet::parse(&frame, &[]).unwrap_err(), ParseError::Truncated { what, need, have });
}

#[test]
fn a_wrong_icrc_is_distinguished_from_a_malformed_packet() {
    let mut frame = valid();
    *frame.last_mut().unwrap() ^= 0x80;
    let packet = Packet::parse(&frame, &[]).unwrap();
    let error = packet.verify_icrc().unwrap_err();
    assert_eq!(error.found, error.expected ^ 0x8000_0000);
    assert!(!packet.icrc_valid());
}

#[test]
fn impossible_packets_are_not_written() {
    let frame = valid();
    let good = Packet::parse(&frame, &[]).unwrap();
    let mut out = [0; 256];
    assert_eq!(good.frame_len(), frame.len());
    for have in 0..frame.len() {
        let need = frame.len();
        assert_eq!(good.emit(&mut out[..have]), Err(EmitError::BufferTooShort { need, have }));
    }
    let mut changed = good;
    changed.ext.reth = None;
    assert_eq!(changed.emit(&mut out), Err(EmitError::Headers));
    let mut changed = good;
    changed.bth.opcode = Opcode::RC_SEND_ONLY;
    assert_eq!(changed.emit(&mut out), Err(EmitError::Headers));
    let mut changed = good;
    changed.bth.opcode = Opcode(0xff);
    assert_eq!(changed.emit(&mut out), Err(EmitError::Opcode(0xff)));
    let mut changed = good;
    changed.bth.pad = 4;
    assert_eq!(changed.emit(&mut out), Err(EmitError::Pad(4)));
}

/// `emit` writes the fields unchanged, so that a test can make any packet from a valid one.
#[test]
fn changed_fields_are_written() {
    let frame = valid();
    let mut packet = Packet::parse(&frame, &[]).unwrap();
    let reth = Reth { va: 1, ..packet.ext.reth.unwrap() };
    packet.ext.reth = Some(reth);
    packet.bth.becn = true;
    let mut out = [0; 256];
    let len = packet.emit(&mut out).unwrap();
    let again = Packet::parse(&out[..len], &[]).unwrap();
    assert_eq!(again.ext.reth, Some(reth));
    assert!(again.bth.becn);
    assert!(!again.icrc_valid(), "the ICRC is still that of the old bytes");
    packet.icrc = again.computed_icrc();
    packet.emit(&mut out).unwrap();
    assert!(Packet::parse(&out[..len], &[]).unwrap().icrc_valid());
}

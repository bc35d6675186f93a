//! Every frame of the captures in `tests/captures` is parsed and written back byte for byte. Its
//! ICRC is valid or invalid as listed, and an independent decoder finds the same header fields.

use std::collections::BTreeSet;

use etherparse::{NetSlice, SlicedPacket, TransportSlice};
use feroce_tests::capture_list;
use feroce_wire::{
    Ecn, IpHeader, Opcode, Packet, ParseError, Payload, Pkey, Qpn, Syndrome, icrc::icrc_reference,
    ids::Qkey,
};
use pcap_file::DataLink;

/// IP header to last pad byte of a frame, computed without the crate's parser.
fn covered(frame: &[u8], packet: &Packet<'_>) -> Vec<u8> {
    let ip_at = 14 + if packet.vlan.is_some() { 4 } else { 0 };
    let end = frame.len() - packet.trailer.len() - 4;
    frame[ip_at..end].to_vec()
}

fn check_roce(frame: &[u8], packet: &Packet<'_>) {
    let mut out = vec![0xa5; frame.len()];
    assert_eq!(packet.emit(&mut out), Ok(frame.len()));
    assert_eq!(out, frame, "written back: {packet}");

    let covered = covered(frame, packet);
    let reference = icrc_reference(Payload { first: &covered, second: &[] });
    assert_eq!(packet.computed_icrc(), reference, "{packet}");

    let other = SlicedPacket::from_ethernet(frame).unwrap();
    match (other.net.unwrap(), packet.ip) {
        (NetSlice::Ipv4(theirs), IpHeader::V4(ours)) => {
            let theirs = theirs.header();
            assert_eq!(theirs.source_addr(), ours.src);
            assert_eq!(theirs.destination_addr(), ours.dst);
            assert_eq!(theirs.total_len(), ours.total_length);
            assert_eq!(theirs.identification(), ours.identification);
            assert_eq!(theirs.dont_fragment(), ours.dont_fragment);
            assert_eq!(theirs.ttl(), ours.ttl);
            assert_eq!(theirs.header_checksum(), ours.checksum);
            assert_eq!(theirs.ecn().value(), ours.ecn().bits());
        }
        (NetSlice::Ipv6(theirs), IpHeader::V6(ours)) => {
            let theirs = theirs.header();
            assert_eq!(theirs.source_addr(), ours.src);
            assert_eq!(theirs.destination_addr(), ours.dst);
            assert_eq!(theirs.payload_length(), ours.payload_length);
            assert_eq!(theirs.traffic_class(), ours.traffic_class);
            assert_eq!(theirs.flow_label().value(), ours.flow_label);
            assert_eq!(theirs.hop_limit(), ours.hop_limit);
        }
        (theirs, ours) => panic!("{theirs:?} or {ours:?}"),
    }
    let Some(TransportSlice::Udp(udp)) = other.transport else {
        panic!("not UDP");
    };
    assert_eq!(udp.source_port(), packet.udp.src_port);
    assert_eq!(udp.destination_port(), packet.udp.dst_port);
    assert_eq!(udp.length(), packet.udp.length);
    assert_eq!(udp.checksum(), packet.udp.checksum);
}

#[test]
fn every_captured_frame_agrees_with_an_independent_decoder() {
    let listed = capture_list::listed();
    assert!(listed.len() >= 65, "the README lists the captures");
    let mut opcodes = BTreeSet::new();
    for capture in listed {
        let name = capture.path.display();
        let (link, frames) = capture_list::frames(&capture.path);
        assert_eq!(frames.len(), capture.frames, "frames of {name}");
        let (mut roce, mut bad_icrc) = (0, 0);
        for frame in &frames {
            match Packet::parse(frame, &[]) {
                Ok(packet) => {
                    assert_eq!(link, DataLink::ETHERNET, "{name}");
                    roce += 1;
                    bad_icrc += usize::from(!packet.icrc_valid());
                    opcodes.insert(packet.bth.opcode);
                    check_roce(frame, &packet);
                }
                Err(error) => assert!(capture.roce < capture.frames, "{name}: {error}"),
            }
        }
        assert_eq!(roce, capture.roce, "RoCEv2 frames of {name}");
        assert_eq!(bad_icrc, capture.bad_icrc, "bad ICRCs of {name}");
    }
    // The captures must cover most opcodes and headers.
    assert!(opcodes.len() >= 30, "{opcodes:?}");
}

/// Every capture file is listed, so that the test above covers all of them.
#[test]
fn every_capture_is_listed() {
    let listed: BTreeSet<_> = capture_list::listed().into_iter().map(|row| row.path).collect();
    for directory in ["hardware", "softroce-public", "rxe"] {
        for entry in std::fs::read_dir(capture_list::captures().join(directory)).unwrap() {
            let path = entry.unwrap().path();
            assert!(listed.contains(&path), "{} is not listed", path.display());
        }
    }
}

fn hardware(name: &str) -> Vec<Vec<u8>> {
    capture_list::frames(&capture_list::captures().join("hardware").join(name)).1
}

#[test]
fn a_captured_cnp_is_parsed() {
    let frames = hardware("connectx4lx_cnp.pcap");
    let cnp = Packet::parse(&frames[0], &[]).unwrap();
    assert_eq!(cnp.bth.opcode, Opcode::CNP);
    assert!(cnp.bth.becn && !cnp.bth.ack_req && !cnp.bth.mig_req);
    assert_eq!(cnp.bth.psn.value(), 0);
    assert_eq!(cnp.ip.traffic_class(), 0xc2);
    assert_eq!(cnp.udp.src_port, 0);
    assert_eq!(cnp.payload.first, [0; 16]);
    assert!(cnp.info.payload.allows(cnp.payload.len(), 1024));
    assert!(cnp.icrc_valid());
    assert!(feroce_wire::cnp::is_valid(&cnp.bth, cnp.payload));
}

/// A CNP built from the addresses, QP and IPv4 ID of the captured CNP equals the captured CNP.
#[test]
fn a_cnp_equals_that_of_a_connectx() {
    use feroce_wire::{FlowSpec, IpAddresses, cnp};
    let frames = hardware("connectx4lx_cnp.pcap");
    let captured = Packet::parse(&frames[0], &[]).unwrap();
    let IpHeader::V4(ip) = captured.ip else { panic!("not IPv4") };
    // The data flow of the QP uses the same path, with other ECN bits and UDP ports.
    let path = FlowSpec {
        dst_mac: captured.ethernet.dst,
        src_mac: captured.ethernet.src,
        vlan: None,
        addresses: IpAddresses::V4 { src: ip.src, dst: ip.dst },
        traffic_class: 106,
        hop_limit: 64,
        flow_label: 77,
        udp_source_port: 0xc123,
        super_frames: true,
    };
    let flow = cnp::flow(&path, cnp::DSCP, cnp::PRIORITY);
    let mut frame = vec![0xa5; 128];
    let (dest_qp, pkey) = (captured.bth.dest_qp, captured.bth.pkey);
    let len = cnp::seal(&flow, &mut frame, dest_qp, pkey, ip.identification);
    assert_eq!(frame[..len], frames[0][..]);
}

#[test]
fn a_cnp_without_becn_or_with_other_lengths_is_invalid() {
    let frames = hardware("connectx4lx_cnp.pcap");
    let captured = Packet::parse(&frames[0], &[]).unwrap();
    let with = |change: &dyn Fn(&mut Packet<'_>)| {
        let mut packet = captured;
        change(&mut packet);
        feroce_wire::cnp::is_valid(&packet.bth, packet.payload)
    };
    assert!(with(&|packet| packet.payload.first = &[1; 16]), "reserved bytes are ignored");
    assert!(!with(&|packet| packet.bth.becn = false));
    assert!(!with(&|packet| packet.bth.pad = 1));
    assert!(!with(&|packet| packet.payload.first = &[0; 12]));
    assert!(!with(&|packet| packet.payload.second = &[0; 4]));
}

#[test]
fn a_captured_frame_in_a_vlan_is_parsed() {
    let frames = hardware("connectx_vlan_cmreq_rtu_send_ack.pcap");
    let packets: Vec<_> = frames.iter().map(|frame| Packet::parse(frame, &[]).unwrap()).collect();
    let request = packets[0];
    assert_eq!(request.vlan.map(|tag| tag.id), Some(1));
    assert_eq!(request.bth.opcode, Opcode::UD_SEND_ONLY);
    assert_eq!(request.bth.dest_qp, Qpn::GSI);
    assert_eq!(request.bth.pkey, Pkey::DEFAULT);
    assert!(request.bth.mig_req);
    assert_eq!(request.ip.ecn(), Ecn::Ect0);
    assert_eq!(request.ext.deth.map(|deth| deth.qkey), Some(Qkey::GSI));
    assert_eq!(request.payload.len(), 256, "a MAD");
    let acks = packets.iter().filter(|packet| packet.bth.opcode == Opcode::RC_ACKNOWLEDGE);
    for ack in acks {
        let syndrome = ack.ext.aeth.unwrap().syndrome;
        assert!(matches!(syndrome, Syndrome::Ack(code) if code.credits() == Some(0)));
    }
}

#[test]
fn errors_name_the_protocol_that_is_not_rocev2() {
    for frame in hardware("connectx4_rocev1_write_ack.pcap") {
        let error = Packet::parse(&frame, &[]).unwrap_err();
        assert_eq!(error, ParseError::EtherType(0x8915));
    }
    let others: BTreeSet<String> = hardware("huawei_hiroce_oferby_proxy.pcap")
        .iter()
        .filter_map(|frame| Packet::parse(frame, &[]).err())
        .map(|error| error.to_string())
        .collect();
    assert_eq!(
        others.into_iter().collect::<Vec<_>>(),
        [
            "EtherType 0x0806 is not IP",
            "IP protocol 0 is not UDP",
            "IP protocol 58 is not UDP",
            "IP protocol 6 is not UDP",
        ],
    );
}

#[test]
fn an_altered_byte_breaks_the_icrc_unless_it_may_change() {
    let frames = hardware("connectx_vlan_cmreq_rtu_send_ack.pcap");
    let frame = &frames[2];
    let ip = 18;
    // TOS and TTL also change the header checksum; repair it as a router does.
    for (at, may_change) in [(ip + 1, true), (ip + 8, true), (ip + 28 + 4, true), (60, false)] {
        let mut altered = frame.clone();
        altered[at] ^= 0x10;
        let mut packet_bytes = altered.clone();
        let header: [u8; 20] = altered[ip..ip + 20].try_into().unwrap();
        let mut repaired = feroce_wire::Ipv4Header::parse(&header).unwrap();
        repaired.checksum = repaired.computed_checksum();
        repaired.write(&mut packet_bytes[ip..]);
        let packet = Packet::parse(&packet_bytes, &[]).unwrap();
        assert_eq!(packet.icrc_valid(), may_change, "byte {at}");
    }
}

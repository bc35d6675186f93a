//! Frames sealed by `FlowHeader` are complete, correct and readable by an independent decoder.

mod common;

use etherparse::{NetSlice, SlicedPacket};
use feroce_wire::{
    Ecn, FlowHeader, IpAddresses, IpHeader, Opcode, Packet, Payload, Pkey, Qpn, VlanTag, cnp,
    icrc::{icrc, icrc_reference},
    mark_ce,
};
use proptest::{collection::vec, prelude::*};

#[test]
fn every_opcode_is_sealed_on_every_kind_of_flow() {
    let tag = VlanTag { id: 7, pcp: 3, dei: false };
    for info in Opcode::all() {
        for (v6, vlan) in [(false, None), (false, Some(tag)), (true, None), (true, Some(tag))] {
            for payload_len in [0, 1, 2, 3, 4, 64, 1024, 4096] {
                let spec = common::flow_spec(v6, vlan);
                let flow = FlowHeader::new(&spec);
                let frame = common::sealed(info, &flow, payload_len, 0xbeef);
                let packet = Packet::parse(&frame, &[]).unwrap();
                assert!(packet.icrc_valid(), "{packet}");
                assert_eq!(packet.ethernet.dst, spec.dst_mac);
                assert_eq!(packet.ethernet.src, spec.src_mac);
                assert_eq!(packet.vlan, vlan);
                assert_eq!(packet.ip.traffic_class(), spec.traffic_class);
                assert_eq!(packet.ip.hop_limit(), spec.hop_limit);
                assert_eq!(packet.udp.src_port, spec.udp_source_port);
                assert_eq!(packet.udp.checksum, 0);
                assert_eq!(packet.info, info);
                assert_eq!(packet.payload.len(), payload_len);
                assert!(packet.trailer.is_empty());
                match packet.ip {
                    IpHeader::V4(ip) => {
                        assert!(ip.dont_fragment && !ip.is_fragment());
                        assert_eq!(ip.identification, 0xbeef);
                    }
                    IpHeader::V6(ip) => assert_eq!(ip.flow_label, spec.flow_label),
                }
            }
        }
    }
}

#[test]
fn a_cnp_goes_back_with_its_own_priority() {
    let tag = VlanTag { id: 7, pcp: 3, dei: false };
    for vlan in [None, Some(tag)] {
        let flow = cnp::flow(&common::flow_spec(false, vlan), 48, 6);
        let mut frame = [0xa5; 128];
        let len = cnp::seal(&flow, &mut frame, Qpn::masked(0x99), Pkey::DEFAULT, 1);
        let packet = Packet::parse(&frame[..len], &[]).unwrap();
        assert!(packet.icrc_valid() && cnp::is_valid(&packet.bth, packet.payload), "{packet}");
        assert_eq!(packet.vlan, vlan.map(|tag| VlanTag { pcp: 6, ..tag }));
        assert_eq!((packet.udp.src_port, packet.ip.traffic_class()), (0, 0xc2));
    }
}

#[test]
fn another_source_port_changes_nothing_else() {
    for v6 in [false, true] {
        let spec = common::flow_spec(v6, None);
        let flow = FlowHeader::new(&spec);
        let other = flow.with_source_port(0xc123);
        let [one, two] =
            [&flow, &other].map(|flow| common::sealed(Opcode::all().next().unwrap(), flow, 16, 1));
        let at = flow.len() - 8;
        assert_eq!(two[at..at + 2], [0xc1, 0x23]);
        let end = one.len() - 4; // the ICRC covers the port
        assert_eq!((&one[..at], &one[at + 2..end]), (&two[..at], &two[at + 2..end]));
        assert!(Packet::parse(&two, &[]).unwrap().icrc_valid());
    }
}

#[test]
fn a_cnp_is_sealed() {
    let mut spec = common::flow_spec(false, None);
    spec.traffic_class = Ecn::Ect0.set_in(48 << 2);
    let flow = FlowHeader::new(&spec);
    let mut frame = [0xa5; 128];
    let at = flow.len();
    let len = cnp::write(&mut frame[at..], Qpn::masked(0x99), Pkey::DEFAULT);
    let len = flow.seal(&mut frame, len, 1);
    let packet = Packet::parse(&frame[..len], &[]).unwrap();
    assert!(packet.icrc_valid() && packet.bth.becn && !packet.bth.fecn);
    assert_eq!(packet.bth.psn.value(), 0);
    assert_eq!(packet.payload.first, [0; 16]);
    assert_eq!(packet.ip.traffic_class(), 0xc2);
}

proptest! {
    /// `FlowHeader` updates the header checksum from a precomputed sum; the independent decoder
    /// computes the checksum from all bytes.
    #[test]
    fn the_ipv4_checksum_is_correct(
        src: [u8; 4], dst: [u8; 4], traffic_class: u8, hop_limit: u8, ip_id: u16,
        payload_len in 0usize..1500,
    ) {
        let mut spec = common::flow_spec(false, None);
        spec.addresses = IpAddresses::V4 { src: src.into(), dst: dst.into() };
        spec.traffic_class = traffic_class;
        spec.hop_limit = hop_limit;
        let info = Opcode::RC_SEND_ONLY.info().unwrap();
        let frame = common::sealed(info, &FlowHeader::new(&spec), payload_len, ip_id);
        let sliced = SlicedPacket::from_ethernet(&frame).unwrap();
        let Some(NetSlice::Ipv4(ip)) = sliced.net else { panic!("not IPv4") };
        let header = ip.header().to_header();
        prop_assert_eq!(header.calc_header_checksum(), header.header_checksum);
        prop_assert!(Packet::parse(&frame, &[]).unwrap().icrc_valid());
    }

    /// Marking changes only the ECN bits and the checksum; the frame stays valid.
    #[test]
    fn a_marked_frame_stays_valid(v6: bool, tagged: bool, traffic_class: u8, ip_id: u16) {
        let tag = tagged.then_some(VlanTag { id: 7, pcp: 3, dei: false });
        let spec = feroce_wire::FlowSpec { traffic_class, ..common::flow_spec(v6, tag) };
        let info = Opcode::RC_SEND_ONLY.info().unwrap();
        let sent = common::sealed(info, &FlowHeader::new(&spec), 64, ip_id);
        let mut marked = sent.clone();
        let is_capable = traffic_class & 3 != 0;
        prop_assert_eq!(mark_ce(&mut marked), is_capable);
        let packet = Packet::parse(&marked, &[]).unwrap();
        prop_assert!(packet.icrc_valid());
        let expected = if is_capable { traffic_class | 3 } else { traffic_class };
        prop_assert_eq!(packet.ip.traffic_class(), expected);
        let changed = sent.iter().zip(&marked).filter(|(before, after)| before != after).count();
        prop_assert!(changed <= 3, "ECN and the header checksum, no more");
    }

    /// A frame without an IP packet is not changed, however short it is.
    #[test]
    fn a_frame_without_an_ip_packet_is_not_marked(bytes in vec(any::<u8>(), 0..60)) {
        let mut frame = bytes.clone();
        if !mark_ce(&mut frame) {
            prop_assert_eq!(frame, bytes);
        }
    }

    /// The fast ICRC equals the reference for any bytes, split anywhere after the headers.
    #[test]
    fn the_fast_icrc_equals_the_reference(
        mut bytes in vec(any::<u8>(), 60..400), v6: bool, split in 0usize..400,
    ) {
        bytes[0] = if v6 { 0x60 | bytes[0] & 0xf } else { 0x45 };
        let split = split.clamp(60, bytes.len());
        let (first, second) = bytes.split_at(split);
        let covered = Payload { first, second };
        prop_assert_eq!(icrc(covered), icrc_reference(covered));
    }
}

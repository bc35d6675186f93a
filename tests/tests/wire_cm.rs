//! Communication management against captured bytes: every MAD to QP 1 in the captures is parsed,
//! written back byte for byte, and contains what the capture is known to show.

use std::collections::BTreeMap;
use std::net::IpAddr;

use feroce_tests::capture_list;
use feroce_wire::cm::{
    CmMad, CmMessage, IpCmHeader, PortSpace, RejectReason, ServiceId, SidrStatus, Transport,
};
use feroce_wire::{MadError, Packet, Psn, Qkey, Qpn};

/// The MADs to QP 1 of a capture, with the sender's address.
fn mads(directory: &str, name: &str) -> Vec<(IpAddr, Vec<u8>)> {
    let (_, frames) = capture_list::frames(&capture_list::captures().join(directory).join(name));
    let to_qp1 = frames.iter().filter_map(|frame| {
        let packet = Packet::parse(frame, &[]).ok()?;
        (packet.bth.dest_qp == Qpn::GSI).then(|| (packet.ip.src(), packet.payload.first.to_vec()))
    });
    to_qp1.collect()
}

fn messages(name: &str) -> Vec<CmMessage> {
    let mads = mads("rxe", name);
    mads.iter().map(|(_, mad)| CmMad::parse(mad).unwrap().message).collect()
}

#[test]
fn every_captured_mad_is_written_back_byte_for_byte() {
    let mut seen = BTreeMap::new();
    for directory in ["hardware", "rxe", "softroce-public"] {
        for entry in std::fs::read_dir(capture_list::captures().join(directory)).unwrap() {
            let name = entry.unwrap().file_name().into_string().unwrap();
            for (_, bytes) in mads(directory, &name) {
                let mad = CmMad::parse(&bytes).unwrap_or_else(|error| panic!("{name}: {error}"));
                assert_eq!(mad.to_bytes()[..], bytes, "{name}: {mad:?}");
                *seen.entry(mad.message.name()).or_insert(0) += 1;
            }
        }
    }
    // No capture contains an MRA: no peer was slow enough.
    let names: Vec<_> = seen.keys().copied().collect();
    assert_eq!(names, ["Drep", "Dreq", "Rej", "Rep", "Req", "Rtu", "SidrRep", "SidrReq"]);
    assert!(seen["Req"] >= 26 && seen["Rej"] >= 21, "{seen:?}");
}

/// A message gives the starting PSN of its receiver: the first packet of each end has the PSN of
/// the other end's message.
#[test]
fn a_message_has_the_starting_psn_of_its_receiver() {
    let path = capture_list::captures().join("rxe/rping_v4.pcap.zst");
    let (_, frames) = capture_list::frames(&path);
    let packets: Vec<_> = frames.iter().map(|frame| Packet::parse(frame, &[]).unwrap()).collect();
    let mad = |at: usize| CmMad::parse(packets[at].payload.first).unwrap().message;
    let (CmMessage::Req(req), CmMessage::Rep(rep)) = (mad(0), mad(1)) else { panic!("REQ, REP") };
    let first = |from: IpAddr| {
        let is_request = |p: &&Packet<'_>| p.bth.dest_qp != Qpn::GSI && p.ext.aeth.is_none();
        packets.iter().filter(is_request).find(|p| p.ip.src() == from).unwrap().bth.psn
    };
    assert_eq!(first(packets[0].ip.src()), rep.starting_psn, "the active side");
    assert_eq!(first(packets[1].ip.src()), req.starting_psn, "the passive side");
}

/// The messages of `rping`, field by field.
#[test]
fn messages_of_rping() {
    let messages = messages("rping_v4.pcap.zst");
    let [
        CmMessage::Req(req),
        CmMessage::Rep(rep),
        CmMessage::Rtu(rtu),
        CmMessage::Dreq(dreq),
        CmMessage::Drep(drep),
    ] = messages[..]
    else {
        panic!("{messages:?}");
    };
    let gid = |last| [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 77, 0, last];
    assert_eq!(req.local_comm_id, 0x7a3a_dbdc);
    assert_eq!(req.service_id, ServiceId::new(PortSpace::Tcp, 7174));
    assert_eq!(req.local_ca_guid, 0x0077_00ff_fe00_0142);
    assert_eq!((req.local_qpn, req.starting_psn), (Qpn::masked(0x50), Psn::new(0xdc_8e6f)));
    assert_eq!((req.responder_resources, req.initiator_depth), (1, 1));
    assert_eq!((req.remote_response_timeout, req.local_response_timeout), (20, 20));
    assert_eq!((req.retry_count, req.rnr_retry_count, req.max_cm_retries), (7, 7, 15));
    assert_eq!(req.connection(), Some(Transport::Rc));
    assert_eq!((req.pkey.0, req.path_mtu), (0xffff, 3));
    assert_eq!((req.primary_local_lid, req.primary_remote_lid), (0xffff, 0xffff));
    assert_eq!((req.primary_local_gid, req.primary_remote_gid), (gid(3), gid(2)));
    assert_eq!((req.primary_hop_limit, req.primary_traffic_class), (64, 0));
    assert_eq!((req.primary_subnet_local, req.primary_ack_timeout), (false, 19));
    let addresses = IpCmHeader {
        source: "10.77.0.3:53915".parse().unwrap(),
        destination: "10.77.0.2".parse().unwrap(),
    };
    assert_eq!(IpCmHeader::parse(&req.private_data), Ok(addresses));
    assert_eq!(addresses.to_bytes(), req.private_data[..36]);
    assert_eq!(req.primary_flow_label, (53915 * 31 + 7174) & 0xf_ffff);

    assert_eq!((rep.local_comm_id, rep.remote_comm_id), (0xcfb8_2384, req.local_comm_id));
    assert_eq!((rep.local_qpn, rep.starting_psn), (Qpn::masked(0x5e), Psn::new(0xab_d224)));
    assert_eq!((rep.responder_resources, rep.initiator_depth), (1, 1));
    assert_eq!((rep.target_ack_delay, rep.rnr_retry_count, rep.srq), (15, 7, false));
    assert_eq!(rep.local_ca_guid, 0x0077_00ff_fe00_0141);

    assert_eq!((rtu.local_comm_id, rtu.remote_comm_id), (0x7a3a_dbdc, 0xcfb8_2384));
    assert_eq!((dreq.local_comm_id, dreq.remote_comm_id), (0x7a3a_dbdc, 0xcfb8_2384));
    assert_eq!(dreq.remote_qpn, rep.local_qpn);
    assert_eq!((drep.local_comm_id, drep.remote_comm_id), (0xcfb8_2384, 0x7a3a_dbdc));
}

#[test]
fn messages_of_rping_over_ipv6() {
    let messages = messages("rping_v6.pcap.zst");
    let Some(CmMessage::Req(req)) = messages.first() else { panic!("{messages:?}") };
    let addresses = IpCmHeader::parse(&req.private_data).unwrap();
    assert_eq!(addresses.source, "[fd77::3]:53465".parse().unwrap());
    assert_eq!(addresses.destination, "fd77::2".parse::<IpAddr>().unwrap());
    assert_eq!(addresses.to_bytes(), req.private_data[..36]);
    assert_eq!(IpAddr::from(req.primary_local_gid), addresses.source.ip());
    assert_eq!(req.primary_flow_label, (53465 * 31 + 7174) & 0xf_ffff);
}

#[test]
fn a_port_without_a_listener_is_rejected() {
    let messages = messages("rping_reject.pcap.zst");
    let [CmMessage::Req(req), CmMessage::Rej(rej)] = messages[..] else { panic!("{messages:?}") };
    assert_eq!((rej.local_comm_id, rej.remote_comm_id), (0, req.local_comm_id));
    assert_eq!((rej.message, rej.reason), (0, RejectReason::INVALID_SERVICE_ID));
    assert_eq!((rej.info_length, rej.reason.to_string().as_str()), (0, "invalid service id"));
}

#[test]
fn messages_of_service_id_resolution() {
    let messages = messages("udaddy_v4.pcap.zst");
    let [CmMessage::SidrReq(req), _, CmMessage::SidrRep(rep), _] = messages[..] else {
        panic!("{messages:?}");
    };
    assert_eq!(req.service_id, ServiceId::new(PortSpace::Udp, 7174));
    assert_eq!(IpCmHeader::parse(&req.private_data).unwrap().source.port(), 36724);
    assert_eq!((rep.request_id, rep.status), (req.request_id, SidrStatus::SUCCESS));
    assert_eq!((rep.qpn, rep.qkey), (Qpn::masked(0x65), Qkey(0x0123_4567)));
    assert_eq!(rep.service_id, req.service_id);
}

/// A ConnectX connects to an FPGA, without addresses in front of the private data.
#[test]
fn messages_of_a_connectx() {
    let mads = mads("hardware", "connectx_vlan_cmreq_rtu_send_ack.pcap");
    let messages: Vec<_> = mads.iter().map(|(_, mad)| CmMad::parse(mad).unwrap().message).collect();
    let [CmMessage::Req(req), CmMessage::Rtu(rtu)] = messages[..] else { panic!("{messages:?}") };
    assert_eq!(req.local_comm_id, rtu.local_comm_id);
    assert_eq!(req.connection(), Some(Transport::Rc));
    assert!(req.local_qpn.value() > 1 && req.primary_hop_limit > 1);
}

/// An error in each checked byte of the header is reported by name, in the order of the header.
#[test]
fn errors_name_the_wrong_header_field() {
    let (_, good) = mads("rxe", "rping_v4.pcap.zst").swap_remove(0);
    let with = |at: usize, value: u8| {
        let mut bytes = good.clone();
        bytes[at] = value;
        CmMad::parse(&bytes).map(|mad| mad.message.name())
    };
    assert_eq!(with(0, 1), Ok("Req"));
    assert_eq!(with(0, 2), Err(MadError::BaseVersion(2)));
    assert_eq!(with(1, 3), Err(MadError::Class(3)));
    assert_eq!(with(2, 1), Err(MadError::ClassVersion(1)));
    assert_eq!(with(3, 0x81), Err(MadError::Method(0x81)));
    assert_eq!(with(17, 0x19), Err(MadError::Attribute(0x19)), "LAP");
    assert_eq!(with(17, 0x1a), Err(MadError::Attribute(0x1a)), "APR");
    for length in [0, 23, 255] {
        assert_eq!(CmMad::parse(&good[..length]), Err(MadError::Length(length)));
    }
}

/// A MAD of each kind of message: eight were captured. No capture has an MRA, so that it has the
/// bytes of a REP, of which it ignores most.
fn one_of_each_kind() -> BTreeMap<&'static str, Vec<u8>> {
    let mut kinds = BTreeMap::new();
    for name in ["rping_v4.pcap.zst", "rping_reject.pcap.zst", "udaddy_v4.pcap.zst"] {
        for (_, bytes) in mads("rxe", name) {
            let kind = CmMad::parse(&bytes).unwrap().message.name();
            kinds.entry(kind).or_insert(bytes);
        }
    }
    let mut mra = kinds["Rep"].clone();
    mra[17] = 0x11;
    assert_eq!(CmMad::parse(&mra).unwrap().message.name(), "Mra");
    kinds.insert("Mra", mra);
    assert_eq!(kinds.len(), 9);
    kinds
}

#[test]
fn a_mad_of_another_length_is_refused() {
    for (kind, bytes) in one_of_each_kind() {
        let longer = [&bytes[..], &[0; 64]].concat();
        for length in (0..longer.len()).filter(|length| *length != bytes.len()) {
            let parsed = CmMad::parse(&longer[..length]);
            assert_eq!(parsed, Err(MadError::Length(length)), "{kind}");
        }
    }
}

/// Every value of every byte: what is parsed is written back with all bits that have a meaning, and
/// the others are 0 (C9-6).
#[test]
fn every_value_of_each_byte_is_refused_or_written_back() {
    for (kind, bytes) in one_of_each_kind() {
        let mut refused = 0;
        for at in 0..bytes.len() {
            for value in 0..=255 {
                let mut changed = bytes.clone();
                changed[at] = value;
                let Ok(mad) = CmMad::parse(&changed) else {
                    refused += 1;
                    continue;
                };
                let written = mad.to_bytes();
                assert_eq!(CmMad::parse(&written), Ok(mad), "{kind}, byte {at} = {value}");
                if mad.message.name() != kind {
                    continue; // Another kind of message ignores other bytes.
                }
                for (other, (wrote, read)) in written.iter().zip(&changed).enumerate() {
                    // A reserved bit is not written; only MRA was made from other bytes.
                    let is_kept = *wrote == *read || (*wrote & !*read == 0 && other == at);
                    assert!(is_kept || kind == "Mra", "{kind}, byte {at} = {value}, at {other}");
                }
            }
        }
        // Version, class, class version and method have one value each, the attribute nine.
        assert_eq!(refused, 4 * 255 + 255 + (256 - 9), "{kind}");
    }
}

/// Options of enhanced connection establishment: three bytes in three places, and the attribute
/// modifier.
#[test]
fn the_vendor_id_of_a_rep_is_in_three_places() {
    let (_, bytes) = mads("rxe", "rping_v4.pcap.zst").swap_remove(1);
    let mut mad = CmMad::parse(&bytes).unwrap();
    let CmMessage::Rep(rep) = &mut mad.message else { panic!("a REP") };
    assert_eq!(rep.vendor_id(), 0);
    rep.set_vendor_id(0x0002_c9ab);
    mad.modifier = 0x0102_0304;
    let written = mad.to_bytes();
    assert_eq!((written[24 + 15], written[24 + 19], written[24 + 23]), (0x02, 0xc9, 0xab));
    assert_eq!(written[20..24], [1, 2, 3, 4]);
    let changed: Vec<usize> = (0..256).filter(|&at| written[at] != bytes[at]).collect();
    assert_eq!(changed, [20, 21, 22, 23, 39, 43, 47]);
}

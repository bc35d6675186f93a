//! The unreliable datagram service: address handles, the GRH, Q_Keys, lengths, QP 1, multicast.

use feroce_engine::counters::Counter;
use feroce_engine::device::{Destination, Device, DeviceError, Path, PostError, QpInit};
use feroce_engine::memory::arena::Arena;
use feroce_engine::net::Gid;
use feroce_engine::port::Port;
use feroce_engine::port::shm::{ShmConfig, shm_pair};
use feroce_engine::qp::QpState;
use feroce_engine::qp::attributes::QpAttributes;
use feroce_engine::time::Instant;
use feroce_engine::verbs::{
    CompletionOpcode, Data, DatagramSource, Extra, LocalOp, NetworkHeader, RecvRequest, RemoteAddr,
    SendFlags, SendOp, SendRequest, Sge, Status,
};
use feroce_tests::datagram::{DatagramQp, Datagrams, QKEY, RECEIVE};
use feroce_tests::pair::Pair;
use feroce_tests::{VLAN, addresses, gid, gid_v6, gid_vlan, manual_config};
use feroce_wire::{Key, MacAddr, Packet, Psn, Qkey, Qpn};

const GROUP: &str = "239.77.0.1";

fn parse(bytes: &[u8]) -> Packet<'_> {
    Packet::parse(bytes, &[]).expect("a frame of the engine")
}

fn group(text: &str) -> Gid {
    text.parse().expect("a group")
}

/// The IPv4 header is at the end of the GRH (annex A17).
#[test]
fn a_datagram_arrives_behind_its_network_header() {
    // Local GID index, GID of the peer, position of the IP header in the frame, VLAN.
    let paths = [
        (0, gid(1), 14..34, None),
        (1, gid_v6(1), 14..54, None),
        (2, gid_vlan(1), 18..38, Some(VLAN)),
    ];
    for (index, peer, header, vlan) in paths {
        let mut net = Datagrams::default();
        let (mut a, mut b) = (net.qp(0), net.qp(1));
        let path = Path { service_level: 5, hop_limit: 9, ..Path::new(peer, index) };
        let ah = net.pds[0].create_ah(&path).unwrap();
        b.receive(1);
        a.send(SendOp::SendImm(0x0102_0304), b"hello", &ah, b.qp.qpn()).unwrap();
        drop(ah); // The posted request does not need it any more.
        net.run();
        let done = a.done();
        assert_eq!((done.len(), done[0].status), (1, Status::Success));
        assert_eq!((done[0].opcode, done[0].datagram), (CompletionOpcode::Send, None));

        let frame = net.frames().remove(0).bytes;
        let packet = parse(&frame);
        let deth = packet.ext.deth.unwrap();
        assert_eq!((deth.qkey, deth.src_qp), (QKEY, a.qp.qpn()));
        assert_eq!((packet.bth.psn, packet.bth.ack_req), (Psn::new(100), false));
        assert_eq!(packet.ip.hop_limit(), 9);

        let done = b.done();
        let network = if index == 1 { NetworkHeader::Ipv6 } else { NetworkHeader::Ipv4 };
        let sl = if vlan.is_some() { 5 } else { 0 };
        let source = DatagramSource { src_qp: a.qp.qpn(), sl, vlan, network };
        assert_eq!((done.len(), done[0].datagram), (1, Some(source)));
        assert_eq!((done[0].byte_len, done[0].extra), (45, Extra::Immediate(0x0102_0304)));
        let (grh, payload) = b.received(&done[0]);
        let expected: Vec<u8> = [vec![0; 40 - header.len()], frame[header].to_vec()].concat();
        assert_eq!((grh, &payload[..]), (expected, &b"hello"[..]));
    }
}

#[test]
fn datagrams_keep_their_order_and_have_consecutive_psns() {
    let mut net = Datagrams::default();
    let (mut a, mut b) = (net.qp(0), net.qp(1));
    let ah = net.ah(0, gid(1), 0);
    b.receive(3);
    for payload in [&b"one"[..], b"", b"three"] {
        a.send(SendOp::Send, payload, &ah, b.qp.qpn()).unwrap();
        net.run();
    }
    let psns: Vec<u32> =
        net.frames().iter().map(|seen| parse(&seen.bytes).bth.psn.value()).collect();
    assert_eq!(psns, [100, 101, 102]);
    let received: Vec<Vec<u8>> = b.done().iter().map(|done| b.received(done).1).collect();
    assert_eq!(received, [&b"one"[..], b"", b"three"]);
}

#[test]
fn a_datagram_with_a_wrong_qkey_is_dropped() {
    let mut net = Datagrams::default();
    let (mut a, mut b) = (net.qp(0), net.qp(1));
    let ah = net.ah(0, gid(1), 0);
    b.receive(2);
    a.send_with_key(SendOp::Send, b"wrong", &ah, b.qp.qpn(), Qkey(1)).unwrap();
    net.run();
    assert_eq!((b.done(), net.count(1, Counter::QkeyViolations)), (vec![], 1));
    // A Q_Key with the high bit set is replaced by the QP's own Q_Key.
    let controlled = Qkey(0x8000_0001);
    a.send_with_key(SendOp::Send, b"own", &ah, b.qp.qpn(), controlled).unwrap();
    net.run();
    let done = b.done();
    assert_eq!((done.len(), b.received(&done[0]).1), (1, b"own".to_vec()));
    assert_eq!(net.count(1, Counter::QkeyViolations), 1);
}

#[test]
fn a_datagram_longer_than_one_packet_completes_in_error() {
    let mut net = Datagrams::default();
    let (mut a, mut b) = (net.qp(0), net.qp(1));
    let ah = net.ah(0, gid(1), 0);
    assert_eq!(ah.max_datagram(), 4096);
    b.receive(1);
    let long: Vec<u8> = (0..4097u32).map(|n| (n % 251).to_le_bytes()[0]).collect();
    a.send(SendOp::Send, &long, &ah, b.qp.qpn()).unwrap();
    net.run();
    assert_eq!(statuses(&mut a), [Status::LocalLength]);
    assert_eq!((a.qp.query().state, net.frames().len()), (Some(QpState::Sqe), 0));
    to_rts(&mut a);
    a.send(SendOp::Send, &long[..4096], &ah, b.qp.qpn()).unwrap();
    net.run();
    let done = b.done();
    assert_eq!((done[0].byte_len, b.received(&done[0]).1), (4136, long[..4096].to_vec()));
}

/// A port whose frames are shorter than the MTU of the addresses says.
#[test]
fn a_datagram_longer_than_a_frame_completes_in_error() {
    let arena = Arena::new(64 << 20).unwrap();
    let shm = ShmConfig { mtu: 1200, ..ShmConfig::default() };
    let (port, _peer) = shm_pair(&arena, shm).unwrap();
    // Ethernet, IPv4, UDP, BTH, DETH, ICRC.
    let longest = (port.attributes().frame_max - (14 + 20 + 8 + 12 + 8 + 4)) / 4 * 4;
    let device = Device::with_ports(vec![Box::new(port)], addresses(0), manual_config(1)).unwrap();
    let pd = device.alloc_pd();
    let mut qp = DatagramQp::new(&device, &pd, |_| {});
    let ah = pd.create_ah(&Path::new(gid(1), 0)).unwrap();
    for (len, status) in [(longest, Status::Success), (longest + 4, Status::LocalLength)] {
        qp.send(SendOp::Send, &vec![7; len], &ah, Qpn::new(9).unwrap()).unwrap();
        device.turn(Instant::ZERO);
        assert_eq!(statuses(&mut qp), [status], "{len} bytes");
    }
}

#[test]
fn datagrams_without_a_large_enough_receive_are_dropped() {
    let mut net = Datagrams::default();
    let (mut a, mut b) = (net.qp(0), net.qp(1));
    let ah = net.ah(0, gid(1), 0);
    a.send(SendOp::Send, b"no receive", &ah, b.qp.qpn()).unwrap();
    net.run();
    assert_eq!((b.done(), net.count(1, Counter::OutOfBuffer)), (vec![], 1));
    let sges = [b.buffer.region().sge(0, 44)];
    b.qp.post_recv(&RecvRequest { wr_id: 7, sges: &sges }).unwrap();
    a.send(SendOp::Send, b"five.", &ah, b.qp.qpn()).unwrap();
    net.run();
    assert_eq!((b.done(), net.count(1, Counter::RespLocalLengthError)), (vec![], 1));
    a.send(SendOp::Send, b"four", &ah, b.qp.qpn()).unwrap();
    net.run();
    assert_eq!((b.done()[0].wr_id, a.done().len()), (7, 3), "the receive was not consumed");
}

/// The GRH fills the first entry, the payload goes to the second.
#[test]
fn a_receive_may_have_two_entries() {
    let mut net = Datagrams::default();
    let (mut a, mut b) = (net.qp(0), net.qp(1));
    let ah = net.ah(0, gid(1), 0);
    let region = b.buffer.region();
    let sges = [region.sge(0, 40), region.sge(1000, 100)];
    b.qp.post_recv(&RecvRequest { wr_id: 7, sges: &sges }).unwrap();
    a.send(SendOp::Send, b"apart", &ah, b.qp.qpn()).unwrap();
    net.run();
    assert_eq!(b.done()[0].byte_len, 45);
    let mut bytes = [0; 6];
    b.buffer.read(1000, &mut bytes);
    assert_eq!(&bytes, b"apart\0");
    b.buffer.read(20, &mut bytes);
    assert_eq!(bytes[0], 0x45, "an IPv4 header");
}

fn statuses(qp: &mut DatagramQp) -> Vec<Status> {
    qp.done().iter().map(|done| done.status).collect()
}

/// Takes a QP out of SQE.
fn to_rts(qp: &mut DatagramQp) {
    qp.qp.modify(&QpAttributes { state: Some(QpState::Rts), ..Default::default() }).unwrap();
}

/// As with mlx5, posting succeeds, and the request completes in error.
/// C10-10.
#[test]
fn requests_that_ud_does_not_support_complete_in_error() {
    let mut net = Datagrams::default();
    let (mut a, mut b) = (net.qp(0), net.qp(1));
    let ah = net.ah(0, gid(1), 0);
    let remote = RemoteAddr { addr: 0, rkey: Key(0) };
    for op in [
        SendOp::Write(remote),
        SendOp::WriteImm(remote, 1),
        SendOp::Read(remote),
        SendOp::FetchAdd { remote, add: 1 },
        SendOp::CompareSwap { remote, compare: 0, swap: 1 },
        SendOp::SendInvalidate(Key(0)),
        SendOp::Local(LocalOp::Invalidate(Key(0))),
    ] {
        a.send(op, b"", &ah, b.qp.qpn()).unwrap();
        net.run();
        assert_eq!(statuses(&mut a), [Status::LocalQpOperation], "{op:?}");
        assert_eq!((a.qp.query().state, net.frames().len()), (Some(QpState::Sqe), 0), "{op:?}");
        to_rts(&mut a);
    }
    let other_pd = net.rig.devices[0].alloc_pd();
    let other = other_pd.create_ah(&Path::new(gid(1), 0)).unwrap();
    a.send(SendOp::Send, b"", &other, b.qp.qpn()).unwrap();
    net.run();
    assert_eq!((statuses(&mut a), net.frames().len()), (vec![Status::LocalQpOperation], 0));
    to_rts(&mut a);
    b.receive(1);
    a.send(SendOp::Send, b"sound", &ah, b.qp.qpn()).unwrap();
    net.run();
    assert_eq!((statuses(&mut a), b.done().len()), (vec![Status::Success], 1));
}

#[test]
fn datagrams_need_a_destination() {
    let net = Datagrams::default();
    let mut a = net.qp(0);
    let (data, flags) = (Data::Inline(&[b"x"]), SendFlags::NONE);
    let request = SendRequest { wr_id: 1, op: SendOp::Send, data, flags };
    assert_eq!(a.qp.post_send(&request), Err(PostError::Destination));

    let foreign = net.ah(1, gid(0), 0);
    let refused = a.send(SendOp::Send, b"", &foreign, Qpn::masked(5));
    assert_eq!(refused, Err(PostError::Destination), "of another device");

    let mut pair = Pair::default();
    let ah = pair.pds[0].create_ah(&Path::new(gid(1), 0)).unwrap();
    let to = Destination { ah: &ah, remote_qpn: Qpn::masked(5), qkey: QKEY };
    assert_eq!(pair.qps[0].post_send_to(&request, &to), Err(PostError::Destination));
    let unknown = net.pds[0].create_ah(&Path::new(gid(1), 77));
    assert!(matches!(unknown, Err(DeviceError::GidIndex(77))));
    let nowhere = net.pds[0].create_ah(&Path::new(group("10.9.9.9"), 0));
    assert!(matches!(nowhere, Err(DeviceError::Path { .. })));
}

#[test]
fn a_failed_send_stops_the_send_queue_only() {
    let mut net = Datagrams::default();
    let (mut a, mut b) = (net.qp(0), net.qp(1));
    let (ah, back) = (net.ah(0, gid(1), 0), net.ah(1, gid(0), 0));
    b.receive(2);
    let bad = [Sge { lkey: Key(0xffff_ff01), ..a.buffer.region().sge(0, 8) }];
    let (data, flags) = (Data::Sges(&bad), SendFlags::NONE);
    let request = SendRequest { wr_id: 1, op: SendOp::Send, data, flags };
    let to = Destination { ah: &ah, remote_qpn: b.qp.qpn(), qkey: QKEY };
    a.qp.post_send_to(&request, &to).unwrap();
    a.send(SendOp::Send, b"behind", &ah, b.qp.qpn()).unwrap();
    net.run();
    let statuses: Vec<_> = a.done().iter().map(|done| done.status).collect();
    assert_eq!(statuses, [Status::LocalProtection, Status::WorkRequestFlushed]);
    assert_eq!(a.qp.query().state, Some(QpState::Sqe));

    a.receive(1);
    b.send(SendOp::Send, b"still heard", &back, a.qp.qpn()).unwrap();
    net.run();
    assert_eq!(a.done()[0].status, Status::Success);

    let rts = QpAttributes { state: Some(QpState::Rts), ..QpAttributes::default() };
    a.qp.modify(&rts).unwrap();
    a.send(SendOp::Send, b"again", &ah, b.qp.qpn()).unwrap();
    net.run();
    let done = b.done();
    assert_eq!(b.received(done.last().unwrap()).1, b"again");
}

#[test]
fn err_flushes_and_reset_clears_the_qp() {
    let mut net = Datagrams::default();
    let mut a = net.qp(0);
    let ah = net.ah(0, gid(1), 0);
    let to = |state| QpAttributes { state: Some(state), ..QpAttributes::default() };
    a.receive(2);
    a.qp.modify(&to(QpState::Err)).unwrap();
    a.send(SendOp::Send, b"late", &ah, Qpn::masked(5)).unwrap();
    net.run();
    let done = a.done();
    assert_eq!(done.len(), 3);
    assert!(done.iter().all(|done| done.status == Status::WorkRequestFlushed));
    a.qp.modify(&to(QpState::Reset)).unwrap();
    assert_eq!(a.send(SendOp::Send, b"", &ah, Qpn::masked(5)), Err(PostError::State));
    a.qp.activate(Qkey(7), Psn::new(3)).unwrap();
    let attributes = a.qp.query();
    assert_eq!((attributes.qkey, attributes.sq_psn), (Some(Qkey(7)), Some(Psn::new(3))));
    assert!(net.frames().is_empty());
}

/// ERR flushes every request, also one that would fail at this end if it were sent.
#[test]
fn a_request_with_a_local_error_is_flushed_by_err() {
    let net = Datagrams::default();
    let mut a = net.qp(0);
    let ah = net.ah(0, gid(1), 0);
    let wrong = [Sge { lkey: Key(0xffff_ff01), ..a.buffer.region().sge(0, 8) }];
    let (data, flags) = (Data::Sges(&wrong), SendFlags::SIGNALED);
    let request = SendRequest { wr_id: 1, op: SendOp::Send, data, flags };
    let to = Destination { ah: &ah, remote_qpn: Qpn::masked(5), qkey: QKEY };
    a.qp.post_send_to(&request, &to).unwrap();
    a.qp.modify(&QpAttributes { state: Some(QpState::Err), ..QpAttributes::default() }).unwrap();
    let statuses: Vec<_> = a.done().iter().map(|done| done.status).collect();
    assert_eq!(statuses, [Status::WorkRequestFlushed]);
}

#[test]
fn there_is_one_qp_1_per_device() {
    let mut net = Datagrams::default();
    let mut a = net.qp(0);
    let ah = net.ah(0, gid(1), 0);
    let mad = [0x5a; 256];
    a.send_with_key(SendOp::Send, &mad, &ah, Qpn::GSI, Qkey(5)).unwrap();
    net.run();
    assert_eq!(net.count(1, Counter::RxDiscards), 1, "there is no QP 1");

    let make = |end: usize| {
        let cq = net.rig.devices[end].create_cq(64).unwrap();
        net.pds[end]
            .create_gsi_qp(&QpInit::new(&cq))
            .map(|qp| DatagramQp::of(qp, cq, &net.pds[end]))
    };
    let (mut ours, first) = (make(0).unwrap(), make(1).unwrap());
    assert!(matches!(make(1), Err(DeviceError::Qpn(1))), "one per device");
    drop(first);
    let mut theirs = make(1).unwrap();
    assert_eq!(theirs.qp.qpn(), Qpn::GSI);
    theirs.receive(2);
    ours.send_with_key(SendOp::Send, &mad, &ah, Qpn::GSI, Qkey::GSI).unwrap();
    a.send(SendOp::Send, &mad, &ah, Qpn::GSI).unwrap();
    net.run();
    let done = theirs.done();
    assert_eq!(done.len(), 1, "only with the well-known key");
    assert_eq!(done[0].datagram.unwrap().src_qp, Qpn::GSI);
    assert_eq!(theirs.received(&done[0]).1, mad);
    assert_eq!(net.count(1, Counter::QkeyViolations), 1);
}

#[test]
fn every_member_of_a_group_gets_a_copy() {
    for (name, index, mac) in [
        (GROUP, 0, [0x01, 0x00, 0x5e, 0x4d, 0x00, 0x01]),
        ("ff0e::ffff:239.77.0.1", 0, [0x01, 0x00, 0x5e, 0x4d, 0x00, 0x01]),
        ("ff0e::77:1", 1, [0x33, 0x33, 0x00, 0x77, 0x00, 0x01]),
    ] {
        let mut net = Datagrams::default();
        let (mut sender, mut own) = (net.qp(0), net.qp(0));
        let mut others = [net.qp(1), net.qp(1), net.qp(1)];
        let group = group(name);
        for member in others.iter().take(2).chain([&sender, &own]) {
            member.qp.attach_multicast(group).unwrap();
            member.qp.attach_multicast(group).unwrap(); // Attaching again has no effect.
        }
        for qp in others.iter_mut().chain([&mut sender, &mut own]) {
            qp.receive(4);
        }
        let ah = net.ah(0, group, index);
        sender.send(SendOp::Send, b"to all", &ah, Qpn::MULTICAST).unwrap();
        net.run();
        let frames = net.frames();
        assert_eq!(frames.len(), 1, "{name}: one frame on the wire");
        let packet = parse(&frames[0].bytes);
        assert_eq!(packet.ethernet.dst, MacAddr(mac), "{name}");
        assert_eq!(packet.ip.hop_limit(), 1, "{name}");
        assert_eq!(packet.bth.dest_qp, Qpn::MULTICAST, "{name}");
        for (at, qp) in others.iter_mut().enumerate() {
            let done = qp.done();
            assert_eq!(done.len(), usize::from(at < 2), "{name}: member {at}");
            assert!(done.iter().all(|done| qp.received(done).1 == b"to all"), "{name}");
        }
        assert_eq!(own.done().len(), 1, "{name}: another QP of the same device");
        assert_eq!(sender.done().len(), 2, "{name}: sent, and received itself");
        assert_eq!(net.count(0, Counter::TxLoopback), 1, "{name}");

        others[0].qp.detach_multicast(group).unwrap();
        let again = others[0].qp.detach_multicast(group);
        assert!(matches!(again, Err(DeviceError::NotAttached(_))), "{name}");
        drop(own);
        sender.send(SendOp::Send, b"to the rest", &ah, Qpn::MULTICAST).unwrap();
        net.run();
        assert_eq!(others.map(|qp| qp.done().len()), [0, 1, 0], "{name}");
    }
}

#[test]
fn a_sender_may_block_its_own_multicast() {
    let mut net = Datagrams::default();
    let mut sender = net.qp_with(0, |init| init.block_own_multicast = true);
    let (mut own, mut other) = (net.qp(0), net.qp(1));
    let (group, back) = (group(GROUP), net.ah(1, group(GROUP), 0));
    for qp in [&mut sender, &mut own, &mut other] {
        qp.qp.attach_multicast(group).unwrap();
        qp.receive(2);
    }
    let ah = net.ah(0, group, 0);
    sender.send(SendOp::Send, b"not to me", &ah, Qpn::MULTICAST).unwrap();
    net.run();
    assert_eq!((sender.done().len(), own.done().len(), other.done().len()), (1, 1, 1));
    // Another host may have a QP with the same number.
    assert_eq!(sender.qp.qpn(), other.qp.qpn());
    other.send(SendOp::Send, b"to you", &back, Qpn::MULTICAST).unwrap();
    net.run();
    assert_eq!((sender.done().len(), own.done().len(), other.done().len()), (1, 1, 2));
}

#[test]
fn invalid_multicast_requests_and_packets_are_refused() {
    let mut net = Datagrams::default();
    let (mut a, mut b) = (net.qp(0), net.qp(1));
    let refused = a.qp.attach_multicast(gid(1));
    assert!(matches!(refused, Err(DeviceError::NotMulticast(_))));
    let pair = Pair::default();
    let refused = pair.qps[0].attach_multicast(group(GROUP));
    assert!(matches!(refused, Err(DeviceError::NotDatagram)));

    // Without a member; with the multicast QPN and a unicast address; with a wrong Q_Key.
    b.receive(3);
    let (to_group, to_host) = (net.ah(0, group(GROUP), 0), net.ah(0, gid(1), 0));
    a.send(SendOp::Send, b"1", &to_group, Qpn::MULTICAST).unwrap();
    net.run();
    assert_eq!(net.count(1, Counter::RxDiscards), 1);
    b.qp.attach_multicast(group(GROUP)).unwrap();
    a.send(SendOp::Send, b"2", &to_host, Qpn::MULTICAST).unwrap();
    net.run();
    assert_eq!((net.count(1, Counter::RxDiscards), b.done()), (2, vec![]));
    a.send_with_key(SendOp::Send, b"3", &to_group, Qpn::MULTICAST, Qkey(9)).unwrap();
    net.run();
    assert_eq!((net.count(1, Counter::QkeyViolations), b.done()), (1, vec![]));
    a.send(SendOp::Send, b"4", &to_group, Qpn::MULTICAST).unwrap();
    net.run();
    assert_eq!(b.done()[0].byte_len, RECEIVE - 4096 + 1);
}

//! UD and UC compared with Linux rxe: captured frames are received as they were sent, and Feroce
//! sends the same frames with the same parameters.
//!
//! Three fields differ: MigReq (rxe sends 0), the IPv4 identification (rxe uses that of the
//! kernel), and the IPv6 flow label (rxe sends 0 unless the program sets one).

use std::collections::BTreeMap;

use feroce_engine::device::{
    Addressing, Destination, Device, DeviceConfig, Path, QpInit, SourcePort, StaticAddresses,
};
use feroce_engine::memory::Access;
use feroce_engine::memory::arena::Arena;
use feroce_engine::net::Gid;
use feroce_engine::port::shm::{ShmConfig, ShmPort, shm_pair};
use feroce_engine::port::{Port, Priority};
use feroce_engine::qp::QpState;
use feroce_engine::qp::Service;
use feroce_engine::qp::attributes::QpAttributes;
use feroce_engine::time::Instant;
use feroce_engine::verbs::{Data, Extra, RecvRequest, SendFlags, SendOp, SendRequest};
use feroce_tests::capture::{self, CapturedFrame};
use feroce_tests::{drain, manual_config};
use feroce_wire::{
    Audience, IpHeader, Ipv4Header, MacAddr, Packet, PathMtu, Pkey, Position, Qpn, Transport,
};

/// A device with the addresses of one end of a capture, and the other end of its port.
fn device(qpn: Qpn, local: (MacAddr, Gid), peer: (MacAddr, Gid)) -> (Device, ShmPort) {
    let arena = Arena::new(16 << 20).unwrap();
    let (near, far) = shm_pair(&arena, ShmConfig::default()).unwrap();
    let config = DeviceConfig { first_qpn: Some(qpn.value().max(2)), ..manual_config(1) };
    let addresses = Addressing::Static(StaticAddresses {
        mac: local.0,
        gids: vec![(local.1, None)],
        peers: BTreeMap::from([(peer.1, peer.0)]),
        mtu: 1500,
    });
    (Device::with_ports(vec![Box::new(near)], addresses, config).unwrap(), far)
}

fn deliver(device: &Device, port: &mut ShmPort, bytes: &[u8]) {
    port.tx_slot().unwrap()[..bytes.len()].copy_from_slice(bytes);
    port.tx_commit(bytes.len(), Priority::default());
    port.flush().unwrap();
    while device.turn(Instant::ZERO) > 0 {}
}

/// The frames of one direction: those with the destination of the first frame of the service.
fn one_way(frames: &[CapturedFrame], transport: Transport) -> Vec<&CapturedFrame> {
    let of_service = |frame: &&CapturedFrame| frame.packet().info.transport == transport;
    let user = |frame: &&CapturedFrame| frame.packet().bth.dest_qp != Qpn::GSI;
    let first = frames.iter().filter(of_service).find(user).unwrap().packet();
    let (to, qpn) = (first.ip.dst(), first.bth.dest_qp);
    let same =
        |frame: &&CapturedFrame| frame.packet().ip.dst() == to && frame.packet().bth.dest_qp == qpn;
    frames.iter().filter(of_service).filter(same).collect()
}

#[test]
fn datagrams_of_rxe_are_received_and_reproduced() {
    for (file, count) in [
        ("rxe/send_bw_ud_v4.pcap.zst", 200),
        ("rxe/mckey_v4.pcap.zst", 30),
        ("rxe/ud_pingpong_v6_1024.pcap.zst", 100),
    ] {
        let capture = capture::read(file);
        let frames = one_way(&capture, Transport::Ud);
        assert_eq!(frames.len(), count, "{file}: the capture has changed");
        receive_all(file, &frames);
        send_all(file, &frames);
    }
}

fn gids(packet: &Packet<'_>) -> (Gid, Gid) {
    (packet.ip.src().into(), packet.ip.dst().into())
}

fn receive_all(file: &str, frames: &[&CapturedFrame]) {
    let first = frames[0].packet();
    let (src, dst) = gids(&first);
    let is_group = first.bth.dest_qp == Qpn::MULTICAST;
    let qpn = if is_group { Qpn::masked(0x77) } else { first.bth.dest_qp };
    let local = if is_group { "10.77.0.2".parse().unwrap() } else { dst };
    let (device, mut port) = device(qpn, (first.ethernet.dst, local), (first.ethernet.src, src));
    let (pd, cq) = (device.alloc_pd(), device.create_cq(16).unwrap());
    let init = QpInit { service: Service::Ud, qpn: Some(qpn), ..QpInit::new(&cq) };
    let mut qp = pd.create_qp(&init).unwrap();
    qp.activate(first.ext.deth.unwrap().qkey, feroce_wire::Psn::new(0)).unwrap();
    if is_group {
        qp.attach_multicast(dst).unwrap();
    }
    let buffer = pd.alloc_buffer(4096, Access::LOCAL_WRITE).unwrap();
    for (number, frame) in frames.iter().enumerate() {
        let sges = [buffer.region().sge(0, 4096)];
        qp.post_recv(&RecvRequest { wr_id: 1, sges: &sges }).unwrap();
        deliver(&device, &mut port, &frame.bytes);
        let (done, packet) = (drain(&cq), frame.packet());
        assert_eq!(done.len(), 1, "{file} frame {number}");
        let extra = packet.ext.imm.map_or(Extra::None, |imm| Extra::Immediate(imm.0));
        assert_eq!(done[0].extra, extra, "{file} frame {number}");
        let source = done[0].datagram.unwrap();
        assert_eq!(source.src_qp, packet.ext.deth.unwrap().src_qp, "{file} frame {number}");
        let mut bytes = vec![0; done[0].byte_len as usize];
        buffer.read(0, &mut bytes);
        let ip = 14..14 + packet.ip.header_len();
        assert_eq!(bytes[40 - ip.len()..40], frame.bytes[ip], "{file} frame {number}: GRH");
        assert_eq!(bytes[40..], packet.payload.slices().concat(), "{file} frame {number}");
    }
    assert_eq!(port.rx_burst(), 0, "{file}: no response is sent");
}

fn send_all(file: &str, frames: &[&CapturedFrame]) {
    let first = frames[0].packet();
    let (src, dst) = gids(&first);
    let deth = first.ext.deth.unwrap();
    let (device, mut port) =
        device(deth.src_qp, (first.ethernet.src, src), (first.ethernet.dst, dst));
    let (pd, cq) = (device.alloc_pd(), device.create_cq(512).unwrap());
    let init = QpInit { service: Service::Ud, qpn: Some(deth.src_qp), ..QpInit::new(&cq) };
    let mut qp = pd.create_qp(&init).unwrap();
    qp.activate(deth.qkey, first.bth.psn).unwrap();
    let buffer = pd.alloc_buffer(4096, Access::LOCAL_WRITE).unwrap();
    let path = Path {
        hop_limit: first.ip.hop_limit(),
        traffic_class: first.ip.traffic_class(),
        source_port: SourcePort::Fixed(first.udp.src_port.try_into().unwrap()),
        ..Path::new(dst, 0)
    };
    let ah = pd.create_ah(&path).unwrap();
    for (number, frame) in frames.iter().enumerate() {
        let theirs = frame.packet();
        buffer.write(0, &theirs.payload.slices().concat());
        let op = theirs.ext.imm.map_or(SendOp::Send, |imm| SendOp::SendImm(imm.0));
        let sges = [buffer.region().sge(0, u32::try_from(theirs.payload.len()).unwrap())];
        let flags = if theirs.bth.solicited { SendFlags::SOLICITED } else { SendFlags::NONE };
        let request = SendRequest { wr_id: 1, op, data: Data::Sges(&sges), flags };
        let (remote_qpn, qkey) = (theirs.bth.dest_qp, deth.qkey);
        qp.post_send_to(&request, &Destination { ah: &ah, remote_qpn, qkey }).unwrap();
        while device.turn(Instant::ZERO) > 0 {}
        assert_eq!(port.rx_burst(), 1, "{file} frame {number}");
        let ours = as_rxe(port.rx_frame(0).first, &theirs);
        assert_eq!(ours, frame.bytes, "{file} frame {number}");
    }
}

/// Our frame with the fields replaced that rxe sets differently.
fn as_rxe(ours: &[u8], theirs: &Packet<'_>) -> Vec<u8> {
    let mut packet = Packet::parse(ours, &[]).unwrap();
    assert!(packet.icrc_valid() && packet.bth.mig_req && !theirs.bth.mig_req);
    packet.bth.mig_req = false;
    match (&mut packet.ip, &theirs.ip) {
        (IpHeader::V4(ip), IpHeader::V4(their)) => {
            ip.identification = their.identification;
            ip.checksum = Ipv4Header { checksum: 0, ..*ip }.computed_checksum();
        }
        (IpHeader::V6(ip), IpHeader::V6(their)) => {
            assert!(ip.flow_label != 0 && their.flow_label == 0);
            ip.flow_label = 0;
        }
        _ => panic!("both frames have the same IP version"),
    }
    let mut bytes = vec![0; packet.frame_len()];
    packet.emit(&mut bytes).unwrap();
    let icrc = Packet::parse(&bytes, &[]).unwrap().computed_icrc();
    let at = bytes.len() - 4;
    bytes[at..].copy_from_slice(&icrc.to_le_bytes());
    bytes
}

/// Messages of one and of several packets, with and without immediate data.
#[test]
fn connected_messages_of_rxe_are_received() {
    let file = "rxe/ops_uc_send_imm.pcap.zst";
    let capture = capture::read(file);
    let frames = one_way(&capture, Transport::Uc);
    let first = frames[0].packet();
    let (src, dst) = gids(&first);
    let qpn = first.bth.dest_qp;
    let (device, mut port) = device(qpn, (first.ethernet.dst, dst), (first.ethernet.src, src));
    let (pd, cq) = (device.alloc_pd(), device.create_cq(16).unwrap());
    let init = QpInit { service: Service::Uc, qpn: Some(qpn), ..QpInit::new(&cq) };
    let mut qp = pd.create_qp(&init).unwrap();
    let remote = Qpn::masked(0x12); // UC packets do not name the source QP.
    let flow = qp.resolve(&Path::new(src, 0), remote).unwrap();
    assert_eq!(flow.audience(), Audience::Host);
    let to = |state| QpAttributes { state: Some(state), ..QpAttributes::default() };
    let (pkey, port_number, access) = (Some(Pkey::DEFAULT), Some(1), Some(Access::NONE));
    qp.modify(&QpAttributes { pkey, port: port_number, access, ..to(QpState::Init) }).unwrap();
    qp.modify(&QpAttributes {
        flow: Some(flow),
        path_mtu: Some(PathMtu::Mtu1024),
        dest_qp: Some(remote),
        rq_psn: Some(first.bth.psn),
        ..to(QpState::Rtr)
    })
    .unwrap();
    let buffer = pd.alloc_buffer(1 << 16, Access::LOCAL_WRITE).unwrap();
    let (mut message, mut messages) = (Vec::new(), 0);
    for frame in &frames {
        let packet = frame.packet();
        if packet.info.position.starts_message() {
            let sges = [buffer.region().sge(0, 1 << 16)];
            qp.post_recv(&RecvRequest { wr_id: 1, sges: &sges }).unwrap();
        }
        deliver(&device, &mut port, &frame.bytes);
        message.extend(packet.payload.slices().concat());
        let done = drain(&cq);
        let ends = matches!(packet.info.position, Position::Last | Position::Only);
        assert_eq!(done.len(), usize::from(ends));
        if ends {
            let extra = packet.ext.imm.map_or(Extra::None, |imm| Extra::Immediate(imm.0));
            assert_eq!(done[0].extra, extra);
            let mut bytes = vec![0; done[0].byte_len as usize];
            buffer.read(0, &mut bytes);
            assert!(bytes == message, "message {messages}");
            message.clear();
            messages += 1;
        }
    }
    assert_eq!((frames.len(), messages), (11, 4));
    assert_eq!(port.rx_burst(), 0, "no response is sent");
}

//! The UDP port on veth pairs between network namespaces, with a packet port as the judge of what
//! is on the wire. Without root, each test prints a message and passes; the UDP ports themselves
//! are opened by a thread without any capability.
#![allow(clippy::disallowed_methods)] // Tests against the kernel use real time.

mod pair;

use std::time::Instant;

use feroce_engine::device::{ConnectOptions, DeviceError, PortKind, SourcePort};
use feroce_engine::port::Port;
use feroce_engine::port::packet::{PacketConfig, PacketPort, SuperFrames};
use feroce_engine::port::udp::{UdpConfig, UdpError, UdpPort};
use feroce_wire::{FlowHeader, FlowSpec, IpAddresses, Packet, PathMtu, Psn};
use pair::{
    Kind, PLAIN, Pair, SILENCE, TEST_TIMEOUT, addresses, connect, drop_capabilities, flow, ip, psn,
    queue, receive, root, sealed, send, send_train, write_and_read_back,
};

/// Runs `work` in the namespace of `end`, in a thread without capabilities.
fn unprivileged<T: Send>(pair: &Pair, end: usize, work: impl FnOnce() -> T + Send) -> T {
    pair.within(end, || {
        drop_capabilities();
        work()
    })
}

fn open(pair: &Pair, end: usize, config: UdpConfig) -> UdpPort {
    let config = UdpConfig { interface: Pair::device(end).to_owned(), ..config };
    let port = unprivileged(pair, end, || UdpPort::open(&config, 1)).expect("a port").remove(0);
    port.set_addresses(&addresses(end)).expect("addresses");
    port
}

fn udp(pair: &Pair, end: usize) -> UdpPort {
    open(pair, end, UdpConfig::new(""))
}

/// A packet port, which shows what is on the wire.
fn judge(pair: &Pair, end: usize) -> PacketPort {
    let config =
        PacketConfig { super_frames: SuperFrames::Off, ..PacketConfig::new(Pair::device(end)) };
    let port = pair.within(end, || PacketPort::open(&config, 1)).expect("a port").remove(0);
    port.address_filter().set(&addresses(end)).expect("addresses");
    port
}

/// A flow of `from` to the port `to` at end 1, from its first source port.
fn flow_from(from: &UdpPort, to: &dyn Port, v6: bool) -> FlowHeader {
    let source_port = from.attributes().source_ports[0];
    flow(to, 1, Kind { v6, source_port, ..PLAIN })
}

/// The kernel segments super-frames before they leave `end`, as for a NIC without that offload.
fn segment_in_software(pair: &Pair, end: usize) {
    let device = Pair::device(end);
    pair.within(end, || {
        let mut ethtool = std::process::Command::new("ethtool");
        let set = ethtool.args(["-K", device, "gso", "off", "tx-udp-segmentation", "off"]);
        assert!(set.status().expect("the program ethtool").success());
    });
}

/// Both headers behind Ethernet, and the payload.
fn behind_ethernet(frame: &[u8]) -> &[u8] {
    &frame[14..]
}

#[test]
fn packets_are_on_the_wire_as_the_core_wrote_them() {
    if !root() {
        return;
    }
    let pair = Pair::new(4200);
    let (mut from, mut to) = (udp(&pair, 0), judge(&pair, 1));
    for v6 in [false, true] {
        let spec = *flow_from(&from, &to, v6).spec();
        let flow = FlowHeader::new(&FlowSpec { traffic_class: 0x6a, hop_limit: 17, ..spec });
        for payload in [4, 64, 1024, 4096] {
            let id = from.tx_identification(payload + 16, false).expect("the link's");
            assert_eq!(id, 0);
            let sent = sealed(&flow, payload, 7, id);
            send(&mut from, &sent);
            let came = receive(&mut to, 1, TEST_TIMEOUT).pop().expect("the packet");
            let packet = Packet::parse(&came, &[]).expect("a packet");
            assert!(packet.icrc_valid());
            let (mut came, mut sent) = (came.clone(), sent.clone());
            if v6 {
                // The kernel chooses the flow label.
                for frame in [&mut came, &mut sent] {
                    frame[15] &= 0xf0;
                    frame[16..18].fill(0);
                }
            }
            assert_eq!(behind_ethernet(&came), behind_ethernet(&sent), "{payload} bytes, v6: {v6}");
        }
    }
    assert_eq!(from.stats().tx_dropped, 0);
}

#[test]
fn the_kernel_numbers_the_packets_of_a_super_frame_as_the_port_says() {
    if !root() {
        return;
    }
    for in_software in [false, true] {
        let pair = Pair::new(4200);
        if in_software {
            segment_in_software(&pair, 0);
        }
        let config = UdpConfig { super_frames: SuperFrames::On, ..UdpConfig::new("") };
        let (mut from, mut to) = (open(&pair, 0, config), judge(&pair, 1));
        for v6 in [false, true] {
            let flow = flow_from(&from, &to, v6);
            let sizes = [1040, 1024, 1024, 1024, 512, 1024, 1024];
            let mut numbers = Vec::new();
            for (index, payload) in sizes.into_iter().enumerate() {
                let id = from.tx_identification(payload + 16, index > 0).expect("the link's");
                numbers.push(id);
                let packet = sealed(&flow, payload, u32::try_from(index).unwrap(), id);
                queue(&mut from, &packet, index > 0);
            }
            // A longer packet begins a super-frame; a shorter one ends it.
            assert_eq!(numbers, [0, 1, 0, 1, 2, 0, 1]);
            from.flush().expect("the link is up");
            let came = receive(&mut to, sizes.len(), TEST_TIMEOUT);
            let read = |frame: &Vec<u8>| {
                let packet = Packet::parse(frame, &[]).expect("a packet");
                assert!(packet.icrc_valid(), "PSN {}, v6: {v6}", packet.bth.psn.value());
                (packet.bth.psn.value(), packet.payload.len())
            };
            let came: Vec<_> = came.iter().map(read).collect();
            let sent: Vec<_> = (0..).zip(sizes).collect();
            assert_eq!(came, sent, "v6: {v6}, in software: {in_software}");
        }
        assert_eq!(from.stats().tx_dropped, 0);
    }
}

/// Numbers that other makes use, and packets without DF.
#[test]
fn identifications_of_other_makes_are_recovered() {
    if !root() {
        return;
    }
    let pair = Pair::new(4200);
    let (mut from, mut to) = (judge(&pair, 0), udp(&pair, 1));
    let flow = flow(&to, 1, PLAIN);
    for (psn, id) in (0..).zip([0, 1, 0x1234, 0xffff, 0x8000]) {
        for payload in [4, 64, 4096] {
            let sent = sealed(&flow, payload, psn, id);
            send(&mut from, &sent);
            let came = receive(&mut to, 1, TEST_TIMEOUT).pop().expect("the packet");
            let packet = Packet::parse(&came, &[]).expect("a packet");
            assert!(packet.icrc_valid(), "identification {id:#x}");
            assert_eq!(behind_ethernet(&came), behind_ethernet(&sent), "{id:#x}, {payload} bytes");
        }
    }
    // Damaged packets stay damaged.
    let mut damaged = sealed(&flow, 64, 9, 5);
    damaged[80] ^= 1;
    send(&mut from, &damaged);
    let came = receive(&mut to, 1, TEST_TIMEOUT).pop().expect("the packet");
    assert!(!Packet::parse(&came, &[]).expect("a packet").icrc_valid());
}

#[test]
fn super_frames_arrive_as_packets() {
    if !root() {
        return;
    }
    let pair = Pair::new(4200);
    let config = PacketConfig { super_frames: SuperFrames::On, ..PacketConfig::new("v0") };
    let mut from = pair.within(0, || PacketPort::open(&config, 1)).expect("a port").remove(0);
    let mut to = udp(&pair, 1);
    for v6 in [false, true] {
        let flow = flow(&to, 1, Kind { v6, ..PLAIN });
        let train: Vec<_> = (0..30_u16)
            .map(|index| {
                sealed(&flow, if index == 29 { 8 } else { 2048 }, index.into(), 100 + index)
            })
            .collect();
        send_train(&mut from, &train);
        let came = receive(&mut to, train.len(), TEST_TIMEOUT);
        assert_eq!(came.len(), train.len());
        for (came, sent) in came.iter().zip(&train) {
            assert!(Packet::parse(came, &[]).expect("a packet").icrc_valid(), "v6: {v6}");
            assert_eq!(behind_ethernet(came), behind_ethernet(sent));
        }
    }
}

#[test]
fn packets_to_other_addresses_are_not_received() {
    if !root() {
        return;
    }
    let pair = Pair::new(1500);
    ip(&format!("-n {} address add 10.8.0.9/24 dev v1", pair.names[1]));
    let (mut from, mut to) = (judge(&pair, 0), udp(&pair, 1));
    let spec = *flow(&to, 1, PLAIN).spec();
    let other = IpAddresses::V4 { src: [10, 8, 0, 1].into(), dst: [10, 8, 0, 9].into() };
    let other = FlowHeader::new(&FlowSpec { addresses: other, ..spec });
    send(&mut from, &sealed(&other, 64, 1, 1));
    send(&mut from, &sealed(&FlowHeader::new(&spec), 64, 2, 1));
    let came = receive(&mut to, 2, SILENCE);
    let psns: Vec<_> = came.iter().map(|frame| psn(frame)).collect();
    assert_eq!(psns, [2]);
    to.set_addresses(&["::ffff:10.8.0.9".parse().unwrap()]).expect("addresses");
    send(&mut from, &sealed(&other, 64, 3, 1));
    assert_eq!(receive(&mut to, 1, TEST_TIMEOUT).len(), 1);
}

/// What any host may send to the UDP port.
#[test]
fn datagrams_that_are_no_packets_are_harmless() {
    if !root() {
        return;
    }
    let pair = Pair::new(1500);
    let mut to = udp(&pair, 1);
    let senders = pair.within(0, || {
        ["10.8.0.1:0", "[fd08::1]:0"].map(|own| std::net::UdpSocket::bind(own).expect("bound"))
    });
    for (sender, target) in senders.iter().zip(["10.8.0.2:4791", "[fd08::2]:4791"]) {
        // The kernel cuts a long datagram into fragments, and the other one puts it together.
        let longest = if target.starts_with('[') { 65_527 } else { 65_507 };
        for len in [0, 1, 3, 11, 12, 15, 16, 17, 1400, 1500, 40_000, longest - 40, longest] {
            sender.send_to(&vec![0xa5; len], target).expect("sent");
            for frame in receive(&mut to, 1, SILENCE / 5) {
                let valid = Packet::parse(&frame, &[]).is_ok_and(|packet| packet.icrc_valid());
                assert!(!valid, "{len} bytes to {target}");
            }
        }
    }
    // The port still receives packets.
    let mut from = judge(&pair, 0);
    send(&mut from, &sealed(&flow(&to, 1, PLAIN), 64, 5, 9));
    let came = receive(&mut to, 100, SILENCE);
    assert!(came.iter().any(|frame| Packet::parse(frame, &[]).is_ok_and(|p| p.icrc_valid())));
}

/// The destination QP chooses the core.
#[test]
fn each_core_gets_the_packets_of_its_qps() {
    if !root() {
        return;
    }
    let pair = Pair::new(1500);
    let config = UdpConfig { rx_sockets: 2, ..UdpConfig::new("v1") };
    let mut cores = unprivileged(&pair, 1, || UdpPort::open(&config, 2)).expect("ports");
    cores[0].set_addresses(&addresses(1)).expect("addresses");
    let mut from = judge(&pair, 0);
    let flow = flow(&cores[0], 1, PLAIN);
    for qpn in 0..16_u8 {
        let mut packet = sealed(&flow, 64, qpn.into(), 0);
        packet[14 + 20 + 8 + 7] = qpn;
        send(&mut from, &packet);
    }
    for (core, port) in cores.iter_mut().enumerate() {
        let came = receive(port, 8, TEST_TIMEOUT);
        assert_eq!(came.len(), 8);
        let qpns = came.iter().map(|frame| usize::from(frame[14 + 20 + 8 + 7]) % 2);
        assert!(qpns.clone().all(|its| its == core), "core {core}: {:?}", qpns.collect::<Vec<_>>());
    }
}

#[test]
fn errors_name_the_cause() {
    if !root() {
        return;
    }
    let pair = Pair::new(1500);
    // A program that another test starts at this moment holds copies of all descriptors between
    // its fork and its exec, also of a socket that this test has just closed.
    let refused = |config: &UdpConfig, words: [&str; 2]| {
        let end = Instant::now() + TEST_TIMEOUT;
        loop {
            let opened = unprivileged(&pair, 0, || UdpPort::open(config, 1));
            let text = opened.expect_err("refused").to_string();
            if words.iter().all(|word| text.contains(word)) {
                return;
            }
            let is_held = text.contains("4791") && !words.contains(&"4791");
            assert!(is_held && Instant::now() < end, "{text}");
        }
    };
    let holder = pair.within(0, || std::net::UdpSocket::bind("0.0.0.0:4791")).expect("bound");
    refused(&UdpConfig::new("v0"), ["4791", "ss -ulnp"]);
    drop(holder);
    let holder = pair.within(0, || std::net::UdpSocket::bind("0.0.0.0:50123")).expect("bound");
    let config = UdpConfig { source_ports: vec![50123], ..UdpConfig::new("v0") };
    refused(&config, ["50123", "udp_source_ports"]);
    drop(holder);
    refused(&UdpConfig::new("v7"), ["no interface", "'v7'"]);
    assert!(matches!(
        unprivileged(&pair, 0, || UdpPort::open(&UdpConfig::new("lo"), 1)),
        Err(UdpError::NotEthernet(_) | UdpError::Down(_))
    ));
}

#[test]
fn devices_transfer_every_byte_without_any_capability() {
    if !root() {
        return;
    }
    for kinds in [[PortKind::Udp; 2], [PortKind::Udp, PortKind::Packet]] {
        for path_mtu in [PathMtu::Mtu4096, PathMtu::Mtu1024] {
            let pair = Pair::new(4200);
            let mut ends = connect(&pair, kinds, path_mtu);
            write_and_read_back(&mut ends, &format!("{kinds:?}, {path_mtu}"));
        }
    }
}

#[test]
fn a_source_port_that_is_not_open_is_refused() {
    if !root() {
        return;
    }
    let pair = Pair::new(1500);
    let mut ends = connect(&pair, [PortKind::Udp; 2], PathMtu::Mtu1024);
    let peer = ends[1].qp.endpoint(Psn::new(1), 0).expect("a GID");
    let source_port = SourcePort::Fixed(50_321.try_into().unwrap());
    let options = ConnectOptions { source_port, ..ConnectOptions::default() };
    let refused = pair.within(0, || ends[0].qp.connect(Psn::new(1), &peer, &options));
    assert!(matches!(refused, Err(DeviceError::SourcePort(50_321))), "{refused:?}");
}

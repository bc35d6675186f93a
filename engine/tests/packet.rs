//! The packet port on veth pairs between network namespaces. Without root, each test prints a
//! message and passes.
#![allow(clippy::disallowed_methods)] // Tests against the kernel use real time.

mod pair;

use std::collections::BTreeSet;
use std::fs::File;
use std::io::ErrorKind;
use std::net::{Ipv6Addr, UdpSocket};
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use feroce_engine::counters::Counter;
use feroce_engine::device::{DeviceConfig, Endpoint, PortKind};
use feroce_engine::port::Port;
use feroce_engine::port::af_xdp::{AfXdp, AfXdpConfig, AfXdpError, XdpMode};
use feroce_engine::port::fault::{FaultPort, Faults};
use feroce_engine::port::packet::{PacketConfig, PacketError, PacketPort, SuperFrames};
use feroce_engine::port::pcap::PcapPort;
use feroce_wire::{FlowHeader, PathMtu};
use pair::{
    Kind, MESSAGE, PLAIN, Pair, SILENCE, TEST_TIMEOUT, addresses, connect, connect_with, expect,
    flow, ip, psn, queue, receive, request, requests_at_once, root, sealed, send, send_train,
    wait_until_up, write_and_read_back,
};

impl Pair {
    fn try_open(
        &self,
        end: usize,
        config: &PacketConfig,
        cores: usize,
    ) -> Result<Vec<PacketPort>, PacketError> {
        self.within(end, || PacketPort::open(config, cores))
    }

    fn open(&self, end: usize, config: PacketConfig) -> PacketPort {
        let config = PacketConfig { interface: Self::device(end).to_owned(), ..config };
        let port = self.try_open(end, &config, 1).expect("a port").remove(0);
        port.address_filter().set(&addresses(end)).expect("addresses");
        port
    }

    fn port(&self, end: usize, super_frames: SuperFrames) -> PacketPort {
        self.open(end, PacketConfig { super_frames, ..PacketConfig::new("") })
    }

    fn ports(&self, super_frames: SuperFrames) -> [PacketPort; 2] {
        [0, 1].map(|end| self.port(end, super_frames))
    }
}

fn kinds() -> impl Iterator<Item = Kind> {
    let versions = [(false, false), (false, true), (true, false), (true, true)];
    versions.into_iter().map(|(v6, tagged)| Kind { v6, tagged, ..PLAIN })
}

#[test]
fn frames_of_every_size_cross_both_ways() {
    if !root() {
        return;
    }
    for mode in [SuperFrames::Auto, SuperFrames::Off] {
        let pair = Pair::new(4200);
        let mut ports = pair.ports(mode);
        let kind = &ports[0].attributes().kind;
        assert_eq!(kind.contains("super-frames"), mode == SuperFrames::Auto, "{kind}");
        assert_eq!(ports[0].attributes().segments_max > 1, mode == SuperFrames::Auto);
        let room = ports[0].tx_room();
        // Includes lengths around the longest frame in the ring: headers and ICRC have 58 or 78
        // bytes.
        let longest = (860..=892).step_by(4);
        let sizes = (4..=4096).step_by(92).chain(longest);
        for (count, size) in (0..).zip(sizes) {
            for (end, kind) in [0, 1].into_iter().flat_map(|end| kinds().map(move |k| (end, k))) {
                let sent = sealed(&flow(&ports[end], end, kind), size, count, 7);
                send(&mut ports[1 - end], &sent);
                expect(&mut ports[end], &[sent], &format!("{kind:?} to end {end}"));
            }
        }
        let stats = ports.each_ref().map(Port::stats);
        for end in [0, 1] {
            assert_eq!(stats[end].rx_frames, stats[1 - end].tx_frames);
            assert_eq!(stats[end].rx_bytes, stats[1 - end].tx_bytes);
            assert_eq!((stats[end].rx_dropped, stats[end].tx_dropped), (0, 0));
        }
        assert_eq!(ports[0].tx_room(), room, "every slot was returned");
    }
}

/// Packets with payloads of `sizes` bytes and identifications that count up from `id`, modulo 2^16.
fn train(flow: &FlowHeader, sizes: &[usize], id: u16) -> Vec<Vec<u8>> {
    let packet = |(count, &size): (u16, &usize)| {
        sealed(flow, size, u32::from(count), id.wrapping_add(count))
    };
    (0..).zip(sizes).map(packet).collect()
}

#[test]
fn super_frames_cross_both_ways_and_arrive_as_packets() {
    if !root() {
        return;
    }
    let pair = Pair::new(4200);
    let mut ports = pair.ports(SuperFrames::Auto);
    // Payload sizes, and the number of frames that the kernel carries.
    let full = [4096; 15];
    let trains: [(&[usize], u64); 10] = [
        (&full, 1),
        (&[4096; 16], 2), // Too long for one IP packet.
        (&[1024; 64], 2), // 64 packets are too long, too: 62 and 2.
        (&[64; 70], 2),   // More than 64 packets.
        (&[16, 8], 1),    // Short enough for the ring.
        (&[16; 27], 1),   // Also short enough for the ring.
        (&[16; 29], 1),
        (&[64, 64, 4], 1),
        // A longer packet, or one after a shorter packet, starts a new frame.
        (&[500, 4096, 4096, 300, 4096], 3),
        (&[4, 4096], 2),
    ];
    for (end, kind) in [0, 1].into_iter().flat_map(|end| kinds().map(move |kind| (end, kind))) {
        let flow = flow(&ports[end], end, kind);
        for (sizes, frames) in trains {
            let sent = train(&flow, sizes, 0xfffc);
            let what = format!("{kind:?} {sizes:?} to end {end}");
            let mut counted = || {
                let before = pair.kernel_frames(end);
                send_train(&mut ports[1 - end], &sent);
                expect(&mut ports[end], &sent, &what);
                pair.kernel_frames(end) - before
            };
            // The kernel occasionally sends a frame of its own.
            assert!((0..5).any(|_| counted() == frames), "{what}: {frames} frames");
        }
    }
    for port in &ports {
        assert_eq!((port.stats().rx_dropped, port.stats().tx_dropped), (0, 0));
    }
}

#[test]
fn an_af_xdp_receiver_gets_a_super_frame_cut_by_the_kernel() {
    if !root() {
        return;
    }
    let pair = Pair::new(4200);
    let mut sender = pair.port(0, SuperFrames::Auto);
    let config = AfXdpConfig { mode: XdpMode::Native, ..AfXdpConfig::new("v1") };
    let mut receiver = pair.within(1, || AfXdp::open(&config, 1)).expect("a port").remove(0);
    receiver.address_filter().set(&addresses(1)).expect("addresses");
    for (kind, sizes) in kinds()
        .filter(|kind| !kind.tagged)
        .flat_map(|kind| [&[4096; 15][..], &[1024, 1024, 512], &[16, 8]].map(|sizes| (kind, sizes)))
    {
        let flow = flow(&receiver, 1, kind);
        let sent = train(&flow, sizes, 0xfffc);
        send_train(&mut sender, &sent);
        let mut received = receive(&mut receiver, sent.len(), TEST_TIMEOUT);
        for (number, frame) in (0..).zip(&mut received) {
            assert_eq!(psn(frame), number, "{kind:?}");
            // The kernel has written a UDP checksum, which the ICRC does not cover.
            frame[flow.len() - 2..flow.len()].fill(0);
        }
        assert!(received == sent, "{kind:?}: all other bytes are unchanged");
    }
}

#[test]
fn wrapped_ports_stay_correct() {
    if !root() {
        return;
    }
    let pair = Pair::new(4200);
    let [sender, mut receiver] = pair.ports(SuperFrames::Auto);
    let flow = flow(&receiver, 1, PLAIN);
    let sent = train(&flow, &[1024; 10], 1);
    let path = std::env::temp_dir().join(format!("feroce-packet-{}.pcap", std::process::id()));
    let file = File::create(&path).expect("a file");
    let mut captured = PcapPort::new(Box::new(sender), file, 65535).expect("a capture");
    let before = pair.kernel_frames(1);
    send_train(&mut captured, &sent);
    expect(&mut receiver, &sent, "captured");
    // The kernel may send frames of its own, such as multicast reports.
    assert!(pair.kernel_frames(1) - before < 10, "the wrapped port sends a super-frame");
    drop(captured);
    let bytes = std::fs::read(&path).expect("the capture");
    std::fs::remove_file(&path).expect("the capture");
    assert_eq!(bytes.len(), 24 + sent.iter().map(|frame| 16 + frame.len()).sum::<usize>());

    let sender = pair.port(0, SuperFrames::Auto);
    let mut faulty = FaultPort::new(Box::new(sender), Faults::default(), 1).expect("faults");
    assert_eq!(faulty.attributes().segments_max, 1, "faults are for single packets");
    let before = pair.kernel_frames(1);
    send_train(&mut faulty, &sent);
    expect(&mut receiver, &sent, "through faults");
    assert!(pair.kernel_frames(1) - before >= 10);
}

/// Frames keep their order across ring and queue, which hold frames of different lengths.
#[test]
fn bursts_of_any_lengths_keep_order_and_lose_nothing() {
    if !root() {
        return;
    }
    for mode in [SuperFrames::Auto, SuperFrames::Off] {
        let pair = Pair::new(4200);
        let [mut sender, mut receiver] = pair.ports(mode);
        let flow = flow(&receiver, 1, PLAIN);
        let sizes = [4096, 4096, 4096, 64, 1024, 16, 16, 300, 4096, 64, 64, 8];
        let (mut sent, mut seen, mut id) = (0_u32, 0_u32, 1_u16);
        let end = Instant::now() + Duration::from_secs(60);
        while seen < 20_000 {
            assert!(Instant::now() < end, "frame {seen} of {sent} did not arrive");
            let mut next = false;
            while sent < seen + 500 && sender.tx_room() > 0 {
                let size = sizes[sent as usize % sizes.len()];
                queue(&mut sender, &sealed(&flow, size, sent, id), next);
                (sent, id, next) = (sent + 1, id.wrapping_add(1), true);
            }
            sender.flush().expect("the link is up");
            for index in 0..receiver.rx_burst() {
                let frame = receiver.rx_frame(index);
                assert_eq!(psn(&[frame.first, frame.second].concat()), seen, "in order");
                seen += 1;
            }
        }
        assert_eq!(receiver.stats().rx_dropped, 0);
    }
}

/// Where super-frames may come, buffers are large and few are filled per system call. More are if
/// single frames come, as from peers that send no super-frames.
#[test]
fn many_single_frames_are_one_burst() {
    if !root() {
        return;
    }
    let pair = Pair::new(4200);
    let [mut sender, mut receiver] = pair.ports(SuperFrames::Auto);
    let frame = sealed(&flow(&receiver, 1, PLAIN), 4096, 0, 1);
    let (mut longest, end) = (0, Instant::now() + TEST_TIMEOUT);
    while longest < 12 {
        assert!(Instant::now() < end, "the longest burst had {longest} frames");
        (0..16).for_each(|_| send(&mut sender, &frame));
        thread::sleep(Duration::from_millis(1)); // A busy kernel delivers later.
        longest = longest.max(receiver.rx_burst());
        while receiver.rx_burst() > 0 {}
    }
}

#[test]
fn a_slot_that_was_not_committed_is_reused() {
    if !root() {
        return;
    }
    let pair = Pair::new(4200);
    let mut port = pair.port(0, SuperFrames::Auto);
    let room = port.tx_room();
    let first = port.tx_slot().expect("a slot").as_ptr();
    assert_eq!(port.tx_slot().expect("a slot").as_ptr(), first);
    assert_eq!(port.tx_slot().expect("a slot").len(), port.attributes().frame_max);
    assert_eq!(port.tx_room(), room);
    let small = sealed(&flow(&port, 1, PLAIN), 64, 1, 1);
    for left in (0..room).rev() {
        queue(&mut port, &small, left % 2 == 0);
        assert_eq!(port.tx_room(), left);
    }
    assert!(port.tx_slot().is_none());
    port.flush().expect("the link is up");
    assert_eq!(port.tx_room(), room);
}

#[test]
fn addresses_can_change_while_the_port_is_open() {
    if !root() {
        return;
    }
    let pair = Pair::new(4200);
    let [mut sender, mut receiver] = pair.ports(SuperFrames::Auto);
    let filter = receiver.address_filter();
    let [four, six] = addresses(1);
    assert_eq!(filter.addresses(), BTreeSet::from([four, six]));
    for size in [64, 4096] {
        let [to_four, to_six] =
            [false, true].map(|v6| sealed(&flow(&receiver, 1, Kind { v6, ..PLAIN }), size, 1, 1));
        filter.set(&[six]).expect("set");
        send(&mut sender, &to_four);
        send(&mut sender, &to_six);
        expect(&mut receiver, std::slice::from_ref(&to_six), "only the second");
        filter.set(&[four]).expect("set");
        send(&mut sender, &to_six);
        send(&mut sender, &to_four);
        expect(&mut receiver, std::slice::from_ref(&to_four), "only the first");
        filter.set(&[]).expect("set");
        send(&mut sender, &to_four);
        assert!(receive(&mut receiver, 1, SILENCE).is_empty(), "none");
    }
    let most: Vec<_> = (1..=256_u128).map(Ipv6Addr::from_bits).collect();
    filter.set(&most).expect("as many as there is room for");
    let more: Vec<_> = (1..=257_u128).map(Ipv6Addr::from_bits).collect();
    assert!(matches!(filter.set(&more), Err(PacketError::TooManyAddresses(256))));
    assert_eq!(filter.addresses().len(), 256, "and nothing changed");
}

#[test]
fn the_kernel_does_not_respond_to_frames_of_the_port() {
    if !root() {
        return;
    }
    let pair = Pair::new(1500);
    // Returns true if an ICMP error reports that the port is unreachable. The kernel limits their
    // rate.
    let refused = |to: &str, size: usize| {
        let local = if to.starts_with('[') { "[::]:0" } else { "0.0.0.0:0" };
        pair.within(0, || {
            let socket = UdpSocket::bind(local).expect("a socket");
            socket.connect(to).expect("an address");
            socket.set_read_timeout(Some(Duration::from_millis(300))).expect("a timeout");
            socket.send(&vec![0; size]).expect("sent");
            match socket.recv(&mut [0; 64]).expect_err("no peer answers with data").kind() {
                ErrorKind::ConnectionRefused => true,
                ErrorKind::WouldBlock | ErrorKind::TimedOut => false,
                other => panic!("{other}"),
            }
        })
    };
    for to in ["10.8.0.2:4791", "[fd08::2]:4791"] {
        let answers = || (0..10).any(|_| refused(to, 64));
        assert!(answers(), "{to}: without a port the kernel answers");
        thread::sleep(Duration::from_secs(1)); // Until the rate limit permits another error.
        let port = pair.port(1, SuperFrames::Auto);
        for size in [64, 1200] {
            assert!(!refused(to, size), "{to}: with a port the kernel does not answer");
        }
        drop(port);
        assert!(answers(), "{to}: after the port is closed the kernel answers again");
    }
}

/// Number of IP packets that the stack of the calling thread's network namespace has received.
fn stack_received() -> u64 {
    let tables = std::fs::read_to_string("/proc/thread-self/net/snmp").expect("counters");
    let mut lines = tables.lines().filter_map(|line| line.strip_prefix("Ip: "));
    let names = lines.next().expect("names").split(' ');
    let values = lines.next().expect("values").split(' ');
    let found = names.zip(values).find(|(name, _)| *name == "InReceives").expect("InReceives");
    found.1.parse().expect("a number")
}

/// Returns true on Linux 6.6 or later, which supports programs between packet sockets and the
/// stack.
fn has_ingress_programs() -> bool {
    feroce_engine::sys::kernel_version() >= (6, 6)
}

#[test]
fn the_stack_does_not_see_frames_of_the_port() {
    if !root() {
        return;
    }
    if !has_ingress_programs() {
        return feroce_test_skip::skip("programs before the stack need Linux 6.6");
    }
    let pair = Pair::new(4200);
    let [mut near, mut far] = pair.ports(SuperFrames::Auto);
    let frames = train(&flow(&far, 1, PLAIN), &[64; 50], 1);
    let before = pair.within(1, stack_received);
    frames.iter().for_each(|frame| send(&mut near, frame));
    expect(&mut far, &frames, "the sockets have them");
    assert_eq!(pair.within(1, stack_received), before);

    far.address_filter().set(&[addresses(0)[0]]).expect("addresses");
    frames.iter().for_each(|frame| send(&mut near, frame));
    assert!(receive(&mut far, 1, SILENCE).is_empty(), "no longer ours");
    assert_eq!(pair.within(1, stack_received), before + 50, "the stack gets them");
}

#[test]
fn a_used_udp_port_prevents_opening() {
    if !root() {
        return;
    }
    let pair = Pair::new(1500);
    for address in ["10.8.0.1:4791", "[::]:4791"] {
        // A child process that another test has just forked may still hold the sockets of this
        // test.
        let bind = || {
            let tries = (0..100).map(|_| {
                thread::sleep(Duration::from_millis(10));
                UdpSocket::bind(address)
            });
            tries.flatten().next().expect("free")
        };
        let taken = pair.within(0, bind);
        let error = pair.try_open(0, &PacketConfig::new("v0"), 1).expect_err("taken");
        assert!(matches!(error, PacketError::PortInUse { .. }), "{error}");
        assert!(error.to_string().contains("ss -ulnp"), "{error}");
        drop(taken);
    }
    let _one = pair.port(0, SuperFrames::Auto);
    let _two = pair.port(0, SuperFrames::Auto);
}

#[test]
fn dropped_frames_are_counted_and_later_frames_arrive() {
    if !root() {
        return;
    }
    let pair = Pair::new(4200);
    let mut sender = pair.port(0, SuperFrames::Auto);
    let small = PacketConfig { rx_slots: 64, rx_bytes: 64 << 10, ..PacketConfig::new("") };
    let mut receiver = pair.open(1, small);
    let flow = flow(&receiver, 1, PLAIN);
    // First more frames than the ring holds, then more long frames than the queue holds.
    for (size, count) in [(64, 200), (4096, 60), (64, 200), (4096, 60)] {
        let before = receiver.stats().rx_dropped;
        for number in 0..count {
            send(&mut sender, &sealed(&flow, size, number, 1));
        }
        let arrived = receive(&mut receiver, count as usize, SILENCE);
        let numbers: Vec<_> = arrived.iter().map(|frame| psn(frame)).collect();
        assert!(numbers.is_sorted() && !numbers.is_empty() && numbers.len() < count as usize);
        let dropped = receiver.stats().rx_dropped - before;
        assert_eq!(dropped + numbers.len() as u64, u64::from(count), "{size} bytes: each counted");
        for number in 1000..1010 {
            let after = sealed(&flow, [64, 4096][number as usize % 2], number, 1);
            send(&mut sender, &after);
            expect(&mut receiver, &[after], "frames after the loss");
        }
    }
}

#[test]
fn several_cores_share_the_flows() {
    if !root() {
        return;
    }
    let pair = Pair::new(4200);
    let mut sender = pair.port(0, SuperFrames::Auto);
    let mut cores = pair.try_open(1, &PacketConfig::new("v1"), 2).expect("two ports");
    cores[1].address_filter().set(&addresses(1)).expect("the cores share the filter");
    let mut used = [false; 2];
    for source_port in 0xc000..0xc010 {
        let flow = flow(&cores[0], 1, Kind { source_port, ..PLAIN });
        let sent: Vec<_> =
            (0..).zip([64, 4096, 64, 1024]).map(|(n, size)| sealed(&flow, size, n, 1)).collect();
        for frame in &sent {
            send(&mut sender, frame);
        }
        let arrived: Vec<_> =
            cores.iter_mut().map(|port| receive(port, usize::MAX, SILENCE / 4)).collect();
        let core = usize::from(arrived[0].is_empty());
        assert!(arrived[core] == sent, "flow {source_port:#x} arrived at one core, in order");
        assert!(arrived[1 - core].is_empty());
        used[core] = true;
    }
    assert_eq!(used, [true; 2], "16 flows use both cores");
    assert!(receive(&mut sender, 1, SILENCE).is_empty(), "a port does not receive its own frames");
}

/// Waits on the port's descriptors like an idle core. Returns true if one became readable.
fn sleep(port: &mut dyn Port, timeout: Duration) -> bool {
    assert_eq!(port.rx_burst(), 0, "nothing to do");
    let mut fds = Vec::new();
    if !port.arm_wakeup(&mut fds) {
        return true;
    }
    let mut polled: Vec<_> =
        fds.iter().map(|&fd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 }).collect();
    let count = libc::nfds_t::try_from(polled.len()).expect("few");
    let timeout = i32::try_from(timeout.as_millis()).expect("short");
    // SAFETY: `polled` holds `count` entries.
    let ready = unsafe { libc::poll(polled.as_mut_ptr(), count, timeout) };
    port.disarm_wakeup();
    ready > 0
}

/// Ring and queue overflow independently. The port delivers the frames that either of them kept.
#[test]
fn frames_whose_placeholders_were_lost_are_delivered() {
    if !root() {
        return;
    }
    for super_frames in [SuperFrames::Auto, SuperFrames::Off] {
        let pair = Pair::new(4200);
        let mut sender = pair.port(0, super_frames);
        let mut receiver =
            pair.open(1, PacketConfig { rx_slots: 64, super_frames, ..PacketConfig::new("") });
        let flow = flow(&receiver, 1, PLAIN);
        let frames: Vec<_> = (0..100).map(|n| sealed(&flow, 4096, n, 1)).collect();
        frames.iter().for_each(|frame| send(&mut sender, frame));
        expect(&mut receiver, &frames, "64 with placeholders and 36 without");
        assert!(!sleep(&mut receiver, SILENCE), "nothing is left");
        frames.iter().take(40).for_each(|frame| send(&mut sender, frame));
        expect(&mut receiver, &frames[..40], "with placeholders again");
    }
}

/// Two CPUs deliver frames at the same time, so the order of frames may differ between the two
/// sockets.
#[test]
fn two_senders_at_once_lose_nothing() {
    if !root() {
        return;
    }
    const WINDOW: u64 = 64;
    const FRAMES: u64 = 20_000;
    let pair = Pair::new(4200);
    let mut receiver = pair.port(1, SuperFrames::Auto);
    let flows =
        [0xc000, 0xc001].map(|port| flow(&receiver, 1, Kind { source_port: port, ..PLAIN }));
    let senders = [(); 2].map(|()| pair.port(0, SuperFrames::Auto));
    let got = [AtomicU64::new(0), AtomicU64::new(0)];
    let stalled = AtomicBool::new(false);
    thread::scope(|scope| {
        for ((mut sender, flow), got) in senders.into_iter().zip(flows).zip(&got) {
            let stalled = &stalled;
            scope.spawn(move || {
                let frame = sealed(&flow, 4096, 7, 1);
                let mut sent = 0;
                while sent < FRAMES && !stalled.load(Ordering::Relaxed) {
                    if sent < got.load(Ordering::Relaxed) + WINDOW {
                        send(&mut sender, &frame);
                        sent += 1;
                    } else {
                        thread::yield_now();
                    }
                }
            });
        }
        let mut last = Instant::now();
        while got.iter().any(|got| got.load(Ordering::Relaxed) < FRAMES) {
            for index in 0..receiver.rx_burst() {
                let frame = receiver.rx_frame(index);
                got[usize::from(frame.first[35] & 1)].fetch_add(1, Ordering::Relaxed);
                last = Instant::now();
            }
            if last.elapsed() > TEST_TIMEOUT {
                stalled.store(true, Ordering::Relaxed);
                break;
            }
        }
    });
    assert_eq!(got.map(AtomicU64::into_inner), [FRAMES; 2], "{:?}", receiver.stats());
}

/// A super-frame with a segment that is too long for an IP packet, which a peer on a veth may
/// write.
#[test]
fn a_segment_too_long_for_a_packet_is_refused() {
    if !root() {
        return;
    }
    let pair = Pair::new(4200);
    let [mut sender, mut receiver] = pair.ports(SuperFrames::Auto);
    ip(&format!("-n {} link set v0 gso_max_size 200000", pair.names[0]));
    let raw = "import socket,struct
s=socket.socket(socket.AF_PACKET,socket.SOCK_RAW,0)
s.setsockopt(263,15,1)
s.setsockopt(socket.SOL_SOCKET,32,1<<22)
vnet=struct.pack('<BBHHHH',1,5,62,65490,54,6)
ends=socket.inet_pton(10,'fd08::1')+socket.inet_pton(10,'fd08::2')
ip=struct.pack('>IHBB',0x60000000,0,17,64)+ends
udp=struct.pack('>HHHH',0xc000,4791,0,0)
ethernet=bytes([255]*6+[2,0,0,0,0,9,0x86,0xdd])
s.sendto(vnet+ethernet+ip+udp+bytes(65491),('v0',0x86dd))";
    let sent = Command::new("ip")
        .args(["netns", "exec", &pair.names[0], "python3", "-c", raw])
        .output()
        .expect("the `ip` program");
    assert!(sent.status.success(), "{}", String::from_utf8_lossy(&sent.stderr));
    assert!(receive(&mut receiver, 1, SILENCE).is_empty(), "no packet");
    assert_eq!(receiver.stats().rx_dropped, 1);
    let frames = train(&flow(&receiver, 1, PLAIN), &[4096; 4], 1);
    send_train(&mut sender, &frames);
    expect(&mut receiver, &frames, "the port goes on");
}

#[test]
fn a_sleeping_core_is_woken_by_a_frame() {
    if !root() {
        return;
    }
    let pair = Pair::new(4200);
    let [mut sender, mut receiver] = pair.ports(SuperFrames::Auto);
    for size in [64, 4096] {
        let frame = sealed(&flow(&receiver, 1, PLAIN), size, 1, 1);
        assert!(!sleep(&mut receiver, SILENCE), "nothing arrived");
        thread::scope(|scope| {
            scope.spawn(|| {
                thread::sleep(SILENCE);
                send(&mut sender, &frame);
            });
            assert!(sleep(&mut receiver, TEST_TIMEOUT), "woken");
        });
        assert!(!receiver.arm_wakeup(&mut Vec::new()), "a frame is waiting");
        expect(&mut receiver, &[frame], "delivered");
        assert!(!sleep(&mut receiver, SILENCE), "nothing more");
    }
}

#[test]
fn a_link_down_is_an_error_until_the_link_is_up_again() {
    if !root() {
        return;
    }
    let pair = Pair::new(4200);
    let [mut sender, mut receiver] = pair.ports(SuperFrames::Auto);
    let flow = flow(&receiver, 1, PLAIN);
    let frame = sealed(&flow, 64, 1, 1);
    pair.switch(0, "down");
    let lost = 2 * PacketConfig::new("").tx_slots;
    for _ in 0..lost {
        assert!(sender.tx_room() > 0, "a link that is down accepts frames and drops them");
        queue(&mut sender, &frame, false);
        let error = sender.flush().expect_err("the interface is down");
        assert_eq!(error.raw_os_error(), Some(libc::ENETDOWN));
    }
    assert_eq!(sender.stats().tx_dropped, u64::from(lost));
    pair.switch(1, "down");
    assert!(receive(&mut receiver, 1, SILENCE).is_empty());
    pair.switch(0, "up");
    pair.switch(1, "up");
    let end = Instant::now() + TEST_TIMEOUT;
    while receive(&mut receiver, 1, SILENCE).is_empty() {
        assert!(Instant::now() < end, "the link is up again");
        queue(&mut sender, &frame, false);
        let _not_yet = sender.flush();
    }
    while !receive(&mut receiver, 1, SILENCE).is_empty() {}
    let sizes = [4096, 64, 4096, 64, 1024, 4096];
    let sent: Vec<_> = (0..).zip(sizes).map(|(n, size)| sealed(&flow, size, n, 1)).collect();
    for frame in &sent {
        send(&mut sender, frame);
    }
    expect(&mut receiver, &sent, "and the order holds");
    // The sockets have a pending error since the link went down.
    for port in [&mut sender, &mut receiver] {
        assert!(!sleep(port, SILENCE), "nothing wakes an idle core");
    }
}

#[test]
fn errors_name_the_cause() {
    if !root() {
        return;
    }
    let pair = Pair::new(1500);
    let refused = |config: PacketConfig| pair.try_open(0, &config, 1).expect_err("refused");
    let base = PacketConfig::new("v0");

    let error = refused(PacketConfig::new("v9"));
    assert!(matches!(&error, PacketError::NoSuchInterface(name) if name == "v9"), "{error}");
    let error = refused(PacketConfig { tx_slots: 1, ..base.clone() });
    assert!(matches!(error, PacketError::Config(_)), "{error}");
    let error = pair.try_open(0, &base, 0).expect_err("no cores");
    assert!(matches!(error, PacketError::Config(_)), "{error}");
    ip(&format!("-n {} link set lo up", pair.names[0]));
    let error = refused(PacketConfig::new("lo"));
    assert!(matches!(error, PacketError::NotEthernet(_)), "{error}");
    pair.switch(0, "down");
    let error = refused(base.clone());
    assert!(matches!(error, PacketError::Down(_)), "{error}");
    pair.switch(0, "up");
    let error = pair.within(0, || {
        // SAFETY: changes only the user of this thread, which ends with the test.
        let changed = unsafe { libc::syscall(libc::SYS_setresuid, 65534, 65534, 65534) };
        assert_eq!(changed, 0, "setresuid");
        PacketPort::open(&base, 1).expect_err("not root")
    });
    assert!(matches!(error, PacketError::NotPermitted { .. }), "{error}");
    assert!(error.to_string().contains("CAP_NET_RAW"), "{error}");
}

#[test]
fn devices_use_super_frames_if_both_ends_support_them() {
    if !root() {
        return;
    }
    let (packet, af_xdp) = (PortKind::Packet, PortKind::AfXdp);
    for (kinds, bulk) in [([packet; 2], true), ([packet, af_xdp], false), ([af_xdp, packet], false)]
    {
        for path_mtu in [PathMtu::Mtu4096, PathMtu::Mtu1024] {
            let pair = Pair::new(4200);
            let mut ends = connect(&pair, kinds, path_mtu);
            let before = [0, 1].map(|end| pair.kernel_frames(end));
            write_and_read_back(&mut ends, &format!("{kinds:?}, {path_mtu:?}"));
            let packets = u64::try_from(MESSAGE / path_mtu.bytes() as usize).expect("few");
            for end in [0, 1] {
                let frames = pair.kernel_frames(end) - before[end];
                let few = frames < packets / 4;
                assert_eq!(few, bulk, "{frames} frames, {packets} packets, {kinds:?}");
            }
            // Long messages are split to fill super-frames.
            let before = ends[1].device.counter(Counter::RxReadRequests);
            request(&mut ends, true, 0, MESSAGE, 64 << 10);
            let parts = (64 << 10) / u64::from(2 * path_mtu.bytes());
            let requests = ends[1].device.counter(Counter::RxReadRequests) - before;
            let split = bulk && path_mtu == PathMtu::Mtu4096;
            assert_eq!(requests, if split { parts } else { 1 }, "{kinds:?}, {path_mtu:?}");
        }
    }
}

#[test]
fn super_frames_to_all_need_no_agreement() {
    if !root() {
        return;
    }
    let (packet, udp, af_xdp) = (PortKind::Packet, PortKind::Udp, PortKind::AfXdp);
    // Do few frames carry the WRITE to the second end, and the READ to the first? To a port that
    // takes no super-frames, the kernel cuts them.
    for (kinds, to_all, few) in [
        ([packet; 2], true, [true, true]),
        ([packet; 2], false, [false, false]),
        ([udp; 2], true, [true, true]),
        ([packet, af_xdp], true, [false, false]),
        ([af_xdp, packet], true, [false, false]),
    ] {
        let pair = Pair::new(4200);
        let config = DeviceConfig { super_frames_to_all: to_all, ..DeviceConfig::default() };
        let silent = |endpoint: &mut Endpoint| endpoint.super_frames = None;
        let mut ends = connect_with(&pair, kinds, PathMtu::Mtu4096, &config, silent);
        let before = [0, 1].map(|end| pair.kernel_frames(end));
        write_and_read_back(&mut ends, &format!("{kinds:?}, {to_all}"));
        let packets = MESSAGE as u64 / 4096;
        for end in [0, 1] {
            let frames = pair.kernel_frames(end) - before[end];
            assert_eq!(frames < packets / 4, few[end], "{frames} frames to {end}, {kinds:?}");
        }
        // The peer did not agree to hold more READs than others, nor to messages in parts.
        for read in [false, true] {
            requests_at_once(&mut ends, read, 64 << 10, 32);
        }
        let reads = ends[1].device.counter(Counter::RxReadRequests);
        assert_eq!(reads, 1 + 32, "{kinds:?}, {to_all}");
    }
}

const CHILD: &str = "FEROCE_TEST_PACKET_ROOTLESS";

/// The process that the next test starts without root. It is not a test of its own.
#[test]
#[ignore = "the test below runs it, in a new user namespace"]
fn without_root() {
    if std::env::var_os(CHILD).is_none() {
        return;
    }
    ip("link add v0 mtu 4200 type veth peer name v1 mtu 4200");
    ip("link set v0 up");
    ip("link set v1 up");
    ["v0", "v1"].iter().for_each(|device| wait_until_up("", device));
    let refused = AfXdp::open(&AfXdpConfig::new("v0"), 1).expect_err("AF_XDP needs root");
    assert!(matches!(refused, AfXdpError::NotPermitted { .. }), "{refused}");
    // Both ends are in one namespace, which works with packet sockets.
    let mut ports = [0, 1].map(|end| {
        let config = PacketConfig::new(Pair::device(end));
        let port = PacketPort::open(&config, 1).expect("a port without root").remove(0);
        port.address_filter().set(&addresses(end)).expect("addresses");
        port
    });
    for (end, kind) in [0, 1].into_iter().flat_map(|end| kinds().map(move |kind| (end, kind))) {
        let sent = train(&flow(&ports[end], end, kind), &[4096; 15], 1);
        send_train(&mut ports[1 - end], &sent);
        expect(&mut ports[end], &sent, &format!("without root, to end {end}, {kind:?}"));
    }
    println!("\nall crossed");
}

#[test]
fn a_user_namespace_suffices_instead_of_root() {
    let child = Command::new("unshare")
        .args(["-Urn", "--"])
        .arg(std::env::current_exe().expect("this program"))
        .args(["--exact", "without_root", "--ignored", "--nocapture"])
        .env(CHILD, "1")
        .output()
        .expect("the `unshare` program");
    let output = String::from_utf8_lossy(&child.stderr);
    if output.contains("unshare failed") {
        feroce_test_skip::skip(&format!("no user namespaces here: {output}"));
        return;
    }
    let output = format!("{output}{}", String::from_utf8_lossy(&child.stdout));
    assert!(child.status.success() && output.contains("all crossed"), "{output}");
}

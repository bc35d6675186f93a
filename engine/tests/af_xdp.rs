//! The AF_XDP port on veth pairs between network namespaces. Without root, each test prints a
//! message and passes.
#![allow(clippy::disallowed_methods)] // Tests against the kernel use real time.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{BufRead, BufReader, ErrorKind};
use std::net::{Ipv6Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::AsRawFd;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use feroce_engine::port::af_xdp::{
    AddressFilter, AfXdp, AfXdpConfig, AfXdpError, BusyPoll, CopyMode, XdpMode,
};
use feroce_engine::port::{Port, Priority};

/// The UDP port of RoCEv2, and another one.
const ROCE: u16 = 4791;
const OTHER: u16 = 53;
const TEST_TIMEOUT: Duration = Duration::from_secs(5);
/// Maximum time to wait for a frame that must arrive, sufficient on a busy machine.
const SILENCE: Duration = Duration::from_millis(100);
const MODES: [XdpMode; 2] = [XdpMode::Native, XdpMode::Generic];

/// Returns true if the tests can run. Otherwise prints why not.
fn root() -> bool {
    // SAFETY: the call has no arguments and no effects.
    let root = unsafe { libc::geteuid() } == 0;
    if !root {
        feroce_test_skip::skip("AF_XDP needs root");
    }
    root
}

fn ip(arguments: &str) -> String {
    let output =
        Command::new("ip").args(arguments.split_whitespace()).output().expect("the `ip` program");
    assert!(output.status.success(), "ip {arguments}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("text")
}

/// Two namespaces with a veth pair: 10.7.0.1, 10.7.0.11 and fd07::1 on `v0`; 10.7.0.2, 10.7.0.12
/// and fd07::2 on `v1`.
struct Pair {
    names: [String; 2],
}

impl Pair {
    fn new(mtu: u32, queues: u32) -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let pair = Self {
            names: ["a", "b"].map(|end| format!("fr-xdp-{}-{count}{end}", std::process::id())),
        };
        let [a, b] = &pair.names;
        ip(&format!("netns add {a}"));
        ip(&format!("netns add {b}"));
        let several = format!("numrxqueues {queues} numtxqueues {queues}");
        ip(&format!(
            "link add v0 netns {a} mtu {mtu} {several} type veth \
             peer name v1 netns {b} mtu {mtu} {several}"
        ));
        for (end, name) in [(1, a), (2, b)] {
            let device = Self::device(end - 1);
            ip(&format!("-n {name} address add 10.7.0.{end}/24 dev {device}"));
            ip(&format!("-n {name} address add 10.7.0.1{end}/24 dev {device}"));
            ip(&format!("-n {name} address add fd07::{end}/64 dev {device} nodad"));
            ip(&format!("-n {name} link set {device} up"));
        }
        pair
    }

    fn device(end: usize) -> &'static str {
        ["v0", "v1"][end]
    }

    /// Runs `work` in the namespace of `end`.
    fn within<T: Send>(&self, end: usize, work: impl FnOnce() -> T + Send) -> T {
        let name = &self.names[end];
        thread::scope(|scope| {
            scope
                .spawn(|| {
                    enter(name);
                    work()
                })
                .join()
                .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })
    }

    fn open(
        &self,
        end: usize,
        config: &AfXdpConfig,
        cores: usize,
    ) -> Result<Vec<AfXdp>, AfXdpError> {
        self.within(end, || AfXdp::open(config, cores))
    }

    /// Opens one port for the whole interface, with the addresses of its end except 10.7.0.1x.
    fn port(&self, end: usize, mode: XdpMode) -> AfXdp {
        let config = AfXdpConfig { mode, ..AfXdpConfig::new(Self::device(end)) };
        let port = self.open(end, &config, 1).expect("a port").remove(0);
        port.address_filter().set(&addresses(end)).expect("addresses");
        port
    }

    fn ports(&self, mode: XdpMode) -> [AfXdp; 2] {
        [self.port(0, mode), self.port(1, mode)]
    }
}

impl Drop for Pair {
    fn drop(&mut self) {
        for name in &self.names {
            let removed = Command::new("ip").args(["netns", "delete", name]).status();
            if !removed.is_ok_and(|status| status.success()) {
                eprintln!("could not remove namespace {name}");
            }
        }
    }
}

fn enter(namespace: &str) {
    let file = File::open(format!("/run/netns/{namespace}")).expect("a namespace");
    // SAFETY: the descriptor is open; the call moves only this thread.
    let moved = unsafe { libc::setns(file.as_raw_fd(), libc::CLONE_NEWNET) };
    assert_eq!(moved, 0, "setns");
}

fn addresses(end: usize) -> [Ipv6Addr; 2] {
    [["::ffff:10.7.0.1", "fd07::1"], ["::ffff:10.7.0.2", "fd07::2"]][end]
        .map(|text| text.parse().expect("an address"))
}

/// The headers of a frame.
#[derive(Debug, Clone, Copy)]
struct Headers {
    mac: [u8; 6],
    vlan: Option<u16>,
    to: Ipv6Addr,
    port: u16,
}

/// A UDP frame of `len` bytes to `headers.to` without checksums, filled with a pattern derived from
/// `seed`.
fn frame(headers: Headers, len: usize, seed: u8) -> Vec<u8> {
    let mut frame = headers.mac.to_vec();
    frame.extend([0x02, 0, 0, 0, 0, 0x77]);
    if let Some(tag) = headers.vlan {
        frame.extend(tag.to_be_bytes());
        frame.extend([0x60, 0x64]);
    }
    let size = |behind: usize| u16::try_from(len - behind).expect("a frame").to_be_bytes();
    if let Some(to) = headers.to.to_ipv4_mapped() {
        frame.extend([0x08, 0x00]);
        let start = frame.len();
        frame.extend([0x45, 0]);
        frame.extend(size(start));
        frame.extend([0, 0, 0x40, 0, 64, 17, 0, 0, 10, 7, 0, 99]);
        frame.extend(to.octets());
        let sum: u32 =
            frame[start..].chunks(2).map(|pair| u32::from(pair[0]) << 8 | u32::from(pair[1])).sum();
        let folded = u16::try_from((sum & 0xffff) + (sum >> 16)).expect("one carry");
        frame[start + 10..start + 12].copy_from_slice(&(!folded).to_be_bytes());
    } else {
        frame.extend([0x86, 0xdd, 0x60, 0, 0, 0]);
        frame.extend(size(frame.len() + 36));
        frame.extend([17, 64]);
        frame.extend("fd07::99".parse::<Ipv6Addr>().expect("an address").octets());
        frame.extend(headers.to.octets());
    }
    frame.extend(50_000_u16.to_be_bytes());
    frame.extend(headers.port.to_be_bytes());
    frame.extend(size(frame.len() - 4));
    frame.extend([0, 0]);
    assert!(frame.len() <= len, "{len} bytes are too few for the headers");
    let mut byte = seed;
    frame.resize_with(len, || {
        byte = byte.wrapping_mul(5).wrapping_add(113);
        byte
    });
    frame
}

fn queue(port: &mut AfXdp, frame: &[u8]) {
    let slot = port.tx_slot().expect("a slot");
    slot[..frame.len()].copy_from_slice(frame);
    port.tx_commit(frame.len(), Priority::default());
}

fn send(port: &mut AfXdp, frame: &[u8]) {
    queue(port, frame);
    port.flush().expect("the link is up");
}

/// Receives `count` frames, or those that arrive within `timeout`.
fn receive(port: &mut AfXdp, count: usize, timeout: Duration) -> Vec<Vec<u8>> {
    let mut frames = Vec::new();
    let end = Instant::now() + timeout;
    while frames.len() < count && Instant::now() < end {
        for index in 0..port.rx_burst() {
            let frame = port.rx_frame(index);
            assert!(frame.first.len() >= 60, "the headers are in the first part");
            frames.push([frame.first, frame.second].concat());
        }
        thread::yield_now();
    }
    frames
}

/// Checks that the next frame is `frame`.
fn expect(port: &mut AfXdp, frame: &[u8], what: &str) {
    let received = receive(port, 1, TEST_TIMEOUT);
    let lengths: Vec<_> = received.iter().map(Vec::len).collect();
    // `assert_eq` would print thousands of numbers.
    assert!(
        received == [frame],
        "{what}, {}: one frame of {} bytes arrived as {lengths:?}",
        port.attributes().kind,
        frame.len()
    );
}

fn headers(to: &AfXdp, end: usize, version: u8, vlan: Option<u16>) -> Headers {
    let to_address = addresses(end)[usize::from(version == 6)];
    Headers { mac: to.attributes().mac.0, vlan, to: to_address, port: ROCE }
}

#[test]
fn frames_of_every_size_cross_both_ways() {
    if !root() {
        return;
    }
    for mode in MODES {
        let pair = Pair::new(4200, 1);
        let mut ports = pair.ports(mode);
        let kind = &ports[0].attributes().kind;
        let expected = if mode == XdpMode::Native {
            "af_xdp (native, copy)"
        } else {
            "af_xdp (generic, copy)"
        };
        assert_eq!(kind, expected);
        let room = ports[0].tx_room();
        let sizes = (66..=4170).step_by(61).chain([3839, 3840, 3841, 4095, 4096, 4097, 4170, 4222]);
        for (count, size) in sizes.enumerate() {
            for end in [0, 1] {
                let version = if count % 2 == 0 { 4 } else { 6 };
                let vlan = (count % 3 == 1).then_some(0x8100);
                // The tag is not part of the MTU.
                let size = if vlan.is_none() { size.min(4200 + 14) } else { size.min(4200 + 18) };
                let sent =
                    frame(headers(&ports[end], end, version, vlan), size, count.to_le_bytes()[0]);
                send(&mut ports[1 - end], &sent);
                expect(
                    &mut ports[end],
                    &sent,
                    &format!("IPv{version}, tag {vlan:x?}, to end {end}"),
                );
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

#[test]
fn bursts_keep_order_and_lose_nothing_within_the_ring() {
    if !root() {
        return;
    }
    for (mode, size) in [(XdpMode::Native, 4170), (XdpMode::Generic, 4170), (XdpMode::Native, 80)] {
        let pair = Pair::new(4200, 1);
        let [mut sender, mut receiver] = pair.ports(mode);
        let template = frame(headers(&receiver, 1, 4, None), size, 1);
        let (mut sent, mut seen) = (0_u32, 0_u32);
        let end = Instant::now() + Duration::from_secs(60);
        while seen < 20_000 {
            assert!(Instant::now() < end, "frame {seen} of {sent} did not come");
            // Many more frames than one `sendto` of an older kernel sends, and at most as many as
            // the ring of a veth holds (256): a kernel that is busy elsewhere drops others.
            while sent < seen + 250 && sender.tx_room() > 0 {
                let slot = sender.tx_slot().expect("the port reported room");
                slot[..size].copy_from_slice(&template);
                slot[size - 4..size].copy_from_slice(&sent.to_be_bytes());
                sender.tx_commit(size, Priority::default());
                sent += 1;
            }
            sender.flush().expect("the link is up");
            for index in 0..receiver.rx_burst() {
                let frame = receiver.rx_frame(index);
                let last = if frame.second.is_empty() { frame.first } else { frame.second };
                assert_eq!(frame.len(), size);
                assert_eq!(last[last.len() - 4..], seen.to_be_bytes(), "in order");
                seen += 1;
            }
        }
        assert_eq!(receiver.stats().rx_dropped, 0);
    }
}

#[test]
fn a_slot_that_was_not_committed_is_reused() {
    if !root() {
        return;
    }
    let pair = Pair::new(4200, 1);
    let mut port = pair.port(0, XdpMode::Auto);
    let room = port.tx_room();
    let first = port.tx_slot().expect("a slot").as_ptr();
    assert_eq!(port.tx_slot().expect("a slot").as_ptr(), first);
    assert_eq!(port.tx_slot().expect("a slot").len(), port.attributes().frame_max);
    assert_eq!(port.tx_room(), room);
    // Without a flush the kernel takes no frames, so the slots run out. They are free again after a
    // flush.
    let small = frame(headers(&port, 1, 4, None), 100, 0);
    for left in (0..room).rev() {
        queue(&mut port, &small);
        assert_eq!(port.tx_room(), left);
    }
    assert!(port.tx_slot().is_none());
    port.flush().expect("the link is up");
    assert_eq!(port.tx_room(), room);
}

/// Returns true if a frame that the port sends reaches this socket at the other end.
fn reaches(socket: &UdpSocket, sender: &mut AfXdp, frame: &[u8]) -> bool {
    let timeout = Some(Duration::from_secs(1));
    socket.set_read_timeout(timeout).expect("a timeout");
    send(sender, frame);
    loop {
        match socket.recv(&mut [0; 4096]) {
            Ok(_) => return true,
            Err(e) if e.kind() == ErrorKind::Interrupted => {}
            Err(e) if matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
                return false;
            }
            Err(e) => panic!("{e}"),
        }
    }
}

#[test]
fn other_traffic_stays_with_the_kernel() {
    if !root() {
        return;
    }
    for mode in MODES {
        let pair = Pair::new(1500, 1);
        let [mut sender, mut receiver] = pair.ports(mode);
        let bind = |address: &str| pair.within(1, || UdpSocket::bind(address).expect("a socket"));
        let good = headers(&receiver, 1, 4, None);

        let dns = bind("10.7.0.2:53");
        let other_port = frame(Headers { port: OTHER, ..good }, 100, 0);
        assert!(reaches(&dns, &mut sender, &other_port), "{mode:?}: another port");

        let kernel = bind("10.7.0.12:4791");
        let second = "::ffff:10.7.0.12".parse().expect("an address");
        let other_address = frame(Headers { to: second, ..good }, 100, 0);
        assert!(reaches(&kernel, &mut sender, &other_address), "{mode:?}: another address");

        let six = bind("[fd07::2]:53");
        let mut other_port = frame(Headers { port: OTHER, to: addresses(1)[1], ..good }, 100, 0);
        let checksum = ipv6_checksum(&other_port[14..]);
        other_port[14 + 46..14 + 48].copy_from_slice(&checksum.to_be_bytes());
        assert!(reaches(&six, &mut sender, &other_port), "{mode:?}: another port, IPv6");

        let mut fragment = frame(good, 100, 0);
        fragment[14 + 7] = 9;
        send(&mut sender, &fragment);
        assert!(receive(&mut receiver, 1, SILENCE).is_empty(), "{mode:?}: a later fragment");

        // ARP and TCP, both through interfaces with an attached program.
        let listener = pair.within(1, || TcpListener::bind("10.7.0.2:4791").expect("a listener"));
        let server = listener.local_addr().expect("an address");
        pair.within(0, || TcpStream::connect_timeout(&server, TEST_TIMEOUT)).expect("TCP passes");
        let neighbours = ip(&format!("-n {} neighbour show 10.7.0.2", pair.names[0]));
        assert!(neighbours.contains("lladdr"), "{mode:?}: ARP passes: {neighbours}");

        let roce = frame(good, 100, 0);
        send(&mut sender, &roce);
        expect(&mut receiver, &roce, "and RoCE is still ours");
    }
}

/// The UDP checksum of an IPv6 packet whose checksum field is zero.
fn ipv6_checksum(packet: &[u8]) -> u16 {
    let length = u32::try_from(packet.len() - 40).expect("a packet");
    let words = packet[8..]
        .chunks(2)
        .map(|pair| u32::from(pair[0]) << 8 | u32::from(*pair.get(1).unwrap_or(&0)));
    let mut sum = words.sum::<u32>() + length + 17;
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !u16::try_from(sum).expect("folded")
}

#[test]
fn addresses_can_change_while_the_port_is_open() {
    if !root() {
        return;
    }
    let pair = Pair::new(1500, 1);
    let [mut sender, mut receiver] = pair.ports(XdpMode::Auto);
    let filter: AddressFilter = receiver.address_filter();
    let kernel = pair.within(1, || UdpSocket::bind("10.7.0.2:4791").expect("a socket"));
    let [four, six] = addresses(1);
    assert_eq!(filter.addresses(), BTreeSet::from([four, six]));
    let roce = frame(headers(&receiver, 1, 4, None), 100, 0);

    filter.remove(four).expect("removed");
    filter.remove(four).expect("removing twice is no error");
    assert!(reaches(&kernel, &mut sender, &roce), "removed: the kernel's");
    filter.add(four).expect("added");
    filter.add(four).expect("adding twice is no error");
    assert!(!reaches(&kernel, &mut sender, &roce), "added: ours");
    expect(&mut receiver, &roce, "added");
    filter.set(&[six]).expect("set");
    assert!(reaches(&kernel, &mut sender, &roce), "not in the set: the kernel gets it");
    filter.set(&[four]).expect("set");
    send(&mut sender, &roce);
    expect(&mut receiver, &roce, "in the set");

    let many: Vec<_> = (0..1025_u128).map(Ipv6Addr::from_bits).collect();
    assert!(matches!(filter.set(&many), Err(AfXdpError::TooManyAddresses(1024))));
}

#[test]
fn several_cores_share_the_queues() {
    if !root() {
        return;
    }
    for mode in MODES {
        let pair = Pair::new(4200, 2);
        let config = |end| AfXdpConfig { mode, ..AfXdpConfig::new(Pair::device(end)) };
        match pair.open(0, &config(0), 3) {
            Err(AfXdpError::TooFewQueues { rx: 2, tx: 2, cores: 3, .. }) => {}
            other => panic!("three cores on two queues: {other:?}"),
        }
        let mut senders = pair.open(0, &config(0), 2).expect("two ports");
        let mut one = pair.port(1, mode);
        assert_eq!(
            (senders.len(), senders[0].attributes().queues, one.attributes().queues),
            (2, 1, 2)
        );
        // On veth a frame arrives on the queue with the number on which it was sent.
        let frames = [1, 2].map(|seed| frame(headers(&one, 1, 4, None), 4170, seed));
        for (sender, frame) in senders.iter_mut().zip(&frames) {
            send(sender, frame);
            expect(&mut one, frame, "to the core of both queues");
        }
        drop(one);
        let mut two = pair.open(1, &config(1), 2).expect("two ports, at once after the close");
        two[1].address_filter().set(&addresses(1)).expect("the cores share the filter");
        for (core, sender) in senders.iter_mut().enumerate() {
            send(sender, &frames[core]);
            // In generic mode veth does not record the queue, and the first queue gets all frames.
            let expected = if mode == XdpMode::Native { core } else { 0 };
            expect(&mut two[expected], &frames[core], "to its core");
            assert!(receive(&mut two[1 - expected], 1, SILENCE).is_empty());
        }
    }
}

/// Waits on the port's descriptors like a sleeping core. Returns true if one became readable.
fn sleep(port: &mut AfXdp, timeout: Duration) -> bool {
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

#[test]
fn a_sleeping_core_is_woken_by_a_frame() {
    if !root() {
        return;
    }
    for mode in MODES {
        let pair = Pair::new(1500, 2);
        let [mut sender, mut receiver] = pair.ports(mode);
        let roce = frame(headers(&receiver, 1, 6, None), 100, 0);
        assert!(!sleep(&mut receiver, SILENCE), "{mode:?}: nothing arrived");
        thread::scope(|scope| {
            scope.spawn(|| {
                thread::sleep(SILENCE);
                send(&mut sender, &roce);
            });
            assert!(sleep(&mut receiver, TEST_TIMEOUT), "{mode:?}: woken");
        });
        assert!(!receiver.arm_wakeup(&mut Vec::new()), "{mode:?}: a frame is waiting");
        expect(&mut receiver, &roce, "delivered");
        assert!(!sleep(&mut receiver, SILENCE), "{mode:?}: nothing more");
    }
}

#[test]
fn a_link_down_is_an_error_until_the_link_is_up_again() {
    if !root() {
        return;
    }
    let pair = Pair::new(1500, 1);
    let [mut sender, mut receiver] = pair.ports(XdpMode::Auto);
    let roce = frame(headers(&receiver, 1, 4, None), 100, 0);
    let switch = |end: usize, state: &str| {
        ip(&format!("-n {} link set {} {state}", pair.names[end], Pair::device(end)))
    };

    switch(1, "down");
    for _ in 0..100 {
        send(&mut sender, &roce);
    }
    assert_eq!(
        sender.stats().tx_dropped,
        100,
        "without a carrier the frames are lost, and counted"
    );
    switch(0, "down");
    queue(&mut sender, &roce);
    let error = sender.flush().expect_err("the interface is down");
    assert_eq!(error.raw_os_error(), Some(libc::ENETDOWN));
    let slots = AfXdpConfig::new("").tx_slots;
    for _ in 0..2 * slots {
        assert!(sender.tx_room() > 0, "a link that is down takes frames and loses them");
        queue(&mut sender, &roce);
        sender.flush().expect_err("still down");
    }
    assert!(sender.stats().tx_dropped >= u64::from(slots));
    switch(0, "up");
    switch(1, "up");
    let end = Instant::now() + TEST_TIMEOUT;
    while receive(&mut receiver, 1, SILENCE).is_empty() {
        assert!(Instant::now() < end, "the link is up again");
        send(&mut sender, &roce);
    }
}

#[test]
fn frames_longer_than_two_buffers_are_counted_as_dropped() {
    if !root() {
        return;
    }
    for mode in MODES {
        let pair = Pair::new(9000, 1);
        let mut receiver = pair.port(1, mode);
        assert_eq!(receiver.attributes().frame_max, 7680);
        let target: SocketAddr = "10.7.0.2:4791".parse().expect("an address");
        let kernel = pair.within(0, || UdpSocket::bind("10.7.0.1:0").expect("a socket"));
        for size in [7700, 5000] {
            kernel.send_to(&vec![7; size], target).expect("sent");
        }
        let received = receive(&mut receiver, 1, TEST_TIMEOUT);
        assert_eq!(received.iter().map(Vec::len).collect::<Vec<_>>(), [5042], "{mode:?}");
        assert_eq!(receiver.stats().rx_dropped, 1, "{mode:?}");
    }
}

#[test]
fn busy_polling_delivers_frames() {
    if !root() {
        return;
    }
    let pair = Pair::new(1500, 1);
    let busy_poll = Some(BusyPoll { microseconds: 20, budget: 64 });
    let config = AfXdpConfig { busy_poll, ..AfXdpConfig::new("v1") };
    let mut receiver = pair.open(1, &config, 1).expect("a port").remove(0);
    receiver.address_filter().set(&addresses(1)).expect("addresses");
    let mut sender = pair.port(0, XdpMode::Auto);
    let roce = frame(headers(&receiver, 1, 4, None), 100, 0);
    send(&mut sender, &roce);
    expect(&mut receiver, &roce, "delivered");
}

#[test]
fn errors_name_the_cause() {
    if !root() {
        return;
    }
    let pair = Pair::new(1500, 1);
    let refused = |config: AfXdpConfig| pair.open(0, &config, 1).expect_err("refused");
    let base = AfXdpConfig::new("v0");

    let error = refused(AfXdpConfig::new("v9"));
    assert!(matches!(&error, AfXdpError::NoSuchInterface(name) if name == "v9"), "{error}");
    let error = refused(AfXdpConfig::new("a name that is far too long"));
    assert!(matches!(error, AfXdpError::NoSuchInterface(_)), "{error}");
    let error = refused(AfXdpConfig { copy: CopyMode::ZeroCopy, ..base.clone() });
    assert!(matches!(error, AfXdpError::ZeroCopyRefused { queue: 0, .. }), "{error}");
    let error = pair.open(0, &base, 0).expect_err("no cores");
    assert!(matches!(error, AfXdpError::Config(_)), "{error}");

    ip(&format!("-n {} link set lo up", pair.names[0]));
    let error = refused(AfXdpConfig::new("lo"));
    assert!(matches!(error, AfXdpError::NotEthernet(_)), "{error}");
    ip(&format!("-n {} link set v0 down", pair.names[0]));
    let error = refused(base.clone());
    assert!(matches!(error, AfXdpError::Down(_)), "{error}");
    ip(&format!("-n {} link set v0 up", pair.names[0]));

    let error = pair.within(0, || {
        // SAFETY: changes only the user of this thread, which ends with the test.
        let changed = unsafe { libc::syscall(libc::SYS_setresuid, 65534, 65534, 65534) };
        assert_eq!(changed, 0, "setresuid");
        AfXdp::open(&base, 1).expect_err("not root")
    });
    assert!(matches!(error, AfXdpError::NotPermitted { .. }), "{error}");
    assert!(error.to_string().contains("CAP_NET_ADMIN"), "{error}");

    let _open = pair.port(0, XdpMode::Auto);
    let error = refused(base);
    assert!(
        matches!(&error, AfXdpError::Owned { pid, .. } if *pid == std::process::id()),
        "{error}"
    );
}

#[test]
fn a_child_process_does_not_keep_the_queues() {
    if !root() {
        return;
    }
    let pair = Pair::new(1500, 1);
    let port = pair.port(0, XdpMode::Auto);
    let mut child = Command::new("sleep").arg("60").spawn().expect("a child");
    drop(port);
    let again = pair.open(0, &AfXdpConfig::new("v0"), 1);
    child.kill().expect("SIGKILL");
    child.wait().expect("gone");
    again.expect("the port opens again while the child lives");
}

const CHILD: &str = "FEROCE_TEST_AF_XDP_NAMESPACE";

/// The process that the next test kills; not a test by itself.
#[test]
#[ignore = "is run by the test below, as a process of its own"]
fn hold_a_port_until_killed() {
    let Ok(namespace) = std::env::var(CHILD) else {
        return;
    };
    enter(&namespace);
    let port = AfXdp::open(&AfXdpConfig::new("v0"), 1).expect("a port");
    println!("\nholding {}", port[0].attributes().kind);
    thread::sleep(Duration::from_secs(60));
}

fn holder(namespace: &str) -> Child {
    let mut child = Command::new(std::env::current_exe().expect("this program"))
        .args(["--exact", "hold_a_port_until_killed", "--ignored", "--nocapture"])
        .env(CHILD, namespace)
        .stdout(Stdio::piped())
        .spawn()
        .expect("a child");
    let output = BufReader::new(child.stdout.take().expect("piped"));
    let ready = output.lines().map_while(Result::ok).any(|line| line.starts_with("holding"));
    assert!(ready, "the child opened the port");
    child
}

#[test]
fn a_killed_process_leaves_nothing_behind() {
    if !root() {
        return;
    }
    let pair = Pair::new(1500, 1);
    let namespace = &pair.names[0];
    let mut child = holder(namespace);
    assert!(
        ip(&format!("-n {namespace} -d link show v0")).contains("prog/xdp"),
        "the program is attached"
    );
    let error = pair.open(0, &AfXdpConfig::new("v0"), 1).expect_err("the interface is taken");
    assert!(matches!(&error, AfXdpError::Owned { pid, .. } if *pid == child.id()), "{error}");

    child.kill().expect("SIGKILL");
    child.wait().expect("gone");
    let link = ip(&format!("-n {namespace} -d link show v0"));
    assert!(!link.contains("prog/xdp"), "no program is left: {link}");
    let [mut sender, mut receiver] = pair.ports(XdpMode::Auto);
    let roce = frame(headers(&receiver, 1, 4, None), 100, 0);
    send(&mut sender, &roce);
    expect(&mut receiver, &roce, "the port opens again");
}

//! A transfer of 1 GiB is disturbed half way: the peer is killed, an interface goes down and up, an
//! address is removed, or the route changes.
//!
//! The transfer continues, or it fails with the right completion status in the time that the QP's
//! attributes give. Afterwards no resource is left. The tests use network namespaces and need root.

use std::fs::File;
use std::io::{Read, Seek};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use feroce_engine::device::stat::{self, Request};
use feroce_engine::device::{
    Buffer, CompletionQueue, ConnectOptions, Device, PortKind, ProtectionDomain, QpInit, QueuePair,
};
use feroce_engine::memory::Access;
use feroce_engine::port::pcap::PcapPort;
use feroce_engine::verbs::{
    AsyncEvent, Completion, Data, RemoteAddr, SendFlags, SendOp, SendRequest, Status,
};
use pcap_file::pcap::PcapReader;

use feroce_tests::live::{self, BUFFER, Net, Peer, checksum};
use feroce_tests::ports;

const MESSAGE: usize = 1 << 20;
const MESSAGES: u64 = 1024; // 1 GiB
const OUTSTANDING: u64 = 8;
/// Code of the local ACK timeout; 14 is 67 ms. On a busy machine the peer's thread can be without a
/// CPU for 100 ms, which must be far less than [`FAILS_AFTER`].
const TIMEOUT: u8 = 14;
/// The same where the kernel must find the peer again: it repeats a request that was lost, as when
/// the link has just come up, after a second.
const PATIENT: u8 = 18;
/// Retries before the QP fails.
const RETRIES: u8 = 5;

/// Shortest time from the last progress to the error. Each try waits between one and four timeouts.
const FAILS_AFTER: Duration = Duration::from_nanos((4096 << TIMEOUT) * (RETRIES as u64 + 1));
/// Bytes captured of each frame: the Ethernet and IPv4 headers.
const SNAPLEN: u32 = 34;
/// Additional time allowed on a busy machine.
const TEST_TIMEOUT: Duration = Duration::from_secs(3);

/// Runs in the peer's process: see `Net::peer`.
#[test]
#[ignore = "the peer of the tests below, which start it"]
fn serve() {
    live::serve();
}

/// Lets one test run at a time, so that resources left behind belong to this test.
fn run_alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The numbers of descriptors and of device threads of this process. Threads of the test harness
/// are not counted.
fn held_resources() -> [usize; 2] {
    let list = |dir| std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path());
    let names =
        list("/proc/self/task").filter_map(|task| std::fs::read_to_string(task.join("comm")).ok());
    [list("/proc/self/fd").count(), names.filter(|name| name.starts_with("feroce")).count()]
}

/// A device in end 0 of `net`, connected to a peer in end 1.
struct Transfer {
    /// The name of the device for `feroce stat`.
    name: String,
    device: Device,
    pd: ProtectionDomain,
    cq: CompletionQueue,
    buffer: Buffer,
    qp: QueuePair,
    target: RemoteAddr,
    timeout: u8,
    posted: u64,
    done: u64,
    /// Bytes of the arena that the device uses without any object.
    arena_used: usize,
}

impl Transfer {
    /// Connects. The headers of every frame at the device's port are captured into `capture`.
    fn new(net: &Net, peer: &mut Peer, port: PortKind, timeout: u8, capture: File) -> Self {
        net.enter(0);
        let (name, config) = live::device(0, port);
        let mut capture = Some(capture);
        let device = Device::open_wrapped(&name, config, &mut |port| {
            let capture = capture.take().expect("one core");
            Ok(Box::new(PcapPort::new(port, capture, SNAPLEN).expect("a capture")))
        });
        let device = device.expect("a device");
        let arena_used = device.arena_stats().used;
        let cq = device.create_cq(64).unwrap();
        let pd = device.alloc_pd();
        let buffer = pd.alloc_buffer(BUFFER, Access::ALL).unwrap();
        for word in 0..BUFFER / 8 {
            buffer.store_word(word * 8, (word as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15));
        }
        let (qp, target) = connect(&device, &pd, &cq, timeout, peer);
        let name = name.split(',').next().expect("the first").to_owned();
        let (posted, done) = (0, 0);
        Self { name, device, pd, cq, buffer, qp, target, timeout, posted, done, arena_used }
    }

    /// Connects a new QP, as a program does after an error.
    fn reconnect(&mut self, peer: &mut Peer) {
        while self.cq.poll_one().is_some() {}
        let Self { device, pd, cq, timeout, .. } = &*self;
        (self.qp, self.target) = connect(device, pd, cq, *timeout, peer);
        (self.posted, self.done) = (0, 0);
    }

    /// Posts WRITEs until `messages` of them are complete or one fails.
    fn run_to(&mut self, messages: u64) -> Result<(), Completion> {
        while self.done < messages {
            while self.posted < messages && self.posted - self.done < OUTSTANDING {
                self.post();
            }
            if let Some(completion) = self.cq.poll_one() {
                if completion.status != Status::Success {
                    return Err(completion);
                }
                assert_eq!(completion.wr_id, self.done, "completions come in order");
                self.done += 1;
            }
        }
        Ok(())
    }

    fn post(&mut self) {
        let offset = self.posted * MESSAGE as u64 % BUFFER as u64;
        let sge = self.buffer.region().sge(offset, u32::try_from(MESSAGE).unwrap());
        let remote = RemoteAddr { addr: self.target.addr + offset, ..self.target };
        let request = SendRequest {
            wr_id: self.posted,
            op: SendOp::Write(remote),
            data: Data::Sges(std::slice::from_ref(&sge)),
            flags: SendFlags::SIGNALED,
        };
        self.qp.post_send(&request).unwrap();
        self.posted += 1;
    }

    /// Continues until the retries are exhausted, and checks the time.
    fn expect_retry_exceeded(&mut self) {
        let start = Instant::now();
        let failed = self.run_to(MESSAGES).expect_err("the peer is unreachable");
        let after = start.elapsed();
        assert_eq!(failed.status, Status::RetryExceeded);
        // No request was outstanding before `start`.
        assert!(after >= FAILS_AFTER, "failed already after {after:?}");
        assert!(after < 4 * FAILS_AFTER + TEST_TIMEOUT, "failed only after {after:?}");
        let mut flushed = 0;
        while let Some(completion) = self.cq.poll_one() {
            assert_eq!(completion.status, Status::WorkRequestFlushed);
            flushed += 1;
        }
        assert_eq!(self.done + 1 + flushed, self.posted, "each request completes once");
    }

    /// Drops all objects of the device and checks that no QP and no arena memory is left.
    fn expect_nothing_left(self) {
        let Self { name, device, pd, cq, buffer, qp, arena_used, .. } = self;
        drop((qp, buffer, cq, pd));
        let left = stat::query(&name, &Request::default()).expect("figures of our own device");
        assert_eq!((left.qps, left.arena_used), (0, arena_used), "QPs, bytes of the arena");
        drop(device);
    }

    /// Completes the transfer and compares the data.
    fn expect_to_finish(&mut self, peer: &mut Peer) {
        if let Err(completion) = self.run_to(MESSAGES) {
            let own = stat::query(&self.name, &Request::default()).expect("our own device");
            panic!(
                "the transfer ended after {} messages with {completion:?}; {}: {:?}, {:?}",
                self.done, own.port, own.cores, own.counters
            );
        }
        assert_eq!(peer.checksum(), checksum(&self.buffer));
    }

    /// Waits for the asynchronous event `wanted`.
    fn expect_event(&self, wanted: AsyncEvent) {
        let start = Instant::now();
        loop {
            match self.device.poll_event() {
                Some(event) if event == wanted => return,
                Some(_) => {}
                None => std::thread::sleep(Duration::from_millis(1)),
            }
            assert!(start.elapsed() < TEST_TIMEOUT, "no {wanted:?}");
        }
    }
}

fn connect(
    device: &Device,
    pd: &ProtectionDomain,
    cq: &CompletionQueue,
    timeout: u8,
    peer: &mut Peer,
) -> (QueuePair, RemoteAddr) {
    let mut qp = pd.create_qp(&QpInit::new(cq)).unwrap();
    let (psn, sgid_index) = (device.random_psn().unwrap(), device.default_gid_index());
    let own = qp.endpoint(psn, sgid_index).unwrap();
    let (far, target) = peer.connect(&own);
    let options =
        ConnectOptions { sgid_index, timeout, retry_cnt: RETRIES, ..ConnectOptions::default() };
    qp.connect(psn, &far, &options).unwrap();
    (qp, target)
}

/// The kinds of ports that use an interface of the kernel.
const ON_KERNEL: &[PortKind] = &[PortKind::AfXdp, PortKind::Packet, PortKind::Udp];
/// The kinds in [`ON_KERNEL`] whose frames have the Ethernet address of the next hop.
const WITH_NEXT_HOP: &[PortKind] = &[PortKind::AfXdp, PortKind::Packet];

/// Runs `disturb` half way through a transfer, over each kind of port in `ports`. Then checks that
/// no resource is left.
fn half_way(ports: &[PortKind], disturb: impl Fn(&mut Transfer, &Net, &mut Peer) + Sync) {
    half_way_captured(ports, TIMEOUT, disturb, |_| ());
}

/// The same with the local ACK timeout `timeout`; `judge` gets the capture.
fn half_way_captured(
    ports: &[PortKind],
    timeout: u8,
    disturb: impl Fn(&mut Transfer, &Net, &mut Peer) + Sync,
    judge: impl Fn(Vec<u8>) + Sync,
) {
    let _alone = run_alone();
    for &port in ports {
        ports::start(port); // Resources that a kind of port keeps until the process ends.
        let before = held_resources();
        // A separate thread, because it changes its network namespace.
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let Some(net) = Net::new() else { return };
                if !port.is_on_kernel() {
                    net.without_addresses();
                }
                let mut captured = temporary_file();
                let capture = captured.try_clone().unwrap();
                let mut peer = net.peer(port);
                let mut transfer = Transfer::new(&net, &mut peer, port, timeout, capture);
                transfer.run_to(MESSAGES / 2).expect("no error before the disturbance");
                disturb(&mut transfer, &net, &mut peer);
                transfer.expect_nothing_left();
                let mut bytes = Vec::new();
                captured.rewind().unwrap();
                captured.read_to_end(&mut bytes).unwrap();
                judge(bytes);
            });
        });
        assert_eq!(held_resources(), before, "{port}: descriptors and threads");
    }
}

fn kill(transfer: &mut Transfer, _: &Net, peer: &mut Peer) {
    peer.kill();
    transfer.expect_retry_exceeded();
}

fn interrupt(transfer: &mut Transfer, net: &Net, peer: &mut Peer) {
    net.ip(0, "link set v0 down");
    net.ip(0, "link set v0 up");
    transfer.expect_to_finish(peer);
}

#[test]
fn the_peer_is_killed() {
    half_way(ON_KERNEL, kill);
}

#[test]
fn the_interface_is_down_for_a_moment() {
    half_way(ON_KERNEL, |transfer, net, peer| {
        interrupt(transfer, net, peer);
        transfer.expect_event(AsyncEvent::PortError);
        transfer.expect_event(AsyncEvent::PortActive);
    });
}

#[test]
fn the_interface_goes_down_and_comes_back_later() {
    half_way(ON_KERNEL, |transfer, net, peer| {
        net.ip(0, "link set v0 down");
        transfer.expect_event(AsyncEvent::PortError);
        transfer.expect_retry_exceeded();
        net.ip(0, "link set v0 up");
        transfer.expect_event(AsyncEvent::PortActive);
        transfer.reconnect(peer);
        transfer.expect_to_finish(peer);
    });
}

#[test]
fn the_local_address_is_removed_and_comes_back() {
    half_way(ON_KERNEL, |transfer, net, peer| {
        net.ip(0, "address del 10.77.0.1/24 dev v0");
        transfer.expect_event(AsyncEvent::GidChange);
        transfer.expect_retry_exceeded();
        net.ip(0, "address add 10.77.0.1/24 dev v0");
        transfer.expect_event(AsyncEvent::GidChange);
        transfer.reconnect(peer);
        transfer.expect_to_finish(peer);
    });
}

#[test]
fn the_peers_address_is_removed() {
    half_way(ON_KERNEL, |transfer, net, _| {
        net.ip(1, "address del 10.77.0.2/24 dev v1");
        transfer.expect_retry_exceeded();
    });
}

#[test]
fn the_route_changes_to_a_gateway() {
    const GATEWAY: [u8; 6] = [2, 0x77, 0, 0, 0, 3];
    let change = |transfer: &mut Transfer, net: &Net, peer: &mut Peer| {
        net.ip(0, "neighbour replace 10.77.0.3 lladdr 02:77:00:00:00:03 nud permanent dev v0");
        net.ip(0, "route add 10.77.0.2/32 via 10.77.0.3 dev v0");
        // The peer takes the gateway's Ethernet address. This end does not learn it from the peer's
        // requests for neighbours.
        net.exec(0, "sysctl -qw net.ipv4.conf.v0.arp_ignore=8");
        net.ip(1, "link set v1 address 02:77:00:00:00:03");
        transfer.expect_to_finish(peer);
    };
    half_way_captured(WITH_NEXT_HOP, PATIENT, change, |bytes| expect_move(&bytes, GATEWAY));
}

/// Checks in a capture that the frames of the second half of the transfer went to the Ethernet
/// address `mac`.
fn expect_move(capture: &[u8], mac: [u8; 6]) {
    let mut reader = PcapReader::new(capture).unwrap();
    let (mut before, mut after) = (0, 0);
    while let Some(packet) = reader.next_packet() {
        let packet = packet.unwrap();
        let (is_moved, sent) = (packet.data[..6] == mac, packet.data[26..30] == [10, 77, 0, 1]);
        before += usize::from(sent && !is_moved);
        after += usize::from(sent && is_moved);
    }
    let packets = usize::try_from(MESSAGES).unwrap() * MESSAGE / 4096;
    assert!(before >= packets / 2, "{before} frames to the old Ethernet address");
    assert!(after >= packets / 4, "{after} frames to the new one");
}

/// The peer gets another Ethernet address during the transfer, in three ways.
fn peer_moves(change: impl Fn(&Net) + Sync) {
    const MOVED: [u8; 6] = [2, 0x77, 0, 0, 0, 0x22];
    let disturb = |transfer: &mut Transfer, net: &Net, peer: &mut Peer| {
        change(net);
        transfer.expect_to_finish(peer);
    };
    half_way_captured(WITH_NEXT_HOP, PATIENT, disturb, |bytes| expect_move(&bytes, MOVED));
}

/// The kernel of this end forgets the peer; this end asks for it again.
#[test]
fn the_peer_moves_and_is_forgotten() {
    peer_moves(|net| {
        // The peer's own request would otherwise tell this end its new address.
        net.exec(0, "sysctl -qw net.ipv4.conf.v0.arp_ignore=8");
        net.ip(1, "link set v1 address 02:77:00:00:00:22");
        // Not `flush`, which repeats until the table is empty: the entry is back at once.
        net.ip(0, "neighbour del 10.77.0.2 dev v0");
    });
}

/// The kernel of the peer forgets its neighbours with the change; the peer asks for them again.
#[test]
fn the_peer_moves_unnoticed() {
    peer_moves(|net| net.ip(1, "link set v1 address 02:77:00:00:00:22"));
}

/// The kernel of this end forgets the peer while its interface is down.
#[test]
fn the_peer_moves_while_the_interface_is_down() {
    peer_moves(|net| {
        net.ip(0, "link set v0 down");
        net.ip(1, "link set v1 address 02:77:00:00:00:22");
        net.ip(0, "link set v0 up");
    });
}

/// A DPDK port has its own addresses, no routes, and a driver that does not report the link state.
#[cfg(feature = "dpdk")]
mod on_dpdk {
    use super::*;

    const ON_DPDK: &[PortKind] = &[PortKind::Dpdk];

    #[test]
    fn the_peer_is_killed() {
        half_way(ON_DPDK, kill);
    }

    #[test]
    fn the_interface_is_down_for_a_moment() {
        half_way(ON_DPDK, interrupt);
    }

    /// The port detects that its interface is down, and from sent frames that it is up again.
    #[test]
    fn the_interface_goes_down_and_comes_back_later() {
        half_way(ON_DPDK, |transfer, net, peer| {
            net.ip(0, "link set v0 down");
            transfer.expect_retry_exceeded();
            transfer.expect_event(AsyncEvent::PortError);
            net.ip(0, "link set v0 up");
            transfer.reconnect(peer);
            transfer.expect_to_finish(peer);
            transfer.expect_event(AsyncEvent::PortActive);
        });
    }
}

/// A temporary file that is already unlinked.
fn temporary_file() -> File {
    let path = std::env::temp_dir().join(format!("fr-outage-{}", std::process::id()));
    let mut options = File::options();
    let file = options.read(true).write(true).create(true).truncate(true).open(&path).unwrap();
    std::fs::remove_file(&path).unwrap();
    file
}

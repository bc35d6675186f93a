//! What happens to a transfer of 1 GiB when half way the peer dies, an interface goes down and up, an address
//! goes away, or the route changes: it goes on, or it ends with a clear completion status in the time that
//! the QP's attributes give, and nothing is left behind. Live, in network namespaces; needs root.

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
/// Local ACK timeout code 12 is 16.8 ms; after so many retries the peer is given up.
const TIMEOUT: u8 = 12;
const RETRIES: u8 = 5;

/// From the last progress to the error: each try waits between one and four timeouts (C9-141).
const GIVES_UP_AFTER: Duration = Duration::from_nanos((4096 << TIMEOUT) * (RETRIES as u64 + 1));
/// Bytes kept of each captured frame: Ethernet and IPv4 headers.
const SNAPLEN: u32 = 34;
/// How much later the error may be on a busy machine.
const PATIENCE: Duration = Duration::from_secs(3);

/// The peer's process: see `Net::peer`.
#[test]
#[ignore = "the other side of the tests below, started by them"]
fn serve() {
    live::serve();
}

/// One at a time, so that what is left behind is known to be this test's.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Descriptors of this process, and threads of devices: the test harness has threads of its own.
fn belongings() -> [usize; 2] {
    let list = |dir| std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path());
    let names =
        list("/proc/self/task").filter_map(|task| std::fs::read_to_string(task.join("comm")).ok());
    [list("/proc/self/fd").count(), names.filter(|name| name.starts_with("feroce")).count()]
}

/// A device in end 0 of `net`, connected to a peer in end 1.
struct Transfer {
    /// By which `feroce stat` knows the device.
    name: String,
    device: Device,
    pd: ProtectionDomain,
    cq: CompletionQueue,
    buffer: Buffer,
    qp: QueuePair,
    target: RemoteAddr,
    posted: u64,
    done: u64,
    /// Of the device alone.
    arena_used: usize,
}

impl Transfer {
    /// The device's port is captured into `capture`: the headers that route, of each frame.
    fn new(net: &Net, peer: &mut Peer, port: PortKind, capture: File) -> Self {
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
        let (qp, target) = connect(&device, &pd, &cq, peer);
        let name = name.split(',').next().expect("the first").to_owned();
        Self { name, device, pd, cq, buffer, qp, target, posted: 0, done: 0, arena_used }
    }

    /// The same over a new QP, as a program does after an error.
    fn reconnect(&mut self, peer: &mut Peer) {
        while self.cq.poll_one().is_some() {}
        (self.qp, self.target) = connect(&self.device, &self.pd, &self.cq, peer);
        (self.posted, self.done) = (0, 0);
    }

    /// WRITEs until `messages` are done or one fails.
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

    /// Runs on until the peer is given up, and checks when that is.
    fn gives_up(&mut self) {
        let start = Instant::now();
        let failed = self.run_to(MESSAGES).expect_err("the peer cannot have got everything");
        let after = start.elapsed();
        assert_eq!(failed.status, Status::RetryExceeded);
        // Nothing was outstanding before.
        assert!(after >= GIVES_UP_AFTER, "given up after {after:?} already");
        assert!(after < 4 * GIVES_UP_AFTER + PATIENCE, "given up only after {after:?}");
        let mut flushed = 0;
        while let Some(completion) = self.cq.poll_one() {
            assert_eq!(completion.status, Status::WorkRequestFlushed);
            flushed += 1;
        }
        assert_eq!(self.done + 1 + flushed, self.posted, "each request completes once");
    }

    /// Everything that was made on the device goes, and nothing stays there.
    fn leaves_nothing(self) {
        let Self { name, device, pd, cq, buffer, qp, arena_used, .. } = self;
        drop((qp, buffer, cq, pd));
        let left = stat::ask(&name, &Request::default()).expect("figures of our own");
        assert_eq!((left.qps, left.arena_used), (0, arena_used), "QPs, bytes of the arena");
        drop(device);
    }

    fn finishes(&mut self, peer: &mut Peer) {
        self.run_to(MESSAGES).expect("the transfer goes on");
        assert_eq!(peer.checksum(), checksum(&self.buffer));
    }

    /// Waits for `wanted` among the asynchronous events.
    fn hears_of(&self, wanted: AsyncEvent) {
        let start = Instant::now();
        loop {
            match self.device.poll_event() {
                Some(event) if event == wanted => return,
                Some(_) => {}
                None => std::thread::sleep(Duration::from_millis(1)),
            }
            assert!(start.elapsed() < PATIENCE, "no {wanted:?}");
        }
    }
}

fn connect(
    device: &Device,
    pd: &ProtectionDomain,
    cq: &CompletionQueue,
    peer: &mut Peer,
) -> (QueuePair, RemoteAddr) {
    let mut qp = pd.create_qp(&QpInit::new(cq)).unwrap();
    let (psn, sgid_index) = (device.random_psn().unwrap(), device.default_gid_index());
    let own = qp.endpoint(psn, sgid_index).unwrap();
    let (far, target) = peer.connect(&own);
    let options = ConnectOptions {
        sgid_index,
        timeout: TIMEOUT,
        retry_cnt: RETRIES,
        ..ConnectOptions::default()
    };
    qp.connect(psn, &far, &options).unwrap();
    (qp, target)
}

/// The ports that stand on an interface of the kernel's.
const ON_KERNEL: &[PortKind] = &[PortKind::AfXdp, PortKind::Packet];

/// Runs `act` half way through a transfer, over each kind of port in `ports`; then checks that nothing is left.
fn half_way(ports: &[PortKind], act: impl Fn(&mut Transfer, &Net, &mut Peer) + Sync) {
    half_way_captured(ports, act, |_| ());
}

/// The same; `judge` gets what was captured.
fn half_way_captured(
    ports: &[PortKind],
    act: impl Fn(&mut Transfer, &Net, &mut Peer) + Sync,
    judge: impl Fn(Vec<u8>) + Sync,
) {
    let _alone = alone();
    for &port in ports {
        ports::start(port); // What a port starts once stays until the process ends.
        let before = belongings();
        // A thread of its own, whose network namespace nobody else gets.
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let Some(net) = Net::new() else { return };
                if !port.is_on_kernel() {
                    net.without_addresses();
                }
                let mut captured = temporary_file();
                let capture = captured.try_clone().unwrap();
                let mut peer = net.peer(port);
                let mut transfer = Transfer::new(&net, &mut peer, port, capture);
                transfer.run_to(MESSAGES / 2).expect("all is well");
                act(&mut transfer, &net, &mut peer);
                transfer.leaves_nothing();
                let mut bytes = Vec::new();
                captured.rewind().unwrap();
                captured.read_to_end(&mut bytes).unwrap();
                judge(bytes);
            });
        });
        assert_eq!(belongings(), before, "{port}: descriptors and threads");
    }
}

fn kill(transfer: &mut Transfer, _: &Net, peer: &mut Peer) {
    peer.kill();
    transfer.gives_up();
}

fn interrupt(transfer: &mut Transfer, net: &Net, peer: &mut Peer) {
    net.ip(0, "link set v0 down");
    net.ip(0, "link set v0 up");
    transfer.finishes(peer);
}

#[test]
fn a_peer_is_killed() {
    half_way(ON_KERNEL, kill);
}

#[test]
fn the_interface_is_down_for_a_moment() {
    half_way(ON_KERNEL, |transfer, net, peer| {
        interrupt(transfer, net, peer);
        transfer.hears_of(AsyncEvent::PortError);
        transfer.hears_of(AsyncEvent::PortActive);
    });
}

#[test]
fn the_interface_goes_down_and_comes_back_later() {
    half_way(ON_KERNEL, |transfer, net, peer| {
        net.ip(0, "link set v0 down");
        transfer.hears_of(AsyncEvent::PortError);
        transfer.gives_up();
        net.ip(0, "link set v0 up");
        transfer.hears_of(AsyncEvent::PortActive);
        transfer.reconnect(peer);
        transfer.finishes(peer);
    });
}

#[test]
fn the_own_address_is_removed_and_comes_back() {
    half_way(ON_KERNEL, |transfer, net, peer| {
        net.ip(0, "address del 10.77.0.1/24 dev v0");
        transfer.hears_of(AsyncEvent::GidChange);
        transfer.gives_up();
        net.ip(0, "address add 10.77.0.1/24 dev v0");
        transfer.hears_of(AsyncEvent::GidChange);
        transfer.reconnect(peer);
        transfer.finishes(peer);
    });
}

#[test]
fn the_peers_address_is_removed() {
    half_way(ON_KERNEL, |transfer, net, _| {
        net.ip(1, "address del 10.77.0.2/24 dev v1");
        transfer.gives_up();
    });
}

#[test]
fn the_route_leads_through_another_gateway() {
    const GATEWAY: [u8; 6] = [2, 0x77, 0, 0, 0, 3];
    let change = |transfer: &mut Transfer, net: &Net, peer: &mut Peer| {
        net.ip(0, "neighbour replace 10.77.0.3 lladdr 02:77:00:00:00:03 nud permanent dev v0");
        net.ip(0, "route add 10.77.0.2/32 via 10.77.0.3 dev v0");
        net.ip(1, "link set v1 promisc on"); // It is not that gateway, and takes its frames.
        transfer.finishes(peer);
    };
    half_way_captured(ON_KERNEL, change, |bytes| {
        let mut reader = PcapReader::new(&bytes[..]).unwrap();
        let (mut before, mut after) = (0, 0);
        while let Some(packet) = reader.next_packet() {
            let packet = packet.unwrap();
            let (to_gateway, sent) =
                (packet.data[..6] == GATEWAY, packet.data[26..30] == [10, 77, 0, 1]);
            before += usize::from(sent && !to_gateway);
            after += usize::from(sent && to_gateway);
        }
        let packets = usize::try_from(MESSAGES).unwrap() * MESSAGE / 4096;
        assert!(before >= packets / 2, "{before} frames by the old route");
        assert!(after >= packets / 4, "{after} frames by the new one");
    });
}

/// Its port has its own addresses, no routes, and a driver that says nothing of the link.
#[cfg(feature = "dpdk")]
mod on_dpdk {
    use super::*;

    const ON_DPDK: &[PortKind] = &[PortKind::Dpdk];

    #[test]
    fn a_peer_is_killed() {
        half_way(ON_DPDK, kill);
    }

    #[test]
    fn the_interface_is_down_for_a_moment() {
        half_way(ON_DPDK, interrupt);
    }

    /// The port sees that its interface is down, and then by the frames that go that it is not.
    #[test]
    fn the_interface_goes_down_and_comes_back_later() {
        half_way(ON_DPDK, |transfer, net, peer| {
            net.ip(0, "link set v0 down");
            transfer.gives_up();
            transfer.hears_of(AsyncEvent::PortError);
            net.ip(0, "link set v0 up");
            transfer.reconnect(peer);
            transfer.finishes(peer);
            transfer.hears_of(AsyncEvent::PortActive);
        });
    }
}

/// A file without a name.
fn temporary_file() -> File {
    let path = std::env::temp_dir().join(format!("fr-outage-{}", std::process::id()));
    let mut options = File::options();
    let file = options.read(true).write(true).create(true).truncate(true).open(&path).unwrap();
    std::fs::remove_file(&path).unwrap();
    file
}

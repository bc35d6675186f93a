//! Two network namespaces joined by a veth pair, and packets to send between their ports. Without
//! root, the tests print a message and pass.
#![allow(clippy::disallowed_methods)] // Tests against the kernel use real time.
#![allow(dead_code)] // Not every test uses everything.

use std::fs::File;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::os::fd::AsRawFd;
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use caps::{CapSet, CapsHashSet};
use feroce_engine::device::{
    Buffer, CompletionQueue, ConnectOptions, Device, DeviceConfig, Endpoint, PortKind, QpInit,
    QueuePair,
};
use feroce_engine::memory::Access;
use feroce_engine::port::{Port, Priority};
use feroce_engine::verbs::{Data, RemoteAddr, SendFlags, SendOp, SendRequest, Status};
use feroce_wire::{
    Bth, FlowHeader, FlowSpec, IpAddresses, MacAddr, Opcode, Packet, PathMtu, Pkey, Psn, Qpn,
    VlanTag,
};

pub const TEST_TIMEOUT: Duration = Duration::from_secs(5);
/// Maximum time to wait for a frame that must arrive, sufficient on a busy machine.
pub const SILENCE: Duration = Duration::from_millis(100);

/// Returns true if the tests can run. Otherwise prints why not.
pub fn root() -> bool {
    // SAFETY: the call has no arguments and no effects.
    let root = unsafe { libc::geteuid() } == 0;
    if !root {
        feroce_test_skip::skip("network namespaces need root");
    }
    root
}

pub fn ip(arguments: &str) -> String {
    let output =
        Command::new("ip").args(arguments.split_whitespace()).output().expect("the `ip` program");
    assert!(output.status.success(), "ip {arguments}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("text")
}

/// Waits until the kernel sends what an interface gets. After the carrier comes, it drops that
/// until linkwatch has run (`linkwatch_do_dev` in `net/core/link_watch.c`). `namespace`: `-n NAME`,
/// or nothing.
pub fn wait_until_up(namespace: &str, device: &str) {
    let start = Instant::now();
    while !ip(&format!("{namespace} link show {device}")).contains("state UP") {
        assert!(start.elapsed() < TEST_TIMEOUT, "{device} does not come up");
        thread::sleep(Duration::from_millis(1));
    }
}

/// Two namespaces with a veth pair: 10.8.0.1 and fd08::1 on `v0`, 10.8.0.2 and fd08::2 on `v1`.
pub struct Pair {
    pub names: [String; 2],
}

impl Pair {
    pub fn new(mtu: u32) -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let pair = Self {
            names: ["a", "b"].map(|end| format!("fr-pkt-{}-{count}{end}", std::process::id())),
        };
        let [a, b] = &pair.names;
        ip(&format!("netns add {a}"));
        ip(&format!("netns add {b}"));
        ip(&format!("link add v0 netns {a} mtu {mtu} type veth peer name v1 netns {b} mtu {mtu}"));
        for (end, name) in [(1, a), (2, b)] {
            let device = Self::device(end - 1);
            ip(&format!("-n {name} address add 10.8.0.{end}/24 dev {device}"));
            ip(&format!("-n {name} address add fd08::{end}/64 dev {device} nodad"));
            ip(&format!("-n {name} link set {device} up"));
        }
        for (end, name) in pair.names.iter().enumerate() {
            wait_until_up(&format!("-n {name}"), Self::device(end));
        }
        pair
    }

    pub fn device(end: usize) -> &'static str {
        ["v0", "v1"][end]
    }

    /// Runs `work` in the namespace of `end`.
    pub fn within<T: Send>(&self, end: usize, work: impl FnOnce() -> T + Send) -> T {
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

    pub fn switch(&self, end: usize, state: &str) {
        ip(&format!("-n {} link set {} {state}", self.names[end], Self::device(end)));
    }

    /// Frames that the interface of `end` received, according to the kernel.
    pub fn kernel_frames(&self, end: usize) -> u64 {
        let text = ip(&format!("-n {} -s -j link show {}", self.names[end], Self::device(end)));
        let received = text.split("\"rx\":").nth(1).expect("receive counters");
        let packets = received.split("\"packets\":").nth(1).expect("packets");
        let digits: String = packets.chars().take_while(char::is_ascii_digit).collect();
        digits.parse().expect("a number")
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

pub fn enter(namespace: &str) {
    let file = File::open(format!("/run/netns/{namespace}")).expect("a namespace");
    // SAFETY: the descriptor is open; the call moves only this thread.
    let moved = unsafe { libc::setns(file.as_raw_fd(), libc::CLONE_NEWNET) };
    assert_eq!(moved, 0, "setns");
}

pub fn addresses(end: usize) -> [Ipv6Addr; 2] {
    [["::ffff:10.8.0.1", "fd08::1"], ["::ffff:10.8.0.2", "fd08::2"]][end]
        .map(|text| text.parse().expect("an address"))
}

/// Properties of a flow.
#[derive(Debug, Clone, Copy)]
pub struct Kind {
    pub v6: bool,
    pub tagged: bool,
    pub source_port: u16,
}

pub const PLAIN: Kind = Kind { v6: false, tagged: false, source_port: 0xc000 };

/// A flow to the port `to` at end `end`.
pub fn flow(to: &dyn Port, end: usize, kind: Kind) -> FlowHeader {
    let address = |end: usize| addresses(end)[1];
    let four = |end: usize| Ipv4Addr::new(10, 8, 0, if end == 0 { 1 } else { 2 });
    let addresses = match kind.v6 {
        true => IpAddresses::V6 { src: address(1 - end), dst: address(end) },
        false => IpAddresses::V4 { src: four(1 - end), dst: four(end) },
    };
    FlowHeader::new(&FlowSpec {
        dst_mac: to.attributes().mac,
        src_mac: MacAddr([2, 0, 0, 0, 0, 0x77]),
        vlan: kind.tagged.then_some(VlanTag { id: 100, pcp: 3, dei: false }),
        addresses,
        traffic_class: 0,
        hop_limit: 64,
        flow_label: 0,
        udp_source_port: kind.source_port,
        super_frames: true,
    })
}

/// A sealed packet with `payload` bytes.
pub fn sealed(flow: &FlowHeader, payload: usize, psn: u32, id: u16) -> Vec<u8> {
    let mut frame = vec![0; flow.frame_len(Bth::LEN + payload)];
    let bth = Bth {
        opcode: Opcode::RC_WRITE_MIDDLE,
        solicited: false,
        mig_req: true,
        pad: 0,
        version: 0,
        pkey: Pkey::DEFAULT,
        fecn: false,
        becn: false,
        reserved6: 0,
        dest_qp: Qpn::masked(0x11),
        ack_req: false,
        reserved7: 0,
        psn: Psn::new(psn),
    };
    let body = flow.len() + Bth::LEN;
    bth.write(&mut frame[flow.len()..]);
    let mut byte = psn.to_le_bytes()[0];
    frame[body..body + payload].fill_with(|| {
        byte = byte.wrapping_mul(5).wrapping_add(113);
        byte
    });
    flow.seal(&mut frame, Bth::LEN + payload, id);
    frame
}

pub fn psn(frame: &[u8]) -> u32 {
    let packet = Packet::parse(frame, &[]).expect("a packet");
    assert!(packet.icrc_valid(), "the ICRC of PSN {}", packet.bth.psn.value());
    packet.bth.psn.value()
}

pub fn queue(port: &mut dyn Port, frame: &[u8], next: bool) {
    let slot = port.tx_slot().expect("a slot");
    slot[..frame.len()].copy_from_slice(frame);
    match next {
        true => port.tx_commit_next(frame.len(), Priority::default()),
        false => port.tx_commit(frame.len(), Priority::default()),
    }
}

pub fn send(port: &mut dyn Port, frame: &[u8]) {
    queue(port, frame, false);
    port.flush().expect("the link is up");
}

/// Sends `frames` as one burst whose packets may share super-frames, as the core does.
pub fn send_train(port: &mut dyn Port, frames: &[Vec<u8>]) {
    for (index, frame) in frames.iter().enumerate() {
        queue(port, frame, index > 0);
    }
    port.flush().expect("the link is up");
}

/// Receives `count` frames, or those that arrive within `patience`.
pub fn receive(port: &mut dyn Port, count: usize, patience: Duration) -> Vec<Vec<u8>> {
    let mut frames = Vec::new();
    let end = Instant::now() + patience;
    while frames.len() < count && Instant::now() < end {
        for index in 0..port.rx_burst() {
            let frame = port.rx_frame(index);
            assert!(
                frame.first.len() >= 60 || frame.second.is_empty(),
                "the headers are in the first part"
            );
            frames.push([frame.first, frame.second].concat());
        }
        thread::yield_now();
    }
    frames
}

/// Checks that the next frames are `frames`.
pub fn expect(port: &mut dyn Port, frames: &[Vec<u8>], what: &str) {
    let received = receive(port, frames.len(), TEST_TIMEOUT);
    let lengths = |frames: &[Vec<u8>]| frames.iter().map(Vec::len).collect::<Vec<_>>();
    // `assert_eq` would print thousands of numbers.
    let (sent, came) = (lengths(frames), lengths(&received));
    assert!(received == frames, "{what}: frames of {sent:?} bytes came as {came:?}");
}

/// Drops all capabilities of the calling thread.
pub fn drop_capabilities() {
    for set in [CapSet::Effective, CapSet::Permitted] {
        caps::set(None, set, &CapsHashSet::new()).expect("dropping capabilities");
    }
}

/// One end of a connection between devices.
pub struct End {
    pub device: Device,
    pub cq: CompletionQueue,
    pub qp: QueuePair,
    pub buffer: Buffer,
}

pub const MESSAGE: usize = 1 << 20;

/// Opens devices at both ends and connects them. A device on UDP sockets is opened without any
/// capability.
pub fn connect(pair: &Pair, kinds: [PortKind; 2], path_mtu: PathMtu) -> [End; 2] {
    connect_with(pair, kinds, path_mtu, &DeviceConfig::default(), |_| {})
}

/// As [`connect`], with devices of `config` that know `change`d endpoints of each other.
pub fn connect_with(
    pair: &Pair,
    kinds: [PortKind; 2],
    path_mtu: PathMtu,
    config: &DeviceConfig,
    change: impl Fn(&mut Endpoint),
) -> [End; 2] {
    let mut ends = [0, 1].map(|end| {
        let config = DeviceConfig { max_qp: 16, port: kinds[end], ..config.clone() };
        let open = || {
            if kinds[end] == PortKind::Udp {
                drop_capabilities();
            }
            Device::open(Pair::device(end), config).expect("a device")
        };
        let device = pair.within(end, open);
        let cq = device.create_cq(64).expect("a CQ");
        let pd = device.alloc_pd();
        let qp = pd.create_qp(&QpInit::new(&cq)).expect("a QP");
        let buffer = pd.alloc_buffer(2 * MESSAGE, Access::ALL).expect("a buffer");
        End { device, cq, qp, buffer }
    });
    let gid = |end: &End| {
        let gids = end.device.gids();
        gids.iter().find(|(_, entry)| entry.gid.ip().is_ipv4()).expect("an IPv4 address").0
    };
    let start = Psn::new(0xff_fff0);
    let mut names = ends.each_ref().map(|end| end.qp.endpoint(start, gid(end)).expect("a GID"));
    names.iter_mut().for_each(change);
    for n in 0..2 {
        let sgid_index = gid(&ends[n]);
        let options =
            ConnectOptions { sgid_index, path_mtu: Some(path_mtu), ..ConnectOptions::default() };
        let peer = names[1 - n];
        pair.within(n, || ends[n].qp.connect(start, &peer, &options).expect("connected"));
    }
    ends
}

/// The first end writes a message to the second and reads it back. Checks the bytes at both ends.
pub fn write_and_read_back(ends: &mut [End; 2], what: &str) {
    let pattern: Vec<u8> = (0..MESSAGE).map(|at| (at / 7 + at / 4096).to_le_bytes()[0]).collect();
    ends[0].buffer.write(0, &pattern);
    request(ends, false, 0, MESSAGE, MESSAGE);
    request(ends, true, MESSAGE, MESSAGE, MESSAGE);
    let mut arrived = vec![0; MESSAGE];
    for (end, done) in [(1, "written"), (0, "read back")] {
        ends[end].buffer.read(MESSAGE, &mut arrived);
        assert!(arrived == pattern, "{done}, {what}");
    }
}

/// Posts a request of the first end on `len` bytes at offset `remote` of the second end's buffer,
/// and waits for success.
pub fn request(ends: &mut [End; 2], read: bool, local: usize, remote: usize, len: usize) {
    post(ends, read, local, remote, len);
    wait_for_success(&ends[0]);
}

/// As [`request`], `times` times at once.
pub fn requests_at_once(ends: &mut [End; 2], read: bool, len: usize, times: usize) {
    (0..times).for_each(|_| post(ends, read, 0, MESSAGE, len));
    (0..times).for_each(|_| wait_for_success(&ends[0]));
}

fn post(ends: &mut [End; 2], read: bool, local: usize, remote: usize, len: usize) {
    let [near, far] = ends;
    let region = far.buffer.region();
    let remote = RemoteAddr { addr: region.addr() + remote as u64, rkey: region.rkey() };
    let sge = near.buffer.region().sge(local as u64, u32::try_from(len).expect("small"));
    let op = if read { SendOp::Read(remote) } else { SendOp::Write(remote) };
    let data = Data::Sges(std::slice::from_ref(&sge));
    let flags = SendFlags::SIGNALED;
    near.qp.post_send(&SendRequest { wr_id: 1, op, data, flags }).expect("room");
}

fn wait_for_success(near: &End) {
    let end = Instant::now() + TEST_TIMEOUT;
    let completion = loop {
        assert!(Instant::now() < end, "a completion");
        if let Some(completion) = near.cq.poll_one() {
            break completion;
        }
    };
    assert_eq!(completion.status, Status::Success);
}

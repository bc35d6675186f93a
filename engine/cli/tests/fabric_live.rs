//! `feroce fabric live` between network namespaces: forwarding, pauses and marks. Needs root.

use std::fs::File;
use std::io::Read;
use std::net::UdpSocket;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use feroce_congestion::{Params, Rate};
use feroce_engine::congestion::{CongestionConfig, Control};
use feroce_engine::counters::Counter;
use feroce_engine::device::{
    Buffer, CompletionQueue, ConnectOptions, Device, DeviceConfig, Driver, PortKind,
    ProtectionDomain, QpInit, QueuePair,
};
use feroce_engine::memory::Access;
use feroce_engine::pfc::{PfcConfig, Priorities, Thresholds};
use feroce_engine::port::af_xdp::AfXdpConfig;
use feroce_engine::port::kind::PortConfigs;
use feroce_engine::port::packet::{Offload, PacketConfig, SuperFrames, Tap};
use feroce_engine::time::Clock;
use feroce_engine::verbs::{Data, RemoteAddr, SendFlags, SendOp, SendRequest};
use feroce_pfc_tools::frame::{Pause, Seen};
use feroce_wire::{Ecn, FlowControl, FlowControlFrame, MacAddr, PathMtu};
use nix::sched::{CloneFlags, setns};
use nix::sys::signal::{Signal, kill};
use nix::sys::socket::setsockopt;
use nix::sys::socket::sockopt::UdpGsoSegment;
use nix::unistd::{Pid, geteuid};

/// Rate of each port: low enough for a busy machine.
const RATE: f64 = 100e6;
const PRIORITY: u8 = 3;
const PAYLOAD: usize = 1400;

const LIVE: &str = include_str!("../../../pfc-tools/scenarios/live.toml");
const LIVE_INCAST: &str = include_str!("../../../pfc-tools/scenarios/live-incast.toml");

/// The tests run one at a time, since they measure rates.
static ALONE: Mutex<()> = Mutex::new(());

/// Three namespaces whose interfaces `v0` are connected to `p1`, `p2` and `p3` in a fourth.
struct Net {
    prefix: String,
    _alone: MutexGuard<'static, ()>,
}

impl Net {
    fn new() -> Option<Self> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        if !geteuid().is_root() {
            feroce_test_skip::skip("network namespaces need root");
            return None;
        }
        let alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let prefix = format!("fr-fab-{}-{number}", std::process::id());
        let net = Self { prefix, _alone: alone };
        for end in ["s", "h1", "h2", "h3"] {
            run(&format!("ip netns add {}", net.name(end)));
        }
        for n in 1..=3 {
            let (switch, host) = (net.name("s"), net.name(&format!("h{n}")));
            run(&format!("ip link add p{n} netns {switch} type veth peer name v0 netns {host}"));
            run(&format!("ip -n {switch} link set p{n} up"));
            run(&format!("ip -n {host} link set v0 address 02:00:00:00:00:0{n} up"));
            run(&format!("ip -n {host} address add 10.77.1.{n}/24 dev v0"));
            run(&format!("ip -n {host} address add fd77::{n}/64 dev v0 nodad"));
        }
        Some(net)
    }

    fn name(&self, end: &str) -> String {
        format!("{}{end}", self.prefix)
    }

    /// Runs `work` on a thread in a host's namespace.
    fn within<T: Send + 'static>(&self, end: &str, work: impl FnOnce() -> T + Send + 'static) -> T {
        let namespace = File::open(format!("/run/netns/{}", self.name(end))).expect("a namespace");
        let there = move || {
            setns(namespace, CloneFlags::CLONE_NEWNET).expect("setns, as root");
            work()
        };
        thread::spawn(there).join().expect("no panic")
    }

    /// A tap in a host's namespace.
    fn tap(&self, end: &str) -> Tap {
        self.within(end, || Tap::open("v0", 8 << 20).expect("a tap"))
    }

    /// A UDP socket with a short receive timeout in a host's namespace.
    fn udp(&self, end: &str, port: u16) -> UdpSocket {
        let socket = self.within(end, move || UdpSocket::bind(("0.0.0.0", port)).expect("a port"));
        socket.set_read_timeout(Some(Duration::from_millis(300))).expect("a timeout");
        socket
    }

    /// Starts the program with three hosts at 100 Mb/s.
    fn live(&self, options: &[&str]) -> Live {
        let ports = ["live", "--port", "h3=p3", "--set", "topology.rate=100Mb/s"];
        self.start(&[&ports, options].concat())
    }

    /// Starts the program.
    fn start(&self, options: &[&str]) -> Live {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.name("s"), env!("CARGO_BIN_EXE_feroce")]);
        command.args(["fabric", "live", "--port", "h1=p1", "--port", "h2=p2"]).args(options);
        let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
        // Wait until the interfaces are open.
        thread::sleep(Duration::from_millis(500));
        Live(child.expect("feroce fabric"))
    }
}

impl Drop for Net {
    fn drop(&mut self) {
        for end in ["s", "h1", "h2", "h3"] {
            let _status = Command::new("ip").args(["netns", "delete", &self.name(end)]).status();
        }
    }
}

/// The running program.
struct Live(Child);

impl Live {
    /// Stops the program with SIGINT. Returns exit code, standard output and standard error.
    fn interrupt(mut self) -> (Option<i32>, String, String) {
        kill(Pid::from_raw(self.0.id().try_into().unwrap()), Signal::SIGINT).expect("it runs");
        let (mut text, mut message) = (String::new(), String::new());
        self.0.stdout.take().unwrap().read_to_string(&mut text).unwrap();
        self.0.stderr.take().unwrap().read_to_string(&mut message).unwrap();
        let code = self.0.wait().unwrap().code();
        eprintln!("{text}{message}");
        (code, text, message)
    }

    /// Stops the program. Returns a lookup of its table by host and column.
    fn end(self) -> impl Fn(&str, &str) -> u64 {
        let (code, text, _) = self.interrupt();
        assert_eq!(code, Some(0));
        assert!(text.lines().last().is_some_and(|line| line.starts_with("late by")), "{text}");
        let rows: Vec<Vec<String>> =
            text.lines().map(|line| line.split_whitespace().map(str::to_owned).collect()).collect();
        move |host, column| {
            let at = rows[0].iter().position(|name| name == column).expect(column);
            let row = rows.iter().find(|row| row[0] == host).expect(host);
            row[at].parse().expect("a number")
        }
    }
}

impl Drop for Live {
    fn drop(&mut self) {
        let _ended = self.0.kill();
        let _waited = self.0.wait();
    }
}

fn run(command: &str) -> String {
    let mut words = command.split(' ');
    let output = Command::new(words.next().unwrap()).args(words).output().expect(command);
    assert!(output.status.success(), "{command}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

const fn mac(n: u8) -> MacAddr {
    MacAddr([2, 0, 0, 0, 0, n])
}

/// Ones' complement sum of a header.
fn sum(header: &[u8]) -> u16 {
    let words = header.chunks(2).map(|w| u32::from(w[0]) << 8 | u32::from(w[1]));
    let sum: u32 = words.sum();
    let sum = (sum & 0xffff) + (sum >> 16);
    u16::try_from((sum & 0xffff) + (sum >> 16)).unwrap()
}

/// An ECN-capable UDP frame from a host to `h3`.
fn frame(from: u8, priority: u8) -> Vec<u8> {
    let mut frame = Vec::from(mac(3).0);
    frame.extend(mac(from).0);
    frame.extend([8, 0]);
    let length = u16::try_from(20 + 8 + PAYLOAD).unwrap().to_be_bytes();
    frame.extend([0x45, priority << 5 | Ecn::Ect0.bits(), length[0], length[1], 0, 0, 0x40, 0]);
    frame.extend([64, 17, 0, 0, 10, 77, 1, from, 10, 77, 1, 3]);
    let checksum = !sum(&frame[14..34]);
    frame[24..26].copy_from_slice(&checksum.to_be_bytes());
    let length = u16::try_from(8 + PAYLOAD).unwrap().to_be_bytes();
    frame.extend([0xc0, from, 0xc0, 0, length[0], length[1], 0, 0]);
    frame.resize(14 + 28 + PAYLOAD, 0);
    frame
}

#[allow(clippy::disallowed_methods)] // The tests measure real time.
fn now() -> Instant {
    Instant::now()
}

/// Sends at a rate, counted as on the link, for a time span.
fn send(mut tap: Tap, frame: &[u8], rate: f64, span: Duration) {
    let per_frame = (frame.len() + 24) as f64 * 8.0;
    let (begin, mut sent) = (now(), 0.0);
    while begin.elapsed() < span {
        while sent * per_frame < begin.elapsed().as_secs_f64() * rate {
            let _full = tap.send(frame, Offload::default());
            sent += 1.0;
        }
        thread::sleep(Duration::from_millis(1));
    }
}

/// Frames that arrive at `h3`: time, priority and mark.
fn receive(tap: &mut Tap, span: Duration) -> Vec<(Duration, u8, bool)> {
    let (begin, mut arrived) = (now(), Vec::new());
    while begin.elapsed() < span {
        let count = tap.receive().expect("an interface that is up");
        let now = begin.elapsed();
        for index in 0..count {
            let bytes = tap.frame(index).bytes;
            if bytes.len() == 14 + 28 + PAYLOAD {
                let seen = Seen::new(bytes).unwrap();
                assert_eq!(sum(&bytes[14..34]), 0xffff, "the header's checksum");
                arrived.push((now, seen.priority, seen.ecn == Some(Ecn::Ce)));
            }
        }
        if count == 0 {
            thread::sleep(Duration::from_micros(500));
        }
    }
    arrived
}

/// Announces the address of `h3` to the switch.
fn announce(tap: &mut Tap) {
    let mut frame = vec![0xff; 6];
    frame.extend(mac(3).0);
    frame.extend([0x88, 0xb5]);
    frame.resize(60, 0);
    tap.send(&frame, Offload::default()).expect("room for a frame");
}

#[test]
fn pings_of_the_kernel_pass() {
    let Some(net) = Net::new() else { return };
    let live = net.live(&[]);
    // Frames that a switch does not forward are counted.
    let mut lldp = vec![0x01, 0x80, 0xc2, 0, 0, 0x0e, 2, 0, 0, 0, 0, 1, 0x88, 0xcc];
    lldp.resize(60, 0);
    net.tap("h1").send(&lldp, Offload::default()).expect("room for a frame");
    for (host, to) in [("h1", "10.77.1.3"), ("h2", "10.77.1.3"), ("h3", "fd77::2")] {
        let ping = format!("ip netns exec {} ping -c 3 -i 0.2 -s 1400 -W 2 {to}", net.name(host));
        let message = run(&ping);
        assert!(message.contains(" 0% packet loss"), "{message}");
    }
    let figure = live.end();
    assert!(figure("h3", "in_frames") >= 9 && figure("h3", "dropped") == 0);
    assert_eq!(figure("h1", "unroutable"), 1);
}

#[test]
fn a_port_keeps_its_rate_and_a_queue_marks_and_pauses() {
    let Some(net) = Net::new() else { return };
    let live = net.live(&["--nics-obey"]);
    let [mut sink, one, two] = ["h3", "h1", "h2"].map(|end| net.tap(end));
    announce(&mut sink);
    let span = Duration::from_secs(2);
    // One sender below the port's rate: no queue, no mark.
    let calm = thread::spawn(move || {
        send(one, &frame(1, PRIORITY), RATE / 2.0, Duration::from_millis(500));
    });
    let arrived = receive(&mut sink, Duration::from_millis(700));
    calm.join().unwrap();
    let marked = arrived.iter().filter(|(_, _, marked)| *marked).count();
    assert!(arrived.len() > 1000, "{} frames", arrived.len());
    assert!(marked * 100 < arrived.len(), "{marked} of {} marked", arrived.len());
    // Two senders above the port's rate.
    let one = net.tap("h1");
    let senders = [(1, one), (2, two)]
        .map(|(n, tap)| thread::spawn(move || send(tap, &frame(n, PRIORITY), RATE * 1.2, span)));
    let arrived = receive(&mut sink, span);
    senders.into_iter().for_each(|sender| sender.join().unwrap());
    let (from, to) = (Duration::from_millis(300), Duration::from_millis(1800));
    let counted: Vec<_> = arrived.iter().filter(|(at, ..)| (from..to).contains(at)).collect();
    let bits = counted.len() as f64 * (14 + 28 + PAYLOAD + 24) as f64 * 8.0;
    let rate = bits / (to - from).as_secs_f64();
    let marked = counted.iter().filter(|(_, _, marked)| *marked).count();
    eprintln!("{:.1} Mb/s, {marked} of {} marked", rate / 1e6, counted.len());
    let figure = live.end();
    assert!((0.9..1.1).contains(&(rate / RATE)), "{:.1} Mb/s", rate / 1e6);
    assert!(marked * 2 > counted.len(), "{marked} of {} marked", counted.len());
    assert!(figure("h1", "pauses_out") > 0 && figure("h2", "pauses_out") > 0);
    assert_eq!(figure("h1", "dropped") + figure("h2", "dropped"), 0, "lossless");
    assert!(figure("h1", "overrun") > 0, "frames above the link rate are lost");
    assert!(figure("h3", "queue_max") > 100_000);
}

#[test]
fn packets_without_ect_are_marked_only_with_the_option() {
    let Some(net) = Net::new() else { return };
    // The statistics are those of the whole run, whatever the scenario's warm-up.
    let warmup = ["--set", "duration=60s", "--set", "warmup=1500ms"];
    for (options, expected) in [(&[][..], false), (&["--mark-not-ect"], true)] {
        let live = net.live(&[&warmup, options].concat());
        let [mut sink, one, two] = ["h3", "h1", "h2"].map(|end| net.tap(end));
        announce(&mut sink);
        let senders = [(1, one), (2, two)].map(|(n, tap)| {
            let mut plain = frame(n, 0);
            plain[15] = 0;
            plain[24..26].fill(0);
            let checksum = !sum(&plain[14..34]);
            plain[24..26].copy_from_slice(&checksum.to_be_bytes());
            thread::spawn(move || send(tap, &plain, RATE, Duration::from_millis(500)))
        });
        let arrived = receive(&mut sink, Duration::from_millis(600));
        senders.into_iter().for_each(|sender| sender.join().unwrap());
        let marked = arrived.iter().filter(|(_, _, marked)| *marked).count();
        assert!(arrived.len() > 1000, "{} frames", arrived.len());
        assert_eq!(marked * 2 > arrived.len(), expected, "{marked} of {}", arrived.len());
        assert_eq!(marked > 0, expected);
        thread::sleep(Duration::from_millis(600));
        let figure = live.end();
        assert_eq!(figure("h3", "marked") > 0, expected);
        assert!(figure("h3", "queue_max") > 10_000);
    }
}

#[test]
fn pfc_pauses_one_priority_and_802_3x_pause_all() {
    let Some(net) = Net::new() else { return };
    let live = net.live(&[]);
    let [mut sink, one, two] = ["h3", "h1", "h2"].map(|end| net.tap(end));
    announce(&mut sink);
    let span = Duration::from_millis(3400);
    let senders = [(1, one, PRIORITY), (2, two, 0)].map(|(n, tap, priority)| {
        thread::spawn(move || send(tap, &frame(n, priority), RATE / 10.0, span))
    });
    let mut arrived = receive(&mut sink, Duration::from_millis(500));
    // 65535 quanta of 512 bits at 100 Mb/s are 335 ms.
    let pause = |quanta| Pause::new(1 << PRIORITY, 1 << PRIORITY, quanta).to_bytes(mac(3));
    sink.send(&pause(u16::MAX), Offload::default()).unwrap();
    let mut gaps = Vec::new();
    let mut gap_after = |sink: &mut Tap, quanta: Option<u16>| {
        let mut seen = receive(sink, Duration::from_millis(100));
        if let Some(quanta) = quanta {
            sink.send(&pause(quanta), Offload::default()).unwrap();
        }
        let later = receive(sink, Duration::from_millis(700));
        seen.extend(later.iter().map(|(at, p, m)| (*at + Duration::from_millis(100), *p, *m)));
        let gap = |priority| {
            let of = seen.iter().filter(|(_, p, _)| *p == priority).map(|(at, ..)| *at);
            let times: Vec<_> = [Duration::ZERO].into_iter().chain(of).collect();
            times.windows(2).map(|pair| pair[1] - pair[0]).max().unwrap_or_default()
        };
        gaps.push((gap(PRIORITY), gap(0)));
        seen
    };
    arrived.extend(gap_after(&mut sink, None));
    // A pause that is ended after 100 ms.
    sink.send(&pause(u16::MAX), Offload::default()).unwrap();
    arrived.extend(gap_after(&mut sink, Some(0)));
    let control = FlowControl::Pause { quanta: u16::MAX };
    let pause = FlowControlFrame { src: mac(3), control }.to_bytes();
    sink.send(&pause, Offload::default()).unwrap();
    arrived.extend(gap_after(&mut sink, None));
    senders.into_iter().for_each(|sender| sender.join().unwrap());
    eprintln!("longest gaps of the paused and the other priority: {gaps:?}");
    let figure = live.end();
    assert!(arrived.len() > 300, "{} frames", arrived.len());
    let between = |gap: Duration, from, to| {
        (Duration::from_millis(from)..Duration::from_millis(to)).contains(&gap)
    };
    assert!(between(gaps[0].0, 310, 420), "{gaps:?}");
    assert!(between(gaps[1].0, 80, 200), "{gaps:?}");
    assert!(gaps[..2].iter().all(|(_, other)| between(*other, 0, 150)), "{gaps:?}");
    assert!(between(gaps[2].0, 310, 420) && between(gaps[2].1, 310, 420), "{gaps:?}");
    assert_eq!(figure("h3", "pauses_in"), 4);
    assert_eq!(figure("h1", "dropped"), 0);
}

/// An offloaded checksum is not computed over bytes that the link has damaged.
#[test]
fn checksum_offload_does_not_hide_corruption() {
    let Some(net) = Net::new() else { return };
    let file = std::env::temp_dir().join(format!("feroce-live-{}.toml", std::process::id()));
    let text = format!("{LIVE}\n[[link]]\nbetween = \"h1 - s1\"\ncorruption = 1\n");
    std::fs::write(&file, text).expect("a file");
    let live = net.start(&[file.to_str().unwrap(), "--port", "h3=p3"]);
    // Static neighbour entries: damaged ARP requests get no reply.
    for host in ["h1", "h2"] {
        let name = net.name(host);
        run(&format!("ip -n {name} neighbour add 10.77.1.3 lladdr 02:00:00:00:00:03 dev v0"));
    }
    let [one, two, sink] = ["h1", "h2", "h3"].map(|end| net.udp(end, 7777));
    let mut buffer = [0; 2000];
    for (sender, arrives) in [(&two, true), (&one, false)] {
        for _ in 0..3 {
            sender.send_to(&[7; 1000], "10.77.1.3:7777").expect("sent");
            assert_eq!(sink.recv(&mut buffer).is_ok(), arrives);
        }
    }
    let figure = live.end();
    std::fs::remove_file(file).expect("the file");
    assert!(figure("h1", "corrupted") >= 3 && figure("h1", "in_bytes") > 3 * 1000);
}

/// RoCE super-frames (UDP to port 4791 with segmentation offload) are cut into packets.
#[test]
fn roce_super_frames_are_cut() {
    let Some(net) = Net::new() else { return };
    let live = net.live(&[]);
    let [one, sink] = [net.udp("h1", 0), net.udp("h3", 4791)];
    setsockopt(&one, UdpGsoSegment, &1000).expect("segmentation");
    let sent: Vec<u8> = (0..5500_u32).map(|at| (at / 7).to_le_bytes()[0]).collect();
    one.send_to(&sent, "10.77.1.3:4791").expect("sent");
    let mut buffer = [0; 9000];
    for part in sent.chunks(1000) {
        let len = sink.recv(&mut buffer).expect("a datagram");
        assert_eq!(&buffer[..len], part);
    }
    let figure = live.end();
    assert_eq!(figure("h1", "missed"), 0);
    assert!(figure("h1", "in_frames") >= 6);
}

#[test]
fn a_full_disk_ends_the_samples_but_not_forwarding() {
    let Some(net) = Net::new() else { return };
    let live = net.live(&["--csv", "/dev/full", "--sample", "1ms"]);
    let ping = format!("ip netns exec {} ping -c 2 -i 0.2 -W 2 10.77.1.3", net.name("h1"));
    assert!(run(&ping).contains(" 0% packet loss"));
    let (code, text, message) = live.interrupt();
    assert_eq!(code, Some(1), "the requested samples are incomplete");
    assert!(text.starts_with("host") || text.trim_start().starts_with("host"), "{text}");
    assert!(message.contains("samples stop: No space left on device"), "{message}");
}

/// One end of a connection with the scenario's congestion control, and its resources.
struct End {
    qp: QueuePair,
    cq: CompletionQueue,
    buffer: Buffer,
    _domain: ProtectionDomain,
}

const MESSAGE: u32 = 32 << 10;

fn device(net: &Net, end: &str) -> Device {
    let mut params = Params::named("paper").expect("a set");
    let (_, table) = LIVE_INCAST.split_once("[congestion]\nset = \"paper\"\n").expect("a table");
    for line in table.lines().take_while(|line| !line.is_empty()) {
        let (name, value) = line.split_once(" = ").expect("a value");
        params.set(name, value.trim_matches('"')).expect("a parameter");
    }
    let congestion = CongestionConfig { control: Control::DCQCN, params, burst: 8192 };
    let config = DeviceConfig {
        port: PortKind::Packet,
        max_qp: 16,
        max_mr: 16,
        arena_bytes: 64 << 20,
        congestion,
        ..DeviceConfig::default()
    };
    net.within(end, move || Device::open("v0", config).expect("a device"))
}

/// Priority 3, from its DSCP.
fn lossless() -> ConnectOptions {
    ConnectOptions {
        traffic_class: 26 << 2,
        path_mtu: PathMtu::from_bytes(1024),
        timeout: 18,
        ..ConnectOptions::default()
    }
}

impl End {
    fn new(device: &Device) -> Self {
        let domain = device.alloc_pd();
        let cq = device.create_cq(64).expect("a CQ");
        let buffer = domain.alloc_buffer(MESSAGE as usize, Access::ALL).expect("a buffer");
        let qp = domain.create_qp(&QpInit::new(&cq)).expect("a QP");
        Self { qp, cq, buffer, _domain: domain }
    }

    fn connect(ends: [(&mut Self, &Device); 2], options: ConnectOptions) {
        let message = ends.each_ref().map(|(end, device)| {
            let psn = device.random_psn().expect("a PSN");
            (psn, end.qp.endpoint(psn, device.default_gid_index()).expect("a GID"))
        });
        for (number, (end, device)) in ends.into_iter().enumerate() {
            let options = ConnectOptions { sgid_index: device.default_gid_index(), ..options };
            end.qp.connect(message[number].0, &message[1 - number].1, &options).expect("connected");
        }
    }

    /// Posts a WRITE of `len` bytes to the other end's buffer.
    fn post(&mut self, remote: RemoteAddr, len: u32) {
        let sges = [self.buffer.region().sge(0, len)];
        let (op, data) = (SendOp::Write(remote), Data::Sges(&sges));
        let request = SendRequest { wr_id: 1, op, data, flags: SendFlags::SIGNALED };
        self.qp.post_send(&request).expect("posted");
    }

    /// Number of WRITEs completed since the last call.
    fn reap(&mut self) -> u64 {
        let mut completions = Vec::new();
        self.cq.poll(&mut completions, 64);
        assert!(completions.iter().all(|completion| completion.is_success()));
        completions.len() as u64
    }

    /// Posts WRITEs to the other end's buffer for `span`. Returns the bytes acknowledged.
    fn write(&mut self, remote: RemoteAddr, span: Duration) -> u64 {
        let (begin, mut posted, mut done) = (now(), 0, 0);
        while begin.elapsed() < span {
            while posted < done + 16 {
                self.post(remote, MESSAGE);
                posted += 1;
            }
            done += self.reap();
            thread::sleep(Duration::from_millis(2));
        }
        done * u64::from(MESSAGE)
    }
}

/// Two senders and a receiver on the engine, with DCQCN. scripts/live-incast.sh measures this
/// precisely; here the result must be roughly right.
#[test]
fn real_senders_get_cnps_and_share_the_link() {
    let Some(net) = Net::new() else { return };
    let scenario = ["live-incast", "--port", "h9=p3", "--case", "2:1", "--nics-obey"];
    let live = net.start(&scenario);
    let devices = ["h1", "h2", "h3"].map(|end| device(&net, end));
    let sink = &devices[2];
    let pairs = [0, 1].map(|n| {
        let (mut one, mut other) = (End::new(&devices[n]), End::new(sink));
        End::connect([(&mut one, &devices[n]), (&mut other, sink)], lossless());
        (one, other)
    });
    let span = Duration::from_secs(3);
    let senders = pairs.map(|(mut one, other)| {
        thread::spawn(move || {
            let other = other; // Moves all of it into the closure.
            let region = other.buffer.region();
            let remote = RemoteAddr { addr: region.addr(), rkey: region.rkey() };
            one.write(remote, span)
        })
    });
    let bytes = senders.map(|sender| sender.join().expect("no panic"));
    let line = RATE / 8.0 * span.as_secs_f64();
    let used = bytes.iter().sum::<u64>() as f64 / line;
    let cnps = [0, 1].map(|n| devices[n].counter(Counter::RpCnpHandled));
    eprintln!("{bytes:?} bytes, {used:.2} of the link rate, {cnps:?} CNPs");
    drop(devices);
    let figure = live.end();
    // A machine busy with other tests does not fill the link.
    assert!((0.1..=1.0).contains(&used), "{used}");
    assert!(bytes.iter().all(|&part| part * 10 > bytes.iter().sum()), "{bytes:?}");
    // At most one rate cut per 20 ms and sender.
    assert!(cnps.iter().all(|cnps| (1..=170).contains(cnps)), "{cnps:?}");
    assert!(figure("h9", "marked") > 1);
    assert_eq!(figure("h1", "dropped") + figure("h2", "dropped"), 0, "lossless");
}

/// A device paced to `rate`, with or without flow control, on a link of rate [`RATE`].
fn paced(kind: PortKind, rate: u64, pfc: PfcConfig) -> DeviceConfig {
    DeviceConfig {
        port: kind,
        max_qp: 16,
        max_mr: 16,
        arena_bytes: 64 << 20,
        window: 4096,
        congestion: CongestionConfig {
            control: Control::Fixed(Rate::from_bps(rate)),
            burst: 4096,
            ..CongestionConfig::default()
        },
        pfc,
        ..DeviceConfig::default()
    }
}

/// Flow control of [`PRIORITY`].
fn pfc(thresholds: Option<Thresholds>) -> PfcConfig {
    PfcConfig {
        priorities: Priorities::from_bits(1 << PRIORITY),
        thresholds,
        rate: Some(Rate::from_mbps(100)),
        ..PfcConfig::default()
    }
}

/// The result of a transfer to a slow receiver.
struct Transfer {
    /// Bytes acknowledged.
    done: u64,
    /// Packets retransmitted, NAKs received, and timeouts.
    again: u64,
    /// Frames dropped by the receiver's port.
    dropped: u64,
    /// Flow control frames: received by the sender, sent by the receiver.
    pauses: [u64; 2],
}

/// `h1` writes to `h3` through a switch with a small buffer. The receiver's core takes 64 frames in
/// 60 ms: 10 Mb/s of the 20 Mb/s that arrive. The rates are low because the switch needs room for
/// the frames that arrive until a busy machine obeys a pause.
fn transfer(net: &Net, kind: PortKind, pfc: [PfcConfig; 2], messages: u64) -> Transfer {
    let config = DeviceConfig {
        driver: Driver::Manual,
        // A port with buffers for super-frames takes several frames at a time.
        ports: PortConfigs::default()
            .with(PacketConfig {
                rx_slots: 512,
                super_frames: SuperFrames::Off,
                ..PacketConfig::new("")
            })
            .with(AfXdpConfig { rx_frames: 512, ..AfXdpConfig::new("") }),
        ..paced(kind, 100_000_000, pfc[1])
    };
    let receiver = net.within("h3", move || Device::open("v0", config).expect("a device"));
    let mut config = paced(kind, 20_000_000, pfc[0]);
    config.congestion.burst = 64 << 10; // A helper that comes late catches up.
    let sender = net.within("h1", move || Device::open("v0", config).expect("a device"));
    let (mut one, mut other) = (End::new(&sender), End::new(&receiver));
    let options = ConnectOptions { timeout: 20, ..lossless() };
    End::connect([(&mut one, &sender), (&mut other, &receiver)], options);
    let region = other.buffer.region();
    let remote = RemoteAddr { addr: region.addr(), rkey: region.rkey() };
    for _ in 0..messages {
        one.post(remote, MESSAGE);
    }
    let (begin, clock, mut done) = (now(), Clock::start(), 0);
    while done < messages && begin.elapsed() < Duration::from_secs(15) {
        receiver.turn(clock.now());
        thread::sleep(Duration::from_millis(60));
        done += one.reap();
        if receiver.port_stats()[0].rx_dropped > 0 {
            break;
        }
    }
    let count = |device: &Device, counter| device.counter(counter);
    Transfer {
        done,
        again: count(&sender, Counter::RetransmittedPackets)
            + count(&sender, Counter::PacketSeqErr)
            + count(&sender, Counter::LocalAckTimeoutErr)
            + count(&receiver, Counter::OutOfSequence),
        dropped: receiver.port_stats()[0].rx_dropped,
        pauses: [count(&sender, Counter::RxPause), count(&receiver, Counter::TxPause)],
    }
}

/// A slow receiver pauses the switch, the switch pauses the sender, and nothing is lost. Without
/// flow control packets are lost.
#[test]
fn pfc_protects_a_slow_receiver() {
    let Some(net) = Net::new() else { return };
    let small = ["--set", "switch.threshold=60KB", "--set", "switch.buffer=1MB"];
    let thresholds = Some(Thresholds { xoff: 20, xon: 10 });
    for kind in [PortKind::Packet, PortKind::AfXdp] {
        let live = net.live(&small);
        let waited_for = transfer(&net, kind, [pfc(None), pfc(thresholds)], 64);
        let figure = live.end();
        assert_eq!(waited_for.done, 64, "{kind}");
        assert_eq!((waited_for.again, waited_for.dropped), (0, 0), "{kind}: lossless");
        assert!(waited_for.pauses.iter().all(|&count| count > 1), "{:?}", waited_for.pauses);
        for column in ["dropped", "overrun", "missed"] {
            assert_eq!(["h1", "h3"].map(|host| figure(host, column)), [0; 2], "{kind}: {column}");
        }
        assert!(figure("h3", "pauses_in") > 1 && figure("h1", "pauses_out") > 0, "{kind}");

        let live = net.live(&small);
        let not_waited_for = transfer(&net, kind, [PfcConfig::default(); 2], 64);
        let figure = live.end();
        assert_eq!(not_waited_for.pauses, [0; 2]);
        assert!(not_waited_for.dropped > 0 && not_waited_for.done < 64, "{kind}");
        assert_eq!(figure("h3", "pauses_in"), 0);
    }
}

/// Sends pauses of `quanta` every `period` for `span`. Returns for how long the priority was
/// paused.
fn pause_again_and_again(tap: &mut Tap, quanta: u16, period: Duration, span: Duration) -> Duration {
    let frame = Pause::new(1 << PRIORITY, 1 << PRIORITY, quanta).to_bytes(mac(9));
    let each = Duration::from_secs_f64(f64::from(quanta) * 512.0 / RATE);
    let (begin, mut until, mut paused, mut due) = (now(), None, Duration::ZERO, Duration::ZERO);
    while due < span {
        thread::sleep(due.saturating_sub(begin.elapsed()));
        tap.send(&frame, Offload::default()).expect("room for a frame");
        let (from, to) = (begin.elapsed(), (begin.elapsed() + each).min(span));
        paused += to.saturating_sub(until.map_or(from, |until: Duration| until.max(from)));
        until = Some(to);
        due += period;
    }
    thread::sleep(span.saturating_sub(begin.elapsed()));
    paused
}

/// An endpoint paced to less than half of the link rate gets the share of time that pauses leave to
/// it; a QP of another priority on the same device is not affected. scripts/pfc-endpoint.sh
/// measures this precisely; here the result must be roughly right.
#[test]
fn an_endpoint_obeys_pauses_of_its_priority() {
    let Some(net) = Net::new() else { return };
    run(&format!("ip -n {} address add 10.77.1.101/24 dev p1", net.name("s")));
    for kind in [PortKind::Packet, PortKind::AfXdp] {
        let config = paced(kind, 40_000_000, pfc(None));
        let sender = net.within("h1", move || Device::open("v0", config).expect("a device"));
        let config = paced(kind, 100_000_000, PfcConfig::default());
        let sink = net.within("s", move || Device::open("p1", config).expect("a device"));
        let mut tap = net.within("s", || Tap::open("p1", 1 << 20).expect("a tap"));
        let span = Duration::from_secs(2);
        let senders = [26 << 2, 0].map(|traffic_class| {
            let (mut one, mut other) = (End::new(&sender), End::new(&sink));
            let options = ConnectOptions { traffic_class, ..lossless() };
            End::connect([(&mut one, &sender), (&mut other, &sink)], options);
            thread::spawn(move || {
                let other = other; // Moves all of it into the closure.
                let region = other.buffer.region();
                let remote = RemoteAddr { addr: region.addr(), rkey: region.rkey() };
                one.write(remote, span)
            })
        });
        // 10000 quanta are 51.2 ms.
        let paused = pause_again_and_again(&mut tap, 10_000, Duration::from_millis(100), span);
        let bytes = senders.map(|sender| sender.join().expect("no panic") as f64);
        let share = 1.0 - paused.as_secs_f64() / span.as_secs_f64();
        let got = bytes[0] / bytes[1] / share;
        let counted = sender.counter(Counter::RxPaused3) as f64 / 1e6 / paused.as_secs_f64();
        eprintln!("{kind}: {bytes:?} bytes, {share:.3} of the time; {got:.3}, {counted:.3}");
        assert!((0.85..1.15).contains(&got), "{kind}: {bytes:?} in {share:.3} of the time");
        assert!((0.85..1.15).contains(&counted), "{kind}: {counted:.3} of the time is counted");
        assert_eq!(sender.counter(Counter::RetransmittedPackets), 0);
    }
}

#[test]
fn invalid_arguments_are_reported() {
    let message = |options: &[&str]| {
        let output = Command::new(env!("CARGO_BIN_EXE_feroce"))
            .args(["fabric", "live", "live"])
            .args(options)
            .output()
            .unwrap();
        (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
    };
    let (code, text) = message(&["--port", "h9=lo"]);
    assert_eq!(code, Some(1));
    assert!(text.contains("the scenario has no host `h9`; its hosts: h1, h2, h3"), "{text}");
    let (code, text) = message(&["--port", "h1=nowhere0"]);
    assert_eq!(code, Some(1));
    assert!(text.contains("no interface 'nowhere0'"), "{text}");
    assert_eq!(message(&["--port", "h1"]).0, Some(2));
    assert_eq!(message(&[]).0, Some(2));
}

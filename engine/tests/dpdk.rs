//! The DPDK port on devices without hardware: memif between two processes, AF_PACKET against the
//! kernel and an AF_XDP device, and captures. The EAL starts once per process, so each end is
//! another process of this program, which runs [`role`]. Without root, tests with AF_PACKET print a
//! message and pass.
#![allow(clippy::disallowed_methods)] // Tests with other processes use real time.

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Write};
use std::net::IpAddr;
use std::os::fd::AsRawFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use feroce_engine::counters::Counter;
use feroce_engine::device::{
    Addressing, Buffer, CompletionQueue, ConnectOptions, Device, DeviceConfig, Endpoint, QpInit,
    QueuePair,
};
use feroce_engine::memory::Access;
use feroce_engine::net::Gid;
use feroce_engine::port::dpdk::{Address, DpdkConfig, DpdkError, DpdkMemory, DpdkPort};
use feroce_engine::port::kind::LinkAddresses;
use feroce_engine::port::pcap::PcapPort;
use feroce_engine::port::{Port, PortStats, Priority};
use feroce_engine::verbs::{
    Completion, Data, RecvRequest, RemoteAddr, SendFlags, SendOp, SendRequest, Status,
};
use feroce_wire::{Key, PathMtu, Psn, Qpn};

const TEST_TIMEOUT: Duration = Duration::from_secs(30);
/// Environment variables with the role of a child process and the directory shared with the other
/// end.
const ROLE: &str = "FEROCE_DPDK_ROLE";
const DIRECTORY: &str = "FEROCE_DPDK_DIRECTORY";

/// The directory shared by the ends of one test. Removed with its content when dropped.
struct SharedDirectory {
    path: PathBuf,
}

impl SharedDirectory {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("fr-dpdk-{}-{name}", std::process::id()));
        fs::create_dir(&path).expect("a directory");
        Self { path }
    }

    /// Starts this program as one end.
    fn start(&self, role: &str) -> Role {
        let child = Command::new(std::env::current_exe().expect("this program"))
            .args(["role", "--exact", "--ignored", "--nocapture", "--test-threads=1"])
            .env(ROLE, role)
            .env(DIRECTORY, &self.path)
            .spawn();
        Role { name: role.to_owned(), child: child.expect("a process") }
    }
}

impl Drop for SharedDirectory {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.path);
    }
}

struct Role {
    name: String,
    child: Child,
}

impl Role {
    fn finish(mut self) {
        let deadline = Instant::now() + TEST_TIMEOUT;
        while Instant::now() < deadline {
            if let Some(status) = self.child.try_wait().expect("a child") {
                assert!(status.success(), "{}: {status}", self.name);
                return;
            }
            thread::sleep(Duration::from_millis(5));
        }
        panic!("{} takes too long", self.name);
    }
}

impl Drop for Role {
    fn drop(&mut self) {
        let _ = self.child.kill(); // If a test failed before the child ended.
        let _ = self.child.wait();
    }
}

#[test]
#[ignore = "one end of the other tests, which start it in a process of its own"]
fn role() {
    let role = std::env::var(ROLE).expect("started by another test");
    let shared = PathBuf::from(std::env::var_os(DIRECTORY).expect("started by another test"));
    match role.as_str() {
        "memif server" => memif_end(&shared, 0),
        "memif client" => memif_end(&shared, 1),
        "af_packet" => af_packet_end(&shared),
        "pcap" => pcap_end(&shared),
        "refusals" => refusals(&shared),
        "lone memif" => lone_memif(&shared),
        "survivor" => survivor(&shared),
        "victim" => victim(&shared),
        "downed" => downed(&shared),
        "no_room" => no_room(&shared),
        other => panic!("no role {other}"),
    }
}

// ---- common code of the ends

fn address(text: &str) -> Address {
    text.parse().expect("an address")
}

/// A configuration with ordinary memory, which opens quickly.
fn config(port: String, addresses: &[&str]) -> DpdkConfig {
    DpdkConfig {
        memory: DpdkMemory::Ordinary { mib: 256 },
        ..DpdkConfig::new(port, addresses.iter().map(|text| address(text)).collect())
    }
}

fn device_config() -> DeviceConfig {
    DeviceConfig { max_qp: 64, max_mr: 256, arena_bytes: 256 << 20, ..DeviceConfig::default() }
}

fn open(config: &DpdkConfig) -> Device {
    let port = DpdkPort::open(config, 1).expect("a port").remove(0);
    let addressing = Addressing::Port(Arc::new(port.addresses()));
    Device::with_ports(vec![Box::new(port)], addressing, device_config()).expect("a device")
}

/// A connection to the other end that exchanges lines.
struct Control {
    lines: BufReader<UnixStream>,
}

impl Control {
    fn accept(shared: &Path) -> Self {
        let listener = UnixListener::bind(shared.join("control")).expect("a socket");
        listener.set_nonblocking(true).expect("a mode");
        let deadline = Instant::now() + TEST_TIMEOUT;
        loop {
            match listener.accept() {
                Ok((stream, _)) => return Self::over(stream),
                Err(error) => assert!(Instant::now() < deadline, "{error}"),
            }
            thread::sleep(Duration::from_millis(5));
        }
    }

    fn connect(shared: &Path) -> Self {
        let deadline = Instant::now() + TEST_TIMEOUT;
        loop {
            match UnixStream::connect(shared.join("control")) {
                Ok(stream) => return Self::over(stream),
                Err(error) => assert!(Instant::now() < deadline, "{error}"),
            }
            thread::sleep(Duration::from_millis(5));
        }
    }

    fn over(stream: UnixStream) -> Self {
        stream.set_nonblocking(false).expect("a mode");
        stream.set_read_timeout(Some(TEST_TIMEOUT)).expect("a timeout");
        Self { lines: BufReader::new(stream) }
    }

    fn exchange(&mut self, line: &str) -> String {
        writeln!(self.lines.get_mut(), "{line}").expect("a peer that listens");
        let mut line = String::new();
        self.lines.read_line(&mut line).expect("a line");
        assert!(line.ends_with('\n'), "the peer is gone");
        line.trim_end().to_owned()
    }
}

/// Message lengths around multiples of packets and words, for a path MTU of 4096.
const LENGTHS: [usize; 9] = [0, 1, 3, 4095, 4096, 4097, 8192, 65_537, 1 << 20];
/// Offsets in a buffer: of data of its owner, of data of the peer, of data read back, and of the
/// atomic.
const OWN: usize = 0;
const THEIRS: usize = 2 << 20;
const BACK: usize = 4 << 20;
const WORD: usize = 6 << 20;
const RECEIVES: usize = WORD + 4096;
const RECEIVE: usize = 64 << 10;
const BUFFER: usize = 8 << 20;
const ADDS: u64 = 100;
const MESSAGES: [usize; 6] = [0, 1, 4096, 4097, 10_000, RECEIVE];

/// One end of a connection.
struct End {
    cq: CompletionQueue,
    qp: QueuePair,
    buffer: Buffer,
    peer: RemoteAddr,
    kept: Vec<Completion>,
}

impl End {
    fn connect(device: &Device, sgid_index: u32, control: &mut Control) -> Self {
        let (cq, pd) = (device.create_cq(256).expect("a CQ"), device.alloc_pd());
        let mut qp = pd.create_qp(&QpInit::new(&cq)).expect("a QP");
        let buffer = pd.alloc_buffer(BUFFER, Access::ALL).expect("a buffer");
        let psn = device.random_psn().expect("a PSN");
        let own = qp.endpoint(psn, sgid_index).expect("an endpoint");
        let (addr, rkey) = (buffer.region().addr(), buffer.region().rkey());
        let line = format!("{} {} {} {addr} {}", own.qpn.value(), own.psn.value(), own.gid, rkey.0);
        let answer = control.exchange(&line);
        let words: Vec<&str> = answer.split(' ').collect();
        let number = |at: usize| words[at].parse::<u32>().expect("a number");
        let gid: Gid = words[2].parse().expect("a GID");
        let peer = Endpoint::new(Qpn::masked(number(0)), Psn::new(number(1)), gid);
        let addr = words[3].parse().expect("an address");
        let peer_memory = RemoteAddr { addr, rkey: Key(number(4)) };
        let path_mtu = Some(PathMtu::Mtu4096);
        // 1.1 s: on a busy machine, an end may not run for long.
        let timeout = 18;
        let options = ConnectOptions { sgid_index, path_mtu, timeout, ..ConnectOptions::default() };
        qp.connect(psn, &peer, &options).expect("connected");
        control.exchange("connected");
        Self { cq, qp, buffer, peer: peer_memory, kept: Vec::new() }
    }

    /// Waits for the completion of request `wr_id`. Other completions are kept for later calls.
    fn wait(&mut self, wr_id: u64) -> Completion {
        let deadline = Instant::now() + TEST_TIMEOUT;
        loop {
            if let Some(at) = self.kept.iter().position(|done| done.wr_id == wr_id) {
                let done = self.kept.remove(at);
                assert_eq!(done.status, Status::Success, "request {wr_id}");
                return done;
            }
            self.kept.extend(self.cq.poll_one());
            assert!(Instant::now() < deadline, "request {wr_id} takes too long");
            thread::yield_now();
        }
    }

    fn post(&mut self, wr_id: u64, op: SendOp, offset: usize, len: usize) {
        let sge = self.buffer.region().sge(offset as u64, u32::try_from(len).expect("small"));
        let data = Data::Sges(std::slice::from_ref(&sge));
        let request = SendRequest { wr_id, op, data, flags: SendFlags::SIGNALED };
        self.qp.post_send(&request).expect("room for a request");
    }

    fn at(&self, offset: usize) -> RemoteAddr {
        RemoteAddr { addr: self.peer.addr + offset as u64, ..self.peer }
    }

    /// Runs WRITEs, READs, SENDs and atomics while the peer does the same, and compares all data.
    fn exercise(&mut self, side: u8, control: &mut Control) {
        for (slot, _) in MESSAGES.iter().enumerate() {
            let at = (RECEIVES + slot * RECEIVE) as u64;
            let sge = self.buffer.region().sge(at, u32::try_from(RECEIVE).expect("small"));
            let sges = std::slice::from_ref(&sge);
            self.qp.post_recv(&RecvRequest { wr_id: 1000 + slot as u64, sges }).expect("room");
        }
        self.buffer.store_word(WORD, 0);
        control.exchange("ready");
        for (round, &len) in LENGTHS.iter().enumerate() {
            let data = pattern(side, round, len);
            self.buffer.write(OWN, &data);
            self.post(1, SendOp::Write(self.at(THEIRS)), OWN, len);
            self.post(2, SendOp::Read(self.at(THEIRS)), BACK, len);
            self.wait(1);
            self.wait(2);
            assert_eq!(self.read(BACK, len), data, "{len} bytes there and back");
        }
        for _ in 0..ADDS {
            self.post(3, SendOp::FetchAdd { remote: self.at(WORD), add: 1 }, BACK, 8);
            self.wait(3);
        }
        for (slot, &len) in MESSAGES.iter().enumerate() {
            self.buffer.write(OWN, &pattern(side, slot + 50, len));
            self.post(4, SendOp::Send, OWN, len);
            self.wait(4);
        }
        for (slot, &len) in MESSAGES.iter().enumerate() {
            let done = self.wait(1000 + slot as u64);
            assert_eq!(done.byte_len as usize, len);
            let got = self.read(RECEIVES + slot * RECEIVE, len);
            assert_eq!(got, pattern(1 - side, slot + 50, len), "message {slot}");
        }
        control.exchange("done");
        assert_eq!(self.buffer.load_word(WORD), ADDS, "what the peer added");
        let last = LENGTHS.len() - 1;
        let got = self.read(THEIRS, LENGTHS[last]);
        assert_eq!(got, pattern(1 - side, last, LENGTHS[last]), "what the peer wrote");
        control.exchange("seen");
    }

    fn read(&self, offset: usize, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        self.buffer.read(offset, &mut bytes);
        bytes
    }
}

fn pattern(side: u8, round: usize, len: usize) -> Vec<u8> {
    let seed = usize::from(side) * 91 + round * 31;
    (0..len).map(|at| u8::try_from((seed + at * 7) % 251).expect("a byte")).collect()
}

fn assert_nothing_lost(device: &Device) {
    for stats in device.port_stats() {
        assert_eq!((stats.rx_dropped, stats.tx_dropped), (0, 0), "{stats:?}");
        assert!(stats.rx_frames > 100 && stats.tx_frames > 100, "{stats:?}");
    }
}

// ---- memif

/// Returns true if at least `count` huge pages are free. Otherwise prints why the test is skipped.
fn hugepages_are_free(count: u32) -> bool {
    let text = fs::read_to_string("/proc/meminfo").expect("a file");
    let line = text.lines().find_map(|line| line.strip_prefix("HugePages_Free:"));
    let free = line.is_some_and(|free| free.trim().parse::<u32>().is_ok_and(|free| free >= count));
    if !free {
        eprintln!("with ordinary memory at both ends: fewer than {count} hugepages are free");
    }
    free
}

/// End `end` of a memif. The server uses hugepages, the client ordinary memory.
fn memif_end(shared: &Path, end: usize) {
    let role = ["server", "client"][end];
    let socket = shared.join("memif").display().to_string();
    let port =
        format!("net_memif0,role={role},socket={socket},socket-abstract=no,bsize=8192,rsize=10");
    let own = [
        ["10.8.0.1/24", "fd08::1/64", "10.8.1.1/24@100"],
        ["10.8.0.2/24", "fd08::2/64", "10.8.1.2/24@100"],
    ];
    let mut config = config(port, &own[end]);
    if end == 0 && hugepages_are_free(64) {
        config.memory = DpdkMemory::Hugepages;
    }
    let mut control = if end == 0 { Control::accept(shared) } else { Control::connect(shared) };
    let device = open(&config);
    let attributes = device.attributes();
    assert_eq!(attributes.port, "dpdk (net_memif)");
    assert_eq!(attributes.active_mtu, Some(PathMtu::Mtu4096));
    control.exchange("open");
    // IPv4, IPv6, and an address in a VLAN.
    for sgid_index in 0..3 {
        let side = u8::try_from(end).expect("two ends");
        End::connect(&device, sgid_index, &mut control).exercise(side, &mut control);
    }
    assert_nothing_lost(&device);
}

#[test]
fn two_processes_talk_over_memif() {
    let shared = SharedDirectory::new("memif");
    let ends = ["memif server", "memif client"].map(|role| shared.start(role));
    ends.into_iter().for_each(Role::finish);
    assert!(!shared.path.join("memif").exists(), "the socket is left behind");
}

/// A memif without a peer: frames that cannot be sent are dropped, the neighbour does not answer,
/// and an idle helper uses little CPU time.
fn lone_memif(shared: &Path) {
    let socket = shared.join("memif").display().to_string();
    let port = format!("net_memif0,role=server,socket={socket},socket-abstract=no");
    let mut config = config(port, &["10.8.0.1/24"]);
    config.link_wait = Duration::from_millis(100);
    let device = open(&config);
    let (cq, pd) = (device.create_cq(16).expect("a CQ"), device.alloc_pd());
    let mut qp = pd.create_qp(&QpInit::new(&cq)).expect("a QP");
    let gid = Gid::from("10.8.0.2".parse::<IpAddr>().expect("an address"));
    let peer = Endpoint::new(Qpn::masked(17), Psn::new(0), gid);
    let start = Instant::now();
    let error = qp.connect(Psn::new(0), &peer, &ConnectOptions::default()).unwrap_err();
    assert!(error.to_string().contains("10.8.0.2 did not answer"), "{error}");
    assert!((2..5).contains(&start.elapsed().as_secs()), "{:?}", start.elapsed());
    assert_eq!(device.port_stats()[0].tx_frames, device.port_stats()[0].tx_dropped);
    assert_eq!(device.port_stats()[0].tx_frames, 3, "one request per second");
    let (start, cpu) = (Instant::now(), cpu_time());
    thread::sleep(Duration::from_secs(1));
    let share = (cpu_time() - cpu).as_secs_f64() / start.elapsed().as_secs_f64();
    assert!(share < 0.6, "an idle device takes {share:.2} of a CPU");
}

/// CPU time of this process.
fn cpu_time() -> Duration {
    let mut spec = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the structure outlives the call.
    let status = unsafe { libc::clock_gettime(libc::CLOCK_PROCESS_CPUTIME_ID, &raw mut spec) };
    assert_eq!(status, 0);
    let part = |number: i64| u64::try_from(number).expect("not negative");
    Duration::new(part(spec.tv_sec), u32::try_from(spec.tv_nsec).expect("below a second"))
}

#[test]
fn an_absent_peer_is_an_error() {
    let shared = SharedDirectory::new("lone");
    shared.start("lone memif").finish();
}

// ---- AF_PACKET against the kernel and AF_XDP

/// Returns true if the tests can run. Otherwise prints why not.
fn root() -> bool {
    // SAFETY: the call has no arguments and no effects.
    let root = unsafe { libc::geteuid() } == 0;
    if !root {
        feroce_test_skip::skip("network namespaces need root");
    }
    root
}

fn run(command: &str) -> String {
    let words: Vec<&str> = command.split_whitespace().collect();
    let output = Command::new(words[0]).args(&words[1..]).output().expect(words[0]);
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let (out, err) = (text(&output.stdout), text(&output.stderr));
    assert!(output.status.success(), "{command}: {out}{err}");
    out
}

/// A namespace for the DPDK device, on `v0`, and one for the kernel and AF_XDP, on `v1`.
struct Pair {
    names: [String; 2],
}

impl Pair {
    fn new(test: &str) -> Self {
        let names = ["a", "b"].map(|end| format!("fr-dpdk-{}-{test}-{end}", std::process::id()));
        let pair = Self { names };
        let [a, b] = &pair.names;
        for name in [a, b] {
            run(&format!("ip netns add {name}"));
        }
        run(&format!(
            "ip link add v0 netns {a} mtu 4300 type veth peer name v1 netns {b} mtu 4300"
        ));
        run(&format!("ip netns exec {a} sysctl -qw net.ipv6.conf.v0.disable_ipv6=1"));
        run(&format!("ip -n {b} address add 10.9.0.2/24 dev v1"));
        run(&format!("ip -n {b} address add fd09::2/64 dev v1 nodad"));
        for (name, interface) in [(a, "v0"), (b, "v1")] {
            run(&format!("ip -n {name} link set {interface} up"));
            run(&format!(
                "ip netns exec {name} ethtool -K {interface} \
                     tx off gso off gro off tso off rxvlan off txvlan off"
            ));
        }
        pair
    }

    fn run(&self, end: usize, command: &str) -> String {
        run(&format!("ip netns exec {} {command}", self.names[end]))
    }
}

impl Drop for Pair {
    fn drop(&mut self) {
        for name in &self.names {
            let _ = Command::new("ip").args(["netns", "delete", name]).status();
        }
    }
}

fn enter(namespace: &str) {
    let file = File::open(format!("/run/netns/{namespace}")).expect("a namespace");
    // SAFETY: the descriptor is open; the call moves only this thread.
    let moved = unsafe { libc::setns(file.as_raw_fd(), libc::CLONE_NEWNET) };
    assert_eq!(moved, 0, "setns");
}

/// The DPDK device on `v0` or `v1`.
fn af_packet(end: usize) -> String {
    format!("net_af_packet0,iface=v{end},blocksz=65536,framesz=8192,framecnt=2048,qdisc_bypass=0")
}

const DPDK_MAC: &str = "02:00:00:00:09:01";
const NEW_MAC: &str = "02:00:00:00:09:77";

fn af_packet_end(shared: &Path) {
    enter(&fs::read_to_string(shared.join("namespace")).expect("its name"));
    let config = config(af_packet(0), &["10.9.0.1/24", "fd09::1/64"]);
    let ports = DpdkPort::open(&config, 1).expect("a port");
    let addresses = ports[0].addresses();
    let file = File::create(shared.join("capture")).expect("a file");
    let ports = ports.into_iter().map(|port| {
        Box::new(
            PcapPort::new(Box::new(port), file.try_clone().expect("a file"), 64)
                .expect("a capture"),
        ) as Box<dyn Port>
    });
    let device = Device::with_ports(
        ports.collect(),
        Addressing::Port(Arc::new(addresses.clone())),
        device_config(),
    );
    let device = device.expect("a device");
    let mut control = Control::connect(shared);
    control.exchange("open");
    control.exchange("pinged");
    let mut ends = [0, 1].map(|sgid_index| End::connect(&device, sgid_index, &mut control));
    for end in &mut ends {
        end.exercise(0, &mut control);
    }
    let old = addresses.neighbour(None, "10.9.0.2".parse().expect("an address"));
    control.exchange("moved");
    for end in &mut ends {
        end.exercise(0, &mut control);
    }
    let new = addresses.neighbour(None, "10.9.0.2".parse().expect("an address"));
    assert_ne!(old, new);
    assert_eq!(new.expect("known").to_string(), NEW_MAC);
    assert!(device.port_stats()[0].rx_foreign < 100, "{:?}", device.port_stats());
}

#[test]
fn the_kernel_and_af_xdp_talk_to_a_device_on_af_packet() {
    if !root() {
        return;
    }
    let (shared, pair) = (SharedDirectory::new("af_packet"), Pair::new("kernel"));
    run(&format!("ip -n {} link set v0 address {DPDK_MAC}", pair.names[0]));
    fs::write(shared.path.join("namespace"), &pair.names[0]).expect("a file");
    let other = shared.start("af_packet");
    let mut control = Control::accept(&shared.path);
    let device = thread::scope(|scope| {
        let opened = scope.spawn(|| {
            enter(&pair.names[1]);
            Device::open("v1", device_config()).expect("a device")
        });
        opened.join().expect("a device")
    });
    control.exchange("open");
    // The kernel resolves the port, and the port answers pings of all sizes.
    for target in ["10.9.0.1", "fd09::1"] {
        pair.run(1, &format!("ping -n -c 3 -i 0.2 -W 2 {target}"));
        pair.run(1, &format!("ping -n -c 1 -W 2 -s 4000 {target}"));
        let known = pair.run(1, &format!("ip neigh show {target} dev v1"));
        assert!(known.contains(DPDK_MAC), "{target}: {known}");
    }
    control.exchange("pinged");
    let index = |ip: &str| {
        let gid = Gid::from(ip.parse::<IpAddr>().expect("an address"));
        let gids = device.gids();
        gids.iter().find(|(_, entry)| entry.gid == gid).expect("an own address").0
    };
    let gids = ["10.9.0.2", "fd09::2"].map(index);
    let mut ends = gids.map(|sgid_index| End::connect(&device, sgid_index, &mut control));
    for end in &mut ends {
        end.exercise(1, &mut control);
    }
    // The kernel's end gets another Ethernet address. The kernel then forgets the neighbours of the
    // interface, and the port learns the address from the next request.
    pair.run(1, &format!("ip link set v1 address {NEW_MAC}"));
    for target in ["10.9.0.1", "fd09::1"] {
        pair.run(1, &format!("ping -n -c 1 -W 2 {target}"));
    }
    control.exchange("moved");
    for end in &mut ends {
        end.exercise(1, &mut control);
    }
    drop(ends);
    other.finish();
    let capture = fs::read(shared.path.join("capture")).expect("a capture");
    let last = frames(&capture).into_iter().rfind(|frame| frame[6..12] == mac(DPDK_MAC));
    assert_eq!(last.expect("a frame")[..6], mac(NEW_MAC), "the flows followed");
}

fn mac(text: &str) -> [u8; 6] {
    text.parse::<feroce_wire::MacAddr>().expect("an Ethernet address").0
}

/// Opens a DPDK device on an end of the veth of [`Pair`].
fn open_af_packet(shared: &Path, end: usize, address: &str) -> Device {
    let names = fs::read_to_string(shared.join("namespaces")).expect("their names");
    enter(names.lines().nth(end).expect("two names"));
    open(&config(af_packet(end), &[address]))
}

/// Writes to a peer until the peer is killed during the transfer. The only effect is an error
/// completion.
fn survivor(shared: &Path) {
    let mut control = Control::accept(shared);
    let device = open_af_packet(shared, 0, "10.9.0.1/24");
    let mut end = End::connect(&device, 0, &mut control);
    let deadline = Instant::now() + TEST_TIMEOUT;
    let mut outstanding = 0;
    let failed = loop {
        if outstanding < 16 {
            end.post(1, SendOp::Write(end.at(THEIRS)), OWN, 65_536);
            outstanding += 1;
        }
        if let Some(done) = end.cq.poll_one() {
            outstanding -= 1;
            if done.status != Status::Success {
                break done;
            }
        }
        assert!(Instant::now() < deadline, "no error reports that the peer was killed");
    };
    assert_eq!(failed.status, Status::RetryExceeded);
    drop(end);
    drop(device);
}

fn victim(shared: &Path) {
    let mut control = Control::connect(shared);
    let device = open_af_packet(shared, 1, "10.9.0.12/24");
    let _end = End::connect(&device, 0, &mut control);
    thread::sleep(Duration::from_millis(300));
    // SAFETY: ends this process at once.
    unsafe { libc::kill(libc::getpid(), libc::SIGKILL) };
}

#[test]
fn a_killed_peer_is_an_error() {
    if !root() {
        return;
    }
    let (shared, pair) = (SharedDirectory::new("killed"), Pair::new("killed"));
    fs::write(shared.path.join("namespaces"), pair.names.join("\n")).expect("a file");
    let [survivor, mut victim] = ["survivor", "victim"].map(|role| shared.start(role));
    survivor.finish();
    let status = victim.child.wait().expect("a child");
    assert!(!status.success(), "{status}");
}

/// The interface below the device goes down and up again while the driver reports a link all the
/// time.
fn downed(shared: &Path) {
    let namespace = fs::read_to_string(shared.join("namespace")).expect("its name");
    enter(&namespace);
    let few = "net_af_packet0,iface=v0,blocksz=65536,framesz=8192,framecnt=64,qdisc_bypass=0";
    let device = open(&config(few.to_owned(), &["10.9.0.1/24"]));
    let (cq, pd) = (device.create_cq(256).expect("a CQ"), device.alloc_pd());
    let connect = |qp: &mut QueuePair, to: &str| {
        let gid = Gid::from(to.parse::<IpAddr>().expect("an address"));
        let peer = Endpoint::new(Qpn::masked(17), Psn::new(0), gid);
        qp.connect(Psn::new(0), &peer, &ConnectOptions::default())
    };
    let mut qp = pd.create_qp(&QpInit::new(&cq)).expect("a QP");
    connect(&mut qp, "10.9.0.2").expect("the kernel answers");
    run(&format!("ip -n {namespace} link set v0 down"));
    let buffer = pd.alloc_buffer(1 << 20, Access::ALL).expect("a buffer");
    let sge = buffer.region().sge(0, 1 << 20);
    let data = Data::Sges(std::slice::from_ref(&sge));
    let op = SendOp::Write(RemoteAddr { addr: 0, rkey: Key(0) });
    let request = SendRequest { wr_id: 1, op, data, flags: SendFlags::SIGNALED };
    for _ in 0..4 {
        qp.post_send(&request).expect("room for a request");
    }
    let deadline = Instant::now() + TEST_TIMEOUT;
    let done = loop {
        if let Some(done) = cq.poll_one() {
            break done;
        }
        assert!(Instant::now() < deadline, "the QP hangs: {:?}", device.port_stats());
        thread::yield_now();
    };
    assert_eq!(done.status, Status::RetryExceeded);
    assert!(device.port_stats()[0].tx_dropped > 0, "{:?}", device.port_stats());
    assert!(device.counter(Counter::PortErrors) > 0, "the port reports it");
    run(&format!("ip -n {namespace} link set v0 up"));
    let mut next = pd.create_qp(&QpInit::new(&cq)).expect("a QP");
    connect(&mut next, "10.9.0.3").expect("frames are sent again");
}

#[test]
fn an_interface_down_is_an_error() {
    if !root() {
        return;
    }
    let (shared, pair) = (SharedDirectory::new("downed"), Pair::new("downed"));
    run(&format!("ip -n {} address add 10.9.0.3/24 dev v1", pair.names[1]));
    fs::write(shared.path.join("namespace"), &pair.names[0]).expect("a file");
    shared.start("downed").finish();
}

// ---- captures

/// The frames of a capture.
fn frames(capture: &[u8]) -> Vec<Vec<u8>> {
    let mut reader = pcap_file::pcap::PcapReader::new(capture).expect("a capture");
    let mut frames = Vec::new();
    while let Some(packet) = reader.next_packet() {
        frames.push(packet.expect("a frame").data.into_owned());
    }
    frames
}

const REQUESTER_MAC: [u8; 6] = [2, 0, 0, 0, 7, 7];

/// An ARP request of 10.7.0.7 for `target`.
fn arp(target: [u8; 4]) -> Vec<u8> {
    let head = [
        &[0xff; 6][..],
        &REQUESTER_MAC,
        &[8, 6, 0, 1, 8, 0, 6, 4, 0, 1],
        &REQUESTER_MAC,
        &[10, 7, 0, 7],
    ];
    [&head.concat()[..], &[0; 6], &target].concat()
}

fn request_of_peer(to: [u8; 6]) -> etherparse::PacketBuilderStep<etherparse::Ethernet2Header> {
    etherparse::PacketBuilder::ethernet2(REQUESTER_MAC, to)
}

/// A neighbour solicitation for `target` from `source`, with the option of its Ethernet address.
fn solicitation(source: &str, target: &str, hop_limit: u8) -> Vec<u8> {
    let ip = |text: &str| text.parse::<std::net::Ipv6Addr>().expect("an address").octets();
    let mut message = ip(target).to_vec();
    if source != "::" {
        message.extend([1, 1]);
        message.extend(REQUESTER_MAC);
    }
    let mut frame = Vec::new();
    request_of_peer([0x33, 0x33, 0xff, 0, 0, 1])
        .ipv6(ip(source), ip("ff02::1:ff00:1"), hop_limit)
        .icmpv6_raw(135, 0, [0; 4])
        .write(&mut frame, &message)
        .expect("a frame");
    frame
}

/// The complement of the ones' complement sum of `bytes`; zero for bytes that include a valid
/// checksum.
fn internet_checksum(bytes: &[u8]) -> u16 {
    let words =
        bytes.chunks(2).map(|pair| u32::from(pair[0]) << 8 | u32::from(*pair.get(1).unwrap_or(&0)));
    let sum: u32 = words.sum();
    !u16::try_from((sum & 0xffff) + (sum >> 16)).expect("a short message")
}

/// The frames that the port in [`pcap_end`] receives, in this order.
fn requests() -> Vec<Vec<u8>> {
    let own = [2, 0, 0, 0, 0, 9];
    let mut ping = Vec::new();
    request_of_peer(own)
        .ipv4([10, 7, 0, 7], [10, 7, 0, 1], 64)
        .icmpv4_echo_request(7, 1)
        .write(&mut ping, b"are you there?")
        .expect("a frame");
    let mut bad_ping = ping.clone();
    *bad_ping.last_mut().expect("a byte") ^= 1;
    let mut to_other_port = Vec::new();
    request_of_peer(own)
        .ipv4([10, 7, 0, 7], [10, 7, 0, 1], 64)
        .udp(4791, 53)
        .write(&mut to_other_port, b"?")
        .expect("a frame");
    let mut to_other_address = Vec::new();
    request_of_peer(own)
        .ipv4([10, 7, 0, 7], [10, 7, 0, 99], 64)
        .udp(9, 4791)
        .write(&mut to_other_address, b"?")
        .expect("a frame");
    let mut roce = Vec::new();
    request_of_peer(own)
        .ipv4([10, 7, 0, 7], [10, 7, 0, 1], 64)
        .udp(9, 4791)
        .write(&mut roce, &[0; 64])
        .expect("a frame");
    vec![
        arp([10, 7, 0, 1]),
        arp([10, 7, 0, 99]),
        ping,
        bad_ping,
        solicitation("fd07::7", "fd07::1", 255),
        solicitation("::", "fd07::1", 255),
        solicitation("fd07::7", "fd07::1", 64),
        to_other_port,
        to_other_address,
        roce,
        vec![0xff; 3],
        Vec::from([0; 60]),
    ]
}

fn open_pcap(shared: &Path) -> DpdkPort {
    let path = |name: &str| shared.join(name).display().to_string();
    let device = format!("net_pcap0,rx_pcap={},tx_pcap={}", path("in"), path("out"));
    let config = config(device, &["10.7.0.1/24", "fd07::1/64"]);
    DpdkPort::open(&config, 1).expect("a port").remove(0)
}

/// Length of the shortest RoCE frame, an empty SEND over IPv4.
const SHORTEST_ROCE: usize = 58;

fn pcap_end(shared: &Path) {
    let mut port = open_pcap(shared);
    fs::write(shared.join("mac"), port.attributes().mac.to_string()).expect("a file");
    port.flush().expect("a device that sends"); // The announcements are sent before the responses.
    let mut shown = Vec::new();
    for _ in 0..100 {
        for index in 0..port.rx_burst() {
            shown.push(port.rx_frame(index).first.to_vec());
        }
        port.flush().expect("a device that sends");
    }
    let PortStats { rx_frames, rx_foreign, rx_dropped, tx_frames, .. } = port.stats();
    assert_eq!(shown, [requests()[9].clone()], "only RoCE for own addresses is shown");
    assert_eq!((rx_frames, rx_dropped), (12, 0));
    assert_eq!(rx_foreign, 6, "neither RoCE nor requests");
    assert_eq!(tx_frames, 6, "two announcements, four answers");
    let own = port.attributes().mac;
    let slot = port.tx_slot().expect("a slot");
    slot[..64].fill(0xff);
    slot[6..12].copy_from_slice(&own.0);
    port.tx_commit(SHORTEST_ROCE, Priority::default());
    port.flush().expect("a device that sends");
}

/// Without room for responses, the port still learns from requests.
fn no_room(shared: &Path) {
    let mut port = open_pcap(shared);
    while port.tx_slot().is_some() {
        port.tx_commit(64, Priority::default());
    }
    let (addresses, sent) = (port.addresses(), port.stats().tx_frames);
    let source = addresses.gids()[0].clone();
    let request_of_peer = Gid::from("10.7.0.7".parse::<IpAddr>().expect("an address"));
    let path = thread::scope(|scope| {
        let waits = scope.spawn(|| addresses.resolve(request_of_peer, &source, TEST_TIMEOUT));
        thread::sleep(Duration::from_millis(300)); // Only requested neighbours are stored.
        let shown: usize = (0..100).map(|_| port.rx_burst()).sum();
        assert_eq!(shown, 1, "RoCE");
        waits.join().expect("no panic")
    });
    assert_eq!(path.expect("it was there").dst_mac.0, REQUESTER_MAC);
    assert_eq!(port.stats().rx_foreign, 6, "neither RoCE nor requests");
    assert_eq!(port.stats().tx_frames, sent, "no answer without a slot");
}

#[test]
fn neighbours_are_learnt_without_room_for_responses() {
    let shared = SharedDirectory::new("no_room");
    write_requests(&shared);
    shared.start("no_room").finish();
}

fn write_requests(shared: &SharedDirectory) {
    let file = File::create(shared.path.join("in")).expect("a file");
    let mut writer = pcap_file::pcap::PcapWriter::new(file).expect("a capture");
    for (at, data) in (0..).zip(requests()) {
        let len = u32::try_from(data.len()).expect("short");
        let packet = pcap_file::pcap::PcapPacket::new(Duration::from_millis(at), len, &data);
        writer.write_packet(&packet).expect("a frame");
    }
}

#[test]
fn requests_of_other_hosts_are_answered() {
    let shared = SharedDirectory::new("pcap");
    write_requests(&shared);
    shared.start("pcap").finish();
    let own = mac(&fs::read_to_string(shared.path.join("mac")).expect("a file"));
    let sent = frames(&fs::read(shared.path.join("out")).expect("a capture"));
    assert!(sent.iter().all(|frame| frame.len() >= 60 && frame[6..12] == own));
    // Two announcements, then the responses to an ARP request, a ping and two solicitations.
    let [arp_here, nd_here, arp_answer, pong, advert, defence, short] = &sent[..] else {
        panic!("{} frames", sent.len())
    };
    assert_eq!(short[SHORTEST_ROCE - 1..], [0xff, 0, 0], "a short frame is padded to 60 bytes");
    assert_eq!(arp_here[..6], [0xff; 6]);
    assert_eq!((&arp_here[28..32], &arp_here[38..42]), (&[10, 7, 0, 1][..], &[10, 7, 0, 1][..]));
    let answer =
        [&[0, 1, 8, 0, 6, 4, 0, 2][..], &own, &[10, 7, 0, 1], &REQUESTER_MAC, &[10, 7, 0, 7]];
    assert_eq!((&arp_answer[..6], &arp_answer[14..42]), (&REQUESTER_MAC[..], &answer.concat()[..]));
    // Ethernet padding is not part of the payload.
    let pong = etherparse::SlicedPacket::from_ethernet(pong).expect("a packet");
    let Some(etherparse::TransportSlice::Icmpv4(pong)) = pong.transport else { panic!("no ICMP") };
    assert_eq!(pong.payload(), b"are you there?");
    assert_eq!(internet_checksum(pong.slice()), 0);
    let adverts = [
        (nd_here, "ff02::1", [0x33, 0x33, 0, 0, 0, 1], 0x20),
        (advert, "fd07::7", REQUESTER_MAC, 0x60),
        (defence, "ff02::1", [0x33, 0x33, 0, 0, 0, 1], 0x20),
    ];
    for (frame, to, to_mac, flags) in adverts {
        assert_eq!(frame[..6], to_mac);
        let packet = etherparse::SlicedPacket::from_ethernet(frame).expect("a packet");
        let Some(etherparse::NetSlice::Ipv6(ip)) = &packet.net else { panic!("no IPv6") };
        assert_eq!(ip.header().destination_addr(), to.parse::<std::net::Ipv6Addr>().unwrap());
        assert_eq!(ip.header().hop_limit(), 255);
        let Some(etherparse::TransportSlice::Icmpv6(icmp)) = &packet.transport else {
            panic!("no ICMPv6")
        };
        let (from, to) = (ip.header().source(), ip.header().destination());
        assert!(icmp.is_checksum_valid(from, to), "checksum");
        let bytes = icmp.slice();
        assert_eq!((bytes[0], bytes[4], &bytes[24..26]), (136, flags, &[2, 1][..]));
        assert_eq!(bytes[26..32], own);
    }
}

// ---- errors

fn refusals(shared: &Path) {
    let null = |name: &str| config(format!("{name},size=64"), &["10.6.0.1/24"]);
    let refused = |config: &DpdkConfig, cores| DpdkPort::open(config, cores).expect_err("refused");
    let first = DpdkPort::open(&null("net_null0"), 1).expect("a port");
    assert_eq!(first[0].attributes().kind, "dpdk (net_null)");
    // A second device shares the EAL and must not have other arguments.
    let second = DpdkPort::open(&null("net_null1"), 2).expect("a port with two queues");
    assert_eq!(second.len(), 2);
    let error = refused(&null("net_null0"), 1);
    assert!(matches!(error, DpdkError::Busy(_)), "{error}");
    let error =
        refused(&DpdkConfig { eal: vec!["--vdev=net_null9".into()], ..null("net_null2") }, 1);
    assert!(matches!(error, DpdkError::EalRuns { .. }), "{error}");
    let error = refused(&null("net_nothing0"), 1);
    assert!(matches!(error, DpdkError::NoDevice { .. }), "{error}");
    let error = refused(&null("net_null2"), 10_000);
    assert!(matches!(error, DpdkError::TooFewQueues { .. }), "{error}");
    let error = refused(&DpdkConfig { rx_descriptors: 16_384, mtu: 9600, ..null("net_null2") }, 4);
    assert!(matches!(error, DpdkError::Memory { .. }), "{error}");
    // Devices that were refused or closed can be opened.
    drop(second);
    for _ in 0..3 {
        let ports = DpdkPort::open(&null("net_null2"), 1).expect("a port");
        drop(ports);
    }
    drop(first);
    drop(DpdkPort::open(&null("net_null0"), 1).expect("a port"));
    // Even while other threads open and close devices.
    thread::scope(|scope| {
        for own in ["net_null5", "net_null6", "net_null7"] {
            scope.spawn(move || {
                for _ in 0..20 {
                    drop(DpdkPort::open(&null(own), 1).expect("a port"));
                }
            });
        }
    });
    let socket = shared.join("absent").display().to_string();
    let absent = format!("net_memif0,role=client,socket={socket},socket-abstract=no");
    let absent = config(absent, &["10.6.0.1/24"]);
    let error = refused(&DpdkConfig { link_wait: Duration::from_millis(300), ..absent }, 1);
    assert!(matches!(error, DpdkError::NoServer(_)), "{error}");
}

#[test]
fn errors_name_the_cause_and_leave_nothing_open() {
    let shared = SharedDirectory::new("refusals");
    shared.start("refusals").finish();
}

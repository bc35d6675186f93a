//! A live link for tests: two network namespaces joined by a veth, and a peer in a separate process
//! that can be killed.

use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::num::NonZeroU64;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

use feroce_engine::device::{
    ConnectOptions, Device, DeviceConfig, Endpoint, HostId, PortKind, QpInit,
};
use feroce_engine::memory::Access;
use feroce_engine::net::Gid;
use feroce_engine::verbs::RemoteAddr;
use feroce_wire::{Key, Psn, Qpn};

use crate::ports;

/// Interface names of the two ends.
pub const INTERFACES: [&str; 2] = ["v0", "v1"];
/// IPv4 addresses of the two ends, in a /24.
pub const ADDRESSES: [&str; 2] = ["10.77.0.1", "10.77.0.2"];

/// Two network namespaces joined by a veth whose MTU allows a path MTU of 4096. Dropping this value
/// removes them.
#[derive(Debug)]
pub struct Net {
    names: [String; 2],
}

impl Net {
    /// Creates the namespaces. Without root, prints a message and returns `None`.
    ///
    /// # Panics
    /// If `ip` or `ethtool` fails.
    pub fn new() -> Option<Self> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        if !is_root() {
            feroce_test_skip::skip("network namespaces and AF_XDP need root");
            return None;
        }
        let unique = format!("{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        let net = Self { names: ["a", "b"].map(|end| format!("fr-live-{unique}{end}")) };
        let [a, b] = &net.names;
        run(&format!("ip netns add {a}"));
        run(&format!("ip netns add {b}"));
        run(&format!(
            "ip link add v0 netns {a} mtu 4500 type veth peer name v1 netns {b} mtu 4500"
        ));
        for end in 0..2 {
            let name = INTERFACES[end];
            net.ip(end, &format!("address add {}/24 dev {name}", ADDRESSES[end]));
            net.ip(end, &format!("link set {name} up"));
            net.exec(end, &format!("ethtool -K {name} tx off gso off gro off tso off"));
        }
        Some(net)
    }

    /// Runs `ip ARGUMENTS` on the namespace of `end`.
    ///
    /// # Panics
    /// If it fails.
    pub fn ip(&self, end: usize, arguments: &str) {
        run(&format!("ip -n {} {arguments}", self.names[end]));
    }

    /// Runs a command inside the namespace of `end`.
    ///
    /// # Panics
    /// If it fails.
    pub fn exec(&self, end: usize, command: &str) {
        run(&format!("ip netns exec {} {command}", self.names[end]));
    }

    /// Removes the addresses of the interfaces, for ports that have the addresses instead of the
    /// kernel.
    pub fn without_addresses(&self) {
        for (end, name) in INTERFACES.iter().enumerate() {
            self.ip(end, &format!("address flush dev {name}"));
        }
    }

    /// Moves the calling thread into the namespace of `end`.
    ///
    /// # Panics
    /// If the system refuses.
    pub fn enter(&self, end: usize) {
        let file = File::open(format!("/run/netns/{}", self.names[end])).expect("the namespace");
        nix::sched::setns(file, nix::sched::CloneFlags::CLONE_NEWNET).expect("setns, as root");
    }

    /// Starts a peer in the namespace of end 1: this test program with the test `serve`, which
    /// calls [`serve`].
    ///
    /// # Panics
    /// If it does not start.
    pub fn peer(&self, port: PortKind) -> Peer {
        let program = std::env::current_exe().expect("this program");
        let child = Command::new("ip")
            .args(["netns", "exec", &self.names[1]])
            .arg(program)
            .args(["--exact", "serve", "--ignored", "--nocapture", "--test-threads=1"])
            .env(PORT_VARIABLE, port.to_string())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn();
        let mut child = child.expect("a peer");
        let stdout = BufReader::new(child.stdout.take().expect("piped"));
        let stdin = child.stdin.take().expect("piped");
        Peer { child, stdin, stdout }
    }
}

impl Drop for Net {
    fn drop(&mut self) {
        for name in &self.names {
            let removed = Command::new("ip").args(["netns", "delete", name]).status();
            if !removed.is_ok_and(|status| status.success()) {
                eprintln!("could not remove namespace {name}");
            }
        }
    }
}

fn is_root() -> bool {
    let id = Command::new("id").arg("-u").output().expect("the `id` program");
    id.stdout.starts_with(b"0")
}

fn run(command: &str) {
    let mut words = command.split(' ');
    let output = Command::new(words.next().expect("a program")).args(words).output();
    let output = output.unwrap_or_else(|error| panic!("{command}: {error}"));
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command}: {}", stderr.trim());
}

/// Length of the peer's buffer in bytes.
pub const BUFFER: usize = 16 << 20;

const PORT_VARIABLE: &str = "FEROCE_LIVE_PORT";
/// Prefix of the peer's lines, to find them among the lines of the test harness.
const LINE_PREFIX: &str = "peer:";

/// A peer process that responds to requests and never polls.
#[derive(Debug)]
pub struct Peer {
    child: Child,
    stdin: ChildStdin,
    stdout: BufReader<ChildStdout>,
}

impl Peer {
    /// Connects a new QP of the peer to `local`. Returns the QP's endpoint and the address of the
    /// peer's buffer.
    ///
    /// # Panics
    /// If the peer fails.
    pub fn connect(&mut self, local: &Endpoint) -> (Endpoint, RemoteAddr) {
        let host = host_to_text(local.super_frames);
        self.send_line(&format!(
            "connect {} {} {} {host}",
            local.qpn.value(),
            local.psn.value(),
            local.gid
        ));
        let response = self.read_line();
        let words: Vec<&str> = response.split(' ').collect();
        let number = |at: usize| words[at].parse::<u64>().expect("a number");
        let small = |at: usize| u32::try_from(number(at)).expect("32 bits");
        let endpoint = Endpoint {
            qpn: Qpn::masked(small(0)),
            psn: Psn::new(small(1)),
            gid: words[2].parse().expect("a GID"),
            super_frames: host_from_text(words[5]),
            selective_repeat: false,
        };
        (endpoint, RemoteAddr { addr: number(3), rkey: Key(small(4)) })
    }

    /// Returns a checksum of the peer's buffer, as [`checksum`] computes it.
    pub fn checksum(&mut self) -> u64 {
        self.send_line("checksum");
        self.read_line().parse().expect("a number")
    }

    /// Kills the peer with SIGKILL.
    ///
    /// # Panics
    /// If the system refuses.
    pub fn kill(&mut self) {
        self.child.kill().expect("killed");
        self.child.wait().expect("ended");
    }

    fn send_line(&mut self, line: &str) {
        writeln!(self.stdin, "{line}").expect("the peer reads its standard input");
    }

    fn read_line(&mut self) -> String {
        let mut line = String::new();
        loop {
            line.clear();
            assert!(self.stdout.read_line(&mut line).expect("text") > 0, "the peer ended");
            if let Some((_, response)) = line.split_once(LINE_PREFIX) {
                return response.trim().to_owned();
            }
        }
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Runs the peer: a device on `v1`, driven by its helper thread, until standard input ends.
///
/// # Panics
/// If anything fails. The other side then gets no more lines.
pub fn serve() {
    let port = std::env::var(PORT_VARIABLE).expect("started by `Net::peer`");
    let port = port.parse().expect("a kind of port");
    let (name, config) = device(1, port);
    let device = Device::open(&name, config).expect("a device");
    let pd = device.alloc_pd();
    let cq = device.create_cq(64).expect("a CQ");
    let buffer = pd.alloc_buffer(BUFFER, Access::ALL).expect("a buffer");
    let mut qps = Vec::new();
    for line in std::io::stdin().lines() {
        let line = line.expect("text");
        let words: Vec<&str> = line.split(' ').collect();
        match words[..] {
            ["checksum"] => println!("{LINE_PREFIX}{}", checksum(&buffer)),
            ["connect", qpn, psn, gid, host] => {
                let mut qp = pd.create_qp(&QpInit::new(&cq)).expect("a QP");
                let local_psn = device.random_psn().expect("a PSN");
                let sgid_index = device.default_gid_index();
                let local = qp.endpoint(local_psn, sgid_index).expect("a GID");
                let peer = Endpoint {
                    qpn: Qpn::masked(qpn.parse().expect("a number")),
                    psn: Psn::new(psn.parse().expect("a number")),
                    gid: gid.parse::<Gid>().expect("a GID"),
                    super_frames: host_from_text(host),
                    selective_repeat: false,
                };
                let options = ConnectOptions { sgid_index, ..ConnectOptions::default() };
                qp.connect(local_psn, &peer, &options).expect("connected");
                let (addr, rkey) = (buffer.region().addr(), buffer.region().rkey());
                let (qpn, psn) = (local.qpn.value(), local.psn.value());
                let host = host_to_text(local.super_frames);
                println!("{LINE_PREFIX}{qpn} {psn} {} {addr} {} {host}", local.gid, rkey.value());
                qps.push(qp);
            }
            _ => panic!("unknown command `{line}`"),
        }
    }
}

/// Encodes the host within which an end supports super-frames; 0 for none.
fn host_to_text(host: Option<HostId>) -> String {
    host.map_or(0, |HostId(id)| id.get()).to_string()
}

fn host_from_text(text: &str) -> Option<HostId> {
    NonZeroU64::new(text.parse().expect("a number")).map(HostId)
}

/// Returns a small device configuration for tests.
pub fn small_config() -> DeviceConfig {
    DeviceConfig { max_qp: 64, max_mr: 64, arena_bytes: 256 << 20, ..DeviceConfig::default() }
}

/// Returns the name and the configuration of a device on end `end`, with a port of kind `port`.
pub fn device(end: usize, port: PortKind) -> (String, DeviceConfig) {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let config = DeviceConfig { port, ..small_config() };
    let number = COUNT.fetch_add(1, Ordering::Relaxed);
    let address = format!("{}/24", ADDRESSES[end]);
    ports::device(number, INTERFACES[end], config, &[&address])
}

/// Returns a checksum of all words of `buffer` that depends on their order.
pub fn checksum(buffer: &feroce_engine::device::Buffer) -> u64 {
    (0..buffer.len() / 8).fold(0u64, |sum, word| {
        sum.rotate_left(5).wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ buffer.load_word(word * 8)
    })
}

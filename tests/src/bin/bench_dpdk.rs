//! Measures the DPDK port: 4 KiB WRITEs between two processes over DPDK's memif, against a bare
//! loop over memif. `cargo xtask bench` runs this program if libdpdk is installed.
//!
//! A process can start DPDK's environment only once, and memif's driver does not close cleanly.
//! Therefore each measurement has new processes, a sender and a receiver, which run this program.
//! They exchange lines over the receiver's standard input and output.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{ChildStdin, ChildStdout, Command, ExitCode, Stdio, exit};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use feroce_engine::device::{Addressing, Device, DeviceConfig, Driver, Endpoint};
use feroce_engine::memory::arena::Arena;
use feroce_engine::memory::buffer::SharedBytes;
use feroce_engine::port::Port;
use feroce_engine::port::dpdk::{DpdkConfig, DpdkMemory, DpdkPort};
use feroce_engine::verbs::RemoteAddr;
use feroce_tests::bench::{BUFFER_LEN, Bound, Figure, WRITE_LEN, bare, engine, paired};
use feroce_wire::{FlowHeader, FlowSpec, IpAddresses, Key, MacAddr, Psn, Qpn};

/// Name of the figure.
const NAME: &str = "dpdk memif: 4 KiB WRITE / bare loop";
const ADDRESSES: [&str; 2] = ["10.99.0.1", "10.99.0.2"];
const ROLES: [&str; 2] = ["client", "server"];
const ENGINE: &str = "engine";
const BARE: &str = "bare";
const NEAR: usize = 0;
const FAR: usize = 1;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match &arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["--sender", what] => send(what),
        ["--receiver", what, socket] => receive(what, Path::new(socket)),
        [only, ..] if !NAME.contains(only) => return ExitCode::SUCCESS,
        _ => {}
    }
    let (rate, bare, ratio) = paired(|| measure(ENGINE), || measure(BARE));
    let gigabits = |rate: f64| rate * 8.0 / 1e9;
    let note = format!("{:.1} Gb/s of {:.1} Gb/s", gigabits(rate), gigabits(bare));
    let figure = Figure { name: NAME.to_owned(), value: ratio, bound: Bound::AtLeast(0.6), note };
    println!("{}", figure.line());
    if figure.is_ok() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn this_program() -> Command {
    Command::new(std::env::current_exe().expect("this program"))
}

/// Measures payload bytes per second with two new processes.
fn measure(what: &str) -> f64 {
    let output = this_program().args(["--sender", what]).stderr(Stdio::inherit()).output();
    let output = output.expect("a process");
    let rate = String::from_utf8(output.stdout).expect("text");
    rate.trim_end().parse().unwrap_or_else(|_| panic!("the sender failed: {}", output.status))
}

// ---- the sender

/// Measures once, prints the rate and ends.
fn send(what: &str) -> ! {
    let socket = std::env::temp_dir().join(format!("fr-bench-dpdk-{}", std::process::id()));
    let mut peer = Peer::start(what, &socket);
    let rate = match what {
        ENGINE => write_rate(&mut peer, &socket),
        BARE => bare_rate(&mut peer, &socket),
        other => panic!("unknown argument {other}"),
    };
    println!("{rate}");
    let _ = std::fs::remove_file(&socket);
    exit(0) // This closes the receiver's input, which ends the receiver.
}

/// The receiver's process.
struct Peer {
    to: ChildStdin,
    from: BufReader<ChildStdout>,
}

impl Peer {
    #[allow(clippy::zombie_processes)] // The receiver ends after this process, which cannot wait.
    fn start(what: &str, socket: &Path) -> Self {
        let mut child = this_program()
            .args(["--receiver", what])
            .arg(socket)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("a process");
        let to = child.stdin.take().expect("a pipe");
        let from = BufReader::new(child.stdout.take().expect("a pipe"));
        Self { to, from }
    }

    fn write_line(&mut self, line: &str) {
        writeln!(self.to, "{line}").expect("the receiver lives");
    }

    fn read_line(&mut self) -> String {
        let mut line = String::new();
        self.from.read_line(&mut line).expect("the receiver lives");
        assert!(line.ends_with('\n'), "the receiver is gone");
        line.trim_end().to_owned()
    }
}

fn write_rate(peer: &mut Peer, socket: &Path) -> f64 {
    let device = device(open(NEAR, socket));
    let mut end = engine::End::new(&device, BUFFER_LEN);
    let (far, target) = line_to_end(&peer.read_line());
    peer.write_line(&end_to_line(&end));
    end.connect(&far, 0);
    assert_eq!(peer.read_line(), "connected");
    let start = Instant::now();
    let done = engine::write_for_a_round(&mut end, target, WRITE_LEN);
    let rate = (done * WRITE_LEN as u64) as f64 / start.elapsed().as_secs_f64();
    std::mem::forget((end, device)); // The process ends with both ends connected.
    rate
}

fn bare_rate(peer: &mut Peer, socket: &Path) -> f64 {
    let mut port = open(NEAR, socket);
    let far: MacAddr = peer.read_line().parse().expect("an Ethernet address");
    peer.write_line(&port.attributes().mac.to_string());
    let flow = flow(NEAR, [port.attributes().mac, far]);
    let source = buffer();
    assert_eq!(peer.read_line(), "ready");
    let start = Instant::now();
    bare::send(&mut port, &flow, &source);
    let elapsed = start.elapsed().as_secs_f64();
    peer.write_line("stop");
    let received: u64 = peer.read_line().parse().expect("a number");
    std::mem::forget(port);
    (received * WRITE_LEN as u64) as f64 / elapsed
}

// ---- the receiver

/// Receives until standard input ends.
fn receive(what: &str, socket: &Path) -> ! {
    let mut lines = BufReader::new(std::io::stdin()).lines().map(|line| line.expect("text"));
    match what {
        ENGINE => {
            let device = device(open(FAR, socket));
            let mut end = engine::End::new(&device, BUFFER_LEN);
            println!("{}", end_to_line(&end));
            let (near, _) = line_to_end(&lines.next().expect("the sender lives"));
            end.connect(&near, 0);
            std::thread::spawn(move || {
                lines.next();
                exit(0)
            });
            println!("connected");
            end.drive(&AtomicBool::new(false));
        }
        BARE => {
            let mut port = open(FAR, socket);
            println!("{}", port.attributes().mac);
            let near = lines.next().expect("the sender lives");
            let near: MacAddr = near.parse().expect("an Ethernet address");
            let flow = flow(FAR, [near, port.attributes().mac]);
            let (target, stop) = (buffer(), AtomicBool::new(false));
            println!("ready");
            std::thread::scope(|scope| {
                scope.spawn(|| println!("{}", bare::receive(&mut port, &flow, &target, &stop)));
                lines.next();
                stop.store(true, Ordering::Relaxed);
            });
            lines.next();
            std::mem::forget(port);
        }
        other => panic!("unknown argument {other}"),
    }
    exit(0)
}

// ---- both

/// The port of end `end`.
fn open(end: usize, socket: &Path) -> DpdkPort {
    let port = format!(
        "net_memif0,role={},socket={},socket-abstract=no,bsize=8192,rsize=11",
        ROLES[end],
        socket.display()
    );
    let address = format!("{}/24", ADDRESSES[end]).parse().expect("an address");
    let config = DpdkConfig {
        memory: DpdkMemory::Ordinary { mib: 256 },
        link_wait: Duration::from_secs(10),
        ..DpdkConfig::new(port, vec![address])
    };
    DpdkPort::open(&config, 1).expect("a port").remove(0)
}

fn device(port: DpdkPort) -> Device {
    let config = DeviceConfig {
        max_qp: 64,
        arena_bytes: 1 << 30,
        driver: Driver::Helper,
        ..DeviceConfig::default()
    };
    let addressing = Addressing::Port(std::sync::Arc::new(port.addresses()));
    Device::with_ports(vec![Box::new(port)], addressing, config).expect("a device")
}

fn flow(end: usize, macs: [MacAddr; 2]) -> FlowHeader {
    let ip = |end: usize| ADDRESSES[end].parse().expect("an address");
    let addresses = IpAddresses::V4 { src: ip(end), dst: ip(1 - end) };
    FlowHeader::new(&FlowSpec {
        udp_source_port: 0xc001,
        ..FlowSpec::new(macs[1 - end], macs[end], addresses)
    })
}

/// Creates a buffer in the same kind of memory as the engine's buffers.
fn buffer() -> SharedBytes {
    let arena = Arena::new(BUFFER_LEN + (2 << 20)).expect("an arena");
    SharedBytes::new(arena.alloc(BUFFER_LEN, 4096).expect("room for a buffer"), BUFFER_LEN)
}

/// Formats an end as a line.
fn end_to_line(end: &engine::End) -> String {
    let (own, target) = (end.endpoint(0), end.target());
    format!("{} {} {} {} {}", own.qpn.value(), own.psn.value(), own.gid, target.addr, target.rkey.0)
}

/// Parses a line of [`end_to_line`].
fn line_to_end(line: &str) -> (Endpoint, RemoteAddr) {
    let words: Vec<&str> = line.split(' ').collect();
    let number = |at: usize| words[at].parse::<u32>().expect("a number");
    let gid = words[2].parse().expect("a GID");
    let (qpn, psn) = (Qpn::masked(number(0)), Psn::new(number(1)));
    let endpoint = Endpoint::new(qpn, psn, gid);
    let addr = words[3].parse().expect("an address");
    (endpoint, RemoteAddr { addr, rkey: Key(number(4)) })
}

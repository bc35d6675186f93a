//! The ports of a rig: shm ports, or kernel ports. Each device's kernel port is joined by a veth to
//! the port at which the wire of the rig picks up frames.
//!
//! `FEROCE_RIG` chooses: `shm` (the default), the name of a kind of port, or `super-frames` for a
//! packet port with super-frames. With super-frames more packets go out in a row, which some tests
//! count. DPDK ports use DPDK's AF_PACKET driver on the same veths.

pub mod dpdk;
mod spread;

use std::fmt::Debug;
use std::fs::File;
use std::net::Ipv6Addr;
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use feroce_conform::device_pair::{FramesInFlight, shm_ports};
use feroce_engine::device::{DeviceConfig, PortKind};
use feroce_engine::port::af_xdp::{AfXdp, AfXdpConfig};
use feroce_engine::port::packet::{PacketConfig, PacketPort, SuperFrames};
use feroce_engine::port::{Port, PortStats};

use crate::{gid, gid_v6, gid_vlan};
use spread::Spread;

/// A value of `FEROCE_RIG`.
const SUPER_FRAMES: &str = "super-frames";

/// Maximum time that a frame takes through the kernel.
const MAX_TRANSIT: Duration = Duration::from_millis(2);

/// How tests use one kind of port. A kind that needs nothing special has [`Rig::new`].
#[derive(Debug)]
pub(crate) struct Rig {
    kind: PortKind,
    /// Opens a port on an interface, for the addresses of both ends.
    open: fn(&str) -> Box<dyn Port>,
    /// Starts what the port starts once per process, before other threads run.
    start: fn(),
    /// Reserves room for one rig in the process; the result is dropped with the rig.
    reserve: Option<fn() -> Box<dyn Debug + Send>>,
    /// Maximum number of rigs at a time.
    rigs_max: usize,
    /// Maximum number of frames that an end may get before its next turn.
    burst: usize,
    /// The name and the configuration of a device on an interface with these addresses, each with
    /// its prefix length. The number is unique in the process.
    device: fn(u32, &str, DeviceConfig, &[&str]) -> (String, DeviceConfig),
}

impl Rig {
    const fn new(kind: PortKind, open: fn(&str) -> Box<dyn Port>) -> Self {
        Self {
            kind,
            open,
            start: || (),
            reserve: None,
            rigs_max: usize::MAX,
            burst: usize::MAX,
            device: |_, interface, config, _| (interface.to_owned(), config),
        }
    }

    fn of(kind: PortKind) -> &'static Self {
        let rig = RIGS.iter().find(|rig| rig.kind == kind);
        rig.unwrap_or_else(|| panic!("port kind {kind} has no row in `RIGS`"))
    }
}

/// The kinds of port that tests can use, one row each.
static RIGS: &[Rig] = &[
    Rig::new(PortKind::AfXdp, open_af_xdp),
    Rig::new(PortKind::Packet, |interface| open_packet(interface, SuperFrames::Off)),
    Rig::new(PortKind::Udp, open_udp),
    dpdk::RIG,
];

/// The name of a device on `interface` for the kind of port that `config` chooses, and its
/// configuration. The local addresses are `addresses`, each with its prefix length. `number` is
/// unique in the process.
pub fn device(
    number: u32,
    interface: &str,
    config: DeviceConfig,
    addresses: &[&str],
) -> (String, DeviceConfig) {
    (Rig::of(config.port).device)(number, interface, config, addresses)
}

/// Starts what ports of this kind start once per process and keep until it ends.
pub fn start(kind: PortKind) {
    (Rig::of(kind).start)();
}

/// Ports for the two devices of a rig, and the ports that they are connected to.
#[derive(Debug)]
pub struct RigPorts {
    /// The ports of the devices, one per core.
    pub near: [Vec<Box<dyn Port>>; 2],
    /// The ports of the wire.
    pub far: [Box<dyn Port>; 2],
    /// Namespace and reservations of the ports.
    pub resources: PortResources,
}

/// Keeps alive what the ports of a rig depend on, and waits until every frame has arrived.
#[derive(Debug)]
pub struct PortResources {
    namespace: Option<Namespace>,
    _reservation: Option<Box<dyn Debug + Send>>,
    /// Maximum number of frames that an end may get before its next turn.
    burst: usize,
    /// Frames that were sent and did not arrive, by direction: damaged frames that the kernel kept
    /// for its own stack.
    lost: [u64; 4],
}

impl RigPorts {
    /// The ports that `FEROCE_RIG` chooses, for devices with one core.
    ///
    /// # Panics
    /// As [`RigPorts::with_cores`].
    pub fn new() -> Self {
        Self::with_cores(1)
    }

    /// The ports that `FEROCE_RIG` chooses, for devices with this number of cores.
    ///
    /// # Panics
    /// If there is no such kind, if the kernel refuses (these tests need root), or if there are
    /// several cores on the kernel's ports.
    pub fn with_cores(cores: usize) -> Self {
        if !Self::are_the_kernels() {
            return Self::shm(cores);
        }
        assert_eq!(cores, 1, "the kernel's ports of a rig have one queue");
        if Self::have_super_frames() {
            return Self::kernel(|interface| open_packet(interface, SuperFrames::On));
        }
        let kind = std::env::var("FEROCE_RIG").expect("set");
        let rig = Rig::of(kind.parse().expect("FEROCE_RIG"));
        let reservation = rig.reserve.map(|reserve| reserve());
        let mut ports = Self::kernel(rig.open);
        ports.resources._reservation = reservation;
        ports.resources.burst = rig.burst;
        ports
    }

    /// Two connected ports of the kind that `FEROCE_RIG` chooses. The resources must be dropped
    /// last.
    pub fn cable() -> ([Box<dyn Port>; 2], PortResources) {
        let Self { near: [mut near, _], far: [far, _], resources } = Self::new();
        ([near.remove(0), far], resources)
    }

    /// Returns true if the kernel is between the ports. The kernel keeps damaged frames for its own
    /// stack, and frames take time.
    pub fn are_the_kernels() -> bool {
        !matches!(std::env::var("FEROCE_RIG").as_deref(), Err(_) | Ok("" | "shm"))
    }

    /// Returns true if the ports send super-frames.
    pub fn have_super_frames() -> bool {
        std::env::var("FEROCE_RIG").as_deref() == Ok(SUPER_FRAMES)
    }

    /// Maximum number of rigs at a time.
    pub fn most() -> usize {
        match std::env::var("FEROCE_RIG").as_deref().map(str::parse) {
            Ok(Ok(kind)) => Rig::of(kind).rigs_max,
            _ => usize::MAX,
        }
    }

    fn shm(cores: usize) -> Self {
        let (mut near, mut far) = ([Vec::new(), Vec::new()], [Vec::new(), Vec::new()]);
        for _ in 0..cores {
            let [of_devices, of_wire] = shm_ports();
            near.iter_mut().zip(of_devices).for_each(|(ports, port)| ports.push(port));
            far.iter_mut().zip(of_wire).for_each(|(ports, port)| ports.push(port));
        }
        Self { near, far: far.map(Spread::over), resources: PortResources::new(None) }
    }

    fn kernel(open: fn(&str) -> Box<dyn Port>) -> Self {
        let namespace = Namespace::new();
        let back = File::open("/proc/thread-self/ns/net").expect("the thread's namespace");
        namespace.enter();
        let [near, far] = ["n", "f"].map(|side| [0, 1].map(|end| open(&format!("{side}{end}"))));
        enter(back);
        let near = near.map(|port| vec![port]);
        Self { near, far, resources: PortResources::new(Some(namespace)) }
    }
}

impl Default for RigPorts {
    fn default() -> Self {
        Self::new()
    }
}

/// Opens an AF_XDP port for the addresses of both ends.
fn open_af_xdp(interface: &str) -> Box<dyn Port> {
    let port = AfXdp::open(&AfXdpConfig::new(interface), 1).expect("a port").remove(0);
    port.address_filter().set(own_addresses().as_flattened()).expect("a filter");
    Box::new(port)
}

/// Opens a packet port for the addresses of both ends.
fn open_packet(interface: &str, super_frames: SuperFrames) -> Box<dyn Port> {
    let config = PacketConfig { super_frames, ..PacketConfig::new(interface) };
    let port = PacketPort::open(&config, 1).expect("a port").remove(0);
    port.address_filter().set(own_addresses().as_flattened()).expect("a filter");
    Box::new(port)
}

/// The kernel routes what UDP sockets send, and the interfaces of a rig have no addresses.
fn open_udp(_interface: &str) -> Box<dyn Port> {
    panic!("rigs have no udp ports: use engine/tests/udp.rs or `scripts/rxe.sh --port udp`")
}

fn own_addresses() -> [[Ipv6Addr; 3]; 2] {
    [0, 1].map(|end| [gid(end), gid_v6(end), gid_vlan(end)].map(|gid| gid.0.into()))
}

impl PortResources {
    fn new(namespace: Option<Namespace>) -> Self {
        Self { namespace, _reservation: None, burst: usize::MAX, lost: [0; 4] }
    }

    /// Maximum number of frames that an end may get before its next turn.
    pub fn burst(&self) -> usize {
        self.burst
    }
}

impl FramesInFlight for PortResources {
    fn wait(&mut self, count: &mut dyn FnMut() -> ([PortStats; 2], [PortStats; 2])) -> bool {
        if self.namespace.is_none() {
            return false;
        }
        let start = Instant::now();
        let mut waited = false;
        loop {
            let (near, far) = count();
            let missing =
                [(near[0], far[0]), (near[1], far[1]), (far[0], near[0]), (far[1], near[1])]
                    .map(|(from, to)| missing(&from, &to));
            if missing == self.lost {
                return waited;
            }
            if start.elapsed() > MAX_TRANSIT {
                self.lost = missing;
                return true;
            }
            waited = true;
            std::thread::yield_now();
        }
    }
}

/// Frames that left one end and did not arrive at the other. Frames that a port dropped itself may
/// be counted as sent or not; [`PortResources::lost`] absorbs the difference.
fn missing(from: &PortStats, to: &PortStats) -> u64 {
    (from.tx_frames).saturating_sub(to.rx_frames + to.rx_dropped)
}

/// A network namespace with the veth pairs `n0`-`f0` and `n1`-`f1`, removed when dropped.
#[derive(Debug)]
struct Namespace {
    name: String,
}

impl Namespace {
    fn new() -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let unique = COUNT.fetch_add(1, Ordering::Relaxed);
        let namespace = Self { name: format!("fr-rig-{}-{unique}", std::process::id()) };
        let name = &namespace.name;
        run(&format!("ip netns add {name}"));
        // The kernel must have no address and send nothing by itself.
        run(&format!("ip netns exec {name} sysctl -qw net.ipv6.conf.default.disable_ipv6=1"));
        for end in 0..2 {
            let (n, f) = (format!("n{end}"), format!("f{end}"));
            run(&format!("ip -n {name} link add {n} mtu 4500 type veth peer name {f} mtu 4500"));
            for device in [n, f] {
                run(&format!(
                    "ip netns exec {name} ethtool -K {device} \
                     tx off gso off gro off rxvlan off txvlan off"
                ));
                run(&format!("ip -n {name} link set {device} up"));
            }
        }
        ["n0", "f0", "n1", "f1"].iter().for_each(|device| namespace.wait_until_up(device));
        namespace
    }

    /// Waits until the kernel sends what an interface gets. After the carrier comes, it drops that
    /// until linkwatch has run (`linkwatch_do_dev` in `net/core/link_watch.c`).
    fn wait_until_up(&self, device: &str) {
        let start = Instant::now();
        while !run(&format!("ip -n {} link show {device}", self.name)).contains("state UP") {
            assert!(start.elapsed() < Duration::from_secs(10), "{device} does not come up");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    fn enter(&self) {
        enter(File::open(format!("/run/netns/{}", self.name)).expect("the namespace"));
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        let _ = Command::new("ip").args(["netns", "delete", &self.name]).status();
    }
}

fn enter(namespace: File) {
    nix::sched::setns(namespace, nix::sched::CloneFlags::CLONE_NEWNET).expect("setns, as root");
}

fn run(command: &str) -> String {
    let mut words = command.split(' ');
    let output = Command::new(words.next().expect("a program")).args(words).output();
    let output = output.unwrap_or_else(|error| panic!("{command}: {error}"));
    let message = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command}: {}", message.trim());
    String::from_utf8_lossy(&output.stdout).into_owned()
}

//! The ports that a rig stands on: shm, or ports of the kernel, each device's own joined by a veth to the one at which
//! the rig's wire picks frames up. `FEROCE_RIG` chooses: `shm` (the default), the name of a kind of port, or `super-frames`
//! for a packet port that puts packets together: more of them go out in a row then, which some tests count. DPDK's ports
//! use its AF_PACKET driver on the same veths.

pub mod dpdk;

use std::fs::File;
use std::net::Ipv6Addr;
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use feroce_conform::device_pair::{FramesInFlight, shm_ports};
use feroce_engine::device::PortKind;
use feroce_engine::port::af_xdp::{AfXdp, AfXdpConfig};
use feroce_engine::port::packet::{PacketConfig, PacketPort, SuperFrames};
use feroce_engine::port::{Port, PortStats, RX_BURST};

use crate::{gid, gid_v6, gid_vlan};

/// A value of `FEROCE_RIG`.
const SUPER_FRAMES: &str = "super-frames";

/// How long a frame may be on its way through the kernel.
const PATIENCE: Duration = Duration::from_millis(2);

/// Ports for the two devices of a rig, and the ports that they are connected to.
#[derive(Debug)]
pub struct RigPorts {
    /// The devices' ports.
    pub near: [Box<dyn Port>; 2],
    /// The wire's.
    pub far: [Box<dyn Port>; 2],
    /// What else belongs to them.
    pub keeper: Keeper,
}

/// Keeps alive what a rig's ports stand on, and knows when every frame has arrived.
#[derive(Debug)]
pub struct Keeper {
    namespace: Option<Namespace>,
    place: Option<dpdk::Place>,
    /// Frames that were sent and did not arrive, by direction: damaged ones that the kernel took for its own.
    lost: [u64; 4],
}

impl RigPorts {
    /// The ports that `FEROCE_RIG` asks for.
    ///
    /// # Panics
    /// If there is no such kind, or the kernel refuses: such tests need root.
    pub fn new() -> Self {
        if !Self::are_the_kernels() {
            return Self::shm();
        }
        let kind = std::env::var("FEROCE_RIG").expect("asked for");
        if Self::have_super_frames() {
            return Self::kernel(|interface| open_packet(interface, SuperFrames::On));
        }
        match kind.parse().expect("FEROCE_RIG") {
            PortKind::AfXdp => Self::kernel(open_af_xdp),
            PortKind::Packet => Self::kernel(|interface| open_packet(interface, SuperFrames::Off)),
            PortKind::Dpdk => {
                let place = dpdk::Place::take();
                let mut ports = Self::kernel(dpdk::open);
                ports.keeper.place = Some(place);
                ports
            }
            PortKind::Auto => panic!("FEROCE_RIG: which kind of port?"),
        }
    }

    /// Two ports joined to each other, of the kind that `FEROCE_RIG` asks for. The keeper is dropped last.
    pub fn cable() -> ([Box<dyn Port>; 2], Keeper) {
        let Self { near: [near, _], far: [far, _], keeper } = Self::new();
        ([near, far], keeper)
    }

    /// True if the kernel is between the ports: it takes damaged frames for its own, and time goes by.
    pub fn are_the_kernels() -> bool {
        !matches!(std::env::var("FEROCE_RIG").as_deref(), Err(_) | Ok("" | "shm"))
    }

    /// True if the ports put packets together.
    pub fn have_super_frames() -> bool {
        std::env::var("FEROCE_RIG").as_deref() == Ok(SUPER_FRAMES)
    }

    /// How many rigs there can be at a time.
    pub fn most() -> usize {
        match std::env::var("FEROCE_RIG").as_deref().map(str::parse) {
            Ok(Ok(PortKind::Dpdk)) => dpdk::MOST_RIGS,
            _ => usize::MAX,
        }
    }

    fn shm() -> Self {
        let [near, far] = shm_ports();
        Self { near, far, keeper: Keeper { namespace: None, place: None, lost: [0; 4] } }
    }

    fn kernel(open: fn(&str) -> Box<dyn Port>) -> Self {
        let namespace = Namespace::new();
        let back = File::open("/proc/thread-self/ns/net").expect("the thread's namespace");
        namespace.enter();
        let [near, far] = ["n", "f"].map(|side| [0, 1].map(|end| open(&format!("{side}{end}"))));
        enter(back);
        let namespace = Some(namespace);
        Self { near, far, keeper: Keeper { namespace, place: None, lost: [0; 4] } }
    }
}

impl Default for RigPorts {
    fn default() -> Self {
        Self::new()
    }
}

/// Takes frames to the addresses of both ends.
fn open_af_xdp(interface: &str) -> Box<dyn Port> {
    let port = AfXdp::open(&AfXdpConfig::new(interface), 1).expect("a port").remove(0);
    port.address_filter().set(own_addresses().as_flattened()).expect("a filter");
    Box::new(port)
}

/// The same, with packet sockets.
fn open_packet(interface: &str, super_frames: SuperFrames) -> Box<dyn Port> {
    let config = PacketConfig { super_frames, ..PacketConfig::new(interface) };
    let port = PacketPort::open(&config, 1).expect("a port").remove(0);
    port.address_filter().set(own_addresses().as_flattened()).expect("a filter");
    Box::new(port)
}

fn own_addresses() -> [[Ipv6Addr; 3]; 2] {
    [0, 1].map(|end| [gid(end), gid_v6(end), gid_vlan(end)].map(|gid| gid.0.into()))
}

impl Keeper {
    /// How many frames an end may get before it is turned.
    pub fn burst(&self) -> usize {
        if self.place.is_some() { RX_BURST } else { usize::MAX }
    }
}

impl FramesInFlight for Keeper {
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
            if start.elapsed() > PATIENCE {
                self.lost = missing;
                return true;
            }
            waited = true;
            std::thread::yield_now();
        }
    }
}

/// Frames that left one end and did not come to the other. Those that a port has dropped itself may be counted as
/// sent or not; `lost` learns it.
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
        // No address and no traffic of the kernel's own.
        run(&format!("ip netns exec {name} sysctl -qw net.ipv6.conf.default.disable_ipv6=1"));
        for end in 0..2 {
            let (n, f) = (format!("n{end}"), format!("f{end}"));
            run(&format!("ip -n {name} link add {n} mtu 4500 type veth peer name {f} mtu 4500"));
            for device in [n, f] {
                run(&format!(
                    "ip netns exec {name} ethtool -K {device} tx off gso off gro off rxvlan off txvlan off"
                ));
                run(&format!("ip -n {name} link set {device} up"));
            }
        }
        namespace
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

fn run(command: &str) {
    let mut words = command.split(' ');
    let output = Command::new(words.next().expect("a program")).args(words).output();
    let output = output.unwrap_or_else(|error| panic!("{command}: {error}"));
    let told = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command}: {}", told.trim());
}

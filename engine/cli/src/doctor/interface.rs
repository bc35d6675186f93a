//! What is looked at on an interface: link, addresses, MTU, queues, offloads.

use std::collections::BTreeMap;
use std::rc::Rc;

use feroce_engine::device::stat::{self, Request, Snapshot};
use feroce_engine::net::{GidEntry, GidTable, Interface, NetError};
use feroce_engine::port::ethtool::Ethtool;
use feroce_wire::PathMtu;

use super::host::Host;
use super::{Check, Verdict};

/// Largest MTU whose frames AF_XDP holds in one buffer.
const ONE_BUFFER: u32 = 3818;
/// The first kernel with frames of several buffers.
const SEVERAL_BUFFERS: (u32, u32) = (6, 6);
/// Features that make one frame of several UDP packets.
const MERGING: [&str; 2] = ["rx-gro-list", "rx-udp-gro-forwarding"];
/// Features beside which some drivers refuse XDP, by the kernel's names and those of `ethtool -K`.
const BESIDE_XDP: [(&str, &str); 2] = [("rx-lro", "lro"), ("rx-gro-hw", "rx-gro-hw")];

/// The checks.
pub const CHECKS: &[Check<Place>] = &[
    Check { id: "interface", what: "the interface", run: exists },
    Check { id: "link", what: "the link", run: link },
    Check { id: "address", what: "IP addresses", run: address },
    Check { id: "mtu", what: "MTU", run: mtu },
    Check { id: "queues", what: "queues", run: queues },
    Check { id: "unserved-queues", what: "receive queues without a socket", run: unserved_queues },
    Check { id: "merging", what: "offloads that merge frames", run: merging },
    Check { id: "xdp-offloads", what: "offloads that XDP does not go with", run: beside_xdp },
    Check { id: "vlan-strip", what: "VLAN tags of received frames", run: vlan_strip },
];

/// An interface as it was found, on its host.
#[derive(Debug)]
pub struct Place {
    pub host: Rc<Host>,
    pub name: String,
    pub interface: Result<Interface, NetError>,
    pub gids: Vec<GidEntry>,
    /// Receive and transmit queues.
    queues: (u32, u32),
    features: BTreeMap<String, bool>,
    strips_vlan: bool,
    vlans: Vec<String>,
    /// What the program that has the interface open tells of it.
    pub running: Option<Snapshot>,
}

impl Place {
    /// Looks.
    pub fn look(name: &str, host: &Rc<Host>) -> Self {
        let interface = Interface::read(name);
        let ethtool = Ethtool::open(name).ok();
        let ask = ethtool.as_ref();
        let gids =
            GidTable::read(name).map(|table| table.iter().map(|(_, gid)| gid.clone()).collect());
        let all = Interface::list().unwrap_or_default();
        let vlans =
            interface.as_ref().map(|it| it.vlan_children(&all).map(|v| v.name.clone()).collect());
        Self {
            host: Rc::clone(host),
            name: name.to_owned(),
            gids: gids.unwrap_or_default(),
            queues: ask.map_or((1, 1), Ethtool::queues),
            features: ask.and_then(|ask| ask.features().ok()).unwrap_or_default(),
            strips_vlan: ask.is_some_and(Ethtool::strips_vlan),
            vlans: vlans.unwrap_or_default(),
            running: stat::ask(name, &Request::default()).ok(),
            interface,
        }
    }

    /// Whether the feature of this name is on.
    fn is_on(&self, feature: &str) -> bool {
        self.features.get(feature) == Some(&true)
    }

    /// The interface, where it exists.
    pub fn found(&self) -> Option<&Interface> {
        self.interface.as_ref().ok()
    }
}

fn exists(place: &Place) -> Option<Verdict> {
    match &place.interface {
        Ok(interface) if interface.loopback => Verdict::error(
            "is the loopback",
            "take an Ethernet interface (`feroce devinfo` lists them); two namespaces and a veth pair do for tests",
        ),
        Ok(interface) if interface.vlan.is_some() => Verdict::error(
            "is a VLAN: its frames are served by the interface that carries them",
            "open that one, and take the GID of the VLAN's address",
        ),
        Ok(interface) => Verdict::ok(format!("{} at {}", interface.name, interface.mac)),
        Err(error) => {
            Verdict::error(error.to_string(), "`ip link` lists those of this network namespace")
        }
    }
}

fn link(place: &Place) -> Option<Verdict> {
    let interface = place.found()?;
    match (interface.up, interface.carrier) {
        (false, _) => Verdict::error("set down", format!("`ip link set dev {} up`", place.name)),
        (true, false) => Verdict::error(
            "no carrier",
            "look at the cable, the switch's port, or the other end of the veth pair",
        ),
        (true, true) => Verdict::ok("up"),
    }
}

fn address(place: &Place) -> Option<Verdict> {
    use std::net::IpAddr;
    place.found().filter(|interface| interface.up)?;
    let routable = |entry: &&GidEntry| match entry.gid.ip() {
        IpAddr::V4(_) => true,
        IpAddr::V6(ip) => !ip.is_unicast_link_local(),
    };
    let addresses: Vec<_> =
        place.gids.iter().filter(routable).map(|entry| entry.gid.ip().to_string()).collect();
    let remedy = format!("`ip address add ADDRESS/LENGTH dev {}`", place.name);
    match (addresses.is_empty(), place.gids.is_empty()) {
        (true, true) => Verdict::error("none", remedy),
        (true, false) => {
            Verdict::warning("only link-local ones, which routers do not know", remedy)
        }
        (false, _) => Verdict::ok(addresses.join(", ")),
    }
}

fn mtu(place: &Place) -> Option<Verdict> {
    let mtu = place.found()?.mtu;
    let raise = |to: u32| {
        format!("`ip link set dev {} mtu {to}`, at the peer and between, too", place.name)
    };
    let needed = |path: PathMtu| path.bytes() + PathMtu::OVERHEAD;
    if mtu > ONE_BUFFER && place.host.may_use("af_xdp") && place.host.kernel < SEVERAL_BUFFERS {
        return Verdict::error(
            format!("{mtu}: beyond {ONE_BUFFER}, AF_XDP needs Linux 6.6"),
            format!("`ip link set dev {} mtu {}`", place.name, needed(PathMtu::Mtu2048)),
        );
    }
    let Some(largest) = PathMtu::largest_for(mtu) else {
        return Verdict::error(format!("{mtu} carries no RoCE path MTU"), raise(1500));
    };
    if let Some(asked) = place.host.settings().path_mtu
        && asked.bytes() > largest.bytes()
    {
        let found =
            format!("{mtu} carries path MTU {largest}, and the setting `path_mtu` is {asked}");
        return Verdict::error(found, raise(needed(asked)));
    }
    let found = format!("{mtu}, which carries path MTU {largest}");
    match largest {
        PathMtu::Mtu256 | PathMtu::Mtu512 => Verdict::warning(found, raise(1500)),
        PathMtu::Mtu4096 => Verdict::ok(found),
        _ => Verdict::ok(format!("{found} (4096 takes {})", needed(PathMtu::Mtu4096))),
    }
}

fn queues(place: &Place) -> Option<Verdict> {
    place.found()?;
    let ((rx, tx), cores) = (place.queues, place.host.settings().cores);
    let found = format!("{rx} to receive and {tx} to send, for {cores} cores");
    let remedy =
        format!("`ethtool -L {} combined {cores}` (or rx and tx), or setting `cores`", place.name);
    let few = place.host.may_use("af_xdp") && (rx.min(tx) as usize) < cores;
    match (few, place.host.may_use("packet")) {
        (true, true) => Verdict::warning(format!("{found}: the packet port will be used"), remedy),
        (true, false) => Verdict::error(found, remedy),
        (false, _) => Verdict::ok(format!("{rx} to receive, {tx} to send")),
    }
}

/// A running device has a socket on each queue that there was when it was opened.
fn unserved_queues(place: &Place) -> Option<Verdict> {
    let running = place.running.as_ref().filter(|running| running.port.starts_with("af_xdp"))?;
    let served: u32 = running.cores.iter().map(|core| u32::from(core.queues)).sum();
    let (rx, _) = place.queues;
    match rx > served {
        true => Verdict::error(
            format!("{} of {rx}: what arrives there goes past the device", rx - served),
            format!(
                "restart {} (pid {}), or `ethtool -L {}` as it was",
                running.program, running.pid, place.name
            ),
        ),
        false => Verdict::ok("none"),
    }
}

/// A frame with a UDP checksum may be merged with its neighbours; RoCE packets have none, as a rule.
fn merging(place: &Place) -> Option<Verdict> {
    place.found()?;
    let on: Vec<_> = MERGING.into_iter().filter(|name| place.is_on(name)).collect();
    match on.is_empty() {
        true => Verdict::ok("none is on"),
        false => {
            let off: Vec<_> = on.iter().map(|name| format!("{name} off")).collect();
            Verdict::warning(
                format!(
                    "{}: packets that carry a UDP checksum arrive merged, and are lost",
                    on.join(", ")
                ),
                format!("`ethtool -K {} {}`", place.name, off.join(" ")),
            )
        }
    }
}

/// Drivers of virtual machines, above all; others turn them off themselves.
fn beside_xdp(place: &Place) -> Option<Verdict> {
    place.found().filter(|_| place.host.may_use("af_xdp"))?;
    let on = BESIDE_XDP.iter().filter(|(kernel, _)| place.is_on(kernel));
    let off: Vec<_> = on.map(|(_, ethtool)| format!("{ethtool} off")).collect();
    match off.is_empty() {
        true => Verdict::ok("none is on"),
        false => Verdict::info(format!(
            "some drivers refuse native XDP until `ethtool -K {} {}`",
            place.name,
            off.join(" ")
        )),
    }
}

fn vlan_strip(place: &Place) -> Option<Verdict> {
    place.found()?;
    let remedy = format!("`ethtool -K {} rxvlan off`", place.name);
    match (place.strips_vlan, place.vlans.is_empty()) {
        (true, false) => Verdict::error(
            format!("taken off, so that frames of {} look untagged", place.vlans.join(", ")),
            remedy,
        ),
        (true, true) => Verdict::info(format!("taken off; before you make a VLAN here: {remedy}")),
        (false, _) => Verdict::ok("stay"),
    }
}

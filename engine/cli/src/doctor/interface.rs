//! What is looked at on an interface: link, addresses, MTU, queues, offloads.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::rc::Rc;

use feroce_engine::device::stat::{self, Request, Snapshot};
use feroce_engine::net::{GidEntry, GidTable, Interface, InterfaceAddress, NetError};
use feroce_engine::port::af_xdp::{self, AfXdpConfig, XdpFeatures};
use feroce_engine::port::ethtool::Ethtool;
use feroce_wire::PathMtu;

use super::host::Host;
use super::{Check, Verdict, sharing};

/// Largest MTU whose frames AF_XDP holds in one buffer.
const ONE_BUFFER: u32 = 3818;
/// The first kernel with frames of several buffers.
const SEVERAL_BUFFERS: (u32, u32) = (6, 6);
/// The first kernel that tells which modes a driver has.
const TELLS_MODES: (u32, u32) = (6, 3);
/// Features that make one frame of several UDP packets.
const MERGING: [&str; 2] = ["rx-gro-list", "rx-udp-gro-forwarding"];
/// Features beside which some drivers refuse XDP, by the kernel's names and those of `ethtool -K`.
const BESIDE_XDP: [(&str, &str); 2] = [("rx-lro", "lro"), ("rx-gro-hw", "rx-gro-hw")];

/// The checks.
pub const CHECKS: &[Check<Place>] = &[
    Check { id: "interface", what: "the interface", run: exists },
    Check { id: "link", what: "the link", run: link },
    Check { id: "address", what: "IP addresses", run: address },
    Check { id: "duplicates", what: "addresses of several hosts", run: duplicates },
    Check { id: "mtu", what: "MTU", run: mtu },
    Check { id: "xdp-modes", what: "modes of XDP", run: xdp_modes },
    Check { id: "queues", what: "queues", run: queues },
    Check { id: "memlock", what: "memory that may be locked", run: memlock },
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
    /// Addresses of the interface and its VLANs.
    addresses: Vec<IpAddr>,
    /// Those that are out of use, since another host has them, too: each as `ip address` takes it.
    duplicates: Vec<String>,
    /// What the driver has of XDP.
    xdp: Option<XdpFeatures>,
    /// Receive and transmit queues.
    queues: (u32, u32),
    features: BTreeMap<String, bool>,
    strips_vlan: bool,
    veth: bool,
    vlans: Vec<String>,
    /// Who else has a socket on RoCE's UDP port, beside which the packet port does not open.
    pub roce_socket: Option<String>,
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
        let members: Vec<_> = match &interface {
            Ok(it) => it.vlan_children(&all).map(|v| v.index).chain([it.index]).collect(),
            Err(_) => Vec::new(),
        };
        let own = |all: Result<Vec<InterfaceAddress>, NetError>| {
            let all = all.unwrap_or_default().into_iter();
            all.filter(|address| members.contains(&address.interface))
        };
        let written = |InterfaceAddress { interface, ip, prefix_len }| {
            let device = all.iter().find(|one| one.index == interface).map(|one| &one.name);
            device.map(|device| format!("{ip}/{prefix_len} dev {device}"))
        };
        Self {
            host: Rc::clone(host),
            name: name.to_owned(),
            addresses: own(InterfaceAddress::list()).map(|address| address.ip).collect(),
            duplicates: own(InterfaceAddress::duplicates()).filter_map(written).collect(),
            xdp: interface.as_ref().ok().and_then(|it| XdpFeatures::of(it.index)),
            gids: gids.unwrap_or_default(),
            queues: ask.map_or((1, 1), Ethtool::queues),
            features: ask.and_then(|ask| ask.features().ok()).unwrap_or_default(),
            strips_vlan: ask.is_some_and(Ethtool::strips_vlan),
            veth: ask.and_then(Ethtool::driver).as_deref() == Some("veth"),
            vlans: vlans.unwrap_or_default(),
            roce_socket: sharing::roce_socket(&all),
            running: stat::ask(name, &Request::default()).ok(),
            interface,
        }
    }

    /// Whether the feature of this name is on.
    fn is_on(&self, feature: &str) -> bool {
        self.features.get(feature) == Some(&true)
    }

    /// What keeps AF_XDP from opening: an error, unless the packet port opens in its place.
    pub fn no_af_xdp(&self, found: String, remedy: impl Into<String>) -> Option<Verdict> {
        match self.host.could_open("packet") && self.roce_socket.is_none() {
            true => Verdict::warning(format!("{found}: the packet port will be used"), remedy),
            false => Verdict::error(found, remedy),
        }
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
        Ok(interface) if interface.vlan.is_some() => Verdict::warning(
            "is a VLAN: the interface that carries its frames serves it, too, and has the driver's modes and offloads",
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

/// Whether routers know such an address.
pub fn is_routable(ip: IpAddr) -> bool {
    !matches!(ip, IpAddr::V6(ip) if ip.is_unicast_link_local())
}

/// The GID table has the link-local one of the Ethernet address in any case: it does not tell.
fn address(place: &Place) -> Option<Verdict> {
    place.found().filter(|interface| interface.up)?;
    let routable = place.addresses.iter().filter(|ip| is_routable(**ip));
    let routable: Vec<_> = routable.map(ToString::to_string).collect();
    let remedy = format!("`ip address add ADDRESS/LENGTH dev {}`", place.name);
    match (routable.is_empty(), place.addresses.is_empty()) {
        (true, true) => Verdict::error("none, so that no peer can find this host", remedy),
        (true, false) => {
            Verdict::warning("only link-local ones, which routers do not know", remedy)
        }
        (false, _) => Verdict::ok(routable.join(", ")),
    }
}

fn duplicates(place: &Place) -> Option<Verdict> {
    let first = place.duplicates.first()?;
    Verdict::warning(
        format!("another host has {}, too: out of use here", place.duplicates.join(", ")),
        format!("`ip address delete {first}`, and add one that nobody has"),
    )
}

fn mtu(place: &Place) -> Option<Verdict> {
    let mtu = place.found()?.mtu;
    let raise = |to: u32| {
        format!("`ip link set dev {} mtu {to}`, at the peer and between, too", place.name)
    };
    let needed = |path: PathMtu| path.bytes() + PathMtu::OVERHEAD;
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
    let could = place.host.could_open("af_xdp");
    if mtu > ONE_BUFFER && could && place.host.kernel < SEVERAL_BUFFERS {
        return place.no_af_xdp(
            format!("{mtu}, and beyond {ONE_BUFFER} AF_XDP needs Linux 6.6"),
            format!("`ip link set dev {} mtu {}`", place.name, needed(PathMtu::Mtu2048)),
        );
    }
    let found = format!("{mtu}, which carries path MTU {largest}");
    match largest {
        PathMtu::Mtu256 | PathMtu::Mtu512 => Verdict::warning(found, raise(1500)),
        PathMtu::Mtu4096 => Verdict::ok(found),
        _ => Verdict::ok(format!("{found} (4096 takes {})", needed(PathMtu::Mtu4096))),
    }
}

fn xdp_modes(place: &Place) -> Option<Verdict> {
    let interface = place.found().filter(|_| place.host.could_open("af_xdp"))?;
    if place.host.kernel < TELLS_MODES {
        return Verdict::info("this kernel does not tell (Linux 6.3 does); `--open` tries them");
    }
    let features = place.xdp?;
    let XdpFeatures { zero_copy, several_buffers, .. } = features;
    if !features.native() {
        return Verdict::info(
            "generic: the driver has none of its own, and every frame passes the kernel's stack",
        );
    }
    if interface.mtu > ONE_BUFFER && !several_buffers {
        return Verdict::warning(
            format!(
                "generic: the driver's own takes frames of one buffer, and the MTU is {}",
                interface.mtu
            ),
            format!(
                "`ip link set dev {} mtu {}`, if path MTU 2048 will do",
                place.name,
                PathMtu::Mtu2048.bytes() + PathMtu::OVERHEAD
            ),
        );
    }
    Verdict::ok(if zero_copy { "native, zero-copy" } else { "native, with copies" })
}

fn queues(place: &Place) -> Option<Verdict> {
    place.found()?;
    let ((rx, tx), cores) = (place.queues, place.host.settings().cores);
    let remedy =
        format!("`ethtool -L {} combined {cores}` (or rx and tx), or setting `cores`", place.name);
    match place.host.could_open("af_xdp") && (rx.min(tx) as usize) < cores {
        true => {
            place.no_af_xdp(format!("{rx} to receive and {tx} to send, for {cores} cores"), remedy)
        }
        false => Verdict::ok(format!("{rx} to receive, {tx} to send")),
    }
}

/// The kernel counts the packet buffers of all queues together.
fn memlock(place: &Place) -> Option<Verdict> {
    let interface = place.found().filter(|_| place.host.could_open("af_xdp"))?;
    let Some(limit) = place.host.memlock else { return Verdict::ok("as much as is needed") };
    let ((queues, _), cores) = (place.queues, place.host.settings().cores);
    let needed = af_xdp::buffer_bytes(&AfXdpConfig::new(""), queues, cores, interface.mtu);
    match limit >= needed {
        true => Verdict::ok(format!("{} MiB", limit >> 20)),
        false => place.no_af_xdp(
            format!(
                "{} KiB; the packet buffers of {queues} receive queues take {} MiB",
                limit >> 10,
                needed >> 20
            ),
            "`ulimit -l unlimited`, LimitMEMLOCK=infinity in a systemd unit, or CAP_IPC_LOCK",
        ),
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

/// The packet port puts tags back, so only AF_XDP misses them.
fn vlan_strip(place: &Place) -> Option<Verdict> {
    place.found()?;
    if !place.host.could_open("af_xdp") {
        return Verdict::ok("known to the packet port, taken off or not");
    }
    let remedy = format!("`ethtool -K {} rxvlan off`", place.name);
    match (place.strips_vlan, place.vlans.is_empty()) {
        (true, false) => Verdict::error(
            format!("taken off, so that frames of {} look untagged", place.vlans.join(", ")),
            remedy,
        ),
        (true, true) => Verdict::info(format!("taken off; before you make a VLAN here: {remedy}")),
        (false, false) if place.veth => Verdict::info(
            "stay, if the other end of the pair writes them into the frames: `ethtool -K PEER txvlan off` there, for \
             what its kernel sends",
        ),
        (false, _) => Verdict::ok("stay"),
    }
}

#[cfg(test)]
mod tests {
    use feroce_engine::device::settings::Settings;

    use super::*;
    use crate::doctor::Severity;

    /// The loopback, as a NIC. `None` where AF_XDP cannot be opened, of which the checks would speak.
    fn place() -> Option<Place> {
        let host = Rc::new(Host::look(Ok(Settings::default())));
        let place = Place::look("lo", &host);
        if !host.could_open("af_xdp") {
            eprintln!("skipped: AF_XDP needs root");
            return None;
        }
        Some(place)
    }

    fn severity(verdict: Option<Verdict>) -> Severity {
        verdict.expect("the question arises").severity
    }

    #[test]
    fn tags_that_are_taken_off_matter_where_there_are_vlans() {
        let Some(mut place) = place() else { return };
        let vlans = || vec!["lo.5".to_owned()];
        for (strips_vlan, veth, vlans, expected) in [
            (false, false, vlans(), Severity::Ok),
            (true, false, Vec::new(), Severity::Info),
            (false, true, vlans(), Severity::Info),
            (true, false, vlans(), Severity::Error),
        ] {
            (place.strips_vlan, place.veth, place.vlans) = (strips_vlan, veth, vlans);
            assert_eq!(severity(vlan_strip(&place)), expected, "{place:?}");
        }
    }

    #[test]
    fn drivers_have_modes_of_xdp() {
        let Some(mut place) = place().filter(|place| place.host.kernel >= TELLS_MODES) else {
            return;
        };
        assert_eq!(severity(xdp_modes(&place)), Severity::Info, "the loopback's is generic");
        place.interface.as_mut().expect("there is one").mtu = 9000;
        let features = |several_buffers, zero_copy| {
            Some(XdpFeatures { programs: true, redirects: true, zero_copy, several_buffers })
        };
        place.xdp = features(false, true);
        assert_eq!(severity(xdp_modes(&place)), Severity::Warning, "one buffer holds no 9000");
        place.xdp = features(true, true);
        let verdict = xdp_modes(&place).expect("one");
        assert_eq!((verdict.severity, verdict.found.as_str()), (Severity::Ok, "native, zero-copy"));
    }
}

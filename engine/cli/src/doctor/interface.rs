//! Checks of an interface: link, addresses, MTU, queues, offloads.

use feroce_engine::port::af_xdp::{self, AfXdpConfig, XdpFeatures};
use feroce_wire::PathMtu;

use super::check::{Check, Verdict};
use super::state::{InterfaceState, is_routable};

/// Largest MTU whose frames fit one AF_XDP buffer.
const ONE_BUFFER: u32 = 3818;
/// First kernel with AF_XDP frames in several buffers.
const SEVERAL_BUFFERS: (u32, u32) = (6, 6);
/// First kernel that reports the XDP modes of a driver.
const REPORTS_MODES: (u32, u32) = (6, 3);
/// Offloads that merge several UDP packets into one frame.
const MERGING: [&str; 2] = ["rx-gro-list", "rx-udp-gro-forwarding"];
/// Offloads that make some drivers refuse native XDP: the kernel's name and the name for `ethtool
/// -K`.
const CONFLICT_WITH_XDP: [(&str, &str); 2] = [("rx-lro", "lro"), ("rx-gro-hw", "rx-gro-hw")];

/// The checks.
pub const CHECKS: &[Check<InterfaceState>] = &[
    Check { id: "interface", what: "the interface", run: exists },
    Check { id: "link", what: "the link", run: link },
    Check { id: "address", what: "IP addresses", run: address },
    Check { id: "duplicates", what: "addresses of several hosts", run: duplicates },
    Check { id: "mtu", what: "MTU", run: mtu },
    Check { id: "xdp-modes", what: "modes of XDP", run: xdp_modes },
    Check { id: "queues", what: "queues", run: queues },
    Check { id: "memlock", what: "limit of locked memory", run: memlock },
    Check { id: "unserved-queues", what: "receive queues without a socket", run: unserved_queues },
    Check { id: "merging", what: "offloads that merge frames", run: merging },
    Check { id: "xdp-offloads", what: "offloads that conflict with XDP", run: xdp_offloads },
    Check { id: "vlan-strip", what: "VLAN tags of received frames", run: vlan_strip },
];

fn exists(state: &InterfaceState) -> Option<Verdict> {
    match &state.interface {
        Ok(interface) if interface.loopback => Verdict::error(
            "is the loopback interface",
            "use an Ethernet interface (`feroce devinfo` lists them); for tests, two network \
             namespaces and a veth pair",
        ),
        Ok(interface) if interface.vlan.is_some() => Verdict::warning(
            "is a VLAN: its parent interface serves it, too, with the driver's XDP modes and \
             offloads",
            "open the parent, and use the GID of the VLAN's address",
        ),
        Ok(interface) => Verdict::ok(format!("{} at {}", interface.name, interface.mac)),
        Err(error) => Verdict::error(
            error.to_string(),
            "`ip link` lists the interfaces of this network namespace",
        ),
    }
}

fn link(state: &InterfaceState) -> Option<Verdict> {
    let interface = state.found()?;
    match (interface.up, interface.carrier) {
        (false, _) => Verdict::error("set down", format!("`ip link set dev {} up`", state.name)),
        (true, false) => Verdict::error(
            "no carrier",
            "check the cable, the switch port, or the other end of the veth pair",
        ),
        (true, true) => Verdict::ok("up"),
    }
}

/// The GID table always has the link-local GID of the MAC address, so this check reads the
/// addresses instead.
fn address(state: &InterfaceState) -> Option<Verdict> {
    state.found().filter(|interface| interface.up)?;
    let routable = state.addresses.iter().filter(|ip| is_routable(**ip));
    let routable: Vec<_> = routable.map(ToString::to_string).collect();
    let remedy = format!("`ip address add ADDRESS/LENGTH dev {}`", state.name);
    match (routable.is_empty(), state.addresses.is_empty()) {
        (true, true) => Verdict::error("none: no peer can reach this host", remedy),
        (true, false) => {
            Verdict::warning("only link-local addresses, which are not routable", remedy)
        }
        (false, _) => Verdict::ok(routable.join(", ")),
    }
}

fn duplicates(state: &InterfaceState) -> Option<Verdict> {
    let first = state.duplicates.first()?;
    Verdict::warning(
        format!("another host uses {}, too: disabled here", state.duplicates.join(", ")),
        format!("`ip address delete {first}`, and add an unused address"),
    )
}

fn mtu(state: &InterfaceState) -> Option<Verdict> {
    let mtu = state.found()?.mtu;
    let raise = |to: u32| {
        format!("`ip link set dev {} mtu {to}`, also at the peer and on the path", state.name)
    };
    let needed = |path: PathMtu| path.bytes() + PathMtu::OVERHEAD;
    let Some(largest) = PathMtu::largest_for(mtu) else {
        return Verdict::error(format!("{mtu} carries no RoCE path MTU"), raise(1500));
    };
    if let Some(requested) = state.host.settings().path_mtu
        && requested.bytes() > largest.bytes()
    {
        let found =
            format!("{mtu} carries path MTU {largest}, but the setting `path_mtu` is {requested}");
        return Verdict::error(found, raise(needed(requested)));
    }
    let could = state.host.could_open("af_xdp");
    if mtu > ONE_BUFFER && could && state.host.kernel < SEVERAL_BUFFERS {
        return state.no_af_xdp(
            format!("{mtu}: above {ONE_BUFFER}, AF_XDP needs Linux 6.6"),
            format!("`ip link set dev {} mtu {}`", state.name, needed(PathMtu::Mtu2048)),
        );
    }
    let found = format!("{mtu}, which carries path MTU {largest}");
    match largest {
        PathMtu::Mtu256 | PathMtu::Mtu512 => Verdict::warning(found, raise(1500)),
        PathMtu::Mtu4096 => Verdict::ok(found),
        _ => Verdict::ok(format!("{found} (4096 needs {})", needed(PathMtu::Mtu4096))),
    }
}

fn xdp_modes(state: &InterfaceState) -> Option<Verdict> {
    let interface = state.found().filter(|_| state.host.could_open("af_xdp"))?;
    if state.host.kernel < REPORTS_MODES {
        return Verdict::info(
            "unknown: the kernel reports modes from Linux 6.3 on; `--open` tries them",
        );
    }
    let features = state.xdp?;
    let XdpFeatures { zero_copy, several_buffers, .. } = features;
    if !features.native() {
        return Verdict::info(
            "generic: the driver has no native mode; every frame passes the kernel's stack",
        );
    }
    if interface.mtu > ONE_BUFFER && !several_buffers {
        return Verdict::warning(
            format!(
                "generic: the native mode takes frames of one buffer only, and the MTU is {}",
                interface.mtu
            ),
            format!(
                "`ip link set dev {} mtu {}`, if path MTU 2048 is enough",
                state.name,
                PathMtu::Mtu2048.bytes() + PathMtu::OVERHEAD
            ),
        );
    }
    Verdict::ok(if zero_copy { "native, zero-copy" } else { "native, with copies" })
}

fn queues(state: &InterfaceState) -> Option<Verdict> {
    state.found()?;
    let ((rx, tx), cores) = (state.queues, state.host.settings().cores);
    let remedy =
        format!("`ethtool -L {} combined {cores}` (or rx and tx), or setting `cores`", state.name);
    match state.host.could_open("af_xdp") && (rx.min(tx) as usize) < cores {
        true => state
            .no_af_xdp(format!("{rx} receive and {tx} transmit queues, for {cores} cores"), remedy),
        false => Verdict::ok(format!("{rx} receive, {tx} transmit")),
    }
}

/// The kernel counts the packet buffers of all queues together.
fn memlock(state: &InterfaceState) -> Option<Verdict> {
    let interface = state.found().filter(|_| state.host.could_open("af_xdp"))?;
    let Some(limit) = state.host.memlock else { return Verdict::ok("no limit") };
    let ((queues, _), cores) = (state.queues, state.host.settings().cores);
    let needed = af_xdp::buffer_bytes(&AfXdpConfig::new(""), queues, cores, interface.mtu);
    match limit >= needed {
        true => Verdict::ok(format!("{} MiB", limit >> 20)),
        false => state.no_af_xdp(
            format!(
                "{} KiB; the packet buffers of {queues} receive queues take {} MiB",
                limit >> 10,
                needed >> 20
            ),
            "`ulimit -l unlimited`, LimitMEMLOCK=infinity in a systemd unit, or CAP_IPC_LOCK",
        ),
    }
}

/// A running device has a socket only on the queues that existed when it was opened.
fn unserved_queues(state: &InterfaceState) -> Option<Verdict> {
    let running = state.running.as_ref().filter(|running| running.port.starts_with("af_xdp"))?;
    let served: u32 = running.cores.iter().map(|core| u32::from(core.queues)).sum();
    let (rx, _) = state.queues;
    match rx > served {
        true => Verdict::error(
            format!("{} of {rx}: frames that arrive there bypass the device", rx - served),
            format!(
                "restart {} (pid {}), or restore the number of queues with `ethtool -L {}`",
                running.program, running.pid, state.name
            ),
        ),
        false => Verdict::ok("none"),
    }
}

/// Frames with a UDP checksum may be merged. RoCE packets usually have no UDP checksum.
fn merging(state: &InterfaceState) -> Option<Verdict> {
    state.found()?;
    let on: Vec<_> = MERGING.into_iter().filter(|name| state.is_on(name)).collect();
    match on.is_empty() {
        true => Verdict::ok("all off"),
        false => {
            let off: Vec<_> = on.iter().map(|name| format!("{name} off")).collect();
            Verdict::warning(
                format!(
                    "{}: packets with a UDP checksum arrive merged and are lost",
                    on.join(", ")
                ),
                format!("`ethtool -K {} {}`", state.name, off.join(" ")),
            )
        }
    }
}

/// Concerns mainly drivers of virtual machines; other drivers turn these offloads off themselves.
fn xdp_offloads(state: &InterfaceState) -> Option<Verdict> {
    state.found().filter(|_| state.host.may_use("af_xdp"))?;
    let on = CONFLICT_WITH_XDP.iter().filter(|(kernel, _)| state.is_on(kernel));
    let off: Vec<_> = on.map(|(_, ethtool)| format!("{ethtool} off")).collect();
    match off.is_empty() {
        true => Verdict::ok("all off"),
        false => Verdict::info(format!(
            "some drivers refuse native XDP until `ethtool -K {} {}`",
            state.name,
            off.join(" ")
        )),
    }
}

/// The packet port restores the tags, so only AF_XDP loses them.
fn vlan_strip(state: &InterfaceState) -> Option<Verdict> {
    state.found()?;
    if !state.host.could_open("af_xdp") {
        return Verdict::ok("the packet port reads them even if the driver strips them");
    }
    let remedy = format!("`ethtool -K {} rxvlan off`", state.name);
    match (state.strips_vlan, state.vlans.is_empty()) {
        (true, false) => Verdict::error(
            format!("stripped: frames of {} look untagged", state.vlans.join(", ")),
            remedy,
        ),
        (true, true) => Verdict::info(format!("stripped; before adding a VLAN: {remedy}")),
        (false, false) if state.veth => Verdict::info(
            "kept, if the other end of the pair writes them into the frames: for frames from its \
             kernel, `ethtool -K PEER txvlan off` there",
        ),
        (false, _) => Verdict::ok("kept"),
    }
}

#[cfg(test)]
mod tests {
    use std::rc::Rc;

    use feroce_engine::device::settings::Settings;

    use super::super::check::Severity;
    use super::super::host::Host;
    use super::*;

    /// The loopback interface. `None` if AF_XDP cannot be opened, since the checks would report
    /// that.
    fn state() -> Option<InterfaceState> {
        let host = Rc::new(Host::read(Ok(Settings::default())));
        let state = InterfaceState::read("lo", &host);
        if !host.could_open("af_xdp") {
            feroce_test_skip::skip("AF_XDP needs root");
            return None;
        }
        Some(state)
    }

    fn severity(verdict: Option<Verdict>) -> Severity {
        verdict.expect("the check applies").severity
    }

    #[test]
    fn stripped_tags_are_an_error_with_vlans() {
        let Some(mut state) = state() else { return };
        let vlans = || vec!["lo.5".to_owned()];
        for (strips_vlan, veth, vlans, expected) in [
            (false, false, vlans(), Severity::Ok),
            (true, false, Vec::new(), Severity::Info),
            (false, true, vlans(), Severity::Info),
            (true, false, vlans(), Severity::Error),
        ] {
            (state.strips_vlan, state.veth, state.vlans) = (strips_vlan, veth, vlans);
            assert_eq!(severity(vlan_strip(&state)), expected, "{state:?}");
        }
    }

    #[test]
    fn xdp_modes_of_drivers() {
        let Some(mut state) = state() else { return };
        if state.host.kernel < REPORTS_MODES {
            return feroce_test_skip::skip("this kernel does not report the XDP modes of drivers");
        }
        assert_eq!(severity(xdp_modes(&state)), Severity::Info, "the loopback has generic mode");
        state.interface.as_mut().expect("there is one").mtu = 9000;
        let features = |several_buffers, zero_copy| {
            Some(XdpFeatures { programs: true, redirects: true, zero_copy, several_buffers })
        };
        state.xdp = features(false, true);
        assert_eq!(
            severity(xdp_modes(&state)),
            Severity::Warning,
            "one buffer does not hold 9000 bytes"
        );
        state.xdp = features(true, true);
        let verdict = xdp_modes(&state).expect("one");
        assert_eq!((verdict.severity, verdict.found.as_str()), (Severity::Ok, "native, zero-copy"));
    }
}

//! Checks of the path to a peer: route, next hop, MTU.

use std::net::IpAddr;
use std::rc::Rc;

use feroce_engine::net::{
    Confirmation, Gid, GidEntry, Interface, PathHeaders, RESOLVE_TIMEOUT, ResolveError, Resolver,
    chosen_source,
};
use feroce_engine::time::Duration;
use feroce_wire::PathMtu;

use super::check::{Check, Verdict};
use super::ping::{self, Reach};
use super::state::InterfaceState;

/// A little longer than the kernel probes a neighbour, by unicast and then by multicast, before it
/// gives up.
const CONFIRM_TIMEOUT: Duration = Duration::from_secs(7);

/// The checks.
pub const CHECKS: &[Check<PathState>] = &[
    Check { id: "peer-route", what: "route to the peer", run: route },
    Check { id: "peer-neighbour", what: "next hop to the peer", run: neighbour },
    Check { id: "path-mtu", what: "path MTU to the peer", run: path_mtu },
];

/// State of the path from an interface to a peer.
#[derive(Debug)]
pub struct PathState {
    state: Rc<InterfaceState>,
    peer: IpAddr,
    /// `None`: the interface has no address of the peer's family.
    headers: Option<Result<PathHeaders, ResolveError>>,
    /// MTU of the outgoing interface: the interface itself or a VLAN of it.
    link_mtu: u32,
    /// Answer of the next hop to a new request, if there is a path.
    next_hop: Option<Result<Confirmation, ResolveError>>,
    /// Result of the pings, if there is a path and pings can be sent.
    reach: Option<Reach>,
}

impl PathState {
    /// Reads the state: makes the kernel resolve the next hop, and pings the peer. Takes seconds if
    /// they do not answer.
    pub fn read(state: &Rc<InterfaceState>, peer: IpAddr) -> Self {
        let local = |ip: IpAddr| matches!(ip, IpAddr::V6(ip) if ip.is_unicast_link_local());
        let fits = |entry: &&GidEntry| {
            let source = entry.gid.ip();
            source.is_ipv4() == peer.is_ipv4() && local(source) == local(peer)
        };
        // The source address that the kernel would choose comes first.
        let chosen = chosen_source((peer, 0).into());
        let mut sources: Vec<_> = state.gids.iter().filter(fits).collect();
        sources.sort_by_key(|entry| Some(entry.gid.ip()) != chosen);
        let mut path = Self {
            state: Rc::clone(state),
            peer,
            headers: None,
            link_mtu: 0,
            next_hop: None,
            reach: None,
        };
        for source in sources {
            let resolved = Resolver::open().map_err(ResolveError::from).and_then(|mut resolver| {
                resolver.resolve(Gid::from(peer), source, RESOLVE_TIMEOUT)
            });
            match resolved {
                Ok(headers) => {
                    path.headers = Some(Ok(headers));
                    path.probe(&headers, &source.interface_name);
                    break;
                }
                // If the next hop does not respond to one source address, it responds to no other.
                Err(ResolveError::Unresolved { .. }) => {
                    path.headers = Some(resolved);
                    break;
                }
                Err(_) => _ = path.headers.get_or_insert(resolved),
            }
        }
        path
    }

    /// Confirms the next hop and pings the peer, through the interface `name`.
    fn probe(&mut self, headers: &PathHeaders, name: &str) {
        let confirmed = Resolver::open()
            .map_err(ResolveError::from)
            .and_then(|mut resolver| resolver.confirm(headers, CONFIRM_TIMEOUT));
        let answers = !matches!(confirmed, Err(ResolveError::Unresolved { .. }));
        self.next_hop = Some(confirmed);
        self.link_mtu = Interface::read(name).map_or(headers.mtu, |link| link.mtu);
        let carried = PathMtu::largest_for(headers.mtu).min(self.wanted());
        if let Some(largest) = carried.filter(|_| answers) {
            self.reach = ping::probe(headers, name, largest).ok();
        }
    }

    /// The path MTU that a program would use, from the interface MTU and the settings.
    fn wanted(&self) -> Option<PathMtu> {
        let carries = PathMtu::largest_for(self.link_mtu)?;
        Some(
            self.state.host.settings().path_mtu.map_or(carries, |requested| requested.min(carries)),
        )
    }
}

fn route(path: &PathState) -> Option<Verdict> {
    let (peer, name) = (path.peer, &path.state.name);
    let family = if peer.is_ipv4() { "IPv4" } else { "IPv6" };
    match &path.headers {
        None => Verdict::error(
            format!("{name} has no {family} address that can reach {peer}"),
            format!("`ip address add ADDRESS/LENGTH dev {name}`"),
        ),
        Some(Ok(_) | Err(ResolveError::Unresolved { .. } | ResolveError::Permission { .. })) => {
            Verdict::ok(format!("through {name}"))
        }
        Some(Err(ResolveError::LocalDestination { .. })) => Verdict::error(
            format!("{peer} is an address of this host: its frames never reach the wire"),
            "give the address of the peer; on one machine, use two network namespaces",
        ),
        Some(Err(error)) => Verdict::error(
            error.to_string(),
            format!(
                "`ip route get {peer}` shows the kernel's choice; `ip route add {peer} dev {name}`"
            ),
        ),
    }
}

fn neighbour(path: &PathState) -> Option<Verdict> {
    let error = match (path.headers.as_ref()?, &path.next_hop) {
        (Ok(_), Some(Ok(Confirmation::Answered(mac)))) => return Verdict::ok(format!("at {mac}")),
        (Ok(_), Some(Ok(Confirmation::NoArp(mac)))) => {
            return Verdict::ok(format!("at {mac}, derived from the address"));
        }
        (Ok(headers), Some(Ok(Confirmation::Permanent(mac)))) => {
            let next_hop = headers.next_hop.unwrap_or(path.peer);
            return static_entry(path, next_hop, &mac.to_string());
        }
        (Ok(headers), Some(Err(ResolveError::Permission { .. })) | None) => {
            let mac = headers.dst_mac;
            return Verdict::ok(format!("at {mac} (not confirmed: that requires CAP_NET_ADMIN)"));
        }
        (Ok(_), Some(Err(error))) | (Err(error), _) => error,
    };
    match error {
        ResolveError::Unresolved { next_hop, after } => Verdict::error(
            format!("{next_hop} did not answer for {} s", after.as_secs()),
            format!(
                "is it up and in the same VLAN? `ip neighbour show dev {}`, `ping {next_hop}`",
                path.state.name
            ),
        ),
        ResolveError::Permission { .. } => Verdict::warning(
            error.to_string(),
            format!(
                "run as root, or make the kernel resolve the address: `ping -c 1 {}`",
                path.peer
            ),
        ),
        // The check of the route reports it.
        _ if path.next_hop.is_none() => None,
        error => Verdict::warning(
            format!("cannot be confirmed: {error}"),
            format!("`ip neighbour show dev {}` shows the neighbour entry", path.state.name),
        ),
    }
}

/// The next hop has a static neighbour entry: the kernel does not resolve it.
fn static_entry(path: &PathState, next_hop: IpAddr, mac: &str) -> Option<Verdict> {
    let found = format!("at {mac}, a static neighbour entry");
    match path.reach {
        Some(Reach::Silent) => Verdict::warning(
            format!("{found}, and {} does not answer a ping", path.peer),
            format!(
                "`ip neighbour delete {next_hop} dev {}`: the kernel then resolves the address",
                path.state.name
            ),
        ),
        _ => Verdict::ok(found),
    }
}

fn path_mtu(path: &PathState) -> Option<Verdict> {
    let headers = path.headers.as_ref()?.as_ref().ok()?;
    let wanted = path.wanted();
    let carries = PathMtu::largest_for(headers.mtu);
    if carries < wanted {
        return Verdict::warning(
            format!(
                "{}: the route's MTU is {}, the interface's {}",
                shown(carries),
                headers.mtu,
                path.link_mtu
            ),
            format!(
                "raise the MTU of the route (`ip route get {}` shows it; `ip route flush cache` \
                 drops an MTU learned from a router), and use the same path MTU at the peer",
                path.peer
            ),
        );
    }
    match path.reach {
        Some(Reach::Carries(found)) if found == wanted => {
            Verdict::ok(format!("{}, confirmed by pings of that length", shown(found)))
        }
        Some(Reach::Carries(found)) => Verdict::warning(
            format!(
                "{}: packets for {}, which the interface carries, are lost on the path",
                shown(found),
                shown(wanted)
            ),
            format!(
                "raise the MTU of {} and of the path to {}, or lower the path MTU at both ends \
                 (setting `path_mtu`)",
                path.peer, path.link_mtu
            ),
        ),
        // Many hosts do not answer pings, nor do ports without a kernel interface.
        Some(Reach::Silent) => Verdict::info(format!(
            "the route carries {}; {} does not answer pings, so the rest of the path is unknown",
            shown(wanted),
            path.peer
        )),
        None => Verdict::ok(format!("the route carries {} (not pinged)", shown(wanted))),
    }
}

fn shown(mtu: Option<PathMtu>) -> String {
    mtu.map_or_else(|| "none".to_owned(), |mtu| mtu.to_string())
}

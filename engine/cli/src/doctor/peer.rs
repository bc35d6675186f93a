//! What is looked at on the way to a peer: route, neighbour, MTU.

use std::net::IpAddr;
use std::rc::Rc;

use feroce_engine::net::{Gid, GidEntry, PathHeaders, RESOLVE_TIMEOUT, ResolveError, Resolver};
use feroce_wire::PathMtu;

use super::interface::Place;
use super::{Check, Verdict};

/// The checks.
pub const CHECKS: &[Check<Way>] = &[
    Check { id: "peer-route", what: "route to the peer", run: route },
    Check { id: "peer-neighbour", what: "next hop to the peer", run: neighbour },
    Check { id: "path-mtu", what: "path MTU to the peer", run: path_mtu },
];

/// The way from an interface to a peer.
#[derive(Debug)]
pub struct Way {
    place: Rc<Place>,
    peer: IpAddr,
    /// `None` if the interface has no address of the peer's family.
    headers: Option<Result<PathHeaders, ResolveError>>,
}

impl Way {
    /// Looks; makes the kernel ask for the next hop if it does not know it, which may take seconds.
    pub fn look(place: &Rc<Place>, peer: IpAddr) -> Self {
        let local = |ip: IpAddr| matches!(ip, IpAddr::V6(ip) if ip.is_unicast_link_local());
        let fits = |entry: &&GidEntry| {
            let own = entry.gid.ip();
            own.is_ipv4() == peer.is_ipv4() && local(own) == local(peer)
        };
        // The address that is in the peer's network, if one is: its path exists.
        let sources: Vec<_> = place.gids.iter().filter(fits).collect();
        let mut headers = None;
        for source in sources {
            let resolved = Resolver::open()
                .map_err(ResolveError::from)
                .and_then(|mut it| it.resolve(Gid::from(peer), source, RESOLVE_TIMEOUT));
            let found = resolved.is_ok();
            headers = headers.filter(|_| !found).or(Some(resolved));
            if found {
                break;
            }
        }
        Self { place: Rc::clone(place), peer, headers }
    }
}

fn route(way: &Way) -> Option<Verdict> {
    let (peer, name) = (way.peer, &way.place.name);
    let family = if peer.is_ipv4() { "IPv4" } else { "IPv6" };
    match &way.headers {
        None => Verdict::error(
            format!("{name} has no {family} address that could talk to {peer}"),
            format!("`ip address add ADDRESS/LENGTH dev {name}`"),
        ),
        Some(Ok(_) | Err(ResolveError::Unresolved { .. } | ResolveError::Permission { .. })) => {
            Verdict::ok(format!("through {name}"))
        }
        Some(Err(ResolveError::LocalDestination { .. })) => Verdict::error(
            format!("{peer} is this host, whose frames the wire never returns"),
            "give the peer's address; on one machine, put the two ends into network namespaces",
        ),
        Some(Err(error)) => Verdict::error(
            error.to_string(),
            format!(
                "`ip route get {peer}` shows what the kernel would do; `ip route add {peer} dev {name}`"
            ),
        ),
    }
}

fn neighbour(way: &Way) -> Option<Verdict> {
    match way.headers.as_ref()? {
        Ok(headers) => Verdict::ok(format!("at {}", headers.dst_mac)),
        Err(ResolveError::Unresolved { next_hop, after }) => Verdict::error(
            format!("{next_hop} did not answer for {} s", after.as_secs()),
            format!(
                "is it up, and in the same VLAN? `ip neighbour show dev {}`, `ping {next_hop}`",
                way.place.name
            ),
        ),
        Err(error @ ResolveError::Permission { .. }) => Verdict::warning(
            error.to_string(),
            format!("run as root, or let the kernel resolve it: `ping -c 1 {}`", way.peer),
        ),
        Err(_) => None,
    }
}

/// IP and ICMP headers, which `ping -s` does not count.
fn ping_header(peer: IpAddr) -> u32 {
    if peer.is_ipv4() { 20 + 8 } else { 40 + 8 }
}

fn path_mtu(way: &Way) -> Option<Verdict> {
    let headers = way.headers.as_ref()?.as_ref().ok()?;
    let interface = way.place.found()?;
    let carries = PathMtu::largest_for(headers.mtu);
    let could = PathMtu::largest_for(interface.mtu);
    let shown = carries.map_or_else(|| "none".to_owned(), |mtu| mtu.to_string());
    match carries == could {
        // What routers on the way carry would take time and their answers to find out.
        true => Verdict::ok(format!(
            "the route carries {shown} (not probed: `ping -M do -s {} {}` is as long as its packets)",
            carries.map_or(0, |mtu| mtu.bytes() + PathMtu::OVERHEAD - ping_header(way.peer)),
            way.peer
        )),
        false => Verdict::warning(
            format!(
                "{shown}: the route's MTU is {}, the interface's {}",
                headers.mtu, interface.mtu
            ),
            format!(
                "raise the route's (`ip route get {}` shows it), and give the peer the same path MTU",
                way.peer
            ),
        ),
    }
}

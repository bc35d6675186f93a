//! What is looked at on the way to a peer: route, neighbour, MTU.

use std::net::IpAddr;
use std::rc::Rc;

use feroce_engine::net::{
    Confirmation, Gid, GidEntry, PathHeaders, RESOLVE_TIMEOUT, ResolveError, Resolver,
};
use feroce_engine::time::Duration;
use feroce_wire::PathMtu;

use super::echo::{self, Reach};
use super::interface::Place;
use super::{Check, Verdict};

/// A bit more than the kernel takes to give up a neighbour: three seconds, as it is set up by default.
const CONFIRM_TIMEOUT: Duration = Duration::from_secs(4);

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
    /// What the next hop said when it was asked again, where there is a path.
    next_hop: Option<Result<Confirmation, ResolveError>>,
    /// What pings found out, where there is a path and they can be sent.
    reach: Option<Reach>,
}

impl Way {
    /// Looks: makes the kernel ask for the next hop, and pings the peer. Where they do not answer, that takes seconds.
    pub fn look(place: &Rc<Place>, peer: IpAddr) -> Self {
        let local = |ip: IpAddr| matches!(ip, IpAddr::V6(ip) if ip.is_unicast_link_local());
        let fits = |entry: &&GidEntry| {
            let own = entry.gid.ip();
            own.is_ipv4() == peer.is_ipv4() && local(own) == local(peer)
        };
        // The address that is in the peer's network, if one is: its path exists.
        let mut way =
            Self { place: Rc::clone(place), peer, headers: None, next_hop: None, reach: None };
        for source in place.gids.iter().filter(fits) {
            let resolved = Resolver::open()
                .map_err(ResolveError::from)
                .and_then(|mut it| it.resolve(Gid::from(peer), source, RESOLVE_TIMEOUT));
            if let Ok(headers) = resolved {
                way.headers = Some(Ok(headers));
                way.walk(&headers, &source.interface_name);
                break;
            }
            way.headers.get_or_insert(resolved);
        }
        way
    }

    /// Asks along the path, which leaves through the interface `name`.
    fn walk(&mut self, headers: &PathHeaders, name: &str) {
        let asked = Resolver::open()
            .map_err(ResolveError::from)
            .and_then(|mut it| it.confirm(headers, CONFIRM_TIMEOUT));
        let is_there = !matches!(asked, Err(ResolveError::Unresolved { .. }));
        self.next_hop = Some(asked);
        if let Some(largest) = self.wanted(headers).filter(|_| is_there) {
            self.reach = echo::probe(headers, name, largest).ok();
        }
    }
}

impl Way {
    /// The path MTU that a program uses which knows of this host alone.
    fn wanted(&self, headers: &PathHeaders) -> Option<PathMtu> {
        let carries = PathMtu::largest_for(headers.mtu)?;
        let asked = self.place.host.settings().path_mtu;
        asked.filter(|asked| asked.bytes() <= carries.bytes()).or(Some(carries))
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
    let error = match (way.headers.as_ref()?, &way.next_hop) {
        (Ok(_), Some(Ok(Confirmation::Answered(mac)))) => return Verdict::ok(format!("at {mac}")),
        (Ok(headers), Some(Ok(Confirmation::Fixed(mac)))) => {
            return entered(way, headers.next_hop, &mac.to_string());
        }
        (Ok(headers), Some(Err(ResolveError::Permission { .. })) | None) => {
            let mac = headers.dst_mac;
            return Verdict::ok(format!("at {mac} (asking it again takes CAP_NET_ADMIN)"));
        }
        (Ok(_), Some(Err(error))) | (Err(error), _) => error,
    };
    match error {
        ResolveError::Unresolved { next_hop, after } => Verdict::error(
            format!("{next_hop} did not answer for {} s", after.as_secs()),
            format!(
                "is it up, and in the same VLAN? `ip neighbour show dev {}`, `ping {next_hop}`",
                way.place.name
            ),
        ),
        ResolveError::Permission { .. } => Verdict::warning(
            error.to_string(),
            format!("run as root, or let the kernel resolve it: `ping -c 1 {}`", way.peer),
        ),
        _ => None,
    }
}

/// The next hop's address was entered by hand, or follows from a rule (multicast): nobody is asked.
fn entered(way: &Way, next_hop: Option<IpAddr>, mac: &str) -> Option<Verdict> {
    let Some(next_hop) = next_hop else { return Verdict::ok(format!("at {mac}")) };
    let found = format!("at {mac}, which was entered by hand");
    match way.reach {
        Some(Reach::Silent) => Verdict::warning(
            format!("{found}, and {} does not answer a ping", way.peer),
            format!(
                "`ip neighbour delete {next_hop} dev {}`, and the kernel asks for it",
                way.place.name
            ),
        ),
        _ => Verdict::ok(found),
    }
}

fn path_mtu(way: &Way) -> Option<Verdict> {
    let headers = way.headers.as_ref()?.as_ref().ok()?;
    let interface = way.place.found()?;
    let carries = PathMtu::largest_for(headers.mtu);
    if carries != PathMtu::largest_for(interface.mtu) {
        return Verdict::warning(
            format!(
                "{}: the route's MTU is {}, the interface's {}",
                shown(carries),
                headers.mtu,
                interface.mtu
            ),
            format!(
                "raise the route's (`ip route get {}` shows it), and give the peer the same path MTU",
                way.peer
            ),
        );
    }
    let wanted = way.wanted(headers);
    match way.reach {
        Some(Reach::Carries(found)) if found == wanted => {
            Verdict::ok(format!("{}, pings of that length say", shown(found)))
        }
        Some(Reach::Carries(found)) => Verdict::warning(
            format!(
                "{}: packets for {}, which the interface carries, are lost on the way",
                shown(found),
                shown(wanted)
            ),
            format!(
                "raise the MTU of {} and of what is between to {}, or lower the path MTU at both ends (setting `path_mtu`)",
                way.peer, interface.mtu
            ),
        ),
        // Many hosts do not answer, and DPDK's other ports neither.
        Some(Reach::Silent) => Verdict::info(format!(
            "the route carries {}; {} does not answer pings, which would tell of the rest",
            shown(carries),
            way.peer
        )),
        None => Verdict::ok(format!("the route carries {} (not pinged)", shown(carries))),
    }
}

fn shown(mtu: Option<PathMtu>) -> String {
    mtu.map_or_else(|| "none".to_owned(), |mtu| mtu.to_string())
}

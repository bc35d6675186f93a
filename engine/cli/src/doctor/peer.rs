//! What is looked at on the way to a peer: route, neighbour, MTU.

use std::net::IpAddr;
use std::rc::Rc;

use feroce_engine::net::{
    Confirmation, Gid, GidEntry, Interface, PathHeaders, RESOLVE_TIMEOUT, ResolveError, Resolver,
    chosen_source,
};
use feroce_engine::time::Duration;
use feroce_wire::PathMtu;

use super::echo::{self, Reach};
use super::interface::Place;
use super::{Check, Verdict};

/// A bit more than the kernel takes to give up a neighbour that it has asked where it was, and then everybody.
const CONFIRM_TIMEOUT: Duration = Duration::from_secs(7);

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
    /// MTU of the interface that packets leave through, the place's or a VLAN's.
    link_mtu: u32,
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
        // First the address that a socket of the kernel's would have.
        let chosen = chosen_source((peer, 0).into());
        let mut sources: Vec<_> = place.gids.iter().filter(fits).collect();
        sources.sort_by_key(|entry| Some(entry.gid.ip()) != chosen);
        let mut way = Self {
            place: Rc::clone(place),
            peer,
            headers: None,
            link_mtu: 0,
            next_hop: None,
            reach: None,
        };
        for source in sources {
            let resolved = Resolver::open()
                .map_err(ResolveError::from)
                .and_then(|mut it| it.resolve(Gid::from(peer), source, RESOLVE_TIMEOUT));
            match resolved {
                Ok(headers) => {
                    way.headers = Some(Ok(headers));
                    way.walk(&headers, &source.interface_name);
                    break;
                }
                // Who did not answer that one answers no other.
                Err(ResolveError::Unresolved { .. }) => {
                    way.headers = Some(resolved);
                    break;
                }
                Err(_) => _ = way.headers.get_or_insert(resolved),
            }
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
        self.link_mtu = Interface::read(name).map_or(headers.mtu, |link| link.mtu);
        let carried = PathMtu::largest_for(headers.mtu).min(self.wanted());
        if let Some(largest) = carried.filter(|_| is_there) {
            self.reach = echo::probe(headers, name, largest).ok();
        }
    }

    /// The path MTU that a program uses which knows of the interface and the settings alone.
    fn wanted(&self) -> Option<PathMtu> {
        let carries = PathMtu::largest_for(self.link_mtu)?;
        Some(self.place.host.settings().path_mtu.map_or(carries, |asked| asked.min(carries)))
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
        (Ok(_), Some(Ok(Confirmation::Fixed(mac)))) => {
            return Verdict::ok(format!("at {mac}, by rule"));
        }
        (Ok(headers), Some(Ok(Confirmation::Entered(mac)))) => {
            let next_hop = headers.next_hop.unwrap_or(way.peer);
            return entered(way, next_hop, &mac.to_string());
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
        // The route's check has told.
        _ if way.next_hop.is_none() => None,
        error => Verdict::warning(
            format!("cannot be asked: {error}"),
            format!("`ip neighbour show dev {}` shows what is known of it", way.place.name),
        ),
    }
}

/// The next hop's address was entered by hand: nobody asks it.
fn entered(way: &Way, next_hop: IpAddr, mac: &str) -> Option<Verdict> {
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
    let wanted = way.wanted();
    let carries = PathMtu::largest_for(headers.mtu);
    if carries < wanted {
        return Verdict::warning(
            format!(
                "{}: the route's MTU is {}, the interface's {}",
                shown(carries),
                headers.mtu,
                way.link_mtu
            ),
            format!(
                "raise the route's (`ip route get {}` shows it; `ip route flush cache` forgets what a router once said), and give \
                 the peer the same path MTU",
                way.peer
            ),
        );
    }
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
                way.peer, way.link_mtu
            ),
        ),
        // Many hosts do not answer, and ports without a kernel interface neither.
        Some(Reach::Silent) => Verdict::info(format!(
            "the route carries {}; {} does not answer pings, which would tell of the rest",
            shown(wanted),
            way.peer
        )),
        None => Verdict::ok(format!("the route carries {} (not pinged)", shown(wanted))),
    }
}

fn shown(mtu: Option<PathMtu>) -> String {
    mtu.map_or_else(|| "none".to_owned(), |mtu| mtu.to_string())
}

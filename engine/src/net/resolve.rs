//! Paths: which headers lead from a GID of ours to a peer's.

use std::net::IpAddr;

use super::NetError;
use super::gid::{Gid, GidEntry};
use super::interface::{Interface, InterfaceAddress};
use super::neighbour::{Neighbour, Status};
use super::netlink::Connection;
use super::route::Route;
use crate::time::{Clock, Duration};
use feroce_wire::MacAddr;

/// How long a neighbour is usually waited for: as long as Linux asks before it gives up (three
/// requests, a second apart).
pub const RESOLVE_TIMEOUT: Duration = Duration::from_secs(3);

/// How long until the kernel's table is looked at again: first, and at most.
const FIRST_PAUSE: Duration = Duration::from_micros(200);
const LONGEST_PAUSE: Duration = Duration::from_millis(20);

/// Hop limit of unicast packets where the route sets none: Linux' default.
const HOP_LIMIT: u8 = 64;

/// Hop limit of multicast packets: the link only, as for sockets.
const HOP_LIMIT_MULTICAST: u8 = 1;

/// What the headers of packets to a peer are made of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PathHeaders {
    /// Next hop's Ethernet address.
    pub dst_mac: MacAddr,
    /// Own Ethernet address.
    pub src_mac: MacAddr,
    /// VLAN to tag frames with.
    pub vlan: Option<u16>,
    /// Own IP address.
    pub src_ip: IpAddr,
    /// The peer's IP address; of the same family.
    pub dst_ip: IpAddr,
    /// IP hop limit, unless the user asked for another.
    pub hop_limit: u8,
    /// Largest IP packet of the interface and of the route, in bytes.
    pub mtu: u32,
    /// Interface that the frames leave through: with `next_hop`, what to look for in
    /// [`NetEvent::NeighbourChanged`](super::NetEvent::NeighbourChanged).
    pub interface: u32,
    /// Whose MAC address `dst_mac` is: a gateway or the peer. `None` for multicast.
    pub next_hop: Option<IpAddr>,
}

impl PathHeaders {
    /// Headers that lead from `source` to `destination`, both addresses of the device with Ethernet address
    /// `mac`.
    pub(crate) fn to_self(
        destination: Gid,
        source: &GidEntry,
        mac: MacAddr,
        mtu: u32,
    ) -> Result<Self, ResolveError> {
        let (src_ip, dst_ip) = (source.gid.ip(), destination.ip());
        if src_ip.is_ipv4() != dst_ip.is_ipv4() {
            return Err(ResolveError::FamilyMismatch { source_ip: src_ip, destination: dst_ip });
        }
        Ok(Self {
            dst_mac: mac,
            src_mac: mac,
            vlan: source.vlan,
            src_ip,
            dst_ip,
            hop_limit: HOP_LIMIT,
            mtu,
            interface: source.interface,
            next_hop: None,
        })
    }

    /// The interface has another Ethernet address.
    pub(crate) fn move_own(&mut self, mac: MacAddr) {
        if self.dst_mac == self.src_mac {
            self.dst_mac = mac;
        }
        self.src_mac = mac;
    }
}

/// Why there is no path.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ResolveError {
    /// One GID is an IPv4 address and the other an IPv6 address.
    #[error("no path from {source_ip} to {destination}: the address families differ")]
    FamilyMismatch {
        /// Own address.
        source_ip: IpAddr,
        /// The peer's.
        destination: IpAddr,
    },
    /// The destination is unspecified, a broadcast or an anycast address.
    #[error("{destination} is not the address of one host or of a multicast group")]
    NotAHost {
        /// The destination.
        destination: IpAddr,
    },
    /// The destination is an address of this host that is not the device's own: no wire leads there.
    #[error("{destination} is this host")]
    LocalDestination {
        /// The destination.
        destination: IpAddr,
    },
    /// The source is no address of this host any more.
    #[error("{source_ip} is not an address of this host")]
    SourceGone {
        /// The source.
        source_ip: IpAddr,
    },
    /// The interface is set down or its link is broken.
    #[error("interface {interface} is down")]
    InterfaceDown {
        /// Its name.
        interface: String,
    },
    /// No route leads there through the interface of the source.
    #[error("no route to {destination} through {interface}")]
    NoRoute {
        /// The destination.
        destination: IpAddr,
        /// Name of the interface.
        interface: String,
    },
    /// The next hop did not answer.
    #[error("{next_hop} did not answer for {after:?}")]
    Unresolved {
        /// A gateway or the destination.
        next_hop: IpAddr,
        /// How long it was waited for.
        after: Duration,
    },
    /// The next hop is not in the kernel's table, and the process may not have it resolved.
    #[error(
        "not permitted to resolve {next_hop}: CAP_NET_ADMIN in this network namespace is needed"
    )]
    Permission {
        /// A gateway or the destination.
        next_hop: IpAddr,
    },
    /// The kernel's tables could not be read.
    #[error(transparent)]
    Net(#[from] NetError),
}

/// What is known of a next hop after it was asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Confirmation {
    /// It has answered, and is here.
    Answered(MacAddr),
    /// It is never asked: somebody has entered its address (`ip neighbour ... nud permanent`).
    Entered(MacAddr),
    /// It is never asked: a rule gives its address, as for groups.
    Fixed(MacAddr),
}

/// Whom [`Resolver::confirm`] has asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Asked {
    Not,
    /// Where the neighbour was.
    There,
    Everybody,
}

/// Finds paths in the network namespace of the thread that opened it.
#[derive(Debug)]
pub struct Resolver {
    requests: Connection,
}

/// What is known at a look.
#[derive(Debug)]
pub(crate) enum Look {
    /// The path.
    Found(PathHeaders),
    /// The next hop was asked, and has not answered yet.
    Asked(IpAddr),
    /// It was asked, and the kernel has given up.
    GivenUp(IpAddr),
}

/// What is known of a next hop.
enum NextHop {
    At(MacAddr),
    Asked,
    GivenUp,
}

/// Looks until the path is found, or the next hop has not answered for `timeout`. `look` is told whether it was called before.
///
/// The kernel's table is looked at again and again, at growing intervals: who looks need hold nothing meanwhile.
pub(crate) fn wait(
    timeout: Duration,
    mut look: impl FnMut(bool) -> Result<Look, ResolveError>,
) -> Result<PathHeaders, ResolveError> {
    let clock = Clock::start();
    let start = clock.now();
    let mut pause = FIRST_PAUSE;
    let mut has_asked = false;
    loop {
        let found = look(has_asked)?;
        let after = clock.now() - start;
        let left = timeout.saturating_sub(after);
        let (next_hop, is_over) = match found {
            Look::Found(headers) => return Ok(headers),
            Look::Asked(next_hop) => (next_hop, left.is_zero()),
            Look::GivenUp(next_hop) => (next_hop, true),
        };
        if is_over {
            return Err(ResolveError::Unresolved { next_hop, after });
        }
        std::thread::sleep(pause.min(left));
        (pause, has_asked) = ((pause * 2).min(LONGEST_PAUSE), true);
    }
}

impl Resolver {
    /// A resolver for the network namespace of the calling thread.
    ///
    /// # Errors
    /// What the kernel refused.
    pub fn open() -> Result<Self, NetError> {
        Ok(Self { requests: Connection::open()? })
    }

    /// The headers of packets from `source` to `destination`.
    ///
    /// Blocks for at most about `timeout` ([`RESOLVE_TIMEOUT`] is a good one), and only if the next
    /// hop's MAC address is unknown. A stale one is used at once, and the kernel made to confirm it
    /// in the background: a [`Watcher`](super::Watcher) tells if it turns out different.
    ///
    /// # Errors
    /// See [`ResolveError`].
    pub fn resolve(
        &mut self,
        destination: Gid,
        source: &GidEntry,
        timeout: Duration,
    ) -> Result<PathHeaders, ResolveError> {
        wait(timeout, |has_asked| self.look(destination, source, has_asked))
    }

    /// Looks once, and asks the next hop if it is not known. It may have been asked before.
    ///
    /// # Errors
    /// See [`ResolveError`].
    pub(crate) fn look(
        &mut self,
        destination: Gid,
        source: &GidEntry,
        has_asked: bool,
    ) -> Result<Look, ResolveError> {
        let group = destination.multicast_group();
        let (dst_ip, src_ip) = (group.unwrap_or(destination.ip()), source.gid.ip());
        if dst_ip.is_ipv4() != src_ip.is_ipv4() {
            return Err(ResolveError::FamilyMismatch { source_ip: src_ip, destination: dst_ip });
        }
        if dst_ip.is_unspecified() {
            return Err(ResolveError::NotAHost { destination: dst_ip });
        }
        let name = source.interface_name.as_str();
        let link = Interface::read_index(&mut self.requests, source.interface, name)?;
        if !link.is_usable() {
            return Err(ResolveError::InterfaceDown { interface: link.name });
        }
        let mut headers = PathHeaders {
            dst_mac: MacAddr::default(),
            src_mac: link.mac,
            vlan: source.vlan,
            src_ip,
            dst_ip,
            hop_limit: HOP_LIMIT_MULTICAST,
            mtu: link.mtu,
            interface: link.index,
            next_hop: None,
        };
        if dst_ip.is_multicast() {
            headers.dst_mac = multicast_mac(dst_ip);
            return Ok(Look::Found(headers));
        }
        self.check_addresses(src_ip, dst_ip)?;
        match Route::find(&mut self.requests, dst_ip, src_ip, link.index)? {
            Route::Unicast { gateway, mtu, hop_limit } => {
                let next_hop = gateway.unwrap_or(dst_ip);
                match self.neighbour_mac(link.index, next_hop, has_asked)? {
                    NextHop::At(mac) => headers.dst_mac = mac,
                    NextHop::Asked => return Ok(Look::Asked(next_hop)),
                    NextHop::GivenUp => return Ok(Look::GivenUp(next_hop)),
                }
                headers.next_hop = Some(next_hop);
                headers.hop_limit = hop_limit.unwrap_or(HOP_LIMIT);
                headers.mtu = mtu.map_or(link.mtu, |mtu| mtu.min(link.mtu));
                Ok(Look::Found(headers))
            }
            Route::Local => Err(ResolveError::LocalDestination { destination: dst_ip }),
            Route::Broadcast => Err(ResolveError::NotAHost { destination: dst_ip }),
            Route::None => Err(ResolveError::NoRoute { destination: dst_ip, interface: link.name }),
        }
    }

    /// The headers of packets from `source` to `destination`, another address of the same interface: they lead
    /// from its Ethernet address back to it.
    ///
    /// # Errors
    /// [`ResolveError::FamilyMismatch`], or what the kernel refused.
    pub fn resolve_own(
        &mut self,
        destination: Gid,
        source: &GidEntry,
    ) -> Result<PathHeaders, ResolveError> {
        let name = source.interface_name.as_str();
        let link = Interface::read_index(&mut self.requests, source.interface, name)?;
        PathHeaders::to_self(destination, source, link.mac, link.mtu)
    }

    /// What a route bound to one interface does not tell: IPv6 finds an address of another
    /// interface of this host "through the gateway", and IPv4 only says "invalid" to a lost source.
    fn check_addresses(&mut self, src_ip: IpAddr, dst_ip: IpAddr) -> Result<(), ResolveError> {
        let addresses = InterfaceAddress::dump(&mut self.requests)?;
        let is_ours = |ip: IpAddr| addresses.iter().any(|address| address.ip == ip);
        if dst_ip.is_loopback() || is_ours(dst_ip) {
            return Err(ResolveError::LocalDestination { destination: dst_ip });
        }
        // The default GID need not be an address of the interface.
        let link_local = matches!(src_ip, IpAddr::V6(ip) if ip.is_unicast_link_local());
        if !link_local && !is_ours(src_ip) {
            return Err(ResolveError::SourceGone { source_ip: src_ip });
        }
        Ok(())
    }

    /// The MAC address of `next_hop`, or that it is asked for.
    fn neighbour_mac(
        &mut self,
        interface: u32,
        next_hop: IpAddr,
        has_asked: bool,
    ) -> Result<NextHop, ResolveError> {
        match Neighbour::find(&mut self.requests, interface, next_hop)?.map(|found| found.status) {
            Some(
                Status::Known(mac)
                | Status::Confirming(mac)
                | Status::Entered(mac)
                | Status::Fixed(mac),
            ) => Ok(NextHop::At(mac)),
            Some(Status::Stale(mac)) => {
                if let Err(error) = Neighbour::trigger(&mut self.requests, interface, next_hop) {
                    tracing::debug!(%next_hop, %error, "stale neighbour used without confirmation");
                }
                Ok(NextHop::At(mac))
            }
            Some(Status::Failed) if has_asked => Ok(NextHop::GivenUp),
            Some(Status::Pending) if has_asked => Ok(NextHop::Asked),
            // Not asked yet, or flushed meanwhile.
            Some(Status::Pending | Status::Failed) | None => {
                self.trigger(interface, next_hop)?;
                Ok(NextHop::Asked)
            }
        }
    }

    /// Has the kernel ask the next hop of `headers` whether it is there, and waits for its answer for at most about
    /// `timeout`: what was known of it may be old. First where it was, then everybody; the kernel takes three seconds to give up either.
    ///
    /// # Errors
    /// [`ResolveError::Unresolved`] if it does not answer, [`ResolveError::Permission`], or what the kernel refused.
    pub fn confirm(
        &mut self,
        headers: &PathHeaders,
        timeout: Duration,
    ) -> Result<Confirmation, ResolveError> {
        let Some(next_hop) = headers.next_hop else {
            return Ok(Confirmation::Fixed(headers.dst_mac));
        };
        let (mut confirmed, mut asked) = (Confirmation::Fixed(headers.dst_mac), Asked::Not);
        let interface = headers.interface;
        wait(timeout, |_| {
            let found = Neighbour::find(&mut self.requests, interface, next_hop)?;
            let status = found.map(|found| found.status);
            match (status, asked) {
                (Some(Status::Entered(mac)), _) => confirmed = Confirmation::Entered(mac),
                (Some(Status::Fixed(mac)), _) => confirmed = Confirmation::Fixed(mac),
                (Some(Status::Known(mac)), Asked::There | Asked::Everybody) => {
                    confirmed = Confirmation::Answered(mac);
                }
                (Some(Status::Failed), Asked::Everybody) => return Ok(Look::GivenUp(next_hop)),
                // The kernel is at it, for somebody else or for us.
                (Some(Status::Confirming(_) | Status::Pending), _) => {
                    return Ok(Look::Asked(next_hop));
                }
                (Some(Status::Known(_) | Status::Stale(_)), _) => {
                    self.probe(interface, next_hop)?;
                    asked = Asked::There;
                    return Ok(Look::Asked(next_hop));
                }
                // It may have moved.
                (Some(Status::Failed) | None, _) => {
                    self.trigger(interface, next_hop)?;
                    asked = Asked::Everybody;
                    return Ok(Look::Asked(next_hop));
                }
            }
            Ok(Look::Found(*headers))
        })?;
        Ok(confirmed)
    }

    fn probe(&mut self, interface: u32, next_hop: IpAddr) -> Result<(), ResolveError> {
        match Neighbour::probe(&mut self.requests, interface, next_hop) {
            Err(NetError::Permission { .. }) => Err(ResolveError::Permission { next_hop }),
            // It went meanwhile.
            Err(NetError::System { errno: libc::ENOENT | libc::EINVAL, .. }) => {
                self.trigger(interface, next_hop)
            }
            other => Ok(other?),
        }
    }

    fn trigger(&mut self, interface: u32, next_hop: IpAddr) -> Result<(), ResolveError> {
        match Neighbour::trigger(&mut self.requests, interface, next_hop) {
            Err(NetError::Permission { .. }) => Err(ResolveError::Permission { next_hop }),
            other => Ok(other?),
        }
    }
}

/// The group address that a multicast address maps to (RFC 1112, RFC 2464).
pub(crate) fn multicast_mac(group: IpAddr) -> MacAddr {
    match group {
        IpAddr::V4(ip) => {
            let [_, b, c, d] = ip.octets();
            MacAddr([0x01, 0x00, 0x5e, b & 0x7f, c, d])
        }
        IpAddr::V6(ip) => {
            let [.., a, b, c, d] = ip.octets();
            MacAddr([0x33, 0x33, a, b, c, d])
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn multicast_groups_map_to_their_mac_addresses() {
        let cases = [
            ("224.0.0.251", [0x01, 0x00, 0x5e, 0x00, 0x00, 0xfb]),
            ("239.129.2.3", [0x01, 0x00, 0x5e, 0x01, 0x02, 0x03]), // 23 bits only
            ("ff02::1:ff12:3456", [0x33, 0x33, 0xff, 0x12, 0x34, 0x56]),
        ];
        for (group, mac) in cases {
            assert_eq!(multicast_mac(group.parse().unwrap()), MacAddr(mac), "{group}");
        }
    }
}

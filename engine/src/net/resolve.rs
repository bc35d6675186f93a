//! Paths: the headers that lead from a local GID to a peer's.

use std::net::IpAddr;

use super::NetError;
use super::gid::{Gid, GidEntry};
use super::interface::{Interface, InterfaceAddress};
use super::neighbour::{Neighbour, Status};
use super::netlink::Connection;
use super::route::Route;
use crate::time::{Clock, Duration};
use feroce_wire::MacAddr;

/// Usual timeout for a neighbour: Linux gives up after the same time (three requests, a second
/// apart).
pub const RESOLVE_TIMEOUT: Duration = Duration::from_secs(3);

/// Pause between two lookups in the kernel's tables: the first, and the maximum.
const FIRST_PAUSE: Duration = Duration::from_micros(200);
const MAX_PAUSE: Duration = Duration::from_millis(20);

/// Hop limit of unicast packets if the route sets none: Linux' default.
const HOP_LIMIT: u8 = 64;

/// Hop limit of multicast packets: the link only, as for sockets.
const HOP_LIMIT_MULTICAST: u8 = 1;

/// Contents of the headers of packets to a peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PathHeaders {
    /// Next hop's Ethernet address.
    pub dst_mac: MacAddr,
    /// Local Ethernet address.
    pub src_mac: MacAddr,
    /// VLAN tag of frames.
    pub vlan: Option<u16>,
    /// Local IP address.
    pub src_ip: IpAddr,
    /// Peer's IP address, of the same family.
    pub dst_ip: IpAddr,
    /// IP hop limit, unless the user sets another.
    pub hop_limit: u8,
    /// Largest IP packet of the interface and of the route, in bytes.
    pub mtu: u32,
    /// Index of the outgoing interface. Together with `next_hop` it identifies the matching
    /// [`NetEvent::NeighbourChanged`](super::NetEvent::NeighbourChanged).
    pub interface: u32,
    /// Owner of `dst_mac`: a gateway or the peer. `None` for multicast.
    pub next_hop: Option<IpAddr>,
}

impl PathHeaders {
    /// Returns the headers from `source` to `destination`, both addresses of the device with
    /// Ethernet address `mac`.
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

    /// Updates the local Ethernet address; for a path to the device itself also the destination.
    pub(crate) fn move_own(&mut self, mac: MacAddr) {
        if self.dst_mac == self.src_mac {
            self.dst_mac = mac;
        }
        self.src_mac = mac;
    }
}

/// Why no path was found.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ResolveError {
    /// One GID is an IPv4 address and the other an IPv6 address.
    #[error("no path from {source_ip} to {destination}: the address families differ")]
    FamilyMismatch {
        /// Local address.
        source_ip: IpAddr,
        /// Peer's address.
        destination: IpAddr,
    },
    /// The destination is unspecified, a broadcast or an anycast address.
    #[error("{destination} is not the address of one host or of a multicast group")]
    NotAHost {
        /// The destination.
        destination: IpAddr,
    },
    /// The destination is an address of this host, but not of this device: no link leads there.
    #[error("{destination} is this host")]
    LocalDestination {
        /// The destination.
        destination: IpAddr,
    },
    /// The source is no longer an address of this host.
    #[error("{source_ip} is not an address of this host")]
    SourceGone {
        /// The source.
        source_ip: IpAddr,
    },
    /// The interface or its link is down.
    #[error("interface {interface} is down")]
    InterfaceDown {
        /// Its name.
        interface: String,
    },
    /// No route leads there through the source's interface.
    #[error("no route to {destination} through {interface}")]
    NoRoute {
        /// The destination.
        destination: IpAddr,
        /// Name of the interface.
        interface: String,
    },
    /// The source is an address of a VLAN sub-interface, whose frames this kind of port cannot tag.
    #[error("this kind of port sends no VLAN tags: open interface {interface} itself")]
    Tagged {
        /// The sub-interface.
        interface: String,
    },
    /// The next hop did not answer.
    #[error("{next_hop} did not answer for {after:?}")]
    Unresolved {
        /// A gateway or the destination.
        next_hop: IpAddr,
        /// Time waited.
        after: Duration,
    },
    /// The next hop is not in the kernel's table, and the process lacks the permission to have it
    /// resolved.
    #[error(
        "not permitted to resolve {next_hop}: CAP_NET_ADMIN in this network namespace is needed"
    )]
    Permission {
        /// A gateway or the destination.
        next_hop: IpAddr,
    },
    /// The daemon that owns the port cannot resolve the path.
    #[error("the daemon does not resolve the path: {reason}")]
    Daemon {
        /// Why.
        reason: String,
    },
    /// The kernel's tables could not be read.
    #[error(transparent)]
    Net(#[from] NetError),
}

/// Result of confirming a next hop.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Confirmation {
    /// It has answered with this address.
    Answered(MacAddr),
    /// No request was sent: the address was entered by hand (`ip neighbour ... nud permanent`).
    Permanent(MacAddr),
    /// No request was sent: a rule gives the address, as for multicast groups.
    NoArp(MacAddr),
}

/// Requests that [`Resolver::confirm`] has sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Request {
    None,
    /// A unicast request to the known address.
    Unicast,
    /// A broadcast (ARP) or multicast (neighbour discovery) request.
    Broadcast,
}

/// Ethernet address in paths whose packets the kernel routes: it knows the real one. Locally
/// administered.
pub(crate) const ROUTED_MAC: MacAddr = MacAddr([2, 0, 0, 0, 0x12, 0xb7]);

/// Finds paths in the network namespace of the thread that opened it.
#[derive(Debug)]
pub struct Resolver {
    requests: Connection,
    /// The kernel routes the packets: no neighbour is looked up.
    is_routed: bool,
}

/// Result of one lookup in the kernel's tables.
#[derive(Debug)]
pub(crate) enum Lookup {
    /// The path.
    Found(PathHeaders),
    /// A request to the next hop is pending.
    Requested(IpAddr),
    /// The kernel has given up on the next hop.
    GivenUp(IpAddr),
}

/// State of a next hop.
enum NextHop {
    At(MacAddr),
    Requested,
    GivenUp,
}

/// Calls `look_up` until the path is found, or the next hop has not answered for `timeout`. The
/// argument of `look_up` is true if it was called before.
///
/// The kernel's tables are read repeatedly, at growing intervals; `look_up` need not hold any lock
/// in between.
pub(crate) fn wait(
    timeout: Duration,
    mut look_up: impl FnMut(bool) -> Result<Lookup, ResolveError>,
) -> Result<PathHeaders, ResolveError> {
    let clock = Clock::start();
    let start = clock.now();
    let mut pause = FIRST_PAUSE;
    let mut is_requested = false;
    loop {
        let found = look_up(is_requested)?;
        let after = clock.now() - start;
        let left = timeout.saturating_sub(after);
        let (next_hop, is_over) = match found {
            Lookup::Found(headers) => return Ok(headers),
            Lookup::Requested(next_hop) => (next_hop, left.is_zero()),
            Lookup::GivenUp(next_hop) => (next_hop, true),
        };
        if is_over {
            return Err(ResolveError::Unresolved { next_hop, after });
        }
        std::thread::sleep(pause.min(left));
        (pause, is_requested) = ((pause * 2).min(MAX_PAUSE), true);
    }
}

impl Resolver {
    /// Opens a resolver for the network namespace of the calling thread.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn open() -> Result<Self, NetError> {
        Ok(Self { requests: Connection::open()?, is_routed: false })
    }

    /// From now on paths are for packets that the kernel routes. They have [`ROUTED_MAC`] in place
    /// of a neighbour's address, which may be unknown; looking one up would need a privilege.
    pub(crate) fn set_routed(&mut self) {
        self.is_routed = true;
    }

    /// Returns true if paths are for packets that the kernel routes.
    pub(crate) fn is_routed(&self) -> bool {
        self.is_routed
    }

    /// Opens a resolver for the same kind of paths.
    ///
    /// # Errors
    /// The kernel's error.
    pub(crate) fn open_alike(&self) -> Result<Self, NetError> {
        Ok(Self { is_routed: self.is_routed, ..Self::open()? })
    }

    /// Returns the headers of packets from `source` to `destination`.
    ///
    /// Blocks for at most about `timeout` ([`RESOLVE_TIMEOUT`] is suitable), and only if the next
    /// hop's MAC address is unknown. A stale address is used at once, and the kernel confirms it in
    /// the background. A [`Watcher`](super::Watcher) reports a change.
    ///
    /// # Errors
    /// See [`ResolveError`].
    pub fn resolve(
        &mut self,
        destination: Gid,
        source: &GidEntry,
        timeout: Duration,
    ) -> Result<PathHeaders, ResolveError> {
        wait(timeout, |is_requested| self.look_up(destination, source, is_requested))
    }

    /// Reads the tables once, and triggers resolution of the next hop if its address is unknown.
    /// `is_requested`: the resolution may have been triggered before.
    ///
    /// # Errors
    /// See [`ResolveError`].
    pub(crate) fn look_up(
        &mut self,
        destination: Gid,
        source: &GidEntry,
        is_requested: bool,
    ) -> Result<Lookup, ResolveError> {
        let group = destination.multicast_group();
        let (dst_ip, src_ip) = (group.unwrap_or(destination.ip()), source.gid.ip());
        if dst_ip.is_ipv4() != src_ip.is_ipv4() {
            return Err(ResolveError::FamilyMismatch { source_ip: src_ip, destination: dst_ip });
        }
        if dst_ip.is_unspecified() {
            return Err(ResolveError::NotAHost { destination: dst_ip });
        }
        let name = source.interface_name.as_str();
        if self.is_routed && source.vlan.is_some() {
            return Err(ResolveError::Tagged { interface: source.interface_name.clone() });
        }
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
            return Ok(Lookup::Found(headers));
        }
        self.check_addresses(src_ip, dst_ip)?;
        match Route::find(&mut self.requests, dst_ip, src_ip, link.index)? {
            Route::Unicast { gateway, mtu, hop_limit } => {
                let next_hop = gateway.unwrap_or(dst_ip);
                let found = match self.is_routed {
                    true => NextHop::At(ROUTED_MAC),
                    false => self.neighbour_mac(link.index, next_hop, is_requested)?,
                };
                match found {
                    NextHop::At(mac) => headers.dst_mac = mac,
                    NextHop::Requested => return Ok(Lookup::Requested(next_hop)),
                    NextHop::GivenUp => return Ok(Lookup::GivenUp(next_hop)),
                }
                // Without a next hop, no event about a neighbour changes the path.
                headers.next_hop = (!self.is_routed).then_some(next_hop);
                headers.hop_limit = hop_limit.unwrap_or(HOP_LIMIT);
                headers.mtu = mtu.map_or(link.mtu, |mtu| mtu.min(link.mtu));
                Ok(Lookup::Found(headers))
            }
            Route::Local => Err(ResolveError::LocalDestination { destination: dst_ip }),
            Route::Broadcast => Err(ResolveError::NotAHost { destination: dst_ip }),
            Route::None => Err(ResolveError::NoRoute { destination: dst_ip, interface: link.name }),
        }
    }

    /// Returns the headers of packets from `source` to `destination`, another address of the same
    /// interface: both Ethernet addresses are the interface's own.
    ///
    /// # Errors
    /// [`ResolveError::FamilyMismatch`], or the kernel's error.
    pub fn resolve_own(
        &mut self,
        destination: Gid,
        source: &GidEntry,
    ) -> Result<PathHeaders, ResolveError> {
        let name = source.interface_name.as_str();
        let link = Interface::read_index(&mut self.requests, source.interface, name)?;
        PathHeaders::to_self(destination, source, link.mac, link.mtu)
    }

    /// Checks what the lookup of a route bound to one interface does not report: IPv6 finds an
    /// address of another interface of this host "through the gateway", and IPv4 reports only
    /// "invalid" for a removed source.
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

    /// Returns the MAC address of `next_hop`, or that its resolution is pending.
    fn neighbour_mac(
        &mut self,
        interface: u32,
        next_hop: IpAddr,
        is_requested: bool,
    ) -> Result<NextHop, ResolveError> {
        match Neighbour::find(&mut self.requests, interface, next_hop)?.map(|found| found.status) {
            Some(
                Status::Known(mac)
                | Status::Confirming(mac)
                | Status::Permanent(mac)
                | Status::NoArp(mac),
            ) => Ok(NextHop::At(mac)),
            Some(Status::Stale(mac)) => {
                if let Err(error) = Neighbour::trigger(&mut self.requests, interface, next_hop) {
                    tracing::debug!(%next_hop, %error, "stale neighbour used without confirmation");
                }
                Ok(NextHop::At(mac))
            }
            Some(Status::Failed) if is_requested => Ok(NextHop::GivenUp),
            Some(Status::Pending) if is_requested => Ok(NextHop::Requested),
            // Not requested yet, or flushed meanwhile.
            Some(Status::Pending | Status::Failed) | None => {
                self.trigger(interface, next_hop)?;
                Ok(NextHop::Requested)
            }
        }
    }

    /// Makes the kernel resolve `next_hop` if its Ethernet address is not known, and confirm the
    /// address if it is stale. Does not wait. Returns true if the kernel knows an address.
    ///
    /// Does nothing while the interface is down: the request would be lost, and the kernel repeats
    /// it only after a second.
    ///
    /// # Errors
    /// [`ResolveError::Permission`], or the kernel's error.
    pub(crate) fn renew(&mut self, interface: u32, next_hop: IpAddr) -> Result<bool, ResolveError> {
        let name = format!("with index {interface}");
        if !Interface::read_index(&mut self.requests, interface, &name)?.is_usable() {
            return Ok(false);
        }
        Ok(matches!(self.neighbour_mac(interface, next_hop, false)?, NextHop::At(_)))
    }

    /// Makes the kernel confirm the next hop of `headers`, because its entry may be old, and waits
    /// for the answer for at most about `timeout`. The first request goes to the known address,
    /// later ones are broadcast or multicast. The kernel takes three seconds to give up on either.
    ///
    /// # Errors
    /// [`ResolveError::Unresolved`] if it does not answer, [`ResolveError::Permission`], or the
    /// kernel's error.
    pub fn confirm(
        &mut self,
        headers: &PathHeaders,
        timeout: Duration,
    ) -> Result<Confirmation, ResolveError> {
        let Some(next_hop) = headers.next_hop else {
            return Ok(Confirmation::NoArp(headers.dst_mac));
        };
        let (mut confirmed, mut sent) = (Confirmation::NoArp(headers.dst_mac), Request::None);
        let interface = headers.interface;
        wait(timeout, |_| {
            let found = Neighbour::find(&mut self.requests, interface, next_hop)?;
            let status = found.map(|found| found.status);
            match (status, sent) {
                (Some(Status::Permanent(mac)), _) => confirmed = Confirmation::Permanent(mac),
                (Some(Status::NoArp(mac)), _) => confirmed = Confirmation::NoArp(mac),
                (Some(Status::Known(mac)), Request::Unicast | Request::Broadcast) => {
                    confirmed = Confirmation::Answered(mac);
                }
                (Some(Status::Failed), Request::Broadcast) => return Ok(Lookup::GivenUp(next_hop)),
                // The kernel is resolving it, for this request or another one.
                (Some(Status::Confirming(_) | Status::Pending), _) => {
                    return Ok(Lookup::Requested(next_hop));
                }
                (Some(Status::Known(_) | Status::Stale(_)), _) => {
                    self.probe(interface, next_hop)?;
                    sent = Request::Unicast;
                    return Ok(Lookup::Requested(next_hop));
                }
                // The neighbour may have moved.
                (Some(Status::Failed) | None, _) => {
                    self.trigger(interface, next_hop)?;
                    sent = Request::Broadcast;
                    return Ok(Lookup::Requested(next_hop));
                }
            }
            Ok(Lookup::Found(*headers))
        })?;
        Ok(confirmed)
    }

    fn probe(&mut self, interface: u32, next_hop: IpAddr) -> Result<(), ResolveError> {
        match Neighbour::probe(&mut self.requests, interface, next_hop) {
            Err(NetError::Permission { .. }) => Err(ResolveError::Permission { next_hop }),
            // The entry was removed meanwhile.
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

/// Returns the multicast MAC address of a group (RFC 1112, RFC 2464).
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

    /// RFC 1112, RFC 2464.
    #[test]
    fn multicast_groups_map_to_their_mac_addresses() {
        let cases = [
            ("224.0.0.251", [0x01, 0x00, 0x5e, 0x00, 0x00, 0xfb]),
            ("239.129.2.3", [0x01, 0x00, 0x5e, 0x01, 0x02, 0x03]), // The low 23 bits only.
            ("ff02::1:ff12:3456", [0x33, 0x33, 0xff, 0x12, 0x34, 0x56]),
        ];
        for (group, mac) in cases {
            assert_eq!(multicast_mac(group.parse().unwrap()), MacAddr(mac), "{group}");
        }
    }
}

//! Routes: the next hop to an address.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};

use netlink_packet_route::route::{
    RouteAddress, RouteAttribute, RouteFlags, RouteMessage, RouteMetric, RouteType, RouteVia,
};
use netlink_packet_route::{AddressFamily, RouteNetlinkMessage};

use super::NetError;
use super::netlink::Connection;

/// Returns the source address that the kernel would choose. Nothing is sent.
pub fn chosen_source(destination: SocketAddr) -> Option<IpAddr> {
    let any: IpAddr = match destination {
        SocketAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        SocketAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    let socket = UdpSocket::bind((any, 0)).ok()?;
    // `connect` refuses port 0; the port does not influence the route.
    let port = if destination.port() == 0 { 1 } else { destination.port() };
    let mut destination = destination;
    destination.set_port(port);
    socket.connect(destination).ok()?;
    socket.local_addr().ok().map(|own| own.ip())
}

/// The kernel's routing decision for one destination.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Route {
    /// Through an interface.
    Unicast {
        /// Router; `None` if the destination is on the link.
        gateway: Option<IpAddr>,
        /// Largest IP packet in bytes, if the route limits it.
        mtu: Option<u32>,
        /// Hop limit, if the route sets one.
        hop_limit: Option<u8>,
    },
    /// The destination is this host.
    Local,
    /// The destination is a broadcast or anycast address.
    Broadcast,
    /// No route.
    None,
}

impl Route {
    /// Returns the route from `source` to `destination` through `interface`.
    pub(super) fn find(
        connection: &mut Connection,
        destination: IpAddr,
        source: IpAddr,
        interface: u32,
    ) -> Result<Self, NetError> {
        let request = message(destination, source, interface);
        let route = Self::get(connection, request.clone())?;
        // For a given interface, IPv4 treats a destination without any route as on-link. Only the
        // lookup that shows the matching table entry reveals that there is none.
        if destination.is_ipv4() && matches!(route, Self::Unicast { gateway: None, .. }) {
            let mut entry = request;
            entry.header.flags = RouteFlags::FibMatch;
            if Self::get(connection, entry)? == Self::None {
                return Ok(Self::None);
            }
        }
        Ok(route)
    }

    fn get(connection: &mut Connection, request: RouteMessage) -> Result<Self, NetError> {
        let request = RouteNetlinkMessage::GetRoute(request);
        match connection.request("look up a route", request, 0) {
            Ok(replies) => Ok(replies
                .iter()
                .find_map(|reply| match reply {
                    RouteNetlinkMessage::NewRoute(message) => Some(Self::from_message(message)),
                    _ => None,
                })
                .unwrap_or(Self::None)),
            // Unreachable, no route, prohibited, black hole.
            Err(NetError::System {
                errno: libc::ENETUNREACH | libc::EHOSTUNREACH | libc::EACCES | libc::EINVAL,
                ..
            }) => Ok(Self::None),
            Err(error) => Err(error),
        }
    }

    fn from_message(message: &RouteMessage) -> Self {
        match message.header.kind {
            RouteType::Unicast => {}
            RouteType::Local => return Self::Local,
            RouteType::Broadcast | RouteType::Anycast | RouteType::Multicast => {
                return Self::Broadcast;
            }
            _ => return Self::None,
        }
        let mut gateway = None;
        let mut mtu = None;
        let mut hop_limit = None;
        for attribute in &message.attributes {
            match attribute {
                RouteAttribute::Gateway(RouteAddress::Inet(ip))
                | RouteAttribute::Via(RouteVia::Inet(ip)) => gateway = Some(IpAddr::V4(*ip)),
                RouteAttribute::Gateway(RouteAddress::Inet6(ip))
                | RouteAttribute::Via(RouteVia::Inet6(ip)) => gateway = Some(IpAddr::V6(*ip)),
                RouteAttribute::Metrics(metrics) => {
                    for metric in metrics {
                        match metric {
                            RouteMetric::Mtu(value) if *value > 0 => mtu = Some(*value),
                            RouteMetric::Hoplimit(value) => {
                                hop_limit = u8::try_from(*value).ok().filter(|limit| *limit > 0);
                            }
                            _ => {}
                        }
                    }
                }
                _ => {}
            }
        }
        Self::Unicast { gateway, mtu, hop_limit }
    }
}

fn message(destination: IpAddr, source: IpAddr, interface: u32) -> RouteMessage {
    let mut message = RouteMessage::default();
    let (family, bits) = match destination {
        IpAddr::V4(_) => (AddressFamily::Inet, 32),
        IpAddr::V6(_) => (AddressFamily::Inet6, 128),
    };
    message.header.address_family = family;
    message.header.destination_prefix_length = bits;
    message.header.source_prefix_length = bits;
    message.attributes = vec![
        RouteAttribute::Destination(destination.into()),
        RouteAttribute::Source(source.into()),
        RouteAttribute::Oif(interface),
    ];
    message
}

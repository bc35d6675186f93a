//! Neighbours: MAC addresses of on-link IP addresses, as known to the kernel.

use std::net::IpAddr;

use netlink_packet_core::NLM_F_CREATE;
use netlink_packet_route::neighbour::{
    NeighbourAddress, NeighbourAttribute, NeighbourFlags, NeighbourMessage, NeighbourState,
};
use netlink_packet_route::{AddressFamily, RouteNetlinkMessage};

use super::NetError;
use super::interface::mac_from;
use super::netlink::Connection;
use feroce_wire::MacAddr;

/// An entry of the kernel's ARP or neighbour discovery table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Neighbour {
    /// Index of the interface.
    pub interface: u32,
    /// IP address of the neighbour.
    pub ip: IpAddr,
    /// State of its MAC address.
    pub status: Status,
}

/// State of a neighbour's MAC address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Status {
    /// Confirmed recently.
    Known(MacAddr),
    /// Known, and being confirmed.
    Confirming(MacAddr),
    /// Set by the administrator or by a program (`permanent`); the kernel does not verify it.
    Permanent(MacAddr),
    /// Known, but not confirmed for some time.
    Stale(MacAddr),
    /// Derived from the IP address, never resolved (`noarp`: multicast, loopback).
    NoArp(MacAddr),
    /// Being resolved.
    Pending,
    /// Resolution failed.
    Failed,
}

impl Neighbour {
    /// Returns the entry of `ip` on interface `interface`, if there is one.
    pub(super) fn find(
        connection: &mut Connection,
        interface: u32,
        ip: IpAddr,
    ) -> Result<Option<Self>, NetError> {
        let request = RouteNetlinkMessage::GetNeighbour(message(interface, ip));
        match connection.request("read a neighbour", request, 0) {
            Ok(replies) => Ok(replies.iter().find_map(|reply| match reply {
                RouteNetlinkMessage::NewNeighbour(message) => Self::from_message(message),
                _ => None,
            })),
            Err(NetError::System { errno: libc::ENOENT, .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Makes the kernel resolve `ip` as if a packet for it were waiting. (Reading the table
    /// resolves nothing.)
    pub(super) fn trigger(
        connection: &mut Connection,
        interface: u32,
        ip: IpAddr,
    ) -> Result<(), NetError> {
        let mut message = message(interface, ip);
        message.header.flags = NeighbourFlags::Use;
        let request = RouteNetlinkMessage::NewNeighbour(message);
        connection.request("make the kernel resolve a neighbour", request, NLM_F_CREATE)?;
        Ok(())
    }

    /// Makes the kernel confirm the neighbour `ip`, whose MAC address it knows, at once.
    pub(super) fn probe(
        connection: &mut Connection,
        interface: u32,
        ip: IpAddr,
    ) -> Result<(), NetError> {
        let mut message = message(interface, ip);
        message.header.state = NeighbourState::Probe;
        let request = RouteNetlinkMessage::NewNeighbour(message);
        // Neither created nor replaced: replacing would clear the flag of a router.
        connection.request("make the kernel confirm a neighbour", request, 0)?;
        Ok(())
    }

    /// Returns the entries of all interfaces.
    pub(super) fn dump(connection: &mut Connection) -> Result<Vec<Self>, NetError> {
        let request = RouteNetlinkMessage::GetNeighbour(NeighbourMessage::default());
        let replies = connection.dump("list neighbours", &request)?;
        let neighbours = replies.iter().filter_map(|reply| match reply {
            RouteNetlinkMessage::NewNeighbour(message) => Self::from_message(message),
            _ => None,
        });
        Ok(neighbours.collect())
    }

    /// Returns `None` for an entry of another family, or not yet in use.
    pub(super) fn from_message(message: &NeighbourMessage) -> Option<Self> {
        let (interface, ip) = Self::key(message)?;
        let mac = message.attributes.iter().find_map(|attribute| match attribute {
            NeighbourAttribute::LinkLayerAddress(bytes) => mac_from(bytes),
            _ => None,
        });
        let status = match message.header.state {
            NeighbourState::Permanent => Status::Permanent(mac?),
            _ if message.header.flags.contains(NeighbourFlags::ExtLearned) => {
                Status::Permanent(mac?)
            }
            NeighbourState::Reachable => Status::Known(mac?),
            NeighbourState::Probe => Status::Confirming(mac?),
            // In state Delay the kernel confirms the neighbour in a few seconds.
            NeighbourState::Stale | NeighbourState::Delay => Status::Stale(mac?),
            NeighbourState::Noarp => Status::NoArp(mac?),
            NeighbourState::Incomplete => Status::Pending,
            NeighbourState::Failed => Status::Failed,
            _ => return None,
        };
        Some(Self { interface, ip, status })
    }

    /// Returns the interface and the address of an entry in any state; `None` if it is of another
    /// family.
    pub(super) fn key(message: &NeighbourMessage) -> Option<(u32, IpAddr)> {
        let ip = message.attributes.iter().find_map(|attribute| match attribute {
            NeighbourAttribute::Destination(NeighbourAddress::Inet(v4)) => Some(IpAddr::V4(*v4)),
            NeighbourAttribute::Destination(NeighbourAddress::Inet6(v6)) => Some(IpAddr::V6(*v6)),
            _ => None,
        });
        Some((message.header.ifindex, ip?))
    }
}

fn message(interface: u32, ip: IpAddr) -> NeighbourMessage {
    let mut message = NeighbourMessage::default();
    message.header.family = match ip {
        IpAddr::V4(_) => AddressFamily::Inet,
        IpAddr::V6(_) => AddressFamily::Inet6,
    };
    message.header.ifindex = interface;
    message.attributes.push(NeighbourAttribute::Destination(ip.into()));
    message
}

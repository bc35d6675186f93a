//! Neighbours: which MAC address an on-link IP address has, as far as the kernel knows.

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
    /// The neighbour's address.
    pub ip: IpAddr,
    /// What is known of its MAC address.
    pub status: Status,
}

/// What the kernel knows of a neighbour.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Status {
    /// Its MAC address, confirmed lately.
    Known(MacAddr),
    /// Its MAC address, which is being confirmed.
    Confirming(MacAddr),
    /// Its MAC address, which somebody has entered: for good, or a program that knows better than to ask.
    Entered(MacAddr),
    /// Its MAC address, which nobody confirmed for a while.
    Stale(MacAddr),
    /// Derived by rule, never asked for (multicast, loopback).
    Fixed(MacAddr),
    /// Being asked for.
    Pending,
    /// It did not answer.
    Failed,
}

impl Neighbour {
    /// The entry of `ip` on interface `interface`, if there is one.
    pub(super) fn find(
        connection: &mut Connection,
        interface: u32,
        ip: IpAddr,
    ) -> Result<Option<Self>, NetError> {
        let request = RouteNetlinkMessage::GetNeighbour(message(interface, ip));
        match connection.request("read a neighbour", request, 0) {
            Ok(answers) => Ok(answers.iter().find_map(|answer| match answer {
                RouteNetlinkMessage::NewNeighbour(message) => Self::from_message(message),
                _ => None,
            })),
            Err(NetError::System { errno: libc::ENOENT, .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Makes the kernel ask for `ip` as if a packet for it were waiting. Reading the table asks
    /// nobody.
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

    /// Makes the kernel ask the neighbour `ip`, whose MAC address it knows, whether it is still there, at once.
    pub(super) fn probe(
        connection: &mut Connection,
        interface: u32,
        ip: IpAddr,
    ) -> Result<(), NetError> {
        let mut message = message(interface, ip);
        message.header.state = NeighbourState::Probe;
        let request = RouteNetlinkMessage::NewNeighbour(message);
        // Neither made nor replaced: that would take the flag of a router away.
        connection.request("make the kernel confirm a neighbour", request, 0)?;
        Ok(())
    }

    /// The entries of all interfaces.
    pub(super) fn dump(connection: &mut Connection) -> Result<Vec<Self>, NetError> {
        let request = RouteNetlinkMessage::GetNeighbour(NeighbourMessage::default());
        let answers = connection.dump("list neighbours", &request)?;
        let neighbours = answers.iter().filter_map(|answer| match answer {
            RouteNetlinkMessage::NewNeighbour(message) => Self::from_message(message),
            _ => None,
        });
        Ok(neighbours.collect())
    }

    /// `None` for an entry that says nothing: of another family, or not yet in use.
    pub(super) fn from_message(message: &NeighbourMessage) -> Option<Self> {
        let mut ip = None;
        let mut mac = None;
        for attribute in &message.attributes {
            match attribute {
                NeighbourAttribute::Destination(NeighbourAddress::Inet(v4)) => {
                    ip = Some(IpAddr::V4(*v4));
                }
                NeighbourAttribute::Destination(NeighbourAddress::Inet6(v6)) => {
                    ip = Some(IpAddr::V6(*v6));
                }
                NeighbourAttribute::LinkLayerAddress(bytes) => mac = mac_from(bytes),
                _ => {}
            }
        }
        let status = match message.header.state {
            NeighbourState::Permanent => Status::Entered(mac?),
            _ if message.header.flags.contains(NeighbourFlags::ExtLearned) => Status::Entered(mac?),
            NeighbourState::Reachable => Status::Known(mac?),
            NeighbourState::Probe => Status::Confirming(mac?),
            // In Delay it will be asked, in some seconds.
            NeighbourState::Stale | NeighbourState::Delay => Status::Stale(mac?),
            NeighbourState::Noarp => Status::Fixed(mac?),
            NeighbourState::Incomplete => Status::Pending,
            NeighbourState::Failed => Status::Failed,
            _ => return None,
        };
        Some(Self { interface: message.header.ifindex, ip: ip?, status })
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

//! Checks whether a client may send a frame.
//!
//! | field | rule |
//! |---|---|
//! | Ethernet source, VLAN, IP source | an address of the host, with its VLAN |
//! | Ethernet destination | a next hop that the client has resolved, or the address of a group |
//! | source QP (UD) | one of the client's; QP 1 only for communication management |
//! | destination QP (RC, UC, XRC) | a QP that a QP of the client is connected to |
//! | destination QP (CNP) | the same, or the source QP of a datagram with a congestion mark |
//! | DSCP | one that the daemon allows |
//! | hop limit | not 0: the kernel refuses such packets |
//! | bytes after the packet | none |
//!
//! The ICRC is not checked: the client's own peer drops a packet with a wrong ICRC.

use std::collections::BTreeSet;
use std::net::IpAddr;

use feroce_wire::{Ecn, MacAddr, Opcode, Packet, Qpn};

use super::client::{ClientId, Permits};
use super::slices::SliceTable;
use crate::net::{GidEntry, multicast_mac};

/// The addresses of the daemon's host.
#[derive(Debug, Default)]
pub(super) struct HostAddresses {
    /// Ethernet addresses: the present one and all former ones.
    macs: BTreeSet<MacAddr>,
    /// The GID table.
    gids: Vec<GidEntry>,
    /// IP addresses with their VLANs.
    sources: BTreeSet<(IpAddr, Option<u16>)>,
    /// IP addresses.
    own: BTreeSet<IpAddr>,
}

impl HostAddresses {
    /// Sets the present Ethernet address. Clients may send from former addresses, too.
    pub(super) fn add_mac(&mut self, mac: MacAddr) {
        self.macs.insert(mac);
    }

    /// Replaces the GID table.
    pub(super) fn set_gids(&mut self, gids: Vec<GidEntry>) {
        self.sources = gids.iter().map(|entry| (entry.gid.ip(), entry.vlan)).collect();
        self.own = gids.iter().map(|entry| entry.gid.ip()).collect();
        self.gids = gids;
    }

    /// The GID table.
    pub(super) fn gids(&self) -> &[GidEntry] {
        &self.gids
    }

    /// Returns true if `ip` is an address of the host.
    pub(super) fn is_own(&self, ip: IpAddr) -> bool {
        self.own.contains(&ip)
    }
}

/// The destination of an admitted frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Destination {
    /// To another host.
    Link,
    /// To a client of this daemon.
    Host,
    /// To a multicast group: to other hosts and to clients of this daemon.
    Group(IpAddr),
}

/// Why a frame is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Refused {
    /// Its source is not an address of the host.
    Source,
    /// Its Ethernet destination is not the next hop of a path of the client.
    NextHop,
    /// Its source QP is not the client's.
    SourceQp,
    /// No QP of the client is connected to its destination QP.
    DestinationQp,
    /// It has bytes after the packet.
    Trailer,
    /// Its hop limit is 0.
    HopLimit,
    /// Its DSCP is not allowed.
    Dscp,
    /// It is not a RoCE packet.
    Packet,
    /// The client may not send its message of communication management.
    Management,
}

/// DSCPs that clients may use, one bit each.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Dscps(pub u64);

impl Default for Dscps {
    /// All.
    fn default() -> Self {
        Self(u64::MAX)
    }
}

/// The rules for the frames of one client.
#[derive(Debug, Clone, Copy)]
pub(super) struct Rules<'a> {
    pub(super) client: ClientId,
    pub(super) permits: &'a Permits,
    pub(super) host: &'a HostAddresses,
    pub(super) slices: &'a SliceTable,
    pub(super) dscps: Dscps,
}

impl Rules<'_> {
    /// Returns where `packet` goes, or why the client may not send it.
    pub(super) fn admit(&self, packet: &Packet<'_>) -> Result<Destination, Refused> {
        let vlan = packet.vlan.map(|tag| tag.id);
        let is_source = self.host.macs.contains(&packet.ethernet.src)
            && self.host.sources.contains(&(packet.ip.src(), vlan));
        if !is_source {
            return Err(Refused::Source);
        }
        if !packet.trailer.is_empty() {
            return Err(Refused::Trailer);
        }
        if packet.ip.hop_limit() == 0 {
            return Err(Refused::HopLimit);
        }
        if self.dscps.0 >> (packet.ip.traffic_class() >> 2) & 1 == 0 {
            return Err(Refused::Dscp);
        }
        self.check_qps(packet)?;
        self.destination(packet)
    }

    fn destination(&self, packet: &Packet<'_>) -> Result<Destination, Refused> {
        let (ip, mac) = (packet.ip.dst(), packet.ethernet.dst);
        if ip.is_multicast() {
            let is_group_mac = mac == multicast_mac(ip) || self.permits.next_hops.contains(&mac);
            return is_group_mac.then_some(Destination::Group(ip)).ok_or(Refused::NextHop);
        }
        if self.host.is_own(ip) {
            return Ok(Destination::Host);
        }
        self.permits.next_hops.contains(&mac).then_some(Destination::Link).ok_or(Refused::NextHop)
    }

    fn check_qps(&self, packet: &Packet<'_>) -> Result<(), Refused> {
        let (remote, remote_qpn) = (packet.ip.dst(), packet.bth.dest_qp);
        let Some(deth) = packet.ext.deth else {
            let is_peer = self.permits.is_peer(remote, remote_qpn)
                || packet.bth.opcode == Opcode::CNP && self.permits.is_marked((remote, remote_qpn));
            return is_peer.then_some(()).ok_or(Refused::DestinationQp);
        };
        let is_management = remote_qpn == Qpn::GSI;
        if is_management != (deth.src_qp == Qpn::GSI) {
            return Err(Refused::SourceQp);
        }
        if (remote_qpn == Qpn::MULTICAST) != remote.is_multicast() {
            return Err(Refused::DestinationQp);
        }
        let is_own = is_management || self.slices.owner(deth.src_qp) == Some(self.client);
        is_own.then_some(()).ok_or(Refused::SourceQp)
    }
}

/// Returns the source of a datagram with a congestion mark.
pub(super) fn marked_source(packet: &Packet<'_>) -> Option<(IpAddr, Qpn)> {
    let deth = packet.ext.deth?;
    (packet.ip.ecn() == Ecn::Ce).then(|| (packet.ip.src(), deth.src_qp))
}
